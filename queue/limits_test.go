package queue_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
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
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// calls records when handlers ran.
type calls struct {
	mu      sync.Mutex
	running map[string]int
	most    map[string]int
	starts  map[string][]time.Time
}

func newCalls() *calls {
	return &calls{running: make(map[string]int), most: make(map[string]int), starts: make(map[string][]time.Time)}
}

func (c *calls) begin(keys ...string) (end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, key := range keys {
		c.running[key]++
		c.most[key] = max(c.most[key], c.running[key])
		c.starts[key] = append(c.starts[key], time.Now())
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, key := range keys {
			c.running[key]--
		}
	}
}

// mostLeased watches the leases of each turn in snapshots of its own until ctx ends, and returns the most that it has
// seen of each.
func mostLeased(ctx context.Context, pool *pgxpool.Pool, most map[string]int) error {
	for ctx.Err() == nil {
		rows, err := pool.Query(ctx, "SELECT turn, count(*) FROM outbox.queue WHERE locked_until IS NOT NULL GROUP BY turn")
		if err != nil {
			break
		}
		var turn string
		var n int
		if _, err := pgx.ForEachRow(rows, []any{&turn, &n}, func() error {
			most[turn] = max(most[turn], n)
			return nil
		}); err != nil {
			break
		}
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil
	}
	return ctx.Err()
}

// TestConcurrencyOverProcesses: however many dispatchers there are, no more events of a tenant, and of the topic, are leased
// than their limits say, although handlers fail and lose their leases. All are delivered, and the limits are used.
func TestConcurrencyOverProcesses(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	const tenants, each, perTenant, ofTopic, processes = 6, 60, 3, 10, 3
	pool := pgtest.Database(t)
	topic := runtimetest.LimitedJobs("limited", outbox.Limit{Concurrency: ofTopic}, outbox.Limit{Per: outbox.PerTenant, Concurrency: perTenant})
	var jobs []runtimetest.Job
	for n := range tenants {
		id := uuid.UUID{byte(n + 1)}
		for i := range each {
			jobs = append(jobs, runtimetest.Job{TenantID: id, N: int64(i)})
		}
	}
	runtimetest.EnqueueJobs(t, pool, topic, jobs...)
	c := newCalls()
	for range processes {
		cfg := runtimetest.QuickConfig()
		cfg.BatchSize, cfg.Concurrency = 20, 8
		stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
			defer c.begin("topic", d.TenantID.UUID.String())()
			time.Sleep(time.Duration(rand.IntN(3)) * time.Millisecond) // what handlers do takes time
			if rand.IntN(10) == 0 && d.Attempt < 3 {
				return errors.New("once more")
			}
			return nil
		})))
		defer func() { require.NoError(t, stop()) }()
	}
	watching, over := context.WithCancel(t.Context())
	leased := make(map[string]int)
	watched := make(chan error, 1)
	go func() { watched <- mostLeased(watching, pool, leased) }()
	pgtest.Settles(t, pool, len(jobs), runtimetest.DeliveredSQL)
	over()
	require.NoError(t, <-watched)
	for turn, n := range leased {
		require.LessOrEqual(t, n, perTenant, turn)
	}
	require.LessOrEqual(t, c.most["topic"], ofTopic)
	require.Greater(t, c.most["topic"], perTenant, "the limit of the topic is used")
	for key, n := range c.most {
		require.True(t, key == "topic" || n <= perTenant, "%s: %d", key, n)
	}
}

// requireRate checks that no window of a period has more than n starts.
func requireRate(t *testing.T, starts []time.Time, n int, period time.Duration) {
	t.Helper()
	slices.SortFunc(starts, time.Time.Compare)
	for i := n; i < len(starts); i++ {
		require.Greater(t, starts[i].Sub(starts[i-n]), period, "starts %d and %d of %d", i-n, i, len(starts))
	}
}

