-- Events of log topics: append-only, read by any number of listeners, each with its own cursor.
--
-- A cursor works with seq and xid together. The CASE assigns the transaction's xid before it draws the seq, so a
-- transaction that has a seq has had its xid for longer. The sequence must keep CACHE 1, so that seqs are drawn in
-- order. The proof in docs/run/listeners.md, "How the cursor works", relies on both.
CREATE SEQUENCE outbox_schema.log_seq AS bigint CACHE 1;

CREATE TABLE outbox_schema.log (
    seq            bigint      NOT NULL DEFAULT CASE WHEN pg_current_xact_id() IS NOT NULL THEN nextval('outbox_schema.log_seq') END,
    xid            xid8        NOT NULL DEFAULT pg_current_xact_id(),
    id             uuid        NOT NULL DEFAULT gen_random_uuid(),
    namespace      text        COLLATE "C" NOT NULL,
    topic          text        COLLATE "C" NOT NULL,
    version        integer     NOT NULL DEFAULT 1,
    tenant_id      uuid,
    dedupe_key     text COLLATE "C",
    partition_key  text,
    entity_type    text        COLLATE "C",
    entity_id      text        COLLATE "C",
    entity_version bigint,
    headers        jsonb,
    payload        jsonb       NOT NULL,
    bucket         smallint    NOT NULL DEFAULT 0,
    created_at     timestamptz NOT NULL DEFAULT statement_timestamp(),
    CONSTRAINT log_pkey PRIMARY KEY (seq),
    CONSTRAINT log_version_check CHECK (version >= 1),
    CONSTRAINT log_bucket_check CHECK (bucket >= 0),
    CONSTRAINT log_dedupe_tenant_check CHECK (starts_with(dedupe_key, tenant_id::text || '/')),
    CONSTRAINT log_dedupe_length_check CHECK (octet_length(dedupe_key) <= 512)
) WITH (
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05
);

-- The events of one transaction: a cursor finds late commits with it.
CREATE INDEX log_xid ON outbox_schema.log (xid, seq);

-- One event per key within a topic, as long as its row is kept.
CREATE UNIQUE INDEX log_dedupe_key ON outbox_schema.log (dedupe_key, topic, namespace)
    WHERE dedupe_key IS NOT NULL;

-- As in events.
CREATE INDEX log_entity ON outbox_schema.log (entity_type, entity_id, created_at)
    WHERE entity_type IS NOT NULL;

CREATE INDEX log_correlation ON outbox_schema.log (left(headers ->> 'correlation_id', 100) COLLATE "C", created_at)
    WHERE left(headers ->> 'correlation_id', 100) COLLATE "C" IS NOT NULL;

COMMENT ON TABLE outbox_schema.log IS 'Events of log topics. Written by outboxgen; only pruning deletes rows, and only reseal updates them.';
COMMENT ON COLUMN outbox_schema.log.seq IS 'Position; drawn after xid was assigned. Gaps are rolled-back events and duplicates.';
COMMENT ON COLUMN outbox_schema.log.xid IS 'Transaction that enqueued the event; a listener''s snapshots say whether it had ended.';
COMMENT ON COLUMN outbox_schema.log.bucket IS 'Hash of the partition key, or of the id without one, from 0 to 32767: a shard takes bucket % shards = shard.';
COMMENT ON COLUMN outbox_schema.log.created_at IS 'Time of the enqueue by the database clock; the retention counts from here.';

