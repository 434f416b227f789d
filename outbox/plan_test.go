package outbox

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/dbsqlc"
	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/internal/pgvalue"
)

const (
	planBacklog   = 100_000 // due
	planDelivered = 50_000
	planScheduled = 50_000 // ahead
	planDead      = 20_000 // row versions, at the head of the queue
	planInFlight  = 2_000
)

func fillForPlans(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	exec := func(sql string, args ...any) {
		_, err := pool.Exec(t.Context(), sql, args...)
		require.NoError(t, err)
	}
	exec("ALTER TABLE outbox.events SET (autovacuum_enabled = off)")
	exec("ANALYZE outbox.events") // statistics of the empty table
	// Ids grow with time, as UUID v7 do; half of the backlog is due at one and the same time.
	exec(`CREATE FUNCTION v7(n bigint) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
		SELECT ('0190' || lpad(to_hex(n), 8, '0') || '7000' || '8' || substr(md5(n::text), 1, 15))::uuid $$`)
	const columns = "INSERT INTO outbox.events (id, namespace, topic, tenant_id, dedupe_key, payload, status, next_attempt_at, finalized_at, attempts, claim_no, locked_by, locked_until) "
	const common = "'test', 't' || n % 4, tenant, tenant || '/' || n, '{\"text\": \"some hundred bytes of payload, as events have, and a little more to fill a row\"}'"
	const from = " FROM generate_series($1::bigint, $2::bigint) AS n, LATERAL (SELECT md5((n % 100)::text)::uuid AS tenant) AS u"
	at := int64(0)
	fill := func(n int, state string) {
		exec(columns+"SELECT v7(n), "+common+", "+state+from, at+1, at+int64(n))
		at += int64(n)
	}
	const now = "statement_timestamp()"
	fill(planDelivered, "'delivered', "+now+" - (300000 - n) * interval '1 s', "+now+" - (300000 - n) * interval '1 s', 1, 1, v7(0), NULL")
	fill(planDead, "'pending', "+now+" - interval '3 h', NULL::timestamptz, 0, 0, NULL::uuid, NULL::timestamptz")
	fill(planInFlight, "'processing', "+now+" - interval '2 h' + n * interval '1 ms', NULL, 1, 1, '00000000-0000-4000-8000-000000000001'::uuid, "+now+" + interval '1 h'")
	fill(planBacklog/2, "'pending', "+now+" - interval '1 h', NULL::timestamptz, 0, 0, NULL::uuid, NULL::timestamptz")
	fill(planBacklog/2, "'pending', "+now+" - (500000 - n) * interval '1 ms', NULL::timestamptz, 0, 0, NULL::uuid, NULL::timestamptz")
	fill(planScheduled, "'pending', "+now+" + n * interval '1 s', NULL::timestamptz, 0, 0, NULL::uuid, NULL::timestamptz")
	exec("UPDATE outbox.events SET status = 'delivered', finalized_at = " + now + " WHERE status = 'pending' AND next_attempt_at < " + now + " - interval '150 min'")
}

