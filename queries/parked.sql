-- name: ParkedTake :many
-- Reads parked events of up to key_limit keys whose head is due, those of each key in their order and up to
-- event_limit of them. It reads a range of parked_key, because with key = ... the planner may walk the primary key
-- instead. Guarded by the lease. taken notes on each head how many events of its key are taken with it. If the
-- process dies of one, the next leases take only these, one by one, and count each attempt before it is made. Such a lease
-- leaves a head whose version is newer than the newest that its process knows, by topics, to another process. That one takes it
-- alone, and counts the attempt, even if the log has been handled since, and its lease is a usual one.
WITH head AS MATERIALIZED (
    SELECT p.key, p.retry_after, s.suspect
    FROM outbox_schema.parked AS p
    CROSS JOIN LATERAL (
        SELECT p.taken > 0 AND coalesce(
            p.version <= (@versions::integer[])[array_position(@topics::text[], p.namespace || '/' || p.topic)], true
        ) AS suspect
    ) AS s
    WHERE p.listener = @listener
      AND p.retry_after <= statement_timestamp()
      AND p.bucket % @shards::integer = @shard::integer
      AND (s.suspect OR NOT @one_by_one::boolean)
      AND EXISTS (
        SELECT
        FROM outbox_schema.listeners AS l
        WHERE l.listener = @listener
          AND l.shard = @shard::integer
          AND l.lease_by = @worker_id
          AND l.lease_no = @lease_no
          AND l.running
      )
    ORDER BY p.retry_after
    LIMIT @key_limit::integer
),
due AS (
    SELECT h.key, h.suspect
    FROM head AS h
    WHERE h.key = coalesce((SELECT s.key FROM head AS s WHERE s.suspect ORDER BY s.retry_after LIMIT 1), h.key)
),
noted AS (
    UPDATE outbox_schema.parked AS p
    SET attempts = CASE WHEN d.suspect THEN p.attempts + 1 ELSE p.attempts END,
        taken = CASE WHEN d.suspect THEN p.taken ELSE @event_limit::integer END
    FROM due AS d
    WHERE p.listener = @listener
      AND p.key = d.key
      AND p.retry_after IS NOT NULL
      AND (d.suspect OR p.taken <> @event_limit::integer)
)
SELECT e.no, e.key, e.taken, e.seq, e.id, e.namespace, e.topic, e.version, e.tenant_id,
    coalesce(e.dedupe_key, '') AS dedupe_key,
    coalesce(e.partition_key, '') AS partition_key,
    coalesce(e.entity_type, '') AS entity_type,
    coalesce(e.entity_id, '') AS entity_id,
    coalesce(e.entity_version, 0) AS entity_version,
    e.headers, e.payload, e.created_at, e.attempts
FROM due AS d
CROSS JOIN LATERAL (
    SELECT o.no, o.key, o.taken, o.seq, o.id, o.namespace, o.topic, o.version, o.tenant_id, o.dedupe_key,
        o.partition_key, o.entity_type, o.entity_id, o.entity_version, o.headers, o.payload, o.created_at,
        o.attempts
    FROM outbox_schema.parked AS o
    WHERE o.listener = @listener
      AND o.key >= d.key
      AND o.key <= d.key
    ORDER BY o.listener, o.key, o.no
    LIMIT CASE WHEN d.suspect THEN 1 ELSE @event_limit::integer END
) AS e
ORDER BY e.no;

