package listener_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgserver"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/migrate"
	"github.com/outboxgen/outboxgen/outbox"
)

type benchPayload struct {
	N    int64  `json:"n"`
	Text string `json:"text"`
	Key  string `json:"-"`
}

var benchLogTopic = outbox.NewTopic[benchPayload](outbox.TopicSpec{Schema: "outbox", Namespace: "bench", Name: "logged", Version: 1, Log: true})

// benchPool returns a migrated database on a server with durable settings, made for this benchmark.
func benchPool(b *testing.B) *pgxpool.Pool {
	b.Helper()
	server := pgtest.Server(b, pgserver.Options{Durable: true})
	pool := pgtest.Pool(b, server.URL())
	_, err := migrate.Up(context.Background(), pool, "outbox")
	require.NoError(b, err)
	return pool
}

// fillLog commits n events, 1000 per transaction.
func fillLog(t testing.TB, pool *pgxpool.Pool, n int) {
	t.Helper()
	for at := 0; at < n; at += 1000 {
		ps := make([]benchPayload, min(1000, n-at))
		for i := range ps {
			ps[i] = benchPayload{N: int64(at + i), Text: fmt.Sprintf("a payload of some two hundred bytes, as a small event has them: %0130d", i)}
		}
		pgtest.InTx(t, pool, func(tx pgx.Tx) {
			_, err := benchLogTopic.EnqueueMany(t.Context(), tx, ps)
			require.NoError(t, err)
		})
	}
	pgtest.Execute(t, pool, "VACUUM ANALYZE outbox.log")
}

// counting is a handler that only counts, or only fails.
type counting struct {
	n    int
	fail error
}

func (c *counting) handle(context.Context, outbox.Delivery[benchPayload]) error {
	if c.fail != nil {
		return c.fail
	}
	c.n++
	return nil
}

func benchListener(t testing.TB, pool *pgxpool.Pool, spec listener.Spec, cfg listener.Config, h *counting) *listener.Listener {
	t.Helper()
	cfg.Logger, cfg.PruneInterval = runtimetest.DiscardLogger(), -1
	l, err := listener.New(pool, spec, cfg, listener.Handle(benchLogTopic, h, h.handle))
	require.NoError(t, err)
	return l
}

// drainTime returns how long a new listener takes for the n events of the log.
func drainTime(t testing.TB, pool *pgxpool.Pool, name string, batch, n int, also ...func(*listener.Listener)) time.Duration {
	t.Helper()
	h := &counting{}
	l := benchListener(t, pool, listener.Spec{Name: name}, listener.Config{BatchSize: batch}, h)
	for _, change := range also {
		change(l)
	}
	began := time.Now()
	_, err := l.Drain(t.Context())
	require.NoError(t, err)
	took := time.Since(began)
	require.Equal(t, n, h.n)
	return took
}

// nextToFailing runs call while another listener fails on every event.
func nextToFailing(t testing.TB, pool *pgxpool.Pool, name string, call func() time.Duration) time.Duration {
	t.Helper()
	h := &counting{fail: errors.New("no")}
	l := benchListener(t, pool, listener.Spec{Name: name}, listener.Config{}, h)
	signals := listener.Watch(l)
	ctx, stop := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- l.Run(ctx) }()
	<-signals.Ended
	took := call()
	stop()
	require.NoError(t, <-over)
	require.Zero(t, h.n)
	return took
}

// BenchmarkListenerNextToFailing measures a listener next to one that fails on every event, in turn with a listener
// that is alone. It reports the median of the ratios of pairs. The order alternates between pairs.
func BenchmarkListenerNextToFailing(b *testing.B) {
	const events, pairs = 200_000, 7
	pool := benchPool(b)
	fillLog(b, pool, events)
	run := 0
	name := func(kind string) string {
		run++
		return fmt.Sprintf("%s%d", kind, run)
	}
	var ratios []float64
	for range b.N {
		for i := range pairs {
			alone := func() time.Duration { return drainTime(b, pool, name("good"), 1000, events) }
			both := func() time.Duration { return nextToFailing(b, pool, name("bad"), alone) }
			var with, without time.Duration
			if i%2 == 0 {
				with, without = both(), alone()
			} else {
				without, with = alone(), both()
			}
			ratios = append(ratios, without.Seconds()/with.Seconds())
		}
	}
	slices.Sort(ratios)
	b.ReportMetric(ratios[len(ratios)/2], "of-alone")
	b.ReportMetric(ratios[0], "worst")
}

// A listener next to one that fails on every event takes the same leases and sends the same statements as alone.
func TestFailingListenerTakesNothingFromAnother(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	const events = 1000
	pool := pgtest.Database(t)
	fillLog(t, pool, events)
	work := func(name string) (leases, sent int64) {
		counted, g := runtimetest.NewGate(t, pool, "")
		require.NoError(t, counted.Ping(t.Context()))
		before := g.Passed.Load()
		// On a machine of any speed, each lease continues for as many batches as it may.
		drainTime(t, counted, name, 50, events, func(l *listener.Listener) { listener.LimitLeaseAge(l, time.Hour) })
		sent = g.Passed.Load() - before
		return pgtest.Value[int64](t, pool, "SELECT lease_no FROM outbox.listeners WHERE listener = $1", name), sent
	}
	leases, sent := work("alone")
	require.Greater(t, sent, leases)
	nextToFailing(t, pool, "bad", func() time.Duration {
		leasesOfBoth, besideSent := work("good")
		require.Equal(t, [2]int64{leases, sent}, [2]int64{leasesOfBoth, besideSent})
		return 0
	})
	for _, name := range []string{"alone", "good"} {
		require.Equal(t, "true 0", pgtest.Value[string](t, pool, "SELECT (high_seq >= $2)::text || ' ' || retry_count FROM outbox.listeners WHERE listener = $1", name, events), name)
	}
	require.Equal(t, "0 no", pgtest.Value[string](t, pool, "SELECT high_seq || ' ' || last_error FROM outbox.listeners WHERE listener = 'bad'"))
}