// statements returns what the runtime runs, with the events in flight as what it finalises.
func planStatements(t *testing.T, s *Store) []explained {
	t.Helper()
	rows, err := s.pool.Query(t.Context(), "SELECT id, claim_no FROM outbox.events WHERE status = 'processing' ORDER BY md5(id::text) LIMIT 1000")
	require.NoError(t, err)
	var ids []pgtype.UUID
	var nos []int64
	var id pgtype.UUID
	var no int64
	_, err = pgx.ForEachRow(rows, []any{&id, &no}, func() error {
		ids, nos = append(ids, id), append(nos, no)
		return nil
	})
	require.NoError(t, err)
	require.Len(t, ids, min(planInFlight, 1000))
	n := len(ids)
	var keys []string
	require.NoError(t, s.pool.QueryRow(t.Context(), "SELECT array_agg(dedupe_key) FROM (SELECT dedupe_key FROM outbox.events WHERE topic = 't1' AND dedupe_key IS NOT NULL LIMIT 1000) AS k").Scan(&keys))
	worker := pgvalue.UUID(s.worker)
	var front place
	var frontID pgtype.UUID
	require.NoError(t, s.pool.QueryRow(t.Context(), `SELECT next_attempt_at, id FROM outbox.events
		WHERE finalized_at IS NULL AND locked_until IS NULL ORDER BY next_attempt_at, id OFFSET 100 LIMIT 1`).Scan(&front.due, &frontID))
	front.id = frontID.Bytes
	fresh := func(after place) func(q *dbsqlc.Queries) {
		return func(q *dbsqlc.Queries) {
			s.claimFrom(t.Context(), q, &claim{size: 100, lease: time.Minute, after: after})
		}
	}
	claim := func(cfg ClaimConfig) func(q *dbsqlc.Queries) {
		c, err := cfg.claim()
		require.NoError(t, err)
		return func(q *dbsqlc.Queries) { _, _ = q.EventClaim(t.Context(), s.claimParams(c)) }
	}
	nack := dbsqlc.EventNackParams{
		Ids: ids, ClaimNos: nos, WorkerID: worker, DelaysUs: slices.Repeat([]int64{1e6}, n), RetryAts: slices.Repeat([]pgtype.Timestamptz{{}}, n),
		Permanents: slices.Repeat([]bool{false}, n), Errors: slices.Repeat([]string{errors.ErrUnsupported.Error()}, n),
	}
	const head = planInFlight + planDead
	return []explained{
		{name: "claim 1", call: claim(ClaimConfig{BatchSize: 1}), reads: head + 100, sorts: 10},
		{name: "claim 100", call: claim(ClaimConfig{BatchSize: 100}), reads: head + 300, sorts: 110},
		{name: "claim 500", call: claim(ClaimConfig{BatchSize: 500}), reads: head + 1100, sorts: 510},
		{name: "claim by topics", call: claim(ClaimConfig{BatchSize: 100, Topics: []string{"t1", "t2", "none"}}), reads: head + 500, sorts: 110},
		{name: "claim by tenant", call: claim(ClaimConfig{BatchSize: 10, TenantID: Tenant(uuid.MustParse("c4ca4238-a0b9-2382-0dcc-509a6f75849b"))}), reads: head + 2500, sorts: 20},
		{name: "claim with limit", call: claim(ClaimConfig{BatchSize: 100, MaxAttempts: 3}), reads: head + 300, sorts: 110},
		{name: "claim fresh", call: fresh(place{}), reads: head + 300, sorts: 110},
		{name: "claim onward", call: fresh(front), reads: 300, sorts: 110}, // past what is in flight
		{name: "ack", call: func(q *dbsqlc.Queries) {
			_, _ = q.EventAck(t.Context(), dbsqlc.EventAckParams{Ids: ids, ClaimNos: nos, WorkerID: worker})
		}, reads: 1000, sorts: 1000, sorted: true},
		{name: "ack one", call: func(q *dbsqlc.Queries) {
			_, _ = q.EventAck(t.Context(), dbsqlc.EventAckParams{Ids: ids[:1], ClaimNos: nos[:1], WorkerID: worker})
		}, reads: 1, sorts: 1},
		{name: "ack and delete", call: func(q *dbsqlc.Queries) {
			_, _ = q.EventAckDelete(t.Context(), dbsqlc.EventAckDeleteParams{Ids: ids, ClaimNos: nos, WorkerID: worker})
		}, reads: 1000, sorts: 1000, sorted: true},
		{name: "nack", call: func(q *dbsqlc.Queries) { _, _ = q.EventNack(t.Context(), nack) }, reads: 1000, sorts: 1000},
		{name: "release", call: func(q *dbsqlc.Queries) {
			_, _ = q.EventRelease(t.Context(), dbsqlc.EventReleaseParams{Ids: ids, ClaimNos: nos, WorkerID: worker})
		}, reads: 1000, sorts: 1000},
		{name: "extend", call: func(q *dbsqlc.Queries) {
			_, _ = q.EventExtend(t.Context(), dbsqlc.EventExtendParams{Ids: ids, ClaimNos: nos, WorkerID: worker, Lease: pgvalue.Interval(time.Minute)})
		}, reads: 1000, sorts: 1000},
		{name: "states", call: func(q *dbsqlc.Queries) { _, _ = q.EventStatuses(t.Context(), ids) }, reads: 1000, sorts: 1000},
		// The sweep may read what is due, once a lease, but never what is scheduled or final, nor sort it.
		{name: "sweep", call: func(q *dbsqlc.Queries) {
			_, _ = q.EventSweepDead(t.Context(), dbsqlc.EventSweepDeadParams{
				Namespace: "test", Topics: []string{}, TenantIds: []pgtype.UUID{}, InFlight: ids, Grace: pgvalue.Interval(time.Minute), BatchSize: sweepChunk,
			})
		}, reads: planBacklog + planInFlight + 1, sorts: sweepChunk},
		{name: "prune delivered", call: func(q *dbsqlc.Queries) {
			_, _ = q.EventPrune(t.Context(), dbsqlc.EventPruneParams{Namespace: "test", Topic: "t1", Status: "delivered", Retention: pgvalue.Interval(time.Hour), BatchSize: pruneChunk})
		}, reads: pruneChunk, sorts: pruneChunk},
		{name: "prune dead", call: func(q *dbsqlc.Queries) {
			_, _ = q.EventPrune(t.Context(), dbsqlc.EventPruneParams{Namespace: "test", Topic: "t1", Status: "dead", Retention: pgvalue.Interval(time.Hour), BatchSize: pruneChunk})
		}, reads: planDelivered / 4, sorts: pruneChunk}, // passes over what was delivered that long ago in this topic
		{name: "final topics", call: func(q *dbsqlc.Queries) { _, _ = q.EventFinalTopics(t.Context(), "test") }, reads: 10, sorts: 10},
		{name: "ids by key", call: func(q *dbsqlc.Queries) {
			_, _ = q.EventIDByKey(t.Context(), dbsqlc.EventIDByKeyParams{Namespace: "test", Topic: "t1", DedupeKeys: keys})
		}, reads: 1000, sorts: 1000, callers: true},
		{name: "id by key", call: func(q *dbsqlc.Queries) {
			_, _ = q.EventIDByKey(t.Context(), dbsqlc.EventIDByKeyParams{Namespace: "test", Topic: "t1", DedupeKeys: keys[:1]})
		}, reads: 1, sorts: 1, callers: true},
	}
}

