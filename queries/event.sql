-- name: EventInsert :one
-- Writes one event unless its dedupe key is taken. Then there is no row, and never an error that would abort the
-- caller's transaction. An insert that meets an uncommitted event with its key waits for that transaction to end.
-- woke reports whether a NOTIFY was sent. The shared lock is refused only while a dispatcher sleeps with the
-- exclusive one. So NOTIFY, which makes commits queue on one lock of the cluster, is sent only then.
INSERT INTO outbox_schema.events (
    id, namespace, topic, version, tenant_id, dedupe_key, partition_key, entity_type, entity_id,
    entity_version, headers, payload, max_attempts, next_attempt_at)
VALUES (
    @id, @namespace, @topic, @version, @tenant_id, nullif(@dedupe_key::text, ''),
    nullif(@partition_key::text, ''), nullif(@entity_type::text, ''), nullif(@entity_id::text, ''),
    CASE WHEN @entity_type::text <> '' THEN @entity_version::bigint END, @headers, @payload, @max_attempts,
    coalesce(sqlc.narg('not_before')::timestamptz, statement_timestamp()))
ON CONFLICT (namespace, topic, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING
RETURNING
    (CASE
        WHEN NOT @wake::boolean THEN false
        WHEN pg_try_advisory_xact_lock_shared(@lock_key::bigint) THEN false
        ELSE pg_notify(@channel::text, '') IS NOT NULL
    END)::boolean AS woke;

-- name: EventInsertMany :one
-- EventInsert for a slice, in one statement. Rows are inserted by dedupe key, in Go's order, so that two calls with keys
-- in common wait for each other in one order and cannot deadlock. The doorbell is tried once.
-- An array may be shorter than ids, and is empty when no event has a value: unnest pads it with nulls.
-- Returns how many were written and, if not all were, their ids; the others are duplicates.
WITH wanted AS (
    SELECT
        unnest(@ids::uuid[]) AS id,
        unnest(@tenant_ids::uuid[]) AS tenant_id,
        unnest(@dedupe_keys::text[]) AS dedupe_key,
        unnest(@partition_keys::text[]) AS partition_key,
        unnest(@entity_types::text[]) AS entity_type,
        unnest(@entity_ids::text[]) AS entity_id,
        unnest(@entity_versions::bigint[]) AS entity_version,
        unnest(@headers::jsonb[]) AS headers,
        unnest(@payloads::jsonb[]) AS payload,
        unnest(@max_attempts::integer[]) AS max_attempts,
        unnest(@not_before::timestamptz[]) AS not_before
),
inserted AS (
    INSERT INTO outbox_schema.events (
        id, namespace, topic, version, tenant_id, dedupe_key, partition_key, entity_type, entity_id,
        entity_version, headers, payload, max_attempts, next_attempt_at)
    SELECT
        w.id, @namespace, @topic, @version, w.tenant_id, nullif(w.dedupe_key, ''), nullif(w.partition_key, ''),
        nullif(w.entity_type, ''), nullif(w.entity_id, ''),
        CASE WHEN w.entity_type <> '' THEN w.entity_version END,
        w.headers, w.payload, w.max_attempts, coalesce(w.not_before, statement_timestamp())
    FROM wanted AS w
    ORDER BY w.dedupe_key COLLATE "C"
    ON CONFLICT (namespace, topic, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING
    RETURNING events.id
)
SELECT
    count(*) AS written,
    (CASE WHEN count(*) < cardinality(@ids::uuid[]) THEN (SELECT array_agg(i.id) FROM inserted AS i) END)::uuid[] AS ids,
    (CASE
        WHEN count(*) = 0 OR NOT @wake::boolean THEN false
        WHEN pg_try_advisory_xact_lock_shared(@lock_key::bigint) THEN false
        ELSE pg_notify(@channel::text, '') IS NOT NULL
    END)::boolean AS woke
FROM inserted;

-- name: EventInsertManyKeyless :one
-- EventInsertMany, with the same parameters, for events without dedupe keys. Nothing can conflict, and ON CONFLICT
-- would still cost each row a lock and a second record in the WAL.
WITH wanted AS (
    SELECT
        unnest(@ids::uuid[]) AS id,
        unnest(@tenant_ids::uuid[]) AS tenant_id,
        unnest(@dedupe_keys::text[]) AS dedupe_key,
        unnest(@partition_keys::text[]) AS partition_key,
        unnest(@entity_types::text[]) AS entity_type,
        unnest(@entity_ids::text[]) AS entity_id,
        unnest(@entity_versions::bigint[]) AS entity_version,
        unnest(@headers::jsonb[]) AS headers,
        unnest(@payloads::jsonb[]) AS payload,
        unnest(@max_attempts::integer[]) AS max_attempts,
        unnest(@not_before::timestamptz[]) AS not_before
),
inserted AS (
    INSERT INTO outbox_schema.events (
        id, namespace, topic, version, tenant_id, dedupe_key, partition_key, entity_type, entity_id,
        entity_version, headers, payload, max_attempts, next_attempt_at)
    SELECT
        w.id, @namespace, @topic, @version, w.tenant_id, nullif(w.dedupe_key, ''), nullif(w.partition_key, ''),
        nullif(w.entity_type, ''), nullif(w.entity_id, ''),
        CASE WHEN w.entity_type <> '' THEN w.entity_version END,
        w.headers, w.payload, w.max_attempts, coalesce(w.not_before, statement_timestamp())
    FROM wanted AS w
    RETURNING events.id
)
SELECT
    count(*) AS written,
    (CASE WHEN count(*) < cardinality(@ids::uuid[]) THEN (SELECT array_agg(i.id) FROM inserted AS i) END)::uuid[] AS ids,
    (CASE
        WHEN count(*) = 0 OR NOT @wake::boolean THEN false
        WHEN pg_try_advisory_xact_lock_shared(@lock_key::bigint) THEN false
        ELSE pg_notify(@channel::text, '') IS NOT NULL
    END)::boolean AS woke
FROM inserted;

-- name: EventQueue :one
-- EventInsert as a single statement of the caller's own batch, where no second statement can follow to read the first
-- event. On a duplicate it returns the id that its snapshot sees. That is null if the other transaction committed
-- while this statement waited for it.
WITH inserted AS (
    INSERT INTO outbox_schema.events (
        id, namespace, topic, version, tenant_id, dedupe_key, partition_key, entity_type, entity_id,
        entity_version, headers, payload, max_attempts, next_attempt_at)
    VALUES (
        @id, @namespace, @topic, @version, @tenant_id, nullif(@dedupe_key::text, ''),
        nullif(@partition_key::text, ''), nullif(@entity_type::text, ''), nullif(@entity_id::text, ''),
        CASE WHEN @entity_type::text <> '' THEN @entity_version::bigint END, @headers, @payload, @max_attempts,
        coalesce(sqlc.narg('not_before')::timestamptz, statement_timestamp()))
    ON CONFLICT (namespace, topic, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING
    RETURNING
        CASE
            WHEN NOT @wake::boolean THEN false
            WHEN pg_try_advisory_xact_lock_shared(@lock_key::bigint) THEN false
            ELSE pg_notify(@channel::text, '') IS NOT NULL
        END AS woke
)
SELECT
    n.written,
    (CASE WHEN NOT n.written THEN (
        SELECT e.id
        FROM outbox_schema.events AS e
        WHERE e.namespace = @namespace
          AND e.topic = @topic
          AND e.dedupe_key = @dedupe_key::text
    ) END)::uuid AS rival
FROM (SELECT EXISTS (SELECT FROM inserted WHERE woke IS NOT NULL) AS written) AS n;

-- name: EventIDByKey :many
-- Reads which events have the dedupe keys that EventInsert and EventInsertMany found taken. It is a separate statement,
-- because only a new snapshot sees the event that the insert waited for. LIMIT changes no result, because the key is
-- unique, but it holds the planner to one probe of events_dedupe_key per key. The statement runs in the caller's
-- transaction, with the caller's settings, and with poor statistics would read the whole topic.
SELECT e.id, e.dedupe_key::text AS dedupe_key
FROM (SELECT unnest(@dedupe_keys::text[]) AS dedupe_key) AS w
CROSS JOIN LATERAL (
    SELECT o.id, o.dedupe_key
    FROM outbox_schema.events AS o
    WHERE o.namespace = @namespace
      AND o.topic = @topic
      AND o.dedupe_key = w.dedupe_key
    LIMIT 1
) AS e;

-- name: EventClaim :many
-- Leases up to batch_size events, oldest due first. fresh walks events_due past what is claimed and stops at the
-- limit. reclaimed holds events whose lease ran out, because their handler may have killed its process: few at a time,
-- none behind edge, which is where fresh reached its limit, and none of in_flight, which the claimer itself has yet to
-- settle. An event on its last attempt comes alone, so that it cannot use up the attempts of its neighbours. edge
-- compares the id too, because a million events may be due at one time. MATERIALIZED and the join keep LIMIT from being
-- executed more than once.
-- The claim is a HOT update: no column of an index changes. Rows that another claim holds locked are skipped. FOR NO KEY
-- UPDATE, here and wherever a row is not deleted, is the lock of an UPDATE that does not change the key. It is
-- compatible with the KEY SHARE lock of a foreign key that refers to the table.
WITH fresh AS MATERIALIZED (
    SELECT e.id, e.next_attempt_at
    FROM outbox_schema.events AS e
    WHERE e.finalized_at IS NULL
      AND e.namespace = @namespace
      AND e.next_attempt_at <= statement_timestamp()
      AND e.locked_until IS NULL
      AND e.attempts < coalesce(sqlc.narg('max_attempts')::integer, e.max_attempts)
      AND (cardinality(@topics::text[]) = 0 OR e.topic = ANY (@topics::text[]))
      AND (cardinality(@tenant_ids::uuid[]) = 0 OR e.tenant_id = ANY (@tenant_ids::uuid[]))
    ORDER BY e.next_attempt_at, e.id
    LIMIT @batch_size::integer
    FOR NO KEY UPDATE SKIP LOCKED
),
edge AS MATERIALIZED (
    (SELECT f.next_attempt_at, f.id
     FROM fresh AS f
     WHERE (SELECT count(*) FROM fresh) >= @batch_size::integer
     ORDER BY f.next_attempt_at DESC, f.id DESC
     LIMIT 1)
    UNION ALL
    SELECT statement_timestamp(), 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid
    ORDER BY next_attempt_at, id
    LIMIT 1
),
reclaimed AS MATERIALIZED (
    SELECT
        e.id,
        e.next_attempt_at,
        e.attempts + 1 >= coalesce(sqlc.narg('max_attempts')::integer, e.max_attempts) AS last
    FROM outbox_schema.events AS e
    WHERE e.finalized_at IS NULL
      AND e.namespace = @namespace
      AND (e.next_attempt_at, e.id) <= (
          (SELECT g.next_attempt_at FROM edge AS g), (SELECT g.id FROM edge AS g))
      AND e.locked_until < statement_timestamp()
      AND NOT e.id = ANY (@in_flight::uuid[])
      AND e.attempts < coalesce(sqlc.narg('max_attempts')::integer, e.max_attempts)
      AND (cardinality(@topics::text[]) = 0 OR e.topic = ANY (@topics::text[]))
      AND (cardinality(@tenant_ids::uuid[]) = 0 OR e.tenant_id = ANY (@tenant_ids::uuid[]))
    ORDER BY e.next_attempt_at, e.id
    LIMIT @reclaims::integer
    FOR NO KEY UPDATE SKIP LOCKED
),
picked AS MATERIALIZED (
    (SELECT s.id FROM reclaimed AS s WHERE s.last ORDER BY s.next_attempt_at, s.id LIMIT 1)
    UNION ALL
    (SELECT u.id
     FROM (SELECT s.id, s.next_attempt_at FROM reclaimed AS s
           UNION ALL
           SELECT f.id, f.next_attempt_at FROM fresh AS f) AS u
     WHERE NOT EXISTS (SELECT FROM reclaimed AS s WHERE s.last)
     ORDER BY u.next_attempt_at, u.id
     LIMIT @batch_size::integer)
),
claimed AS (
    UPDATE outbox_schema.events AS e
    SET status = 'processing',
        attempts = e.attempts + 1,
        max_attempts = coalesce(sqlc.narg('max_attempts')::integer, e.max_attempts),
        claim_no = e.claim_no + 1,
        locked_by = @worker_id,
        locked_until = clock_timestamp() + @lease::interval,
        updated_at = clock_timestamp()
    FROM picked AS p
    WHERE e.id = p.id
    RETURNING e.id, e.topic, e.version, e.tenant_id, e.dedupe_key, e.partition_key, e.entity_type, e.entity_id,
        e.entity_version, e.headers, e.payload, e.attempts, e.max_attempts, e.claim_no, e.created_at,
        e.next_attempt_at
)
SELECT c.id, c.topic, c.version, c.tenant_id,
    coalesce(c.dedupe_key, '') AS dedupe_key,
    coalesce(c.partition_key, '') AS partition_key,
    coalesce(c.entity_type, '') AS entity_type,
    coalesce(c.entity_id, '') AS entity_id,
    coalesce(c.entity_version, 0) AS entity_version,
    c.headers, c.payload, c.attempts, c.max_attempts, c.claim_no, c.created_at, c.next_attempt_at,
    EXISTS (SELECT FROM reclaimed AS s WHERE s.id = c.id)::boolean AS reclaimed
FROM claimed AS c
ORDER BY c.next_attempt_at, c.id;

-- name: EventClaimFresh :many
-- EventClaim without events whose lease ran out, for a dispatcher that claims those only once per poll interval: a
-- smaller plan, and one walk instead of two. It starts after (after_due, after_id). A dispatcher with a backlog has
-- claimed up to there, so it need not walk past what is in flight.
WITH fresh AS MATERIALIZED (
    SELECT e.id
    FROM outbox_schema.events AS e
    WHERE e.finalized_at IS NULL
      AND e.namespace = @namespace
      AND (e.next_attempt_at, e.id) > (@after_due::timestamptz, @after_id::uuid)
      AND e.next_attempt_at <= statement_timestamp()
      AND e.locked_until IS NULL
      AND e.attempts < coalesce(sqlc.narg('max_attempts')::integer, e.max_attempts)
      AND (cardinality(@topics::text[]) = 0 OR e.topic = ANY (@topics::text[]))
      AND (cardinality(@tenant_ids::uuid[]) = 0 OR e.tenant_id = ANY (@tenant_ids::uuid[]))
    ORDER BY e.next_attempt_at, e.id
    LIMIT @batch_size::integer
    FOR NO KEY UPDATE SKIP LOCKED
),
claimed AS (
    UPDATE outbox_schema.events AS e
    SET status = 'processing',
        attempts = e.attempts + 1,
        max_attempts = coalesce(sqlc.narg('max_attempts')::integer, e.max_attempts),
        claim_no = e.claim_no + 1,
        locked_by = @worker_id,
        locked_until = clock_timestamp() + @lease::interval,
        updated_at = clock_timestamp()
    FROM fresh AS f
    WHERE e.id = f.id
    RETURNING e.id, e.topic, e.version, e.tenant_id, e.dedupe_key, e.partition_key, e.entity_type, e.entity_id,
        e.entity_version, e.headers, e.payload, e.attempts, e.max_attempts, e.claim_no, e.created_at,
        e.next_attempt_at
)
SELECT c.id, c.topic, c.version, c.tenant_id,
    coalesce(c.dedupe_key, '') AS dedupe_key,
    coalesce(c.partition_key, '') AS partition_key,
    coalesce(c.entity_type, '') AS entity_type,
    coalesce(c.entity_id, '') AS entity_id,
    coalesce(c.entity_version, 0) AS entity_version,
    c.headers, c.payload, c.attempts, c.max_attempts, c.claim_no, c.created_at, c.next_attempt_at,
    false AS reclaimed
FROM claimed AS c
ORDER BY c.next_attempt_at, c.id;

-- name: EventAck :many
-- Marks events as delivered. Guarded by (id, claim_no, locked_by), because the worker alone proves nothing: it may have
-- lost the event and claimed it again. Rows are locked in id order, so that no two finalisers deadlock: want is sorted,
-- and SessionGuard leaves no join except a nested loop over it. Returns the claims that it ended; EventStatuses tells what
-- became of the others.
WITH want AS MATERIALIZED (
    SELECT w.id, w.claim_no
    FROM (SELECT unnest(@ids::uuid[]) AS id, unnest(@claim_nos::bigint[]) AS claim_no) AS w
    ORDER BY w.id
)
UPDATE outbox_schema.events AS e
SET status = 'delivered',
    finalized_at = statement_timestamp(),
    updated_at = statement_timestamp(),
    locked_until = NULL,
    last_error = NULL
FROM want AS w
WHERE e.id = w.id
  AND e.claim_no = w.claim_no
  AND e.status = 'processing'
  AND e.locked_by = @worker_id
RETURNING e.id, e.claim_no;

-- name: EventAckDelete :many
-- EventAck for topics that keep no history.
WITH want AS MATERIALIZED (
    SELECT w.id, w.claim_no
    FROM (SELECT unnest(@ids::uuid[]) AS id, unnest(@claim_nos::bigint[]) AS claim_no) AS w
    ORDER BY w.id
)
DELETE FROM outbox_schema.events AS e
USING want AS w
WHERE e.id = w.id
  AND e.claim_no = w.claim_no
  AND e.status = 'processing'
  AND e.locked_by = @worker_id
RETURNING e.id, e.claim_no;

-- name: EventNack :many
-- Marks events as failed: pending again, due after the delay or at retry_at, or dead if it was the last attempt or the
-- failure is permanent. Guard and lock order are those of EventAck.
WITH want AS (
    SELECT
        unnest(@ids::uuid[]) AS id,
        unnest(@claim_nos::bigint[]) AS claim_no,
        unnest(@delays_us::bigint[]) AS delay_us,
        unnest(@retry_ats::timestamptz[]) AS retry_at,
        unnest(@permanents::boolean[]) AS permanent,
        unnest(@errors::text[]) AS error
),
own AS MATERIALIZED (
    SELECT
        e.id,
        w.permanent OR e.attempts >= e.max_attempts AS dies,
        coalesce(w.retry_at, clock_timestamp() + w.delay_us * interval '1 microsecond') AS due,
        w.error
    FROM want AS w
    JOIN outbox_schema.events AS e ON e.id = w.id AND e.claim_no = w.claim_no
    WHERE e.status = 'processing'
      AND e.locked_by = @worker_id
    ORDER BY e.id
    FOR NO KEY UPDATE OF e
)
UPDATE outbox_schema.events AS e
SET status = CASE WHEN o.dies THEN 'dead' ELSE 'pending' END,
    finalized_at = CASE WHEN o.dies THEN statement_timestamp() END,
    next_attempt_at = CASE WHEN o.dies THEN e.next_attempt_at ELSE o.due END,
    updated_at = statement_timestamp(),
    locked_until = NULL,
    last_error = o.error
FROM own AS o
WHERE e.id = o.id
RETURNING e.id, e.claim_no, o.dies::boolean AS died;

-- name: EventRelease :many
-- Hands events back: pending, with the attempt uncounted, due as before or after a delay. claim_no stays, so the claim is
-- over. Guard and lock order are those of EventAck.
WITH want AS (
    SELECT
        unnest(@ids::uuid[]) AS id,
        unnest(@claim_nos::bigint[]) AS claim_no,
        unnest(@delays_us::bigint[]) AS delay_us
),
own AS MATERIALIZED (
    SELECT e.id, w.delay_us
    FROM want AS w
    JOIN outbox_schema.events AS e ON e.id = w.id AND e.claim_no = w.claim_no
    WHERE e.status = 'processing'
      AND e.locked_by = @worker_id
    ORDER BY e.id
    FOR NO KEY UPDATE OF e
)
UPDATE outbox_schema.events AS e
SET status = 'pending',
    attempts = greatest(e.attempts - 1, 0),
    next_attempt_at = CASE
        WHEN o.delay_us > 0 THEN statement_timestamp() + o.delay_us * interval '1 microsecond'
        ELSE e.next_attempt_at
    END,
    updated_at = statement_timestamp(),
    locked_until = NULL
FROM own AS o
WHERE e.id = o.id
RETURNING e.id, e.claim_no;

-- name: EventExtend :many
-- Renews leases, a HOT update like the claim. A lease that ran out is renewed too, unless another claim has taken the
-- event. The guard is that of EventAck. SKIP LOCKED, because a renewal that waits for one row would meanwhile lose all
-- leases of its batch; EventStatuses reports which rows were skipped.
WITH want AS (
    SELECT
        unnest(@ids::uuid[]) AS id,
        unnest(@claim_nos::bigint[]) AS claim_no
),
own AS MATERIALIZED (
    SELECT e.id
    FROM want AS w
    JOIN outbox_schema.events AS e ON e.id = w.id AND e.claim_no = w.claim_no
    WHERE e.status = 'processing'
      AND e.locked_by = @worker_id
    ORDER BY e.id
    FOR NO KEY UPDATE OF e SKIP LOCKED
)
UPDATE outbox_schema.events AS e
SET locked_until = clock_timestamp() + @lease::interval,
    updated_at = statement_timestamp()
FROM own AS o
WHERE e.id = o.id
RETURNING e.id, e.claim_no;

-- name: EventStatuses :many
-- Reads the state of events, to tell a repeated finalisation from a lost lease and from a row that is locked.
SELECT e.id, e.status, e.claim_no, e.locked_by, e.attempts, coalesce(e.last_error, '') AS last_error
FROM (SELECT unnest(@ids::uuid[]) AS id) AS w
JOIN outbox_schema.events AS e ON e.id = w.id;

-- name: EventSweepDead :one
-- Makes events dead that no claim will take again: those whose lease ran out on their last attempt, and pending ones
-- whose attempts exceed a limit that was lowered since. Walks the due part of events_due. SKIP LOCKED, so that it never
-- waits for a late ack. An event whose lease ran out is only noted at first, by an updated_at past locked_until. No
-- claim and no renewal leaves such a value. The holder may be alive, and may have been without the database for as long
-- as every other process. The event becomes dead if nothing has changed after the grace, which counts from the first
-- sweep that finds it and in which the holder can settle it by its fence. in_flight is left out, because the sweeper
-- itself has yet to settle it. Returns how many became dead, and how many were noted.
WITH spent AS MATERIALIZED (
    SELECT
        e.id,
        (
            e.locked_until IS NULL
            OR e.updated_at > e.locked_until
            OR @grace::interval = interval '0'
        ) AS dies
    FROM outbox_schema.events AS e
    WHERE e.finalized_at IS NULL
      AND e.namespace = @namespace
      AND e.next_attempt_at <= statement_timestamp()
      AND e.attempts >= coalesce(sqlc.narg('max_attempts')::integer, e.max_attempts)
      AND (
          e.locked_until IS NULL
          OR e.locked_until < statement_timestamp()
              AND NOT e.updated_at > greatest(e.locked_until, statement_timestamp() - @grace::interval)
      )
      AND NOT e.id = ANY (@in_flight::uuid[])
      AND (cardinality(@topics::text[]) = 0 OR e.topic = ANY (@topics::text[]))
      AND (cardinality(@tenant_ids::uuid[]) = 0 OR e.tenant_id = ANY (@tenant_ids::uuid[]))
    ORDER BY e.next_attempt_at, e.id
    LIMIT @batch_size::integer
    FOR NO KEY UPDATE SKIP LOCKED
),
swept AS (
    UPDATE outbox_schema.events AS e
    SET status = CASE WHEN s.dies THEN 'dead' ELSE e.status END,
        finalized_at = CASE WHEN s.dies THEN statement_timestamp() END,
        updated_at = statement_timestamp(),
        locked_until = CASE WHEN s.dies THEN NULL ELSE e.locked_until END,
        last_error = CASE
            WHEN NOT s.dies THEN e.last_error
            WHEN e.locked_until IS NULL THEN coalesce(e.last_error, 'attempts spent: the limit was lowered')
            ELSE 'lease ran out on attempt ' || e.attempts || ', worker ' || coalesce(e.locked_by::text, 'unknown')
                || ' did not answer' || coalesce('; before: ' || left(e.last_error, 450), '')
            END
    FROM spent AS s
    WHERE e.id = s.id
    RETURNING s.dies
)
SELECT
    count(*) FILTER (WHERE w.dies) AS died,
    count(*) FILTER (WHERE NOT w.dies) AS noted
FROM swept AS w;

-- name: EventPrune :execrows
-- Deletes one chunk of final events past their retention, oldest first, by events_final. FOR UPDATE, because it
-- deletes: a row that a foreign key has locked is skipped, and not waited for.
WITH old AS MATERIALIZED (
    SELECT e.id
    FROM outbox_schema.events AS e
    WHERE e.namespace = @namespace
      AND e.topic = @topic
      AND e.status = @status
      AND e.finalized_at IS NOT NULL
      AND e.finalized_at < statement_timestamp() - @retention::interval
    ORDER BY e.finalized_at
    LIMIT @batch_size::integer
    FOR UPDATE SKIP LOCKED
)
DELETE FROM outbox_schema.events AS e
USING old AS o
WHERE e.id = o.id;

-- name: EventFinalTopics :many
-- Lists the topics of a namespace that have final events, with one index probe per topic.
WITH RECURSIVE step AS (
    (SELECT e.topic
     FROM outbox_schema.events AS e
     WHERE e.namespace = @namespace
       AND e.finalized_at IS NOT NULL
     ORDER BY e.topic
     LIMIT 1)
    UNION ALL
    SELECT (
        SELECT e.topic
        FROM outbox_schema.events AS e
        WHERE e.namespace = @namespace
          AND e.finalized_at IS NOT NULL
          AND e.topic > s.topic
        ORDER BY e.topic
        LIMIT 1)
    FROM step AS s
    WHERE s.topic IS NOT NULL
)
SELECT s.topic::text AS topic
FROM step AS s
WHERE s.topic IS NOT NULL;
