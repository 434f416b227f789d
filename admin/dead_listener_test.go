package admin_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

// everyKind runs test with a leased and a transactional listener that parks the key of a failed event, or blocks on it.
func everyKind(t *testing.T, test func(t *testing.T, transactional, park bool)) {
	t.Helper()
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		for _, park := range []bool{false, true} {
			t.Run(fmt.Sprintf("park %t", park), func(t *testing.T) {
				t.Parallel()
				test(t, transactional, park)
			})
		}
	})
}

// once makes every failure final.
var once = outbox.Retry{MaxAttempts: 1, BaseDelay: time.Hour, MaxDelay: time.Hour}

func replayAll(t testing.TB, a *admin.Admin, want int) {
	t.Helper()
	r, err := a.Replay(t.Context(), admin.Filter{Listener: "ears"}, somebody)
	require.NoError(t, err)
	require.Equal(t, admin.Report{Matched: int64(want), Done: int64(want)}, r)
}

func TestReplayHandsADeadLetterToItsListener(t *testing.T) {
	t.Parallel()
	everyKind(t, func(t *testing.T, transactional, park bool) {
		pool := pgtest.Database(t)
		a := runtimetest.AdminOf(t, pool)
		h, other := runtimetest.NewNotes(), runtimetest.NewNotes()
		h.Fail = runtimetest.FailFor("b")
		other.Fail = runtimetest.FailFor("b")
		l := runtimetest.ListenAs(t, pool, transactional, listener.Spec{ParkKeys: park, Retry: once}, listener.Config{}, h)
		eyes := runtimetest.ListenTo(t, pool, listener.Spec{Name: "eyes", Retry: once}, listener.Config{}, other)
		runtimetest.PutAll(t, pool, "a1", "b1", "b2", "a2")
		runtimetest.DrainAll(t, l)
		runtimetest.DrainAll(t, eyes)
		require.Equal(t, 4, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.dead_letters"))
		h.Fail, h.Got, other.Fail = nil, nil, nil
		replayAll(t, a, 2)
		require.Equal(t, listener.Report{Delivered: 2}, runtimetest.DrainAll(t, l))
		require.Equal(t, []string{"b1", "b2"}, h.Names())
		require.Equal(t, 1, h.Got[0].Attempt)
		require.Equal(t, runtimetest.IDOf(t, pool, "b1"), h.Got[0].ID)
		require.Equal(t, listener.Report{}, runtimetest.DrainAll(t, eyes))
		require.Equal(t, []string{"a1", "a2"}, other.Names())
		require.Equal(t, 2, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.dead_letters WHERE listener = 'eyes'"))
		require.Equal(t, "2", pgtest.Value[string](t, pool, "SELECT string_agg(events::text, ' ') FROM outbox.audit"))
		replayAll(t, a, 0)
		require.Equal(t, listener.Report{}, runtimetest.DrainAll(t, l))
	})
}

// A replayed event goes before the parked events of its key that follow it in the log, and after those that precede it,
// and the next events of the log wait for it.
func TestReplayKeepsTheOrderOfAKey(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		a := runtimetest.AdminOf(t, pool)
		h := runtimetest.NewNotes()
		h.Fail = runtimetest.FailFor("b")
		l := runtimetest.ListenAs(t, pool, transactional, listener.Spec{ParkKeys: true, Retry: runtimetest.LateRetry}, listener.Config{}, h)
		runtimetest.PutAll(t, pool, "b1", "b2", "b3", "b4", "b5", "a1")
		runtimetest.DrainAll(t, l)
		for _, name := range []string{"b4", "b1", "b2"} { // b3 is the head then, with b5 behind
			runtimetest.Skip(t, a, runtimetest.IDOf(t, pool, name))
		}
		runtimetest.DrainAll(t, l) // b3 fails once more
		heads := "SELECT string_agg(concat(payload->>'key', payload->>'n', CASE WHEN retry_after IS NOT NULL THEN '!' END), ' ' ORDER BY no) FROM outbox.parked"
		require.Equal(t, "b3! b5", pgtest.Value[string](t, pool, heads))
		for _, c := range []struct{ name, want string }{{"b4", "b3! b4 b5"}, {"b2", "b2! b3 b4 b5"}, {"b1", "b1! b2 b3 b4 b5"}} {
			r, err := a.Replay(t.Context(), admin.Filter{Listener: "ears", IDs: []uuid.UUID{runtimetest.IDOf(t, pool, c.name)}}, somebody)
			require.NoError(t, err)
			require.EqualValues(t, 1, r.Done)
			require.Equal(t, c.want, pgtest.Value[string](t, pool, heads))
		}
		runtimetest.PutAll(t, pool, "b6", "a2")
		runtimetest.DrainAll(t, l)
		require.Equal(t, "b1! b2 b3 b4 b5 b6", pgtest.Value[string](t, pool, heads), "b1 has failed again, and b6 waits")
		h.Fail = nil
		runtimetest.RetryNow(t, pool)
		runtimetest.DrainAll(t, l)
		require.Equal(t, []string{"a1", "a2", "b1", "b2", "b3", "b4", "b5", "b6"}, h.Names())
		require.Equal(t, 2, h.Got[4].Attempt, "b3 keeps its attempts")
	})
}

