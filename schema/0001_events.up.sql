-- Queue topics. An event is a fact: its row is inserted and pruned, and never updated. Its delivery is state, which lives
-- in rows of its own: in queue until the event is final, then in delivered or dead_letters. So a claim and an ack write
-- narrow rows, however large the payload is. There are no triggers, and no foreign keys between these tables.
CREATE TABLE outbox_schema.events (
    id             uuid        NOT NULL DEFAULT gen_random_uuid(),
    namespace      text        COLLATE "C" NOT NULL,
    topic          text        COLLATE "C" NOT NULL,
    version        integer     NOT NULL DEFAULT 1,
    tenant_id      uuid,
    dedupe_key     text        COLLATE "C",
    partition_key  text,
    entity_type    text,
    entity_id      text,
    entity_version bigint,
    headers        jsonb,
    payload        jsonb       NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT statement_timestamp(),
    CONSTRAINT events_pkey PRIMARY KEY (id),
    CONSTRAINT events_version_check CHECK (version >= 1),
    -- The key of one tenant cannot collide with the key of another, whatever wrote the row.
    CONSTRAINT events_dedupe_tenant_check CHECK (starts_with(dedupe_key, tenant_id::text || '/')),
    CONSTRAINT events_dedupe_length_check CHECK (octet_length(dedupe_key) <= 512)
) WITH (
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.05
);

-- One event per key within a topic, as long as its row is kept.
CREATE UNIQUE INDEX events_dedupe_key ON outbox_schema.events (dedupe_key, topic, namespace)
    WHERE dedupe_key IS NOT NULL;

COMMENT ON TABLE outbox_schema.events IS 'Events of queue topics. Inserted by outboxgen or outbox.enqueue, deleted by prune, never updated.';
COMMENT ON COLUMN outbox_schema.events.id IS 'UUID v7 from the enqueuing process; the default is for rows written by hand.';
COMMENT ON COLUMN outbox_schema.events.dedupe_key IS 'Producer-side idempotency key, unique within the topic; starts with the tenant and a slash if there is a tenant.';

-- The state of events that are not final: what a claim filters by, and the lease.
--
-- A claim changes no indexed column and no column of an index predicate. So it can be a heap-only (HOT) update, which
-- writes no index, and fillfactor leaves room on each page for one more version of its rows. Keep it so: attempts, claim_no,
-- locked_by or locked_until in an index or in an index predicate would make every claim write every index.
CREATE TABLE outbox_schema.queue (
    id              uuid        NOT NULL,
    next_attempt_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    claim_no        bigint      NOT NULL DEFAULT 0,
    attempts        integer     NOT NULL DEFAULT 0,
    max_attempts    integer     NOT NULL DEFAULT 25,
    version         integer     NOT NULL DEFAULT 1,
    lane            smallint    NOT NULL DEFAULT 0,
    namespace       text        COLLATE "C" NOT NULL,
    topic           text        COLLATE "C" NOT NULL,
    tenant_id       uuid,
    locked_by       uuid,
    locked_until    timestamptz,
    updated_at      timestamptz NOT NULL DEFAULT statement_timestamp(),
    failures        jsonb,
    CONSTRAINT queue_pkey PRIMARY KEY (id),
    CONSTRAINT queue_attempts_check CHECK (attempts >= 0 AND max_attempts >= 1),
    CONSTRAINT queue_lane_check CHECK (lane >= 0 AND lane < 32),
    CONSTRAINT queue_failures_check CHECK (jsonb_typeof(failures) = 'array')
) WITH (
    fillfactor = 40,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 1
);

-- In the order in which a claim takes them from a lane.
CREATE INDEX queue_due ON outbox_schema.queue (namespace, lane, next_attempt_at, id);

