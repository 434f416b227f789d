package kafka_test

import (
	"bytes"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume/kafka"
)

// TestClientDoesNotFloodTheLog: what the client complains about in an outage is logged once per minute.
func TestClientDoesNotFloodTheLog(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	c.Close()
	var out lockedBuffer
	cfg := c.config()
	cfg.StartTimeout = 5 * time.Second
	cfg.Receive.Logger = slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	require.ErrorIs(t, run(t, receiver(t, database(t), &effects{}, cfg)), kafka.ErrUnreachable)
	loud, quiet := make(map[string]int), 0
	for line := range strings.Lines(out.String()) {
		m := regexp.MustCompile(`level=(\w+) msg=("kafka client: [^"]*")`).FindStringSubmatch(line)
		switch {
		case m == nil:
		case m[1] == "DEBUG":
			quiet++
		default:
			loud[m[1]+m[2]]++
			require.Equal(t, 1, loud[m[1]+m[2]], line)
			require.Contains(t, line, "consumer_group=")
		}
	}
	require.NotEmpty(t, loud)
	require.Positive(t, quiet, "repetitions are at DEBUG")
}

// lockedBuffer is a buffer that may be read while a goroutine of the client still writes.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
