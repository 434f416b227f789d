package prometheus_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
	"github.com/outboxgen/outboxgen/queue"
	"github.com/outboxgen/outboxgen/telemetry/prometheus"
)

const patience = time.Minute

// run runs a collector with a short interval until stop is called.
func run(t testing.TB, cfg prometheus.Config) (c *prometheus.Collector, stop func()) {
	t.Helper()
	if cfg.Interval == 0 {
		cfg.Interval = 100 * time.Millisecond
	}
	c, err := prometheus.New(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	var result error
	running.Go(func() { result = c.Run(ctx) })
	stop = func() {
		cancel()
		running.Wait()
		require.NoError(t, result)
	}
	t.Cleanup(stop)
	return c, stop
}

// until scrapes c until its values satisfy ok, and returns them.
func until(t testing.TB, c *prometheus.Collector, ok func(map[string]float64) bool) (values map[string]float64) {
	t.Helper()
	require.Eventually(t, func() bool {
		values = scrape(t, c)
		return ok(values)
	}, patience, 20*time.Millisecond)
	return values
}

func reads(values map[string]float64) bool { return values["outboxgen_gauges_reader"] == 1 }

// TestGauges: the gauges say what is in the database.
func TestGauges(t *testing.T) {
	t.Parallel()
	pool := outboxtest.Postgres(t)
	enqueue(t.Context(), t, pool, placed, "good", "bad", "worse", "later")
	h := handler(func(_ context.Context, d outbox.Delivery[order]) error {
		switch d.Payload.ID {
		case "bad":
			return outbox.RetryAfter(time.Hour, errors.New("broken"))
		case "worse":
			return outbox.Permanent(errors.New("broken"))
		}
		return nil
	})
	_, err := pool.Exec(t.Context(), `UPDATE outbox.queue AS q SET next_attempt_at = now() + interval '1 hour'
		FROM outbox.events AS e WHERE e.id = q.id AND e.payload->>'id' = 'later'`)
	require.NoError(t, err)
	d, err := queue.NewDispatcher(pool, queue.Config{}, queue.Handle(placed, h, h.Handle))
	require.NoError(t, err)
	_, err = d.Drain(t.Context())
	require.NoError(t, err)
	enqueue(t.Context(), t, pool, placed, "due", "due too")
	_, err = pool.Exec(t.Context(), "UPDATE outbox.events SET created_at = now() - interval '1 hour'")
	require.NoError(t, err)

	l, err := listener.New(pool, listener.Spec{Name: "ears"}, listener.Config{MaxAttempts: 1}, listener.Handle(logged, h, h.Handle))
	require.NoError(t, err)
	enqueue(t.Context(), t, pool, logged, "good", "worse")
	_, err = l.Drain(t.Context())
	require.NoError(t, err)
	enqueue(t.Context(), t, pool, logged, "good", "good")
	_, err = pool.Exec(t.Context(), `INSERT INTO outbox.processes (worker_id, kind, name, host, pid, topics) VALUES
		($1, 'dispatcher', 'shop', 'h', 1, '{"shop/placed": {"version": 1}}'), ($2, 'dispatcher', 'shop', 'h', 2, '{"shop/placed": {"version": 1}}'),
		($1, 'listener', 'ears', 'h', 1, '{"shop/logged": {"version": 1}}')`, uuid.New(), uuid.New())
	require.NoError(t, err)

	_, err = pool.Exec(t.Context(), `INSERT INTO outbox.inbox_messages (consumer_group, message_id, place, type, namespace, topic, version, envelope, body,
			status, attempts, next_attempt_at, error, received_at)
		SELECT 'cards', n, 'p', 't', 'n', 't', 1, '{}', '{}', CASE WHEN n > 2 THEN 'dead' ELSE 'parked' END, 1, now() - interval '1 minute', 'e', now() - interval '1 hour'
		FROM generate_series(1, 5) AS n`)
	require.NoError(t, err)

	holder, err := pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = holder.Exec(t.Context(), "SELECT pg_current_xact_id()")
	require.NoError(t, err)
	c, _ := run(t, prometheus.Config{Pool: pool})
	got := until(t, c, func(v map[string]float64) bool { return reads(v) && v["outboxgen_held_snapshot_seconds"] > 0 })
	require.NoError(t, holder.Rollback(t.Context()))
	for name, want := range map[string]float64{
		"outboxgen_due_events{topic=shop/placed}":         2,
		"outboxgen_retrying_events{topic=shop/placed}":    1,
		"outboxgen_scheduled_events{topic=shop/placed}":   1,
		"outboxgen_in_flight_events{topic=shop/placed}":   0,
		"outboxgen_dead_letters{topic=shop/placed}":       1,
		"outboxgen_topic_processes{topic=shop/placed}":    2,
		"outboxgen_unhandled_versions{topic=shop/placed}": 0,
		"outboxgen_dead_letters{listener=ears}":           1,
		"outboxgen_listener_unread_events{listener=ears}": 2,
		"outboxgen_listener_parked_events{listener=ears}": 0,
		"outboxgen_listener_paused{listener=ears}":        0,
		"outboxgen_listener_processes{listener=ears}":     1,

		"outboxgen_consumer_parked_messages{consumer=cards}": 2,
		"outboxgen_consumer_dead_letters{consumer=cards}":    3,
	} {
		value, there := got[name]
		require.True(t, there, "%s in %v", name, got)
		require.Equal(t, want, value, name)
	}
	require.GreaterOrEqual(t, got["outboxgen_oldest_due_seconds{topic=shop/placed}"], 3600.0)
	require.GreaterOrEqual(t, got["outboxgen_consumer_oldest_parked_seconds{consumer=cards}"], 3600.0)
	require.GreaterOrEqual(t, got["outboxgen_consumer_overdue_seconds{consumer=cards}"], 60.0)
	require.Positive(t, got["outboxgen_listener_lag_seconds{listener=ears}"])
}

// TestGaugesOfLimits: they say what waits at each limit and how much of it is used, and have no keys.
func TestGaugesOfLimits(t *testing.T) {
	t.Parallel()
	pool := outboxtest.Postgres(t)
	limits := []outbox.Limit{{Per: "{id}", Concurrency: 2}, {Concurrency: 8, Rate: outbox.Rate{Events: 100, Period: time.Hour}}}
	rated := outbox.NewTopic[order](outbox.TopicSpec{
		Namespace: "shop", Name: "rated", Limits: limits,
		Keys: func(p any) outbox.Keys {
			return outbox.Keys{Limits: []eventkey.Key{eventkey.NewKey(eventkey.StringPart("id", p.(*order).ID))}}
		},
	})
	h := handler(func(ctx context.Context, _ outbox.Delivery[order]) error {
		<-ctx.Done()
		return ctx.Err()
	})
	enqueue(t.Context(), t, pool, rated, "a", "a", "a", "a", "a", "b")
	d, err := queue.NewDispatcher(pool, queue.Config{Logger: slog.New(slog.DiscardHandler)}, queue.Handle(rated, h, h.Handle))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = d.Run(ctx) })
	defer running.Wait()
	defer cancel()
	c, _ := run(t, prometheus.Config{Pool: pool})
	got := until(t, c, func(v map[string]float64) bool {
		return v["outboxgen_limit_waiting_events{per={id},topic=shop/rated}"] == 3 && v["outboxgen_limit_used_ratio{per=topic,topic=shop/rated}"] > 0.3
	})
	for name, want := range map[string]float64{
		"outboxgen_limit_full_keys{per={id},topic=shop/rated}":       1,
		"outboxgen_limit_used_ratio{per={id},topic=shop/rated}":      1,
		"outboxgen_limit_waiting_events{per=topic,topic=shop/rated}": 0,
		"outboxgen_limit_full_keys{per=topic,topic=shop/rated}":      0,
		"outboxgen_limit_used_ratio{per=topic,topic=shop/rated}":     3.0 / 8,
	} {
		require.Equal(t, want, got[name], "%s in %v", name, got)
	}
	require.Positive(t, got["outboxgen_limit_longest_wait_seconds{per={id},topic=shop/rated}"])
	n := 0
	for name := range got {
		if strings.HasPrefix(name, "outboxgen_limit_") {
			n++
		}
	}
	require.Equal(t, 2*4, n, "%v", got)
}

