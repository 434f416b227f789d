package admin_test

import (
	"crypto/md5"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// TestDoctorReadsHeads: what the doctor reads of the queue and of delivered events does not grow with them, whatever the
// statistics say and whether the plan is generic or not.
func TestDoctorReadsHeads(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Plain(t)
	db, err := schemadb.Open("outbox")
	require.NoError(t, err)
	const head, batch = 100, 500
	for _, table := range []string{"events", "queue", "delivered", "dead_letters"} {
		pgtest.Execute(t, pool, "ALTER TABLE outbox."+table+" SET (autovacuum_enabled = off)")
		pgtest.Execute(t, pool, "ANALYZE outbox."+table) // of the empty table
	}
	pgtest.Execute(t, pool, `INSERT INTO outbox.events (id, namespace, topic, payload)
		SELECT md5(n::text)::uuid, CASE WHEN n % 10 = 0 THEN 'few' ELSE 'many' END, 't' || n % 4, '{}' FROM generate_series(1, 80000) AS n`)
	pgtest.Execute(t, pool, `INSERT INTO outbox.queue (id, namespace, topic, lane, next_attempt_at)
		SELECT e.id, e.namespace, e.topic, CASE WHEN random() < 0.5 THEN 5 ELSE (random() * 31)::int END, statement_timestamp() + (random() - 0.5) * interval '1 day'
		FROM outbox.events AS e ORDER BY e.id LIMIT 40000`)
	pgtest.Execute(t, pool, `INSERT INTO outbox.delivered (id, namespace, topic, attempts)
		SELECT e.id, e.namespace, e.topic, 1 FROM outbox.events AS e ORDER BY e.id DESC LIMIT 40000`)
	// Limits of the topic of lane 99, which has a key per event.
	pgtest.Execute(t, pool, `INSERT INTO outbox.queue (id, namespace, topic, lane, turn, next_attempt_at, locked_until)
		SELECT md5('k' || n)::uuid, 'many', 'keyed', 99, 'tag/k' || n, statement_timestamp() - interval '1 hour', CASE WHEN n % 5 = 0 THEN now() + interval '1 hour' END
		FROM generate_series(1, 20000) AS n`)
	pgtest.Execute(t, pool, `INSERT INTO outbox.limits (namespace, topic, per, counted_as, nth, tag, part, concurrency, rate, period)
		VALUES ('many', 'keyed', '{k}', 'keyed', 1, 'tag', 1, 1, 5, '1 minute'), ('many', 'keyed', '', 'keyed', 2, 'tag', 0, 500, 1000, '1 minute')`)
	pgtest.Execute(t, pool, `INSERT INTO outbox.limit_usage (namespace, topic, per, key, running, starts_at, starts)
		SELECT 'many', 'keyed', '{k}', 'k' || n, array[md5('k' || n)::uuid], array[now()], array[1] FROM generate_series(1, 20000) AS n
		UNION ALL SELECT 'many', 'keyed', '', '', array_agg(md5('k' || n * 5)::uuid), array[now()], array[400] FROM generate_series(1, 400) AS n`)
	check := func() {
		for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
			for _, e := range []pgtest.Explained{
				{Name: "DoctorQueue", Reads: 64 * head, Sorts: 64 * head, Call: func(q *queries.Queries) {
					_, _ = q.DoctorQueue(t.Context(), queries.DoctorQueueParams{HeadSize: head, Held: []string{"many tag/1"}})
				}},
				{Name: "LimitWaits", Reads: 700, Sorts: 2 * head, Tables: []string{"queue", "delivered", "limit_usage"}, Call: func(q *queries.Queries) {
					_, _ = q.LimitWaits(t.Context(), queries.LimitWaitsParams{Namespaces: []string{"many"}, Topics: []string{"keyed"}, Lanes: []int32{99}, Piece: head})
				}},
				{Name: "LimitsOfEvent", Reads: 401, Sorts: 2, Tables: []string{"queue", "limit_usage"}, Call: func(q *queries.Queries) {
					_, _ = q.LimitsOfEvent(t.Context(), pgtype.UUID{Bytes: md5.Sum([]byte("k7")), Valid: true})
				}},
				{Name: "DoctorLimits", Reads: head, Sorts: head, Call: func(q *queries.Queries) { _, _ = q.DoctorLimits(t.Context(), head) }},
				{Name: "ProcessOrphans", Reads: 64 * head, Sorts: 64 * head, Call: func(q *queries.Queries) {
					_, _ = q.ProcessOrphans(t.Context(), queries.ProcessOrphansParams{
						Namespaces: []string{"many", "few", "none"}, Late: pgvalue.Interval(time.Minute), HeadSize: head, Alive: pgvalue.Interval(time.Minute),
					})
				}},
				{Name: "DoctorMisfits", Reads: 3 * batch, Sorts: batch, Call: func(q *queries.Queries) {
					first := pgtype.UUID{Valid: true}
					_, _ = q.DoctorMisfits(t.Context(), queries.DoctorMisfitsParams{AfterQueued: first, AfterEnqueued: first, AfterDelivered: first, BatchSize: batch})
				}},
			} {
				e.Run(t, db, pool, mode)
			}
		}
	}
	check()
	for _, table := range []string{"events", "queue", "delivered", "dead_letters"} {
		pgtest.Execute(t, pool, "ANALYZE outbox."+table)
	}
	check()
}
