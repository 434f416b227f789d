package outbox_test

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/history"
	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

// book is a history file and what is asked of it at the end.
type book struct {
	path string
	log  *history.Log
}

func newBook(t testing.TB) *book {
	t.Helper()
	b := &book{path: filepath.Join(t.TempDir(), "history")}
	var err error
	b.log, err = history.Open(b.path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.log.Close()) })
	return b
}

// committed notes events that are in the table.
func (b *book) committed(t testing.TB, ids ...uuid.UUID) {
	t.Helper()
	require.NoError(t, b.log.Tx(uuid.New(), history.Committed, ids...))
}

// check demands that every invariant holds.
func (b *book) check(t testing.TB, pool *pgxpool.Pool, c history.Conditions) *history.History {
	t.Helper()
	h, err := history.Read(b.path)
	require.NoError(t, err)
	rows, err := history.Rows(context.Background(), pool, pgtest.Schema)
	require.NoError(t, err)
	require.Empty(t, h.Check(rows, c))
	return h
}

// handler notes deliveries in this process.
func (b *book) handler(topic outbox.Topic[job]) outbox.TopicHandler {
	return onJob(topic, func(_ context.Context, d outbox.Delivery[job]) error {
		return b.log.Delivery(d.ID, d.Attempt, "test")
	})
}

// patient is a topic whose events outlive many kills.
func patient() outbox.Topic[job] {
	topic := jobTopic("one")
	topic = altered(topic, func(s *outbox.TopicSpec) { s.Retry.MaxAttempts = 1000 })
	return topic
}

// TestKilledMidBatch kills a process with SIGKILL at random points of its batches, over and over.
func TestKilledMidBatch(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	b := newBook(t)
	topic := patient()
	o := orders{
		History: b.path, Worker: "child", Handler: "work",
		Lease: longLease, Poll: 50 * time.Millisecond, Concurrency: 8, BatchSize: 40,
	}
	kills := rounds(20)
	for range kills {
		b.committed(t, enqueueJobs(t, pool, topic, numbered(50)...)...)
		c := newChild(t, pool, o)
		for range 1 + rand.IntN(50) { // there are 50 fresh ones at least
			c.await(t, handling)
		}
		c.kill()
		childIsGone(t, pool)
		expire(t, pool)
	}
	d := dispatcher(t, pool, shortLease(), b.handler(topic))
	stop := start(t, d)
	settles(t, pool, 50*kills, delivered)
	require.NoError(t, stop())
	h := b.check(t, pool, history.Conditions{Faults: true})
	again := 0
	for _, seen := range h.Deliveries {
		again += seen - 1
	}
	t.Logf("%d kills, %d events, %d redeliveries", kills, len(h.Outcomes), again)
	require.LessOrEqual(t, again, kills*o.BatchSize, "only what a kill found in flight")
}

// TestKilledEventsAreReclaimed: what a killed process held runs again after the end of its lease, at the next poll.
func TestKilledEventsAreReclaimed(t *testing.T) {
	t.Parallel()
	const held = 20
	pool := pgtest.Database(t)
	b := newBook(t)
	topic := patient()
	ids := enqueueJobs(t, pool, topic, numbered(held)...)
	b.committed(t, ids...)
	o := orders{
		History: b.path, Worker: "child", Handler: "hang",
		Lease: 1500 * time.Millisecond, Poll: 500 * time.Millisecond, Concurrency: held, BatchSize: held,
	}
	c := newChild(t, pool, o)
	for range held {
		c.await(t, handling)
	}
	cfg := outbox.DispatcherConfig{LeaseDuration: crashLease, PollInterval: o.Poll, Logger: quiet()}
	again := make(chan time.Time, held)
	d := dispatcher(t, pool, cfg, onJob(topic, func(ctx context.Context, d outbox.Delivery[job]) error {
		var now time.Time
		if err := pool.QueryRow(ctx, "SELECT statement_timestamp()").Scan(&now); err != nil {
			return err
		}
		again <- now
		return b.log.Delivery(d.ID, d.Attempt, "test")
	}))
	watch := outbox.Watch(d)
	stop := start(t, d)
	receive(t, watch.Idle, "idleness")
	until := value[time.Time](t, pool, "SELECT min(locked_until) FROM outbox.events") // at least
	c.kill()
	killed := value[time.Time](t, pool, "SELECT statement_timestamp()")
	var last time.Time
	for range held {
		last = receive(t, again, "a reclaimed event")
		require.False(t, last.Before(until), "not before the lease is over")
	}
	t.Logf("lease %s, poll %s: the last of %d events ran again %s after the kill", o.Lease, o.Poll, held, last.Sub(killed))
	settles(t, pool, held, delivered)
	require.NoError(t, stop())
	b.check(t, pool, history.Conditions{Faults: true})
}