// All in one chunk, in the order in which they died, which is not that of the log.
func TestReplayOfAKeyInOneChunk(t *testing.T) {
	t.Parallel()
	everyKind(t, func(t *testing.T, transactional, park bool) {
		pool := pgtest.Database(t)
		a := runtimetest.AdminOf(t, pool)
		h := runtimetest.NewNotes()
		h.Fail = runtimetest.FailFor("b", "c")
		l := runtimetest.ListenAs(t, pool, transactional, listener.Spec{ParkKeys: park, Retry: once, Shards: 3}, listener.Config{}, h)
		runtimetest.PutAll(t, pool, "b1", "c1", "b2", "c2", "b3", "c3")
		runtimetest.DrainAll(t, l)
		pgtest.Execute(t, pool, "UPDATE outbox.dead_letters SET no = DEFAULT WHERE seq % 2 = 1") // the early ones died last
		h.Fail = nil
		replayAll(t, a, 6)
		runtimetest.PutAll(t, pool, "b4", "c4")
		runtimetest.DrainAll(t, l)
		require.Equal(t, 8, h.InOrder(t))
		require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.parked"))
	})
}

// A lease that is under way does not know of the replay. What it does is kept, and no event of the key overtakes another.
func TestReplayDuringALease(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	everyKind(t, func(t *testing.T, transactional, park bool) {
		pool := pgtest.Database(t)
		a := runtimetest.AdminOf(t, pool)
		h := runtimetest.NewNotes()
		h.Fail = runtimetest.Failing("b1")
		drained := runtimetest.ListenAs(t, pool, transactional, listener.Spec{ParkKeys: park, Retry: once}, listener.Config{}, h)
		runtimetest.PutAll(t, pool, "b1")
		runtimetest.DrainAll(t, drained)

		h = runtimetest.NewNotes()
		h.Hold = make(chan struct{})
		h.Fail = func(d outbox.Delivery[runtimetest.Said]) error {
			if d.Payload.N == 2 && d.Attempt == 1 || d.Payload.N == 1 && d.Attempt <= 2 {
				return runtimetest.ErrHandler
			}
			return nil
		}
		log := runtimetest.NewLogSpy()
		stop := runtimetest.StartListener(t, runtimetest.ListenAs(t, pool, transactional, listener.Spec{
			ParkKeys: park, Retry: outbox.Retry{MaxAttempts: 9, BaseDelay: time.Millisecond, MaxDelay: time.Millisecond},
		}, listener.Config{Logger: log.Logger()}, h))
		runtimetest.PutAll(t, pool, "b2", "b3", "a1")
		require.Equal(t, 2, pgtest.Receive(t, h.Started, "b2").Payload.N)
		replayAll(t, a, 1)
		if park { // the failure of b2 parks it behind b1, which is the only head then
			h.Hold <- struct{}{}
			h.Hold <- struct{}{} // a1
			pgtest.Settles(t, pool, 2, "SELECT count(*) FROM outbox.parked WHERE retry_after IS NULL AND key = 'b'")
			require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.parked WHERE retry_after IS NOT NULL AND key = 'b'"))
		}
		close(h.Hold)
		h.Await(t, 4)
		stop()
		require.ElementsMatch(t, []string{"a1", "b1", "b2", "b3"}, h.Names())
		if park {
			require.Less(t, strings.Index(fmt.Sprint(h.Names()), "b1"), strings.Index(fmt.Sprint(h.Names()), "b2"))
		}
		require.Less(t, strings.Index(fmt.Sprint(h.Names()), "b2"), strings.Index(fmt.Sprint(h.Names()), "b3"))
		require.Contains(t, log.String(), " lost=0 ", "nothing was handled for nothing")
		require.NotContains(t, log.String(), "event lost")
	})
}

