package queue

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

	"github.com/outboxgen/outboxgen/internal/machine/retention"
	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/queue/internal/core"
)

const (
	planBacklog   = 100_000 // due
	planDelivered = 50_000
	planScheduled = 50_000 // ahead
	planDead      = 20_000 // row versions, at the head of the queue
	planInFlight  = 2_000
)

// planLanes is how many lanes there are.
const planLanes = 32

func planWalk() *core.Walk {
	lanes := make([]int32, planLanes)
	for i := range lanes {
		lanes[i] = int32(i)
	}
	w := core.NewWalk(lanes)
	return &w
}

func fillForPlans(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	exec := func(sql string, args ...any) {
		_, err := pool.Exec(t.Context(), sql, args...)
		require.NoError(t, err)
	}
	for _, table := range []string{"events", "queue", "delivered", "dead_letters"} {
		exec("ALTER TABLE outbox." + table + " SET (autovacuum_enabled = off)")
		exec("ANALYZE outbox." + table) // statistics of the empty table
	}
	// Ids grow with time, as UUID v7 do; half of the backlog is due at the same time. Half of all is in one lane.
	exec(`CREATE FUNCTION v7(n bigint) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
		SELECT ('0190' || lpad(to_hex(n), 8, '0') || '7000' || '8' || substr(md5(n::text), 1, 15))::uuid $$`)
	const from = ` FROM generate_series($1::bigint, $2::bigint) AS n, LATERAL (SELECT md5((n % 100)::text)::uuid AS tenant) AS u`
	at := int64(0)
	events := func(n int) (low, high int64) {
		low, high = at+1, at+int64(n)
		at = high
		exec(`INSERT INTO outbox.events (id, namespace, topic, tenant_id, dedupe_key, payload)
			SELECT v7(n), 'test', 't' || n % 4, tenant, tenant || '/' || n, '{"text": "some hundred bytes of payload, as events have, and a little more to fill a row"}'`+from, low, high)
		return low, high
	}
	queue := func(n int, due, lease string) {
		low, high := events(n)
		exec(`INSERT INTO outbox.queue (id, namespace, topic, tenant_id, lane, attempts, claim_no, locked_by, next_attempt_at, locked_until)
			SELECT v7(n), 'test', 't' || n % 4, tenant, CASE WHEN n % 2 = 0 THEN 5 ELSE n / 2 % 32 END,
				CASE WHEN `+lease+` IS NULL THEN 0 ELSE 1 END, CASE WHEN `+lease+` IS NULL THEN 0 ELSE 1 END, '00000000-0000-4000-8000-000000000001',
				statement_timestamp() `+due+", "+lease+from, low, high)
	}
	low, high := events(planDelivered)
	exec(`INSERT INTO outbox.delivered (id, namespace, topic, attempts, claim_no, finalized_at)
		SELECT v7(n), 'test', 't' || n % 4, 1, 1, statement_timestamp() - (300000 - n) * interval '1 s'`+from, low, high)
	low, high = events(planDelivered / 10)
	exec(`INSERT INTO outbox.dead_letters (id, namespace, topic, version, payload, created_at, attempts, claim_no, error, died_at)
		SELECT v7(n), 'test', 't' || n % 4, 1, '{}', now(), 1, 1, 'error', statement_timestamp() - (300000 - n) * interval '1 s'`+from, low, high)
	const never = "NULL::timestamptz"
	queue(planDead, "- interval '3 h'", never)
	queue(planInFlight, "- interval '2 h' + n * interval '1 ms'", "statement_timestamp() + interval '1 h'")
	queue(planBacklog/2, "- interval '1 h'", never)
	queue(planBacklog/2, "- (500000 - n) * interval '1 ms'", never)
	queue(planScheduled, "+ n * interval '1 s'", never)
	exec("DELETE FROM outbox.queue WHERE locked_until IS NULL AND next_attempt_at < statement_timestamp() - interval '150 min'")
}

