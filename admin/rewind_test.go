package admin_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
)

// age makes the event named like "a1", and those before it, some hours old.
func age(t testing.TB, pool *pgxpool.Pool, name string, hours int) {
	t.Helper()
	pgtest.Execute(t, pool, `UPDATE outbox.log SET created_at = statement_timestamp() - make_interval(hours => $2)
		WHERE seq <= (SELECT seq FROM outbox.log WHERE payload->>'key' || (payload->>'n') = $1) AND created_at > statement_timestamp() - interval '1 h'`, name, hours)
}

func hoursAgo(n float64) time.Time { return time.Now().Add(-time.Duration(n * float64(time.Hour))) }

func TestAdminRewinds(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		a := runtimetest.AdminOf(t, pool)
		h := runtimetest.NewNotes()
		l := runtimetest.ListenAs(t, pool, transactional, listener.Spec{Shards: 3}, listener.Config{}, h)
		runtimetest.PutAll(t, pool, "a1", "a2", "b1")
		age(t, pool, "b1", 5)
		runtimetest.PutAll(t, pool, "a3", "b2")
		age(t, pool, "b2", 3)
		runtimetest.PutAll(t, pool, "a4", "b3")
		runtimetest.DrainAll(t, l)
		for _, c := range []struct {
			to   time.Time
			want []string
		}{
			{time.Time{}, []string{"a1", "a2", "b1", "a3", "b2", "a4", "b3"}},
			{hoursAgo(9), []string{"a1", "a2", "b1", "a3", "b2", "a4", "b3"}},
			{hoursAgo(4), []string{"a3", "b2", "a4", "b3"}},
			{hoursAgo(1), []string{"a4", "b3"}},
			{hoursAgo(-1), nil},
		} {
			h.Got = nil
			require.Equal(t, len(c.want), runtimetest.Rewind(t, a, c.to))
			require.Equal(t, len(c.want), runtimetest.DrainAll(t, l).Delivered)
			require.ElementsMatch(t, c.want, h.Names())
		}
	})
}

func TestAdminRewindResetsAttempts(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	h := runtimetest.NewNotes()
	h.Fail = runtimetest.FailFor("b")
	l := runtimetest.ListenTo(t, pool, listener.Spec{Retry: runtimetest.LateRetry}, listener.Config{}, h)
	runtimetest.PutAll(t, pool, "a1", "b1", "a2")
	runtimetest.DrainAll(t, l)
	require.Equal(t, 3, runtimetest.Rewind(t, a, time.Time{}))
	h.Fail = nil
	require.Equal(t, listener.Report{Delivered: 3}, runtimetest.DrainAll(t, l), "without waiting for the backoff")
	require.Equal(t, []string{"a1", "a1", "b1", "a2"}, h.Names())
	require.Equal(t, 1, h.Got[2].Attempt)
}

// A rewind to a time ahead of the cursor does not skip the events in between.
func TestAdminRewindNeverGoesForward(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	h := runtimetest.NewNotes()
	h.Fail = runtimetest.FailFor("b")
	l := runtimetest.ListenTo(t, pool, listener.Spec{Retry: runtimetest.LateRetry}, listener.Config{}, h)
	runtimetest.PutAll(t, pool, "a1", "b1", "a2", "a3")
	runtimetest.DrainAll(t, l)
	h.Fail = nil
	require.Equal(t, 3, runtimetest.Rewind(t, a, hoursAgo(-1)))
	runtimetest.DrainAll(t, l)
	require.Equal(t, []string{"a1", "b1", "a2", "a3"}, h.Names())
}

// An event that commits behind the cursor is not lost by a rewind to a time after it, whether it was committed
// then or not.
func TestAdminRewindKeepsStragglers(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	h := runtimetest.NewNotes()
	l := runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{}, h)
	before, after := pgtest.Begin(t, pool, pgx.TxOptions{}), pgtest.Begin(t, pool, pgx.TxOptions{})
	for key, tx := range map[string]pgx.Tx{"before": before, "after": after} {
		_, err := runtimetest.SaidTopic.Enqueue(t.Context(), tx, runtimetest.Said{Key: key, N: 1})
		require.NoError(t, err)
	}
	runtimetest.PutAll(t, pool, "a1", "a2")
	age(t, pool, "a2", 5)
	runtimetest.DrainAll(t, l)
	runtimetest.PutAll(t, pool, "a3")
	runtimetest.DrainAll(t, l)
	require.NoError(t, before.Commit(t.Context()))
	pgtest.Execute(t, pool, "UPDATE outbox.log SET created_at = statement_timestamp() - interval '5 h' WHERE payload->>'key' = 'before'")
	h.Got = nil
	runtimetest.Rewind(t, a, hoursAgo(3))
	runtimetest.DrainAll(t, l)
	require.Contains(t, h.Names(), "before1")
	require.Contains(t, h.Names(), "a3")
	require.NoError(t, after.Commit(t.Context()))
	runtimetest.DrainAll(t, l)
	require.Contains(t, h.Names(), "after1")
}

