-- Events of queue topics: one row per event, from its enqueue to the end of its retention.
--
-- A claim changes no indexed column and no column of an index predicate. So it can be a heap-only (HOT)
-- update, which writes no index, and fillfactor leaves room on each page for one more version of its rows.
-- Keep it so: status, attempts, claim_no, locked_by or locked_until in an index or in an index predicate
-- would make every claim write every index.
CREATE TABLE outbox_schema.events (
    id              uuid        NOT NULL DEFAULT gen_random_uuid(),
    namespace       text        COLLATE "C" NOT NULL,
    topic           text        COLLATE "C" NOT NULL,
    version         integer     NOT NULL DEFAULT 1,
    tenant_id       uuid,
    dedupe_key      text COLLATE "C",
    partition_key   text,
    entity_type     text,
    entity_id       text,
    entity_version  bigint,
    headers         jsonb,
    payload         jsonb       NOT NULL,
    status          text        NOT NULL DEFAULT 'pending',
    attempts        integer     NOT NULL DEFAULT 0,
    max_attempts    integer     NOT NULL DEFAULT 25,
    claim_no        bigint      NOT NULL DEFAULT 0,
    next_attempt_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    locked_by       uuid,
    locked_until    timestamptz,
    last_error      text,
    created_at      timestamptz NOT NULL DEFAULT statement_timestamp(),
    updated_at      timestamptz NOT NULL DEFAULT statement_timestamp(),
    finalized_at    timestamptz,
    CONSTRAINT events_pkey PRIMARY KEY (id),
    CONSTRAINT events_version_check CHECK (version >= 1),
    CONSTRAINT events_status_check CHECK (status IN ('pending', 'processing', 'delivered', 'dead')),
    CONSTRAINT events_attempts_check CHECK (attempts >= 0 AND max_attempts >= 1),
    -- The key of one tenant cannot collide with the key of another, whatever wrote the row.
    CONSTRAINT events_dedupe_tenant_check CHECK (starts_with(dedupe_key, tenant_id::text || '/')),
    CONSTRAINT events_dedupe_length_check CHECK (octet_length(dedupe_key) <= 512),
    CONSTRAINT events_lease_check CHECK ((status = 'processing') = (locked_until IS NOT NULL)),
    CONSTRAINT events_finalized_check CHECK ((status IN ('delivered', 'dead')) = (finalized_at IS NOT NULL))
) WITH (
    fillfactor = 45,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 1
);

-- One event per key within a topic, as long as its row is kept.
CREATE UNIQUE INDEX events_dedupe_key ON outbox_schema.events (dedupe_key, topic, namespace)
    WHERE dedupe_key IS NOT NULL;

-- Events that are not final, in the order in which they are claimed.
CREATE INDEX events_due ON outbox_schema.events (namespace, next_attempt_at, id)
    WHERE finalized_at IS NULL;

-- Final events, by age: for prune and the list of dead letters. Without status, because a claim changes it.
CREATE INDEX events_final ON outbox_schema.events (namespace, topic, finalized_at)
    WHERE finalized_at IS NOT NULL;

COMMENT ON TABLE outbox_schema.events IS 'Events of queue topics. Written by outboxgen; see docs/operations.md before you change a row by hand.';
COMMENT ON COLUMN outbox_schema.events.id IS 'UUID v7 from the enqueuing process; the default is for rows written by hand.';
COMMENT ON COLUMN outbox_schema.events.dedupe_key IS 'Producer-side idempotency key, unique within the topic; starts with the tenant and a slash if there is a tenant.';
COMMENT ON COLUMN outbox_schema.events.status IS 'pending: waits for next_attempt_at. processing: claimed under a lease. delivered, dead: final.';
COMMENT ON COLUMN outbox_schema.events.attempts IS 'Claims so far, without those that release handed back.';
COMMENT ON COLUMN outbox_schema.events.max_attempts IS 'Attempts after which a failure is final.';
COMMENT ON COLUMN outbox_schema.events.claim_no IS 'Counts claims and never decreases: the fence that rejects an outdated holder.';
COMMENT ON COLUMN outbox_schema.events.next_attempt_at IS 'Due time by the database clock.';
COMMENT ON COLUMN outbox_schema.events.locked_by IS 'Worker of the latest claim; kept after the claim ends.';
COMMENT ON COLUMN outbox_schema.events.locked_until IS 'End of the lease; set exactly while status is processing.';
COMMENT ON COLUMN outbox_schema.events.last_error IS 'Error of the latest failed attempt, at most 2 KiB.';
COMMENT ON COLUMN outbox_schema.events.finalized_at IS 'When the event was delivered or died; its retention counts from here.';
