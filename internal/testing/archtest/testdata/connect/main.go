// A program that begins a transaction, and nothing else.
package main

import (
	"context"
	"os"

	"github.com/jackc/pgx/v5"
)

func main() {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		panic(err)
	}
	err = pgx.BeginFunc(ctx, conn, func(pgx.Tx) error { return nil })
	if err != nil {
		panic(err)
	}
}
