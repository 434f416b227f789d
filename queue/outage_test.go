package queue_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/queue"
)

// TestDatabaseAwayForLongerThanALease: a dispatcher holds 20 events when its database becomes unavailable. Meanwhile
// three succeed, four run until the database is back, and 13 are never started. All are delivered with one attempt
// each, even with a limit of one.
func TestDatabaseAwayForLongerThanALease(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for _, most := range []int{1, 2, 5} {
		for _, how := range []string{"silent", "cut"} {
			t.Run(fmt.Sprintf("%s, %d attempts", how, most), func(t *testing.T) {
				t.Parallel()
				testOutage(t, how == "cut", most)
			})
		}
	}
}

func testOutage(t *testing.T, cut bool, most int) {
	t.Helper()
	const events, early, workers = 20, 3, 4
	database := pgtest.Database(t)
	topic := runtimetest.JobTopic("one")
	topic = runtimetest.Altered(topic, func(s *outbox.TopicSpec) { s.Retry.MaxAttempts = most })
	proxy := pgtest.NewProxy(t, database)
	log := runtimetest.NewLogSpy()
	cfg := shortLease()
	cfg.Concurrency, cfg.BatchSize, cfg.Logger = workers, events, log.Logger()
	var mu sync.Mutex
	calls := make(map[uuid.UUID]int)
	started, open, back := make(chan struct{}, 2*events), make(chan struct{}), make(chan struct{})
	d := runtimetest.Dispatcher(t, proxy.Pool(t), cfg, runtimetest.OnJob(topic, func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
		mu.Lock()
		calls[d.ID]++
		n := len(calls)
		mu.Unlock()
		started <- struct{}{}
		if n <= early {
			<-open
		} else {
			<-back
		}
		return nil
	}))
	watch := queue.Watch(d)
	runtimetest.EnqueueJobs(t, database, topic, runtimetest.NumberedJobs(events)...)
	stop := runtimetest.StartDispatcher(t, d)
	for range workers {
		pgtest.Receive(t, started, "a handler")
	}
	pgtest.Settles(t, database, events, "SELECT count(*) FROM testing.events WHERE status = 'processing' AND attempts = 1")
	proxy.Swallow()
	if cut {
		proxy.Cut()
	}
	close(open)
	for range early {
		pgtest.Receive(t, started, "a handler in place of one that has returned")
	}
	for range events - early {
		log.Await(t, `msg="lease lost"`)
	}
	pgtest.Settles(t, database, events, "SELECT count(*) FROM testing.events WHERE status = 'processing' AND locked_until < now()")
	proxy.Pass()
	proxy.Cut() // swallowed data never arrives
	pgtest.Settles(t, database, early, runtimetest.DeliveredSQL)
	pgtest.Settles(t, database, events-early-workers, "SELECT count(*) FROM testing.events WHERE status = 'processing' AND attempts = 1 AND claim_no = 2 AND locked_until > now()")
	for range 4 {
		pgtest.Receive(t, watch.Maintained, "a sweep")
	}
	require.Equal(t, workers, pgtest.Count(t, database, "SELECT count(*) FROM testing.events WHERE status = 'processing' AND claim_no = 1 AND locked_until < now()"), "still run here")
	close(back)
	pgtest.Settles(t, database, events, runtimetest.DeliveredSQL+" AND attempts = 1")
	require.NoError(t, stop())
	require.Len(t, calls, events)
	for id, n := range calls {
		require.Equal(t, 1, n, "event %s", id)
	}
}

// TestUnavailablePublisherInAnOutage: an event that a publisher hands back after its lease was lost costs no attempt.
func TestUnavailablePublisherInAnOutage(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	database := pgtest.Database(t)
	proxy := pgtest.NewProxy(t, database)
	started, open := make(chan struct{}, 1), make(chan struct{})
	b := runtimetest.NewBroker()
	b.Answer = func(publish.Outgoing) error {
		select {
		case started <- struct{}{}:
		default:
		}
		<-open
		return outbox.Unavailable(errors.New("down"))
	}
	topic := runtimetest.PublishedTopic
	topic = runtimetest.Altered(topic, func(s *outbox.TopicSpec) { s.Retry.MaxAttempts = 1 })
	log := runtimetest.NewLogSpy()
	cfg := shortLease()
	cfg.Logger, cfg.Publishers = log.Logger(), map[string]publish.Publisher{"kafka": b}
	d := runtimetest.Dispatcher(t, proxy.Pool(t), cfg, queue.Publish(topic, publish.Publication{Broker: "kafka", Destination: "x"}))
	pgtest.InTx(t, database, func(tx pgx.Tx) {
		_, err := topic.Enqueue(t.Context(), tx, runtimetest.Said{Key: "a"})
		require.NoError(t, err)
	})
	stop := runtimetest.StartDispatcher(t, d)
	pgtest.Receive(t, started, "the publisher")
	proxy.Swallow()
	log.Await(t, `msg="lease lost"`)
	close(open)
	proxy.Pass()
	proxy.Cut()
	pgtest.Settles(t, database, 1, "SELECT count(*) FROM testing.events WHERE status = 'pending' AND attempts = 0")
	require.NoError(t, stop())
}

