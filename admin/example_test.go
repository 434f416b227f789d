package admin_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
)

// connect opens the pool of the service, like pgxpool.New, on a database with the outbox.
var connect func() *pgxpool.Pool

// UserRenamed is the payload of a log topic.
type UserRenamed struct {
	Name string `json:"name"`
}

var userRenamed = outbox.NewTopic[UserRenamed](outbox.TopicSpec{Namespace: "accounts", Name: "user_renamed", Log: true})

// Greeter handles the events. It fails for a user without a name.
type Greeter struct{}

func (Greeter) HandleUserRenamed(_ context.Context, d outbox.Delivery[UserRenamed]) error {
	if d.Payload.Name == "" {
		return errors.New("no name to greet")
	}
	return nil
}

// greet enqueues an event for each name, and runs the listener greeter until nothing is due. The operators of a service need
// neither the handlers nor their process.
func greet(ctx context.Context, pool *pgxpool.Pool, names ...string) {
	if err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		for _, name := range names {
			if _, err := userRenamed.Untyped().Enqueue(ctx, tx, UserRenamed{Name: name}); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		log.Fatal(err)
	}
	l, err := listener.New(pool, listener.Spec{Name: "greeter"}, listener.Config{},
		listener.Handle(userRenamed, Greeter{}, Greeter{}.HandleUserRenamed))
	if err != nil {
		log.Fatal(err)
	}
	if _, err := l.Drain(ctx); err != nil {
		log.Fatal(err)
	}
}

// List shows what each shard of each listener does, for a dashboard or an alarm.
func ExampleAdmin_Listeners() {
	ctx := context.Background()
	pool := connect()
	greet(ctx, pool, "Zoë", "", "Max")

	a, err := admin.New(pool, "")
	if err != nil {
		log.Fatal(err)
	}
	shards, err := a.Listeners(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, s := range shards {
		fmt.Println(s.Listener, s.State, s.Attempts, s.LastError)
	}
	// Output: greeter blocked 1 no name to greet
}

// New takes the pool and the schema of the outbox; "" means the schema "outbox".
func ExampleNew() {
	ctx := context.Background()
	a, err := admin.New(connect(), "")
	if err != nil {
		log.Fatal(err)
	}
	shards, err := a.Listeners(ctx)
	fmt.Println(len(shards), err)
	// Output: 0 <nil>
}

// While a listener is paused its events wait.
func ExampleAdmin_Pause() {
	ctx := context.Background()
	pool := connect()
	greet(ctx, pool)

	a, err := admin.New(pool, "")
	if err != nil {
		log.Fatal(err)
	}
	if err := a.Pause(ctx, "greeter"); err != nil {
		log.Fatal(err)
	}
	greet(ctx, pool, "Zoë")
	shards, err := a.Listeners(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(shards[0].State, shards[0].Unread)
	// Output: paused 1
}

// Resume ends a pause. A name that no listener has is an error that lists the names of the others.
func ExampleAdmin_Resume() {
	ctx := context.Background()
	pool := connect()
	greet(ctx, pool)

	a, err := admin.New(pool, "")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(a.Resume(ctx, "greeter"))
	err = a.Resume(ctx, "greter")
	if unknown, ok := errors.AsType[*admin.UnknownListenerError](err); ok {
		fmt.Println("attached are", unknown.Known)
	}
	// Output:
	// <nil>
	// attached are [greeter]
}

// The listener waits at an event that keeps failing. Skip makes it a dead letter, and the listener continues behind it.
func ExampleAdmin_Skip() {
	ctx := context.Background()
	pool := connect()
	greet(ctx, pool, "Zoë", "", "Max")

	a, err := admin.New(pool, "")
	if err != nil {
		log.Fatal(err)
	}
	event, err := a.Skip(ctx, "greeter", uuid.Nil) // the event that has failed
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(event.Topic, event.Attempt)
	_, err = a.Skip(ctx, "greeter", uuid.Nil)
	fmt.Println(errors.Is(err, admin.ErrNotSkippable))
	// Output:
	// user_renamed 1
	// true
}

// Preview says what a rewind would do. Afterwards the listener handles the events of the last hour again.
func ExampleAdmin_Rewind() {
	ctx := context.Background()
	pool := connect()
	greet(ctx, pool, "Zoë", "Max")

	a, err := admin.New(pool, "")
	if err != nil {
		log.Fatal(err)
	}
	since := time.Now().Add(-time.Hour)
	events, err := a.Preview().Rewind(ctx, "greeter", since)
	fmt.Println("would handle", events, err)

	if _, err := a.Rewind(ctx, "greeter", since); err != nil {
		log.Fatal(err)
	}
	shards, err := a.Listeners(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("unread", shards[0].Unread)
	// Output:
	// would handle 2 <nil>
	// unread 2
}

// Dispatchers and listeners prune the topics that they handle. Prune is for a cron job, or for topics that nobody handles.
func ExampleAdmin_Prune() {
	ctx := context.Background()
	pool := connect()
	greet(ctx, pool, "Zoë")

	a, err := admin.New(pool, "")
	if err != nil {
		log.Fatal(err)
	}
	report, err := a.Prune(ctx, map[string]outbox.Retention{
		"accounts/user_renamed": {Delivered: 7 * 24 * time.Hour, Dead: 30 * 24 * time.Hour},
	})
	fmt.Println(report.Log, report.Queue, report.DeadLetters, err)
	// Output: 0 0 0 <nil>
}

// Detach forgets a listener that is not needed any more, so that the log no longer waits for it.
func ExampleAdmin_Detach() {
	ctx := context.Background()
	pool := connect()
	greet(ctx, pool, "Zoë")

	a, err := admin.New(pool, "")
	if err != nil {
		log.Fatal(err)
	}
	report, err := a.Detach(ctx, "greeter")
	fmt.Println(report.Shards, err)
	// Output: 1 <nil>
}

// After a restore listeners refuse to run. Stop their processes, call Rebase, and start them again. A database that was not
// restored needs nothing.
func ExampleAdmin_Rebase() {
	ctx := context.Background()
	pool := connect()
	greet(ctx, pool, "Zoë")

	a, err := admin.New(pool, "")
	if err != nil {
		log.Fatal(err)
	}
	report, err := a.WithProgress(func(done, total int64) { log.Printf("%d of %d events", done, total) }).Rebase(ctx)
	if held, ok := errors.AsType[*admin.LeaseHeldError](err); ok {
		log.Fatalf("stop worker %s of listener %s first", held.Worker, held.Listener)
	}
	fmt.Println(report.Needed, err)
	// Output: false <nil>
}