// TestRateOverProcesses: in no window of the period do more attempts start than the rate says, over all dispatchers, and
// nearly as many do.
func TestRateOverProcesses(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	const each, processes, period = 45, 3, time.Second
	rates := map[string]int{"a": 10, "b": 10}
	pool := pgtest.Database(t)
	topic := runtimetest.LimitedJobs("rated", outbox.Limit{Per: "{secret}", Rate: outbox.Rate{Events: 10, Period: period}})
	var jobs []runtimetest.Job
	for key := range rates {
		for i := range each {
			jobs = append(jobs, runtimetest.Job{TenantID: uuid.UUID{1}, N: int64(i), Secret: key})
		}
	}
	runtimetest.EnqueueJobs(t, pool, topic, jobs...)
	c := newCalls()
	began := time.Now()
	for range processes {
		stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(topic, func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
			defer c.begin(d.Payload.Secret)()
			return nil
		})))
		defer func() { require.NoError(t, stop()) }()
	}
	pgtest.Settles(t, pool, len(jobs), runtimetest.DeliveredSQL)
	took := time.Since(began)
	for key, n := range rates {
		require.Len(t, c.starts[key], each)
		requireRate(t, c.starts[key], n, period)
	}
	require.Less(t, took, 40*time.Second, "45 at 10 a second take 4 s, and more on a machine that is busy")
}

// TestEventsOfARateBesideABacklog: the backlog of a topic does not keep the workers from events of another, whose rate allows
// them to begin; not even the only worker.
func TestEventsOfARateBesideABacklog(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for _, concurrency := range []int{1, 4} {
		pool := pgtest.Database(t)
		backlog := runtimetest.JobTopic("backlog")
		rated := runtimetest.LimitedJobs("rated", outbox.Limit{Rate: outbox.Rate{Events: 10_000, Period: time.Second}})
		jobs := func(n int) (all []runtimetest.Job) {
			for i := range n {
				all = append(all, runtimetest.Job{TenantID: uuid.UUID{1}, N: int64(i)})
			}
			return all
		}
		runtimetest.EnqueueJobs(t, pool, backlog, jobs(3000)...)
		runtimetest.EnqueueJobs(t, pool, rated, jobs(20)...)
		cfg := runtimetest.QuickConfig()
		cfg.BatchSize, cfg.Concurrency = 100, concurrency
		var others, n atomic.Int64
		all := make(chan int64, 1)
		stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, cfg,
			runtimetest.OnJob(backlog, func(context.Context, outbox.Delivery[runtimetest.Job]) error {
				time.Sleep(time.Millisecond) // what handlers do takes time
				others.Add(1)
				return nil
			}),
			runtimetest.OnJob(rated, func(context.Context, outbox.Delivery[runtimetest.Job]) error {
				if n.Add(1) == 20 {
					all <- others.Load()
				}
				return nil
			})))
		before := pgtest.Receive(t, all, "the events of limited rate")
		t.Logf("with %d workers, %d others before the twentieth", concurrency, before)
		require.Less(t, before, int64(2500))
		require.NoError(t, stop())
	}
}

// TestOthersDoNotWaitAtALimit: what waits at the limit of one key delays no other, and a handler that returns makes room at
// once.
func TestOthersDoNotWaitAtALimit(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	topic := runtimetest.LimitedJobs("mailbox", outbox.Limit{Per: "{secret}", Concurrency: 1})
	var jobs []runtimetest.Job
	for i := range 200 {
		jobs = append(jobs, runtimetest.Job{TenantID: uuid.UUID{1}, N: int64(i), Secret: "busy"})
	}
	runtimetest.EnqueueJobs(t, pool, topic, jobs...)
	release, busy, other := make(chan struct{}), make(chan int64, len(jobs)), make(chan int64, 10)
	cfg := runtimetest.QuickConfig()
	cfg.PollInterval = 5 * time.Second
	stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
		if d.Payload.Secret == "busy" {
			busy <- d.Payload.N
			<-release
		} else {
			other <- d.Payload.N
		}
		return nil
	})))
	require.Zero(t, pgtest.Receive(t, busy, "the first"))
	for i := range 10 {
		runtimetest.EnqueueJobs(t, pool, topic, runtimetest.Job{TenantID: uuid.UUID{2}, N: int64(i), Secret: fmt.Sprint("other ", i)})
		require.Equal(t, int64(i), pgtest.Receive(t, other, "another key"))
	}
	require.Empty(t, busy)
	require.Equal(t, 199, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.queue WHERE attempts = 0"), "no attempt is charged")
	began := time.Now()
	close(release)
	pgtest.Settles(t, pool, len(jobs)+10, runtimetest.DeliveredSQL)
	require.Less(t, time.Since(began), 100*time.Second, "one after the other, without 199 polls between them")
	require.NoError(t, stop())
}

