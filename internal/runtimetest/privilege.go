package runtimetest

import (
	"context"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/pgtest"
)

// As returns a pool whose sessions have only the granted privileges, such as "SELECT ON outbox.log".
func As(t testing.TB, pool *pgxpool.Pool, grants ...string) *pgxpool.Pool {
	t.Helper()
	role := "outboxgen_test_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	pgtest.Execute(t, pool, "CREATE ROLE "+role)
	pgtest.Execute(t, pool, "GRANT USAGE ON SCHEMA outbox TO "+role)
	for _, grant := range grants {
		pgtest.Execute(t, pool, "GRANT "+grant+" TO "+role)
	}
	t.Cleanup(func() {
		_, err := pool.Exec(context.Background(), "DROP OWNED BY "+role+"; DROP ROLE "+role)
		require.NoError(t, err)
	})
	cfg := pool.Config()
	cfg.ConnConfig.RuntimeParams["role"] = role
	limited, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(limited.Close)
	return limited
}
