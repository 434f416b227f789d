package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// changes returns what a statement is changed into, with single spaces.
func changes(sql string) []string {
	var all []string
	for _, e := range sqlEdits(sql) {
		all = append(all, words(e.apply(sql)))
	}
	return all
}

// TestChangesOfSQL: each clause is changed in the ways that the page of testing lists.
func TestChangesOfSQL(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string][]string{
		"SELECT a FROM t WHERE b = 1 AND c < 2 OR NOT d": {
			"SELECT a FROM t WHERE ( true OR ( b = 1 ) ) AND c < 2 OR NOT d",
			"SELECT a FROM t WHERE b = 1 AND ( true OR ( c < 2 ) ) OR NOT d",
			"SELECT a FROM t WHERE b = 1 AND c < 2 OR ( false AND ( NOT d ) )",
			"SELECT a FROM t WHERE b = 1 AND c <= 2 OR NOT d",
		},
		"SELECT a FROM t WHERE b BETWEEN 3 AND x": {
			"SELECT a FROM t WHERE ( true OR ( b BETWEEN 3 AND x ) )", "SELECT a FROM t WHERE b BETWEEN 4 AND x",
		},
		"SELECT a FROM t ORDER BY a, b DESC LIMIT 5 FOR UPDATE SKIP LOCKED": {
			"SELECT a FROM t ORDER BY a DESC , b DESC LIMIT 5 FOR UPDATE SKIP LOCKED",
			"SELECT a FROM t ORDER BY a LIMIT 5 FOR UPDATE SKIP LOCKED",
			"SELECT a FROM t ORDER BY a , b DESC LIMIT ( 5 ) + 1000000000 FOR UPDATE SKIP LOCKED",
			"SELECT a FROM t ORDER BY a , b DESC LIMIT ( 5 ) + 1 FOR UPDATE SKIP LOCKED",
			"SELECT a FROM t ORDER BY a , b DESC LIMIT 5",
			"SELECT a FROM t ORDER BY a , b DESC LIMIT 5 FOR UPDATE",
		},
		"SELECT DISTINCT coalesce(a, 0) IS NOT NULL FROM t LEFT JOIN u ON true": {
			"SELECT coalesce ( a , 0 ) IS NOT NULL FROM t LEFT JOIN u ON true",
			"SELECT DISTINCT ( a ) IS NOT NULL FROM t LEFT JOIN u ON true",
			"SELECT DISTINCT coalesce ( a , 1 ) IS NOT NULL FROM t LEFT JOIN u ON true",
			"SELECT DISTINCT coalesce ( a , 0 ) IS NULL FROM t LEFT JOIN u ON true",
			"SELECT DISTINCT coalesce ( a , 0 ) IS NOT NULL FROM t JOIN u ON true",
			"SELECT DISTINCT coalesce ( a , 0 ) IS NOT NULL FROM t LEFT JOIN u ON false",
		},
		"SELECT (SELECT q.id FROM outbox_schema.queue AS q WHERE q.id = e.id AND q.a LIMIT 1) FROM e": {
			"SELECT ( SELECT q . id FROM outbox_schema . queue AS q WHERE ( true OR ( q . id = e . id ) ) AND q . a LIMIT 1 ) FROM e",
			"SELECT ( SELECT q . id FROM outbox_schema . queue AS q WHERE q . id = e . id AND ( true OR ( q . a ) ) LIMIT 1 ) FROM e",
		},
		"SELECT a FROM outbox_schema.dead_letters AS x WHERE x.id = b LIMIT 1": {
			"SELECT a FROM outbox_schema . dead_letters AS x WHERE ( true OR ( x . id = b ) ) LIMIT 1",
			"SELECT a FROM outbox_schema . dead_letters AS x WHERE x . id = b LIMIT ( 1 ) + 1000000000",
		},
		"SELECT CASE WHEN a IS NULL THEN 'x' ELSE 'y' END FROM t": {
			"SELECT CASE WHEN ( true OR ( a IS NULL ) ) THEN 'x' ELSE 'y' END FROM t",
			"SELECT CASE WHEN ( false AND ( a IS NULL ) ) THEN 'x' ELSE 'y' END FROM t",
		},
		"SELECT a FROM t WHERE b < statement_timestamp() - interval '3 hours'": {
			"SELECT a FROM t WHERE ( true OR ( b < statement_timestamp ( ) - interval '3 hours' ) )",
			"SELECT a FROM t WHERE b < statement_timestamp ( ) + interval '3 hours'",
			"SELECT a FROM t WHERE b < statement_timestamp ( ) - interval '7 hours'",
		},
		"CREATE UNIQUE INDEX i ON t (a) WHERE a IS NOT NULL;": {
			"CREATE INDEX i ON t ( a ) WHERE a IS NOT NULL ;", "CREATE UNIQUE INDEX i ON t ( a ) WHERE ( true OR ( a IS NOT NULL ) ) ;",
		},
		"CREATE TABLE t (a int DEFAULT 7, b timestamptz DEFAULT now(), CONSTRAINT c CHECK (a > 0)) WITH (fillfactor = 40);": {
			"CREATE TABLE t ( a int DEFAULT 8 , b timestamptz DEFAULT now ( ) , CONSTRAINT c CHECK ( a > 0 ) ) WITH ( fillfactor = 40 ) ;",
			"CREATE TABLE t ( a int DEFAULT 7 , b timestamptz , CONSTRAINT c CHECK ( a > 0 ) ) WITH ( fillfactor = 40 ) ;",
			"CREATE TABLE t ( a int DEFAULT 7 , b timestamptz DEFAULT now ( ) , CONSTRAINT c CHECK ( true ) ) WITH ( fillfactor = 40 ) ;",
			"CREATE TABLE t ( a int DEFAULT 7 , b timestamptz DEFAULT now ( ) , CONSTRAINT c CHECK ( a >= 0 ) ) WITH ( fillfactor = 40 ) ;",
		},
	} {
		got := changes(sql)
		for _, one := range want {
			require.Contains(t, got, one, sql)
		}
		seen := map[string]bool{}
		for _, one := range got {
			seen[one] = true
		}
		delete(seen, words(sql))
		require.Len(t, seen, len(want), "%s: %q", sql, got)
	}
}

