package pgtest_test

import (
	"context"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/outboxgen/outboxgen/internal/testing/pgserver"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/migrate"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(pgtest.Supervisor))
}

func TestDatabaseIsMigratedAndPrivate(t *testing.T) {
	t.Parallel()
	first, second := pgtest.Database(t), pgtest.Database(t)
	require.NoError(t, migrate.Validate(t.Context(), first, pgtest.Schema))
	_, err := first.Exec(t.Context(), "INSERT INTO testing.events (namespace, topic, payload) VALUES ('a', 'b', '{}')")
	require.NoError(t, err)
	for pool, want := range map[interface {
		QueryRow(context.Context, string, ...any) pgx.Row
	}]int{first: 1, second: 0} {
		var got int
		require.NoError(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM testing.events").Scan(&got))
		require.Equal(t, want, got)
	}
	conn, err := pgx.Connect(t.Context(), pgtest.URL(t, first))
	require.NoError(t, err)
	require.Equal(t, first.Config().ConnConfig.Database, conn.Config().Database)
	require.NoError(t, conn.Close(t.Context()))
}

func TestDatabaseIsDroppedWithOpenConnections(t *testing.T) {
	t.Parallel()
	var name string
	t.Run("inner", func(t *testing.T) {
		pool := pgtest.Database(t)
		name = pool.Config().ConnConfig.Database
		conn, err := pgx.Connect(t.Context(), pgtest.URL(t, pool))
		require.NoError(t, err)
		require.NoError(t, conn.Ping(t.Context())) // left open
	})
	conn, err := pgx.Connect(t.Context(), pgtest.Empty(t))
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.Background())) }()
	var exists bool
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name).Scan(&exists))
	require.False(t, exists)
}

func TestServerForOneTest(t *testing.T) {
	t.Parallel()
	var dir string
	t.Run("inner", func(t *testing.T) {
		s := pgtest.Server(t, pgserver.Options{Durable: true, MaxConnections: 20})
		dir = s.Dir()
		pool := pgtest.Pool(t, s.URL())
		_, err := migrate.Up(t.Context(), pool, pgtest.Schema)
		require.NoError(t, err)
		require.NoError(t, s.Restart())
		require.NoError(t, migrate.Validate(t.Context(), pgtest.Pool(t, s.URL()), pgtest.Schema))
	})
	_, err := os.Stat(dir)
	require.ErrorIs(t, err, os.ErrNotExist)
}
