package schemadrift_test

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/postgres/schemadrift"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/migrate"
)

var update = flag.Bool("update", false, "write expected.tsv")

// TestExpectedIsWhatTheMigrationsMake: expected.tsv has, for each migration, what it adds to the catalogs and what it removes.
// Changed objects are removed and added.
func TestExpectedIsWhatTheMigrationsMake(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Empty(t))
	files, err := migrate.Export("outbox", migrate.Plain, 1)
	require.NoError(t, err)
	var text strings.Builder
	version, before := 0, []schemadrift.Object(nil)
	for _, f := range files {
		if !strings.HasSuffix(f.Name, ".up.sql") {
			continue
		}
		version++
		pgtest.Execute(t, pool, string(f.Content))
		after := read(t, pool, "outbox")
		for _, o := range missing(before, after) {
			_, _ = fmt.Fprintf(&text, "%d\t-\t%s\t%s\t%s\t%s\n", version, o.Kind, o.Table, o.Name, o.Text)
		}
		for _, o := range missing(after, before) {
			_, _ = fmt.Fprintf(&text, "%d\t+\t%s\t%s\t%s\t%s\n", version, o.Kind, o.Table, o.Name, o.Text)
		}
		before = after
	}
	if *update {
		require.NoError(t, os.WriteFile("expected.tsv", []byte(text.String()), 0o644))
	}
	have, err := os.ReadFile("expected.tsv")
	require.NoError(t, err)
	require.Equal(t, text.String(), string(have), "run go test ./internal/postgres/schemadrift -update")
}

// missing returns the objects of list that are not in from.
func missing(list, from []schemadrift.Object) (gone []schemadrift.Object) {
	there := make(map[schemadrift.Object]bool)
	for _, o := range from {
		there[o] = true
	}
	for _, o := range list {
		if !there[o] {
			gone = append(gone, o)
		}
	}
	return gone
}

func read(t *testing.T, pool *pgxpool.Pool, schema string) (objects []schemadrift.Object) {
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		var err error
		objects, err = schemadrift.Read(t.Context(), tx, schema)
		require.NoError(t, err)
	})
	return objects
}

func compare(t *testing.T, pool *pgxpool.Pool, schema string, version int) (all []schemadrift.Difference) {
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		var err error
		all, err = schemadrift.Compare(t.Context(), tx, schema, version)
		require.NoError(t, err)
	})
	return all
}

// TestMigratedSchemaDoesNotDiffer: also under another name, also one that stands in the definitions, and half-migrated.
func TestMigratedSchemaDoesNotDiffer(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Empty(t))
	for _, schema := range []string{"outbox", "e", "topic", "events"} {
		files, err := migrate.Export(schema, migrate.Plain, 1)
		require.NoError(t, err)
		require.NotEmpty(t, compare(t, pool, schema, len(migrate.All())))
		version := 0
		for _, f := range files {
			if strings.HasSuffix(f.Name, ".up.sql") {
				version++
				pgtest.Execute(t, pool, string(f.Content))
				require.Empty(t, compare(t, pool, schema, version), "%s %d", schema, version)
			}
		}
	}
}