// If a lease has taken parked events that get new numbers, it can no longer settle them, so it loses its shard.
func TestReplayBeforeParkedEventsOfALease(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		a := runtimetest.AdminOf(t, pool)
		h := runtimetest.NewNotes()
		h.Fail = runtimetest.FailFor("b")
		l := runtimetest.ListenAs(t, pool, transactional, listener.Spec{ParkKeys: true}, listener.Config{}, h)
		runtimetest.PutAll(t, pool, "b1", "b2", "b3")
		runtimetest.DrainAll(t, l)
		runtimetest.Skip(t, a, runtimetest.IDOf(t, pool, "b1")) // b2 is due
		h.Fail, h.Hold, h.Got = nil, make(chan struct{}), nil
		h.Calls()
		stop := runtimetest.StartListener(t, l)
		require.Equal(t, 2, pgtest.Receive(t, h.Started, "b2").Payload.N)
		replayAll(t, a, 1)
		close(h.Hold)
		pgtest.Settles(t, pool, 0, "SELECT count(*) FROM outbox.parked")
		stop()
		if transactional {
			require.Equal(t, "b1 b2 b3", pgtest.Value[string](t, pool, "SELECT string_agg(concat(key, n), ' ' ORDER BY no) FROM effects"), "exactly once")
		} else {
			require.Equal(t, []string{"b1", "b2", "b3"}, h.Names()[len(h.Names())-3:], "what was under way is delivered again, in order")
		}
		require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.dead_letters"))
	})
}

func TestReplayForAListenerThatIsNotAttached(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	h := runtimetest.NewNotes()
	h.Fail = runtimetest.FailFor("b")
	runtimetest.PutAll(t, pool, "b1", "b2")
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{Retry: once}, listener.Config{}, h))
	_, err := a.Detach(t.Context(), "ears")
	require.NoError(t, err)
	_, err = a.Replay(t.Context(), admin.Filter{Listener: "ears"}, somebody)
	require.ErrorAs(t, err, new(*admin.UnknownListenerError))
	r, err := a.Replay(t.Context(), admin.Filter{}, somebody)
	require.NoError(t, err)
	require.Equal(t, admin.Report{Matched: 2, Refused: map[string]int64{admin.RefusedDetached: 2}}, r)
	require.Equal(t, `database user postgres detach  {"shards": 1, "listener": "ears"} 0`, audits(t, pool), "the replay changes nothing")
	require.Equal(t, 2, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.dead_letters"))
}

func TestReplayEditedForAListener(t *testing.T) {
	t.Parallel()
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		a := runtimetest.AdminOf(t, pool)
		h := runtimetest.NewNotes()
		h.Fail = runtimetest.FailFor("b")
		l := runtimetest.ListenAs(t, pool, transactional, listener.Spec{Retry: once}, listener.Config{}, h)
		runtimetest.PutAll(t, pool, "b1")
		id := runtimetest.IDOf(t, pool, "b1")
		runtimetest.DrainAll(t, l)
		_, err := a.ReplayEdited(t.Context(), id, "", []byte(`{"key": "b", "n": 7}`), somebody)
		require.ErrorIs(t, err, admin.ErrNotDead)
		r, err := a.ReplayEdited(t.Context(), id, "ears", []byte(`{"key": "good", "n": 7}`), somebody)
		require.NoError(t, err)
		require.Equal(t, admin.Report{Matched: 1, Done: 1}, r)
		runtimetest.DrainAll(t, l)
		require.Equal(t, []string{"good7"}, h.Names())
		require.Equal(t, id, h.Got[0].ID)
		require.Equal(t, "b1", pgtest.Value[string](t, pool, "SELECT concat(payload->>'key', payload->>'n') FROM outbox.log"), "the log stays")
		require.Contains(t, audits(t, pool), `"edited": true, "listener": "ears"`)
	})
}

