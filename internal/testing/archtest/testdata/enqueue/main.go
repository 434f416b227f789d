// A program that enqueues without generated code.
package main

import (
	"context"
	"os"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/outbox"
)

type orderPlaced struct {
	OrderID uuid.UUID `json:"order_id"`
}

var orderPlacedTopic = outbox.NewTopic[orderPlaced](outbox.TopicSpec{
	Namespace: "orders", Name: "placed",
	Keys: func(p any) outbox.Keys {
		return outbox.Keys{Dedupe: eventkey.NewKey(eventkey.UUIDPart("order_id", p.(*orderPlaced).OrderID))}
	},
})

func main() {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		panic(err)
	}
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		_, err := orderPlacedTopic.Enqueue(ctx, tx, orderPlaced{OrderID: uuid.New()})
		return err
	})
	if err != nil {
		panic(err)
	}
}
