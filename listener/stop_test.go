package listener_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

// TestListenerStopIsBounded: Run of a listener returns in time, even if the database does not answer and whatever
// hangs.
func TestListenerStopIsBounded(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for name, c := range map[string]struct {
		away    bool
		work    string
		message string
	}{
		"idle, no answer":            {away: true, work: "none"},
		"handler returns, no answer": {away: true, work: "returns", message: "could not be settled: "},
		"handler hangs, no answer":   {away: true, work: "hangs", message: "stop listener: still running after 4s: test/said "},
		"publisher hangs":            {work: "publisher", message: "stop listener: still running after 4s: test/said "},
		"publisher hangs, no answer": {away: true, work: "publisher", message: "stop listener: still running after 4s: test/said "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			proxy := pgtest.NewProxy(t, pool)
			open, started, gone := make(chan struct{}), make(chan struct{}, 2), make(chan struct{}, 2)
			defer close(open)
			cfg := listener.Config{ShutdownTimeout: runtimetest.StopTimeout, Logger: runtimetest.DiscardLogger()}
			handle := func(ctx context.Context, _ outbox.Delivery[runtimetest.Said]) error {
				started <- struct{}{}
				<-ctx.Done()
				if c.work == "hangs" {
					<-open
				}
				gone <- struct{}{}
				return context.Cause(ctx)
			}
			handler := listener.Handle(runtimetest.SaidTopic, struct{}{}, handle)
			if c.work == "publisher" {
				cfg.Publishers = map[string]publish.Publisher{"kafka": runtimetest.Hanging{Called: started, Open: open}}
				handler = listener.Publish(runtimetest.SaidTopic, publish.Publication{Broker: "kafka", Destination: "x"})
			}
			l, err := listener.New(proxy.Pool(t), listener.Spec{Name: "ears"}, cfg, handler)
			require.NoError(t, err)
			watch := listener.Watch(l)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			over := make(chan error, 1)
			go func() { over <- l.Run(ctx) }()
			pgtest.Receive(t, watch.Idle, "idleness")
			if c.work != "none" {
				runtimetest.PutAll(t, pool, "a1")
				pgtest.Receive(t, started, "the handler")
			}
			if c.away {
				proxy.Swallow()
			}
			err = runtimetest.StopsInTime(t, cancel, over)
			proxy.Pass()
			proxy.Cut()
			if c.message == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.message)
			}
			if c.work == "returns" {
				pgtest.Receive(t, gone, "the end of the handler")
			}
		})
	}
}
