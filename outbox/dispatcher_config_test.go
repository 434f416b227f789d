package outbox_test

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

func TestDispatcherDefaults(t *testing.T) {
	t.Parallel()
	pool := unconnected(t)
	long := altered(jobTopic("long"), func(s *outbox.TopicSpec) { s.Lease = time.Minute })
	short := altered(jobTopic("short"), func(s *outbox.TopicSpec) { s.Lease = time.Second })

	cfg := outbox.ConfigOf(dispatcher(t, pool, outbox.DispatcherConfig{}, onJob(short, succeed), onJob(long, succeed)))
	require.NotNil(t, cfg.Logger)
	cfg.Logger = nil
	require.Equal(t, outbox.DispatcherConfig{
		BatchSize: 100, Concurrency: 10, LeaseDuration: time.Minute, PollInterval: time.Second, MaxPollInterval: 10 * time.Second,
		ShutdownTimeout: 20 * time.Second, PruneInterval: 10 * time.Minute, Wake: outbox.WakeDoorbell,
		Breaker: outbox.Breaker{Failures: 10, FirstPause: 100 * time.Millisecond, MaxPause: 1500 * time.Millisecond},
	}, cfg)

	cfg = outbox.ConfigOf(dispatcher(t, pool, outbox.DispatcherConfig{}, onJob(jobTopic("plain"), succeed)))
	require.Equal(t, 30*time.Second, cfg.LeaseDuration)

	cfg = outbox.ConfigOf(dispatcher(t, pool, outbox.DispatcherConfig{}, onJob(short, succeed)))
	require.Equal(t, time.Second/3, cfg.PollInterval, "a third of a short lease")
	require.Equal(t, time.Second/3, cfg.MaxPollInterval, "likewise")

	cfg = outbox.ConfigOf(dispatcher(t, pool, outbox.DispatcherConfig{LeaseDuration: time.Hour, PollInterval: time.Minute}, onJob(short, succeed)))
	require.Equal(t, time.Minute, cfg.MaxPollInterval, "at least PollInterval")
}

func TestDispatcherCopiesItsConfig(t *testing.T) {
	t.Parallel()
	given := outbox.DispatcherConfig{Topics: []string{"plain"}, TenantIDs: []uuid.UUID{uuid.New()}}
	cfg := outbox.ConfigOf(dispatcher(t, unconnected(t), given, onJob(jobTopic("plain"), succeed)))
	given.Topics[0], given.TenantIDs[0] = "other", uuid.Nil
	require.Equal(t, "plain", cfg.Topics[0])
	require.NotEqual(t, uuid.Nil, cfg.TenantIDs[0])
}

