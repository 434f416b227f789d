package queue_test

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/queue"
)

func TestDispatcherDefaults(t *testing.T) {
	t.Parallel()
	pool := runtimetest.Unconnected(t)
	long := runtimetest.Altered(runtimetest.JobTopic("long"), func(s *outbox.TopicSpec) { s.Lease = time.Minute })
	short := runtimetest.Altered(runtimetest.JobTopic("short"), func(s *outbox.TopicSpec) { s.Lease = time.Second })

	cfg := queue.ConfigOf(runtimetest.Dispatcher(t, pool, queue.Config{}, runtimetest.OnJob(short, runtimetest.Succeed), runtimetest.OnJob(long, runtimetest.Succeed)))
	require.NotNil(t, cfg.Logger)
	cfg.Logger = nil
	require.Equal(t, queue.Config{
		BatchSize: 100, Concurrency: 10, LeaseDuration: time.Minute, PollInterval: time.Second, MaxPollInterval: 10 * time.Second,
		ShutdownTimeout: 20 * time.Second, PruneInterval: 10 * time.Minute, Wake: outbox.WakeDoorbell,
		Breaker: outbox.Breaker{Failures: 10, FirstPause: 100 * time.Millisecond, MaxPause: 1500 * time.Millisecond},
	}, cfg)

	cfg = queue.ConfigOf(runtimetest.Dispatcher(t, pool, queue.Config{}, runtimetest.OnJob(runtimetest.JobTopic("plain"), runtimetest.Succeed)))
	require.Equal(t, 30*time.Second, cfg.LeaseDuration)

	cfg = queue.ConfigOf(runtimetest.Dispatcher(t, pool, queue.Config{}, runtimetest.OnJob(short, runtimetest.Succeed)))
	require.Equal(t, time.Second/3, cfg.PollInterval, "a third of a short lease")
	require.Equal(t, time.Second/3, cfg.MaxPollInterval, "likewise")

	cfg = queue.ConfigOf(runtimetest.Dispatcher(t, pool, queue.Config{LeaseDuration: time.Hour, PollInterval: time.Minute}, runtimetest.OnJob(short, runtimetest.Succeed)))
	require.Equal(t, time.Minute, cfg.MaxPollInterval, "at least PollInterval")
}

func TestDispatcherCopiesItsConfig(t *testing.T) {
	t.Parallel()
	given := queue.Config{Topics: []string{"plain"}, TenantIDs: []uuid.UUID{uuid.New()}}
	cfg := queue.ConfigOf(runtimetest.Dispatcher(t, runtimetest.Unconnected(t), given, runtimetest.OnJob(runtimetest.JobTopic("plain"), runtimetest.Succeed)))
	given.Topics[0], given.TenantIDs[0] = "other", uuid.Nil
	require.Equal(t, "plain", cfg.Topics[0])
	require.NotEqual(t, uuid.Nil, cfg.TenantIDs[0])
}

