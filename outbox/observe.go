package outbox

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// Middleware wraps the call of a handler. It calls next, with ctx or a context derived from it, and returns the error of
// next or another one: the returned error decides what becomes of the event. A middleware that does not call next must
// return an error, or the event is acked unhandled. A panic in a middleware is a failure of the event, as one in the handler.
// Calls for different events are concurrent.
//
// Middleware is called for handlers, not for publishers, which get many events in one call.
type Middleware func(ctx context.Context, e Event, next func(context.Context) error) error

// Observer is told what happens to events, for metrics and tracing. Nil functions cost nothing. The functions are called
// from many goroutines, must not block, and must not keep the slices that they get. A panic in one of them is logged and
// has no other effect.
//
// Config.Observer of a dispatcher or listener is the observer of what it does. ContextWithObserver gives one to enqueues.
type Observer struct {
	// Enqueuing is told that an Enqueue or EnqueueMany begins. It returns ctx or a context derived from it, which the
	// statements, the function of ContextWithTrace and Enqueued get.
	Enqueuing func(ctx context.Context, namespace, topic string) context.Context
	// Enqueued is told of the events that one call has enqueued. The caller's transaction may still be rolled back.
	Enqueued func(ctx context.Context, e Enqueued)
	// Claimed is told of each claim of a dispatcher, and of each batch that a listener has read: with the events, none if
	// nothing was found, and with the time that the round trip took.
	Claimed func(r Runner, events []Event, took time.Duration)
	// Started is told that a handler is about to be called, or a publisher with several events.
	Started func(ctx context.Context, r Runner, events []Event)
	// Finished is told that the call has returned, with the error of each event, nil for success. ctx is the context of
	// Started.
	Finished func(ctx context.Context, r Runner, events []Event, errs []error, took time.Duration)
	// Settled is told what has become of an event, after it was committed.
	Settled func(r Runner, e Event, s Settlement)
	// Lost is told of an event whose lease was lost while it was handled. It will be handled again.
	Lost func(r Runner, e Event)
	// Dead is told of an event that became a dead letter, with its error.
	Dead func(r Runner, e Event, err error)
	// Resting is told that a topic or destination is not claimed for a while, because its target is unavailable.
	Resting func(r Runner, target string, cause error)
	// Resumed is told that it is claimed again, and how long it rested.
	Resumed func(r Runner, target string, rested time.Duration)
}

// Runner is the dispatcher or listener that an observation is of: one of Namespace and Listener is set.
type Runner struct {
	Namespace string // of a dispatcher
	Listener  string
	WorkerID  uuid.UUID
}

// Enqueued is what one call has enqueued.
type Enqueued struct {
	Namespace, Topic string
	Events           int // written
	Duplicates       int // not written, because their dedupe keys were taken
	Took             time.Duration
	Err              error // of the call; nothing was written
}

// Settlement is what has become of an event.
type Settlement string

// The settlements.
const (
	SettledDelivered Settlement = "delivered"
	SettledRetried   Settlement = "retried"  // it failed, and is due again later
	SettledDead      Settlement = "dead"     // it is a dead letter
	SettledReleased  Settlement = "released" // it was handed back, and no attempt was counted
	SettledParked    Settlement = "parked"   // it failed, and waits with the events of its key
)

// observerKey is where a context keeps its observer.
type observerKey struct{}

// ContextWithObserver returns a copy of ctx whose enqueues are told to o. Call it once, at the root: Enqueued gets the
// context of each enqueue. EnqueueInBatch has no context and is not observed.
func ContextWithObserver(ctx context.Context, o *Observer) context.Context {
	return context.WithValue(ctx, observerKey{}, o)
}
