package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/bench/events"
	"github.com/outboxgen/outboxgen/internal/postgres/topiclane"
	"github.com/outboxgen/outboxgen/internal/postgres/turn"
	"github.com/outboxgen/outboxgen/queue"
)

// customers is how many customers have events that no limit holds up.
const customers = 1000

// called returns the payloads of n events, of one customer after the other.
func called(first, n int) []events.OrderCalled {
	ps := make([]events.OrderCalled, n)
	for i := range ps {
		seq := first + i
		ps[i] = events.OrderCalled{
			TenantID: ourTenant, Customer: "customer" + strconv.Itoa(seq%customers), Seq: int64(seq), Note: note,
		}
	}
	return ps
}

// atLimit fills order_called with keys at their limit: one event of each is leased, for an hour, and others wait.
func atLimit(ctx context.Context, db *database, keys, waiting int) error {
	const per = "{customer}"
	spec := events.OrderCalledTopic.Untyped().Spec()
	shape := turn.ShapeOf(spec.Name, false, []string{per})
	_, err := db.pool.Exec(ctx, `WITH e AS (
			INSERT INTO outbox.events (id, namespace, topic, tenant_id, payload)
			SELECT gen_random_uuid(), $1, $2, $3, jsonb_build_object('seq', g, 'note', $4::text, 'customer', 'stuck' || g % $5, 'tenant_id', $3::uuid)
			FROM generate_series(0, $5::int + $6::int - 1) AS g
			RETURNING id, (payload->>'seq')::int AS g),
		q AS (
			INSERT INTO outbox.queue (id, namespace, topic, tenant_id, lane, turn, next_attempt_at, locked_by, locked_until, attempts, claim_no)
			SELECT id, $1, $2, $3, $7, $8 || '/stuck' || g % $5, now() - interval '10 minutes' + g * interval '1 us',
				CASE WHEN g < $5 THEN $3::uuid END, CASE WHEN g < $5 THEN now() + interval '1 hour' END, (g < $5)::int, (g < $5)::int
			FROM e)
		INSERT INTO outbox.limit_usage (namespace, topic, per, key, running)
		SELECT $1, $2, $9, 'stuck' || g, array[id] FROM e WHERE g < $5`,
		spec.Namespace, spec.Name, otherTenant, note, keys, waiting, topiclane.OfTurns(spec.Name), shape.Tag(), per)
	return err
}

// limited runs a dispatcher of namespace bench_limits until stop.
func limited(ctx context.Context, db *database, work func(seq int64)) (stop func() error, err error) {
	pool, err := db.open(ctx, 16)
	if err != nil {
		return nil, err
	}
	d, err := events.NewBenchLimitsDispatcher(pool, &events.BenchLimitsHandler{Work: func(_ context.Context, seq int64) { work(seq) }},
		queue.Config{PruneInterval: -1, Logger: quiet})
	if err != nil {
		return nil, err
	}
	end := background(ctx, d.Run)
	return func() error {
		defer pool.Close()
		return end()
	}, nil
}

// drainLimited measures how many of n events are handled a second.
func drainLimited(n int, fill func(ctx context.Context, db *database) error) func(context.Context, *database) (float64, error) {
	return drainUntil(n, fill, func() {}, func() error { return nil })
}

