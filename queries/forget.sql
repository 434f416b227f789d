-- name: ForgetEventsScan :many
-- Scans events of queue topics, with what has become of them. Like each scan of a forget it reads a piece of its table, in
-- the order of the primary key, and returns what is of the scope: of a tenant, of an entity, or of both. The row that does
-- not match comes last. It says where the piece ended, and how many rows it had. With an entity, its index finds the events, in the order of
-- their time. States are looked up by ranges of one id, in its order: for an equality the planner may walk another index,
-- which looks free while the table is empty.
WITH piece AS MATERIALIZED (
    (
        SELECT e.id, e.namespace, e.topic, e.tenant_id, e.dedupe_key, e.created_at
        FROM outbox_schema.events AS e
        WHERE @entity_type::text = ''
          AND e.id > @after_id
        ORDER BY e.id
        LIMIT @piece::integer
    )
    UNION ALL
    (
        SELECT e.id, e.namespace, e.topic, e.tenant_id, e.dedupe_key, e.created_at
        FROM outbox_schema.events AS e
        WHERE @entity_type::text <> ''
          AND e.entity_type = @entity_type::text
          AND e.entity_id = @entity_id::text
          AND (e.created_at, e.id) > (@after_at::timestamptz, @after_id)
        ORDER BY e.created_at, e.id
        LIMIT @piece::integer
    )
)
SELECT true AS matches, p.id::uuid AS id, p.namespace::text AS namespace, p.topic::text AS topic, p.tenant_id::uuid AS tenant_id,
    coalesce(p.dedupe_key, '')::text AS dedupe_key, p.created_at::timestamptz AS created_at,
    (CASE
        WHEN q.id IS NOT NULL THEN CASE WHEN q.locked_until IS NULL THEN 'pending' ELSE 'processing' END
        WHEN (SELECT d.id FROM outbox_schema.delivered AS d WHERE d.id = p.id LIMIT 1) IS NOT NULL THEN 'delivered'
        WHEN (
            SELECT x.id
            FROM outbox_schema.dead_letters AS x
            WHERE x.id >= p.id
              AND x.id <= p.id
              AND x.listener IS NULL
            ORDER BY x.id
            LIMIT 1
        ) IS NOT NULL THEN 'dead'
        ELSE ''
    END)::text AS status, 0::bigint AS scanned
FROM piece AS p
LEFT JOIN LATERAL (
    SELECT o.id, o.locked_until
    FROM outbox_schema.queue AS o
    WHERE o.id >= p.id
      AND o.id <= p.id
    ORDER BY o.id
    LIMIT 1
) AS q ON true
WHERE sqlc.narg('tenant_id')::uuid IS NULL
   OR p.tenant_id = sqlc.narg('tenant_id')::uuid
UNION ALL
SELECT false, coalesce(l.id, @after_id), '', '', NULL, '', coalesce(l.created_at, @after_at::timestamptz), '', n.scanned
FROM (SELECT count(*) AS scanned FROM piece) AS n
LEFT JOIN LATERAL (
    SELECT p.id, p.created_at
    FROM piece AS p
    ORDER BY CASE WHEN @entity_type::text <> '' THEN p.created_at END DESC, p.id DESC
    LIMIT 1
) AS l ON true;

