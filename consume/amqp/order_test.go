package amqp_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/amqp"
	"github.com/outboxgen/outboxgen/internal/testing/brokertest"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// TestTakeOver: a second process waits, and continues when the first ends. It gets what the first one held before the rest.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, pool, e := newBroker(t, kind), database(t), &effects{}
			started := make(chan struct{}, 1000)
			e.set(func(context.Context, pgx.Tx, step) error {
				started <- struct{}{}
				return consume.Unavailable(errors.New("away"))
			})
			var log logs
			few := func(c *amqp.Config) { c.Prefetch = 10 }
			first := run(t, pool, e, b.config(few))
			b.put(1, 20, "a", "b")
			pgtest.Receive(t, started, "an event")
			second := run(t, pool, &effects{}, b.config(few, log.logger))
			log.said(t, `level=INFO msg="another process reads the queue: this one waits to take over"`)
			_, consumers := b.count()
			require.Equal(t, 1, consumers)
			require.NoError(t, first.stop())
			settlesAt(t, pool, 40)
			requireSteps(t, pool, 20, "a", "b")
			require.Contains(t, log.String(), `msg="this process reads the queue now"`)
			require.NoError(t, second.stop())
			b.left(0)
		})
	}
}

// TestLockLost: when the connection with the lock is cut, the process finishes what it does, and continues when it has the lock
// again.
func TestLockLost(t *testing.T) {
	t.Parallel()
	b, pool, e := newBroker(t, quorum), database(t), &effects{}
	started, finish := make(chan struct{}, 1000), make(chan struct{})
	e.set(func(context.Context, pgx.Tx, step) error {
		started <- struct{}{}
		<-finish
		return nil
	})
	var log logs
	b.put(1, 20, "a", "b")
	run(t, pool, e, b.config(log.logger, func(c *amqp.Config) { c.Receive.EffectTimeout = 2 * pgtest.Patience }))
	pgtest.Receive(t, started, "an event")
	require.Equal(t, 1, pgtest.Count(t, pool, `SELECT count(pg_terminate_backend(pid)) FROM pg_locks
		WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`))
	close(finish)
	log.said(t, "the lock of the queue was lost") // which it says when its transactions have ended
	settlesAt(t, pool, 40)
	requireSteps(t, pool, 20, "a", "b")
}

// TestOtherConsumer: while the queue has another consumer, nothing is applied: what that one does not acknowledge comes again, and
// before what follows.
func TestOtherConsumer(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]amqp091.Table{"classic": classic, "quorum": quorum} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, pool := newBroker(t, kind), database(t)
			b.put(1, 20, "a")
			taken, gone := b.foreign(7)
			for range 7 {
				pgtest.Receive(t, taken, "a message of the other consumer")
			}
			var log logs
			run(t, pool, &effects{}, b.config(log.logger))
			log.said(t, `level=WARN msg="the queue has another consumer: this process waits until it has gone, to keep the order"`)
			require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM effects"))
			gone()
			settlesAt(t, pool, 20)
			requireSteps(t, pool, 20, "a")
		})
	}
}

// TestOtherConsumerComesLater: a classic queue refuses another consumer. With a quorum queue, the receiver notices it, and applies
// nothing until it has gone.
func TestOtherConsumerComesLater(t *testing.T) {
	t.Parallel()
	t.Run("classic", func(t *testing.T) {
		t.Parallel()
		b, pool := newBroker(t, classic), database(t)
		run(t, pool, &effects{}, b.config())
		b.put(1, 1, "a")
		settlesAt(t, pool, 1)
		conn, err := amqp091.Dial(b.URL("guest"))
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
		ch, err := conn.Channel()
		require.NoError(t, err)
		_, err = ch.Consume(b.queue, "", false, false, false, false, nil)
		require.ErrorContains(t, err, "in exclusive use")
	})
	t.Run("quorum", func(t *testing.T) {
		t.Parallel()
		pgtest.Slow(t) // it looks every ten seconds
		b, pool := newBroker(t, quorum), database(t)
		var log logs
		run(t, pool, &effects{}, b.config(log.logger))
		b.put(1, 1, "a")
		settlesAt(t, pool, 1)
		_, gone := b.foreign(5)
		log.said(t, "the queue has another consumer: two of them break the order")
		log.said(t, "the queue has another consumer: this process waits until it has gone")
		b.put(2, 20, "a")
		require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*) FROM effects"))
		gone()
		settlesAt(t, pool, 20)
		requireSteps(t, pool, 20, "a")
	})
}

// TestLostConnection: a connection that is lost in the middle of an effect comes back only after that effect. What was not
// acknowledged comes again in its order, and what was applied is a duplicate.
func TestLostConnection(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]amqp091.Table{"classic": classic, "quorum": quorum} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, pool, e := newBroker(t, kind), database(t), &effects{}
			proxy := brokertest.NewProxy(t, b.Addr())
			started, finish := make(chan step, 1000), make(chan struct{})
			e.set(func(_ context.Context, _ pgx.Tx, s step) error {
				started <- s
				<-finish
				return nil
			})
			b.put(1, 30, "a")
			var log logs
			run(t, pool, e, configOf(proxy.URL("guest"), b.queue, log.logger, func(c *amqp.Config) {
				c.Prefetch, c.Receive.BatchSize, c.Receive.EffectTimeout = 10, 1, 2*pgtest.Patience
			}))
			require.Equal(t, step{"a", 1}, pgtest.Receive(t, started, "an effect"))
			proxy.Cut(false)
			b.left(30) // the server has noticed
			require.Empty(t, started, "nothing is applied while the effect is under way")
			require.NotContains(t, log.String(), "connected again")
			close(finish)
			settlesAt(t, pool, 30)
			requireSteps(t, pool, 30, "a")
			require.Contains(t, log.String(), "connected again")
		})
	}
}

// TestCutAgainAndAgain: the connection is lost again and again while messages are applied, with a full prefetch in the queue.
func TestCutAgainAndAgain(t *testing.T) {
	t.Parallel()
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, pool, e := newBroker(t, kind), database(t), &effects{}
			proxy := brokertest.NewProxy(t, b.Addr())
			var calls atomic.Int64
			e.set(func(context.Context, pgx.Tx, step) error {
				if calls.Add(1)%100 == 0 {
					proxy.Cut(false)
				}
				return nil
			})
			keys := strings.Fields("a b c d e")
			b.put(1, 100, keys...)
			r := run(t, pool, e, configOf(proxy.URL("guest"), b.queue, func(c *amqp.Config) { c.Prefetch, c.Receive.BatchSize = 50, 5 }))
			settlesAt(t, pool, 500)
			requireSteps(t, pool, 100, keys...)
			pgtest.Eventually(t, func() bool { messages, _ := b.count(); return messages == 0 })
			require.NoError(t, r.stop())
		})
	}
}

// TestSilentServer: a connection that has become silent is replaced, and Run ends although it is.
func TestSilentServer(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t) // several heartbeats
	b, pool := newBroker(t, classic), database(t)
	proxy := brokertest.NewProxy(t, b.Addr())
	var log logs
	r := run(t, pool, &effects{}, configOf(proxy.URL("guest"), b.queue, log.logger))
	b.put(1, 1, "a")
	settlesAt(t, pool, 1)
	proxy.Hang()
	b.put(2, 20, "a")
	log.said(t, "amqp connection: the queue is not read for a moment")
	proxy.Cut(false)
	settlesAt(t, pool, 20)
	requireSteps(t, pool, 20, "a")
	proxy.Hang()
	require.NoError(t, r.stop())
}
