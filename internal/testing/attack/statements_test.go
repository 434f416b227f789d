package attack_test

import (
	"context"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/migrate"
)

// statements returns every statement of the runtime by its name, in the schema outbox.
func statements(t testing.TB) map[string]string {
	t.Helper()
	files, err := filepath.Glob("../../postgres/queries/*.go")
	require.NoError(t, err)
	found := make(map[string]string)
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(parsed, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Values) != 1 {
				return true
			}
			if text, ok := spec.Values[0].(*ast.BasicLit); ok && strings.HasPrefix(text.Value, "`-- name:") {
				sql, err := strconv.Unquote(text.Value)
				require.NoError(t, err)
				found[spec.Names[0].Name] = strings.ReplaceAll(sql, "outbox_schema.", "outbox.")
			}
			return true
		})
	}
	require.Greater(t, len(found), 200)
	return found
}

// plan is EXPLAIN (VERBOSE, FORMAT JSON).
type plan struct {
	Type      string   `json:"Node Type"`
	Operation string   `json:"Operation"`
	Output    []string `json:"Output"`
	Plans     []plan   `json:"Plans"`
}

// writes returns the kinds of rows that the plan changes or locks.
func (p *plan) writes() (kinds []string) {
	if p.Type == "ModifyTable" {
		kinds = append(kinds, p.Operation)
	}
	if p.Type == "LockRows" {
		kinds = append(kinds, p.Type)
	}
	for i := range p.Plans {
		kinds = append(kinds, p.Plans[i].writes()...)
	}
	return kinds
}

// explain makes PostgreSQL check all privileges that a statement needs, without running it: EXPLAIN starts the executor,
// and the generic plan keeps the parts that NULL would remove.
func explain(ctx context.Context, conn *pgx.Conn, sql string) (*plan, error) {
	d, err := conn.PgConn().Prepare(ctx, "attack", sql, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _, _ = conn.Exec(ctx, "DEALLOCATE attack") }()
	if len(d.ParamOIDs) == 0 && strings.Contains(sql, "\nLOCK TABLE ") { // has no plan
		tx, err := conn.Begin(ctx)
		if err != nil {
			return nil, err
		}
		_, err = tx.Exec(ctx, sql)
		return &plan{}, errors.Join(err, tx.Rollback(ctx))
	}
	execute := "EXECUTE attack"
	if n := len(d.ParamOIDs); n > 0 {
		execute += "(NULL" + strings.Repeat(", NULL", n-1) + ")"
	}
	var text []byte
	err = conn.QueryRow(ctx, "EXPLAIN (VERBOSE, FORMAT JSON) "+execute, pgx.QueryExecModeSimpleProtocol).Scan(&text)
	if err != nil {
		return nil, err
	}
	var found []struct{ Plan plan }
	if err := json.Unmarshal(text, &found); err != nil {
		return nil, err
	}
	return &found[0].Plan, nil
}

var (
	ownFunction = regexp.MustCompile(`outbox\.(lane|bucket|wake|event_id|check_event|enqueue|enqueue_log|claim_turns)\(`)
	setsNumber  = regexp.MustCompile(`setval\('(outbox\.\w+)'`)
)

// may reports whether somebody may run a statement. EXPLAIN does not look at what is called for an index, and setval looks
// at its sequence when it runs.
func (who *login) may(ctx context.Context, sql string) (bool, *plan, error) {
	p, err := explain(ctx, who.session, sql)
	if denied(err) {
		return false, nil, nil
	}
	var has bool
	for _, m := range ownFunction.FindAllStringSubmatch(sql, -1) {
		if err == nil {
			err = who.session.QueryRow(ctx, `SELECT bool_and(has_function_privilege(p.oid, 'EXECUTE')) FROM pg_catalog.pg_proc AS p
				WHERE p.pronamespace = (SELECT n.oid FROM pg_catalog.pg_namespace AS n WHERE n.nspname = 'outbox') AND p.proname = $1`, m[1]).Scan(&has)
		}
		if err == nil && !has {
			return false, nil, nil
		}
	}
	if m := setsNumber.FindStringSubmatch(sql); err == nil && m != nil {
		err = who.session.QueryRow(ctx, "SELECT has_sequence_privilege($1::text, 'UPDATE')", m[1]).Scan(&has)
		return has, p, err
	}
	return true, p, err
}

