package runtimetest_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/queue"
)

// builds are two builds of a service, of which the new one has raised the version of a topic. They run side by side.
type builds struct {
	old, new func() (stop func())
	enqueue  func(version int, tx pgx.Tx, key string, n int) error
	pending  string // SQL that counts the events of version 1 that were not handled
}

// deploy runs builds under load as a rolling deployment does: the old one, both, the old one again after a rollback, and at
// last the new one. It returns how many events were enqueued.
func (b *builds) deploy(t *testing.T, pool *pgxpool.Pool, onRollback func()) int {
	t.Helper()
	var total atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var raised atomic.Bool
	var producers sync.WaitGroup
	for p := range 4 {
		producers.Go(func() {
			for n := 1; ctx.Err() == nil; n++ {
				version := 1
				if raised.Load() && (n+p)%2 == 0 {
					version = 2
				}
				if !pgtest.Check(t, pgx.BeginFunc(context.WithoutCancel(ctx), pool, func(tx pgx.Tx) error {
					return b.enqueue(version, tx, fmt.Sprint("key", p), n)
				})) {
					return
				}
				total.Add(1)
			}
		})
	}
	more := func(n int64) {
		from := total.Load()
		pgtest.Eventually(t, func() bool { return total.Load() >= from+n })
	}
	stopOld := []func(){b.old(), b.old()}
	more(100)
	stopNew := []func(){b.new(), b.new()}
	raised.Store(true) // consumers are deployed before producers
	more(400)
	stopOld[0]()
	more(200)
	stopNew[0]() // rolled back
	stopOld[0] = b.old()
	stopNew[1]()
	more(200)
	raised.Store(false)
	more(100)
	cancel()
	producers.Wait()
	onRollback()
	stopNew[0] = b.new()
	stopOld[0]()
	pgtest.Settles(t, pool, 0, b.pending)
	stopOld[1]()
	stopNew[0]()
	return int(total.Load())
}

// TestTwoBuildsOfADispatcher: while two builds run side by side under load, no event dies, none is misread, none is stuck
// once the new build is there, and each is handled in its first attempt.
func TestTwoBuildsOfADispatcher(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("raised")
	var misread atomic.Int64
	build := func(topic outbox.Topic[runtimetest.Job], knows int) func() func() {
		return func() func() {
			d := runtimetest.Dispatcher(t, pool, queue.Config{PollInterval: 20 * time.Millisecond}, runtimetest.OnJob(topic, func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
				if d.Version > knows {
					misread.Add(1)
				}
				return nil
			}))
			stop := runtimetest.StartDispatcher(t, d)
			return func() { require.NoError(t, stop()) }
		}
	}
	topics := map[int]outbox.Topic[runtimetest.Job]{1: topic, 2: runtimetest.Newer(topic)}
	b := &builds{
		old: build(topic, 1), new: build(runtimetest.Newer(topic), 2),
		enqueue: func(version int, tx pgx.Tx, _ string, n int) error {
			_, err := topics[version].Untyped().Enqueue(t.Context(), tx, runtimetest.NumberedJobs(1)[0])
			return err
		},
		pending: "SELECT count(*) FROM outbox.queue",
	}
	total := b.deploy(t, pool, func() {
		pgtest.Settles(t, pool, 0, "SELECT count(*) FROM outbox.queue WHERE version = 1")
		require.NotZero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.queue WHERE version = 2"))
		require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.queue WHERE attempts > 0"))
	})
	require.Equal(t, total, pgtest.Count(t, pool, runtimetest.DeliveredSQL+" AND attempts = 1"))
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.dead_letters"))
	require.Zero(t, misread.Load())
}

// TestTwoBuildsOfAListener is TestTwoBuildsOfADispatcher for a listener with several shards. Order is kept too.
func TestTwoBuildsOfAListener(t *testing.T) {
	t.Parallel()
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		h, misread := runtimetest.NewNotes(), new(atomic.Int64)
		build := func(topic outbox.Topic[runtimetest.Said], knows int) func() func() {
			return func() func() {
				mine := runtimetest.NewNotes()
				mine.Fail = func(d outbox.Delivery[runtimetest.Said]) error {
					if d.Version > knows {
						misread.Add(1)
					}
					h.Mu.Lock()
					defer h.Mu.Unlock()
					h.Got = append(h.Got, d)
					return nil
				}
				return runtimetest.StartListener(t, runtimetest.Ears(t, pool, transactional, topic, listener.Spec{Shards: 3}, listener.Config{PollInterval: 20 * time.Millisecond}, mine))
			}
		}
		topics := map[int]outbox.Topic[runtimetest.Said]{1: runtimetest.SaidTopic, 2: runtimetest.Newer(runtimetest.SaidTopic)}
		b := &builds{
			old: build(runtimetest.SaidTopic, 1), new: build(runtimetest.Newer(runtimetest.SaidTopic), 2),
			enqueue: func(version int, tx pgx.Tx, key string, n int) error {
				_, err := topics[version].Untyped().Enqueue(t.Context(), tx, runtimetest.Said{Key: key, N: n})
				return err
			},
			pending: "SELECT count(*) FROM outbox.listeners WHERE in_batch OR high_seq < (SELECT max(seq) FROM outbox.log)",
		}
		total := b.deploy(t, pool, func() {
			pgtest.Settles(t, pool, 1, `SELECT (count(*) > 0 AND bool_and(NOT l.running AND l.retry_count = 0 AND g.version = 2))::int FROM outbox.listeners AS l
				LEFT JOIN outbox.log AS g ON g.seq = l.last_seq + 1 WHERE l.in_batch`)
		})
		require.Zero(t, pgtest.Count(t, pool, "SELECT (SELECT count(*) FROM outbox.dead_letters) + (SELECT count(*) FROM outbox.parked)"))
		require.Zero(t, misread.Load())
		handled := make(map[uuid.UUID]bool)
		last := make(map[string]int)
		for _, d := range h.Got {
			require.Equal(t, 1, d.Attempt)
			if handled[d.ID] {
				continue // a transaction was rolled back, or a process was stopped behind its handler
			}
			handled[d.ID] = true
			require.Equal(t, last[d.Payload.Key]+1, d.Payload.N, "order")
			last[d.Payload.Key]++
		}
		require.Len(t, handled, total)
		if transactional {
			require.Equal(t, total, pgtest.Count(t, pool, "SELECT count(*) FROM effects"))
		}
	})
}

