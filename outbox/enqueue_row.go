package outbox

import (
	"context"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/postgres/bell"
	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
	"github.com/outboxgen/outboxgen/internal/postgres/topiclane"
)

// insert writes the row of m, checked. The error is pgx.ErrNoRows if its dedupe key is taken.
func insert(
	ctx context.Context, q *queries.Queries, db *schemadb.Schema, m *Message, id uuid.UUID, headers []byte, wake bool,
) error {
	var err error
	switch keyless := m.DedupeKey == ""; {
	case m.Log && keyless:
		_, err = q.LogInsertKeyless(ctx, logInsertKeyless(db, m, id, headers, wake))
	case m.Log:
		_, err = q.LogInsert(ctx, logInsert(db, m, id, headers, wake))
	case keyless:
		_, err = q.EventInsertKeyless(ctx, eventInsertKeyless(db, m, id, headers, wake))
	default:
		_, err = q.EventInsert(ctx, eventInsert(db, m, id, headers, wake))
	}
	return err
}

// queue is insert for a q that records the statement for a batch. The statement returns whether it has written the row,
// and the id of the event that has the dedupe key already. Without a dedupe key it returns whether somebody was woken.
func queue(q *queries.Queries, db *schemadb.Schema, m *Message, id uuid.UUID, headers []byte, wake bool) {
	ctx := context.Background()
	switch {
	case m.DedupeKey == "":
		_ = insert(ctx, q, db, m, id, headers, wake)
	case m.Log:
		p := logInsert(db, m, id, headers, wake)
		_, _ = q.LogQueue(ctx, queries.LogQueueParams{
			Namespace: p.Namespace, Topic: p.Topic, DedupeKey: p.DedupeKey, ID: p.ID, Version: p.Version,
			TenantID: p.TenantID, PartitionKey: p.PartitionKey, EntityType: p.EntityType, EntityID: p.EntityID,
			EntityVersion: p.EntityVersion, Headers: p.Headers, Payload: p.Payload, Bucket: p.Bucket,
			LockKey: p.LockKey, Channel: p.Channel,
		})
	default:
		p := eventInsert(db, m, id, headers, wake)
		_, _ = q.EventQueue(ctx, queries.EventQueueParams{
			Namespace: p.Namespace, Topic: p.Topic, DedupeKey: p.DedupeKey, ID: p.ID, Version: p.Version,
			TenantID: p.TenantID, PartitionKey: p.PartitionKey, EntityType: p.EntityType, EntityID: p.EntityID,
			EntityVersion: p.EntityVersion, Headers: p.Headers, Payload: p.Payload, Lane: p.Lane, Turn: p.Turn,
			MaxAttempts: p.MaxAttempts, NotBefore: p.NotBefore, LockKey: p.LockKey, Channel: p.Channel,
		})
	}
}

func eventInsert(db *schemadb.Schema, m *Message, id uuid.UUID, headers []byte, wake bool) queries.EventInsertParams {
	p := eventInsertKeyless(db, m, id, headers, wake)
	return queries.EventInsertParams{
		Namespace: p.Namespace, Topic: p.Topic, DedupeKey: m.DedupeKey, ID: p.ID, Version: p.Version,
		TenantID: p.TenantID, PartitionKey: p.PartitionKey, EntityType: p.EntityType, EntityID: p.EntityID,
		EntityVersion: p.EntityVersion, Headers: p.Headers, Payload: p.Payload, Lane: p.Lane, Turn: p.Turn,
		MaxAttempts: p.MaxAttempts, NotBefore: p.NotBefore, LockKey: p.LockKey, Channel: p.Channel,
	}
}

// eventInsertKeyless returns the row of m for the queue, without its dedupe key.
func eventInsertKeyless(
	db *schemadb.Schema, m *Message, id uuid.UUID, headers []byte, wake bool,
) queries.EventInsertKeylessParams {
	ring := bell.Of(db, m.Namespace)
	return queries.EventInsertKeylessParams{
		LockKey: lockKey(ring, wake), Channel: ring.Channel,
		ID: pgvalue.UUID(id), Namespace: m.Namespace, Topic: m.Topic, Version: int32(m.Version),
		TenantID: pgvalue.NullUUID(m.TenantID), PartitionKey: orNull(&m.PartitionKey),
		EntityType: orNull(&m.Entity.Type), EntityID: orNull(&m.Entity.ID), EntityVersion: m.entityVersion(),
		Headers: headers, Payload: m.Payload, Lane: m.lane(), Turn: orNull(&m.turn), MaxAttempts: int32(m.MaxAttempts),
		NotBefore: pgvalue.Time(m.NotBefore),
	}
}

func logInsert(db *schemadb.Schema, m *Message, id uuid.UUID, headers []byte, wake bool) queries.LogInsertParams {
	p := logInsertKeyless(db, m, id, headers, wake)
	return queries.LogInsertParams{
		Namespace: p.Namespace, Topic: p.Topic, DedupeKey: m.DedupeKey, ID: p.ID, Version: p.Version,
		TenantID: p.TenantID, PartitionKey: p.PartitionKey, EntityType: p.EntityType, EntityID: p.EntityID,
		EntityVersion: p.EntityVersion, Headers: p.Headers, Payload: p.Payload, Bucket: p.Bucket,
		LockKey: p.LockKey, Channel: p.Channel,
	}
}

// logInsertKeyless returns the row of m for the log, without its dedupe key.
func logInsertKeyless(
	db *schemadb.Schema, m *Message, id uuid.UUID, headers []byte, wake bool,
) queries.LogInsertKeylessParams {
	ring := bell.OfLog(db)
	return queries.LogInsertKeylessParams{
		LockKey: lockKey(ring, wake), Channel: ring.Channel,
		ID: pgvalue.UUID(id), Namespace: m.Namespace, Topic: m.Topic, Version: int32(m.Version),
		TenantID: pgvalue.NullUUID(m.TenantID), PartitionKey: orNull(&m.PartitionKey),
		EntityType: orNull(&m.Entity.Type), EntityID: orNull(&m.Entity.ID), EntityVersion: m.entityVersion(),
		Headers: headers, Payload: m.Payload, Bucket: bucketOf(m, id),
	}
}

// lockKey returns the lock of ring, nil if nobody is to be woken.
func lockKey(ring bell.Bell, wake bool) *int64 {
	if !wake {
		return nil
	}
	return &ring.Key
}

// orNull returns text, nil if it is empty.
func orNull(text *string) *string {
	if *text == "" {
		return nil
	}
	return text
}

// entityVersion returns the version of the entity of m, nil if it has no entity.
func (m *Message) entityVersion() *int64 {
	if m.Entity.Type == "" {
		return nil
	}
	return &m.Entity.Version
}

// lane returns the lane of m in the queue.
func (m *Message) lane() int32 {
	if m.turn != "" {
		return topiclane.OfTurns(m.Topic)
	}
	return topiclane.Of(m.Topic)
}
