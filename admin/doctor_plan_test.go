package admin_test

import (
	"testing"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"

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
	check := func() {
		for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
			for _, e := range []pgtest.Explained{
				{Name: "DoctorQueue", Reads: 64 * head, Sorts: 64 * head, Call: func(q *queries.Queries) { _, _ = q.DoctorQueue(t.Context(), head) }},
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