// Events die and are replayed at random by several operators, while listeners run, lose their connections and are
// replaced. Every event is delivered in the end, those of a key in order as long as none has died, and exactly once in
// transactional mode.
func TestReplaysUnderLoad(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	everyKind(t, func(t *testing.T, transactional, park bool) {
		pool := pgtest.Database(t)
		h := runtimetest.NewNotes()
		h.Fail = func(outbox.Delivery[runtimetest.Said]) error {
			if rand.IntN(4) == 0 {
				return runtimetest.ErrHandler
			}
			return nil
		}
		spec := listener.Spec{ParkKeys: park, Shards: 2, Retry: outbox.Retry{MaxAttempts: 2, BaseDelay: time.Millisecond, MaxDelay: 5 * time.Millisecond}}
		crowd := runtimetest.NewCrowd("a", "b", "c", "d", "e")
		for range 2 {
			l := runtimetest.ListenAs(t, pgtest.AnotherPool(t, pool), transactional, spec, listener.Config{BatchSize: 20, PollInterval: 20 * time.Millisecond, LeaseDuration: 5 * time.Second}, h)
			runtimetest.StartListener(t, l)
		}
		// Both are attached: an error at the start ends Run.
		pgtest.Settles(t, pool, 2, "SELECT count(*) FROM outbox.processes")
		events := 0
		var group sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range 3 {
			a := runtimetest.AdminOf(t, pgtest.AnotherPool(t, pool))
			group.Go(func() {
				for ctx.Err() == nil {
					_, err := a.Replay(context.WithoutCancel(ctx), admin.Filter{Namespace: "test"}, admin.Act{Who: "x", Limit: 1 + rand.IntN(30)})
					if err != nil && !strings.Contains(err.Error(), "terminating connection") && !pgtest.Check(t, err) {
						return
					}
				}
			})
		}
		for range runtimetest.Rounds(20) {
			n := 1 + rand.IntN(30)
			crowd.Enqueue(t, pool, n)
			events += n
			pgtest.Execute(t, pool, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
				AND query ILIKE '%listener%' AND random() < 0.05 AND state <> 'idle'`)
		}
		pgtest.Settles(t, pool, 0, `SELECT (SELECT count(*) FROM outbox.parked) + (SELECT count(*) FROM outbox.dead_letters)
			+ (SELECT count(*) FROM outbox.listeners WHERE in_batch OR high_seq < (SELECT max(seq) FROM outbox.log))`)
		cancel()
		group.Wait()
		got := make(map[uuid.UUID]int)
		for _, d := range h.Got {
			got[d.ID]++
		}
		require.Len(t, got, events)
		if transactional {
			require.Equal(t, events, pgtest.Count(t, pool, "SELECT count(*) FROM effects"), "exactly once")
		}
	})
}

// The keys of a listener that publishes belong to a destination. A replayed event keeps its place among them, and the next
// events of its key wait while it fails.
func TestReplayToADestination(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	b := runtimetest.NewBroker()
	b.Answer = func(o publish.Outgoing) error {
		if o.Key == "b" {
			return outbox.Permanent(runtimetest.ErrHandler)
		}
		return nil
	}
	l, err := listener.New(pool, listener.Spec{Name: "ears", ParkKeys: true, Retry: runtimetest.LateRetry},
		listener.Config{Logger: runtimetest.DiscardLogger(), Publishers: map[string]publish.Publisher{"kafka": b}},
		listener.Publish(runtimetest.SaidTopic, publish.Publication{Broker: "kafka", Destination: "said"}))
	require.NoError(t, err)
	runtimetest.PutAll(t, pool, "b1", "b2", "a1")
	runtimetest.DrainAll(t, l)
	require.Equal(t, []string{"a1"}, b.Names(t))
	replayAll(t, a, 2)
	b.Answer = func(o publish.Outgoing) error {
		switch {
		case o.Key != "b":
			return nil
		case o.ID == runtimetest.IDOf(t, pool, "b1"):
			return runtimetest.ErrHandler
		}
		return outbox.ErrBehind
	}
	runtimetest.DrainAll(t, l)
	runtimetest.PutAll(t, pool, "b3", "a2")
	runtimetest.DrainAll(t, l)
	require.Equal(t, []string{"a1", "a2"}, b.Names(t))
	require.Equal(t, "kafka:said b 3", pgtest.Value[string](t, pool, "SELECT concat(min(key), ' ', count(*)) FROM outbox.parked"), "b3 waits")
	b.Answer = nil
	runtimetest.RetryNow(t, pool)
	runtimetest.DrainAll(t, l)
	require.Equal(t, []string{"a1", "a2", "b1", "b2", "b3"}, b.Names(t))
}
