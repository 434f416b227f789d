package admin_test

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

// perThing is how many events an entity has in fillLives, in each of both tables.
const perThing = 10

var lifeTables = []string{"events", "queue", "delivered", "dead_letters", "log", "parked", "processed_events", "inbox_messages", "inbox_quarantined", "entity_versions", "audit", "listener_failures"}

// fillLives puts n events into the tables, half of them into the log. Each entity has 20, and an event of the queue has caused
// the one of the log with its number. Three consumers have handled them. A tenth of the events has neither entity nor cause.
func fillLives(t *testing.T, pool *pgxpool.Pool, n int) {
	t.Helper()
	const events = `SELECT n, ('0190' || lpad(to_hex(n), 8, '0') || '7000' || $2 || substr(md5(n::text), 1, 15))::uuid AS id,
		'2026-05-01'::timestamptz + n * interval '10 ms' AS at, CASE WHEN n % 10 > 0 THEN 'order' END AS kind,
		CASE WHEN n % 10 > 0 THEN ($1 * (n % ($3 / 10)))::text END AS entity FROM generate_series(1, $3) AS n`
	with := func(head string, kind string) string {
		return "WITH e AS (" + strings.NewReplacer("$1", "1", "$2", "'"+kind+"'", "$3", fmt.Sprint(n/2)).Replace(events) + ") " + head
	}
	for _, statement := range []string{
		with(`INSERT INTO outbox.events (id, namespace, topic, payload, entity_type, entity_id, entity_version, created_at)
			SELECT id, 'shop', 'placed', '{"note": "some bytes of payload, as events have"}', kind, entity, n, at FROM e`, "8"),
		with(`INSERT INTO outbox.delivered (id, namespace, topic, attempts, finalized_at) SELECT id, 'shop', 'placed', 1, at FROM e`, "8"),
		with(`INSERT INTO outbox.log (id, namespace, topic, payload, entity_type, entity_id, entity_version, created_at, headers)
			SELECT id, 'shop', 'changed', '{"note": "some bytes of payload, as events have"}', kind, entity, n, at + interval '1 s',
				CASE WHEN n % 10 > 0 THEN jsonb_build_object('causation_id', overlay(id::text PLACING '8' FROM 20 FOR 1), 'correlation_id', overlay(id::text PLACING '8' FROM 20 FOR 1)) END FROM e`, "9"),
		with(`INSERT INTO outbox.processed_events (consumer_group, event_id, processed_at) SELECT g, id, at FROM e CROSS JOIN unnest('{billing,cards,crm}'::text[]) AS g WHERE n % 10 = 1`, "9"),
		with(`INSERT INTO outbox.entity_versions (consumer_group, source, tenant_id, entity_type, entity_id, version, event_id)
			SELECT 'billing', '/shop', ('00000000-0000-0000-0000-' || lpad((n % 100)::text, 12, '0'))::uuid, kind, entity, n, id FROM e WHERE n % 10 = 1 ON CONFLICT DO NOTHING`, "9"),
		with(`INSERT INTO outbox.dead_letters (id, namespace, topic, version, payload, created_at, attempts, error, listener, seq, bucket, entity_type, entity_id)
			SELECT id, 'shop', 'changed', 1, '{}', at + interval '1 s', 1, 'no', 'ears', n, 1, kind, entity FROM e WHERE n % 5 = 1`, "9"),
		with(`INSERT INTO outbox.parked (listener, key, seq, id, namespace, topic, version, payload, bucket, created_at, entity_type, entity_id)
			SELECT 'eyes', 'k', n, id, 'shop', 'changed', 1, '{}', 1, at + interval '1 s', kind, entity FROM e WHERE n % 5 = 2`, "9"),
		with(`INSERT INTO outbox.audit (who, act, scope) SELECT 'ann', 'pause', '{"namespace": "other"}' FROM e WHERE n % 50 = 0`, "9"),
	} {
		pgtest.Execute(t, pool, statement)
	}
}

