package drivertest

import (
	"context"
	"errors"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"github.com/outboxgen/outboxgen/sqltx"
	"github.com/outboxgen/outboxgen/sqltx/drivertest/events"
)

type gormOrder struct {
	ID uuid.UUID `gorm:"type:uuid;primaryKey"`
}

func (gormOrder) TableName() string { return "orders" }

func payWithGORM(ctx context.Context, db *gorm.DB, order events.OrderPaid) error {
	return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		if err := tx.Create(&gormOrder{ID: order.OrderID}).Error; err != nil {
			return err
		}
		sqlTx, ok := tx.Statement.ConnPool.(sqltx.Tx)
		if !ok {
			return errors.New("not in a transaction")
		}
		_, err := events.EnqueueOrderPaid(ctx, sqltx.Wrap(sqlTx), order)
		return err
	})
}
