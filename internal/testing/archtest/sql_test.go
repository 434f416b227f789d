package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var queryName = regexp.MustCompile(`(?m)^-- name: (\w+) :\w+\n`)

// statements returns the statements of queries/ by name, without their comments.
func statements(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("../../../queries/*.sql")
	require.NoError(t, err)
	all := make(map[string]string)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		names := queryName.FindAllSubmatchIndex(text, -1)
		for i, at := range names {
			end := len(text)
			if i+1 < len(names) {
				end = names[i+1][0]
			}
			var lines []string
			for line := range strings.Lines(string(text[at[1]:end])) {
				if !strings.HasPrefix(line, "--") {
					lines = append(lines, strings.TrimRight(line, "\n"))
				}
			}
			all[string(text[at[2]:at[3]])] = strings.TrimSpace(strings.Join(lines, "\n"))
		}
	}
	return all
}

// TestKeylessInsertsAreTheOthersWithoutKeys holds pairs of statements together: the inserts for events without dedupe
// keys are the others, less what dedupe keys need.
func TestKeylessInsertsAreTheOthersWithoutKeys(t *testing.T) {
	t.Parallel()
	all := statements(t)
	const keyed = `
    ORDER BY w.dedupe_key COLLATE "C"
    ON CONFLICT (namespace, topic, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING`
	without := func(text string, edits ...string) string {
		for i := 0; i < len(edits); i += 2 {
			require.Equal(t, 1, strings.Count(text, edits[i]), "%q", edits[i])
			text = strings.Replace(text, edits[i], edits[i+1], 1)
		}
		return text
	}
	require.Equal(t, without(all["EventInsertMany"], keyed, "", "\n    WHERE (w.id = ANY (SELECT i.id FROM inserted AS i)) IS TRUE", ""),
		all["EventInsertManyKeyless"])

	// With keys, the log numbers events in their order before it inserts them in the order of their keys.
	text := all["LogInsertMany"]
	from, to := strings.Index(text, "numbered AS MATERIALIZED ("), strings.Index(text, "inserted AS (")
	require.True(t, 0 < from && from < to)
	require.Equal(t, without(text[:from]+text[to:],
		keyed, "\n    ORDER BY w.place", "FROM numbered AS w", "FROM wanted AS w", "        seq, id,", "        id,", "        w.seq, w.id,", "        w.id,",
	), all["LogInsertManyKeyless"])

	const one = "\n    ON CONFLICT (namespace, topic, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING"
	require.Equal(t, without(all["EventInsert"], " dedupe_key, partition_key", " partition_key", " @dedupe_key::text,", "",
		one+"\n    RETURNING events.id", "", "\nSELECT i.id,", "\nVALUES (\n    @id,", "\nFROM inserted AS i", ")"),
		all["EventInsertKeyless"])
	require.Equal(t, without(all["LogInsert"], " dedupe_key, partition_key", " partition_key", " @dedupe_key::text,", "",
		strings.ReplaceAll(one, "    ", ""), ""), all["LogInsertKeyless"])
}

// TestWakeUpIsOneText checks that every insert decides with the same expression whether it wakes a sleeper.
func TestWakeUpIsOneText(t *testing.T) {
	t.Parallel()
	expression := regexp.MustCompile(`(?s)CASE\s+(?:WHEN count\(\*\) = 0 THEN false\s+)?WHEN pg_try_advisory_xact_lock_shared.*?END`)
	text := ""
	found := 0
	for name, statement := range statements(t) {
		if !strings.Contains(statement, "pg_notify(@channel") {
			continue
		}
		for _, e := range expression.FindAllString(statement, -1) {
			found++
			e = strings.Join(strings.Fields(strings.Replace(e, "WHEN count(*) = 0 THEN false", "", 1)), " ")
			if text == "" {
				text = e
			}
			require.Equal(t, text, e, name)
		}
	}
	require.Equal(t, 10, found, "one event and many, with keys and without, and one in the caller's batch; for queue and log")
}

