// Package inbox makes the effect of an event happen once, at the consumer: it records the event in the consumer's own
// transaction, before the effect, so that both are there or neither is. A second delivery of the event waits for the
// first and skips the effect if the first has committed. Apply also keeps the last version of each entity, so that
// events that come late change nothing.
//
// The tables are those of migration 0003_inbox, in the database in which the effects happen; that may be another one
// than the producer's. The package knows nothing of producers and brokers: events are ids to it, wherever they come
// from.
package inbox

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/internal/dbschema"
)

// Forever as a Retention keeps what it is about for good; as a ReplayWindow it is for logs that never forget, such as
// compacted Kafka topics.
const Forever time.Duration = math.MaxInt64

const (
	defaultReplayWindow    = 168 * time.Hour
	defaultParkedRetention = 720 * time.Hour
)

// Stale says what Apply does with an event whose version its entity already has or is past.
type Stale string

// The values of Config.Stale.
const (
	// Skip records a stale event as handled and goes on; the zero Stale means it, too.
	Skip Stale = "skip"
	// Error makes Apply return ErrStale, for consumers to which it must not happen.
	Error Stale = "error"
	// Park is Skip with a copy of the event in the table inbox_parked, for somebody to look at.
	Park Stale = "park"
)

// Config of an Inbox.
type Config struct {
	// Schema holds the tables; "" means "outbox".
	Schema string
	// Group names the consumer: each group handles each event once. It matches ^[a-z][a-z0-9_.-]{0,100}$, and
	// is the same in all processes that share the work.
	Group string
	// Stale is what Apply does with stale events; "" means Skip.
	Stale Stale
	// ReplayWindow is how long after its first delivery an event may come again, by whatever way: the retention of the
	// broker's log, the longest dead letter replay, the restore of an older offset. 0 means 168 h, which is what Kafka
	// keeps by default.
	ReplayWindow time.Duration
	// Retention is how long events are recorded as handled, at least until Prune runs. It must not be less than
	// ReplayWindow. 0 means twice the ReplayWindow, because logs that are deleted by segments keep the events of a
	// segment for longer than their retention.
	Retention time.Duration
	// ParkedRetention is how long parked events are kept; 0 means 720 h.
	ParkedRetention time.Duration
}

func (c Config) withDefaults() Config {
	if c.Stale == "" {
		c.Stale = Skip
	}
	if c.ReplayWindow == 0 {
		c.ReplayWindow = defaultReplayWindow
	}
	if c.Retention == 0 {
		c.Retention = Forever
		if c.ReplayWindow <= Forever/2 {
			c.Retention = 2 * c.ReplayWindow
		}
	}
	if c.ParkedRetention == 0 {
		c.ParkedRetention = defaultParkedRetention
	}
	return c
}

func (c Config) validate() error {
	if err := checkGroup(c.Group); err != nil {
		return err
	}
	if c.Stale != Skip && c.Stale != Error && c.Stale != Park {
		return fmt.Errorf("field Stale %q: want %s, %s or %s", c.Stale, Skip, Error, Park)
	}
	for _, d := range [...]struct {
		name  string
		value time.Duration
	}{{"ReplayWindow", c.ReplayWindow}, {"Retention", c.Retention}, {"ParkedRetention", c.ParkedRetention}} {
		if d.value < 0 {
			return fmt.Errorf("field %s %s: must not be negative", d.name, d.value)
		}
	}
	if c.Retention < c.ReplayWindow {
		return fmt.Errorf("field Retention %s is shorter than ReplayWindow %s: an event that is replayed after its record was pruned would be handled again",
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

// Inbox records what a consumer group has handled. It holds no connection and may be used by several goroutines.
type Inbox struct {
	cfg Config
	db  *dbschema.Schema
}

// New checks cfg and returns an Inbox. It does not talk to the database.
func New(cfg Config) (*Inbox, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("new inbox: %w", err)
	}
	db, err := dbschema.Open(cfg.Schema)
	if err != nil {
		return nil, fmt.Errorf("new inbox: %w", err)
	}
	return &Inbox{cfg: cfg, db: db}, nil
}

// Once is Inbox.Once for a group in the schema "outbox", with no more configuration.
func Once(ctx context.Context, tx pgx.Tx, group string, event uuid.UUID, fn func(ctx context.Context) error) (handled bool, err error) {
	if err := checkGroup(group); err != nil {
		return false, fmt.Errorf("record event: %w", err)
	}
	db, err := dbschema.Open("")
	if err != nil {
		return false, fmt.Errorf("record event: %w", err)
	}
	return once(ctx, db, tx, group, event, fn)
}

// groupPattern is what the name of a consumer group looks like.
const groupPattern = `^[a-z][a-z0-9_.-]{0,100}$`

// checkGroup is on the path of every event and does without a regular expression.
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
