package runtimetest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgserver"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/migrate"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// TestOutageIsFewLines: the server is killed and restarted. Whatever a dispatcher and a listener try meanwhile, each logs that
// the database does not answer, and that it answers again.
func TestOutageIsFewLines(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	server := pgtest.Server(t, pgserver.Options{Durable: true})
	pool := pgtest.Pool(t, server.URL())
	_, err := migrate.Up(t.Context(), pool, pgtest.Schema)
	require.NoError(t, err)
	spies := map[string]*runtimetest.LogSpy{"dispatcher": runtimetest.NewLogSpy(), "listener": runtimetest.NewLogSpy()}
	got := make(chan string, 100)
	handle := func(_ context.Context, d outbox.Delivery[runtimetest.Said]) error {
		got <- d.Topic
		return nil
	}
	// Sweeps and renewals fail too. A busy machine must not lose the lease of a shard before.
	const short, lease = 300 * time.Millisecond, 3 * time.Second
	d := runtimetest.Dispatcher(t, pool, queue.Config{
		Logger: spies["dispatcher"].Logger(), LeaseDuration: lease, PruneInterval: short,
	}, queue.Handle(queuedTopic, t, handle))
	l, err := listener.New(pool, listener.Spec{Name: "ears", Shards: 3}, listener.Config{
		Logger: spies["listener"].Logger(), LeaseDuration: lease, PruneInterval: short,
	}, listener.Handle(runtimetest.SaidTopic, t, handle))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 2)
	go func() { ended <- d.Run(ctx) }()
	go func() { ended <- l.Run(ctx) }()
	deliver := func() {
		t.Helper()
		pgtest.Eventually(t, func() bool { // the pool may still have connections to the killed server
			return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
				_, err1 := queuedTopic.Enqueue(t.Context(), tx, runtimetest.Said{Key: "k", N: 1})
				_, err2 := runtimetest.SaidTopic.Enqueue(t.Context(), tx, runtimetest.Said{Key: "k", N: 1})
				return errors.Join(err1, err2)
			}) == nil
		})
		for range 2 {
			pgtest.Receive(t, got, "the events")
		}
	}
	deliver()
	require.NoError(t, server.Kill())
	for _, spy := range spies {
		for range 12 {
			spy.Await(t, `msg="statement failed"`)
		}
	}
	require.NoError(t, server.Restart())
	deliver()
	for _, spy := range spies {
		pgtest.Eventually(t, func() bool { return strings.Contains(spy.String(), `msg="database answers again"`) })
	}
	cancel()
	for range 2 {
		require.NoError(t, pgtest.Receive(t, ended, "the end"))
	}
	for name, spy := range spies {
		lines := spy.Lines()
		require.Contains(t, lines[0], fmt.Sprintf("level=INFO msg=%q", name+" starts"), name)
		require.Contains(t, lines[0], "lease=3s batch_size=100", name)
		require.Contains(t, lines[len(lines)-1], fmt.Sprintf("level=INFO msg=%q", name+" has stopped"), name)
		require.Contains(t, lines[len(lines)-1], "delivered=", name)
		during := lines[1 : len(lines)-1]
		require.LessOrEqual(t, len(during), 4, "%s: %s", name, strings.Join(during, "\n")) // a slow start of the server may be a second outage
		require.Contains(t, during[0], `level=ERROR msg="database does not answer: it is tried again until it does"`, name)
		require.Contains(t, strings.Join(during, "\n"), `level=INFO msg="database answers again"`, name)
	}
}