// TestLimitsOfOldEvents: events that were written without a turn, or with one for other limits, count as the others do.
func TestLimitsOfOldEvents(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	limits := []outbox.Limit{{Per: "{secret}", Concurrency: 1}}
	topic := runtimetest.LimitedJobs("mailbox", limits...)
	runtimetest.EnqueueJobs(t, pool, runtimetest.JobTopic("mailbox"), runtimetest.Job{TenantID: uuid.UUID{1}, Secret: "a", N: 1})
	runtimetest.EnqueueJobs(t, pool, runtimetest.LimitedJobs("mailbox", outbox.Limit{Concurrency: 9}), runtimetest.Job{TenantID: uuid.UUID{1}, Secret: "a", N: 2})
	runtimetest.EnqueueJobs(t, pool, topic, runtimetest.Job{TenantID: uuid.UUID{1}, Secret: "a", N: 3})
	pgtest.Execute(t, pool, `WITH e AS (INSERT INTO outbox.events (namespace, topic, payload) VALUES ('jobs', 'mailbox', '"no job"') RETURNING id)
		INSERT INTO outbox.queue (id, namespace, topic) SELECT id, 'jobs', 'mailbox' FROM e`)
	c := newCalls()
	d := runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(topic, func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
		defer c.begin(d.Payload.Secret)()
		return nil
	}))
	r, err := d.Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, queue.Report{Delivered: 3, Dead: 1}, r)
	require.Equal(t, map[string]int{"a": 1}, c.most)
}

// TestLeasesFromBeforeTheLimits: an event whose process died while it was leased for other limits, or for none, is delivered
// by a process that has the limits, with the attempt that was lost in its history.
func TestLeasesFromBeforeTheLimits(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for name, before := range map[string][]outbox.Limit{"no limits": nil, "other limits": {{Concurrency: 9}}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			topic := runtimetest.LimitedJobs("mailbox", outbox.Limit{Per: "{secret}", Concurrency: 1})
			id := runtimetest.EnqueueJobs(t, pool, runtimetest.LimitedJobs("mailbox", before...), runtimetest.Job{TenantID: uuid.UUID{1}, Secret: "a"})[0]
			s, err := queue.NewStore(pool, queue.StoreConfig{Namespace: "jobs"})
			require.NoError(t, err)
			claimed, err := s.Claim(t.Context(), queue.ClaimConfig{LeaseDuration: time.Second})
			require.NoError(t, err)
			require.Len(t, claimed, 1)
			stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(topic, runtimetest.Succeed)))
			pgtest.Settles(t, pool, 1, runtimetest.DeliveredSQL)
			require.NoError(t, stop())
			require.Equal(t, 2, runtimetest.StateOf(t, pool, id).Attempts)
			require.Contains(t, pgtest.Value[string](t, pool, "SELECT failures ->> 0 FROM outbox.delivered"), "lease ran out on attempt 1")
		})
	}
}

// TestLimitsOfAStartThatHasEnded: when the process that started last has ended, the limits of the one before hold again, and
// its events are delivered: those that were filed for the other limits, and new ones. So a rollback needs no restart.
func TestLimitsOfAStartThatHasEnded(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for name, later := range map[string][]outbox.Limit{
		"other values": {{Per: "{secret}", Concurrency: 2}}, "another key": {{Per: outbox.PerTenant, Concurrency: 2}}, "none": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			start := func(topic outbox.Topic[runtimetest.Job], fn runtimetest.JobFunc) (stop func() error) {
				return runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(topic, fn)))
			}
			const own = "SELECT count(*) FROM outbox.limits WHERE per = '{secret}' AND concurrency = 1"
			old, replacing := runtimetest.LimitedJobs("mailbox", outbox.Limit{Per: "{secret}", Concurrency: 1}), runtimetest.LimitedJobs("mailbox", later...)
			stopOld := start(old, runtimetest.Succeed)
			pgtest.Settles(t, pool, 1, own)
			pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.processes")
			stopNew := start(replacing, func(context.Context, outbox.Delivery[runtimetest.Job]) error {
				return outbox.Unavailable(errors.New("not yet"))
			})
			pgtest.Settles(t, pool, 0, own)
			pgtest.Settles(t, pool, 2, "SELECT count(*) FROM outbox.processes")
			pgtest.Settles(t, pool, 0, own) // also if the old one had taken over before the new one was listed
			require.NoError(t, stopNew())
			runtimetest.EnqueueJobs(t, pool, replacing, runtimetest.Job{TenantID: uuid.UUID{1}, Secret: "a", N: 1})
			runtimetest.EnqueueJobs(t, pool, old, runtimetest.Job{TenantID: uuid.UUID{1}, Secret: "a", N: 2})
			pgtest.Settles(t, pool, 1, own)
			pgtest.Settles(t, pool, 2, runtimetest.DeliveredSQL)
			require.NoError(t, stopOld())
		})
	}
}

