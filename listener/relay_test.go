package listener_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/publish"
)

// TestOnlyUsualBatchesOfRelaysGrow: a BatchSize that is set is the limit, and so is the usual one of handlers. What grows has
// a bound per lease, too.
func TestOnlyUsualBatchesOfRelaysGrow(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, "postgres://nobody@localhost/none")
	relay := func(cfg listener.Config) listener.Sizes {
		cfg.Publishers = map[string]publish.Publisher{"kafka": &orderly{}}
		l, err := listener.New(pool, listener.Spec{Name: "ears"}, cfg,
			listener.Publish(runtimetest.SaidTopic, publish.Publication{Broker: "kafka", Destination: "sc.said"}))
		require.NoError(t, err)
		return listener.SizesOf(l)
	}
	const long = 100 * time.Millisecond
	require.Equal(t, listener.Sizes{Grows: true, PerLease: 6400, Together: 50, Age: long}, relay(listener.Config{}))
	require.Equal(t, listener.Sizes{PerLease: 800, Together: 50, Age: long}, relay(listener.Config{BatchSize: 100}))
	require.Equal(t, listener.Sizes{PerLease: 8000, Together: 500, Age: long}, relay(listener.Config{BatchSize: 1000}))
	require.Equal(t, listener.Sizes{PerLease: 80_000, Together: 1000, Age: long}, relay(listener.Config{BatchSize: 10_000}), "half a call")
	require.Equal(t, listener.Sizes{PerLease: 8, Together: 1, Age: long}, relay(listener.Config{BatchSize: 1}), "one by one")
	h := runtimetest.NewNotes()
	l, err := listener.New(pool, listener.Spec{Name: "ears"}, listener.Config{}, listener.Handle(runtimetest.SaidTopic, h, h.Handle))
	require.NoError(t, err)
	require.Equal(t, listener.Sizes{PerLease: 800, Age: long / 2}, listener.SizesOf(l))
}

// TestRelayTriesEventsTogetherAfterACrash: the events that a process may have had when it died are published in calls of half
// of the usual size.
func TestRelayTriesEventsTogetherAfterACrash(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	never := func(runtimetest.Said) bool { return false }
	p := &orderly{refused: never, fails: never}
	l, err := listener.New(pool, listener.Spec{Name: "ears"}, listener.Config{
		Logger: runtimetest.DiscardLogger(), Publishers: map[string]publish.Publisher{"kafka": p},
	}, listener.Publish(runtimetest.SaidTopic, publish.Publication{Broker: "kafka", Destination: "sc.said"}))
	require.NoError(t, err)
	runtimetest.DrainAll(t, l)
	for n := range 130 {
		runtimetest.Put(t, pool, "a", n+1)
	}
	pgtest.Execute(t, pool, `UPDATE outbox.listeners SET running = true, lease_id = gen_random_uuid(), lease_by = gen_random_uuid(),
		lease_until = statement_timestamp() - interval '1 s'`)
	require.Equal(t, listener.Report{Delivered: 130}, runtimetest.DrainAll(t, l))
	require.Equal(t, []int{50, 50, 30}, p.calls)
	require.Equal(t, "0 0", pgtest.Value[string](t, pool, "SELECT one_by_one || ' ' || trying FROM outbox.listeners"))
	for n, s := range p.arrived {
		require.Equal(t, runtimetest.Said{Key: s.Key, N: n + 1}, s)
	}
}
