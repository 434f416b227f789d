package outbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/internal/call/cause"
	"github.com/outboxgen/outboxgen/internal/call/errtext"
	"github.com/outboxgen/outboxgen/internal/call/usercode"
	"github.com/outboxgen/outboxgen/internal/postgres/turn"
	"github.com/outboxgen/outboxgen/payload"
)

// Topic is one kind of event with payload P. outboxgen generates a variable per topic; without it, make one with
// NewTopic. A Topic cannot be changed, may be copied and may be used concurrently. The zero value is not a topic:
// nothing can be enqueued with it.
type Topic[P any] struct{ untyped *UntypedTopic }

// The compiler makes all methods of Topic for each topic of a package, also those that nobody calls. So they are few,
// most are methods of the pointer, which have one copy where others have two, and these are not inlined, so that the
// copies are small.

// TopicSpec describes a topic to NewTopic.
type TopicSpec struct {
	// Schema, Namespace and Name say where the events are. Schema "" means "outbox".
	Schema, Namespace, Name string
	// RenamedFrom are earlier names of the topic, in the same namespace. Its handlers get the events that have one of them
	// too. The dedupe keys of each name are apart: the same key under an old name and under Name is not a duplicate.
	RenamedFrom []string
	// Version is the payload's schema number; 0 means 1.
	Version int
	// Strict makes handlers refuse an incomplete payload, permanently: one in which a field is missing or null although
	// its json tag has no omitempty, or has a zero UUID, time or date or an empty enum value there. It applies to structs
	// inside the payload too. Generated code sets it. Without it a field that is missing has its zero value, as in
	// encoding/json.
	Strict bool
	// Log appends events to the log, which listeners read, instead of the queue.
	Log bool
	// Silent enqueues without waking sleeping dispatchers and listeners, which find the event when they poll. It is for
	// producers that use PREPARE TRANSACTION, which refuses NOTIFY.
	Silent bool
	// Fairness says how the events of the topic take turns; "" means that the oldest due one is first. An enqueue returns
	// an error if it is set with Log, or if it is FairnessTenant and Keys returns no tenant.
	Fairness Fairness
	// Limits bound how many events are handled at once or started in a period, over all processes together. They are for
	// queue topics.
	Limits []Limit
	// Batch makes the handler of a queue topic get several events in one call.
	Batch Batch
	Retry Retry
	// Lease is how long other workers must wait for an event after its worker has crashed; 0 means 30 s.
	Lease time.Duration
	// MaxLag is the age of the oldest waiting event of a queue topic that raises an alarm; 0 means no alarm.
	MaxLag    time.Duration
	Retention Retention
	// History leads from older versions of the payload to Version, oldest first and without a gap. Payloads of older
	// versions are brought to Version before a handler or a publisher's key gets them. Without History they are decoded as
	// if they had Version.
	History []payload.Upcaster
	// Keys derives the keys of an event from its payload, which is passed as a pointer to a value of the topic's type, by
	// the functions of package eventkey. nil means that events have no keys.
	Keys func(payload any) Keys
}

// Fairness says how the events of a queue topic take turns when more of them are due than are handled at once. The zero
// value, "", claims them in the order in which they fall due, whoever owns them.
type Fairness string

// FairnessTenant gives each tenant its own turn: no tenant waits behind another's burst. The events of a tenant are
// still claimed in the order in which they fall due. It costs an enqueue an entry in one more index.
const FairnessTenant Fairness = "tenant"

// NewTopic returns the topic that spec describes. If spec is wrong, each enqueue returns an error. If P has a method
// Validate() error, each payload is validated before it is enqueued.
func NewTopic[P any](spec TopicSpec) Topic[P] {
	return Topic[P]{newTopic(&spec, (*P)(nil))}
}

// newTopic returns the topic with payloads of the type that pointer points to. It is not inlined, since each package of
// topics would have a copy per topic.
//
//go:noinline
func newTopic(spec *TopicSpec, pointer any) *UntypedTopic {
	return &UntypedTopic{spec: *spec, pointer: reflect.TypeOf(pointer)}
}

