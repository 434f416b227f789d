-- Pages of events. Each statement walks a bounded piece of one table in the order of an index and returns, in that order, the
-- events that match and the ends of the piece: rows with edge set, whether they match or not. What is behind the first edge was
-- not compared with what was not read, so a page ends there, and the next one continues. All of them have the same columns;
-- event_at and no are the place in the order.

-- name: BrowseQueue :many
-- Walks events that are not final, those first that are due first: piece rows of each lane.
WITH lane AS (
    SELECT
        unnest(@namespaces::text[]) AS namespace,
        unnest(@lanes::integer[]) AS lane
),
piece AS MATERIALIZED (
    SELECT r.id, r.next_attempt_at, r.namespace, r.topic, r.version, r.tenant_id, r.attempts, r.max_attempts, r.locked_by,
        r.locked_until, r.failures, r.n
    FROM lane AS l
    CROSS JOIN LATERAL (
        SELECT p.id, p.next_attempt_at, p.namespace, p.topic, p.version, p.tenant_id, p.attempts, p.max_attempts, p.locked_by,
            p.locked_until, p.failures, row_number() OVER (ORDER BY p.next_attempt_at, p.id) AS n
        FROM (
            SELECT q.id, q.next_attempt_at, q.namespace, q.topic, q.version, q.tenant_id, q.attempts, q.max_attempts, q.locked_by,
                q.locked_until, q.failures
            FROM outbox_schema.queue AS q
            WHERE q.namespace = l.namespace
              AND q.lane = l.lane
              AND (q.next_attempt_at, q.id) > (@after_at::timestamptz, @after_id::uuid)
            ORDER BY q.next_attempt_at, q.id
            LIMIT @piece::integer
        ) AS p
    ) AS r
)
SELECT m.matches, m.edge, m.event_at, m.no, m.id, m.listener, m.namespace, m.topic, m.version, m.tenant_id, m.dedupe_key,
    m.partition_key, m.created_at, m.status, m.attempts, m.max_attempts, m.next_attempt_at, m.locked_by, m.locked_until,
    m.finalized_at, m.last_error
FROM (
    SELECT coalesce((@namespace::text = '' OR q.namespace = @namespace::text)
        AND (@topic::text = '' OR q.topic = @topic::text)
        AND (sqlc.narg('tenant_id')::uuid IS NULL OR q.tenant_id = sqlc.narg('tenant_id')::uuid)
        AND (@key::text = '' OR e.partition_key = @key::text AND e.dedupe_key IS DISTINCT FROM @key::text)
        AND (sqlc.narg('since')::timestamptz IS NULL OR e.created_at >= sqlc.narg('since')::timestamptz)
        AND (sqlc.narg('until')::timestamptz IS NULL OR e.created_at < sqlc.narg('until')::timestamptz)
        AND (@error::text = '' OR strpos(coalesce(q.failures -> -1 ->> 'error', ''), @error::text) > 0)
        AND (@status::text = '' OR @status::text = CASE WHEN q.locked_until IS NULL THEN 'pending' ELSE 'processing' END), false)::boolean AS matches,
        (q.n = @piece::integer)::boolean AS edge, q.next_attempt_at AS event_at, 0::bigint AS no, q.id, ''::text AS listener,
        q.namespace, q.topic, q.version, q.tenant_id, coalesce(e.dedupe_key, '')::text AS dedupe_key, coalesce(e.partition_key, '')::text AS partition_key, e.created_at,
        (CASE WHEN q.locked_until IS NULL THEN 'pending' ELSE 'processing' END)::text AS status,
        q.attempts, q.max_attempts, q.next_attempt_at, q.locked_by, q.locked_until, NULL::timestamptz AS finalized_at,
        coalesce(q.failures -> -1 ->> 'error', '')::text AS last_error
    FROM piece AS q
    LEFT JOIN outbox_schema.events AS e ON e.id = q.id
) AS m
WHERE m.matches OR m.edge
ORDER BY m.event_at, m.id
LIMIT @event_limit::integer;

