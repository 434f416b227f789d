-- name: DoctorQueue :many
-- Reads the first head_size due rows of each lane, where everything that is late stands, by topic and version. claimable is
-- how many of them are due and wait for a claim, expired is how many have a lease that has run out. Paused rows do not
-- count as claimable.
WITH RECURSIVE spaces AS (
    (
        SELECT q.namespace
        FROM outbox_schema.queue AS q
        ORDER BY q.namespace
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT q.namespace
        FROM outbox_schema.queue AS q
        WHERE q.namespace > s.namespace
        ORDER BY q.namespace
        LIMIT 1
    )
    FROM spaces AS s
    WHERE s.namespace IS NOT NULL
),
heads AS MATERIALIZED (
    SELECT h.namespace, h.topic, h.version, h.next_attempt_at, h.locked_until,
        EXISTS (
            SELECT
            FROM outbox_schema.pauses AS p
            WHERE p.listener = ''
              AND (p.until IS NULL OR p.until > statement_timestamp())
              AND p.namespace IN ('', h.namespace)
              AND p.topic IN ('', h.topic)
              AND (p.tenant_id = '00000000-0000-0000-0000-000000000000' OR p.tenant_id = h.tenant_id)
        ) AS paused
    FROM spaces AS s
    CROSS JOIN generate_series(0, 31) AS n (lane_no)
    CROSS JOIN LATERAL (
        SELECT q.namespace, q.topic, q.version, q.next_attempt_at, q.locked_until, q.tenant_id
        FROM outbox_schema.queue AS q
        WHERE q.namespace = s.namespace
          AND q.lane = n.lane_no::smallint
          AND q.next_attempt_at <= statement_timestamp()
        ORDER BY q.next_attempt_at, q.id
        LIMIT @head_size::integer
    ) AS h
    WHERE s.namespace IS NOT NULL
)
SELECT h.namespace::text AS namespace, h.topic::text AS topic, h.version,
    count(*) FILTER (WHERE h.locked_until IS NULL AND NOT h.paused) AS claimable,
    coalesce(extract(epoch FROM statement_timestamp() - min(h.next_attempt_at) FILTER (WHERE h.locked_until IS NULL AND NOT h.paused)) * 1000000, 0)::bigint AS claimable_us,
    count(*) FILTER (WHERE h.locked_until < statement_timestamp() AND NOT h.paused) AS expired,
    coalesce(extract(epoch FROM statement_timestamp() - min(h.locked_until) FILTER (WHERE NOT h.paused)) * 1000000, 0)::bigint AS expired_us
FROM heads AS h
GROUP BY h.namespace, h.topic, h.version
ORDER BY h.namespace, h.topic, h.version;

-- name: DoctorProcesses :many
-- age_us is how long ago the process was seen.
SELECT p.kind, p.name::text AS name, p.worker_id, p.host, p.pid, p.topics,
    (extract(epoch FROM statement_timestamp() - p.seen_at) * 1000000)::bigint AS age_us
FROM outbox_schema.processes AS p
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
