package admin_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
)

func TestAdminSkipsTheEventThatFailed(t *testing.T) {
	t.Parallel()
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		a := runtimetest.AdminOf(t, pool)
		h := runtimetest.NewNotes()
		h.Fail = runtimetest.FailFor("b")
		l := runtimetest.ListenAs(t, pool, transactional, listener.Spec{Retry: runtimetest.LateRetry}, listener.Config{}, h)
		runtimetest.PutAll(t, pool, "a1", "b1", "a2")
		runtimetest.DrainAll(t, l)
		runtimetest.RetryNow(t, pool)
		runtimetest.DrainAll(t, l)
		e := runtimetest.Skip(t, a, uuid.Nil)
		require.Equal(t, runtimetest.IDOf(t, pool, "b1"), e.ID)
		require.Equal(t, "test said b 2", fmt.Sprint(e.Namespace, " ", e.Topic, " ", e.PartitionKey, " ", e.Attempt))
		require.False(t, e.CreatedAt.IsZero())
		require.Equal(t, "b1 2 skipped by operator: handler failed", deadLetters(t, pool))
		_, err := a.Skip(t.Context(), "ears", uuid.Nil)
		require.EqualError(t, err, "skip event: listener ears has no failed event: name the event to skip")

		require.Equal(t, listener.Report{Delivered: 1}, runtimetest.DrainAll(t, l), "due immediately")
		require.Equal(t, []string{"a1", "a2"}, h.Names())
		require.Equal(t, 1, h.Got[1].Attempt, "the attempts were those of the skipped one")
		require.Equal(t, "b1 2 skipped by operator: handler failed", deadLetters(t, pool))
	})
}

func TestSkipRejectsEventsThatAreNotNext(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	h := runtimetest.NewNotes()
	h.Fail = runtimetest.FailFor("b")
	l := runtimetest.ListenTo(t, pool, listener.Spec{Retry: runtimetest.LateRetry}, listener.Config{}, h)
	runtimetest.PutAll(t, pool, "a1", "b1", "a2", "b2")
	runtimetest.DrainAll(t, l)
	for _, id := range []uuid.UUID{uuid.New(), runtimetest.IDOf(t, pool, "a1"), runtimetest.IDOf(t, pool, "a2"), runtimetest.IDOf(t, pool, "b2")} {
		_, err := a.Skip(t.Context(), "ears", id)
		require.EqualError(t, err, "skip event: listener ears can skip only its next event and parked events, not event "+id.String()+
			"; next: "+runtimetest.IDOf(t, pool, "b1").String()+" (test/said)")
	}
	require.Empty(t, deadLetters(t, pool))
	runtimetest.Skip(t, a, runtimetest.IDOf(t, pool, "b1"))
	require.Equal(t, listener.Report{Delivered: 1, Retried: 1}, runtimetest.DrainAll(t, l))
	require.Equal(t, "b1 1 skipped by operator: handler failed", deadLetters(t, pool))
}

func TestAdminSkipNeedsAnIDWhenSeveralFailed(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	h := runtimetest.NewNotes()
	h.Fail = runtimetest.FailFor("b", "c")
	// Both fail in one shard at the same time: b is the next event of the cursor, c is ahead of it.
	l := runtimetest.ListenTo(t, pool, listener.Spec{Concurrency: 4, Retry: runtimetest.LateRetry}, listener.Config{}, h)
	runtimetest.PutAll(t, pool, "a1", "b1", "c1", "b2", "c2", "a2")
	require.Equal(t, listener.Report{Delivered: 2, Retried: 2}, runtimetest.DrainAll(t, l))
	_, err := a.Skip(t.Context(), "ears", uuid.Nil)
	require.EqualError(t, err, "skip event: listener ears has several failed events: name one of "+
		runtimetest.IDOf(t, pool, "b1").String()+" (test/said), "+runtimetest.IDOf(t, pool, "c1").String()+" (test/said)")
	require.Equal(t, 1, runtimetest.Skip(t, a, runtimetest.IDOf(t, pool, "c1")).Attempt)
	require.Equal(t, 1, statusOf(t, a).Attempts, "b1 still has its attempt")
	runtimetest.Skip(t, a, uuid.Nil)
	h.Fail = nil
	require.Equal(t, listener.Report{Delivered: 2}, runtimetest.DrainAll(t, l))
	require.ElementsMatch(t, []string{"a1", "a2", "b2", "c2"}, h.Names())
	require.Equal(t, "c1 1 skipped by operator, b1 1 skipped by operator: handler failed", deadLetters(t, pool))
}

