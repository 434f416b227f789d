package outbox

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outboxgen/outboxgen/internal/call/cause"
	"github.com/outboxgen/outboxgen/internal/postgres/bell"
	"github.com/outboxgen/outboxgen/internal/postgres/ownedtx"
	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
	"github.com/outboxgen/outboxgen/internal/postgres/topiclane"
)

// manyRows is how many events one statement of EnqueueMany carries.
const manyRows = 1000

// EnqueueMany writes ms, with one statement per 1,000, and returns their receipts in the order of ms. All of ms must
// have the same namespace, topic and version. Each event is written as by Enqueue. If two of ms have the same dedupe
// key, one is a duplicate of the other. If one message is wrong, nothing is sent.
func EnqueueMany(ctx context.Context, tx Tx, schema string, ms []Message) ([]Receipt, error) {
	if len(ms) == 0 {
		return nil, nil
	}
	ctx, ob := observe(ctx, ms[0].Namespace, ms[0].Topic, len(ms))
	receipts, err := enqueueMany(ctx, tx, schema, ms, true)
	ob.end(receipts, err)
	return receipts, err
}

func enqueueMany(ctx context.Context, tx Tx, schema string, ms []Message, wake bool) ([]Receipt, error) {
	if len(ms) == 0 {
		return nil, nil
	}
	if err := usable(ctx, tx); err != nil {
		return nil, fmt.Errorf("%s: %w", ms[0].what(), err)
	}
	e := manyEvents{ms: slices.Clone(ms), headers: make([][]byte, len(ms)), receipts: make([]Receipt, len(ms)), wake: wake}
	ms = e.ms // with their defaults
	order := make([]int, len(ms))
	trace, by := traceHeaders(ctx), chainOf(cause.Of(ctx))
	for i := range ms {
		m := &ms[i]
		m.follow(trace)
		m.Headers = by.addTo(m.Headers)
		var err error
		if e.db, e.headers[i], e.receipts[i].ID, err = prepare(schema, m); err != nil {
			return nil, fmt.Errorf("%s: event %d of %d: %w", m.what(), i+1, len(ms), err)
		}
		if m.Namespace != ms[0].Namespace || m.Topic != ms[0].Topic || m.Version != ms[0].Version || m.Log != ms[0].Log {
			return nil, fmt.Errorf("%s: event %d of %d is of %s/%s version %d: one call takes one topic, version and delivery",
				ms[0].what(), i+1, len(ms), m.Namespace, m.Topic, m.Version)
		}
		if ctx, err = m.seal(ctx, tx, e.receipts[i].ID); err != nil {
			return nil, fmt.Errorf("%s: event %d of %d: %w", m.what(), i+1, len(ms), err)
		}
		order[i] = i
	}
	// Keys are inserted in order, also across statements, so that concurrent callers cannot deadlock.
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(ms[a].DedupeKey, ms[b].DedupeKey) })
	if fake, ok := ownedtx.Innermost(tx).(recorder); ok {
		if err := fake.RecordEvents(ctx, e.db, ms, e.receipts, order); err != nil {
			return nil, e.db.Wrap(ms[0].what(), err)
		}
		return e.receipts, nil
	}
	q := e.db.OnQuerier(tx)
	for part := range slices.Chunk(order, manyRows) {
		for try := 0; len(part) > 0; try++ {
			if try == insertTries {
				return nil, fmt.Errorf("%s: %w", ms[0].what(), errKeyFlickers)
			}
			var err error
			if part, err = e.insert(ctx, q, part); err != nil {
				return nil, err
			}
		}
	}
	return e.receipts, nil
}

// manyEvents are the events of one call of EnqueueMany, of one topic, version and delivery.
type manyEvents struct {
	db       *schemadb.Schema
	ms       []Message
	headers  [][]byte // of each message, encoded
	receipts []Receipt
	wake     bool // whether sleepers are woken
}

