-- Events of log topics: append-only, read by any number of listeners, each with a cursor of its own.
--
-- seq and xid together are what a cursor works with. The CASE takes the transaction's xid before the seq, so
-- that whoever has a seq has had an xid for longer; the sequence must keep CACHE 1, so that seqs are drawn in
-- order. docs/listeners.md, "How the cursor works", has the proof that leans on both.
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
    entity_type    text,
    entity_id      text,
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

-- What one transaction wrote: how a cursor finds what committed behind it.
CREATE INDEX log_xid ON outbox_schema.log (xid, seq);

-- One event per key within a topic, for as long as its row is kept.
CREATE UNIQUE INDEX log_dedupe_key ON outbox_schema.log (dedupe_key, topic, namespace)
    WHERE dedupe_key IS NOT NULL;

COMMENT ON TABLE outbox_schema.log IS 'Events of log topics. Written by outboxgen; rows go only by outboxgen prune.';
COMMENT ON COLUMN outbox_schema.log.seq IS 'Position; drawn after xid was assigned. Gaps are rolled-back events and duplicates.';
COMMENT ON COLUMN outbox_schema.log.xid IS 'Transaction that enqueued the event; a listener''s snapshots say whether it had ended.';
COMMENT ON COLUMN outbox_schema.log.bucket IS 'Hash of the partition key, or of the id without one, from 0 to 32767: a shard takes bucket % shards = shard.';
COMMENT ON COLUMN outbox_schema.log.created_at IS 'Time of the enqueue by the database clock; the retention counts from here.';

-- Cursors: one row for each shard of each listener. The row changes with every batch and no index but the
-- key covers it, so that each change is a HOT update.
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
    turn           uuid,
    running        boolean     NOT NULL DEFAULT false,
    careful        integer     NOT NULL DEFAULT 0,
    preferred      uuid,
    wanted_by      uuid,
    retry_count    integer     NOT NULL DEFAULT 0,
    retry_after    timestamptz,
    last_error     text,
    paused         boolean     NOT NULL DEFAULT false,
    max_lag        interval,
    reshard_to     integer,
    barrier        pg_snapshot,
    barrier_bound  xid8,
    barrier_seq    bigint,
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

COMMENT ON TABLE outbox_schema.listeners IS 'Cursors of listeners, one row a shard. Changed by outboxgen listener, never by hand.';
COMMENT ON COLUMN outbox_schema.listeners.lo IS 'Snapshot of the latest finished window: what is visible in it and not above high_seq has been delivered.';
COMMENT ON COLUMN outbox_schema.listeners.lo_bound IS 'An xid above every one that was assigned when lo was taken.';
COMMENT ON COLUMN outbox_schema.listeners.high_seq IS 'Highest seq of the finished windows.';
COMMENT ON COLUMN outbox_schema.listeners.hi IS 'Snapshot of the open window: only what is visible in it is delivered.';
COMMENT ON COLUMN outbox_schema.listeners.hi_bound IS 'An xid above every one that was assigned when hi was taken.';
COMMENT ON COLUMN outbox_schema.listeners.hi_seq IS 'A seq that nothing visible in hi exceeds.';
COMMENT ON COLUMN outbox_schema.listeners.last_seq IS 'How far the open window has been delivered; 0 when none is open.';
COMMENT ON COLUMN outbox_schema.listeners.in_batch IS 'Whether a window is open.';
COMMENT ON COLUMN outbox_schema.listeners.ahead_seqs IS 'Events of the open window past last_seq that were tried already.';
COMMENT ON COLUMN outbox_schema.listeners.ahead_attempts IS 'For each of ahead_seqs the attempts so far, 0 when it is done.';
COMMENT ON COLUMN outbox_schema.listeners.lease_no IS 'Counts turns and never goes back: the fence by which an outdated holder is refused.';
COMMENT ON COLUMN outbox_schema.listeners.turn IS 'Names the latest turn, so that its taker knows it again after a lost answer.';
COMMENT ON COLUMN outbox_schema.listeners.running IS 'Whether events of the latest turn are being handled: still set when the next turn is taken, the handler''s process died of one of them, maybe.';
COMMENT ON COLUMN outbox_schema.listeners.careful IS 'How many events are still to be taken one by one, each with its attempt counted beforehand, because one of them may kill its process.';
COMMENT ON COLUMN outbox_schema.listeners.lease_by IS 'Worker that handles events of the shard; null between turns.';
COMMENT ON COLUMN outbox_schema.listeners.preferred IS 'Worker that the next turn is left to, for a moment: that of the latest one, or one that has asked for the shard.';
COMMENT ON COLUMN outbox_schema.listeners.wanted_by IS 'Worker that asks for this shard, because another has several.';
COMMENT ON COLUMN outbox_schema.listeners.retry_count IS 'Attempts of the event at last_seq + 1, where the cursor stands; 0 when that was not tried.';
COMMENT ON COLUMN outbox_schema.listeners.retry_after IS 'When the next attempt is due.';
COMMENT ON COLUMN outbox_schema.listeners.max_lag IS 'Lag that raises an alarm; null means none does.';
COMMENT ON COLUMN outbox_schema.listeners.reshard_to IS 'Number of shards that was asked for; no new window opens until the barrier is set.';
COMMENT ON COLUMN outbox_schema.listeners.barrier IS 'Snapshot at which all shards of the old number stop, so that those of the new one can start from it.';
COMMENT ON COLUMN outbox_schema.listeners.system_id IS 'Identifier of the database cluster whose xids the snapshots speak of.';

