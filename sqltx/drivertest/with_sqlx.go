package drivertest

import (
	"context"

	"github.com/jmoiron/sqlx"

	"github.com/outboxgen/outboxgen/sqltx"
	"github.com/outboxgen/outboxgen/sqltx/drivertest/events"
)

func payWithSQLX(ctx context.Context, db *sqlx.DB, order events.OrderPaid) error {
	tx, err := db.BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := tx.NamedExecContext(ctx, "INSERT INTO orders (id) VALUES (:id)", map[string]any{"id": order.OrderID}); err != nil {
		return err
	}
	if _, err := events.EnqueueOrderPaid(ctx, sqltx.Wrap(tx), order); err != nil {
		return err
	}
	return tx.Commit()
}
