package pgtest

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A new process drops the databases of a process that was killed, and keeps those of a process that lives.
func TestDatabasesOfKilledProcessesAreSwept(t *testing.T) {
	t.Parallel()
	dsn := Empty(t)
	dead, err := connect(t.Context(), dsn)
	require.NoError(t, err)
	alive, err := connect(t.Context(), dsn)
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, dead.admin.Close(context.Background()))
		assert.NoError(t, alive.admin.Close(context.Background()))
	})
	names := make(map[*cluster]string)
	for _, c := range []*cluster{dead, alive} {
		cfg, err := pgx.ParseConfig(c.database(t, "template0"))
		require.NoError(t, err)
		names[c] = cfg.Database
	}
	exists := func(name string) bool {
		var found bool
		require.NoError(t, alive.admin.QueryRow(t.Context(),
			"SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name).Scan(&found))
		return found
	}

	// The locks of dead's session end with it. The new session is only for the cleanup.
	require.NoError(t, dead.admin.Close(t.Context()))
	dead.admin, err = pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		next, err := connect(t.Context(), dsn)
		require.NoError(t, err)
		require.NoError(t, next.admin.Close(t.Context()))
		return !exists(names[dead])
	}, cleanupTimeout, 20*time.Millisecond)
	require.True(t, exists(names[alive]))
}

func TestWithDatabase(t *testing.T) {
	t.Parallel()
	for dsn, want := range map[string]string{
		"postgres://u:p@h:1/a?sslmode=disable":             "postgres://u:p@h:1/b?sslmode=disable",
		"postgresql:///a?host=/run/pg&dbname=c&database=d": "postgresql:///b?host=%2Frun%2Fpg",
		"host=h dbname=a": "host=h dbname=a dbname=b",
	} {
		got, err := withDatabase(dsn, "b")
		require.NoError(t, err)
		require.Equal(t, want, got)
		cfg, err := pgx.ParseConfig(got)
		require.NoError(t, err)
		require.Equal(t, "b", cfg.Database)
	}
}
