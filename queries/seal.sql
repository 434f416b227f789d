-- The statements of outboxgen reseal, for each table that keeps payloads. A page is read along the primary key, so that
-- none takes long; a payload in which nothing can be sealed is left out of it. An update takes a row only if its payload is
-- still the one that was read.

-- name: SealEventPage :many
SELECT e.id, e.tenant_id, (CASE WHEN e.payload::text LIKE '%"sealed:v%' THEN e.payload END)::jsonb AS payload
FROM outbox_schema.events AS e
WHERE e.id > @after
ORDER BY e.id
LIMIT @page_size::integer;

-- name: SealEventUpdate :execrows
-- The only update of events: what the event says stays the same. A logical copy does not publish it, and a dispatcher that
-- has claimed the event has read the payload already.
UPDATE outbox_schema.events AS e
SET payload = @payload
WHERE e.id = @id
  AND e.payload = @was;

-- name: SealLogPage :many
SELECT g.seq, g.id, g.tenant_id, (CASE WHEN g.payload::text LIKE '%"sealed:v%' THEN g.payload END)::jsonb AS payload
FROM outbox_schema.log AS g
WHERE g.seq > @after
ORDER BY g.seq
LIMIT @page_size::integer;

-- name: SealLogUpdate :execrows
-- The only update of the log. xid and seq stay, so that cursors read the same events.
UPDATE outbox_schema.log AS g
SET payload = @payload
WHERE g.seq = @seq
  AND g.payload = @was;

-- name: SealDeadPage :many
SELECT d.no, d.id, d.tenant_id, (CASE WHEN d.payload::text LIKE '%"sealed:v%' THEN d.payload END)::jsonb AS payload
FROM outbox_schema.dead_letters AS d
WHERE d.no > @after
ORDER BY d.no
LIMIT @page_size::integer;

-- name: SealDeadUpdate :execrows
UPDATE outbox_schema.dead_letters AS d
SET payload = @payload
WHERE d.no = @no
  AND d.payload = @was;

-- name: SealParkedPage :many
SELECT p.no, p.id, p.tenant_id, (CASE WHEN p.payload::text LIKE '%"sealed:v%' THEN p.payload END)::jsonb AS payload
FROM outbox_schema.parked AS p
WHERE p.no > @after
ORDER BY p.no
LIMIT @page_size::integer;

-- name: SealParkedUpdate :execrows
UPDATE outbox_schema.parked AS p
SET payload = @payload
WHERE p.no = @no
  AND p.payload = @was;

-- name: SealMessagePage :many
-- A message without a readable event has nothing that its values could be bound to.
SELECT m.no, m.event_id, m.tenant_id, m.envelope,
    (CASE WHEN m.event_id IS NOT NULL AND position('"sealed:v'::bytea IN m.body) > 0 THEN m.body END)::bytea AS body
FROM outbox_schema.inbox_messages AS m
WHERE m.no > @after
ORDER BY m.no
LIMIT @page_size::integer;

-- name: SealMessageUpdate :execrows
UPDATE outbox_schema.inbox_messages AS m
SET body = @body
WHERE m.no = @no
  AND m.body = @was;

-- name: SealQuarantinedPage :many
SELECT x.consumer_group, x.event_id, x.tenant_id,
    (CASE WHEN position('"sealed:v'::bytea IN x.payload) > 0 THEN x.payload END)::bytea AS payload
FROM outbox_schema.inbox_quarantined AS x
WHERE (x.consumer_group, x.event_id) > (@after_group::text, @after_id::uuid)
ORDER BY x.consumer_group, x.event_id
LIMIT @page_size::integer;

-- name: SealQuarantinedUpdate :execrows
UPDATE outbox_schema.inbox_quarantined AS x
SET payload = @payload
WHERE x.consumer_group = @consumer_group
  AND x.event_id = @event_id
  AND x.payload = @was;
