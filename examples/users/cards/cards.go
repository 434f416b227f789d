// Package cards is the other service: it knows users only from their events, and keeps a card of each. It imports the code
// that outboxgen generates for consumers, and nothing from the service that has the users.
//
// The cards, the inbox and the quarantined messages are in one database, which need not be the database of the users. The
// transaction of an effect also records that the event was handled, and Kafka is told afterwards. So a message that arrives
// twice or late changes nothing, and after a crash at any point nothing is missing.
package cards

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/examples/users/events/userevents"
	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/migrate"
)

const (
	// Topic is the Kafka topic of the users' events.
	Topic = "sc.domain.user"
	// InboxSchema is the PostgreSQL schema of the inbox. The cards are in the schema "cards".
	InboxSchema = "cards_inbox"
	// group is the consumer group of the inbox. The consumer group in Kafka is group with the generation appended.
	group = "cards"

	defaultAttempts       = 8
	defaultMaxQuarantined = 1000
)

//go:embed 0001_cards.sql
var tables string

// Migrate creates the missing tables of the projection and of its inbox. Processes that start concurrently may all call it.
func Migrate(ctx context.Context, pool *pgxpool.Pool) error {
	if _, err := migrate.Up(ctx, pool, InboxSchema); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, tables); err != nil {
		return fmt.Errorf("migrate cards: %w", err)
	}
	return nil
}

// Config of a Projection.
type Config struct {
	// Brokers are the addresses of Kafka.
	Brokers []string
	// Options are passed to the Kafka client, for TLS, SASL, an instance id and so on.
	Options []kgo.Opt
	// Attempts is how often an event with a temporary error is tried before Run gives up. 0 means 8, which takes about
	// 10 s.
	Attempts int
	// MaxQuarantined is how many messages may be quarantined before Run gives up, because so many are not an exception.
	// 0 means 1000.
	MaxQuarantined int
	// Logger gets a line for each message that is quarantined or retried. nil means slog.Default(). Payloads are never
	// logged.
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.Attempts == 0 {
		c.Attempts = defaultAttempts
	}
	if c.MaxQuarantined == 0 {
		c.MaxQuarantined = defaultMaxQuarantined
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Brokers, c.Options = slices.Clone(c.Brokers), slices.Clone(c.Options)
	return c
}

func (c Config) validate() error {
	switch {
	case len(c.Brokers) == 0:
		return errors.New("field Brokers is empty")
	case c.Attempts < 0:
		return fmt.Errorf("field Attempts %d is negative", c.Attempts)
	case c.MaxQuarantined < 0:
		return fmt.Errorf("field MaxQuarantined %d is negative", c.MaxQuarantined)
	}
	return nil
}

// Projection keeps the cards. Run it in as many processes as Kafka has partitions, or fewer.
type Projection struct {
	cfg      Config
	pool     *pgxpool.Pool
	inbox    *inbox.Inbox
	consumer *consume.Consumer
	counts   struct{ applied, duplicate, skipped, quarantined atomic.Int64 }
}

// New returns a Projection in the database of pool, which must be migrated. New does not connect to anything.
func New(pool *pgxpool.Pool, cfg Config) (*Projection, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("new projection: %w", err)
	}
	p := &Projection{cfg: cfg, pool: pool}
	var err error
	if p.inbox, err = inbox.New(inbox.Config{Schema: InboxSchema, Group: group, Stale: inbox.Skip}); err != nil {
		return nil, err
	}
	if p.consumer, err = userevents.NewUserConsumer(p.inbox, writer{}); err != nil {
		return nil, err
	}
	return p, nil
}

// Counts counts the messages that a Projection has seen, by what it did with them.
type Counts struct {
	// Applied: changed a card. Duplicate: was handled before. Skipped: had an older version than the card.
	Applied, Duplicate, Skipped int64
	// Quarantined: is in the table quarantined.
	Quarantined int64
}

// Counts returns the counts since New.
func (p *Projection) Counts() Counts {
	return Counts{
		Applied: p.counts.applied.Load(), Duplicate: p.counts.duplicate.Load(), Skipped: p.counts.skipped.Load(),
		Quarantined: p.counts.quarantined.Load(),
	}
}

func (p *Projection) count(v inbox.Outcome) {
	switch v {
	case inbox.Applied:
		p.counts.applied.Add(1)
	case inbox.Duplicate:
		p.counts.duplicate.Add(1)
	case inbox.Skipped:
		p.counts.skipped.Add(1)
	}
}
