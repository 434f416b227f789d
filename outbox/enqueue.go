package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outboxgen/outboxgen/internal/broker/wireheader"
	"github.com/outboxgen/outboxgen/internal/call/cause"
	"github.com/outboxgen/outboxgen/internal/call/isnil"
	"github.com/outboxgen/outboxgen/internal/postgres/jsonb"
	"github.com/outboxgen/outboxgen/internal/postgres/ownedtx"
	"github.com/outboxgen/outboxgen/internal/postgres/pgname"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
)

// Enqueue writes m into schema ("" means "outbox") with tx: it is delivered if and only if tx commits.
//
// If the topic already has an event with the dedupe key, nothing is written and the receipt has Duplicate set. If the
// transaction of that event is still open, Enqueue waits for its end.
//
// Errors in m are found before anything is sent, and leave tx usable. ErrSerialization and errors of PostgreSQL abort
// tx. If ContextWithTrace has added a trace to ctx, the event gets it. In a handler it gets the headers causation_id and
// correlation_id, as ContextWithCause says.
func Enqueue(ctx context.Context, tx Tx, schema string, m Message) (Receipt, error) {
	ctx, ob := observe(ctx, m.Namespace, m.Topic, 1)
	r, err := enqueue(ctx, tx, schema, m, true)
	ob.endOne(r, err)
	return r, err
}

func enqueue(ctx context.Context, tx Tx, schema string, m Message, wake bool) (Receipt, error) {
	if err := usable(ctx, tx); err != nil {
		return Receipt{}, fmt.Errorf("%s: %w", m.what(), err)
	}
	m.follow(traceHeaders(ctx))
	m.Headers = chainOf(cause.Of(ctx)).addTo(m.Headers)
	db, headers, id, err := prepare(schema, &m)
	if err != nil {
		return Receipt{}, fmt.Errorf("%s: %w", m.what(), err)
	}
	if ctx, err = m.seal(ctx, tx, id); err != nil {
		return Receipt{}, fmt.Errorf("%s: %w", m.what(), err)
	}
	if fake, ok := ownedtx.Innermost(tx).(recorder); ok {
		receipts := []Receipt{{ID: id}}
		err := fake.RecordEvents(ctx, db, []Message{m}, receipts, []int{0})
		if err != nil {
			return Receipt{}, db.Wrap(m.what(), err)
		}
		return receipts[0], nil
	}
	q := db.OnQuerier(tx)
	for range insertTries {
		err := insert(ctx, q, db, &m, id, headers, wake)
		if err == nil {
			return Receipt{ID: id}, nil
		}
		if m.DedupeKey == "" || !errors.Is(err, pgx.ErrNoRows) {
			return Receipt{}, db.Wrap(m.what(), err)
		}
		rivals, err := owners(ctx, db, q, &m, []string{m.DedupeKey})
		if err != nil {
			return Receipt{}, err
		}
		if rival, ok := rivals[m.DedupeKey]; ok {
			return Receipt{ID: rival, Duplicate: true}, nil
		}
	}
	return Receipt{}, fmt.Errorf("%s: %w", m.what(), errKeyFlickers)
}

// what says in errors what is done with m.
func (m *Message) what() string { return "enqueue " + m.Namespace + "/" + m.Topic }

var (
	errNoContext = errors.New("no context given (nil)")
	errNoTx      = errors.New("no transaction given (nil)")
	errNoBatch   = errors.New("no batch given (nil)")
)

// usable reports an argument whose use would panic.
func usable(ctx context.Context, tx Tx) error {
	switch {
	case ctx == nil:
		return errNoContext
	case isnil.Is(tx):
		return errNoTx
	}
	return nil
}

// insertTries is how often an event is inserted whose dedupe key was taken at first, and free again when its owner was
// looked up, because the owner was pruned in between.
const insertTries = 5

var errRivalGone = errors.New(
	"the event that held its dedupe key has been deleted since, and nothing was written: enqueue it again")

var errKeyFlickers = errors.New("the dedupe key is taken and freed again and again")

// owners returns the ids of the events that hold keys in the topic of m.
func owners(
	ctx context.Context, db *schemadb.Schema, q *queries.Queries, m *Message, keys []string,
) (map[string]uuid.UUID, error) {
	p := queries.EventIDByKeyParams{DedupeKeys: keys, Namespace: m.Namespace, Topic: m.Topic}
	ids := make(map[string]uuid.UUID, len(keys))
	var err error
	if m.Log {
		var rows []queries.LogIDByKeyRow
		rows, err = q.LogIDByKey(ctx, queries.LogIDByKeyParams(p))
		for _, row := range rows {
			ids[row.DedupeKey] = row.ID.Bytes
		}
	} else {
		var rows []queries.EventIDByKeyRow
		rows, err = q.EventIDByKey(ctx, p)
		for _, row := range rows {
			ids[row.DedupeKey] = row.ID.Bytes
		}
	}
	return ids, db.Wrap(m.what()+": read duplicate", err)
}