// TestOneReader: of two processes one exports the gauges. The other one takes over when it ends.
func TestOneReader(t *testing.T) {
	t.Parallel()
	pool := outboxtest.Postgres(t)
	enqueue(t.Context(), t, pool, placed, "good")
	first, stop := run(t, prometheus.Config{Pool: pool})
	until(t, first, reads)
	second, _ := run(t, prometheus.Config{Pool: pool})
	for range 20 { // its first reading is after the first scrape
		got := scrape(t, second)
		require.Equal(t, 0.0, got["outboxgen_gauges_reader"])
		require.NotContains(t, got, "outboxgen_due_events{topic=shop/placed}")
	}
	require.True(t, reads(scrape(t, first)))
	stop()
	require.NotContains(t, scrape(t, first), "outboxgen_due_events{topic=shop/placed}", "a process that has stopped exports no gauges")
	require.Contains(t, until(t, second, reads), "outboxgen_due_events{topic=shop/placed}")
}

// TestUnscraped: a process that nobody scrapes reads nothing, and keeps nobody else from it.
func TestUnscraped(t *testing.T) {
	t.Parallel()
	pool := outboxtest.Postgres(t)
	run(t, prometheus.Config{Pool: pool, Interval: time.Millisecond})
	second, _ := run(t, prometheus.Config{Pool: pool})
	until(t, second, reads)
}

