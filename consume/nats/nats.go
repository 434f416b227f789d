// Package nats consumes events from NATS JetStream: it pulls from a durable consumer of a stream, applies each
// message's event with a generated consumer, once and in the order of its key, and acknowledges the message afterwards.
//
//	ib, err := inbox.New(inbox.Config{Group: "cards"})
//	...
//	consumer, err := userevents.NewUserConsumer(ib, cards{})
//	...
//	err = nats.Run(ctx, pool, consumer, nats.Config{
//		URL: "nats://nats-1:4222,nats://nats-2:4222", Stream: "USERS",
//	})
//
// Run returns when ctx ends, or when something is wrong that waiting does not change. What becomes of a message that
// cannot be applied is described in package receive: it is parked or a dead letter in the consumer's database, and no
// message stops those of other keys.
//
// # Order
//
// JetStream delivers a message again when its acknowledgement is late, and it does not wait for that before it delivers
// later messages. So a message that got lost on its way, or that a killed process had, comes after messages that follow
// it. This package restores the order:
//
//   - One process at a time reads the durable consumer. It holds an advisory lock in the consumer's database; other
//     processes wait to take over.
//   - The reader counts the deliveries. When it begins, and when one is missing, it holds all messages until it has
//     every message that is delivered and not acknowledged, which JetStream delivers again within Config.AckWait. Then
//     it applies them in the order of the stream.
//   - While it holds a message, it tells JetStream that the message is in progress. It acknowledges a message after its
//     effect.
//
// So events of one key have their effects in the order in which they stand in the stream, also after a crash, which
// then costs up to AckWait. Keys are applied concurrently. To use several processes, run one Receiver for each part of
// the subjects, with a durable consumer and Subjects of its own, so that a key is always in the same part. Events
// without an order need none of that: see Config.Unordered.
//
// # Failures
//
//   - The database or the servers do not answer: messages wait, nothing is charged, and lines of the log say when it
//     began and when it ended. Only at the start it is an error if no server answers within Config.StartTimeout.
//   - A stream that does not exist: an error of Run after Config.StartTimeout.
//   - Credentials that are refused, TLS that does not work, and a missing right: at the start an error of Run at once,
//     which names the servers and what to check. With several servers it comes after 5 s, if none of them takes the
//     connection. Later it comes after Config.StartTimeout.
//   - A durable consumer that was deleted while Run used it, or one with a configuration that can lose messages: an
//     error.
//   - A message of another producer: a dead letter with its place, such as nats:USERS@1042.
package nats

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/receive"
	"github.com/outboxgen/outboxgen/internal/broker/lograte"
	"github.com/outboxgen/outboxgen/internal/broker/natsurl"
	"github.com/outboxgen/outboxgen/internal/call/usercode"
)

// The errors to test for with errors.Is.
var (
	// ErrNoStream: the stream does not exist.
	ErrNoStream = errors.New("the stream does not exist: create it, or correct the name")
	// ErrBadConsumer: the durable consumer has a configuration with which messages could get lost or out of order.
	ErrBadConsumer = errors.New("the durable consumer is not suitable")
	// ErrConsumerDeleted: somebody has deleted the durable consumer while it was used.
	ErrConsumerDeleted = errors.New("the durable consumer was deleted")
	// ErrConsumerShared: another program takes messages of the durable consumer.
	ErrConsumerShared = errors.New("another program takes messages of the durable consumer")
	// ErrRefused: the servers refuse the credentials, or a right is missing.
	ErrRefused = errors.New("the server refuses access")
	// ErrTLS: a certificate is not valid for the other side, or one side speaks TLS and the other does not.
	ErrTLS = errors.New("no connection with TLS")
	// ErrUnreachable: no server, or no JetStream, has answered within Config.StartTimeout.
	ErrUnreachable = errors.New("no server with JetStream answers")
	// ErrRunning: Run was called while it runs.
	ErrRunning = errors.New("the receiver runs already")
)

