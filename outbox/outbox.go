// Package outbox enqueues events in the caller's transaction. It also has the types that producers and handlers share.
//
// An event is delivered at least once if and only if the transaction that enqueued it commits. A handler must tolerate
// repeats. Package queue delivers the events of queue topics, and package listener those of log topics.
//
// # Enqueue
//
// Generated functions such as EnqueueTurnFinalized are the usual way in:
//
//	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
//		if err := finishTurn(ctx, tx, turn); err != nil {
//			return err
//		}
//		_, err := events.EnqueueTurnFinalized(ctx, tx, events.TurnFinalized{TurnID: turn.ID})
//		return err
//	})
//
// They take a [Tx] and an [EnqueueOption]: [WithHeaders], [WithNotBefore], [WithTenant], [WithCause]. They return a [Receipt], or a
// [PendingReceipt] in a batch. Package operation makes an event and its rows inseparable, package outboxfake tests code
// that enqueues without a database, and package outboxtest with one.
//
// Without generated code, make a [Topic] with [NewTopic] from a [TopicSpec], and call its methods. Package eventkey
// makes the keys of its events. A [Limit], with its [Rate] ([ParseRate]), bounds how its events are handled, and a
// [Batch] makes its handler get several in one call. If the payload has no Go type, pass a [Message], with its [Entity]
// and [Fairness], to [Enqueue], [EnqueueMany] or [EnqueueInBatch].
//
// # Handle
//
// A handler needs only this package. It gets a [Delivery], which is an [Event] and its payload. It marks its error with
// [Permanent], [RetryAfter], [Unavailable] or [BrokerUnavailable]; [IsPermanent], [IsUnavailable] and
// [IsBrokerUnavailable] tell what is marked. A handler that gets a [Batch] names those that failed in a [BatchError].
// [RunnerFromContext] says who calls it, and [CauseFromContext] for which event. What it enqueues has the headers
// causation_id and correlation_id. A handler that gets a [Batch] says with [ContextWithCause] or [WithCause] which of its
// events is the cause.
//
// # Run
//
// The configurations of package queue and package listener share [Retry], [Retention], [Breaker], [Wake] and
// [Middleware] or [BatchMiddleware]. What a drain may do and has done is a [DrainLimit], a [DrainReport] and a
// [DrainEnd].
//
// # Observe
//
// [ContextWithTrace] sends traces along. An [Observer] is told of each [Enqueued] call, and of each [Settlement] of a
// [Runner]; see [ContextWithObserver] and [JoinObservers].
//
// # For generated code and for other packages of this module
//
// [UntypedTopic], [Keys], [Tenant], [FairnessTenant], [CheckLimits], [MaskPayload], [Unimplemented],
// [ContextWithRunner] and the constants IsAtLeastVersion are what generated code, dispatchers and listeners call. [Keys], [Tenant] and
// [FairnessTenant] are also for a [TopicSpec] by hand.
package outbox

import (
	"encoding/json"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/postgres/jsonb"
)

// Limits of an event, checked before anything is sent.
const (
	MaxKeyBytes     = 512            // of a dedupe key, partition key or entity id
	MaxPayloadBytes = jsonb.MaxBytes // of an encoded payload, and of the encoded headers
)

// Message is an event to enqueue, before it has an id. Generated code fills it from a payload.
type Message struct {
	// Namespace and Topic match ^[a-z][a-z0-9_]{0,40}$.
	Namespace, Topic string
	// Log appends the event to the log, for listeners, instead of the queue, for a dispatcher.
	Log bool
	// Version is the schema number of Payload; 0 means 1.
	Version int
	// TenantID is the owner, if the topic has one.
	TenantID uuid.NullUUID
	// Fairness says how the events of the topic take turns: "" means that the oldest due one is first, and FairnessTenant,
	// which needs TenantID, that no tenant waits behind another's burst. All events of a topic should have the same. It is
	// an error with Log, because listeners get events in the order of the log.
	Fairness Fairness
	// Limits are those of the topic, and LimitKeys the keys of those that are per destination or per template, in their
	// order. All events of a topic should have the same limits. It is an error with Log.
	Limits    []Limit
	LimitKeys []string
	// DedupeKey is unique within the topic for as long as the event is kept; "" means none. With a tenant
	// it starts with TenantID and a slash.
	DedupeKey string
	// PartitionKey groups events that belong in one order; "" means none.
	PartitionKey string
	// Entity names what the event is about; the zero Entity means nothing.
	Entity Entity
	// Headers are sent along with the payload, for example a traceparent.
	Headers map[string]string
	// Payload is one JSON value that jsonb can hold.
	Payload json.RawMessage
	// NotBefore is the earliest time of the first attempt; zero means immediately. It is an error with Log.
	NotBefore time.Time
	// MaxAttempts ends the retries; 0 means 25. It has no effect with Log, where each listener has its own limit.
	MaxAttempts int

	// marshaled says that Payload comes from json.Marshal, which writes nothing but valid JSON.
	marshaled bool
	turn      string // in the queue; "" means none
}

// Entity is a versioned thing of the producer that an event is about.
type Entity struct {
	Type    string
	ID      string
	Version int64
}

// Receipt is the result of an enqueue.
type Receipt struct {
	// ID is the event's id. For a duplicate it is the id of the event that exists.
	ID uuid.UUID
	// Duplicate is set when the dedupe key was taken and nothing was written.
	Duplicate bool
}

// Event is the metadata that a handler gets along with the payload.
type Event struct {
	ID               uuid.UUID
	Namespace, Topic string
	Version          int
	TenantID         uuid.NullUUID
	DedupeKey        string
	PartitionKey     string
	Entity           Entity
	Headers          map[string]string
	// Attempt counts from 1; MaxAttempts is the last one.
	Attempt, MaxAttempts int
	CreatedAt            time.Time
}

// LogValue returns what identifies the event, for logs of an Event, a Delivery or a queue.Claimed. It never contains
// the payload or a header.
func (e Event) LogValue() slog.Value {
	attrs := []slog.Attr{
		slog.String("namespace", e.Namespace), slog.String("topic", e.Topic), slog.String("event_id", e.ID.String()),
		slog.Int("attempt", e.Attempt),
	}
	if e.TenantID.Valid {
		attrs = append(attrs, slog.String("tenant_id", e.TenantID.UUID.String()))
	}
	return slog.GroupValue(attrs...)
}

// Delivery is one attempt to hand an event to its handler.
type Delivery[P any] struct {
	Event
	Payload P
}

// Retry bounds the attempts of a topic or listener. The zero value means 25 attempts, and delays that double from 1 s
// up to 30 min: an event is tried for about seven hours.
type Retry struct {
	// MaxAttempts ends the retries, the first attempt included.
	MaxAttempts int
	// BaseDelay is the delay after the first failure. It doubles with each failure up to MaxDelay, which bounds it even
	// when BaseDelay is longer.
	BaseDelay, MaxDelay time.Duration
}

// Retention says how long final events are kept.
type Retention struct {
	// Delivered is how long delivered events are kept, and Dead how long dead letters are. 0 means 168 h and 720 h.
	Delivered, Dead time.Duration
	// DeleteOnAck deletes an event when it is acked. Delivered has no effect then.
	DeleteOnAck bool
}

// DefaultMaxAttempts is the number of attempts of an event without another limit.
const DefaultMaxAttempts = 25
