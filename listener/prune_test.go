package listener_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/machine/retention"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
)

// anHour is a retention that events are past after age or ageAll.
var anHour = map[string]outbox.Retention{"test/said": {Delivered: time.Hour, Dead: 2 * time.Hour}}

func ageAll(t testing.TB, pool *pgxpool.Pool, hours int) {
	t.Helper()
	pgtest.Execute(t, pool, "UPDATE outbox.log SET created_at = created_at - make_interval(hours => $1)", hours)
}

// left returns the events of the log, in order.
func left(t testing.TB, pool *pgxpool.Pool) string {
	t.Helper()
	return pgtest.Value[string](t, pool, "SELECT coalesce(string_agg(concat(payload->>'key', payload->>'n'), ' ' ORDER BY seq), '') FROM outbox.log")
}

// prune prunes, after a preview that must report the same.
func prune(t testing.TB, pool *pgxpool.Pool, topics map[string]outbox.Retention) admin.PruneReport {
	t.Helper()
	a := runtimetest.AdminOf(t, pool)
	planned, err := a.Preview().Prune(t.Context(), topics)
	require.NoError(t, err)
	r, err := a.Prune(t.Context(), topics)
	require.NoError(t, err)
	require.Equal(t, planned, r, "the preview")
	return r
}

func TestPruneDeletesWhatEveryListenerHasPassed(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	h.Fail = runtimetest.FailFor("b")
	ears := runtimetest.ListenTo(t, pool, listener.Spec{Retry: runtimetest.LateRetry}, listener.Config{}, h)
	eyes := runtimetest.ListenTo(t, pool, listener.Spec{Name: "eyes", Shards: 2}, listener.Config{}, runtimetest.NewNotes())
	runtimetest.DrainAll(t, eyes)
	runtimetest.PutAll(t, pool, "a1", "a2", "b1", "a3")
	ageAll(t, pool, 2)
	none := map[string]int64{}

	require.Equal(t, admin.PruneReport{Blocked: 4, BlockedBy: map[string]int64{"eyes": 4}}, prune(t, pool, anHour))
	runtimetest.DrainAll(t, ears) // a new listener reads everything that is left, up to b1
	require.Equal(t, admin.PruneReport{Blocked: 4, BlockedBy: map[string]int64{"ears": 2, "eyes": 4}}, prune(t, pool, anHour))
	runtimetest.DrainAll(t, eyes)
	require.Equal(t, admin.PruneReport{Log: 2, Blocked: 2, BlockedBy: map[string]int64{"ears": 2}}, prune(t, pool, anHour))
	require.Equal(t, "b1 a3", left(t, pool))

	// A paused listener keeps events too; a detached one does not.
	h.Fail = nil
	runtimetest.RetryNow(t, pool)
	runtimetest.Pause(t, runtimetest.AdminOf(t, pool), admin.Scope{Listener: "ears"})
	runtimetest.DrainAll(t, ears)
	require.Equal(t, admin.PruneReport{Blocked: 2, BlockedBy: map[string]int64{"ears": 2}}, prune(t, pool, anHour))
	_, err := runtimetest.AdminOf(t, pool).Detach(t.Context(), "ears")
	require.NoError(t, err)
	require.Equal(t, admin.PruneReport{Log: 2, BlockedBy: none}, prune(t, pool, anHour))
	require.Empty(t, left(t, pool))
	require.Equal(t, admin.PruneReport{BlockedBy: none}, prune(t, pool, anHour))
}

