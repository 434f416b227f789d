package kafka_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/kafka"
)

// TestStopDuringAnOutage: the end of the context ends a call that finds no broker. Its event was certainly not sent, although the
// producer was connected before, so no attempt is counted.
func TestStopDuringAnOutage(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	p := c.publisher(t)
	events := []publish.Outgoing{event("a", 1)}
	settle(t, p, events)
	c.Close()
	require.True(t, outbox.IsUnavailable(p.Publish(t.Context(), events)[0]), "the client notices that its connections are lost")

	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond) // the client's retries take longer
	defer cancel()
	require.ErrorIs(t, p.Publish(ctx, events)[0], outbox.ErrNotSent)
}

// TestClientDoesNotFloodTheLog: what the client complains about is logged once per minute, whatever the number of its attempts and
// of producers.
func TestClientDoesNotFloodTheLog(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.Close()
	handler := &countingHandler{lines: make(levels)}
	p := c.publisher(t, func(cfg *kafka.Config) {
		cfg.Timeout, cfg.Logger = 2*time.Second, slog.New(handler)
	})
	for range 2 {
		require.True(t, outbox.IsUnavailable(p.Publish(t.Context(), []publish.Outgoing{event("a", 1)})[0]))
	}
	p.Close()
	handler.mu.Lock() // a goroutine of the client may still end
	defer handler.mu.Unlock()
	repeated := 0
	for text, by := range handler.lines {
		require.LessOrEqual(t, by[slog.LevelWarn], 1, text)
		require.LessOrEqual(t, by[slog.LevelError], 1, text)
		repeated += by[slog.LevelDebug]
	}
	require.NotEmpty(t, handler.lines)
	require.Positive(t, repeated, "at DEBUG")
}

// levels counts log lines by their text and level.
type levels map[string]map[slog.Level]int

type countingHandler struct {
	slog.Handler
	mu    sync.Mutex
	lines levels
}

func (*countingHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h *countingHandler) Handle(_ context.Context, r slog.Record) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lines[r.Message] == nil {
		h.lines[r.Message] = make(map[slog.Level]int)
	}
	h.lines[r.Message][r.Level]++
	return nil
}
