package listener

import (
	"errors"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/listener/internal/core"
	"github.com/outboxgen/outboxgen/outbox"
)

// logRow is scanned into for each row of the log. Memory is allocated for many rows of a batch together.
type logRow struct {
	seq, entityVersion                            pgtype.Int8
	version                                       pgtype.Int4
	id, tenant                                    pgtype.UUID
	dedupeKey, partitionKey, entityType, entityID pgtype.Text
	headers, payload                              rowBytes
	createdAt                                     pgtype.Timestamptz
	entries                                       []core.Entry // room for the next entries
}

// columns are the columns of an event that all statements return, from its version on.
func (r *logRow) columns() []any {
	return []any{
		&r.version, &r.tenant, &r.dedupeKey, &r.partitionKey, &r.entityType, &r.entityID, &r.entityVersion, &r.headers,
		&r.payload, &r.createdAt,
	}
}

// entriesPerAlloc is how many entries share an allocation: few enough for a listener that skips most of what it reads.
const entriesPerAlloc = 64

// entry makes an entry of the row. more is the maximum number of rows that may follow.
func (r *logRow) entry(namespace, topic string, more int) *core.Entry {
	if len(r.entries) == 0 {
		r.entries = make([]core.Entry, max(min(more, entriesPerAlloc), 1))
	}
	e := &r.entries[0]
	r.entries = r.entries[1:]
	e.Seq, e.Namespace, e.Topic, e.Version, e.CreatedAt = r.seq.Int64, namespace, topic, int(r.version.Int32),
		r.createdAt.Time
	e.DedupeKey, e.PartitionKey = r.dedupeKey.String, r.partitionKey.String
	e.Entity = outbox.Entity{Type: r.entityType.String, ID: r.entityID.String, Version: r.entityVersion.Int64}
	fill(e, r.id, r.tenant, r.headers.got, r.payload.got)
	return e
}

func fill(e *core.Entry, id, tenant pgtype.UUID, headers, payload []byte) {
	e.ID, e.Payload = id.Bytes, payload
	e.TenantID = uuid.NullUUID{UUID: tenant.Bytes, Valid: tenant.Valid}
	if e.Key = e.PartitionKey; e.Key == "" {
		e.Key = e.ID.String()
	}
	e.Headers = pgvalue.Headers(headers)
}

// rowBytes keeps the values of a column, many per allocation.
type rowBytes struct {
	got  []byte // the latest
	room []byte
}

// rowRoom is the size of an allocation after the first rows.
const rowRoom = 64 << 10

// ScanBytes implements pgtype.BytesScanner: b is only valid until it returns.
func (r *rowBytes) ScanBytes(b []byte) error {
	if b == nil {
		r.got = nil
		return nil
	}
	if len(b) > cap(r.room)-len(r.room) {
		r.room = make([]byte, 0, max(min(4*cap(r.room), rowRoom), len(b)))
	}
	from := len(r.room)
	r.room = append(r.room, b...)
	r.got = r.room[from:len(r.room):len(r.room)] // an append to one value does not overwrite the next
	return nil
}

// scanEvents reads the rows of LogRead into lease.
func (l *Listener) scanEvents(lease *core.Lease, rows pgx.Rows) error {
	defer rows.Close()
	var r logRow
	var namespace, topic pgtype.Text
	var parked bool
	into := append([]any{&lease.Scanned, &lease.ScannedTo, &r.seq, &r.id, &namespace, &topic},
		append(r.columns(), &parked)...)
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return err
		}
		if !r.seq.Valid {
			continue // only positions of other shards or topics
		}
		e := r.entry(namespace.String, topic.String, min(lease.BatchSize, lease.Scanned)-len(lease.Events))
		e.Of = l.topicOf(e.Namespace, e.Topic)
		if parked {
			e.Status, e.ParkedBefore = core.Parked, true
		}
		if !lease.Add(e, l.cfg.BatchSize) {
			return nil
		}
	}
	return rows.Err()
}

var errPrefetchTooLarge = errors.New("what was read ahead is too large to keep")

// scanNext reads the rows of LogReadNext, of up to size events, into p.
func (l *Listener) scanNext(p *core.NextBatch, rows pgx.Rows, size int) error {
	defer rows.Close()
	var r logRow
	var topic pgtype.Int4
	var parked bool
	into := append([]any{&topic, &r.seq, &r.id}, append(r.columns(), &parked)...)
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return err
		}
		p.Scanned++
		p.ScannedTo = r.seq.Int64
		if !topic.Valid {
			continue
		}
		if p.Events == nil {
			p.Events = make([]*core.Entry, 0, size)
		}
		h := l.serving[topic.Int32-1]
		e := r.entry(h.namespace, h.topic, size-len(p.Events))
		e.Of = &h.Topic
		if parked {
			e.Status, e.ParkedBefore = core.Parked, true
		}
		if !p.Add(e) {
			return errPrefetchTooLarge
		}
	}
	return rows.Err()
}