-- Cursors: one row per shard of each listener. The row changes with every batch. No index except the primary key covers
-- it, so each change is a HOT update.
CREATE TABLE outbox_schema.listeners (
    listener       text        NOT NULL,
    shard          integer     NOT NULL,
    shards         integer     NOT NULL,
    lo             pg_snapshot NOT NULL,
    lo_bound       xid8        NOT NULL,
    high_seq       bigint      NOT NULL,
    hi             pg_snapshot,
    hi_bound       xid8,
    hi_seq         bigint,
    last_seq       bigint      NOT NULL DEFAULT 0,
    in_batch       boolean     NOT NULL DEFAULT false,
    ahead_seqs     bigint[]    NOT NULL DEFAULT '{}',
    ahead_attempts integer[]   NOT NULL DEFAULT '{}',
    lease_by       uuid,
    lease_until    timestamptz,
    lease_no       bigint      NOT NULL DEFAULT 0,
    lease_id       uuid,
    running        boolean     NOT NULL DEFAULT false,
    one_by_one     integer     NOT NULL DEFAULT 0,
    trying         integer     NOT NULL DEFAULT 0,
    preferred      uuid,
    wanted_by      uuid,
    retry_count    integer     NOT NULL DEFAULT 0,
    retry_after    timestamptz,
    last_error     text,
    max_lag        interval,
    reshard_to     integer,
    barrier        pg_snapshot,
    barrier_bound  xid8,
    barrier_seq    bigint,
    past_shards    integer[]   NOT NULL DEFAULT '{}',
    system_id      bigint      NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT statement_timestamp(),
    advanced_at    timestamptz,
    CONSTRAINT listeners_pkey PRIMARY KEY (listener, shard),
    CONSTRAINT listeners_shard_check CHECK (shard >= 0 AND shard < shards),
    CONSTRAINT listeners_window_check CHECK (in_batch = (hi IS NOT NULL) AND in_batch = (hi_bound IS NOT NULL) AND in_batch = (hi_seq IS NOT NULL)),
    CONSTRAINT listeners_lease_check CHECK ((lease_by IS NULL) = (lease_until IS NULL)),
    CONSTRAINT listeners_ahead_check CHECK (cardinality(ahead_seqs) = cardinality(ahead_attempts)),
    CONSTRAINT listeners_barrier_check CHECK ((barrier IS NULL) = (barrier_bound IS NULL) AND (barrier IS NULL) = (barrier_seq IS NULL))
) WITH (
    fillfactor = 10,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 500
);

COMMENT ON TABLE outbox_schema.listeners IS 'Cursors of listeners, one row per shard. Change them with outboxgen listener, never by hand.';
COMMENT ON COLUMN outbox_schema.listeners.lo IS 'Snapshot of the latest finished window: events that are visible in it and not above high_seq are delivered.';
COMMENT ON COLUMN outbox_schema.listeners.lo_bound IS 'An xid above every xid that was assigned when lo was taken.';
COMMENT ON COLUMN outbox_schema.listeners.high_seq IS 'Highest seq of the finished windows.';
COMMENT ON COLUMN outbox_schema.listeners.hi IS 'Snapshot of the open window: only events that are visible in it are delivered.';
COMMENT ON COLUMN outbox_schema.listeners.hi_bound IS 'An xid above every xid that was assigned when hi was taken.';
COMMENT ON COLUMN outbox_schema.listeners.hi_seq IS 'An upper bound for the seqs that are visible in hi.';
COMMENT ON COLUMN outbox_schema.listeners.last_seq IS 'Position up to which the open window is delivered; 0 if no window is open.';
COMMENT ON COLUMN outbox_schema.listeners.in_batch IS 'Whether a window is open.';
COMMENT ON COLUMN outbox_schema.listeners.ahead_seqs IS 'Events of the open window after last_seq that were tried already.';
COMMENT ON COLUMN outbox_schema.listeners.ahead_attempts IS 'For each of ahead_seqs, its attempts so far; 0 if it is delivered.';
COMMENT ON COLUMN outbox_schema.listeners.lease_no IS 'Counts leases and never decreases: the fence that rejects an outdated holder.';
COMMENT ON COLUMN outbox_schema.listeners.lease_id IS 'Identifies the latest lease, so that its holder recognizes it after a lost answer.';
COMMENT ON COLUMN outbox_schema.listeners.running IS 'Whether events of the latest lease are being handled. If it is still set when the next lease is taken, one of them may have killed its process.';
COMMENT ON COLUMN outbox_schema.listeners.one_by_one IS 'How many events are still to be handled one by one, each with its attempt counted beforehand, because one of them may kill its process.';
COMMENT ON COLUMN outbox_schema.listeners.trying IS 'Of a listener with batches: how many events its handler gets together while one_by_one is set, or twice that between two leases; 0 before the first try.';
COMMENT ON COLUMN outbox_schema.listeners.lease_by IS 'Worker that handles events of the shard; null between leases.';
COMMENT ON COLUMN outbox_schema.listeners.preferred IS 'Worker that may take the next lease first, for a moment: the latest holder, or a worker that has asked for the shard.';
COMMENT ON COLUMN outbox_schema.listeners.wanted_by IS 'Worker that asks for this shard, because its holder has several.';
COMMENT ON COLUMN outbox_schema.listeners.retry_count IS 'Attempts of the event at last_seq + 1, where the cursor stands; 0 if it was not tried.';
COMMENT ON COLUMN outbox_schema.listeners.retry_after IS 'When the next attempt is due.';
COMMENT ON COLUMN outbox_schema.listeners.max_lag IS 'Lag above which an alarm is raised; null means never.';
COMMENT ON COLUMN outbox_schema.listeners.reshard_to IS 'Requested number of shards; no new window opens until the barrier is set.';
COMMENT ON COLUMN outbox_schema.listeners.barrier IS 'Snapshot at which all old shards stop, so that the new shards can start from it.';
COMMENT ON COLUMN outbox_schema.listeners.past_shards IS 'Every number of shards that the listener had before: publishers fence the producers of those shards.';
COMMENT ON COLUMN outbox_schema.listeners.system_id IS 'Identifier of the database cluster that the xids in the snapshots belong to.';