func TestAdminRewindAndParkedEvents(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	h := runtimetest.NewNotes()
	failing := true
	h.Fail = func(d outbox.Delivery[runtimetest.Said]) error {
		if failing && (d.Payload.Key == "b" || d.Payload.Key == "c") {
			return runtimetest.ErrHandler
		}
		return nil
	}
	l := runtimetest.ListenTo(t, pool, listener.Spec{ParkKeys: true, Retry: runtimetest.LateRetry}, listener.Config{}, h)
	pgtest.InTx(t, pool, func(tx pgx.Tx) { // c2 is behind c1, which has the higher position
		_, err := tx.Exec(t.Context(), "SELECT setval('outbox.log_seq', 10)")
		require.NoError(t, err)
		_, err = runtimetest.SaidTopic.EnqueueMany(t.Context(), tx, []runtimetest.Said{{Key: "b", N: 1}, {Key: "a", N: 1}})
		require.NoError(t, err)
	})
	age(t, pool, "a1", 5)
	runtimetest.PutAll(t, pool, "b2", "c1", "a2")
	runtimetest.DrainAll(t, l)
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		_, err := tx.Exec(t.Context(), `WITH one AS (INSERT INTO outbox.log (seq, namespace, topic, payload, partition_key, bucket, created_at)
			SELECT 5, 'test', 'said', '{"key": "c", "n": 2}', partition_key, bucket, statement_timestamp() - interval '5 h' FROM outbox.log
			WHERE payload->>'key' = 'c' RETURNING xid)
			UPDATE outbox.listeners SET lo_bound = (one.xid::text::bigint + 1)::text::xid8 FROM one`)
		require.NoError(t, err)
	})
	runtimetest.DrainAll(t, l)
	require.Equal(t, []string{"a1", "a2"}, h.Names())
	const parked = "SELECT string_agg(concat(payload->>'key', payload->>'n', CASE WHEN retry_after IS NULL THEN '' ELSE '!' END), ' ' ORDER BY no) FROM outbox.parked"
	require.Equal(t, "b1! b2 c1! c2", pgtest.Value[string](t, pool, parked))

	require.Equal(t, 3, runtimetest.Rewind(t, a, hoursAgo(1)))
	require.Equal(t, "b1! c2!", pgtest.Value[string](t, pool, parked), "events that are delivered again from the log are not parked any more; c2 is the head of its key now")
	failing = false
	runtimetest.RetryNow(t, pool)
	runtimetest.DrainAll(t, l)
	require.ElementsMatch(t, []string{"a1", "a2", "a2", "b1", "b2", "c1", "c2"}, h.Names())
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.parked"))

	// If the log no longer has the event, the parked copy is the only one.
	h.Got, failing = nil, true
	runtimetest.PutAll(t, pool, "b3")
	runtimetest.DrainAll(t, l)
	pgtest.Execute(t, pool, "DELETE FROM outbox.log WHERE payload->>'key' = 'b'")
	require.Equal(t, 4, runtimetest.Rewind(t, a, time.Time{}))
	require.Equal(t, "b3!", pgtest.Value[string](t, pool, parked))
}

// The result of an event that a holder is handling is refused, and the event is delivered again.
func TestAdminRewindsWhileAHandlerRuns(t *testing.T) {
	t.Parallel()
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		a := runtimetest.AdminOf(t, pool)
		h := runtimetest.NewNotes()
		l := runtimetest.ListenAs(t, pool, transactional, listener.Spec{}, listener.Config{BatchSize: 2}, h)
		runtimetest.PutAll(t, pool, "a1", "a2", "a3")
		h.Hold = make(chan struct{})
		stop := runtimetest.StartListener(t, l)
		for range 2 {
			pgtest.Receive(t, h.Started, "the first batch")
			h.Hold <- struct{}{}
		}
		require.Equal(t, 3, pgtest.Receive(t, h.Started, "the second batch").Payload.N)
		require.Equal(t, 3, runtimetest.Rewind(t, a, time.Time{}))
		close(h.Hold)
		pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.listeners WHERE NOT running AND NOT in_batch AND high_seq = 3")
		stop()
		require.Equal(t, []string{"a1", "a2", "a3", "a1", "a2", "a3"}, h.Names())
		if transactional {
			require.Equal(t, "a1 a2 a1 a2 a3", pgtest.Value[string](t, pool, "SELECT string_agg(key || n, ' ' ORDER BY no) FROM effects"))
		}
	})
}