// TestBatchesOfARate: a batch that may wait for longer than a rate allows a claimed event to begin goes before.
func TestBatchesOfARate(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	const n = 20
	pool := pgtest.Database(t)
	topic := runtimetest.Altered(runtimetest.LimitedJobs("one", outbox.Limit{Rate: outbox.Rate{Events: 10, Period: 2 * time.Second}}),
		func(s *outbox.TopicSpec) { s.Batch = outbox.Batch{Size: 100, Wait: time.Minute} })
	runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(n)...)
	starts := newCalls()
	c := &batchCalls{fn: func(_ context.Context, ds []outbox.Delivery[runtimetest.Job]) error {
		defer starts.begin(slices.Repeat([]string{"all"}, len(ds))...)()
		return nil
	}}
	stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), onBatch(topic, c)))
	pgtest.Settles(t, pool, n, runtimetest.DeliveredSQL)
	require.NoError(t, stop())
	require.Greater(t, starts.most["all"], 1, "events share a call")
	requireRate(t, starts.starts["all"], 10, 2*time.Second)
}

// TestWrongLimits: NewDispatcher and enqueues say what is wrong with the limits of a topic.
func TestWrongLimits(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	for want, limits := range map[string][]outbox.Limit{
		`limit per "" has neither a concurrency nor a rate`:                    {{}},
		`limit per "tenant": concurrency -1 is not between 1 and 2147483647`:   {{Per: outbox.PerTenant, Concurrency: -1}},
		`limit per "": period 500ms of the rate is not between 1s and 24h0m0s`: {{Rate: outbox.Rate{Events: 1, Period: time.Second / 2}}},
		`limit per "": rate of 0 events is not between 1 and 2147483647`:       {{Rate: outbox.Rate{Period: time.Second}}},
		`two limits per "tenant"`:                       {{Per: outbox.PerTenant, Concurrency: 1}, {Per: outbox.PerTenant, Concurrency: 2}},
		`5 limits of at most 4`:                         make([]outbox.Limit, 5),
		`2 limits need a key of the event, which has 1`: {{Per: "{secret}", Concurrency: 1}, {Per: "{n}", Concurrency: 1}},
		`a limit per tenant needs the tenant of the event, which has none: set TenantID`: {{Per: outbox.PerTenant, Concurrency: 1}},
	} {
		topic := runtimetest.LimitedJobs("wrong", limits...)
		job := runtimetest.Job{TenantID: uuid.UUID{1}, Secret: "s"}
		if _, err := queue.NewDispatcher(pool, queue.Config{}, runtimetest.OnJob(topic, nil)); err != nil {
			require.ErrorContains(t, err, want)
			continue
		}
		if want[0] == 'a' {
			topic = runtimetest.Altered(topic, func(s *outbox.TopicSpec) { s.Keys = nil })
		}
		require.ErrorContains(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := topic.Enqueue(t.Context(), tx, job)
			return err
		}), want)
	}
}