// wrapper is a *schemadb.Schema. A package that imports a PendingReceipt, which each generated package does, would compile
// that type and its queries.
type wrapper interface {
	Wrap(what string, err error) error
}

// PendingReceipt is the receipt of an event in the caller's batch. It is filled in when the results of the batch are
// read, at the latest when they are closed. It must not be used concurrently.
type PendingReceipt struct {
	db    wrapper
	event Message // without its payload

	id       uuid.UUID
	done     bool
	receipt  Receipt
	err      error
	resolved bool
}

// Receipt returns the receipt. It returns an error until the results of the batch have been read, and if the statement
// failed. For a duplicate of an event that committed while the batch waited for it, ID is zero; Resolve reads it.
func (r *PendingReceipt) Receipt() (Receipt, error) {
	switch {
	case r.err != nil:
		return Receipt{}, r.err
	case !r.done:
		return Receipt{}, fmt.Errorf("%s: the results of the batch have not been read", r.event.what())
	}
	return r.receipt, nil
}

// Resolve is Receipt, and always has the id of a duplicate. It runs a statement with tx if the batch could not see that
// id, and none otherwise. It returns an error if the event that had the dedupe key has been deleted since, by prune for
// example: then nothing was written, and the caller must enqueue the event again.
func (r *PendingReceipt) Resolve(ctx context.Context, tx Tx) (Receipt, error) {
	receipt, err := r.Receipt()
	if err != nil || r.resolved {
		return receipt, err
	}
	if err := usable(ctx, tx); err != nil {
		return Receipt{}, fmt.Errorf("resolve %s/%s: %w", r.event.Namespace, r.event.Topic, err)
	}
	db := r.db.(*schemadb.Schema)
	rivals, err := owners(ctx, db, db.OnQuerier(tx), &r.event, []string{r.event.DedupeKey})
	if err != nil {
		return Receipt{}, err
	}
	rival, ok := rivals[r.event.DedupeKey]
	if !ok {
		return Receipt{}, fmt.Errorf("resolve %s/%s: %w", r.event.Namespace, r.event.Topic, errRivalGone)
	}
	r.receipt.ID, r.resolved = rival, true
	return r.receipt, nil
}

// EnqueueInBatch adds m to b, which the caller sends in a transaction. It writes the same as Enqueue, without another
// round trip. Without a context the event has neither a trace nor a cause, unless m.Headers has them. If it returns an
// error, b is unchanged.
func EnqueueInBatch(b *pgx.Batch, schema string, m Message) (*PendingReceipt, error) {
	return enqueueInBatch(b, schema, m, true)
}

func enqueueInBatch(b *pgx.Batch, schema string, m Message, wake bool) (*PendingReceipt, error) {
	if b == nil {
		return nil, fmt.Errorf("%s: %w", m.what(), errNoBatch)
	}
	db, headers, id, err := prepare(schema, &m)
	if err == nil {
		_, err = m.seal(context.Background(), nil, id)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m.what(), err)
	}
	text, args := db.Record(func(q *queries.Queries) { queue(q, db, &m, id, headers, wake) })
	m.Payload = nil
	r := &PendingReceipt{db: db, event: m, id: id}
	b.Queue(text, args...).QueryRow(r.read)
	return r, nil
}

func (r *PendingReceipt) read(row pgx.Row) error {
	written, rival := true, pgtype.UUID{}
	into := []any{&written, &rival}
	if r.event.DedupeKey == "" { // it cannot be a duplicate
		into = []any{new(bool)}
	}
	if err := row.Scan(into...); err != nil {
		r.err = r.db.Wrap(r.event.what(), err)
		return r.err
	}
	r.done, r.resolved = true, written || rival.Valid
	r.receipt = Receipt{ID: r.id}
	if !written {
		r.receipt = Receipt{ID: rival.Bytes, Duplicate: true}
	}
	return nil
}

// prepare fills in the defaults of m, checks it and makes its id.
func prepare(schema string, m *Message) (db *schemadb.Schema, headers []byte, id uuid.UUID, err error) {
	if m.Version == 0 {
		m.Version = 1
	}
	if m.MaxAttempts == 0 {
		m.MaxAttempts = DefaultMaxAttempts
	}
	if db, err = schemadb.Open(schema); err != nil {
		return nil, nil, id, err
	}
	if err = m.check(); err != nil {
		return nil, nil, id, err
	}
	if headers, err = encodeHeaders(m.Headers); err != nil {
		return nil, nil, id, err
	}
	m.turn = m.turnOf()
	id, err = uuid.NewV7()
	return db, headers, id, err
}

