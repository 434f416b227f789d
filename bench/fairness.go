package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/bench/events"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// A burst is a backlog that one producer commits at once, and a dispatcher that drains it.
type burst struct {
	left   atomic.Int64
	others func(seq int64) // called for the events of others, whose seq is negative
	stop   func() error
}

func (b *burst) drained() bool { return b.left.Load() == 0 }

// startBurst enqueues n events of a tenant in one transaction, and starts a dispatcher, whose handlers end when work
// returns. It returns when the first of them is handled.
func startBurst(ctx context.Context, db *database, topic *outbox.UntypedTopic, n int, work func(), others func(seq int64)) (*burst, error) {
	err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		for first := 0; first < n; first += fillSize {
			if err := enqueueFor(ctx, tx, topic, otherTenant, first, min(fillSize, n-first)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	b := &burst{others: others}
	b.left.Store(int64(n))
	begun := make(chan struct{})
	once := sync.OnceFunc(func() { close(begun) })
	pool, err := db.open(ctx, 16)
	if err != nil {
		return nil, err
	}
	d, err := events.NewBenchTenantsDispatcher(pool, &events.BenchTenantsHandler{Work: func(_ context.Context, seq int64) {
		if seq < 0 {
			b.others(seq)
			work()
			return
		}
		work()
		b.left.Add(-1)
		once()
	}}, queue.Config{PruneInterval: -1, Logger: quiet})
	if err != nil {
		return nil, err
	}
	stop := background(ctx, d.Run)
	b.stop = func() error {
		defer pool.Close()
		return stop()
	}
	select {
	case <-begun:
		return b, nil
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), b.stop())
	}
}

// tenEvents measures the time from the commit of ten events to the end of the last handler, while the backlog of another
// is drained, again and again until it is drained. The figure is picked from the times in ms.
func tenEvents(n int, topicOfBurst, topicOfTen *outbox.UntypedTopic, pick func([]float64) float64) func(context.Context, *database) (float64, error) {
	return func(ctx context.Context, db *database) (figure float64, err error) {
		const size = 10
		handled := make(chan struct{}, size)
		b, err := startBurst(ctx, db, topicOfBurst, n, fast, func(int64) { handled <- struct{}{} })
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, b.stop()) }()
		var times []float64
		for seq := -size; !b.drained(); seq -= size {
			if err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error { return enqueueFor(ctx, tx, topicOfTen, ourTenant, seq, size) }); err != nil {
				return 0, err
			}
			committed := time.Now()
			for range size {
				select {
				case <-handled:
				case <-ctx.Done():
					return 0, ctx.Err()
				}
			}
			times = append(times, milliseconds(time.Since(committed)))
			pause(ctx, 50*time.Millisecond)
		}
		if len(times) == 0 {
			return 0, errors.New("the backlog was drained before the first ten events")
		}
		return pick(times), nil
	}
}

// fast and slow are the work of handlers.
func fast() {}

func slow() { <-time.After(20 * time.Millisecond) }

func quantileOf(q float64) func([]float64) float64 {
	return func(times []float64) float64 {
		sorted := slices.Sorted(slices.Values(times))
		return sorted[int(q*float64(len(sorted)-1))]
	}
}

// manyTenants measures the times in ms from commit to handler of single events of 999 tenants, in random order at a rate,
// while the backlog of another tenant is drained.
func manyTenants(n, rate int, work func(), topic *outbox.UntypedTopic) func(context.Context, *database) ([]float64, error) {
	return func(ctx context.Context, db *database) (waits []float64, err error) {
		const most = 100_000
		tenants := make([]uuid.UUID, 999)
		for i := range tenants {
			tenants[i] = uuid.New()
		}
		s := newStopwatch(most)
		b, err := startBurst(ctx, db, topic, n, work, func(seq int64) { s.handled(-seq - 1) })
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, b.stop()) }()
		sent, begun := 0, time.Now()
		for ; !b.drained() && sent < most; sent++ {
			pause(ctx, time.Until(begun.Add(time.Duration(sent)*time.Second/time.Duration(rate))))
			err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
				return enqueueFor(ctx, tx, topic, tenants[rand.IntN(len(tenants))], -sent-1, 1)
			})
			if err != nil {
				return nil, err
			}
			now := time.Now()
			s.mu.Lock()
			s.committed[sent] = now
			s.mu.Unlock()
		}
		for range sent {
			select {
			case <-s.next:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		for seq := range sent {
			waits = append(waits, max(0, milliseconds(s.started[seq].Sub(s.committed[seq]))))
		}
		if sent == 0 {
			return nil, errors.New("the backlog was drained before the first event of another tenant")
		}
		return waits, nil
	}
}

