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

-- A consumer's method must not commit the transaction in which it runs: the events of the batch would stay recorded without
-- their effects. A consumer that begins the transaction sets outboxgen.tx to 'open', and to 'commit' with its own COMMIT.
-- Transactions of others do not have the setting, and queue no call of the function.
CREATE FUNCTION outbox_schema.processed_events_owned() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('outboxgen.tx', true) = 'open' THEN
        RAISE EXCEPTION 'the consumer owns this transaction: its method must not commit it'
            USING ERRCODE = 'invalid_transaction_termination',
                HINT = 'Return nil to commit, or an error to roll back. Instead of SET CONSTRAINTS ALL IMMEDIATE, name the constraints.';
    END IF;
    RETURN NULL;
END
$$;

CREATE CONSTRAINT TRIGGER processed_events_owned AFTER INSERT ON outbox_schema.processed_events
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (current_setting('outboxgen.tx', true) = 'open')
    EXECUTE FUNCTION outbox_schema.processed_events_owned();

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

-- Messages that a consumer group keeps because it could not apply them. Parked ones are tried again; later messages of their
-- key wait behind them, so that the key stays in order and the broker is told that all are done. Dead ones wait for an
-- operator. The numbers are those of dead_letters, so that both can be listed as one.
CREATE TABLE outbox_schema.inbox_messages (
    no              bigint      NOT NULL DEFAULT nextval('outbox_schema.dead_letters_no_seq'),
    consumer_group  text        NOT NULL,
    message_id      text        COLLATE "C" NOT NULL,
    place           text        NOT NULL,
    key             text        COLLATE "C",
    event_id        uuid,
    type            text        NOT NULL,
    namespace       text        COLLATE "C" NOT NULL,
    topic           text        COLLATE "C" NOT NULL,
    version         integer     NOT NULL,
    tenant_id       uuid,
    envelope        json        NOT NULL,
    body            bytea       NOT NULL,
    status          text        NOT NULL,
    attempts        integer     NOT NULL,
    max_attempts    integer     NOT NULL DEFAULT 0,
    next_attempt_at timestamptz NOT NULL,
    error           text        NOT NULL,
    received_at     timestamptz NOT NULL DEFAULT statement_timestamp(),
    failed_at       timestamptz NOT NULL DEFAULT statement_timestamp(),
    CONSTRAINT inbox_messages_pkey PRIMARY KEY (no),
    CONSTRAINT inbox_messages_message_key UNIQUE (consumer_group, message_id),
    CONSTRAINT inbox_messages_status_check CHECK (status IN ('parked', 'dead'))
) WITH (
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05
);

-- The messages of a key, in order.
CREATE INDEX inbox_messages_key ON outbox_schema.inbox_messages (consumer_group, key, no)
    WHERE status = 'parked' AND key IS NOT NULL;

-- What is due. Messages that wait behind another one are at infinity.
CREATE INDEX inbox_messages_due ON outbox_schema.inbox_messages (consumer_group, next_attempt_at)
    WHERE status = 'parked';

-- What a group keeps, the oldest first. Only this index has the order of the expression: for the order of no the planner
-- could read the messages of all groups by the primary key.
CREATE INDEX inbox_messages_group ON outbox_schema.inbox_messages (consumer_group, status, (no + 0)) INCLUDE (no);

-- The dead messages of an event.
CREATE INDEX inbox_messages_event ON outbox_schema.inbox_messages (event_id)
    WHERE status = 'dead';

-- For prune.
CREATE INDEX inbox_messages_age ON outbox_schema.inbox_messages (consumer_group, failed_at)
    WHERE status = 'dead';

COMMENT ON TABLE outbox_schema.inbox_messages IS 'Messages that consumers could not apply: parked ones are tried again, dead ones were given up.';
COMMENT ON COLUMN outbox_schema.inbox_messages.message_id IS 'The id of the event, or place if the message has none that can be read.';
COMMENT ON COLUMN outbox_schema.inbox_messages.place IS 'Where the broker had the message, for example kafka:users/3@1042.';
COMMENT ON COLUMN outbox_schema.inbox_messages.key IS 'The key of its order; null if it has none.';
COMMENT ON COLUMN outbox_schema.inbox_messages.type IS 'The type of the message; empty if it has none that can be read. So are namespace and topic.';
COMMENT ON COLUMN outbox_schema.inbox_messages.envelope IS 'Content type, attributes and headers of the message.';
COMMENT ON COLUMN outbox_schema.inbox_messages.status IS 'parked: it is tried again, or waits behind one of its key that is. dead: it was given up.';
COMMENT ON COLUMN outbox_schema.inbox_messages.attempts IS 'How often it was tried.';
COMMENT ON COLUMN outbox_schema.inbox_messages.max_attempts IS 'The attempts that it has, as the latest process that tried it is configured; 0 if none has said so.';
COMMENT ON COLUMN outbox_schema.inbox_messages.next_attempt_at IS 'Of parked messages: when it is due; infinity if it waits behind another one.';
COMMENT ON COLUMN outbox_schema.inbox_messages.failed_at IS 'The latest failure; the retention of a dead message counts from here.';

REVOKE EXECUTE ON FUNCTION outbox_schema.processed_events_owned FROM PUBLIC;