// validator is a payload that knows its rules.
type validator interface{ Validate() error }

// Enqueue writes one event with tx: it is delivered if and only if tx commits. If the topic already has an event with
// its dedupe key, nothing is written and the receipt has Duplicate set. If the transaction of that event is still open,
// Enqueue waits for its end.
//
// What is wrong with p, its keys or opts is found before anything is sent, and leaves tx usable. ErrSerialization and
// errors of PostgreSQL abort tx. If ContextWithTrace has added a trace to ctx, the event gets it. In a handler it gets
// the headers causation_id and correlation_id, as ContextWithCause says.
//
//go:noinline
func (t *Topic[P]) Enqueue(ctx context.Context, tx Tx, p P, opts ...EnqueueOption) (Receipt, error) {
	return t.untyped.Enqueue(ctx, tx, &p, opts...)
}

// EnqueueMany writes one event for each of ps, with one statement per 1,000, and returns their receipts in the order of
// ps. Each event is written as by Enqueue, and opts are those of each. If two of ps have the same dedupe key, one is a
// duplicate of the other. If one payload is invalid, nothing is sent.
//
//go:noinline
func (t *Topic[P]) EnqueueMany(ctx context.Context, tx Tx, ps []P, opts ...EnqueueOption) ([]Receipt, error) {
	return t.untyped.EnqueueMany(ctx, tx, ps, opts...)
}

// EnqueueInBatch adds one event to b, which the caller sends in a transaction. It writes the same as Enqueue, without
// another round trip. It has no context: in a handler, pass WithCause. The receipt is filled in when the results of b
// are read. If EnqueueInBatch returns an error, b is unchanged.
//
//go:noinline
func (t *Topic[P]) EnqueueInBatch(b *pgx.Batch, p P, opts ...EnqueueOption) (*PendingReceipt, error) {
	return t.untyped.EnqueueInBatch(b, &p, opts...)
}

// Untyped returns t without the type of its payload.
func (t Topic[P]) Untyped() *UntypedTopic { return t.untyped }

// UntypedTopic is a Topic without the type of its payload. Generated code uses it, so that its methods are compiled
// once and not for each payload. A payload is a value of the topic's type, or a pointer to one, which saves a copy. Any
// other type is an error.
type UntypedTopic struct {
	spec    TopicSpec
	pointer reflect.Type // to a payload
}

// Spec returns the spec of the topic, and the zero TopicSpec for the zero Topic.
func (t *UntypedTopic) Spec() TopicSpec {
	if t == nil {
		return TopicSpec{}
	}
	return t.spec
}

// Version returns the schema number of the payloads that t enqueues. It is also the newest that its handler knows.
func (t *UntypedTopic) Version() int { return cmp.Or(t.Spec().Version, 1) }

// Payload returns the type of the payloads, and the type any for the zero Topic.
func (t *UntypedTopic) Payload() reflect.Type {
	if t == nil {
		return reflect.TypeFor[any]()
	}
	return t.pointer.Elem()
}

// String returns "namespace/name".
func (t *UntypedTopic) String() string {
	if t == nil {
		return "the zero topic"
	}
	s := t.Spec()
	return s.Namespace + "/" + s.Name
}

// Keys are the columns of an event that come from its payload.
type Keys struct {
	TenantID          uuid.NullUUID
	Dedupe, Partition eventkey.Key
	EntityType        string
	EntityID          eventkey.Key
	EntityVersion     int64
	// Limits are the keys of those TopicSpec.Limits that are per destination or per template, in their order.
	Limits []eventkey.Key
}

// Tenant returns id, a uuid.UUID or a type made of it, as the tenant of an event.
func Tenant[U ~[16]byte](id U) uuid.NullUUID { return uuid.NullUUID{UUID: uuid.UUID(id), Valid: true} }

// EnqueueOption changes how one event is enqueued.
type EnqueueOption func(*enqueueOptions)

type enqueueOptions struct {
	headers   map[string]string
	notBefore time.Time
	tenant    uuid.NullUUID
	cause     cause.Cause
}