// manyTenantsAt measures a quantile of those times.
func manyTenantsAt(n, rate int, work func(), topic *outbox.UntypedTopic, quantile float64) func(context.Context, *database) (float64, error) {
	return func(ctx context.Context, db *database) (float64, error) {
		waits, err := manyTenants(n, rate, work, topic)(ctx, db)
		if err != nil {
			return 0, err
		}
		return quantileOf(quantile)(waits), nil
	}
}

// throughput measures how many events of a backlog are handled a second: of one tenant, or of a thousand. Next to it, if
// others is set, there are 500 single events a second of 999 tenants.
func throughput(n, tenants int, others bool, topic *outbox.UntypedTopic) func(context.Context, *database) (float64, error) {
	return func(ctx context.Context, db *database) (figure float64, err error) {
		if tenants > 1 {
			for range tenants {
				if err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
					return enqueueFor(ctx, tx, topic, uuid.New(), 0, n/tenants)
				}); err != nil {
					return 0, err
				}
			}
			n -= n % tenants
		}
		first := n
		if tenants > 1 {
			first = 0
		}
		if err := db.vacuum(ctx); err != nil {
			return 0, err
		}
		b, err := startBurst(ctx, db, topic, first, fast, func(int64) {})
		if err != nil {
			return 0, err
		}
		b.left.Add(int64(n - first))
		defer func() { err = errors.Join(err, b.stop()) }()
		begun := time.Now()
		quiet := make([]uuid.UUID, 999)
		for i := range quiet {
			quiet[i] = uuid.New()
		}
		for sent := 0; !b.drained(); sent++ {
			pause(ctx, time.Until(begun.Add(time.Duration(sent)*2*time.Millisecond)))
			if !others {
				continue
			}
			if err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
				return enqueueFor(ctx, tx, topic, quiet[rand.IntN(len(quiet))], -sent-1, 1)
			}); err != nil {
				return 0, err
			}
		}
		return float64(n) / time.Since(begun).Seconds(), nil
	}
}

// drainOne measures the Drain of 500 events of one tenant, which are behind events of another.
func drainOne(behind int, topic *outbox.UntypedTopic) func(context.Context, *database) (float64, error) {
	return func(ctx context.Context, db *database) (float64, error) {
		const size, rounds = 500, 7
		if behind > 0 {
			others := of(behind, topic)
			others.tenant = outbox.Tenant(otherTenant)
			if topic == events.OrderBilledTopic.Untyped() {
				others.takeTurns()
			}
			if err := others.insert(ctx, db); err != nil {
				return 0, err
			}
		}
		if err := db.vacuum(ctx); err != nil {
			return 0, err
		}
		if err := db.settle(ctx); err != nil {
			return 0, err
		}
		var rates []float64
		for range rounds {
			if err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error { return enqueueFor(ctx, tx, topic, ourTenant, 0, size) }); err != nil {
				return 0, err
			}
			d, err := events.NewBenchTenantsDispatcher(db.pool, &events.BenchTenantsHandler{Work: func(context.Context, int64) {}},
				queue.Config{TenantIDs: []uuid.UUID{ourTenant}, PruneInterval: -1, Logger: quiet})
			if err != nil {
				return 0, err
			}
			began := time.Now()
			report, err := d.Drain(ctx)
			took := time.Since(began)
			if err == nil && report.Delivered != size {
				err = fmt.Errorf("%d events delivered, want %d", report.Delivered, size)
			}
			if err != nil {
				return 0, err
			}
			rates = append(rates, size/took.Seconds())
		}
		return median(rates[1:]), nil // the first has cold plans and connections
	}
}

