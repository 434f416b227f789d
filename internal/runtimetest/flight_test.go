package runtimetest_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/internal/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/queue"
)

// newer returns topic with version 2, as the next build has it.
func newer[P any](topic outbox.Topic[P]) outbox.Topic[P] {
	return runtimetest.Altered(topic, func(s *outbox.TopicSpec) { s.Version = 2 })
}

// untouched is the number of events in the queue that nobody has claimed.
const untouched = "SELECT count(*) FROM outbox.queue WHERE attempts = 0 AND claim_no = 0 AND locked_until IS NULL"

// A dispatcher leaves events of a newer version as they are: a drain ends although they are due, a running one is idle, and a
// sweep does not make them dead. A process that knows the version gets them.
func TestNewerVersionsWaitInTheQueue(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	now := runtimetest.JobTopic("raised")
	ids := runtimetest.EnqueueJobs(t, pool, newer(now), runtimetest.NumberedJobs(300)...)
	runtimetest.EnqueueJobs(t, pool, now, runtimetest.NumberedJobs(20)...)
	var misread atomic.Int64
	old := runtimetest.OnJob(now, func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
		if d.Version > 1 {
			misread.Add(1)
		}
		return nil
	})
	d := runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), old)
	report, err := d.Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, queue.Report{Delivered: 20}, report)
	require.Equal(t, 300, pgtest.Count(t, pool, untouched))

	watch := queue.Watch(d)
	stop := runtimetest.StartDispatcher(t, d)
	pgtest.Receive(t, watch.Idle, "idleness although events are due")
	runtimetest.EnqueueJobs(t, pool, newer(now), runtimetest.NumberedJobs(1)...)
	runtimetest.EnqueueJobs(t, pool, now, runtimetest.NumberedJobs(5)...)
	pgtest.Settles(t, pool, 25, runtimetest.DeliveredSQL)
	require.NoError(t, stop())
	require.Equal(t, 301, pgtest.Count(t, pool, untouched))

	// The process that had claimed one of them for the last time has died.
	pgtest.Execute(t, pool, `UPDATE outbox.queue SET attempts = max_attempts, claim_no = 1, locked_by = gen_random_uuid(),
		locked_until = now() - interval '1 day', updated_at = now() - interval '1 day' WHERE id = $1`, ids[0])
	report, err = d.Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, queue.Report{}, report)
	died, noted, err := queue.Sweep(t.Context(), d, nil)
	require.NoError(t, err)
	require.Zero(t, died+noted)
	require.Equal(t, 301, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.queue"))

	report, err = runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(newer(now), runtimetest.Succeed)).Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, queue.Report{Delivered: 300, Dead: 1}, report)
	require.Zero(t, misread.Load())
}

