package outbox_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

func TestAdminSkipsTheEventThatFailed(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		a := adminOf(t, pool)
		h := newNotes()
		h.fail = failFor("b")
		l := listenAs(t, pool, transactional, outbox.ListenerSpec{Retry: late}, outbox.ListenerConfig{}, h)
		putAll(t, pool, "a1", "b1", "a2")
		drainAll(t, l)
		retryNow(t, pool)
		drainAll(t, l)
		e := skip(t, a, uuid.Nil)
		require.Equal(t, idOf(t, pool, "b1"), e.ID)
		require.Equal(t, "test said b 2", fmt.Sprint(e.Namespace, " ", e.Topic, " ", e.PartitionKey, " ", e.Attempt))
		require.False(t, e.CreatedAt.IsZero())
		require.Equal(t, "b1 2 skipped by operator: handler failed", deadLetters(t, pool))
		_, err := a.Skip(t.Context(), "ears", uuid.Nil)
		require.EqualError(t, err, "skip event: listener ears has no event that failed: name one")

		require.Equal(t, outbox.DrainReport{Delivered: 1}, drainAll(t, l), "at once")
		require.Equal(t, []string{"a1", "a2"}, h.names())
		require.Equal(t, 1, h.got[1].Attempt, "the attempts were those of the skipped one")
		require.Equal(t, "b1 2 skipped by operator: handler failed", deadLetters(t, pool))
	})
}

func TestSkipRejectsEventsThatAreNotNext(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := adminOf(t, pool)
	h := newNotes()
	h.fail = failFor("b")
	l := listenTo(t, pool, outbox.ListenerSpec{Retry: late}, outbox.ListenerConfig{}, h)
	putAll(t, pool, "a1", "b1", "a2", "b2")
	drainAll(t, l)
	for _, id := range []uuid.UUID{uuid.New(), idOf(t, pool, "a1"), idOf(t, pool, "a2"), idOf(t, pool, "b2")} {
		_, err := a.Skip(t.Context(), "ears", id)
		require.EqualError(t, err, "skip event: listener ears neither stands at event "+id.String()+
			" nor has parked it; it stands at "+idOf(t, pool, "b1").String()+" (test/said)")
	}
	require.Empty(t, deadLetters(t, pool))
	skip(t, a, idOf(t, pool, "b1"))
	require.Equal(t, outbox.DrainReport{Delivered: 1, Retried: 1}, drainAll(t, l))
	require.Equal(t, "b1 1 skipped by operator: handler failed", deadLetters(t, pool))
}

func TestAdminSkipNeedsAnIDWhenSeveralFailed(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := adminOf(t, pool)
	h := newNotes()
	h.fail = failFor("b", "c")
	// Both fail in one shard at once: b is where it stands, c is ahead of it.
	l := listenTo(t, pool, outbox.ListenerSpec{Concurrency: 4, Retry: late}, outbox.ListenerConfig{}, h)
	putAll(t, pool, "a1", "b1", "c1", "b2", "c2", "a2")
	require.Equal(t, outbox.DrainReport{Delivered: 2, Retried: 2}, drainAll(t, l))
	_, err := a.Skip(t.Context(), "ears", uuid.Nil)
	require.EqualError(t, err, "skip event: listener ears has several events that failed: name one of "+
		idOf(t, pool, "b1").String()+" (test/said), "+idOf(t, pool, "c1").String()+" (test/said)")
	require.Equal(t, 1, skip(t, a, idOf(t, pool, "c1")).Attempt)
	require.Equal(t, 1, statusOf(t, a).Attempts, "b1 still has its attempt")
	skip(t, a, uuid.Nil)
	h.fail = nil
	require.Equal(t, outbox.DrainReport{Delivered: 2}, drainAll(t, l))
	require.ElementsMatch(t, []string{"a1", "a2", "b2", "c2"}, h.names())
	require.Equal(t, "c1 1 skipped by operator, b1 1 skipped by operator: handler failed", deadLetters(t, pool))
}

func TestAdminSkipsParkedEvents(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		a := adminOf(t, pool)
		h := newNotes()
		h.fail = func(d outbox.Delivery[said]) error {
			if d.Payload.Key == "b" && d.Payload.N < 3 {
				return errHandler
			}
			return nil
		}
		l := listenAs(t, pool, transactional, outbox.ListenerSpec{ParkKeys: true, Retry: late}, outbox.ListenerConfig{}, h)
		putAll(t, pool, "b1", "b2", "b3", "b4", "a1")
		drainAll(t, l)
		skip(t, a, idOf(t, pool, "b4")) // one that waits behind the head
		require.Equal(t, outbox.DrainReport{}, drainAll(t, l), "the head is not due")
		require.Equal(t, 1, skip(t, a, uuid.Nil).Attempt) // the head: the next one is due at once
		require.Equal(t, outbox.DrainReport{Retried: 1}, drainAll(t, l))
		skip(t, a, idOf(t, pool, "b2"))
		require.Equal(t, outbox.DrainReport{Delivered: 1}, drainAll(t, l))
		require.Equal(t, []string{"a1", "b3"}, h.names())
		require.Equal(t, "b4 0 skipped by operator, b1 1 skipped by operator: handler failed, b2 1 skipped by operator: handler failed", deadLetters(t, pool))
		require.Zero(t, count(t, pool, "SELECT count(*) FROM outbox.parked"))
	})
}

