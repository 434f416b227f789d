package redis_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/redis"
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
	err = redis.Run(ctx, pool, consumer, redis.Config{URL: "redis://redis.example.com:6379", Streams: []string{"users"}})
	fmt.Println(err)

	// Output:
	// new receiver: no pool given (nil)
}

// Errors of Run say what must be changed.
func ExampleRun_errors() {
	err := fmt.Errorf("consume orders/cards: ask redis:6379: %w", redis.ErrNoStream)
	if errors.Is(err, redis.ErrNoStream) {
		fmt.Println(err)
	}

	// Output:
	// consume orders/cards: ask redis:6379: the stream does not exist: create it, correct the name, or set Config.CreateStreams
}