func TestPlansHoldWithAnyStatistics(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	fillForPlans(t, pool)
	s, err := NewStore(pool, StoreConfig{Namespace: "test", WorkerID: uuid.MustParse("00000000-0000-4000-8000-000000000001")})
	require.NoError(t, err)
	for _, statistics := range []string{"empty", "fresh"} {
		if statistics == "fresh" {
			_, err := pool.Exec(t.Context(), "ANALYZE outbox.events")
			require.NoError(t, err)
		}
		for _, e := range planStatements(t, s) {
			for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
				plan, ms := e.run(t, s.db, s.pool, mode)
				t.Logf("%-16s %-5s %-18s %7.2f ms, %s", e.name, statistics, mode, ms, strings.Join(indexesOf(&plan), " "))
			}
		}
	}
}

// A claim and the renewal of a lease write no index: their row versions stay on the page.
func TestClaimAndExtendAreHOTUpdates(t *testing.T) {
	t.Parallel()
	const n = 2000
	pool := pgtest.Database(t)
	put(t, pool, "ping", n)
	s := storeWith(t, pool, nil)
	updates := func(want int) (hot int) {
		t.Helper()
		var all int
		require.Eventually(t, func() bool {
			require.NoError(t, pool.QueryRow(t.Context(), "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = 'outbox.events'::regclass").Scan(&all, &hot))
			return all >= want
		}, testPatience, 20*time.Millisecond)
		require.Equal(t, want, all)
		return hot
	}
	var held []Claimed
	for len(held) < n {
		claimed, err := s.Claim(t.Context(), ClaimConfig{BatchSize: 200})
		require.NoError(t, err)
		require.NotEmpty(t, claimed)
		held = append(held, claimed...)
	}
	pool.Reset() // ends the sessions, which flushes what they counted
	require.Equal(t, n, updates(n))
	// One event a page: for more versions than fillfactor leaves room for, what is dead must be pruned first,
	// which transactions of other tests hold up.
	var few []Claimed
	for i := 0; i < n; i += 50 {
		few = append(few, held[i])
	}
	outcomes, err := s.Extend(t.Context(), time.Hour, few...)
	require.NoError(t, err)
	require.Equal(t, slices.Repeat([]Outcome{Applied}, len(few)), outcomes)
	pool.Reset()
	require.Equal(t, n+len(few), updates(n+len(few)))
}
