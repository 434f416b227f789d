-- name: LimitWaits :many
-- Finds what waits at limits: of each topic, among the first piece due events of its lane, those without a lease and a pause
-- of which a key of the limit is used up. An event that waits at several limits counts at each. turns are those of the
-- events, if with_turns is set. cut says that there are more due events.
--
-- A key counts as used up a little longer than it is, since what a claim has taken is soon done, and soon claimed again:
-- of a concurrency, for ten seconds after a claim has taken the last place: what runs, and what has ended since then, are
-- as many as may run; of a rate, for an eighth of the period and a second. A lease that ran out does not count, so what
-- waits for a process that died does not wait at a limit.
WITH wanted AS MATERIALIZED (
    SELECT
        unnest(@namespaces::text[]) AS namespace,
        unnest(@topics::text[]) AS topic,
        unnest(@lanes::integer[]) AS lane
),
seen AS MATERIALIZED (
    SELECT w.namespace, w.topic, h.topic AS its_topic, h.turn, h.tenant_id, h.next_attempt_at, h.locked_until
    FROM wanted AS w
    CROSS JOIN LATERAL (
        SELECT q.topic, q.turn, q.tenant_id, q.next_attempt_at, q.locked_until
        FROM outbox_schema.queue AS q
        WHERE q.namespace = w.namespace
          AND q.lane = w.lane
          AND q.next_attempt_at <= statement_timestamp()
        ORDER BY q.next_attempt_at, q.id
        LIMIT @piece::integer
    ) AS h
),
head AS MATERIALIZED (
    SELECT s.namespace, s.topic, s.turn, count(*) AS waiting, min(s.next_attempt_at) AS since
    FROM seen AS s
    WHERE s.its_topic = s.topic
      AND s.locked_until IS NULL
      AND NOT EXISTS (
          SELECT FROM outbox_schema.pauses AS p
          WHERE p.listener = ''
            AND (p.until IS NULL OR p.until > statement_timestamp())
            AND p.namespace IN ('', s.namespace)
            AND p.topic IN ('', s.topic)
            AND (p.tenant_id = '00000000-0000-0000-0000-000000000000' OR p.tenant_id = s.tenant_id)
      )
    GROUP BY s.namespace, s.topic, s.turn
),
keyed AS MATERIALIZED (
    SELECT h.namespace, h.topic, h.turn, h.waiting, h.since, l.counted_as, l.per,
        CASE WHEN l.part > 0 THEN split_part(h.turn, '/', l.part + 1) ELSE '' END AS key,
        l.concurrency AS most, l.rate, l.period
    FROM head AS h
    CROSS JOIN LATERAL (
        SELECT o.counted_as, o.per, o.part, o.concurrency, o.rate, o.period
        FROM outbox_schema.limits_in_force AS o
        WHERE o.namespace = h.namespace
          AND o.topic = h.topic
          AND o.tag = split_part(h.turn, '/', 1)
    ) AS l
),
used_up AS MATERIALIZED (
    SELECT k.namespace, k.counted_as, k.per, k.key
    FROM (SELECT DISTINCT d.namespace, d.counted_as, d.per, d.key, d.most, d.rate, d.period FROM keyed AS d) AS k
    CROSS JOIN LATERAL (
        SELECT o.running, o.starts_at, o.starts, o.updated_at
        FROM outbox_schema.limit_usage AS o
        WHERE o.namespace = k.namespace
          AND o.topic = k.counted_as
          AND o.per = k.per
          AND o.key = k.key
        LIMIT 1
    ) AS u
    WHERE cardinality(u.running) >= k.most
        AND (
            SELECT count(DISTINCT r.id)
            FROM unnest(u.running) AS r (id)
            LEFT JOIN LATERAL (
                SELECT q.locked_until, q.updated_at FROM outbox_schema.queue AS q WHERE q.id = r.id LIMIT 1
            ) AS q ON true
            LEFT JOIN LATERAL (
                SELECT o.finalized_at FROM outbox_schema.delivered AS o WHERE o.id = r.id LIMIT 1
            ) AS d ON true
            WHERE q.locked_until >= statement_timestamp()
               OR u.updated_at > statement_timestamp() - interval '10 s'
                   AND (d.finalized_at >= u.updated_at OR q.locked_until IS NULL AND q.updated_at >= u.updated_at)
        ) >= k.most
       OR (
           SELECT sum(t.n)
           FROM (SELECT unnest(u.starts_at) AS at, unnest(u.starts) AS n) AS t
           WHERE t.at >= statement_timestamp() - k.period * 1.125 - interval '1 s'
       ) >= k.rate
)
SELECT k.namespace::text AS namespace, k.topic::text AS topic, k.per::text AS per,
    sum(k.waiting)::bigint AS waiting,
    bool_or(a.looked >= @piece::integer)::boolean AS cut,
    count(DISTINCT k.key) AS keys,
    (extract(epoch FROM statement_timestamp() - min(k.since)) * 1000000)::bigint AS longest_us,
    coalesce(array_agg(k.turn) FILTER (WHERE @with_turns::boolean), '{}')::text[] AS turns
