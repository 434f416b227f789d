-- name: LimitLock :exec
-- Lets one process after the other declare limits. It waits for at most 30 s, unless the session has a lock_timeout: any
-- session may hold the lock for longer, and a process that cannot start must say so.
WITH was AS MATERIALIZED (SELECT current_setting('lock_timeout') AS timeout)
SELECT
    set_config('lock_timeout', CASE was.timeout WHEN '0' THEN '30s' ELSE was.timeout END, true),
    pg_advisory_xact_lock(@lock_key::bigint),
    set_config('lock_timeout', was.timeout, true)
FROM was;

-- name: LimitDeclare :exec
-- Declares the limits of topics, also that some have none. What operators have set stays.
WITH want AS MATERIALIZED (
    SELECT
        unnest(@limited::text[]) AS topic,
        unnest(@pers::text[]) AS per,
        unnest(@counted_as::text[]) AS counted_as,
        unnest(@nths::integer[]) AS nth,
        unnest(@tags::text[]) AS tag,
        unnest(@parts::integer[]) AS part,
        unnest(@concurrencies::integer[]) AS concurrency,
        unnest(@rates::integer[]) AS rate,
        unnest(@periods_us::bigint[]) AS period_us
),
gone AS (
    DELETE FROM outbox_schema.limits AS l
    WHERE l.namespace = @namespace
      AND l.topic = ANY (@topics::text[])
      AND NOT EXISTS (SELECT FROM want AS w WHERE w.topic = l.topic AND w.per = l.per)
)
INSERT INTO outbox_schema.limits AS l (
    namespace, topic, per, counted_as, nth, tag, part, concurrency, rate, period, declared_at)
SELECT @namespace, w.topic, w.per, w.counted_as, w.nth, w.tag, w.part, nullif(w.concurrency, 0), nullif(w.rate, 0),
    CASE WHEN w.rate > 0 THEN w.period_us * interval '1 us' END, statement_timestamp()
FROM want AS w
ON CONFLICT ON CONSTRAINT limits_pkey DO UPDATE
SET counted_as = excluded.counted_as,
    nth = excluded.nth,
    tag = excluded.tag,
    part = excluded.part,
    concurrency = excluded.concurrency,
    rate = excluded.rate,
    period = excluded.period,
    declared_at = excluded.declared_at;

-- name: LimitLeftBehind :many
-- Finds those of topics that have other limits than worker_id wants, although it is the newest start of the dispatchers that
-- run and take the topic: the process that has declared them has ended since.
WITH want AS MATERIALIZED (
    SELECT
        unnest(@limited::text[]) AS topic,
        unnest(@pers::text[]) AS per,
        unnest(@counted_as::text[]) AS counted_as,
        unnest(@nths::integer[]) AS nth,
        unnest(@tags::text[]) AS tag,
        unnest(@parts::integer[]) AS part,
        unnest(@concurrencies::integer[]) AS concurrency,
        unnest(@rates::integer[]) AS rate,
        unnest(@periods_us::bigint[]) AS period_us
),
have AS MATERIALIZED (
    SELECT l.topic, l.per, l.counted_as, l.nth, l.tag, l.part, coalesce(l.concurrency, 0) AS concurrency,
        coalesce(l.rate, 0) AS rate, coalesce(extract(epoch FROM l.period) * 1000000, 0)::bigint AS period_us
    FROM outbox_schema.limits AS l
    WHERE l.namespace = @namespace
      AND l.topic = ANY (@topics::text[])
),
other AS (
    SELECT DISTINCT coalesce(h.topic, w.topic) AS topic
    FROM have AS h
    FULL JOIN want AS w ON w.topic = h.topic AND w.per = h.per
    WHERE (h.counted_as, h.nth, h.tag, h.part, h.concurrency, h.rate, h.period_us)
        IS DISTINCT FROM (w.counted_as, w.nth, w.tag, w.part, w.concurrency, w.rate, w.period_us)
)
SELECT o.topic::text AS topic
FROM other AS o
WHERE @worker_id = (
    SELECT p.worker_id
    FROM outbox_schema.processes AS p
    WHERE p.kind = 'dispatcher'
      AND p.name = @namespace
      AND p.seen_at > statement_timestamp() - @alive::interval
      AND p.topics -> (@namespace || '/' || o.topic) IS NOT NULL
    ORDER BY p.started_at DESC, p.worker_id
    LIMIT 1
)
ORDER BY o.topic;

