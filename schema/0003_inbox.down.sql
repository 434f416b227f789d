DROP TABLE outbox_schema.inbox_messages;
DROP TABLE outbox_schema.inbox_quarantined;
DROP TABLE outbox_schema.entity_versions;
DROP TABLE outbox_schema.processed_events;
DROP FUNCTION outbox_schema.processed_events_owned;