func TestPruneLeavesWhatIsYoungOrNotNamed(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	runtimetest.PutAll(t, pool, "a1")
	ageAll(t, pool, 3)
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		_, err := runtimetest.LooseTopic.Enqueue(t.Context(), tx, runtimetest.Said{Key: "loose", N: 1})
		require.NoError(t, err)
	})
	runtimetest.PutAll(t, pool, "a2")
	ageAll(t, pool, 2)
	runtimetest.PutAll(t, pool, "a3")
	none := map[string]int64{}
	require.Equal(t, admin.PruneReport{BlockedBy: none}, prune(t, pool, nil))
	require.Equal(t, admin.PruneReport{Log: 1, BlockedBy: none}, prune(t, pool, map[string]outbox.Retention{"test/said": {Delivered: 4 * time.Hour}}))
	require.Equal(t, "loose1 a2 a3", left(t, pool))
	require.Equal(t, admin.PruneReport{Log: 1, BlockedBy: none}, prune(t, pool, map[string]outbox.Retention{"test/said": {Delivered: time.Hour}}))
	require.Equal(t, "loose1 a3", left(t, pool))
	require.Equal(t, admin.PruneReport{BlockedBy: none}, prune(t, pool, map[string]outbox.Retention{"test/loose": {}}), "168 h")
	require.Equal(t, admin.PruneReport{Log: 1, BlockedBy: none}, prune(t, pool, map[string]outbox.Retention{"test/loose": {Delivered: time.Hour}}))
	_, err := runtimetest.AdminOf(t, pool).Prune(t.Context(), map[string]outbox.Retention{"said": {}})
	require.EqualError(t, err, `prune: topic "said" is not named like mini_chat/turn_finalized`)
}

// An old event that commits behind all cursors stays until it was delivered, and so does one in the open window.
func TestPruneKeepsStragglers(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	l := runtimetest.ListenTo(t, pool, listener.Spec{Retry: runtimetest.LateRetry}, listener.Config{}, h)
	runtimetest.DrainAll(t, l)
	open := pgtest.Begin(t, pool, pgx.TxOptions{})
	_, err := runtimetest.SaidTopic.EnqueueMany(t.Context(), open, []runtimetest.Said{{Key: "l", N: 1}, {Key: "m", N: 2}})
	require.NoError(t, err)
	runtimetest.PutAll(t, pool, "a1")
	runtimetest.DrainAll(t, l)
	require.NoError(t, open.Commit(t.Context()))
	ageAll(t, pool, 2)
	held := admin.PruneReport{Log: 1, Blocked: 2, BlockedBy: map[string]int64{"ears": 2}}
	require.Equal(t, held, prune(t, pool, anHour))
	require.Equal(t, "l1 m2", left(t, pool))
	h.Fail = runtimetest.FailFor("m")
	runtimetest.DrainAll(t, l)
	require.Equal(t, []string{"a1", "l1"}, h.Names())
	require.Equal(t, admin.PruneReport{Log: 1, Blocked: 1, BlockedBy: map[string]int64{"ears": 1}}, prune(t, pool, anHour), "within the open window")
	require.Equal(t, "m2", left(t, pool))
	h.Fail = nil
	runtimetest.RetryNow(t, pool)
	runtimetest.DrainAll(t, l)
	require.Equal(t, []string{"a1", "l1", "m2"}, h.Names())
	require.EqualValues(t, 1, prune(t, pool, anHour).Log)
}

// A parked event is a copy, which pruning does not delete.
func TestPruneAndParkedEvents(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	h.Fail = runtimetest.FailFor("b")
	l := runtimetest.ListenTo(t, pool, listener.Spec{ParkKeys: true, Retry: runtimetest.LateRetry}, listener.Config{}, h)
	runtimetest.PutAll(t, pool, "a1", "b1", "b2")
	runtimetest.DrainAll(t, l)
	ageAll(t, pool, 2)
	require.EqualValues(t, 3, prune(t, pool, anHour).Log)
	h.Fail = nil
	runtimetest.RetryNow(t, pool)
	runtimetest.DrainAll(t, l)
	require.Equal(t, []string{"a1", "b1", "b2"}, h.Names())
}

