package outbox

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/dbschema"
	"github.com/outboxgen/outboxgen/internal/dbsqlc"
)

// planNode is a node of EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON).
type planNode struct {
	Type      string     `json:"Node Type"`
	Relation  string     `json:"Relation Name"`
	Index     string     `json:"Index Name"`
	Rows      float64    `json:"Actual Rows"`
	Loops     float64    `json:"Actual Loops"`
	Filtered  float64    `json:"Rows Removed by Filter"`
	Rechecked float64    `json:"Rows Removed by Index Recheck"`
	Hit       float64    `json:"Shared Hit Blocks"`
	Read      float64    `json:"Shared Read Blocks"`
	Plans     []planNode `json:"Plans"`
}

func (n *planNode) walk(visit func(*planNode)) {
	visit(n)
	for i := range n.Plans {
		n.Plans[i].walk(visit)
	}
}

// explained is a statement of the runtime with the bounds of its plan.
type explained struct {
	name string
	call func(q *dbsqlc.Queries)
	// reads is how many rows of the tables one scan may touch, sorts how many may be sorted.
	reads, sorts float64
	tables       []string // nil means events
	buffers      float64  // how many pages may be looked at; 0 means that nobody counts
	callers      bool     // runs in the caller's transaction, without SessionGuard
	sorted       bool     // joins from a sorted list, in whose order it locks rows
	then         string   // changes the tables once the plan is made and kept, as a session keeps it
}

// run explains e in a transaction that is rolled back, and returns its plan and its time in ms.
func (e *explained) run(t *testing.T, db *dbschema.Schema, pool *pgxpool.Pool, mode string) (planNode, float64) {
	t.Helper()
	tables := e.tables
	if tables == nil {
		tables = []string{"events"}
	}
	text, args := db.Record(e.call)
	execute := "EXECUTE explained"
	if len(args) > 0 {
		literals := make([]string, len(args))
		for i := range args {
			literals[i] = fmt.Sprintf("$%d", i+1)
		}
		execute += " (" + strings.Join(literals, ", ") + ")"
	}
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(t.Context()) }()
	q := db.On(tx)
	if !e.callers {
		require.NoError(t, q.SessionGuard(t.Context()))
	}
	_, err = tx.Exec(t.Context(), "SELECT set_config('plan_cache_mode', $1, true)", mode)
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "PREPARE explained AS "+text)
	require.NoError(t, err, e.name)
	if e.then != "" {
		_, err = tx.Exec(t.Context(), execute, append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...)
		require.NoError(t, err, e.name)
		_, err = tx.Exec(t.Context(), e.then)
		require.NoError(t, err, e.name)
	}
	var out []byte
	// The simple protocol makes literals of the arguments, which EXECUTE needs.
	require.NoError(t, tx.QueryRow(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+execute,
		append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...).Scan(&out), e.name)
	_, err = tx.Exec(t.Context(), "DEALLOCATE explained")
	require.NoError(t, err)
	var plans []struct {
		Plan planNode
		Time float64 `json:"Execution Time"`
	}
	require.NoError(t, json.Unmarshal(out, &plans))
	plans[0].Plan.walk(func(n *planNode) {
		touched := (n.Rows + n.Filtered + n.Rechecked) * n.Loops
		complain := func(what string) {
			require.Fail(t, what, "%s, %s: %s of %.0f rows\n%s", e.name, mode, n.Type, touched, out)
		}
		switch {
		case slices.Contains(tables, n.Relation) && n.Type == "Seq Scan" && n.Loops > 0:
			complain("reads the whole table")
		case slices.Contains(tables, n.Relation) && strings.HasSuffix(n.Type, "Scan") && touched > e.reads:
			complain("reads too much")
		case e.sorted && n.Type == "Nested Loop" && n.Plans[0].Type != "CTE Scan":
			complain("does not lock rows in the order of its list")
		case strings.HasSuffix(n.Type, "Sort"):
			for _, input := range n.Plans {
				if input.Rows*input.Loops > e.sorts {
					complain("sorts too much")
				}
			}
		}
	})
	root := plans[0].Plan
	if buffers := root.Hit + root.Read; e.buffers > 0 && buffers > e.buffers {
		require.Fail(t, "looks at too many pages", "%s, %s: %.0f\n%s", e.name, mode, buffers, out)
	}
	return root, plans[0].Time
}

func indexesOf(plan *planNode) (names []string) {
	plan.walk(func(n *planNode) {
		if n.Index != "" && !slices.Contains(names, n.Index) {
			names = append(names, n.Index)
		}
	})
	return names
}
