-- name: ProcessedInsert :execrows
-- Records an event as handled by a group. Returns no row if it is recorded already; at READ COMMITTED that is never an
-- error, which would abort the consumer's transaction. An insert that meets an uncommitted one of the same event waits for
-- its end, so that the effect runs only after the outcome is known.
INSERT INTO outbox_schema.processed_events (consumer_group, event_id)
VALUES (@consumer_group, @event_id)
ON CONFLICT (consumer_group, event_id) DO NOTHING;

-- name: ProcessedInsertMany :many
-- ProcessedInsert for a slice. Rows are inserted in the order of their ids, so that two batches with events in common wait
-- for each other in one order and cannot deadlock. Returns the ids that were recorded; the others are duplicates.
INSERT INTO outbox_schema.processed_events (consumer_group, event_id)
SELECT @consumer_group::text, w.event_id
FROM (SELECT pg_catalog.unnest(@event_ids::uuid[]) AS event_id) AS w
ORDER BY w.event_id
ON CONFLICT (consumer_group, event_id) DO NOTHING
RETURNING event_id;

-- name: ProcessedPrune :one
-- Deletes one chunk of a group's records that are past their retention, oldest first, by a range of processed_events_age.
-- The range starts at after, so that a chunk does not read again what those before it have deleted. Rows that another
-- prune has locked are skipped, so nothing waits here. The DELETE takes the group from old and not from the parameter:
-- statistics from before the group's first event say that the group has no row, and then the planner considers reading
-- all of processed_events_age for each row to delete as cheap as using the key.
WITH old AS MATERIALIZED (
    SELECT p.consumer_group, p.event_id, p.processed_at
    FROM outbox_schema.processed_events AS p
    WHERE p.consumer_group = @consumer_group::text
      AND p.processed_at >= @after::timestamptz
      AND p.processed_at < statement_timestamp() - @retention::interval
    ORDER BY p.processed_at
    LIMIT @batch_size::integer
    FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM outbox_schema.processed_events AS p
    USING old AS o
    WHERE p.consumer_group = o.consumer_group
      AND p.event_id = o.event_id
    RETURNING p.event_id
)
SELECT
    (SELECT count(*) FROM gone)::bigint AS deleted,
    (SELECT coalesce(max(o.processed_at), '-infinity') FROM old AS o)::timestamptz AS last;

-- name: VersionAdvance :one
-- Does what ProcessedInsert does. If the event was not recorded before, also sets the version of its entity if it is above
-- the last one, in the same statement. fresh: the event was not recorded before. moved: its version is the entity's last
-- one now. Updates of one entity wait for each other at its row, which stays locked also when the version does not move.
-- The one that waited compares with what the other has committed.
WITH fresh AS (
    INSERT INTO outbox_schema.processed_events (consumer_group, event_id)
    VALUES (@consumer_group::text, @event_id::uuid)
    ON CONFLICT (consumer_group, event_id) DO NOTHING
    RETURNING processed_events.event_id
),
moved AS (
    INSERT INTO outbox_schema.entity_versions AS v (
        consumer_group, source, tenant_id, entity_type, entity_id, version, event_id)
    SELECT @consumer_group::text, @source::text, @tenant_id::uuid, @entity_type::text, @entity_id::text, @version::bigint, f.event_id
    FROM fresh AS f
    ON CONFLICT (consumer_group, source, tenant_id, entity_type, entity_id) DO UPDATE
    SET version = excluded.version,
        event_id = excluded.event_id,
        updated_at = excluded.updated_at
    WHERE v.version < excluded.version
    RETURNING v.version
)
SELECT
    EXISTS (SELECT FROM fresh)::boolean AS fresh,
    EXISTS (SELECT FROM moved)::boolean AS moved;

-- name: VersionLast :one
-- Reads the last version of an entity. After VersionAdvance, which keeps its row locked, it is the version that was
-- compared.
SELECT v.version, v.event_id
FROM outbox_schema.entity_versions AS v
WHERE v.consumer_group = @consumer_group
  AND v.source = @source
  AND v.tenant_id = @tenant_id
  AND v.entity_type = @entity_type
  AND v.entity_id = @entity_id;

-- name: InboxQuarantine :exec
-- Quarantines a stale event with the version and event that made it stale. An event that is quarantined already, because
-- it came again after its record was pruned, stays as it is.
INSERT INTO outbox_schema.inbox_quarantined (
    consumer_group, event_id, source, tenant_id, entity_type, entity_id, version, last_version, last_event_id, payload)
SELECT v.consumer_group, @event_id::uuid, v.source, v.tenant_id, v.entity_type, v.entity_id, @version::bigint, v.version, v.event_id,
    sqlc.narg('payload')::bytea
FROM outbox_schema.entity_versions AS v
WHERE v.consumer_group = @consumer_group
  AND v.source = @source
  AND v.tenant_id = @tenant_id
  AND v.entity_type = @entity_type
  AND v.entity_id = @entity_id
ON CONFLICT (consumer_group, event_id) DO NOTHING;

-- name: InboxQuarantinePrune :one
-- ProcessedPrune for quarantined events.
WITH old AS MATERIALIZED (
    SELECT k.consumer_group, k.event_id, k.quarantined_at
    FROM outbox_schema.inbox_quarantined AS k
    WHERE k.consumer_group = @consumer_group::text
      AND k.quarantined_at >= @after::timestamptz
      AND k.quarantined_at < statement_timestamp() - @retention::interval
    ORDER BY k.quarantined_at
    LIMIT @batch_size::integer
    FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM outbox_schema.inbox_quarantined AS k
    USING old AS o
    WHERE k.consumer_group = o.consumer_group
      AND k.event_id = o.event_id
    RETURNING k.event_id
)
SELECT
    (SELECT count(*) FROM gone)::bigint AS deleted,
    (SELECT coalesce(max(o.quarantined_at), '-infinity') FROM old AS o)::timestamptz AS last;

-- name: InboxReset :exec
-- Deletes everything that a group has recorded, including versions, quarantined events and the messages that it keeps.
WITH events AS (
    DELETE FROM outbox_schema.processed_events AS p
    WHERE p.consumer_group = @consumer_group::text
),
versions AS (
    DELETE FROM outbox_schema.entity_versions AS v
    WHERE v.consumer_group = @consumer_group::text
),
messages AS (
    DELETE FROM outbox_schema.inbox_messages AS m
    WHERE m.consumer_group = @consumer_group::text
)
DELETE FROM outbox_schema.inbox_quarantined AS k
WHERE k.consumer_group = @consumer_group::text;