// drainUntil calls start just before the dispatcher starts, and end when all events are handled, before it stops.
func drainUntil(n int, fill func(ctx context.Context, db *database) error, start func(), end func() error) func(context.Context, *database) (float64, error) {
	return func(ctx context.Context, db *database) (figure float64, err error) {
		if err := fill(ctx, db); err != nil {
			return 0, err
		}
		if err := errors.Join(db.vacuum(ctx), db.settle(ctx)); err != nil {
			return 0, err
		}
		var left atomic.Int64
		left.Store(int64(n))
		begun, done := make(chan time.Time, 1), make(chan struct{})
		start()
		stop, err := limited(ctx, db, func(int64) {
			switch left.Add(-1) {
			case int64(n) - 1:
				begun <- time.Now()
			case 0:
				close(done)
			}
		})
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, stop()) }()
		select {
		case <-done:
			return float64(n) / time.Since(<-begun).Seconds(), end()
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// latencyLimited measures the time from commit to handler of single events of a thousand customers, 500 a second.
func latencyLimited(quantile float64, fill func(ctx context.Context, db *database) error) func(context.Context, *database) (float64, error) {
	return func(ctx context.Context, db *database) (figure float64, err error) {
		if err := fill(ctx, db); err != nil {
			return 0, err
		}
		if err := errors.Join(db.vacuum(ctx), db.settle(ctx)); err != nil {
			return 0, err
		}
		s := newStopwatch(3000)
		stop, err := limited(ctx, db, s.handled)
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, stop()) }()
		pause(ctx, time.Second) // until it has looked at everything once
		return s.run(ctx, db, 500, quantile, func(ctx context.Context, tx pgx.Tx, seq int) error {
			p := called(rand.IntN(customers), 1)[0]
			p.Seq = int64(seq)
			_, err := events.EnqueueOrderCalled(ctx, tx, p)
			return err
		})
	}
}

// claimLimited measures the claims of 100 events, each time of as many customers, by a Store with a Cursor.
func claimLimited(fill func(ctx context.Context, db *database) error) func(context.Context, *database) (float64, error) {
	return func(ctx context.Context, db *database) (float64, error) {
		if err := fill(ctx, db); err != nil {
			return 0, err
		}
		stop, err := limited(ctx, db, func(int64) {}) // declares the limits
		if err != nil {
			return 0, err
		}
		for declared := false; !declared && err == nil; {
			pause(ctx, 10*time.Millisecond)
			err = db.pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM outbox.limits WHERE topic = 'order_called')").Scan(&declared)
		}
		if err := errors.Join(err, stop(), db.vacuum(ctx), db.settle(ctx)); err != nil {
			return 0, err
		}
		spec := events.OrderCalledTopic.Untyped().Spec()
		store, err := queue.NewStore(db.pool, queue.StoreConfig{Namespace: spec.Namespace})
		if err != nil {
			return 0, err
		}
		cursor := new(queue.Cursor)
		claim := func() (n int, took time.Duration, err error) {
			began := time.Now()
			claimed, err := store.Claim(ctx, queue.ClaimConfig{Topics: []string{spec.Name}, BatchSize: claimSize, Cursor: cursor})
			took = time.Since(began)
			if err == nil {
				_, err = store.Ack(ctx, claimed...)
			}
			return len(claimed), took, err
		}
		for !cursor.Done() { // it has gone round once
			if _, _, err := claim(); err != nil {
				return 0, err
			}
		}
		var times []float64
		for round := range claimRounds {
			err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
				_, err := events.EnqueueOrderCalledMany(ctx, tx, called(round*claimSize, claimSize))
				return err
			})
			if err != nil {
				return 0, err
			}
			var sum time.Duration
			for got := 0; got < claimSize; {
				n, took, err := claim()
				if err != nil {
					return 0, err
				}
				got, sum = got+n, sum+took
			}
			times = append(times, milliseconds(sum))
		}
		return median(times[claimRounds/6:]), nil
	}
}

