package attack_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/migrate"
)

var update = flag.Bool("update", false, "write the tables of testdata")

// neighbour may connect to the database, and has none of our roles.
const neighbour = "neighbour"

// login is somebody who logs in, with one of our roles or with none.
type login struct {
	name    string // of our role, or neighbour
	role    string // in PostgreSQL
	session *pgx.Conn
	pool    *pgxpool.Pool
}

// logins returns somebody for each role of `outboxgen migrate get --roles`, and a neighbour. They log in by themselves, so
// that no session keeps the privileges of the tests.
func logins(t testing.TB, pool *pgxpool.Pool) (people []login) {
	t.Helper()
	prefix := runtimetest.MakeRoles(t, pool)
	names := []string{}
	for _, role := range migrate.Roles() {
		names = append(names, string(role))
	}
	for _, name := range append(names, neighbour) {
		user := "login_" + strings.ReplaceAll(uuid.NewString(), "-", "")
		pgtest.Execute(t, pool, fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '%s'", user, user))
		t.Cleanup(func() {
			_, err := pool.Exec(context.Background(), "DROP OWNED BY "+user+"; DROP ROLE "+user)
			require.NoError(t, err)
		})
		if name != neighbour {
			pgtest.Execute(t, pool, fmt.Sprintf("GRANT %s%s TO %s", prefix, name, user))
		}
		address, err := url.Parse(pgtest.URL(t, pool))
		require.NoError(t, err)
		address.User = url.UserPassword(user, user)
		own := pgtest.Pool(t, address.String())
		people = append(people, login{name: name, role: user, session: session(t, own), pool: own})
	}
	return people
}

// denied reports whether PostgreSQL refused a statement for a missing privilege.
func denied(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && refused.Code == "42501"
}

// table is what each login may do, one line per object.
type table struct {
	people []login
	rows   [][]string
}

func newTable(what string, people []login) *table {
	head := []string{what}
	for _, who := range people {
		head = append(head, who.name)
	}
	return &table{people: people, rows: [][]string{head}}
}

func (t *table) add(what string, cells map[string]string) {
	row := []string{what}
	for _, who := range t.people {
		cell := cells[who.name]
		if cell == "" {
			cell = "-"
		}
		row = append(row, cell)
	}
	t.rows = append(t.rows, row)
}

func (t *table) String() string {
	wide := make([]int, len(t.rows[0]))
	for _, row := range t.rows {
		for i, cell := range row {
			wide[i] = max(wide[i], len(cell))
		}
	}
	var b strings.Builder
	for _, row := range t.rows {
		line := ""
		for i, cell := range row {
			line += fmt.Sprintf("%-*s  ", wide[i], cell)
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return b.String()
}

// compare compares the table with a file, or writes the file if -update is set.
func (t *table) compare(tb testing.TB, file string) {
	tb.Helper()
	if *update {
		require.NoError(tb, os.WriteFile(file, []byte(t.String()), 0o600))
		return
	}
	want, err := os.ReadFile(file)
	require.NoError(tb, err)
	require.Equal(tb, string(want), t.String(), "read the difference, and run go test ./internal/testing/attack -update if it is right")
}

// relation is a table, view or sequence of ours.
type relation struct {
	Name    string
	Kind    string
	Columns []string
}

func relations(t testing.TB, pool *pgxpool.Pool) []relation {
	t.Helper()
	rows, err := pool.Query(t.Context(), `SELECT c.relname AS name, c.relkind::text AS kind,
			array(SELECT a.attname::text FROM pg_attribute AS a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum) AS columns
		FROM pg_class AS c WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind IN ('r', 'v', 'S') ORDER BY c.relkind, c.relname`)
	require.NoError(t, err)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByName[relation])
	require.NoError(t, err)
	require.Greater(t, len(found), 20)
	return found
}

// allowed runs a statement in a transaction that is rolled back, and reports whether it was not refused for a missing
// privilege, or because a view cannot be changed. Another error, such as a null in a column that has none, comes after
// these checks.
func allowed(t testing.TB, conn *pgx.Conn, sql string) bool {
	t.Helper()
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, tx.Rollback(t.Context())) }()
	_, err = tx.Exec(t.Context(), sql)
	var refused *pgconn.PgError
	fixed := errors.As(err, &refused) && (refused.Code == "55000" || refused.Code == "0A000") // of a view, of a column of it
	return !denied(err) && !fixed
}

