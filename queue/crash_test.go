package queue_test

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/deliveryhistory"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/internal/testing/suspend"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// book is a history file that is checked at the end.
type book struct {
	path string
	log  *deliveryhistory.Log
}

func newBook(t testing.TB) *book {
	t.Helper()
	b := &book{path: filepath.Join(t.TempDir(), "history")}
	var err error
	b.log, err = deliveryhistory.Open(b.path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.log.Close()) })
	return b
}

// committed records events that are in the table.
func (b *book) committed(t testing.TB, ids ...uuid.UUID) {
	t.Helper()
	require.NoError(t, b.log.Tx(uuid.New(), deliveryhistory.Committed, ids...))
}

// check requires that every invariant holds.
func (b *book) check(t testing.TB, pool *pgxpool.Pool, c deliveryhistory.Conditions) *deliveryhistory.History {
	t.Helper()
	h, err := deliveryhistory.Read(b.path)
	require.NoError(t, err)
	rows, err := deliveryhistory.Rows(context.Background(), pool, pgtest.Schema)
	require.NoError(t, err)
	require.Empty(t, h.Check(rows, c))
	return h
}

// handler records deliveries in this process.
func (b *book) handler(topic outbox.Topic[runtimetest.Job]) queue.Handler {
	return runtimetest.OnJob(topic, func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
		return b.log.Delivery(d.ID, d.Attempt, "test")
	})
}

const patientLimit = 1000

// patient is a topic whose events survive many kills.
func patient() outbox.Topic[runtimetest.Job] {
	topic := runtimetest.JobTopic("one")
	topic = runtimetest.Altered(topic, func(s *outbox.TopicSpec) { s.Retry.MaxAttempts = patientLimit })
	return topic
}

// TestKilledMidBatch repeatedly kills a process with SIGKILL at random points of its batches.
func TestKilledMidBatch(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	b := newBook(t)
	topic := patient()
	o := orders{
		History: b.path, Worker: "child", Handler: "work",
		Lease: runtimetest.LongLease, Poll: 50 * time.Millisecond, Concurrency: 8, BatchSize: 40,
	}
	kills := runtimetest.Rounds(20)
	for range kills {
		b.committed(t, runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(50)...)...)
		c := newChild(t, pool, o)
		for range 1 + rand.IntN(50) { // at least 50 are fresh
			c.Await(t, runtimetest.Handling)
		}
		c.Kill()
		runtimetest.ChildIsGone(t, pool)
		runtimetest.ExpireLeases(t, pool)
	}
	d := runtimetest.Dispatcher(t, pool, shortLease(), b.handler(topic))
	stop := runtimetest.StartDispatcher(t, d)
	pgtest.Settles(t, pool, 50*kills, runtimetest.DeliveredSQL)
	require.NoError(t, stop())
	h := b.check(t, pool, deliveryhistory.Conditions{Faults: true, MaxAttempts: patientLimit})
	again := 0
	for _, seen := range h.Deliveries {
		again += seen - 1
	}
	t.Logf("%d kills, %d events, %d redeliveries", kills, len(h.Outcomes), again)
	require.LessOrEqual(t, again, kills*o.BatchSize, "only what a kill found in flight")
}

