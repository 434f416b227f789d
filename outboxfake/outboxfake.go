// Package outboxfake tests code that enqueues events without a database.
//
// Generated types such as FakeMiniChat embed a DB and are what tests use. To test with a database, and to run handlers,
// use package outboxtest.
package outboxfake

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

	"github.com/outboxgen/outboxgen/internal/call/isnil"
	"github.com/outboxgen/outboxgen/internal/payloads/sealing"
	"github.com/outboxgen/outboxgen/internal/postgres/ownedtx"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/seal"
)

// The methods that generated fakes call are not inlined, because each method of a fake would have a copy.

// DB takes the place of the database in tests of code that enqueues events. An enqueue with a DB runs the same code as
// one with PostgreSQL, up to the statement: payloads, tenants, keys, sizes and options are checked by the same rules,
// with the same errors. Then the event is recorded.
//
// Begin returns a transaction whose events are recorded when it commits, and dropped when it is rolled back. With any
// other transaction, or with nil, each event is recorded immediately and never dropped.
//
// A dedupe key is taken as in PostgreSQL: a second event with the key has a receipt with Duplicate set and the id of
// the first. If the transaction of the first is still open, the enqueue waits for its end, or for the end of ctx.
//
// A DB runs no SQL, and no handler. It does not serialize transactions, so that outbox.ErrSerialization never occurs.
// What is sealed of payloads is sealed by the keyring of the context or of outbox.WithKeyring, and by seal.ForTests
// without one. Events and Payloads open it.
//
// The zero value is empty and ready to use. Give each test its own. A DB may be used concurrently and must not be
// copied.
type DB struct {
	mu     sync.Mutex
	events []row // committed, in the order of their commits
	keys   map[uniqueKey]owner
}

// row is an event with what its row would have.
type row struct {
	outbox.Event
	schema    string
	log       bool
	notBefore time.Time
	payload   json.RawMessage
	keyring   seal.Keyring // that has sealed the payload; nil if nothing is sealed
}

// uniqueKey is what is unique in the tables.
type uniqueKey struct {
	schema, namespace, topic, dedupe string
	log                              bool
}

// owner is the event that has a dedupe key.
type owner struct {
	id uuid.UUID
	tx *tx // nil after the commit
}

func (e *row) key() uniqueKey {
	return uniqueKey{schema: e.schema, namespace: e.Namespace, topic: e.Topic, dedupe: e.DedupeKey, log: e.log}
}

// Enqueue is the method of topic with db in place of PostgreSQL. Generated code calls it.
//
//go:noinline
func (db *DB) Enqueue(
	ctx context.Context, tx outbox.Tx, topic *outbox.UntypedTopic, payload any, opts ...outbox.EnqueueOption,
) (outbox.Receipt, error) {
	if db == nil {
		return outbox.Receipt{}, fmt.Errorf("enqueue %s: %w", topic, errNoDB)
	}
	return topic.Enqueue(ctx, db.in(tx), payload, opts...)
}

// EnqueueMany is the method of topic with db in place of PostgreSQL. Generated code calls it.
//
//go:noinline
func (db *DB) EnqueueMany(
	ctx context.Context, tx outbox.Tx, topic *outbox.UntypedTopic, payloads any, opts ...outbox.EnqueueOption,
) ([]outbox.Receipt, error) {
	if db == nil {
		return nil, fmt.Errorf("enqueue %s: %w", topic, errNoDB)
	}
	return topic.EnqueueMany(ctx, db.in(tx), payloads, opts...)
}

// errNoDB is the error of the zero value of a generated fake.
var errNoDB = errors.New("the fake has no outboxfake.DB: make it with its New function, for example NewFakeMiniChat")

// in returns the transaction inside given if it is of db, else one that commits after the first call.
func (db *DB) in(given outbox.Tx) outbox.Tx {
	if !isnil.Is(given) {
		if own, ok := ownedtx.Innermost(given).(*tx); ok && own != nil && own.db == db {
			return own
		}
	}
	once := newTx(db)
	once.once = true
	return once
}