COMMENT ON TABLE outbox_schema.queue IS 'State of the events of queue topics that are not final. See docs/operate/runbook.md before you change a row by hand.';
COMMENT ON COLUMN outbox_schema.queue.lane IS 'Hash of the topic, and of the tenant if the topic has fairness: tenant. A claim takes from every lane.';
COMMENT ON COLUMN outbox_schema.queue.attempts IS 'Claims so far, without those that release handed back.';
COMMENT ON COLUMN outbox_schema.queue.max_attempts IS 'Attempts after which a failure is final.';
COMMENT ON COLUMN outbox_schema.queue.claim_no IS 'Counts claims and never decreases: the fence that rejects an outdated holder.';
COMMENT ON COLUMN outbox_schema.queue.next_attempt_at IS 'Due time by the database clock.';
COMMENT ON COLUMN outbox_schema.queue.locked_by IS 'Worker of the latest claim; kept after the claim ends.';
COMMENT ON COLUMN outbox_schema.queue.locked_until IS 'End of the lease; null if the event is not claimed.';
COMMENT ON COLUMN outbox_schema.queue.failures IS 'The latest failed attempts, at most five, oldest first: attempt, at, worker, error (at most 2 KiB).';

-- Delivered events, append-only until they are pruned.
CREATE TABLE outbox_schema.delivered (
    id           uuid        NOT NULL,
    finalized_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    claim_no     bigint      NOT NULL DEFAULT 0,
    attempts     integer     NOT NULL,
    namespace    text        COLLATE "C" NOT NULL,
    topic        text        COLLATE "C" NOT NULL,
    locked_by    uuid,
    failures     jsonb,
    CONSTRAINT delivered_pkey PRIMARY KEY (id)
) WITH (
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.05
);

-- By age within a topic, for prune.
CREATE INDEX delivered_age ON outbox_schema.delivered (namespace, topic, finalized_at);

COMMENT ON TABLE outbox_schema.delivered IS 'Events of queue topics that were delivered. Append-only; prune deletes them with their events.';
COMMENT ON COLUMN outbox_schema.delivered.finalized_at IS 'When the event was delivered; its retention counts from here.';
COMMENT ON COLUMN outbox_schema.delivered.locked_by IS 'Worker that delivered it.';

-- Events that were given up, as copies: of queue topics with listener null, and of log topics by listener. The event of a
-- queue topic stays in events as long as its dead letter, because its dedupe key is taken.
CREATE TABLE outbox_schema.dead_letters (
    no             bigint      NOT NULL GENERATED ALWAYS AS IDENTITY,
    listener       text,
    seq            bigint,
    id             uuid        NOT NULL,
    namespace      text        COLLATE "C" NOT NULL,
    topic          text        COLLATE "C" NOT NULL,
    version        integer     NOT NULL,
    tenant_id      uuid,
    dedupe_key     text,
    partition_key  text,
    entity_type    text,
    entity_id      text,
    entity_version bigint,
    headers        jsonb,
    payload        jsonb       NOT NULL,
    bucket         smallint,
    created_at     timestamptz NOT NULL,
    attempts       integer     NOT NULL,
    max_attempts   integer,
    claim_no       bigint,
    lane           smallint,
    key            text,
    locked_by      uuid,
    failures       jsonb,
    error          text        NOT NULL,
    died_at        timestamptz NOT NULL DEFAULT statement_timestamp(),
    CONSTRAINT dead_letters_pkey PRIMARY KEY (no),
    CONSTRAINT dead_letters_listener_check CHECK ((listener IS NULL) = (seq IS NULL) AND (listener IS NULL) = (bucket IS NULL))
);

CREATE INDEX dead_letters_listener ON outbox_schema.dead_letters (listener, died_at);

CREATE UNIQUE INDEX dead_letters_event ON outbox_schema.dead_letters (id)
    WHERE listener IS NULL;

-- The dead letters of one event at its listeners, for replay and discard.
CREATE INDEX dead_letters_heard ON outbox_schema.dead_letters (id)
    WHERE listener IS NOT NULL;

-- By age within a topic, for prune.
CREATE INDEX dead_letters_age ON outbox_schema.dead_letters (namespace, topic, died_at)
    WHERE listener IS NULL;