// TestFailingReads: while the database does not answer, there are no gauges, and the log has one line.
func TestFailingReads(t *testing.T) {
	t.Parallel()
	pool := outboxtest.Postgres(t)
	var log lines
	c, _ := run(t, prometheus.Config{Pool: pool, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	until(t, c, reads)
	_, err := pool.Exec(t.Context(), "ALTER TABLE outbox.processes RENAME TO gone")
	require.NoError(t, err)
	got := until(t, c, func(v map[string]float64) bool { return v["outboxgen_gauges_failures_total"] >= 3 && !reads(v) })
	require.NotContains(t, got, "outboxgen_held_snapshot_seconds")
	_, err = pool.Exec(t.Context(), "ALTER TABLE outbox.gone RENAME TO processes")
	require.NoError(t, err)
	until(t, c, reads)
	require.Equal(t, 1, strings.Count(log.String(), "gauges cannot be read from the database"), log.String())
	require.Equal(t, 1, strings.Count(log.String(), "gauges can be read again"))
}

// TestLockLost: when the session with the lock ends, the process takes the lock again.
func TestLockLost(t *testing.T) {
	t.Parallel()
	pool := outboxtest.Postgres(t)
	c, _ := run(t, prometheus.Config{Pool: pool, Logger: slog.New(slog.DiscardHandler)})
	until(t, c, reads)
	var killed int
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(pg_terminate_backend(l.pid)) FROM pg_locks AS l
		WHERE l.locktype = 'advisory' AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())`).Scan(&killed))
	require.Equal(t, 1, killed)
	until(t, c, func(v map[string]float64) bool { return v["outboxgen_gauges_failures_total"] > 0 })
	until(t, c, reads)
}

// TestConfig: what New and Run refuse.
func TestConfig(t *testing.T) {
	t.Parallel()
	_, err := prometheus.New(prometheus.Config{Interval: -1})
	require.EqualError(t, err, "new collector: field Interval is negative")
	pool, err := pgxpool.New(t.Context(), "host=nowhere.invalid")
	require.NoError(t, err)
	defer pool.Close()
	_, err = prometheus.New(prometheus.Config{Pool: pool, Schema: "Not a name"})
	require.ErrorContains(t, err, "new collector: ")
	c, stop := run(t, prometheus.Config{})
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		return c.Run(ctx) != nil // the first one has begun
	}, patience, time.Millisecond)
	stop()
}

// TestDocs: the tables in docs/operate/telemetry.md have every metric with its labels, and no other.
func TestDocs(t *testing.T) {
	t.Parallel()
	c, err := prometheus.New(prometheus.Config{})
	require.NoError(t, err)
	descs := make(chan *prom.Desc, 100)
	c.Describe(descs)
	close(descs)
	want := make(map[string]string)
	pattern := regexp.MustCompile(`fqName: "([a-z_]+)".*variableLabels: \{(.*?)\}`)
	for d := range descs {
		m := pattern.FindStringSubmatch(d.String())
		require.NotNil(t, m, d.String())
		want[m[1]] = strings.ReplaceAll(m[2], ",", ", ")
	}
	want["outboxgen_dead_letters"] = "topic, or listener"
	text, err := os.ReadFile("../../docs/operate/telemetry.md")
	require.NoError(t, err)
	have := make(map[string]string)
	for _, m := range regexp.MustCompile("(?m)^\\| `(outboxgen_[a-z_]+)` \\| ([a-z, ]*)\\|").FindAllStringSubmatch(string(text), -1) {
		have[m[1]] = strings.TrimSpace(m[2])
	}
	require.Equal(t, want, have)
}

// lines is a buffer for concurrent use.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
