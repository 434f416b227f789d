-- name: AuditInsert :exec
-- Records what an operator did, in the transaction that does it.
INSERT INTO outbox_schema.audit (who, act, why, scope, events)
VALUES (@who, @act, @why, @scope, @events);

-- name: AuditStart :one
-- AuditInsert for what takes several transactions. AuditAdd counts what the later ones change.
INSERT INTO outbox_schema.audit (who, act, why, scope, events)
VALUES (@who, @act, @why, @scope, @events)
RETURNING no;

-- name: AuditAdd :exec
-- Counts further events of an act, in the transaction that changes them.
UPDATE outbox_schema.audit AS a
SET events = a.events + @events
WHERE a.no = @no;
