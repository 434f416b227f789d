// A program that only enqueues, with generated code whose package also has a constructor of a dispatcher and of listeners.
package main

import (
	"context"
	"os"

	"github.com/jackc/pgx/v5"

	events "github.com/outboxgen/outboxgen/generator/testdata/publish/want"
)

func main() {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		panic(err)
	}
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		_, err := events.EnqueueInvoiceSent(ctx, tx, events.InvoiceSent{})
		return err
	})
	if err != nil {
		panic(err)
	}
}
