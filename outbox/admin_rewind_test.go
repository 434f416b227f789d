package outbox_test

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

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

// age has the event called like "a1", and those before it, be enqueued some hours ago.
func age(t testing.TB, pool *pgxpool.Pool, name string, hours int) {
	t.Helper()
	execute(t, pool, `UPDATE outbox.log SET created_at = statement_timestamp() - make_interval(hours => $2)
		WHERE seq <= (SELECT seq FROM outbox.log WHERE payload->>'key' || (payload->>'n') = $1) AND created_at > statement_timestamp() - interval '1 h'`, name, hours)
}

func hoursAgo(n float64) time.Time { return time.Now().Add(-time.Duration(n * float64(time.Hour))) }

func TestAdminRewinds(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		a := adminOf(t, pool)
		h := newNotes()
		l := listenAs(t, pool, transactional, outbox.ListenerSpec{Shards: 3}, outbox.ListenerConfig{}, h)
		putAll(t, pool, "a1", "a2", "b1")
		age(t, pool, "b1", 5)
		putAll(t, pool, "a3", "b2")
		age(t, pool, "b2", 3)
		putAll(t, pool, "a4", "b3")
		drainAll(t, l)
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
			h.got = nil
			require.Equal(t, len(c.want), rewind(t, a, c.to))
			require.Equal(t, len(c.want), drainAll(t, l).Delivered)
			require.ElementsMatch(t, c.want, h.names())
		}
	})
}

func TestAdminRewindResetsAttempts(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := adminOf(t, pool)
	h := newNotes()
	h.fail = failFor("b")
	l := listenTo(t, pool, outbox.ListenerSpec{Retry: late}, outbox.ListenerConfig{}, h)
	putAll(t, pool, "a1", "b1", "a2")
	drainAll(t, l)
	require.Equal(t, 3, rewind(t, a, time.Time{}))
	h.fail = nil
	require.Equal(t, outbox.DrainReport{Delivered: 3}, drainAll(t, l), "without waiting for the back-off")
	require.Equal(t, []string{"a1", "a1", "b1", "a2"}, h.names())
	require.Equal(t, 1, h.got[2].Attempt)
}

// A rewind to a time ahead of the cursor does not skip what lies between.
func TestAdminRewindNeverGoesForward(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := adminOf(t, pool)
	h := newNotes()
	h.fail = failFor("b")
	l := listenTo(t, pool, outbox.ListenerSpec{Retry: late}, outbox.ListenerConfig{}, h)
	putAll(t, pool, "a1", "b1", "a2", "a3")
	drainAll(t, l)
	h.fail = nil
	require.Equal(t, 3, rewind(t, a, hoursAgo(-1)))
	drainAll(t, l)
	require.Equal(t, []string{"a1", "b1", "a2", "a3"}, h.names())
}

// An event that commits behind the cursor is not lost by a rewind to a time after it, whether it was committed
// then or not.
func TestAdminRewindKeepsStragglers(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := adminOf(t, pool)
	h := newNotes()
	l := listenTo(t, pool, outbox.ListenerSpec{}, outbox.ListenerConfig{}, h)
	before, after := begin(t, pool, pgx.TxOptions{}), begin(t, pool, pgx.TxOptions{})
	for key, tx := range map[string]pgx.Tx{"before": before, "after": after} {
		_, err := saidTopic.Untyped().Enqueue(t.Context(), tx, said{Key: key, N: 1})
		require.NoError(t, err)
	}
	putAll(t, pool, "a1", "a2")
	age(t, pool, "a2", 5)
	drainAll(t, l)
	putAll(t, pool, "a3")
	drainAll(t, l)
	require.NoError(t, before.Commit(t.Context()))
	execute(t, pool, "UPDATE outbox.log SET created_at = statement_timestamp() - interval '5 h' WHERE payload->>'key' = 'before'")
	h.got = nil
	rewind(t, a, hoursAgo(3))
	drainAll(t, l)
	require.Contains(t, h.names(), "before1")
	require.Contains(t, h.names(), "a3")
	require.NoError(t, after.Commit(t.Context()))
	drainAll(t, l)
	require.Contains(t, h.names(), "after1")
}

