package queue_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/queue"
)

// TestStopIsBounded: Run of a dispatcher returns in time and cancels its handlers in time, even if the database does
// not answer and whatever hangs.
func TestStopIsBounded(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for name, c := range map[string]struct {
		away    bool   // the database does not answer
		work    string // what is under way
		message string
	}{
		"idle":                       {work: "none"},
		"idle, no answer":            {away: true, work: "none"},
		"handler returns, no answer": {away: true, work: "returns", message: "could not be settled: "},
		"handler hangs":              {work: "hangs", message: "stop dispatcher: still running after 4s: jobs/one "},
		"handler hangs, no answer":   {away: true, work: "hangs", message: "could not be settled: "},
		"publisher hangs":            {work: "publisher", message: "stop dispatcher: still running after 4s: test/published "},
		"publisher hangs, no answer": {away: true, work: "publisher", message: "stop dispatcher: still running after 4s: test/published "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database := pgtest.Database(t)
			proxy := pgtest.NewProxy(t, database)
			cfg := queue.Config{ShutdownTimeout: runtimetest.StopTimeout, PollInterval: 50 * time.Millisecond, Logger: runtimetest.DiscardLogger(), Concurrency: 1, BatchSize: 2}
			open := make(chan struct{})
			defer close(open)
			started, cancelled, gone := make(chan struct{}, 2), make(chan time.Time, 2), make(chan struct{}, 2)
			topic := runtimetest.JobTopic("one")
			handler := runtimetest.OnJob(topic, func(ctx context.Context, _ outbox.Delivery[runtimetest.Job]) error {
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
				h := runtimetest.Hanging{Called: started, Open: open}
				cfg.Publishers = map[string]publish.Publisher{"kafka": h}
				handler = queue.Publish(runtimetest.PublishedTopic, publish.Publication{Broker: "kafka", Destination: "x"})
			}
			d := runtimetest.Dispatcher(t, proxy.Pool(t), cfg, handler)
			watch := queue.Watch(d)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			over := make(chan error, 1)
			go func() { over <- d.Run(ctx) }()
			switch c.work {
			case "none":
				pgtest.Receive(t, watch.Idle, "idleness")
			case "publisher":
				runtimetest.EnqueueSaid(t, database, 1)
				pgtest.Receive(t, started, "the publisher")
			default:
				runtimetest.EnqueueJobs(t, database, topic, runtimetest.NumberedJobs(2)...)
				pgtest.Receive(t, started, "the handler")
				pgtest.Settles(t, database, 2, "SELECT count(*) FROM testing.events WHERE status = 'processing'")
			}
			if c.away {
				proxy.Swallow()
			}
			begin := time.Now()
			err := runtimetest.StopsInTime(t, cancel, over)
			proxy.Pass() // for goroutines that close connections in the background
			proxy.Cut()
			if c.message == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.message)
			}
			if c.work == "returns" || c.work == "hangs" {
				at := pgtest.Receive(t, cancelled, "the cancelled context").Sub(begin)
				require.GreaterOrEqual(t, at, runtimetest.StopTimeout, "handlers may finish")
				require.Less(t, at, runtimetest.StopTimeout+runtimetest.StopSlack)
				require.Empty(t, started, "nothing is started after the end")
			}
			if c.work == "returns" {
				pgtest.Receive(t, gone, "the end of the handler") // before the leak check
			}
		})
	}
}