// session takes one session of the pool for the test.
func session(t testing.TB, pool *pgxpool.Pool) *pgx.Conn {
	t.Helper()
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	t.Cleanup(conn.Release)
	_, err = conn.Exec(t.Context(), "SET plan_cache_mode = force_generic_plan")
	require.NoError(t, err)
	return conn.Conn()
}

// TestRolesAgainstEveryStatement: testdata/statements.txt says for each statement of the runtime which roles of `outboxgen
// migrate get --roles` may run it. What a producer may run changes and deletes nothing, what a reader may run writes nothing,
// and a neighbour without a role may run only what touches no table of ours.
func TestRolesAgainstEveryStatement(t *testing.T) {
	t.Parallel()
	pool := pgtest.Plain(t)
	all := statements(t)
	people := logins(t, pool)
	table := newTable("statement", people)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		cells := make(map[string]string)
		for _, who := range people {
			may, p, err := who.may(t.Context(), all[name])
			require.NoError(t, err, "%s as %s", name, who.name)
			if !may {
				continue
			}
			cells[who.name] = "yes"
			writes := p.writes()
			switch who.name {
			case neighbour:
				require.NotContains(t, all[name], "outbox.", "a neighbour may run %s", name)
			case string(migrate.Producer):
				require.NotContains(t, writes, "Update", name)
				require.NotContains(t, writes, "Delete", name)
				require.NotContains(t, writes, "LockRows", name)
			case string(migrate.Reader):
				require.Empty(t, writes, name)
			}
		}
		table.add(name, cells)
	}
	table.compare(t, "testdata/statements.txt")
}

// needs says whose statements a role must be able to run: those that these files call.
var needs = map[migrate.Role][]string{
	migrate.Producer:   {"outbox/*.go"},
	migrate.Dispatcher: {"queue/*.go", "listener/*.go", "inbox/*.go", "consume/receive/*.go", "internal/machine/*/*.go"},
	migrate.Operator:   {"admin/*.go"}, // without what is the eraser's
	migrate.Eraser:     {"admin/forget*.go"},
}

// TestRolesSufficeForTheirPackages: each role may run all statements of the packages that it is for.
func TestRolesSufficeForTheirPackages(t *testing.T) {
	t.Parallel()
	pool := pgtest.Plain(t)
	all := statements(t)
	for _, who := range logins(t, pool) {
		called := callsIn(t, all, needs[migrate.Role(who.name)]...)
		if who.name == string(migrate.Operator) {
			maps.DeleteFunc(called, func(name string, _ bool) bool { return strings.HasPrefix(name, "Forget") && name != "ForgetBroken" })
		}
		for _, name := range slices.Sorted(maps.Keys(called)) {
			may, _, err := who.may(t.Context(), all[name])
			require.NoError(t, err, "%s as %s", name, who.name)
			require.True(t, may, "%s may not run %s", who.name, name)
		}
	}
}

// callsIn returns the statements that Go files of the repository call.
func callsIn(t testing.TB, all map[string]string, patterns ...string) map[string]bool {
	t.Helper()
	called := make(map[string]bool)
	for _, pattern := range patterns {
		files, err := filepath.Glob("../../../" + pattern)
		require.NoError(t, err)
		require.NotEmpty(t, files, pattern)
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			require.NoError(t, err)
			ast.Inspect(parsed, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok && all[s.Sel.Name] != "" {
					called[s.Sel.Name] = true
				}
				return true
			})
		}
	}
	return called
}
