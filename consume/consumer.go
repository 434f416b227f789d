package consume

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/call/cause"
	"github.com/outboxgen/outboxgen/internal/call/isnil"
	"github.com/outboxgen/outboxgen/internal/call/usercode"
	"github.com/outboxgen/outboxgen/internal/postgres/methodtx"
)

// rollbackTimeout bounds the rollback of a transaction whose context has ended.
const rollbackTimeout = 5 * time.Second

// effect is what a consumer does for one event in its transaction.
type effect func(context.Context, pgx.Tx) error

// Handler binds a topic to the code that consumes it. Use Handle to make one.
type Handler struct {
	spec   *TopicSpec
	decode func(r *Received, strict bool) (effect, error) // names the event; nil if no consumer was given
}

// Handle returns a Handler that calls fn for the events of t, with c as the receiver. Generated code passes a method of
// the consumer's interface as fn. A nil c or fn is an error of New.
func Handle[C, P any](t Topic[P], c C, fn func(C, context.Context, pgx.Tx, Delivery[P]) error) Handler {
	var decode func(*Received, bool) (effect, error)
	if any(c) != nil && fn != nil {
		decode = func(r *Received, strict bool) (effect, error) {
			var p P
			err := t.spec.decode(r, &p, strict)
			d := Delivery[P]{Event: r.Event, Payload: p}
			return func(ctx context.Context, tx pgx.Tx) error { return fn(c, ctx, tx, d) }, err
		}
	}
	return Handler{spec: t.spec, decode: decode}
}

// Consumer applies the effect of each event exactly once. It holds no connection and is safe for concurrent use.
type Consumer struct {
	inbox    *inbox.Inbox
	handlers map[string]Handler // by the type of a message
	decoders map[string]Decoder // by the media type of a payload
	strict   bool
}

// New returns a Consumer that records events in ib and handles the topics of handlers. Generated constructors call it.
// Two handlers for one topic, a nil consumer and a nil inbox are errors.
func New(ib *inbox.Inbox, handlers ...Handler) (*Consumer, error) {
	if ib == nil {
		return nil, errors.New("new consumer: no inbox given (nil)")
	}
	c := &Consumer{inbox: ib, handlers: make(map[string]Handler, len(handlers))}
	for _, h := range handlers {
		if h.decode == nil {
			return nil, fmt.Errorf("new consumer: topic %s: no consumer given (nil)", h.spec)
		}
		for i, kind := range h.spec.types() {
			other, taken := c.handlers[kind]
			switch {
			case taken && i <= len(h.spec.value().RenamedFrom):
				return nil, fmt.Errorf("new consumer: topic %s has two handlers: pass one", strings.Replace(kind, ".", "/", 1))
			case taken:
				return nil, fmt.Errorf(
					"new consumer: topics %s and %s have messages of one type, %s: give one of them another wire name",
					other.spec, h.spec, show(kind))
			}
			c.handlers[kind] = h
		}
	}
	return c, nil
}

// Strict returns a consumer that also checks the rules of the YAML, as Topic.DecodeStrict does. A payload that breaks
// one is then an ErrInvalidPayload, which is permanent. A consumer that is not strict checks only the structure of a
// payload, so that it continues to work when the producer widens a rule or adds a value to an enum. c is not changed.
func (c *Consumer) Strict() *Consumer {
	strict := *c
	strict.strict = true
	return &strict
}

// DB begins transactions. A pool and a connection of pgx are DBs.
type DB interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// Consume applies the effect of m in a new transaction: it records the event in the inbox, runs the consumer's method
// and commits. When the error is nil, acknowledge m to the broker, whatever the outcome. It is inbox.Applied, or it
// says that there was nothing to do: the event is a Duplicate, or it carries an entity version that is stale, and was
// Skipped or Quarantined.
//
// With an error the outcome is empty and nothing was written. The only exception is a commit whose outcome got lost: it
// may have succeeded, and then the same message is a Duplicate the next time. The error is an *Error; IsPermanent says
// whether trying again can help. A fault of the message itself is found before the transaction begins.
func (c *Consumer) Consume(ctx context.Context, db DB, m Message) (inbox.Outcome, error) {
	r, run, err := c.read(m)
	if err != nil {
		return "", err
	}
	outcome, err := c.inTx(ctx, db, r, run)
	if err != nil {
		return "", about(&r.Event, "", err)
	}
	return outcome, nil
}

// ConsumeTx is Consume in the caller's transaction, which the caller commits. After an error, roll the transaction
// back: a commit could leave the event recorded without its effect. Only a fault of the message itself leaves the
// transaction as it was.
func (c *Consumer) ConsumeTx(ctx context.Context, tx pgx.Tx, m Message) (inbox.Outcome, error) {
	r, run, err := c.read(m)
	if err != nil {
		return "", err
	}
	outcome, err := c.apply(ctx, tx, r, run)
	if err != nil {
		return "", about(&r.Event, "", err)
	}
	return outcome, nil
}

