package outbox_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

// TestListenerStopIsBounded: so does Run of a listener.
func TestListenerStopIsBounded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		away    bool
		work    string
		message string
	}{
		"idle, no answer":            {away: true, work: "none"},
		"handler heeds, no answer":   {away: true, work: "heeds", message: "could not be settled: "},
		"handler hangs, no answer":   {away: true, work: "hangs", message: "stop listener: still running after 4s: test/said "},
		"publisher hangs":            {work: "publisher", message: "stop listener: still running after 4s: test/said "},
		"publisher hangs, no answer": {away: true, work: "publisher", message: "stop listener: still running after 4s: test/said "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			proxy := newProxy(t, pool)
			open, started, gone := make(chan struct{}), make(chan struct{}, 2), make(chan struct{}, 2)
			defer close(open)
			cfg := outbox.ListenerConfig{ShutdownTimeout: stopTimeout, Logger: quiet()}
			handle := func(ctx context.Context, _ outbox.Delivery[said]) error {
				started <- struct{}{}
				<-ctx.Done()
				if c.work == "hangs" {
					<-open
				}
				gone <- struct{}{}
				return context.Cause(ctx)
			}
			handler := outbox.Listen(saidTopic, struct{}{}, handle)
			if c.work == "publisher" {
				cfg.Publishers = map[string]outbox.Publisher{"kafka": hanging{called: started, open: open}}
				handler = outbox.ListenPublish(saidTopic, outbox.Publication{Broker: "kafka", Destination: "x"})
			}
			l, err := outbox.NewListener(proxy.pool(t), outbox.ListenerSpec{Name: "ears"}, cfg, handler)
			require.NoError(t, err)
			watch := outbox.WatchListener(l)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			over := make(chan error, 1)
			go func() { over <- l.Run(ctx) }()
			receive(t, watch.Idle, "idleness")
			if c.work != "none" {
				putAll(t, pool, "a1")
				receive(t, started, "the handler")
			}
			if c.away {
				proxy.swallow()
			}
			err = stopsInTime(t, cancel, over)
			proxy.pass()
			proxy.cut()
			if c.message == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.message)
			}
			if c.work == "heeds" {
				receive(t, gone, "the end of the handler")
			}
		})
	}
}
