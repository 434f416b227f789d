package drivertest

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/sqltx/drivertest/events"
)

func payWithPgx(ctx context.Context, pool *pgxpool.Pool, order events.OrderPaid) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "INSERT INTO orders (id) VALUES ($1)", order.OrderID); err != nil {
			return err
		}
		_, err := events.EnqueueOrderPaid(ctx, tx, order)
		return err
	})
}