func TestDispatcherRefusesConfig(t *testing.T) {
	t.Parallel()
	one := runtimetest.OnJob(runtimetest.JobTopic("one"), runtimetest.Succeed)
	elsewhere := runtimetest.Altered(runtimetest.JobTopic("two"), func(s *outbox.TopicSpec) { s.Namespace = "others" })
	inSchema := runtimetest.Altered(runtimetest.JobTopic("two"), func(s *outbox.TopicSpec) { s.Schema = "events" })
	badName := runtimetest.Altered(runtimetest.JobTopic("two"), func(s *outbox.TopicSpec) { s.Namespace = "No Name" })
	for name, c := range map[string]struct {
		cfg      queue.Config
		handlers []queue.Handler
		want     string
	}{
		"batch size":        {queue.Config{BatchSize: -1}, nil, "BatchSize -1 is not between 1 and 10000"},
		"batch size large":  {queue.Config{BatchSize: 10_001}, nil, "BatchSize 10001 is not between 1 and 10000"},
		"concurrency":       {queue.Config{Concurrency: -1}, nil, "field Concurrency -1 is not between 1 and 10000"},
		"concurrency large": {queue.Config{Concurrency: 10_001}, nil, "field Concurrency 10001 is not between 1 and 10000"},
		"lease":             {queue.Config{LeaseDuration: 99 * time.Millisecond}, nil, "LeaseDuration 99ms is shorter than 100ms"},
		"lease negative":    {queue.Config{LeaseDuration: -1}, nil, "LeaseDuration -1ns is shorter than 100ms"},
		"poll above a third of the lease": {
			queue.Config{LeaseDuration: 3 * time.Second, PollInterval: time.Second + 1},
			nil, "PollInterval 1.000000001s is not between 1ms and a third of LeaseDuration 3s",
		},
		"longest poll above a third of the lease": {
			queue.Config{LeaseDuration: 3 * time.Second, MaxPollInterval: time.Hour},
			nil, "MaxPollInterval 1h0m0s is not between PollInterval 1s and a third of LeaseDuration 3s",
		},
		"longest poll below the poll": {
			queue.Config{PollInterval: time.Second, MaxPollInterval: time.Millisecond},
			nil, "MaxPollInterval 1ms is not between PollInterval 1s and a third of LeaseDuration 30s",
		},
		"poll too often":   {queue.Config{PollInterval: time.Microsecond}, nil, "PollInterval 1µs is not between 1ms and a third of LeaseDuration 30s"},
		"shutdown timeout": {queue.Config{ShutdownTimeout: -time.Second}, nil, "ShutdownTimeout -1s is negative"},
		"max attempts":     {queue.Config{MaxAttempts: -1}, nil, "MaxAttempts -1 is not between 0 and 2147483647"},
		"max attempts large": {
			queue.Config{MaxAttempts: math.MaxInt32 + 1}, nil, "MaxAttempts 2147483648 is not between 0 and 2147483647",
		},
		"retry attempts": {
			queue.Config{Retry: outbox.Retry{MaxAttempts: -1}}, nil, "Retry.MaxAttempts -1 is not between 0 and 2147483647",
		},
		"retry base delay": {queue.Config{Retry: outbox.Retry{BaseDelay: -1}}, nil, "Retry.BaseDelay -1ns is negative"},
		"retry max delay":  {queue.Config{Retry: outbox.Retry{MaxDelay: -1}}, nil, "Retry.MaxDelay -1ns is negative"},
		"retry delays": {
			queue.Config{Retry: outbox.Retry{BaseDelay: 2 * time.Second, MaxDelay: time.Second}}, nil,
			"Retry.BaseDelay 2s is longer than Retry.MaxDelay 1s",
		},
		"no topics":     {queue.Config{Topics: []string{}}, nil, "field Topics is empty: nil means all topics"},
		"empty shard":   {queue.Config{TenantIDs: []uuid.UUID{}}, nil, "field TenantIDs is empty: nil means all tenants"},
		"wake":          {queue.Config{Wake: "bell"}, nil, `field Wake "bell" is neither "doorbell" nor "poll"`},
		"unknown topic": {queue.Config{Topics: []string{"one", "onne"}}, nil, `field Topics: jobs has no topic "onne" with a handler`},
		"no handlers":   {queue.Config{}, []queue.Handler{}, "no handlers"},
		"nil handlers": {
			queue.Config{}, []queue.Handler{queue.Handle(runtimetest.JobTopic("two"), runtimetest.JobHandlers(nil), runtimetest.Succeed)},
			"topic jobs/two: no handlers given (nil)",
		},
		"nil function": {
			queue.Config{}, []queue.Handler{queue.Handle(runtimetest.JobTopic("two"), runtimetest.JobFunc(runtimetest.Succeed), nil)},
			"topic jobs/two: no handlers given (nil)",
		},
		"two handlers": {queue.Config{}, []queue.Handler{one, one}, "topic jobs/one: has two handlers"},
		"two namespaces": {
			queue.Config{}, []queue.Handler{one, runtimetest.OnJob(elsewhere, runtimetest.Succeed)},
			`topic others/two of schema "": a dispatcher serves one namespace, here jobs of schema ""`,
		},
		"two schemas": {
			queue.Config{}, []queue.Handler{one, runtimetest.OnJob(inSchema, runtimetest.Succeed)},
			`topic jobs/two of schema "events": a dispatcher serves one namespace, here jobs of schema ""`,
		},
		"namespace": {
			queue.Config{}, []queue.Handler{runtimetest.OnJob(badName, runtimetest.Succeed)},
			`new store: namespace "No Name" is not a name like mini_chat`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			handlers := c.handlers
			if handlers == nil {
				handlers = []queue.Handler{one}
			}
			d, err := queue.NewDispatcher(runtimetest.Unconnected(t), c.cfg, handlers...)
			require.EqualError(t, err, "new dispatcher: "+c.want)
			require.Nil(t, d)
		})
	}
	_, err := queue.NewDispatcher(nil, queue.Config{}, one)
	require.EqualError(t, err, "new dispatcher: no pool")
}

