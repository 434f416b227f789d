-- name: ProcessBeat :exec
-- Says that a process runs, and what it takes and what rests. starts is set with the first one of a Run: a worker with a
-- configured id may still have the row of an earlier process. Rows of the same kind and name that nobody has renewed for an
-- hour are deleted. SKIP LOCKED, because several processes may do that at the same time.
WITH old AS MATERIALIZED (
    SELECT o.worker_id
    FROM outbox_schema.processes AS o
    WHERE o.kind = @kind
      AND o.name = @name
      AND o.seen_at < statement_timestamp() - interval '1 hour'
      AND o.worker_id <> @worker_id
    FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM outbox_schema.processes AS p
    USING old AS o
    WHERE p.kind = @kind
      AND p.name = @name
      AND p.worker_id = o.worker_id
)
INSERT INTO outbox_schema.processes AS p (worker_id, kind, name, host, pid, topics, tenant_ids, resting)
VALUES (@worker_id, @kind, @name, @host, @pid, @topics, sqlc.narg('tenant_ids')::uuid[], @resting)
ON CONFLICT (kind, name, worker_id) DO UPDATE
SET host = excluded.host,
    pid = excluded.pid,
    topics = excluded.topics,
    tenant_ids = excluded.tenant_ids,
    resting = excluded.resting,
    started_at = CASE WHEN @starts::boolean THEN excluded.started_at ELSE p.started_at END,
    seen_at = excluded.seen_at;

-- name: ProcessEnd :exec
-- Deletes the row of a process that stops. host and pid keep the row of another process that has the same worker id.
DELETE FROM outbox_schema.processes AS p
WHERE p.kind = @kind
  AND p.name = @name
  AND p.worker_id = @worker_id
  AND p.host = @host
  AND p.pid = @pid;

-- name: ProcessList :many
-- Lists the processes. age_us is how long ago each was seen.
SELECT p.worker_id, p.kind, p.name, p.host, p.pid, p.topics, p.tenant_ids, p.resting, p.started_at, p.seen_at,
    (extract(epoch FROM statement_timestamp() - p.seen_at) * 1000000)::bigint AS age_us
FROM outbox_schema.processes AS p
ORDER BY p.kind, p.name, p.started_at, p.worker_id;