// A Store claims the versions that it is told to.
func TestStoreClaimsVersions(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	one, two := runtimetest.JobTopic("one"), runtimetest.JobTopic("two")
	for _, topic := range []outbox.Topic[runtimetest.Job]{one, newer(one), two, newer(two)} {
		runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(3)...)
	}
	for _, test := range []struct {
		versions map[string]int
		topics   []string
		want     map[string]int
	}{
		{map[string]int{"one": 1, "two": 1}, nil, map[string]int{"one 1": 3, "two 1": 3}},
		{map[string]int{"one": 1}, nil, map[string]int{"one 1": 3, "two 1": 3, "two 2": 3}},
		{map[string]int{"one": 1, "two": 2}, []string{"one"}, map[string]int{"one 1": 3}},
		{map[string]int{"one": 0}, []string{"one"}, map[string]int{}},
		{nil, nil, map[string]int{"one 1": 3, "one 2": 3, "two 1": 3, "two 2": 3}},
	} {
		for _, cursor := range []*queue.Cursor{nil, {}} {
			s := runtimetest.NewStore(t, pool)
			got := make(map[string]int)
			claimed, err := s.Claim(t.Context(), queue.ClaimConfig{Versions: test.versions, Topics: test.topics, Cursor: cursor})
			require.NoError(t, err)
			for _, c := range claimed {
				got[fmt.Sprintf("%s %d", c.Topic, c.Version)]++
			}
			require.Equal(t, test.want, got)
			_, err = s.Release(t.Context(), claimed)
			require.NoError(t, err)
		}
	}
}

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
	topics := map[int]outbox.Topic[runtimetest.Job]{1: topic, 2: newer(topic)}
	b := &builds{
		old: build(topic, 1), new: build(newer(topic), 2),
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

// ears is a listener of SaidTopic in one of two builds.
func ears(t *testing.T, pool *pgxpool.Pool, transactional bool, topic outbox.Topic[runtimetest.Said], spec listener.Spec, cfg listener.Config, h *runtimetest.Notes) *listener.Listener {
	t.Helper()
	spec.Name, cfg.Logger = "ears", runtimetest.DiscardLogger()
	handler := listener.Handle(topic, h, h.Handle)
	if transactional {
		runtimetest.MakeEffects(t, pool)
		handler = listener.HandleTx(topic, h, h.HandleTx)
	}
	l, err := listener.New(pool, runtimetest.WithLateRetries(spec), cfg, handler)
	require.NoError(t, err)
	return l
}

// say commits an event of a version.
func say(t testing.TB, pool *pgxpool.Pool, version int, key string, n int) {
	t.Helper()
	topic := runtimetest.SaidTopic
	if version == 2 {
		topic = newer(topic)
	}
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		_, err := topic.Untyped().Enqueue(t.Context(), tx, runtimetest.Said{Key: key, N: n})
		require.NoError(t, err)
	})
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
				return runtimetest.StartListener(t, ears(t, pool, transactional, topic, listener.Spec{Shards: 3}, listener.Config{PollInterval: 20 * time.Millisecond}, mine))
			}
		}
		topics := map[int]outbox.Topic[runtimetest.Said]{1: runtimetest.SaidTopic, 2: newer(runtimetest.SaidTopic)}
		b := &builds{
			old: build(runtimetest.SaidTopic, 1), new: build(newer(runtimetest.SaidTopic), 2),
			enqueue: func(version int, tx pgx.Tx, key string, n int) error {
				_, err := topics[version].Untyped().Enqueue(t.Context(), tx, runtimetest.Said{Key: key, N: n})
				return err
			},
			pending: "SELECT count(*) FROM outbox.listeners WHERE in_batch OR high_seq < (SELECT max(seq) FROM outbox.log)",
		}
		total := b.deploy(t, pool, func() {
			pgtest.Settles(t, pool, 1, `SELECT count(*) > 0 AND bool_and(NOT l.running AND l.retry_count = 0 AND g.version = 2)::int FROM outbox.listeners AS l
				JOIN outbox.log AS g ON g.seq = l.last_seq + 1 WHERE l.in_batch`)
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

// TestListenerStopsBeforeANewerVersion: what is before the event is done, the event is not charged, the other shards continue,
// a drain ends, and a running listener tries again once per poll. A process that knows the version gets the shard
// immediately, although it sleeps.
func TestListenerStopsBeforeANewerVersion(t *testing.T) {
	t.Parallel()
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		old, recent := runtimetest.NewNotes(), runtimetest.NewNotes()
		const stuck = "SELECT count(*) FROM outbox.listeners WHERE in_batch AND NOT running AND retry_count = 0 AND preferred IS NULL AND last_error IS NULL"
		spec := listener.Spec{Shards: 2}
		l := ears(t, pool, transactional, runtimetest.SaidTopic, spec, listener.Config{PollInterval: 50 * time.Millisecond}, old)
		bucket := func(key string) int {
			return pgtest.Count(t, pool, "SELECT bucket % 2 FROM outbox.log WHERE partition_key = $1 LIMIT 1", key)
		}
		say(t, pool, 1, "a", 1)
		say(t, pool, 2, "a", 2)
		say(t, pool, 1, "a", 3)
		other := ""
		for _, key := range []string{"b", "c", "d", "e", "f", "g", "h", "i"} {
			say(t, pool, 1, key, 1)
			if bucket(key) != bucket("a") {
				other = key
			}
		}
		for range 3 {
			_, err := l.Drain(t.Context())
			require.NoError(t, err)
		}
		require.Equal(t, 1, pgtest.Count(t, pool, stuck))
		require.Contains(t, old.Names(), "a1")
		require.NotContains(t, old.Names(), "a2")
		require.NotContains(t, old.Names(), "a3")
		require.Contains(t, old.Names(), other+"1")

		watch := listener.Watch(l)
		stop := runtimetest.StartListener(t, l)
		for range 2 {
			pgtest.Receive(t, watch.Ended, "a try")
		}
		began := time.Now()
		for range 5 {
			pgtest.Receive(t, watch.Ended, "a try")
		}
		require.GreaterOrEqual(t, time.Since(began), 4*50*time.Millisecond*9/10, "one try per poll")
		done := len(old.Names())
		say(t, pool, 1, other, 2)
		old.Await(t, done+1)
		require.Contains(t, old.Names(), other+"2")

		dozing := listener.Config{PollInterval: 20 * time.Minute, LeaseDuration: time.Hour}
		stopRecent := runtimetest.StartListener(t, ears(t, pool, transactional, newer(runtimetest.SaidTopic), spec, dozing, recent))
		pgtest.Settles(t, pool, 2, "SELECT count(*) FROM outbox.listeners WHERE NOT in_batch AND high_seq = (SELECT max(seq) FROM outbox.log)")
		n := 4
		for range 5 { // the old build may have the shard, and gives it to the other, which hardly ever polls
			pgtest.Execute(t, pool, "UPDATE outbox.listeners SET preferred = $1 WHERE NOT running", listener.ConfigOf(l).WorkerID)
			say(t, pool, 2, "a", n)
			n++
			pgtest.Settles(t, pool, 2, "SELECT count(*) FROM outbox.listeners WHERE NOT in_batch AND high_seq = (SELECT max(seq) FROM outbox.log)")
		}
		stop()
		stopRecent()
		require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.dead_letters"))
		for _, d := range old.Got {
			require.Equal(t, 1, d.Version)
		}
		for _, d := range recent.Got {
			require.Equal(t, 1, d.Attempt)
		}
	})
}

