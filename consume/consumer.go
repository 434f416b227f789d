package consume

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/absent"
)

// rollbackTimeout bounds the end of a transaction whose context has ended.
const rollbackTimeout = 5 * time.Second

// effect is what a consumer writes for one event, with its transaction.
type effect func(context.Context, pgx.Tx) error

// Handler ties a topic to the user's code for it. Handle makes one.
type Handler struct {
	namespace, topic string
	decode           func(r Received, strict bool) (effect, error) // nil without a consumer
}

// Handle ties t to fn, a method of c: generated code passes the method of the consumer's interface.
func Handle[C, P any](t Topic[P], c C, fn func(C, context.Context, pgx.Tx, Delivery[P]) error) Handler {
	h := Handler{namespace: t.Namespace, topic: t.Name}
	if any(c) == nil || fn == nil {
		return h
	}
	s := shapeOf(reflect.TypeFor[P]())
	h.decode = func(r Received, strict bool) (effect, error) {
		d, err := t.decode(r, s, strict)
		return func(ctx context.Context, tx pgx.Tx) error { return fn(c, ctx, tx, d) }, err
	}
	return h
}

// Consumer has the effects of messages, each event's once. It holds no connection and may be used by several
// goroutines.
type Consumer struct {
	inbox    *inbox.Inbox
	handlers map[string]Handler // by "namespace/topic"
	strict   bool
}

// New returns a Consumer that records events in ib. Generated constructors call it.
func New(ib *inbox.Inbox, handlers ...Handler) (*Consumer, error) {
	if ib == nil {
		return nil, errors.New("new consumer: no inbox given (nil)")
	}
	c := &Consumer{inbox: ib, handlers: make(map[string]Handler, len(handlers))}
	for _, h := range handlers {
		name := h.namespace + "/" + h.topic
		if h.decode == nil {
			return nil, fmt.Errorf("new consumer: topic %s: no consumer given (nil)", name)
		}
		if _, twice := c.handlers[name]; twice {
			return nil, fmt.Errorf("new consumer: topic %s: has two consumers", name)
		}
		c.handlers[name] = h
	}
	return c, nil
}

// Strict returns a consumer that also checks the rules of the YAML, as Topic.DecodeStrict does: a payload that breaks one is
// an ErrInvalidPayload, which no retry will fix. Without it the consumer checks the structure of a payload alone, and goes
// on working when the producer widens a rule or adds a value to an enum.
func (c *Consumer) Strict() *Consumer {
	strict := *c
	strict.strict = true
	return &strict
}

// DB begins transactions: a pool or a connection of pgx.
type DB interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// Consume has the effect of m in a transaction of its own: it records the event in the inbox, then runs the consumer's
// method, then commits. Acknowledge m to the broker when the error is nil, whatever the verdict: inbox.Applied, or that
// there was nothing to do, because the event is a Duplicate or, when it tells the version of an entity, stale and so
// Skipped or Parked.
//
// Beside an error the verdict is empty and nothing was written, unless it is the commit whose outcome got lost: then the
// same message is a Duplicate, or applied, the next time. The error is an *Error; IsPermanent says whether to try again.
// What is wrong with the message itself is found before the transaction begins.
func (c *Consumer) Consume(ctx context.Context, db DB, m Message) (inbox.Verdict, error) {
	r, run, err := c.decode(m)
	if err != nil {
		return "", err
	}
	verdict, err := c.inTx(ctx, db, r, run)
	if err != nil {
		return "", about(&r.Event, "", err)
	}
	return verdict, nil
}

// ConsumeTx is Consume in the caller's transaction. Beside an error that transaction must be rolled back: to commit it
// could leave an event recorded without its effect. Only what is wrong with the message itself leaves it as it was.
func (c *Consumer) ConsumeTx(ctx context.Context, tx pgx.Tx, m Message) (inbox.Verdict, error) {
	r, run, err := c.decode(m)
	if err != nil {
		return "", err
	}
	verdict, err := c.apply(ctx, tx, r, run)
	if err != nil {
		return "", about(&r.Event, "", err)
	}
	return verdict, nil
}

// decode finds all that is wrong with a message.
func (c *Consumer) decode(m Message) (*Received, effect, error) {
	r, err := Parse(m)
	if err != nil {
		return nil, nil, err
	}
	h, known := c.handlers[r.Namespace+"/"+r.Topic]
	if !known {
		return nil, nil, about(&r.Event, "", ErrUnknownTopic)
	}
	run, err := h.decode(r, c.strict)
	if err != nil {
		return nil, nil, err
	}
	return &r, run, nil
}

func (c *Consumer) inTx(ctx context.Context, db DB, r *Received, run effect) (inbox.Verdict, error) {
	if absent.Is(db) {
		return "", errors.New("begin transaction: no pool or connection given (nil)")
	}
	tx, err := begin(ctx, db)
	if err != nil {
		return "", fmt.Errorf("begin transaction: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		defer cancel()
		_ = tx.Rollback(ctx) // without effect after a commit
	}()
	verdict, err := c.apply(ctx, tx, r, run)
	if err != nil {
		return "", err
	}
	if ctx.Err() != nil {
		return "", context.Cause(ctx) // a commit that is cut off would close the connection
	}
	if err := tx.Commit(ctx); err != nil {
		return "", fmt.Errorf("commit transaction: %w", err)
	}
	return verdict, nil
}

// begin begins a transaction at READ COMMITTED, whatever the role has for a default: at a higher level a duplicate that comes
// at the same time would be an error. A DB that has no options, such as a transaction, is left as it is.
func begin(ctx context.Context, db DB) (pgx.Tx, error) {
	if b, ok := db.(interface {
		BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
	}); ok {
		return b.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	}
	return db.Begin(ctx)
}

// apply records the event and runs its effect, with a look at the entity's version if there is one.
func (c *Consumer) apply(ctx context.Context, tx pgx.Tx, r *Received, run effect) (inbox.Verdict, error) {
	fn := func(ctx context.Context) error { return survive(ctx, tx, run) }
	if r.Entity.Version > 0 {
		return c.inbox.Apply(ctx, tx, inbox.Event{
			ID: r.ID, Source: sourceOf(&r.Event), TenantID: r.TenantID,
			EntityType: r.Entity.Type, EntityID: r.Entity.ID, Version: r.Entity.Version, Payload: r.Payload,
		}, fn)
	}
	handled, err := c.inbox.Once(ctx, tx, r.ID, fn)
	switch {
	case err != nil:
		return "", err
	case handled:
		return inbox.Applied, nil
	}
	return inbox.Duplicate, nil
}

// sourceOf names who gives the entity of an event its id and versions: the source, or what CloudEvents has for it unless
// told otherwise.
func sourceOf(e *Event) string {
	if e.Source != "" {
		return e.Source
	}
	return "/" + e.Namespace
}

// survive turns a panic of the consumer's method into an error. The value of the panic may hold a payload and is not
// told.
func survive(ctx context.Context, tx pgx.Tx, run effect) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("consumer panicked (%T)\n%s", p, debug.Stack())
		}
	}()
	return run(ctx, tx)
}
