package inbox

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/dbsqlc"
	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/internal/pgvalue"
)

const (
	planRecords = 200_000 // of one group, a quarter of them past the retention
	planOthers  = 50_000  // of other groups, of the same age
)

// statement is what a generated sqlc call would send.
type statement struct {
	pgx.Tx
	query string
	args  []any
}

func (s *statement) Exec(_ context.Context, query string, args ...any) (pgconn.CommandTag, error) {
	s.query, s.args = query, args
	return pgconn.CommandTag{}, nil
}

func (s *statement) Query(_ context.Context, query string, args ...any) (pgx.Rows, error) {
	s.query, s.args = query, args
	return nil, pgx.ErrNoRows
}

func (s *statement) QueryRow(_ context.Context, query string, args ...any) pgx.Row {
	s.query, s.args = query, args
	return noRow{}
}

type noRow struct{}

func (noRow) Scan(...any) error { return pgx.ErrNoRows }

// planNode is a node of EXPLAIN (ANALYZE, FORMAT JSON).
type planNode struct {
	Type      string     `json:"Node Type"`
	Relation  string     `json:"Relation Name"`
	Index     string     `json:"Index Name"`
	Rows      float64    `json:"Actual Rows"`
	Loops     float64    `json:"Actual Loops"`
	Filtered  float64    `json:"Rows Removed by Filter"`
	Rechecked float64    `json:"Rows Removed by Index Recheck"`
	Plans     []planNode `json:"Plans"`
}

func (n *planNode) walk(visit func(*planNode)) {
	visit(n)
	for i := range n.Plans {
		n.Plans[i].walk(visit)
	}
}

// explained is a statement with limits for its plan.
type explained struct {
	name    string
	call    func(q *dbsqlc.Queries)
	reads   float64 // how many rows of a table one scan may touch
	callers bool    // runs in the caller's transaction, without SessionGuard
}

// run explains e in a transaction that is rolled back.
func (e *explained) run(t *testing.T, i *Inbox, pool *pgxpool.Pool, mode string) (indexes []string, ms float64) {
	t.Helper()
	var s statement
	e.call(i.db.On(&s))
	literals := make([]string, len(s.args))
	for n := range s.args {
		literals[n] = fmt.Sprintf("$%d", n+1)
	}
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(t.Context()) }()
	if !e.callers {
		require.NoError(t, i.db.On(tx).SessionGuard(t.Context()))
	}
	_, err = tx.Exec(t.Context(), "SELECT set_config('plan_cache_mode', $1, true), set_config('statement_timeout', '20s', true)", mode)
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "PREPARE explained AS "+s.query)
	require.NoError(t, err, e.name)
	var out []byte
	// EXECUTE needs literals; the simple protocol makes them of the arguments.
	require.NoError(t, tx.QueryRow(t.Context(), "EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE explained ("+strings.Join(literals, ", ")+")",
		append([]any{pgx.QueryExecModeSimpleProtocol}, s.args...)...).Scan(&out), e.name)
	_, err = tx.Exec(t.Context(), "DEALLOCATE explained")
	require.NoError(t, err)
	var plans []struct {
		Plan planNode
		Time float64 `json:"Execution Time"`
	}
	require.NoError(t, json.Unmarshal(out, &plans))
	plans[0].Plan.walk(func(n *planNode) {
		touched := (n.Rows + n.Filtered + n.Rechecked) * n.Loops
		sorts := strings.HasSuffix(n.Type, "Sort")
		scans := n.Relation != "" && strings.HasSuffix(n.Type, "Scan")
		require.False(t, n.Relation != "" && n.Type == "Seq Scan" && n.Loops > 0, "%s, %s: reads the whole table\n%s", e.name, mode, out)
		require.False(t, (sorts || scans) && touched > e.reads, "%s, %s: %s of %.0f rows\n%s", e.name, mode, n.Type, touched, out)
		if n.Index != "" && !slices.Contains(indexes, n.Index) {
			indexes = append(indexes, n.Index)
		}
	})
	return indexes, plans[0].Time
}

