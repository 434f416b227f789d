package admin

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/dbsqlc"
	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/internal/pgvalue"
)

const (
	planQueued    = 20_000 // of four topics; half of them are in one lane
	planDelivered = 50_000
	planDead      = 20_000
)

// fillForPlans fills the tables after ANALYZE, so that the statistics are those of empty tables.
func fillForPlans(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	for _, table := range []string{"events", "queue", "delivered", "dead_letters", "log", "parked"} {
		pgtest.Execute(t, pool, "ALTER TABLE outbox."+table+" SET (autovacuum_enabled = off)")
		pgtest.Execute(t, pool, "ANALYZE outbox."+table)
	}
	pgtest.Execute(t, pool, `CREATE FUNCTION v7(n bigint) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
		SELECT ('0190' || lpad(to_hex(n), 8, '0') || '7000' || '8' || substr(md5(n::text), 1, 15))::uuid $$`)
	const all = planDelivered + planQueued + planDead
	pgtest.Execute(t, pool, `INSERT INTO outbox.events (id, namespace, topic, payload, dedupe_key, created_at)
		SELECT v7(n), 'test', 't' || n % 4, '{}', 'key' || n, now() - ($1::int - n) * interval '1 s' FROM generate_series(1, $1::int) AS n`, all)
	pgtest.Execute(t, pool, `INSERT INTO outbox.delivered (id, namespace, topic, attempts, finalized_at)
		SELECT v7(n), 'test', 't' || n % 4, 1, now() - ($1::int - n) * interval '10 ms' FROM generate_series(1, $1::int) AS n`, planDelivered)
	pgtest.Execute(t, pool, `INSERT INTO outbox.dead_letters (id, namespace, topic, version, payload, created_at, attempts, error, died_at, listener, seq, bucket)
		SELECT v7(n), 'test', 't' || n % 4, 1, '{}', now(), 1, 'error ' || n, now() - ($2::int - n) * interval '1 s',
			CASE WHEN n % 2 = 0 THEN 'ears' END, CASE WHEN n % 2 = 0 THEN n END, CASE WHEN n % 2 = 0 THEN 1 END
		FROM generate_series($1::int + 1, $2::int) AS n`, planDelivered, planDelivered+planDead)
	pgtest.Execute(t, pool, `INSERT INTO outbox.queue (id, namespace, topic, lane, next_attempt_at)
		SELECT v7(n), 'test', 't' || n % 4, CASE WHEN n % 2 = 0 THEN 5 ELSE n / 2 % 32 END, now() + ($1::int - n) * interval '1 s'
		FROM generate_series($1::int - $2::int + 1, $1::int) AS n`, all, planQueued)
	pgtest.Execute(t, pool, `INSERT INTO outbox.log (id, namespace, topic, payload) SELECT v7(n), 'test', 'l' || n % 4, '{}' FROM generate_series(1, 20000) AS n`)
}

func TestPlansHoldWithAnyStatistics(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	fillForPlans(t, pool)
	a, err := New(pool, "")
	require.NoError(t, err)
	namespaces, lanes := make([]string, 32), make([]int16, 32)
	for i := range lanes {
		namespaces[i], lanes[i] = "test", int16(i)
	}
	statements := []pgtest.Explained{
		{Name: "lanes", Call: func(q *dbsqlc.Queries) { _, _ = q.QueueLanes(t.Context()) }, Reads: 40, Sorts: 40, Buffers: 1000},
		{Name: "counts by lane", Call: func(q *dbsqlc.Queries) {
			_, _ = q.QueueCountsByLane(t.Context(), dbsqlc.QueueCountsByLaneParams{Piece: 50, Namespaces: namespaces, Lanes: lanes})
		}, Reads: 50 * 32, Sorts: 50 * 32},
		{Name: "oldest", Call: func(q *dbsqlc.Queries) { _, _ = q.QueueOldest(t.Context()) }, Reads: planQueued, Sorts: planQueued},
		{Name: "history", Call: func(q *dbsqlc.Queries) {
			_, _ = q.TopicHistory(t.Context(), dbsqlc.TopicHistoryParams{RateLimit: 500, RateOver: pgvalue.Interval(rateOver), DeadLimit: 1000})
		}, Reads: 4 * 1000, Sorts: 100},
	}
	for _, statistics := range []string{"empty", "fresh"} {
		if statistics == "fresh" {
			pgtest.Execute(t, pool, "ANALYZE")
		}
		for _, e := range statements {
			for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
				plan, ms := e.Run(t, a.db, pool, mode)
				t.Logf("%-16s %-5s %-18s %7.2f ms, %s", e.Name, statistics, mode, ms, strings.Join(pgtest.IndexesOf(&plan), " "))
			}
		}
		// The scan of the whole queue sorts nothing.
		require.NoError(t, a.db.InSnapshot(t.Context(), pool, func(q *dbsqlc.Queries) error {
			if err := q.ScanWhole(t.Context()); err != nil {
				return err
			}
			_, err := q.QueueCounts(t.Context())
			return err
		}))
		tx, err := pool.Begin(t.Context())
		require.NoError(t, err)
		q := a.db.On(tx)
		require.NoError(t, q.SessionGuard(t.Context()))
		require.NoError(t, q.ScanWhole(t.Context()))
		rows, err := tx.Query(t.Context(), "EXPLAIN "+a.db.Text(dbsqlc.QueueCounts))
		require.NoError(t, err)
		var plan strings.Builder
		for rows.Next() {
			var line string
			require.NoError(t, rows.Scan(&line))
			plan.WriteString(line + "\n")
		}
		require.NoError(t, rows.Err())
		require.NoError(t, tx.Rollback(t.Context()))
		require.Contains(t, plan.String(), "Seq Scan on queue", statistics)
		require.Contains(t, plan.String(), "HashAggregate", statistics)
		require.NotContains(t, plan.String(), "Sort", statistics)
	}
}