// TestSweepNotesAnEventBeforeItIsDead: a sweep of a dispatcher gives the holder of an event on its last attempt a grace
// that starts with the sweep, and never takes events of its own process.
func TestSweepNotesAnEventBeforeItIsDead(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("one")
	topic = runtimetest.Altered(topic, func(s *outbox.TopicSpec) { s.Retry.MaxAttempts = 1 })
	ids := runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(3)...)
	holder, err := queue.NewStore(pool, queue.StoreConfig{Namespace: "jobs"})
	require.NoError(t, err)
	claimed, err := holder.Claim(t.Context(), queue.ClaimConfig{})
	require.NoError(t, err)
	require.Len(t, claimed, 3)
	const noted = "SELECT count(*) FROM testing.events WHERE status = 'processing' AND updated_at > locked_until"
	sweeper := runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(topic, runtimetest.Succeed))
	sweep := func(held ...uuid.UUID) (died, seen int) {
		t.Helper()
		died, seen, err := queue.Sweep(t.Context(), sweeper, held)
		require.NoError(t, err)
		return died, seen
	}
	died, seen := sweep()
	require.Equal(t, []int{0, 0}, []int{died, seen}, "their leases last")
	age := func(by time.Duration) {
		pgtest.Execute(t, pool, "UPDATE testing.events SET updated_at = updated_at - $1::interval, locked_until = locked_until - $1::interval", by)
	}
	age(time.Hour) // longer than any grace: no process had the database
	died, seen = sweep(ids[2])
	require.Equal(t, []int{0, 2}, []int{died, seen})
	require.Equal(t, 2, pgtest.Count(t, pool, noted))
	died, seen = sweep(ids[2])
	require.Equal(t, []int{0, 0}, []int{died, seen}, "in their grace")
	outcomes, err := holder.Ack(t.Context(), claimed[0])
	require.NoError(t, err)
	require.Equal(t, []queue.Outcome{queue.Applied}, outcomes)
	age(queue.Grace(sweeper))
	died, seen = sweep(ids[2])
	require.Equal(t, []int{1, 0}, []int{died, seen})
	require.Equal(t, "delivered", runtimetest.StateOf(t, pool, claimed[0].ID).Status)
	require.Equal(t, "processing", runtimetest.StateOf(t, pool, ids[2]).Status)
	require.Contains(t, runtimetest.StateOf(t, pool, ids[1]).LastError, "lease ran out on attempt 1, worker ")

	died, seen = sweep()
	require.Equal(t, []int{0, 1}, []int{died, seen})
	outcomes, err = holder.Extend(t.Context(), time.Minute, claimed[2])
	require.NoError(t, err)
	require.Equal(t, []queue.Outcome{queue.Applied}, outcomes)
	require.Zero(t, pgtest.Count(t, pool, noted), "a renewal ends the grace")
}

// TestLastAttemptDoesNotStopTheOthers: a reclaimed event on its last attempt waits for a long handler, for a limited
// time. No other event waits.
func TestLastAttemptDoesNotStopTheOthers(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for name, c := range map[string]struct {
		attempts     int // of the long one
		lease        time.Duration
		startsAnyway bool // it is started while the long one runs
		runsLong     bool // it runs long too
	}{
		"next to one that can try again":           {attempts: 5, lease: time.Hour, startsAnyway: true},
		"next to one on its last attempt":          {attempts: 1, lease: time.Hour},
		"next to one on its last attempt, in time": {attempts: 1, lease: 1200 * time.Millisecond, startsAnyway: true},
		"long itself": {attempts: 5, lease: time.Hour, startsAnyway: true, runsLong: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			topic := runtimetest.JobTopic("one")
			long := runtimetest.JobTopic("long")
			long = runtimetest.Altered(long, func(s *outbox.TopicSpec) { s.Retry.MaxAttempts = c.attempts })
			started, open := make(chan int64, 20), make(chan struct{})
			handler := runtimetest.JobFunc(func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
				started <- d.Payload.N
				if d.Payload.N == 0 || d.Payload.N == 1 && c.runsLong {
					<-open
				}
				return nil
			})
			cfg := runtimetest.QuickConfig()
			cfg.LeaseDuration = c.lease
			d := runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, handler), runtimetest.OnJob(long, handler))
			queue.LimitLastAttempt(d, 50*time.Millisecond)
			stop := runtimetest.StartDispatcher(t, d)
			jobs := runtimetest.NumberedJobs(8)
			runtimetest.EnqueueJobs(t, pool, long, jobs[0])
			require.EqualValues(t, 0, pgtest.Receive(t, started, "the long handler"))
			reclaimed := enqueueLater(t, pool, topic, jobs[1])[0]
			lastAttempt(t, pool, reclaimed)
			pgtest.Settles(t, pool, 1, "SELECT count(*) FROM testing.events WHERE id = $1 AND claim_no = 5", reclaimed)
			runtimetest.EnqueueJobs(t, pool, topic, jobs[2:]...)
			pgtest.Settles(t, pool, 6, runtimetest.DeliveredSQL+" AND id <> $1", reclaimed)
			if !c.startsAnyway {
				require.Equal(t, "processing", runtimetest.StateOf(t, pool, reclaimed).Status, "it would make a dead letter of the long one")
				seen := len(started)
				for range seen {
					require.NotEqualValues(t, 1, <-started)
				}
			} else if !c.runsLong {
				pgtest.Settles(t, pool, 7, runtimetest.DeliveredSQL)
			}
			close(open)
			pgtest.Settles(t, pool, 8, runtimetest.DeliveredSQL)
			require.NoError(t, stop())
		})
	}
}