func TestAdminSkipsParkedEvents(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		a := runtimetest.AdminOf(t, pool)
		h := runtimetest.NewNotes()
		h.Fail = func(d outbox.Delivery[runtimetest.Said]) error {
			if d.Payload.Key == "b" && d.Payload.N < 3 {
				return runtimetest.ErrHandler
			}
			return nil
		}
		l := runtimetest.ListenAs(t, pool, transactional, listener.Spec{ParkKeys: true, Retry: runtimetest.LateRetry}, listener.Config{}, h)
		runtimetest.PutAll(t, pool, "b1", "b2", "b3", "b4", "a1")
		runtimetest.DrainAll(t, l)
		runtimetest.Skip(t, a, runtimetest.IDOf(t, pool, "b4")) // one that waits behind the head
		require.Equal(t, listener.Report{}, runtimetest.DrainAll(t, l), "the head is not due")
		require.Equal(t, 1, runtimetest.Skip(t, a, uuid.Nil).Attempt) // the head: the next one is due immediately
		require.Equal(t, listener.Report{Retried: 1}, runtimetest.DrainAll(t, l))
		runtimetest.Skip(t, a, runtimetest.IDOf(t, pool, "b2"))
		require.Equal(t, listener.Report{Delivered: 1}, runtimetest.DrainAll(t, l))
		require.Equal(t, []string{"a1", "b3"}, h.Names())
		require.Equal(t, "b4 0 skipped by operator, b1 1 skipped by operator: handler failed, b2 1 skipped by operator: handler failed", deadLetters(t, pool))
		require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.parked"))
	})
}

// A paused listener has no open window. Only the event that it would take next can be skipped.
func TestAdminSkipsTheNextEventOfAPausedListener(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	h := runtimetest.NewNotes()
	l := runtimetest.ListenTo(t, pool, listener.Spec{Retry: runtimetest.LateRetry}, listener.Config{}, h)
	runtimetest.DrainAll(t, l)
	runtimetest.Pause(t, a, admin.Scope{Listener: "ears"})
	runtimetest.PutAll(t, pool, "a1", "a2", "a3")
	_, err := a.Skip(t.Context(), "ears", runtimetest.IDOf(t, pool, "a2"))
	require.ErrorContains(t, err, "next: "+runtimetest.IDOf(t, pool, "a1").String())
	require.Zero(t, runtimetest.Skip(t, a, runtimetest.IDOf(t, pool, "a1")).Attempt)
	runtimetest.Skip(t, a, runtimetest.IDOf(t, pool, "a2"))
	runtimetest.PutAll(t, pool, "a4")
	runtimetest.Resume(t, a, admin.Scope{Listener: "ears"})
	require.Equal(t, listener.Report{Delivered: 2}, runtimetest.DrainAll(t, l))
	require.Equal(t, []string{"a3", "a4"}, h.Names())
	require.Equal(t, "a1 0 skipped by operator, a2 0 skipped by operator", deadLetters(t, pool))
}

// Only the listener's process knows which topics it reads, so the first event of each topic may be meant.
func TestAdminSkipsPastEventsOfTopicsNotRead(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	h := runtimetest.NewNotes()
	l, err := listener.New(pool, listener.Spec{Name: "ears"}, listener.Config{Logger: runtimetest.DiscardLogger()},
		listener.Handle(runtimetest.SaidTopic, h, h.Handle))
	require.NoError(t, err)
	runtimetest.DrainAll(t, l)
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		for n := range 3 {
			_, err := runtimetest.LooseTopic.Enqueue(t.Context(), tx, runtimetest.Said{Key: "loose", N: n})
			require.NoError(t, err)
		}
	})
	runtimetest.PutAll(t, pool, "a1", "a2")
	runtimetest.Skip(t, a, runtimetest.IDOf(t, pool, "a1"))
	require.Equal(t, listener.Report{Delivered: 1}, runtimetest.DrainAll(t, l))
	require.Equal(t, []string{"a2"}, h.Names())
}

