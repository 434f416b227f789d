package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/examples/users/cards"
	"github.com/outboxgen/outboxgen/examples/users/events"
	"github.com/outboxgen/outboxgen/examples/users/user"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/kafka"
)

const (
	people   = 100
	clients  = 4
	patience = time.Minute
)

// demo is one run for a new tenant, so that it may be repeated with one database and one cluster.
type demo struct {
	users, cards *pgxpool.Pool
	brokers      []string
	tenant       uuid.UUID
	out          io.Writer
}

func (d demo) say(format string, args ...any) {
	_, _ = fmt.Fprintf(d.out, format+"\n", args...)
}

func (d demo) run(ctx context.Context) error {
	toKafka, err := kafka.New(kafka.Config{Brokers: d.brokers})
	if err != nil {
		return err
	}
	defer toKafka.Close()
	onBadDays := &unruly{publisher: toKafka}
	relay, err := events.NewRelayListener(d.users, listener.Config{
		Publishers: map[string]publish.Publisher{"kafka": onBadDays},
	})
	if err != nil {
		return err
	}
	projection, err := cards.New(d.cards, cards.Config{Brokers: d.brokers})
	if err != nil {
		return err
	}

	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not done within %s", patience))
	defer cancel()
	ctx, fail := context.WithCancelCause(ctx)
	stopRelay := background(ctx, fail, relay.Run)
	stopCards := background(ctx, fail, projection.Run)
	err = d.play(ctx, onBadDays, relay, projection, stopRelay)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx) // why ctx ended
	}
	fail(nil)
	return errors.Join(err, stopRelay(), stopCards())
}

// play creates, renames and deletes users, and checks the cards when all messages have arrived.
func (d demo) play(ctx context.Context, onBadDays *unruly, relay *listener.Listener, projection *cards.Projection, stopRelay func() error) error {
	d.say("%d users sign up, are renamed and deleted, by %d concurrent clients", people, clients)
	if err := d.traffic(ctx); err != nil {
		return err
	}
	if err := stopRelay(); err != nil {
		return err
	}
	if _, err := relay.Drain(ctx); err != nil { // events that are not sent yet
		return err
	}
	onBadDays.flush(ctx)
	d.say("%d messages are in Kafka, out of order, %d of them repeats", onBadDays.sent, onBadDays.again)
	group, err := projection.Group(ctx)
	if err != nil {
		return err
	}
	if err := caughtUp(ctx, d.brokers, group); err != nil {
		return err
	}
	d.tell("the cards have caught up", projection.Counts(), cards.Counts{})
	if err := d.show(ctx); err != nil {
		return err
	}
	if err := d.account(ctx); err != nil {
		return err
	}

	before := projection.Counts()
	if err := projection.Rebuild(ctx); err != nil {
		return err
	}
	if group, err = projection.Group(ctx); err != nil {
		return err
	}
	d.say("the cards are deleted, and built again by group %s", group)
	if err := caughtUp(ctx, d.brokers, group); err != nil {
		return err
	}
	d.tell("the cards have caught up", projection.Counts(), before)
	return d.account(ctx)
}

func (d demo) tell(what string, now, before cards.Counts) {
	d.say("%s: %d events applied, %d duplicates, %d too late, %d dead letters", what, now.Applied-before.Applied,
		now.Duplicate-before.Duplicate, now.Skipped-before.Skipped, now.Dead-before.Dead)
}

// background runs a part until stop is called. Every call of stop returns the part's error. A part that ends with an error
// ends the demo.
func background(ctx context.Context, fail context.CancelCauseFunc, run func(context.Context) error) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	var err error
	running.Go(func() {
		if err = run(ctx); err != nil {
			fail(err)
		}
	})
	return func() error {
		cancel()
		running.Wait()
		return err
	}
}

// traffic runs the clients of the service, each with its share of the users. It ends at the first error.
func (d demo) traffic(ctx context.Context) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var client sync.WaitGroup
	for c := range clients {
		client.Go(func() {
			for n := c; n < people; n += clients {
				if err := d.life(ctx, n); err != nil {
					fail(err)
					return
				}
			}
		})
	}
	client.Wait()
	return context.Cause(ctx)
}

// life signs the n-th user up and renames it up to three times. Every fourth user is deleted.
func (d demo) life(ctx context.Context, n int) error {
	id := uuid.New()
	name := fmt.Sprintf("user %d", n)
	err := d.change(ctx, func(tx pgx.Tx) error {
		_, err := user.Create(ctx, tx, d.tenant, id, name, fmt.Sprintf("user%d@example.com", n))
		return err
	})
	for marriage := 1; err == nil && marriage <= n%4; marriage++ {
		err = d.change(ctx, func(tx pgx.Tx) error {
			_, err := user.Rename(ctx, tx, d.tenant, id, fmt.Sprintf("%s, name %d", name, marriage+1))
			return err
		})
	}
	if err == nil && n%4 == 2 {
		err = d.change(ctx, func(tx pgx.Tx) error { return user.Delete(ctx, tx, d.tenant, id) })
	}
	return err
}

// change does what a request handler of the service does: one transaction for the user and the event.
func (d demo) change(ctx context.Context, do func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, d.users, do)
}