// A rewind that has to wait for a cursor continues with a snapshot from after the wait. With an earlier one, the cursor
// would treat events that were committed meanwhile, and perhaps handled, as unfinished.
func TestAdminRewindTakesItsSnapshotWhenNothingMoves(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	l := runtimetest.ListenTo(t, pool, listener.Spec{Shards: 2}, listener.Config{}, runtimetest.NewNotes())
	runtimetest.PutAll(t, pool, "a1", "a2")
	runtimetest.DrainAll(t, l)
	holder := pgtest.Begin(t, pool, pgx.TxOptions{})
	_, err := holder.Exec(t.Context(), "UPDATE outbox.listeners SET lease_no = lease_no + 1 WHERE shard = 1")
	require.NoError(t, err)
	over := make(chan error, 1)
	go func() {
		_, err := a.Rewind(t.Context(), "ears", hoursAgo(-1))
		over <- err
	}()
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%ListenerTakeOver%'")
	runtimetest.Put(t, pool, "b", 1) // while the rewind waits
	require.NoError(t, holder.Commit(t.Context()))
	require.NoError(t, pgtest.Receive(t, over, "the rewind"))
	require.Equal(t, 2, pgtest.Count(t, pool, `SELECT count(*) FROM outbox.listeners AS l JOIN outbox.log AS g ON g.payload->>'key' = 'b'
		WHERE pg_visible_in_snapshot(g.xid, l.lo) AND l.lo_bound > g.xid`))
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.listeners WHERE lease_by IS NOT NULL OR running"))
}

// A change of shards that was under way continues from the listener's new position.
func TestAdminRewindsDuringAChangeOfShards(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	h := runtimetest.NewNotes()
	h.Fail = runtimetest.FailFor("b")
	runtimetest.PutAll(t, pool, "a1", "b1", "a2")
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{Retry: runtimetest.LateRetry}, listener.Config{}, h))
	three := runtimetest.ListenTo(t, pool, listener.Spec{Shards: 3, Retry: runtimetest.LateRetry}, listener.Config{}, h)
	runtimetest.DrainAll(t, three)
	require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.listeners WHERE barrier IS NOT NULL"))
	h.Fail, h.Got = nil, nil
	runtimetest.PutAll(t, pool, "c1")
	require.Equal(t, 4, runtimetest.Rewind(t, a, time.Time{}))
	runtimetest.DrainAll(t, three)
	require.ElementsMatch(t, []string{"a1", "b1", "a2", "c1"}, h.Names())
	require.Equal(t, 3, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.listeners"))
}

// TestAdminRewindsUnderLoad rewinds a listener repeatedly while it runs and writers commit in any order. Nothing is
// lost, and after the last rewind each event is handled once.
func TestAdminRewindsUnderLoad(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	h := runtimetest.NewNotes()
	l := runtimetest.ListenTo(t, pool, listener.Spec{Shards: 2, Concurrency: 2}, listener.Config{BatchSize: 7, PollInterval: 10 * time.Millisecond}, h)
	runtimetest.DrainAll(t, l)
	stop := runtimetest.StartListener(t, l)
	const writers, txs, enough = 4, 60, 4
	often := make(chan struct{}) // closed after enough rewinds
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for n := range txs {
				if n == txs-1 {
					select {
					case <-often:
					case <-t.Context().Done():
						return
					}
				}
				err := pgx.BeginFunc(context.Background(), pool, func(tx pgx.Tx) error {
					if _, err := tx.Exec(context.Background(), "SELECT pg_current_xact_id(), pg_sleep($1)", rand.Float64()/100); err != nil {
						return err
					}
					_, err := runtimetest.SaidTopic.Enqueue(context.Background(), tx, runtimetest.Said{Key: fmt.Sprint("w", w, "-", rand.IntN(5)), N: n})
					if err == nil {
						_, err = tx.Exec(context.Background(), "SELECT pg_sleep($1)", rand.Float64()/50)
					}
					return err
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	written := make(chan struct{})
	go func() {
		defer close(written)
		wg.Wait()
	}()
	rewinds := 0
	for open := true; open; rewinds++ {
		select {
		case <-written:
			open = false
		default:
		}
		// The time is in the last moments, so that some events behind it have not committed.
		_, err := a.Rewind(t.Context(), "ears", time.Now().Add(-rand.N(200*time.Millisecond)))
		require.NoError(t, err)
		if rewinds+1 == enough {
			close(often)
		}
	}
	pgtest.Settles(t, pool, 2, `SELECT count(*) FROM outbox.listeners AS l WHERE NOT l.running AND NOT l.in_batch AND l.high_seq = (SELECT max(seq) FROM outbox.log)`)
	stop()
	seen := make(map[string]bool)
	for _, d := range h.Got {
		seen[d.ID.String()] = true
	}
	require.Len(t, seen, writers*txs)
}