// The results of events that the holder is handling are refused, and the events are delivered again, except the skipped
// one.
func TestAdminSkipsWhileAHandlerRuns(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		a := runtimetest.AdminOf(t, pool)
		h := runtimetest.NewNotes()
		h.Hold = make(chan struct{})
		h.Fail = func(d outbox.Delivery[runtimetest.Said]) error {
			if d.Payload.N == 1 && d.Attempt == 1 {
				return runtimetest.ErrHandler
			}
			return nil
		}
		log := runtimetest.NewLogSpy()
		l := runtimetest.ListenAs(t, pool, transactional, listener.Spec{Retry: outbox.Retry{BaseDelay: time.Millisecond}},
			listener.Config{LeaseDuration: runtimetest.CrashLease, Logger: log.Logger()}, h)
		stop := runtimetest.StartListener(t, l)
		runtimetest.PutAll(t, pool, "a1", "a2")
		require.Equal(t, 1, pgtest.Receive(t, h.Started, "the first try").Attempt)
		h.Hold <- struct{}{}
		require.Equal(t, 2, pgtest.Receive(t, h.Started, "the second try").Attempt)
		require.Equal(t, 1, runtimetest.Skip(t, a, uuid.Nil).Attempt)
		h.Hold <- struct{}{} // it succeeds, too late
		if transactional {
			log.Await(t, "rolled back")
		} else {
			log.Await(t, "its lease was lost")
		}
		for e := pgtest.Receive(t, h.Started, "a2"); e.Payload.N != 2; e = pgtest.Receive(t, h.Started, "a2") {
			require.Equal(t, 2, e.Attempt, "of the batch that was under way")
			h.Hold <- struct{}{}
		}
		close(h.Hold)
		pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.listeners WHERE NOT running AND retry_count = 0 AND high_seq = 2")
		stop()
		require.Equal(t, "a1 1 skipped by operator: handler failed", deadLetters(t, pool))
		if transactional {
			require.Equal(t, "a2", pgtest.Value[string](t, pool, "SELECT string_agg(key || n, ' ') FROM effects"))
		}
	})
}

// An event that committed behind the cursor is skipped like any other.
func TestAdminSkipsAStraggler(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	h := runtimetest.NewNotes()
	h.Fail = runtimetest.FailFor("late")
	l := runtimetest.ListenTo(t, pool, listener.Spec{Retry: runtimetest.LateRetry}, listener.Config{}, h)
	open := pgtest.Begin(t, pool, pgx.TxOptions{})
	for n := range 2 {
		_, err := runtimetest.SaidTopic.Enqueue(t.Context(), open, runtimetest.Said{Key: "late", N: n + 1})
		require.NoError(t, err)
	}
	runtimetest.PutAll(t, pool, "a1")
	runtimetest.DrainAll(t, l)
	require.NoError(t, open.Commit(t.Context()))
	runtimetest.PutAll(t, pool, "a2")
	runtimetest.DrainAll(t, l)
	s := statusOf(t, a)
	require.Equal(t, runtimetest.IDOf(t, pool, "late1"), s.Head.UUID)
	require.GreaterOrEqual(t, s.Lag, time.Since(s.AttachedAt)/2, "the lag is that of the straggler")
	runtimetest.Skip(t, a, uuid.Nil)
	h.Fail = nil
	require.Equal(t, listener.Report{Delivered: 2}, runtimetest.DrainAll(t, l))
	require.Equal(t, []string{"a1", "late2", "a2"}, h.Names())
	require.Equal(t, "late1 1 skipped by operator: handler failed", deadLetters(t, pool))
}

