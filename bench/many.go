package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/outboxgen/outboxgen/bench/events"
)

// insertMany is the unnest insert that a good service writes by hand.
const insertMany = `WITH e AS (
		INSERT INTO outbox.events (id, namespace, topic, version, dedupe_key, payload)
		SELECT id, 'bench', 'order_paid', 1, key, payload FROM unnest($1::uuid[], $2::text[], $3::jsonb[]) AS new (id, key, payload)
		ON CONFLICT (namespace, topic, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING RETURNING id)
	INSERT INTO outbox.queue (id, namespace, topic, version, max_attempts)
	SELECT id, 'bench', 'order_paid', 1, 5 FROM e RETURNING id`

// many measures one producer that enqueues several events per transaction.
func many(size, calls int) workload {
	rate := func(check string, prepare func(context.Context, *database) (func(ctx context.Context, tx pgx.Tx, from int) error, error)) func(context.Context, *database) (float64, error) {
		return func(ctx context.Context, db *database) (float64, error) {
			do, err := prepare(ctx, db)
			if err != nil {
				return 0, err
			}
			took, err := produce(ctx, 1, calls, func(ctx context.Context, _, call int) error {
				return pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error { return do(ctx, tx, call*size) })
			})
			if err != nil {
				return 0, err
			}
			return float64(size*calls) / took.Seconds(), db.count(ctx, size*calls, "events", check)
		}
	}
	always := func(do func(ctx context.Context, tx pgx.Tx, from int) error) func(context.Context, *database) (func(context.Context, pgx.Tx, int) error, error) {
		return func(context.Context, *database) (func(context.Context, pgx.Tx, int) error, error) { return do, nil }
	}
	return workload{
		name: fmt.Sprintf("many-%d", size), title: fmt.Sprintf("%d events a call", size), unit: "events/s",
		about: "One producer, one call per transaction. River's jobs have no dedupe key and are inserted with COPY.",
		contenders: []contender{
			{"hand-written unnest", rate(enqueued, always(func(ctx context.Context, tx pgx.Tx, from int) error {
				ids, keys, payloads := make([]uuid.UUID, size), make([]string, size), make([][]byte, size)
				for i := range size {
					p := order(from + i)
					var err error
					if payloads[i], err = json.Marshal(p); err != nil {
						return err
					}
					if ids[i], err = uuid.NewV7(); err != nil {
						return err
					}
					keys[i] = p.OrderID.String()
				}
				rows, err := tx.Query(ctx, insertMany, ids, keys, payloads)
				if err != nil {
					return err
				}
				stored, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
				if err == nil && len(stored) != size {
					err = fmt.Errorf("%d of %d stored", len(stored), size)
				}
				return err
			}))},
			{"EnqueueMany", rate(enqueued, always(func(ctx context.Context, tx pgx.Tx, from int) error {
				ps := make([]events.OrderPaid, size)
				for i := range ps {
					ps[i] = order(from + i)
				}
				_, err := events.EnqueueOrderPaidMany(ctx, tx, ps)
				return err
			}))},
			{"EnqueueMany, no dedupe key", rate(enqueued, always(func(ctx context.Context, tx pgx.Tx, from int) error {
				ps := make([]events.OrderDropped, size)
				for i := range ps {
					ps[i] = events.OrderDropped(order(from + i))
				}
				_, err := events.EnqueueOrderDroppedMany(ctx, tx, ps)
				return err
			}))},
			{"River InsertManyFastTx", rate("SELECT count(*) FROM river_job", func(ctx context.Context, db *database) (func(context.Context, pgx.Tx, int) error, error) {
				client, err := riverInserter(ctx, db)
				return func(ctx context.Context, tx pgx.Tx, from int) error {
					ps := make([]river.InsertManyParams, size)
					for i := range ps {
						ps[i].Args = job(order(from + i))
					}
					_, err := client.InsertManyFastTx(ctx, tx, ps)
					return err
				}, err
			})},
		},
		targets: []target{
			{of: "EnqueueMany", to: "hand-written unnest", atLeast: 0.9},
			{of: "EnqueueMany", to: "River InsertManyFastTx", atLeast: 1.5},
			{of: "EnqueueMany, no dedupe key", to: "River InsertManyFastTx", atLeast: 1.5},
		},
	}
}