-- name: ForgetLogScan :many
-- Scans events of log topics. passed says that every listener is past the event, by the rule of LogPrune, and that none has
-- parked it. heard counts the failed attempts of listeners that are kept.
WITH piece AS MATERIALIZED (
    (
        SELECT g.seq, g.xid, g.id, g.namespace, g.topic, g.tenant_id, g.dedupe_key, g.created_at
        FROM outbox_schema.log AS g
        WHERE @entity_type::text = ''
          AND g.seq > @after_seq
        ORDER BY g.seq
        LIMIT @piece::integer
    )
    UNION ALL
    (
        SELECT g.seq, g.xid, g.id, g.namespace, g.topic, g.tenant_id, g.dedupe_key, g.created_at
        FROM outbox_schema.log AS g
        WHERE @entity_type::text <> ''
          AND g.entity_type = @entity_type::text
          AND g.entity_id = @entity_id::text
          AND (g.created_at, g.seq) > (@after_at::timestamptz, @after_seq)
        ORDER BY g.created_at, g.seq
        LIMIT @piece::integer
    )
)
SELECT true AS matches, p.seq::bigint AS seq, p.id::uuid AS id, p.namespace::text AS namespace, p.topic::text AS topic,
    p.tenant_id::uuid AS tenant_id, coalesce(p.dedupe_key, '')::text AS dedupe_key, p.created_at::timestamptz AS created_at,
    (
        NOT EXISTS (
            SELECT
            FROM outbox_schema.listeners AS l
            WHERE NOT (p.seq <= l.high_seq AND pg_visible_in_snapshot(p.xid, l.lo))
              AND NOT (l.in_batch AND p.seq <= l.last_seq AND pg_visible_in_snapshot(p.xid, l.hi))
        )
        AND (SELECT k.no FROM outbox_schema.parked AS k WHERE k.seq = p.seq LIMIT 1) IS NULL
    )::boolean AS passed,
    (SELECT count(*) FROM outbox_schema.listener_failures AS f WHERE f.id = p.id)::bigint AS heard,
    0::bigint AS scanned
FROM piece AS p
WHERE sqlc.narg('tenant_id')::uuid IS NULL
   OR p.tenant_id = sqlc.narg('tenant_id')::uuid
UNION ALL
SELECT false, coalesce(l.seq, @after_seq), '00000000-0000-0000-0000-000000000000', '', '', NULL, '',
    coalesce(l.created_at, @after_at::timestamptz), false, 0, n.scanned
FROM (SELECT count(*) AS scanned FROM piece) AS n
LEFT JOIN LATERAL (
    SELECT p.seq, p.created_at
    FROM piece AS p
    ORDER BY CASE WHEN @entity_type::text <> '' THEN p.created_at END DESC, p.seq DESC
    LIMIT 1
) AS l ON true;

-- name: ForgetDeadScan :many
-- Scans dead letters, of queue topics and of listeners.
WITH piece AS MATERIALIZED (
    SELECT d.no, d.listener, d.id, d.namespace, d.topic, d.tenant_id, d.dedupe_key, d.entity_type, d.entity_id
    FROM outbox_schema.dead_letters AS d
    WHERE d.no > @after_no
    ORDER BY d.no
    LIMIT @piece::integer
)
SELECT true AS matches, p.no::bigint AS no, (p.listener IS NOT NULL)::boolean AS heard, p.id::uuid AS id,
    p.namespace::text AS namespace, p.topic::text AS topic, p.tenant_id::uuid AS tenant_id,
    coalesce(p.dedupe_key, '')::text AS dedupe_key, 0::bigint AS scanned
FROM piece AS p
WHERE (sqlc.narg('tenant_id')::uuid IS NULL OR p.tenant_id = sqlc.narg('tenant_id')::uuid)
  AND (@entity_type::text = '' OR p.entity_type = @entity_type::text AND p.entity_id = @entity_id::text)
UNION ALL
SELECT false, coalesce(max(p.no), @after_no), false, '00000000-0000-0000-0000-000000000000', '', '', NULL, '', count(*)
FROM piece AS p;

-- name: ForgetParkedScan :many
-- Scans what listeners have parked.
WITH piece AS MATERIALIZED (
    SELECT k.no, k.listener, k.key, k.id, k.namespace, k.topic, k.tenant_id, k.entity_type, k.entity_id
    FROM outbox_schema.parked AS k
    WHERE k.no > @after_no
    ORDER BY k.no
    LIMIT @piece::integer
)
SELECT true AS matches, p.no::bigint AS no, p.listener::text AS listener, p.key::text AS key, p.id::uuid AS id,
    p.namespace::text AS namespace, p.topic::text AS topic, p.tenant_id::uuid AS tenant_id, 0::bigint AS scanned
FROM piece AS p
WHERE (sqlc.narg('tenant_id')::uuid IS NULL OR p.tenant_id = sqlc.narg('tenant_id')::uuid)
  AND (@entity_type::text = '' OR p.entity_type = @entity_type::text AND p.entity_id = @entity_id::text)
