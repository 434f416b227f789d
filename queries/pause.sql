-- name: PauseOfNamespace :many
-- Reads what is paused of the queue topics of a namespace: no topic and the zero tenant mean all of it. A row without a
-- namespace is of a tenant everywhere.
SELECT p.topic, p.tenant_id
FROM outbox_schema.pauses AS p
WHERE p.namespace IN ('', @namespace)
  AND p.listener = ''
  AND (p.until IS NULL OR p.until > statement_timestamp());

-- name: PauseList :many
-- Lists the pauses that have not ended.
SELECT p.namespace, p.topic, p.tenant_id, p.listener, p.paused_at, p.until, p.who, p.why,
    (p.until IS NOT NULL)::boolean AS ends
FROM outbox_schema.pauses AS p
WHERE p.until IS NULL
   OR p.until > statement_timestamp()
ORDER BY p.listener, p.namespace, p.topic, p.tenant_id;

-- name: PauseSet :one
-- Pauses a scope, or changes its pause. Returns whether the pause is in force: until may have passed.
INSERT INTO outbox_schema.pauses AS p (namespace, topic, tenant_id, listener, until, who, why)
VALUES (@namespace, @topic, @tenant_id, @listener, sqlc.narg('until')::timestamptz, @who, @why)
ON CONFLICT (namespace, topic, tenant_id, listener) DO UPDATE
SET until = excluded.until,
    who = excluded.who,
    why = excluded.why,
    paused_at = CASE WHEN p.until <= excluded.paused_at THEN excluded.paused_at ELSE p.paused_at END
RETURNING (p.until IS NULL OR p.until > statement_timestamp())::boolean AS active;

-- name: PauseEnd :many
-- Ends the pause of a scope. There is no row if it is not paused; active is false if its pause had ended by itself.
DELETE FROM outbox_schema.pauses AS p
WHERE p.namespace = @namespace
  AND p.topic = @topic
  AND p.tenant_id = @tenant_id
  AND p.listener = @listener
RETURNING (p.until IS NULL OR p.until > statement_timestamp())::boolean AS active;

-- name: PauseExpire :exec
-- Deletes the pauses that have ended by themselves. SKIP LOCKED, because several operators may do that at the same time.
DELETE FROM outbox_schema.pauses AS p
USING (
    SELECT o.namespace, o.topic, o.tenant_id, o.listener
    FROM outbox_schema.pauses AS o
    WHERE o.until <= statement_timestamp()
    FOR UPDATE SKIP LOCKED
) AS e
WHERE p.namespace = e.namespace
  AND p.topic = e.topic
  AND p.tenant_id = e.tenant_id
  AND p.listener = e.listener;

-- name: TopicsKnown :many
-- Lists the topics that processes take, and with everywhere those that queue and log have, and whether they are log topics.
-- TopicHistory knows the others.
SELECT DISTINCT k.name::text AS name, k.log::boolean AS log
FROM (
    SELECT t.name, p.kind = 'listener' AS log
    FROM outbox_schema.processes AS p
    CROSS JOIN LATERAL jsonb_object_keys(p.topics) AS t (name)
    UNION ALL
    SELECT q.namespace || '/' || q.topic, false
    FROM (SELECT DISTINCT o.namespace, o.topic FROM outbox_schema.queue AS o WHERE @everywhere::boolean) AS q
    UNION ALL
    SELECT g.namespace || '/' || g.topic, true
    FROM (SELECT DISTINCT o.namespace, o.topic FROM outbox_schema.log AS o WHERE @everywhere::boolean) AS g
) AS k
ORDER BY 1, 2;
