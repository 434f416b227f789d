package admin_test

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
)

// TestForgetPlans explains the scans of a forget with no statistics, with those of an empty table and with fresh ones: each
// reads a piece, or the events of the entity. OUTBOXGEN_PLAN_BACKLOG says how many events there are; then the log of the test
// has how long a forget of a tenant and of an entity take.
func TestForgetPlans(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	events := 30_000
	if text := os.Getenv("OUTBOXGEN_PLAN_BACKLOG"); text != "" {
		var err error
		events, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	const piece, each = 1000, 100 // each entity and each tenant has so many events of each kind
	pool := pgtest.Database(t)
	db, err := schemadb.Open("")
	require.NoError(t, err)
	for _, table := range []string{"events", "queue", "delivered", "dead_letters", "log", "processed_events"} {
		pgtest.Execute(t, pool, "ALTER TABLE outbox."+table+" SET (autovacuum_enabled = off)")
	}
	fill := func() {
		pgtest.Execute(t, pool, `WITH e AS (
			INSERT INTO outbox.events (id, namespace, topic, tenant_id, entity_type, entity_id, payload)
			SELECT ('0190' || lpad(to_hex(n), 8, '0') || '70008' || substr(md5(n::text), 1, 15))::uuid, 'test', 'ping', ('00000000-0000-0000-0000-' || lpad(to_hex(1 + n % ($1::int / $2::int)), 12, '0'))::uuid,
				'order', (n % ($1::int / $2::int))::text, '{"text": "some hundred bytes of payload, as events have, and a little more to fill a row"}'
			FROM generate_series(1, $1::int) AS n RETURNING id)
			INSERT INTO outbox.delivered (id, namespace, topic, attempts) SELECT id, 'test', 'ping', 1 FROM e`, events, each)
		pgtest.Execute(t, pool, `INSERT INTO outbox.log (namespace, topic, tenant_id, entity_type, entity_id, payload)
			SELECT 'test', 'said', ('00000000-0000-0000-0000-' || lpad(to_hex(1 + n % ($1::int / $2::int)), 12, '0'))::uuid, 'order', (n % ($1::int / $2::int))::text, '{}'
			FROM generate_series(1, $1::int) AS n`, events, each)
		pgtest.Execute(t, pool, `INSERT INTO outbox.queue (id, namespace, topic) SELECT gen_random_uuid(), 'test', 'ping' FROM generate_series(1, 10000)`)
		pgtest.Execute(t, pool, `INSERT INTO outbox.dead_letters (id, namespace, topic, version, payload, created_at, attempts, error, listener, seq, bucket)
			SELECT gen_random_uuid(), 'test', 'ping', 1, '{}', now(), 1, 'no', CASE WHEN n % 2 = 0 THEN 'ears' END, CASE WHEN n % 2 = 0 THEN n END, CASE WHEN n % 2 = 0 THEN 1 END
			FROM generate_series(1, 10000) AS n`)
		pgtest.Execute(t, pool, "INSERT INTO outbox.processed_events (consumer_group, event_id) SELECT 'cards', id FROM outbox.events LIMIT 20000")
	}
	tenant := pgvalue.UUID(uuid.MustParse("00000000-0000-0000-0000-000000000007"))
	for _, facts := range []string{"none", "empty", "fresh"} {
		switch facts {
		case "none":
			fill()
		case "empty":
			pgtest.Execute(t, pool, "TRUNCATE outbox.events, outbox.delivered, outbox.log, outbox.processed_events, outbox.queue, outbox.dead_letters")
			pgtest.Execute(t, pool, "ANALYZE outbox.events, outbox.delivered, outbox.log, outbox.processed_events, outbox.queue, outbox.dead_letters")
			fill()
		case "fresh":
			pgtest.Execute(t, pool, "ANALYZE outbox.events, outbox.delivered, outbox.log, outbox.processed_events, outbox.queue, outbox.dead_letters")
		}
		after := pgtest.Value[uuid.UUID](t, pool, "SELECT id FROM outbox.events ORDER BY id OFFSET 9000 LIMIT 1")
		at := pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
		seq := pgtest.Value[int64](t, pool, "SELECT seq FROM outbox.log ORDER BY seq OFFSET 9000 LIMIT 1")
		ids := pgtest.Value[[]uuid.UUID](t, pool, "SELECT array_agg(id) FROM (SELECT id FROM outbox.events ORDER BY id OFFSET 500 LIMIT 100) AS e")
		seqs := pgtest.Value[[]int64](t, pool, "SELECT array_agg(seq) FROM (SELECT seq FROM outbox.log ORDER BY seq OFFSET 500 LIMIT 100) AS g")
		for _, e := range []pgtest.Explained{
			{Name: "tenant, events", Reads: piece, Call: func(q *queries.Queries) {
				_, _ = q.ForgetEventsScan(t.Context(), queries.ForgetEventsScanParams{AfterID: pgvalue.UUID(after), AfterAt: at, Piece: piece, TenantID: tenant})
			}},
			{Name: "entity, events", Reads: each, Call: func(q *queries.Queries) {
				_, _ = q.ForgetEventsScan(t.Context(), queries.ForgetEventsScanParams{
					EntityType: "order", EntityID: "7", AfterID: pgtype.UUID{Valid: true}, AfterAt: at, Piece: piece,
				})
			}},
			{Name: "tenant, log", Reads: piece, Call: func(q *queries.Queries) {
				_, _ = q.ForgetLogScan(t.Context(), queries.ForgetLogScanParams{AfterSeq: seq, AfterAt: at, Piece: piece, TenantID: tenant})
			}},
			{Name: "entity, log", Reads: each, Call: func(q *queries.Queries) {
				_, _ = q.ForgetLogScan(t.Context(), queries.ForgetLogScanParams{EntityType: "order", EntityID: "7", AfterAt: at, Piece: piece})
			}},
			{Name: "hold", Reads: each, Call: func(q *queries.Queries) { _, _ = q.ForgetHold(t.Context(), pgvalue.UUIDs(ids)) }},
			{Name: "delete events", Reads: 3 * each, Call: func(q *queries.Queries) {
				_, _ = q.ForgetEvents(t.Context(), queries.ForgetEventsParams{Ids: pgvalue.UUIDs(ids)})
			}},
			{Name: "cursors", Reads: each, Call: func(q *queries.Queries) {
				_, _ = q.ForgetCursors(t.Context(), queries.ForgetCursorsParams{Seqs: seqs, BatchSize: 1})
			}},
			{Name: "delete log", Reads: 3 * each, Call: func(q *queries.Queries) {
				_, _ = q.ForgetLog(t.Context(), queries.ForgetLogParams{Seqs: seqs})
			}},
			{Name: "recorded", Reads: each, Call: func(q *queries.Queries) {
				_, _ = q.ForgetRecordedCount(t.Context(), queries.ForgetRecordedCountParams{Groups: []string{"cards", "mail"}, Ids: pgvalue.UUIDs(ids)})
			}},
			{Name: "delete recorded", Reads: 2 * each, Call: func(q *queries.Queries) {
				_, _ = q.ForgetRecorded(t.Context(), queries.ForgetRecordedParams{Groups: []string{"cards", "mail"}, Ids: pgvalue.UUIDs(ids)})
			}},
		} {
			e.Sorts, e.Tables = piece, []string{"events", "delivered", "log", "dead_letters", "queue", "processed_events"}
			for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
				plan, ms := e.Run(t, db, pool, mode)
				t.Logf("%-14s %-6s %-18s %8.2f ms %s", e.Name, facts, mode, ms, strings.Join(pgtest.IndexesOf(&plan), " "))
			}
		}
	}
	a := runtimetest.AdminOf(t, pool)
	for _, s := range []admin.ForgetScope{ofTenant(uuid.UUID(tenant.Bytes)), ofOrder("9")} {
		began := time.Now()
		_, err := a.Forget(t.Context(), s, admin.Act{DryRun: true})
		require.NoError(t, err)
		planned := time.Since(began)
		r := forget(t, a, s)
		require.EqualValues(t, 2*each, r.Events)
		t.Logf("%s: planned in %v, planned and deleted in %v", s, planned, time.Since(began)-planned)
	}
}