COMMENT ON TABLE outbox_schema.dead_letters IS 'Events that were given up: by the dispatchers of a queue topic, or by a listener, which may also have been told to skip them.';
COMMENT ON COLUMN outbox_schema.dead_letters.listener IS 'The listener that gave up; null for queue topics.';
COMMENT ON COLUMN outbox_schema.dead_letters.created_at IS 'Time of the enqueue.';
COMMENT ON COLUMN outbox_schema.dead_letters.attempts IS 'How often it was tried.';
COMMENT ON COLUMN outbox_schema.dead_letters.max_attempts IS 'Of queue topics: the attempts that it had.';
COMMENT ON COLUMN outbox_schema.dead_letters.claim_no IS 'Of queue topics: the fence of the latest claim.';
COMMENT ON COLUMN outbox_schema.dead_letters.lane IS 'Of queue topics: the lane that it had, for a replay.';
COMMENT ON COLUMN outbox_schema.dead_letters.key IS 'Of listeners: the key of its order, as in parked; null if it is not known.';
COMMENT ON COLUMN outbox_schema.dead_letters.locked_by IS 'Of queue topics: the worker of the latest claim.';
COMMENT ON COLUMN outbox_schema.dead_letters.failures IS 'Of queue topics: the latest failed attempts, as in queue.';

-- Events of queue topics with their state, for people. status is null if an event has no state, which only a change by
-- hand can cause. An event that is final and queued is queued.
CREATE VIEW outbox_schema.event_status AS
SELECT
    e.id, e.namespace, e.topic, e.version, e.tenant_id, e.dedupe_key, e.partition_key, e.entity_type, e.entity_id,
    e.entity_version, e.headers, e.payload, e.created_at,
    CASE
        WHEN q.locked_until IS NOT NULL THEN 'processing'
        WHEN q.id IS NOT NULL THEN 'pending'
        WHEN d.id IS NOT NULL THEN 'delivered'
        WHEN x.id IS NOT NULL THEN 'dead'
    END AS status,
    coalesce(q.attempts, d.attempts, x.attempts) AS attempts,
    coalesce(q.max_attempts, x.max_attempts) AS max_attempts,
    coalesce(q.claim_no, d.claim_no, x.claim_no) AS claim_no,
    q.next_attempt_at,
    coalesce(q.locked_by, d.locked_by, x.locked_by) AS locked_by,
    q.locked_until,
    CASE
        WHEN q.id IS NOT NULL THEN q.failures -> -1 ->> 'error'
        WHEN d.id IS NOT NULL THEN d.failures -> -1 ->> 'error'
        ELSE x.error
    END AS last_error,
    coalesce(q.failures, d.failures, x.failures) AS failures,
    CASE WHEN q.id IS NULL THEN coalesce(d.finalized_at, x.died_at) END AS finalized_at
FROM outbox_schema.events AS e
LEFT JOIN outbox_schema.queue AS q ON q.id = e.id
LEFT JOIN outbox_schema.delivered AS d ON d.id = e.id
LEFT JOIN outbox_schema.dead_letters AS x ON x.id = e.id AND x.listener IS NULL;

COMMENT ON VIEW outbox_schema.event_status IS 'Events of queue topics with their state: pending, processing, delivered or dead.';
COMMENT ON COLUMN outbox_schema.event_status.last_error IS 'Error of the latest failed attempt, also of an event that was delivered later.';

-- The lane of an event: of its topic, or with a tenant of both. Go computes the same.
CREATE FUNCTION outbox_schema.lane(topic text, tenant_id uuid DEFAULT NULL) RETURNS smallint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (get_byte(sha256((topic || coalesce('/' || tenant_id::text, ''))::bytea), 0) & 31)::smallint
$$;

-- Raises what an event of SQL has wrong, by the rules of the Go functions. what is how its errors begin.
CREATE FUNCTION outbox_schema.check_event(
    what           text,
    namespace      text,
    topic          text,
    payload        jsonb,
    tenant_id      uuid,
    dedupe_key     text,
    partition_key  text,
    entity_type    text,
    entity_id      text,
    entity_version bigint,
    headers        jsonb,
    version        integer
) RETURNS void LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
DECLARE
    prefix text := tenant_id::text || '/';
    field  text;
    value  text;
