// Package amqp consumes events from RabbitMQ, over AMQP 0-9-1: it reads a queue, applies each message's event with a
// generated consumer, once and in the order of its key, and acknowledges the message afterwards.
//
//	ib, err := inbox.New(inbox.Config{Group: "cards"})
//	...
//	consumer, err := userevents.NewUserConsumer(ib, cards{})
//	...
//	err = amqp.Run(ctx, pool, consumer, amqp.Config{
//		URL: "amqp://user:password@rabbit-1:5672/,amqp://user:password@rabbit-2:5672/", Queue: "cards",
//	})
//
// Run returns when ctx ends, or when something is wrong that waiting does not change. What becomes of a message that
// cannot be applied is described in package receive: it is parked or a dead letter in the consumer's database, and no
// message stops those of other keys. The queue must exist; the package does not create any.
//
// # Order
//
// A queue keeps the order in which it got its messages, and puts those that were not acknowledged back to where they
// were. Two consumers of a queue each get some of its messages, so that the events of a key would be applied in any
// order. RabbitMQ has two means against that, and neither suffices. It enforces an exclusive consumer for classic
// queues only: a quorum queue takes the flag and ignores it. A single active consumer is an argument of the queue,
// which a client that only reads cannot see. So this package sees to it for every type of queue:
//
//   - One process at a time reads the queue. It holds an advisory lock in the consumer's database; other processes wait
//     to take over.
//   - The reader waits until the queue has no other consumer. So what an earlier reader did not acknowledge is back in
//     the queue.
//   - It consumes exclusively, which a classic queue enforces. From time to time it looks for other consumers, and
//     stops when it finds one, until it has gone.
//   - After a lost connection it finishes the transactions that are under way before it reads again.
//
// A quorum queue delivers what it gets back in the order in which it gets it back. So Prefetch should not become
// smaller while processes crash.
//
// So events of one key have their effects in the order in which they stand in the queue, also after a crash. Keys are
// applied concurrently. To use several processes, spread the events over several queues with an exchange of type
// x-consistent-hash that hashes the header cloudEvents:partitionkey, and run one Receiver for each queue: a key is then
// always in the same queue. Events without an order need none of that: see Config.Unordered.
//
// # Failures
//
//   - The database or the servers do not answer: messages wait, nothing is charged, and lines of the log say when it
//     began and when it ended. Only at the start it is an error if no server answers within Config.StartTimeout.
//   - A queue that does not exist, or not any more: a line of the log, and an error of Run after Config.NoQueueTimeout.
//   - Credentials that are refused, TLS that does not work, and a missing right: at the start an error of Run at once,
//     which names the servers and what to check. With several servers it comes after 5 s, if none of them takes the
//     connection. Later it comes after Config.StartTimeout.
//   - RabbitMQ closes the channel, for example because a message was not acknowledged within its consumer_timeout, 30
//     min: the receiver reads again, and what is applied already is a duplicate.
//   - A message of another producer: a dead letter with its place, such as amqp:cards#5f0c1d2e, which has the
//     message-id.
//
// A quorum queue counts how often it delivers a message. RabbitMQ 4 drops a message, or has it in a dead letter
// exchange, after 20 times, and a process that crashes again and again would lose messages that way. Set the policy
// delivery-limit to -1: the receiver counts attempts itself. A line of the log warns when a message has come ten times.
package amqp

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/receive"
	"github.com/outboxgen/outboxgen/internal/broker/amqpurl"
	"github.com/outboxgen/outboxgen/internal/broker/lograte"
	"github.com/outboxgen/outboxgen/internal/call/usercode"
)

// The errors to test for with errors.Is.
var (
	// ErrNoQueue: the queue does not exist.
	ErrNoQueue = errors.New("the queue does not exist")
	// ErrStream: the queue is a stream. Its messages stay when they are acknowledged, and each consumer has a position.
	ErrStream = errors.New("the queue is a stream: use a quorum queue or a classic queue")
	// ErrRefused: the servers refuse the credentials or the virtual host, or a right is missing.
	ErrRefused = errors.New("the server refuses access")
	// ErrTLS: a certificate is not valid for the other side, or one side speaks TLS and the other does not.
	ErrTLS = errors.New("no connection with TLS")
	// ErrUnreachable: no server has answered within Config.StartTimeout.
	ErrUnreachable = errors.New("no server answers")
	// ErrRunning: Run was called while it runs.
	ErrRunning = errors.New("the receiver runs already")
)