UNION ALL
SELECT false, coalesce(max(p.no), @after_no), '', '', '00000000-0000-0000-0000-000000000000', '', '', NULL, count(*)
FROM piece AS p;

-- name: ForgetInboxScan :many
-- Scans the messages that consumer groups keep. The entity of a message is in its envelope or in its body, which only Go
-- reads: with bodies they are returned, of any entity.
WITH piece AS MATERIALIZED (
    SELECT m.no, m.consumer_group, m.key, m.event_id, m.namespace, m.topic, m.tenant_id, m.status, m.envelope, m.body
    FROM outbox_schema.inbox_messages AS m
    WHERE m.no > @after_no
    ORDER BY m.no
    LIMIT @piece::integer
)
SELECT true AS matches, p.no::bigint AS no, p.consumer_group::text AS consumer_group, coalesce(p.key, '')::text AS key,
    p.event_id::uuid AS event_id, p.namespace::text AS namespace, p.topic::text AS topic, p.tenant_id::uuid AS tenant_id,
    p.status::text AS status, (CASE WHEN @bodies::boolean THEN p.envelope::text ELSE '' END)::text AS envelope,
    (CASE WHEN @bodies::boolean THEN p.body ELSE '' END)::bytea AS body, 0::bigint AS scanned
FROM piece AS p
WHERE sqlc.narg('tenant_id')::uuid IS NULL
   OR p.tenant_id = sqlc.narg('tenant_id')::uuid
UNION ALL
SELECT false, coalesce(max(p.no), @after_no), '', '', NULL, '', '', NULL, '', '', '', count(*)
FROM piece AS p;

-- name: ForgetQuarantinedScan :many
-- Scans stale events that consumer groups have quarantined.
WITH piece AS MATERIALIZED (
    SELECT i.consumer_group, i.event_id, i.tenant_id, i.entity_type, i.entity_id
    FROM outbox_schema.inbox_quarantined AS i
    WHERE (i.consumer_group, i.event_id) > (@after_group::text, @after_id::uuid)
    ORDER BY i.consumer_group, i.event_id
    LIMIT @piece::integer
)
SELECT true AS matches, p.consumer_group::text AS consumer_group, p.event_id::uuid AS event_id, p.tenant_id::uuid AS tenant_id,
    0::bigint AS scanned
FROM piece AS p
WHERE (sqlc.narg('tenant_id')::uuid IS NULL OR p.tenant_id = sqlc.narg('tenant_id')::uuid)
  AND (@entity_type::text = '' OR p.entity_type = @entity_type::text AND p.entity_id = @entity_id::text)
UNION ALL
SELECT false, coalesce(l.consumer_group, ''), coalesce(l.event_id, @after_id::uuid), NULL, n.scanned
FROM (SELECT count(*) AS scanned FROM piece) AS n
LEFT JOIN LATERAL (
    SELECT p.consumer_group, p.event_id FROM piece AS p ORDER BY p.consumer_group DESC, p.event_id DESC LIMIT 1
) AS l ON true;

-- name: ForgetVersionsScan :many
-- Scans the versions of entities that consumer groups have applied.
WITH piece AS MATERIALIZED (
    SELECT v.consumer_group, v.source, v.tenant_id, v.entity_type, v.entity_id
    FROM outbox_schema.entity_versions AS v
    WHERE (v.consumer_group, v.source, v.tenant_id, v.entity_type, v.entity_id)
        > (@after_group::text, @after_source::text, @after_tenant::uuid, @after_type::text, @after_entity::text)
    ORDER BY v.consumer_group, v.source, v.tenant_id, v.entity_type, v.entity_id
    LIMIT @piece::integer
)
SELECT true AS matches, p.consumer_group::text AS consumer_group, p.source::text AS source, p.tenant_id::uuid AS tenant_id,
    p.entity_type::text AS entity_type, p.entity_id::text AS entity_id, 0::bigint AS scanned
FROM piece AS p
WHERE (sqlc.narg('tenant_id')::uuid IS NULL OR p.tenant_id = sqlc.narg('tenant_id')::uuid)
  AND (@entity_type::text = '' OR p.entity_type = @entity_type::text AND p.entity_id = @entity_id::text)
