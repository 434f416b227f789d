-- name: ProcessBeat :exec
-- Says that a process runs, and what it takes and what rests. starts is set with the first one of a Run: a worker with a
-- configured id may still have the row of an earlier process. Rows that nobody has renewed are deleted: those of the same
-- kind and name after an hour, and all others after a month. SKIP LOCKED, because several processes may do that at the same
-- time.
WITH old AS MATERIALIZED (
    SELECT o.kind, o.name, o.worker_id
    FROM outbox_schema.processes AS o
    WHERE o.seen_at < statement_timestamp()
              - CASE WHEN o.kind = @kind AND o.name = @name THEN interval '1 hour' ELSE interval '30 days' END
      AND (o.worker_id <> @worker_id OR o.kind <> @kind OR o.name <> @name)
    FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM outbox_schema.processes AS p
    USING old AS o
    WHERE p.kind = o.kind
      AND p.name = o.name
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
-- Lists the processes that were seen within gone_after. age_us is how long ago each was seen.
SELECT p.worker_id, p.kind, p.name, p.host, p.pid, p.topics, p.tenant_ids, p.resting, p.started_at, p.seen_at,
    (extract(epoch FROM statement_timestamp() - p.seen_at) * 1000000)::bigint AS age_us
FROM outbox_schema.processes AS p
WHERE p.seen_at > statement_timestamp() - @gone_after::interval
ORDER BY p.kind, p.name, p.started_at, p.worker_id;

-- name: ProcessForget :many
-- Deletes the rows of a worker that were not renewed for quiet. Returns all its rows: those with running are still there. The
-- DELETE waits for a beat that is under way, and leaves its row.
WITH gone AS (
    DELETE FROM outbox_schema.processes AS p
    WHERE p.worker_id = @worker_id
      AND p.seen_at < statement_timestamp() - @quiet::interval
    RETURNING p.kind, p.name
)
SELECT p.kind, p.name, p.host, p.pid,
    (extract(epoch FROM statement_timestamp() - p.seen_at) * 1000000)::bigint AS age_us,
    (g.kind IS NULL)::boolean AS running
FROM outbox_schema.processes AS p
LEFT JOIN gone AS g ON g.kind = p.kind AND g.name = p.name
WHERE p.worker_id = @worker_id
ORDER BY p.kind, p.name;

-- name: ProcessKnowing :many
-- Finds a process of a listener, other than worker_id, that lives and knows a version of a topic: of those, one that has the
-- fewest shards. There is at most one row.
SELECT p.worker_id
FROM outbox_schema.processes AS p
WHERE p.kind = 'listener'
  AND p.name = @listener
  AND p.worker_id <> @worker_id
  AND p.seen_at > statement_timestamp() - @alive::interval
  AND (p.topics -> @topic::text ->> 'version')::numeric >= @version::integer
ORDER BY
    (SELECT count(*) FROM outbox_schema.listeners AS l WHERE l.listener = @listener AND l.preferred = p.worker_id),
    p.seen_at DESC
LIMIT 1;

-- name: ProcessOrphans :many
-- Finds the topics of namespaces that have events which are due since longer than late and which no running dispatcher takes,
-- among the first head_size rows of each lane: there stands what nobody takes. known says whether a dispatcher takes the
-- topic, in another version.
WITH RECURSIVE walk AS (
    SELECT s.namespace, f.lane
    FROM (SELECT unnest(@namespaces::text[]) AS namespace) AS s
    CROSS JOIN LATERAL (
        SELECT q.lane
        FROM outbox_schema.queue AS q
        WHERE q.namespace = s.namespace
        ORDER BY q.lane
        LIMIT 1
    ) AS f
    UNION ALL
    SELECT w.namespace, n.lane
    FROM walk AS w
    CROSS JOIN LATERAL (
        SELECT q.lane
        FROM outbox_schema.queue AS q
        WHERE q.namespace = w.namespace
          AND q.lane > w.lane
        ORDER BY q.lane
        LIMIT 1
    ) AS n
),
head AS MATERIALIZED (
    SELECT h.namespace, h.topic, h.version
    FROM walk AS w
    CROSS JOIN LATERAL (
        SELECT q.namespace, q.topic, q.version, q.next_attempt_at, q.locked_until
        FROM outbox_schema.queue AS q
        WHERE q.namespace = w.namespace
          AND q.lane = w.lane
          AND q.next_attempt_at <= statement_timestamp() - @late::interval
        ORDER BY q.next_attempt_at, q.id
        LIMIT @head_size::integer
    ) AS h
    WHERE h.locked_until IS NULL
    GROUP BY h.namespace, h.topic, h.version
)
SELECT h.namespace::text AS namespace, h.topic::text AS topic, h.version, (a.version IS NOT NULL)::boolean AS known
FROM head AS h
CROSS JOIN LATERAL (
    SELECT max(coalesce((p.topics -> (h.namespace || '/' || h.topic) ->> 'version')::numeric, 0)) AS version
    FROM outbox_schema.processes AS p
    WHERE p.kind = 'dispatcher'
      AND p.seen_at > statement_timestamp() - @alive::interval
      AND p.topics -> (h.namespace || '/' || h.topic) IS NOT NULL
) AS a
WHERE a.version IS NULL
   OR a.version < h.version
ORDER BY 1, 2, 3;

-- name: ProcessPassed :many
-- Finds the topics that the process worker_id of a listener passes, because it does not read them, although another process of
-- the listener that lives does. Of several such processes it names the latest. worker_id has a row before it looks.
SELECT DISTINCT ON (t.name) t.name::text AS topic, p.host, p.pid
FROM outbox_schema.processes AS own
JOIN outbox_schema.processes AS p ON p.kind = own.kind AND p.name = own.name AND p.worker_id <> own.worker_id
CROSS JOIN LATERAL jsonb_object_keys(p.topics) AS t (name)
WHERE own.kind = 'listener'
  AND own.name = @listener
  AND own.worker_id = @worker_id
  AND p.seen_at > statement_timestamp() - @alive::interval
  AND NOT jsonb_exists(own.topics, t.name)
ORDER BY t.name, p.started_at DESC;