-- Parked events: the events of a key whose head failed, in their order. They are copies, so the log need not keep the
-- originals.
CREATE TABLE outbox_schema.parked (
    no             bigint      NOT NULL GENERATED ALWAYS AS IDENTITY,
    listener       text        NOT NULL,
    key            text        NOT NULL,
    seq            bigint      NOT NULL,
    id             uuid        NOT NULL,
    namespace      text        NOT NULL,
    topic          text        NOT NULL,
    version        integer     NOT NULL,
    tenant_id      uuid,
    dedupe_key     text,
    partition_key  text,
    entity_type    text        COLLATE "C",
    entity_id      text        COLLATE "C",
    entity_version bigint,
    headers        jsonb,
    payload        jsonb       NOT NULL,
    bucket         smallint    NOT NULL,
    created_at     timestamptz NOT NULL,
    attempts       integer     NOT NULL DEFAULT 0,
    retry_after    timestamptz,
    last_error     text,
    taken          integer     NOT NULL DEFAULT 0,
    parked_at      timestamptz NOT NULL DEFAULT statement_timestamp(),
    CONSTRAINT parked_pkey PRIMARY KEY (no),
    CONSTRAINT parked_event_key UNIQUE (seq, listener)
);

CREATE INDEX parked_key ON outbox_schema.parked (listener, key, no);

-- The heads, by due time. The events behind a head have no retry_after.
CREATE INDEX parked_due ON outbox_schema.parked (listener, retry_after)
    WHERE retry_after IS NOT NULL;

-- For people: what a listener has of one event, of an entity and of a chain. The log may have pruned the event itself.
CREATE INDEX parked_event ON outbox_schema.parked (id);

CREATE INDEX parked_entity ON outbox_schema.parked (entity_type, entity_id, created_at)
    WHERE entity_type IS NOT NULL;

CREATE INDEX parked_correlation ON outbox_schema.parked (left(headers ->> 'correlation_id', 100) COLLATE "C", created_at)
    WHERE left(headers ->> 'correlation_id', 100) COLLATE "C" IS NOT NULL;

COMMENT ON TABLE outbox_schema.parked IS 'Events that a listener has parked behind a failed event of the same key.';
COMMENT ON COLUMN outbox_schema.parked.key IS 'Partition key; the id of an event without one.';
COMMENT ON COLUMN outbox_schema.parked.retry_after IS 'When the head of its key is due; null for the events behind it.';
COMMENT ON COLUMN outbox_schema.parked.taken IS 'How many events of its key, starting with this head, were taken and are not settled; 0 means none. If their process dies, they are handled one by one.';