// Config says what a Receiver consumes. URL and Stream are required.
type Config struct {
	// URL is the server, as nats://host:port, or several servers of a cluster, separated by commas.
	URL string
	// Stream is the name of the stream.
	Stream string
	// Durable is the name of the durable consumer; "" means the group of the consumer's inbox, with - for dots. If the
	// stream has no such consumer, Run creates it, from the first message that the stream has.
	Durable string
	// FromEnd has a new durable consumer start with the messages that are stored from then on.
	FromEnd bool
	// Subjects are the subjects of the stream whose messages are consumed, with or without wildcards; none means all. A
	// durable consumer that exists must have the same.
	Subjects []string
	// Key returns the key of an event, whose order is kept, from the event and the subject of its message. nil means the
	// event's PartitionKey. Events with the key "" have no order. It may be called concurrently, and again for the same
	// message.
	Key func(e consume.Event, subject string) string
	// Unordered gives the order up, so that several processes can share the durable consumer.
	Unordered bool
	// MaxPending is how many messages the process may hold; 0 means 1000. It is MaxAckPending of a new durable consumer.
	MaxPending int
	// AckWait is after which time JetStream delivers a message again that it has not heard of; 0 means 30 s. It is that of
	// a new durable consumer. Messages that are held are reported as in progress, so that an effect may take longer.
	AckWait time.Duration
	// StartTimeout is how long servers or the stream may be missing at the start, and the stream, credentials, rights or
	// TLS later; 0 means 1 min. It does not limit how long servers may be away later. At the start, nothing waits for
	// credentials, rights and TLS.
	StartTimeout time.Duration
	// LockPool is where the advisory lock is taken, if the connections of the Receiver's pool go through a pooler of
	// transactions, which cannot keep a lock. It must reach the same database directly. nil means the Receiver's pool. One
	// of its connections is taken out of it.
	LockPool *pgxpool.Pool
	// Domain is the JetStream domain of the stream; "" means the domain of the server.
	Domain string
	// Options go to the connection: nats.UserCredentials, nats.Secure, nats.Name and so on. With any options, the
	// connection always reconnects.
	Options []nats.Option
	// Receive says how messages are applied. Its zero value is a good start. Its Logger is used for NATS too.
	Receive receive.Config
}

// shown is the part of a Config that may be printed.
type shown struct {
	Servers, Stream, Durable, Domain string
	Subjects                         []string
	Unordered, FromEnd               bool
	MaxPending, Options              int
	AckWait, StartTimeout            time.Duration
}

func (c Config) shown() shown {
	return shown{
		Servers: natsurl.WithoutCredentials(c.URL), Stream: c.Stream, Durable: c.Durable, Domain: c.Domain,
		Subjects: c.Subjects, Unordered: c.Unordered, FromEnd: c.FromEnd, MaxPending: c.MaxPending, Options: len(c.Options),
		AckWait: c.AckWait, StartTimeout: c.StartTimeout,
	}
}

// Format writes the configuration without credentials, for any verb.
func (c Config) Format(w fmt.State, _ rune) { _, _ = fmt.Fprintf(w, "%+v", c.shown()) }

// LogValue logs the configuration without credentials.
func (c Config) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(c)) }

// MarshalJSON writes the configuration without credentials; it cannot be read back.
func (c Config) MarshalJSON() ([]byte, error) { return json.Marshal(c.shown()) }

func (c Config) withDefaults(group string) Config {
	c.Durable = cmp.Or(c.Durable, strings.ReplaceAll(group, ".", "-"))
	c.MaxPending = cmp.Or(c.MaxPending, 1000)
	c.AckWait = cmp.Or(c.AckWait, 30*time.Second)
	c.StartTimeout = cmp.Or(c.StartTimeout, time.Minute)
	c.Receive.Logger = cmp.Or(c.Receive.Logger, slog.Default())
	c.Subjects, c.Options = slices.Clone(c.Subjects), slices.Clone(c.Options)
	if c.Key == nil {
		c.Key = func(e consume.Event, _ string) string { return e.PartitionKey }
	}
	return c
}

