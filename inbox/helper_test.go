package inbox_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
)

func TestMain(m *testing.M) {
	connect = pgtest.ExampleDatabase
	runtimetest.Main(m)
}

const (
	group    = "billing"
	patience = 2 * time.Minute
	interval = 5 * time.Millisecond // between two checks
)

var errEffect = errors.New("effect failed")

// database returns a migrated database with a table of effects, which has no unique constraint.
func database(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.Database(t)
	execute(t, pool, "CREATE TABLE effects (no bigint GENERATED ALWAYS AS IDENTITY, event uuid NOT NULL)")
	return pool
}

func newInbox(t testing.TB, cfg inbox.Config) *inbox.Inbox {
	t.Helper()
	if cfg.Group == "" {
		cfg.Group = group
	}
	in, err := inbox.New(cfg)
	require.NoError(t, err)
	return in
}

// effect returns a function that writes the effect of event with tx.
func effect(tx pgx.Tx, event uuid.UUID) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := tx.Exec(ctx, "INSERT INTO effects (event) VALUES ($1)", event)
		return err
	}
}

// deliver handles event in a new transaction, as a consumer does.
func deliver(ctx context.Context, pool *pgxpool.Pool, in *inbox.Inbox, event uuid.UUID) (handled bool, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) (err error) {
		handled, err = in.Once(ctx, tx, event, effect(tx, event))
		return err
	})
	return handled, err
}

func effects(t testing.TB, pool *pgxpool.Pool, event uuid.UUID) int {
	t.Helper()
	return value[int](t, pool, "SELECT count(*) FROM effects WHERE event = $1", event)
}

func recorded(t testing.TB, pool *pgxpool.Pool) int {
	t.Helper()
	return value[int](t, pool, "SELECT count(*) FROM outbox.processed_events")
}

// begin opens a transaction. It is rolled back after the test unless it has ended before.
func begin(t testing.TB, pool *pgxpool.Pool, level pgx.TxIsoLevel) pgx.Tx {
	t.Helper()
	tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
	return tx
}

// blocked waits until the session of waiting waits in pg_locks for the session of holder.
func blocked(t testing.TB, pool *pgxpool.Pool, waiting, holder pgx.Tx) {
	t.Helper()
	require.Eventually(t, func() bool {
		return value[bool](t, pool, `SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND NOT granted) AND $2 = ANY (pg_blocking_pids($1))`,
			int32(waiting.Conn().PgConn().PID()), int32(holder.Conn().PgConn().PID()))
	}, patience, interval)
}

// usable fails if tx has been aborted.
func usable(t testing.TB, tx pgx.Tx) {
	t.Helper()
	require.Equal(t, 1, value[int](t, tx, "SELECT 1"))
}

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

// check reports err. It is for goroutines, where require must not be used.
func check(t testing.TB, err error) bool {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
	return err == nil
}

// never returns an effect that must not run.
func never(t testing.TB) func(context.Context) error {
	return func(context.Context) error {
		t.Error("an effect ran that must not run")
		return nil
	}
}

func nothing(context.Context) error { return nil }
