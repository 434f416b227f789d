-- name: EventInsert :one
-- Writes one event and its state unless its dedupe key is taken. Then there is no row, and never an error that would abort
-- the caller's transaction. An insert that meets an uncommitted event with its key waits for that transaction to end.
-- woke reports whether a NOTIFY was sent. The shared lock is refused only while a dispatcher sleeps with the
-- exclusive one. So NOTIFY, which makes commits queue on one lock of the cluster, is sent only then. Without a lock_key
-- nobody is woken.
-- What an event does not have is sent as NULL, because PostgreSQL prepares every expression of a statement each time it runs.
WITH inserted AS (
    INSERT INTO outbox_schema.events (
        id, namespace, topic, version, tenant_id, dedupe_key, partition_key, entity_type, entity_id,
        entity_version, headers, payload)
    VALUES (
        @id, @namespace, @topic, @version, @tenant_id, @dedupe_key::text, sqlc.narg('partition_key')::text,
        sqlc.narg('entity_type')::text, sqlc.narg('entity_id')::text, sqlc.narg('entity_version')::bigint, @headers, @payload)
    ON CONFLICT (namespace, topic, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING
    RETURNING events.id
)
INSERT INTO outbox_schema.queue (id, namespace, topic, version, tenant_id, lane, turn, max_attempts, next_attempt_at)
SELECT i.id, @namespace, @topic, @version, @tenant_id, @lane, sqlc.narg('turn')::text, @max_attempts,
    coalesce(sqlc.narg('not_before')::timestamptz, statement_timestamp())
FROM inserted AS i
RETURNING
    (CASE
        WHEN pg_try_advisory_xact_lock_shared(sqlc.narg('lock_key')::bigint) IS NOT FALSE THEN false
        ELSE pg_notify(@channel::text, '') IS NOT NULL
    END)::boolean AS woke;

-- name: EventInsertKeyless :one
-- EventInsert of an event without a dedupe key. Nothing can conflict, so it needs no ON CONFLICT, which costs the row a lock
-- and a second record in the WAL, and the state need not wait for what was inserted.
WITH inserted AS (
    INSERT INTO outbox_schema.events (
        id, namespace, topic, version, tenant_id, partition_key, entity_type, entity_id,
        entity_version, headers, payload)
    VALUES (
        @id, @namespace, @topic, @version, @tenant_id, sqlc.narg('partition_key')::text,
        sqlc.narg('entity_type')::text, sqlc.narg('entity_id')::text, sqlc.narg('entity_version')::bigint, @headers, @payload)
)
INSERT INTO outbox_schema.queue (id, namespace, topic, version, tenant_id, lane, turn, max_attempts, next_attempt_at)
VALUES (
    @id, @namespace, @topic, @version, @tenant_id, @lane, sqlc.narg('turn')::text, @max_attempts,
    coalesce(sqlc.narg('not_before')::timestamptz, statement_timestamp()))
RETURNING
    (CASE
        WHEN pg_try_advisory_xact_lock_shared(sqlc.narg('lock_key')::bigint) IS NOT FALSE THEN false
        ELSE pg_notify(@channel::text, '') IS NOT NULL
    END)::boolean AS woke;

-- name: EventInsertMany :one
-- EventInsert for a slice, in one statement. Rows are inserted by dedupe key, in Go's order, so that two calls with keys
-- in common wait for each other in one order and cannot deadlock. The doorbell is tried once.
-- An array may be shorter than ids, and is empty when no event has a value: unnest pads it with nulls. IS TRUE keeps the
-- ANY from becoming a join, which the planner of the caller's transaction may run as a nested loop over all pairs; as it
-- is, each id is looked up in a hash table.
-- Returns how many were written and, if not all were, their ids; the others are duplicates.
WITH wanted AS (
    SELECT
        pg_catalog.unnest(@ids::uuid[]) AS id,
        pg_catalog.unnest(@tenant_ids::uuid[]) AS tenant_id,
        pg_catalog.unnest(@dedupe_keys::text[]) AS dedupe_key,
        pg_catalog.unnest(@partition_keys::text[]) AS partition_key,
        pg_catalog.unnest(@entity_types::text[]) AS entity_type,
        pg_catalog.unnest(@entity_ids::text[]) AS entity_id,
        pg_catalog.unnest(@entity_versions::bigint[]) AS entity_version,
        pg_catalog.unnest(@headers::jsonb[]) AS headers,
        pg_catalog.unnest(@payloads::jsonb[]) AS payload,
        pg_catalog.unnest(@turns::text[]) AS turn,
        pg_catalog.unnest(@max_attempts::integer[]) AS max_attempts,
        pg_catalog.unnest(@not_before::timestamptz[]) AS not_before
),
inserted AS (
    INSERT INTO outbox_schema.events (
        id, namespace, topic, version, tenant_id, dedupe_key, partition_key, entity_type, entity_id,
        entity_version, headers, payload)
    SELECT
        w.id, @namespace, @topic, @version, w.tenant_id, nullif(w.dedupe_key, ''), nullif(w.partition_key, ''),
        nullif(w.entity_type, ''), nullif(w.entity_id, ''),
        CASE WHEN w.entity_type <> '' THEN w.entity_version END,
        w.headers, w.payload
    FROM wanted AS w
    ORDER BY w.dedupe_key COLLATE "C"
    ON CONFLICT (namespace, topic, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING
    RETURNING events.id
),
queued AS (
    INSERT INTO outbox_schema.queue (id, namespace, topic, version, tenant_id, lane, turn, max_attempts, next_attempt_at)
    SELECT w.id, @namespace, @topic, @version, w.tenant_id, CASE WHEN w.turn IS NULL THEN @lane::integer ELSE @turn_lane::integer END, w.turn,
        w.max_attempts,
        coalesce(w.not_before, statement_timestamp())
    FROM wanted AS w
    WHERE (w.id = ANY (SELECT i.id FROM inserted AS i)) IS TRUE
)
SELECT
    count(*) AS written,
    (CASE WHEN count(*) < pg_catalog.cardinality(@ids::uuid[]) THEN (SELECT pg_catalog.array_agg(i.id) FROM inserted AS i) END)::uuid[] AS ids,
    (CASE
        WHEN count(*) = 0 THEN false
        WHEN pg_try_advisory_xact_lock_shared(sqlc.narg('lock_key')::bigint) IS NOT FALSE THEN false
        ELSE pg_notify(@channel::text, '') IS NOT NULL
    END)::boolean AS woke
FROM inserted;

-- name: EventInsertManyKeyless :one
-- EventInsertMany, with the same parameters, for events without dedupe keys. Nothing can conflict, and ON CONFLICT
-- would still cost each row a lock and a second record in the WAL.
WITH wanted AS (
    SELECT
        pg_catalog.unnest(@ids::uuid[]) AS id,
        pg_catalog.unnest(@tenant_ids::uuid[]) AS tenant_id,
        pg_catalog.unnest(@dedupe_keys::text[]) AS dedupe_key,
        pg_catalog.unnest(@partition_keys::text[]) AS partition_key,
        pg_catalog.unnest(@entity_types::text[]) AS entity_type,
        pg_catalog.unnest(@entity_ids::text[]) AS entity_id,
        pg_catalog.unnest(@entity_versions::bigint[]) AS entity_version,
        pg_catalog.unnest(@headers::jsonb[]) AS headers,
        pg_catalog.unnest(@payloads::jsonb[]) AS payload,
        pg_catalog.unnest(@turns::text[]) AS turn,
        pg_catalog.unnest(@max_attempts::integer[]) AS max_attempts,
        pg_catalog.unnest(@not_before::timestamptz[]) AS not_before
),
inserted AS (
    INSERT INTO outbox_schema.events (
        id, namespace, topic, version, tenant_id, dedupe_key, partition_key, entity_type, entity_id,
        entity_version, headers, payload)
    SELECT
        w.id, @namespace, @topic, @version, w.tenant_id, nullif(w.dedupe_key, ''), nullif(w.partition_key, ''),
        nullif(w.entity_type, ''), nullif(w.entity_id, ''),
        CASE WHEN w.entity_type <> '' THEN w.entity_version END,
        w.headers, w.payload
    FROM wanted AS w
    RETURNING events.id
),
queued AS (
    INSERT INTO outbox_schema.queue (id, namespace, topic, version, tenant_id, lane, turn, max_attempts, next_attempt_at)
    SELECT w.id, @namespace, @topic, @version, w.tenant_id, CASE WHEN w.turn IS NULL THEN @lane::integer ELSE @turn_lane::integer END, w.turn,
        w.max_attempts,
        coalesce(w.not_before, statement_timestamp())
    FROM wanted AS w
)
SELECT
    count(*) AS written,
    (CASE WHEN count(*) < pg_catalog.cardinality(@ids::uuid[]) THEN (SELECT pg_catalog.array_agg(i.id) FROM inserted AS i) END)::uuid[] AS ids,
    (CASE
        WHEN count(*) = 0 THEN false
        WHEN pg_try_advisory_xact_lock_shared(sqlc.narg('lock_key')::bigint) IS NOT FALSE THEN false
        ELSE pg_notify(@channel::text, '') IS NOT NULL
    END)::boolean AS woke
FROM inserted;

-- name: EventQueue :one
-- EventInsert as a single statement of the caller's own batch, where no second statement can follow to read the first
-- event. On a duplicate it returns the id that its snapshot sees. That is null if the other transaction committed
-- while this statement waited for it. An event without a dedupe key is written by EventInsertKeyless.
WITH inserted AS (
    INSERT INTO outbox_schema.events (
        id, namespace, topic, version, tenant_id, dedupe_key, partition_key, entity_type, entity_id,
        entity_version, headers, payload)
    VALUES (
        @id, @namespace, @topic, @version, @tenant_id, @dedupe_key::text, sqlc.narg('partition_key')::text,
        sqlc.narg('entity_type')::text, sqlc.narg('entity_id')::text, sqlc.narg('entity_version')::bigint, @headers, @payload)
    ON CONFLICT (namespace, topic, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING
    RETURNING events.id
),
queued AS (
    INSERT INTO outbox_schema.queue (id, namespace, topic, version, tenant_id, lane, turn, max_attempts, next_attempt_at)
    SELECT i.id, @namespace, @topic, @version, @tenant_id, @lane, sqlc.narg('turn')::text, @max_attempts,
        coalesce(sqlc.narg('not_before')::timestamptz, statement_timestamp())
    FROM inserted AS i
    RETURNING
        CASE
            WHEN pg_try_advisory_xact_lock_shared(sqlc.narg('lock_key')::bigint) IS NOT FALSE THEN false
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
FROM (SELECT EXISTS (SELECT FROM queued WHERE woke IS NOT NULL) AS written) AS n;

-- name: EventIDByKey :many
-- Reads which events have the dedupe keys that EventInsert and EventInsertMany found taken. It is a separate statement,
-- because only a new snapshot sees the event that the insert waited for. LIMIT changes no result, because the key is
-- unique, but it holds the planner to one probe of events_dedupe_key per key. The statement runs in the caller's
-- transaction, with the caller's settings, and with poor statistics would read the whole topic.
SELECT e.id, e.dedupe_key::text AS dedupe_key
FROM (SELECT pg_catalog.unnest(@dedupe_keys::text[]) AS dedupe_key) AS w
CROSS JOIN LATERAL (
    SELECT o.id, o.dedupe_key
    FROM outbox_schema.events AS o
    WHERE o.namespace = @namespace
      AND o.topic = @topic
      AND o.dedupe_key = w.dedupe_key
    LIMIT 1
) AS e;

-- name: EventLanes :many
-- Lists the lanes of a namespace that have rows in queue, by jumps from one to the next: a probe of queue_due for each. It
-- jumps backwards, because the dead row versions of what was delivered are at the heads of lanes.
WITH RECURSIVE walk AS (
    (
        SELECT q.lane
        FROM outbox_schema.queue AS q
        WHERE q.namespace = @namespace
        ORDER BY q.lane DESC
        LIMIT 1
    )
    UNION ALL
    SELECT n.lane
    FROM walk AS w
    CROSS JOIN LATERAL (
        SELECT q.lane
        FROM outbox_schema.queue AS q
        WHERE q.namespace = @namespace
          AND q.lane < w.lane
        ORDER BY q.lane DESC
        LIMIT 1
    ) AS n
)
SELECT w.lane
FROM walk AS w;

-- name: EventClaim :many
-- Leases up to batch_size events, as many from each lane that it comes to as from the others as far as it has any, and the
-- oldest of each.
-- Each lane is walked from (after_due, after_id) on. A walk passes over any number of events that it may not claim, so it
-- ends after piece events, or when it has met enough. ends tells where, and is -infinity for a lane of which nothing was
-- taken although it has something. The windows are computed in the order of the index, row by row, so that a walk that has
-- met enough stops.
--
-- In all it meets as many events as would fill eight batches, so that a backlog in each of very many lanes does not make it
-- slow: the caller puts those lanes first whose turn it is. passed is the lane where it has stopped. ends tells of each
-- lane behind that one what it tells of a lane of which nothing was taken.
--
-- What was met is locked by its id; rows that another claim holds locked are skipped. Another worker may have claimed and
-- failed an event since it was met, so the lock checks everything again. A lane that has more makes up for
-- those in filler, or concurrent claims of one lane would all get nothing except the first. MATERIALIZED keeps each LIMIT
-- from being executed more than once. FOR NO KEY UPDATE, here and wherever a row is not deleted, is the lock of an UPDATE
-- that does not change the key. The claim is a HOT update: no column of an index changes.
--
-- reclaimed holds events whose lease ran out, because their handler may have killed its process: few at a time,
-- none behind edge, which is where the others filled the batch, and none of in_flight, which the claimer itself has yet to
-- settle. An event on its last attempt comes alone, so that it cannot use up the attempts of its neighbours. edge
-- compares the id too, because a million events may be due at one time. A lease that ran out
-- is a failed attempt, and is kept as one.
--
-- versions are the newest payload versions that the claimer knows, by version_topics; a topic that is not there has no bound.
-- Events with a newer version are passed over like those of other topics. every_version is known of all topics, so that
-- nearly always one comparison is enough.
--
-- paused has what an operator has paused: topics, tenants, and tenants of one topic as topic/tenant. No text has two of these
-- meanings.
--
-- Returns the events in the order in which they are due, without payload and created_at if the event is gone from events;
-- and, with claim_no 0, the ends of walks, and in lane -1 the time of the claim, with the time of its end as created_at.
WITH met AS MATERIALIZED (
    SELECT l.lane, l.place, c.id, c.next_attempt_at, c.claimable, c.fresh, c.last, c.n = l.piece AS ended
    FROM (
        SELECT
            unnest(@lanes::integer[]) AS lane,
            generate_subscripts(@lanes::integer[], 1) AS place,
            unnest(@after_dues::timestamptz[]) AS after_due,
            unnest(@after_ids::uuid[]) AS after_id,
            unnest(@pieces::integer[]) AS piece
    ) AS l
    CROSS JOIN LATERAL (
        SELECT w.id, w.next_attempt_at, w.n, w.fresh, w.claimable, w.last
        FROM (
            SELECT
                p.id,
                p.next_attempt_at,
                row_number() OVER (ORDER BY p.next_attempt_at, p.id) AS n,
                p.locked_until IS NULL AS fresh,
                (
                    p.locked_until IS NULL
                    OR @reclaims::integer > 0
                        AND p.locked_until < statement_timestamp()
                        AND NOT p.id = ANY (@in_flight::uuid[])
                )
                AND p.attempts < coalesce(sqlc.narg('max_attempts')::integer, p.max_attempts)
                AND (cardinality(@topics::text[]) = 0 OR p.topic = ANY (@topics::text[]))
                AND (p.version <= @every_version::integer
                    OR coalesce(p.version <= (@versions::integer[])[array_position(@version_topics::text[], p.topic)], true))
                AND (cardinality(@tenant_ids::uuid[]) = 0 OR p.tenant_id = ANY (@tenant_ids::uuid[]))
                AND (
                    cardinality(@paused::text[]) = 0
                    OR NOT coalesce(p.topic = ANY (@paused::text[]) OR p.tenant_id::text = ANY (@paused::text[])
                        OR p.topic || '/' || p.tenant_id::text = ANY (@paused::text[]), false)
                ) AS claimable,
                p.attempts + 1 >= coalesce(sqlc.narg('max_attempts')::integer, p.max_attempts) AS last
            FROM (
                SELECT q.id, q.next_attempt_at, q.locked_until, q.attempts, q.max_attempts, q.topic, q.version, q.tenant_id
                FROM outbox_schema.queue AS q
                WHERE q.namespace = @namespace
                  AND q.lane = l.lane
                  AND (q.next_attempt_at, q.id) > (l.after_due, l.after_id)
                  AND q.next_attempt_at <= statement_timestamp()
                ORDER BY q.next_attempt_at, q.id
                LIMIT l.piece
            ) AS p
        ) AS w
        WHERE w.claimable IS TRUE
           OR w.n = l.piece
        LIMIT (@batch_size::integer) + @reclaims::integer
    ) AS c
    LIMIT 8 * ((@batch_size::integer) + @reclaims::integer)
),
passed AS MATERIALIZED (
    SELECT max(m.place) AS place
    FROM met AS m
    HAVING count(*) >= 8 * ((@batch_size::integer) + @reclaims::integer)
),
share AS MATERIALIZED (
    SELECT r.lane, r.id, r.next_attempt_at
    FROM (
        SELECT m.lane, m.id, m.next_attempt_at, row_number() OVER (PARTITION BY m.lane ORDER BY m.next_attempt_at, m.id) AS place
        FROM met AS m
        WHERE m.claimable
          AND m.fresh
    ) AS r
    ORDER BY r.place, r.next_attempt_at, r.id
    LIMIT @batch_size::integer
),
last AS MATERIALIZED (
    SELECT d.lane, d.next_attempt_at, d.id
    FROM (
        SELECT h.lane, h.next_attempt_at, h.id,
            row_number() OVER (PARTITION BY h.lane ORDER BY h.next_attempt_at DESC, h.id DESC) AS place
        FROM share AS h
    ) AS d
    WHERE d.place = 1
),
locked AS MATERIALIZED (
    SELECT q.id, q.next_attempt_at
    FROM share AS h
    JOIN outbox_schema.queue AS q ON q.id = h.id
    WHERE q.locked_until IS NULL
      AND q.next_attempt_at <= statement_timestamp()
      AND q.attempts < coalesce(sqlc.narg('max_attempts')::integer, q.max_attempts)
    FOR NO KEY UPDATE OF q SKIP LOCKED
),
filler AS MATERIALIZED (
    SELECT c.id, c.next_attempt_at
    FROM last AS d
    CROSS JOIN LATERAL (
        SELECT q.id, q.next_attempt_at
        FROM outbox_schema.queue AS q
        WHERE (SELECT count(*) FROM locked) < (SELECT count(*) FROM share)
          AND (SELECT count(*) FROM met AS m WHERE m.lane = d.lane) >= (@batch_size::integer) + @reclaims::integer
          AND q.namespace = @namespace
          AND q.lane = d.lane
          AND (q.next_attempt_at, q.id) > (d.next_attempt_at, d.id)
          AND q.next_attempt_at <= statement_timestamp()
          AND q.locked_until IS NULL
          AND q.attempts < coalesce(sqlc.narg('max_attempts')::integer, q.max_attempts)
          AND (cardinality(@topics::text[]) = 0 OR q.topic = ANY (@topics::text[]))
          AND (q.version <= @every_version::integer
              OR coalesce(q.version <= (@versions::integer[])[array_position(@version_topics::text[], q.topic)], true))
          AND (cardinality(@tenant_ids::uuid[]) = 0 OR q.tenant_id = ANY (@tenant_ids::uuid[]))
          AND (
              cardinality(@paused::text[]) = 0
              OR NOT coalesce(q.topic = ANY (@paused::text[]) OR q.tenant_id::text = ANY (@paused::text[])
                  OR q.topic || '/' || q.tenant_id::text = ANY (@paused::text[]), false)
          )
        ORDER BY q.next_attempt_at, q.id
        LIMIT @batch_size::integer
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS c
    LIMIT greatest((SELECT count(*) FROM share) - (SELECT count(*) FROM locked), 0)
),
taken AS MATERIALIZED (
    SELECT k.id, k.next_attempt_at FROM locked AS k
    UNION ALL
    SELECT f.id, f.next_attempt_at FROM filler AS f
),
edge AS MATERIALIZED (
    (SELECT t.next_attempt_at, t.id
     FROM taken AS t
     WHERE (SELECT count(*) FROM taken) >= @batch_size::integer
     ORDER BY t.next_attempt_at DESC, t.id DESC
     LIMIT 1)
    UNION ALL
    SELECT statement_timestamp(), 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid
    ORDER BY next_attempt_at, id
    LIMIT 1
),
reclaimed AS MATERIALIZED (
    SELECT q.id, q.next_attempt_at, m.last
    FROM (
        SELECT m.id, m.last
        FROM met AS m
        WHERE m.claimable
          AND NOT m.fresh
          AND (m.next_attempt_at, m.id) <= (
              (SELECT g.next_attempt_at FROM edge AS g), (SELECT g.id FROM edge AS g))
        ORDER BY m.next_attempt_at, m.id
        LIMIT @reclaims::integer
    ) AS m
    JOIN outbox_schema.queue AS q ON q.id = m.id
    WHERE q.locked_until < statement_timestamp()
    FOR NO KEY UPDATE OF q SKIP LOCKED
),
ends AS MATERIALIZED (
    SELECT e.lane,
        CASE WHEN e.unshared THEN coalesce(d.next_attempt_at, '-infinity') ELSE e.next_attempt_at END AS next_attempt_at,
        CASE WHEN e.unshared THEN coalesce(d.id, '00000000-0000-0000-0000-000000000000') ELSE e.id END AS id
    FROM (
        SELECT
            m.lane,
            count(*) FILTER (WHERE m.claimable AND m.fresh) > (SELECT count(*) FROM share AS h WHERE h.lane = m.lane) AS unshared,
            count(*) >= (@batch_size::integer) + @reclaims::integer OR bool_or(m.ended)
                OR m.place = (SELECT p.place FROM passed AS p) AS stopped,
            max(m.next_attempt_at) AS next_attempt_at,
            (array_agg(m.id ORDER BY m.next_attempt_at DESC, m.id DESC))[1] AS id
        FROM met AS m
        GROUP BY m.lane, m.place
    ) AS e
    LEFT JOIN last AS d ON d.lane = e.lane
    WHERE e.unshared
       OR e.stopped
    UNION ALL
    SELECT unnest((@lanes::integer[])[(SELECT p.place FROM passed AS p) + 1:]), '-infinity', '00000000-0000-0000-0000-000000000000'
),
picked AS MATERIALIZED (
    (SELECT s.id FROM reclaimed AS s WHERE s.last ORDER BY s.next_attempt_at, s.id LIMIT 1)
    UNION ALL
    (SELECT u.id
     FROM (SELECT s.id, s.next_attempt_at FROM reclaimed AS s
           UNION ALL
           SELECT t.id, t.next_attempt_at FROM taken AS t) AS u
     WHERE NOT EXISTS (SELECT FROM reclaimed AS s WHERE s.last)
     ORDER BY u.next_attempt_at, u.id
     LIMIT @batch_size::integer)
),
claimed AS (
    UPDATE outbox_schema.queue AS q
    SET attempts = q.attempts + 1,
        max_attempts = coalesce(sqlc.narg('max_attempts')::integer, q.max_attempts),
        claim_no = q.claim_no + 1,
        locked_by = @worker_id,
        locked_until = clock_timestamp() + @lease::interval,
        updated_at = clock_timestamp(),
        failures = CASE
            WHEN q.locked_until IS NULL THEN q.failures
            ELSE CASE WHEN jsonb_array_length(q.failures) >= 5 THEN q.failures - 0 ELSE coalesce(q.failures, '[]') END
                || jsonb_build_object('attempt', q.attempts, 'at', statement_timestamp(), 'worker', q.locked_by, 'error',
                    'lease ran out on attempt ' || q.attempts || ', worker ' || coalesce(q.locked_by::text, 'unknown') || ' did not answer')
        END
    FROM picked AS p
    WHERE q.id = p.id
    RETURNING q.id, q.topic, q.version, q.tenant_id, q.attempts, q.max_attempts, q.claim_no, q.next_attempt_at, q.lane
)
SELECT r.id, r.topic, r.version, r.tenant_id, r.dedupe_key, r.partition_key, r.entity_type, r.entity_id, r.entity_version,
    r.headers, r.payload, r.attempts, r.max_attempts, r.claim_no, r.created_at, r.next_attempt_at, r.lane, r.reclaimed
FROM (
    SELECT c.id, c.topic, c.version, c.tenant_id,
        coalesce(e.dedupe_key, '') AS dedupe_key,
        coalesce(e.partition_key, '') AS partition_key,
        coalesce(e.entity_type, '') AS entity_type,
        coalesce(e.entity_id, '') AS entity_id,
        coalesce(e.entity_version, 0) AS entity_version,
        e.headers, e.payload, c.attempts, c.max_attempts, c.claim_no, e.created_at, c.next_attempt_at, c.lane,
        EXISTS (SELECT FROM reclaimed AS s WHERE s.id = c.id)::boolean AS reclaimed
    FROM claimed AS c
    LEFT JOIN outbox_schema.events AS e ON e.id = c.id
    UNION ALL
    SELECT n.id, '', 0, NULL, '', '', '', '', 0, NULL, NULL, 0, 0, 0, NULL, n.next_attempt_at, n.lane, false
    FROM ends AS n
    UNION ALL
    SELECT NULL, '', 0, NULL, '', '', '', '', 0, NULL, NULL, 0, 0, 0, clock_timestamp(), statement_timestamp(), -1, false
) AS r
ORDER BY r.next_attempt_at, r.id;

-- name: EventClaimFresh :many
-- EventClaim for lanes that are walked without an end, each with its own quota, and without events whose lease ran out: a
-- smaller plan. The lanes are taken in the order of the array until the batch is full.
WITH picked AS MATERIALIZED (
    SELECT c.id
    FROM (
        SELECT
            unnest(@lanes::integer[]) AS lane,
            unnest(@after_dues::timestamptz[]) AS after_due,
            unnest(@after_ids::uuid[]) AS after_id,
            unnest(@quotas::integer[]) AS quota
    ) AS s
    CROSS JOIN LATERAL (
        SELECT q.id
        FROM outbox_schema.queue AS q
        WHERE q.namespace = @namespace
          AND q.lane = s.lane
          AND (q.next_attempt_at, q.id) > (s.after_due, s.after_id)
          AND q.next_attempt_at <= statement_timestamp()
          AND q.locked_until IS NULL
          AND q.attempts < coalesce(sqlc.narg('max_attempts')::integer, q.max_attempts)
          AND (cardinality(@topics::text[]) = 0 OR q.topic = ANY (@topics::text[]))
          AND (q.version <= @every_version::integer
              OR coalesce(q.version <= (@versions::integer[])[array_position(@version_topics::text[], q.topic)], true))
          AND (cardinality(@tenant_ids::uuid[]) = 0 OR q.tenant_id = ANY (@tenant_ids::uuid[]))
          AND (
              cardinality(@paused::text[]) = 0
              OR NOT coalesce(q.topic = ANY (@paused::text[]) OR q.tenant_id::text = ANY (@paused::text[])
                  OR q.topic || '/' || q.tenant_id::text = ANY (@paused::text[]), false)
          )
        ORDER BY q.next_attempt_at, q.id
        LIMIT s.quota
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS c
    LIMIT @batch_size::integer
),
claimed AS (
    UPDATE outbox_schema.queue AS q
    SET attempts = q.attempts + 1,
        max_attempts = coalesce(sqlc.narg('max_attempts')::integer, q.max_attempts),
        claim_no = q.claim_no + 1,
        locked_by = @worker_id,
        locked_until = clock_timestamp() + @lease::interval,
        updated_at = clock_timestamp()
    FROM picked AS p
    WHERE q.id = p.id
    RETURNING q.id, q.topic, q.version, q.tenant_id, q.attempts, q.max_attempts, q.claim_no, q.next_attempt_at, q.lane
)
SELECT r.id, r.topic, r.version, r.tenant_id, r.dedupe_key, r.partition_key, r.entity_type, r.entity_id, r.entity_version,
    r.headers, r.payload, r.attempts, r.max_attempts, r.claim_no, r.created_at, r.next_attempt_at, r.lane, r.reclaimed
FROM (
    SELECT c.id, c.topic, c.version, c.tenant_id,
        coalesce(e.dedupe_key, '') AS dedupe_key,
        coalesce(e.partition_key, '') AS partition_key,
        coalesce(e.entity_type, '') AS entity_type,
        coalesce(e.entity_id, '') AS entity_id,
        coalesce(e.entity_version, 0) AS entity_version,
        e.headers, e.payload, c.attempts, c.max_attempts, c.claim_no, e.created_at, c.next_attempt_at, c.lane,
        false AS reclaimed
    FROM claimed AS c
    LEFT JOIN outbox_schema.events AS e ON e.id = c.id
    UNION ALL
    SELECT NULL, '', 0, NULL, '', '', '', '', 0, NULL, NULL, 0, 0, 0, clock_timestamp(), statement_timestamp(), -1, false
) AS r
ORDER BY r.next_attempt_at, r.id;

-- name: EventAck :many
-- Marks events as delivered. Guarded by (id, claim_no, locked_by), because the worker alone proves nothing: it may have
-- lost the event and claimed it again. Rows are locked in id order, so that no two finalisers deadlock: want is sorted,
-- and SessionGuard leaves no join except a nested loop over it. Returns the claims that it ended; EventStatuses tells what
-- became of the others.
WITH want AS MATERIALIZED (
    SELECT w.id, w.claim_no
    FROM (SELECT unnest(@ids::uuid[]) AS id, unnest(@claim_nos::bigint[]) AS claim_no) AS w
    ORDER BY w.id
),
gone AS (
    DELETE FROM outbox_schema.queue AS q
    USING want AS w
    WHERE q.id = w.id
      AND q.claim_no = w.claim_no
      AND q.locked_until IS NOT NULL
      AND q.locked_by = @worker_id
    RETURNING q.id, q.claim_no, q.attempts, q.namespace, q.topic, q.locked_by, q.failures
)
INSERT INTO outbox_schema.delivered (id, claim_no, attempts, namespace, topic, locked_by, failures)
SELECT g.id, g.claim_no, g.attempts, g.namespace, g.topic, g.locked_by, g.failures
FROM gone AS g
RETURNING id, claim_no;

-- name: EventAckDelete :many
-- EventAck for topics that keep no history.
WITH want AS MATERIALIZED (
    SELECT w.id, w.claim_no
    FROM (SELECT unnest(@ids::uuid[]) AS id, unnest(@claim_nos::bigint[]) AS claim_no) AS w
    ORDER BY w.id
),
gone AS (
    DELETE FROM outbox_schema.queue AS q
    USING want AS w
    WHERE q.id = w.id
      AND q.claim_no = w.claim_no
      AND q.locked_until IS NOT NULL
      AND q.locked_by = @worker_id
    RETURNING q.id, q.claim_no
),
deleted AS (
    DELETE FROM outbox_schema.events AS e
    USING gone AS g
    WHERE e.id = g.id
)
SELECT g.id, g.claim_no
FROM gone AS g;

-- name: EventNack :many
-- Records a failed attempt, and makes the event due after the delay or at retry_at. If it was the last attempt or the
-- failure is permanent, the event becomes a dead letter. Guard and lock order are those of EventAck.
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
        q.id,
        w.permanent OR q.attempts >= q.max_attempts AS dies,
        coalesce(w.retry_at, clock_timestamp() + w.delay_us * interval '1 microsecond') AS due,
        w.error,
        CASE WHEN jsonb_array_length(q.failures) >= 5 THEN q.failures - 0 ELSE coalesce(q.failures, '[]') END
            || jsonb_build_object('attempt', q.attempts, 'at', statement_timestamp(), 'worker', q.locked_by, 'error', w.error) AS failures
    FROM want AS w
    JOIN outbox_schema.queue AS q ON q.id = w.id AND q.claim_no = w.claim_no
    WHERE q.locked_until IS NOT NULL
      AND q.locked_by = @worker_id
    ORDER BY q.id
    FOR NO KEY UPDATE OF q
),
retried AS (
    UPDATE outbox_schema.queue AS q
    SET next_attempt_at = o.due,
        updated_at = statement_timestamp(),
        locked_until = NULL,
        failures = o.failures
    FROM own AS o
    WHERE q.id = o.id
      AND NOT o.dies
    RETURNING q.id, q.claim_no
),
gone AS (
    DELETE FROM outbox_schema.queue AS q
    USING own AS o
    WHERE q.id = o.id
      AND o.dies
    RETURNING q.id, q.namespace, q.topic, q.version, q.tenant_id, q.attempts, q.max_attempts, q.claim_no, q.lane, q.turn, q.locked_by,
        o.failures::jsonb AS failures, o.error::text AS error
),
died AS (
    INSERT INTO outbox_schema.dead_letters (
        id, namespace, topic, version, tenant_id, dedupe_key, partition_key, entity_type, entity_id, entity_version,
        headers, payload, created_at, attempts, max_attempts, claim_no, lane, turn, locked_by, failures, error)
    SELECT g.id, g.namespace, g.topic, g.version, g.tenant_id, e.dedupe_key, e.partition_key, e.entity_type, e.entity_id,
        e.entity_version, e.headers, coalesce(e.payload, 'null'), coalesce(e.created_at, statement_timestamp()), g.attempts,
        g.max_attempts, g.claim_no, g.lane, g.turn, g.locked_by, g.failures, g.error
    FROM gone AS g
    LEFT JOIN outbox_schema.events AS e ON e.id = g.id
)
SELECT r.id, r.claim_no, false AS died FROM retried AS r
UNION ALL
SELECT g.id, g.claim_no, true AS died FROM gone AS g;

-- name: EventClaimKnown :many
-- Claims from turns that are known to have more, of topics without limits: what a claim from a backlog does most of the time.
-- Each turn is walked from its place on. Returns rows as the function claim_turns. If some topic has limits, nothing is
-- claimed, and the one row is of kind 13.
WITH free AS MATERIALIZED (
    SELECT NOT EXISTS (
        SELECT FROM outbox_schema.limits AS l
        WHERE l.namespace = @namespace
          AND (cardinality(@topics::text[]) = 0 OR l.topic = ANY (@topics::text[]))
    ) AS is_free
),
picked AS MATERIALIZED (
    SELECT c.id
    FROM (
        SELECT
            unnest(@known_lanes::integer[]) AS lane,
            unnest(@known_turns::text[]) AS turn,
            unnest(@known_dues::timestamptz[]) AS due,
            unnest(@known_ids::uuid[]) AS id
    ) AS k
    CROSS JOIN LATERAL (
        SELECT q.id
        FROM outbox_schema.queue AS q
        WHERE (SELECT f.is_free FROM free AS f)
          AND q.namespace = @namespace
          AND q.lane + 0 = k.lane
          AND q.turn = k.turn
          AND (q.next_attempt_at, q.id) > (k.due, k.id)
          AND q.next_attempt_at <= statement_timestamp()
          AND q.locked_until IS NULL
          AND q.attempts < coalesce(sqlc.narg('max_attempts')::integer, q.max_attempts)
          AND (cardinality(@topics::text[]) = 0 OR q.topic = ANY (@topics::text[]))
          AND (q.version <= @every_version::integer
              OR coalesce(q.version <= (@versions::integer[])[array_position(@version_topics::text[], q.topic)], true))
          AND (cardinality(@tenant_ids::uuid[]) = 0 OR q.tenant_id = ANY (@tenant_ids::uuid[]))
          AND (
              cardinality(@paused::text[]) = 0
              OR NOT coalesce(q.topic = ANY (@paused::text[]) OR q.tenant_id::text = ANY (@paused::text[])
                  OR q.topic || '/' || q.tenant_id::text = ANY (@paused::text[]), false)
          )
        ORDER BY q.next_attempt_at, q.id
        LIMIT @each::integer
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS c
    LIMIT @batch_size::integer
),
claimed AS (
    UPDATE outbox_schema.queue AS q
    SET attempts = q.attempts + 1,
        max_attempts = coalesce(sqlc.narg('max_attempts')::integer, q.max_attempts),
        claim_no = q.claim_no + 1,
        locked_by = @worker_id,
        locked_until = clock_timestamp() + @lease::interval,
        updated_at = clock_timestamp()
    FROM picked AS p
    WHERE q.id = p.id
    RETURNING q.id, q.topic, q.version, q.tenant_id, q.attempts, q.max_attempts, q.claim_no, q.next_attempt_at, q.lane, q.turn
)
SELECT 0 AS kind, c.lane, coalesce(c.turn, '')::text AS turn, c.id, c.topic, c.version, c.tenant_id,
    coalesce(e.dedupe_key, '') AS dedupe_key, coalesce(e.partition_key, '') AS partition_key,
    coalesce(e.entity_type, '') AS entity_type, coalesce(e.entity_id, '') AS entity_id,
    coalesce(e.entity_version, 0) AS entity_version, e.headers, e.payload, c.attempts, c.max_attempts, c.claim_no, e.created_at,
    c.next_attempt_at, false AS reclaimed, NULL::bigint AS until_us
FROM claimed AS c
LEFT JOIN outbox_schema.events AS e ON e.id = c.id
UNION ALL
SELECT 1, m.lane, m.turn, NULL, '', 0, NULL, '', '', '', '', 0, NULL, NULL, 0, 0, 0, NULL, NULL, false, NULL
FROM (SELECT c.lane, c.turn FROM claimed AS c GROUP BY c.lane, c.turn HAVING count(*) >= @each) AS m
UNION ALL
SELECT CASE WHEN f.is_free THEN 12 ELSE 13 END, 0, '', NULL, '', 0, NULL, '', '', '', '', 0, NULL, NULL, 0, 0, 0,
    clock_timestamp(), statement_timestamp(), false, NULL
FROM free AS f;

-- name: EventClaimTurns :many
-- Claims events that have turns: see the function.
SELECT t.kind::integer AS kind, t.lane::integer AS lane, t.turn::text AS turn, t.id, t.topic, t.version, t.tenant_id, t.dedupe_key,
    t.partition_key, t.entity_type, t.entity_id, t.entity_version, t.headers, t.payload, t.attempts, t.max_attempts, t.claim_no,
    t.created_at, t.next_attempt_at, t.reclaimed, t.until_us
FROM outbox_schema.claim_turns(
    @namespace, @worker_id, @lease, @batch_size, sqlc.narg('max_attempts'),
    @topics::text[], @every_version, @version_topics::text[], @versions::integer[], @tenant_ids::uuid[], @paused::text[],
    @known_lanes::integer[], @known_turns::text[], @known_dues::timestamptz[], @known_ids::uuid[],
    @front_lanes::integer[], @front_dues::timestamptz[], @front_ids::uuid[], @front_piece,
    @hop_lanes::integer[], @hop_turns::text[], @hop_count,
    @piece, @starts, @reclaims, @in_flight::uuid[], @rated, @ahead, @slack) AS t;

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
    SELECT q.id, w.delay_us
    FROM want AS w
    JOIN outbox_schema.queue AS q ON q.id = w.id AND q.claim_no = w.claim_no
    WHERE q.locked_until IS NOT NULL
      AND q.locked_by = @worker_id
    ORDER BY q.id
    FOR NO KEY UPDATE OF q
)
UPDATE outbox_schema.queue AS q
SET attempts = greatest(q.attempts - 1, 0),
    next_attempt_at = CASE
        WHEN o.delay_us > 0 THEN statement_timestamp() + o.delay_us * interval '1 microsecond'
        ELSE q.next_attempt_at
    END,
    updated_at = statement_timestamp(),
    locked_until = NULL
FROM own AS o
WHERE q.id = o.id
RETURNING q.id, q.claim_no;

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
    SELECT q.id
    FROM want AS w
    JOIN outbox_schema.queue AS q ON q.id = w.id AND q.claim_no = w.claim_no
    WHERE q.locked_until IS NOT NULL
      AND q.locked_by = @worker_id
    ORDER BY q.id
    FOR NO KEY UPDATE OF q SKIP LOCKED
)
UPDATE outbox_schema.queue AS q
SET locked_until = clock_timestamp() + @lease::interval,
    updated_at = statement_timestamp()
FROM own AS o
WHERE q.id = o.id
RETURNING q.id, q.claim_no;

-- name: EventStatuses :many
-- Reads the state of events, to tell a repeated finalisation from a lost lease and from a row that is locked. LIMIT as in
-- EventIDByKey.
SELECT
    s.id::uuid AS id,
    s.status::text AS status,
    s.claim_no::bigint AS claim_no,
    s.locked_by::uuid AS locked_by,
    s.attempts::integer AS attempts,
    coalesce(s.last_error, '')::text AS last_error
FROM (
    SELECT w.id,
        CASE
            WHEN q.locked_until IS NOT NULL THEN 'processing'
            WHEN q.id IS NOT NULL THEN 'pending'
            WHEN d.id IS NOT NULL THEN 'delivered'
            WHEN x.id IS NOT NULL THEN 'dead'
        END AS status,
        coalesce(q.claim_no, d.claim_no, x.claim_no) AS claim_no,
        coalesce(q.locked_by, d.locked_by, x.locked_by) AS locked_by,
        coalesce(q.attempts, d.attempts, x.attempts) AS attempts,
        x.error AS last_error
    FROM (SELECT unnest(@ids::uuid[]) AS id) AS w
    LEFT JOIN LATERAL (
        SELECT o.id, o.locked_until, o.claim_no, o.locked_by, o.attempts
        FROM outbox_schema.queue AS o
        WHERE o.id = w.id
        LIMIT 1
    ) AS q ON true
    LEFT JOIN LATERAL (
        SELECT o.id, o.claim_no, o.locked_by, o.attempts
        FROM outbox_schema.delivered AS o
        WHERE o.id = w.id
        LIMIT 1
    ) AS d ON true
    LEFT JOIN LATERAL (
        SELECT o.id, o.claim_no, o.locked_by, o.attempts, o.error
        FROM outbox_schema.dead_letters AS o
        WHERE o.id = w.id
          AND o.listener IS NULL
        LIMIT 1
    ) AS x ON true
) AS s
WHERE s.status IS NOT NULL;

-- name: EventUnsettle :execrows
-- Deletes the final state of events that are in the queue as well, which only a change by hand can cause. They could not be
-- settled: their final state would be there twice.
WITH queued AS MATERIALIZED (
    SELECT q.id
    FROM (SELECT unnest(@ids::uuid[]) AS id) AS w
    JOIN outbox_schema.queue AS q ON q.id = w.id
    FOR NO KEY UPDATE OF q
),
undelivered AS (
    DELETE FROM outbox_schema.delivered AS d
    USING queued AS b
    WHERE d.id = b.id
    RETURNING d.id
),
undead AS (
    DELETE FROM outbox_schema.dead_letters AS x
    USING queued AS b
    WHERE x.id = b.id
      AND x.listener IS NULL
    RETURNING x.id
)
SELECT u.id FROM undelivered AS u
UNION ALL
SELECT u.id FROM undead AS u;

-- name: EventSweepDead :many
-- Makes events dead that no claim will take again: those whose lease ran out on their last attempt, and pending ones
-- whose attempts exceed a limit that was lowered since. Walks a piece of each lane, as EventClaim does, and locks what it met
-- by its id. SKIP LOCKED, so that it never waits for a late ack. An event whose lease ran out is only noted at first, by an
-- updated_at past locked_until. No claim and no renewal leaves such a value. The holder may be alive, and may have been
-- without the database for as long as every other process. The event becomes dead if nothing has changed after the grace,
-- which counts from the first sweep that finds it and in which the holder can settle it by its fence. in_flight is left out,
-- because the sweeper itself has yet to settle it. Returns in lane -1 how many became dead, and how many were noted; in lane -2
-- each dead letter, with its time of enqueue, id, attempts and their limit in the first columns; and the end of each piece, or
-- of a walk that has met enough before it.
WITH met AS MATERIALIZED (
    SELECT l.lane, c.id, c.next_attempt_at, c.spent, c.n = l.piece AS ended
    FROM (
        SELECT
            unnest(@lanes::integer[]) AS lane,
            unnest(@after_dues::timestamptz[]) AS after_due,
            unnest(@after_ids::uuid[]) AS after_id,
            unnest(@pieces::integer[]) AS piece
    ) AS l
    CROSS JOIN LATERAL (
        SELECT w.id, w.next_attempt_at, w.n, w.spent
        FROM (
            SELECT
                p.id,
                p.next_attempt_at,
                row_number() OVER (ORDER BY p.next_attempt_at, p.id) AS n,
                p.attempts >= coalesce(sqlc.narg('max_attempts')::integer, p.max_attempts)
                AND (
                    p.locked_until IS NULL
                    OR p.locked_until < statement_timestamp()
                        AND NOT p.updated_at > greatest(p.locked_until, statement_timestamp() - @grace::interval)
                )
                AND NOT p.id = ANY (@in_flight::uuid[])
                AND (cardinality(@topics::text[]) = 0 OR p.topic = ANY (@topics::text[]))
                AND (p.version <= @every_version::integer
                    OR coalesce(p.version <= (@versions::integer[])[array_position(@version_topics::text[], p.topic)], true))
                AND (cardinality(@tenant_ids::uuid[]) = 0 OR p.tenant_id = ANY (@tenant_ids::uuid[]))
                AND (
                    cardinality(@paused::text[]) = 0
                    OR NOT coalesce(p.topic = ANY (@paused::text[]) OR p.tenant_id::text = ANY (@paused::text[])
                        OR p.topic || '/' || p.tenant_id::text = ANY (@paused::text[]), false)
                ) AS spent
            FROM (
                SELECT q.id, q.next_attempt_at, q.locked_until, q.updated_at, q.attempts, q.max_attempts, q.topic, q.version,
                    q.tenant_id
                FROM outbox_schema.queue AS q
                WHERE q.namespace = @namespace
                  AND q.lane = l.lane
                  AND (q.next_attempt_at, q.id) > (l.after_due, l.after_id)
                  AND q.next_attempt_at <= statement_timestamp()
                ORDER BY q.next_attempt_at, q.id
                LIMIT l.piece
            ) AS p
        ) AS w
        WHERE w.spent IS TRUE
           OR w.n = l.piece
        LIMIT @batch_size::integer
    ) AS c
),
spent AS MATERIALIZED (
    SELECT
        q.id,
        (
            q.locked_until IS NULL
            OR q.updated_at > q.locked_until
            OR @grace::interval = interval '0'
        ) AS dies,
        CASE
            WHEN q.locked_until IS NULL THEN coalesce(q.failures -> -1 ->> 'error', 'attempts spent: the limit was lowered')
            ELSE 'lease ran out on attempt ' || q.attempts || ', worker ' || coalesce(q.locked_by::text, 'unknown')
                || ' did not answer' || coalesce('; before: ' || left(q.failures -> -1 ->> 'error', 450), '')
        END AS error
    FROM met AS m
    JOIN outbox_schema.queue AS q ON q.id = m.id
    WHERE m.spent
      AND q.attempts >= coalesce(sqlc.narg('max_attempts')::integer, q.max_attempts)
      AND (
          q.locked_until IS NULL
          OR q.locked_until < statement_timestamp()
              AND NOT q.updated_at > greatest(q.locked_until, statement_timestamp() - @grace::interval)
      )
    FOR NO KEY UPDATE OF q SKIP LOCKED
),
noted AS (
    UPDATE outbox_schema.queue AS q
    SET updated_at = statement_timestamp()
    FROM spent AS s
    WHERE q.id = s.id
      AND NOT s.dies
    RETURNING q.id
),
gone AS (
    DELETE FROM outbox_schema.queue AS q
    USING spent AS s
    WHERE q.id = s.id
      AND s.dies
    RETURNING q.id, q.namespace, q.topic, q.version, q.tenant_id, q.attempts, q.max_attempts, q.claim_no, q.lane, q.turn, q.locked_by,
        q.locked_until, q.failures, s.error::text AS error
),
died AS (
    INSERT INTO outbox_schema.dead_letters (
        id, namespace, topic, version, tenant_id, dedupe_key, partition_key, entity_type, entity_id, entity_version,
        headers, payload, created_at, attempts, max_attempts, claim_no, lane, turn, locked_by, failures, error)
    SELECT g.id, g.namespace, g.topic, g.version, g.tenant_id, e.dedupe_key, e.partition_key, e.entity_type, e.entity_id,
        e.entity_version, e.headers, coalesce(e.payload, 'null'), coalesce(e.created_at, statement_timestamp()), g.attempts,
        g.max_attempts, g.claim_no, g.lane, g.turn, g.locked_by,
        CASE
            WHEN g.locked_until IS NULL THEN g.failures
            WHEN jsonb_array_length(g.failures) >= 5 THEN g.failures - 0
            ELSE coalesce(g.failures, '[]')
        END || CASE
            WHEN g.locked_until IS NULL THEN '[]'
            ELSE jsonb_build_object('attempt', g.attempts, 'at', statement_timestamp(), 'worker', g.locked_by, 'error', g.error)
        END,
        g.error
    FROM gone AS g
    LEFT JOIN outbox_schema.events AS e ON e.id = g.id
    ON CONFLICT (id) WHERE listener IS NULL DO NOTHING
    RETURNING id, topic, version, tenant_id, created_at, attempts, max_attempts, error
)
SELECT -1::integer AS lane, statement_timestamp()::timestamptz AS to_due, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid AS to_id,
    (SELECT count(*) FROM gone) AS died, (SELECT count(*) FROM noted) AS noted,
    ''::text AS topic, 0::integer AS version, NULL::uuid AS tenant_id, ''::text AS error
UNION ALL
SELECT -2, x.created_at, x.id, x.attempts, coalesce(x.max_attempts, 0), x.topic, x.version, x.tenant_id, x.error
FROM died AS x
UNION ALL
SELECT e.lane, e.to_due, e.to_id, 0, 0, '', 0, NULL, ''
FROM (
    SELECT
        m.lane,
        max(m.next_attempt_at)::timestamptz AS to_due,
        ((array_agg(m.id ORDER BY m.next_attempt_at DESC, m.id DESC))[1])::uuid AS to_id,
        count(*) >= @batch_size::integer OR bool_or(m.ended) AS stopped
    FROM met AS m
    GROUP BY m.lane
) AS e
WHERE e.stopped;

-- name: EventPruneDelivered :one
-- Deletes one chunk of delivered events past their retention, oldest first, with their events. FOR UPDATE, because it
-- deletes: a row that a foreign key has locked is skipped, and not waited for. orphans are those whose event is gone, among
-- the oldest.
WITH old AS MATERIALIZED (
    SELECT d.id
    FROM outbox_schema.delivered AS d
    JOIN outbox_schema.events AS e ON e.id = d.id
    WHERE d.namespace = @namespace
      AND d.topic = @topic
      AND d.finalized_at < statement_timestamp() - @retention::interval
    ORDER BY d.finalized_at
    LIMIT @batch_size::integer
    FOR UPDATE SKIP LOCKED
),
orphans AS MATERIALIZED (
    SELECT o.id
    FROM (
        SELECT d.id
        FROM outbox_schema.delivered AS d
        WHERE d.namespace = @namespace
          AND d.topic = @topic
          AND d.finalized_at < statement_timestamp() - @retention::interval
        ORDER BY d.finalized_at
        LIMIT @batch_size::integer
    ) AS o
    WHERE NOT EXISTS (SELECT FROM outbox_schema.events AS e WHERE e.id = o.id)
),
gone AS (
    DELETE FROM outbox_schema.delivered AS d
    USING (SELECT o.id FROM old AS o UNION ALL SELECT s.id FROM orphans AS s) AS o
    WHERE d.id = o.id
    RETURNING d.id
),
deleted AS (
    DELETE FROM outbox_schema.events AS e
    USING old AS o
    WHERE e.id = o.id
)
SELECT count(*) FROM gone;

-- name: EventPruneDead :one
-- Deletes one chunk of dead letters of a queue topic past their retention, oldest first, with their events. FOR UPDATE, because it
-- deletes: a row that a foreign key has locked is skipped, and not waited for. orphans are those whose event is gone, among
-- the oldest.
WITH old AS MATERIALIZED (
    SELECT d.id
    FROM outbox_schema.dead_letters AS d
    JOIN outbox_schema.events AS e ON e.id = d.id
    WHERE d.namespace = @namespace
      AND d.topic = @topic
      AND d.died_at < statement_timestamp() - @retention::interval
      AND d.listener IS NULL
    ORDER BY d.died_at
    LIMIT @batch_size::integer
    FOR UPDATE SKIP LOCKED
),
orphans AS MATERIALIZED (
    SELECT o.id
    FROM (
        SELECT d.id
        FROM outbox_schema.dead_letters AS d
        WHERE d.namespace = @namespace
          AND d.topic = @topic
          AND d.died_at < statement_timestamp() - @retention::interval
      AND d.listener IS NULL
        ORDER BY d.died_at
        LIMIT @batch_size::integer
    ) AS o
    WHERE NOT EXISTS (SELECT FROM outbox_schema.events AS e WHERE e.id = o.id)
),
gone AS (
    DELETE FROM outbox_schema.dead_letters AS d
    USING (SELECT o.id FROM old AS o UNION ALL SELECT s.id FROM orphans AS s) AS o
    WHERE d.id = o.id
      AND d.listener IS NULL
    RETURNING d.id
),
deleted AS (
    DELETE FROM outbox_schema.events AS e
    USING old AS o
    WHERE e.id = o.id
)
SELECT count(*) FROM gone;

-- name: EventMisfits :one
-- Checks a piece of queue and a piece of events, each in the order of ids after the last one checked: which events are final
-- although they are queued, and which have no state at all. Only a change by hand can cause either. checked is the last id
-- of each piece, and null if there was none. Scalar subqueries probe by id; an EXISTS may become a hash of the whole table.
WITH queued AS MATERIALIZED (
    SELECT q.id, q.namespace
    FROM outbox_schema.queue AS q
    WHERE q.id > @after_queued
    ORDER BY q.id
    LIMIT @batch_size::integer
),
enqueued AS MATERIALIZED (
    SELECT e.id, e.namespace
    FROM outbox_schema.events AS e
    WHERE e.id > @after_enqueued
    ORDER BY e.id
    LIMIT @batch_size::integer
)
SELECT
    (SELECT q.id FROM queued AS q ORDER BY q.id DESC LIMIT 1)::uuid AS checked_queued,
    (SELECT e.id FROM enqueued AS e ORDER BY e.id DESC LIMIT 1)::uuid AS checked_enqueued,
    (
        SELECT count(*)
        FROM queued AS q
        WHERE q.namespace = @namespace
          AND (
              (SELECT d.id FROM outbox_schema.delivered AS d WHERE d.id = q.id LIMIT 1) IS NOT NULL
              OR (SELECT x.id FROM outbox_schema.dead_letters AS x WHERE x.id = q.id AND x.listener IS NULL LIMIT 1) IS NOT NULL
          )
    ) AS final,
    (
        SELECT count(*)
        FROM enqueued AS e
        WHERE e.namespace = @namespace
          AND (SELECT q.id FROM outbox_schema.queue AS q WHERE q.id = e.id LIMIT 1) IS NULL
          AND (SELECT d.id FROM outbox_schema.delivered AS d WHERE d.id = e.id LIMIT 1) IS NULL
          AND (SELECT x.id FROM outbox_schema.dead_letters AS x WHERE x.id = e.id AND x.listener IS NULL LIMIT 1) IS NULL
    ) AS stateless;

-- name: EventProbe :exec
-- Fails when the tables do not exist.
SELECT
FROM outbox_schema.events, outbox_schema.queue, outbox_schema.delivered, outbox_schema.dead_letters, outbox_schema.pauses
LIMIT 0;
