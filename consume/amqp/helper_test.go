package amqp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/amqp"
	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/testing/brokertest"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/worker"
)

var _ worker.Runner = (*amqp.Receiver)(nil)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(pgtest.Supervisor), goleak.IgnoreAnyFunction(brokertest.Supervisor), goleak.Cleanup(func(code int) {
		if shared.server != nil {
			if err := shared.server.Stop(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				code = max(code, 1)
			}
		}
		os.Exit(code)
	}))
}

// shared is the server of all tests: it takes seconds to start one. Tests that disturb it are not parallel, and so run before
// those that are.
var shared struct {
	once   sync.Once
	server *brokertest.RabbitMQ
	err    error
}

// The types of queues, by the arguments of their declaration.
var (
	classic = amqp091.Table{}
	quorum  = amqp091.Table{"x-queue-type": "quorum"}
	kinds   = map[string]amqp091.Table{
		"classic": classic, "quorum": quorum, "classic with a single active consumer": {"x-single-active-consumer": true},
		"quorum with a single active consumer": {"x-queue-type": "quorum", "x-single-active-consumer": true},
	}
)

// broker has a durable queue of one test on the shared server.
type broker struct {
	t testing.TB
	*brokertest.RabbitMQ
	queue string
	args  amqp091.Table

	mu      sync.Mutex
	conn    *amqp091.Connection // of the test
	channel *amqp091.Channel
}

func newBroker(t testing.TB, kind amqp091.Table) *broker {
	t.Helper()
	brokertest.NeedRabbitMQ(t)
	shared.once.Do(func() { shared.server, shared.err = brokertest.StartRabbitMQ() })
	require.NoError(t, shared.err)
	b := &broker{t: t, RabbitMQ: shared.server, queue: "q-" + uuid.NewString(), args: kind}
	t.Cleanup(b.disconnect)
	b.declare()
	t.Cleanup(b.remove)
	return b
}

func (b *broker) declare() {
	b.t.Helper()
	b.control(func(ch *amqp091.Channel) error {
		_, err := ch.QueueDeclare(b.queue, true, false, false, false, b.args)
		return err
	})
}

func (b *broker) remove() {
	b.t.Helper()
	b.control(func(ch *amqp091.Channel) error {
		_, err := ch.QueueDelete(b.queue, false, false, false)
		return err
	})
}

func (b *broker) disconnect() {
	if b.conn != nil {
		_ = b.conn.Close()
	}
	b.conn = nil
}

// control calls f with a channel that confirms messages, again on a new connection if it fails.
func (b *broker) control(f func(*amqp091.Channel) error) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	var err error
	for deadline := time.Now().Add(pgtest.Patience); time.Now().Before(deadline); <-time.After(50 * time.Millisecond) {
		if b.conn == nil || b.conn.IsClosed() || b.channel.IsClosed() {
			b.disconnect()
			if b.conn, err = amqp091.Dial(b.URL("guest")); err != nil {
				continue
			}
			if b.channel, err = b.conn.Channel(); err != nil {
				continue
			}
			if err = b.channel.Confirm(false); err != nil {
				continue
			}
		}
		if err = f(b.channel); err == nil {
			return
		}
	}
	require.NoError(b.t, err)
}

// count returns how many messages and consumers the queue has.
func (b *broker) count() (messages, consumers int) {
	b.t.Helper()
	b.control(func(ch *amqp091.Channel) error {
		q, err := ch.QueueDeclarePassive(b.queue, true, false, false, false, nil)
		messages, consumers = q.Messages, q.Consumers
		return err
	})
	return messages, consumers
}

// left waits until so many messages are in the queue, with no consumer, so that none is unacknowledged.
func (b *broker) left(want int) {
	b.t.Helper()
	var messages, consumers int
	pgtest.Eventually(b.t, func() bool {
		messages, consumers = b.count()
		return messages == want && consumers == 0
	}, func() string { return fmt.Sprintf("%d messages, %d consumers; want %d", messages, consumers, want) })
}

// step is the payload of the tests' topic: the n-th event of a key, from 1.
type step struct {
	Key string `json:"key"`
	N   int    `json:"n"`
}

var stepTaken = consume.NewTopic[step](consume.TopicSpec{Namespace: "users", Name: "step_taken"})

// message is the n-th event of a key.
func message(key string, n int) amqp091.Publishing {
	body, err := json.Marshal(step{key, n})
	if err != nil {
		panic(err)
	}
	id := uuid.Must(uuid.NewV7()).String()
	return amqp091.Publishing{
		MessageId: id, ContentType: "application/json", DeliveryMode: amqp091.Persistent, Body: body,
		Headers: amqp091.Table{
			"cloudEvents:specversion": "1.0", "cloudEvents:id": id, "cloudEvents:type": "users.step_taken", "cloudEvents:source": "/users",
			"cloudEvents:partitionkey": key,
		},
	}
}

