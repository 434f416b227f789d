package runtimetest_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

// goodTime returns how long it takes until the last of the good events has been published, with or without events that
// wait for an unavailable destination.
func goodTime(b *testing.B, log bool, events, waiting int, away func(context.Context, []publish.Outgoing) []error) time.Duration {
	b.Helper()
	pool := pgtest.Database(b)
	bad, good := runtimetest.DestinationTopics(log)
	put := func(topic outbox.Topic[runtimetest.Said], from, n int) {
		if n == 0 {
			return
		}
		ps := make([]runtimetest.Said, n)
		for i := range ps {
			ps[i] = runtimetest.Said{Key: fmt.Sprint("k", (from+i)%200), N: from + i}
		}
		pgtest.InTx(b, pool, func(tx pgx.Tx) {
			_, err := topic.EnqueueMany(b.Context(), tx, ps)
			require.NoError(b, err)
		})
	}
	for at := 0; at < events; at += 1000 {
		put(bad, at, min(max(waiting-at, 0), 1000))
		put(good, at, 1000)
	}
	pgtest.Execute(b, pool, "VACUUM ANALYZE")
	var got atomic.Int64
	all := make(chan struct{})
	r := runtimetest.NewTwoDestinations(b, pool, log, &runtimetest.TwoDestinations{Bad: away, Good: func(sent []publish.Outgoing) {
		time.Sleep(time.Millisecond) // the time that a broker takes to answer
		if got.Add(int64(len(sent))) == int64(events) {
			close(all)
		}
	}})
	ctx, cancel := context.WithCancel(b.Context())
	over := make(chan error, 1)
	began := time.Now()
	go func() { over <- r.Run(ctx) }()
	<-all
	took := time.Since(began)
	cancel()
	require.NoError(b, <-over)
	return took
}

// BenchmarkDestinationNextToOneThatIsAway measures how fast 100,000 events, some seconds of work, reach their
// destination while 1,000 events wait for an unavailable one. The result is the ratio to the speed without those: the
// median of pairs, whose order alternates.
func BenchmarkDestinationNextToOneThatIsAway(b *testing.B) {
	const events, waiting, pairs = 100_000, 1000, 5
	for _, log := range []bool{false, true} {
		for _, how := range slices.Sorted(maps.Keys(runtimetest.BadDestinations)) {
			b.Run(fmt.Sprintf("%s/%s", map[bool]string{false: "queue", true: "log"}[log], how), func(b *testing.B) {
				var ratios []float64
				var alone, lost []time.Duration
				for range b.N {
					for i := range pairs {
						var took [2]time.Duration
						for j := range took {
							with := (i + j) % 2
							took[with] = goodTime(b, log, events, with*waiting, runtimetest.BadDestinations[how])
						}
						ratios = append(ratios, took[0].Seconds()/took[1].Seconds())
						alone, lost = append(alone, took[0]), append(lost, took[1]-took[0])
					}
				}
				slices.Sort(ratios)
				slices.Sort(alone)
				slices.Sort(lost)
				b.ReportMetric(ratios[len(ratios)/2], "of-alone")
				b.ReportMetric(ratios[0], "worst")
				b.ReportMetric(float64(lost[len(lost)/2].Milliseconds()), "ms-lost")
				b.ReportMetric(events/alone[len(alone)/2].Seconds(), "events/s-alone")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