UNION ALL
SELECT false, coalesce(l.consumer_group, ''), coalesce(l.source, ''), coalesce(l.tenant_id, @after_tenant::uuid),
    coalesce(l.entity_type, ''), coalesce(l.entity_id, ''), n.scanned
FROM (SELECT count(*) AS scanned FROM piece) AS n
LEFT JOIN LATERAL (
    SELECT p.consumer_group, p.source, p.tenant_id, p.entity_type, p.entity_id
    FROM piece AS p
    ORDER BY p.consumer_group DESC, p.source DESC, p.tenant_id DESC, p.entity_type DESC, p.entity_id DESC
    LIMIT 1
) AS l ON true;

-- name: ForgetRest :one
-- Counts the pauses of a tenant, and the keys of limits that name it.
SELECT
    (SELECT count(*) FROM outbox_schema.pauses AS p WHERE p.tenant_id = @tenant_id) AS pauses,
    (SELECT count(*) FROM outbox_schema.limit_usage AS u WHERE strpos(u.key, @tenant_id::text) > 0) AS limit_keys;

-- name: ForgetReplays :many
-- Finds replays that run, and the tenants that they are limited to. A replay says with each chunk until when the next one
-- is expected.
SELECT a.at, a.who, coalesce(a.scope ->> 'tenant_id', '')::text AS tenant_id
FROM outbox_schema.audit AS a
WHERE a.busy_until > statement_timestamp()
  AND a.act = 'replay'
ORDER BY a.no;

-- name: ForgetHold :many
-- Locks what there is of the state of events of queue topics. Whoever changes the state of an event locks one of these rows
-- and writes another one, which this statement may not see: the caller repeats it until it returns the same twice. Then
-- nothing can change before the end of the transaction. Rows of queue are locked in the order of EventAck.
WITH want AS MATERIALIZED (
    SELECT w.id
    FROM (SELECT unnest(@ids::uuid[]) AS id) AS w
    ORDER BY w.id
),
dead AS MATERIALIZED (
    SELECT x.id
    FROM want AS w
    CROSS JOIN LATERAL (
        SELECT d.id
        FROM outbox_schema.dead_letters AS d
        WHERE d.id >= w.id
          AND d.id <= w.id
          AND d.listener IS NULL
        ORDER BY d.id
        LIMIT 1
        FOR NO KEY UPDATE
    ) AS x
),
queued AS MATERIALIZED (
    SELECT x.id
    FROM want AS w
    CROSS JOIN LATERAL (
        SELECT q.id
        FROM outbox_schema.queue AS q
        WHERE q.id >= w.id
          AND q.id <= w.id
        ORDER BY q.id
        LIMIT 1
        FOR NO KEY UPDATE
    ) AS x
),
done AS MATERIALIZED (
    SELECT d.id
    FROM want AS w
    JOIN outbox_schema.delivered AS d ON d.id = w.id
    FOR NO KEY UPDATE OF d
)
SELECT h.id::uuid AS id, h.state::integer AS state
FROM (
    SELECT x.id, 1 AS state FROM dead AS x
    UNION ALL
    SELECT x.id, 2 FROM queued AS x
    UNION ALL
    SELECT x.id, 3 FROM done AS x
) AS h
ORDER BY 1, 2;

-- name: ForgetEvents :one
-- Deletes events of queue topics with their state, and returns which. Those that are queued stay, unless undelivered says
-- otherwise: kept counts them.
WITH want AS MATERIALIZED (
    SELECT w.id
    FROM (SELECT unnest(@ids::uuid[]) AS id) AS w
    WHERE @undelivered::boolean
       OR (SELECT q.id FROM outbox_schema.queue AS q WHERE q.id >= w.id AND q.id <= w.id ORDER BY q.id LIMIT 1) IS NULL
    ORDER BY w.id
),
queued AS (
    DELETE FROM outbox_schema.queue AS q
    USING want AS w
    WHERE q.id = w.id
    RETURNING q.id
),
done AS (
    DELETE FROM outbox_schema.delivered AS d
    USING want AS w
    WHERE d.id = w.id
    RETURNING d.id
),
letters AS MATERIALIZED (
    SELECT x.no
    FROM want AS w
    CROSS JOIN LATERAL (
        SELECT d.no
        FROM outbox_schema.dead_letters AS d
        WHERE d.id >= w.id
          AND d.id <= w.id
          AND d.listener IS NULL
        ORDER BY d.id
        LIMIT 1
    ) AS x
),
dead AS (
    DELETE FROM outbox_schema.dead_letters AS d
    USING letters AS l
    WHERE d.no = l.no
    RETURNING d.id
),
gone AS (
    DELETE FROM outbox_schema.events AS e
    USING want AS w
    WHERE e.id = w.id
    RETURNING e.id
)
SELECT
    coalesce((SELECT array_agg(g.id) FROM gone AS g), '{}')::uuid[] AS gone,
    (SELECT count(*) FROM queued) AS queued,
    (SELECT count(*) FROM done) AS delivered,
    (SELECT count(*) FROM dead) AS dead_letters,
    (cardinality(@ids::uuid[]) - (SELECT count(*) FROM want))::bigint AS kept;

