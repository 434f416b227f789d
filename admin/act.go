package admin

import (
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/outbox"
)

// Filter selects events. Its zero value selects all. An event must match every field that is set.
type Filter struct {
	// Namespace and Topic are names as in the YAML. A Topic needs its Namespace.
	Namespace, Topic string
	// Listener selects events of log topics where that listener has them: its dead letters, and what it has parked.
	Listener string
	// Consumer selects the messages that this consumer group could not apply: its dead letters in the consumer's database.
	// Only the methods for dead letters take it. Without it, they read those of queue topics and listeners. Since and
	// Until are then about the time of their arrival, and Key is the key of their order.
	Consumer string
	// TenantID is the owner of the events.
	TenantID uuid.NullUUID
	// Status is one of pending, processing, delivered, dead, parked and logged; "" means any.
	Status Status
	// Key is the dedupe key or the partition key of the events.
	Key string
	// Entity is what the events are about: its Type and its ID. Its Version, if it is not 0, selects further. Correlation is
	// their header correlation_id, which all events of a chain have, or the id of the event with which the chain began.
	// Causation is the id of the event whose handlers have enqueued them; the zero UUID means any. They are looked for in
	// its chain: if it was pruned, and the chain did not begin with it, nothing is found. An index leads to the events of
	// each. Events and Life take them, and the methods for dead letters do not.
	Entity      outbox.Entity
	Correlation string
	Causation   uuid.UUID
	// IDs are the events themselves; nil means any. An empty, non-nil slice is an error, because it is probably a bug.
	IDs []uuid.UUID
	// Since and Until bound the time of the enqueue: not before Since, and before Until. Zero means no bound.
	Since, Until time.Time
	// Error is a part of the text that the events failed with.
	Error string
	// Group is the ID of a DeadGroup.
	Group string
}

// Status is what has become of an event so far.
type Status string

// The statuses.
const (
	StatusPending    Status = "pending"    // it waits for its due time, for its turn or for a retry
	StatusProcessing Status = "processing" // a worker has claimed it
	StatusDelivered  Status = "delivered"
	StatusDead       Status = "dead"   // it is a dead letter
	StatusParked     Status = "parked" // a listener keeps it behind a failed event of its key
	StatusLogged     Status = "logged" // it is in the log, where each listener has its own position
)

func (f Filter) validate() error {
	switch {
	case f.Consumer != "":
		return argumentError("Filter", "Consumer selects dead letters only")
	case f.Topic != "" && f.Namespace == "":
		return argumentError("Filter", "topic %q needs its namespace", f.Topic)
	case f.IDs != nil && len(f.IDs) == 0:
		return argumentError("Filter", "IDs is empty: nil means all events")
	case !f.Since.IsZero() && !f.Until.IsZero() && !f.Since.Before(f.Until):
		return argumentError("Filter", "Since is not before Until")
	case (f.Entity.Type == "") != (f.Entity.ID == "") || f.Entity.ID == "" && f.Entity.Version != 0:
		return argumentError("Filter", "Entity needs its Type and its ID")
	case !isText(f.Entity.Type) || !isText(f.Entity.ID) || !isText(f.Correlation):
		return argumentError("Filter", "Entity and Correlation must be UTF-8 without NUL")
	}
	switch f.Status {
	case "", StatusPending, StatusProcessing, StatusDelivered, StatusDead, StatusParked, StatusLogged:
		return nil
	}
	return argumentError("Filter",
		"status %q is not a valid status: use pending, processing, delivered, dead, parked or logged", f.Status)
}

// isText reports whether PostgreSQL takes s as text.
func isText(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

// Act says who changes something and why, and how much of it. What is done with an Act leaves a row in the table audit,
// in the same transaction. A dry run leaves none.
type Act struct {
	// Who does it, for example a user name or an e-mail address. It must be set unless DryRun is.
	Who string
	// Why it is done. Discard requires it.
	Why string
	// DryRun changes nothing: the Report says what would be done now.
	DryRun bool
	// Limit is how many events are changed at most; 0 means all.
	Limit int
	// Rate is how many events are changed per second at most; 0 means as fast as possible.
	Rate float64
	// Until is when a pause ends by itself, by the clock of the database; zero means never. Only Pause reads it.
	Until time.Time
}

// Report says what an act did, or would do in a dry run.
type Report struct {
	// Matched is how many events the filter selects, up to Act.Limit. Done is how many of them were changed. Others were
	// changed by somebody else meanwhile. In a dry run Done is 0.
	Matched int64 `json:"matched"`
	Done    int64 `json:"changed"`
	// Refused counts the events that were selected and cannot be changed, by the reason. It is nil if there are none.
	Refused map[string]int64 `json:"refused"`
}

const maxActText = 1000

func (act Act) validate() error {
	switch {
	case act.Who == "" && !act.DryRun:
		return argumentError("Act", "Who is empty: say who does it")
	case !utf8.ValidString(act.Who) || !utf8.ValidString(act.Why) || len(act.Who) > maxActText ||
		len(act.Why) > maxActText:
		return argumentError("Act", "Who and Why must be UTF-8 of up to %d bytes", maxActText)
	case act.Limit < 0:
		return argumentError("Act", "Limit %d is negative", act.Limit)
	case !(act.Rate >= 0): // NaN too
		return argumentError("Act", "Rate %v is not a number of events per second", act.Rate)
	}
	return nil
}
