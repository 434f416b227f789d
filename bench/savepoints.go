package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/outboxgen/outboxgen/bench/events"
	"github.com/outboxgen/outboxgen/listener"
)

const (
	busyClients    = 4
	busySavepoints = 2000 // per transaction
)

// savepoints measures a listener while clients in another database of the server use up transaction ids.
func savepoints(rounds int) workload {
	with := fmt.Sprintf("next to %d clients of %d savepoints", busyClients, busySavepoints)
	without := fmt.Sprintf("next to %d clients without savepoints", busyClients)
	return workload{
		name: "listener-savepoints", title: "listener next to another database", unit: "events/s",
		about: "Rounds of 1,000 events, of which only the drain is measured. The clients insert 2,000 rows per transaction into a table " +
			"of another database, each row in a savepoint or without one.",
		contenders: []contender{
			{"alone", withClients(rounds, "")},
			{without, withClients(rounds, `DO $$ BEGIN FOR i IN 1..%d LOOP INSERT INTO busy VALUES (i); END LOOP; END $$`)},
			{with, withClients(rounds, `DO $$ BEGIN FOR i IN 1..%d LOOP BEGIN INSERT INTO busy VALUES (i); EXCEPTION WHEN others THEN RAISE; END; END LOOP; END $$`)},
		},
		targets: []target{{of: with, to: without, atLeast: 0.6}, {of: with, to: "alone", atLeast: 0.2}},
	}
}

// withClients returns the rate of a listener while clients run sql. If sql is empty, there are no clients.
func withClients(rounds int, sql string) func(context.Context, *database) (float64, error) {
	return func(ctx context.Context, db *database) (rate float64, err error) {
		const each = 1000
		t := newTally(rounds * each)
		h := &events.MoverHandler{Work: func(_ context.Context, seq int64) { t.add(seq) }}
		l, err := listener.New(db.pool, listener.Spec{Schema: "outbox", Name: "mover"},
			listener.Config{BatchSize: each, PruneInterval: -1, Logger: quiet},
			listener.Handle(events.OrderMovedTopic, h, h.HandleOrderMoved))
		if err != nil {
			return 0, err
		}
		if sql != "" {
			stop, err := busy(ctx, db, fmt.Sprintf(sql, busySavepoints))
			if err != nil {
				return 0, err
			}
			defer func() { err = errors.Join(err, stop()) }()
		}
		var took time.Duration
		for round := range rounds {
			ps := make([]events.OrderMoved, each)
			for i := range ps {
				ps[i] = events.OrderMoved(order(round*each + i))
			}
			err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
				_, err := events.EnqueueOrderMovedMany(ctx, tx, ps)
				return err
			})
			if err != nil {
				return 0, err
			}
			started := time.Now()
			if _, err := l.Drain(ctx); err != nil {
				return 0, err
			}
			took += time.Since(started)
		}
		if err := t.check(); err != nil {
			return 0, err
		}
		return float64(rounds*each) / took.Seconds(), nil
	}
}

// busy makes clients run sql in another database until stop is called.
func busy(ctx context.Context, db *database, sql string) (stop func() error, err error) {
	other, err := db.server.database(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := other.pool.Exec(ctx, "CREATE UNLOGGED TABLE busy (n int)"); err != nil {
		return nil, err
	}
	running, cancel := context.WithCancel(ctx)
	var clients errgroup.Group
	for range busyClients {
		clients.Go(func() error {
			for running.Err() == nil {
				if _, err := other.pool.Exec(running, sql); err != nil && running.Err() == nil {
					return err
				}
			}
			return nil
		})
	}
	return func() error {
		cancel()
		return errors.Join(clients.Wait(), other.drop(ctx))
	}, nil
}
