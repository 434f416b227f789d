package migrate_test

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgserver"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/migrate"
)

// history makes migrations 1, 2, ... from pairs of statements.
func history(t *testing.T, pairs ...string) migrate.Custom {
	t.Helper()
	files := fstest.MapFS{}
	for i := 0; i < len(pairs); i += 2 {
		base := fmt.Sprintf("%04d_step%d", i/2+1, i/2+1)
		files[base+".up.sql"] = &fstest.MapFile{Data: []byte(pairs[i])}
		files[base+".down.sql"] = &fstest.MapFile{Data: []byte(pairs[i+1])}
	}
	h, err := migrate.Load(files)
	require.NoError(t, err)
	return h
}

// tables counts the relations outside of PostgreSQL's own schemas.
func tables(t *testing.T, db *pgxpool.Pool) int {
	t.Helper()
	var n int
	require.NoError(t, db.QueryRow(t.Context(), `SELECT count(*) FROM pg_class
		WHERE relnamespace::regnamespace::text NOT IN ('pg_catalog', 'information_schema', 'pg_toast')`).Scan(&n))
	return n
}

// dump returns the output of pg_dump for the database, without the lines that differ in every run.
func dump(t *testing.T, db *pgxpool.Pool) string {
	t.Helper()
	program := "pg_dump"
	if bin, err := pgserver.Find(); err == nil {
		program = filepath.Join(bin, program)
	}
	out, err := exec.CommandContext(t.Context(), program, "--schema-only", pgtest.URL(t, db)).Output()
	if err != nil {
		return catalog(t, db) // pg_dump is missing, or too old for the server
	}
	var kept bytes.Buffer
	for line := range bytes.Lines(out) {
		if !bytes.HasPrefix(line, []byte(`\`)) { // \restrict and its random key
			kept.Write(line)
		}
	}
	return kept.String()
}

// catalog lists columns, constraints, indexes and comments.
func catalog(t *testing.T, db *pgxpool.Pool) string {
	t.Helper()
	rows, err := db.Query(t.Context(), `
		SELECT format('%s %s %s %s', attrelid::regclass, attname, format_type(atttypid, atttypmod), attnotnull)
		FROM pg_attribute JOIN pg_class c ON c.oid = attrelid WHERE relnamespace = 'outbox'::regnamespace AND attnum > 0
		UNION ALL SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE connamespace = 'outbox'::regnamespace
		UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = 'outbox'
		UNION ALL SELECT description FROM pg_description JOIN pg_class c ON c.oid = objoid WHERE relnamespace = 'outbox'::regnamespace
		ORDER BY 1`)
	require.NoError(t, err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return strings.Join(lines, "\n")
}

func TestUpDownUpGivesTheSameDump(t *testing.T) {
	t.Parallel()
	db := pgtest.Pool(t, pgtest.Empty(t))

	applied, err := migrate.Up(t.Context(), db, "outbox")
	require.NoError(t, err)
	require.Equal(t, migrate.All(), applied)
	require.NoError(t, migrate.Validate(t.Context(), db, "outbox"))
	first := dump(t, db)
	require.Contains(t, first, "next_attempt_at")

	applied, err = migrate.Up(t.Context(), db, "outbox")
	require.NoError(t, err)
	require.Empty(t, applied)
	require.Equal(t, first, dump(t, db))

	reverted, err := migrate.Down(t.Context(), db, "outbox", 0)
	require.NoError(t, err)
	require.Len(t, reverted, len(migrate.All()))
	require.Equal(t, 1, reverted[len(reverted)-1].Version)
	require.Zero(t, tables(t, db))
	reverted, err = migrate.Down(t.Context(), db, "outbox", 0)
	require.NoError(t, err)
	require.Empty(t, reverted)

	_, err = migrate.Up(t.Context(), db, "outbox")
	require.NoError(t, err)
	require.Equal(t, first, dump(t, db))
}

func TestEachStepUpAndDown(t *testing.T) {
	t.Parallel()
	db := pgtest.Pool(t, pgtest.Empty(t))
	h := history(t,
		"CREATE TABLE outbox_schema.a (id int)", "DROP TABLE outbox_schema.a",
		"CREATE TABLE outbox_schema.b (id int); CREATE INDEX ON outbox_schema.b (id)", "DROP TABLE outbox_schema.b",
		"CREATE TABLE outbox_schema.c (id int)", "DROP TABLE outbox_schema.c")
	_, err := h.Up(t.Context(), db, "outbox")
	require.NoError(t, err)
	full := dump(t, db)

	reverted, err := h.Down(t.Context(), db, "outbox", 1)
	require.NoError(t, err)
	require.Len(t, reverted, 2)
	require.Equal(t, []int{3, 2}, []int{reverted[0].Version, reverted[1].Version})
	require.ErrorIs(t, h.Validate(t.Context(), db, "outbox"), migrate.ErrPending)
	states, err := h.Status(t.Context(), db, "outbox")
	require.NoError(t, err)
	require.Len(t, states, 3)
	require.NoError(t, states[0].Err)
	require.False(t, states[0].AppliedAt.IsZero())
	require.ErrorIs(t, states[1].Err, migrate.ErrPending)
	require.True(t, states[1].AppliedAt.IsZero())

	applied, err := h.Up(t.Context(), db, "outbox")
	require.NoError(t, err)
	require.Len(t, applied, 2)
	require.Equal(t, full, dump(t, db))

	_, err = h.Down(t.Context(), db, "outbox", -1)
	require.EqualError(t, err, "migrate schema outbox: version -1: must not be negative")
}

func TestUpConcurrently(t *testing.T) {
	t.Parallel()
	db := pgtest.Pool(t, pgtest.Empty(t))
	h := history(t,
		"CREATE TABLE outbox_schema.a (id int)", "DROP TABLE outbox_schema.a",
		"CREATE TABLE outbox_schema.b (id int)", "DROP TABLE outbox_schema.b")
	var wg sync.WaitGroup
	counts, errs := make([]int, 8), make([]error, 8)
	for i := range 8 {
		wg.Go(func() {
			applied, err := h.Up(t.Context(), db, "outbox")
			counts[i], errs[i] = len(applied), err
		})
	}
	wg.Wait()
	total := 0
	for i := range 8 {
		require.NoError(t, errs[i])
		total += counts[i]
	}
	require.Equal(t, 2, total)
}

func TestChecksumDriftNamesTheVersion(t *testing.T) {
	t.Parallel()
	db := pgtest.Pool(t, pgtest.Empty(t))
	const a, b = "CREATE TABLE outbox_schema.a (id int)", "CREATE TABLE outbox_schema.b (id int)"
	_, err := history(t, a, "SELECT 1", b, "SELECT 1").Up(t.Context(), db, "outbox")
	require.NoError(t, err)

	edited := history(t, a, "SELECT 1", b+" -- edited", "SELECT 1", "SELECT 3", "SELECT 3")
	_, err = edited.Up(t.Context(), db, "outbox")
	const want = "migrate schema outbox: 0002_step2: checksum differs from the applied migration: run outboxgen doctor, which compares the tables, with the outboxgen that applied it"
	require.EqualError(t, err, want)
	require.ErrorIs(t, err, migrate.ErrDrift)
	var at *migrate.Error
	require.ErrorAs(t, err, &at)
	require.Equal(t, 2, at.Version)
	require.EqualError(t, edited.Validate(t.Context(), db, "outbox"),
		want+"; migrate schema outbox: 0003_step3: migration is not applied: run outboxgen migrate up")
	_, err = edited.Down(t.Context(), db, "outbox", 0)
	require.EqualError(t, err, want)
}

// A program that was rolled back starts on the tables of its newer version.
func TestNewerDatabase(t *testing.T) {
	t.Parallel()
	db := pgtest.Pool(t, pgtest.Empty(t))
	const a, b = "CREATE TABLE outbox_schema.a (id int)", "CREATE TABLE outbox_schema.b (id int)"
	_, err := history(t, a, "SELECT 1", b, "SELECT 1").Up(t.Context(), db, "outbox")
	require.NoError(t, err)
	older := history(t, a, "SELECT 1")
	applied, err := older.Up(t.Context(), db, "outbox")
	require.NoError(t, err)
	require.Empty(t, applied)
	const want = "migrate schema outbox: 0002_step2: applied migration is not known to this version of outboxgen: a newer one applied it, so use that one or newer"
	require.EqualError(t, older.Validate(t.Context(), db, "outbox"), want)
	_, err = older.Down(t.Context(), db, "outbox", 0)
	require.EqualError(t, err, want)
	require.ErrorIs(t, err, migrate.ErrUnknown)
}

func TestFailingMigrationLeavesNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.Pool(t, pgtest.Empty(t))
	const good, bad = "CREATE TABLE outbox_schema.a (id int)", "CREATE TABLE outbox_schema.b (id int); SELECT 1/0"
	applied, err := history(t, bad, "SELECT 1").Up(t.Context(), db, "outbox")
	require.EqualError(t, err, "migrate schema outbox: 0001_step1: ERROR: division by zero (SQLSTATE 22012)")
	require.Empty(t, applied)
	require.Zero(t, tables(t, db))
	var schemas int
	require.NoError(t, db.QueryRow(t.Context(), "SELECT count(*) FROM pg_namespace WHERE nspname = 'outbox'").Scan(&schemas))
	require.Zero(t, schemas)

	applied, err = history(t, good, "SELECT 1", bad, "SELECT 1").Up(t.Context(), db, "outbox")
	require.EqualError(t, err, "migrate schema outbox: 0002_step2: ERROR: division by zero (SQLSTATE 22012)")
	require.Len(t, applied, 1)
	states, err := history(t, good, "SELECT 1", bad, "SELECT 1").Status(t.Context(), db, "outbox")
	require.NoError(t, err)
	require.NoError(t, states[0].Err)
	require.ErrorIs(t, states[1].Err, migrate.ErrPending)
	var b *string
	require.NoError(t, db.QueryRow(t.Context(), "SELECT to_regclass('outbox.b')::text").Scan(&b))
	require.Nil(t, b)
}

func TestSchemaNames(t *testing.T) {
	t.Parallel()
	db := pgtest.Pool(t, pgtest.Empty(t))
	longest := strings.Repeat("x", 41)
	for _, name := range []string{"outbox_schema", "between", "public", "a_1", longest} {
		_, err := migrate.Up(t.Context(), db, name)
		require.NoError(t, err, name)
		require.NoError(t, migrate.Validate(t.Context(), db, name))
	}
	for _, name := range []string{"", "Outbox", `a"; DROP SCHEMA public CASCADE; --`, "user", "pg_toast", longest + "x"} {
		_, err := migrate.Up(t.Context(), db, name)
		require.ErrorContains(t, err, "schema name ", name)
		_, err = migrate.Down(t.Context(), db, name, 0)
		require.ErrorContains(t, err, "schema name ", name)
		_, err = migrate.Status(t.Context(), db, name)
		require.ErrorContains(t, err, "schema name ", name)
		_, err = migrate.Export(name, migrate.Plain, 0)
		require.ErrorContains(t, err, "schema name ", name)
	}
	_, err := migrate.Down(t.Context(), db, longest, 0)
	require.NoError(t, err)
	require.NoError(t, migrate.Validate(t.Context(), db, "public"), "schemas are independent of each other")
}

func TestForeignTableSaysSo(t *testing.T) {
	t.Parallel()
	db := pgtest.Pool(t, pgtest.Empty(t))
	_, err := db.Exec(t.Context(), "CREATE SCHEMA outbox; CREATE TABLE outbox.events (id int)")
	require.NoError(t, err)
	_, err = migrate.Up(t.Context(), db, "outbox")
	require.ErrorContains(t, err, `migrate schema outbox: 0001_events: ERROR: relation "events" already exists`)
	require.ErrorContains(t, err, "was the schema migrated by another tool?")
}

func TestStatusWithoutSchemaChangesNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.Pool(t, pgtest.Empty(t))
	states, err := migrate.Status(t.Context(), db, "outbox")
	require.NoError(t, err)
	require.Len(t, states, len(migrate.All()))
	for _, s := range states {
		require.ErrorIs(t, s.Err, migrate.ErrPending)
	}
	require.Zero(t, tables(t, db))
}

// The role of a deployment may own the schema and nothing else.
func TestRoleWithoutCreateOnDatabase(t *testing.T) {
	t.Parallel()
	db := pgtest.Pool(t, pgtest.Empty(t))
	role := "outboxgen_" + db.Config().ConnConfig.Database
	_, err := db.Exec(t.Context(), fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD 'secret'", role))
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := db.Exec(context.Background(), fmt.Sprintf("DROP OWNED BY %[1]s CASCADE; DROP ROLE %[1]s", role))
		require.NoError(t, err)
	})
	cfg := db.Config().ConnConfig.Copy()
	cfg.User, cfg.Password = role, "secret"
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(t.Context())) }()

	_, err = migrate.Up(t.Context(), conn, "outbox")
	require.ErrorContains(t, err, "permission denied for database")
	require.ErrorContains(t, err, "the role needs CREATE on the schema")
	_, err = db.Exec(t.Context(), fmt.Sprintf("CREATE SCHEMA outbox AUTHORIZATION %s", role))
	require.NoError(t, err)
	_, err = migrate.Up(t.Context(), conn, "outbox")
	require.NoError(t, err)
}

func TestLoadRejectsBadHistories(t *testing.T) {
	t.Parallel()
	for want, names := range map[string][]string{
		"load migration 1_a.up.sql: must be called NNNN_name.up.sql or NNNN_name.down.sql": {"1_a.up.sql"},
		"load migrations: version 1 is missing":                                            {"0002_a.up.sql", "0002_a.down.sql"},
		"load migration 0001_a: up or down is missing":                                     {"0001_a.up.sql"},
		"load migration 0001_b.up.sql: version 1 is also called a":                         {"0001_a.up.sql", "0001_b.up.sql"},
	} {
		files := fstest.MapFS{}
		for _, name := range names {
			files[name] = &fstest.MapFile{Data: []byte("SELECT 1")}
		}
		_, err := migrate.Load(files)
		require.EqualError(t, err, want)
	}
}

func TestNilPoolIsAnError(t *testing.T) {
	t.Parallel()
	for _, db := range []migrate.DB{nil, (*pgxpool.Pool)(nil), (*pgx.Conn)(nil)} {
		var err error
		require.NotPanics(t, func() { _, err = migrate.Up(t.Context(), db, "outbox") })
		require.EqualError(t, err, "migrate schema outbox: no pool or connection given (nil)")
	}
}
