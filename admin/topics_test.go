package admin_test

import (
	"cmp"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
)

// queued is n events of a queue topic that are not final. Times are SQL.
type queued struct {
	n                     int
	topic                 string // "test/said" if empty
	age, due, lockedUntil string
	attempts, claimNo     int
	version               int
	lane                  int
	tenant                string
	random                bool // ids as of rows by hand, otherwise UUID v7
}

// putQueued inserts the events, and returns the id of the first one.
func putQueued(t testing.TB, pool *pgxpool.Pool, q queued) uuid.UUID {
	t.Helper()
	namespace, topic, _ := strings.Cut(cmp.Or(q.topic, "test/said"), "/")
	created := "now() - interval '" + cmp.Or(q.age, "0") + "'"
	id := "(substr(h, 1, 8) || '-' || substr(h, 9, 4) || '-7' || substr(gen_random_uuid()::text, 16))::uuid"
	if q.random {
		id = "gen_random_uuid()"
	}
	return pgtest.Value[uuid.UUID](t, pool, `WITH e AS (
			INSERT INTO outbox.events (id, namespace, topic, version, tenant_id, payload, created_at)
			SELECT `+id+`, $1, $2, $3, nullif($4, '')::uuid, jsonb_build_object('n', n), `+created+`
			FROM generate_series(1, $5::int) AS n,
				LATERAL (SELECT lpad(to_hex((extract(epoch FROM `+created+`) * 1000)::bigint), 12, '0') AS h) AS t
			RETURNING id
		), s AS (
			INSERT INTO outbox.queue (id, namespace, topic, version, tenant_id, lane, attempts, claim_no, next_attempt_at, locked_until)
			SELECT id, $1, $2, $3, nullif($4, '')::uuid, $6, $7, $8, `+cmp.Or(q.due, created)+`, `+cmp.Or(q.lockedUntil, "NULL")+` FROM e
		)
		SELECT min(id::text)::uuid FROM e`, namespace, topic, max(q.version, 1), q.tenant, q.n, q.lane, q.attempts, q.claimNo)
}

func putDelivered(t testing.TB, pool *pgxpool.Pool, n int, topic, ago string) {
	t.Helper()
	pgtest.Execute(t, pool, `INSERT INTO outbox.delivered (id, namespace, topic, attempts, finalized_at)
		SELECT gen_random_uuid(), 'test', $1, 1, now() - $2::text::interval FROM generate_series(1, $3::int)`, topic, ago, n)
}

func putDead(t testing.TB, pool *pgxpool.Pool, n int, topic, ago string) {
	t.Helper()
	pgtest.Execute(t, pool, `WITH e AS (
			INSERT INTO outbox.events (namespace, topic, payload) SELECT 'test', $1, '{}' FROM generate_series(1, $3::int) RETURNING id)
		INSERT INTO outbox.dead_letters (id, namespace, topic, version, payload, created_at, attempts, error, died_at)
		SELECT id, 'test', $1, 1, '{}', now() - interval '1 day', 1, 'boom', now() - $2::text::interval FROM e`, topic, ago, n)
}

func putProcess(t testing.TB, pool *pgxpool.Pool, worker uuid.UUID, topics, resting, seenAgo string) {
	t.Helper()
	pgtest.Execute(t, pool, `INSERT INTO outbox.processes (worker_id, kind, name, host, pid, topics, resting, seen_at)
		VALUES ($1, 'dispatcher', 'test', 'box', 7, $2, $3, now() - $4::text::interval)`, worker, topics, resting, seenAgo)
}

func topicsOf(t testing.TB, a *admin.Admin) map[string]admin.TopicStatus {
	t.Helper()
	list, err := a.Topics(t.Context())
	require.NoError(t, err)
	byName := make(map[string]admin.TopicStatus)
	for i, s := range list {
		require.True(t, i == 0 || list[i-1].Name() < s.Name(), "sorted")
		byName[s.Name()] = s
	}
	return byName
}

func exactly(n int64) admin.Count { return admin.Count{N: n} }

func TestCountString(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]admin.Count{
		"0": {}, "999": {N: 999}, "1,000": {N: 1000}, "12,345": {N: 12_345}, "100,000": {N: 100_000},
		"more than 100,000": {N: 100_000, More: true}, "more than 0": {More: true},
	} {
		require.Equal(t, want, c.String())
	}
}

