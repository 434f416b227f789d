package listener_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

// connect opens the pool of the service, like pgxpool.New, on a database with the outbox.
var connect func() *pgxpool.Pool

// UserRenamed is the payload of a log topic. outboxgen generates it, and the topic, from YAML.
type UserRenamed struct {
	UserID string `json:"user_id"`
	Name   string `json:"name"`
}

// userRenamed is the topic accounts/user_renamed. The events of a user are handled in order.
var userRenamed = outbox.NewTopic[UserRenamed](outbox.TopicSpec{
	Namespace: "accounts", Name: "user_renamed", Log: true,
	Keys: func(p any) outbox.Keys {
		return outbox.Keys{Partition: eventkey.NewKey(eventkey.StringPart("user_id", p.(*UserRenamed).UserID))}
	},
})

// rename enqueues an event for each renamed user.
func rename(ctx context.Context, pool *pgxpool.Pool, users ...UserRenamed) {
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := userRenamed.EnqueueMany(ctx, tx, users)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
}

// Greeter handles the events.
type Greeter struct {
	greeted func() // called after each greeting; nil means nothing
}

func (g Greeter) HandleUserRenamed(_ context.Context, d outbox.Delivery[UserRenamed]) error {
	if d.Payload.Name == "" {
		return errors.New("no name to greet")
	}
	fmt.Println("hello", d.Payload.Name)
	if g.greeted != nil {
		g.greeted()
	}
	return nil
}

// A listener runs as long as its service, in any number of processes. From YAML, outboxgen generates a constructor that calls
// New and Handle.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	pool := connect()
	rename(ctx, pool, UserRenamed{UserID: "17", Name: "Zoë"})

	greeter := Greeter{greeted: stop} // ends this example after one greeting; a service runs until a signal comes
	l, err := listener.New(pool, listener.Spec{Name: "greeter"}, listener.Config{},
		listener.Handle(userRenamed, greeter, greeter.HandleUserRenamed))
	if err != nil {
		log.Fatal(err)
	}
	err = l.Run(ctx) // until ctx ends
	stop()
	fmt.Println(err)
	// Output:
	// hello Zoë
	// <nil>
}

// Each listener has its own name and cursor, and gets every event. A new one starts at the beginning of the log, or with
// Latest at its end.
func ExampleNew() {
	ctx := context.Background()
	pool := connect()
	rename(ctx, pool, UserRenamed{UserID: "17", Name: "Zoë"})

	for _, spec := range []listener.Spec{{Name: "greeter"}, {Name: "auditor"}, {Name: "newcomer", Latest: true}} {
		greeter := Greeter{}
		l, err := listener.New(pool, spec, listener.Config{}, listener.Handle(userRenamed, greeter, greeter.HandleUserRenamed))
		if err != nil {
			log.Fatal(err)
		}
		report, err := l.Drain(ctx)
		fmt.Println(spec.Name, report.Delivered, err)
	}
	// Output:
	// hello Zoë
	// greeter 1 <nil>
	// hello Zoë
	// auditor 1 <nil>
	// newcomer 0 <nil>
}

// The second argument is the value with the handlers, and the third is its method for this topic. Events of one user are
// handled in order.
func ExampleHandle() {
	ctx := context.Background()
	pool := connect()
	rename(ctx, pool, UserRenamed{UserID: "17", Name: "Zoë"}, UserRenamed{UserID: "17", Name: "Zoe"})

	greeter := Greeter{}
	l, err := listener.New(pool, listener.Spec{Name: "greeter"}, listener.Config{},
		listener.Handle(userRenamed, greeter, greeter.HandleUserRenamed))
	if err != nil {
		log.Fatal(err)
	}
	_, err = l.Drain(ctx)
	fmt.Println(err)
	// Output:
	// hello Zoë
	// hello Zoe
	// <nil>
}

// Cards keeps a card per user, in the database of the outbox.
type Cards struct{}

func (Cards) HandleUserRenamed(ctx context.Context, tx pgx.Tx, d outbox.Delivery[UserRenamed]) error {
	_, err := tx.Exec(ctx, `INSERT INTO cards (user_id, name) VALUES ($1, $2)
		ON CONFLICT (user_id) DO UPDATE SET name = EXCLUDED.name`, d.Payload.UserID, d.Payload.Name)
	return err
}

// A handler of HandleTx writes in the transaction in which the cursor moves, so its effects happen exactly once.
func ExampleHandleTx() {
	ctx := context.Background()
	pool := connect()
	if _, err := pool.Exec(ctx, "CREATE TABLE cards (user_id text PRIMARY KEY, name text NOT NULL)"); err != nil {
		log.Fatal(err)
	}
	rename(ctx, pool, UserRenamed{UserID: "17", Name: "Zoë"}, UserRenamed{UserID: "17", Name: "Zoe"})

	cards := Cards{}
	l, err := listener.New(pool, listener.Spec{Name: "cards"}, listener.Config{},
		listener.HandleTx(userRenamed, cards, cards.HandleUserRenamed))
	if err != nil {
		log.Fatal(err)
	}
	if _, err := l.Drain(ctx); err != nil {
		log.Fatal(err)
	}
	var name string
	err = pool.QueryRow(ctx, "SELECT name FROM cards WHERE user_id = '17'").Scan(&name)
	fmt.Println(name, err)
	// Output: Zoe <nil>
}