-- The attempts that listeners with a rate have started: one row per listener, and up to 70 entries. No index covers what
-- changes, so each change is a HOT update.
CREATE TABLE outbox_schema.listener_rates (
    listener text          NOT NULL,
    untils   timestamptz[] NOT NULL DEFAULT '{}',
    counts   integer[]     NOT NULL DEFAULT '{}',
    CONSTRAINT listener_rates_pkey PRIMARY KEY (listener),
    CONSTRAINT listener_rates_check CHECK (cardinality(untils) = cardinality(counts))
) WITH (
    fillfactor = 10,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 500
);

COMMENT ON TABLE outbox_schema.listener_rates IS 'Attempts that listeners with a rate have started, or may start now.';
COMMENT ON COLUMN outbox_schema.listener_rates.untils IS 'Until when the attempts of an entry count against the rate.';
COMMENT ON COLUMN outbox_schema.listener_rates.counts IS 'How many attempts each of untils has.';

-- Failed attempts of listeners, the latest five of each event. They stay after the event was delivered.
CREATE TABLE outbox_schema.listener_failures (
    id       uuid        NOT NULL,
    listener text        NOT NULL,
    attempt  integer     NOT NULL,
    at       timestamptz NOT NULL,
    worker   uuid,
    error    text        NOT NULL,
    CONSTRAINT listener_failures_pkey PRIMARY KEY (id, listener, attempt)
);

-- What is old enough to be pruned.
CREATE INDEX listener_failures_at ON outbox_schema.listener_failures (at);

COMMENT ON TABLE outbox_schema.listener_failures IS 'Failed attempts of listeners at events, the latest five of each event. They are kept for as long as dead letters.';
COMMENT ON COLUMN outbox_schema.listener_failures.id IS 'Id of the event.';
COMMENT ON COLUMN outbox_schema.listener_failures.worker IS 'worker_id of the process that made the attempt.';
COMMENT ON COLUMN outbox_schema.listener_failures.error IS 'At most 2 KiB.';

-- What each event is about, and what has caused it, for people: of queue topics, of the log, and of the copies of listeners,
-- which may outlive the event in the log. It shows two headers and no others. Like every view it has the privileges of its
-- owner, so that a role which reads no headers can follow a chain. Index scans serve each part, if place is compared too.
CREATE VIEW outbox_schema.event_links AS
SELECT 'queue'::text AS place, e.id, 0::bigint AS seq, e.created_at, e.entity_type, e.entity_id, e.entity_version,
    e.headers ->> 'causation_id' AS causation_id, e.headers ->> 'correlation_id' AS correlation_id
FROM outbox_schema.events AS e
UNION ALL
SELECT 'log', g.id, g.seq, g.created_at, g.entity_type, g.entity_id, g.entity_version,
    g.headers ->> 'causation_id', g.headers ->> 'correlation_id'
FROM outbox_schema.log AS g
UNION ALL
SELECT 'dead', d.id, d.seq, d.created_at, d.entity_type, d.entity_id, d.entity_version,
    d.headers ->> 'causation_id', d.headers ->> 'correlation_id'
FROM outbox_schema.dead_letters AS d
WHERE d.listener IS NOT NULL
UNION ALL
SELECT 'parked', p.id, p.seq, p.created_at, p.entity_type, p.entity_id, p.entity_version,
    p.headers ->> 'causation_id', p.headers ->> 'correlation_id'
FROM outbox_schema.parked AS p;

COMMENT ON VIEW outbox_schema.event_links IS 'Entity, cause and chain of each event. Its owner reads the headers, so give SELECT on it only to roles that may see all tenants.';
COMMENT ON COLUMN outbox_schema.event_links.place IS 'queue, log, or that of a copy: dead or parked, at a listener.';
COMMENT ON COLUMN outbox_schema.event_links.seq IS 'Position in the log; 0 for queue topics.';
COMMENT ON COLUMN outbox_schema.event_links.causation_id IS 'The header causation_id: the id of the event whose handler has enqueued this one.';
COMMENT ON COLUMN outbox_schema.event_links.correlation_id IS 'The header correlation_id: the same for all events of a chain but the first.';