-- name: ForgetCursors :execrows
-- Prepares the cursors for the deletion of events of the log that are in their open windows. What the cursor keeps of an
-- event is removed: that it was tried or is done, and, of the event at which the cursor stands, its attempts and its error.
-- A holder of the shard loses it, as in ListenerSkip, because it may have read the event: what it still sends is refused,
-- and what else it was handling is delivered again. Positions stay: a number of an event that is gone is a gap, as after a
-- rollback. The caller has the lock of the cursors.
WITH doomed AS MATERIALIZED (
    SELECT g.seq, g.xid, g.bucket
    FROM (SELECT unnest(@seqs::bigint[]) AS seq) AS w
    JOIN outbox_schema.log AS g ON g.seq = w.seq
),
hit AS MATERIALIZED (
    SELECT l.listener, l.shard, array_agg(d.seq) AS seqs
    FROM outbox_schema.listeners AS l
    CROSS JOIN doomed AS d
    WHERE l.in_batch
      AND d.bucket % l.shards = l.shard
      AND d.seq > l.last_seq
      AND d.seq <= l.hi_seq
      AND NOT (d.seq <= l.high_seq AND pg_visible_in_snapshot(d.xid, l.lo))
    GROUP BY l.listener, l.shard
),
held AS MATERIALIZED (
    SELECT o.listener, o.shard, h.seqs
    FROM hit AS h
    JOIN outbox_schema.listeners AS o ON o.listener = h.listener AND o.shard = h.shard
    ORDER BY o.listener, o.shard
    FOR NO KEY UPDATE OF o
)
UPDATE outbox_schema.listeners AS l
SET ahead_seqs = array(
        SELECT a.seq
        FROM (SELECT unnest(l.ahead_seqs) AS seq, unnest(l.ahead_attempts) AS attempts) AS a
        WHERE a.seq <> ALL (h.seqs)),
    ahead_attempts = array(
        SELECT a.attempts
        FROM (SELECT unnest(l.ahead_seqs) AS seq, unnest(l.ahead_attempts) AS attempts) AS a
        WHERE a.seq <> ALL (h.seqs)),
    lease_by = NULL,
    lease_until = NULL,
    lease_no = l.lease_no + 1,
    lease_id = gen_random_uuid(),
    running = false,
    one_by_one = CASE WHEN l.running AND l.lease_until < clock_timestamp() THEN greatest(l.one_by_one, @batch_size::integer) ELSE l.one_by_one END,
    wanted_by = NULL,
    retry_count = CASE WHEN l.last_seq + 1 = ANY (h.seqs) THEN 0 ELSE l.retry_count END,
    retry_after = CASE WHEN l.last_seq + 1 = ANY (h.seqs) THEN NULL ELSE l.retry_after END,
    last_error = CASE WHEN l.last_seq + 1 = ANY (h.seqs) THEN NULL ELSE l.last_error END
FROM held AS h
WHERE l.listener = h.listener
  AND l.shard = h.shard;

