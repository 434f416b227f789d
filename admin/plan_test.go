package admin

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

const (
	planQueued    = 20_000 // of four topics; half of them are in one lane
	planDelivered = 50_000
	planDead      = 20_000
)

// fillForPlans fills the tables after ANALYZE, so that the statistics are those of empty tables.
func fillForPlans(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	for _, table := range []string{"events", "queue", "delivered", "dead_letters", "log", "parked", "audit"} {
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
	pgtest.Execute(t, pool, `INSERT INTO outbox.queue (id, namespace, topic, lane, attempts, claim_no, next_attempt_at)
		SELECT v7(n), 'test', 't' || n % 4, CASE WHEN n % 2 = 0 THEN 5 ELSE n / 2 % 32 END, n % 2, n % 2, now() + ($1::int - n) * interval '1 s'
		FROM generate_series($1::int - $2::int + 1, $1::int) AS n`, all, planQueued)
	pgtest.Execute(t, pool, `INSERT INTO outbox.log (id, namespace, topic, payload) SELECT v7(n), 'test', 'l' || n % 4, '{}' FROM generate_series(1, 20000) AS n`)
	pgtest.Execute(t, pool, `INSERT INTO outbox.audit (who, act, scope) SELECT 'ann', 'pause', '{}' FROM generate_series(1, 20000) AS n`)
	pgtest.Execute(t, pool, `INSERT INTO outbox.events (id, namespace, topic, payload)
		SELECT (lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint - n), 12, '0') || '70008' || substr(md5(n::text), 1, 15))::uuid, 'test', 't' || n % 4, '{}' FROM generate_series(1, 20000) AS n`)
}

func TestPlansHoldWithAnyStatistics(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	fillForPlans(t, pool)
	a, err := New(pool, "")
	require.NoError(t, err)
	namespaces, lanes := make([]string, 32), make([]int32, 32)
	for i := range lanes {
		namespaces[i], lanes[i] = "test", int32(i)
	}
	statements := []pgtest.Explained{
		{Name: "lanes", Call: func(q *queries.Queries) { _, _ = q.QueueLanes(t.Context()) }, Reads: 40, Sorts: 40, Buffers: 1000},
		{Name: "counts by lane", Call: func(q *queries.Queries) {
			_, _ = q.QueueCountsByLane(t.Context(), queries.QueueCountsByLaneParams{Piece: 50, Namespaces: namespaces, Lanes: lanes})
		}, Reads: 50 * 32, Sorts: 50 * 32},
		{Name: "oldest", Call: func(q *queries.Queries) { _, _ = q.QueueOldest(t.Context()) }, Reads: planQueued, Sorts: planQueued},
		{Name: "first tried", Call: func(q *queries.Queries) { _, _ = q.QueueFirstTried(t.Context(), 500) }, Reads: 500, Sorts: 500},
		{Name: "page of queue", Call: func(q *queries.Queries) {
			_, _ = q.BrowseQueue(t.Context(), queries.BrowseQueueParams{
				Namespaces: namespaces, Lanes: lanes, AfterAt: pgvalue.Time(time.Now().Add(time.Hour)), AfterID: pgvalue.UUID(uuid.Nil), Piece: 20, EventLimit: 10, Topic: "t3",
			})
		}, Reads: 20 * 32, Sorts: 20 * 32},
		{Name: "page of delivered", Call: func(q *queries.Queries) {
			_, _ = q.BrowseDelivered(t.Context(), queries.BrowseDeliveredParams{
				Namespaces: []string{"test", "test"}, Topics: []string{"t1", "t2"}, FloorAt: pgvalue.Time(time.Now().Add(-time.Hour)),
				AfterAt: pgvalue.Time(time.Now().Add(-time.Minute)), AfterID: pgvalue.UUID(uuid.Nil), Piece: 100, EventLimit: 10, Error: "none",
			})
		}, Reads: 210, Sorts: 210},
		{Name: "page of dead", Call: func(q *queries.Queries) {
			_, _ = q.BrowseDead(t.Context(), queries.BrowseDeadParams{AfterNo: 15_000, Piece: 100, EventLimit: 10, Error: "5"})
		}, Reads: 100, Sorts: 100},
		{Name: "page of the log", Call: func(q *queries.Queries) {
			_, _ = q.BrowseLog(t.Context(), queries.BrowseLogParams{AfterNo: 15_000, FloorNo: 10, Piece: 100, EventLimit: 10, Topic: "l1"})
		}, Reads: 100, Sorts: 100, Tables: []string{"log"}},
		{Name: "page of parked", Call: func(q *queries.Queries) {
			_, _ = q.BrowseParked(t.Context(), queries.BrowseParkedParams{AfterNo: 15_000, Piece: 100, EventLimit: 10})
		}, Reads: 100, Sorts: 100, Tables: []string{"parked"}},
		{Name: "topics delivered", Call: func(q *queries.Queries) { _, _ = q.TopicsDelivered(t.Context()) }, Reads: 5, Sorts: 5},
		{Name: "by id", Call: func(q *queries.Queries) {
			_, _ = q.EventsByID(t.Context(), queries.EventsByIDParams{Ids: pgvalue.UUIDs(make([]uuid.UUID, 10)), Key: "key77"})
		}, Reads: 11, Sorts: 11},
		{Name: "by position", Call: func(q *queries.Queries) { _, _ = q.LogBySeq(t.Context(), []int64{5, 7}) }, Reads: 2, Sorts: 2, Tables: []string{"log"}},
		{Name: "find in log", Call: func(q *queries.Queries) {
			_, _ = q.LogFind(t.Context(), queries.LogFindParams{Low: 100, High: 200, ID: pgvalue.UUID(uuid.Nil)})
		}, Reads: 101, Sorts: 10, Tables: []string{"log"}},
		{Name: "log from", Call: func(q *queries.Queries) { _, _ = q.LogFrom(t.Context(), 500) }, Reads: 1, Sorts: 1, Tables: []string{"log"}},
		{Name: "log by key", Call: func(q *queries.Queries) { _, _ = q.LogByKey(t.Context(), "key7") }, Reads: 1, Sorts: 1, Tables: []string{"log"}},
		{Name: "standing", Call: func(q *queries.Queries) { _, _ = q.LogStanding(t.Context(), []int64{500}) }, Reads: 1, Sorts: 1, Tables: []string{"log"}},
		{Name: "tail of the log", Call: func(q *queries.Queries) {
			_, _ = q.LogTail(t.Context(), queries.LogTailParams{TailLimit: 500, RateOver: pgvalue.Interval(rateOver)})
		}, Reads: 500, Sorts: 500, Tables: []string{"log"}},
		{Name: "tail of events", Call: func(q *queries.Queries) {
			_, _ = q.EventTail(t.Context(), queries.EventTailParams{TailLimit: 500, RateOver: pgvalue.Interval(rateOver)})
		}, Reads: 500, Sorts: 500, Tables: []string{"events"}},
		{Name: "audit", Call: func(q *queries.Queries) {
			_, _ = q.AuditList(t.Context(), queries.AuditListParams{BeforeNo: 15_000, EntryLimit: 50})
		}, Reads: 50, Sorts: 50, Tables: []string{"audit"}},
		{Name: "history", Call: func(q *queries.Queries) {
			_, _ = q.TopicHistory(t.Context(), queries.TopicHistoryParams{RateLimit: 500, RateOver: pgvalue.Interval(rateOver), DeadLimit: 1000})
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
		require.NoError(t, a.db.InSnapshot(t.Context(), pool, func(q *queries.Queries) error {
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
		rows, err := tx.Query(t.Context(), "EXPLAIN "+a.db.Text(queries.QueueCounts))
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