// A handler of batches gets several events in one call. It names those that have failed; the others are delivered.
func ExampleHandleBatch() {
	ctx := context.Background()
	pool := connect()
	rename(ctx, pool, UserRenamed{UserID: "17", Name: "Zoë"}, UserRenamed{UserID: "18"}, UserRenamed{UserID: "19", Name: "Max"})

	greetAll := func(_ context.Context, ds []outbox.Delivery[UserRenamed]) error {
		var failed outbox.BatchError
		fmt.Println(len(ds), "events")
		for _, d := range ds {
			if d.Payload.Name == "" {
				failed.Fail(d.Event, outbox.Permanent(errors.New("no name to greet")))
			}
		}
		return failed.Err()
	}
	l, err := listener.New(pool, listener.Spec{
		Name:  "greeter",
		Batch: outbox.Batch{Size: 500, Wait: 200 * time.Millisecond},
		Rate:  outbox.Rate{Events: 1000, Period: time.Minute},
	}, listener.Config{}, listener.HandleBatch(userRenamed, Greeter{}, greetAll))
	if err != nil {
		log.Fatal(err)
	}
	report, err := l.Drain(ctx)
	fmt.Println(report.Delivered, report.Dead, err)
	// Output:
	// 3 events
	// 2 1 <nil>
}

// Printer is a publisher that prints events instead of sending them to a broker.
type Printer struct{}

func (Printer) Publish(ctx context.Context, events []publish.Outgoing) []error {
	return publish.Each(ctx, events, 1, func(_ context.Context, o publish.Outgoing) error {
		fmt.Println(o.Destination, o.Key, string(o.Payload))
		return nil
	})
}

// The events of the topic go to a broker instead of a handler, in order per partition key. A service would have a publisher
// of publish/kafka, publish/nats or publish/webhook.
func ExamplePublish() {
	ctx := context.Background()
	pool := connect()
	rename(ctx, pool, UserRenamed{UserID: "17", Name: "Zoë"})

	l, err := listener.New(pool, listener.Spec{Name: "relay"},
		listener.Config{Publishers: map[string]publish.Publisher{"kafka": Printer{}}},
		listener.Publish(userRenamed, publish.Publication{Broker: "kafka", Destination: "accounts.users"}))
	if err != nil {
		log.Fatal(err)
	}
	report, err := l.Drain(ctx)
	fmt.Println(report.Delivered, err)
	// Output:
	// accounts.users 17 {"name": "Zoë", "user_id": "17"}
	// 1 <nil>
}

// Drain is for a cron job: it handles what is due, and returns.
func ExampleListener_Drain() {
	ctx := context.Background()
	pool := connect()
	rename(ctx, pool, UserRenamed{UserID: "17", Name: "Zoë"})

	greeter := Greeter{}
	l, err := listener.New(pool, listener.Spec{Name: "greeter"}, listener.Config{},
		listener.Handle(userRenamed, greeter, greeter.HandleUserRenamed))
	if err != nil {
		log.Fatal(err)
	}
	report, err := l.Drain(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d delivered, %d to retry, %d dead\n", report.Delivered, report.Retried, report.Dead)
	// Output:
	// hello Zoë
	// 1 delivered, 0 to retry, 0 dead
}

// The event of user 17 fails. It is parked, and so is what follows for user 17, while other users are served. Without
// ParkKeys it would block the events behind it until it succeeds or its attempts are spent.
func ExampleSpec() {
	ctx := context.Background()
	pool := connect()
	rename(ctx, pool, UserRenamed{UserID: "17"}, UserRenamed{UserID: "18", Name: "Max"})

	greeter := Greeter{}
	l, err := listener.New(pool, listener.Spec{
		Name:     "greeter",
		ParkKeys: true,
		MaxLag:   5 * time.Minute, // log an alarm when an event waits for longer
		Retry:    outbox.Retry{MaxAttempts: 10},
	}, listener.Config{}, listener.Handle(userRenamed, greeter, greeter.HandleUserRenamed))
	if err != nil {
		log.Fatal(err)
	}
	report, err := l.Drain(ctx)
	fmt.Println(report.Delivered, report.Retried, err)
	// Output:
	// hello Max
	// 1 1 <nil>
}

// A Config is about this process, where a Spec is about the listener: smaller batches, a longer end, and polling, for a pool
// that goes through a pooler in transaction mode.
func ExampleConfig() {
	greeter := Greeter{}
	_, err := listener.New(connect(), listener.Spec{Name: "greeter"}, listener.Config{
		BatchSize:       20,
		ShutdownTimeout: 30 * time.Second,
		Wake:            outbox.WakePoll,
	}, listener.Handle(userRenamed, greeter, greeter.HandleUserRenamed))
	fmt.Println(err)
	// Output: <nil>
}
