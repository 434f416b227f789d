package outbox_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/pgtest"
)

// count runs a query that returns one number.
func count(t testing.TB, pool *pgxpool.Pool, query string, args ...any) int {
	t.Helper()
	var n int
	require.NoError(t, pool.QueryRow(context.Background(), query, args...).Scan(&n))
	return n
}

// anotherPool returns a second pool on the database of pool.
func anotherPool(t testing.TB, pool *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	return pgtest.Pool(t, pgtest.URL(t, pool))
}

// inTx runs call in a transaction and commits it.
func inTx(t testing.TB, pool *pgxpool.Pool, call func(tx pgx.Tx)) {
	t.Helper()
	tx := begin(t, pool, pgx.TxOptions{})
	call(tx)
	require.NoError(t, tx.Commit(t.Context()))
}

// begin opens a transaction that is rolled back after the test unless it is over by then.
func begin(t testing.TB, pool *pgxpool.Pool, options pgx.TxOptions) pgx.Tx {
	t.Helper()
	tx, err := pool.BeginTx(t.Context(), options)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
	return tx
}

// execute runs a statement of the test's own.
func execute(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	_, err := pool.Exec(t.Context(), sql, args...)
	require.NoError(t, err)
}

// value reads one value.
func value[T any](t testing.TB, db interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}, sql string, args ...any) T {
	t.Helper()
	rows, err := db.Query(t.Context(), sql, args...)
	require.NoError(t, err)
	v, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	require.NoError(t, err)
	return v
}

// awaitBlocked waits until n sessions of the database wait for a lock.
func awaitBlocked(t testing.TB, pool *pgxpool.Pool, n int) {
	t.Helper()
	eventually(t, func() bool {
		return value[int](t, pool, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) >= n
	})
}
