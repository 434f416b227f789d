package nats_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/nats"
	"github.com/outboxgen/outboxgen/inbox"
)

// accounts implements what would be the generated interface UserConsumer.
type accounts struct{}

func (accounts) ConsumeStepTaken(ctx context.Context, tx pgx.Tx, d consume.Delivery[step]) error {
	_, err := tx.Exec(ctx, "INSERT INTO effects (event, key, n) VALUES ($1, $2, $3)", d.ID, d.Payload.Key, d.Payload.N)
	return err
}

// Run consumes until the context ends. Here the generated constructor is written out.
func ExampleRun() {
	var pool *pgxpool.Pool // of the database with the effects
	ctx := context.Background()

	ib, err := inbox.New(inbox.Config{Group: "accounts"})
	if err != nil {
		panic(err)
	}
	consumer, err := consume.New(ib, consume.Handle(stepTaken, accounts{}, accounts.ConsumeStepTaken))
	if err != nil {
		panic(err)
	}
	err = nats.Run(ctx, pool, consumer, nats.Config{URL: "nats://nats.example.com:4222", Stream: "USERS"})
	fmt.Println(err)

	// Output:
	// new receiver: no pool given (nil)
}

// Errors of Run say what must be changed.
func ExampleRun_errors() {
	err := fmt.Errorf("consume ORDERS/accounts: ask nats.example.com:4222: %w", nats.ErrNoStream)
	if errors.Is(err, nats.ErrNoStream) {
		fmt.Println(err)
	}

	// Output:
	// consume ORDERS/accounts: ask nats.example.com:4222: the stream does not exist: create it, or correct the name
}