// Events returns all events whose transactions have committed, in the order of the commits.
func (db *DB) Events() []outbox.Event {
	db.mu.Lock()
	defer db.mu.Unlock()
	var events []outbox.Event
	for i := range db.events {
		events = append(events, db.events[i].copy())
	}
	return events
}

func (e *row) copy() outbox.Event {
	event := e.Event
	event.Headers = maps.Clone(event.Headers)
	return event
}

// Event is an event that a DB has recorded. Its Delivery is what a handler gets on the first attempt, and can be passed
// to one.
type Event[P any] struct {
	outbox.Delivery[P]
	// NotBefore is the time of WithNotBefore, zero without it.
	NotBefore time.Time
}

// Events returns the events of topic that db has recorded, in the order of their commits. Payloads are decoded from
// JSON, as for a handler: a list that was nil is empty, and a time has no monotonic clock. Events panics if a payload
// does not decode, which cannot happen with a generated type.
func Events[P any](db *DB, topic outbox.Topic[P]) []Event[P] {
	rows := db.of(topic.Untyped())
	var payloads []P
	decode(topic.Untyped(), rows, &payloads)
	var events []Event[P]
	for i := range rows {
		event := Event[P]{NotBefore: rows[i].notBefore}
		event.Event, event.Payload = rows[i].copy(), payloads[i]
		events = append(events, event)
	}
	return events
}

// Payloads returns the payloads of Events.
func Payloads[P any](db *DB, topic outbox.Topic[P]) []P {
	var payloads []P
	db.Decode(topic.Untyped(), &payloads)
	return payloads
}

// Decode decodes the payloads of the events of topic that db has recorded, as Payloads does, into the slice that
// payloads points to. Generated code calls it.
//
//go:noinline
func (db *DB) Decode(topic *outbox.UntypedTopic, payloads any) {
	decode(topic, db.of(topic), payloads)
}

// of returns the rows of topic.
func (db *DB) of(topic *outbox.UntypedTopic) []row {
	spec := topic.Spec()
	db.mu.Lock()
	defer db.mu.Unlock()
	var rows []row
	for _, e := range db.events {
		if e.schema == cmp.Or(spec.Schema, "outbox") && e.Namespace == spec.Namespace && e.Topic == spec.Name &&
			e.log == spec.Log {
			rows = append(rows, e)
		}
	}
	return rows
}

// opened returns the payload of e, an event of topic, with what is sealed in it opened. It panics if that fails, which
// only a keyring that has changed since the enqueue can cause.
func (e *row) opened(topic *outbox.UntypedTopic) json.RawMessage {
	if e.keyring == nil {
		return e.payload
	}
	shape, err := sealing.Whole, error(nil)
	if !topic.Spec().Sealed.Whole() {
		shape, err = sealing.Of(topic.Payload())
	}
	var payload json.RawMessage
	if err == nil {
		bound := sealing.Event{ID: e.ID, Tenant: e.TenantID}
		payload, err = shape.Open(context.Background(), e.keyring, bound, e.payload)
	}
	if err != nil {
		panic(fmt.Sprintf("open payload of %s: %v", topic, err))
	}
	return payload
}

// decode decodes the payloads of rows into the slice that list points to, and leaves it nil if there are none. It is
// not generic, because each package of topics would have a copy per topic.
func decode(topic *outbox.UntypedTopic, rows []row, list any) {
	if len(rows) == 0 {
		return
	}
	encoded := []byte("[")
	for i := range rows {
		if i > 0 {
			encoded = append(encoded, ',')
		}
		encoded = append(encoded, rows[i].opened(topic)...)
	}
	if err := json.Unmarshal(append(encoded, ']'), list); err != nil {
		panic(fmt.Sprintf("decode payload of %s/%s: %v", rows[0].Namespace, rows[0].Topic, err))
	}
}