func TestDispatcherRefusesConfig(t *testing.T) {
	t.Parallel()
	one := onJob(jobTopic("one"), succeed)
	elsewhere := altered(jobTopic("two"), func(s *outbox.TopicSpec) { s.Namespace = "others" })
	inSchema := altered(jobTopic("two"), func(s *outbox.TopicSpec) { s.Schema = "events" })
	badName := altered(jobTopic("two"), func(s *outbox.TopicSpec) { s.Namespace = "No Name" })
	for name, c := range map[string]struct {
		cfg      outbox.DispatcherConfig
		handlers []outbox.TopicHandler
		want     string
	}{
		"batch size":        {outbox.DispatcherConfig{BatchSize: -1}, nil, "BatchSize -1 is not between 1 and 10000"},
		"batch size large":  {outbox.DispatcherConfig{BatchSize: 10_001}, nil, "BatchSize 10001 is not between 1 and 10000"},
		"concurrency":       {outbox.DispatcherConfig{Concurrency: -1}, nil, "field Concurrency -1 is not between 1 and 10000"},
		"concurrency large": {outbox.DispatcherConfig{Concurrency: 10_001}, nil, "field Concurrency 10001 is not between 1 and 10000"},
		"lease":             {outbox.DispatcherConfig{LeaseDuration: 99 * time.Millisecond}, nil, "LeaseDuration 99ms is shorter than 100ms"},
		"lease negative":    {outbox.DispatcherConfig{LeaseDuration: -1}, nil, "LeaseDuration -1ns is shorter than 100ms"},
		"poll above a third of the lease": {
			outbox.DispatcherConfig{LeaseDuration: 3 * time.Second, PollInterval: time.Second + 1},
			nil, "PollInterval 1.000000001s is not between 1ms and a third of LeaseDuration 3s",
		},
		"longest poll above a third of the lease": {
			outbox.DispatcherConfig{LeaseDuration: 3 * time.Second, MaxPollInterval: time.Hour},
			nil, "MaxPollInterval 1h0m0s is not between PollInterval 1s and a third of LeaseDuration 3s",
		},
		"longest poll below the poll": {
			outbox.DispatcherConfig{PollInterval: time.Second, MaxPollInterval: time.Millisecond},
			nil, "MaxPollInterval 1ms is not between PollInterval 1s and a third of LeaseDuration 30s",
		},
		"poll too often":   {outbox.DispatcherConfig{PollInterval: time.Microsecond}, nil, "PollInterval 1µs is not between 1ms and a third of LeaseDuration 30s"},
		"shutdown timeout": {outbox.DispatcherConfig{ShutdownTimeout: -time.Second}, nil, "ShutdownTimeout -1s is negative"},
		"max attempts":     {outbox.DispatcherConfig{MaxAttempts: -1}, nil, "MaxAttempts -1 is not between 0 and 2147483647"},
		"max attempts large": {
			outbox.DispatcherConfig{MaxAttempts: math.MaxInt32 + 1}, nil, "MaxAttempts 2147483648 is not between 0 and 2147483647",
		},
		"retry attempts": {
			outbox.DispatcherConfig{Retry: outbox.Retry{MaxAttempts: -1}}, nil, "Retry.MaxAttempts -1 is not between 0 and 2147483647",
		},
		"retry base delay": {outbox.DispatcherConfig{Retry: outbox.Retry{BaseDelay: -1}}, nil, "Retry.BaseDelay -1ns is negative"},
		"retry max delay":  {outbox.DispatcherConfig{Retry: outbox.Retry{MaxDelay: -1}}, nil, "Retry.MaxDelay -1ns is negative"},
		"retry delays": {
			outbox.DispatcherConfig{Retry: outbox.Retry{BaseDelay: 2 * time.Second, MaxDelay: time.Second}}, nil,
			"Retry.BaseDelay 2s is longer than Retry.MaxDelay 1s",
		},
		"no topics":     {outbox.DispatcherConfig{Topics: []string{}}, nil, "field Topics is empty: nil means all topics"},
		"empty shard":   {outbox.DispatcherConfig{TenantIDs: []uuid.UUID{}}, nil, "field TenantIDs is empty: nil means all tenants"},
		"wake":          {outbox.DispatcherConfig{Wake: "bell"}, nil, `field Wake "bell" is neither "doorbell" nor "poll"`},
		"unknown topic": {outbox.DispatcherConfig{Topics: []string{"one", "onne"}}, nil, `field Topics: jobs has no topic "onne" with a handler`},
		"no handlers":   {outbox.DispatcherConfig{}, []outbox.TopicHandler{}, "no handlers"},
		"nil handlers": {
			outbox.DispatcherConfig{}, []outbox.TopicHandler{outbox.Handle(jobTopic("two"), jobHandlers(nil), succeed)},
			"topic jobs/two: no handlers given (nil)",
		},
		"nil function": {
			outbox.DispatcherConfig{}, []outbox.TopicHandler{outbox.Handle(jobTopic("two"), jobFunc(succeed), nil)},
			"topic jobs/two: no handlers given (nil)",
		},
		"two handlers": {outbox.DispatcherConfig{}, []outbox.TopicHandler{one, one}, "topic jobs/one: has two handlers"},
		"two namespaces": {
			outbox.DispatcherConfig{}, []outbox.TopicHandler{one, onJob(elsewhere, succeed)},
			`topic others/two of schema "": a dispatcher serves one namespace, here jobs of schema ""`,
		},
		"two schemas": {
			outbox.DispatcherConfig{}, []outbox.TopicHandler{one, onJob(inSchema, succeed)},
			`topic jobs/two of schema "events": a dispatcher serves one namespace, here jobs of schema ""`,
		},
		"namespace": {
			outbox.DispatcherConfig{}, []outbox.TopicHandler{onJob(badName, succeed)},
			`new store: namespace "No Name" is not a name like mini_chat`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			handlers := c.handlers
			if handlers == nil {
				handlers = []outbox.TopicHandler{one}
			}
			d, err := outbox.NewDispatcher(unconnected(t), c.cfg, handlers...)
			require.EqualError(t, err, "new dispatcher: "+c.want)
			require.Nil(t, d)
		})
	}
	_, err := outbox.NewDispatcher(nil, outbox.DispatcherConfig{}, one)
	require.EqualError(t, err, "new dispatcher: no pool")
}

// Pollers that find nothing look less and less often, and soon again once they have found something.
func TestPollerBacksOffWhileItFindsNothing(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	watched, claims := gated(t, pool, "name: EventClaim")
	looks := make(chan time.Time, 10_000)
	claims.onPass(func() { looks <- time.Now() })
	topic := jobTopic("sparse")
	cfg := outbox.DispatcherConfig{
		Wake: outbox.WakePoll, PollInterval: 2 * time.Millisecond, MaxPollInterval: time.Second, Logger: quiet(),
	}
	stop := start(t, dispatcher(t, watched, cfg, onJob(topic, func(context.Context, outbox.Delivery[job]) error {
		looks <- time.Time{} // between two looks
		return nil
	})))
	gap := func(last time.Time) (time.Duration, time.Time) {
		next := receive(t, looks, "a look")
		return next.Sub(last), next
	}
	longest, last := time.Duration(0), receive(t, looks, "the first look")
	for longest < 700*time.Millisecond {
		var g time.Duration
		g, last = gap(last)
		longest = max(longest, g)
	}
	enqueueJobs(t, pool, topic, numbered(1)...)
	for !last.IsZero() {
		last = receive(t, looks, "the event")
	}
	shortest := time.Hour
	last = receive(t, looks, "a look after it")
	for range 6 {
		var g time.Duration
		g, last = gap(last)
		shortest = min(shortest, g)
	}
	require.Less(t, shortest, 700*time.Millisecond, "unlike those that find nothing")
	require.NoError(t, stop())
}

// TestSmallPoolIsOneWarning: a pool that handlers and dispatcher have to wait for is said once, at the start, with both
// numbers; one that is large enough is not, nor is Concurrency counted where nothing but a publisher runs.
func TestSmallPoolIsOneWarning(t *testing.T) {
	t.Parallel()
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
			log := newSpy()
			config := outbox.DispatcherConfig{Logger: log.logger()}
			handler := onJob(jobTopic("one"), func(context.Context, outbox.Delivery[job]) error { return nil })
			if c.publish {
				config.Publishers = map[string]outbox.Publisher{"kafka": newBroker()}
				handler = outbox.Publish(jobTopic("one"), outbox.Publication{Broker: "kafka", Destination: "jobs"})
			}
			d := dispatcher(t, pool, config, handler)
			watch := outbox.Watch(d)
			for range 2 {
				stop := start(t, d)
				receive(t, watch.Idle, "sleep")
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
