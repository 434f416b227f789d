package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outboxgen/outboxgen/bench/events"
	"github.com/outboxgen/outboxgen/listener"
)

func fillLog(ctx context.Context, db *database, n int) error {
	return fillQueue(ctx, db, n, func(seq int) events.OrderMoved { return events.OrderMoved(order(seq)) }, events.EnqueueOrderMovedMany)
}

const plainSelect = `SELECT seq, id, topic, version, partition_key, payload, created_at FROM outbox.log WHERE seq > $1 ORDER BY seq LIMIT 1000`

// listen measures listeners on a log of n events, each from its start to the end of its graceful stop.
func listen(n int) workload {
	var names []string
	for i := range 5 {
		names = append(names, fmt.Sprintf("mover_%d", i+1))
	}
	return workload{
		name: "listener", title: fmt.Sprintf("log of %d, batches of 1,000", n), unit: "events/s each",
		about: "Plain SELECT: the same rows and columns with `seq > $1`; payloads are not decoded, and nothing is recorded.",
		contenders: []contender{
			{"plain SELECT", func(ctx context.Context, db *database) (float64, error) {
				if err := fillLog(ctx, db, n); err != nil {
					return 0, err
				}
				started := time.Now()
				var (
					seq, total int64
					id         pgtype.UUID
					topic, key string
					version    int32
					payload    []byte
					created    time.Time
				)
				for {
					rows, err := db.pool.Query(ctx, plainSelect, seq)
					if err != nil {
						return 0, err
					}
					tag, err := pgx.ForEachRow(rows, []any{&seq, &id, &topic, &version, &key, &payload, &created}, func() error { return nil })
					if err != nil {
						return 0, err
					}
					if total += tag.RowsAffected(); tag.RowsAffected() == 0 {
						break
					}
				}
				if total != int64(n) {
					return 0, fmt.Errorf("%d events read, want %d", total, n)
				}
				return float64(n) / time.Since(started).Seconds(), nil
			}},
			{"one listener", listeners(n, names[:1])},
			{"five concurrent listeners", listeners(n, names)},
			{"watermill", drainWatermill(n, 1000)},
		},
		targets: []target{
			{of: "one listener", to: "plain SELECT", atLeast: 0.4},
			{of: "five concurrent listeners", to: "plain SELECT", atLeast: 0.15},
		},
	}
}

// listeners runs the named listeners concurrently and returns the rate of the slowest.
func listeners(n int, names []string) func(context.Context, *database) (float64, error) {
	return func(ctx context.Context, db *database) (float64, error) {
		if err := fillLog(ctx, db, n); err != nil {
			return 0, err
		}
		type end struct {
			took time.Duration
			err  error
		}
		ends := make(chan end, len(names))
		for _, name := range names {
			t := newTally(n)
			h := &events.MoverHandler{Work: func(_ context.Context, seq int64) { t.add(seq) }}
			l, err := listener.New(db.pool, listener.Spec{Schema: "outbox", Name: name},
				listener.Config{BatchSize: 1000, PruneInterval: -1, Logger: quiet},
				listener.Handle(events.OrderMovedTopic, h, h.HandleOrderMoved))
			if err != nil {
				return 0, err
			}
			go func() {
				took, err := runDispatcher(ctx, t, l.Run)
				ends <- end{took, err}
			}()
		}
		var slowest time.Duration
		for range names {
			e := <-ends
			if e.err != nil {
				return 0, e.err
			}
			slowest = max(slowest, e.took)
		}
		return float64(n) / slowest.Seconds(), nil
	}
}