BEGIN
    IF namespace IS NULL OR namespace !~ '^[a-z][a-z0-9_]{0,40}$' THEN
        RAISE invalid_parameter_value USING MESSAGE = what || 'namespace is not a name like mini_chat';
    ELSIF topic IS NULL OR topic !~ '^[a-z][a-z0-9_]{0,40}$' THEN
        RAISE invalid_parameter_value USING MESSAGE = what || 'topic is not a name like turn_finalized';
    ELSIF payload IS NULL THEN
        RAISE invalid_parameter_value USING MESSAGE = what || 'payload is NULL';
    ELSIF octet_length(payload::text) > 1048576 THEN
        RAISE invalid_parameter_value USING MESSAGE = what || 'payload has more than 1048576 bytes';
    ELSIF coalesce(version, 0) < 1 THEN
        RAISE invalid_parameter_value USING MESSAGE = what || 'version is not a positive number';
    ELSIF entity_type IS NULL AND (entity_id IS NOT NULL OR entity_version IS NOT NULL) THEN
        RAISE invalid_parameter_value USING MESSAGE = what || 'entity has an id or version but no type';
    ELSIF tenant_id = '00000000-0000-0000-0000-000000000000' THEN
        RAISE invalid_parameter_value USING MESSAGE = what || 'tenant is the zero UUID';
    ELSIF dedupe_key IS NOT NULL AND NOT starts_with(dedupe_key, prefix) THEN
        RAISE invalid_parameter_value USING MESSAGE = what || 'dedupe key does not start with tenant ' || tenant_id || ' and a slash';
    ELSIF dedupe_key = prefix THEN
        RAISE invalid_parameter_value USING MESSAGE = what || 'dedupe key has nothing after its tenant';
    ELSIF headers IS NOT NULL AND jsonb_typeof(headers) <> 'object' THEN
        RAISE invalid_parameter_value USING MESSAGE = what || 'headers are not an object';
    END IF;
    IF greatest(octet_length(dedupe_key), octet_length(partition_key), octet_length(entity_type), octet_length(entity_id)) > 512 THEN
        FOR field, value IN VALUES ('dedupe key', dedupe_key), ('partition key', partition_key), ('entity type', entity_type), ('entity id', entity_id)
        LOOP
            IF octet_length(value) > 512 THEN
                RAISE invalid_parameter_value USING MESSAGE = what || field || ' has ' || octet_length(value) || ' bytes of at most 512';
            END IF;
        END LOOP;
    END IF;
    IF headers IS NULL THEN
        RETURN;
    ELSIF octet_length(headers::text) > 1048576 THEN
        RAISE invalid_parameter_value USING MESSAGE = what || 'headers have more than 1048576 bytes';
    ELSIF EXISTS (SELECT FROM jsonb_each(headers) AS h WHERE jsonb_typeof(h.value) <> 'string') THEN
        RAISE invalid_parameter_value USING MESSAGE = what || 'headers have a value that is not a string';
    END IF;
    FOR field, value IN SELECT h.key, h.value FROM jsonb_each_text(headers) AS h
    LOOP
        IF field !~ '^[-A-Za-z0-9!#$%&''*+.^_`|~]{1,255}$' THEN
            RAISE invalid_parameter_value USING MESSAGE = what || 'header ' || left(field, 80) || ': use a name of 1 to 255 ASCII letters, digits and !#$%&''*+-.^_`|~';
        ELSIF value ~ '[\x01-\x08\x0a-\x1f\x7f]' THEN
            RAISE invalid_parameter_value USING MESSAGE = what || 'header ' || field || ': use a value without control characters; a tab is allowed';
        END IF;
    END LOOP;
END
$$;

-- A UUID v7 with the microseconds after the milliseconds, so that the events of one statement, which are due at the same
-- time, have ids in the order of the calls.
CREATE FUNCTION outbox_schema.event_id() RETURNS uuid
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    us bigint := extract(epoch FROM clock_timestamp()) * 1000000;
BEGIN
    RETURN encode(overlay(uuid_send(gen_random_uuid())
        PLACING substr(int8send(us / 1000), 3) || substr(int8send(28672 + us % 1000 * 4096 / 1000), 7) FROM 1 FOR 8), 'hex')::uuid;
END
$$;