-- Events set aside: those of a key whose head failed, in the order in which they came. Copies, because the log
-- need not keep them.
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
    entity_type    text,
    entity_id      text,
    entity_version bigint,
    headers        jsonb,
    payload        jsonb       NOT NULL,
    bucket         smallint    NOT NULL,
    created_at     timestamptz NOT NULL,
    attempts       integer     NOT NULL DEFAULT 0,
    retry_after    timestamptz,
    last_error     text,
    suspect        integer     NOT NULL DEFAULT 0,
    parked_at      timestamptz NOT NULL DEFAULT statement_timestamp(),
    CONSTRAINT parked_pkey PRIMARY KEY (no),
    CONSTRAINT parked_event_key UNIQUE (seq, listener)
);

CREATE INDEX parked_key ON outbox_schema.parked (listener, key, no);

-- The heads, by when they are due. Followers have no retry_after.
CREATE INDEX parked_due ON outbox_schema.parked (listener, retry_after)
    WHERE retry_after IS NOT NULL;

COMMENT ON TABLE outbox_schema.parked IS 'Events that a listener has set aside behind a failed one of the same key.';
COMMENT ON COLUMN outbox_schema.parked.key IS 'Partition key, or the id of an event without one.';
COMMENT ON COLUMN outbox_schema.parked.retry_after IS 'When the head of its key is due; null for those behind it.';
COMMENT ON COLUMN outbox_schema.parked.suspect IS 'How many events of its key, from this head on, one of which may have killed its process; 0 when none may.';

-- What listeners gave up on, with a copy of the event.
CREATE TABLE outbox_schema.dead_letters (
    no             bigint      NOT NULL GENERATED ALWAYS AS IDENTITY,
    listener       text        NOT NULL,
    seq            bigint      NOT NULL,
    id             uuid        NOT NULL,
    namespace      text        NOT NULL,
    topic          text        NOT NULL,
    version        integer     NOT NULL,
    tenant_id      uuid,
    dedupe_key     text,
    partition_key  text,
    entity_type    text,
    entity_id      text,
    entity_version bigint,
    headers        jsonb,
    payload        jsonb       NOT NULL,
    bucket         smallint    NOT NULL,
    created_at     timestamptz NOT NULL,
    attempts       integer     NOT NULL,
    error          text        NOT NULL,
    died_at        timestamptz NOT NULL DEFAULT statement_timestamp(),
    CONSTRAINT dead_letters_pkey PRIMARY KEY (no)
);

CREATE INDEX dead_letters_listener ON outbox_schema.dead_letters (listener, died_at);

COMMENT ON TABLE outbox_schema.dead_letters IS 'Events that a listener could not handle, or was told to skip.';
COMMENT ON COLUMN outbox_schema.dead_letters.created_at IS 'Time of the enqueue.';
COMMENT ON COLUMN outbox_schema.dead_letters.attempts IS 'How often the listener tried.';