// Config says what a Receiver consumes. URL and Queue are required.
type Config struct {
	// URL is the server, as amqp://user:password@host:port/vhost or amqps://..., or several servers of a cluster,
	// separated by commas. Special characters of a user, a password or a vhost are percent-encoded.
	URL string
	// Queue is the name of the queue, a classic or a quorum queue.
	Queue string
	// Key returns the key of an event, whose order is kept, from the event and the routing key of its message. nil means
	// the event's PartitionKey. Events with the key "" have no order. It may be called concurrently, and again for the
	// same message.
	Key func(e consume.Event, routingKey string) string
	// Unordered gives the order up, so that several processes can share the queue.
	Unordered bool
	// Prefetch is how many messages the process may hold; 0 means 1000.
	Prefetch int
	// StartTimeout is how long servers may be missing at the start, and credentials, rights or TLS later; 0 means 1 min.
	// It does not limit how long servers may be away later. At the start, nothing waits for credentials, rights and TLS.
	StartTimeout time.Duration
	// NoQueueTimeout is how long the queue may be missing, for example because it is created a little later; 0 means 1
	// min.
	NoQueueTimeout time.Duration
	// LockPool is where the advisory lock is taken, if the connections of the Receiver's pool go through a pooler of
	// transactions, which cannot keep a lock. It must reach the same database directly. nil means the Receiver's pool. One
	// of its connections is taken out of it.
	LockPool *pgxpool.Pool
	// TLS is the configuration for amqps; nil means the parameters of the URL, or else the defaults of crypto/tls.
	TLS *tls.Config
	// SASL are the mechanisms to log in with; nil means PLAIN with the user and password of the URL.
	SASL []amqp091.Authentication
	// Receive says how messages are applied. Its zero value is a good start. Its Logger is used for RabbitMQ too.
	Receive receive.Config
}

// shown is the part of a Config that may be printed.
type shown struct {
	Servers, Queue               string
	Unordered                    bool
	Prefetch                     int
	StartTimeout, NoQueueTimeout time.Duration
}

func (c Config) shown() shown {
	return shown{
		Servers: amqpurl.WithoutCredentials(c.URL), Queue: c.Queue, Unordered: c.Unordered, Prefetch: c.Prefetch,
		StartTimeout: c.StartTimeout, NoQueueTimeout: c.NoQueueTimeout,
	}
}

// Format writes the configuration without credentials, for any verb.
func (c Config) Format(w fmt.State, _ rune) { _, _ = fmt.Fprintf(w, "%+v", c.shown()) }

// LogValue logs the configuration without credentials.
func (c Config) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(c)) }

// MarshalJSON writes the configuration without credentials; it cannot be read back.
func (c Config) MarshalJSON() ([]byte, error) { return json.Marshal(c.shown()) }

func (c Config) withDefaults() Config {
	c.Prefetch = cmp.Or(c.Prefetch, 1000)
	c.StartTimeout = cmp.Or(c.StartTimeout, time.Minute)
	c.NoQueueTimeout = cmp.Or(c.NoQueueTimeout, time.Minute)
	c.Receive.Logger = cmp.Or(c.Receive.Logger, slog.Default())
	c.SASL = slices.Clone(c.SASL)
	if c.TLS != nil {
		c.TLS = c.TLS.Clone()
	}
	if c.Key == nil {
		c.Key = func(e consume.Event, _ string) string { return e.PartitionKey }
	}
	return c
}

// maxShort is the maximum length of a short string of AMQP, such as a name.
const maxShort = 255