// TestKilledEventsAreReclaimed: the events of a killed process run again after the end of its lease, at the next poll.
func TestKilledEventsAreReclaimed(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	const held = 20
	pool := pgtest.Database(t)
	b := newBook(t)
	topic := patient()
	ids := runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(held)...)
	b.committed(t, ids...)
	o := orders{
		History: b.path, Worker: "child", Handler: "hang",
		Lease: 1500 * time.Millisecond, Poll: 500 * time.Millisecond, Concurrency: held, BatchSize: held,
	}
	c := newChild(t, pool, o)
	for range held {
		c.Await(t, runtimetest.Handling)
	}
	cfg := queue.Config{LeaseDuration: runtimetest.CrashLease, PollInterval: o.Poll, Logger: runtimetest.DiscardLogger()}
	again := make(chan time.Time, held)
	d := runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, func(ctx context.Context, d outbox.Delivery[runtimetest.Job]) error {
		var now time.Time
		if err := pool.QueryRow(ctx, "SELECT statement_timestamp()").Scan(&now); err != nil {
			return err
		}
		again <- now
		return b.log.Delivery(d.ID, d.Attempt, "test")
	}))
	watch := queue.Watch(d)
	stop := runtimetest.StartDispatcher(t, d)
	pgtest.Receive(t, watch.Idle, "idleness")
	until := pgtest.Value[time.Time](t, pool, "SELECT min(locked_until) FROM testing.events") // at least
	c.Kill()
	killed := pgtest.Value[time.Time](t, pool, "SELECT statement_timestamp()")
	var last time.Time
	for range held {
		last = pgtest.Receive(t, again, "a reclaimed event")
		require.False(t, last.Before(until), "not before the lease is over")
	}
	t.Logf("lease %s, poll %s: the last of %d events ran again %s after the kill", o.Lease, o.Poll, held, last.Sub(killed))
	pgtest.Settles(t, pool, held, runtimetest.DeliveredSQL)
	require.NoError(t, stop())
	b.check(t, pool, deliveryhistory.Conditions{Faults: true, MaxAttempts: patientLimit})
}

func TestKilledOnLastAttempt(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	b := newBook(t)
	topic := runtimetest.JobTopic("one")
	topic = runtimetest.Altered(topic, func(s *outbox.TopicSpec) { s.Retry.MaxAttempts = 1 })
	id := runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(1)...)[0]
	b.committed(t, id)
	c := newChild(t, pool, orders{
		History: b.path, Worker: "child", Handler: "hang",
		Lease: time.Second, Poll: 50 * time.Millisecond, Concurrency: 1, BatchSize: 1,
	})
	c.Await(t, runtimetest.Handling)
	c.Kill()
	killed := time.Now()
	cfg := queue.Config{LeaseDuration: time.Second, PollInterval: 50 * time.Millisecond, Logger: runtimetest.DiscardLogger()}
	stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, cfg, b.handler(topic)))
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM testing.events WHERE status = 'dead'")
	t.Logf("lease %s: dead %s after the kill", cfg.LeaseDuration, time.Since(killed))
	require.NoError(t, stop())
	r := runtimetest.StateOf(t, pool, id)
	require.Equal(t, 1, r.Attempts)
	require.Contains(t, r.LastError, "lease ran out on attempt 1, worker ")
	b.check(t, pool, deliveryhistory.Conditions{MaxAttempts: 1})
}

// TestStoppedPastItsLease freezes a process in its handler until another has delivered the event, then resumes it: its
// ack is lost, and its failure is not a nack.
func TestStoppedPastItsLease(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	b := newBook(t)
	topic := patient()
	c := newChild(t, pool, orders{
		History: b.path, Worker: "child", Handler: "hang",
		Lease: time.Second, Poll: 50 * time.Millisecond, Concurrency: 1, BatchSize: 1,
	})
	cfg := queue.Config{LeaseDuration: time.Second, PollInterval: 50 * time.Millisecond, Logger: runtimetest.DiscardLogger()}
	for cycle := range runtimetest.Rounds(4) {
		id := runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(1)...)[0]
		b.committed(t, id)
		c.Await(t, runtimetest.Handling)
		c.Signal(t, suspend.Stop)
		stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, cfg, b.handler(topic)))
		pgtest.Settles(t, pool, 1, "SELECT count(*) FROM testing.events WHERE id = $1 AND status = 'delivered'", id)
		require.NoError(t, stop())
		before := runtimetest.StateOf(t, pool, id)
		c.Signal(t, suspend.Continue)
		if cycle%2 == 0 {
			c.Tell(t, "ok")
			require.Contains(t, c.Await(t, "lost to another claim"), `"msg":"event was handled but lost to another claim"`)
		} else {
			c.Tell(t, "fail")
			// The line is "event lost" if the child has noticed the loss itself, and "event failed and was lost ..." if
			// the database refused the nack.
			require.Contains(t, c.Await(t, "failed as told"), "lost")
		}
		require.Equal(t, before, runtimetest.StateOf(t, pool, id))
	}
	require.NoError(t, c.Input.Close())
	c.Signal(t, syscall.SIGTERM)
	require.Empty(t, c.Await(t, "FAIL"))
	require.NoError(t, c.Wait())
	b.check(t, pool, deliveryhistory.Conditions{Faults: true, MaxAttempts: patientLimit})
}

