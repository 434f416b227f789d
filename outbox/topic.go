package outbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/internal/guard"
)

// Topic describes one kind of event with payload P. outboxgen generates one variable a topic; a Topic is
// not changed after that and may be used from any number of goroutines.
type Topic[P any] struct {
	// Schema, Namespace and Name say where the events are. Schema "" means "outbox".
	Schema, Namespace, Name string
	// Version is the payload's schema number; 0 means 1.
	Version int
	// Log appends events to the log, which listeners read, instead of the queue.
	Log bool
	// Silent enqueues without the doorbell, for producers that use PREPARE TRANSACTION, which refuses
	// NOTIFY. A dispatcher then notices by polling.
	Silent bool
	Retry  Retry
	// Lease is how long a crashed worker keeps an event from the others; 0 means 30 s.
	Lease     time.Duration
	Retention Retention
	// Keys derives the columns of an event from its payload; nil means it has none.
	Keys func(P) Keys
	// Validate checks a payload before it is enqueued; nil means any will do.
	Validate func(P) error
}

// Keys are the columns of an event that come from its payload.
type Keys struct {
	TenantID          uuid.NullUUID
	Dedupe, Partition Key
	EntityType        string
	EntityID          Key
	EntityVersion     int64
}

// Tenant returns id, a uuid.UUID or a type made of it, as the tenant of an event.
func Tenant[U ~[16]byte](id U) uuid.NullUUID { return uuid.NullUUID{UUID: uuid.UUID(id), Valid: true} }

// String returns "namespace/name".
func (t Topic[P]) String() string { return t.Namespace + "/" + t.Name }

// version returns the schema number of what t enqueues, which is also the newest that its handler knows.
func (t Topic[P]) version() int { return cmp.Or(t.Version, 1) }

// EnqueueOption changes how one event is enqueued.
type EnqueueOption func(*enqueueOptions)

type enqueueOptions struct {
	headers   map[string]string
	notBefore time.Time
	tenant    uuid.NullUUID
}

// WithHeaders sends headers beside the payload, for example a traceparent.
func WithHeaders(headers map[string]string) EnqueueOption {
	return func(o *enqueueOptions) { o.headers = headers }
}

// WithNotBefore puts the first attempt off until the database's clock shows t.
func WithNotBefore(t time.Time) EnqueueOption {
	return func(o *enqueueOptions) { o.notBefore = t }
}

// WithTenant demands that the event is tenant's, and refuses it with ErrTenantMismatch if its payload says
// otherwise: pass the tenant that the request was authenticated for.
func WithTenant(tenant uuid.UUID) EnqueueOption {
	return func(o *enqueueOptions) { o.tenant = Tenant(tenant) }
}

// Enqueue writes one event with tx, as the function Enqueue does.
func (t Topic[P]) Enqueue(ctx context.Context, tx pgx.Tx, p P, opts ...EnqueueOption) (Receipt, error) {
	m, err := t.message(p, opts)
	if err != nil {
		return Receipt{}, fmt.Errorf("enqueue %s: %w", t, err)
	}
	return enqueue(ctx, tx, t.Schema, m, !t.Silent)
}

// EnqueueMany writes one event a payload with tx, as the function EnqueueMany does.
func (t Topic[P]) EnqueueMany(ctx context.Context, tx pgx.Tx, ps []P, opts ...EnqueueOption) ([]Receipt, error) {
	ms := make([]Message, len(ps))
	for i, p := range ps {
		var err error
		if ms[i], err = t.message(p, opts); err != nil {
			return nil, fmt.Errorf("enqueue %s: event %d of %d: %w", t, i+1, len(ps), err)
		}
	}
	return enqueueMany(ctx, tx, t.Schema, ms, !t.Silent)
}

// Queue adds one event to b, as the function Queue does.
func (t Topic[P]) Queue(b *pgx.Batch, p P, opts ...EnqueueOption) (*QueuedReceipt, error) {
	m, err := t.message(p, opts)
	if err != nil {
		return nil, fmt.Errorf("queue %s: %w", t, err)
	}
	return queue(b, t.Schema, m, !t.Silent)
}

// message validates p and turns it into a Message.
//
// Validate, Keys, options and the codec of the payload are code of others, whose panic is the error of this call.
func (t Topic[P]) message(p P, opts []EnqueueOption) (m Message, err error) {
	doing := ""
	if crashed := guard.Recover("", func() error {
		m, err = t.build(p, opts, &doing)
		return nil
	}); crashed != nil {
		return m, fmt.Errorf("%s %w", doing, crashed)
	}
	return m, err
}

// build is message, and notes in doing what it calls.
func (t Topic[P]) build(p P, opts []EnqueueOption, doing *string) (Message, error) {
	m := Message{Namespace: t.Namespace, Topic: t.Name, Version: t.version(), Log: t.Log, MaxAttempts: t.Retry.MaxAttempts}
	var invalid error
	if t.Validate != nil {
		*doing = "Validate"
		invalid = t.Validate(p)
	}
	if t.Keys != nil {
		*doing = "Keys"
		k := t.Keys(p)
		err := errors.Join(keyError("dedupe key", k.Dedupe), keyError("partition key", k.Partition), keyError("entity id", k.EntityID))
		switch {
		case invalid != nil && err != nil: // a required field that is part of a key
			return m, fmt.Errorf("%w; %w", invalid, err)
		case err != nil:
			return m, err
		}
		m.TenantID, m.DedupeKey, m.PartitionKey = k.TenantID, k.Dedupe.String(), k.Partition.String()
		m.Entity = Entity{Type: k.EntityType, ID: k.EntityID.String(), Version: k.EntityVersion}
	}
	if invalid != nil {
		return m, invalid
	}
	if len(opts) > 0 {
		*doing = "an option"
		var o enqueueOptions
		for i, opt := range opts {
			if opt == nil {
				return m, fmt.Errorf("option %d of %d is nil", i+1, len(opts))
			}
			opt(&o)
		}
		if o.tenant.Valid && o.tenant != m.TenantID {
			return m, fmt.Errorf("the payload is not tenant %s's: %w", o.tenant.UUID, ErrTenantMismatch)
		}
		m.Headers, m.NotBefore = o.headers, o.notBefore
	}
	*doing = "encoding the payload"
	payload, err := json.Marshal(filled(p))
	if err != nil {
		return m, fmt.Errorf("encode payload: %w: %w", ErrPayloadInvalid, err)
	}
	m.Payload, m.marshaled = payload, true
	return m, nil
}

func keyError(name string, k Key) error {
	if err := k.Err(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// Unimplemented returns the error of a topic whose handler is not written yet.
func Unimplemented(topic string) error {
	return fmt.Errorf("%s: %w", topic, ErrUnimplemented)
}