// A paused listener has no window open. Only the event that it would take next can be skipped.
func TestAdminSkipsTheNextEventOfAPausedListener(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := adminOf(t, pool)
	h := newNotes()
	l := listenTo(t, pool, outbox.ListenerSpec{Retry: late}, outbox.ListenerConfig{}, h)
	drainAll(t, l)
	require.NoError(t, a.Pause(t.Context(), "ears"))
	putAll(t, pool, "a1", "a2", "a3")
	_, err := a.Skip(t.Context(), "ears", idOf(t, pool, "a2"))
	require.ErrorContains(t, err, "it stands at "+idOf(t, pool, "a1").String())
	require.Zero(t, skip(t, a, idOf(t, pool, "a1")).Attempt)
	skip(t, a, idOf(t, pool, "a2"))
	putAll(t, pool, "a4")
	require.NoError(t, a.Resume(t.Context(), "ears"))
	require.Equal(t, outbox.DrainReport{Delivered: 2}, drainAll(t, l))
	require.Equal(t, []string{"a3", "a4"}, h.names())
	require.Equal(t, "a1 0 skipped by operator, a2 0 skipped by operator", deadLetters(t, pool))
}

// Which topics a listener reads is known to its process only: the first event of each may be the one.
func TestAdminSkipsPastEventsOfTopicsNotRead(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := adminOf(t, pool)
	h := newNotes()
	l, err := outbox.NewListener(pool, outbox.ListenerSpec{Name: "ears"}, outbox.ListenerConfig{Logger: quiet()},
		outbox.Listen(saidTopic, h, h.handle))
	require.NoError(t, err)
	drainAll(t, l)
	inTx(t, pool, func(tx pgx.Tx) {
		for n := range 3 {
			_, err := looseTopic.Untyped().Enqueue(t.Context(), tx, said{Key: "loose", N: n})
			require.NoError(t, err)
		}
	})
	putAll(t, pool, "a1", "a2")
	skip(t, a, idOf(t, pool, "a1"))
	require.Equal(t, outbox.DrainReport{Delivered: 1}, drainAll(t, l))
	require.Equal(t, []string{"a2"}, h.names())
}

// What the holder of the shard is handling is refused, and comes again but for the skipped event.
func TestAdminSkipsWhileAHandlerRuns(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		a := adminOf(t, pool)
		h := newNotes()
		h.hold = make(chan struct{})
		h.fail = func(d outbox.Delivery[said]) error {
			if d.Payload.N == 1 && d.Attempt == 1 {
				return errHandler
			}
			return nil
		}
		log := newSpy()
		l := listenAs(t, pool, transactional, outbox.ListenerSpec{Retry: outbox.Retry{BaseDelay: time.Millisecond}},
			outbox.ListenerConfig{LeaseDuration: crashLease, Logger: log.logger()}, h)
		stop := startListener(t, l)
		putAll(t, pool, "a1", "a2")
		require.Equal(t, 1, receive(t, h.started, "the first try").Attempt)
		h.hold <- struct{}{}
		require.Equal(t, 2, receive(t, h.started, "the second try").Attempt)
		require.Equal(t, 1, skip(t, a, uuid.Nil).Attempt)
		h.hold <- struct{}{} // it succeeds, too late
		if transactional {
			log.await(t, "rolled back")
		} else {
			log.await(t, "its lease was lost")
		}
		for e := receive(t, h.started, "a2"); e.Payload.N != 2; e = receive(t, h.started, "a2") {
			require.Equal(t, 2, e.Attempt, "of the batch that was under way")
			h.hold <- struct{}{}
		}
		close(h.hold)
		settles(t, pool, 1, "SELECT count(*) FROM outbox.listeners WHERE NOT running AND retry_count = 0 AND high_seq = 2")
		stop()
		require.Equal(t, "a1 1 skipped by operator: handler failed", deadLetters(t, pool))
		if transactional {
			require.Equal(t, "a2", value[string](t, pool, "SELECT string_agg(key || n, ' ') FROM effects"))
		}
	})
}

// An event that committed behind the cursor is skipped like any other.
func TestAdminSkipsAStraggler(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := adminOf(t, pool)
	h := newNotes()
	h.fail = failFor("late")
	l := listenTo(t, pool, outbox.ListenerSpec{Retry: late}, outbox.ListenerConfig{}, h)
	open := begin(t, pool, pgx.TxOptions{})
	for n := range 2 {
		_, err := saidTopic.Untyped().Enqueue(t.Context(), open, said{Key: "late", N: n + 1})
		require.NoError(t, err)
	}
	putAll(t, pool, "a1")
	drainAll(t, l)
	require.NoError(t, open.Commit(t.Context()))
	putAll(t, pool, "a2")
	drainAll(t, l)
	s := statusOf(t, a)
	require.Equal(t, idOf(t, pool, "late1"), s.Head.UUID)
	require.GreaterOrEqual(t, s.Lag, time.Since(s.AttachedAt)/2, "the lag is that of the straggler")
	skip(t, a, uuid.Nil)
	h.fail = nil
	require.Equal(t, outbox.DrainReport{Delivered: 2}, drainAll(t, l))
	require.Equal(t, []string{"a1", "late2", "a2"}, h.names())
	require.Equal(t, "late1 1 skipped by operator: handler failed", deadLetters(t, pool))
}