func TestAdminRewindAndParkedEvents(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := adminOf(t, pool)
	h := newNotes()
	failing := true
	h.fail = func(d outbox.Delivery[said]) error {
		if failing && (d.Payload.Key == "b" || d.Payload.Key == "c") {
			return errHandler
		}
		return nil
	}
	l := listenTo(t, pool, outbox.ListenerSpec{ParkKeys: true, Retry: late}, outbox.ListenerConfig{}, h)
	inTx(t, pool, func(tx pgx.Tx) { // c2 is behind c1, which has the higher position
		_, err := tx.Exec(t.Context(), "SELECT setval('outbox.log_seq', 10)")
		require.NoError(t, err)
		_, err = saidTopic.Untyped().EnqueueMany(t.Context(), tx, []said{{"b", 1}, {"a", 1}})
		require.NoError(t, err)
	})
	age(t, pool, "a1", 5)
	putAll(t, pool, "b2", "c1", "a2")
	drainAll(t, l)
	inTx(t, pool, func(tx pgx.Tx) {
		_, err := tx.Exec(t.Context(), `WITH one AS (INSERT INTO outbox.log (seq, namespace, topic, payload, partition_key, bucket, created_at)
			SELECT 5, 'test', 'said', '{"key": "c", "n": 2}', partition_key, bucket, statement_timestamp() - interval '5 h' FROM outbox.log
			WHERE payload->>'key' = 'c' RETURNING xid)
			UPDATE outbox.listeners SET lo_bound = (one.xid::text::bigint + 1)::text::xid8 FROM one`)
		require.NoError(t, err)
	})
	drainAll(t, l)
	require.Equal(t, []string{"a1", "a2"}, h.names())
	const parked = "SELECT string_agg(concat(payload->>'key', payload->>'n', CASE WHEN retry_after IS NULL THEN '' ELSE '!' END), ' ' ORDER BY no) FROM outbox.parked"
	require.Equal(t, "b1! b2 c1! c2", value[string](t, pool, parked))

	require.Equal(t, 3, rewind(t, a, hoursAgo(1)))
	require.Equal(t, "b1! c2!", value[string](t, pool, parked), "what comes again is gone; c2 is the head of its key now")
	failing = false
	retryNow(t, pool)
	drainAll(t, l)
	require.ElementsMatch(t, []string{"a1", "a2", "a2", "b1", "b2", "c1", "c2"}, h.names())
	require.Zero(t, count(t, pool, "SELECT count(*) FROM outbox.parked"))

	// Without the log a parked event is all there is.
	h.got, failing = nil, true
	putAll(t, pool, "b3")
	drainAll(t, l)
	execute(t, pool, "DELETE FROM outbox.log WHERE payload->>'key' = 'b'")
	require.Equal(t, 4, rewind(t, a, time.Time{}))
	require.Equal(t, "b3!", value[string](t, pool, parked))
}

// What a holder is handling is refused, and comes again.
func TestAdminRewindsWhileAHandlerRuns(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		a := adminOf(t, pool)
		h := newNotes()
		l := listenAs(t, pool, transactional, outbox.ListenerSpec{}, outbox.ListenerConfig{BatchSize: 2}, h)
		putAll(t, pool, "a1", "a2", "a3")
		h.hold = make(chan struct{})
		stop := startListener(t, l)
		for range 2 {
			receive(t, h.started, "the first batch")
			h.hold <- struct{}{}
		}
		require.Equal(t, 3, receive(t, h.started, "the second batch").Payload.N)
		require.Equal(t, 3, rewind(t, a, time.Time{}))
		close(h.hold)
		settles(t, pool, 1, "SELECT count(*) FROM outbox.listeners WHERE NOT running AND NOT in_batch AND high_seq = 3")
		stop()
		require.Equal(t, []string{"a1", "a2", "a3", "a1", "a2", "a3"}, h.names())
		if transactional {
			require.Equal(t, "a1 a2 a1 a2 a3", value[string](t, pool, "SELECT string_agg(key || n, ' ' ORDER BY no) FROM effects"))
		}
	})
}