-- name: TopicsDelivered :many
-- Lists the topics that have delivered events, by jumps from one to the next.
WITH RECURSIVE walk AS (
    (
        SELECT d.namespace, d.topic
        FROM outbox_schema.delivered AS d
        ORDER BY d.namespace, d.topic
        LIMIT 1
    )
    UNION ALL
    SELECT n.namespace, n.topic
    FROM walk AS w
    CROSS JOIN LATERAL (
        SELECT d.namespace, d.topic
        FROM outbox_schema.delivered AS d
        WHERE (d.namespace, d.topic) > (w.namespace, w.topic)
        ORDER BY d.namespace, d.topic
        LIMIT 1
    ) AS n
)
SELECT w.namespace, w.topic
FROM walk AS w;

-- name: BrowseDelivered :many
-- Walks delivered events, the latest first: piece rows of each topic that were delivered at floor or later.
WITH topic AS (
    SELECT
        unnest(@namespaces::text[]) AS namespace,
        unnest(@topics::text[]) AS topic
),
piece AS MATERIALIZED (
    SELECT r.id, r.finalized_at, r.namespace, r.topic, r.attempts, r.locked_by, r.failures, r.n, r.count
    FROM topic AS t
    CROSS JOIN LATERAL (
        SELECT p.id, p.finalized_at, p.namespace, p.topic, p.attempts, p.locked_by, p.failures,
            row_number() OVER (ORDER BY p.finalized_at DESC, p.id DESC) AS n, count(*) OVER () AS count
        FROM (
            SELECT d.id, d.finalized_at, d.namespace, d.topic, d.attempts, d.locked_by, d.failures
            FROM outbox_schema.delivered AS d
            WHERE d.namespace = t.namespace
              AND d.topic = t.topic
              AND d.finalized_at >= @floor_at::timestamptz
              AND d.finalized_at <= @after_at::timestamptz
              AND (d.finalized_at < @after_at::timestamptz OR d.id < @after_id::uuid)
            ORDER BY d.finalized_at DESC -- the order of the index: with the id all may be sorted
            FETCH FIRST (@piece::integer) ROWS WITH TIES
        ) AS p
    ) AS r
)
SELECT m.matches, m.edge, m.event_at, m.no, m.id, m.listener, m.namespace, m.topic, m.version, m.tenant_id, m.dedupe_key,
    m.partition_key, m.created_at, m.status, m.attempts, m.max_attempts, m.next_attempt_at, m.locked_by, m.locked_until,
    m.finalized_at, m.last_error
FROM (
    SELECT coalesce((@namespace::text = '' OR d.namespace = @namespace::text)
        AND (@topic::text = '' OR d.topic = @topic::text)
        AND (sqlc.narg('tenant_id')::uuid IS NULL OR e.tenant_id = sqlc.narg('tenant_id')::uuid)
        AND (@key::text = '' OR e.partition_key = @key::text AND e.dedupe_key IS DISTINCT FROM @key::text)
        AND (sqlc.narg('since')::timestamptz IS NULL OR e.created_at >= sqlc.narg('since')::timestamptz)
        AND (sqlc.narg('until')::timestamptz IS NULL OR e.created_at < sqlc.narg('until')::timestamptz)
        AND (@error::text = '' OR strpos(coalesce(d.failures -> -1 ->> 'error', ''), @error::text) > 0), false)::boolean AS matches,
        (d.n = d.count AND d.count >= @piece::integer)::boolean AS edge, d.finalized_at AS event_at, 0::bigint AS no, d.id, ''::text AS listener,
        d.namespace, d.topic, coalesce(e.version, 0)::integer AS version, e.tenant_id, coalesce(e.dedupe_key, '')::text AS dedupe_key, coalesce(e.partition_key, '')::text AS partition_key, e.created_at,
        'delivered'::text AS status,
        d.attempts, 0::integer AS max_attempts, NULL::timestamptz AS next_attempt_at, d.locked_by, NULL::timestamptz AS locked_until, d.finalized_at,
        coalesce(d.failures -> -1 ->> 'error', '')::text AS last_error
    FROM piece AS d
    LEFT JOIN outbox_schema.events AS e ON e.id = d.id
) AS m
WHERE m.matches OR m.edge
ORDER BY m.event_at DESC, m.id DESC
LIMIT @event_limit::integer;

