package queue_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

func TestDispatcherDelivers(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	keys := func(v any) outbox.Keys {
		p := v.(*runtimetest.Job)
		return outbox.Keys{
			TenantID: outbox.Tenant(p.TenantID), Partition: eventkey.NewKey(eventkey.IntPart("n", p.N)),
			Dedupe:     eventkey.NewKey(eventkey.UUIDPart("tenant_id", p.TenantID), eventkey.IntPart("n", p.N)),
			EntityType: "job", EntityID: eventkey.NewKey(eventkey.IntPart("n", p.N)), EntityVersion: 7,
		}
	}
	topic := runtimetest.Altered(runtimetest.JobTopic("one"), func(s *outbox.TopicSpec) { s.Keys = keys })
	tenant := uuid.New()
	var receipt outbox.Receipt
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) (err error) {
		receipt, err = topic.Enqueue(t.Context(), tx, runtimetest.Job{TenantID: tenant, N: 1 << 62}, outbox.WithHeaders(map[string]string{"traceparent": "x"}))
		return err
	}))
	got := make(chan outbox.Delivery[runtimetest.Job], 1)
	stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(topic, func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
		got <- d
		return nil
	})))
	d := pgtest.Receive(t, got, "the delivery")
	require.NoError(t, stop())
	require.WithinDuration(t, time.Now(), d.CreatedAt, time.Minute)
	d.CreatedAt = time.Time{}
	require.Equal(t, outbox.Delivery[runtimetest.Job]{
		Payload: runtimetest.Job{TenantID: tenant, N: 1 << 62},
		Event: outbox.Event{
			ID: receipt.ID, Namespace: "jobs", Topic: "one", Version: 1, TenantID: outbox.Tenant(tenant),
			DedupeKey: tenant.String() + "/4611686018427387904", PartitionKey: "4611686018427387904",
			Entity:  outbox.Entity{Type: "job", ID: "4611686018427387904", Version: 7},
			Headers: map[string]string{"traceparent": "x"}, Attempt: 1, MaxAttempts: 5,
		},
	}, d)
	r := runtimetest.StateOf(t, pool, receipt.ID)
	require.Equal(t, "delivered", r.Status)
	require.Equal(t, 1, r.Attempts)
	require.False(t, r.Leased)
}

// TestRunWithoutFaultsHasNoDuplicates is invariant I9: three dispatchers, each event handled exactly once.
func TestRunWithoutFaultsHasNoDuplicates(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	const events = 5_000
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("one")
	var mu sync.Mutex
	seen := make(map[int64]int)
	done := make(chan struct{})
	handler := runtimetest.OnJob(topic, func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
		mu.Lock()
		defer mu.Unlock()
		if seen[d.Payload.N]++; len(seen) == events && seen[d.Payload.N] == 1 {
			close(done)
		}
		return nil
	})
	var stops []func() error
	for range 3 {
		stops = append(stops, runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), handler)))
	}
	var producers sync.WaitGroup
	jobs := runtimetest.NumberedJobs(events)
	for i := range 5 {
		producers.Go(func() {
			for from := i * 1000; from < (i+1)*1000; from += 50 {
				runtimetest.EnqueueJobs(t, pool, topic, jobs[from:from+50]...)
			}
		})
	}
	producers.Wait()
	pgtest.Receive(t, done, "all events")
	for _, stop := range stops {
		require.NoError(t, stop())
	}
	for n, times := range seen {
		require.Equal(t, 1, times, "event %d", n)
	}
	require.Equal(t, events, pgtest.Count(t, pool, runtimetest.DeliveredSQL+" AND attempts = 1"))
}

func TestDispatcherLeavesOtherTopicsAlone(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	mine, excluded, unhandled := runtimetest.JobTopic("mine"), runtimetest.JobTopic("excluded"), runtimetest.JobTopic("unhandled")
	foreign := runtimetest.JobTopic("mine")
	foreign = runtimetest.Altered(foreign, func(s *outbox.TopicSpec) { s.Namespace = "others" })
	var ids []uuid.UUID
	for _, topic := range []outbox.Topic[runtimetest.Job]{excluded, unhandled, foreign, mine} {
		ids = append(ids, runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(1)...)...)
	}
	cfg := runtimetest.QuickConfig()
	cfg.Topics = []string{"mine"}
	got := make(chan string, 4)
	note := func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
		got <- d.Topic
		return nil
	}
	d := runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(mine, note), runtimetest.OnJob(excluded, note))
	watch := queue.Watch(d)
	stop := runtimetest.StartDispatcher(t, d)
	require.Equal(t, "mine", pgtest.Receive(t, got, "the delivery"))
	pgtest.Receive(t, watch.Idle, "idleness")
	require.NoError(t, stop())
	require.Empty(t, got)
	for _, id := range ids[:3] {
		r := runtimetest.StateOf(t, pool, id)
		require.Equal(t, "pending", r.Status)
		require.Zero(t, r.ClaimNo)
	}
}

