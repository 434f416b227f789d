-- name: QueueLanes :many
-- Lists the namespaces and lanes that have rows in queue, by jumps from one to the next: two probes of queue_due for each.
WITH RECURSIVE walk AS (
    (
        SELECT q.namespace, q.lane
        FROM outbox_schema.queue AS q
        ORDER BY q.namespace, q.lane
        LIMIT 1
    )
    UNION ALL
    SELECT n.namespace, n.lane
    FROM walk AS w
    CROSS JOIN LATERAL (
        SELECT q.namespace, q.lane
        FROM outbox_schema.queue AS q
        WHERE (q.namespace, q.lane) > (w.namespace, w.lane)
        ORDER BY q.namespace, q.lane
        LIMIT 1
    ) AS n
)
SELECT w.namespace, w.lane
FROM walk AS w;

-- name: ScanWhole :exec
-- Settings for the rest of a transaction with SessionGuard: what follows reads a whole table. Groups are hashed, because with
-- old statistics the planner may want to sort all rows.
SELECT
    set_config('enable_seqscan', 'on', true),
    set_config('enable_hashagg', 'on', true),
    set_config('enable_sort', 'off', true);

-- name: QueueSize :one
-- Returns the size of queue on disk, with the space that a past backlog has left empty.
SELECT pg_relation_size('outbox_schema.queue'::regclass) AS bytes, statement_timestamp()::timestamptz AS now;

-- name: QueueCounts :many
-- Counts the rows of queue by topic and version, in one scan, and by state: 1 in flight, 2 with an expired lease, 3 due later
-- for the first time, 4 due later again, 5 due, 6 due again. The state is a group and not a FILTER for each, because that
-- takes half the time.
--
-- tried means in an attempt that is not the first one, or waiting for it.
SELECT
    q.namespace, q.topic, q.version,
    CASE
        WHEN q.locked_until IS NOT NULL THEN CASE WHEN q.locked_until >= statement_timestamp() THEN 1 ELSE 2 END
        WHEN q.next_attempt_at > statement_timestamp() THEN CASE WHEN q.attempts > 0 OR q.claim_no > 0 THEN 4 ELSE 3 END
        WHEN q.attempts > 0 THEN 6
        ELSE 5
    END::integer AS state,
    q.claim_no > (q.locked_until IS NOT NULL)::integer AS tried,
    count(*) AS count,
    min(q.next_attempt_at)::timestamptz AS first_due
FROM outbox_schema.queue AS q
GROUP BY q.namespace, q.topic, q.version, 4, 5;

-- name: QueueCountsByLane :many
-- QueueCounts of the first piece rows of each lane, in the order in which they are due.
WITH lane AS (
    SELECT
        unnest(@namespaces::text[]) AS namespace,
        unnest(@lanes::integer[]) AS lane
)
SELECT
    r.namespace, r.lane, r.topic, r.version,
    CASE
        WHEN r.locked_until IS NOT NULL THEN CASE WHEN r.locked_until >= statement_timestamp() THEN 1 ELSE 2 END
        WHEN r.next_attempt_at > statement_timestamp() THEN CASE WHEN r.attempts > 0 OR r.claim_no > 0 THEN 4 ELSE 3 END
        WHEN r.attempts > 0 THEN 6
        ELSE 5
    END::integer AS state,
    r.claim_no > (r.locked_until IS NOT NULL)::integer AS tried,
    count(*) AS count,
    min(r.next_attempt_at)::timestamptz AS first_due
FROM lane AS l
CROSS JOIN LATERAL (
    SELECT q.namespace, q.lane, q.topic, q.version, q.next_attempt_at, q.attempts, q.claim_no, q.locked_until, q.id
    FROM outbox_schema.queue AS q
    WHERE q.namespace = l.namespace
      AND q.lane = l.lane
    ORDER BY q.next_attempt_at, q.id
    LIMIT @piece::integer
) AS r
GROUP BY r.namespace, r.lane, r.topic, r.version, 5, 6;

-- name: QueueOldest :many
-- Finds when the oldest event of each topic was enqueued, of those that are not scheduled. It reads all of queue and one row
-- of events for each. With a join the planner may read all of events instead.
SELECT q.namespace, q.topic, min(e.created_at)::timestamptz AS created_at
FROM outbox_schema.queue AS q
CROSS JOIN LATERAL (
    SELECT o.created_at
    FROM outbox_schema.events AS o
    WHERE o.id = q.id
    LIMIT 1 -- keeps it a probe for each row
) AS e
WHERE q.next_attempt_at <= statement_timestamp()
   OR q.attempts > 0
   OR q.claim_no > 0
GROUP BY q.namespace, q.topic;

-- name: QueueFirstTried :many
-- Finds when the first event of each topic was enqueued, of those among the first id_limit ids that were tried before. UUID v7
-- grow with time. min takes text because PostgreSQL before 18 has none of uuid.
SELECT f.namespace, f.topic, e.created_at
FROM (
    SELECT r.namespace, r.topic, min(r.id::text COLLATE "C")::uuid AS id
    FROM (
        SELECT q.namespace, q.topic, q.id, q.claim_no > (q.locked_until IS NOT NULL)::integer AS tried
        FROM outbox_schema.queue AS q
        ORDER BY q.id
        LIMIT @id_limit::integer
    ) AS r
    WHERE r.tried
    GROUP BY r.namespace, r.topic
) AS f
JOIN outbox_schema.events AS e ON e.id = f.id;

