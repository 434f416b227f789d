package admin_test

import (
	"math"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// TestDeadLetterPlans explains each statement for dead letters with no statistics, with those of an empty table and with fresh
// ones. OUTBOXGEN_PLAN_BACKLOG says how many dead letters there are.
func TestDeadLetterPlans(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	letters := 60_000
	if text := os.Getenv("OUTBOXGEN_PLAN_BACKLOG"); text != "" {
		var err error
		letters, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	const piece, chunk = 5000, 500
	pool := pgtest.Database(t)
	db, err := schemadb.Open("")
	require.NoError(t, err)
	for _, table := range []string{"events", "queue", "dead_letters", "parked", "listeners"} {
		pgtest.Execute(t, pool, "ALTER TABLE outbox."+table+" SET (autovacuum_enabled = off)")
	}
	fill := func() {
		manyDead(t, pool, letters/2)
		pgtest.Execute(t, pool, `INSERT INTO outbox.dead_letters (listener, seq, bucket, id, namespace, topic, version, partition_key, key, payload, created_at, attempts, error)
			SELECT 'ears', n, n % 32768, gen_random_uuid(), 'test', 'said', 1, 'k' || n % 1000, 'k' || n % 1000,
				'{"text": "some hundred bytes of payload, as events have, and a little more to fill a row"}', now(), 5, 'handler failed'
			FROM generate_series(1, $1::int) AS n`, letters/2)
		pgtest.Execute(t, pool, `INSERT INTO outbox.parked (listener, key, seq, id, namespace, topic, version, partition_key, payload, bucket, created_at)
			SELECT 'ears', 'k' || n % 2000, 1000000000 + n, gen_random_uuid(), 'test', 'said', 1, 'k' || n % 2000, '{}', n % 32768, now()
			FROM generate_series(1, 20000) AS n`)
	}
	pgtest.Execute(t, pool, `INSERT INTO outbox.listeners (listener, shard, shards, lo, lo_bound, high_seq, system_id)
		SELECT 'ears', n, 4, '1:1:', '1', 0, c.system_identifier FROM pg_control_system() AS c, generate_series(0, 3) AS n`)
	for _, facts := range []string{"none", "empty", "fresh"} {
		switch facts {
		case "none":
			fill()
		case "empty":
			pgtest.Execute(t, pool, "TRUNCATE outbox.events, outbox.dead_letters, outbox.parked")
			pgtest.Execute(t, pool, "ANALYZE outbox.events, outbox.dead_letters, outbox.parked, outbox.queue, outbox.listeners")
			fill()
		case "fresh":
			pgtest.Execute(t, pool, "ANALYZE outbox.events, outbox.dead_letters, outbox.parked, outbox.queue, outbox.listeners")
		}
		nos := func(where string) []int64 {
			return pgtest.Value[[]int64](t, pool, "SELECT array_agg(no ORDER BY no) FROM (SELECT no FROM outbox.dead_letters WHERE "+where+" LIMIT 500) AS d")
		}
		queued, heard := nos("listener IS NULL"), nos("listener IS NOT NULL")
		ids := pgtest.Value[[]uuid.UUID](t, pool, "SELECT array_agg(id) FROM (SELECT id FROM outbox.dead_letters WHERE no = ANY ($1) LIMIT 100) AS d", append(heard[:50:50], queued[:50]...))
		scan := queries.DeadLetterScanParams{Ids: []pgtype.UUID{}, Piece: piece, Texts: true, Namespace: "test", Topic: "ping", Error: "kind c"}
		newest, byID := scan, scan
		newest.Newest, newest.AfterNo = true, math.MaxInt64
		byID.Ids = pgvalue.UUIDs(ids)
		for _, e := range []pgtest.Explained{
			{Name: "scan", Reads: piece, Call: func(q *queries.Queries) { _, _ = q.DeadLetterScan(t.Context(), scan) }},
			{Name: "scan newest", Reads: piece, Call: func(q *queries.Queries) { _, _ = q.DeadLetterScan(t.Context(), newest) }},
			{Name: "scan ids", Reads: 200, Call: func(q *queries.Queries) { _, _ = q.DeadLetterScan(t.Context(), byID) }},
			{Name: "read", Reads: chunk, Call: func(q *queries.Queries) { _, _ = q.DeadLetterRead(t.Context(), queued) }},
			{Name: "replay", Reads: 2 * chunk, Call: func(q *queries.Queries) { _, _ = q.DeadLetterReplay(t.Context(), queued) }},
			{Name: "followed", Reads: 2 * chunk, Call: func(q *queries.Queries) {
				_, _ = q.DeadLetterFollowed(t.Context(), queries.DeadLetterFollowedParams{Nos: heard, Listener: "ears"})
			}},
			{Name: "park", Reads: 20_000, Call: func(q *queries.Queries) {
				_, _ = q.DeadLetterPark(t.Context(), queries.DeadLetterParkParams{Nos: heard, Listener: "ears"})
			}},
			{Name: "discard", Reads: 2 * chunk, Call: func(q *queries.Queries) { _, _ = q.DeadLetterDiscard(t.Context(), queued) }},
			{Name: "edit", Reads: 2, Call: func(q *queries.Queries) {
				_, _ = q.DeadLetterEdit(t.Context(), queries.DeadLetterEditParams{Payload: []byte(`{}`), No: queued[0]})
			}},
		} {
			e.Sorts, e.Tables = 2*piece, []string{"dead_letters", "events", "queue", "parked"}
			for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
				plan, ms := e.Run(t, db, pool, mode)
				t.Logf("%-12s %-6s %-18s %8.2f ms %s", e.Name, facts, mode, ms, strings.Join(pgtest.IndexesOf(&plan), " "))
			}
		}
	}
}
