package amqp_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/amqp"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// TestEventsAreAppliedOnceInOrder: with every type of queue, each event has its effect once, in the order of its key, and is
// acknowledged. A later Run continues from there.
func TestEventsAreAppliedOnceInOrder(t *testing.T) {
	t.Parallel()
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, pool := newBroker(t, kind), database(t)
			b.put(1, 40, "a", "b", "c")
			r := run(t, pool, &effects{}, b.config())
			settlesAt(t, pool, 120)
			err := r.Run(t.Context())
			require.ErrorIs(t, err, amqp.ErrRunning)
			lag, err := r.Lag(t.Context())
			require.NoError(t, err)
			require.Equal(t, amqp.Lag{Ready: 0, Consumers: 1}, lag)
			require.NoError(t, r.stop())
			b.left(0)
			b.put(41, 50, "a", "b", "c")
			b.left(30)
			lag, err = r.Lag(t.Context())
			require.NoError(t, err)
			require.Equal(t, amqp.Lag{Ready: 30}, lag)
			run(t, pool, &effects{}, b.config())
			settlesAt(t, pool, 150)
			requireSteps(t, pool, 50, "a", "b", "c")
		})
	}
}

// TestKeyOfAMessage: Config.Key gets what is known of an event, and the routing key of its message.
func TestKeyOfAMessage(t *testing.T) {
	t.Parallel()
	b, pool := newBroker(t, classic), database(t)
	b.put(1, 3, "a")
	var mu sync.Mutex
	keys := make(map[string]bool)
	run(t, pool, &effects{}, b.config(func(c *amqp.Config) {
		c.Key = func(e consume.Event, routingKey string) string {
			mu.Lock()
			defer mu.Unlock()
			keys[e.PartitionKey+" "+routingKey] = true
			return e.PartitionKey
		}
	}))
	settlesAt(t, pool, 3)
	requireSteps(t, pool, 3, "a")
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, map[string]bool{"a " + b.queue: true}, keys)
}

// TestParkedKey: a message that fails is parked with those that follow it in its key, and other keys continue. Once it
// succeeds, its key is applied in order.
func TestParkedKey(t *testing.T) {
	t.Parallel()
	b, pool, e := newBroker(t, quorum), database(t), &effects{}
	e.set(func(_ context.Context, _ pgx.Tx, s step) error {
		if s.Key == "a" && s.N == 3 {
			return errors.New("not yet")
		}
		return nil
	})
	b.put(1, 10, "a", "b")
	r := run(t, pool, e, b.config(func(c *amqp.Config) { c.Receive.MaxAttempts = 100_000 }))
	settlesAt(t, pool, 12)
	pgtest.Settles(t, pool, 8, "SELECT count(*) FROM outbox.inbox_messages")
	requireSteps(t, pool, 10, "b")
	status, err := r.Status(t.Context())
	require.NoError(t, err)
	require.Equal(t, 8, status.Parked)
	require.NoError(t, r.stop())
	b.left(0)
	e.set(nil)
	run(t, pool, e, b.config())
	settlesAt(t, pool, 20)
	requireSteps(t, pool, 10, "a")
}

// TestForeignMessages: what cannot be read is a dead letter with its place, once however often it comes, and later messages follow.
func TestForeignMessages(t *testing.T) {
	t.Parallel()
	b, pool := newBroker(t, classic), database(t)
	unknown := message("a", 1)
	unknown.Headers["cloudEvents:type"] = "users.unheard_of"
	noise, other := amqp091.Publishing{Body: []byte("noise")}, amqp091.Publishing{Body: []byte("other noise")}
	named := amqp091.Publishing{Body: []byte("noise"), MessageId: "their id"}
	b.send(unknown, noise, noise, other, named, message("a", 1))
	r := run(t, pool, &effects{}, b.config())
	settlesAt(t, pool, 1)
	require.NoError(t, r.stop())
	b.left(0)
	place := "amqp:" + b.queue
	require.Equal(t, []string{place, place, place + "#" + unknown.MessageId, place + "#their id"},
		sorted(pgtest.Value[[]string](t, pool, "SELECT array_agg(place) FROM outbox.inbox_messages WHERE status = 'dead'")))
}