-- name: ForgetLog :one
-- Deletes events of the log, with the dead letters and the failed attempts of listeners at them, and returns which. Those that some listener has
-- not passed, or has parked, stay, unless undelivered says otherwise: kept counts them. The caller has the lock of the
-- cursors, as for LogPrune, and has called ForgetCursors.
WITH doomed AS MATERIALIZED (
    SELECT g.seq, g.id
    FROM (SELECT unnest(@seqs::bigint[]) AS seq) AS w
    JOIN outbox_schema.log AS g ON g.seq = w.seq
    WHERE @undelivered::boolean
       OR NOT EXISTS (
            SELECT
            FROM outbox_schema.listeners AS l
            WHERE NOT (g.seq <= l.high_seq AND pg_visible_in_snapshot(g.xid, l.lo))
              AND NOT (l.in_batch AND g.seq <= l.last_seq AND pg_visible_in_snapshot(g.xid, l.hi))
        )
        AND (SELECT k.no FROM outbox_schema.parked AS k WHERE k.seq = g.seq LIMIT 1) IS NULL
),
gone AS (
    DELETE FROM outbox_schema.log AS g
    USING doomed AS d
    WHERE g.seq = d.seq
    RETURNING g.id
),
letters AS MATERIALIZED (
    SELECT x.no
    FROM doomed AS d
    CROSS JOIN LATERAL (
        SELECT o.no
        FROM outbox_schema.dead_letters AS o
        WHERE o.id >= d.id
          AND o.id <= d.id
          AND o.listener IS NOT NULL
        ORDER BY o.id
    ) AS x
),
dead AS (
    DELETE FROM outbox_schema.dead_letters AS x
    USING letters AS l
    WHERE x.no = l.no
    RETURNING x.no
),
failed AS (
    DELETE FROM outbox_schema.listener_failures AS f
    USING doomed AS d
    WHERE f.id = d.id
    RETURNING f.id
)
SELECT
    coalesce((SELECT array_agg(g.id) FROM gone AS g), '{}')::uuid[] AS gone,
    (SELECT count(*) FROM dead) AS dead_letters,
    (SELECT count(*) FROM failed) AS failures,
    ((SELECT count(*) FROM (SELECT unnest(@seqs::bigint[]) AS seq) AS w JOIN outbox_schema.log AS g ON g.seq = w.seq)
        - (SELECT count(*) FROM doomed))::bigint AS kept;

-- name: ForgetRecordedCount :one
-- Counts what consumer groups have recorded under ids, which are looked up one by one.
SELECT count(*)
FROM unnest(@groups::text[]) AS g (name)
CROSS JOIN unnest(@ids::uuid[]) AS w (id)
CROSS JOIN LATERAL (
    SELECT FROM outbox_schema.processed_events AS p WHERE p.consumer_group = g.name AND p.event_id = w.id LIMIT 1
) AS r;

-- name: ForgetRecorded :execrows
-- Deletes what consumer groups have recorded under ids, which are looked up likewise: a join could read all that a group has.
WITH found AS MATERIALIZED (
    SELECT r.consumer_group, r.event_id
    FROM unnest(@groups::text[]) AS g (name)
    CROSS JOIN unnest(@ids::uuid[]) AS w (id)
    CROSS JOIN LATERAL (
        SELECT p.consumer_group, p.event_id
        FROM outbox_schema.processed_events AS p
        WHERE p.consumer_group = g.name
          AND p.event_id = w.id
        LIMIT 1
    ) AS r
)
DELETE FROM outbox_schema.processed_events AS r
USING found AS f
WHERE r.consumer_group = f.consumer_group
  AND r.event_id = f.event_id;

-- name: ForgetDead :one
-- Deletes dead letters of listeners, with their failed attempts at the events.
WITH letters AS MATERIALIZED (
    SELECT d.no
    FROM (SELECT unnest(@nos::bigint[]) AS no) AS w
    JOIN outbox_schema.dead_letters AS d ON d.no = w.no
    WHERE d.listener IS NOT NULL
    ORDER BY d.no
    FOR UPDATE OF d
),
gone AS (
    DELETE FROM outbox_schema.dead_letters AS d
    USING letters AS l
    WHERE d.no = l.no
    RETURNING d.id, d.listener
),
failed AS (
    DELETE FROM outbox_schema.listener_failures AS f
    USING gone AS g
    WHERE f.id = g.id
      AND f.listener = g.listener
    RETURNING f.id
)
SELECT (SELECT count(*) FROM gone) AS dead_letters, (SELECT count(*) FROM failed) AS failures;

