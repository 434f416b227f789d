package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/outboxgen/outboxgen/bench/events"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// traffic is a rate of events per second, and who handles them. A rate of 0 means idle: the next event is enqueued some time
// after the previous one was handled.
type traffic struct {
	rate, n int
	workers int  // with a pool each
	open    bool // a transaction that has enqueued is open all the time
}

func (l traffic) name() string {
	name := "idle"
	if l.rate > 0 {
		name = strconv.Itoa(l.rate)
	}
	if l.workers > 1 {
		name += fmt.Sprintf("-%d-workers", l.workers)
	}
	if l.open {
		name += "-open"
	}
	return name
}

func (l traffic) title() string {
	title := "idle"
	if l.rate > 0 {
		title = fmt.Sprintf("%d events/s", l.rate)
	}
	if l.workers > 1 {
		title += fmt.Sprintf(", %d workers", l.workers)
	}
	if l.open {
		title += ", an open transaction"
	}
	return title
}

// latencies returns what latency measures.
func latencies() (all []workload) {
	for _, l := range []traffic{
		{n: 200}, {rate: 500, n: 3000},
		{rate: 50, n: 300}, {rate: 2000, n: 6000}, {rate: 500, n: 3000, workers: 2}, {rate: 500, n: 3000, workers: 4},
		{rate: 500, n: 3000, open: true},
	} {
		all = append(all, latency(0.5, l), latency(0.99, l))
	}
	for _, l := range []traffic{{n: 200}, {rate: 500, n: 3000}} {
		all = append(all, listenerLatency(0.5, l), listenerLatency(0.99, l))
	}
	return append(all, idleTime())
}

// latency measures the time from the return of a commit to the start of the handler under some traffic.
func latency(quantile float64, l traffic) workload {
	w := workload{
		name: fmt.Sprintf("latency-%s-p%g", l.name(), quantile*100), title: fmt.Sprintf("commit to handler start, %s, p%g", l.title(), quantile*100), unit: "ms",
		about:        "River wakes its workers with NOTIFY in the transaction, outboxgen with the doorbell.",
		lessIsBetter: true,
		contenders: []contender{
			{"dispatcher", l.ofDispatcher(quantile)},
			{"River", func(ctx context.Context, db *database) (float64, error) {
				if err := migrateRiver(ctx, db.pool); err != nil {
					return 0, err
				}
				s := newStopwatch(l.n)
				var first *river.Client[pgx.Tx] // one that only inserts would not notify
				enqueue := func(ctx context.Context, tx pgx.Tx, seq int) error {
					_, err := first.InsertTx(ctx, tx, job(order(seq)), nil)
					return err
				}
				return l.measure(ctx, db, s, quantile, enqueue, func(pool *pgxpool.Pool) (func() error, error) {
					client, err := riverClient(pool, 10, func(_ context.Context, seq int64) { s.handled(seq) })
					if err != nil {
						return nil, err
					}
					first = cmp.Or(first, client)
					return func() error { return client.Stop(ctx) }, client.Start(ctx)
				})
			}},
		},
	}
	if l.workers > 1 {
		w.about += " Each worker has a pool of its own, in one process."
	}
	if l.open {
		w.about += " The transaction has enqueued an event, and is rolled back after a second, when the next one begins."
	}
	switch {
	case quantile == 0.5 && l.rate == 0:
		w.targets = []target{{of: "dispatcher", atMost: 3}, {of: "dispatcher", to: "River", atMost: 0.75}}
	case quantile == 0.5:
		w.targets = []target{{of: "dispatcher", atMost: 3}, {of: "dispatcher", to: "River", atMost: 0.7}}
	case l.rate == 0:
		w.targets = []target{{of: "dispatcher", atMost: 15}, {of: "dispatcher", to: "River", atMost: 0.5}}
	default:
		w.targets = []target{{of: "dispatcher", atMost: 15}, {of: "dispatcher", to: "River", atMost: 0.8}}
	}
	return w
}