-- Wakes the sleepers of a namespace, or of 'log topics': the doorbell of the Go functions. A NOTIFY is sent only if
-- somebody sleeps.
CREATE FUNCTION outbox_schema.wake(name text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    key bigint := ('x' || encode(substr(sha256(('outboxgen:' || btrim('outbox_schema', '"') || '/' || name)::bytea), 1, 8), 'hex'))::bit(64)::bigint;
BEGIN
    IF NOT pg_try_advisory_xact_lock_shared(key) THEN
        PERFORM pg_notify('outboxgen_' || lpad(to_hex(key), 16, '0'), '');
    END IF;
END
$$;

-- The way into queue topics from other languages and from SQL: the checks of the Go functions, both rows, and the wake-up.
-- Call it in the transaction of the business change. On a duplicate, id is that of the event that has the key.
CREATE FUNCTION outbox_schema.enqueue(
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
    max_attempts   integer     DEFAULT 25,
    not_before     timestamptz DEFAULT NULL,
    fairness       text        DEFAULT NULL,
    wake           boolean     DEFAULT true,
    OUT id         uuid,
    OUT duplicate  boolean
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    what text := 'enqueue ' || coalesce(enqueue.namespace, 'NULL') || '/' || coalesce(enqueue.topic, 'NULL') || ': ';
BEGIN
    dedupe_key := nullif(dedupe_key, '');
    partition_key := nullif(partition_key, '');
    entity_type := nullif(entity_type, '');
    entity_id := nullif(entity_id, '');
    PERFORM outbox_schema.check_event(what, enqueue.namespace, enqueue.topic, enqueue.payload, enqueue.tenant_id, enqueue.dedupe_key,
        enqueue.partition_key, enqueue.entity_type, enqueue.entity_id, enqueue.entity_version, enqueue.headers, enqueue.version);
    IF coalesce(enqueue.max_attempts, 0) < 1 THEN
        RAISE invalid_parameter_value USING MESSAGE = what || 'max_attempts is not a positive number';
    ELSIF enqueue.not_before NOT BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00' THEN
        RAISE invalid_parameter_value USING MESSAGE = what || 'not_before is not a time of the years 1 to 9999';
    ELSIF enqueue.fairness IS NOT NULL AND enqueue.fairness <> 'tenant' THEN
        RAISE invalid_parameter_value USING MESSAGE = what || 'fairness is not ''tenant'' or NULL';
    ELSIF enqueue.fairness IS NOT NULL AND enqueue.tenant_id IS NULL THEN
        RAISE invalid_parameter_value USING MESSAGE = what || 'fairness by tenant needs a tenant_id';
    END IF;
    duplicate := false;
    FOR try IN 1..5 LOOP
        enqueue.id := outbox_schema.event_id();
        INSERT INTO outbox_schema.events AS e (id, namespace, topic, version, tenant_id, dedupe_key, partition_key, entity_type,
            entity_id, entity_version, headers, payload)
        VALUES (enqueue.id, enqueue.namespace, enqueue.topic, enqueue.version, enqueue.tenant_id, enqueue.dedupe_key, enqueue.partition_key, enqueue.entity_type,
            enqueue.entity_id, CASE WHEN enqueue.entity_type IS NOT NULL THEN coalesce(enqueue.entity_version, 0) END,
            nullif(enqueue.headers, '{}'), enqueue.payload)
        ON CONFLICT (namespace, topic, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING
        RETURNING e.id INTO enqueue.id;
        IF FOUND THEN
            INSERT INTO outbox_schema.queue (id, namespace, topic, version, tenant_id, lane, max_attempts, next_attempt_at)
            VALUES (enqueue.id, enqueue.namespace, enqueue.topic, enqueue.version, enqueue.tenant_id,
                outbox_schema.lane(enqueue.topic, CASE WHEN enqueue.fairness = 'tenant' THEN enqueue.tenant_id END),
                enqueue.max_attempts, coalesce(enqueue.not_before, statement_timestamp()));
            IF enqueue.wake THEN
                PERFORM outbox_schema.wake(enqueue.namespace);
            END IF;
            RETURN;
        END IF;
        SELECT e.id INTO enqueue.id FROM outbox_schema.events AS e
        WHERE e.namespace = enqueue.namespace AND e.topic = enqueue.topic AND e.dedupe_key = enqueue.dedupe_key;
        IF FOUND THEN
            duplicate := true;
            RETURN;
        END IF;
    END LOOP;
    RAISE serialization_failure USING MESSAGE = what || 'the dedupe key is taken and freed again and again';
END
$$;

COMMENT ON FUNCTION outbox_schema.enqueue IS 'Enqueues an event of a queue topic in the caller''s transaction. fairness must be that of the topic in the YAML.';