func (c Config) validate() error {
	if err := amqpurl.Check(c.URL); err != nil {
		return fmt.Errorf("field URL %w", err)
	}
	for _, server := range amqpurl.Servers(c.URL) {
		if _, err := amqp091.ParseURI(server); err != nil { // it could quote a password
			return errors.New("field URL has a parameter that is not valid")
		}
	}
	switch {
	case c.Queue == "":
		return errors.New("field Queue is empty")
	case len(c.Queue) > maxShort:
		return fmt.Errorf("field Queue has %d bytes: AMQP has names of up to %d", len(c.Queue), maxShort)
	case strings.HasPrefix(c.Queue, "/queues/"):
		return errors.New("field Queue is an address: use the name of the queue alone")
	case c.Prefetch < 1 || c.Prefetch > 65_535:
		return fmt.Errorf("field Prefetch %d is not between 1 and 65535", c.Prefetch)
	case c.StartTimeout < 0:
		return fmt.Errorf("field StartTimeout %s is negative", c.StartTimeout)
	case c.NoQueueTimeout < 0:
		return fmt.Errorf("field NoQueueTimeout %s is negative", c.NoQueueTimeout)
	}
	return nil
}

// Receiver consumes the queue of a Config. Its methods may be called concurrently, but only one Run is under way at a
// time.
type Receiver struct {
	cfg      Config
	pool     *pgxpool.Pool
	receiver *receive.Receiver
	servers  string // their addresses, without credentials
	log      *slog.Logger
	limit    *lograte.Limit // of the connections
	running  atomic.Bool
}

// Run is New and Receiver.Run.
func Run(ctx context.Context, pool *pgxpool.Pool, consumer *consume.Consumer, cfg Config) error {
	r, err := New(pool, consumer, cfg)
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// New returns a Receiver that applies the messages of cfg.Queue with consumer, in the database of pool. It does not
// connect to anything.
func New(pool *pgxpool.Pool, consumer *consume.Consumer, cfg Config) (*Receiver, error) {
	receiver, err := receive.New(pool, consumer, cfg.Receive)
	if err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("new RabbitMQ receiver: %w", err)
	}
	cfg.LockPool = cmp.Or(cfg.LockPool, pool)
	log := usercode.Logger(cfg.Receive.Logger).With("queue", cfg.Queue, "consumer_group", receiver.Group())
	return &Receiver{
		cfg: cfg, pool: pool, receiver: receiver, servers: amqpurl.WithoutCredentials(cfg.URL), log: log,
		limit: lograte.New(log),
	}, nil
}

// Format writes where the receiver consumes, without credentials, for any verb.
func (r *Receiver) Format(w fmt.State, _ rune) {
	_, _ = fmt.Fprintf(w, "amqp.Receiver(%s at %s)", r.cfg.Queue, r.servers)
}

// LogValue logs the receiver as Format writes it.
func (r *Receiver) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(r)) }

// Lag is how far the consumer of a queue is behind.
type Lag struct {
	// Ready is how many messages of the queue have not been delivered to anybody. AMQP does not tell how many were
	// delivered and are not acknowledged: Config.Prefetch at most for each consumer.
	Ready int
	// Consumers is how many consumers the queue has.
	Consumers int
}

// Lag asks the server how many messages wait in the queue, within Config.StartTimeout. Run need not be under way. What
// is parked in the database is not behind: see Status.
func (r *Receiver) Lag(ctx context.Context) (Lag, error) {
	q, err := r.look(ctx)
	if err != nil {
		return Lag{}, fmt.Errorf("read lag of %s at %s: %w", r.cfg.Queue, r.servers, err)
	}
	return Lag{Ready: q.Messages, Consumers: q.Consumers}, nil
}

func (r *Receiver) look(ctx context.Context) (amqp091.Queue, error) {
	c, err := r.connect(ctx, false)
	if err != nil {
		return amqp091.Queue{}, err
	}
	defer c.close()
	q, err := c.inspect(r.cfg.Queue)
	if isMissing(err) {
		return amqp091.Queue{}, fmt.Errorf("%w: %w", ErrNoQueue, err)
	}
	return q, err
}

// Status counts what the consumer group keeps in the database: parked messages and dead letters.
func (r *Receiver) Status(ctx context.Context) (receive.Status, error) { return r.receiver.Status(ctx) }