// WithHeaders sends headers along with the payload, for example a traceparent.
func WithHeaders(headers map[string]string) EnqueueOption {
	return func(o *enqueueOptions) { o.headers = headers }
}

// WithNotBefore delays the first attempt until t, by the clock of the database.
func WithNotBefore(t time.Time) EnqueueOption {
	return func(o *enqueueOptions) { o.notBefore = t }
}

// WithTenant checks that the event belongs to tenant: if its payload has another one, the enqueue returns
// ErrTenantMismatch. Pass the tenant that the request was authenticated for.
func WithTenant(tenant uuid.UUID) EnqueueOption {
	return func(o *enqueueOptions) { o.tenant = Tenant(tenant) }
}

// Enqueue writes one event with tx, as the function Enqueue does.
func (t *UntypedTopic) Enqueue(ctx context.Context, tx Tx, payload any, opts ...EnqueueOption) (Receipt, error) {
	spec := t.Spec()
	ctx, ob := observe(ctx, spec.Namespace, spec.Name, 1)
	r, err := t.enqueue(ctx, tx, payload, opts)
	ob.endOne(r, err)
	return r, err
}

func (t *UntypedTopic) enqueue(ctx context.Context, tx Tx, payload any, opts []EnqueueOption) (Receipt, error) {
	m, err := t.message(payload, opts)
	if err != nil {
		return Receipt{}, fmt.Errorf("enqueue %s: %w", t, err)
	}
	return enqueue(ctx, tx, t.spec.Schema, m, !t.spec.Silent)
}

// EnqueueMany writes one event per payload with tx, as the function EnqueueMany does. payloads is a slice of values of
// the topic's type.
func (t *UntypedTopic) EnqueueMany(ctx context.Context, tx Tx, payloads any, opts ...EnqueueOption) ([]Receipt, error) {
	ps := reflect.ValueOf(payloads)
	if ps.Kind() != reflect.Slice {
		return nil, fmt.Errorf("enqueue %s: the payloads are of type %T, not a slice", t, payloads)
	}
	if ps.Len() == 0 {
		return nil, nil
	}
	spec := t.Spec()
	ctx, ob := observe(ctx, spec.Namespace, spec.Name, ps.Len())
	receipts, err := t.enqueueMany(ctx, tx, ps, opts)
	ob.end(receipts, err)
	return receipts, err
}

func (t *UntypedTopic) enqueueMany(
	ctx context.Context, tx Tx, ps reflect.Value, opts []EnqueueOption,
) ([]Receipt, error) {
	ms := make([]Message, ps.Len())
	for i := range ms {
		var err error
		if ms[i], err = t.message(ps.Index(i).Addr().Interface(), opts); err != nil {
			return nil, fmt.Errorf("enqueue %s: event %d of %d: %w", t, i+1, len(ms), err)
		}
	}
	return enqueueMany(ctx, tx, t.Spec().Schema, ms, !t.Spec().Silent)
}

// EnqueueInBatch adds one event to b, as the function EnqueueInBatch does.
func (t *UntypedTopic) EnqueueInBatch(b *pgx.Batch, payload any, opts ...EnqueueOption) (*PendingReceipt, error) {
	m, err := t.message(payload, opts)
	if err != nil {
		return nil, fmt.Errorf("enqueue %s: %w", t, err)
	}
	return enqueueInBatch(b, t.spec.Schema, m, !t.spec.Silent)
}

var errZeroTopic = errors.New("it was not made by NewTopic")

// message validates the payload p and turns it into a Message.
//
// Validate, Keys, options and the codec of the payload are the user's code. If it panics, the call returns an error.
func (t *UntypedTopic) message(p any, opts []EnqueueOption) (m Message, err error) {
	switch {
	case t == nil:
		return m, errZeroTopic
	case reflect.TypeOf(p) == t.pointer:
		if reflect.ValueOf(p).IsNil() {
			return m, fmt.Errorf("the payload is a nil %T", p)
		}
	default:
		if p, err = t.pointerTo(p); err != nil {
			return m, err
		}
	}
	doing := ""
	if crashed := usercode.Recover("", func() error {
		m, err = t.build(p, opts, &doing)
		return nil
	}); crashed != nil {
		return m, fmt.Errorf("%s %w", doing, crashed)
	}
	return m, err
}

