package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/kafka"
	"github.com/outboxgen/outboxgen/queue"
)

// UserRenamed stands for a generated payload, and userRenamedTopic for its topic, which has
// publish: {kafka: {topic: sc.domain.user}} in the YAML.
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
	publisher, err := kafka.New(kafka.Config{Brokers: []string{"127.0.0.1:1"}, Timeout: 100 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer publisher.Close() // after Run has returned

	cfg := queue.Config{Publishers: map[string]publish.Publisher{"kafka": publisher}}
	_, err = queue.NewDispatcher(pool, cfg, queue.Publish(userRenamedTopic, publish.Publication{
		Broker: "kafka", Destination: "sc.domain.user",
	}))
	fmt.Println("dispatcher:", err)

	// While no broker answers, events are handed back and no attempt is counted.
	errs := publisher.Publish(ctx, []publish.Outgoing{event("user/17", 1), event("user/17", 2)})
	fmt.Println(outbox.IsUnavailable(errs[0]), errors.Is(errs[1], outbox.ErrBehind))
	// Output:
	// dispatcher: <nil>
	// true true
}

// New takes an encoder and options of the franz-go client, for example for credentials. An invalid configuration is an
// error.
func ExampleNew() {
	publisher, err := kafka.New(kafka.Config{
		Brokers: []string{"127.0.0.1:1", "127.0.0.1:2"},
		Encoder: publish.CloudEvents("/accounts", publish.Structured),
		Options: []kgo.Opt{
			kgo.SASL(plain.Auth{User: "accounts", Pass: "secret"}.AsMechanism()),
			kgo.ProducerBatchCompression(kgo.ZstdCompression()),
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	publisher.Close()

	_, err = kafka.New(kafka.Config{})
	fmt.Println(err)
	// Output: configure Kafka publisher: field Brokers is empty
}