-- name: ParkedSettle :exec
-- Ends attempts at parked events. Those that are done are deleted, those that are dead become dead letters, and heads that
-- failed, or whose version this process does not know, wait for their next attempt; taken is 0 for those that failed. Guarded by the lease, whose row is locked, so that an outdated holder changes
-- nothing.
WITH lease AS MATERIALIZED (
    SELECT l.listener
    FROM outbox_schema.listeners AS l
    WHERE l.listener = @listener
      AND l.shard = @shard
      AND l.lease_by = @worker_id
      AND l.lease_no = @lease_no
      AND l.running
    FOR NO KEY UPDATE
),
done AS (
    DELETE FROM outbox_schema.parked AS p
    USING lease AS h
    WHERE p.no = ANY (@done::bigint[])
),
dying AS (
    DELETE FROM outbox_schema.parked AS p
    USING lease AS h
    WHERE p.no = ANY (@dead::bigint[])
    RETURNING p.no, p.listener, p.seq, p.id, p.namespace, p.topic, p.version, p.tenant_id, p.dedupe_key, p.partition_key,
        p.entity_type, p.entity_id, p.entity_version, p.headers, p.payload, p.bucket, p.created_at, p.key
),
dead AS (
    INSERT INTO outbox_schema.dead_letters (
        listener, seq, id, namespace, topic, version, tenant_id, dedupe_key, partition_key, entity_type,
        entity_id, entity_version, headers, payload, bucket, created_at, key, attempts, error)
    SELECT d.listener, d.seq, d.id, d.namespace, d.topic, d.version, d.tenant_id, d.dedupe_key, d.partition_key,
        d.entity_type, d.entity_id, d.entity_version, d.headers, d.payload, d.bucket, d.created_at, d.key, w.attempts, w.error
    FROM dying AS d
    JOIN (
        SELECT
            unnest(@dead::bigint[]) AS no,
            unnest(@dead_attempts::integer[]) AS attempts,
            unnest(@dead_errors::text[]) AS error
    ) AS w ON w.no = d.no
    ORDER BY d.seq
)
UPDATE outbox_schema.parked AS p
SET attempts = w.attempts,
    taken = w.taken,
    retry_after = clock_timestamp() + w.delay_us * interval '1 microsecond',
    last_error = coalesce(nullif(w.error, ''), p.last_error)
FROM lease AS h, (
    SELECT
        unnest(@failed::bigint[]) AS no,
        unnest(@failed_attempts::integer[]) AS attempts,
        unnest(@failed_taken::integer[]) AS taken,
        unnest(@failed_delays_us::bigint[]) AS delay_us,
        unnest(@failed_errors::text[]) AS error
) AS w
WHERE p.no = w.no;

-- name: ParkedPromote :exec
-- Makes the first event of each key its head, due immediately, unless it is the head already. heads are the seqs of events
-- that were parked as heads in this transaction. A replay may have put a dead letter before one of them since its lease was
-- taken: then it is not the head. This statement sees that, because the cursor of the lease was locked before it.
WITH demoted AS (
    UPDATE outbox_schema.parked AS p
    SET retry_after = NULL
    FROM (SELECT unnest(@heads::bigint[]) AS seq) AS h
    WHERE p.listener = @listener
      AND p.seq = h.seq
      AND p.no <> (
        SELECT o.no
        FROM outbox_schema.parked AS o
        WHERE o.listener = @listener
          AND o.key >= p.key
          AND o.key <= p.key
        ORDER BY o.listener, o.key, o.no
        LIMIT 1
      )
)
UPDATE outbox_schema.parked AS p
SET retry_after = clock_timestamp(),
    taken = @taken
FROM (SELECT unnest(@keys::text[]) AS key) AS k
CROSS JOIN LATERAL (
    SELECT o.no
    FROM outbox_schema.parked AS o
    WHERE o.listener = @listener
      AND o.key >= k.key
      AND o.key <= k.key
    ORDER BY o.listener, o.key, o.no
    LIMIT 1
) AS first
WHERE p.no = first.no
  AND p.retry_after IS NULL;

-- name: ParkedWake :exec
-- Makes heads due that wait for a target that is back: those without an attempt. Rows are locked in the order of no,
-- and rows that another statement is settling are skipped, so that no two such statements wait for each other.
UPDATE outbox_schema.parked AS p
SET retry_after = statement_timestamp()
FROM (
    SELECT o.no
    FROM outbox_schema.parked AS o
    WHERE o.listener = @listener
      AND o.retry_after > statement_timestamp()
      AND o.attempts = 0
      AND o.namespace || '/' || o.topic = ANY (@topics::text[])
    ORDER BY o.no
    FOR NO KEY UPDATE SKIP LOCKED
) AS w
WHERE p.no = w.no;
