DROP FUNCTION outbox_schema.enqueue_log;
DROP FUNCTION outbox_schema.bucket;
DROP TABLE outbox_schema.listener_failures;
DROP TABLE outbox_schema.listener_rates;
DROP TABLE outbox_schema.parked;
DROP TABLE outbox_schema.listeners;
DROP TABLE outbox_schema.log;
DROP SEQUENCE outbox_schema.log_seq;
