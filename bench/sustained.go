package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/bench/events"
	"github.com/outboxgen/outboxgen/queue"
)

// A sample has the measurements of one minute of the sustained run.
type sample struct {
	Minute     int     `json:"minute"`
	Handled    int     `json:"handled"`
	P50        float64 `json:"p50_ms"`
	P99        float64 `json:"p99_ms"`
	HeapMiB    float64 `json:"heap_mib"`
	Goroutines int     `json:"goroutines"`
	TableMiB   float64 `json:"table_mib"`
	IndexMiB   float64 `json:"index_mib"`
}

// sustained enqueues and delivers rate events per second for some minutes. Delivered events are deleted immediately, so a
// growing table means a leak of space. The figure is the p99 of the last minute divided by that of the second.
func sustained(rate, minutes int, report func(sample)) workload {
	return workload{
		name: "sustained", title: fmt.Sprintf("%d events/s for %d minutes", rate, minutes), unit: "p99 of the last minute / of the second", once: true,
		about:        "Events are deleted when delivered. The first minute warms up and is not counted.",
		lessIsBetter: true,
		contenders: []contender{{"dispatcher", func(ctx context.Context, db *database) (float64, error) {
			n := rate * 60 * minutes
			var (
				mu        sync.Mutex
				committed = make([]time.Time, n)
				waits     []float64
			)
			t := newTally(n)
			d, err := events.NewBenchDropDispatcher(db.pool, &events.BenchDropHandler{Work: func(_ context.Context, seq int64) {
				now := time.Now()
				mu.Lock()
				waits = append(waits, float64(now.Sub(committed[seq]))/float64(time.Millisecond))
				mu.Unlock()
				t.add(seq)
			}}, queue.Config{Logger: quiet})
			if err != nil {
				return 0, err
			}
			running, stop := context.WithCancel(ctx)
			defer stop()
			ended := make(chan error, 1)
			go func() { ended <- d.Run(running) }()

			var samples []sample
			begun := time.Now()
			group := 4
			var producers sync.WaitGroup
			errs := make(chan error, group)
			for g := range group {
				producers.Go(func() {
					for seq := g; seq < n; seq += group {
						pause(ctx, time.Until(begun.Add(time.Duration(seq)*time.Second/time.Duration(rate))))
						mu.Lock()
						committed[seq] = time.Now() // before the commit: the wait includes the transaction
						mu.Unlock()
						err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
							_, err := events.EnqueueOrderDropped(ctx, tx, events.OrderDropped(order(seq)))
							return err
						})
						if err != nil {
							errs <- err
							return
						}
					}
				})
			}
			for minute := 1; minute <= minutes; minute++ {
				pause(ctx, time.Until(begun.Add(time.Duration(minute)*time.Minute)))
				mu.Lock()
				w := waits
				waits = nil
				mu.Unlock()
				s := sample{Minute: minute, Handled: len(w), Goroutines: runtime.NumGoroutine()}
				if slices.Sort(w); len(w) > 0 {
					s.P50, s.P99 = w[len(w)/2], w[len(w)*99/100]
				}
				runtime.GC()
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				s.HeapMiB = float64(m.HeapInuse) / (1 << 20)
				if err := db.pool.QueryRow(ctx, `SELECT sum(pg_table_size(t)) / 1048576.0, sum(pg_indexes_size(t)) / 1048576.0
					FROM unnest('{outbox.events,outbox.queue,outbox.delivered}'::regclass[]) AS t`).
					Scan(&s.TableMiB, &s.IndexMiB); err != nil {
					return 0, err
				}
				samples = append(samples, s)
				report(s)
			}
			producers.Wait()
			select {
			case err := <-errs:
				return 0, err
			default:
			}
			if err := t.wait(ctx); err != nil {
				return 0, err
			}
			stop()
			if err := <-ended; err != nil {
				return 0, err
			}
			if err := t.check(); err != nil {
				return 0, err
			}
			return samples[len(samples)-1].P99 / samples[min(1, len(samples)-1)].P99, db.count(ctx, 0, "events left", leftOver)
		}}},
		targets: []target{{of: "dispatcher", atMost: 1.5}},
	}
}