// fairness measures how long the events of one tenant or topic wait for those of another.
func fairness(n int) []workload {
	fair, unfair, another := events.OrderBilledTopic.Untyped(), events.OrderShippedTopic.Untyped(), events.OrderReturnedTopic.Untyped()
	var all []workload
	for _, figure := range []struct {
		name string
		pick func([]float64) float64
	}{{"median", median}, {"max", func(times []float64) float64 { return slices.Max(times) }}} {
		all = append(all, workload{
			name: "fairness-" + figure.name, title: fmt.Sprintf("ten events while %d of another are drained, %s", n, figure.name), unit: "ms", lessIsBetter: true,
			about: "From the commit of ten events to the end of the last handler, again and again until the backlog is drained. " +
				"The backlog was committed by one transaction of another tenant, or in another topic.",
			contenders: []contender{
				{"fairness: tenant", tenEvents(n, fair, fair, figure.pick)},
				{"another topic", tenEvents(n, unfair, another, figure.pick)},
				{"one topic without fairness", tenEvents(n, unfair, unfair, figure.pick)},
			},
			targets: []target{{of: "fairness: tenant", atMost: 100}, {of: "another topic", atMost: 100}},
		})
	}
	for _, quantile := range [...]float64{0.5, 0.99, 0.999} {
		all = append(all, workload{
			name: fmt.Sprintf("fairness-tenants-p%g", 100*quantile), title: fmt.Sprintf("one noisy tenant of 1,000, p%g of the others", 100*quantile),
			unit: "ms", lessIsBetter: true,
			about: fmt.Sprintf("From the commit of an event to its handler, at 500 events/s of 999 tenants, while %d events of one tenant are drained. "+
				"With handlers that take 20 ms: at 100 events/s, while %d are.", n, n/10),
			contenders: []contender{
				{"fairness: tenant", manyTenantsAt(n, 500, fast, fair, quantile)},
				{"without fairness", manyTenantsAt(n, 500, fast, unfair, quantile)},
				{"fairness: tenant, handlers of 20 ms", manyTenantsAt(n/10, 100, slow, fair, quantile)},
				{"without fairness, handlers of 20 ms", manyTenantsAt(n/10, 100, slow, unfair, quantile)},
			},
			targets: []target{{of: "fairness: tenant", atMost: 100}},
		})
	}
	const plain, turns, besides = "without fairness", "fairness: tenant", ", next to 500 events/s of 999 others"
	all = append(all, workload{
		name: "fairness-throughput", title: fmt.Sprintf("%d events of one tenant", n), unit: "events/s",
		about: "A dispatcher with the default configuration, from the first event to the last. The producer of the others runs on the " +
			"same machine, and without fairness they are delivered after the events of the one.",
		contenders: []contender{
			{plain, throughput(n, 1, false, unfair)}, {turns, throughput(n, 1, false, fair)},
			{plain + besides, throughput(n, 1, true, unfair)}, {turns + besides, throughput(n, 1, true, fair)},
		},
		targets: []target{{of: turns, to: plain, atLeast: 0.95}, {of: turns + besides, to: turns, atLeast: 0.9}},
	}, workload{
		name: "fairness-thousand", title: fmt.Sprintf("%d events of 1,000 tenants", n), unit: "events/s",
		about:      "A dispatcher with the default configuration, from the first event to the last.",
		contenders: []contender{{plain, throughput(n, 1000, false, unfair)}, {turns, throughput(n, 1000, false, fair)}},
		targets:    []target{{of: turns, to: plain, atLeast: 0.95}},
	})
	const alone, behind = "alone", "behind another tenant"
	return append(all, workload{
		name: "fairness-drain", title: "drain of one tenant's 500 events", unit: "events/s",
		about: fmt.Sprintf("Dispatcher.Drain with TenantIDs, alone and behind %d events of another tenant.", 2*n),
		contenders: []contender{
			{alone, drainOne(0, unfair)},
			{behind, drainOne(2*n, unfair)},
			{alone + ", fairness: tenant", drainOne(0, fair)},
			{behind + ", fairness: tenant", drainOne(2*n, fair)},
		},
		targets: []target{
			{of: behind, to: alone, atLeast: 0.5},
			{of: behind + ", fairness: tenant", to: alone + ", fairness: tenant", atLeast: 0.5},
		},
	})
}
