-- name: DoctorQueue :many
-- Reads the first head_size due rows of each lane, where everything that is late stands, by topic and version. claimable is
-- how many of them are due and wait for a claim, expired is how many have a lease that has run out. Paused rows do not
-- count as claimable, nor do those that wait at limits: held has their namespaces and turns, as "namespace turn".
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
),
heads AS MATERIALIZED (
    SELECT h.namespace, h.topic, h.version, h.next_attempt_at, h.locked_until,
        coalesce(h.namespace || ' ' || h.turn = ANY (@held::text[]), false) AS held,
        EXISTS (
            SELECT
            FROM outbox_schema.pauses AS p
            WHERE p.listener = ''
              AND (p.until IS NULL OR p.until > statement_timestamp())
              AND p.namespace IN ('', h.namespace)
              AND p.topic IN ('', h.topic)
              AND (p.tenant_id = '00000000-0000-0000-0000-000000000000' OR p.tenant_id = h.tenant_id)
        ) AS paused
    FROM walk AS w
    CROSS JOIN LATERAL (
        SELECT q.namespace, q.topic, q.version, q.next_attempt_at, q.locked_until, q.tenant_id, q.turn
        FROM outbox_schema.queue AS q
        WHERE q.namespace = w.namespace
          AND q.lane = w.lane
          AND q.next_attempt_at <= statement_timestamp()
        ORDER BY q.next_attempt_at, q.id
        LIMIT @head_size::integer
    ) AS h
)
SELECT h.namespace::text AS namespace, h.topic::text AS topic, h.version,
    count(*) FILTER (WHERE h.locked_until IS NULL AND NOT h.paused AND NOT h.held) AS claimable,
    coalesce(extract(epoch FROM statement_timestamp() - min(h.next_attempt_at) FILTER (WHERE h.locked_until IS NULL AND NOT h.paused AND NOT h.held)) * 1000000, 0)::bigint AS claimable_us,
    count(*) FILTER (WHERE h.locked_until < statement_timestamp() AND NOT h.paused) AS expired,
    coalesce(extract(epoch FROM statement_timestamp() - min(h.locked_until) FILTER (WHERE NOT h.paused)) * 1000000, 0)::bigint AS expired_us
FROM heads AS h
GROUP BY h.namespace, h.topic, h.version
ORDER BY h.namespace, h.topic, h.version;

