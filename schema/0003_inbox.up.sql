-- The consumer's side: which events were handled, in the database where they had their effect. A service that only
-- consumes needs only these tables.

-- Handled events. A row is written before the effect, in the same transaction, and never changed.
CREATE TABLE outbox_schema.processed_events (
    consumer_group text        NOT NULL,
    event_id       uuid        NOT NULL,
    processed_at   timestamptz NOT NULL DEFAULT statement_timestamp(),
    CONSTRAINT processed_events_pkey PRIMARY KEY (consumer_group, event_id)
) WITH (
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05
);

-- For prune. New entries go to the end of their group, so an insert costs little. A BRIN index would cost less, but it
-- no longer finds the old rows once new rows fill the space that a prune has left.
CREATE INDEX processed_events_age ON outbox_schema.processed_events (consumer_group, processed_at);

COMMENT ON TABLE outbox_schema.processed_events IS 'Events that consumers have handled. Written by package inbox with the effect, in one transaction.';
COMMENT ON COLUMN outbox_schema.processed_events.consumer_group IS 'The group that handled the event: each group handles each event once.';
COMMENT ON COLUMN outbox_schema.processed_events.processed_at IS 'Time of the record by the database clock; the retention counts from here.';

-- The last version of each entity that a group has applied. The type and id of an entity are unique only for one tenant of
-- one source: another may use the same names for another entity. No index except the primary key covers the row, so each
-- change is a HOT update; fillfactor leaves the room for it.
CREATE TABLE outbox_schema.entity_versions (
    consumer_group text        NOT NULL,
    source         text        NOT NULL,
    tenant_id      uuid        NOT NULL,
    entity_type    text        NOT NULL,
    entity_id      text        NOT NULL,
    version        bigint      NOT NULL,
    event_id       uuid        NOT NULL,
    updated_at     timestamptz NOT NULL DEFAULT statement_timestamp(),
    CONSTRAINT entity_versions_pkey PRIMARY KEY (consumer_group, source, tenant_id, entity_type, entity_id),
    CONSTRAINT entity_versions_version_check CHECK (version >= 1)
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05
);

COMMENT ON TABLE outbox_schema.entity_versions IS 'Last applied version of each entity, per consumer group. Kept as long as the entity may change, even after its deletion.';
COMMENT ON COLUMN outbox_schema.entity_versions.source IS 'Where the events of the entity come from: the source of CloudEvents, else / and the namespace. Empty if the consumer gives none.';
COMMENT ON COLUMN outbox_schema.entity_versions.tenant_id IS 'Tenant of the entity; the zero UUID if it has none.';
COMMENT ON COLUMN outbox_schema.entity_versions.version IS 'Events of the entity with this or a lower version are stale.';
COMMENT ON COLUMN outbox_schema.entity_versions.event_id IS 'Event with that version.';

-- Stale events that are quarantined for inspection.
CREATE TABLE outbox_schema.inbox_quarantined (
    consumer_group text        NOT NULL,
    event_id       uuid        NOT NULL,
    source         text        NOT NULL,
    tenant_id      uuid        NOT NULL,
    entity_type    text        NOT NULL,
    entity_id      text        NOT NULL,
    version        bigint      NOT NULL,
    last_version   bigint      NOT NULL,
    last_event_id  uuid        NOT NULL,
    payload        bytea,
    quarantined_at      timestamptz NOT NULL DEFAULT statement_timestamp(),
    CONSTRAINT inbox_quarantined_pkey PRIMARY KEY (consumer_group, event_id)
);

CREATE INDEX inbox_quarantined_age ON outbox_schema.inbox_quarantined (consumer_group, quarantined_at);

COMMENT ON TABLE outbox_schema.inbox_quarantined IS 'Stale events that a consumer has quarantined. Only people read them; delete them when they are settled.';
COMMENT ON COLUMN outbox_schema.inbox_quarantined.last_version IS 'Version of the entity that was applied when the event arrived.';
COMMENT ON COLUMN outbox_schema.inbox_quarantined.last_event_id IS 'Event with last_version.';
COMMENT ON COLUMN outbox_schema.inbox_quarantined.payload IS 'The event in the bytes that its consumer gave; null if it gave none.';
