package nats_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
	natsgo "github.com/nats-io/nats.go"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/nats"
	"github.com/outboxgen/outboxgen/queue"
)

// UserRenamed stands for a generated payload, and userRenamedTopic for its topic, which has
// publish: {nats: {subject: sc.domain.user}} in the YAML.
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
	publisher, err := nats.New(nats.Config{URL: "nats://127.0.0.1:1"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer publisher.Close() // after Run has returned

	cfg := queue.Config{Publishers: map[string]publish.Publisher{"nats": publisher}}
	_, err = queue.NewDispatcher(pool, cfg, queue.Publish(userRenamedTopic, publish.Publication{
		Broker: "nats", Destination: "sc.domain.user",
	}))
	fmt.Println("dispatcher:", err)

	// While no server answers, events are handed back and no attempt is counted.
	errs := publisher.Publish(ctx, []publish.Outgoing{event("user/17", 1), event("user/17", 2)})
	fmt.Println(outbox.IsUnavailable(errs[0]), errors.Is(errs[1], outbox.ErrBehind))
	// Output:
	// dispatcher: <nil>
	// true true
}

// New takes an encoder and options of the nats.go client, for example for credentials. An invalid configuration is an
// error.
func ExampleNew() {
	publisher, err := nats.New(nats.Config{
		URL:     "nats://127.0.0.1:1,nats://127.0.0.1:2",
		Encoder: publish.CloudEvents("/accounts", publish.Structured),
		Options: []natsgo.Option{natsgo.Name("accounts"), natsgo.Token("secret")},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	publisher.Close()

	_, err = nats.New(nats.Config{})
	fmt.Println(err)
	// Output: configure NATS publisher: field URL is empty
}
