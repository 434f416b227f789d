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
	sharedSQL  = "SELECT pg_try_advisory_xact_lock_shared($1)" // of an enqueue
	waitingSQL = "SELECT count(*) FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database " +
		"WHERE d.datname = current_database() AND l.locktype = 'advisory' AND NOT l.granted"
	heldSQL  = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted AND pid = $1"
	waitsSQL = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND pid = $1"
)

// TestSleeperWaitsForOpenTransactions: it gets the lock when those are over that have enqueued before. Those that enqueue
// while it waits ring.
func TestSleeperWaitsForOpenTransactions(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	b, conn := ringerOf(t, pool)
	pid := conn.PgConn().PID()
	tx := open(t, pool, b.bell.Key)

	got := make(chan bool, 1)
	go func() { // the statements of await, with more patience
		batch := &pgx.Batch{}
		b.db.Begin(batch)
		b.db.Queue(batch, func(q *queries.Queries) {
			_ = q.BellPatience(t.Context(), queries.BellPatienceParams{LockKey: b.bell.Key, WaitMs: 3600_000})
		})
		batch.Queue(awaitLock)
		var locked bool
		b.db.Queue(batch, func(q *queries.Queries) {
			_, _ = q.BellTryLock(t.Context(), b.bell.Key)
		}).QueryRow(func(r pgx.Row) error { return r.Scan(&locked) })
		b.db.Commit(batch)
		got <- conn.SendBatch(t.Context(), batch).Close() == nil && locked
	}()
	pgtest.Settles(t, pool, 1, waitsSQL, pid)
	require.True(t, rings(t, pool, b.bell.Key), "an enqueue that comes now rings")
	require.NoError(t, tx.Commit(t.Context()))
	require.True(t, pgtest.Receive(t, got, "the lock"))
	require.Equal(t, 1, pgtest.Count(t, pool, heldSQL, pid), "it outlives the transaction")
	require.NoError(t, b.unlock(b.db.Each(conn)))
	require.Zero(t, pgtest.Count(t, pool, heldSQL, pid), "and is held once")
}

// open begins a transaction that has enqueued without a ring.
func open(t *testing.T, pool *pgxpool.Pool, key int64) pgx.Tx {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	var locked bool
	require.NoError(t, tx.QueryRow(t.Context(), sharedSQL, key).Scan(&locked))
	require.True(t, locked)
	return tx
}

// rings reports whether an enqueue would ring.
func rings(t *testing.T, pool *pgxpool.Pool, key int64) bool {
	t.Helper()
	var locked bool
	require.NoError(t, pool.QueryRow(t.Context(), sharedSQL, key).Scan(&locked))
	return !locked
}

// TestLongTransaction: while a transaction that has enqueued stays open, a sleeper hears every enqueue that comes later,
// and other sleepers rely on it. Then it has the lock, and all check.
func TestLongTransaction(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	first, second := running(t, pool), running(t, pool)
	first.heard(t) // the second has connected
	key, channel := first.bell.bell.Key, first.bell.bell.Channel
	tx := open(t, pool, key)
	first.asks(t, sleep.Busy)
	first.asks(t, sleep.Awaits)
	second.asks(t, sleep.Awaits)
	require.Equal(t, 1, pgtest.Count(t, pool, waitingSQL), "one is enough")
	require.True(t, rings(t, pool, key))
	_, err := pool.Exec(t.Context(), "SELECT pg_notify($1, '')", channel) // as an enqueue does
	require.NoError(t, err)
	require.False(t, first.heard(t).Left())
	require.True(t, second.heard(t).Left())

	require.NoError(t, tx.Commit(t.Context()))
	require.False(t, first.heard(t).Left())
	require.False(t, second.heard(t).Left())
	first.asks(t, sleep.Watches)
	second.asks(t, sleep.Watches)
	require.True(t, rings(t, pool, key))

	first.Request(awake)
	require.False(t, second.heard(t).Watched(), "it has given up the lock")
	require.False(t, rings(t, pool, key))
}

// TestLongTransactionOfABusySleeper: when a sleeper has something to do, its waiter ends after one statement. If it sleeps
// before that statement ends, it waits again.
func TestLongTransactionOfABusySleeper(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	d := running(t, pool)
	key := d.bell.bell.Key
	tx := open(t, pool, key)
	d.asks(t, sleep.Busy)
	d.asks(t, sleep.Awaits)
	d.Request(awake)
	d.asks(t, sleep.Awaits)
	require.True(t, rings(t, pool, key))
	d.Request(awake)
	pgtest.Settles(t, pool, 0, waitingSQL)
	require.False(t, rings(t, pool, key))
	require.NoError(t, tx.Rollback(t.Context()))
	d.asks(t, sleep.Watches)
}

// TestSleeperThatMayNotWaitForLong: if a statement may not take so long, the sleeper does not try again soon.
func TestSleeperThatMayNotWaitForLong(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	pgtest.Execute(t, pool, "ALTER ROLE CURRENT_USER IN DATABASE "+pool.Config().ConnConfig.Database+" SET statement_timeout = '100ms'")
	pool.Reset()
	d := running(t, pool)
	tx := open(t, pool, d.bell.bell.Key)
	d.asks(t, sleep.Busy)
	<-d.bell.waiter.over
	d.asks(t, sleep.Busy)
	require.Nil(t, d.bell.waiter)
	require.True(t, d.bell.impatient.After(time.Now().Add(refusedWait/2)))
	require.NoError(t, tx.Rollback(t.Context()))
	d.asks(t, sleep.Watches)
}

// TestSleeperWhoseRoleMayNotWait: without PL/pgSQL it is refused, as before, and keeps its connection.
func TestSleeperWhoseRoleMayNotWait(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	b, conn := ringerOf(t, pool)
	pgtest.Execute(t, pool, "REVOKE USAGE ON LANGUAGE plpgsql FROM PUBLIC")
	_, err := conn.Exec(t.Context(), "SET ROLE pg_monitor")
	require.NoError(t, err)
	tx := open(t, pool, b.bell.Key)
	locked, state, err := b.lock(false, conn)
	require.NoError(t, err)
	require.False(t, locked)
	require.Equal(t, sleep.Busy, state)
	require.Nil(t, b.waiter)
	require.True(t, b.impatient.After(time.Now().Add(refusedWait/2)))
	require.EqualValues(t, 'I', conn.PgConn().TxStatus())
	require.NoError(t, tx.Rollback(t.Context()))
}
