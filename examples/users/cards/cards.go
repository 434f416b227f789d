// Package cards is the other service: it knows users only from their events, and keeps a card of each. It imports the code
// that outboxgen generates for consumers, and nothing from the service that has the users.
//
// The cards and the inbox are in one database, which need not be the database of the users. The transaction of an effect also
// records that the event was handled, and Kafka is told afterwards. So a message that arrives twice or late changes nothing,
// and after a crash at any point nothing is missing. Package consume/kafka does that; this package says what an event does.
package cards

import (
	"context"
	_ "embed"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/receive"
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
	// Receive tunes how messages are applied. Its Logger gets what the projection logs, too.
	Receive receive.Config
}

// Projection keeps the cards. Run it in as many processes as Kafka has partitions, or fewer.
type Projection struct {
	cfg      Config
	pool     *pgxpool.Pool
	inbox    *inbox.Inbox
	consumer *consume.Consumer
	counts   struct{ applied, duplicate, skipped, parked, dead atomic.Int64 }
}

// New returns a Projection in the database of pool, which must be migrated. New does not connect to anything.
func New(pool *pgxpool.Pool, cfg Config) (*Projection, error) {
	if cfg.Receive.Logger == nil {
		cfg.Receive.Logger = slog.Default()
	}
	p := &Projection{pool: pool}
	cfg.Receive.Observer = &receive.Observer{Settled: p.count}
	p.cfg = cfg
	var err error
	if p.inbox, err = inbox.New(inbox.Config{Schema: InboxSchema, Group: group, Stale: inbox.Skip}); err != nil {
		return nil, err
	}
	if p.consumer, err = userevents.NewUserConsumer(p.inbox, writer{}); err != nil {
		return nil, err
	}
	return p, nil
}

// Counts counts the messages that a Projection has settled, by what it did with them.
type Counts struct {
	// Applied: changed a card. Duplicate: was handled before. Skipped: had an older version than the card.
	Applied, Duplicate, Skipped int64
	// Parked: is kept and tried again. Dead: is a dead letter. Both are in the table inbox_messages of the inbox.
	Parked, Dead int64
}

// Counts returns the counts since New.
func (p *Projection) Counts() Counts {
	return Counts{
		Applied: p.counts.applied.Load(), Duplicate: p.counts.duplicate.Load(), Skipped: p.counts.skipped.Load(),
		Parked: p.counts.parked.Load(), Dead: p.counts.dead.Load(),
	}
}

func (p *Projection) count(s receive.Settled) {
	switch s.Outcome {
	case receive.Applied:
		p.counts.applied.Add(1)
	case receive.Duplicate:
		p.counts.duplicate.Add(1)
	case receive.Skipped:
		p.counts.skipped.Add(1)
	case receive.Parked:
		p.counts.parked.Add(1)
	case receive.Dead:
		p.counts.dead.Add(1)
	}
}