// A rewind that has to wait for a cursor goes on with a snapshot of afterwards: with one from before, the cursor would
// take what was committed meanwhile, and maybe handled, for unfinished.
func TestAdminRewindTakesItsSnapshotWhenNothingMoves(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := adminOf(t, pool)
	l := listenTo(t, pool, outbox.ListenerSpec{Shards: 2}, outbox.ListenerConfig{}, newNotes())
	putAll(t, pool, "a1", "a2")
	drainAll(t, l)
	holder := begin(t, pool, pgx.TxOptions{})
	_, err := holder.Exec(t.Context(), "UPDATE outbox.listeners SET lease_no = lease_no + 1 WHERE shard = 1")
	require.NoError(t, err)
	over := make(chan error, 1)
	go func() {
		_, err := a.Rewind(t.Context(), "ears", hoursAgo(-1))
		over <- err
	}()
	settles(t, pool, 1, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%ListenerTakeOver%'")
	put1(t, pool, "b", 1) // while it waits
	require.NoError(t, holder.Commit(t.Context()))
	require.NoError(t, receive(t, over, "the rewind"))
	require.Equal(t, 2, count(t, pool, `SELECT count(*) FROM outbox.listeners AS l JOIN outbox.log AS g ON g.payload->>'key' = 'b'
		WHERE pg_visible_in_snapshot(g.xid, l.lo) AND l.lo_bound > g.xid`))
	require.Zero(t, count(t, pool, "SELECT count(*) FROM outbox.listeners WHERE lease_by IS NOT NULL OR running"))
}

// A change of shards that was under way goes on from where the listener is now.
func TestAdminRewindsDuringAChangeOfShards(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := adminOf(t, pool)
	h := newNotes()
	h.fail = failFor("b")
	putAll(t, pool, "a1", "b1", "a2")
	drainAll(t, listenTo(t, pool, outbox.ListenerSpec{Retry: late}, outbox.ListenerConfig{}, h))
	three := listenTo(t, pool, outbox.ListenerSpec{Shards: 3, Retry: late}, outbox.ListenerConfig{}, h)
	drainAll(t, three)
	require.Equal(t, 1, count(t, pool, "SELECT count(*) FROM outbox.listeners WHERE barrier IS NOT NULL"))
	h.fail, h.got = nil, nil
	putAll(t, pool, "c1")
	require.Equal(t, 4, rewind(t, a, time.Time{}))
	drainAll(t, three)
	require.ElementsMatch(t, []string{"a1", "b1", "a2", "c1"}, h.names())
	require.Equal(t, 3, count(t, pool, "SELECT count(*) FROM outbox.listeners"))
}

// TestAdminRewindsUnderLoad rewinds a listener over and over while it runs and writers commit in any order: nothing is
// lost, and what comes after the last rewind comes once.
func TestAdminRewindsUnderLoad(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := adminOf(t, pool)
	h := newNotes()
	l := listenTo(t, pool, outbox.ListenerSpec{Shards: 2, Concurrency: 2}, outbox.ListenerConfig{BatchSize: 7, PollInterval: 10 * time.Millisecond}, h)
	drainAll(t, l)
	stop := startListener(t, l)
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
					_, err := saidTopic.Untyped().Enqueue(context.Background(), tx, said{Key: fmt.Sprint("w", w, "-", rand.IntN(5)), N: n})
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
		// To somewhere in the last moments, so that some of what is behind has not committed.
		_, err := a.Rewind(t.Context(), "ears", time.Now().Add(-rand.N(200*time.Millisecond)))
		require.NoError(t, err)
		if rewinds+1 == enough {
			close(often)
		}
	}
	settles(t, pool, 2, `SELECT count(*) FROM outbox.listeners AS l WHERE NOT l.running AND NOT l.in_batch AND l.high_seq = (SELECT max(seq) FROM outbox.log)`)
	stop()
	seen := make(map[string]bool)
	for _, d := range h.got {
		seen[d.ID.String()] = true
	}
	require.Len(t, seen, writers*txs)
}