// limits measures what limits cost: those that do not bind, and keys at their limit next to others.
func limits(n int) []workload {
	tenants := make([]uuid.UUID, 10)
	for i := range tenants {
		tenants[i] = uuid.New()
	}
	fill := func(enqueue func(ctx context.Context, tx pgx.Tx, ps []events.OrderCalled) error) func(context.Context, *database) error {
		return func(ctx context.Context, db *database) error {
			for first := 0; first < n; first += fillSize {
				ps := called(first, min(fillSize, n-first))
				for i := range ps {
					ps[i].TenantID = tenants[i%len(tenants)]
				}
				if err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error { return enqueue(ctx, tx, ps) }); err != nil {
					return err
				}
			}
			return nil
		}
	}
	of := func(keys, waiting int) func(context.Context, *database) error {
		return func(ctx context.Context, db *database) error {
			if keys == 0 {
				return nil
			}
			return atLimit(ctx, db, keys, waiting)
		}
	}
	others := n / 4
	beside := func(keys, waiting int) func(context.Context, *database) error {
		return func(ctx context.Context, db *database) error {
			if err := of(keys, waiting)(ctx, db); err != nil {
				return err
			}
			for first := 0; first < others; first += fillSize {
				err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
					_, err := events.EnqueueOrderCalledMany(ctx, tx, called(first, min(fillSize, others-first)))
					return err
				})
				if err != nil {
					return err
				}
			}
			return nil
		}
	}
	const split = "limit per tenant"
	const without, with, alone = "without limits", "limits of the topic and per tenant", "alone"
	one, many := fmt.Sprintf("%d events of one key at its limit", n), fmt.Sprintf("%d keys at their limits", n/10)
	next := func(name, title, unit string, lessIsBetter bool, about string, run func(fill func(context.Context, *database) error) func(context.Context, *database) (float64, error),
		fill func(keys, waiting int) func(context.Context, *database) error, bound float64) workload {
		w := workload{name: name, title: title, unit: unit, lessIsBetter: lessIsBetter, about: about, contenders: []contender{
			{alone, run(fill(0, 0))}, {one, run(fill(1, n))}, {many, run(fill(n/10, n))},
		}}
		for _, c := range w.contenders[1:] {
			t := target{of: c.name, to: alone, atLeast: bound}
			if lessIsBetter {
				t.atLeast, t.atMost = 0, bound
			}
			w.targets = append(w.targets, t)
		}
		return w
	}
	return slices.Concat([]workload{{
		name: "limits-drain", title: fmt.Sprintf("%d events of ten tenants", n), unit: "events/s",
		about: "A dispatcher with the default configuration, from the first event to the last. The limits do not bind: concurrency 10,000 of the topic, and 5,000 per tenant.",
		contenders: []contender{
			{without, drainLimited(n, fill(func(ctx context.Context, tx pgx.Tx, ps []events.OrderCalled) error {
				_, err := events.EnqueueOrderMailedMany(ctx, tx, convertCalled[events.OrderMailed](ps))
				return err
			}))},
			{with, drainLimited(n, fill(func(ctx context.Context, tx pgx.Tx, ps []events.OrderCalled) error {
				_, err := events.EnqueueOrderCappedMany(ctx, tx, convertCalled[events.OrderCapped](ps))
				return err
			}))},
			{split, drainLimited(n, fill(func(ctx context.Context, tx pgx.Tx, ps []events.OrderCalled) error {
				_, err := events.EnqueueOrderSplitMany(ctx, tx, convertCalled[events.OrderSplit](ps))
				return err
			}))},
		},
		targets: []target{{of: with, to: without, atLeast: 0.9}, {of: split, to: without, atLeast: 0.9}},
	}}, []workload{
		next("limits-others", fmt.Sprintf("%d events of a thousand keys next to others at their limit", others), "events/s", false,
			"A dispatcher with the default configuration. Each key may have one event at a time.",
			func(fill func(context.Context, *database) error) func(context.Context, *database) (float64, error) {
				return drainLimited(others, fill)
			}, beside, 0.95),
		next("limits-latency-p50", "commit to handler start next to keys at their limit, p50", "ms", true, "500 events/s of a thousand keys.",
			func(fill func(context.Context, *database) error) func(context.Context, *database) (float64, error) {
				return latencyLimited(0.5, fill)
			}, of, 1/0.95),
		next("limits-latency-p99", "commit to handler start next to keys at their limit, p99", "ms", true, "500 events/s of a thousand keys.",
			func(fill func(context.Context, *database) error) func(context.Context, *database) (float64, error) {
				return latencyLimited(0.99, fill)
			}, of, 1.5),
		next("limits-claim", "claim of 100 events of as many keys next to keys at their limit", "ms", true,
			"The calls of Store.Claim with a Cursor that claim 100 events which were just committed.", claimLimited, of, 1.5),
	})
}

func convertCalled[P ~struct {
	TenantID uuid.UUID `json:"tenant_id"`
	Customer string    `json:"customer"`
	Seq      int64     `json:"seq"`
	Note     string    `json:"note"`
}](ps []events.OrderCalled) []P {
	converted := make([]P, len(ps))
	for i, p := range ps {
		converted[i] = P(p)
	}
	return converted
}