func TestDispatcherServesItsTenants(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("one")
	a, b := runtimetest.NumberedJobs(2), runtimetest.NumberedJobs(2)
	runtimetest.EnqueueJobs(t, pool, topic, append(a, b...)...)
	cfg := runtimetest.QuickConfig()
	cfg.TenantIDs = []uuid.UUID{b[0].TenantID}
	d := runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, runtimetest.Succeed))
	watch := queue.Watch(d)
	stop := runtimetest.StartDispatcher(t, d)
	pgtest.Settles(t, pool, 2, runtimetest.DeliveredSQL)
	pgtest.Receive(t, watch.Idle, "idleness")
	require.NoError(t, stop())
	require.Equal(t, 2, pgtest.Count(t, pool, "SELECT count(*) FROM testing.events WHERE status = 'pending' AND claim_no = 0 AND tenant_id = $1", a[0].TenantID))
}

func TestConcurrencyIsReachedAndNeverExceeded(t *testing.T) {
	t.Parallel()
	const concurrency, batch, events = 7, 20, 200
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("one")
	runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(events)...)
	cfg := runtimetest.QuickConfig()
	cfg.Concurrency, cfg.BatchSize = concurrency, batch
	var running runtimetest.Gauge
	full, open := make(chan struct{}), make(chan struct{})
	var once sync.Once
	mostHeld := 0
	var mu sync.Mutex
	stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, func(ctx context.Context, _ outbox.Delivery[runtimetest.Job]) error {
		defer running.Leave()
		if running.Enter() == concurrency {
			once.Do(func() { close(full) })
		}
		<-open
		var held int
		if err := pool.QueryRow(ctx, "SELECT count(*) FROM testing.events WHERE status = 'processing'").Scan(&held); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		mostHeld = max(mostHeld, held)
		return nil
	})))
	pgtest.Receive(t, full, "full concurrency")
	pgtest.Settles(t, pool, batch, "SELECT count(*) FROM testing.events WHERE status = 'processing'")
	close(open)
	pgtest.Settles(t, pool, events, runtimetest.DeliveredSQL)
	require.NoError(t, stop())
	require.EqualValues(t, concurrency, running.Most.Load())
	require.Equal(t, batch, mostHeld, "never more than BatchSize held, running ones included")
}

// TestConcurrencyAboveBatchSize: as many events as Concurrency are in flight, even if a claim takes fewer.
func TestConcurrencyAboveBatchSize(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("one")
	runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(12)...)
	cfg := runtimetest.QuickConfig()
	cfg.Concurrency, cfg.BatchSize = 8, 3
	var running runtimetest.Gauge
	full := make(chan struct{})
	all := sync.OnceFunc(func() { close(full) })
	stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, func(context.Context, outbox.Delivery[runtimetest.Job]) error {
		defer running.Leave()
		if running.Enter() == 8 { // for the first time, or again
			all()
		}
		<-full
		return nil
	})))
	pgtest.Receive(t, full, "eight concurrent handlers")
	pgtest.Settles(t, pool, 12, runtimetest.DeliveredSQL)
	require.NoError(t, stop())
}

func TestConcurrentRunIsRefused(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	d := runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(runtimetest.JobTopic("one"), runtimetest.Succeed))
	watch := queue.Watch(d)
	stop := runtimetest.StartDispatcher(t, d)
	pgtest.Receive(t, watch.Idle, "idleness")
	require.EqualError(t, d.Run(t.Context()), "run dispatcher: the dispatcher is running already")
	_, err := d.Drain(t.Context())
	require.EqualError(t, err, "drain: the dispatcher is running already")
	require.NoError(t, stop())
}

func TestRunAgain(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("one")
	d := runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(topic, runtimetest.Succeed))
	for n := range 3 {
		stop := runtimetest.StartDispatcher(t, d)
		runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(5)...)
		pgtest.Settles(t, pool, 5*(n+1), runtimetest.DeliveredSQL)
		require.NoError(t, stop())
	}
	require.Equal(t, 15, pgtest.Count(t, pool, runtimetest.DeliveredSQL+" AND attempts = 1"))
}