-- name: BrowseDead :many
-- Walks dead letters, of queue topics and of listeners, the latest first.
WITH piece AS MATERIALIZED (
    SELECT d.no
    FROM outbox_schema.dead_letters AS d
    WHERE d.no < @after_no::bigint
    ORDER BY d.no DESC
    LIMIT @piece::integer
)
SELECT m.matches, m.edge, m.event_at, m.no, m.id, m.listener, m.namespace, m.topic, m.version, m.tenant_id, m.dedupe_key,
    m.partition_key, m.created_at, m.status, m.attempts, m.max_attempts, m.next_attempt_at, m.locked_by, m.locked_until,
    m.finalized_at, m.last_error
FROM (
    SELECT coalesce((@namespace::text = '' OR d.namespace = @namespace::text)
        AND (@topic::text = '' OR d.topic = @topic::text)
        AND (sqlc.narg('tenant_id')::uuid IS NULL OR d.tenant_id = sqlc.narg('tenant_id')::uuid)
        AND (@key::text = '' OR d.partition_key = @key::text AND (d.listener IS NOT NULL OR d.dedupe_key IS DISTINCT FROM @key::text) OR d.dedupe_key = @key::text AND d.listener IS NOT NULL)
        AND (sqlc.narg('since')::timestamptz IS NULL OR d.created_at >= sqlc.narg('since')::timestamptz)
        AND (sqlc.narg('until')::timestamptz IS NULL OR d.created_at < sqlc.narg('until')::timestamptz)
        AND (@error::text = '' OR strpos(d.error, @error::text) > 0)
        AND (@listener::text = '' OR d.listener = @listener::text), false)::boolean AS matches,
        (p.n = @piece::integer)::boolean AS edge, d.died_at AS event_at, d.no, d.id, coalesce(d.listener, '')::text AS listener,
        d.namespace, d.topic, d.version, d.tenant_id, coalesce(d.dedupe_key, '')::text AS dedupe_key, coalesce(d.partition_key, '')::text AS partition_key, d.created_at,
        'dead'::text AS status,
        d.attempts, coalesce(d.max_attempts, 0)::integer AS max_attempts, NULL::timestamptz AS next_attempt_at, d.locked_by, NULL::timestamptz AS locked_until,
        d.died_at AS finalized_at, d.error::text AS last_error
    FROM (SELECT o.no, row_number() OVER (ORDER BY o.no DESC) AS n FROM piece AS o) AS p
    JOIN outbox_schema.dead_letters AS d ON d.no = p.no
) AS m
WHERE m.matches OR m.edge
ORDER BY m.no DESC
LIMIT @event_limit::integer;

-- name: BrowseParked :many
-- Walks parked events, the latest first.
WITH piece AS MATERIALIZED (
    SELECT d.no
    FROM outbox_schema.parked AS d
    WHERE d.no < @after_no::bigint
    ORDER BY d.no DESC
    LIMIT @piece::integer
)
SELECT m.matches, m.edge, m.event_at, m.no, m.id, m.listener, m.namespace, m.topic, m.version, m.tenant_id, m.dedupe_key,
    m.partition_key, m.created_at, m.status, m.attempts, m.max_attempts, m.next_attempt_at, m.locked_by, m.locked_until,
    m.finalized_at, m.last_error
