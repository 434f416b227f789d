package pgtest

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

// Count runs a query that returns one number.
func Count(t testing.TB, pool *pgxpool.Pool, query string, args ...any) int {
	t.Helper()
	var n int
	require.NoError(t, pool.QueryRow(context.Background(), query, args...).Scan(&n))
	return n
}

// AnotherPool returns a second pool on the database of pool.
func AnotherPool(t testing.TB, pool *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	return Pool(t, URL(t, pool))
}

// Idle waits until no connection of pool is in use. The pool closes a broken connection, as that of an ended LISTEN is,
// after it was released.
func Idle(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	Eventually(t, func() bool { return pool.Stat().AcquiredConns() == 0 })
}

// InTx runs call in a transaction and commits it.
func InTx(t testing.TB, pool *pgxpool.Pool, call func(tx pgx.Tx)) {
	t.Helper()
	tx := Begin(t, pool, pgx.TxOptions{})
	call(tx)
	require.NoError(t, tx.Commit(t.Context()))
}

// Begin opens a transaction that is rolled back after the test unless it is over by then.
func Begin(t testing.TB, pool *pgxpool.Pool, options pgx.TxOptions) pgx.Tx {
	t.Helper()
	tx, err := pool.BeginTx(t.Context(), options)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
	return tx
}

// Execute runs a statement of a test.
func Execute(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	_, err := pool.Exec(t.Context(), sql, args...)
	require.NoError(t, err)
}

// Value reads one value.
func Value[T any](t testing.TB, db interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}, sql string, args ...any) T {
	t.Helper()
	rows, err := db.Query(t.Context(), sql, args...)
	require.NoError(t, err)
	v, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	require.NoError(t, err)
	return v
}

// AwaitBlocked waits until n sessions of the database wait for a lock.
func AwaitBlocked(t testing.TB, pool *pgxpool.Pool, n int) {
	t.Helper()
	Eventually(t, func() bool {
		return Value[int](t, pool,
			`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) >= n
	})
}
