// Package receive applies the messages of a broker for a consumer group, whatever the broker is. It is what
// consume/kafka, consume/nats, consume/amqp and consume/redis are built on: they fetch messages and acknowledge them, and
// a Receiver decides what becomes of each.
//
//	r, err := receive.New(pool, consumer, receive.Config{})
//	...
//	go r.Run(ctx) // tries parked messages again
//	for {
//		batch := fetch(ctx)
//		outcomes, err := r.Receive(ctx, batch)
//		acknowledge(batch, outcomes) // those with an outcome
//	}
//
// # What becomes of a message
//
//   - It is applied: its event is recorded in the inbox and its effect is written, in one transaction. Several messages
//     share a transaction, up to Config.BatchSize. If one of them fails, they are applied again without it.
//   - It cannot be applied however often it is tried (consume.IsPermanent): it becomes a dead letter, in the table
//     inbox_messages of the consumer's database.
//   - It fails otherwise: it is tried a few times, and then parked in the same table. Later messages of its key are
//     parked behind it, so the key stays in order and the broker's other messages continue. Run tries it again, with
//     growing delays. After Config.MaxAttempts it is a dead letter, and its key continues.
//   - The database does not answer, or the consumer's method says that something else does not (consume.Unavailable):
//     the messages wait, and no attempt is counted.
//
// Each of these is one transaction, and the broker is told afterwards. So after a crash at any point a message comes
// again and is a duplicate, or is kept already. An operator replays or discards dead letters with `outboxgen dead
// --consumer` or package admin.
package receive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/call/usercode"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
)

// Config tunes a Receiver. The zero value is a good start.
type Config struct {
	// BatchSize is how many messages share a transaction at most; 0 means 100. With 1 each message has its own. A larger
	// batch is faster and holds its locks for longer.
	BatchSize int
	// Concurrency is how many transactions run concurrently; 0 means 4. Messages with one key are never applied
	// concurrently. The pool needs one connection more.
	Concurrency int
	// Attempts is how often a message that fails is tried in a row before it is parked, within about a second; 0 means 3.
	Attempts int
	// MaxAttempts is how often a message is tried in total before it becomes a dead letter; 0 means 25.
	MaxAttempts int
	// BaseDelay is the delay of the first attempt of a parked message. It doubles with each attempt up to MaxDelay. 0
	// means 1 s and 30 min.
	BaseDelay, MaxDelay time.Duration
	// EffectTimeout is how long the method of the consumer may take for one message; 0 means 30 s. Then its context ends,
	// and the attempt has failed.
	EffectTimeout time.Duration
	// ShutdownTimeout is how long a transaction may take once the context of Receive or Run has ended; 0 means 20 s. Then
	// it is rolled back.
	ShutdownTimeout time.Duration
	// PollInterval is how often Run looks for parked messages that are due; 0 means 1 s.
	PollInterval time.Duration
	// PruneInterval is how often Run calls Inbox.Prune; 0 means 1 h, negative never.
	PruneInterval time.Duration
	// MaxDeadInARow is how many messages may become dead letters one after the other, with none applied between them,
	// before Receive and Run end with ErrOnlyDead: then the consumer is probably wrong, or reads the wrong topic. 0 means
	// 1000, negative any number.
	MaxDeadInARow int
	// IgnoreUnknown acknowledges messages of topics that the consumer does not have, instead of keeping them as dead
	// letters. Set it if the broker's topic has events for other consumers too.
	IgnoreUnknown bool
	// Begin, if not nil, is called at the start of each transaction, for example to set a parameter of the session or to
	// lock a row. With an error nothing is applied, and the messages wait. An error of Stop ends Receive and Run.
	Begin func(ctx context.Context, tx pgx.Tx) error
	// Observer is told what happens to messages, for metrics; nil means nobody.
	Observer *Observer
	// Logger gets changes of state: messages that are parked, dead letters, and a database that does not answer. nil means
	// slog.Default(). No payload is ever logged.
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	c.BatchSize = cmp.Or(c.BatchSize, 100)
	c.Concurrency = cmp.Or(c.Concurrency, 4)
	c.Attempts = cmp.Or(c.Attempts, 3)
	c.MaxAttempts = cmp.Or(c.MaxAttempts, 25)
	c.BaseDelay = cmp.Or(c.BaseDelay, time.Second)
	c.MaxDelay = cmp.Or(c.MaxDelay, 30*time.Minute)
	c.EffectTimeout = cmp.Or(c.EffectTimeout, 30*time.Second)
	c.ShutdownTimeout = cmp.Or(c.ShutdownTimeout, 20*time.Second)
	c.MaxDeadInARow = cmp.Or(c.MaxDeadInARow, 1000)
	c.PollInterval = cmp.Or(c.PollInterval, time.Second)
	c.PruneInterval = cmp.Or(c.PruneInterval, time.Hour)
	if c.Observer == nil {
		c.Observer = &Observer{}
	}
	c.Logger = usercode.Logger(cmp.Or(c.Logger, slog.Default()))
	return c
}

