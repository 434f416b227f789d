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
			if _, err := userRenamed.Enqueue(ctx, tx, UserRenamed{Name: name}); err != nil {
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

// After an outage: see what failed, and give it back to the listener when the cause is fixed.
func ExampleAdmin_Replay() {
	ctx := context.Background()
	pool := connect()
	greet(ctx, pool, "")

	a, err := admin.New(pool, "")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := a.Skip(ctx, "greeter", uuid.Nil); err != nil { // or it becomes a dead letter by itself
		log.Fatal(err)
	}
	groups, err := a.DeadGroups(ctx, admin.Filter{})
	if err != nil {
		log.Fatal(err)
	}
	for _, g := range groups {
		fmt.Println(g.Listener, g.Count, g.Error)
		r, err := a.Replay(ctx, admin.Filter{Group: g.ID}, admin.Act{Who: "ann", Why: "names are optional now", Rate: 100})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("replayed", r.Done)
	}
	// Output:
	// greeter 1 skipped by operator: no name to greet
	// replayed 1
}

// What nobody needs is discarded, with a reason.
func ExampleAdmin_Discard() {
	ctx := context.Background()
	pool := connect()
	greet(ctx, pool, "")

	a, err := admin.New(pool, "")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := a.Skip(ctx, "greeter", uuid.Nil); err != nil {
		log.Fatal(err)
	}
	r, err := a.Discard(ctx, admin.Filter{Listener: "greeter"}, admin.Act{Who: "ann", Why: "test data"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("discarded", r.Done)
	// Output: discarded 1
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
	err = a.Pause(ctx, admin.Scope{Listener: "greeter"}, admin.Act{Who: "ann", Why: "its mail server moves", Until: time.Now().Add(2 * time.Hour)})
	if err != nil {
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
	r, err := a.Resume(ctx, admin.Scope{Listener: "greeter"}, admin.Act{Who: "ann"})
	fmt.Println(r.Resumed, err)
	_, err = a.Resume(ctx, admin.Scope{Listener: "greter"}, admin.Act{Who: "ann"})
	var unknown *admin.UnknownListenerError
	if errors.As(err, &unknown) {
		fmt.Println("attached are", unknown.Known)
	}
	// Output:
	// false <nil>
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
	var held *admin.LeaseHeldError
	if errors.As(err, &held) {
		log.Fatalf("stop worker %s of listener %s first", held.Worker, held.Listener)
	}
	fmt.Println(report.Needed, err)
	// Output: false <nil>
}

// Each act leaves an entry in the audit. As says who acts and why, for the methods that take no Act.
func ExampleAdmin_Audit() {
	ctx := context.Background()
	pool := connect()
	greet(ctx, pool, "Zoë", "")

	a, err := admin.New(pool, "")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := a.As("ann", "names are required now").Skip(ctx, "greeter", uuid.Nil); err != nil {
		log.Fatal(err)
	}
	page, err := a.Audit(ctx, admin.AuditFilter{Since: time.Now().Add(-time.Hour)}, admin.Page{Limit: 10})
	if err != nil {
		log.Fatal(err)
	}
	for _, e := range page.Entries {
		fmt.Println(e.Who, e.Action, e.Events, e.Why)
	}
	// Output: ann skip 1 names are required now
}

// Overview is for a page that shows everything.
func ExampleAdmin_Overview() {
	ctx := context.Background()
	pool := connect()
	greet(ctx, pool, "Zoë", "Max")

	a, err := admin.New(pool, "")
	if err != nil {
		log.Fatal(err)
	}
	o, err := a.Overview(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, s := range o.LogTopics {
		fmt.Println(s.Name(), s.Events)
	}
	for _, s := range o.Listeners {
		fmt.Println(s.Listener, s.State)
	}
	// Output:
	// accounts/user_renamed 2
	// greeter idle
}
