package pgtest_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/migrate"
)

// TestExampleDatabases: each example has its own database, and nothing of an example outlives the next one.
func TestExampleDatabases(t *testing.T) { // examples run one after another
	conn, err := pgx.Connect(t.Context(), pgtest.Empty(t))
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.Background())) }()
	exists := func(name string) (exists bool) {
		require.NoError(t, conn.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name).Scan(&exists))
		return exists
	}

	pgtest.EndExamples() // without one
	first := pgtest.ExampleDatabase()
	require.NoError(t, migrate.Validate(t.Context(), first, pgtest.Schema))
	empty := pgtest.ExampleEmpty()
	require.ErrorIs(t, migrate.Validate(t.Context(), empty, pgtest.Schema), migrate.ErrPending)
	require.Error(t, first.Ping(t.Context()), "closed")
	require.False(t, exists(first.Config().ConnConfig.Database))
	require.True(t, exists(empty.Config().ConnConfig.Database))
	empty.Close() // as an example may
	pgtest.EndExamples()
	require.False(t, exists(empty.Config().ConnConfig.Database))
	pgtest.EndExamples()
}
