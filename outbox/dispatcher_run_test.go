package outbox_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

func TestDispatcherDelivers(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	keys := func(v any) outbox.Keys {
		p := v.(*job)
		return outbox.Keys{
			TenantID: outbox.Tenant(p.TenantID), Partition: outbox.NewKey(outbox.IntPart("n", p.N)),
			Dedupe:     outbox.NewKey(outbox.UUIDPart("tenant_id", p.TenantID), outbox.IntPart("n", p.N)),
			EntityType: "job", EntityID: outbox.NewKey(outbox.IntPart("n", p.N)), EntityVersion: 7,
		}
	}
	topic := altered(jobTopic("one"), func(s *outbox.TopicSpec) { s.Keys = keys })
	tenant := uuid.New()
	var receipt outbox.Receipt
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) (err error) {
		receipt, err = topic.Untyped().Enqueue(t.Context(), tx, job{TenantID: tenant, N: 1 << 62}, outbox.WithHeaders(map[string]string{"traceparent": "x"}))
		return err
	}))
	got := make(chan outbox.Delivery[job], 1)
	stop := start(t, dispatcher(t, pool, quick(), onJob(topic, func(_ context.Context, d outbox.Delivery[job]) error {
		got <- d
		return nil
	})))
	d := receive(t, got, "the delivery")
	require.NoError(t, stop())
	require.WithinDuration(t, time.Now(), d.CreatedAt, time.Minute)
	d.CreatedAt = time.Time{}
	require.Equal(t, outbox.Delivery[job]{
		Payload: job{TenantID: tenant, N: 1 << 62},
		Event: outbox.Event{
			ID: receipt.ID, Namespace: "jobs", Topic: "one", Version: 1, TenantID: outbox.Tenant(tenant),
			DedupeKey: tenant.String() + "/4611686018427387904", PartitionKey: "4611686018427387904",
			Entity:  outbox.Entity{Type: "job", ID: "4611686018427387904", Version: 7},
			Headers: map[string]string{"traceparent": "x"}, Attempt: 1, MaxAttempts: 5,
		},
	}, d)
	r := stateOf(t, pool, receipt.ID)
	require.Equal(t, "delivered", r.Status)
	require.Equal(t, 1, r.Attempts)
	require.False(t, r.Leased)
}

// TestRunWithoutFaultsHasNoDuplicates is invariant I9: three dispatchers, each event handled exactly once.
func TestRunWithoutFaultsHasNoDuplicates(t *testing.T) {
	t.Parallel()
	const events = 5_000
	pool := pgtest.Database(t)
	topic := jobTopic("one")
	var mu sync.Mutex
	seen := make(map[int64]int)
	done := make(chan struct{})
	handler := onJob(topic, func(_ context.Context, d outbox.Delivery[job]) error {
		mu.Lock()
		defer mu.Unlock()
		if seen[d.Payload.N]++; len(seen) == events && seen[d.Payload.N] == 1 {
			close(done)
		}
		return nil
	})
	var stops []func() error
	for range 3 {
		stops = append(stops, start(t, dispatcher(t, pool, quick(), handler)))
	}
	var producers sync.WaitGroup
	jobs := numbered(events)
	for i := range 5 {
		producers.Go(func() {
			for from := i * 1000; from < (i+1)*1000; from += 50 {
				enqueueJobs(t, pool, topic, jobs[from:from+50]...)
			}
		})
	}
	producers.Wait()
	receive(t, done, "all events")
	for _, stop := range stops {
		require.NoError(t, stop())
	}
	for n, times := range seen {
		require.Equal(t, 1, times, "event %d", n)
	}
	require.Equal(t, events, count(t, pool, delivered+" AND attempts = 1"))
}

