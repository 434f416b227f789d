DROP TABLE outbox_schema.events;