// planStatements returns the statements of the runtime. They finalise the events in flight.
func planStatements(t *testing.T, s *Store) []pgtest.Explained {
	t.Helper()
	rows, err := s.pool.Query(t.Context(), "SELECT id, claim_no FROM outbox.queue WHERE locked_until IS NOT NULL ORDER BY md5(id::text) LIMIT 1000")
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
	fronts := make(map[int32]core.Place) // in each lane, past the events in flight
	rows, err = s.pool.Query(t.Context(), `SELECT lane, next_attempt_at, id FROM (
		SELECT lane, next_attempt_at, id, row_number() OVER (PARTITION BY lane ORDER BY next_attempt_at, id) AS n
		FROM outbox.queue WHERE locked_until IS NULL) AS q WHERE n = 100`)
	require.NoError(t, err)
	var lane int32
	var front core.Place
	_, err = pgx.ForEachRow(rows, []any{&lane, &front.Due, &id}, func() error {
		fronts[lane] = core.Place{Due: front.Due, ID: id.Bytes}
		return nil
	})
	require.NoError(t, err)
	require.Len(t, fronts, planLanes)
	const tenant = "c4ca4238-a0b9-2382-0dcc-509a6f75849b"
	paused := core.PausesOf(false, []string{"t1/00000000-0000-4000-8000-000000000001", tenant, "t3"})
	fresh := func(onward bool) func(q *queries.Queries) {
		return func(q *queries.Queries) {
			c := &claim{Claim: core.Claim{Size: 100}, lease: time.Minute}
			for n := range int32(planLanes) {
				s := core.Start{Lane: n, Quota: 4}
				if onward {
					s.After = fronts[n]
				}
				c.Starts = append(c.Starts, s)
			}
			s.claimFrom(t.Context(), q, c)
		}
	}
	claim := func(cfg ClaimConfig, paused ...*core.Pauses) func(q *queries.Queries) {
		c, err := cfg.claim()
		require.NoError(t, err)
		for _, p := range paused {
			c.Paused = p
		}
		c.Starts = planWalk().Pieces(c.Size, false)
		return func(q *queries.Queries) { _, _ = q.EventClaim(t.Context(), s.claimParams(c)) }
	}
	nack := queries.EventNackParams{
		Ids: ids, ClaimNos: nos, WorkerID: worker, DelaysUs: slices.Repeat([]int64{1e6}, n), RetryAts: slices.Repeat([]pgtype.Timestamptz{{}}, n),
		Permanents: slices.Repeat([]bool{false}, n), Errors: slices.Repeat([]string{errors.ErrUnsupported.Error()}, n),
	}
	// A claim from the head reads the events in flight and what it takes, or a piece of each lane. It sorts what it has met:
	// at most eight batches, and as many times a few to reclaim, of all lanes.
	const head, pieces = planInFlight + planDead, planLanes * core.FirstPiece
	from := columnsOf(planWalk().Pieces(0, false))
	met := func(size int) float64 { return float64(8 * (size + core.ReclaimsPerClaim)) }
	return []pgtest.Explained{
		{Name: "claim 1", Call: claim(ClaimConfig{BatchSize: 1}), Reads: head + met(1), Sorts: met(1)},
		{Name: "claim 100", Call: claim(ClaimConfig{BatchSize: 100}), Reads: head + met(100), Sorts: met(100)},
		{Name: "claim 500", Call: claim(ClaimConfig{BatchSize: 500}), Reads: head + met(500), Sorts: met(500)},
		{Name: "claim by topics", Call: claim(ClaimConfig{BatchSize: 100, Topics: []string{"t1", "t2", "none"}}), Reads: head + pieces, Sorts: met(100)},
		{Name: "claim by versions", Call: claim(ClaimConfig{BatchSize: 100, Versions: map[string]int{"t1": 0, "t2": 1, "t3": 1}}), Reads: head + pieces, Sorts: met(100)},
		{Name: "claim known versions", Call: claim(ClaimConfig{BatchSize: 100, Versions: map[string]int{"t0": 1, "t1": 2, "t2": 1, "t3": 1}}), Reads: head + met(100), Sorts: met(100)},
		{Name: "claim by tenant", Call: claim(ClaimConfig{BatchSize: 10, TenantIDs: []uuid.UUID{uuid.MustParse(tenant)}}), Reads: head + pieces, Sorts: met(10)},
		{Name: "claim with limit", Call: claim(ClaimConfig{BatchSize: 100, MaxAttempts: 3}), Reads: head + met(100), Sorts: met(100)},
		{Name: "claim some paused", Call: claim(ClaimConfig{BatchSize: 100}, paused), Reads: head + pieces, Sorts: met(100)},
		{Name: "claim fresh", Call: fresh(false), Reads: head + 300, Sorts: 110},
		{Name: "claim onward", Call: fresh(true), Reads: 300, Sorts: 110}, // past the events in flight
		{Name: "pauses", Call: func(q *queries.Queries) { _, _ = q.PauseOfNamespace(t.Context(), "test") }, Reads: 1, Sorts: 1},
		{Name: "ack", Call: func(q *queries.Queries) {
			_, _ = q.EventAck(t.Context(), queries.EventAckParams{Ids: ids, ClaimNos: nos, WorkerID: worker})
		}, Reads: 1000, Sorts: 1000, Sorted: true},
		{Name: "ack one", Call: func(q *queries.Queries) {
			_, _ = q.EventAck(t.Context(), queries.EventAckParams{Ids: ids[:1], ClaimNos: nos[:1], WorkerID: worker})
		}, Reads: 1, Sorts: 1},
		{Name: "ack and delete", Call: func(q *queries.Queries) {
			_, _ = q.EventAckDelete(t.Context(), queries.EventAckDeleteParams{Ids: ids, ClaimNos: nos, WorkerID: worker})
		}, Reads: 1000, Sorts: 1000, Sorted: true},
		{Name: "nack", Call: func(q *queries.Queries) { _, _ = q.EventNack(t.Context(), nack) }, Reads: 1000, Sorts: 1000},
		{Name: "release", Call: func(q *queries.Queries) {
			_, _ = q.EventRelease(t.Context(), queries.EventReleaseParams{Ids: ids, ClaimNos: nos, WorkerID: worker})
		}, Reads: 1000, Sorts: 1000},
		{Name: "extend", Call: func(q *queries.Queries) {
			_, _ = q.EventExtend(t.Context(), queries.EventExtendParams{Ids: ids, ClaimNos: nos, WorkerID: worker, Lease: pgvalue.Interval(time.Minute)})
		}, Reads: 1000, Sorts: 1000},
		{Name: "states", Call: func(q *queries.Queries) { _, _ = q.EventStatuses(t.Context(), ids) }, Reads: 1000, Sorts: 1000},
		// Once per lease the sweep may read the due events. It must not read scheduled or final ones, and must not
		// sort.
		{Name: "sweep", Call: func(q *queries.Queries) {
			_, _ = q.EventSweepDead(t.Context(), queries.EventSweepDeadParams{
				Lanes: from.lanes, AfterDues: from.dues, AfterIds: from.ids, Pieces: from.pieces,
				Namespace: "test", Topics: []string{}, EveryVersion: 0, Versions: []int32{0, 1}, VersionTopics: []string{"t1", "t2"}, TenantIds: []pgtype.UUID{}, Paused: []string{}, InFlight: ids, Grace: pgvalue.Interval(time.Minute), BatchSize: sweepChunk,
			})
		}, Reads: pieces + 2*planLanes*sweepChunk, Sorts: planLanes * sweepChunk},
		{Name: "prune delivered", Call: func(q *queries.Queries) {
			_, _ = q.EventPruneDelivered(t.Context(), queries.EventPruneDeliveredParams{Namespace: "test", Topic: "t1", Retention: pgvalue.Interval(time.Hour), BatchSize: retention.PruneChunk})
		}, Reads: 4 * retention.PruneChunk, Sorts: retention.PruneChunk},
		{Name: "prune dead", Call: func(q *queries.Queries) {
			_, _ = q.EventPruneDead(t.Context(), queries.EventPruneDeadParams{Namespace: "test", Topic: "t1", Retention: pgvalue.Interval(time.Hour), BatchSize: retention.PruneChunk})
		}, Reads: 4 * retention.PruneChunk, Sorts: retention.PruneChunk},
		{Name: "misfits", Call: func(q *queries.Queries) {
			_, _ = q.EventMisfits(t.Context(), queries.EventMisfitsParams{
				AfterQueued: pgtype.UUID{Valid: true}, AfterEnqueued: pgtype.UUID{Valid: true}, BatchSize: misfitPiece, Namespace: "test",
			})
		}, Reads: misfitPiece, Sorts: misfitPiece},
		{Name: "ids by key", Call: func(q *queries.Queries) {
			_, _ = q.EventIDByKey(t.Context(), queries.EventIDByKeyParams{Namespace: "test", Topic: "t1", DedupeKeys: keys})
		}, Reads: 1000, Sorts: 1000, Callers: true},
		{Name: "id by key", Call: func(q *queries.Queries) {
			_, _ = q.EventIDByKey(t.Context(), queries.EventIDByKeyParams{Namespace: "test", Topic: "t1", DedupeKeys: keys[:1]})
		}, Reads: 1, Sorts: 1, Callers: true},
	}
}