// TestLifeReadsWhatItReturns: whatever the statistics say, and in the long form, which OUTBOXGEN_LIFE_EVENTS asks for, within
// 200 ms.
func TestLifeReadsWhatItReturns(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	n, long := 20_000, os.Getenv("OUTBOXGEN_LIFE_EVENTS")
	if long != "" {
		var err error
		n, err = strconv.Atoi(long)
		require.NoError(t, err)
	}
	pool := pgtest.Database(t)
	db, err := schemadb.Open("")
	require.NoError(t, err)
	ops, err := admin.New(pool, "")
	require.NoError(t, err)
	for _, table := range lifeTables {
		pgtest.Execute(t, pool, "ALTER TABLE outbox."+table+" SET (autovacuum_enabled = off)")
		pgtest.Execute(t, pool, "ANALYZE outbox."+table) // of the empty table
	}
	fillLives(t, pool, n)
	const entity = "17"
	root := pgtest.Value[uuid.UUID](t, pool, "SELECT id FROM outbox.events WHERE entity_type = 'order' AND entity_id = $1 ORDER BY created_at LIMIT 1", entity)
	seqs := pgtest.Value[[]int64](t, pool, "SELECT array_agg(seq) FROM outbox.log WHERE entity_type = 'order' AND entity_id = $1", entity)
	ids := pgvalue.UUIDs(pgtest.Value[[]uuid.UUID](t, pool, "SELECT array_agg(id) FROM outbox.log WHERE entity_type = 'order' AND entity_id = $1", entity))
	queued := pgvalue.UUIDs(pgtest.Value[[]uuid.UUID](t, pool, "SELECT array_agg(id) FROM outbox.events WHERE entity_type = 'order' AND entity_id = $1", entity))
	first := pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
	statements := []pgtest.Explained{
		{Name: "by entity", Reads: perThing, Sorts: 4 * perThing, Call: func(q *queries.Queries) {
			_, _ = q.FindByEntity(t.Context(), queries.FindByEntityParams{EntityType: "order", EntityID: entity, AfterAt: first, AfterID: pgtype.UUID{Valid: true}, EventLimit: 50})
		}},
		{Name: "page of entity", Reads: perThing, Sorts: perThing, Call: func(q *queries.Queries) {
			_, _ = q.FindByEntity(t.Context(), queries.FindByEntityParams{EntityType: "order", EntityID: entity, AfterAt: first, AfterID: pgtype.UUID{Valid: true}, EventLimit: 2})
		}},
		{Name: "by correlation", Reads: 2, Sorts: 8, Call: func(q *queries.Queries) {
			_, _ = q.FindByCorrelation(t.Context(), queries.FindByCorrelationParams{Correlations: []string{root.String(), "none"}, AfterAt: first, AfterID: pgtype.UUID{Valid: true}, EventLimit: 50, AllLimit: 100})
		}},
		{Name: "facts", Reads: 2 * perThing, Sorts: 1, Call: func(q *queries.Queries) {
			_, _ = q.EventFacts(t.Context(), queries.EventFactsParams{Ids: ids, Seqs: seqs})
		}},
		{Name: "by id", Reads: perThing, Sorts: perThing, Call: func(q *queries.Queries) {
			_, _ = q.EventsByID(t.Context(), queries.EventsByIDParams{Ids: queued})
		}},
		{Name: "by position", Reads: perThing, Sorts: perThing, Call: func(q *queries.Queries) { _, _ = q.LogBySeq(t.Context(), seqs) }},
		{Name: "failures", Reads: 1, Sorts: 1, Call: func(q *queries.Queries) { _, _ = q.ListenerFailures(t.Context(), ids) }},
		{Name: "heard", Reads: perThing, Sorts: 1, Call: func(q *queries.Queries) { _, _ = q.HeardByID(t.Context(), ids) }},
		{Name: "types", Reads: 3, Sorts: 3, Call: func(q *queries.Queries) { _, _ = q.EntityTypes(t.Context(), 100) }},
		{Name: "inbox", Reads: 4 * perThing, Sorts: 4 * perThing, Call: func(q *queries.Queries) { _, _ = q.InboxOfEvents(t.Context(), ids) }},
		{Name: "versions", Reads: 3, Sorts: 3, Call: func(q *queries.Queries) {
			_, _ = q.EntityVersions(t.Context(), queries.EntityVersionsParams{Tenants: []pgtype.UUID{{Valid: true}, ids[0]}, EntityType: "order", EntityID: entity})
		}},
		{Name: "acts", Reads: 100, Sorts: 100, Call: func(q *queries.Queries) {
			_, _ = q.AuditLatest(t.Context(), queries.AuditLatestParams{Piece: 100, Since: pgvalue.Time(time.Now().Add(-time.Hour))})
		}},
		{Name: "standing", Reads: perThing, Sorts: perThing, Call: func(q *queries.Queries) { _, _ = q.LogStanding(t.Context(), seqs) }},
	}
	for _, statistics := range []string{"empty", "fresh"} {
		if statistics == "fresh" {
			for _, table := range lifeTables {
				pgtest.Execute(t, pool, "ANALYZE outbox."+table)
			}
		}
		for _, e := range statements {
			e.Tables = lifeTables
			for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
				plan, ms := e.Run(t, db, pool, mode)
				t.Logf("%-16s %-5s %-18s %7.2f ms, %s", e.Name, statistics, mode, ms, strings.Join(pgtest.IndexesOf(&plan), " "))
			}
		}
		for name, f := range map[string]admin.Filter{
			"life of an entity": {Entity: outbox.Entity{Type: "order", ID: entity}}, "life of a chain": {Correlation: root.String()},
		} {
			var took []time.Duration
			for range 21 {
				began := time.Now()
				life, err := ops.Life(t.Context(), f, admin.Page{})
				took = append(took, time.Since(began))
				require.NoError(t, err)
				require.NotEmpty(t, life.Events)
			}
			slices.Sort(took)
			t.Logf("%d events, statistics %s, %s: median %s, slowest %s", n, statistics, name, took[10], took[20])
			if long != "" {
				require.Less(t, took[10], 200*time.Millisecond)
			}
		}
	}
}