-- name: LimitIsCurrent :one
-- Reports whether the limits of a topic are those whose turns begin with tag. Otherwise another process has declared others.
SELECT EXISTS (
    SELECT FROM outbox_schema.limits AS l WHERE l.namespace = @namespace AND l.topic = @topic AND l.tag = @tag
)::boolean AS is_current;

-- name: LimitMisfiled :many
-- Locks some events of a topic that have another turn than its limits need, or none: they were written by older processes,
-- from SQL, or by hand. Their turns are in the ranges of the index before and behind those that begin with tag. Events whose
-- lease has run out are among them, because no claim takes them before they have their turn, except those on their last
-- attempt, which a sweep takes.
SELECT m.id, m.version, m.tenant_id, e.payload
FROM (
    SELECT plain.id, plain.version, plain.tenant_id FROM (
        SELECT q.id, q.version, q.tenant_id
        FROM outbox_schema.queue AS q
        WHERE q.namespace = @namespace
          AND q.lane = @lane
          AND q.topic = @topic
          AND (q.locked_until IS NULL
              OR q.locked_until < statement_timestamp()
                  AND q.attempts < coalesce(sqlc.narg('max_attempts')::integer, q.max_attempts)
                  AND NOT q.id = ANY (@in_flight::uuid[]))
        ORDER BY q.next_attempt_at, q.id
        LIMIT @batch_size::integer
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS plain
    UNION ALL
    SELECT loose.id, loose.version, loose.tenant_id FROM (
        SELECT q.id, q.version, q.tenant_id
        FROM outbox_schema.queue AS q
        WHERE q.namespace = @namespace
          AND q.lane = 0
          AND q.topic = @topic
          AND (q.locked_until IS NULL
              OR q.locked_until < statement_timestamp()
                  AND q.attempts < coalesce(sqlc.narg('max_attempts')::integer, q.max_attempts)
                  AND NOT q.id = ANY (@in_flight::uuid[]))
        ORDER BY q.next_attempt_at, q.id
        LIMIT @batch_size::integer
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS loose
    UNION ALL
    SELECT lower.id, lower.version, lower.tenant_id FROM (
        SELECT q.id, q.version, q.tenant_id
        FROM outbox_schema.queue AS q
        WHERE q.namespace = @namespace
          AND q.lane + 0 = @turn_lane
          AND q.turn < @tag::text
          AND q.topic = @topic
          AND (q.locked_until IS NULL
              OR q.locked_until < statement_timestamp()
                  AND q.attempts < coalesce(sqlc.narg('max_attempts')::integer, q.max_attempts)
                  AND NOT q.id = ANY (@in_flight::uuid[]))
        ORDER BY q.turn, q.next_attempt_at, q.id
        LIMIT @batch_size::integer
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS lower
    UNION ALL
    SELECT upper.id, upper.version, upper.tenant_id FROM (
        SELECT q.id, q.version, q.tenant_id
        FROM outbox_schema.queue AS q
        WHERE q.namespace = @namespace
          AND q.lane + 0 = @turn_lane
          AND q.turn >= @tag || '0'
          AND q.topic = @topic
          AND (q.locked_until IS NULL
              OR q.locked_until < statement_timestamp()
                  AND q.attempts < coalesce(sqlc.narg('max_attempts')::integer, q.max_attempts)
                  AND NOT q.id = ANY (@in_flight::uuid[]))
        ORDER BY q.turn, q.next_attempt_at, q.id
        LIMIT @batch_size::integer
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS upper
) AS m
LEFT JOIN outbox_schema.events AS e ON e.id = m.id;

-- name: LimitFile :exec
-- Gives events that LimitMisfiled has locked their turns. A lease that has run out ends here, because it does not count
-- among the keys of the new turn.
UPDATE outbox_schema.queue AS q
SET lane = @turn_lane,
    turn = w.turn,
    locked_until = NULL,
    failures = CASE
        WHEN q.locked_until IS NULL THEN q.failures
        ELSE CASE WHEN jsonb_array_length(q.failures) >= 5 THEN q.failures - 0 ELSE coalesce(q.failures, '[]') END
            || jsonb_build_object('attempt', q.attempts, 'at', statement_timestamp(), 'worker', q.locked_by, 'error',
                'lease ran out on attempt ' || q.attempts || ', worker ' || coalesce(q.locked_by::text, 'unknown') || ' did not answer')
    END
FROM (SELECT unnest(@ids::uuid[]) AS id, unnest(@turns::text[]) AS turn) AS w
WHERE q.id = w.id;

-- name: LimitPrune :one
-- Deletes rows of keys of which nothing is used, in the order of their keys after the last one checked: a piece of them.
-- Rows that a claim has locked are skipped. They are those of all topics of the namespace, also of topics and limits that
-- the caller does not know, so the limits in the table say how long starts count.
WITH piece AS MATERIALIZED (
    SELECT u.topic, u.per, u.key
    FROM outbox_schema.limit_usage AS u
    WHERE u.namespace = @namespace
      AND (u.topic, u.per, u.key) > (@after_topic::text, @after_per::text, @after_key::text)
    ORDER BY u.topic, u.per, u.key
    LIMIT @batch_size::integer
),
idle AS MATERIALIZED (
    SELECT l.topic, l.per, l.key
    FROM piece AS p
    CROSS JOIN (
        SELECT 2 * max(greatest(l.period, l.set_period)) AS longest FROM outbox_schema.limits AS l WHERE l.namespace = @namespace
    ) AS k
    CROSS JOIN LATERAL (
        SELECT u.topic, u.per, u.key
        FROM outbox_schema.limit_usage AS u
        WHERE u.namespace = @namespace
          AND u.topic = p.topic
          AND u.per = p.per
          AND u.key = p.key
          AND NOT EXISTS (
              SELECT FROM unnest(u.running) AS r (id) CROSS JOIN LATERAL (
                  SELECT FROM outbox_schema.queue AS q WHERE q.id = r.id AND q.locked_until IS NOT NULL LIMIT 1) AS q)
          AND u.updated_at < statement_timestamp() - greatest(interval '1 min', k.longest)
        FOR UPDATE SKIP LOCKED
    ) AS l
),
gone AS (
    DELETE FROM outbox_schema.limit_usage AS u
    USING idle AS i
    WHERE u.namespace = @namespace
      AND u.topic = i.topic
      AND u.per = i.per
      AND u.key = i.key
    RETURNING u.key
)
SELECT
    (SELECT count(*) FROM gone) AS deleted,
    coalesce((SELECT p.topic FROM piece AS p ORDER BY p.topic DESC, p.per DESC, p.key DESC LIMIT 1), '')::text AS topic,
    coalesce((SELECT p.per FROM piece AS p ORDER BY p.topic DESC, p.per DESC, p.key DESC LIMIT 1), '')::text AS per,
    coalesce((SELECT p.key FROM piece AS p ORDER BY p.topic DESC, p.per DESC, p.key DESC LIMIT 1), '')::text AS key;

-- name: LimitList :many
-- Lists the limits of all topics: what is declared, and what an operator has set, with the keys in use of each. A key is
-- full when no event of it may start now. Reads up to key_limit keys of each topic, and of the due events of each topic the
-- first due_limit.
WITH limits AS MATERIALIZED (
    SELECT l.namespace, l.topic, l.per, l.counted_as, l.nth, l.tag, l.part, l.concurrency, l.rate, l.period, l.declared_at,
        l.set_concurrency, l.set_rate, l.set_period, l.set_until, l.set_at, coalesce(l.set_by, '') AS set_by,
        coalesce(l.set_until > statement_timestamp(), false) AS is_set
    FROM outbox_schema.limits AS l
    WHERE (@namespace::text = '' OR l.namespace = @namespace)
      AND (@topic::text = '' OR l.topic = @topic)
      AND (NOT @per_given::boolean OR l.per = @per::text)
),
valid AS MATERIALIZED (
    SELECT l.namespace, l.topic, l.per, l.counted_as, l.tag, l.part,
        CASE WHEN l.is_set THEN coalesce(l.set_concurrency, l.concurrency) ELSE l.concurrency END AS concurrency,
        CASE WHEN l.is_set THEN coalesce(l.set_rate, l.rate) ELSE l.rate END AS rate,
        CASE WHEN l.is_set THEN coalesce(l.set_period, l.period) ELSE l.period END AS period
    FROM limits AS l
),
used AS MATERIALIZED (
    SELECT v.namespace, v.topic, v.per, u.key, v.concurrency, v.rate, r.running, s.starts,
        CASE WHEN s.starts >= v.rate THEN s.first + v.period END AS free_at
    FROM valid AS v
    CROSS JOIN LATERAL (
        SELECT u.key, u.running, u.starts_at, u.starts
        FROM outbox_schema.limit_usage AS u
        WHERE u.namespace = v.namespace
          AND u.topic = v.counted_as
          AND u.per = v.per
        ORDER BY u.key
        LIMIT @key_limit::integer
    ) AS u
    CROSS JOIN LATERAL (
        SELECT count(DISTINCT i.id) AS running
        FROM unnest(u.running) AS i (id)
        CROSS JOIN LATERAL (
            SELECT FROM outbox_schema.queue AS q WHERE q.id = i.id AND q.locked_until IS NOT NULL LIMIT 1) AS q
    ) AS r
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(u.starts[n.i]), 0)::bigint AS starts, min(u.starts_at[n.i]) AS first
        FROM generate_subscripts(u.starts_at, 1) AS n (i)
        WHERE u.starts_at[n.i] >= statement_timestamp() - v.period
    ) AS s
),
due AS MATERIALIZED (
    SELECT t.namespace, t.topic, d.turn, d.waiting, d.oldest, d.seen
    FROM (SELECT DISTINCT v.namespace, v.topic FROM valid AS v) AS t
    CROSS JOIN LATERAL (
        SELECT p.turn, count(*) AS waiting, min(p.next_attempt_at) AS oldest, sum(count(*)) OVER () AS seen
        FROM (
            SELECT q.turn, q.next_attempt_at
            FROM outbox_schema.queue AS q
            WHERE q.namespace = t.namespace
              AND q.lane = outbox_schema.lane(t.topic) | (1 << 30)
              AND q.next_attempt_at <= statement_timestamp()
              AND q.topic = t.topic
              AND q.locked_until IS NULL
            ORDER BY q.next_attempt_at, q.id
            LIMIT @due_limit::integer
        ) AS p
        GROUP BY p.turn
    ) AS d
),
waits AS MATERIALIZED (
    SELECT v.namespace, v.topic, v.per, CASE WHEN v.part = 0 THEN '' ELSE split_part(d.turn, '/', v.part + 1) END AS key,
        sum(d.waiting)::bigint AS waiting, min(d.oldest) AS oldest, bool_or(d.seen >= @due_limit::integer) AS more
    FROM valid AS v
    JOIN due AS d ON d.namespace = v.namespace AND d.topic = v.topic AND split_part(d.turn, '/', 1) = v.tag
    GROUP BY 1, 2, 3, 4
)
SELECT l.namespace, l.topic, l.per, '' AS key, true AS head,
    coalesce(l.concurrency, 0)::integer AS concurrency, coalesce(l.rate, 0)::integer AS rate,
    coalesce((extract(epoch FROM l.period) * 1000000)::bigint, 0)::bigint AS period_us,
    l.is_set::boolean AS is_set, coalesce(l.set_concurrency, 0)::integer AS set_concurrency, coalesce(l.set_rate, 0)::integer AS set_rate,
    coalesce((extract(epoch FROM l.set_period) * 1000000)::bigint, 0)::bigint AS set_period_us,
    nullif(l.set_until, 'infinity')::timestamptz AS until, l.set_at, l.set_by, l.declared_at, l.nth,
    0::bigint AS running, 0::bigint AS starts, NULL::timestamptz AS free_at, 0::bigint AS waiting, NULL::timestamptz AS oldest,
    false AS more
FROM limits AS l
UNION ALL
SELECT v.namespace, v.topic, v.per, coalesce(u.key, w.key), false, 0, 0, 0, false, 0, 0, 0, NULL, NULL, '', NULL, 0,
    coalesce(u.running, 0), coalesce(u.starts, 0), u.free_at, coalesce(w.waiting, 0), w.oldest, coalesce(w.more, false)
FROM used AS u
FULL JOIN waits AS w ON w.namespace = u.namespace AND w.topic = u.topic AND w.per = u.per AND w.key = u.key
JOIN valid AS v ON v.namespace = coalesce(u.namespace, w.namespace) AND v.topic = coalesce(u.topic, w.topic)
    AND v.per = coalesce(u.per, w.per)
WHERE u.running > 0
   OR u.starts > 0
   OR w.waiting > 0
ORDER BY head DESC, namespace, topic, nth, waiting DESC, running DESC, key;

-- name: LimitSet :execrows
-- Sets what a limit allows in place of what is declared, until a time or for good. What is not given stays as it is.
UPDATE outbox_schema.limits AS l
SET set_concurrency = coalesce(w.concurrency, CASE WHEN w.add THEN l.set_concurrency END),
    set_rate = coalesce(w.rate, CASE WHEN w.add THEN l.set_rate END),
    set_period = coalesce(w.period, CASE WHEN w.add THEN l.set_period END),
    set_until = w.until,
    set_at = statement_timestamp(),
    set_by = w.who
FROM (
    SELECT i.namespace, i.topic, i.per, nullif(i.concurrency, 0) AS concurrency, nullif(i.rate, 0) AS rate,
        CASE WHEN i.rate > 0 THEN i.period_us * interval '1 us' END AS period, coalesce(i.until, 'infinity') AS until, i.who,
        o.set_until > statement_timestamp() AS add
    FROM (
        SELECT @namespace::text AS namespace, @topic::text AS topic, @per::text AS per, @concurrency::integer AS concurrency,
            @rate::integer AS rate, @period_us::bigint AS period_us, sqlc.narg('until')::timestamptz AS until, @who::text AS who
    ) AS i
    JOIN outbox_schema.limits AS o ON o.namespace = i.namespace AND o.topic = i.topic AND o.per = i.per
) AS w
WHERE l.namespace = w.namespace
  AND l.topic = w.topic
  AND l.per = w.per;

-- name: LimitReset :execrows
-- Ends what operators have set: of a limit, or of all limits of a topic.
UPDATE outbox_schema.limits AS l
SET set_concurrency = NULL,
    set_rate = NULL,
    set_period = NULL,
    set_until = NULL,
    set_at = NULL,
    set_by = NULL
WHERE l.namespace = @namespace
  AND l.topic = @topic
  AND (NOT @per_given::boolean OR l.per = @per::text)
  AND l.set_until > statement_timestamp();