// insert writes the messages whose indexes are in part, and marks the duplicates among their receipts.
// It returns the indexes of those whose dedupe key was taken at first, and free again when its owner was looked up.
func (e *manyEvents) insert(ctx context.Context, q *queries.Queries, part []int) (again []int, err error) {
	first := &e.ms[part[0]]
	row, err := e.insertRows(ctx, q, part)
	if err != nil {
		return nil, e.db.Wrap(first.what(), err)
	}
	if row.Written == int64(len(part)) {
		return nil, nil
	}
	isNew := make(map[uuid.UUID]bool, len(row.Ids))
	for _, id := range row.Ids {
		isNew[id.Bytes] = true
	}
	var taken []string
	for _, i := range part {
		if !isNew[e.receipts[i].ID] {
			taken = append(taken, e.ms[i].DedupeKey)
		}
	}
	rivals, err := owners(ctx, e.db, q, first, taken)
	if err != nil {
		return nil, err
	}
	for _, i := range part {
		if isNew[e.receipts[i].ID] {
			continue
		}
		if rival, ok := rivals[e.ms[i].DedupeKey]; ok {
			e.receipts[i] = Receipt{ID: rival, Duplicate: true}
		} else {
			again = append(again, i)
		}
	}
	return again, nil
}

// insertRows runs the cheapest statement for the rows of part.
func (e *manyEvents) insertRows(
	ctx context.Context, q *queries.Queries, part []int,
) (queries.EventInsertManyRow, error) {
	p := e.rows(part)
	switch log, keyless := e.ms[part[0]].Log, p.DedupeKeys == nil; {
	case log && keyless:
		row, err := q.LogInsertManyKeyless(ctx, queries.LogInsertManyKeylessParams(logInsertMany(p, e.ms, part)))
		return queries.EventInsertManyRow(row), err
	case log:
		row, err := q.LogInsertMany(ctx, logInsertMany(p, e.ms, part))
		return queries.EventInsertManyRow(row), err
	case keyless:
		row, err := q.EventInsertManyKeyless(ctx, queries.EventInsertManyKeylessParams(p))
		return queries.EventInsertManyRow(row), err
	}
	return q.EventInsertMany(ctx, p)
}

// rows returns the rows of part for the queue.
func (e *manyEvents) rows(part []int) queries.EventInsertManyParams {
	ms := e.ms
	first := &ms[part[0]]
	ring := bell.Of(e.db, first.Namespace)
	if first.Log {
		ring = bell.OfLog(e.db)
	}
	text := func(of func(*Message) string) []string {
		return column(part, func(i int) (string, bool) { s := of(&ms[i]); return s, s != "" })
	}
	return queries.EventInsertManyParams{
		Namespace: first.Namespace, Topic: first.Topic, Version: int32(first.Version),
		LockKey: lockKey(ring, e.wake), Channel: ring.Channel,
		Ids: column(part, func(i int) (pgtype.UUID, bool) { return pgvalue.UUID(e.receipts[i].ID), true }),
		TenantIds: column(part, func(i int) (pgtype.UUID, bool) {
			id := ms[i].TenantID
			return pgvalue.NullUUID(id), id.Valid
		}),
		DedupeKeys:    text(func(m *Message) string { return m.DedupeKey }),
		PartitionKeys: text(func(m *Message) string { return m.PartitionKey }),
		EntityTypes:   text(func(m *Message) string { return m.Entity.Type }),
		EntityIds:     text(func(m *Message) string { return m.Entity.ID }),
		EntityVersions: column(part, func(i int) (int64, bool) {
			v := ms[i].Entity.Version
			return v, ms[i].Entity.Type != ""
		}),
		Headers:     column(part, func(i int) (json.RawMessage, bool) { return e.headers[i], e.headers[i] != nil }),
		Payloads:    column(part, func(i int) (json.RawMessage, bool) { return ms[i].Payload, true }),
		Lane:        topiclane.Of(first.Topic),
		TurnLane:    topiclane.OfTurns(first.Topic),
		Turns:       text(func(m *Message) string { return m.turn }),
		MaxAttempts: column(part, func(i int) (int32, bool) { return int32(ms[i].MaxAttempts), true }),
		NotBefore: column(part, func(i int) (pgtype.Timestamptz, bool) {
			t := pgvalue.Time(ms[i].NotBefore)
			return t, t.Valid
		}),
	}
}

// column returns the values of part, or nil if there are none. Most columns of most topics are empty, and to send and
// parse one null per event takes a tenth of the time of a call.
func column[T any](part []int, of func(i int) (T, bool)) []T {
	var values []T
	for n, i := range part {
		v, ok := of(i)
		if values == nil {
			if !ok {
				continue
			}
			values = make([]T, n, len(part))
		}
		values = append(values, v)
	}
	return values
}