FROM keyed AS k
JOIN (
    SELECT s.namespace, s.topic, count(*) AS looked FROM seen AS s GROUP BY s.namespace, s.topic
) AS a ON a.namespace = k.namespace AND a.topic = k.topic
JOIN used_up AS u ON u.namespace = k.namespace AND u.counted_as = k.counted_as AND u.per = k.per AND u.key = k.key
GROUP BY k.namespace, k.topic, k.per
ORDER BY 1, 2, 3;

-- name: LimitsOfEvent :many
-- Finds what is used of the keys that a waiting event has, in the order in which a claim applies the limits. free_at is when
-- the rate allows a start again, if it allows none now. filed says that the event has the keys of the limits already.
SELECT l.per::text AS per, l.key::text AS key, coalesce(l.concurrency, 0)::integer AS concurrency, coalesce(l.rate, 0)::integer AS rate,
    coalesce(extract(epoch FROM l.period) * 1000000, 0)::bigint AS period_us,
    coalesce(l.tag = split_part(q.turn, '/', 1), false)::boolean AS filed,
    v.live AS running, w.used AS started,
    (CASE WHEN w.used >= l.rate THEN w.first + l.period END)::timestamptz AS free_at
FROM outbox_schema.queue AS q
CROSS JOIN LATERAL (
    SELECT o.nth, o.counted_as, o.per, o.tag, o.concurrency, o.rate, o.period,
        CASE WHEN o.part > 0 THEN split_part(coalesce(q.turn, ''), '/', o.part + 1) ELSE '' END AS key
    FROM outbox_schema.limits_in_force AS o
    WHERE o.namespace = q.namespace
      AND o.topic = q.topic
) AS l
LEFT JOIN LATERAL (
    SELECT o.running, o.starts_at, o.starts
    FROM outbox_schema.limit_usage AS o
    WHERE o.namespace = q.namespace
      AND o.topic = l.counted_as
      AND o.per = l.per
      AND o.key = l.key
    LIMIT 1
) AS u ON true
CROSS JOIN LATERAL (
    SELECT count(DISTINCT r.id) AS live
    FROM unnest(u.running) AS r (id)
    CROSS JOIN LATERAL (
        SELECT FROM outbox_schema.queue AS o WHERE o.id = r.id AND o.locked_until IS NOT NULL LIMIT 1) AS o
) AS v
CROSS JOIN LATERAL (
    SELECT coalesce(sum(t.n), 0)::bigint AS used, min(t.at) AS first
    FROM (SELECT unnest(u.starts_at) AS at, unnest(u.starts) AS n) AS t
    WHERE t.at >= statement_timestamp() - l.period
) AS w
WHERE q.id = @id
ORDER BY l.nth;

-- name: LimitTopics :many
-- Lists the topics that have limits.
SELECT DISTINCT l.namespace, l.topic
FROM outbox_schema.limits AS l
ORDER BY l.namespace, l.topic;
