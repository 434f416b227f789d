package receive_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// TestMessagePlans explains each statement for kept messages with no statistics, with those of an empty table and with fresh
// ones. The group "busy" has most of the messages, 50 others have the same number together, and "idle" has few.
func TestMessagePlans(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	const (
		each  = 40_000 // parked messages of busy, of the others, and dead messages of both
		hot   = 20_000 // parked messages of one key
		most  = 1000   // that are counted
		piece = 5000
		chunk = 500
		batch = 100
	)
	pool := pgtest.Database(t)
	db, err := schemadb.Open("")
	require.NoError(t, err)
	pgtest.Execute(t, pool, "ALTER TABLE outbox.inbox_messages SET (autovacuum_enabled = off)")
	const insert = `INSERT INTO outbox.inbox_messages (consumer_group, message_id, place, key, event_id, type, namespace, topic, version,
			envelope, body, status, attempts, next_attempt_at, error, received_at, failed_at)
		SELECT %s, gen_random_uuid()::text, 'kafka:users/0@' || n, %s, gen_random_uuid(), 'users.welcomed', 'users', 'welcomed', 1,
			'{}', '{"text": "some hundred bytes of payload, as events have, and a little more to fill a row"}', %s, 3, %s, 'no such name',
			now() - interval '1 day' + n * interval '1 second', now() - interval '1 day' + n * interval '1 second'
		FROM generate_series(1, $1::int) AS n`
	fill := func() {
		for _, group := range []string{"'busy'", "'other' || n % 50"} {
			// 20 of a key, of which the first is due, and one in ten without a key.
			pgtest.Execute(t, pool, fmt.Sprintf(insert, group, "CASE WHEN n % 10 > 0 THEN 'k' || n % 2000 END", "'parked'",
				"CASE WHEN n <= 2000 OR n % 10 = 0 THEN now() - n * interval '1 ms' ELSE 'infinity' END"), each)
			pgtest.Execute(t, pool, fmt.Sprintf(insert, group, "'k' || n % 2000", "'dead'", "now()"), each)
		}
		pgtest.Execute(t, pool, fmt.Sprintf(insert, "'busy'", "'hot'", "'parked'", "CASE WHEN n = 1 THEN now() ELSE 'infinity' END"), hot)
		pgtest.Execute(t, pool, fmt.Sprintf(insert, "'idle'", "'k' || n", "CASE WHEN n % 2 = 0 THEN 'dead' ELSE 'parked' END", "now()"), 10)
	}
	for _, facts := range []string{"none", "empty", "fresh"} {
		switch facts {
		case "none":
			fill()
		case "empty":
			pgtest.Execute(t, pool, "TRUNCATE outbox.inbox_messages")
			pgtest.Execute(t, pool, "ANALYZE outbox.inbox_messages")
			fill()
		case "fresh":
			pgtest.Execute(t, pool, "ANALYZE outbox.inbox_messages")
		}
		nos := func(where string, n int) []int64 {
			return pgtest.Value[[]int64](t, pool, fmt.Sprintf(
				"SELECT array_agg(no ORDER BY no) FROM (SELECT no FROM outbox.inbox_messages WHERE consumer_group = 'busy' AND %s ORDER BY no LIMIT %d) AS m", where, n))
		}
		keys := make([]string, chunk)
		for i := range keys {
			keys[i] = fmt.Sprintf("k%d", 2*i+1)
		}
		parked, dead := nos("status = 'parked'", chunk), nos("status = 'dead'", chunk)
		first := nos("key = 'hot'", 1)[0]
		var messages []string
		require.NoError(t, pool.QueryRow(t.Context(), "SELECT array_agg(message_id) FROM (SELECT message_id FROM outbox.inbox_messages WHERE no = ANY ($1) LIMIT 100) AS m", dead).Scan(&messages))
		var ids []uuid.UUID
		require.NoError(t, pool.QueryRow(t.Context(), "SELECT array_agg(event_id) FROM (SELECT event_id FROM outbox.inbox_messages WHERE no = ANY ($1) LIMIT 100) AS m", dead).Scan(&ids))
		scan := queries.InboxMessageScanParams{ConsumerGroup: "busy", Ids: []pgtype.UUID{}, Piece: piece, Texts: true, Namespace: "users", Topic: "welcomed", Error: "such"}
		newest, byID, few := scan, scan, scan
		newest.Newest, newest.AfterNo = true, math.MaxInt64
		byID.Ids = pgvalue.UUIDs(ids)
		few.ConsumerGroup = "idle"
		prune := queries.InboxMessagePruneParams{
			ConsumerGroup: "busy", After: pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}, Retention: pgvalue.Interval(20 * time.Hour), BatchSize: chunk,
		}
		put := queries.InboxMessagePutParams{ConsumerGroup: "busy"}
		for i := range batch {
			put.Numbers, put.MessageIds, put.Places = append(put.Numbers, int32(i)), append(put.MessageIds, uuid.NewString()), append(put.Places, "p")
			put.Keys, put.EventIds, put.Types = append(put.Keys, "k1"), append(put.EventIds, pgvalue.UUID(uuid.New())), append(put.Types, "t")
			put.Namespaces, put.Topics, put.Versions = append(put.Namespaces, "users"), append(put.Topics, "welcomed"), append(put.Versions, 1)
			put.TenantIds, put.Envelopes, put.Bodies = append(put.TenantIds, pgtype.UUID{}), append(put.Envelopes, "{}"), append(put.Bodies, []byte("{}"))
			put.Statuses, put.Attempts = append(put.Statuses, "parked"), append(put.Attempts, 1)
			put.DelaysUs, put.Errors = append(put.DelaysUs, -1), append(put.Errors, "e")
		}
		for _, e := range []pgtest.Explained{
			{Name: "known", Reads: chunk + 2, Callers: true, Call: func(q *queries.Queries) {
				_, _ = q.InboxMessageKnown(t.Context(), queries.InboxMessageKnownParams{ConsumerGroup: "busy", MessageIds: messages, Keys: append(keys, "hot", "none")})
			}},
			{Name: "put", Reads: batch, Callers: true, Call: func(q *queries.Queries) { _ = q.InboxMessagePut(t.Context(), put) }},
			{Name: "promote", Reads: chunk + 1, Call: func(q *queries.Queries) {
				_ = q.InboxMessagePromote(t.Context(), queries.InboxMessagePromoteParams{ConsumerGroup: "busy", Keys: append(keys, "hot")})
			}},
			{Name: "keys", Reads: chunk + 1, Call: func(q *queries.Queries) {
				_, _ = q.InboxMessageKeys(t.Context(), queries.InboxMessageKeysParams{ConsumerGroup: "busy", BatchSize: chunk})
			}},
			{Name: "due", Reads: batch, Call: func(q *queries.Queries) {
				_, _ = q.InboxMessageDue(t.Context(), queries.InboxMessageDueParams{ConsumerGroup: "busy", BatchSize: batch})
			}},
			{Name: "take", Reads: batch + 1, Buffers: 2000, Callers: true, Call: func(q *queries.Queries) {
				_, _ = q.InboxMessageTake(t.Context(), queries.InboxMessageTakeParams{No: first, ConsumerGroup: "busy", Followers: batch})
			}},
			{Name: "delete", Reads: chunk, Callers: true, Call: func(q *queries.Queries) { _ = q.InboxMessageDelete(t.Context(), parked) }},
			{Name: "fail", Reads: 1, Callers: true, Call: func(q *queries.Queries) {
				_, _ = q.InboxMessageFail(t.Context(), queries.InboxMessageFailParams{No: first, Attempts: 3, Delay: pgvalue.Interval(time.Hour), Error: "e"})
			}},
			{Name: "count", Reads: most, Call: func(q *queries.Queries) {
				_, _ = q.InboxMessageCount(t.Context(), queries.InboxMessageCountParams{ConsumerGroup: "busy", Most: most})
			}},
			{Name: "count few", Reads: 10, Buffers: 100, Call: func(q *queries.Queries) {
				_, _ = q.InboxMessageCount(t.Context(), queries.InboxMessageCountParams{ConsumerGroup: "idle", Most: most})
			}},
			{Name: "prune", Reads: chunk, Call: func(q *queries.Queries) { _, _ = q.InboxMessagePrune(t.Context(), prune) }},
			{Name: "scan", Reads: piece, Call: func(q *queries.Queries) { _, _ = q.InboxMessageScan(t.Context(), scan) }},
			{Name: "scan newest", Reads: piece, Call: func(q *queries.Queries) { _, _ = q.InboxMessageScan(t.Context(), newest) }},
			{Name: "scan ids", Reads: batch, Call: func(q *queries.Queries) { _, _ = q.InboxMessageScan(t.Context(), byID) }},
			{Name: "scan few", Reads: 10, Buffers: 100, Call: func(q *queries.Queries) { _, _ = q.InboxMessageScan(t.Context(), few) }},
			{Name: "read", Reads: chunk, Call: func(q *queries.Queries) { _, _ = q.InboxMessageRead(t.Context(), dead) }},
			// The parked messages of the keys of what is replayed are read.
			{Name: "replay", Reads: 20 * chunk, Call: func(q *queries.Queries) { _, _ = q.InboxMessageReplay(t.Context(), dead) }},
			{Name: "discard", Reads: chunk, Call: func(q *queries.Queries) { _, _ = q.InboxMessageDiscard(t.Context(), dead) }},
			{Name: "status", Reads: 52 * most, Call: func(q *queries.Queries) { _, _ = q.InboxMessageStatus(t.Context(), most) }},
			{Name: "parked", Reads: batch * 21, Call: func(q *queries.Queries) {
				_, _ = q.InboxParked(t.Context(), queries.InboxParkedParams{ConsumerGroup: "busy", Most: most, PageSize: batch})
			}},
			{Name: "parked message", Reads: most + 1, Buffers: 2000, Call: func(q *queries.Queries) {
				_, _ = q.InboxParkedMessage(t.Context(), queries.InboxParkedMessageParams{ConsumerGroup: "busy", No: first, Most: most})
			}},
			{Name: "all groups", Reads: 60, Call: func(q *queries.Queries) { _, _ = q.InboxGroups(t.Context()) }},
			{Name: "groups", Reads: 60, Call: func(q *queries.Queries) { _, _ = q.InboxMessageGroups(t.Context()) }},
		} {
			e.Sorts, e.Tables = 2*piece, []string{"inbox_messages"}
			for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
				t.Run(strings.ReplaceAll(e.Name, " ", "_")+"/"+facts+"/"+mode, func(t *testing.T) {
					plan, ms := e.Run(t, db, pool, mode)
					t.Logf("%-12s %-6s %-18s %8.2f ms %s", e.Name, facts, mode, ms, strings.Join(pgtest.IndexesOf(&plan), " "))
				})
			}
		}
	}
}
