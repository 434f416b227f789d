// Package inbox makes a consumer apply the effect of each event exactly once. It records the event in the consumer's
// own transaction, before the effect, so that both are committed or neither is. A second delivery of the event waits
// for the first and skips the effect if the first has committed.
//
// Start with Once, which needs no configuration. "billing" is the consumer group: each group handles each event once.
//
//	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
//		handled, err := inbox.Once(ctx, tx, "billing", eventID, func(ctx context.Context) error {
//			_, err := tx.Exec(ctx, "UPDATE accounts SET balance = balance + $1 WHERE id = $2", amount, account)
//			return err
//		})
//		// handled is false for a duplicate.
//		return err
//	})
//	if err == nil {
//		// Acknowledge the message to the broker, also for a duplicate.
//	}
//
// An Inbox from New has a schema, retentions and more calls. Inbox.OnceMany handles a batch in one statement.
// Inbox.Apply also keeps the last version of each entity, so that late events change nothing. Inbox.Prune deletes old
// records; call it from a timer. A generated consumer calls Once or Apply for you.
//
// The tables are those of migration 0003_inbox, in the database of the effects, which need not be the producer's. The
// package does not depend on producers or brokers: an event is an id.
//
// # What can go wrong
//
// The promise covers what is written with the transaction. An effect elsewhere, such as an e-mail, can happen twice.
//
// An error of the effect must end in a rollback. A commit would leave the event recorded without its effect.
//
// A record must be kept for as long as its event may be delivered again in any way. Config.ReplayWindow says how long
// that is, and New refuses a shorter Config.Retention.
//
// A transaction that handles several events must take them in one order, or it may deadlock with another one. OnceMany
// does so by itself.
package inbox

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
)

// Forever, as a Retention, keeps records permanently. As a ReplayWindow it is for logs that never delete their last
// events, such as compacted Kafka topics.
const Forever time.Duration = math.MaxInt64

const (
	defaultReplayWindow        = 168 * time.Hour
	defaultQuarantineRetention = 720 * time.Hour
)

// Stale says what Apply does with a stale event: one whose version is not above the last version of its entity.
type Stale string

// The values of Config.Stale.
const (
	// Skip records a stale event as handled and does nothing else. It is the default.
	Skip Stale = "skip"
	// Error makes Apply return ErrStale. It is for consumers that expect no stale events.
	Error Stale = "error"
	// Quarantine is Skip and also quarantines a copy of the event in the table inbox_quarantined, for people to
	// examine.
	Quarantine Stale = "quarantine"
)

// Identity says which events are the same event to a group.
type Identity string

// The values of Config.Identity.
const (
	// ByID takes deliveries of one event id for the same event. It is the default.
	ByID Identity = "id"
	// ByDedupeKey takes events of one type with one dedupe key for the same event, whoever enqueued them: two services
	// that report the same thing, the old and the new system during a migration, or one producer that enqueues again after
	// its own dedupe window. Only the first is handled, for as long as its record is kept. An event without a dedupe key
	// is told by its id. Inbox.RecordID says under which id an event is recorded.
	//
	// A group that has recorded events by id does not know them by their keys: use a new group, or change a running one
	// only when none of its earlier events can come again.
	ByDedupeKey Identity = "dedupe_key"
)

// Config of an Inbox.
type Config struct {
	// Schema is the schema of the tables; "" means "outbox".
	Schema string
	// Group names the consumer: each group handles each event once. It must match ^[a-z][a-z0-9_.-]{0,100}$ and be the
	// same in all processes that share the work.
	Group string
	// Identity says which events are the same event; "" means ByID. Apply and Record use it. To Once and OnceMany the
	// caller passes RecordID.
	Identity Identity
	// Stale is what Apply does with stale events; "" means Skip.
	Stale Stale
	// ReplayWindow is how long after its first delivery an event may be delivered again in any way: the retention of
	// the broker's log, the longest replay of dead letters, the restore of an older offset. 0 means 168 h, Kafka's
	// default retention.
	ReplayWindow time.Duration
	// Retention is how long an event stays recorded as handled; Prune deletes older records. It must not be shorter than
	// ReplayWindow. 0 means twice the ReplayWindow, because a log that is deleted by segments keeps some events for longer
	// than its retention.
	Retention time.Duration
	// QuarantineRetention is how long quarantined events and dead messages are kept; Prune deletes older ones. 0 means 720
	// h.
	QuarantineRetention time.Duration
}