// TestEachStatementAndObjectHasMutants: all queries and all objects of the schema that have a condition are read, and each mutant has an id of
// its own without a number of a line.
func TestEachStatementAndObjectHasMutants(t *testing.T) {
	t.Parallel()
	queries, err := queryUnits("../../postgres/queries")
	require.NoError(t, err)
	objects, err := schemaUnits()
	require.NoError(t, err)
	mutants, err := sqlMutants(append(queries, objects...))
	require.NoError(t, err)
	ids, units := map[string]bool{}, map[string]bool{}
	for _, m := range mutants {
		require.False(t, ids[m.id], m.id)
		ids[m.id], units[m.unit] = true, true
	}
	for _, name := range []string{"EventClaim", "table queue", "index events_dedupe_key", "function claim_turns", "view event_status"} {
		require.True(t, units[name], name)
	}
	require.Contains(t, ids, "ListenerRenew: lease_no = $5 AND [l . running -> true]")
}

// TestReasons: a reason stands for the ids above it.
func TestReasons(t *testing.T) {
	t.Parallel()
	read := func(text string) (map[string]string, error) {
		path := filepath.Join(t.TempDir(), "explained.txt")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return readExplained(path)
	}
	got, err := read("# A comment\n\na: b [c -> d] e\nf\n    One sentence\n    of reason.\ng\n    Another.\n")
	require.NoError(t, err)
	require.Equal(t, map[string]string{"a: b [c -> d] e": "One sentence of reason.", "f": "One sentence of reason.", "g": "Another."}, got)
	byID, unknown, err := reasons(map[string]string{"a: [b]": "One.", "~ a: .*": "One.", "~ c": "Two.", "d": "Three."},
		[]mutant{{id: "a: [b]"}, {id: "a: x"}, {id: "cc"}})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"a: [b]": "One.", "a: x": "One."}, byID)
	require.Equal(t, []string{"d", "~ c"}, unknown)
	_, _, err = reasons(map[string]string{"a": "One.", "~ .": "Two."}, []mutant{{id: "a"}})
	require.ErrorContains(t, err, "two reasons for one mutant: a")
	for text, want := range map[string]string{
		"    A reason.\n": "without the id", "a\n": "must be a sentence", "a\n    No end\n": "must be a sentence",
		"a\n    One.\na\n    Two.\n": "twice",
	} {
		_, err := read(text)
		require.ErrorContains(t, err, want, strings.TrimSpace(text))
	}
}
