// Package cards is the other service: it knows users from their events alone, and keeps a card of each. It imports
// what outboxgen generates for consumers and nothing of the service that has the users.
//
// The cards, the inbox and what is set aside are in one database, which may be another one than that of the users. The
// record that an event was handled is written in the transaction of its effect, and Kafka learns of it afterwards: what
// comes twice changes nothing, what comes late changes nothing, and after a crash at any point nothing is missing.
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
	// Topic of Kafka in which the events of users are.
	Topic = "sc.domain.user"
	// InboxSchema is the PostgreSQL schema of the inbox; that of the cards is "cards".
	InboxSchema = "cards_inbox"
	// group is the consumer group of the inbox. At Kafka it has the generation behind it.
	group = "cards"

	defaultAttempts    = 8
	defaultMaxSetAside = 1000
)

//go:embed 0001_cards.sql
var tables string

// Migrate creates the tables of the projection and of its inbox where they are missing. Processes that start at once may
// all call it.
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
	// Brokers are the addresses by which Kafka is found.
	Brokers []string
	// Options go to the client of Kafka, for TLS, SASL, an instance id and so on.
	Options []kgo.Opt
	// Attempts is how often an event is tried whose error may pass before Run gives up; 0 means 8, which takes some
	// 10 s.
	Attempts int
	// MaxSetAside is how many messages may be set aside before Run gives up: so many are no longer an exception. 0 means
	// 1000.
	MaxSetAside int
	// Logger gets what is set aside and tried again; nil means slog.Default(). No payload is ever logged.
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.Attempts == 0 {
		c.Attempts = defaultAttempts
	}
	if c.MaxSetAside == 0 {
		c.MaxSetAside = defaultMaxSetAside
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
	case c.MaxSetAside < 0:
		return fmt.Errorf("field MaxSetAside %d is negative", c.MaxSetAside)
	}
	return nil
}

// Projection keeps the cards. Run it in as many processes as Kafka has partitions, or fewer.
type Projection struct {
	cfg      Config
	pool     *pgxpool.Pool
	inbox    *inbox.Inbox
	consumer *consume.Consumer
	counts   struct{ applied, duplicate, skipped, setAside atomic.Int64 }
}

// New returns a Projection in the database of pool, which has been migrated. It talks to nobody yet.
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

// Counts says what has become of the messages that a Projection has seen.
type Counts struct {
	// Applied have changed a card. Duplicate were handled before. Skipped told of a version that the user was past.
	Applied, Duplicate, Skipped int64
	// SetAside are in the table set_aside.
	SetAside int64
}

// Counts returns the counts since New.
func (p *Projection) Counts() Counts {
	return Counts{
		Applied: p.counts.applied.Load(), Duplicate: p.counts.duplicate.Load(), Skipped: p.counts.skipped.Load(),
		SetAside: p.counts.setAside.Load(),
	}
}

func (p *Projection) count(v inbox.Verdict) {
	switch v {
	case inbox.Applied:
		p.counts.applied.Add(1)
	case inbox.Duplicate:
		p.counts.duplicate.Add(1)
	case inbox.Skipped:
		p.counts.skipped.Add(1)
	}
}