func TestTopicsCountsEventsByTheirState(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	require.Empty(t, topicsOf(t, a))
	const later, running, over = "now() + interval '1 hour'", "now() + interval '1 minute'", "now() - interval '1 minute'"
	putQueued(t, pool, queued{n: 2, age: "10 s", lane: 1})
	putQueued(t, pool, queued{n: 3, age: "1 h", lane: 2, attempts: 2, claimNo: 2, due: over})
	putQueued(t, pool, queued{n: 4, age: "2 h", lane: 1, attempts: 1, claimNo: 1, due: later})
	putQueued(t, pool, queued{n: 5, age: "3 h", lane: 1, claimNo: 1, due: later}) // put back until its target is available
	putQueued(t, pool, queued{n: 6, age: "9 h", lane: 2, due: later})
	putQueued(t, pool, queued{n: 7, age: "20 s", lane: 1, attempts: 1, claimNo: 1, lockedUntil: running})
	putQueued(t, pool, queued{n: 8, age: "30 s", lane: 1, attempts: 1, claimNo: 1, lockedUntil: over})
	putQueued(t, pool, queued{n: 9, topic: "test/heard", age: "5 m", lane: 1})
	putQueued(t, pool, queued{n: 1, topic: "other/said", due: later, age: "1 h"})
	putDelivered(t, pool, 30, "said", "1 minute")
	putDelivered(t, pool, 30, "said", "6 minutes")
	putDelivered(t, pool, 1, "old", "6 minutes")
	putDead(t, pool, 2, "said", "59 minutes")
	putDead(t, pool, 3, "said", "61 minutes")
	putDead(t, pool, 1, "lost", "2 days")
	// What a listener gave up is not of a queue topic.
	pgtest.Execute(t, pool, `INSERT INTO outbox.dead_letters (listener, seq, bucket, id, namespace, topic, version, payload, created_at, attempts, error)
		VALUES ('ears', 1, 0, gen_random_uuid(), 'test', 'logged', 1, '{}', now(), 1, 'boom')`)

	check := func(topics map[string]admin.TopicStatus) {
		t.Helper()
		require.Len(t, topics, 5)
		s := topics["test/said"]
		require.Equal(t, exactly(5), s.Due)
		require.Equal(t, exactly(12), s.Retrying)
		require.Equal(t, exactly(6), s.Scheduled)
		require.Equal(t, exactly(7), s.InFlight)
		require.Equal(t, exactly(8), s.Expired)
		require.InDelta(t, 3*time.Hour, s.Oldest, float64(5*time.Minute), "scheduled events do not count")
		require.Equal(t, exactly(5), s.Dead)
		require.Equal(t, exactly(2), s.DeadLastHour)
		require.InDelta(t, 30.0/300, s.DeliveredPerSecond, 0.001)
		require.True(t, s.Unhandled)
		require.Equal(t, exactly(9), topics["test/heard"].Due)
		require.InDelta(t, 5*time.Minute, topics["test/heard"].Oldest, float64(5*time.Minute))
		require.Equal(t, admin.TopicStatus{Namespace: "other", Topic: "said", Scheduled: exactly(1), Unhandled: true}, topics["other/said"])
		require.Equal(t, admin.TopicStatus{Namespace: "test", Topic: "lost", Dead: exactly(1)}, topics["test/lost"])
		require.Equal(t, admin.TopicStatus{Namespace: "test", Topic: "old"}, topics["test/old"])
	}
	check(topicsOf(t, a))
	for name, bounds := range map[string][3]int64{
		"by lanes": {0, 1000, 1000}, "without a join": {1 << 30, 0, 0}, "by lanes without a join": {0, 1000, 0}, "in two steps": {0, 60, 0},
	} {
		list, err := a.TopicsWithin(t.Context(), bounds[0], bounds[1], bounds[2], 1000)
		require.NoError(t, err)
		t.Log(name)
		byName := make(map[string]admin.TopicStatus)
		for _, s := range list {
			byName[s.Name()] = s
		}
		check(byName)
	}
	// Of a larger table, what is due first is counted first.
	list, err := a.TopicsWithin(t.Context(), 0, 12, 0, 12)
	require.NoError(t, err)
	for _, s := range list {
		if s.Name() == "test/said" {
			require.True(t, s.Due.More)
			require.Less(t, s.Due.N, int64(6))
			require.True(t, s.Scheduled.More)
		}
		if s.Namespace == "other" {
			require.Equal(t, exactly(1), s.Scheduled)
		}
	}
}

