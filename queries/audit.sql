-- name: AuditInsert :exec
-- Records what an operator did, in the transaction that does it. If nobody has said who, it is the user of the database.
INSERT INTO outbox_schema.audit (who, act, why, scope, events)
VALUES (coalesce(nullif(@who::text, ''), 'database user ' || session_user), @act, @why, @scope, @events);

-- name: AuditStart :one
-- AuditInsert for what takes several transactions. AuditAdd counts what the later ones change. busy is how long the next one
-- may take to come, and null if there is none.
INSERT INTO outbox_schema.audit (who, act, why, scope, events, busy_until)
VALUES (@who, @act, @why, @scope, @events, clock_timestamp() + sqlc.narg('busy')::interval)
RETURNING no;

-- name: AuditAdd :exec
-- Counts further events of an act, in the transaction that changes them.
UPDATE outbox_schema.audit AS a
SET events = a.events + @events,
    busy_until = clock_timestamp() + sqlc.narg('busy')::interval
WHERE a.no = @no;

-- name: AuditList :many
-- Lists what operators did below a number, the latest first, along the primary key. Empty and null select all.
SELECT a.no, a.at, a.who, a.act, a.why, a.scope, a.events
FROM outbox_schema.audit AS a
WHERE a.no < @before_no::bigint
  AND (@who::text = '' OR a.who = @who)
  AND (@act::text = '' OR a.act = @act)
  AND (sqlc.narg('since')::timestamptz IS NULL OR a.at >= sqlc.narg('since'))
  AND (sqlc.narg('until')::timestamptz IS NULL OR a.at < sqlc.narg('until'))
ORDER BY a.no DESC
LIMIT @entry_limit::integer;