// fillForPlans fills the tables; an expression over n makes the ids. The statistics that it leaves are those of empty
// tables, or stale: from before the group's first event.
func fillForPlans(t *testing.T, pool *pgxpool.Pool, id, statistics string) {
	t.Helper()
	exec := func(sql string, args ...any) {
		_, err := pool.Exec(t.Context(), sql, args...)
		require.NoError(t, err)
	}
	for _, table := range []string{"processed_events", "entity_versions", "inbox_quarantined"} {
		exec("ALTER TABLE outbox." + table + " SET (autovacuum_enabled = off)")
		exec("ANALYZE outbox." + table) // statistics of the empty table
	}
	exec(`CREATE FUNCTION v7(n bigint) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
		SELECT ('0190' || lpad(to_hex(n), 8, '0') || '7000' || '8' || substr(md5(n::text), 1, 15))::uuid $$`)
	const insert = "INSERT INTO outbox.processed_events SELECT $2 || n % $3::int, "
	const from = ", statement_timestamp() - interval '4 h' + n * interval '4 h' / $1::bigint FROM generate_series(1, $1::bigint) AS n"
	exec(insert+id+from, planOthers, "other", 50)
	if statistics == "stale" {
		exec("ANALYZE outbox.processed_events")
	}
	exec(insert+id+from, planRecords, "busy", 1)
	exec(`INSERT INTO outbox.entity_versions SELECT 'busy0', '/users', '00000000-0000-0000-0000-000000000000', 'user', n::text, 5, v7(n) FROM generate_series(1, $1::bigint) AS n`, planOthers)
	exec(`INSERT INTO outbox.inbox_quarantined SELECT 'busy0', v7(n), '/users', '00000000-0000-0000-0000-000000000000', 'user', n::text, 4, 5, v7(0), NULL,
		statement_timestamp() - interval '4 h' + n * interval '4 h' / $1::bigint FROM generate_series(1, $1::bigint) AS n`, planOthers)
}

