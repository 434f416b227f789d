package pgtest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
)

// PlanNode is a node of EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON).
type PlanNode struct {
	Type      string     `json:"Node Type"`
	Relation  string     `json:"Relation Name"`
	Index     string     `json:"Index Name"`
	Rows      float64    `json:"Actual Rows"`
	Loops     float64    `json:"Actual Loops"`
	Filtered  float64    `json:"Rows Removed by Filter"`
	Rechecked float64    `json:"Rows Removed by Index Recheck"`
	Hit       float64    `json:"Shared Hit Blocks"`
	Read      float64    `json:"Shared Read Blocks"`
	Plans     []PlanNode `json:"Plans"`
}

func (n *PlanNode) Walk(visit func(*PlanNode)) {
	visit(n)
	for i := range n.Plans {
		n.Plans[i].Walk(visit)
	}
}

// Explained is a statement of the runtime with the bounds of its plan.
type Explained struct {
	Name string
	Call func(q *queries.Queries)
	// Reads is how many rows of the tables one scan may touch, Sorts how many may be sorted.
	Reads, Sorts float64
	Tables       []string // nil means those of queue topics
	Buffers      float64  // how many pages may be read; 0 means any number
	Callers      bool     // runs in the caller's transaction, without SessionGuard
	Sorted       bool     // joins from a sorted list and locks rows in its order
	Then         string   // changes the tables after the plan was made and cached, as a session caches it
}

// Run explains e in a transaction that is rolled back, and returns its plan and its time in ms.
func (e *Explained) Run(t *testing.T, db *schemadb.Schema, pool *pgxpool.Pool, mode string) (PlanNode, float64) {
	t.Helper()
	tables := e.Tables
	if tables == nil {
		tables = []string{"events", "queue", "delivered", "dead_letters"}
	}
	text, args := db.Record(e.Call)
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
	if !e.Callers {
		require.NoError(t, q.SessionGuard(t.Context()))
	}
	_, err = tx.Exec(t.Context(),
		"SELECT set_config('plan_cache_mode', $1, true), set_config('statement_timeout', '20s', true)", mode)
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "PREPARE explained AS "+text)
	require.NoError(t, err, e.Name)
	if e.Then != "" {
		_, err = tx.Exec(t.Context(), execute, append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...)
		require.NoError(t, err, e.Name)
		_, err = tx.Exec(t.Context(), e.Then)
		require.NoError(t, err, e.Name)
	}
	var out []byte
	// The simple protocol makes literals of the arguments, which EXECUTE needs.
	require.NoError(t, tx.QueryRow(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+execute,
		append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...).Scan(&out), e.Name)
	_, err = tx.Exec(t.Context(), "DEALLOCATE explained")
	require.NoError(t, err)
	var plans []struct {
		Plan PlanNode
		Time float64 `json:"Execution Time"`
	}
	require.NoError(t, json.Unmarshal(out, &plans))
	plans[0].Plan.Walk(func(n *PlanNode) {
		touched := (n.Rows + n.Filtered + n.Rechecked) * n.Loops
		complain := func(what string) {
			require.Fail(t, what, "%s, %s: %s of %.0f rows\n%s", e.Name, mode, n.Type, touched, out)
		}
		switch {
		case slices.Contains(tables, n.Relation) && n.Type == "Seq Scan" && n.Loops > 0:
			complain("reads the whole table")
		case slices.Contains(tables, n.Relation) && strings.HasSuffix(n.Type, "Scan") && touched > e.Reads:
			complain("reads too much")
		case e.Sorted && n.Type == "Nested Loop" && n.Plans[0].Type != "CTE Scan":
			complain("does not lock rows in the order of its list")
		case strings.HasSuffix(n.Type, "Sort"):
			for _, input := range n.Plans {
				if input.Rows*input.Loops > e.Sorts {
					complain("sorts too much")
				}
			}
		}
	})
	root := plans[0].Plan
	if buffers := root.Hit + root.Read; e.Buffers > 0 && buffers > e.Buffers {
		require.Fail(t, "looks at too many pages", "%s, %s: %.0f\n%s", e.Name, mode, buffers, out)
	}
	return root, plans[0].Time
}

// IndexesOf returns the indexes that a plan uses, each once.
func IndexesOf(plan *PlanNode) (names []string) {
	plan.Walk(func(n *PlanNode) {
		if n.Index != "" && !slices.Contains(names, n.Index) {
			names = append(names, n.Index)
		}
	})
	return names
}
