package outbox

import (
	"hash/fnv"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/postgres/queries"
)

// buckets is the number of buckets. The events of a log are sharded by bucket.
const buckets = 1 << 15

// bucketOf hashes the partition key of m, or id if there is none, so that all events of a key are in one shard. The
// hash is stored with the event and must never change.
func bucketOf(m *Message, id uuid.UUID) int16 {
	h := fnv.New32a()
	if m.PartitionKey != "" {
		h.Write([]byte(m.PartitionKey))
	} else {
		h.Write(id[:])
	}
	sum := h.Sum32()
	return int16((sum ^ sum>>15) % buckets)
}

// logInsertMany turns the rows of part from those of a queue into those of the log.
func logInsertMany(p queries.EventInsertManyParams, ms []Message, part []int) queries.LogInsertManyParams {
	q := queries.LogInsertManyParams{
		Namespace: p.Namespace, Topic: p.Topic, Version: p.Version, Ids: p.Ids, TenantIds: p.TenantIds,
		DedupeKeys: p.DedupeKeys, PartitionKeys: p.PartitionKeys, EntityTypes: p.EntityTypes, EntityIds: p.EntityIds,
		EntityVersions: p.EntityVersions, Headers: p.Headers, Payloads: p.Payloads,
		LockKey: p.LockKey, Channel: p.Channel,
	}
	q.Buckets, q.Places = make([]int16, len(part)), make([]int32, len(part))
	for n, i := range part {
		q.Buckets[n], q.Places[n] = bucketOf(&ms[i], p.Ids[n].Bytes), int32(i)
	}
	return q
}
