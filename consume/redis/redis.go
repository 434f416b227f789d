// Package redis consumes events from streams of Redis or Valkey: it reads them as a consumer group, applies each
// entry's event with a generated consumer, once and in the order of its key, and acknowledges the entry afterwards.
//
//	ib, err := inbox.New(inbox.Config{Group: "cards"})
//	...
//	consumer, err := userevents.NewUserConsumer(ib, cards{})
//	...
//	err = redis.Run(ctx, pool, consumer, redis.Config{
//		URL: "redis://redis-1:6379/0", Streams: []string{"users"},
//	})
//
// Run returns when ctx ends, or when something is wrong that waiting does not change. What becomes of an entry that
// cannot be applied is described in package receive: it is parked or a dead letter in the consumer's database, and no
// entry stops those of other keys.
//
// # Order
//
// Redis hands each entry to any consumer of a group that asks, and never delivers an entry again by itself. So an entry
// that a killed process had would come after entries that follow it, or never. This package keeps the order:
//
//   - One process at a time reads a stream. It holds an advisory lock in the consumer's database; other processes wait
//     to take over. Each stream has its own lock, and streams are consumed concurrently.
//   - The reader applies first what was delivered and not acknowledged, to whichever consumer of the group, in the
//     order of the stream. It does so when it begins and after each trouble.
//   - With each read, in one transaction of Redis, it counts what the group has not acknowledged. If that is more than
//     it has read, another process has got entries, or an answer got lost. Then it first applies all of them, in the
//     order of the stream.
//   - It acknowledges an entry after its effect, and reads on when the entries of the last read are settled.
//
// So events of one key have their effects in the order in which they stand in the stream, also after a crash. The keys
// of a stream are applied concurrently. A key that is in two streams has no order between them. To have several
// processes at work, give each streams of its own.
//
// # Failures
//
//   - The database or the server does not answer, or the server is loading, a replica, or full: entries wait, nothing
//     is charged, and lines of the log say when it began and when it ended. Only at the start it is an error if the
//     server does not answer within Config.StartTimeout.
//   - A stream that does not exist: an error of Run after Config.StartTimeout, or Config.CreateStreams. A stream or a
//     group that is gone later, for example after FLUSHALL or a failover: it is created again and read from its
//     beginning, and a line of the log says so. The inbox removes what was applied.
//   - Credentials that are refused, TLS that does not work, and a missing right: at the start an error of Run at once,
//     which names the server and what to check. With several addresses it comes after 5 s. Later it comes after
//     Config.StartTimeout.
//   - Entries that are removed from the stream (MAXLEN, XTRIM, XDEL) before they are applied: they are lost, and a line
//     of the log says how many. See the documentation.
//   - An entry of another producer: a dead letter with its place, such as redis:users@1700000000000-0.
//
// The client writes failed attempts to connect to its own logger, which is the standard error of the process unless
// SetLogger of go-redis says otherwise.
package redis

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
	goredis "github.com/redis/go-redis/v9"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/receive"
	"github.com/outboxgen/outboxgen/internal/call/usercode"
)

// The errors to test for with errors.Is.
var (
	// ErrNoStream: a stream does not exist.
	ErrNoStream = errors.New("the stream does not exist: create it, correct the name, or set Config.CreateStreams")
	// ErrNotStream: a key is not a stream.
	ErrNotStream = errors.New("the key is not a stream")
	// ErrRefused: the server refuses the credentials, or a right is missing.
	ErrRefused = errors.New("the server refuses access")
	// ErrTLS: a certificate is not valid for the other side, or one side speaks TLS and the other does not.
	ErrTLS = errors.New("no connection with TLS")
	// ErrUnreachable: no server has answered within Config.StartTimeout.
	ErrUnreachable = errors.New("no server answers")
	// ErrRunning: Run was called while it runs.
	ErrRunning = errors.New("the receiver runs already")
)

// Config says what a Receiver consumes. Streams, and URL or Options, are required.
type Config struct {
	// URL is the server, as redis://user:password@host:port/db, or rediss:// for TLS, or unix://. Special characters of a
	// user or a password are percent-encoded.
	URL string
	// Options are used instead of URL, for a cluster or for Sentinel: Addrs, MasterName, Username, Password, TLSConfig and
	// so on. They cannot change what the promises of this package depend on: the receiver sets retries, timeouts, the size
	// of the pool and the routing to replicas.
	Options *goredis.UniversalOptions
	// Streams are the keys of the streams.
	Streams []string
	// Group is the consumer group in Redis; "" means the group of the consumer's inbox. If a stream has no such group, Run
	// creates it, from the first entry that the stream has.
	Group string
	// FromEnd has a new group start with the entries that are added from then on.
	FromEnd bool
	// CreateStreams lets Run create a stream with its group. Otherwise streams must exist: a misspelt stream would stay
	// empty.
	CreateStreams bool
	// Key returns the key of an event, whose order is kept, from the event and its stream. nil means the event's
	// PartitionKey. Events with the key "" have no order. It may be called concurrently, and again for the same entry.
	Key func(e consume.Event, stream string) string
	// MaxPending is how many entries of a stream are read at a time; 0 means 1000. So many are held in memory at most.
	MaxPending int
	// StartTimeout is how long a server or a stream may be missing at the start, and credentials, rights or TLS later; 0
	// means 1 min. It does not limit how long servers may be away later. At the start, nothing waits for credentials,
	// rights and TLS.
	StartTimeout time.Duration
	// LockPool is where the advisory locks are taken, if the connections of the Receiver's pool go through a pooler of
	// transactions, which cannot keep a lock. It must reach the same database directly. nil means the Receiver's pool. A
	// connection per stream is taken out of it.
	LockPool *pgxpool.Pool
	// Receive says how entries are applied. Its zero value is a good start. Its Logger is used for Redis too.
	Receive receive.Config
}

