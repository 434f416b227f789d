package drivertest

import (
	"context"

	"github.com/outboxgen/outboxgen/sqltx"
	"github.com/outboxgen/outboxgen/sqltx/drivertest/ent"
	"github.com/outboxgen/outboxgen/sqltx/drivertest/events"
)

func payWithEnt(ctx context.Context, client *ent.Client, order events.OrderPaid) error {
	tx, err := client.Tx(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := tx.Order.Create().SetID(order.OrderID).Exec(ctx); err != nil {
		return err
	}
	if _, err := events.EnqueueOrderPaid(ctx, sqltx.Wrap(tx), order); err != nil {
		return err
	}
	return tx.Commit()
}