func (c Config) validate() error {
	for _, n := range [...]struct {
		name        string
		value, most int
	}{{"BatchSize", c.BatchSize, 10_000}, {
		"Concurrency", c.Concurrency, 1000,
	}, {"Attempts", c.Attempts, 100}, {"MaxAttempts", c.MaxAttempts, 1_000_000}} {
		if n.value < 1 || n.value > n.most {
			return fmt.Errorf("field %s %d is not between 1 and %d", n.name, n.value, n.most)
		}
	}
	for _, d := range [...]struct {
		name  string
		value time.Duration
	}{
		{"BaseDelay", c.BaseDelay}, {"MaxDelay", c.MaxDelay}, {"EffectTimeout", c.EffectTimeout},
		{"ShutdownTimeout", c.ShutdownTimeout}, {"PollInterval", c.PollInterval},
	} {
		if d.value < 0 {
			return fmt.Errorf("field %s %s is negative", d.name, d.value)
		}
	}
	return nil
}

// Message is a message with what its broker knows about it.
type Message struct {
	consume.Message
	// Place says where the broker has the message, for example "kafka:users/3@1042". It is the same whenever the broker
	// delivers the message. It identifies a message whose event has no readable id.
	Place string
	// Key is what the broker orders messages by. Messages with one key are applied in their order. "" means that the
	// message has no key, and no order.
	Key string
}

// Outcome says what became of a message. A message with an outcome can be acknowledged.
type Outcome string

// The outcomes. The first four are those of package inbox.
const (
	Applied     = Outcome(inbox.Applied)
	Duplicate   = Outcome(inbox.Duplicate)
	Skipped     = Outcome(inbox.Skipped)
	Quarantined = Outcome(inbox.Quarantined)
	// Parked: it is kept in the database and tried again, or waits there behind an earlier message of its key.
	Parked Outcome = "parked"
	// Dead: it is kept in the database as a dead letter.
	Dead Outcome = "dead"
	// Ignored: the consumer does not have its topic, and Config.IgnoreUnknown is set.
	Ignored Outcome = "ignored"
)

// Observer is told what happens to messages. Its functions may be called concurrently, must return soon, and may be
// nil.
type Observer struct {
	// Settled is called when the transaction has committed that settles a message. A parked message is settled once more
	// when it is applied or given up.
	Settled func(s Settled)
	// Failed is called for each failed attempt.
	Failed func(f Failed)
	// Waiting is called when messages begin to wait because the database or something else does not answer, with the
	// error, and with nil when the next one is settled.
	Waiting func(err error)
}

// Settled is a message with its outcome.
type Settled struct {
	Place    string
	Event    consume.Event // zero if it cannot be read
	Outcome  Outcome
	Attempts int   // how often it has failed
	Err      error // why it is parked or dead
}

// Failed is a failed attempt.
type Failed struct {
	Place   string
	Event   consume.Event
	Attempt int // counts from 1
	Err     error
}

// Receiver applies messages for a consumer group. It is safe for concurrent use: usually there is one call of Receive
// for each part of the broker's topics, and one of Run.
type Receiver struct {
	cfg      Config
	pool     *pgxpool.Pool
	consumer *consume.Consumer
	db       *schemadb.Schema
	group    string
	slots    chan struct{} // one for each running transaction
	wake     chan struct{} // something was parked that may be due
	say      talk

	deadInARow atomic.Int64

	mu      sync.Mutex
	waiters int       // strands that wait
	waiting time.Time // since when the first of them does
}

// New returns a Receiver that applies messages with consumer, in the database of pool. The consumer group is that of
// the consumer's inbox. New does not use the database.
func New(pool *pgxpool.Pool, consumer *consume.Consumer, cfg Config) (*Receiver, error) {
	switch {
	case pool == nil:
		return nil, errors.New("new receiver: no pool given (nil)")
	case consumer == nil:
		return nil, errors.New("new receiver: no consumer given (nil)")
	}
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("new receiver: %w", err)
	}
	db, err := schemadb.Open(consumer.Inbox().Schema())
	if err != nil {
		return nil, fmt.Errorf("new receiver: %w", err)
	}
	r := &Receiver{
		cfg: cfg, pool: pool, consumer: consumer, db: db, group: consumer.Inbox().Group(),
		slots: make(chan struct{}, cfg.Concurrency), wake: make(chan struct{}, 1),
	}
	r.say = talk{log: cfg.Logger.With("consumer_group", r.group)}
	return r, nil
}

// Group returns the consumer group, which is that of the inbox.
func (r *Receiver) Group() string { return r.group }

// ErrOnlyDead: the latest Config.MaxDeadInARow messages all became dead letters. Look at their errors. A wrong topic
// and a consumer that is older than its producers are the usual causes. The messages are kept, and the next start
// continues.
var ErrOnlyDead = errors.New("all messages become dead letters")

type stopError struct{ err error }

func (e *stopError) Error() string { return e.err.Error() }
func (e *stopError) Unwrap() error { return e.err }

// Stop marks an error of Config.Begin: Receive and Run end with it instead of waiting.
func Stop(err error) error {
	if err == nil {
		return nil
	}
	return &stopError{err}
}

// Status says what a consumer group keeps.
type Status struct {
	// Parked and Dead count messages, up to MaxCount each.
	Parked, Dead int
	// Oldest is how long the oldest parked message has been kept.
	Oldest time.Duration
}

// MaxCount is the number up to which Status counts.
const MaxCount = 100_000