// The poll interval grows while polls find nothing, and is short again once they have found something.
func TestPollerBacksOffWhileItFindsNothing(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	watched, claims := runtimetest.NewGate(t, pool, "name: EventClaim")
	looks := make(chan time.Time, 10_000)
	claims.OnPass(func() { looks <- time.Now() })
	topic := runtimetest.JobTopic("sparse")
	cfg := queue.Config{
		Wake: outbox.WakePoll, PollInterval: 2 * time.Millisecond, MaxPollInterval: time.Second, Logger: runtimetest.DiscardLogger(),
	}
	stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, watched, cfg, runtimetest.OnJob(topic, func(context.Context, outbox.Delivery[runtimetest.Job]) error {
		looks <- time.Time{} // between two checks
		return nil
	})))
	gap := func(last time.Time) (time.Duration, time.Time) {
		next := pgtest.Receive(t, looks, "a check")
		return next.Sub(last), next
	}
	longest, last := time.Duration(0), pgtest.Receive(t, looks, "the first check")
	for longest < 700*time.Millisecond {
		var g time.Duration
		g, last = gap(last)
		longest = max(longest, g)
	}
	runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(1)...)
	for !last.IsZero() {
		last = pgtest.Receive(t, looks, "the event")
	}
	shortest := time.Hour
	last = pgtest.Receive(t, looks, "a check after it")
	for range 6 {
		var g time.Duration
		g, last = gap(last)
		shortest = min(shortest, g)
	}
	require.Less(t, shortest, 700*time.Millisecond, "unlike those that find nothing")
	require.NoError(t, stop())
}

// TestSmallPoolIsOneWarning: a pool that is too small for the handlers and the dispatcher is one warning at the start,
// with both numbers. A pool that is large enough is not, and Concurrency does not count if there is only a publisher.
func TestSmallPoolIsOneWarning(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for name, c := range map[string]struct {
		conns   int32
		publish bool
		want    string
	}{
		"too small":                 {conns: 13, want: "max_conns=13 used=14"},
		"large enough":              {conns: 14},
		"small, nothing but broker": {conns: 4, publish: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := pgtest.Database(t).Config()
			cfg.MaxConns = c.conns
			pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
			require.NoError(t, err)
			t.Cleanup(pool.Close)
			log := runtimetest.NewLogSpy()
			config := queue.Config{Logger: log.Logger()}
			handler := runtimetest.OnJob(runtimetest.JobTopic("one"), func(context.Context, outbox.Delivery[runtimetest.Job]) error { return nil })
			if c.publish {
				config.Publishers = map[string]publish.Publisher{"kafka": runtimetest.NewBroker()}
				handler = queue.Publish(runtimetest.JobTopic("one"), publish.Publication{Broker: "kafka", Destination: "jobs"})
			}
			d := runtimetest.Dispatcher(t, pool, config, handler)
			watch := queue.Watch(d)
			for range 2 {
				stop := runtimetest.StartDispatcher(t, d)
				pgtest.Receive(t, watch.Idle, "sleep")
				require.NoError(t, stop())
			}
			if c.want == "" {
				require.NotContains(t, log.String(), "pool")
				return
			}
			require.Equal(t, 2, strings.Count(log.String(), c.want), "one for each start: %s", log)
		})
	}
}
