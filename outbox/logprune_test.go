package outbox_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

// anHour is a retention that age and ageAll go beyond.
var anHour = map[string]outbox.Retention{"test/said": {Delivered: time.Hour, Dead: 2 * time.Hour}}

func ageAll(t testing.TB, pool *pgxpool.Pool, hours int) {
	t.Helper()
	execute(t, pool, "UPDATE outbox.log SET created_at = created_at - make_interval(hours => $1)", hours)
}

// left returns the events of the log, in order.
func left(t testing.TB, pool *pgxpool.Pool) string {
	t.Helper()
	return value[string](t, pool, "SELECT coalesce(string_agg(concat(payload->>'key', payload->>'n'), ' ' ORDER BY seq), '') FROM outbox.log")
}

// prune prunes, after a preview that must say the same.
func prune(t testing.TB, pool *pgxpool.Pool, topics map[string]outbox.Retention) outbox.PruneReport {
	t.Helper()
	a := adminOf(t, pool)
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
	h := newNotes()
	h.fail = failFor("b")
	ears := listenTo(t, pool, outbox.ListenerSpec{Retry: late}, outbox.ListenerConfig{}, h)
	eyes := listenTo(t, pool, outbox.ListenerSpec{Name: "eyes", Shards: 2}, outbox.ListenerConfig{}, newNotes())
	drainAll(t, eyes)
	putAll(t, pool, "a1", "a2", "b1", "a3")
	ageAll(t, pool, 2)
	none := map[string]int64{}

	require.Equal(t, outbox.PruneReport{Blocked: 4, BlockedBy: map[string]int64{"eyes": 4}}, prune(t, pool, anHour))
	drainAll(t, ears) // a new listener sees all that is left, and goes as far as b1
	require.Equal(t, outbox.PruneReport{Blocked: 4, BlockedBy: map[string]int64{"ears": 2, "eyes": 4}}, prune(t, pool, anHour))
	drainAll(t, eyes)
	require.Equal(t, outbox.PruneReport{Log: 2, Blocked: 2, BlockedBy: map[string]int64{"ears": 2}}, prune(t, pool, anHour))
	require.Equal(t, "b1 a3", left(t, pool))

	// One that is paused holds them too; one that was detached does not.
	h.fail = nil
	retryNow(t, pool)
	require.NoError(t, adminOf(t, pool).Pause(t.Context(), "ears"))
	drainAll(t, ears)
	require.Equal(t, outbox.PruneReport{Blocked: 2, BlockedBy: map[string]int64{"ears": 2}}, prune(t, pool, anHour))
	_, err := adminOf(t, pool).Detach(t.Context(), "ears")
	require.NoError(t, err)
	require.Equal(t, outbox.PruneReport{Log: 2, BlockedBy: none}, prune(t, pool, anHour))
	require.Empty(t, left(t, pool))
	require.Equal(t, outbox.PruneReport{BlockedBy: none}, prune(t, pool, anHour))
}

func TestPruneLeavesWhatIsYoungOrNotNamed(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	putAll(t, pool, "a1")
	ageAll(t, pool, 3)
	inTx(t, pool, func(tx pgx.Tx) {
		_, err := looseTopic.Untyped().Enqueue(t.Context(), tx, said{Key: "loose", N: 1})
		require.NoError(t, err)
	})
	putAll(t, pool, "a2")
	ageAll(t, pool, 2)
	putAll(t, pool, "a3")
	none := map[string]int64{}
	require.Equal(t, outbox.PruneReport{BlockedBy: none}, prune(t, pool, nil))
	require.Equal(t, outbox.PruneReport{Log: 1, BlockedBy: none}, prune(t, pool, map[string]outbox.Retention{"test/said": {Delivered: 4 * time.Hour}}))
	require.Equal(t, "loose1 a2 a3", left(t, pool))
	require.Equal(t, outbox.PruneReport{Log: 1, BlockedBy: none}, prune(t, pool, map[string]outbox.Retention{"test/said": {Delivered: time.Hour}}))
	require.Equal(t, "loose1 a3", left(t, pool))
	require.Equal(t, outbox.PruneReport{BlockedBy: none}, prune(t, pool, map[string]outbox.Retention{"test/loose": {}}), "168 h")
	require.Equal(t, outbox.PruneReport{Log: 1, BlockedBy: none}, prune(t, pool, map[string]outbox.Retention{"test/loose": {Delivered: time.Hour}}))
	_, err := adminOf(t, pool).Prune(t.Context(), map[string]outbox.Retention{"said": {}})
	require.EqualError(t, err, `prune: topic "said" is not named like mini_chat/turn_finalized`)
}

