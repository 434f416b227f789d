package heartbeat_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/machine/heartbeat"
	"github.com/outboxgen/outboxgen/internal/machine/testsignal"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// lines is a log that a test may read while it is written.
type lines struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (l *lines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(line)
}

func (l *lines) count(part string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.all.String(), part)
}

// newHeart returns a heart that renews its row every 10 ms.
func newHeart(t *testing.T, pool *pgxpool.Pool, log *lines) *heartbeat.Heart {
	t.Helper()
	db, err := schemadb.Open("")
	require.NoError(t, err)
	return &heartbeat.Heart{
		DB: db, Pool: pool, Log: slog.New(slog.NewTextHandler(log, nil)), WorkerID: uuid.New(), Kind: heartbeat.Dispatcher, Name: "jobs",
		Topics: map[string]heartbeat.Topic{"jobs/one": {Version: 2, MaxLag: 90}}, Resting: func() map[string]string { return nil },
		Every: 10 * time.Millisecond, Beat: make(testsignal.Signal, 1),
	}
}

// start runs h until stop.
func start(t *testing.T, h *heartbeat.Heart) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() {
		defer close(over)
		h.Run(ctx)
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		<-over
	})
	t.Cleanup(stop)
	return stop
}

// beats waits for renewals that began after now.
func beats(t *testing.T, h *heartbeat.Heart) {
	t.Helper()
	for range 3 {
		pgtest.Receive(t, h.Beat, "a renewal")
	}
}

func seen(t *testing.T, pool *pgxpool.Pool, worker uuid.UUID) time.Time {
	t.Helper()
	return pgtest.Value[time.Time](t, pool, "SELECT seen_at FROM outbox.processes WHERE worker_id = $1", worker)
}

func TestHeartKeepsARow(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := newHeart(t, pool, new(lines))
	h.TenantIDs = []uuid.UUID{uuid.New()}
	stop := start(t, h)
	beats(t, h)
	var topics, resting string
	var tenants []uuid.UUID
	var started time.Time
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT topics::text, resting::text, tenant_ids, started_at FROM outbox.processes WHERE kind = 'dispatcher' AND name = 'jobs'").
		Scan(&topics, &resting, &tenants, &started))
	require.Equal(t, `{"jobs/one": {"max_lag": 90, "version": 2}}`, topics)
	require.Equal(t, `{}`, resting)
	require.Equal(t, h.TenantIDs, tenants)
	before := seen(t, pool, h.WorkerID)
	beats(t, h)
	require.Greater(t, seen(t, pool, h.WorkerID), before)
	require.Equal(t, started, pgtest.Value[time.Time](t, pool, "SELECT started_at FROM outbox.processes"))
	stop()
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.processes"))
}

// A process that starts with the worker id of one that was killed takes over its row, from its own start on.
func TestHeartTakesOverTheRowOfItsWorker(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := newHeart(t, pool, new(lines))
	const killed = "INSERT INTO outbox.processes (worker_id, kind, name, host, pid, topics, started_at, seen_at) VALUES ($1, 'dispatcher', 'jobs', 'old', 1, '{}', now() - interval '1 day', now())"
	pgtest.Execute(t, pool, killed, h.WorkerID)
	stop := start(t, h)
	beats(t, h)
	require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.processes WHERE host <> 'old' AND started_at > now() - interval '1 hour'"))
	stop()

	// The row of another process that has the same worker id stays.
	pgtest.Execute(t, pool, killed, h.WorkerID)
	blocked := pgtest.Begin(t, pool, pgx.TxOptions{})
	_, err := blocked.Exec(t.Context(), "LOCK TABLE outbox.processes IN EXCLUSIVE MODE")
	require.NoError(t, err)
	h = newHeart(t, pool, new(lines))
	stop = start(t, h)
	pgtest.AwaitBlocked(t, pool, 1)
	stop()
	pgtest.Settles(t, pool, 0, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
	require.NoError(t, blocked.Rollback(t.Context()))
	require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.processes WHERE host = 'old'"))
}

// Rows of the same kind and name that nobody has renewed for an hour are deleted, also by several processes at the same time.
func TestHeartDeletesOldRows(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	for range 4 {
		start(t, newHeart(t, pool, new(lines)))
	}
	for _, row := range []string{"'dispatcher', 'jobs', now() - interval '61 min'", "'dispatcher', 'jobs', now() - interval '59 min'", "'dispatcher', 'mail', now() - interval '61 min'", "'listener', 'jobs', now() - interval '61 min'"} {
		pgtest.Execute(t, pool, "INSERT INTO outbox.processes (worker_id, kind, name, seen_at, host, pid, topics) SELECT gen_random_uuid(), "+row+", 'old', 1, '{}' FROM generate_series(1, 10)")
	}
	pgtest.Settles(t, pool, 30, "SELECT count(*) FROM outbox.processes WHERE host = 'old'")
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.processes WHERE host = 'old' AND kind = 'dispatcher' AND name = 'jobs' AND seen_at < now() - interval '1 hour'"))
}

// A change of what rests is written soon, although the row is renewed rarely.
func TestHeartWritesChanges(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := newHeart(t, pool, new(lines))
	h.Every = time.Hour
	changed := make(testsignal.Signal, 1)
	var mu sync.Mutex
	var resting map[string]string
	h.Changed, h.Resting = changed, func() map[string]string {
		mu.Lock()
		defer mu.Unlock()
		return resting
	}
	start(t, h)
	pgtest.Receive(t, h.Beat, "the row")
	for _, now := range []map[string]string{{"kafka:orders": "no route — yet"}, {}} {
		mu.Lock()
		resting = now
		mu.Unlock()
		changed.Emit()
		pgtest.Receive(t, h.Beat, "the change")
		require.Equal(t, now, pgtest.Value[map[string]string](t, pool, "SELECT resting FROM outbox.processes"))
	}
}

// A failing write is logged when it starts to fail and when it works again, and the row is there then.
func TestHeartLogsTroubleOnce(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	log := new(lines)
	h := newHeart(t, pool, log)
	pgtest.Execute(t, pool, "ALTER TABLE outbox.processes RENAME TO away")
	stop := start(t, h)
	beats(t, h)
	beats(t, h)
	require.Equal(t, 1, log.count("level=WARN"))
	pgtest.Execute(t, pool, "ALTER TABLE outbox.away RENAME TO processes")
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.processes")
	beats(t, h)
	require.Equal(t, 1, log.count("level=WARN"))
	require.Equal(t, 1, log.count("level=INFO"))
	stop()
}

// An outage of the database is logged by those who claim, and not once more for the row.
func TestHeartLeavesOutagesToOthers(t *testing.T) {
	t.Parallel()
	log := new(lines)
	h := newHeart(t, pgtest.Pool(t, "postgres://nobody@127.0.0.1:1/none"), log) // nobody listens there
	stop := start(t, h)
	for range 3 {
		beats(t, h)
	}
	require.Zero(t, log.count("level=WARN"))
	stop()
}

// A stop does not wait for a database that does not answer.
func TestHeartStopsWithoutTheDatabase(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := newHeart(t, pool, new(lines))
	stop := start(t, h)
	beats(t, h)
	blocked := pgtest.Begin(t, pool, pgx.TxOptions{})
	_, err := blocked.Exec(t.Context(), "LOCK TABLE outbox.processes IN ACCESS EXCLUSIVE MODE")
	require.NoError(t, err)
	pgtest.AwaitBlocked(t, pool, 1)
	stop() // in time, or the test would hang: the lock is kept until its end
}
