package doorbell

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/machine/sleep"
	"github.com/outboxgen/outboxgen/internal/postgres/bell"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// ringerOf returns a doorbell on pool and a connection for it, without a run.
func ringerOf(t *testing.T, pool *pgxpool.Pool) (*doorbell, *pgx.Conn) {
	t.Helper()
	db, err := schemadb.Open("")
	require.NoError(t, err)
	b := newDoorbell(&Config{Bell: bell.Of(db, "jobs"), DB: db, Main: pool, Log: slog.New(slog.DiscardHandler)})
	b.dbCtx = context.Background()
	conn, err := pgx.Connect(t.Context(), pgtest.URL(t, pool))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return b, conn
}

const (
	sharedSQL = "SELECT pg_try_advisory_xact_lock_shared($1)" // of an enqueue
	heldSQL   = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted AND pid = $1"
	waitsSQL  = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND pid = $1"
)

// TestSleeperWaitsForOpenTransactions: it gets the lock when those are over that have enqueued before. Those that enqueue
// while it waits ring.
func TestSleeperWaitsForOpenTransactions(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	b, conn := ringerOf(t, pool)
	pid := conn.PgConn().PID()
	open, err := pool.Begin(t.Context())
	require.NoError(t, err)
	var locked bool
	require.NoError(t, open.QueryRow(t.Context(), sharedSQL, b.bell.Key).Scan(&locked))
	require.True(t, locked)

	got := make(chan bool, 1)
	go func() { // the statements of await, with more patience
		batch := &pgx.Batch{}
		b.db.Begin(batch)
		b.db.Queue(batch, func(q *queries.Queries) { _ = q.BellPatience(t.Context(), b.bell.Key) })
		batch.Queue("SET LOCAL lock_timeout = '1h'")
		batch.Queue(awaitLock)
		var locked bool
		b.db.Queue(batch, func(q *queries.Queries) {
			_, _ = q.BellTryLock(t.Context(), b.bell.Key)
		}).QueryRow(func(r pgx.Row) error { return r.Scan(&locked) })
		b.db.Commit(batch)
		got <- conn.SendBatch(t.Context(), batch).Close() == nil && locked
	}()
	pgtest.Settles(t, pool, 1, waitsSQL, pid)
	require.NoError(t, pool.QueryRow(t.Context(), sharedSQL, b.bell.Key).Scan(&locked))
	require.False(t, locked, "an enqueue that comes now rings")
	require.NoError(t, open.Commit(t.Context()))
	require.True(t, pgtest.Receive(t, got, "the lock"))
	require.Equal(t, 1, pgtest.Count(t, pool, heldSQL, pid), "it outlives the transaction")
	require.NoError(t, b.unlock(b.db.Each(conn)))
	require.Zero(t, pgtest.Count(t, pool, heldSQL, pid), "and is held once")
}

// TestSleeperDoesNotWaitForALongTransaction: the wait ends without an error, and another one does not follow soon.
func TestSleeperDoesNotWaitForALongTransaction(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	b, conn := ringerOf(t, pool)
	open, err := pool.Begin(t.Context())
	require.NoError(t, err)
	var locked bool
	require.NoError(t, open.QueryRow(t.Context(), sharedSQL, b.bell.Key).Scan(&locked))
	locked, state, err := b.lock(false, conn)
	require.NoError(t, err)
	require.False(t, locked)
	require.Equal(t, sleep.Busy, state)
	require.True(t, b.impatient.After(time.Now().Add(-longOpen)))
	until := b.impatient
	_, state, err = b.lock(false, conn)
	require.NoError(t, err)
	require.Equal(t, sleep.Busy, state)
	if time.Now().Before(until) { // on a slow machine the second has passed
		require.Equal(t, until, b.impatient)
	}
	require.NoError(t, open.Rollback(t.Context()))
	locked, state, err = b.lock(false, conn)
	require.NoError(t, err)
	require.True(t, locked)
	require.Equal(t, sleep.Watches, state)
	require.EqualValues(t, 'I', conn.PgConn().TxStatus())
}

// TestSleeperWhoseRoleMayNotWait: without PL/pgSQL it is refused, as before, and keeps its connection.
func TestSleeperWhoseRoleMayNotWait(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	b, conn := ringerOf(t, pool)
	pgtest.Execute(t, pool, "REVOKE USAGE ON LANGUAGE plpgsql FROM PUBLIC")
	_, err := conn.Exec(t.Context(), "SET ROLE pg_monitor")
	require.NoError(t, err)
	open, err := pool.Begin(t.Context())
	require.NoError(t, err)
	var locked bool
	require.NoError(t, open.QueryRow(t.Context(), sharedSQL, b.bell.Key).Scan(&locked))
	locked, err = b.await(t.Context(), conn)
	require.NoError(t, err)
	require.False(t, locked)
	require.True(t, b.impatient.After(time.Now().Add(refusedWait/2)))
	require.EqualValues(t, 'I', conn.PgConn().TxStatus())
	require.NoError(t, open.Rollback(t.Context()))
}