FROM (
    SELECT coalesce((@namespace::text = '' OR d.namespace = @namespace::text)
        AND (@topic::text = '' OR d.topic = @topic::text)
        AND (sqlc.narg('tenant_id')::uuid IS NULL OR d.tenant_id = sqlc.narg('tenant_id')::uuid)
        AND (@key::text = '' OR d.partition_key = @key::text OR d.dedupe_key = @key::text)
        AND (sqlc.narg('since')::timestamptz IS NULL OR d.created_at >= sqlc.narg('since')::timestamptz)
        AND (sqlc.narg('until')::timestamptz IS NULL OR d.created_at < sqlc.narg('until')::timestamptz)
        AND (@error::text = '' OR strpos(coalesce(d.last_error, ''), @error::text) > 0)
        AND (@listener::text = '' OR d.listener = @listener::text), false)::boolean AS matches,
        (p.n = @piece::integer)::boolean AS edge, d.parked_at AS event_at, d.no, d.id, d.listener,
        d.namespace, d.topic, d.version, d.tenant_id, coalesce(d.dedupe_key, '')::text AS dedupe_key, coalesce(d.partition_key, '')::text AS partition_key, d.created_at,
        'parked'::text AS status,
        d.attempts, 0::integer AS max_attempts, d.retry_after AS next_attempt_at, NULL::uuid AS locked_by, NULL::timestamptz AS locked_until,
        NULL::timestamptz AS finalized_at, coalesce(d.last_error, '')::text AS last_error
    FROM (SELECT o.no, row_number() OVER (ORDER BY o.no DESC) AS n FROM piece AS o) AS p
    JOIN outbox_schema.parked AS d ON d.no = p.no
) AS m
WHERE m.matches OR m.edge
ORDER BY m.no DESC
LIMIT @event_limit::integer;

-- name: BrowseLog :many
-- Walks the log, the latest first, down to floor_no.
WITH piece AS MATERIALIZED (
    SELECT d.seq
    FROM outbox_schema.log AS d
    WHERE d.seq < @after_no::bigint
      AND d.seq >= @floor_no::bigint
    ORDER BY d.seq DESC
    LIMIT @piece::integer
)
SELECT m.matches, m.edge, m.event_at, m.no, m.id, m.listener, m.namespace, m.topic, m.version, m.tenant_id, m.dedupe_key,
    m.partition_key, m.created_at, m.status, m.attempts, m.max_attempts, m.next_attempt_at, m.locked_by, m.locked_until,
    m.finalized_at, m.last_error
FROM (
    SELECT coalesce((@namespace::text = '' OR d.namespace = @namespace::text)
        AND (@topic::text = '' OR d.topic = @topic::text)
        AND (sqlc.narg('tenant_id')::uuid IS NULL OR d.tenant_id = sqlc.narg('tenant_id')::uuid)
        AND (@key::text = '' OR d.partition_key = @key::text AND d.dedupe_key IS DISTINCT FROM @key::text)
        AND (sqlc.narg('since')::timestamptz IS NULL OR d.created_at >= sqlc.narg('since')::timestamptz)
        AND (sqlc.narg('until')::timestamptz IS NULL OR d.created_at < sqlc.narg('until')::timestamptz)
        AND (@error::text = '' OR strpos('', @error::text) > 0), false)::boolean AS matches,
        (p.n = @piece::integer)::boolean AS edge, d.created_at AS event_at, d.seq AS no, d.id, ''::text AS listener,
        d.namespace, d.topic, d.version, d.tenant_id, coalesce(d.dedupe_key, '')::text AS dedupe_key, coalesce(d.partition_key, '')::text AS partition_key, d.created_at,
        'logged'::text AS status,
        0::integer AS attempts, 0::integer AS max_attempts, NULL::timestamptz AS next_attempt_at, NULL::uuid AS locked_by, NULL::timestamptz AS locked_until,
        NULL::timestamptz AS finalized_at, ''::text AS last_error
    FROM (SELECT o.seq, row_number() OVER (ORDER BY o.seq DESC) AS n FROM piece AS o) AS p
    JOIN outbox_schema.log AS d ON d.seq = p.seq
) AS m
WHERE m.matches OR m.edge
ORDER BY m.no DESC
LIMIT @event_limit::integer;