// TestFailingEventsAreFewLines: every event fails until it is dead. The log has a few lines, with counts.
func TestFailingEventsAreFewLines(t *testing.T) {
	t.Parallel()
	events := 50_000
	if testing.Short() {
		events = 1000
	}
	for _, log := range []bool{false, true} {
		t.Run(fmt.Sprint("log ", log), func(t *testing.T) {
			t.Parallel()
			events := events
			pool := pgtest.Database(t)
			spy := newCountingSpy()
			retry := outbox.Retry{MaxAttempts: 2, BaseDelay: time.Millisecond, MaxDelay: time.Millisecond}
			topic := runtimetest.Altered(queuedTopic, func(s *outbox.TopicSpec) { s.Retry, s.Keys = retry, nil })
			if log {
				topic = runtimetest.LooseTopic
				events = min(events, 2000) // a listener tries them again one after the other
			}
			fail := func(context.Context, outbox.Delivery[runtimetest.Said]) error { return errors.New("no route to host") }
			var r runtimetest.Runner
			if log {
				l, err := listener.New(pool, listener.Spec{Name: "ears", Retry: retry, Concurrency: 8}, listener.Config{Logger: spy.Logger()}, listener.Handle(topic, t, fail))
				require.NoError(t, err)
				r = l
			} else {
				r = runtimetest.Dispatcher(t, pool, queue.Config{Logger: spy.Logger()}, queue.Handle(topic, t, fail))
			}
			pgtest.InTx(t, pool, func(tx pgx.Tx) {
				all := make([]runtimetest.Said, events)
				_, err := topic.EnqueueMany(t.Context(), tx, all)
				require.NoError(t, err)
			})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			began := time.Now()
			ended := make(chan error, 1)
			go func() { ended <- r.Run(ctx) }()
			for pgtest.Count(t, pool, "SELECT count(*) FROM outbox.dead_letters") < events {
				select {
				case err := <-ended:
					require.FailNow(t, "it has ended", "%v", err)
				case <-time.After(pgtest.Interval):
				}
				require.Less(t, time.Since(began), 5*time.Minute)
			}
			cancel()
			require.NoError(t, pgtest.Receive(t, ended, "the end"))
			lines := spy.Lines()
			minutes := int(time.Since(began) / time.Minute)
			require.LessOrEqual(t, len(lines), 5+minutes, "%s", strings.Join(lines, "\n"))
			text := strings.Join(lines, "\n")
			require.Contains(t, text, `level=WARN msg="topic fails"`)
			require.Contains(t, text, `level=ERROR msg="topic has dead letters"`)
			require.Contains(t, text, `error="no route to host"`)
			require.Contains(t, lines[len(lines)-1], fmt.Sprintf("retried=%d dead=%d", events, events))
			require.EqualValues(t, 2*events, spy.failures.Load(), "at DEBUG there is a line per failure")
		})
	}
}

// countingSpy keeps the lines of an INFO log, and counts the lines about single events.
type countingSpy struct {
	*runtimetest.LogSpy
	failures atomic.Int64
}

func newCountingSpy() *countingSpy { return &countingSpy{LogSpy: runtimetest.NewLogSpy()} }

func (s *countingSpy) Logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(s, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// Write implements io.Writer.
func (s *countingSpy) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("level=DEBUG")) {
		if bytes.Contains(line, []byte(`msg="event failed"`)) || bytes.Contains(line, []byte(`msg="event is dead"`)) {
			s.failures.Add(1)
		}
		return len(line), nil
	}
	return s.LogSpy.Write(line)
}

// TestTopicRecovers: the log says that a topic fails, and that it recovers.
func TestTopicRecovers(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	spy := runtimetest.NewLogSpy()
	cfg := runtimetest.QuickConfig()
	cfg.Logger = spy.Logger()
	topic := runtimetest.JobTopic("one")
	var calls atomic.Int64
	stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, func(context.Context, outbox.Delivery[runtimetest.Job]) error {
		if calls.Add(1) <= 3 {
			return errors.New("no route to host")
		}
		return nil
	})))
	id := runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(1)...)[0]
	pgtest.Settles(t, pool, 1, runtimetest.DeliveredSQL)
	require.NoError(t, stop())
	lines := spy.Lines()
	require.Len(t, lines, 4, strings.Join(lines, "\n"))
	require.Contains(t, lines[1], `level=WARN msg="topic fails"`)
	require.Contains(t, lines[1], "namespace=jobs topic=one event_id="+id.String()+" attempt=1")
	require.Contains(t, lines[2], `level=INFO msg="topic recovers"`)
	require.Contains(t, lines[2], "failed=3")
	require.Contains(t, lines[3], "delivered=1 retried=3 dead=0 lost=0 handed_back=0")
}