func TestPlansHoldWithAnyStatistics(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	fillForPlans(t, pool)
	s, err := NewStore(pool, StoreConfig{Namespace: "test", WorkerID: uuid.MustParse("00000000-0000-4000-8000-000000000001")})
	require.NoError(t, err)
	for _, statistics := range []string{"empty", "fresh"} {
		if statistics == "fresh" {
			_, err := pool.Exec(t.Context(), "ANALYZE outbox.events, outbox.queue, outbox.delivered, outbox.dead_letters")
			require.NoError(t, err)
		}
		for _, e := range planStatements(t, s) {
			for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
				plan, ms := e.Run(t, s.db, s.pool, mode)
				t.Logf("%-17s %-5s %-18s %7.2f ms, %s", e.Name, statistics, mode, ms, strings.Join(pgtest.IndexesOf(&plan), " "))
			}
		}
	}
}

// A claim and the renewal of a lease write no index: their row versions stay on the page.
func TestClaimAndExtendAreHOTUpdates(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	const n = 2000
	pool := pgtest.Database(t)
	put(t, pool, "ping", n)
	s := storeWith(t, pool, nil)
	updates := func(want int) (hot int) {
		t.Helper()
		var all int
		require.Eventually(t, func() bool {
			require.NoError(t, pool.QueryRow(t.Context(), "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = 'outbox.queue'::regclass").Scan(&all, &hot))
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
	// One event per page. More row versions than fillfactor leaves room for would require that dead ones are removed
	// first, which transactions of other tests may prevent.
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