func TestDispatcherLeavesOtherTopicsAlone(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	mine, excluded, unhandled := jobTopic("mine"), jobTopic("excluded"), jobTopic("unhandled")
	foreign := jobTopic("mine")
	foreign = altered(foreign, func(s *outbox.TopicSpec) { s.Namespace = "others" })
	var ids []uuid.UUID
	for _, topic := range []outbox.Topic[job]{excluded, unhandled, foreign, mine} {
		ids = append(ids, enqueueJobs(t, pool, topic, numbered(1)...)...)
	}
	cfg := quick()
	cfg.Topics = []string{"mine"}
	got := make(chan string, 4)
	note := func(_ context.Context, d outbox.Delivery[job]) error {
		got <- d.Topic
		return nil
	}
	d := dispatcher(t, pool, cfg, onJob(mine, note), onJob(excluded, note))
	watch := outbox.Watch(d)
	stop := start(t, d)
	require.Equal(t, "mine", receive(t, got, "the delivery"))
	receive(t, watch.Idle, "idleness")
	require.NoError(t, stop())
	require.Empty(t, got)
	for _, id := range ids[:3] {
		r := stateOf(t, pool, id)
		require.Equal(t, "pending", r.Status)
		require.Zero(t, r.ClaimNo)
	}
}

func TestDispatcherServesItsTenants(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := jobTopic("one")
	a, b := numbered(2), numbered(2)
	enqueueJobs(t, pool, topic, append(a, b...)...)
	cfg := quick()
	cfg.TenantIDs = []uuid.UUID{b[0].TenantID}
	d := dispatcher(t, pool, cfg, onJob(topic, succeed))
	watch := outbox.Watch(d)
	stop := start(t, d)
	settles(t, pool, 2, delivered)
	receive(t, watch.Idle, "idleness")
	require.NoError(t, stop())
	require.Equal(t, 2, count(t, pool, "SELECT count(*) FROM outbox.events WHERE status = 'pending' AND claim_no = 0 AND tenant_id = $1", a[0].TenantID))
}

func TestConcurrencyIsReachedAndNeverExceeded(t *testing.T) {
	t.Parallel()
	const concurrency, batch, events = 7, 20, 200
	pool := pgtest.Database(t)
	topic := jobTopic("one")
	enqueueJobs(t, pool, topic, numbered(events)...)
	cfg := quick()
	cfg.Concurrency, cfg.BatchSize = concurrency, batch
	var running gauge
	full, open := make(chan struct{}), make(chan struct{})
	var once sync.Once
	mostHeld := 0
	var mu sync.Mutex
	stop := start(t, dispatcher(t, pool, cfg, onJob(topic, func(ctx context.Context, _ outbox.Delivery[job]) error {
		defer running.leave()
		if running.enter() == concurrency {
			once.Do(func() { close(full) })
		}
		<-open
		var held int
		if err := pool.QueryRow(ctx, "SELECT count(*) FROM outbox.events WHERE status = 'processing'").Scan(&held); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		mostHeld = max(mostHeld, held)
		return nil
	})))
	receive(t, full, "full concurrency")
	settles(t, pool, batch, "SELECT count(*) FROM outbox.events WHERE status = 'processing'")
	close(open)
	settles(t, pool, events, delivered)
	require.NoError(t, stop())
	require.EqualValues(t, concurrency, running.most.Load())
	require.Equal(t, batch, mostHeld, "never more than BatchSize held, running ones included")
}

// TestConcurrencyAboveBatchSize: Concurrency events are held even if a claim may bring fewer.
func TestConcurrencyAboveBatchSize(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := jobTopic("one")
	enqueueJobs(t, pool, topic, numbered(12)...)
	cfg := quick()
	cfg.Concurrency, cfg.BatchSize = 8, 3
	var running gauge
	full := make(chan struct{})
	all := sync.OnceFunc(func() { close(full) })
	stop := start(t, dispatcher(t, pool, cfg, onJob(topic, func(context.Context, outbox.Delivery[job]) error {
		defer running.leave()
		if running.enter() == 8 { // for the first time, or again
			all()
		}
		<-full
		return nil
	})))
	receive(t, full, "eight at once")
	settles(t, pool, 12, delivered)
	require.NoError(t, stop())
}

func TestConcurrentRunIsRefused(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	d := dispatcher(t, pool, quick(), onJob(jobTopic("one"), succeed))
	watch := outbox.Watch(d)
	stop := start(t, d)
	receive(t, watch.Idle, "idleness")
	require.EqualError(t, d.Run(t.Context()), "run dispatcher: the dispatcher is running already")
	_, err := d.Drain(t.Context())
	require.EqualError(t, err, "drain: the dispatcher is running already")
	require.NoError(t, stop())
}