// TestParkedNewerVersionWaits: a parked event of a newer version is not charged by a process that does not know it, which
// handles the other keys meanwhile.
func TestParkedNewerVersionWaits(t *testing.T) {
	t.Parallel()
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		old, recent := runtimetest.NewNotes(), runtimetest.NewNotes()
		recent.Fail = func(d outbox.Delivery[runtimetest.Said]) error {
			if d.Payload.Key == "a" && d.Attempt == 1 {
				return errors.New("not yet")
			}
			return nil
		}
		spec := listener.Spec{ParkKeys: true}
		cfg := listener.Config{PollInterval: 20 * time.Millisecond}
		say(t, pool, 2, "a", 1)
		say(t, pool, 1, "a", 2)
		_, err := ears(t, pool, transactional, newer(runtimetest.SaidTopic), spec, cfg, recent).Drain(t.Context())
		require.NoError(t, err)
		require.Equal(t, 2, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.parked"))
		runtimetest.RetryNow(t, pool)

		l := ears(t, pool, transactional, runtimetest.SaidTopic, spec, cfg, old)
		say(t, pool, 1, "b", 1)
		_, err = l.Drain(t.Context())
		require.NoError(t, err)
		stop := runtimetest.StartListener(t, l)
		say(t, pool, 1, "b", 2)
		old.Await(t, 2)
		watch := listener.Watch(l)
		for range 5 {
			pgtest.Receive(t, watch.Ended, "a look at what is parked")
		}
		stop()
		require.Equal(t, []string{"b1", "b2"}, old.Names())
		require.Equal(t, 1, pgtest.Count(t, pool, "SELECT attempts FROM outbox.parked ORDER BY no LIMIT 1"))

		// After a crash, events are taken one by one and charged before: not this one.
		pgtest.Execute(t, pool, "UPDATE outbox.parked SET taken = 50, retry_after = now() - interval '1 s' WHERE retry_after IS NOT NULL")
		pgtest.Execute(t, pool, "UPDATE outbox.listeners SET one_by_one = 3")
		say(t, pool, 1, "b", 3)
		_, err = l.Drain(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{"b1", "b2", "b3"}, old.Names())
		require.Equal(t, 1, pgtest.Count(t, pool, "SELECT attempts FROM outbox.parked ORDER BY no LIMIT 1"))
		require.Equal(t, 50, pgtest.Count(t, pool, "SELECT taken FROM outbox.parked ORDER BY no LIMIT 1"), "it may still have killed its process")

		pgtest.Execute(t, pool, "UPDATE outbox.listeners SET one_by_one = 0")
		stopOld := runtimetest.StartListener(t, l)
		stopRecent := runtimetest.StartListener(t, ears(t, pool, transactional, newer(runtimetest.SaidTopic), spec, cfg, recent))
		pgtest.Settles(t, pool, 0, "SELECT count(*) FROM outbox.parked")
		stopOld()
		stopRecent()
		require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.dead_letters"))
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
	}{{old, runtimetest.SaidTopic, 1}, {recent, newer(runtimetest.SaidTopic), 2}} {
		l, err := listener.New(pool, listener.Spec{Name: "relay"}, listener.Config{Logger: runtimetest.DiscardLogger(), Publishers: publishers(test.broker)}, listener.Publish(test.topic, to))
		require.NoError(t, err)
		if test.broker == old {
			say(t, pool, 1, "a", 1)
			say(t, pool, 2, "a", 2)
			say(t, pool, 1, "a", 3)
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
		_, err := newer(runtimetest.PublishedTopic).Untyped().Enqueue(t.Context(), tx, runtimetest.Said{Key: "q"})
		require.NoError(t, err)
	})
	report, err := d.Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, queue.Report{}, report)
	require.Equal(t, 1, pgtest.Count(t, pool, untouched))
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
	require.ErrorContains(t, err, "topic test/before: has two handlers")

	said := runtimetest.Altered(runtimetest.SaidTopic, rename)
	h := runtimetest.NewNotes()
	l := ears(t, pool, false, said, listener.Spec{}, listener.Config{}, h)
	say(t, pool, 1, "a", 1)
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		_, err := said.Untyped().Enqueue(t.Context(), tx, runtimetest.Said{Key: "a", N: 2})
		require.NoError(t, err)
	})
	say(t, pool, 1, "a", 3)
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
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.processes WHERE topics ? 'test/before' AND topics ? 'test/after'")
	require.NoError(t, stop())
}
