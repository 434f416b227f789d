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
	text, err := migrate.RolesSQL("app", migrate.RoleOptions{})
	require.NoError(t, err)
	require.Contains(t, text, `GRANT INSERT, SELECT (id, namespace, topic, dedupe_key) ON TABLE "app".events TO "app_producer";`)
	text, err = migrate.RolesSQL("app", migrate.RoleOptions{Prefix: "roles_test_"})
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
		rows, err = sub.Query(t.Context(), `SELECT c.relname || '.' || a.attname FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid
			WHERE c.relnamespace = 'app'::regnamespace AND c.relkind IN ('r', 'v') AND c.relname <> 'turn_claim' AND a.attnum > 0 AND NOT a.attisdropped
			AND NOT has_column_privilege('roles_test_viewer', c.oid, a.attnum, 'SELECT') ORDER BY 1`)
		require.NoError(t, err)
		unread, err = pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		require.Equal(t, []string{
			"dead_letters.headers", "dead_letters.payload", "event_status.headers", "event_status.payload", "events.headers", "events.payload",
			"inbox_messages.body", "inbox_messages.envelope", "inbox_quarantined.payload", "log.headers", "log.payload", "parked.headers",
			"parked.payload",
		}, unread, "grant a new column to migrate.Viewer, unless it holds what handlers get")
		require.NoError(t, sub.Rollback(t.Context()))
	})
}

func TestRolesSQLRefusesPrefixes(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"Prefix", "a b", "x'; --", "pg_", strings.Repeat("a", 60)} {
		_, err := migrate.RolesSQL("outbox", migrate.RoleOptions{Prefix: prefix})
		require.ErrorContains(t, err, "role prefix", prefix)
	}
	_, err := migrate.RolesSQL("Outbox", migrate.RoleOptions{})
	require.ErrorContains(t, err, "schema name")
	require.Nil(t, migrate.Grants("nobody"))
}

func TestRolesSQLRefusesPartialRoles(t *testing.T) {
	t.Parallel()
	for want, o := range map[string]migrate.RoleOptions{
		`namespace "Mini'" is not a name like mini_chat`:                           {Namespaces: []string{"Mini'"}},
		"the name of role " + strings.Repeat("a", 50) + "_dispatcher_of_mini_chat": {Namespaces: []string{"mini_chat"}, Prefix: strings.Repeat("a", 50) + "_"},
		"has 65 bytes of at most 63: use a shorter prefix":                         {ByTenant: true, Prefix: strings.Repeat("a", 50)},
	} {
		_, err := migrate.RolesSQL("outbox", o)
		require.ErrorContains(t, err, want)
	}
}