func TestRunAgain(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := jobTopic("one")
	d := dispatcher(t, pool, quick(), onJob(topic, succeed))
	for n := range 3 {
		stop := start(t, d)
		enqueueJobs(t, pool, topic, numbered(5)...)
		settles(t, pool, 5*(n+1), delivered)
		require.NoError(t, stop())
	}
	require.Equal(t, 15, count(t, pool, delivered+" AND attempts = 1"))
}

func TestRunWithoutDatabase(t *testing.T) {
	t.Parallel()
	err := dispatcher(t, unconnected(t), quick(), onJob(jobTopic("one"), succeed)).Run(t.Context())
	require.ErrorContains(t, err, "run dispatcher: probe schema outbox: ")
	require.ErrorContains(t, err, "127.0.0.1")
	require.NotErrorIs(t, err, outbox.ErrNotMigrated)

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, dispatcher(t, unconnected(t), quick(), onJob(jobTopic("one"), succeed)).Run(ended))
}

func TestRunWithoutMigration(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Empty(t))
	d := dispatcher(t, pool, quick(), onJob(jobTopic("one"), succeed))
	err := d.Run(t.Context())
	require.ErrorIs(t, err, outbox.ErrNotMigrated)
	require.ErrorContains(t, err, "run dispatcher: probe schema outbox: database is not migrated (run `outboxgen migrate up`)")
	_, err = d.Drain(t.Context())
	require.ErrorIs(t, err, outbox.ErrNotMigrated)
}

// TestMaintenance sweeps what died on its last attempt and prunes what is past its retention.
func TestMaintenance(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := jobTopic("one")
	topic = altered(topic, func(s *outbox.TopicSpec) { s.Retention = outbox.Retention{Delivered: time.Hour, Dead: time.Hour} })
	ids := enqueueJobs(t, pool, topic, numbered(3)...)
	execute(t, pool, "UPDATE outbox.events SET status = 'processing', attempts = 5, claim_no = 5, locked_by = $2, locked_until = now() - interval '1 s' WHERE id = $1", ids[0], uuid.New())
	execute(t, pool, "UPDATE outbox.events SET status = 'delivered', finalized_at = now() - interval '2 h' WHERE id = $1", ids[1])
	// Another process has a handler for this topic, and knows that it is kept for longer.
	execute(t, pool, `INSERT INTO outbox.events (namespace, topic, payload, status, finalized_at)
		SELECT 'jobs', 'archive', '1', s, now() - interval '1 year' FROM unnest('{delivered, dead}'::text[]) AS s`)
	log := newSpy()
	cfg := outbox.DispatcherConfig{LeaseDuration: 2 * time.Second, PruneInterval: 100 * time.Millisecond, Logger: log.logger()}
	d := dispatcher(t, pool, cfg, onJob(topic, succeed))
	stop := start(t, d)
	log.await(t, `msg="events are dead: their workers died on the last attempt"`)
	settles(t, pool, 0, "SELECT count(*) FROM outbox.events WHERE id = $1", ids[1])
	settles(t, pool, 1, delivered+" AND topic = 'one'")
	require.NoError(t, stop())
	require.Equal(t, 2, count(t, pool, "SELECT count(*) FROM outbox.events WHERE topic = 'archive'"), "not its topic")
	r := stateOf(t, pool, ids[0])
	require.Equal(t, "dead", r.Status)
	require.Contains(t, r.LastError, "lease ran out on attempt 5, worker ")
}

// TestRunSurvivesAnOutageOfTheDatabase: an error of the database in mid-run is logged, and the run goes on.
func TestRunSurvivesAnOutageOfTheDatabase(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := jobTopic("one")
	log := newSpy()
	cfg := quick()
	cfg.Logger = log.logger()
	d := dispatcher(t, pool, cfg, onJob(topic, succeed))
	watch := outbox.Watch(d)
	stop := start(t, d)
	receive(t, watch.Idle, "idleness")
	execute(t, pool, "ALTER TABLE outbox.events RENAME TO gone")
	log.await(t, "database is not migrated")
	execute(t, pool, "ALTER TABLE outbox.gone RENAME TO events")
	enqueueJobs(t, pool, topic, numbered(1)...)
	settles(t, pool, 1, delivered)
	require.NoError(t, stop())
}
