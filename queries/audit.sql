-- name: AuditInsert :exec
-- Records what an operator did, in the transaction that does it.
INSERT INTO outbox_schema.audit (who, act, why, scope, events)
VALUES (@who, @act, @why, @scope, @events);
