-- The consumer's side: what has been handled, in the database in which it had its effect. A service that only
-- consumes uses these tables alone.

-- Handled events. A row is written before the effect, in its transaction, and never changed.
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

-- What is past its retention. Entries are added at the end of their group, which costs an insert little; a BRIN
-- index costs less, but forgets where the old rows are as soon as new ones take the room that a prune has left.
CREATE INDEX processed_events_age ON outbox_schema.processed_events (consumer_group, processed_at);

COMMENT ON TABLE outbox_schema.processed_events IS 'Events that consumers have handled. Written by package inbox with the effect, in one transaction.';
COMMENT ON COLUMN outbox_schema.processed_events.consumer_group IS 'Who handled it: each group handles each event once.';
COMMENT ON COLUMN outbox_schema.processed_events.processed_at IS 'Time of the record by the database clock; the retention counts from here.';

-- The last version of each entity that a group has applied. Types and ids of entities are names that one tenant of one
-- source gives: those of another may be the same and mean another entity. No index but the key covers what changes, so that
-- each change is a HOT update; fillfactor leaves the room for it.
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

COMMENT ON TABLE outbox_schema.entity_versions IS 'Last applied version of each entity, by consumer group. Kept as long as the entity may change, deletions included.';
COMMENT ON COLUMN outbox_schema.entity_versions.source IS 'Who emits the events of the entity: the source of CloudEvents, else / and the namespace. Empty when the consumer gives none.';
COMMENT ON COLUMN outbox_schema.entity_versions.tenant_id IS 'Tenant of the entity; the zero UUID when it has none.';
COMMENT ON COLUMN outbox_schema.entity_versions.version IS 'Events of the entity with this version or a lower one are stale.';
COMMENT ON COLUMN outbox_schema.entity_versions.event_id IS 'Event that brought the version.';

-- Stale events that somebody wants to look at.
CREATE TABLE outbox_schema.inbox_parked (
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
    parked_at      timestamptz NOT NULL DEFAULT statement_timestamp(),
    CONSTRAINT inbox_parked_pkey PRIMARY KEY (consumer_group, event_id)
);

CREATE INDEX inbox_parked_age ON outbox_schema.inbox_parked (consumer_group, parked_at);

COMMENT ON TABLE outbox_schema.inbox_parked IS 'Stale events of consumers that park them. Nothing reads them but people; delete what is settled.';
COMMENT ON COLUMN outbox_schema.inbox_parked.last_version IS 'Version of the entity that had been applied when the event came.';
COMMENT ON COLUMN outbox_schema.inbox_parked.last_event_id IS 'Event that brought last_version.';
COMMENT ON COLUMN outbox_schema.inbox_parked.payload IS 'Bytes of the event as its consumer gave them; null when it gave none.';
