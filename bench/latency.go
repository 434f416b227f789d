package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/bench/events"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// latency measures the time from the return of a commit to the start of the handler, at a rate of events per second. A rate
// of 0 means idle: the next event is enqueued some time after the previous one was handled.
func latency(quantile float64, rate, n int) workload {
	load, name := "idle", "idle"
	if rate > 0 {
		load, name = fmt.Sprintf("%d events/s", rate), fmt.Sprintf("%d", rate)
	}
	w := workload{
		name: fmt.Sprintf("latency-%s-p%g", name, quantile*100), title: fmt.Sprintf("commit to handler start, %s, p%g", load, quantile*100), unit: "ms",
		about:        "River wakes its workers with NOTIFY in the transaction, outboxgen with the doorbell.",
		lessIsBetter: true,
		contenders: []contender{
			{"dispatcher", func(ctx context.Context, db *database) (float64, error) {
				s := newStopwatch(n)
				d, err := events.NewBenchDispatcher(db.pool, &events.BenchHandler{Work: func(_ context.Context, seq int64) { s.handled(seq) }},
					queue.Config{Logger: quiet})
				if err != nil {
					return 0, err
				}
				running, stop := context.WithCancel(ctx)
				ended := make(chan error, 1)
				go func() { ended <- d.Run(running) }()
				figure, err := s.run(ctx, db, rate, quantile, func(ctx context.Context, tx pgx.Tx, seq int) error {
					_, err := events.EnqueueOrderPaid(ctx, tx, order(seq))
					return err
				})
				stop()
				if e := <-ended; err == nil {
					err = e
				}
				return figure, err
			}},
			{"River", func(ctx context.Context, db *database) (float64, error) {
				if err := migrateRiver(ctx, db.pool); err != nil {
					return 0, err
				}
				s := newStopwatch(n)
				client, err := riverClient(db.pool, 10, func(_ context.Context, seq int64) { s.handled(seq) })
				if err != nil {
					return 0, err
				}
				if err := client.Start(ctx); err != nil {
					return 0, err
				}
				figure, err := s.run(ctx, db, rate, quantile, func(ctx context.Context, tx pgx.Tx, seq int) error {
					_, err := client.InsertTx(ctx, tx, job(order(seq)), nil)
					return err
				})
				if e := client.Stop(ctx); err == nil {
					err = e
				}
				return figure, err
			}},
		},
	}
	if quantile == 0.5 {
		w.targets = []target{{of: "dispatcher", atMost: 3}, {of: "dispatcher", to: "River", atMost: 0.5}}
	} else {
		w.targets = []target{{of: "dispatcher", atMost: 15}}
	}
	return w
}

// A stopwatch records the times of events by their seq.
type stopwatch struct {
	mu        sync.Mutex
	committed []time.Time
	started   []time.Time
	next      chan struct{}
}

func newStopwatch(n int) *stopwatch {
	return &stopwatch{committed: make([]time.Time, n), started: make([]time.Time, n), next: make(chan struct{}, n)}
}

func (s *stopwatch) handled(seq int64) {
	now := time.Now()
	s.mu.Lock()
	s.started[seq] = now
	s.mu.Unlock()
	s.next <- struct{}{}
}

func (s *stopwatch) run(ctx context.Context, db *database, rate int, quantile float64, enqueue func(ctx context.Context, tx pgx.Tx, seq int) error) (float64, error) {
	n := len(s.committed)
	handled := 0
	await := func() error {
		select {
		case <-s.next:
			handled++
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	begun := time.Now()
	for seq := range n {
		if rate > 0 {
			pause(ctx, time.Until(begun.Add(time.Duration(seq)*time.Second/time.Duration(rate))))
		} else {
			pause(ctx, time.Duration(15+rand.IntN(20))*time.Millisecond)
		}
		if err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error { return enqueue(ctx, tx, seq) }); err != nil {
			return 0, err
		}
		now := time.Now()
		s.mu.Lock()
		s.committed[seq] = now
		s.mu.Unlock()
		if rate == 0 {
			if err := await(); err != nil {
				return 0, err
			}
		}
	}
	for handled < n {
		if err := await(); err != nil {
			return 0, err
		}
	}
	waits := make([]time.Duration, n)
	for seq := range n {
		waits[seq] = max(0, s.started[seq].Sub(s.committed[seq])) // a handler may start before the commit returns to the producer
	}
	waits = waits[n/10:] // without the first ones, which have cold plans and connections
	slices.Sort(waits)
	return float64(waits[int(quantile*float64(len(waits)-1))]) / float64(time.Millisecond), nil
}

// doorbell measures what wake-ups cost producers: transactions of many clients while a dispatcher runs.
func doorbell(clients, each int) workload {
	rate := func(wake outbox.Wake, also string) func(context.Context, *database) (float64, error) {
		return func(ctx context.Context, db *database) (float64, error) {
			pool, err := db.open(ctx, int32(clients))
			if err != nil {
				return 0, err
			}
			defer pool.Close()
			t := newTally(clients * each)
			d, err := events.NewBenchDispatcher(db.pool, &events.BenchHandler{Work: func(_ context.Context, seq int64) { t.add(seq) }},
				queue.Config{Wake: wake, PollInterval: 100 * time.Millisecond, BatchSize: 1000, Logger: quiet})
			if err != nil {
				return 0, err
			}
			ended := make(chan error, 1)
			go func() {
				_, err := runDispatcher(ctx, t, d.Run)
				ended <- err
			}()
			took, err := produce(ctx, clients, each, func(ctx context.Context, account, seq int) error {
				return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
					if _, err := tx.Exec(ctx, change, account); err != nil {
						return err
					}
					if _, err := events.EnqueueOrderPaid(ctx, tx, order(seq)); err != nil {
						return err
					}
					if also == "" {
						return nil
					}
					_, err := tx.Exec(ctx, also)
					return err
				})
			})
			if err != nil {
				return 0, err
			}
			if err := <-ended; err != nil {
				return 0, err
			}
			return float64(clients*each) / took.Seconds(), nil
		}
	}
	return workload{
		name: "doorbell", title: fmt.Sprintf("business transaction of %d clients while a dispatcher runs", clients), unit: "transactions/s",
		about: "No wake-up: the dispatcher polls every 100 ms. NOTIFY: one per transaction, as most queues do it. Third statement: the same without NOTIFY.",
		contenders: []contender{
			{"no wake-up", rate(outbox.WakePoll, "")},
			{"doorbell", rate(outbox.WakeDoorbell, "")},
			{"NOTIFY in the transaction", rate(outbox.WakePoll, "SELECT pg_notify('bench', '')")},
			{"third statement, no NOTIFY", rate(outbox.WakePoll, "SELECT 1")},
		},
		targets: []target{
			{of: "doorbell", to: "no wake-up", atLeast: 0.95},
			{of: "doorbell", to: "NOTIFY in the transaction", atLeast: 1.9},
		},
	}
}
