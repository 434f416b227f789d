package statements_test

import (
	"context"
	"flag"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/statements"
)

var update = flag.Bool("update", false, "record what the statements do")

const (
	queriesDir = "../../postgres/queries"
	casesDir   = "testdata"
)

// bench opens a bench on a new database, with a session that locks rows, and the statements by their names.
func bench(t *testing.T) (*statements.Bench, *pgx.Conn, []statements.Statement) {
	t.Helper()
	ctx := t.Context()
	url := pgtest.URL(t, pgtest.Plain(t))
	var conns [3]*pgx.Conn
	for i := range conns {
		conn, err := pgx.Connect(ctx, url)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, conn.Close(context.WithoutCancel(ctx))) })
		conns[i] = conn
	}
	open, err := statements.Hold(ctx, conns[1])
	require.NoError(t, err)
	all, err := statements.Queries(queriesDir)
	require.NoError(t, err)
	guard := all[slices.IndexFunc(all, func(s statements.Statement) bool { return s.Unit == "SessionGuard" })]
	b, err := statements.Open(ctx, conns[0], open, pgtest.Schema, guard.Text)
	require.NoError(t, err)
	functions, err := b.Functions(ctx)
	require.NoError(t, err)
	return b, conns[2], append(append(all, functions...), b.Inserts()...)
}

// TestCases: each statement returns, changes and locks what its cases say.
func TestCases(t *testing.T) {
	t.Parallel()
	b, locker, all := bench(t)
	schema, err := schemadb.Open(pgtest.Schema)
	require.NoError(t, err)
	var wrong []string
	for _, s := range all {
		cases, err := statements.ReadCases(casesDir, s.Unit)
		require.NoError(t, err)
		if len(cases) == 0 {
			continue
		}
		text := schema.Text(s.Text)
		if *update {
			require.NoError(t, b.Record(t.Context(), s, text, cases, locker))
			require.NoError(t, statements.WriteCases(casesDir, s.Unit, cases))
			continue
		}
		different, err := b.Replay(t.Context(), s, text, cases, locker)
		require.NoError(t, err)
		if different != "" {
			wrong = append(wrong, different)
		}
	}
	require.Empty(t, wrong, "if that is right, run this test with -update, and read the difference of the files")
}

// TestCasesFindChanges: a statement that has lost a condition, or a lock, does something else in some case.
func TestCasesFindChanges(t *testing.T) {
	t.Parallel()
	b, locker, all := bench(t)
	schema, err := schemadb.Open(pgtest.Schema)
	require.NoError(t, err)
	for _, change := range []struct{ unit, old, new string }{
		{"EventAck", "q.locked_by = $3", "true OR q.locked_by = $3"},
		{"EventExtend", "SKIP LOCKED", ""},
		{"EventClaimFresh", "q.id\n        LIMIT", "q.id DESC\n        LIMIT"},
		{"EventClaimFresh", ", q.id\n        LIMIT", "\n        LIMIT"}, // where no index has them in this order
	} {
		s := all[slices.IndexFunc(all, func(s statements.Statement) bool { return s.Unit == change.unit })]
		require.Contains(t, s.Text, change.old, change.unit)
		cases, err := statements.ReadCases(casesDir, s.Unit)
		require.NoError(t, err)
		require.NotEmpty(t, cases, change.unit)
		text := strings.ReplaceAll(schema.Text(s.Text), change.old, change.new)
		different, err := b.Replay(t.Context(), s, text, cases, locker)
		require.NoError(t, err)
		require.NotEmpty(t, different, change.unit)
	}
}

// TestFilesOfCases: what is read from a file is written to it again, and what cannot be read is an error.
func TestFilesOfCases(t *testing.T) {
	t.Parallel()
	const text = `case 1
# A reader's note
row queue id=#1 topic=x failures="[{\"error\":\"e1\"}]" turn="" locked_by=null
run CREATE TABLE t (a int)
locked queue id=#1
meanwhile UPDATE t SET a = 1
unindexed
call ids={#1} turn="null"
waits
holds queue #2

case 2
call
nothing
`
	cases, err := statements.Parse(text)
	require.NoError(t, err)
	require.Len(t, cases, 2)
	require.Equal(t, []statements.Cell{{Name: "ids", Value: "{#1}"}, {Name: "turn", Value: "null"}}, cases[0].Args)
	require.True(t, cases[0].Rows[0].Cells[4].Null)
	require.Equal(t, text, statements.Format(cases))
	for wrong, want := range map[string]string{"call a=1\n": "not in a case", "case 1\ncall a\n": "not name=value", "case 1\nrow t a=\"b\n": "value of a"} {
		_, err := statements.Parse(wrong)
		require.ErrorContains(t, err, want)
	}
}

// without has the statements that have no case, with the reason.
var without = map[string]string{
	"BellLocked": "it reads the locks of sessions", "BellTryLock": "the lock is the session's", "BellUnlock": "the lock is the session's",
	"BellProbe": "it only notifies", "BellRing": "it only notifies",
	"BellPatience": "it changes settings",
	"SessionGuard": "it changes settings", "SessionPath": "it changes settings", "SessionPathKeep": "it changes settings",
	"SessionPathRestore": "it changes settings", "ScanWhole": "it changes settings",
	"QueueSize":      "it reads the size of a table on disk",
	"SnapshotHolder": "it reads what other sessions do", "RebaseLock": "it only locks tables",
	"EventProbe": "it returns nothing", "ListenerProbe": "it returns nothing",
	"function event_id": "it is random", "table schema_migrations": "it has no check",
}

// TestEachStatementHasCases: a statement without a case has a reason.
func TestEachStatementHasCases(t *testing.T) {
	t.Parallel()
	_, _, all := bench(t)
	var missing []string
	units := map[string]bool{}
	for _, s := range all {
		cases, err := statements.ReadCases(casesDir, s.Unit)
		require.NoError(t, err)
		units[statements.Name(s.Unit)] = true
		if reason := without[s.Unit]; reason != "" {
			require.Empty(t, cases, "%s: %s", s.Unit, reason)
		} else if len(cases) == 0 {
			missing = append(missing, s.Unit)
		}
	}
	require.Empty(t, missing)
	files, err := filepath.Glob(filepath.Join(casesDir, "*.txt"))
	require.NoError(t, err)
	for _, name := range files {
		require.True(t, units[filepath.Base(name)], "%s is of no statement", name)
	}
}