func TestRunWithoutDatabase(t *testing.T) {
	t.Parallel()
	err := runtimetest.Dispatcher(t, runtimetest.Unconnected(t), runtimetest.QuickConfig(), runtimetest.OnJob(runtimetest.JobTopic("one"), runtimetest.Succeed)).Run(t.Context())
	require.ErrorContains(t, err, "run dispatcher: look for schema outbox in database ")
	require.ErrorContains(t, err, "127.0.0.1")
	require.NotErrorIs(t, err, outbox.ErrNotMigrated)

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, runtimetest.Dispatcher(t, runtimetest.Unconnected(t), runtimetest.QuickConfig(), runtimetest.OnJob(runtimetest.JobTopic("one"), runtimetest.Succeed)).Run(ended))
}

func TestRunWithoutMigration(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Empty(t))
	d := runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(runtimetest.JobTopic("one"), runtimetest.Succeed))
	err := d.Run(t.Context())
	require.ErrorIs(t, err, outbox.ErrNotMigrated)
	name := pool.Config().ConnConfig.Database
	require.ErrorContains(t, err, "run dispatcher: look for schema outbox in database "+name+": database is not migrated (run `outboxgen migrate up --schema outbox`): ")
	_, err = d.Drain(t.Context())
	require.ErrorIs(t, err, outbox.ErrNotMigrated)
	require.ErrorContains(t, err, "in database "+name+": database is not migrated")
}

// TestMaintenance sweeps an event whose process died on the last attempt, and prunes events past their retention.
func TestMaintenance(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("one")
	topic = runtimetest.Altered(topic, func(s *outbox.TopicSpec) { s.Retention = outbox.Retention{Delivered: time.Hour, Dead: time.Hour} })
	ids := runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(3)...)
	pgtest.Execute(t, pool, "UPDATE testing.events SET status = 'processing', attempts = 5, claim_no = 5, locked_by = $2, locked_until = now() - interval '1 s' WHERE id = $1", ids[0], uuid.New())
	pgtest.Execute(t, pool, "UPDATE testing.events SET status = 'delivered', finalized_at = now() - interval '2 h' WHERE id = $1", ids[1])
	// Another process has a handler for this topic, with a longer retention.
	pgtest.Execute(t, pool, `INSERT INTO testing.events (namespace, topic, payload, status, finalized_at)
		SELECT 'jobs', 'archive', '1', s, now() - interval '1 year' FROM unnest('{delivered, dead}'::text[]) AS s`)
	log := runtimetest.NewLogSpy()
	cfg := queue.Config{LeaseDuration: 2 * time.Second, PruneInterval: 100 * time.Millisecond, Logger: log.Logger()}
	d := runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, runtimetest.Succeed))
	stop := runtimetest.StartDispatcher(t, d)
	log.Await(t, `msg="event is dead: a sweep has found it"`)
	pgtest.Settles(t, pool, 0, "SELECT count(*) FROM testing.events WHERE id = $1", ids[1])
	pgtest.Settles(t, pool, 1, runtimetest.DeliveredSQL+" AND topic = 'one'")
	require.NoError(t, stop())
	require.Equal(t, 2, pgtest.Count(t, pool, "SELECT count(*) FROM testing.events WHERE topic = 'archive'"), "not its topic")
	r := runtimetest.StateOf(t, pool, ids[0])
	require.Equal(t, "dead", r.Status)
	require.Contains(t, r.LastError, "lease ran out on attempt 5, worker ")
}

// TestRunSurvivesAnOutageOfTheDatabase: an error of the database during the run is logged, and the run continues.
func TestRunSurvivesAnOutageOfTheDatabase(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("one")
	log := runtimetest.NewLogSpy()
	cfg := runtimetest.QuickConfig()
	cfg.Logger = log.Logger()
	d := runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, runtimetest.Succeed))
	watch := queue.Watch(d)
	stop := runtimetest.StartDispatcher(t, d)
	pgtest.Receive(t, watch.Idle, "idleness")
	pgtest.Execute(t, pool, "ALTER TABLE outbox.queue RENAME TO gone")
	log.Await(t, "database is not migrated")
	pgtest.Execute(t, pool, "ALTER TABLE outbox.gone RENAME TO queue")
	runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(1)...)
	pgtest.Settles(t, pool, 1, runtimetest.DeliveredSQL)
	require.NoError(t, stop())
}
