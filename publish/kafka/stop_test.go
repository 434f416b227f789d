package kafka_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
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
