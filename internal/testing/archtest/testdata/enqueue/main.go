// A program that enqueues without generated code.
package main

import (
	"context"
	"os"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/outbox"
)

func main() {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		panic(err)
	}
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		_, err := outbox.Enqueue(ctx, tx, "", outbox.Message{Namespace: "orders", Topic: "placed", Payload: []byte(`{"id": 1}`)})
		return err
	})
	if err != nil {
		panic(err)
	}
}