func (c Config) withDefaults() Config {
	c.Identity = cmp.Or(c.Identity, ByID)
	c.Stale = cmp.Or(c.Stale, Skip)
	c.ReplayWindow = cmp.Or(c.ReplayWindow, defaultReplayWindow)
	if c.Retention == 0 {
		c.Retention = Forever
		if c.ReplayWindow <= Forever/2 {
			c.Retention = 2 * c.ReplayWindow
		}
	}
	c.QuarantineRetention = cmp.Or(c.QuarantineRetention, defaultQuarantineRetention)
	return c
}

func (c Config) validate() error {
	if err := checkGroup(c.Group); err != nil {
		return err
	}
	if c.Identity != ByID && c.Identity != ByDedupeKey {
		return fmt.Errorf("field Identity %q is not valid: use %s or %s", c.Identity, ByID, ByDedupeKey)
	}
	if c.Stale != Skip && c.Stale != Error && c.Stale != Quarantine {
		return fmt.Errorf("field Stale %q is not valid: use %s, %s or %s", c.Stale, Skip, Error, Quarantine)
	}
	for _, d := range [...]struct {
		name  string
		value time.Duration
	}{{"ReplayWindow", c.ReplayWindow}, {"Retention", c.Retention}, {"QuarantineRetention", c.QuarantineRetention}} {
		if d.value < 0 {
			return fmt.Errorf("field %s %s is negative", d.name, d.value)
		}
	}
	if c.Retention < c.ReplayWindow {
		return fmt.Errorf("field Retention %s is shorter than ReplayWindow %s: an event replayed after its record was "+
			"pruned would be handled again",
			show(c.Retention), show(c.ReplayWindow))
	}
	return nil
}

func show(d time.Duration) string {
	if d == Forever {
		return "forever"
	}
	return d.String()
}

// Inbox records which events a consumer group has handled. It holds no connection and is safe for concurrent use.
type Inbox struct {
	cfg Config
	db  *schemadb.Schema
}

// New checks cfg and returns an Inbox. It does not use the database.
func New(cfg Config) (*Inbox, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("new inbox: %w", err)
	}
	db, err := schemadb.Open(cfg.Schema)
	if err != nil {
		return nil, fmt.Errorf("new inbox: %w", err)
	}
	return &Inbox{cfg: cfg, db: db}, nil
}

// Once is Inbox.Once for a group in the schema "outbox", without configuration.
func Once(
	ctx context.Context, tx pgx.Tx, group string, event uuid.UUID, fn func(ctx context.Context) error,
) (handled bool, err error) {
	if err := checkGroup(group); err != nil {
		return false, fmt.Errorf("record event: %w", err)
	}
	db, err := schemadb.Open("")
	if err != nil {
		return false, fmt.Errorf("record event: %w", err)
	}
	return once(ctx, db, tx, group, event, fn)
}

// groupPattern is what the name of a consumer group must match.
const groupPattern = `^[a-z][a-z0-9_.-]{0,100}$`

// checkGroup uses no regular expression, because Once calls it for every event.
func checkGroup(group string) error {
	ok := len(group) >= 1 && len(group) <= 101 && group[0] >= 'a' && group[0] <= 'z'
	for i := 1; ok && i < len(group); i++ {
		c := group[i]
		ok = c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_' || c == '.' || c == '-'
	}
	if ok {
		return nil
	}
	const limit = 120
	if len(group) > limit {
		group = group[:limit] + "..."
	}
	return fmt.Errorf("consumer group %q: must match %s", group, groupPattern)
}