// TestScannersReadTheColumnsOfTheirStatements checks functions that scan rows by hand: what they scan into is named like the
// columns of the statement, in their order. sqlc knows these as the fields of a row.
func TestScannersReadTheColumnsOfTheirStatements(t *testing.T) {
	t.Parallel()
	// names that a scanner shortens or that are longer in SQL
	long := map[string]string{"tenant": "tenantid", "attempt": "attempts", "due": "nextattemptat"}
	for _, c := range []struct{ row, file, function string }{
		{"EventClaimRow", "queue/store.go", "scanClaimed"},
		{"ListenerTakeLeaseRow", "listener/cursor.go", "queueTake"},
		{"ListenerWaitRow", "listener/cursor.go", "readWaitOn"},
		{"LogReadRow", "listener/scan.go", "scanEvents"},
		{"LogReadNextRow", "listener/scan.go", "scanNext"},
		{"EventQueueRow", "outbox/enqueue.go", "read"},
		{"LogQueueRow", "outbox/enqueue.go", "read"},
	} {
		var columns []string
		for _, field := range rowFields(t, c.row) {
			columns = append(columns, strings.ToLower(field))
		}
		scanned := scannedNames(t, c.file, c.function)
		for i, name := range scanned {
			if l := long[name]; l != "" {
				scanned[i] = l
			}
		}
		require.Equal(t, columns, scanned, "%s in %s and %s", c.function, c.file, c.row)
	}
	require.Equal(t, rowFields(t, "EventClaimRow"), rowFields(t, "EventClaimFreshRow"), "one function scans both")
}

// rowFields returns the fields of a row that sqlc has generated.
func rowFields(t *testing.T, row string) (names []string) {
	t.Helper()
	packages, err := filepath.Glob("../../../internal/postgres/queries/*.go")
	require.NoError(t, err)
	for _, path := range packages {
		ast.Inspect(parsed(t, path), func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok && spec.Name.Name == row {
				for _, f := range spec.Type.(*ast.StructType).Fields.List {
					for _, name := range f.Names {
						names = append(names, name.Name)
					}
				}
			}
			return true
		})
	}
	require.NotEmpty(t, names, row)
	return names
}

// scannedNames returns what a function takes the address of to scan into: `&c.Entity.Type` is "entitytype". A call of
// columns stands for those of logRow.
func scannedNames(t *testing.T, path, function string) (names []string) {
	t.Helper()
	file := parsed(t, "../../../"+path)
	var collect func(n ast.Node)
	collect = func(n ast.Node) {
		ast.Inspect(n, func(n ast.Node) bool {
			switch x := n.(type) {
			case *ast.UnaryExpr:
				if x.Op == token.AND {
					names = append(names, pathOf(x.X))
					return false
				}
			case *ast.CallExpr:
				if s, ok := x.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "columns" {
					collect(functionOf(t, file, "columns").Body)
					return false
				}
			}
			return true
		})
	}
	ast.Inspect(functionOf(t, file, function).Body, func(n ast.Node) bool {
		switch x := n.(type) {
		case *ast.CallExpr:
			if s, ok := x.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "Scan" && x.Ellipsis == token.NoPos {
				collect(x)
				return false
			}
		case *ast.AssignStmt: // into := append([]any{...}, ...)
			if id, ok := x.Lhs[0].(*ast.Ident); ok && id.Name == "into" {
				collect(x.Rhs[0])
				return false
			}
		}
		return true
	})
	return names
}

// pathOf joins the names behind the first: `c.Entity.Type` is "entitytype", and a plain name is itself.
func pathOf(x ast.Expr) string {
	switch e := x.(type) {
	case *ast.SelectorExpr:
		if _, first := e.X.(*ast.Ident); first {
			return strings.ToLower(e.Sel.Name)
		}
		return pathOf(e.X) + strings.ToLower(e.Sel.Name)
	case *ast.Ident:
		return strings.ToLower(e.Name)
	}
	return "?"
}

func parsed(t *testing.T, path string) *ast.File {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	require.NoError(t, err)
	return file
}

func functionOf(t *testing.T, file *ast.File, name string) *ast.FuncDecl {
	t.Helper()
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Name.Name == name {
			return f
		}
	}
	require.FailNow(t, "no function "+name)
	return nil
}