// A long log is pruned in several chunks, and the walk ends where all events are young.
func TestPruneInChunks(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	pgtest.Execute(t, pool, `INSERT INTO outbox.log (namespace, topic, payload, created_at)
		SELECT 'test', CASE WHEN n % 10 = 0 THEN 'other' ELSE 'said' END, '{}', now() - interval '2 h' FROM generate_series(1, 2500) AS n`)
	pgtest.Execute(t, pool, `INSERT INTO outbox.log (namespace, topic, payload) SELECT 'test', 'said', '{}' FROM generate_series(1, 1500) AS n`)
	pgtest.Execute(t, pool, `INSERT INTO outbox.dead_letters (listener, seq, id, namespace, topic, version, payload, bucket, created_at, attempts, error, died_at)
		SELECT 'ears', n, gen_random_uuid(), 'test', CASE WHEN n % 10 = 0 THEN 'other' ELSE 'said' END, 1, '{}', 0, now(), 1, 'no',
			now() - CASE WHEN n % 3 = 0 THEN interval '1 h' ELSE interval '3 h' END FROM generate_series(1, 3000) AS n`)
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{BatchSize: 1000}, runtimetest.NewNotes()))
	require.Equal(t, admin.PruneReport{Log: 2250, DeadLetters: 1800, BlockedBy: map[string]int64{}}, prune(t, pool, anHour))
	require.Equal(t, 1750, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.log"))
	require.Equal(t, 1200, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.dead_letters"))
}

// TestPruneLeavesNoHole: events behind one that is kept for a listener stay too, because that listener might have passed it
// meanwhile, and a listener that starts now would get the kept event and not those behind it.
func TestPruneLeavesNoHole(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	ears := runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{}, runtimetest.NewNotes())
	runtimetest.DrainAll(t, ears)
	late := pgtest.Begin(t, pool, pgx.TxOptions{})
	_, err := runtimetest.SaidTopic.Enqueue(t.Context(), late, runtimetest.Said{Key: "late", N: 1})
	require.NoError(t, err)
	const chunk, behind = retention.PruneScan, 200
	pgtest.Execute(t, pool, `INSERT INTO outbox.log (namespace, topic, payload, partition_key)
		SELECT 'test', 'said', jsonb_build_object('key', 'a', 'n', n), 'a' FROM generate_series(1, $1::int) AS n`, chunk+behind)
	runtimetest.DrainAll(t, ears)
	require.NoError(t, late.Commit(t.Context()))
	ageAll(t, pool, 2)
	a := runtimetest.AdminOf(t, pool)
	r, err := a.Prune(t.Context(), anHour)
	require.NoError(t, err)
	require.Equal(t, admin.PruneReport{Log: chunk - 1, Blocked: 1, BlockedBy: map[string]int64{"ears": 1}}, r)
	require.Equal(t, behind+2, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.log"))
	runtimetest.DrainAll(t, ears)
	r, err = a.Prune(t.Context(), anHour)
	require.NoError(t, err)
	require.Equal(t, admin.PruneReport{Log: behind + 2, BlockedBy: map[string]int64{}}, r)
}

func TestPruneOfTheQueue(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	pgtest.Execute(t, pool, `INSERT INTO testing.events (id, namespace, topic, payload, status, max_attempts, finalized_at)
		SELECT gen_random_uuid(), 'jobs', t.topic, '{}', s.status, 5, CASE WHEN s.status IN ('delivered', 'dead') THEN now() - make_interval(hours => h) END
		FROM unnest('{one,two}'::text[]) AS t (topic), unnest('{pending,delivered,dead}'::text[]) AS s (status), generate_series(0, 9) AS h`)
	r := prune(t, pool, map[string]outbox.Retention{
		"jobs/one": {Delivered: 90 * time.Minute, Dead: 150 * time.Minute}, "other/two": {Delivered: time.Minute},
	})
	require.Equal(t, admin.PruneReport{Queue: 8 + 7, BlockedBy: map[string]int64{}}, r)
	require.Equal(t, "one dead 3, one delivered 2, one pending 10, two dead 10, two delivered 10, two pending 10", pgtest.Value[string](t, pool,
		`SELECT string_agg(concat(topic, ' ', status, ' ', n), ', ' ORDER BY topic, status)
		FROM (SELECT topic, status, count(*) AS n FROM testing.events GROUP BY topic, status) AS o`))
}

// Nobody runs the abandoned listener, and an event of the parking one waits. A process that runs another listener
// reports both repeatedly. Neither is detached, and unhandled events stay.
func TestLagRaisesAnAlarm(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	h.Fail = runtimetest.FailFor("b")
	parking := runtimetest.ListenTo(t, pool, listener.Spec{Name: "parking", ParkKeys: true, MaxLag: time.Hour, Retry: runtimetest.LateRetry}, listener.Config{}, h)
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{Name: "abandoned", MaxLag: time.Hour}, listener.Config{}, h))
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{Name: "patient", MaxLag: 24 * time.Hour}, listener.Config{}, h))
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{Name: "unbounded"}, listener.Config{}, h))
	runtimetest.PutAll(t, pool, "a1", "b1")
	runtimetest.DrainAll(t, parking)
	log := runtimetest.NewLogSpy()
	l := runtimetest.ListenTo(t, pool, listener.Spec{Name: "runs", MaxLag: time.Hour}, listener.Config{
		Logger: log.Logger(), PruneInterval: 10 * time.Millisecond,
	}, runtimetest.NewNotes())
	signals := listener.Watch(l)
	stop := runtimetest.StartListener(t, l)
	for range 2 {
		pgtest.Receive(t, signals.Maintained, "a check of the lag")
	}
	require.NotContains(t, log.String(), "listener lags")
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.listeners WHERE listener = 'runs' AND NOT in_batch AND NOT running AND high_seq = 2")
	pgtest.Execute(t, pool, `WITH a AS (UPDATE outbox.log SET created_at = created_at - interval '2 h')
		UPDATE outbox.parked SET created_at = created_at - interval '2 h'`)
	for _, name := range []string{"abandoned", "parking"} {
		line := log.Await(t, "listener lags")
		require.Contains(t, line, `level=ERROR msg="listener lags" listener=`+name+" shard=0 lag=2h0m")
		require.Contains(t, line, " max_lag=1h0m0s ")
		require.Equal(t, 1, strings.Count(line, "listener="), "its own, not that of who says it")
	}
	for range 3 {
		pgtest.Receive(t, signals.Maintained, "a check of the lag")
	}
	pgtest.Execute(t, pool, `WITH a AS (UPDATE outbox.log SET created_at = created_at + interval '2 h')
		UPDATE outbox.parked SET created_at = created_at + interval '2 h'`)
	for range 2 {
		require.Contains(t, log.Await(t, "listener has caught up"), "level=INFO")
	}
	require.Equal(t, 2, strings.Count(log.String(), "listener lags"), "once each, however long it lasts")
	stop()
	require.Equal(t, 5, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.listeners"))
	require.Equal(t, 2, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.log"))
	require.NotContains(t, log.String(), "patient")
	require.NotContains(t, log.String(), "unbounded")
}

// TestTopicsThatOnlyAnotherProcessReads: a process that runs the listener with other topics takes shards too, and passes the
// events that it does not read. The log says so while both run.
func TestTopicsThatOnlyAnotherProcessReads(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	log := runtimetest.NewLogSpy()
	l := runtimetest.ListenTo(t, pool, listener.Spec{Name: "revenue"}, listener.Config{Logger: log.Logger(), PruneInterval: 10 * time.Millisecond}, runtimetest.NewNotes())
	signals := listener.Watch(l)
	other := `INSERT INTO outbox.processes (worker_id, kind, name, host, pid, topics, seen_at)
		VALUES (gen_random_uuid(), 'listener', $1, 'box', 7, $2, now() - $3::text::interval)`
	pgtest.Execute(t, pool, other, "revenue", `{"test/said": {"version": 1}}`, "1 s")
	pgtest.Execute(t, pool, other, "stock", `{"stock/taken": {"version": 1}}`, "1 s")
	pgtest.Execute(t, pool, other, "revenue", `{"stock/returned": {"version": 1}}`, "5 minutes")
	stop := runtimetest.StartListener(t, l)
	for range 2 {
		pgtest.Receive(t, signals.Maintained, "a comparison of topics")
	}
	require.NotContains(t, log.String(), "this process passes the events of a topic")
	pgtest.Execute(t, pool, other, "revenue", `{"test/said": {"version": 1}, "stock/taken": {"version": 1}}`, "1 s")
	line := log.Await(t, "this process passes the events of a topic")
	require.Contains(t, line, "level=WARN")
	require.Contains(t, line, "topic=stock/taken host=box pid=7")
	for range 2 {
		pgtest.Receive(t, signals.Maintained, "a comparison of topics")
	}
	pgtest.Execute(t, pool, "DELETE FROM outbox.processes WHERE topics ? 'stock/taken'")
	require.Contains(t, log.Await(t, "is passed any more"), "topic=stock/taken")
	require.Equal(t, 1, strings.Count(log.String(), "this process passes the events of a topic"), "once, however long it lasts")
	stop()
}

// If the lag cannot be read, that is an error.
func TestFailingAlarmIsAnError(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	logs := runtimetest.NewLogSpy()
	cfg := listener.Config{PruneInterval: pgtest.Interval, Logger: logs.Logger()}
	l := runtimetest.ListenTo(t, pool, listener.Spec{MaxLag: time.Hour}, cfg, runtimetest.NewNotes())
	signals := listener.Watch(l)
	runtimetest.StartListener(t, l)
	pgtest.Receive(t, signals.Maintained, "maintenance")
	pgtest.Execute(t, pool, "ALTER TABLE outbox.listeners RENAME COLUMN max_lag TO max_lag_away")
	require.Contains(t, logs.Await(t, "check lag"), "level=ERROR")
	pgtest.Execute(t, pool, "ALTER TABLE outbox.listeners RENAME COLUMN max_lag_away TO max_lag")
}

// A snapshot that is held for long makes every lease slower than the previous one. The log reports it, with its holder.
func TestOldSnapshotIsReported(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	logs := runtimetest.NewLogSpy()
	cfg := listener.Config{PruneInterval: pgtest.Interval, Logger: logs.Logger()}
	runtimetest.StartListener(t, runtimetest.ListenTo(t, pool, listener.Spec{}, cfg, runtimetest.NewNotes()))
	tx := pgtest.Begin(t, pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	pid := pgtest.Value[int](t, tx, "SELECT pg_backend_pid()")
	line := logs.Await(t, fmt.Sprintf("pid=%d ", pid))
	require.Contains(t, line, "level=WARN")
	require.Contains(t, line, "an old transaction")
	require.NoError(t, tx.Rollback(t.Context()))
	require.Contains(t, logs.Await(t, "the old transaction has ended"), fmt.Sprintf("pid=%d ", pid))
}

// TestPruneDeletesOldFailures: failed attempts of listeners are pruned when they are older than 30 days and than the longest
// retention of dead events, by running listeners and by operators.
func TestPruneDeletesOldFailures(t *testing.T) {
	t.Parallel()
	short := outbox.Retention{Dead: 24 * time.Hour}
	longer := outbox.Retention{Dead: 40 * 24 * time.Hour}
	setup := func(t *testing.T) *pgxpool.Pool {
		pool := pgtest.Database(t)
		pgtest.Execute(t, pool, `INSERT INTO outbox.listener_failures (id, listener, attempt, at, worker, error)
			SELECT gen_random_uuid(), 'ears', days, statement_timestamp() - make_interval(days => days), gen_random_uuid(), 'no'
			FROM unnest(ARRAY[1, 29, 31, 39, 41]) AS days`)
		return pool
	}
	left := func(t *testing.T, pool *pgxpool.Pool) string {
		return pgtest.Value[string](t, pool, "SELECT string_agg(attempt::text, ' ' ORDER BY attempt) FROM outbox.listener_failures")
	}
	for _, c := range []struct {
		name string
		keep outbox.Retention
		want string
	}{{"30 days", short, "1 29"}, {"40 days", longer, "1 29 31 39"}} {
		t.Run("operator, "+c.name, func(t *testing.T) {
			t.Parallel()
			pool := setup(t)
			prune(t, pool, map[string]outbox.Retention{"test/said": c.keep, "test/loose": short})
			require.Equal(t, c.want, left(t, pool))
		})
		t.Run("listener, "+c.name, func(t *testing.T) {
			t.Parallel()
			pool := setup(t)
			h := runtimetest.NewNotes()
			topic := runtimetest.Altered(runtimetest.SaidTopic, func(s *outbox.TopicSpec) { s.Retention = c.keep })
			cfg := listener.Config{PruneInterval: pgtest.Interval, Logger: runtimetest.DiscardLogger()}
			l, err := listener.New(pool, listener.Spec{Name: "ears"}, cfg, listener.Handle(topic, h, h.Handle))
			require.NoError(t, err)
			watch := listener.Watch(l)
			runtimetest.StartListener(t, l)
			pgtest.Receive(t, watch.Maintained, "a prune")
			require.Equal(t, c.want, left(t, pool))
		})
	}
}