// check finds everything that PostgreSQL would refuse, and the rules of tenant and key, in Go, because an
// error of PostgreSQL would abort the caller's transaction.
func (m *Message) check() error {
	switch {
	case !pgname.IsName(m.Namespace):
		return fmt.Errorf("namespace %q is not a name like mini_chat", m.Namespace)
	case !pgname.IsName(m.Topic):
		return fmt.Errorf("topic %q is not a name like turn_finalized", m.Topic)
	case m.Version < 1 || m.Version > 1<<31-1:
		return fmt.Errorf("version %d is not between 1 and 2147483647", m.Version)
	case m.MaxAttempts < 1 || m.MaxAttempts > 1<<31-1:
		return fmt.Errorf("max attempts %d is not between 1 and 2147483647", m.MaxAttempts)
	case m.Log && !m.NotBefore.IsZero():
		return errors.New("not before: listeners get the events of a log topic in order, so that none can be put off")
	case m.Fairness == "":
	case m.Fairness != FairnessTenant:
		return fmt.Errorf("fairness %q is not a valid fairness: use %q, or none", m.Fairness, FairnessTenant)
	case m.Log:
		return fmt.Errorf("fairness %q: listeners get the events of a log topic in order, so that tenants cannot take "+
			"turns: use no fairness", m.Fairness)
	case !m.TenantID.Valid:
		return fmt.Errorf("fairness %q needs the tenant of the event, which has none: set TenantID, or use no fairness",
			m.Fairness)
	}
	if len(m.Limits) > 0 || len(m.LimitKeys) > 0 {
		if err := m.checkLimits(); err != nil {
			return err
		}
	}
	if y := m.NotBefore.UTC().Year(); !m.NotBefore.IsZero() && (y < 1 || y > 9999) {
		return fmt.Errorf("not before: year %d is not between 1 and 9999", y)
	}
	for _, key := range [...]struct{ name, text string }{
		{"dedupe key", m.DedupeKey}, {"partition key", m.PartitionKey},
		{"entity type", m.Entity.Type}, {"entity id", m.Entity.ID},
	} {
		if len(key.text) > MaxKeyBytes {
			return fmt.Errorf("%s has %d bytes of at most %d: %w", key.name, len(key.text), MaxKeyBytes, ErrKeyTooLong)
		}
		if !isText(key.text) {
			return fmt.Errorf("%s holds a NUL or is not UTF-8: %w", key.name, ErrPayloadInvalid)
		}
	}
	if m.Entity.Type == "" && m.Entity != (Entity{}) {
		return fmt.Errorf("entity has an id or version but no type: %w", ErrPayloadInvalid)
	}
	if m.TenantID.Valid {
		if m.TenantID.UUID == uuid.Nil {
			return fmt.Errorf("tenant is the zero UUID: %w", ErrEmptyKeyPart)
		}
		if m.DedupeKey != "" {
			prefix := m.TenantID.UUID.String() + "/"
			if !strings.HasPrefix(m.DedupeKey, prefix) {
				return fmt.Errorf("dedupe key does not start with tenant %s and a slash: %w", m.TenantID.UUID, ErrTenantMismatch)
			}
			if len(m.DedupeKey) == len(prefix) {
				return fmt.Errorf("dedupe key has nothing after its tenant: %w", ErrEmptyKeyPart)
			}
		}
	}
	if len(m.Payload) > MaxPayloadBytes {
		return fmt.Errorf("payload has %d bytes of at most %d: %w", len(m.Payload), MaxPayloadBytes, ErrPayloadTooLarge)
	}
	checkPayload := jsonb.Check
	if m.marshaled {
		checkPayload = jsonb.CheckValid
	}
	if err := checkPayload(m.Payload); err != nil {
		return fmt.Errorf("payload %w", err)
	}
	return nil
}

// encodeHeaders returns headers as JSON, nil when there are none. It refuses a header that one of the brokers cannot
// carry, whichever publishes the event now.
func encodeHeaders(headers map[string]string) ([]byte, error) {
	if len(headers) == 0 {
		return nil, nil
	}
	for name, value := range headers {
		if err := wireheader.Check(name, value); err != nil {
			return nil, fmt.Errorf("header %.80q: %w: %w", name, err, ErrPayloadInvalid)
		}
	}
	encoded, err := json.Marshal(headers)
	if err == nil && len(encoded) > MaxPayloadBytes {
		err = fmt.Errorf("headers have %d bytes of at most %d: %w", len(encoded), MaxPayloadBytes, ErrPayloadTooLarge)
	}
	return encoded, err
}

// isText reports whether PostgreSQL takes s as text.
func isText(s string) bool {
	return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0
}
