DROP TABLE outbox_schema.audit;
DROP TABLE outbox_schema.pauses;
DROP TABLE outbox_schema.processes;
