package migrate_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/migrate"
)

// TestRolesSQL: the SQL names only what the migrations make, and fits a schema of any name. Each object is granted to
// somebody, so that a new table is not forgotten.
func TestRolesSQL(t *testing.T) {
	t.Parallel()
	pool := pgtest.Plain(t)
	_, err := migrate.Up(t.Context(), pool, "app")
	require.NoError(t, err)
	text, err := migrate.RolesSQL("app", "")
	require.NoError(t, err)
	require.Contains(t, text, `GRANT INSERT, SELECT (id, namespace, topic, dedupe_key) ON TABLE "app".events TO "app_producer";`)
	text, err = migrate.RolesSQL("app", "roles_test_")
	require.NoError(t, err)
	pgtest.InTx(t, pool, func(tx pgx.Tx) { // rolled back, because roles belong to the whole server
		sub, err := tx.Begin(t.Context())
		require.NoError(t, err)
		_, err = sub.Exec(t.Context(), text)
		require.NoError(t, err)
		_, err = sub.Exec(t.Context(), text)
		require.NoError(t, err)
		rows, err := sub.Query(t.Context(), `SELECT c.relname FROM pg_class AS c WHERE c.relnamespace = 'app'::regnamespace
			AND c.relkind IN ('r', 'v') AND NOT has_table_privilege('roles_test_reader', c.oid, 'SELECT')`)
		require.NoError(t, err)
		unread, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		require.Empty(t, unread, "grant them to migrate.Reader and to who needs them")
		require.NoError(t, sub.Rollback(t.Context()))
	})
}

func TestRolesSQLRefusesPrefixes(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"Prefix", "a b", "x'; --", "pg_", strings.Repeat("a", 60)} {
		_, err := migrate.RolesSQL("outbox", prefix)
		require.ErrorContains(t, err, "role prefix", prefix)
	}
	_, err := migrate.RolesSQL("Outbox", "")
	require.ErrorContains(t, err, "schema name")
	require.Nil(t, migrate.Grants("nobody"))
}
