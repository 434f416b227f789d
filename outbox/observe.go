package outbox

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/call/usercode"
)

// Middleware wraps the call of a handler. It calls next, with ctx or a context derived from it, and returns the error
// of next or another one: the returned error decides what becomes of the event. A middleware that does not call next
// must return an error, or the event is acked unhandled. A panic in a middleware is a failure of the event, as one in
// the handler. Calls for different events are concurrent.
//
// The first of several is the outermost. In transactional mode all run inside the savepoint of the event. Middleware is
// called for handlers, not for publishers, which get many events in one call, and not for handlers of batches, which
// have BatchMiddleware.
type Middleware func(ctx context.Context, e Event, next func(context.Context) error) error

// BatchMiddleware is Middleware for a handler that gets batches: it is called once per call of the handler, with all of
// its events in their order. It must not keep or change the slice. The returned error decides what becomes of the
// events, as that of the handler does: it may be a *BatchError. An event whose payload does not decode is among the
// events and not in the handler's call; the error of next names it.
type BatchMiddleware func(ctx context.Context, events []Event, next func(context.Context) error) error

// Observer is told what happens to events, for metrics and tracing. Nil functions cost nothing. The functions are
// called from many goroutines, must not block, and must not keep or change the slices that they get. A panic in one of
// them is logged and has no other effect. One that does not return for a second is left behind, and nothing is told
// until it returns.
//
// Config.Observer of a dispatcher or listener is the observer of what it does. Its functions are read when the
// dispatcher or listener is made. ContextWithObserver gives an observer to enqueues.
//
// An event that was claimed is told once to Settled or Lost, unless its handler is still running when Run returns, or
// the database is unavailable then. The order for one event is Claimed, Started, Finished, and Settled or Lost.
type Observer struct {
	// Enqueuing is told that a call is about to enqueue events. The context that it returns is used for the rest of the
	// call: for the function of ContextWithTrace, for the statements, and for Enqueued. It may return nil instead of ctx.
	Enqueuing func(ctx context.Context, namespace, topic string, events int) context.Context
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
	// Lost is told of an event whose lease was lost before it was settled, or whose transaction was rolled back. It will
	// be handled again.
	Lost func(r Runner, e Event)
	// Dead is told of an event that became a dead letter, with the text of its error. It is told of events that a sweep
	// has found too: their workers died on the last attempt, and no Settled precedes it. Of those the dedupe key,
	// partition key, entity and headers are not known.
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
	// it failed, or an earlier event of its key did, and waits with the events of its key
	SettledParked Settlement = "parked"
)

// observerKey is where a context keeps its observer.
type observerKey struct{}

// ContextWithObserver returns a copy of ctx whose enqueues are told to o: those of Enqueue, EnqueueMany and generated
// functions. Call it once, at the root: Enqueuing and Enqueued get the context of each enqueue. They run in the
// caller's goroutine. EnqueueInBatch has no context and is not observed.
func ContextWithObserver(ctx context.Context, o *Observer) context.Context {
	if o == nil {
		return context.WithValue(ctx, observerKey{}, (*observing)(nil))
	}
	return context.WithValue(ctx, observerKey{}, &observing{o, logObserver})
}

// observing is what a context keeps of an observer. Only ContextWithObserver refers to what logs a panic, so that programs
// without an observer do not link it.
type observing struct {
	*Observer
	panicked func(e Enqueued, what string, err error)
}

func logObserver(e Enqueued, what string, err error) {
	usercode.Logger(slog.Default()).Error("observer panicked", "hook", what, "namespace", e.Namespace, "topic", e.Topic,
		"stack", err.Error())
}

// observation is one call that enqueues. A nil one tells nobody.
type observation struct {
	o     *observing
	ctx   context.Context
	began time.Time
	e     Enqueued
}

// observe begins the observation of a call that enqueues events, and returns the context for the rest of it.
func observe(ctx context.Context, namespace, topic string, events int) (context.Context, *observation) {
	if ctx == nil {
		return nil, nil
	}
	o, _ := ctx.Value(observerKey{}).(*observing)
	if o == nil || o.Enqueuing == nil && o.Enqueued == nil {
		return ctx, nil
	}
	ob := &observation{o: o, ctx: ctx, began: time.Now(), e: Enqueued{Namespace: namespace, Topic: topic}}
	if o.Enqueuing != nil {
		ob.call("Enqueuing", func() {
			if derived := o.Enqueuing(ctx, namespace, topic, events); derived != nil {
				ob.ctx = derived
			}
		})
	}
	return ob.ctx, ob
}

// end tells the result of the call.
func (ob *observation) end(receipts []Receipt, err error) {
	if ob == nil || ob.o.Enqueued == nil {
		return
	}
	if ob.e.Err = err; err == nil {
		for _, r := range receipts {
			if r.Duplicate {
				ob.e.Duplicates++
			} else {
				ob.e.Events++
			}
		}
	}
	ob.e.Took = time.Since(ob.began)
	ob.call("Enqueued", func() { ob.o.Enqueued(ob.ctx, ob.e) })
}

// endOne is end for one event.
func (ob *observation) endOne(r Receipt, err error) {
	if ob != nil {
		ob.end([]Receipt{r}, err)
	}
}

// call calls a function of the observer. A panic is logged, and the enqueue continues.
func (ob *observation) call(what string, call func()) {
	if crashed := usercode.Recover("observer's function "+what, func() error { call(); return nil }); crashed != nil {
		ob.o.panicked(ob.e, what, crashed)
	}
}