-- name: EventsByID :many
-- Reads events of queue topics by id, or by dedupe key, with the columns of a page. key "" means by id. The lists keep the planner
-- from starting parallel workers, when statistics are missing, for the few rows that it reads.
WITH named AS MATERIALIZED (
    SELECT DISTINCT unnest(@ids::uuid[]) AS id
),
wanted AS MATERIALIZED (
    SELECT n.id
    FROM named AS n
    UNION ALL
    SELECT o.id
    FROM outbox_schema.events AS o
    WHERE o.dedupe_key = @key::text
      AND @key::text <> ''
)
SELECT true AS matches, false AS edge, coalesce(e.finalized_at, e.created_at)::timestamptz AS event_at, 0::bigint AS no, e.id, ''::text AS listener,
    e.namespace, e.topic, e.version, e.tenant_id, coalesce(e.dedupe_key, '')::text AS dedupe_key, coalesce(e.partition_key, '')::text AS partition_key, e.created_at,
    coalesce(e.status, '')::text AS status,
    coalesce(e.attempts, 0)::integer AS attempts, coalesce(e.max_attempts, 0)::integer AS max_attempts, e.next_attempt_at::timestamptz AS next_attempt_at,
    e.locked_by::uuid AS locked_by, e.locked_until::timestamptz AS locked_until, e.finalized_at::timestamptz AS finalized_at, coalesce(e.last_error, '')::text AS last_error
FROM wanted AS w
JOIN outbox_schema.event_status AS e ON e.id = w.id
ORDER BY e.created_at DESC, e.id DESC;

-- name: LogByKey :many
SELECT d.seq
FROM outbox_schema.log AS d
WHERE d.dedupe_key = @key::text
ORDER BY d.seq DESC;

-- name: LogBySeq :many
-- Reads events of the log by position, with the columns of a page.
SELECT true AS matches, false AS edge, d.created_at AS event_at, d.seq AS no, d.id, ''::text AS listener,
    d.namespace, d.topic, d.version, d.tenant_id, coalesce(d.dedupe_key, '')::text AS dedupe_key, coalesce(d.partition_key, '')::text AS partition_key, d.created_at,
    'logged'::text AS status,
    0::integer AS attempts, 0::integer AS max_attempts, NULL::timestamptz AS next_attempt_at, NULL::uuid AS locked_by, NULL::timestamptz AS locked_until,
    NULL::timestamptz AS finalized_at, ''::text AS last_error
FROM outbox_schema.log AS d
WHERE d.seq = ANY (@seqs::bigint[])
ORDER BY d.seq DESC;

-- name: HeardByID :many
-- Reads the dead letters and the parked events that listeners have of events, with the columns of a page. The list keeps the
-- planner from starting parallel workers, when statistics are missing, for the few rows that it reads.
WITH wanted AS MATERIALIZED (
    SELECT DISTINCT unnest(@ids::uuid[]) AS id
)
SELECT true AS matches, false AS edge, d.died_at AS event_at, d.no, d.id, coalesce(d.listener, '')::text AS listener,
    d.namespace, d.topic, d.version, d.tenant_id, coalesce(d.dedupe_key, '')::text AS dedupe_key, coalesce(d.partition_key, '')::text AS partition_key, d.created_at,
    'dead'::text AS status,
    d.attempts, 0::integer AS max_attempts, NULL::timestamptz AS next_attempt_at, d.locked_by, NULL::timestamptz AS locked_until,
    d.died_at AS finalized_at, d.error::text AS last_error