// shown is the part of a Config that may be printed.
type shown struct {
	Servers, Group         string
	Streams                []string
	FromEnd, CreateStreams bool
	MaxPending             int
	StartTimeout           time.Duration
}

func (c Config) shown() shown {
	return shown{
		Servers: c.servers(), Group: c.Group, Streams: c.Streams, FromEnd: c.FromEnd, CreateStreams: c.CreateStreams,
		MaxPending: c.MaxPending, StartTimeout: c.StartTimeout,
	}
}

// Format writes the configuration without credentials, for any verb.
func (c Config) Format(w fmt.State, _ rune) { _, _ = fmt.Fprintf(w, "%+v", c.shown()) }

// LogValue logs the configuration without credentials.
func (c Config) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(c)) }

// MarshalJSON writes the configuration without credentials; it cannot be read back.
func (c Config) MarshalJSON() ([]byte, error) { return json.Marshal(c.shown()) }

func (c Config) withDefaults(group string) Config {
	c.Group = cmp.Or(c.Group, group)
	c.MaxPending = cmp.Or(c.MaxPending, 1000)
	c.StartTimeout = cmp.Or(c.StartTimeout, time.Minute)
	c.Receive.Logger = cmp.Or(c.Receive.Logger, slog.Default())
	c.Streams = slices.Clone(c.Streams)
	if c.Key == nil {
		c.Key = func(e consume.Event, _ string) string { return e.PartitionKey }
	}
	return c
}

func (c Config) validate() error {
	names := slices.Sorted(slices.Values(c.Streams))
	switch {
	case c.URL == "" && c.Options == nil:
		return errors.New("field URL is empty")
	case c.URL != "" && c.Options != nil:
		return errors.New("fields URL and Options cannot be combined")
	case c.Options != nil && (len(c.Options.Addrs) == 0 || slices.Contains(c.Options.Addrs, "")):
		return errors.New("field Options has no addresses: set Addrs")
	case c.Options != nil && slices.ContainsFunc(c.Options.Addrs, isURL):
		return errors.New("field Options has a URL or a user in Addrs: use host:port, and Username and Password")
	case len(names) == 0:
		return errors.New("field Streams is empty")
	case slices.Contains(names, ""):
		return errors.New("field Streams has an empty stream")
	case len(slices.Compact(names)) < len(c.Streams):
		return errors.New("field Streams has a stream twice")
	case c.MaxPending < 1 || c.MaxPending > 100_000:
		return fmt.Errorf("field MaxPending %d is not between 1 and 100000", c.MaxPending)
	case c.StartTimeout < 0:
		return fmt.Errorf("field StartTimeout %s is negative", c.StartTimeout)
	}
	if c.URL != "" {
		if _, err := parseURL(c.URL); err != nil {
			return fmt.Errorf("field URL %w", err)
		}
	}
	return nil
}

// Receiver consumes the streams of a Config. Its methods may be called concurrently, but only one Run is under way at a
// time.
type Receiver struct {
	cfg      Config
	receiver *receive.Receiver
	log      *slog.Logger
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

// New returns a Receiver that applies the entries of cfg.Streams with consumer, in the database of pool. It does not
// connect to anything.
func New(pool *pgxpool.Pool, consumer *consume.Consumer, cfg Config) (*Receiver, error) {
	receiver, err := receive.New(pool, consumer, cfg.Receive)
	if err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults(receiver.Group())
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("new Redis receiver: %w", err)
	}
	cfg.LockPool = cmp.Or(cfg.LockPool, pool)
	log := usercode.Logger(cfg.Receive.Logger).With("consumer_group", cfg.Group)
	return &Receiver{cfg: cfg, receiver: receiver, log: log}, nil
}

// Format writes where the receiver consumes, without credentials, for any verb.
func (r *Receiver) Format(w fmt.State, _ rune) {
	_, _ = fmt.Fprintf(w, "redis.Receiver(%s/%s)", strings.Join(r.cfg.Streams, ","), r.cfg.Group)
}

// LogValue logs the receiver as Format writes it.
func (r *Receiver) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(r)) }

// Status counts what the consumer group keeps in the database: parked messages and dead letters.
func (r *Receiver) Status(ctx context.Context) (receive.Status, error) { return r.receiver.Status(ctx) }
