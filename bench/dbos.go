package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/bench/events"
)

// besideDBOS measures flow control beside the queues of DBOS. The program in the folder dbos, which is a module of its own,
// does the work of DBOS on the same server: one process with one pool, like the dispatcher.
func besideDBOS(n int) []workload {
	const ours, theirs = "outboxgen", "DBOS"
	const promises = " DBOS keeps the state of each workflow, so that it continues after a crash, and records its outcome in a " +
		"transaction of its own. outboxgen delivers events, and acks many at once. Both have one process with 16 connections " +
		"and a handler that does nothing. All items are in the database before the process starts; the time is from its start " +
		"until all outcomes are recorded."
	const settings = " DBOS has the settings that were the fastest: it polls every ms, not every second, and has no limit per process that binds."
	mine, its, waiting := n/5, n/20, n/10
	drained := func(name, about, work string, enqueue func(ctx context.Context, tx pgx.Tx, ps []events.OrderCalled) error) workload {
		return workload{
			name: name, unit: "items/s", few: true, apart: true,
			title:      fmt.Sprintf("beside DBOS: %d events, %d workflows", mine, its),
			about:      about + settings + promises,
			contenders: []contender{{ours, drainRecorded(mine, 0, inTransactions(mine, enqueue))}, {theirs, dbos(work, "-n", its)}},
			targets:    []target{{of: ours, to: theirs, atLeast: 1}},
		}
	}
	const alone, next = ", alone", ", next to the key"
	others := workload{
		name: "dbos-others", unit: "items/s", few: true, apart: true,
		title: fmt.Sprintf("beside DBOS: a thousand keys next to %d items of one key at its limit", waiting),
		about: fmt.Sprintf("%d events, %d workflows. A key has one item at a time, in all processes; in DBOS it is a partition "+
			"with concurrency 1. One item of the key at its limit does not end, the others of it wait.", mine, its/2) + settings + promises,
	}
	for _, at := range [...]struct {
		name    string
		waiting int
	}{{alone, 0}, {next, waiting}} {
		fill := inTransactions(mine, func(ctx context.Context, tx pgx.Tx, ps []events.OrderCalled) error {
			_, err := events.EnqueueOrderCalledMany(ctx, tx, ps)
			return err
		})
		others.contenders = append(others.contenders,
			contender{ours + at.name, drainRecorded(mine, at.waiting, func(ctx context.Context, db *database) error {
				if at.waiting > 0 {
					if err := atLimit(ctx, db, 1, at.waiting); err != nil {
						return err
					}
				}
				return fill(ctx, db)
			})},
			contender{theirs + at.name, dbos("others", "-n", its/2, "-waiting", at.waiting)})
		others.targets = append(others.targets, target{of: ours + at.name, to: theirs + at.name, atLeast: 1})
	}
	for _, name := range [...]string{ours, theirs} { // what each loses; that of DBOS is not ours to bound
		bound := map[string]float64{ours: 0.95}[name]
		others.targets = append(others.targets, target{of: name + next, to: name + alone, atLeast: bound})
	}
	const rate = 200
	turns := workload{
		name: "dbos-turns", unit: "ms", few: true, apart: true, lessIsBetter: true,
		title: "beside DBOS: one noisy tenant of 1,000",
		about: fmt.Sprintf("From the commit of an item to its handler, at %d items/s of 999 tenants, while a backlog of one tenant is drained: "+
			"%d events with fairness: tenant, %d workflows in a queue with a partition per tenant. DBOS has no turns; it takes from all partitions "+
			"in random order, here up to 100 of each at once.", rate, n, its) + settings,
	}
	quantiles := []float64{0.5, 0.99, 0.999}
	mineOf := together(len(quantiles), func(ctx context.Context, db *database) ([]float64, error) {
		waits, err := manyTenants(n, rate, fast, events.OrderBilledTopic.Untyped())(ctx, db)
		if err != nil {
			return nil, err
		}
		var figures []float64
		for _, q := range quantiles {
			figures = append(figures, quantileOf(q)(waits))
		}
		return figures, nil
	})
	itsOf := together(len(quantiles), dbosFigures(len(quantiles), "turns", "-n", its, "-rate", rate))
	for i, q := range quantiles {
		p := fmt.Sprintf(", p%g", 100*q)
		turns.contenders = append(turns.contenders, contender{ours + p, mineOf(i)}, contender{theirs + p, itsOf(i)})
		turns.targets = append(turns.targets, target{of: ours + p, to: theirs + p, atMost: 1})
	}
	return []workload{
		drained("dbos-drain", "Limits that do not bind: concurrency 10,000 of the topic and 5,000 of each tenant; global concurrency 10,000 of the queue.",
			"drain", func(ctx context.Context, tx pgx.Tx, ps []events.OrderCalled) error {
				_, err := events.EnqueueOrderCappedMany(ctx, tx, convertCalled[events.OrderCapped](ps))
				return err
			}),
		drained("dbos-rate", "A rate that does not bind: 1,000,000 a second, of the topic and of the queue.",
			"rate", func(ctx context.Context, tx pgx.Tx, ps []events.OrderCalled) error {
				_, err := events.EnqueueOrderPacedMany(ctx, tx, convertCalled[events.OrderPaced](ps))
				return err
			}),
		others,
		turns,
	}
}