// dmlOf returns what somebody may do with the rows of a relation: with which columns, if not with all.
func dmlOf(t testing.TB, conn *pgx.Conn, r relation) string {
	t.Helper()
	var may []string
	if r.Kind == "S" {
		for _, verb := range []struct{ name, sql string }{
			{"select", "SELECT last_value FROM outbox.%s"},
			{"nextval", "SELECT nextval('outbox.%s')"},
			{"setval", "SELECT setval('outbox.%s', 7)"},
		} {
			if allowed(t, conn, fmt.Sprintf(verb.sql, r.Name)) {
				may = append(may, verb.name)
			}
		}
		return strings.Join(may, " ")
	}
	for _, verb := range []struct{ name, sql string }{
		{"select", "SELECT %[2]s FROM outbox.%[1]s"},
		{"insert", "INSERT INTO outbox.%[1]s (%[2]s) VALUES (DEFAULT)"},
		{"update", "UPDATE outbox.%[1]s SET %[2]s = DEFAULT"},
	} {
		var columns []string
		for _, column := range r.Columns {
			if allowed(t, conn, fmt.Sprintf(verb.sql, r.Name, column)) {
				columns = append(columns, column)
			}
		}
		switch len(columns) {
		case 0:
		case len(r.Columns):
			may = append(may, verb.name)
		default:
			may = append(may, verb.name+"("+strings.Join(columns, ",")+")")
		}
	}
	if allowed(t, conn, "DELETE FROM outbox."+r.Name) {
		may = append(may, "delete")
	}
	return strings.Join(may, " ")
}

// TestRolesAgainstEveryTable: testdata/tables.txt says what each role may do with the rows of each table, found by trying.
// None may change a table itself, or make something in the schema.
func TestRolesAgainstEveryTable(t *testing.T) {
	t.Parallel()
	pool := pgtest.Plain(t)
	people := logins(t, pool)
	table := newTable("relation", people)
	for _, r := range relations(t, pool) {
		cells := make(map[string]string)
		for _, who := range people {
			cells[who.name] = dmlOf(t, who.session, r)
			for _, sql := range againstRelation[r.Kind] {
				sql = fmt.Sprintf(sql, "outbox."+r.Name, r.Columns[0], who.role)
				require.False(t, allowed(t, who.session, sql), "%s may run %s", who.name, sql)
			}
			// A foreign key would need a table in the same database that the role owns.
			require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) WHERE has_table_privilege($1, $2::text, 'REFERENCES')", who.role, "outbox."+r.Name))
		}
		require.Empty(t, cells[neighbour], r.Name)
		table.add(r.Name, cells)
	}
	table.compare(t, "testdata/tables.txt")
}

// againstRelation is what no role may do to a relation of a kind: %[1]s is its name, %[2]s its first column, %[3]s the
// role that tries.
var againstRelation = map[string][]string{
	"r": {
		"TRUNCATE %[1]s CASCADE",
		"DROP TABLE %[1]s CASCADE",
		"ALTER TABLE %[1]s ADD COLUMN mine text",
		"ALTER TABLE %[1]s OWNER TO %[3]s",
		"ALTER TABLE %[1]s DISABLE TRIGGER ALL",
		"ALTER TABLE %[1]s ENABLE ROW LEVEL SECURITY",
		"CREATE INDEX ON %[1]s (%[2]s)",
		"CREATE TRIGGER mine BEFORE UPDATE ON %[1]s FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
		"CREATE RULE mine AS ON UPDATE TO %[1]s DO INSTEAD NOTHING",
		"ALTER TABLE %[1]s ALTER COLUMN %[2]s SET STATISTICS 1",
		"CREATE PUBLICATION mine FOR TABLE %[1]s",
		"CREATE STATISTICS mine ON %[2]s, ctid FROM %[1]s",
		"COMMENT ON TABLE %[1]s IS 'mine'",
		"CLUSTER %[1]s",
	},
	"v": {
		"DROP VIEW %[1]s CASCADE",
		"CREATE OR REPLACE VIEW %[1]s AS SELECT 1 AS %[2]s",
		"ALTER VIEW %[1]s OWNER TO %[3]s",
	},
	"S": {
		"DROP SEQUENCE %[1]s CASCADE",
		"ALTER SEQUENCE %[1]s RESTART",
	},
}