FROM wanted AS w
JOIN outbox_schema.dead_letters AS d ON d.id = w.id
WHERE d.listener IS NOT NULL
UNION ALL
SELECT true AS matches, false AS edge, d.parked_at AS event_at, d.no, d.id, d.listener,
    d.namespace, d.topic, d.version, d.tenant_id, coalesce(d.dedupe_key, '')::text AS dedupe_key, coalesce(d.partition_key, '')::text AS partition_key, d.created_at,
    'parked'::text AS status,
    d.attempts, 0::integer AS max_attempts, d.retry_after AS next_attempt_at, NULL::uuid AS locked_by, NULL::timestamptz AS locked_until,
    NULL::timestamptz AS finalized_at, coalesce(d.last_error, '')::text AS last_error
FROM wanted AS w
JOIN outbox_schema.parked AS d ON d.id = w.id;

-- name: LogFrom :one
-- Reads the first event of the log at seq or behind it.
SELECT g.seq, g.created_at
FROM outbox_schema.log AS g
WHERE g.seq >= @seq::bigint
ORDER BY g.seq
LIMIT 1;

-- name: LogLast :one
SELECT coalesce((SELECT g.seq FROM outbox_schema.log AS g ORDER BY g.seq DESC LIMIT 1), 0)::bigint AS seq;

-- name: LogFind :many
-- Looks for an event by id between two positions.
SELECT g.seq
FROM outbox_schema.log AS g
WHERE g.seq >= @low::bigint
  AND g.seq <= @high::bigint
  AND g.id = @id;

-- name: EventDetail :many
-- Reads all of one event of a queue topic.
SELECT e.version, coalesce(e.entity_type, '')::text AS entity_type, coalesce(e.entity_id, '')::text AS entity_id,
    coalesce(e.entity_version, 0)::bigint AS entity_version, e.headers, e.payload, e.failures
FROM outbox_schema.event_status AS e
WHERE e.id = @id;

-- name: LogDetail :many
-- Reads all of one event of the log.
SELECT coalesce(e.entity_type, '')::text AS entity_type, coalesce(e.entity_id, '')::text AS entity_id,
    coalesce(e.entity_version, 0)::bigint AS entity_version, e.headers, e.payload
FROM outbox_schema.log AS e
WHERE e.seq = @seq;

-- name: HeardDetail :many
-- Reads all of one event from a copy that a listener has, because the log has pruned it.
SELECT coalesce(d.entity_type, '')::text AS entity_type, coalesce(d.entity_id, '')::text AS entity_id,
    coalesce(d.entity_version, 0)::bigint AS entity_version, d.headers, d.payload
FROM outbox_schema.dead_letters AS d
WHERE d.id = @id
  AND d.listener IS NOT NULL
UNION ALL
SELECT coalesce(d.entity_type, '')::text AS entity_type, coalesce(d.entity_id, '')::text AS entity_id,
    coalesce(d.entity_version, 0)::bigint AS entity_version, d.headers, d.payload
FROM outbox_schema.parked AS d
WHERE d.id = @id
LIMIT 1;

-- name: LogStanding :many
-- Says of events of the log where the cursor of each listener stands: whether it has passed them, and whether it stands at one
-- because it has failed. The rule is that of ListenerSkip.
SELECT g.seq, l.listener,
    (
        (g.seq <= l.high_seq AND pg_visible_in_snapshot(g.xid, l.lo))
        OR (l.in_batch AND g.seq <= l.last_seq AND pg_visible_in_snapshot(g.xid, l.hi))
        OR coalesce(l.ahead_attempts[array_position(l.ahead_seqs, g.seq)] = 0, false)
    )::boolean AS passed,
    (CASE WHEN l.retry_count > 0 AND l.in_batch AND g.seq = l.last_seq + 1 THEN l.retry_count ELSE 0 END)::integer AS attempts,
    l.retry_after,
    coalesce(l.last_error, '')::text AS last_error
FROM outbox_schema.log AS g
JOIN outbox_schema.listeners AS l ON g.bucket % l.shards = l.shard
WHERE g.seq = ANY (@seqs::bigint[])
ORDER BY g.seq, l.listener;
