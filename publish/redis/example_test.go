package redis_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
	goredis "github.com/redis/go-redis/v9"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/redis"
	"github.com/outboxgen/outboxgen/queue"
)

// UserRenamed stands for a generated payload, and userRenamedTopic for its topic, which has
// publish: {redis: {stream: "users:renamed"}} in the YAML.
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
	publisher, err := redis.New(redis.Config{URL: "redis://127.0.0.1:1"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer publisher.Close() // after Run has returned

	cfg := queue.Config{Publishers: map[string]publish.Publisher{"redis": publisher}}
	_, err = queue.NewDispatcher(pool, cfg, queue.Publish(userRenamedTopic, publish.Publication{
		Broker: "redis", Destination: "users:renamed",
	}))
	fmt.Println("dispatcher:", err)

	// While no server answers, events are handed back and no attempt is counted.
	errs := publisher.Publish(ctx, []publish.Outgoing{event("user/17", 1), event("user/17", 2)})
	fmt.Println(outbox.IsUnavailable(errs[0]), errors.Is(errs[1], outbox.ErrBehind))
	// Output:
	// dispatcher: <nil>
	// true true
}

// New takes the options of go-redis for a cluster or Sentinel. An invalid configuration is an error.
func ExampleNew() {
	publisher, err := redis.New(redis.Config{
		Options: &goredis.UniversalOptions{
			MasterName: "events", Addrs: []string{"127.0.0.1:1", "127.0.0.1:2"}, // of Sentinel
			Username: "accounts", Password: "secret",
		},
		Replicas: 1,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(publisher)
	publisher.Close()

	_, err = redis.New(redis.Config{})
	fmt.Println(err)
	// Output:
	// redis.Publisher(127.0.0.1:1,127.0.0.1:2)
	// configure Redis publisher: field URL is empty
}
