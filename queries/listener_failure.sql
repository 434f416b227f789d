-- name: ListenerFail :exec
-- Keeps failed attempts at events, the latest five of each. Guarded by the lease. DISTINCT, because after a rewind a lease may
-- have an event twice: parked, and read from the log. An attempt that is made again, after a replay, replaces the earlier one.
WITH lease AS MATERIALIZED (
    SELECT l.lease_by
    FROM outbox_schema.listeners AS l
    WHERE l.listener = @listener
      AND l.shard = @shard
      AND l.lease_by = @worker_id
      AND l.lease_no = @lease_no
      AND l.running
    FOR NO KEY UPDATE
),
failed AS MATERIALIZED (
    SELECT DISTINCT ON (u.id, u.attempt) u.id, u.attempt, u.error
    FROM (
        SELECT
            unnest(@ids::uuid[]) AS id,
            unnest(@attempts::integer[]) AS attempt,
            unnest(@errors::text[]) AS error
    ) AS u
    ORDER BY u.id, u.attempt
),
older AS (
    DELETE FROM outbox_schema.listener_failures AS f
    USING lease AS h, failed AS w
    WHERE f.id = w.id
      AND f.listener = @listener
      AND f.attempt <= w.attempt - 5
)
INSERT INTO outbox_schema.listener_failures (id, listener, attempt, at, worker, error)
SELECT w.id, @listener, w.attempt, statement_timestamp(), h.lease_by, w.error
FROM lease AS h
CROSS JOIN failed AS w
ORDER BY w.id
ON CONFLICT (id, listener, attempt) DO UPDATE
SET at = excluded.at,
    worker = excluded.worker,
    error = excluded.error;

-- name: ListenerFailures :many
-- Reads the latest five failed attempts of listeners at events, oldest first.
SELECT o.id, o.listener, o.attempt, o.at, o.worker, o.error
FROM (
    SELECT f.id, f.listener, f.attempt, f.at, f.worker, f.error,
        row_number() OVER (PARTITION BY f.id, f.listener ORDER BY f.at DESC, f.attempt DESC) AS latest
    FROM outbox_schema.listener_failures AS f
    WHERE f.id = ANY (@ids::uuid[])
) AS o
WHERE o.latest <= 5
ORDER BY o.id, o.listener, o.at, o.attempt;

-- name: ListenerFailuresPrune :execrows
-- Deletes one chunk of failed attempts that are older than keep.
WITH old AS MATERIALIZED (
    SELECT f.id, f.listener, f.attempt
    FROM outbox_schema.listener_failures AS f
    WHERE f.at < statement_timestamp() - @keep::interval
    ORDER BY f.at
    LIMIT @batch_size::integer
    FOR UPDATE SKIP LOCKED
)
DELETE FROM outbox_schema.listener_failures AS f
USING old AS o
WHERE f.id = o.id
  AND f.listener = o.listener
  AND f.attempt = o.attempt;
