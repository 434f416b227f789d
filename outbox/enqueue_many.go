package outbox

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outboxgen/outboxgen/internal/dbschema"
	"github.com/outboxgen/outboxgen/internal/dbsqlc"
	"github.com/outboxgen/outboxgen/internal/doorbell"
	"github.com/outboxgen/outboxgen/internal/pgvalue"
)

// manyRows is how many events one statement of EnqueueMany carries.
const manyRows = 1000

// EnqueueMany writes ms, all of one namespace, topic and version, as Enqueue does, in one statement a
// thousand, and returns a receipt for each in the order of ms. Of two equal dedupe keys in ms one is the
// duplicate of the other. When one message is wrong nothing is sent.
func EnqueueMany(ctx context.Context, tx pgx.Tx, schema string, ms []Message) ([]Receipt, error) {
	return enqueueMany(ctx, tx, schema, ms, true)
}

func enqueueMany(ctx context.Context, tx pgx.Tx, schema string, ms []Message, wake bool) ([]Receipt, error) {
	if len(ms) == 0 {
		return nil, nil
	}
	if err := usable(ctx, tx); err != nil {
		return nil, fmt.Errorf("enqueue %s/%s: %w", ms[0].Namespace, ms[0].Topic, err)
	}
	receipts := make([]Receipt, len(ms))
	headers := make([][]byte, len(ms))
	order := make([]int, len(ms))
	ms = slices.Clone(ms)
	trace := traceHeaders(ctx)
	var db *dbschema.Schema
	for i := range ms {
		m := &ms[i]
		m.follow(trace)
		var err error
		if db, headers[i], receipts[i].ID, err = prepare(schema, m); err != nil {
			return nil, fmt.Errorf("enqueue %s/%s: event %d of %d: %w", m.Namespace, m.Topic, i+1, len(ms), err)
		}
		if m.Namespace != ms[0].Namespace || m.Topic != ms[0].Topic || m.Version != ms[0].Version || m.Log != ms[0].Log {
			return nil, fmt.Errorf("enqueue %s/%s: event %d of %d is of %s/%s version %d: one call takes one topic, version and delivery",
				ms[0].Namespace, ms[0].Topic, i+1, len(ms), m.Namespace, m.Topic, m.Version)
		}
		order[i] = i
	}
	// Across statements as within one, keys go in by order, so that rivals cannot deadlock.
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(ms[a].DedupeKey, ms[b].DedupeKey) })
	q := db.On(tx)
	for part := range slices.Chunk(order, manyRows) {
		for try := 0; len(part) > 0; try++ {
			if try == insertTries {
				return nil, fmt.Errorf("enqueue %s/%s: %w", ms[0].Namespace, ms[0].Topic, errKeyFlickers)
			}
			var err error
			if part, err = insertPart(ctx, q, db, ms, headers, receipts, part, wake); err != nil {
				return nil, err
			}
		}
	}
	return receipts, nil
}

// insertPart writes the messages whose indexes are in part, and marks the duplicates among their receipts.
// It returns the indexes of those whose dedupe key was taken, but free again when its holder was looked for.
func insertPart(ctx context.Context, q *dbsqlc.Queries, db *dbschema.Schema, ms []Message, headers [][]byte,
	receipts []Receipt, part []int, wake bool,
) (again []int, err error) {
	first := &ms[part[0]]
	row, err := insertRows(ctx, q, eventInsertMany(db, ms, headers, receipts, part, wake), ms, part)
	if err != nil {
		return nil, dbschema.Wrap("enqueue "+first.Namespace+"/"+first.Topic, err)
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
		if !isNew[receipts[i].ID] {
			taken = append(taken, ms[i].DedupeKey)
		}
	}
	rivals, err := owners(ctx, q, first, taken)
	if err != nil {
		return nil, err
	}
	for _, i := range part {
		if isNew[receipts[i].ID] {
			continue
		}
		if rival, ok := rivals[ms[i].DedupeKey]; ok {
			receipts[i] = Receipt{ID: rival, Duplicate: true}
		} else {
			again = append(again, i)
		}
	}
	return again, nil
}

// insertRows runs the statement for p, the rows of part, that costs least.
func insertRows(ctx context.Context, q *dbsqlc.Queries, p dbsqlc.EventInsertManyParams, ms []Message, part []int) (dbsqlc.EventInsertManyRow, error) {
	switch log, keyless := ms[part[0]].Log, p.DedupeKeys == nil; {
	case log && keyless:
		row, err := q.LogInsertManyKeyless(ctx, dbsqlc.LogInsertManyKeylessParams(logInsertMany(p, ms, part)))
		return dbsqlc.EventInsertManyRow(row), err
	case log:
		row, err := q.LogInsertMany(ctx, logInsertMany(p, ms, part))
		return dbsqlc.EventInsertManyRow(row), err
	case keyless:
		row, err := q.EventInsertManyKeyless(ctx, dbsqlc.EventInsertManyKeylessParams(p))
		return dbsqlc.EventInsertManyRow(row), err
	}
	return q.EventInsertMany(ctx, p)
}

// eventInsertMany returns the rows of part, checked, for the queue.
func eventInsertMany(db *dbschema.Schema, ms []Message, headers [][]byte, receipts []Receipt, part []int, wake bool) dbsqlc.EventInsertManyParams {
	first := &ms[part[0]]
	bell := doorbell.Of(db, first.Namespace)
	if first.Log {
		bell = doorbell.OfLog(db)
	}
	text := func(of func(*Message) string) []string {
		return column(part, func(i int) (string, bool) { s := of(&ms[i]); return s, s != "" })
	}
	return dbsqlc.EventInsertManyParams{
		Namespace: first.Namespace, Topic: first.Topic, Version: int32(first.Version),
		Wake: wake, Bell: bell.Key, Channel: bell.Channel,
		Ids:            column(part, func(i int) (pgtype.UUID, bool) { return pgvalue.UUID(receipts[i].ID), true }),
		TenantIds:      column(part, func(i int) (pgtype.UUID, bool) { id := ms[i].TenantID; return pgvalue.NullUUID(id), id.Valid }),
		DedupeKeys:     text(func(m *Message) string { return m.DedupeKey }),
		PartitionKeys:  text(func(m *Message) string { return m.PartitionKey }),
		EntityTypes:    text(func(m *Message) string { return m.Entity.Type }),
		EntityIds:      text(func(m *Message) string { return m.Entity.ID }),
		EntityVersions: column(part, func(i int) (int64, bool) { v := ms[i].Entity.Version; return v, ms[i].Entity.Type != "" }),
		Headers:        column(part, func(i int) (json.RawMessage, bool) { return headers[i], headers[i] != nil }),
		Payloads:       column(part, func(i int) (json.RawMessage, bool) { return ms[i].Payload, true }),
		MaxAttempts:    column(part, func(i int) (int32, bool) { return int32(ms[i].MaxAttempts), true }),
		NotBefore:      column(part, func(i int) (pgtype.Timestamptz, bool) { t := pgvalue.Time(ms[i].NotBefore); return t, t.Valid }),
	}
}

// column returns the values of part, or nil if there is none: most columns of most topics are empty, and sending and
// parsing as many nulls as events is a tenth of a call.
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
