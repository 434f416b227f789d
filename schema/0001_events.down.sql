DROP FUNCTION outbox_schema.enqueue;
DROP FUNCTION outbox_schema.lane;
DROP VIEW outbox_schema.event_status;
DROP TABLE outbox_schema.dead_letters;
DROP TABLE outbox_schema.delivered;
DROP TABLE outbox_schema.queue;
DROP TABLE outbox_schema.events;