-- name: TopicHistory :many
-- Reads what has become of the events of each topic that delivered or dead_letters know. It finds the topics by jumps from one
-- to the next. delivered counts the latest of the last rate_over, up to rate_limit of them,
-- and delivered_us is the time in which they were delivered. dead and dead_hour, the dead letters of the last hour, count up
-- to dead_limit.
WITH RECURSIVE done AS (
    (
        SELECT d.namespace, d.topic
        FROM outbox_schema.delivered AS d
        ORDER BY d.namespace, d.topic
        LIMIT 1
    )
    UNION ALL
    SELECT n.namespace, n.topic
    FROM done AS o
    CROSS JOIN LATERAL (
        SELECT d.namespace, d.topic
        FROM outbox_schema.delivered AS d
        WHERE (d.namespace, d.topic) > (o.namespace, o.topic)
        ORDER BY d.namespace, d.topic
        LIMIT 1
    ) AS n
),
dead AS (
    (
        SELECT d.namespace, d.topic
        FROM outbox_schema.dead_letters AS d
        WHERE d.listener IS NULL
        ORDER BY d.namespace, d.topic
        LIMIT 1
    )
    UNION ALL
    SELECT n.namespace, n.topic
    FROM dead AS o
    CROSS JOIN LATERAL (
        SELECT d.namespace, d.topic
        FROM outbox_schema.dead_letters AS d
        WHERE (d.namespace, d.topic) > (o.namespace, o.topic)
          AND d.listener IS NULL
        ORDER BY d.namespace, d.topic
        LIMIT 1
    ) AS n
),
known AS MATERIALIZED (
    SELECT o.namespace, o.topic FROM done AS o
    UNION
    SELECT o.namespace, o.topic FROM dead AS o
)
SELECT
    k.namespace::text AS namespace, k.topic::text AS topic,
    r.count AS delivered,
    (CASE
        WHEN r.count < @rate_limit::integer THEN extract(epoch FROM @rate_over::interval) * 1000000
        ELSE extract(epoch FROM statement_timestamp() - r.since) * 1000000
    END)::bigint AS delivered_us,
    x.count AS dead,
    h.count AS dead_hour
FROM known AS k
CROSS JOIN LATERAL (
    SELECT count(*) AS count, min(t.finalized_at) AS since
    FROM (
        SELECT d.finalized_at
        FROM outbox_schema.delivered AS d
        WHERE d.namespace = k.namespace
          AND d.topic = k.topic
          AND d.finalized_at > statement_timestamp() - @rate_over::interval
        ORDER BY d.finalized_at DESC
        LIMIT @rate_limit::integer
    ) AS t
) AS r
CROSS JOIN LATERAL (
    SELECT count(*) AS count
    FROM (
        SELECT
        FROM outbox_schema.dead_letters AS d
        WHERE d.listener IS NULL
          AND d.namespace = k.namespace
          AND d.topic = k.topic
        ORDER BY d.died_at -- so that no other index is considered
        LIMIT @dead_limit::integer
    ) AS t
) AS x
CROSS JOIN LATERAL (
    SELECT count(*) AS count
    FROM (
        SELECT
        FROM outbox_schema.dead_letters AS d
        WHERE d.listener IS NULL
          AND d.namespace = k.namespace
          AND d.topic = k.topic
          AND d.died_at > statement_timestamp() - interval '1 hour'
        ORDER BY d.died_at
        LIMIT @dead_limit::integer
    ) AS t
) AS h
ORDER BY 1, 2;

-- name: EventTail :many
-- Counts the events of each topic among the latest tail_limit whose id is a UUID v7 of the last rate_over. The primary key leads
-- to them. enqueued is how many of them were enqueued in that time, and oldest_us is the age of the oldest of all. The upper bound
-- leaves out random ids, nearly all of which are larger; a minute is for clocks that are ahead.
SELECT t.namespace::text AS namespace, t.topic::text AS topic,
    count(*) AS count,
    count(*) FILTER (WHERE t.created_at > statement_timestamp() - @rate_over::interval) AS enqueued,
    (extract(epoch FROM statement_timestamp() - min(t.created_at)) * 1000000)::bigint AS oldest_us
FROM (
    SELECT e.namespace, e.topic, e.created_at
    FROM outbox_schema.events AS e
    WHERE e.id >= (lpad(to_hex((extract(epoch FROM statement_timestamp() - @rate_over::interval) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
      AND e.id < (lpad(to_hex((extract(epoch FROM statement_timestamp() + interval '1 minute') * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
    ORDER BY e.id DESC
    LIMIT @tail_limit::integer
) AS t
GROUP BY t.namespace, t.topic;

-- name: LogTail :many
-- Counts the events of each topic among the latest tail_limit of the log. appended is how many of them were enqueued in the last
-- rate_over, and oldest_us is the age of the oldest of all.
SELECT t.namespace::text AS namespace, t.topic::text AS topic,
    count(*) AS count,
    count(*) FILTER (WHERE t.created_at > statement_timestamp() - @rate_over::interval) AS appended,
    max(t.created_at)::timestamptz AS latest,
    (extract(epoch FROM statement_timestamp() - min(t.created_at)) * 1000000)::bigint AS oldest_us
FROM (
    SELECT g.namespace, g.topic, g.created_at
    FROM outbox_schema.log AS g
    ORDER BY g.seq DESC
    LIMIT @tail_limit::integer
) AS t
GROUP BY t.namespace, t.topic;
