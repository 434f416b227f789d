package inbox

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

const (
	planRecords = 200_000 // of one group, a quarter of them past the retention
	planOthers  = 50_000  // of other groups, of the same age
)

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
		prune := queries.ProcessedPruneParams{
			ConsumerGroup: "busy0", After: start, Retention: pgtype.Interval{Microseconds: (3 * time.Hour).Microseconds(), Valid: true}, BatchSize: pruneChunk,
		}
		later := prune
		later.After = middle
		last := prune
		last.Retention.Microseconds *= 2
		advance := queries.VersionAdvanceParams{ConsumerGroup: "busy0", EventID: pgvalue.UUID(uuid.New()), Source: "/users", TenantID: pgvalue.UUID(uuid.Nil), EntityType: "user", EntityID: "77", Version: 6}
		ctx := t.Context()
		tables := []string{"processed_events", "entity_versions", "inbox_quarantined"}
		statements := []pgtest.Explained{
			{Name: "once", Call: func(q *queries.Queries) {
				_, _ = q.ProcessedInsert(ctx, queries.ProcessedInsertParams{ConsumerGroup: "busy0", EventID: ids[0]})
			}, Reads: 1, Sorts: 1, Callers: true},
			{Name: "many", Call: func(q *queries.Queries) {
				_, _ = q.ProcessedInsertMany(ctx, queries.ProcessedInsertManyParams{ConsumerGroup: "busy0", EventIds: ids})
			}, Reads: 1000, Sorts: 1000, Callers: true},
			{Name: "advance", Call: func(q *queries.Queries) { _, _ = q.VersionAdvance(ctx, advance) }, Reads: 1, Sorts: 1, Callers: true},
			{Name: "last", Call: func(q *queries.Queries) {
				_, _ = q.VersionLast(ctx, queries.VersionLastParams{ConsumerGroup: "busy0", Source: "/users", TenantID: pgvalue.UUID(uuid.Nil), EntityType: "user", EntityID: "77"})
			}, Reads: 1, Sorts: 1, Callers: true},
			{Name: "quarantine", Call: func(q *queries.Queries) {
				_ = q.InboxQuarantine(ctx, queries.InboxQuarantineParams{ConsumerGroup: "busy0", EventID: pgvalue.UUID(uuid.New()), Source: "/users", TenantID: pgvalue.UUID(uuid.Nil), EntityType: "user", EntityID: "77", Version: 1})
			}, Reads: 1, Sorts: 1, Callers: true},
			{Name: "prune", Call: func(q *queries.Queries) { _, _ = q.ProcessedPrune(ctx, prune) }, Reads: pruneChunk, Sorts: pruneChunk},
			{Name: "prune on", Call: func(q *queries.Queries) { _, _ = q.ProcessedPrune(ctx, later) }, Reads: pruneChunk, Sorts: pruneChunk},
			{Name: "prune nothing", Call: func(q *queries.Queries) { _, _ = q.ProcessedPrune(ctx, last) }, Reads: 1, Sorts: 1},
			{Name: "prune quarantined", Call: func(q *queries.Queries) {
				_, _ = q.InboxQuarantinePrune(ctx, queries.InboxQuarantinePruneParams(later))
			}, Reads: pruneChunk, Sorts: pruneChunk},
		}
		for _, statistics := range []string{before, "fresh"} {
			if statistics == "fresh" {
				_, err := pool.Exec(t.Context(), "ANALYZE outbox.processed_events, outbox.entity_versions, outbox.inbox_quarantined")
				require.NoError(t, err)
			}
			for _, e := range statements {
				e.Tables = tables
				for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
					plan, ms := e.Run(t, i.db, pool, mode)
					t.Logf("%-14s %-18s %-5s %-18s %7.2f ms, %s", e.Name, id, statistics, mode, ms, strings.Join(pgtest.IndexesOf(&plan), " "))
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
