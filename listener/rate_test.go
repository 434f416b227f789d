package listener_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

// startTimes are the times at which attempts have started.
type startTimes struct {
	mu sync.Mutex
	at []time.Time
}

func (s *startTimes) add(n int) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for range n {
		s.at = append(s.at, now)
	}
}

func (s *startTimes) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.at)
}

// most returns the largest number of starts in a window of the length of period.
func (s *startTimes) most(period time.Duration) (most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.SortFunc(s.at, time.Time.Compare)
	for from, to := 0, 0; to < len(s.at); to++ {
		for s.at[to].Sub(s.at[from]) >= period {
			from++
		}
		most = max(most, to-from+1)
	}
	return most
}

// listen returns a listener that counts its starts, in one of several modes.
func (s *startTimes) listen(t testing.TB, pool *pgxpool.Pool, mode string, spec listener.Spec) *listener.Listener {
	t.Helper()
	one := func(context.Context, outbox.Delivery[runtimetest.Said]) error {
		s.add(1)
		if mode == "slow" {
			<-time.After(20 * time.Millisecond)
		}
		return nil
	}
	spec.Name = "ears"
	cfg := listener.Config{Logger: runtimetest.DiscardLogger(), PollInterval: 50 * time.Millisecond}
	var h listener.Handler
	switch mode {
	case "leased", "concurrent", "slow":
		h = listener.Handle(runtimetest.SaidTopic, s, one)
		if mode == "concurrent" {
			spec.Concurrency = 5
		}
	case "transactional":
		h = listener.HandleTx(runtimetest.SaidTopic, s, func(ctx context.Context, _ pgx.Tx, d outbox.Delivery[runtimetest.Said]) error {
			return one(ctx, d)
		})
	case "batches":
		spec.Batch.Size = 30
		h = listener.HandleBatch(runtimetest.SaidTopic, s, func(_ context.Context, ds []outbox.Delivery[runtimetest.Said]) error {
			s.add(len(ds))
			return nil
		})
	case "publishing":
		cfg.Publishers = map[string]publish.Publisher{"kafka": s}
		h = listener.Publish(runtimetest.SaidTopic, publish.Publication{Broker: "kafka", Destination: "x"})
	}
	l, err := listener.New(pool, runtimetest.WithLateRetries(spec), cfg, h)
	require.NoError(t, err)
	return l
}

func (s *startTimes) Publish(_ context.Context, events []publish.Outgoing) []error {
	s.add(len(events))
	return make([]error, len(events))
}

func (s *startTimes) Close(context.Context) error { return nil }

// TestListenerRate: in no window do more attempts start than the rate allows, over two processes with three shards, and
// nearly as many do.
func TestListenerRate(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for _, mode := range []string{"leased", "concurrent", "slow", "transactional", "batches", "publishing"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			const n, period = 40, time.Second
			pool := pgtest.Database(t)
			runtimetest.NewCrowd("a", "b", "c", "d", "e", "f", "g", "h").Enqueue(t, pool, 5*n)
			var s startTimes
			spec := listener.Spec{Shards: 3, Rate: outbox.Rate{Events: n, Period: period}}
			began := time.Now()
			var stops []func()
			for range 2 {
				stops = append(stops, runtimetest.StartListener(t, s.listen(t, pool, mode, spec)))
			}
			pgtest.Eventually(t, func() bool { return s.count() == 5*n })
			took := time.Since(began)
			for _, stop := range stops {
				stop()
			}
			t.Logf("%d starts in %s, at most %d in a window", s.count(), took, s.most(period))
			require.Equal(t, 5*n, s.count())
			require.LessOrEqual(t, s.most(period), n)
			require.GreaterOrEqual(t, took, 4*period)
			require.Less(t, took, 30*period, "a machine that is busy uses less of the rate")
		})
	}
}

// TestListenerRateOfADrain: a drain handles what the rate allows now. The starts of a process that is gone count.
func TestListenerRateOfADrain(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for _, mode := range []string{"leased", "concurrent", "transactional", "batches", "publishing"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			runtimetest.NewCrowd("a", "b", "c", "d").Enqueue(t, pool, 50)
			var s startTimes
			spec := listener.Spec{Shards: 2, Rate: outbox.Rate{Events: 20, Period: time.Hour}}
			require.Equal(t, listener.Report{Delivered: 20}, runtimetest.DrainAll(t, s.listen(t, pool, mode, spec)))
			require.Equal(t, listener.Report{}, runtimetest.DrainAll(t, s.listen(t, pool, mode, spec)))
			require.Equal(t, 20, s.count())
			pgtest.Execute(t, pool, "UPDATE outbox.listener_rates SET untils = array_fill(now(), ARRAY[cardinality(untils)])")
			require.Equal(t, listener.Report{Delivered: 20}, runtimetest.DrainAll(t, s.listen(t, pool, mode, spec)))
			spec.Rate = outbox.Rate{}
			require.Equal(t, listener.Report{Delivered: 10}, runtimetest.DrainAll(t, s.listen(t, pool, mode, spec)))
		})
	}
}