// send stores messages in their order. A message may be stored twice.
func (b *broker) send(ms ...amqp091.Publishing) {
	b.t.Helper()
	b.control(func(ch *amqp091.Channel) error {
		var last *amqp091.DeferredConfirmation
		for _, m := range ms {
			var err error
			if last, err = ch.PublishWithDeferredConfirm("", b.queue, false, false, m); err != nil {
				return err
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_, err := last.WaitContext(ctx)
		return err
	})
}

// put stores the events from first to last of each key, in turn.
func (b *broker) put(first, last int, keys ...string) {
	b.t.Helper()
	var ms []amqp091.Publishing
	for n := first; n <= last; n++ {
		for _, key := range keys {
			ms = append(ms, message(key, n))
		}
	}
	b.send(ms...)
}

// foreign is a client that takes messages and does not acknowledge them. gone ends it.
func (b *broker) foreign(prefetch int) (deliveries <-chan amqp091.Delivery, gone func()) {
	b.t.Helper()
	conn, err := amqp091.Dial(b.URL("guest"))
	require.NoError(b.t, err)
	gone = sync.OnceFunc(func() { _ = conn.Close() })
	b.t.Cleanup(gone)
	ch, err := conn.Channel()
	require.NoError(b.t, err)
	require.NoError(b.t, ch.Qos(prefetch, 0, false))
	deliveries, err = ch.Consume(b.queue, "", false, false, false, false, nil)
	require.NoError(b.t, err)
	return deliveries, gone
}

// effects is a consumer that appends a row per event.
type effects struct {
	mu   sync.Mutex
	fail func(ctx context.Context, tx pgx.Tx, s step) error // after the insert; nil succeeds
}

func (e *effects) set(fail func(ctx context.Context, tx pgx.Tx, s step) error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fail = fail
}

func (e *effects) ConsumeStepTaken(ctx context.Context, tx pgx.Tx, d consume.Delivery[step]) error {
	if _, err := tx.Exec(ctx, "INSERT INTO effects (event, key, n) VALUES ($1, $2, $3)", d.ID, d.Payload.Key, d.Payload.N); err != nil {
		return err
	}
	e.mu.Lock()
	fail := e.fail
	e.mu.Unlock()
	if fail == nil {
		return nil
	}
	return fail(ctx, tx, d.Payload)
}

const effectsTable = "CREATE TABLE effects (no bigint GENERATED ALWAYS AS IDENTITY, event uuid NOT NULL, key text NOT NULL, n integer NOT NULL)"

// database returns a migrated database with a table of effects, which has no unique constraint.
func database(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.Database(t)
	pgtest.Execute(t, pool, effectsTable)
	return pool
}

func consumerOf(t testing.TB, e *effects) *consume.Consumer {
	t.Helper()
	ib, err := inbox.New(inbox.Config{Group: "projection"})
	require.NoError(t, err)
	c, err := consume.New(ib, consume.Handle(stepTaken, e, (*effects).ConsumeStepTaken))
	require.NoError(t, err)
	return c
}

// logs collects lines of the log.
type logs struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// logger has a receiver write into l.
func (l *logs) logger(c *amqp.Config) { c.Receive.Logger = slog.New(slog.NewTextHandler(l, nil)) }

// said waits for a line with text.
func (l *logs) said(t testing.TB, text string) {
	t.Helper()
	pgtest.Eventually(t, func() bool { return strings.Contains(l.String(), text) }, l.String)
}

// config is that of a receiver at b, with short pauses.
func (b *broker) config(change ...func(*amqp.Config)) amqp.Config {
	return configOf(b.URL("guest"), b.queue, change...)
}

func configOf(url, queue string, change ...func(*amqp.Config)) amqp.Config {
	cfg := amqp.Config{URL: url, Queue: queue}
	cfg.Receive.BaseDelay, cfg.Receive.MaxDelay, cfg.Receive.PollInterval = 10*time.Millisecond, 50*time.Millisecond, 50*time.Millisecond
	cfg.Receive.Logger = slog.New(slog.DiscardHandler)
	for _, f := range change {
		f(&cfg)
	}
	return cfg
}

// shortly has a receiver give up soon.
func shortly(c *amqp.Config) { c.StartTimeout, c.NoQueueTimeout = 2*time.Second, 2*time.Second }

// running is a receiver that runs.
type running struct {
	*amqp.Receiver
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

// stop ends the receiver and returns the error of Run.
func (r *running) stop() error {
	r.cancel()
	<-r.done
	return r.err
}

// ends waits until Run ends by itself.
func (r *running) ends(t testing.TB) error {
	t.Helper()
	pgtest.Receive(t, r.done, "the end of Run")
	return r.err
}

// run starts a receiver, which is stopped at the end of the test.
func run(t testing.TB, pool *pgxpool.Pool, e *effects, cfg amqp.Config) *running {
	t.Helper()
	receiver, err := amqp.New(pool, consumerOf(t, e), cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{Receiver: receiver, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = receiver.Run(ctx)
	}()
	t.Cleanup(func() { _ = r.stop() })
	return r
}

// requireSteps fails unless each key has its effects 1 to n, once and in order.
func requireSteps(t testing.TB, pool *pgxpool.Pool, n int, keys ...string) {
	t.Helper()
	want := make([]int32, n)
	for i := range want {
		want[i] = int32(i + 1)
	}
	for _, key := range keys {
		require.Equal(t, want, pgtest.Value[[]int32](t, pool, "SELECT coalesce(array_agg(n ORDER BY no), '{}') FROM effects WHERE key = $1", key), key)
	}
}

func settlesAt(t testing.TB, pool *pgxpool.Pool, n int) {
	t.Helper()
	pgtest.Settles(t, pool, n, "SELECT count(*) FROM effects")
}