// If a process dies while handling an event, it is not known which event it was.
func TestAdminSkipAfterAProcessDied(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	h := runtimetest.NewNotes()
	h.Fail = runtimetest.FailFor("b")
	l := runtimetest.ListenTo(t, pool, listener.Spec{Retry: runtimetest.LateRetry}, listener.Config{}, h)
	runtimetest.PutAll(t, pool, "a1", "b1", "a2")
	runtimetest.DrainAll(t, l)
	pgtest.Execute(t, pool, `UPDATE outbox.listeners SET running = true, lease_id = gen_random_uuid(), lease_by = gen_random_uuid(),
		lease_until = statement_timestamp() - interval '1 s', one_by_one = 100, retry_count = 2, retry_after = NULL, last_seq = 0, ahead_seqs = '{1}', ahead_attempts = '{0}'`)
	require.Equal(t, admin.ListenerBlocked, statusOf(t, a).State)
	require.Equal(t, runtimetest.IDOf(t, pool, "b1"), statusOf(t, a).Head.UUID)
	_, err := a.Skip(t.Context(), "ears", uuid.Nil)
	require.EqualError(t, err, "skip event: listener ears: a process died while handling an event, and it is not known which one: name the event to skip; the first possible one is "+
		runtimetest.IDOf(t, pool, "b1").String()+" (test/said)")
	require.Equal(t, 2, runtimetest.Skip(t, a, runtimetest.IDOf(t, pool, "b1")).Attempt)
	require.Equal(t, 6400, pgtest.Value[int](t, pool, "SELECT one_by_one FROM outbox.listeners"), "it may have been another, of any batch of the lease")
	require.Equal(t, listener.Report{Delivered: 1}, runtimetest.DrainAll(t, l))
	require.Equal(t, []string{"a1", "a2"}, h.Names())
}

// A change of shards waits for a listener that is blocked, and continues when the event is skipped.
func TestAdminSkipsDuringAChangeOfShards(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	h := runtimetest.NewNotes()
	h.Fail = runtimetest.FailFor("b")
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{Retry: runtimetest.LateRetry}, listener.Config{}, h))
	runtimetest.PutAll(t, pool, "a1", "b1", "a2")
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{Retry: runtimetest.LateRetry}, listener.Config{}, h))
	three := runtimetest.ListenTo(t, pool, listener.Spec{Shards: 3, Retry: runtimetest.LateRetry}, listener.Config{}, h)
	runtimetest.DrainAll(t, three)
	require.Equal(t, 3, statusOf(t, a).ReshardTo)
	runtimetest.Skip(t, a, uuid.Nil)
	runtimetest.DrainAll(t, three)
	list, err := a.Listeners(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 3)
	require.Equal(t, []string{"a1", "a2"}, h.Names())
	require.Equal(t, "b1 1 skipped by operator: handler failed", deadLetters(t, pool))
}

// Whatever the listener does meanwhile, each event is either handled or skipped.
func TestAdminSkipsRaceWithTheListener(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		a := runtimetest.AdminOf(t, pool)
		h := runtimetest.NewNotes()
		h.Fail = func(d outbox.Delivery[runtimetest.Said]) error {
			if d.Payload == (runtimetest.Said{Key: "a", N: 6}) || d.Payload.N%3 == 0 && d.Attempt < 4 { // one permanently, until it is skipped
				return runtimetest.ErrHandler
			}
			return nil
		}
		spec := listener.Spec{Shards: 2, ParkKeys: !transactional, Retry: outbox.Retry{MaxAttempts: math.MaxInt32, BaseDelay: time.Microsecond, MaxDelay: time.Microsecond}}
		l := runtimetest.ListenAs(t, pool, transactional, spec, listener.Config{BatchSize: 5}, h)
		c := runtimetest.NewCrowd("a", "b", "c", "d")
		const events = 200
		for range events / 10 {
			c.Enqueue(t, pool, 10)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		skips := make(chan int)
		go func() {
			n := 0
			for ctx.Err() == nil {
				if _, err := a.Skip(ctx, "ears", uuid.Nil); err == nil {
					n++
				}
			}
			skips <- n
		}()
		stop := runtimetest.StartListener(t, l)
		pgtest.Settles(t, pool, 2, `SELECT count(*) FROM outbox.listeners WHERE NOT in_batch AND NOT running AND high_seq = 200
			AND NOT EXISTS (SELECT FROM outbox.parked)`)
		cancel()
		n := <-skips
		stop()
		require.Equal(t, n, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.dead_letters"))
		require.Equal(t, n, pgtest.Count(t, pool, "SELECT count(DISTINCT id) FROM outbox.dead_letters"))
		require.Positive(t, n)
		handled := make(map[uuid.UUID]int)
		for _, d := range h.Got {
			handled[d.ID]++
		}
		if transactional {
			require.Equal(t, events-n, pgtest.Count(t, pool, "SELECT count(*) FROM effects"))
			require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM effects AS e JOIN outbox.dead_letters AS d ON d.id = e.event_id"))
		} else {
			require.GreaterOrEqual(t, len(handled), events-n)
		}
	})
}