// TestListenerRateCountsRetries: each attempt counts, also those of a search.
func TestListenerRateCountsRetries(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	runtimetest.PutAll(t, pool, "a1", "b1")
	h := runtimetest.NewNotes()
	h.Fail = runtimetest.FailFor("a")
	spec := listener.Spec{ParkKeys: true, Rate: outbox.Rate{Events: 3, Period: time.Hour}}
	require.Equal(t, listener.Report{Delivered: 1, Retried: 1}, runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, spec, listener.Config{}, h)))
	for _, want := range []listener.Report{{Retried: 1}, {}} {
		runtimetest.RetryNow(t, pool)
		require.Equal(t, want, runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, spec, listener.Config{}, h)))
	}
	require.Equal(t, 2, pgtest.Value[int](t, pool, "SELECT attempts FROM outbox.parked"), "what may not start is charged nothing")

	pool = pgtest.Database(t)
	putMany(t, pool, 4)
	g := newGathering(pool, has("k1-1"))
	spec = listener.Spec{ParkKeys: true, Batch: outbox.Batch{Size: 4}, Rate: outbox.Rate{Events: 7, Period: time.Hour}}
	require.Equal(t, listener.Report{Delivered: 1}, runtimetest.DrainAll(t, gather(t, pool, false, spec, listener.Config{}, g)))
	require.Equal(t, []int{4, 2, 1}, g.sizes())
}

// TestListenerRateCountsWhenAttemptsStart: an attempt counts for a period after it has started, although it was allowed
// long before it could start.
func TestListenerRateCountsWhenAttemptsStart(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	runtimetest.NewCrowd("a").Enqueue(t, pool, 5)
	var last time.Time
	h := runtimetest.NewNotes()
	h.Fail = func(outbox.Delivery[runtimetest.Said]) error {
		last = time.Now()
		<-time.After(200 * time.Millisecond) // more than the slack
		return nil
	}
	spec := listener.Spec{Rate: outbox.Rate{Events: 10, Period: 2 * time.Second}}
	require.Equal(t, listener.Report{Delivered: 5}, runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, spec, listener.Config{}, h)))
	until := pgtest.Value[time.Time](t, pool, "SELECT max(u) FROM outbox.listener_rates AS r, unnest(r.untils) AS u")
	require.GreaterOrEqual(t, until.Sub(last), 2*time.Second-time.Millisecond)
}

// TestListenerStopsWhileItsRateIsUsedUp: Run returns at once, and holds nothing meanwhile.
func TestListenerStopsWhileItsRateIsUsedUp(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	runtimetest.NewCrowd("a").Enqueue(t, pool, 9)
	var s startTimes
	l := s.listen(t, pool, "transactional", listener.Spec{Rate: outbox.Rate{Events: 4, Period: time.Hour}})
	stop := runtimetest.StartListener(t, l)
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.listeners WHERE NOT running AND last_seq >= 4")
	pgtest.Idle(t, pool)
	began := time.Now()
	stop()
	require.Less(t, time.Since(began), 5*time.Second)
	require.Equal(t, 4, s.count())
}

func TestListenerRefusesRates(t *testing.T) {
	t.Parallel()
	h := runtimetest.NewNotes()
	for want, r := range map[string]outbox.Rate{
		"field Rate: Events 0 is not between 1 and 2147483647":  {Period: time.Second},
		"field Rate: Events -1 is not between 1 and 2147483647": {Events: -1, Period: time.Second},
		"field Rate: Period 0s is shorter than 1ms":             {Events: 1},
		"field Rate: Period is longer than a year":              {Events: 1, Period: 1e6 * time.Hour},
	} {
		_, err := listener.New(runtimetest.Unconnected(t), listener.Spec{Name: "ears", Rate: r}, listener.Config{}, listener.Handle(runtimetest.SaidTopic, h, h.Handle))
		require.EqualError(t, err, fmt.Sprint("new listener: ", want))
	}
}
