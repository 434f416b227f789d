package drivertest

import (
	"context"
	"database/sql"

	"github.com/outboxgen/outboxgen/sqltx"
	"github.com/outboxgen/outboxgen/sqltx/drivertest/events"
)

func payWithSQL(ctx context.Context, db *sql.DB, order events.OrderPaid) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, "INSERT INTO orders (id) VALUES ($1)", order.OrderID.String()); err != nil {
		return err
	}
	if _, err := events.EnqueueOrderPaid(ctx, sqltx.Wrap(tx), order); err != nil {
		return err
	}
	return tx.Commit()
}