func (c Config) validate() error {
	const not = " .*>/\\\t\r\n"
	switch {
	case c.URL == "":
		return errors.New("field URL is empty")
	case !natsurl.Valid(c.URL):
		return errors.New("field URL is not a list of URLs: percent-encode special characters in a user or password, and " +
			"separate servers with commas")
	case c.Stream == "":
		return errors.New("field Stream is empty")
	case strings.ContainsAny(c.Stream, not):
		return fmt.Errorf("field Stream %q is not a valid stream name", c.Stream)
	case strings.ContainsAny(c.Durable, not):
		return fmt.Errorf("field Durable %q is not a valid name", c.Durable)
	case slices.Contains(c.Subjects, ""):
		return errors.New("field Subjects has an empty subject")
	case c.MaxPending < 1 || c.MaxPending > 100_000:
		return fmt.Errorf("field MaxPending %d is not between 1 and 100000", c.MaxPending)
	case c.AckWait < time.Second:
		return fmt.Errorf("field AckWait %s is below 1s", c.AckWait)
	case c.StartTimeout < 0:
		return fmt.Errorf("field StartTimeout %s is negative", c.StartTimeout)
	}
	return nil
}

// Receiver consumes the stream of a Config. Its methods may be called concurrently, but only one Run is under way at a
// time.
type Receiver struct {
	cfg      Config
	pool     *pgxpool.Pool
	receiver *receive.Receiver
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

// New returns a Receiver that applies the messages of cfg.Stream with consumer, in the database of pool. It does not
// connect to anything.
func New(pool *pgxpool.Pool, consumer *consume.Consumer, cfg Config) (*Receiver, error) {
	receiver, err := receive.New(pool, consumer, cfg.Receive)
	if err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults(receiver.Group())
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("new NATS receiver: %w", err)
	}
	cfg.LockPool = cmp.Or(cfg.LockPool, pool)
	log := usercode.Logger(cfg.Receive.Logger).With("stream", cfg.Stream, "durable", cfg.Durable)
	return &Receiver{cfg: cfg, pool: pool, receiver: receiver, log: log, limit: lograte.New(log)}, nil
}

// Format writes where the receiver consumes, without credentials, for any verb.
func (r *Receiver) Format(w fmt.State, _ rune) {
	_, _ = fmt.Fprintf(w, "nats.Receiver(%s/%s)", r.cfg.Stream, r.cfg.Durable)
}

// LogValue logs the receiver as Format writes it.
func (r *Receiver) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(r)) }

// Lag is how far a durable consumer is behind.
type Lag struct {
	// Pending is how many messages of the stream have not been delivered to anybody.
	Pending uint64
	// Unacknowledged is how many were delivered and are not acknowledged.
	Unacknowledged int
}

// Lag asks the server how far the durable consumer is behind, within Config.StartTimeout. Run need not be under way.
// What is parked in the database is not behind: see Status.
func (r *Receiver) Lag(ctx context.Context) (Lag, error) {
	c, err := connect(r.cfg, r.log, r.limit)
	if err != nil {
		return Lag{}, fmt.Errorf("read lag of %s/%s: %w", r.cfg.Stream, r.cfg.Durable, err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, r.cfg.StartTimeout)
	defer cancel()
	defer c.onRefusal(cancel)()
	asked := time.Now()
	lag, err := r.lag(ctx, c)
	if err != nil {
		return Lag{}, fmt.Errorf("read lag of %s/%s at %s: %w", r.cfg.Stream, r.cfg.Durable, c.servers, c.explain(err, asked))
	}
	return lag, nil
}

func (r *Receiver) lag(ctx context.Context, c *connection) (Lag, error) {
	js, err := c.jetStream(r.cfg)
	if err != nil {
		return Lag{}, err
	}
	if err := c.await(ctx); err != nil {
		return Lag{}, err
	}
	consumer, err := js.Consumer(ctx, r.cfg.Stream, r.cfg.Durable)
	if err != nil {
		return Lag{}, err
	}
	info := consumer.CachedInfo()
	return Lag{Pending: info.NumPending, Unacknowledged: info.NumAckPending}, nil
}

// Status counts what the consumer group keeps in the database: parked messages and dead letters.
func (r *Receiver) Status(ctx context.Context) (receive.Status, error) { return r.receiver.Status(ctx) }