// inTransactions enqueues n events, each transaction up to fillSize of them.
func inTransactions(n int, enqueue func(ctx context.Context, tx pgx.Tx, ps []events.OrderCalled) error) func(context.Context, *database) error {
	return func(ctx context.Context, db *database) error {
		for first := 0; first < n; first += fillSize {
			ps := called(first, min(fillSize, n-first))
			if err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error { return enqueue(ctx, tx, ps) }); err != nil {
				return err
			}
		}
		return nil
	}
}

// drainRecorded measures how many of n events are handled and recorded a second. The queue keeps waiting others, and one
// that is leased.
func drainRecorded(n, waiting int, fill func(context.Context, *database) error) func(context.Context, *database) (float64, error) {
	return func(ctx context.Context, db *database) (float64, error) {
		var took time.Duration
		var begun time.Time
		_, err := drainUntil(n, fill, func() { begun = time.Now() },
			func() error {
				for {
					var queued int
					err := db.pool.QueryRow(ctx, "SELECT count(*) FROM outbox.queue").Scan(&queued)
					took = time.Since(begun)
					if err != nil || queued <= waiting+min(waiting, 1) {
						return err
					}
					pause(ctx, time.Millisecond)
				}
			})(ctx, db)
		if err != nil {
			return 0, err
		}
		return float64(n) / took.Seconds(), db.count(ctx, n, "delivered", delivered)
	}
}

// dbos measures one figure with the program of DBOS.
func dbos(work string, flags ...any) func(context.Context, *database) (float64, error) {
	return func(ctx context.Context, db *database) (float64, error) {
		figures, err := dbosFigures(1, work, flags...)(ctx, db)
		if err != nil {
			return 0, err
		}
		return figures[0], nil
	}
}

// dbosFigures measures n figures with the program of DBOS.
func dbosFigures(n int, work string, flags ...any) func(context.Context, *database) ([]float64, error) {
	return func(ctx context.Context, db *database) ([]float64, error) {
		args := []string{"run", ".", "-url", db.url}
		for _, flag := range flags {
			args = append(args, fmt.Sprint(flag))
		}
		var stderr bytes.Buffer
		cmd := exec.CommandContext(ctx, "go", append(args, work)...)
		cmd.Dir, cmd.Stderr, cmd.WaitDelay = "dbos", &stderr, 10*time.Second
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("%w: %s", err, stderr.String())
		}
		var figures []float64
		for _, text := range strings.Fields(string(out)) {
			figure, err := strconv.ParseFloat(text, 64)
			if err != nil {
				return nil, err
			}
			figures = append(figures, figure)
		}
		if len(figures) != n {
			return nil, fmt.Errorf("%d figures in %q, want %d", len(figures), out, n)
		}
		return figures, nil
	}
}

// together returns contenders that each report one of n figures of the same run: the first of them in a round measures, and
// the others take what it has kept.
func together(n int, measure func(context.Context, *database) ([]float64, error)) func(i int) func(context.Context, *database) (float64, error) {
	kept := make(map[int]float64)
	return func(i int) func(context.Context, *database) (float64, error) {
		return func(ctx context.Context, db *database) (float64, error) {
			if _, there := kept[i]; !there {
				figures, err := measure(ctx, db)
				if err != nil {
					return 0, err
				}
				for j := range n {
					kept[j] = figures[j]
				}
			}
			figure := kept[i]
			delete(kept, i)
			return figure, nil
		}
	}
}
