package runtimetest

import (
	"context"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/migrate"
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
	return Sessions(t, pool, role)
}

// MakeRoles runs the SQL that `outboxgen migrate get --roles` prints and returns the prefix of the roles.
func MakeRoles(t testing.TB, pool *pgxpool.Pool) (prefix string) {
	t.Helper()
	return MakeMoreRoles(t, pool, migrate.RoleOptions{})
}

// MakeMoreRoles is MakeRoles with options, whose prefix is replaced.
func MakeMoreRoles(t testing.TB, pool *pgxpool.Pool, o migrate.RoleOptions) (prefix string) {
	t.Helper()
	prefix = "test_" + strings.ReplaceAll(uuid.NewString(), "-", "")[:20] + "_"
	o.Prefix = prefix
	text, err := migrate.RolesSQL("outbox", o)
	require.NoError(t, err)
	for range 2 { // it can be repeated
		pgtest.Execute(t, pool, text)
	}
	t.Cleanup(func() {
		rows, err := pool.Query(context.Background(), "SELECT rolname::text FROM pg_roles WHERE starts_with(rolname, $1)", prefix)
		require.NoError(t, err)
		roles, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		for _, role := range roles {
			_, err := pool.Exec(context.Background(), "DROP OWNED BY "+role+"; DROP ROLE "+role)
			require.NoError(t, err)
		}
	})
	return prefix
}

// RolePools returns a pool for each role, whose sessions have the privileges that `outboxgen migrate get --roles` gives
// it.
func RolePools(t testing.TB, pool *pgxpool.Pool) map[migrate.Role]*pgxpool.Pool {
	t.Helper()
	prefix, pools := MakeRoles(t, pool), make(map[migrate.Role]*pgxpool.Pool)
	for _, role := range migrate.Roles() {
		pools[role] = Sessions(t, pool, prefix+string(role))
	}
	return pools
}

// Sessions returns a pool whose sessions have the privileges of role.
func Sessions(t testing.TB, pool *pgxpool.Pool, role string) *pgxpool.Pool {
	t.Helper()
	cfg := pool.Config()
	cfg.ConnConfig.RuntimeParams["role"] = role
	limited, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(limited.Close)
	return limited
}