// TestLimitThatIsNewHolds: a store that goes on in turns that it knows to have more meets a limit that a process has
// declared meanwhile.
func TestLimitThatIsNewHolds(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := runtimetest.Altered(runtimetest.JobTopic("fair"), func(s *outbox.TopicSpec) { s.Fairness = outbox.FairnessTenant })
	runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(40)...)
	s, err := queue.NewStore(pool, queue.StoreConfig{Namespace: "jobs"})
	require.NoError(t, err)
	cursor := new(queue.Cursor)
	claim := func() int {
		t.Helper()
		for !cursor.Done() {
			claimed, err := s.Claim(t.Context(), queue.ClaimConfig{Topics: []string{"fair"}, BatchSize: 4, Cursor: cursor})
			require.NoError(t, err)
			if len(claimed) > 0 {
				return len(claimed)
			}
		}
		return 0
	}
	require.Equal(t, 4, claim())
	require.Equal(t, 4, claim(), "from the known turn")
	pgtest.Execute(t, pool, `INSERT INTO outbox.limits (namespace, topic, per, counted_as, nth, tag, part, concurrency)
		VALUES ('jobs', 'fair', '', 'fair', 1, 'tenant', 0, 10)`)
	n := 0
	for !cursor.Done() {
		got := claim()
		require.LessOrEqual(t, got, 4)
		n += got
	}
	require.Equal(t, 10, n, "leases count that begin from now on")
}

// TestDrainOfManyKeys: a drain delivers the events of all keys whose limits allow it, also when there are more of them than
// a claim visits, and ends soon when no event may start any more.
func TestDrainOfManyKeys(t *testing.T) {
	t.Parallel()
	const keys, each = 2500, 2
	for name, l := range map[string]outbox.Limit{
		"rate":        {Per: "{secret}", Rate: outbox.Rate{Events: 1, Period: time.Hour}},
		"concurrency": {Per: "{secret}", Concurrency: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			topic := runtimetest.LimitedJobs("limited", l)
			var jobs []runtimetest.Job
			for i := range keys * each {
				jobs = append(jobs, runtimetest.Job{TenantID: uuid.UUID{1}, N: int64(i), Secret: fmt.Sprint("key", i%keys)})
			}
			runtimetest.EnqueueJobs(t, pool, topic, jobs...)
			d := runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(topic, runtimetest.Succeed))
			want := keys * each
			if l.Rate.Events > 0 {
				want = keys
			}
			r, err := d.Drain(t.Context())
			require.NoError(t, err)
			require.Equal(t, want, r.Delivered)
		})
	}
}

// TestWideLimits: a limit with more places than a claim takes holds too. Its claims count only what is noted.
func TestWideLimits(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	audit(t, pool)
	limits := []outbox.Limit{{Concurrency: 40}, {Per: outbox.PerTenant, Concurrency: 25}}
	topic := runtimetest.LimitedJobs("limited", limits...)
	jobs := make([]runtimetest.Job, 3000)
	for i := range jobs {
		jobs[i] = runtimetest.Job{TenantID: uuid.UUID{byte(1 + i%3)}, N: int64(i)}
	}
	watch := pgtest.AnotherPool(t, pool) // handlers that are held occupy the connections of pool
	hold := func() (goOn func()) {
		tx := pgtest.Begin(t, watch, pgx.TxOptions{})
		_, err := tx.Exec(t.Context(), "LOCK TABLE audit.calls IN EXCLUSIVE MODE")
		require.NoError(t, err)
		return func() { require.NoError(t, tx.Rollback(t.Context())) }
	}
	const leased, left = "SELECT count(*) FROM outbox.queue WHERE locked_until IS NOT NULL", "SELECT count(*) FROM outbox.queue"
	goOn := hold()
	runtimetest.EnqueueJobs(t, pool, topic, jobs...)
	for i := range 4 {
		cfg := runtimetest.QuickConfig()
		cfg.Concurrency, cfg.BatchSize = 30, 6
		stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pgtest.AnotherPool(t, pool), cfg,
			recorded(pool, topic, fmt.Sprint("dispatcher ", i), 10*time.Millisecond)))
		defer func() { require.NoError(t, stop()) }()
	}
	pgtest.Settles(t, watch, 40, leased)
	goOn()
	pgtest.Settles(t, watch, 0, left) // some events fail for good
	goOn = hold()
	runtimetest.EnqueueJobs(t, pool, topic, slices.Repeat(jobs[:1], 100)...)
	pgtest.Settles(t, watch, 25, leased)
	goOn()
	pgtest.Settles(t, watch, 0, left)
	found := judge(t, pool, "limited", limits)
	require.Empty(t, found.Wrong)
	require.Equal(t, map[string]int{"": 40, "tenant": 25}, found.Most)
}