-- The bucket of an event: the FNV-1a hash of its partition key, or of its id. Go computes the same.
CREATE FUNCTION outbox_schema.bucket(partition_key text, id uuid) RETURNS smallint
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    bytes bytea := coalesce(convert_to(nullif(partition_key, ''), 'UTF8'), uuid_send(id));
    hash  bigint := 2166136261;
BEGIN
    FOR i IN 0..length(bytes) - 1 LOOP
        hash := ((hash # get_byte(bytes, i)::bigint) * 16777619) & 4294967295;
    END LOOP;
    RETURN (hash # (hash >> 15)) & 32767::bigint;
END
$$;

-- enqueue for log topics. Calls of one transaction get their place in the log in the order of the calls.
CREATE FUNCTION outbox_schema.enqueue_log(
    namespace      text,
    topic          text,
    payload        jsonb,
    tenant_id      uuid        DEFAULT NULL,
    dedupe_key     text        DEFAULT NULL,
    partition_key  text        DEFAULT NULL,
    entity_type    text        DEFAULT NULL,
    entity_id      text        DEFAULT NULL,
    entity_version bigint      DEFAULT NULL,
    headers        jsonb       DEFAULT NULL,
    version        integer     DEFAULT 1,
    wake           boolean     DEFAULT true,
    OUT id         uuid,
    OUT duplicate  boolean
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    what text := 'enqueue ' || coalesce(enqueue_log.namespace, 'NULL') || '/' || coalesce(enqueue_log.topic, 'NULL') || ': ';
BEGIN
    dedupe_key := nullif(dedupe_key, '');
    partition_key := nullif(partition_key, '');
    entity_type := nullif(entity_type, '');
    entity_id := nullif(entity_id, '');
    PERFORM outbox_schema.check_event(what, enqueue_log.namespace, enqueue_log.topic, enqueue_log.payload, enqueue_log.tenant_id, enqueue_log.dedupe_key,
        enqueue_log.partition_key, enqueue_log.entity_type, enqueue_log.entity_id, enqueue_log.entity_version, enqueue_log.headers, enqueue_log.version);
    duplicate := false;
    FOR try IN 1..5 LOOP
        enqueue_log.id := outbox_schema.event_id();
        INSERT INTO outbox_schema.log AS e (id, namespace, topic, version, tenant_id, dedupe_key, partition_key, entity_type,
            entity_id, entity_version, headers, payload, bucket)
        VALUES (enqueue_log.id, enqueue_log.namespace, enqueue_log.topic, enqueue_log.version, enqueue_log.tenant_id, enqueue_log.dedupe_key,
            enqueue_log.partition_key, enqueue_log.entity_type, enqueue_log.entity_id,
            CASE WHEN enqueue_log.entity_type IS NOT NULL THEN coalesce(enqueue_log.entity_version, 0) END,
            nullif(enqueue_log.headers, '{}'), enqueue_log.payload, outbox_schema.bucket(enqueue_log.partition_key, enqueue_log.id))
        ON CONFLICT (namespace, topic, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING
        RETURNING e.id INTO enqueue_log.id;
        IF FOUND THEN
            IF enqueue_log.wake THEN
                PERFORM outbox_schema.wake('log topics');
            END IF;
            RETURN;
        END IF;
        SELECT e.id INTO enqueue_log.id FROM outbox_schema.log AS e
        WHERE e.namespace = enqueue_log.namespace AND e.topic = enqueue_log.topic AND e.dedupe_key = enqueue_log.dedupe_key;
        IF FOUND THEN
            duplicate := true;
            RETURN;
        END IF;
    END LOOP;
    RAISE serialization_failure USING MESSAGE = what || 'the dedupe key is taken and freed again and again';
END
$$;

COMMENT ON FUNCTION outbox_schema.enqueue_log IS 'Enqueues an event of a log topic in the caller''s transaction.';

REVOKE EXECUTE ON FUNCTION outbox_schema.bucket, outbox_schema.enqueue_log FROM PUBLIC;