-- name: ForgetParked :one
-- Deletes parked events of a listener, with its failed attempts at them, and names their keys. The caller has taken over the
-- shards.
WITH gone AS (
    DELETE FROM outbox_schema.parked AS p
    USING (SELECT unnest(@nos::bigint[]) AS no) AS w
    WHERE p.no = w.no
      AND p.listener = @listener
    RETURNING p.id, p.key
),
failed AS (
    DELETE FROM outbox_schema.listener_failures AS f
    USING gone AS g
    WHERE f.id = g.id
      AND f.listener = @listener
    RETURNING f.id
)
SELECT
    (SELECT count(*) FROM gone) AS parked,
    (SELECT count(*) FROM failed) AS failures,
    coalesce((SELECT array_agg(DISTINCT g.key) FROM gone AS g), '{}')::text[] AS keys;

-- name: ForgetInbox :one
-- Deletes messages that a consumer group keeps, and names their keys: InboxMessagePromote makes the next of each due. Those
-- that are parked stay, unless undelivered says otherwise. One that is being applied is waited for.
WITH letters AS MATERIALIZED (
    SELECT m.no
    FROM (SELECT unnest(@nos::bigint[]) AS no) AS w
    JOIN outbox_schema.inbox_messages AS m ON m.no = w.no
    WHERE m.status = 'dead'
       OR @undelivered::boolean
    ORDER BY m.no
    FOR UPDATE OF m
),
gone AS (
    DELETE FROM outbox_schema.inbox_messages AS m
    USING letters AS l
    WHERE m.no = l.no
      AND (m.status = 'dead' OR @undelivered::boolean)
    RETURNING m.key
)
SELECT
    (SELECT count(*) FROM gone) AS messages,
    coalesce((SELECT array_agg(DISTINCT g.key) FROM gone AS g WHERE g.key IS NOT NULL), '{}')::text[] AS keys;

-- name: ForgetQuarantined :execrows
-- Deletes stale events that consumer groups have quarantined.
DELETE FROM outbox_schema.inbox_quarantined AS i
USING (SELECT unnest(@groups::text[]) AS consumer_group, unnest(@ids::uuid[]) AS event_id) AS w
WHERE i.consumer_group = w.consumer_group
  AND i.event_id = w.event_id;

-- name: ForgetVersions :execrows
-- Deletes versions of entities that consumer groups have applied.
DELETE FROM outbox_schema.entity_versions AS v
USING (
    SELECT unnest(@groups::text[]) AS consumer_group, unnest(@sources::text[]) AS source, unnest(@tenant_ids::uuid[]) AS tenant_id,
        unnest(@entity_types::text[]) AS entity_type, unnest(@entity_ids::text[]) AS entity_id
) AS w
WHERE v.consumer_group = w.consumer_group
  AND v.source = w.source
  AND v.tenant_id = w.tenant_id
  AND v.entity_type = w.entity_type
  AND v.entity_id = w.entity_id;

-- name: ForgetTenantRest :one
-- Deletes the pauses of a tenant, and the keys of limits that name it and of which nothing is used, as LimitPrune does.
WITH pauses AS (
    DELETE FROM outbox_schema.pauses AS p
    WHERE p.tenant_id = @tenant_id
    RETURNING p.tenant_id
),
keys AS (
    DELETE FROM outbox_schema.limit_usage AS u
    WHERE strpos(u.key, @tenant_id::text) > 0
      AND NOT EXISTS (
          SELECT FROM unnest(u.running) AS r (id) CROSS JOIN LATERAL (
              SELECT FROM outbox_schema.queue AS q WHERE q.id = r.id AND q.locked_until IS NOT NULL LIMIT 1) AS q)
      AND u.updated_at < statement_timestamp() - greatest(interval '1 min', (
          SELECT 2 * max(greatest(l.period, l.set_period)) FROM outbox_schema.limits AS l WHERE l.namespace = u.namespace))
    RETURNING u.key
)
SELECT (SELECT count(*) FROM pauses) AS pauses, (SELECT count(*) FROM keys) AS limit_keys;

