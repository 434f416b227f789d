package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/outboxgen/outboxgen/bench/events"
)

const change = "UPDATE account SET balance = balance + 1 WHERE id = $1"

// insert is what a good service writes by hand: the columns that it needs, a dedupe key, no error on a conflict, and both
// rows in one statement.
const insert = `WITH e AS (
		INSERT INTO outbox.events (id, namespace, topic, version, dedupe_key, payload)
		VALUES ($1, 'bench', 'order_paid', 1, $2, $3)
		ON CONFLICT (namespace, topic, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING RETURNING id)
	INSERT INTO outbox.queue (id, namespace, topic, version, max_attempts)
	SELECT id, 'bench', 'order_paid', 1, 5 FROM e RETURNING id`

// enqueued counts the events that have a row in both tables.
const enqueued = "SELECT count(*) FROM outbox.events JOIN outbox.queue USING (id)"

func order(seq int) events.OrderPaid {
	return events.OrderPaid{OrderID: uuid.New(), Seq: int64(seq), Note: note}
}

func insertArgs(seq int) ([]any, error) {
	p := order(seq)
	body, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	id, err := uuid.NewV7()
	return []any{id, p.OrderID.String(), body}, err
}

// transactions measures business transactions of several producers, each with one changed row and one event.
func transactions(producers, each int) workload {
	name := fmt.Sprintf("enqueue-%d", producers)
	rate := func(check string, prepare func(context.Context, *database) (func(ctx context.Context, account, seq int) error, error)) func(context.Context, *database) (float64, error) {
		return func(ctx context.Context, db *database) (float64, error) {
			do, err := prepare(ctx, db)
			if err != nil {
				return 0, err
			}
			took, err := produce(ctx, producers, each, do)
			if err != nil {
				return 0, err
			}
			if check != "" {
				if err := db.count(ctx, producers*each, "events", check); err != nil {
					return 0, err
				}
			}
			return float64(producers*each) / took.Seconds(), db.count(ctx, producers*each, "changes", "SELECT sum(balance) FROM account")
		}
	}
	inTx := func(event func(ctx context.Context, tx pgx.Tx, seq int) error) func(context.Context, *database) (func(context.Context, int, int) error, error) {
		return func(ctx context.Context, db *database) (func(context.Context, int, int) error, error) {
			pool, err := db.open(ctx, int32(producers))
			if err != nil {
				return nil, err
			}
			return func(ctx context.Context, account, seq int) error {
				return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
					if _, err := tx.Exec(ctx, change, account); err != nil {
						return err
					}
					return event(ctx, tx, seq)
				})
			}, nil
		}
	}
	pipelined := func(queue func(b *pgx.Batch, seq int) error) func(context.Context, *database) (func(context.Context, int, int) error, error) {
		return func(ctx context.Context, db *database) (func(context.Context, int, int) error, error) {
			pool, err := db.open(ctx, int32(producers))
			if err != nil {
				return nil, err
			}
			return func(ctx context.Context, account, seq int) error {
				return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
					b := &pgx.Batch{}
					b.Queue(change, account)
					if err := queue(b, seq); err != nil {
						return err
					}
					return tx.SendBatch(ctx, b).Close()
				})
			}, nil
		}
	}
	return workload{
		name: name, title: fmt.Sprintf("business transaction, %d producers", producers), unit: "transactions/s",
		about: "One row changed and one event enqueued in a transaction. Pipelined: both statements in one batch. A message of watermill has neither a dedupe " +
			"key nor a state of its delivery, as an event of a log topic without a dedupe key.",
		contenders: []contender{
			{"alone", rate("", inTx(func(context.Context, pgx.Tx, int) error { return nil }))},
			{"hand-written insert", rate(enqueued, inTx(func(ctx context.Context, tx pgx.Tx, seq int) error {
				args, err := insertArgs(seq)
				if err != nil {
					return err
				}
				var id uuid.UUID
				return tx.QueryRow(ctx, insert, args...).Scan(&id)
			}))},
			{"Enqueue", rate(enqueued, inTx(func(ctx context.Context, tx pgx.Tx, seq int) error {
				_, err := events.EnqueueOrderPaid(ctx, tx, order(seq))
				return err
			}))},
			{"River InsertTx", rate("SELECT count(*) FROM river_job", func(ctx context.Context, db *database) (func(context.Context, int, int) error, error) {
				client, err := riverInserter(ctx, db)
				if err != nil {
					return nil, err
				}
				return inTx(func(ctx context.Context, tx pgx.Tx, seq int) error {
					_, err := client.InsertTx(ctx, tx, job(order(seq)), nil)
					return err
				})(ctx, db)
			})},
			{"Enqueue, log topic, no dedupe key", rate("SELECT count(*) FROM outbox.log", inTx(func(ctx context.Context, tx pgx.Tx, seq int) error {
				_, err := events.EnqueueOrderMoved(ctx, tx, events.OrderMoved(order(seq)))
				return err
			}))},
			{"watermill", rate(`SELECT count(*) FROM watermill_orders`, watermillTransactions)},
			{"hand-written, pipelined", rate(enqueued, pipelined(func(b *pgx.Batch, seq int) error {
				args, err := insertArgs(seq)
				if err != nil {
					return err
				}
				var id uuid.UUID
				b.Queue(insert, args...).QueryRow(func(row pgx.Row) error { return row.Scan(&id) })
				return nil
			}))},
			{"Queue, pipelined", rate(enqueued, pipelined(func(b *pgx.Batch, seq int) error {
				_, err := events.EnqueueOrderPaidInBatch(b, order(seq))
				return err
			}))},
		},
		targets: []target{
			{of: "Enqueue", to: "hand-written insert", atLeast: 1},
			{of: "Enqueue", to: "River InsertTx", atLeast: 1.15},
			{of: "Enqueue, log topic, no dedupe key", to: "watermill", atLeast: 1},
			{of: "Queue, pipelined", to: "hand-written, pipelined", atLeast: 0.97},
			{of: "Queue, pipelined", to: "River InsertTx", atLeast: 1.4},
		},
	}
}

func watermillTransactions(ctx context.Context, db *database) (func(context.Context, int, int) error, error) {
	conn, err := watermillDB(ctx, db)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, account, seq int) error {
		tx, err := conn.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		if err := watermillTransaction(ctx, tx, account, seq); err != nil {
			_ = tx.Rollback()
			return err
		}
		return tx.Commit()
	}, nil
}

func watermillTransaction(ctx context.Context, tx *sql.Tx, account, seq int) error {
	if _, err := tx.ExecContext(ctx, change, account); err != nil {
		return err
	}
	body, err := json.Marshal(order(seq))
	if err != nil {
		return err
	}
	return watermillPublish(tx, message.NewMessage(watermill.NewUUID(), body))
}

// produce calls do for each event, with each account in turn, so that producers seldom wait for each other.
func produce(ctx context.Context, producers, each int, do func(ctx context.Context, account, seq int) error) (time.Duration, error) {
	started := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	for n := range producers {
		group.Go(func() error {
			for i := range each {
				if err := do(ctx, (n+i*producers)%1000+1, n*each+i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := group.Wait()
	return time.Since(started), err
}