// ofDispatcher measures dispatchers.
func (l traffic) ofDispatcher(quantile float64) measured {
	return func(ctx context.Context, db *database) (float64, error) {
		s := newStopwatch(l.n)
		enqueue := func(ctx context.Context, tx pgx.Tx, seq int) error {
			_, err := events.EnqueueOrderPaid(ctx, tx, order(seq))
			return err
		}
		return l.measure(ctx, db, s, quantile, enqueue, func(pool *pgxpool.Pool) (func() error, error) {
			d, err := events.NewBenchDispatcher(pool, &events.BenchHandler{Work: func(_ context.Context, seq int64) { s.handled(seq) }},
				queue.Config{Logger: quiet})
			if err != nil {
				return nil, err
			}
			return background(ctx, d.Run), nil
		})
	}
}

// ofListener measures listeners.
func (l traffic) ofListener(quantile float64) measured {
	return func(ctx context.Context, db *database) (float64, error) {
		s := newStopwatch(l.n)
		enqueue := func(ctx context.Context, tx pgx.Tx, seq int) error {
			_, err := events.EnqueueOrderMoved(ctx, tx, events.OrderMoved(order(seq)))
			return err
		}
		return l.measure(ctx, db, s, quantile, enqueue, func(pool *pgxpool.Pool) (func() error, error) {
			li, err := events.NewMoverListener(pool, &events.MoverHandler{Work: func(_ context.Context, seq int64) { s.handled(seq) }},
				listener.Config{Logger: quiet})
			if err != nil {
				return nil, err
			}
			return background(ctx, li.Run), nil
		})
	}
}

// background runs a dispatcher or listener until stop, which waits for its end.
func background(ctx context.Context, run func(context.Context) error) (stop func() error) {
	running, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- run(running) }()
	return func() error {
		cancel()
		return <-ended
	}
}

// listenerLatency measures the same of a listener, next to a dispatcher.
func listenerLatency(quantile float64, l traffic) workload {
	return workload{
		name:  fmt.Sprintf("latency-listener-%s-p%g", l.name(), quantile*100),
		title: fmt.Sprintf("commit to handler start of a listener, %s, p%g", l.title(), quantile*100), unit: "ms",
		about:        "The event of a log topic, and that of a queue topic at the same rate.",
		lessIsBetter: true,
		contenders:   []contender{{"listener", l.ofListener(quantile)}, {"dispatcher", l.ofDispatcher(quantile)}},
		targets:      []target{{of: "listener", to: "dispatcher", atMost: 1.5}},
	}
}

// measure starts the workers, and returns a quantile of the latencies of s. start starts a worker, and returns what stops it.
func (l traffic) measure(ctx context.Context, db *database, s *stopwatch, quantile float64,
	enqueue func(ctx context.Context, tx pgx.Tx, seq int) error, start func(*pgxpool.Pool) (stop func() error, err error)) (figure float64, err error) {
	for n := range max(l.workers, 1) {
		pool := db.pool
		if n > 0 {
			if pool, err = db.open(ctx, 16); err != nil {
				return 0, err
			}
			defer pool.Close()
		}
		stop, err := start(pool)
		if err != nil {
			return 0, err
		}
		defer func() {
			if e := stop(); err == nil {
				err = e
			}
		}()
	}
	measuring, stop := context.WithCancel(ctx)
	opened := make(chan error, 1)
	go func() { opened <- l.keepOpen(measuring, db, enqueue) }()
	figure, err = s.run(ctx, db, l.rate, quantile, enqueue)
	stop()
	return figure, cmp.Or(err, <-opened)
}

// keepOpen keeps a transaction open that has enqueued, until ctx ends.
func (l traffic) keepOpen(ctx context.Context, db *database, enqueue func(ctx context.Context, tx pgx.Tx, seq int) error) error {
	for l.open && ctx.Err() == nil {
		err := pgx.BeginFunc(context.WithoutCancel(ctx), db.pool, func(tx pgx.Tx) error {
			if err := enqueue(context.WithoutCancel(ctx), tx, 0); err != nil {
				return err
			}
			pause(ctx, time.Second)
			return errRolledBack
		})
		if !errors.Is(err, errRolledBack) {
			return err
		}
	}
	return nil
}

var errRolledBack = errors.New("rolled back")

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