-- name: DoctorLimits :many
-- Reads the limits, what operators have set, and what comes in for those that have a rate and are of the topic or per tenant:
-- incoming is how many events of the topic, or of the tenant with the most, were enqueued in the time of sample_us. That is an
-- hour, or less if more than tail_limit events of all topics were enqueued in it. Ids that are UUIDs v7 lead to them.
WITH tail AS MATERIALIZED (
    SELECT e.namespace, e.topic, e.tenant_id, e.created_at
    FROM outbox_schema.events AS e
    WHERE EXISTS (SELECT FROM outbox_schema.limits AS l WHERE l.rate IS NOT NULL AND l.per IN ('', 'tenant'))
      AND e.id >= (lpad(to_hex((extract(epoch FROM statement_timestamp() - interval '1 hour') * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
      AND e.id < (lpad(to_hex((extract(epoch FROM statement_timestamp() + interval '1 minute') * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
    ORDER BY e.id DESC
    LIMIT @tail_limit::integer
),
grouped AS MATERIALIZED (
    SELECT t.namespace, t.topic, t.tenant_id, count(*) AS n
    FROM tail AS t
    GROUP BY t.namespace, t.topic, t.tenant_id
),
sample AS (
    SELECT CASE WHEN count(*) < @tail_limit::integer THEN interval '1 hour' ELSE statement_timestamp() - min(t.created_at) END AS span
    FROM tail AS t
)
SELECT l.namespace::text AS namespace, l.topic::text AS topic, l.per::text AS per, l.counted_as::text AS counted_as,
    coalesce(l.concurrency, 0)::integer AS concurrency, coalesce(l.rate, 0)::integer AS rate,
    coalesce(extract(epoch FROM l.period) * 1000000, 0)::bigint AS period_us,
    l.declared_at, (extract(epoch FROM statement_timestamp() - l.declared_at) * 1000000)::bigint AS declared_us,
    coalesce(l.set_until > statement_timestamp(), false)::boolean AS is_set,
    coalesce(l.set_concurrency, 0)::integer AS set_concurrency, coalesce(l.set_rate, 0)::integer AS set_rate,
    coalesce(extract(epoch FROM l.set_period) * 1000000, 0)::bigint AS set_period_us,
    (CASE WHEN isfinite(l.set_until) THEN l.set_until END)::timestamptz AS set_until, l.set_at, coalesce(l.set_by, '')::text AS set_by,
    (CASE l.per
        WHEN '' THEN (SELECT coalesce(sum(g.n), 0) FROM grouped AS g WHERE g.namespace = l.namespace AND g.topic = l.topic)
        WHEN 'tenant' THEN (SELECT coalesce(max(g.n), 0) FROM grouped AS g WHERE g.namespace = l.namespace AND g.topic = l.topic)
        ELSE 0
    END)::bigint AS incoming,
    (extract(epoch FROM (SELECT s.span FROM sample AS s)) * 1000000)::bigint AS sample_us
FROM outbox_schema.limits AS l
ORDER BY l.namespace, l.topic, l.nth;

-- name: DoctorProcesses :many
-- Lists the processes that were seen within gone_after. age_us is how long ago that was.
SELECT p.kind, p.name::text AS name, p.worker_id, p.host, p.pid, p.topics,
    (extract(epoch FROM statement_timestamp() - p.seen_at) * 1000000)::bigint AS age_us
FROM outbox_schema.processes AS p
WHERE p.seen_at > statement_timestamp() - @gone_after::interval
ORDER BY p.kind, p.name, p.seen_at;

-- name: DoctorPauses :many
SELECT p.namespace::text AS namespace, p.topic::text AS topic, p.tenant_id, p.listener::text AS listener, p.paused_at, p.until, p.who, p.why
FROM outbox_schema.pauses AS p
WHERE p.until IS NULL OR p.until > statement_timestamp()
ORDER BY p.namespace, p.topic, p.tenant_id, p.listener;

-- name: DoctorMisfits :one
-- Checks a piece of queue, of events and of delivered, each in the order of ids after the last one checked. checked is the
-- last id of each piece, and null if there was none. Scalar subqueries probe by id; an EXISTS within an OR may become a hash
-- of the whole table.
WITH queued AS MATERIALIZED (
    SELECT q.id
    FROM outbox_schema.queue AS q
    WHERE q.id > @after_queued
    ORDER BY q.id
    LIMIT @batch_size::integer
),
enqueued AS MATERIALIZED (
    SELECT e.id
    FROM outbox_schema.events AS e
    WHERE e.id > @after_enqueued
    ORDER BY e.id
    LIMIT @batch_size::integer
),
done AS MATERIALIZED (
    SELECT d.id
    FROM outbox_schema.delivered AS d
    WHERE d.id > @after_delivered
    ORDER BY d.id
    LIMIT @batch_size::integer
)
SELECT
    ((SELECT count(*) FROM queued) + (SELECT count(*) FROM enqueued) + (SELECT count(*) FROM done))::bigint AS checked,
    (SELECT q.id FROM queued AS q ORDER BY q.id DESC LIMIT 1)::uuid AS checked_queued,
    (SELECT e.id FROM enqueued AS e ORDER BY e.id DESC LIMIT 1)::uuid AS checked_enqueued,
    (SELECT d.id FROM done AS d ORDER BY d.id DESC LIMIT 1)::uuid AS checked_delivered,
    (
        SELECT count(*)
        FROM queued AS q
        WHERE NOT EXISTS (SELECT FROM outbox_schema.events AS e WHERE e.id = q.id)
    ) AS orphans,
    (
        SELECT count(*)
        FROM queued AS q
        WHERE (SELECT d.id FROM outbox_schema.delivered AS d WHERE d.id = q.id LIMIT 1) IS NOT NULL
           OR (SELECT x.id FROM outbox_schema.dead_letters AS x WHERE x.id = q.id AND x.listener IS NULL LIMIT 1) IS NOT NULL
    ) AS final,
    (
        SELECT count(*)
        FROM enqueued AS e
        WHERE NOT EXISTS (SELECT FROM outbox_schema.queue AS q WHERE q.id = e.id)
          AND NOT EXISTS (SELECT FROM outbox_schema.delivered AS d WHERE d.id = e.id)
          AND (SELECT x.id FROM outbox_schema.dead_letters AS x WHERE x.id = e.id AND x.listener IS NULL LIMIT 1) IS NULL
    ) AS stateless,
    (
        SELECT count(*)
        FROM done AS d
        WHERE (SELECT x.id FROM outbox_schema.dead_letters AS x WHERE x.id = d.id AND x.listener IS NULL LIMIT 1) IS NOT NULL
    ) AS twice;

-- name: DoctorSchemas :many
-- Reads the schemas of the database that have tables of the outbox.
SELECT n.nspname::text AS name
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relname = 'processed_events'
  AND c.relkind = 'r'
  AND EXISTS (
      SELECT
      FROM pg_catalog.pg_class AS d
      WHERE d.relnamespace = n.oid
        AND d.relname = 'dead_letters'
        AND d.relkind = 'r'
  )
ORDER BY n.nspname
LIMIT 20;