// An old event that commits behind everybody's cursor stays until it was delivered; so does one in the open window.
func TestPruneKeepsStragglers(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := newNotes()
	l := listenTo(t, pool, outbox.ListenerSpec{Retry: late}, outbox.ListenerConfig{}, h)
	drainAll(t, l)
	open := begin(t, pool, pgx.TxOptions{})
	_, err := saidTopic.Untyped().EnqueueMany(t.Context(), open, []said{{"l", 1}, {"m", 2}})
	require.NoError(t, err)
	putAll(t, pool, "a1")
	drainAll(t, l)
	require.NoError(t, open.Commit(t.Context()))
	ageAll(t, pool, 2)
	held := outbox.PruneReport{Log: 1, Blocked: 2, BlockedBy: map[string]int64{"ears": 2}}
	require.Equal(t, held, prune(t, pool, anHour))
	require.Equal(t, "l1 m2", left(t, pool))
	h.fail = failFor("m")
	drainAll(t, l)
	require.Equal(t, []string{"a1", "l1"}, h.names())
	require.Equal(t, outbox.PruneReport{Log: 1, Blocked: 1, BlockedBy: map[string]int64{"ears": 1}}, prune(t, pool, anHour), "within the open window")
	require.Equal(t, "m2", left(t, pool))
	h.fail = nil
	retryNow(t, pool)
	drainAll(t, l)
	require.Equal(t, []string{"a1", "l1", "m2"}, h.names())
	require.EqualValues(t, 1, prune(t, pool, anHour).Log)
}

// What was parked lives on as a copy.
func TestPruneAndParkedEvents(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := newNotes()
	h.fail = failFor("b")
	l := listenTo(t, pool, outbox.ListenerSpec{ParkKeys: true, Retry: late}, outbox.ListenerConfig{}, h)
	putAll(t, pool, "a1", "b1", "b2")
	drainAll(t, l)
	ageAll(t, pool, 2)
	require.EqualValues(t, 3, prune(t, pool, anHour).Log)
	h.fail = nil
	retryNow(t, pool)
	drainAll(t, l)
	require.Equal(t, []string{"a1", "b1", "b2"}, h.names())
}

// A long log goes in several chunks, and the walk ends where everything is young.
func TestPruneInChunks(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	execute(t, pool, `INSERT INTO outbox.log (namespace, topic, payload, created_at)
		SELECT 'test', CASE WHEN n % 10 = 0 THEN 'other' ELSE 'said' END, '{}', now() - interval '2 h' FROM generate_series(1, 2500) AS n`)
	execute(t, pool, `INSERT INTO outbox.log (namespace, topic, payload) SELECT 'test', 'said', '{}' FROM generate_series(1, 1500) AS n`)
	execute(t, pool, `INSERT INTO outbox.dead_letters (listener, seq, id, namespace, topic, version, payload, bucket, created_at, attempts, error, died_at)
		SELECT 'ears', n, gen_random_uuid(), 'test', CASE WHEN n % 10 = 0 THEN 'other' ELSE 'said' END, 1, '{}', 0, now(), 1, 'no',
			now() - CASE WHEN n % 3 = 0 THEN interval '1 h' ELSE interval '3 h' END FROM generate_series(1, 3000) AS n`)
	drainAll(t, listenTo(t, pool, outbox.ListenerSpec{}, outbox.ListenerConfig{BatchSize: 1000}, newNotes()))
	require.Equal(t, outbox.PruneReport{Log: 2250, DeadLetters: 1800, BlockedBy: map[string]int64{}}, prune(t, pool, anHour))
	require.Equal(t, 1750, count(t, pool, "SELECT count(*) FROM outbox.log"))
	require.Equal(t, 1200, count(t, pool, "SELECT count(*) FROM outbox.dead_letters"))
}

func TestPruneOfTheQueue(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	execute(t, pool, `INSERT INTO outbox.events (id, namespace, topic, payload, status, max_attempts, finalized_at)
		SELECT gen_random_uuid(), 'jobs', t.topic, '{}', s.status, 5, CASE WHEN s.status IN ('delivered', 'dead') THEN now() - make_interval(hours => h) END
		FROM unnest('{one,two}'::text[]) AS t (topic), unnest('{pending,delivered,dead}'::text[]) AS s (status), generate_series(0, 9) AS h`)
	r := prune(t, pool, map[string]outbox.Retention{
		"jobs/one": {Delivered: 90 * time.Minute, Dead: 150 * time.Minute}, "other/two": {Delivered: time.Minute},
	})
	require.Equal(t, outbox.PruneReport{Queue: 8 + 7, BlockedBy: map[string]int64{}}, r)
	require.Equal(t, "one dead 3, one delivered 2, one pending 10, two dead 10, two delivered 10, two pending 10", value[string](t, pool,
		`SELECT string_agg(concat(topic, ' ', status, ' ', n), ', ' ORDER BY topic, status)
		FROM (SELECT topic, status, count(*) AS n FROM outbox.events GROUP BY topic, status) AS o`))
}