// TestDriftIsFound makes each kind of change. If it has a fix, the fix removes the difference.
func TestDriftIsFound(t *testing.T) {
	t.Parallel()
	pool := pgtest.Plain(t)
	pgtest.Execute(t, pool, "CREATE TABLE outbox.own (id bigint PRIMARY KEY); CREATE FUNCTION outbox.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'")
	for _, c := range []struct{ sql, kind, table, name, undo string }{
		{sql: "DROP INDEX outbox.queue_due", kind: "index", table: "queue", name: "queue_due"},
		{sql: "DROP INDEX outbox.queue_due; CREATE INDEX queue_due ON outbox.queue (namespace, next_attempt_at)", kind: "index", table: "queue", name: "queue_due"},
		{sql: "DROP INDEX outbox.events_dedupe_key; CREATE UNIQUE INDEX events_dedupe_key ON outbox.events (dedupe_key, topic, namespace)", kind: "index", table: "events", name: "events_dedupe_key"},
		{sql: "CREATE INDEX mine ON outbox.queue (attempts)", kind: "index", table: "queue", name: "mine"},
		{sql: "ALTER TABLE outbox.queue DROP CONSTRAINT queue_lane_check", kind: "constraint", table: "queue", name: "queue_lane_check"},
		{sql: "ALTER TABLE outbox.queue DROP CONSTRAINT queue_lane_check, ADD CONSTRAINT queue_lane_check CHECK (lane < 64)", kind: "constraint", table: "queue", name: "queue_lane_check"},
		{sql: "ALTER TABLE outbox.delivered DROP CONSTRAINT delivered_pkey", kind: "constraint", table: "delivered", name: "delivered_pkey"},
		{sql: "ALTER TABLE outbox.own ADD CONSTRAINT mine_fkey FOREIGN KEY (id) REFERENCES outbox.log", kind: "constraint", table: "log", name: "mine_fkey", undo: "ALTER TABLE outbox.own DROP CONSTRAINT mine_fkey"},
		{sql: "ALTER TABLE outbox.queue ALTER COLUMN max_attempts SET DEFAULT 5", kind: "column", table: "queue", name: "max_attempts"},
		{sql: "ALTER TABLE outbox.queue ALTER COLUMN max_attempts DROP DEFAULT", kind: "column", table: "queue", name: "max_attempts"},
		{sql: "ALTER TABLE outbox.queue ALTER COLUMN namespace DROP NOT NULL", kind: "column", table: "queue", name: "namespace"},
		{sql: "ALTER TABLE outbox.queue ALTER COLUMN tenant_id SET NOT NULL", kind: "column", table: "queue", name: "tenant_id"},
		{sql: "ALTER TABLE outbox.queue ALTER COLUMN attempts TYPE bigint", kind: "column", table: "queue", name: "attempts"},
		{sql: "ALTER TABLE outbox.audit ADD COLUMN mine text", kind: "column", table: "audit", name: "mine"},
		{sql: "ALTER TABLE outbox.listeners DROP COLUMN last_seq", kind: "column", table: "listeners", name: "last_seq"},
		{sql: "ALTER TABLE outbox.log ALTER COLUMN seq SET DEFAULT nextval('outbox.log_seq')", kind: "column", table: "log", name: "seq"},
		{sql: "ALTER TABLE outbox.queue SET (fillfactor = 100)", kind: "storage option", table: "queue", name: "fillfactor"},
		{sql: "ALTER TABLE outbox.queue RESET (autovacuum_vacuum_cost_delay)", kind: "storage option", table: "queue", name: "autovacuum_vacuum_cost_delay"},
		{sql: "ALTER TABLE outbox.queue SET (autovacuum_enabled = off)", kind: "storage option", table: "queue", name: "autovacuum_enabled"},
		{sql: "CREATE TRIGGER mine BEFORE UPDATE ON outbox.queue FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()", kind: "trigger", table: "queue", name: "mine"},
		{sql: "ALTER TABLE outbox.audit SET UNLOGGED", kind: "table", table: "audit", undo: "ALTER TABLE outbox.audit SET LOGGED"},
		{sql: "CREATE OR REPLACE FUNCTION outbox.lane(topic text) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT 0'", kind: "function", table: "lane(text)", undo: "-"},
		{sql: "DROP VIEW outbox.event_status; CREATE VIEW outbox.event_status AS SELECT id FROM outbox.events", kind: "view", table: "event_status", undo: "-"},
		{sql: "DROP TABLE outbox.pauses", kind: "table", table: "pauses", undo: "-"},
	} {
		if c.kind == "column" && c.name == "attempts" { // a view uses it
			pgtest.Execute(t, pool, "CREATE TABLE kept AS SELECT pg_get_viewdef('outbox.event_status'::regclass) AS text; DROP VIEW outbox.event_status")
		}
		before := compare(t, pool, "outbox", len(migrate.All()))
		pgtest.Execute(t, pool, c.sql)
		var found []schemadrift.Difference
		for _, d := range compare(t, pool, "outbox", len(migrate.All())) {
			if !slices.Contains(before, d) {
				found = append(found, d)
			}
		}
		require.Len(t, found, 1, c.sql)
		d := found[0]
		require.Equal(t, []string{c.kind, c.table, c.name}, []string{string(d.Kind), d.Table, d.Name}, c.sql)
		require.Equal(t, c.undo == "", d.Fix != "", "%s: %s", c.sql, d.Fix)
		switch {
		case c.undo == "-":
			continue
		case c.undo != "":
			pgtest.Execute(t, pool, c.undo)
		default:
			for fix := range strings.SplitAfterSeq(d.Fix, ";") {
				pgtest.Execute(t, pool, fix)
			}
		}
		require.Equal(t, before, compare(t, pool, "outbox", len(migrate.All())), "%s: %s", c.sql, d.Fix)
		if c.kind == "column" && c.name == "attempts" {
			pgtest.Execute(t, pool, "CREATE VIEW outbox.event_status AS "+pgtest.Value[string](t, pool, "SELECT text FROM kept"))
		}
	}
}
