package amqp_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/amqp"
	"github.com/outboxgen/outboxgen/queue"
)

// UserRenamed stands for a generated payload, and userRenamedTopic for its topic, which has
// publish: {amqp: {address: /exchanges/users/user.renamed}} in the YAML.
type UserRenamed struct {
	UserID string `json:"user_id"`
	Name   string `json:"name"`
}

var userRenamedTopic = outbox.NewTopic[UserRenamed](outbox.TopicSpec{Namespace: "users", Name: "user_renamed", Version: 1})

// A dispatcher gets its publishers by the names of their brokers in the YAML. Generated constructors, such as
// NewUsersDispatcher(pool, cfg), take the same configuration.
func Example() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://127.0.0.1:1/accounts") // connects on first use
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()
	publisher, err := amqp.New(amqp.Config{URL: "amqp://127.0.0.1:1", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer publisher.Close() // after Run has returned

	cfg := queue.Config{Publishers: map[string]publish.Publisher{"amqp": publisher}}
	_, err = queue.NewDispatcher(pool, cfg, queue.Publish(userRenamedTopic, publish.Publication{
		Broker: "amqp", Destination: "/exchanges/users/user.renamed",
	}))
	fmt.Println("dispatcher:", err)

	// While no server answers, events are handed back and no attempt is counted.
	errs := publisher.Publish(ctx, []publish.Outgoing{event("user/17", 1), event("user/17", 2)})
	fmt.Println(outbox.IsUnavailable(errs[0]), errors.Is(errs[1], outbox.ErrBehind))
	// Output:
	// dispatcher: <nil>
	// true true
}

// New takes several servers of a cluster and an encoder. An invalid configuration is an error.
func ExampleNew() {
	publisher, err := amqp.New(amqp.Config{
		URL:     "amqp://accounts:secret@127.0.0.1:1/,amqp://accounts:secret@127.0.0.1:2/",
		Encoder: publish.CloudEvents("/accounts", publish.Structured),
		Logger:  slog.New(slog.DiscardHandler),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(publisher)
	publisher.Close()

	_, err = amqp.New(amqp.Config{})
	fmt.Println(err)
	// Output:
	// amqp.Publisher(127.0.0.1:1,127.0.0.1:2)
	// configure RabbitMQ publisher: field URL is empty
}