// TestUnsettledMessagesStay: when a receiver stops, the messages without an outcome are in the queue again, and no others. Later ones of
// other keys are acknowledged before them.
func TestUnsettledMessagesStay(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]amqp091.Table{"classic": classic, "quorum": quorum} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, pool, e := newBroker(t, kind), database(t), &effects{}
			away := make(chan struct{}, 1000)
			e.set(func(_ context.Context, _ pgx.Tx, s step) error {
				if s.Key == "a" && s.N > 5 {
					away <- struct{}{}
					return consume.Unavailable(errors.New("the ledger is away"))
				}
				return nil
			})
			b.put(1, 20, "a", "b", "c")
			r := run(t, pool, e, b.config(func(c *amqp.Config) { c.Receive.BatchSize, c.Receive.Concurrency = 1, 64 }))
			settlesAt(t, pool, 45)
			pgtest.Receive(t, away, "an event that waits")
			require.NoError(t, r.stop())
			b.left(15)
			e.set(nil)
			run(t, pool, e, b.config())
			settlesAt(t, pool, 60)
			requireSteps(t, pool, 20, "a", "b", "c")
		})
	}
}

// TestPrefetch: the server sends no more than the process may hold, until that is acknowledged.
func TestPrefetch(t *testing.T) {
	t.Parallel()
	b, pool, e := newBroker(t, classic), database(t), &effects{}
	started, finish := make(chan struct{}, 100), make(chan struct{})
	e.set(func(context.Context, pgx.Tx, step) error {
		started <- struct{}{}
		<-finish
		return nil
	})
	b.put(1, 100, "a")
	run(t, pool, e, b.config(func(c *amqp.Config) { c.Prefetch, c.Receive.EffectTimeout = 7, 2*pgtest.Patience }))
	pgtest.Receive(t, started, "the first event")
	pgtest.Eventually(t, func() bool { messages, _ := b.count(); return messages == 93 })
	close(finish)
	settlesAt(t, pool, 100)
	requireSteps(t, pool, 100, "a")
}

// TestPrefetchOfOne: a receiver that may hold one message applies them one after the other.
func TestPrefetchOfOne(t *testing.T) {
	t.Parallel()
	b, pool := newBroker(t, quorum), database(t)
	b.put(1, 30, "a", "b")
	run(t, pool, &effects{}, b.config(func(c *amqp.Config) { c.Prefetch = 1 }))
	settlesAt(t, pool, 60)
	requireSteps(t, pool, 30, "a", "b")
}

// TestUnordered: without an order, processes share a queue, and each event still has its effect once.
func TestUnordered(t *testing.T) {
	t.Parallel()
	b, pool, e := newBroker(t, quorum), database(t), &effects{}
	both := make(chan struct{}, 2)
	finish := make(chan struct{})
	e.set(func(context.Context, pgx.Tx, step) error {
		select {
		case both <- struct{}{}:
			<-finish // until each of two has an event
		default:
		}
		return nil
	})
	b.put(1, 40, "a", "b")
	for range 2 {
		run(t, pool, e, b.config(func(c *amqp.Config) {
			c.Unordered, c.Prefetch, c.Receive.Concurrency, c.Receive.BatchSize = true, 2, 1, 1
		}))
	}
	pgtest.Eventually(t, func() bool { return len(both) == 2 })
	close(finish)
	settlesAt(t, pool, 80)
	require.Equal(t, 80, pgtest.Count(t, pool, "SELECT count(DISTINCT event) FROM effects"))
}

// TestStream: a stream is refused, because its messages stay.
func TestStream(t *testing.T) {
	t.Parallel()
	b, pool := newBroker(t, amqp091.Table{"x-queue-type": "stream"}), database(t)
	r := run(t, pool, &effects{}, b.config())
	var err error
	pgtest.Eventually(t, func() bool { // it begins with the messages that come while it reads
		b.put(1, 1, "a")
		select {
		case <-r.done:
			err = r.err
			return true
		default:
			return false
		}
	})
	require.ErrorIs(t, err, amqp.ErrStream)
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM effects"))
}

// TestDeliveryLimit: the log warns before a quorum queue could drop a message that comes again and again.
func TestDeliveryLimit(t *testing.T) {
	t.Parallel()
	b, pool := newBroker(t, quorum), database(t)
	b.put(1, 1, "a")
	for range 11 {
		b.control(func(ch *amqp091.Channel) error {
			d, there, err := ch.Get(b.queue, false)
			if err != nil || !there {
				return errors.Join(err, errors.New("not there yet"))
			}
			return d.Nack(false, true)
		})
	}
	var log logs
	run(t, pool, &effects{}, b.config(log.logger))
	settlesAt(t, pool, 1)
	log.said(t, "messages come again and again: a quorum queue drops them at its delivery-limit")
}

func sorted(s []string) []string {
	slices.Sort(s)
	return s
}
