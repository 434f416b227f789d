package drivertest

import (
	"context"

	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"github.com/outboxgen/outboxgen/sqltx"
	"github.com/outboxgen/outboxgen/sqltx/drivertest/events"
)

type bunOrder struct {
	bun.BaseModel `bun:"table:orders"`

	ID uuid.UUID `bun:"id,pk,type:uuid"`
}

func payWithBun(ctx context.Context, db *bun.DB, order events.OrderPaid) error {
	return db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		if _, err := tx.NewInsert().Model(&bunOrder{ID: order.OrderID}).Exec(ctx); err != nil {
			return err
		}
		_, err := events.EnqueueOrderPaid(ctx, sqltx.Wrap(tx), order)
		return err
	})
}
