-- name: ListenerRateAdd :exec
-- Makes the row of a listener with a rate.
INSERT INTO outbox_schema.listener_rates (listener)
VALUES (@listener)
ON CONFLICT (listener) DO NOTHING;

-- name: ListenerRateLock :exec
-- Locks the row of a listener with a rate, so that the statement that follows in the same transaction waits for nothing: its
-- clock is not older than what another process has written.
SELECT r.listener
FROM outbox_schema.listener_rates AS r
WHERE r.listener = @listener
FOR NO KEY UPDATE;

-- name: ListenerRateTake :one
-- Lets up to want attempts start within slack from now, as many as the rate allows, and returns how many. They count until a
-- period after the latest time at which they may start, rounded up to a multiple of grain, so that few entries are kept. In
-- no window of the length of period do more than events attempts start then, if none starts after its slack. returned are
-- those of an earlier take that have not started; they are taken off the entry that they were counted in. wait_us is how long
-- it takes until the first entry ends.
WITH given AS MATERIALIZED (
    SELECT
        @events::integer AS events,
        @want::integer AS want,
        @slack::interval AS slack,
        @period::interval AS period,
        @grain::interval AS grain,
        @returned::integer AS returned,
        @returned_until::timestamptz AS returned_until,
        clock_timestamp()::timestamptz AS at
),
live AS MATERIALIZED (
    SELECT k.until, k.n - CASE WHEN k.until = g.returned_until THEN g.returned ELSE 0 END AS n
    FROM given AS g
    CROSS JOIN (
        SELECT unnest(r.untils) AS until, unnest(r.counts) AS n
        FROM outbox_schema.listener_rates AS r
        WHERE r.listener = @listener
    ) AS k
    WHERE k.until > g.at
),
allowed AS MATERIALIZED (
    SELECT
        g.at,
        date_bin(g.grain, g.at + g.slack + g.period, timestamptz 'epoch') + g.grain AS until,
        greatest(least(g.want, g.events - coalesce((SELECT sum(l.n) FROM live AS l), 0)), 0) AS n
    FROM given AS g
),
kept AS MATERIALIZED (
    SELECT a.until, sum(a.n)::integer AS n
    FROM (
        SELECT l.until, l.n
        FROM live AS l
        UNION ALL
        SELECT w.until, w.n
        FROM allowed AS w
    ) AS a
    GROUP BY a.until
    HAVING sum(a.n) > 0
)
UPDATE outbox_schema.listener_rates AS r
SET untils = coalesce((SELECT array_agg(k.until ORDER BY k.until) FROM kept AS k), '{}'),
    counts = coalesce((SELECT array_agg(k.n ORDER BY k.until) FROM kept AS k), '{}')
FROM allowed AS w
WHERE r.listener = @listener
RETURNING w.n::integer AS n, w.until::timestamptz AS until,
    (extract(epoch FROM coalesce((SELECT min(k.until) FROM kept AS k), w.at) - w.at) * 1000000)::bigint AS wait_us;