// read is decode that survives code of the user: decoders, upcasts, and methods of the types of a payload.
func (c *Consumer) read(m Message) (r *Received, run effect, err error) {
	crashed := usercode.Private(usercode.Call("code for the payload", usercode.Never, func() error {
		r, run, err = c.decode(m)
		return nil
	}))
	if crashed != nil {
		return nil, nil, about(&Event{}, "", fmt.Errorf("%w: %w", crashed, ErrInvalidPayload))
	}
	return r, run, err
}

// decode reads a message and finds every fault of the message itself.
func (c *Consumer) decode(m Message) (*Received, effect, error) {
	r, contentType, err := parse(m, c.reads)
	h, known := c.handlers[r.Type]
	switch {
	case r.Type != "" && !known: // also a message that only its own consumer can read
		return nil, nil, about(&r.Event, "", ErrUnknownTopic)
	case err != nil:
		return nil, nil, err
	}
	if err := c.toJSON(&r, contentType, h.spec); err != nil {
		return nil, nil, err
	}
	run, err := h.decode(&r, c.strict)
	if err != nil {
		return nil, nil, err
	}
	return &r, run, nil
}

func (c *Consumer) inTx(ctx context.Context, db DB, r *Received, run effect) (inbox.Outcome, error) {
	if isnil.Is(db) {
		return "", errors.New("begin transaction: no pool or connection given (nil)")
	}
	tx, err := begin(ctx, db)
	if err != nil {
		return "", fmt.Errorf("begin transaction: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		defer cancel()
		_ = tx.Rollback(ctx) // does nothing after a commit
	}()
	outcome, err := c.apply(ctx, tx, r, run)
	if err != nil {
		return "", err
	}
	if ctx.Err() != nil {
		return "", context.Cause(ctx) // a commit with an ended context would close the connection
	}
	switch err := tx.Commit(ctx); {
	case methodtx.IsOther(err):
		return "", fmt.Errorf("consumer ended its transaction and began another one: %w", ErrTxOwned)
	case err != nil:
		return "", fmt.Errorf("commit transaction: %w", err)
	}
	return outcome, nil
}

// begin begins a transaction at READ COMMITTED, whatever the role's default is. At a higher level, two concurrent
// deliveries of one event would be an error. A DB without BeginTx, such as a transaction, decides its level itself.
func begin(ctx context.Context, db DB) (pgx.Tx, error) {
	if b, ok := db.(interface {
		BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
	}); ok {
		return b.BeginTx(ctx, methodtx.Guarded)
	}
	return db.Begin(ctx)
}

// apply records the event and runs its effect. If the event has an entity version, it compares that one first.
func (c *Consumer) apply(ctx context.Context, tx pgx.Tx, r *Received, run effect) (inbox.Outcome, error) {
	fn := func(ctx context.Context) error { return call(ctx, tx, &r.Event, run) }
	e := inboxEvent(r)
	if e.Version > 0 {
		return c.inbox.Apply(ctx, tx, e, fn)
	}
	handled, err := c.inbox.Once(ctx, tx, c.inbox.RecordID(e), fn)
	switch {
	case err != nil:
		return "", err
	case handled:
		return inbox.Applied, nil
	}
	return inbox.Duplicate, nil
}

func inboxEvent(r *Received) inbox.Event {
	return inbox.Event{
		ID: r.ID, Type: r.Type, DedupeKey: r.DedupeKey, Source: sourceOf(&r.Event), TenantID: r.TenantID,
		EntityType: r.Entity.Type, EntityID: r.Entity.ID, Version: r.Entity.Version, Payload: r.Payload,
	}
}

// sourceOf returns the source of an event. Without one it is the default of the CloudEvents encoder, so that both
// envelopes mean the same entity.
func sourceOf(e *Event) string {
	if e.Source != "" {
		return e.Source
	}
	return "/" + e.Namespace
}

// ErrTxOwned: a consumer's method called Commit or Rollback, which do nothing on its transaction, or it ended the
// transaction by SQL, which rolls it back. The attempt fails unless the method ignores the error of Commit or Rollback.
var ErrTxOwned = errors.New("the consumer owns the transaction: return nil to commit it, or an error to roll it back")

// call calls the consumer's method with a transaction that it cannot end, and finds what the method leaves behind. A
// panic or runtime.Goexit is an error. It has the type of the panic's value and not the value, which may hold a
// payload. What the method enqueues has e for its cause.
func call(ctx context.Context, tx pgx.Tx, e *Event, run effect) error {
	own := methodtx.New(tx, ErrTxOwned)
	return own.Check("consumer", usercode.Private(usercode.Call("consumer", usercode.Never, func() error {
		return run(cause.With(ctx, e.ID, e.Headers), own)
	})))
}