// pointerTo returns a pointer to a copy of the payload p, which may be nil if the topic's type is an interface.
func (t *UntypedTopic) pointerTo(p any) (any, error) {
	of := t.pointer.Elem()
	copied := reflect.New(of)
	switch v := reflect.ValueOf(p); {
	case v.IsValid() && v.Type().AssignableTo(of):
		copied.Elem().Set(v)
	case v.IsValid() || of.Kind() != reflect.Interface:
		return nil, fmt.Errorf("the payload is of type %T, not %s", p, of)
	}
	return copied.Interface(), nil
}

// build is message. It sets doing to what it calls.
func (t *UntypedTopic) build(p any, opts []EnqueueOption, doing *string) (Message, error) {
	m := Message{
		Namespace: t.spec.Namespace, Topic: t.spec.Name, Version: t.Version(), Log: t.spec.Log, Fairness: t.spec.Fairness,
		Limits: t.spec.Limits, MaxAttempts: t.spec.Retry.MaxAttempts,
	}
	var invalid error
	if v, ok := p.(validator); ok {
		*doing = "Validate"
		invalid = errtext.Without("validate "+t.String()+": ", v.Validate())
	}
	if t.spec.Keys != nil {
		*doing = "Keys"
		k := t.spec.Keys(p)
		if err := k.check(t.spec.Limits, invalid); err != nil {
			return m, err
		}
		m.TenantID, m.DedupeKey, m.PartitionKey = k.TenantID, k.Dedupe.String(), k.Partition.String()
		for _, key := range k.Limits {
			m.LimitKeys = append(m.LimitKeys, key.String())
		}
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
		m.Headers, m.NotBefore = chainOf(o.cause).addTo(o.headers), o.notBefore
	}
	*doing = "encoding the payload"
	payload, err := json.Marshal(filled(p))
	if err != nil {
		return m, fmt.Errorf("encode payload: %w: %w", ErrPayloadInvalid, err)
	}
	m.Payload, m.marshaled = payload, true
	return m, nil
}

// keyName is a key of an event, and the field of it whose value is empty.
type keyName struct{ name, empty string }

// check returns an error in one line that names each field once whose value is empty, and the keys that it is a part
// of. It continues invalid, which may name the field already: a required field that is a part of a key. invalid may be
// nil.
func (k *Keys) check(limits []Limit, invalid error) error {
	keys := make([]keyName, 0, 3+MaxLimits)
	keys = append(keys, keyName{"dedupe key", k.Dedupe.EmptyField()}, keyName{"partition key", k.Partition.EmptyField()},
		keyName{"entity id", k.EntityID.EmptyField()})
	next := 0
	for _, l := range limits {
		if turn.Keyed(l.Per) && next < len(k.Limits) {
			keys = append(keys, keyName{fmt.Sprintf("key of the limit per %q", l.Per), k.Limits[next].EmptyField()})
			next++
		}
	}
	var told []string
	err := invalid
	for i, first := range keys {
		if first.empty == "" || slices.Contains(told, first.empty) {
			continue
		}
		told = append(told, first.empty)
		names := first.name
		for _, other := range keys[i+1:] {
			if other.empty == first.empty {
				names += ", " + other.name
			}
		}
		fault := fmt.Errorf("%w in %s", ErrEmptyKeyPart, names)
		var broken *payload.ValidationError
		named := func(f payload.FieldError) bool { return f.Field == first.empty }
		if !errors.As(invalid, &broken) || !slices.ContainsFunc(broken.Fields, named) {
			fault = fmt.Errorf("render %s: field %s: %w", names, first.empty, ErrEmptyKeyPart)
		}
		err = errtext.Join(err, fault)
	}
	if len(told) == 0 {
		return nil
	}
	return err
}

// Unimplemented returns the error of a topic whose handler is not written yet. Generated stubs return it.
func Unimplemented(topic string) error {
	return fmt.Errorf("%s: %w", topic, ErrUnimplemented)
}
