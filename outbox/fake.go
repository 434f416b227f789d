package outbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/google/uuid"
)

// Fake takes the place of the database in tests of code that enqueues events. Generated types such as FakeMiniChat embed it
// and are what tests use. An enqueue with a Fake runs the same code as one with PostgreSQL, up to the statement: payloads,
// tenants, keys, sizes and options are checked by the same rules, with the same errors. Then the event is recorded.
//
// Begin returns a transaction whose events are recorded when it commits, and dropped when it is rolled back. With any
// other transaction, or with nil, each event is recorded immediately and never dropped.
//
// A dedupe key is taken as in PostgreSQL: a second event with the key has a receipt with Duplicate set and the id of the
// first. If the transaction of the first is still open, the enqueue waits for its end, or for the end of ctx.
//
// A Fake runs no SQL, and no handler. It does not serialize transactions, so that ErrSerialization never occurs. The zero
// value is empty and ready to use. Give each test its own. A Fake may be used concurrently and must not be copied.
type Fake struct {
	mu     sync.Mutex
	events []fakeEvent // committed, in the order of their commits
	keys   map[fakeKey]fakeOwner
}

// fakeEvent is an event with what its row would have.
type fakeEvent struct {
	Event
	schema    string
	log       bool
	notBefore time.Time
	payload   json.RawMessage
}

// fakeKey is what is unique in the tables.
type fakeKey struct {
	schema, namespace, topic, dedupe string
	log                              bool
}

// fakeOwner is the event that has a dedupe key.
type fakeOwner struct {
	id uuid.UUID
	tx *fakeTx // nil after the commit
}

func (e *fakeEvent) key() fakeKey {
	return fakeKey{schema: e.schema, namespace: e.Namespace, topic: e.Topic, dedupe: e.DedupeKey, log: e.log}
}

// Enqueue is UntypedTopic.Enqueue with f in place of PostgreSQL.
func (f *Fake) Enqueue(ctx context.Context, tx Tx, topic *UntypedTopic, payload any, opts ...EnqueueOption) (Receipt, error) {
	if f == nil {
		return Receipt{}, fmt.Errorf("enqueue %s: %w", topic, errNoFake)
	}
	return topic.Enqueue(ctx, f.in(tx), payload, opts...)
}

// EnqueueMany is UntypedTopic.EnqueueMany with f in place of PostgreSQL.
func (f *Fake) EnqueueMany(ctx context.Context, tx Tx, topic *UntypedTopic, payloads any, opts ...EnqueueOption) ([]Receipt, error) {
	if f == nil {
		return nil, fmt.Errorf("enqueue %s: %w", topic, errNoFake)
	}
	return topic.EnqueueMany(ctx, f.in(tx), payloads, opts...)
}

// errNoFake is the error of the zero value of a generated fake.
var errNoFake = errors.New("the fake has no outbox.Fake: make it with its New function, for example NewFakeMiniChat")

// in returns tx if it is from Begin of f, else a transaction that commits after the first call.
func (f *Fake) in(tx Tx) Tx {
	if own, ok := begun(tx).(*fakeTx); ok && own != nil && own.fake == f {
		return own
	}
	once := newFakeTx(f)
	once.once = true
	return once
}

// Events returns all events whose transactions have committed, in the order of the commits.
func (f *Fake) Events() []Event {
	f.mu.Lock()
	defer f.mu.Unlock()
	var events []Event
	for i := range f.events {
		events = append(events, f.events[i].copy())
	}
	return events
}

func (e *fakeEvent) copy() Event {
	event := e.Event
	event.Headers = maps.Clone(event.Headers)
	return event
}

// FakeEvent is an event that a Fake has recorded. Its Delivery is what a handler gets on the first attempt, and can be
// passed to one.
type FakeEvent[P any] struct {
	Delivery[P]
	// NotBefore is the time of WithNotBefore, zero without it.
	NotBefore time.Time
}

// FakeEvents returns the events of topic that f has recorded, in the order of their commits. Payloads are decoded from
// JSON, as for a handler: a list that was nil is empty, and a time has no monotonic clock. FakeEvents panics if a payload
// does not decode, which cannot happen with a generated type.
func FakeEvents[P any](f *Fake, topic Topic[P]) []FakeEvent[P] {
	spec := topic.Untyped().Spec()
	f.mu.Lock()
	defer f.mu.Unlock()
	var events []FakeEvent[P]
	for i := range f.events {
		e := &f.events[i]
		if e.schema != cmp.Or(spec.Schema, "outbox") || e.Namespace != spec.Namespace || e.Topic != spec.Name || e.log != spec.Log {
			continue
		}
		event := FakeEvent[P]{Delivery: Delivery[P]{Event: e.copy()}, NotBefore: e.notBefore}
		if err := json.Unmarshal(e.payload, &event.Payload); err != nil {
			panic(fmt.Sprintf("decode payload of %s: %v", topic.Untyped(), err))
		}
		events = append(events, event)
	}
	return events
}

// FakePayloads returns the payloads of FakeEvents.
func FakePayloads[P any](f *Fake, topic Topic[P]) []P {
	var payloads []P
	for _, e := range FakeEvents(f, topic) {
		payloads = append(payloads, e.Payload)
	}
	return payloads
}