func TestPlansHoldWithAnyStatistics(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	// Ids that grow with time, like UUID v7, and ids in random order.
	for id, before := range map[string]string{"v7(n)": "empty", "md5(n::text)::uuid": "stale"} {
		pool := pgtest.Database(t)
		fillForPlans(t, pool, id, before)
		i, err := New(Config{Group: "busy0", Retention: 3 * time.Hour, ReplayWindow: 3 * time.Hour})
		require.NoError(t, err)
		var ids []pgtype.UUID
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT array_agg(event_id) FROM
			(SELECT event_id FROM outbox.processed_events WHERE consumer_group = 'busy0' ORDER BY md5(event_id::text) LIMIT 500) AS s`).Scan(&ids))
		for range 500 {
			ids = append(ids, pgvalue.UUID(uuid.New()))
		}
		var middle pgtype.Timestamptz // of the records that are past the retention
		require.NoError(t, pool.QueryRow(t.Context(), "SELECT statement_timestamp() - interval '3 h 30 min'").Scan(&middle))
		start := pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
		prune := dbsqlc.ProcessedPruneParams{
			ConsumerGroup: "busy0", After: start, Retention: pgtype.Interval{Microseconds: (3 * time.Hour).Microseconds(), Valid: true}, BatchSize: pruneChunk,
		}
		later := prune
		later.After = middle
		last := prune
		last.Retention.Microseconds *= 2
		advance := dbsqlc.VersionAdvanceParams{ConsumerGroup: "busy0", EventID: pgvalue.UUID(uuid.New()), Source: "/users", TenantID: pgvalue.UUID(uuid.Nil), EntityType: "user", EntityID: "77", Version: 6}
		ctx := t.Context()
		statements := []explained{
			{name: "once", call: func(q *dbsqlc.Queries) {
				_, _ = q.ProcessedInsert(ctx, dbsqlc.ProcessedInsertParams{ConsumerGroup: "busy0", EventID: ids[0]})
			}, reads: 1, callers: true},
			{name: "many", call: func(q *dbsqlc.Queries) {
				_, _ = q.ProcessedInsertMany(ctx, dbsqlc.ProcessedInsertManyParams{ConsumerGroup: "busy0", EventIds: ids})
			}, reads: 1000, callers: true},
			{name: "advance", call: func(q *dbsqlc.Queries) { _, _ = q.VersionAdvance(ctx, advance) }, reads: 1, callers: true},
			{name: "last", call: func(q *dbsqlc.Queries) {
				_, _ = q.VersionLast(ctx, dbsqlc.VersionLastParams{ConsumerGroup: "busy0", Source: "/users", TenantID: pgvalue.UUID(uuid.Nil), EntityType: "user", EntityID: "77"})
			}, reads: 1, callers: true},
			{name: "quarantine", call: func(q *dbsqlc.Queries) {
				_ = q.InboxQuarantine(ctx, dbsqlc.InboxQuarantineParams{ConsumerGroup: "busy0", EventID: pgvalue.UUID(uuid.New()), Source: "/users", TenantID: pgvalue.UUID(uuid.Nil), EntityType: "user", EntityID: "77", Version: 1})
			}, reads: 1, callers: true},
			{name: "prune", call: func(q *dbsqlc.Queries) { _, _ = q.ProcessedPrune(ctx, prune) }, reads: pruneChunk},
			{name: "prune on", call: func(q *dbsqlc.Queries) { _, _ = q.ProcessedPrune(ctx, later) }, reads: pruneChunk},
			{name: "prune nothing", call: func(q *dbsqlc.Queries) { _, _ = q.ProcessedPrune(ctx, last) }, reads: 1},
			{name: "prune quarantined", call: func(q *dbsqlc.Queries) { _, _ = q.InboxQuarantinePrune(ctx, dbsqlc.InboxQuarantinePruneParams(later)) }, reads: pruneChunk},
		}
		for _, statistics := range []string{before, "fresh"} {
			if statistics == "fresh" {
				_, err := pool.Exec(t.Context(), "ANALYZE outbox.processed_events, outbox.entity_versions, outbox.inbox_quarantined")
				require.NoError(t, err)
			}
			for _, e := range statements {
				for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
					indexes, ms := e.run(t, i, pool, mode)
					t.Logf("%-14s %-18s %-5s %-18s %7.2f ms, %s", e.name, id, statistics, mode, ms, strings.Join(indexes, " "))
				}
			}
		}
	}
}

// An event of an existing entity does not write to an index of the versions: the new row version stays on the page.
func TestVersionsAreHOTUpdates(t *testing.T) {
	t.Parallel()
	const n = 600
	pool := pgtest.Database(t)
	i, err := New(Config{Group: "busy"})
	require.NoError(t, err)
	apply := func(version int64, step int) {
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			for id := 0; id < n; id += step {
				e := Event{ID: uuid.New(), EntityType: "user", EntityID: fmt.Sprint(id), Version: version}
				if _, err := i.Apply(t.Context(), tx, e, func(context.Context) error { return nil }); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	apply(1, 1)
	// Only one entity in three: for more versions than fillfactor leaves room for, PostgreSQL must prune dead row versions
	// first, and transactions of other tests prevent that.
	apply(2, 3)
	pool.Reset() // ends the sessions, which flushes their statistics
	var all, hot int
	require.Eventually(t, func() bool {
		require.NoError(t, pool.QueryRow(t.Context(), "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = 'outbox.entity_versions'::regclass").Scan(&all, &hot))
		return all >= n/3
	}, 2*time.Minute, 20*time.Millisecond)
	require.Equal(t, []int{n / 3, n / 3}, []int{all, hot})
}