func TestKilledOnLastAttempt(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	b := newBook(t)
	topic := jobTopic("one")
	topic = altered(topic, func(s *outbox.TopicSpec) { s.Retry.MaxAttempts = 1 })
	id := enqueueJobs(t, pool, topic, numbered(1)...)[0]
	b.committed(t, id)
	c := newChild(t, pool, orders{
		History: b.path, Worker: "child", Handler: "hang",
		Lease: time.Second, Poll: 50 * time.Millisecond, Concurrency: 1, BatchSize: 1,
	})
	c.await(t, handling)
	c.kill()
	killed := time.Now()
	cfg := outbox.DispatcherConfig{LeaseDuration: time.Second, PollInterval: 50 * time.Millisecond, Logger: quiet()}
	stop := start(t, dispatcher(t, pool, cfg, b.handler(topic)))
	settles(t, pool, 1, "SELECT count(*) FROM outbox.events WHERE status = 'dead'")
	t.Logf("lease %s: dead %s after the kill", cfg.LeaseDuration, time.Since(killed))
	require.NoError(t, stop())
	r := stateOf(t, pool, id)
	require.Equal(t, 1, r.Attempts)
	require.Contains(t, r.LastError, "lease ran out on attempt 1, worker ")
	b.check(t, pool, history.Conditions{})
}

// TestStoppedPastItsLease freezes a process in its handler until another has delivered the event, then lets it
// go on: its ack is lost, its failure is not a nack.
func TestStoppedPastItsLease(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	b := newBook(t)
	topic := patient()
	c := newChild(t, pool, orders{
		History: b.path, Worker: "child", Handler: "hang",
		Lease: time.Second, Poll: 50 * time.Millisecond, Concurrency: 1, BatchSize: 1,
	})
	cfg := outbox.DispatcherConfig{LeaseDuration: time.Second, PollInterval: 50 * time.Millisecond, Logger: quiet()}
	for cycle := range rounds(4) {
		id := enqueueJobs(t, pool, topic, numbered(1)...)[0]
		b.committed(t, id)
		c.await(t, handling)
		c.signal(t, syscall.SIGSTOP)
		stop := start(t, dispatcher(t, pool, cfg, b.handler(topic)))
		settles(t, pool, 1, "SELECT count(*) FROM outbox.events WHERE id = $1 AND status = 'delivered'", id)
		require.NoError(t, stop())
		before := stateOf(t, pool, id)
		c.signal(t, syscall.SIGCONT)
		if cycle%2 == 0 {
			c.tell(t, "ok")
			require.Contains(t, c.await(t, "lost to another claim"), `"msg":"event was handled but lost to another claim"`)
		} else {
			c.tell(t, "fail")
			// "event lost" if the child has noticed by itself, "event failed and was lost ..." if it was told.
			require.Contains(t, c.await(t, "failed as told"), "lost")
		}
		require.Equal(t, before, stateOf(t, pool, id))
	}
	require.NoError(t, c.input.Close())
	c.signal(t, syscall.SIGTERM)
	require.Empty(t, c.await(t, "FAIL"))
	require.NoError(t, c.wait())
	b.check(t, pool, history.Conditions{Faults: true})
}

// TestPoisonKillsOnlyItself: one event ends every process that handles it; its neighbours survive it.
func TestPoisonKillsOnlyItself(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	b := newBook(t)
	topic := jobTopic("one")
	jobs := numbered(100)
	jobs[rand.IntN(100)].Secret = "poison"
	b.committed(t, enqueueJobs(t, pool, topic, jobs...)...)
	o := orders{
		History: b.path, Worker: "child", Handler: "poison",
		Lease: crashLease, Poll: 50 * time.Millisecond, Concurrency: 10, BatchSize: 100, // it is swept once a lease
	}
	settled := make(chan struct{})
	go func() {
		defer close(settled)
		for {
			var open int
			if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM outbox.events WHERE finalized_at IS NULL").Scan(&open); err != nil || open == 0 {
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
			c.await(t, "nothing")
			ended <- c.wait()
		}()
		select {
		case err := <-ended:
			require.ErrorContains(t, err, "exit status 7")
			childIsGone(t, pool)
			expire(t, pool)
		case <-settled:
			over = true
			c.kill()
			<-ended
		}
	}
	require.Equal(t, 99, count(t, pool, delivered))
	require.Equal(t, 1, count(t, pool, "SELECT count(*) FROM outbox.events WHERE status = 'dead' AND payload ->> 'secret' = 'poison' AND attempts = 5"))
	require.Equal(t, 6, processes, "five died of it, the sixth finished")
	b.check(t, pool, history.Conditions{Faults: true})
}