// Rows that were written by hand have ids without a time.
func TestTopicsOldestIsThatOfTheEnqueue(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	for _, random := range []bool{false, true} {
		topic := fmt.Sprintf("test/random_%t", random)
		putQueued(t, pool, queued{n: 1, topic: topic, age: "2 h", due: "now() + interval '1 s'", attempts: 1, claimNo: 1, random: random})
		putQueued(t, pool, queued{n: 1, topic: topic, age: "1 h", random: random})
		putQueued(t, pool, queued{n: 1, topic: topic, age: "9 h", due: "now() + interval '1 h'", random: random})
	}
	topics := topicsOf(t, a)
	require.InDelta(t, 2*time.Hour, topics["test/random_false"].Oldest, float64(5*time.Minute))
	require.InDelta(t, 2*time.Hour, topics["test/random_true"].Oldest, float64(5*time.Minute))
}

func TestTopicsSaysWhoRunsThem(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	first, second, died := uuid.New(), uuid.New(), uuid.New()
	putProcess(t, pool, first, `{"test/said": {"version": 1, "max_lag": 60}, "test/heard": {"version": 1}}`, `{"test/said": "connection refused", "kafka": "no route"}`, "1 s")
	putProcess(t, pool, second, `{"test/said": {"version": 2, "max_lag": 30.5}}`, `{}`, "1 s")
	putProcess(t, pool, died, `{"test/gone": {"version": 9}, "test/said": {"version": 9}}`, `{}`, "5 minutes")
	for version := range 4 {
		putQueued(t, pool, queued{n: 1, version: version + 1})
	}
	putQueued(t, pool, queued{n: 1, topic: "test/gone"})
	topics := topicsOf(t, a)
	require.Len(t, topics, 3)
	said := topics["test/said"]
	require.Len(t, said.Processes, 2)
	require.Equal(t, first, said.Processes[0].WorkerID)
	require.Equal(t, admin.ProcessDispatcher, said.Processes[0].Kind)
	require.Equal(t, "test", said.Processes[0].Name)
	require.Equal(t, "box", said.Processes[0].Host)
	require.Equal(t, 7, said.Processes[0].PID)
	require.Equal(t, map[string]string{"test/said": "connection refused", "kafka": "no route"}, said.Processes[0].Resting)
	require.Equal(t, map[string]admin.ProcessTopic{"test/said": {Version: 1, MaxLag: time.Minute}, "test/heard": {Version: 1}}, said.Processes[0].Topics)
	require.WithinDuration(t, time.Now(), said.Processes[0].SeenAt, time.Minute)
	require.Equal(t, []admin.Resting{{WorkerID: first, Reason: "connection refused"}}, said.Resting)
	require.Equal(t, 30500*time.Millisecond, said.MaxLag)
	require.Equal(t, []int{3, 4}, said.UnhandledVersions)
	require.False(t, said.Unhandled)
	require.True(t, topics["test/gone"].Unhandled)
	require.Empty(t, topics["test/gone"].UnhandledVersions)
	require.Equal(t, admin.Count{}, topics["test/heard"].Due)
	require.False(t, topics["test/heard"].Unhandled)
}

func TestTopicsSaysWhatIsPaused(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	for _, topic := range []string{"test/said", "test/heard", "other/said"} {
		putQueued(t, pool, queued{n: 1, topic: topic})
	}
	tenant := uuid.New()
	pgtest.Execute(t, pool, `INSERT INTO outbox.pauses (namespace, topic, tenant_id, listener, until, who, why) VALUES
		('test', 'said', '00000000-0000-0000-0000-000000000000', '', now() + interval '1 h', 'ann', 'release'),
		('other', '', '00000000-0000-0000-0000-000000000000', '', NULL, 'bob', ''),
		('test', 'heard', '00000000-0000-0000-0000-000000000000', '', now() - interval '1 s', 'over', ''),
		('', '', $1, '', NULL, 'eve', ''),
		('', '', '00000000-0000-0000-0000-000000000000', 'said', NULL, 'listener', '')`, tenant)
	who := func(s admin.TopicStatus) (names []string) {
		for _, p := range s.Pauses {
			names = append(names, p.Who)
		}
		return names
	}
	topics := topicsOf(t, a)
	require.Equal(t, []string{"eve", "ann"}, who(topics["test/said"]))
	require.Equal(t, []string{"eve"}, who(topics["test/heard"]))
	require.Equal(t, []string{"eve", "bob"}, who(topics["other/said"]))
	p := topics["test/said"].Pauses[1]
	require.Equal(t, "test", p.Namespace)
	require.Equal(t, "said", p.Topic)
	require.Equal(t, "release", p.Why)
	require.False(t, p.TenantID.Valid)
	require.WithinDuration(t, time.Now().Add(time.Hour), p.Until, time.Minute)
	require.Equal(t, uuid.NullUUID{UUID: tenant, Valid: true}, topics["test/said"].Pauses[0].TenantID)
	require.True(t, topics["test/said"].Pauses[0].Until.IsZero())
}