// TestPublishersKnowVersions: a publisher passes only versions that it knows, because it may decode payloads.
func TestPublishersKnowVersions(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	publishers := func(b *runtimetest.Broker) map[string]publish.Publisher {
		return map[string]publish.Publisher{"kafka": b}
	}
	to := publish.Publication{Broker: "kafka", Destination: "sc.test"}
	old, recent := runtimetest.NewBroker(), runtimetest.NewBroker()
	for _, test := range []struct {
		broker *runtimetest.Broker
		topic  outbox.Topic[runtimetest.Said]
		want   int
	}{{old, runtimetest.SaidTopic, 1}, {recent, runtimetest.Newer(runtimetest.SaidTopic), 2}} {
		l, err := listener.New(pool, listener.Spec{Name: "relay"}, listener.Config{Logger: runtimetest.DiscardLogger(), Publishers: publishers(test.broker)}, listener.Publish(test.topic, to))
		require.NoError(t, err)
		if test.broker == old {
			runtimetest.SayAs(t, pool, 1, "a", 1)
			runtimetest.SayAs(t, pool, 2, "a", 2)
			runtimetest.SayAs(t, pool, 1, "a", 3)
		}
		report, err := l.Drain(t.Context())
		require.NoError(t, err)
		require.Equal(t, listener.Report{Delivered: test.want}, report)
	}
	require.Equal(t, []string{"a1"}, old.Names(t))
	require.Equal(t, []string{"a2", "a3"}, recent.Names(t))

	d, err := queue.NewDispatcher(pool, queue.Config{Logger: runtimetest.DiscardLogger(), Publishers: publishers(old)}, queue.Publish(runtimetest.PublishedTopic, to))
	require.NoError(t, err)
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		_, err := runtimetest.Newer(runtimetest.PublishedTopic).Untyped().Enqueue(t.Context(), tx, runtimetest.Said{Key: "q"})
		require.NoError(t, err)
	})
	report, err := d.Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, queue.Report{}, report)
	require.Equal(t, 1, pgtest.Count(t, pool, runtimetest.UntouchedSQL))
}

// TestRenamedTopic: a topic's handler gets the events of its earlier names. A dedupe key counts once per name.
func TestRenamedTopic(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	rename := func(s *outbox.TopicSpec) { s.RenamedFrom, s.Name = []string{s.Name, "older"}, "renamed" }
	before := runtimetest.JobTopic("before")
	after := runtimetest.Altered(before, rename)
	for _, topic := range []outbox.Topic[runtimetest.Job]{before, after, runtimetest.JobTopic("older"), runtimetest.JobTopic("other")} {
		runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(2)...)
	}
	var mu sync.Mutex
	got := make(map[string]int)
	d := runtimetest.Dispatcher(t, pool, queue.Config{Topics: []string{"renamed"}}, runtimetest.OnJob(after, func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
		mu.Lock()
		defer mu.Unlock()
		got[d.Topic]++
		return nil
	}))
	report, err := d.Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, queue.Report{Delivered: 6}, report)
	require.Equal(t, map[string]int{"before": 2, "renamed": 2, "older": 2}, got)
	_, err = queue.NewDispatcher(pool, queue.Config{Topics: []string{"before"}}, runtimetest.OnJob(after, runtimetest.Succeed))
	require.ErrorContains(t, err, `has no topic "before"`)
	_, err = queue.NewDispatcher(pool, queue.Config{}, runtimetest.OnJob(after, runtimetest.Succeed), runtimetest.OnJob(before, runtimetest.Succeed))
	require.ErrorContains(t, err, "topic jobs/before: has two handlers")

	said := runtimetest.Altered(runtimetest.SaidTopic, rename)
	h := runtimetest.NewNotes()
	l := runtimetest.Ears(t, pool, false, said, listener.Spec{}, listener.Config{}, h)
	runtimetest.SayAs(t, pool, 1, "a", 1)
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		_, err := said.Enqueue(t.Context(), tx, runtimetest.Said{Key: "a", N: 2})
		require.NoError(t, err)
	})
	runtimetest.SayAs(t, pool, 1, "a", 3)
	runtimetest.DrainAll(t, l)
	require.Equal(t, []string{"a1", "a2", "a3"}, h.Names())
	require.Equal(t, []string{"said", "renamed", "said"}, []string{h.Got[0].Topic, h.Got[1].Topic, h.Got[2].Topic})
}

// A process that runs tells that it takes the earlier names too.
func TestRenamedTopicIsInProcesses(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	after := runtimetest.Altered(runtimetest.JobTopic("after"), func(s *outbox.TopicSpec) { s.RenamedFrom = []string{"before"} })
	stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(after, runtimetest.Succeed)))
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.processes WHERE topics ? 'jobs/before' AND topics ? 'jobs/after'")
	require.NoError(t, stop())
}