-- name: ForgetAudit :one
-- Goes through a piece of the audit and removes what names somebody: the parts of the scope that say whom or what it was about, and the
-- reason. Without act it only counts. The entry of a forget that has not ended keeps its scope, because it is needed to go on.
WITH piece AS MATERIALIZED (
    SELECT a.no, a.act, a.why, a.scope, a.busy_until
    FROM outbox_schema.audit AS a
    WHERE a.no > @after_no::bigint
    ORDER BY a.no
    LIMIT @piece::integer
),
named AS MATERIALIZED (
    SELECT p.no
    FROM piece AS p
    WHERE NOT (p.act = 'forget' AND p.busy_until IS NOT NULL)
      AND (p.scope::text ~* @pattern::text OR p.why ~* @pattern::text)
),
changed AS (
    UPDATE outbox_schema.audit AS a
    SET scope = a.scope - '{tenant_id,key,error,group,id,ids,more_ids,selected,entity_id}'::text[] || '{"forgotten": true}',
        why = ''::text
    FROM named AS n
    WHERE a.no = n.no
      AND @act::boolean
    RETURNING a.no
)
SELECT
    (SELECT coalesce(max(p.no), @after_no::bigint) FROM piece AS p)::bigint AS last_no,
    (SELECT count(*) FROM piece) AS scanned,
    (SELECT count(*) FROM named) AS named,
    (SELECT count(*) FROM changed) AS changed;

-- name: ForgetStart :one
-- Begins the entry of a forget in the audit, or goes on with that of one that was broken off: of the same scope, whose options
-- it adds to the entry. no is 0 if another forget has ended that one at this moment: then the caller tries again.
WITH unfinished AS (
    SELECT a.no
    FROM outbox_schema.audit AS a
    WHERE a.busy_until IS NOT NULL
      AND a.act = 'forget'
      AND a.scope - '{rows,undelivered,processed,any_tenant}'::text[] = @identity
    ORDER BY a.no
    LIMIT 1
),
resumed AS (
    UPDATE outbox_schema.audit AS a
    SET scope = a.scope || @scope,
        busy_until = clock_timestamp() + @busy::interval
    FROM unfinished AS u
    WHERE a.no = u.no
      AND a.busy_until IS NOT NULL
    RETURNING a.no
),
began AS (
    INSERT INTO outbox_schema.audit (who, act, why, scope, events, busy_until)
    SELECT @who, 'forget', @why, @scope, 0, clock_timestamp() + @busy::interval
    WHERE NOT EXISTS (SELECT FROM unfinished)
    RETURNING no
)
SELECT
    coalesce((SELECT r.no FROM resumed AS r), (SELECT b.no FROM began AS b), 0)::bigint AS no,
    (SELECT count(*) FROM resumed)::bigint AS resumed;

-- name: ForgetCount :exec
-- Adds to the entry of a forget that runs, and says until when the next piece is expected.
UPDATE outbox_schema.audit AS a
SET events = a.events + @events,
    scope = a.scope || jsonb_build_object('rows', coalesce((a.scope ->> 'rows')::bigint, 0) + @rows::bigint),
    busy_until = CASE WHEN a.busy_until IS NOT NULL THEN clock_timestamp() + @busy::interval END
WHERE a.no = @no;

-- name: ForgetEnd :exec
-- Ends a forget: its entry in the audit keeps what kind it was and how much it has deleted, and not whom.
UPDATE outbox_schema.audit AS a
SET scope = a.scope - '{tenant_id,entity_id}'::text[],
    busy_until = NULL
WHERE a.no = @no;

-- name: ForgetStop :exec
-- Says that a forget does not go on by itself: its entry stays as that of one that was broken off.
UPDATE outbox_schema.audit AS a
SET busy_until = clock_timestamp()
WHERE a.no = @no
  AND a.busy_until IS NOT NULL;

-- name: ForgetBroken :many
-- Finds forgets that were begun and have not ended. running says that one has been heard of lately.
SELECT a.no, a.at, a.who, a.scope, (a.busy_until > statement_timestamp())::boolean AS running
FROM outbox_schema.audit AS a
WHERE a.busy_until IS NOT NULL
  AND a.act = 'forget'
ORDER BY a.no;