// Nobody runs the abandoned listener, and an event of the parking one waits. Whoever runs another reports both, again and
// again; nobody is detached, and what was not handled stays.
func TestLagRaisesAnAlarm(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := newNotes()
	h.fail = failFor("b")
	parking := listenTo(t, pool, outbox.ListenerSpec{Name: "parking", ParkKeys: true, MaxLag: time.Hour, Retry: late}, outbox.ListenerConfig{}, h)
	drainAll(t, listenTo(t, pool, outbox.ListenerSpec{Name: "abandoned", MaxLag: time.Hour}, outbox.ListenerConfig{}, h))
	drainAll(t, listenTo(t, pool, outbox.ListenerSpec{Name: "patient", MaxLag: 24 * time.Hour}, outbox.ListenerConfig{}, h))
	drainAll(t, listenTo(t, pool, outbox.ListenerSpec{Name: "unbounded"}, outbox.ListenerConfig{}, h))
	putAll(t, pool, "a1", "b1")
	drainAll(t, parking)
	log := newSpy()
	l := listenTo(t, pool, outbox.ListenerSpec{Name: "runs", MaxLag: time.Hour}, outbox.ListenerConfig{
		Logger: log.logger(), PruneInterval: 10 * time.Millisecond,
	}, newNotes())
	signals := outbox.WatchListener(l)
	stop := startListener(t, l)
	for range 2 {
		receive(t, signals.Maintained, "a look at the lag")
	}
	require.NotContains(t, log.String(), "listener lags")
	settles(t, pool, 1, "SELECT count(*) FROM outbox.listeners WHERE listener = 'runs' AND NOT in_batch AND NOT running AND high_seq = 2")
	execute(t, pool, `WITH a AS (UPDATE outbox.log SET created_at = created_at - interval '2 h')
		UPDATE outbox.parked SET created_at = created_at - interval '2 h'`)
	for range 2 {
		for _, name := range []string{"abandoned", "parking"} {
			line := log.await(t, "listener lags")
			require.Contains(t, line, `level=ERROR msg="listener lags" listener=`+name+" shard=0 lag=2h0m")
			require.Contains(t, line, " max_lag=1h0m0s ")
			require.Equal(t, 1, strings.Count(line, "listener="), "its own, not that of who says it")
		}
	}
	stop()
	require.Equal(t, 5, count(t, pool, "SELECT count(*) FROM outbox.listeners"))
	require.Equal(t, 2, count(t, pool, "SELECT count(*) FROM outbox.log"))
	require.NotContains(t, log.String(), "patient")
	require.NotContains(t, log.String(), "unbounded")
}

// An alarm that cannot look is one itself.
func TestFailingAlarmIsAnError(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	logs := newSpy()
	cfg := outbox.ListenerConfig{PruneInterval: interval, Logger: logs.logger()}
	l := listenTo(t, pool, outbox.ListenerSpec{MaxLag: time.Hour}, cfg, newNotes())
	signals := outbox.WatchListener(l)
	startListener(t, l)
	receive(t, signals.Maintained, "maintenance")
	execute(t, pool, "ALTER TABLE outbox.listeners RENAME COLUMN max_lag TO max_lag_away")
	require.Contains(t, logs.await(t, "look at lag"), "level=ERROR")
	execute(t, pool, "ALTER TABLE outbox.listeners RENAME COLUMN max_lag_away TO max_lag")
}

// A snapshot that is held for long makes every lease slower than the one before, which the log says, with who holds it.
func TestOldSnapshotIsReported(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	logs := newSpy()
	cfg := outbox.ListenerConfig{PruneInterval: interval, Logger: logs.logger()}
	startListener(t, listenTo(t, pool, outbox.ListenerSpec{}, cfg, newNotes()))
	tx := begin(t, pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	pid := value[int](t, tx, "SELECT pg_backend_pid()")
	line := logs.await(t, fmt.Sprintf("pid=%d ", pid))
	require.Contains(t, line, "level=WARN")
	require.Contains(t, line, "an old transaction")
	require.NoError(t, tx.Rollback(t.Context()))
}