// TestBatchStoppedPastItsLease freezes a process in a batch until another has delivered its events. When the call fails
// then, the process does not search: it has no lease any more.
func TestBatchStoppedPastItsLease(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	topic := patient()
	runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(8)...)
	c := newChild(t, pool, orders{
		History: newBook(t).path, Worker: "child", Handler: "whole", Batch: 8,
		Lease: time.Second, Poll: 50 * time.Millisecond, Concurrency: 1, BatchSize: 8,
	})
	require.Contains(t, c.Await(t, runtimetest.Handling), `"events":8`)
	c.Signal(t, suspend.Stop)
	cfg := queue.Config{LeaseDuration: time.Second, PollInterval: 50 * time.Millisecond, Logger: runtimetest.DiscardLogger()}
	stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, runtimetest.Succeed)))
	pgtest.Settles(t, pool, 8, runtimetest.DeliveredSQL)
	require.NoError(t, stop())
	c.Tell(t, "fail")
	c.Signal(t, suspend.Continue)
	for range 8 {
		line := c.Await(t, `"msg":"`)
		for !strings.Contains(line, "event lost") && !strings.Contains(line, "lost to another claim") {
			require.NotContains(t, line, runtimetest.Handling, "it searches")
			line = c.Await(t, `"msg":"`)
		}
	}
	c.Kill()
}

// TestPoisonKillsOnlyItself: one event ends every process that handles it; its neighbours survive it, also those of its
// batch.
func TestPoisonKillsOnlyItself(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ events, batch, concurrency int }{
		"single events": {100, 0, 10},
		"batches":       {500, 100, 4},
		"one batch":     {500, 500, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pgtest.Slow(t)
			poisonKills(t, c.events, orders{
				Handler: "poison", Batch: c.batch, Concurrency: c.concurrency, BatchSize: 100, Worker: "child",
				Lease: runtimetest.CrashLease, Poll: 50 * time.Millisecond, // it is swept once per lease
			})
		})
	}
}

func poisonKills(t *testing.T, events int, o orders) {
	t.Helper()
	pool := pgtest.Database(t)
	b := newBook(t)
	o.History = b.path
	topic := runtimetest.JobTopic("one")
	jobs := runtimetest.NumberedJobs(events)
	jobs[rand.IntN(events)].Secret = "poison"
	b.committed(t, runtimetest.EnqueueJobs(t, pool, topic, jobs...)...)
	settled := make(chan struct{})
	go func() {
		defer close(settled)
		for {
			var open int
			if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM testing.events WHERE finalized_at IS NULL").Scan(&open); err != nil || open == 0 {
				return
			}
			select {
			case <-t.Context().Done():
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	processes := 0
	for over := false; !over; processes++ {
		c := newChild(t, pool, o)
		ended := make(chan error, 1)
		go func() {
			c.Await(t, "nothing")
			ended <- c.Wait()
		}()
		select {
		case err := <-ended:
			require.ErrorContains(t, err, "exit status 7")
			runtimetest.ChildIsGone(t, pool)
			runtimetest.ExpireLeases(t, pool)
		case <-settled:
			over = true
			c.Kill()
			<-ended
		}
	}
	require.Equal(t, events-1, pgtest.Count(t, pool, runtimetest.DeliveredSQL))
	require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*) FROM testing.events WHERE status = 'dead' AND payload ->> 'secret' = 'poison' AND attempts = 5"))
	require.Equal(t, 6, processes, "five died of it, the sixth finished")
	for attempts, share := range map[int]int{3: 2, 4: 4, 5: 8} { // each process takes fewer events with it than the one before
		n := pgtest.Count(t, pool, "SELECT count(*) FROM testing.events WHERE attempts >= $1", attempts)
		t.Logf("%d events with %d attempts or more", n, attempts)
		require.LessOrEqual(t, n, 10+events/share)
	}
	b.check(t, pool, deliveryhistory.Conditions{Faults: true, MaxAttempts: 5})
}