// TestRolesAgainstTheSchema: none of the roles may make, take over or give away anything in the schema, or become somebody
// else.
func TestRolesAgainstTheSchema(t *testing.T) {
	t.Parallel()
	pool := pgtest.Plain(t)
	people := logins(t, pool)
	for _, who := range people {
		for _, sql := range []string{
			"CREATE TABLE outbox.mine (id integer)",
			"CREATE FUNCTION outbox.lane(topic varchar) RETURNS integer LANGUAGE sql AS 'SELECT 1'",
			"CREATE OR REPLACE FUNCTION outbox.lane(topic text) RETURNS integer LANGUAGE sql AS 'SELECT 1'",
			"CREATE OPERATOR outbox.= (LEFTARG = text, RIGHTARG = varchar, FUNCTION = texteq)",
			"ALTER FUNCTION outbox.lane(text) SECURITY DEFINER",
			"ALTER FUNCTION outbox.lane(text) OWNER TO " + who.role,
			"DROP FUNCTION outbox.lane(text)",
			"DROP SCHEMA outbox CASCADE",
			"ALTER SCHEMA outbox RENAME TO mine",
			"ALTER SCHEMA outbox OWNER TO " + who.role,
			"SET SESSION AUTHORIZATION postgres",
			"SET ROLE postgres",
			"CREATE ROLE mine",
			"COPY (SELECT 1) TO PROGRAM 'true'",
			"SELECT pg_read_file('PG_VERSION')",
			"SELECT pg_ls_dir('.')",
		} {
			require.False(t, allowed(t, who.session, sql), "%s may run %s", who.name, sql)
		}
		for _, other := range people {
			if other.name != who.name {
				sql := "SET ROLE " + other.role
				require.False(t, allowed(t, who.session, sql), "%s may run %s", who.name, sql)
			}
		}
		// GRANT without a grant option is a warning, and gives nothing.
		_, err := who.session.Exec(t.Context(), "GRANT ALL ON ALL TABLES IN SCHEMA outbox TO PUBLIC")
		require.True(t, err == nil || denied(err), "%v", err)
	}
	require.Zero(t, pgtest.Count(t, pool, `SELECT count(*) FROM pg_class AS c, aclexplode(c.relacl) AS a
		WHERE c.relnamespace = 'outbox'::regnamespace AND (a.grantee = 0 OR a.is_grantable AND a.grantee <> c.relowner)`), "PUBLIC has a privilege")
}

// TestRolesAgainstEveryFunction: testdata/functions.txt says which roles may call each function of the schema. None is
// granted to PUBLIC, and none runs with the privileges of its owner.
func TestRolesAgainstEveryFunction(t *testing.T) {
	t.Parallel()
	pool := pgtest.Plain(t)
	people := logins(t, pool)
	table := newTable("function", people)
	rows, err := pool.Query(t.Context(), `SELECT p.proname::text AS name, p.oid::regprocedure::text AS signature, p.prosecdef AS definer,
			array(SELECT format('NULL::%s', format_type(a, NULL)) FROM unnest(p.proargtypes) AS a) AS nulls, p.prorettype = 'trigger'::regtype AS trigger
		FROM pg_proc AS p WHERE p.pronamespace = 'outbox'::regnamespace ORDER BY 1`)
	require.NoError(t, err)
	type function struct {
		Name, Signature  string
		Definer, Trigger bool
		Nulls            []string
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByName[function])
	require.NoError(t, err)
	require.Greater(t, len(all), 5)
	for _, f := range all {
		require.False(t, f.Definer, "%s is SECURITY DEFINER: show that search_path does not matter to it", f.Name)
		cells := make(map[string]string)
		for _, who := range people {
			has := pgtest.Value[bool](t, pool, "SELECT has_function_privilege($1, $2, 'EXECUTE') AND has_schema_privilege($1, 'outbox', 'USAGE')", who.role, f.Signature)
			if !f.Trigger { // a trigger function cannot be called
				call := fmt.Sprintf("SELECT outbox.%s(%s)", f.Name, strings.Join(f.Nulls, ", "))
				require.Equal(t, has, allowed(t, who.session, call), "%s: %s", who.name, call)
			}
			if has {
				cells[who.name] = "yes"
			}
		}
		require.Empty(t, cells[neighbour], f.Name)
		table.add(f.Name, cells)
	}
	table.compare(t, "testdata/functions.txt")
	require.Zero(t, pgtest.Count(t, pool, `SELECT count(*) FROM pg_proc AS p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS a
		WHERE p.pronamespace = 'outbox'::regnamespace AND a.grantee = 0`), "PUBLIC may call a function: revoke it in the migration")
}
