package outbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

// TestStopIsBounded: Run of a dispatcher comes back in time, and cancels its handlers in time, whether or not the database
// answers and whatever hangs.
func TestStopIsBounded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		away    bool   // the database does not answer
		work    string // what is under way
		message string
	}{
		"idle":                       {work: "none"},
		"idle, no answer":            {away: true, work: "none"},
		"handler heeds, no answer":   {away: true, work: "heeds", message: "could not be settled: "},
		"handler hangs":              {work: "hangs", message: "stop dispatcher: still running after 4s: jobs/one "},
		"handler hangs, no answer":   {away: true, work: "hangs", message: "could not be settled: "},
		"publisher hangs":            {work: "publisher", message: "stop dispatcher: still running after 4s: test/published "},
		"publisher hangs, no answer": {away: true, work: "publisher", message: "stop dispatcher: still running after 4s: test/published "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database := pgtest.Database(t)
			proxy := newProxy(t, database)
			cfg := outbox.DispatcherConfig{ShutdownTimeout: stopTimeout, PollInterval: 50 * time.Millisecond, Logger: quiet(), Concurrency: 1, BatchSize: 2}
			open := make(chan struct{})
			defer close(open)
			started, cancelled, gone := make(chan struct{}, 2), make(chan time.Time, 2), make(chan struct{}, 2)
			topic := jobTopic("one")
			handler := onJob(topic, func(ctx context.Context, _ outbox.Delivery[job]) error {
				started <- struct{}{}
				<-ctx.Done()
				cancelled <- time.Now()
				if c.work == "hangs" {
					<-open
				}
				gone <- struct{}{}
				return context.Cause(ctx)
			})
			if c.work == "publisher" {
				h := hanging{called: started, open: open}
				cfg.Publishers = map[string]outbox.Publisher{"kafka": h}
				handler = outbox.Publish(publishedTopic, outbox.Publication{Broker: "kafka", Destination: "x"})
			}
			d := dispatcher(t, proxy.pool(t), cfg, handler)
			watch := outbox.Watch(d)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			over := make(chan error, 1)
			go func() { over <- d.Run(ctx) }()
			switch c.work {
			case "none":
				receive(t, watch.Idle, "idleness")
			case "publisher":
				enqueueSaid(t, database, 1)
				receive(t, started, "the publisher")
			default:
				enqueueJobs(t, database, topic, numbered(2)...)
				receive(t, started, "the handler")
				settles(t, database, 2, "SELECT count(*) FROM outbox.events WHERE status = 'processing'")
			}
			if c.away {
				proxy.swallow()
			}
			begin := time.Now()
			err := stopsInTime(t, cancel, over)
			proxy.pass() // for what closes its connections in the background
			proxy.cut()
			if c.message == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.message)
			}
			if c.work == "heeds" || c.work == "hangs" {
				at := receive(t, cancelled, "the cancelled context").Sub(begin)
				require.GreaterOrEqual(t, at, stopTimeout, "handlers may finish")
				require.Less(t, at, stopTimeout+stopSlack)
				require.Empty(t, started, "nothing is started after the end")
			}
			if c.work == "heeds" {
				receive(t, gone, "the end of the handler") // before the leak check
			}
		})
	}
}