// A process that died of an event cannot have said which one it was.
func TestAdminSkipAfterAProcessDied(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := adminOf(t, pool)
	h := newNotes()
	h.fail = failFor("b")
	l := listenTo(t, pool, outbox.ListenerSpec{Retry: late}, outbox.ListenerConfig{}, h)
	putAll(t, pool, "a1", "b1", "a2")
	drainAll(t, l)
	execute(t, pool, `UPDATE outbox.listeners SET running = true, lease_id = gen_random_uuid(), lease_by = gen_random_uuid(),
		lease_until = statement_timestamp() - interval '1 s', one_by_one = 100, retry_count = 2, retry_after = NULL, last_seq = 0, ahead_seqs = '{1}', ahead_attempts = '{0}'`)
	require.Equal(t, outbox.ListenerBlocked, statusOf(t, a).State)
	require.Equal(t, idOf(t, pool, "b1"), statusOf(t, a).Head.UUID)
	_, err := a.Skip(t.Context(), "ears", uuid.Nil)
	require.EqualError(t, err, "skip event: listener ears lost its process to one of its events: name it; the first that it may be is "+
		idOf(t, pool, "b1").String()+" (test/said)")
	require.Equal(t, 2, skip(t, a, idOf(t, pool, "b1")).Attempt)
	require.Equal(t, 800, value[int](t, pool, "SELECT one_by_one FROM outbox.listeners"), "it may have been another, of any batch of the lease")
	require.Equal(t, outbox.DrainReport{Delivered: 1}, drainAll(t, l))
	require.Equal(t, []string{"a1", "a2"}, h.names())
}

// A change of shards waits for a listener that is blocked, and goes on when the event is skipped.
func TestAdminSkipsDuringAChangeOfShards(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := adminOf(t, pool)
	h := newNotes()
	h.fail = failFor("b")
	drainAll(t, listenTo(t, pool, outbox.ListenerSpec{Retry: late}, outbox.ListenerConfig{}, h))
	putAll(t, pool, "a1", "b1", "a2")
	drainAll(t, listenTo(t, pool, outbox.ListenerSpec{Retry: late}, outbox.ListenerConfig{}, h))
	three := listenTo(t, pool, outbox.ListenerSpec{Shards: 3, Retry: late}, outbox.ListenerConfig{}, h)
	drainAll(t, three)
	require.Equal(t, 3, statusOf(t, a).ReshardTo)
	skip(t, a, uuid.Nil)
	drainAll(t, three)
	list, err := a.List(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 3)
	require.Equal(t, []string{"a1", "a2"}, h.names())
	require.Equal(t, "b1 1 skipped by operator: handler failed", deadLetters(t, pool))
}

// Whatever the listener does meanwhile, each event is handled or skipped, and none is both.
func TestAdminSkipsRaceWithTheListener(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		a := adminOf(t, pool)
		h := newNotes()
		h.fail = func(d outbox.Delivery[said]) error {
			if d.Payload == (said{Key: "a", N: 6}) || d.Payload.N%3 == 0 && d.Attempt < 4 { // one for good, until it is skipped
				return errHandler
			}
			return nil
		}
		spec := outbox.ListenerSpec{Shards: 2, ParkKeys: !transactional, Retry: outbox.Retry{MaxAttempts: math.MaxInt32, BaseDelay: time.Microsecond, MaxDelay: time.Microsecond}}
		l := listenAs(t, pool, transactional, spec, outbox.ListenerConfig{BatchSize: 5}, h)
		c := newCrowd("a", "b", "c", "d")
		const events = 200
		for range events / 10 {
			c.enqueue(t, pool, 10)
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
		stop := startListener(t, l)
		settles(t, pool, 2, `SELECT count(*) FROM outbox.listeners WHERE NOT in_batch AND NOT running AND high_seq = 200
			AND NOT EXISTS (SELECT FROM outbox.parked)`)
		cancel()
		n := <-skips
		stop()
		require.Equal(t, n, count(t, pool, "SELECT count(*) FROM outbox.dead_letters"))
		require.Equal(t, n, count(t, pool, "SELECT count(DISTINCT id) FROM outbox.dead_letters"))
		require.Positive(t, n)
		handled := make(map[uuid.UUID]int)
		for _, d := range h.got {
			handled[d.ID]++
		}
		if transactional {
			require.Equal(t, events-n, count(t, pool, "SELECT count(*) FROM effects"))
			require.Zero(t, count(t, pool, "SELECT count(*) FROM effects AS e JOIN outbox.dead_letters AS d ON d.id = e.event_id"))
		} else {
			require.GreaterOrEqual(t, len(handled), events-n)
		}
	})
}
