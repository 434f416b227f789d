-- Queue topics. An event is a fact: its row is inserted and pruned. Only outboxgen reseal updates it, which changes the form of
-- sealed values and not what the event says. Its delivery is state, which lives
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
    entity_type    text        COLLATE "C",
    entity_id      text        COLLATE "C",
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

-- The events of an entity, in the order of their enqueue, for people. Events without an entity are not in it.
CREATE INDEX events_entity ON outbox_schema.events (entity_type, entity_id, created_at)
    WHERE entity_type IS NOT NULL;

-- The events of a chain, likewise. Only what a handler has enqueued is in it, and what has the header from its producer.
-- left keeps its entries small, whatever somebody writes into the header.
CREATE INDEX events_correlation ON outbox_schema.events (left(headers ->> 'correlation_id', 100) COLLATE "C", created_at)
    WHERE left(headers ->> 'correlation_id', 100) COLLATE "C" IS NOT NULL;

COMMENT ON TABLE outbox_schema.events IS 'Events of queue topics. Inserted by outboxgen or outbox.enqueue, deleted by prune, updated only by reseal.';
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
    lane            integer     NOT NULL DEFAULT 0,
    namespace       text        COLLATE "C" NOT NULL,
    topic           text        COLLATE "C" NOT NULL,
    tenant_id       uuid,
    turn            text        COLLATE "C",
    locked_by       uuid,
    locked_until    timestamptz,
    updated_at      timestamptz NOT NULL DEFAULT statement_timestamp(),
    failures        jsonb,
    CONSTRAINT queue_pkey PRIMARY KEY (id),
    CONSTRAINT queue_attempts_check CHECK (attempts >= 0 AND max_attempts >= 1),
    CONSTRAINT queue_lane_check CHECK (lane >= 0),
    CONSTRAINT queue_failures_check CHECK (jsonb_typeof(failures) = 'array')
) WITH (
    fillfactor = 40,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 1
);

-- In the order in which a claim takes them from a lane.
CREATE INDEX queue_due ON outbox_schema.queue (namespace, lane, next_attempt_at, id);

-- In the order in which a claim goes from turn to turn. Its lane is an expression, so that queue_due cannot serve
-- a visit to a turn. The planner would prefer it when the statistics say that one turn has nearly all events, and the visits
-- to the others would walk over them.
CREATE INDEX queue_turns ON outbox_schema.queue (namespace, (lane + 0), turn, next_attempt_at, id)
    WHERE turn IS NOT NULL;

COMMENT ON TABLE outbox_schema.queue IS 'State of the events of queue topics that are not final. See docs/operate/runbook.md before you change a row by hand.';
COMMENT ON COLUMN outbox_schema.queue.lane IS 'Hash of the topic, with bit 30 set if the event has a turn. A claim takes from every lane.';
COMMENT ON COLUMN outbox_schema.queue.turn IS 'Of topics that take turns or have limits: the event waits behind others of its turn only. docs/run/flow.md says what it is made of.';
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
    entity_type    text        COLLATE "C",
    entity_id      text        COLLATE "C",
    entity_version bigint,
    headers        jsonb,
    payload        jsonb       NOT NULL,
    bucket         smallint,
    created_at     timestamptz NOT NULL,
    attempts       integer     NOT NULL,
    max_attempts   integer,
    claim_no       bigint,
    lane           integer,
    turn           text,
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

-- As in events, for those of listeners: the log may have pruned the event itself.
CREATE INDEX dead_letters_entity ON outbox_schema.dead_letters (entity_type, entity_id, created_at)
    WHERE listener IS NOT NULL AND entity_type IS NOT NULL;

CREATE INDEX dead_letters_correlation ON outbox_schema.dead_letters (left(headers ->> 'correlation_id', 100) COLLATE "C", created_at)
    WHERE listener IS NOT NULL AND left(headers ->> 'correlation_id', 100) COLLATE "C" IS NOT NULL;

COMMENT ON TABLE outbox_schema.dead_letters IS 'Events that were given up: by the dispatchers of a queue topic, or by a listener, which may also have been told to skip them.';
COMMENT ON COLUMN outbox_schema.dead_letters.listener IS 'The listener that gave up; null for queue topics.';
COMMENT ON COLUMN outbox_schema.dead_letters.created_at IS 'Time of the enqueue.';
COMMENT ON COLUMN outbox_schema.dead_letters.attempts IS 'How often it was tried.';
COMMENT ON COLUMN outbox_schema.dead_letters.max_attempts IS 'Of queue topics: the attempts that it had.';
COMMENT ON COLUMN outbox_schema.dead_letters.claim_no IS 'Of queue topics: the fence of the latest claim.';
COMMENT ON COLUMN outbox_schema.dead_letters.lane IS 'Of queue topics: the lane that it had, for a replay.';
COMMENT ON COLUMN outbox_schema.dead_letters.turn IS 'Of queue topics: the turn that it had, for a replay.';
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

-- The lane of the events of a topic that have no turn. Go computes the same.
CREATE FUNCTION outbox_schema.lane(topic text) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ('x' || encode(substr(sha256(topic::bytea), 1, 4), 'hex'))::bit(32)::integer & 1073741823
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
        RAISE invalid_parameter_value USING MESSAGE = what || 'dedupe key does not start with tenant ' || tenant_id::text || ' and a slash';
    ELSIF dedupe_key = prefix THEN
        RAISE invalid_parameter_value USING MESSAGE = what || 'dedupe key has nothing after its tenant';
    ELSIF headers IS NOT NULL AND jsonb_typeof(headers) <> 'object' THEN
        RAISE invalid_parameter_value USING MESSAGE = what || 'headers are not an object';
    END IF;
    IF greatest(octet_length(dedupe_key), octet_length(partition_key), octet_length(entity_type), octet_length(entity_id)) > 512 THEN
        FOR field, value IN VALUES ('dedupe key', dedupe_key), ('partition key', partition_key), ('entity type', entity_type), ('entity id', entity_id)
        LOOP
            IF octet_length(value) > 512 THEN
                RAISE invalid_parameter_value USING MESSAGE = what || field || ' has ' || octet_length(value)::text || ' bytes of at most 512';
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
    us bigint := extract(epoch FROM clock_timestamp()) * 1000000::numeric;
BEGIN
    RETURN encode(overlay(uuid_send(gen_random_uuid())
        PLACING substr(int8send(us / 1000), 3) || substr(int8send(28672 + us % 1000::bigint * 4096 / 1000), 7) FROM 1 FOR 8), 'hex')::uuid;
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
-- Call it in the transaction of the business change. On a duplicate, id is that of the event that has the key. With the
-- path of its caller it might call functions and operators of others; the functions that it calls do not.
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
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
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
            INSERT INTO outbox_schema.queue (id, namespace, topic, version, tenant_id, lane, turn, max_attempts, next_attempt_at)
            VALUES (enqueue.id, enqueue.namespace, enqueue.topic, enqueue.version, enqueue.tenant_id,
                outbox_schema.lane(enqueue.topic) | CASE WHEN enqueue.fairness = 'tenant' THEN 1073741824 ELSE 0 END,
                CASE WHEN enqueue.fairness = 'tenant' THEN 'tenant/' || enqueue.tenant_id END, enqueue.max_attempts, coalesce(enqueue.not_before, statement_timestamp()));
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

-- The limits of topics, as the process of the newest start has declared them, and as operators have set them. All
-- claims read them here, so that all processes have the same.
CREATE TABLE outbox_schema.limits (
    namespace       text        COLLATE "C" NOT NULL,
    topic           text        COLLATE "C" NOT NULL,
    per             text        COLLATE "C" NOT NULL,
    counted_as      text        COLLATE "C" NOT NULL,
    nth             integer     NOT NULL,
    tag             text        COLLATE "C" NOT NULL,
    part            integer     NOT NULL,
    concurrency     integer,
    rate            integer,
    period          interval,
    declared_at     timestamptz NOT NULL DEFAULT statement_timestamp(),
    set_concurrency integer,
    set_rate        integer,
    set_period      interval,
    set_until       timestamptz,
    set_at          timestamptz,
    set_by          text,
    CONSTRAINT limits_pkey PRIMARY KEY (namespace, topic, per),
    CONSTRAINT limits_values_check CHECK (concurrency >= 1 AND rate >= 1 AND set_concurrency >= 1 AND set_rate >= 1),
    CONSTRAINT limits_rate_check CHECK ((rate IS NULL) = (period IS NULL) AND (set_rate IS NULL) = (set_period IS NULL))
);

COMMENT ON TABLE outbox_schema.limits IS 'Limits of queue topics, as the newest start has declared and operators have set them.';
COMMENT ON COLUMN outbox_schema.limits.per IS 'Which events share the limit: empty for all of the topic, tenant, destination, or a template.';
COMMENT ON COLUMN outbox_schema.limits.counted_as IS 'The topic in limit_usage: a topic and its earlier names share their limits.';
COMMENT ON COLUMN outbox_schema.limits.nth IS 'The order in which a claim applies the limits of the topic, from 1; the widest is last.';
COMMENT ON COLUMN outbox_schema.limits.tag IS 'How the turns of the topic begin for which these limits are; others are filed again.';
COMMENT ON COLUMN outbox_schema.limits.part IS 'Which part of the turn, after the tag, is the key; 0 means that the topic has one key.';
COMMENT ON COLUMN outbox_schema.limits.set_until IS 'End of the values that an operator has set; null means none.';

CREATE VIEW outbox_schema.limits_in_force AS
SELECT l.namespace, l.topic, outbox_schema.lane(l.topic) | (1 << 30) AS lane, l.per, l.counted_as, l.nth, l.tag, l.part,
    CASE WHEN l.set_until > statement_timestamp() THEN coalesce(l.set_concurrency, l.concurrency)
        ELSE l.concurrency END AS concurrency,
    CASE WHEN l.set_until > statement_timestamp() THEN coalesce(l.set_rate, l.rate) ELSE l.rate END AS rate,
    CASE WHEN l.set_until > statement_timestamp() THEN coalesce(l.set_period, l.period) ELSE l.period END AS period
FROM outbox_schema.limits AS l;

COMMENT ON VIEW outbox_schema.limits_in_force IS 'Limits with the values that hold now, and the lane of the turns of their topic.';

-- What is used of each key of a limit. A claim locks the rows of its keys, and only a claim changes them: what is acked,
-- released or gone is found out by the next claim of the key. The locks of different keys have nothing in common.
CREATE TABLE outbox_schema.limit_usage (
    namespace  text          COLLATE "C" NOT NULL,
    topic      text          COLLATE "C" NOT NULL,
    per        text          COLLATE "C" NOT NULL,
    key        text          COLLATE "C" NOT NULL,
    running    uuid[]        NOT NULL DEFAULT '{}',
    starts_at  timestamptz[] NOT NULL DEFAULT '{}',
    starts     integer[]     NOT NULL DEFAULT '{}',
    updated_at timestamptz   NOT NULL DEFAULT statement_timestamp(),
    CONSTRAINT limit_usage_pkey PRIMARY KEY (namespace, topic, per, key)
) WITH (
    fillfactor = 50,
    toast_tuple_target = 8160, -- hundreds of ids stay in the row
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 1
);

COMMENT ON TABLE outbox_schema.limit_usage IS 'What is used of each key of a limit. A row that is missing means that nothing is.';
COMMENT ON COLUMN outbox_schema.limit_usage.running IS 'Every event of the key that is leased, and some that were.';
COMMENT ON COLUMN outbox_schema.limit_usage.starts_at IS 'The latest times at which the attempts in starts may have begun, oldest first.';

-- What claim_turns returns: a view without rows, because sqlc knows the columns of tables and views only.
CREATE VIEW outbox_schema.turn_claim AS
SELECT
    NULL::smallint AS kind,
    NULL::integer AS lane,
    NULL::text AS turn,
    NULL::uuid AS id,
    NULL::text AS topic,
    NULL::integer AS version,
    NULL::uuid AS tenant_id,
    NULL::text AS dedupe_key,
    NULL::text AS partition_key,
    NULL::text AS entity_type,
    NULL::text AS entity_id,
    NULL::bigint AS entity_version,
    NULL::jsonb AS headers,
    NULL::jsonb AS payload,
    NULL::integer AS attempts,
    NULL::integer AS max_attempts,
    NULL::bigint AS claim_no,
    NULL::timestamptz AS created_at,
    NULL::timestamptz AS next_attempt_at,
    NULL::boolean AS reclaimed,
    NULL::bigint AS until_us
WHERE false;

-- Claims events of topics that take turns: from each turn as many as from the others as far as it has any, the oldest of
-- each, and never more than the limits of the topics allow.
--
-- The turns are those that the claimer knows to have more (known_*, each from a place on), those of the events that have
-- fallen due lately (the piece of front_* in the order of due times), and those that follow hop_turns in the index, each
-- a probe. They are visited in this order: new ones, then known ones; starts bounds how many. A visit meets at most piece
-- events of the turn, claimable or not.
--
-- New turns whose limit is reached are not visited. Known turns under limits that are far away are claimed without a count: see the first part.
-- Limits: a statement counts with the snapshot of its start, so the keys are locked by a statement of its own, and the
-- next counts. Rows that another claim has locked are left to it, so no claim waits for another. Every lease of a limited
-- topic is in limit_usage.running of its keys, because it was put there in the transaction that took it. A lease that ran
-- out counts until the event is claimed again, which does not add to the count.
-- A start is counted by the latest time at which it may happen, which is p_slack after the claim, and at least a 32nd and at
-- most a quarter of the period of the rate. The claimer hands back what it could not start by then, and the start is lost.
-- So it takes p_rated events of limited rate, for which workers are idle, and up to p_ahead more: of a key at most a hundredth
-- of what its rate allows in a second.
--
-- Returns in kind 0 the events, without payload and created_at if the event is gone from events, with until_us, the
-- microseconds after which they must not be started. In kind 1: a turn that may have more, with the place to go on from
-- if a piece of it has ended; otherwise that is behind what was claimed. 2: a turn whose limit is reached, with the time
-- when a rate allows more, if that is known. 3: a turn that another claim has locked. 4: a turn whose rate allows more
-- than p_rated and p_ahead. 5: a turn that was seen and not visited. 6: a turn that was filed for other limits. 10: the
-- last turn of a piece of hops, empty at the end. 11: the end of a piece of the front. 12: the time of the claim, and of
-- its end.
CREATE FUNCTION outbox_schema.claim_turns(
    p_namespace text, p_worker_id uuid, p_lease interval, p_batch_size integer, p_max_attempts integer,
    p_topics text[], p_every_version integer, p_version_topics text[], p_versions integer[], p_tenant_ids uuid[],
    p_paused text[],
    known_lanes integer[], known_turns text[], known_dues timestamptz[], known_ids uuid[],
    front_lanes integer[], front_dues timestamptz[], front_ids uuid[], front_piece integer,
    hop_lanes integer[], hop_turns text[], hop_count integer,
    p_piece integer, p_starts integer, p_reclaims integer, p_in_flight uuid[], p_rated integer, p_ahead integer, p_slack interval
) RETURNS SETOF outbox_schema.turn_claim
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    -- The turns that are visited, by number, and how a visit ended.
    s_lane   integer[];
    s_turn   text[];
    s_topic  text[];
    s_more   boolean[];
    s_due    timestamptz[];
    s_id     uuid[];
    s_late   boolean[];
    s_ok     boolean[];
    -- What is claimable, in the order in which it is taken.
    c_id     uuid[];
    c_s      integer[];
    c_late   boolean[];
    c_last   boolean[];
    chosen   integer[];
    -- The keys of limits, by number; key_of has for each turn n_max of them, null where it has fewer.
    k_topic  text[];
    k_per    text[];
    k_key    text[];
    k_max    integer[];
    k_rate   integer[];
    k_period interval[];
    k_open   boolean[];
    k_room   bigint[];
    k_starts bigint[];
    k_at     timestamptz[];
    k_missed integer[];
    k_locked integer[];
    k_row    tid[];
    key_of   integer[];
    s_full   boolean[];
    s_filed  boolean[];
    s_idle   boolean[];
    s_until  bigint[];
    roomy    boolean;
    n_wanted integer;
    x_busy   integer[];
    n_max    integer;
    now_at   timestamptz;
    x_lane   integer[];
    x_turn   text[];
    e_lane   integer[];
    e_turn   text[];
    e_at     timestamptz[];
    h_lane   integer[];
    h_turn   text[];
    f_lane   integer[];
    f_due    timestamptz[];
    f_id     uuid[];
BEGIN
    -- Turns that are known to have more, under limits that are far away: the usual claim from a backlog. The rows that are
    -- locked here are their newest versions, so the number of their ids bounds what runs without a look at it.
    IF cardinality(known_turns) > 0 AND cardinality(front_lanes) = 0 AND cardinality(hop_lanes) = 0 AND p_reclaims = 0 THEN
        WITH keys AS MATERIALIZED (
            SELECT k.no, l.counted_as, l.per, l.rate IS NOT NULL AS rated, l.concurrency AS max,
                CASE WHEN l.part > 0 THEN split_part(k.turn, '/', l.part + 1) ELSE '' END AS key,
                l.tag = split_part(k.turn, '/', 1) AS filed
            FROM unnest(known_lanes, known_turns) WITH ORDINALITY AS k (lane, turn, no)
            JOIN outbox_schema.limits_in_force AS l ON l.namespace = p_namespace AND l.lane = k.lane
        ),
        locked AS MATERIALIZED (
            SELECT d.counted_as, d.per, d.key, u.place, u.n, u.place IS NOT NULL OR EXISTS (
                    SELECT FROM outbox_schema.limit_usage AS u
                    WHERE u.namespace = p_namespace
                      AND u.topic = d.counted_as
                      AND u.per = d.per
                      AND u.key = d.key
                ) AS there
            FROM (SELECT DISTINCT k.counted_as, k.per, k.key FROM keys AS k) AS d
            LEFT JOIN LATERAL (
                SELECT u.ctid AS place, cardinality(u.running) AS n
                FROM outbox_schema.limit_usage AS u
                WHERE u.namespace = p_namespace
                  AND u.topic = d.counted_as
                  AND u.per = d.per
                  AND u.key = d.key
                FOR NO KEY UPDATE SKIP LOCKED
            ) AS u ON true
        )
        -- What is null does not count: a key without a bound of what runs, or one that another claim has locked.
        SELECT coalesce(bool_and(k.filed AND NOT k.rated AND l.there AND k.max - l.n > p_batch_size), true),
            coalesce(array_agg(k.no::integer) FILTER (WHERE l.place IS NULL), '{}'),
            array_agg(k.no::integer ORDER BY k.no), array_agg(l.place ORDER BY k.no)
        INTO roomy, x_busy, key_of, k_row
        FROM keys AS k
        JOIN locked AS l ON l.counted_as = k.counted_as AND l.per = k.per AND l.key = k.key;

        IF roomy THEN
            n_wanted := greatest(p_batch_size / cardinality(known_turns), 1);
            RETURN QUERY
            WITH picked AS MATERIALIZED (
                SELECT c.id, k.no
                FROM unnest(known_lanes, known_turns, known_dues, known_ids) WITH ORDINALITY AS k (lane, turn, due, id, no)
                CROSS JOIN LATERAL (
                    SELECT q.id
                    FROM outbox_schema.queue AS q
                    WHERE NOT k.no = ANY (x_busy)
                      AND q.namespace = p_namespace
                      AND q.lane + 0 = k.lane
                      AND q.turn = k.turn
                      AND (q.next_attempt_at, q.id) > (k.due, k.id)
                      AND q.next_attempt_at <= statement_timestamp()
                      AND q.locked_until IS NULL
                      AND q.attempts < coalesce(p_max_attempts, q.max_attempts)
                      AND (cardinality(p_topics) = 0 OR q.topic = ANY (p_topics))
                      AND (q.version <= p_every_version
                          OR coalesce(q.version <= p_versions[array_position(p_version_topics, q.topic)], true))
                      AND (cardinality(p_tenant_ids) = 0 OR q.tenant_id = ANY (p_tenant_ids))
                      AND (
                          cardinality(p_paused) = 0
                          OR NOT coalesce(q.topic = ANY (p_paused) OR q.tenant_id::text = ANY (p_paused)
                              OR q.topic || '/' || q.tenant_id::text = ANY (p_paused), false)
                      )
                    ORDER BY q.next_attempt_at, q.id
                    LIMIT n_wanted
                    FOR NO KEY UPDATE SKIP LOCKED
                ) AS c
                LIMIT p_batch_size
            ),
            claimed AS (
                UPDATE outbox_schema.queue AS q
                SET attempts = q.attempts + 1,
                    max_attempts = coalesce(p_max_attempts, q.max_attempts),
                    claim_no = q.claim_no + 1,
                    locked_by = p_worker_id,
                    locked_until = clock_timestamp() + p_lease,
                    updated_at = clock_timestamp()
                FROM picked AS p
                WHERE q.id = p.id
                RETURNING q.id, q.topic, q.version, q.tenant_id, q.attempts, q.max_attempts, q.claim_no, q.next_attempt_at, q.lane,
                    q.turn, p.no
            ),
            used AS (
                UPDATE outbox_schema.limit_usage AS u
                SET running = CASE WHEN cardinality(u.running) + d.n <= 256 THEN u.running ELSE array(
                        SELECT r.id
                        FROM unnest(u.running) AS r (id)
                        CROSS JOIN LATERAL (
                            SELECT FROM outbox_schema.queue AS q WHERE q.id = r.id AND q.locked_until IS NOT NULL LIMIT 1) AS q
                        WHERE NOT r.id = ANY (d.ids)
                    ) END || d.ids,
                    updated_at = clock_timestamp()
                FROM (
                    SELECT k.place, array_agg(c.id) AS ids, count(*) AS n
                    FROM claimed AS c
                    JOIN unnest(key_of, k_row) AS k (no, place) ON k.no = c.no
                    GROUP BY k.place
                ) AS d
                WHERE u.ctid = d.place
            )
            SELECT 0::smallint, c.lane, c.turn, c.id, c.topic, c.version, c.tenant_id, coalesce(e.dedupe_key, ''),
                coalesce(e.partition_key, ''), coalesce(e.entity_type, ''), coalesce(e.entity_id, ''), coalesce(e.entity_version, 0),
                e.headers, e.payload, c.attempts, c.max_attempts, c.claim_no, e.created_at, c.next_attempt_at, false, NULL::bigint
            FROM claimed AS c
            LEFT JOIN outbox_schema.events AS e ON e.id = c.id
            UNION ALL
            SELECT 1::smallint, m.lane, m.turn, NULL, '', 0, NULL, '', '', '', '', 0, NULL, NULL, 0, 0, 0, NULL, NULL, false, NULL
            FROM (SELECT c.lane, c.turn FROM claimed AS c GROUP BY c.lane, c.turn HAVING count(*) >= n_wanted) AS m
            UNION ALL
            SELECT 3::smallint, k.lane, k.turn, NULL, '', 0, NULL, '', '', '', '', 0, NULL, NULL, 0, 0, 0, NULL, NULL, false, NULL
            FROM unnest(known_lanes, known_turns) WITH ORDINALITY AS k (lane, turn, no)
            WHERE k.no = ANY (x_busy)
            UNION ALL
            SELECT 12::smallint, 0, '', NULL, '', 0, NULL, '', '', '', '', 0, NULL, NULL, 0, 0, 0, clock_timestamp(),
                statement_timestamp(), false, NULL;
            RETURN;
        END IF;
    END IF;

    WITH RECURSIVE hops AS (
        SELECT h.lane, h.turn COLLATE "C" AS turn, NULL::timestamptz AS due, NULL::uuid AS tenant_id, NULL COLLATE "C" AS topic, 0 AS n
        FROM unnest(hop_lanes, hop_turns) AS h (lane, turn)
        UNION ALL
        SELECT h.lane, x.turn, x.next_attempt_at, x.tenant_id, x.topic, h.n + 1
        FROM hops AS h
        CROSS JOIN LATERAL (
            SELECT q.turn, q.next_attempt_at, q.tenant_id, q.topic
            FROM outbox_schema.queue AS q
            WHERE q.namespace = p_namespace
              AND q.lane + 0 = h.lane
              AND q.turn > h.turn
            ORDER BY q.turn, q.next_attempt_at, q.id
            LIMIT 1
        ) AS x
        WHERE h.n < hop_count
    ),
    front AS MATERIALIZED (
        SELECT f.lane, c.turn, c.next_attempt_at, c.id, c.tenant_id, c.topic, c.free, c.n
        FROM unnest(front_lanes, front_dues, front_ids) AS f (lane, due, id)
        CROSS JOIN LATERAL (
            SELECT p.turn, p.next_attempt_at, p.id, p.tenant_id, p.topic, p.locked_until IS NULL AS free,
                row_number() OVER (ORDER BY p.next_attempt_at, p.id) AS n
            FROM (
                SELECT q.turn, q.next_attempt_at, q.id, q.tenant_id, q.topic, q.locked_until
                FROM outbox_schema.queue AS q
                WHERE q.namespace = p_namespace
                  AND q.lane = f.lane
                  AND (q.next_attempt_at, q.id) > (f.due, f.id)
                  AND q.next_attempt_at <= statement_timestamp()
                ORDER BY q.next_attempt_at, q.id
                LIMIT front_piece
            ) AS p
        ) AS c
    ),
    fresh AS (
        SELECT f.lane, f.turn, min(f.n) AS ord, (array_agg(f.tenant_id))[1] AS tenant_id, min(f.topic) AS topic
        FROM front AS f
        WHERE f.free
          AND f.turn IS NOT NULL
        GROUP BY f.lane, f.turn
        UNION ALL
        SELECT h.lane, h.turn, h.n, h.tenant_id, h.topic
        FROM hops AS h
        WHERE h.due <= statement_timestamp()
    ),
    seen AS (
        SELECT k.lane, k.turn, k.due, k.id, true AS known, k.ord
        FROM unnest(known_lanes, known_turns, known_dues, known_ids) WITH ORDINALITY AS k (lane, turn, due, id, ord)
        UNION ALL
        -- A turn of one tenant, which is not claimed, is left without a look at its events.
        SELECT f.lane, f.turn, '-infinity', '00000000-0000-0000-0000-000000000000', false, f.ord
        FROM fresh AS f
        WHERE split_part(f.turn, '/', 2) IS DISTINCT FROM f.tenant_id::text
           OR (cardinality(p_tenant_ids) = 0 OR f.tenant_id = ANY (p_tenant_ids))
               AND NOT f.tenant_id::text = ANY (p_paused)
               AND NOT f.topic || '/' || f.tenant_id::text = ANY (p_paused)
    ),
    numbered AS MATERIALIZED (
        SELECT g.lane, g.turn, g.due, g.id, g.known, row_number() OVER (ORDER BY g.known, g.ord, g.lane, g.turn) AS no
        FROM (
            SELECT e.lane, e.turn, bool_or(e.known) AS known, max(e.due) AS due,
                (array_agg(e.id ORDER BY e.known DESC))[1] AS id, min(e.ord) AS ord
            FROM seen AS e
            GROUP BY e.lane, e.turn
        ) AS g
    ),
    -- New turns whose limit is reached are left without a look at their events, unless a lease of theirs has run out. The
    -- others are counted again below.
    key_of_turn AS MATERIALIZED (
        SELECT n.no, l.counted_as, l.per, l.key, l.concurrency, l.rate, l.period,
            dense_rank() OVER (ORDER BY l.counted_as, l.per, l.key) AS k
        FROM numbered AS n
        LEFT JOIN LATERAL (
            SELECT o.counted_as, o.per, CASE WHEN o.part > 0 THEN split_part(n.turn, '/', o.part + 1) ELSE '' END AS key,
                o.concurrency, o.rate, o.period
            FROM outbox_schema.limits_in_force AS o
            WHERE o.namespace = p_namespace
              AND o.lane = n.lane
              AND o.tag = split_part(n.turn, '/', 1)
        ) AS l ON true
        WHERE NOT n.known
           OR p_reclaims > 0
    ),
    usage_of_key AS MATERIALIZED (
        SELECT d.k, c.full OR r.used >= d.rate AS full,
            CASE WHEN r.used >= d.rate THEN r.first + d.period END AS at, c.lost
        FROM (SELECT DISTINCT ON (t.k) t.k, t.counted_as, t.per, t.key, t.concurrency, t.rate, t.period
            FROM key_of_turn AS t ORDER BY t.k) AS d
        LEFT JOIN LATERAL (
            SELECT u.running, u.starts_at, u.starts
            FROM outbox_schema.limit_usage AS u
            WHERE u.namespace = p_namespace
              AND u.topic = d.counted_as
              AND u.per = d.per
              AND u.key = d.key
            LIMIT 1
        ) AS u ON true
        CROSS JOIN LATERAL (
            SELECT count(DISTINCT i.id) >= d.concurrency AND NOT bool_or(p_reclaims > 0 AND q.locked_until < statement_timestamp()) AS full,
                array_agg(i.id) FILTER (WHERE p_reclaims > 0 AND q.locked_until < statement_timestamp()) AS lost
            FROM unnest(u.running) AS i (id)
            CROSS JOIN LATERAL (
                SELECT q.locked_until FROM outbox_schema.queue AS q WHERE q.id = i.id AND q.locked_until IS NOT NULL LIMIT 1) AS q
            WHERE cardinality(u.running) >= d.concurrency
        ) AS c
        CROSS JOIN LATERAL (
            SELECT sum(t.n) AS used, min(t.at) AS first
            FROM unnest(u.starts_at, u.starts) AS t (at, n)
            WHERE t.at >= clock_timestamp() - d.period
        ) AS r
    ),
    reached AS MATERIALIZED (
        SELECT array_agg(k.full ORDER BY k.k) AS full, array_agg(k.at ORDER BY k.k) AS at
        FROM usage_of_key AS k
    ),
    full_turns AS MATERIALIZED (
        SELECT array_agg(y.full ORDER BY y.no) AS full, array_agg(y.at ORDER BY y.no) AS at
        FROM (
            SELECT t.no, bool_or(r.full[t.k]) AS full, max(r.at[t.k]) AS at
            FROM key_of_turn AS t
            CROSS JOIN reached AS r
            GROUP BY t.no
        ) AS y
    ),
    wanted AS MATERIALIZED (
        SELECT y.lane, y.turn, y.due, y.id, y.known, y.full, y.at, row_number() OVER (ORDER BY y.full, y.no) AS no
        FROM (
            SELECT n.lane, n.turn, n.due, n.id, n.known, n.no, NOT n.known AND coalesce(f.full[n.no], false) AS full, f.at[n.no] AS at
            FROM numbered AS n
            CROSS JOIN full_turns AS f
        ) AS y
    ),
    visited AS MATERIALIZED (
        SELECT w.lane, w.turn, w.due, w.id,
            row_number() OVER (ORDER BY w.no) AS s,
            CASE
                WHEN w.known THEN 1 + 2 * p_batch_size / greatest(cardinality(known_turns), 1)
                ELSE least(p_batch_size, greatest(8, p_batch_size / count(*) FILTER (WHERE NOT w.known) OVER ()))
            END AS depth
        FROM wanted AS w
        WHERE w.known
           OR NOT w.full AND w.no <= p_starts
    ),
    nearest AS MATERIALIZED (
        SELECT v.s, v.lane, v.turn, v.depth, c.id, c.next_attempt_at, c.topic, c.n, c.claimable, c.late, c.last
        FROM visited AS v
        LEFT JOIN LATERAL (
            SELECT w.id, w.next_attempt_at, w.topic, w.n, w.claimable, w.late, w.last
            FROM (
                SELECT p.id, p.next_attempt_at, p.topic,
                    row_number() OVER (ORDER BY p.next_attempt_at, p.id) AS n,
                    p.locked_until IS NOT NULL AS late,
                    (
                        p.locked_until IS NULL
                        OR p_reclaims > 0
                            AND p.locked_until < statement_timestamp()
                            AND NOT p.id = ANY (p_in_flight)
                    )
                    AND p.attempts < coalesce(p_max_attempts, p.max_attempts)
                    AND (cardinality(p_topics) = 0 OR p.topic = ANY (p_topics))
                    AND (p.version <= p_every_version
                        OR coalesce(p.version <= p_versions[array_position(p_version_topics, p.topic)], true))
                    AND (cardinality(p_tenant_ids) = 0 OR p.tenant_id = ANY (p_tenant_ids))
                    AND (
                        cardinality(p_paused) = 0
                        OR NOT coalesce(p.topic = ANY (p_paused) OR p.tenant_id::text = ANY (p_paused)
                            OR p.topic || '/' || p.tenant_id::text = ANY (p_paused), false)
                    ) AS claimable,
                    p.attempts + 1 >= coalesce(p_max_attempts, p.max_attempts) AS last
                FROM (
                    SELECT q.id, q.next_attempt_at, q.locked_until, q.attempts, q.max_attempts, q.topic, q.version, q.tenant_id
                    FROM outbox_schema.queue AS q
                    WHERE q.namespace = p_namespace
                      AND q.lane + 0 = v.lane
                      AND q.turn = v.turn
                      AND (q.next_attempt_at, q.id) > (v.due, v.id)
                      AND q.next_attempt_at <= statement_timestamp()
                    ORDER BY q.next_attempt_at, q.id
                    LIMIT p_piece
                ) AS p
            ) AS w
            WHERE w.claimable IS TRUE
               OR w.n = p_piece
            LIMIT v.depth
        ) AS c ON true
    ),
    -- Leases that ran out fill limits, too. Behind the events that a visit meets, they would do so for ever.
    met AS MATERIALIZED (
        SELECT n.s, n.lane, n.turn, n.depth, n.id, n.next_attempt_at, n.topic, n.n, n.claimable, n.late, n.last
        FROM nearest AS n
        UNION ALL
        SELECT v.s, v.lane, v.turn, v.depth, q.id, q.next_attempt_at, q.topic, NULL, true, true,
            q.attempts + 1 >= coalesce(p_max_attempts, q.max_attempts)
        FROM (SELECT DISTINCT i.id FROM usage_of_key AS k CROSS JOIN LATERAL unnest(k.lost) AS i (id)) AS l
        CROSS JOIN LATERAL (
            SELECT o.id, o.next_attempt_at, o.topic, o.attempts, o.max_attempts, o.version, o.tenant_id, o.namespace, o.lane, o.turn
            FROM outbox_schema.queue AS o
            WHERE o.id = l.id
            LIMIT 1
        ) AS q
        JOIN visited AS v ON v.lane = q.lane AND v.turn = q.turn
        WHERE q.namespace = p_namespace
          AND q.next_attempt_at <= statement_timestamp()
          AND NOT q.id = ANY (p_in_flight)
          AND q.attempts < coalesce(p_max_attempts, q.max_attempts)
          AND (cardinality(p_topics) = 0 OR q.topic = ANY (p_topics))
          AND (q.version <= p_every_version
              OR coalesce(q.version <= p_versions[array_position(p_version_topics, q.topic)], true))
          AND (cardinality(p_tenant_ids) = 0 OR q.tenant_id = ANY (p_tenant_ids))
          AND (
              cardinality(p_paused) = 0
              OR NOT coalesce(q.topic = ANY (p_paused) OR q.tenant_id::text = ANY (p_paused)
                  OR q.topic || '/' || q.tenant_id::text = ANY (p_paused), false)
          )
          AND NOT EXISTS (SELECT FROM nearest AS n WHERE n.id = q.id)
    ),
    ended AS MATERIALIZED (
        SELECT m.s, m.lane, m.turn, min(m.topic) FILTER (WHERE m.claimable) AS topic,
            count(m.id) >= m.depth OR max(m.n) = p_piece AS more,
            max(m.next_attempt_at) FILTER (WHERE m.n = p_piece) AS due,
            (array_agg(m.id) FILTER (WHERE m.n = p_piece))[1] AS id,
            bool_or(m.claimable AND m.late) AS late
        FROM met AS m
        GROUP BY m.s, m.lane, m.turn, m.depth
    ),
    placed AS MATERIALIZED (
        SELECT m.id, m.s, m.late, m.last, row_number() OVER (PARTITION BY m.s ORDER BY m.next_attempt_at, m.id) AS place
        FROM met AS m
        WHERE m.claimable
    )
    SELECT e.lane, e.turn, e.topic, e.more, e.due, e.id, e.late, c.id, c.s, c.late, c.last, x.lane, x.turn, h.lane, h.turn,
        f.lane, f.due, f.id, r.lane, r.turn, r.at
    INTO s_lane, s_turn, s_topic, s_more, s_due, s_id, s_late, c_id, c_s, c_late, c_last, x_lane, x_turn, h_lane, h_turn,
        f_lane, f_due, f_id, e_lane, e_turn, e_at
    FROM (
        SELECT array_agg(e.lane ORDER BY e.s) AS lane, array_agg(e.turn ORDER BY e.s) AS turn,
            array_agg(e.topic ORDER BY e.s) AS topic, array_agg(e.more ORDER BY e.s) AS more,
            array_agg(e.due ORDER BY e.s) AS due, array_agg(e.id ORDER BY e.s) AS id, array_agg(e.late ORDER BY e.s) AS late
        FROM ended AS e
    ) AS e
    CROSS JOIN (
        SELECT array_agg(c.id ORDER BY c.place, c.s) AS id, array_agg(c.s::integer ORDER BY c.place, c.s) AS s,
            array_agg(c.late ORDER BY c.place, c.s) AS late, array_agg(c.last ORDER BY c.place, c.s) AS last
        FROM placed AS c
    ) AS c
    CROSS JOIN (
        SELECT array_agg(w.lane ORDER BY w.no) AS lane, array_agg(w.turn ORDER BY w.no) AS turn
        FROM wanted AS w
        WHERE NOT w.known
          AND NOT w.full
          AND w.no > p_starts
    ) AS x
    CROSS JOIN (
        SELECT array_agg(w.lane ORDER BY w.no) AS lane, array_agg(w.turn ORDER BY w.no) AS turn, array_agg(w.at ORDER BY w.no) AS at
        FROM wanted AS w
        WHERE w.full
    ) AS r
    CROSS JOIN (
        SELECT array_agg(d.lane) AS lane, array_agg(d.turn) AS turn
        FROM (
            SELECT h.lane, CASE WHEN max(h.n) = hop_count THEN max(h.turn) ELSE '' END AS turn
            FROM hops AS h
            GROUP BY h.lane
        ) AS d
    ) AS h
    CROSS JOIN (
        SELECT array_agg(f.lane) AS lane, array_agg(f.next_attempt_at) AS due, array_agg(f.id) AS id
        FROM front AS f
        WHERE f.n = front_piece
    ) AS f;

    chosen := array(SELECT generate_series(1, cardinality(c_id)));

    IF EXISTS (
        SELECT FROM unnest(s_topic) AS t (topic)
        JOIN outbox_schema.limits AS l ON l.namespace = p_namespace AND l.topic = t.topic
    ) THEN
        -- Which keys the turns have. A turn that was filed for other limits is not claimed.
        WITH grid AS MATERIALIZED (
            SELECT s.no, n.n, l.tag, l.counted_as, l.per, l.max, l.rate, l.period,
                CASE WHEN l.part > 0 THEN split_part(s.turn, '/', l.part + 1) WHEN l.part = 0 THEN '' END AS key,
                l.tag IS NULL OR l.tag = split_part(s.turn, '/', 1) AS filed
            FROM unnest(s_turn, s_topic) WITH ORDINALITY AS s (turn, topic, no)
            CROSS JOIN generate_series(1, (
                SELECT max(l.nth) FROM outbox_schema.limits AS l WHERE l.namespace = p_namespace)) AS n (n)
            LEFT JOIN LATERAL (
                SELECT l.tag, l.part, l.counted_as, l.per, l.concurrency AS max, l.rate, l.period
                FROM outbox_schema.limits_in_force AS l
                WHERE l.namespace = p_namespace
                  AND l.topic = s.topic
                  AND l.nth = n.n
                LIMIT 1
            ) AS l ON true
        ),
        numbered AS MATERIALIZED (
            SELECT g.no, g.n, g.counted_as, g.per, g.key, g.max, g.rate, g.period, g.filed,
                CASE WHEN g.key IS NOT NULL THEN dense_rank() OVER (ORDER BY g.counted_as, g.per, g.key) END AS k
            FROM grid AS g
        )
        SELECT a.keys, a.n_max, a.ok, b.topic, b.per, b.key, b.max, b.rate, b.period
        INTO key_of, n_max, s_filed, k_topic, k_per, k_key, k_max, k_rate, k_period
        FROM (
            SELECT array_agg(u.k::integer ORDER BY u.no, u.n) AS keys, max(u.n) AS n_max,
                (SELECT array_agg(o.ok ORDER BY o.no) FROM (
                    SELECT v.no, bool_and(v.filed) AS ok FROM numbered AS v GROUP BY v.no) AS o) AS ok
            FROM numbered AS u
        ) AS a
        CROSS JOIN (
            SELECT array_agg(d.counted_as ORDER BY d.k) AS topic, array_agg(d.per ORDER BY d.k) AS per,
                array_agg(d.key ORDER BY d.k) AS key, array_agg(d.max ORDER BY d.k) AS max,
                array_agg(d.rate ORDER BY d.k) AS rate, array_agg(d.period ORDER BY d.k) AS period
            FROM (SELECT DISTINCT ON (u.k) u.k, u.counted_as, u.per, u.key, u.max, u.rate, u.period
                FROM numbered AS u WHERE u.k IS NOT NULL ORDER BY u.k) AS d
        ) AS b;

        s_ok := s_filed;
        FOR pass IN 1..2 LOOP
            -- First without locks, so that keys whose limit is reached cost no write; then again under the locks.
            now_at := clock_timestamp();
            SELECT array_agg(k.max - v.live ORDER BY k.no), array_agg(k.rate - w.used ORDER BY k.no),
                array_agg(CASE WHEN w.used >= k.rate THEN w.first + k.period END ORDER BY k.no),
                array_agg(k.no::integer) FILTER (WHERE u.running IS NULL),
                coalesce(min(k.max - v.live), p_batch_size + 1) > p_batch_size AND count(k.rate) = 0
            INTO k_room, k_starts, k_at, k_missed, roomy
            FROM unnest(k_topic, k_per, k_key, k_max, k_rate, k_period)
                WITH ORDINALITY AS k (topic, per, key, max, rate, period, no)
            LEFT JOIN LATERAL (
                SELECT u.running, u.starts_at, u.starts
                FROM outbox_schema.limit_usage AS u
                WHERE u.namespace = p_namespace
                  AND u.topic = k.topic
                  AND u.per = k.per
                  AND u.key = k.key
                LIMIT 1
            ) AS u ON true
            CROSS JOIN LATERAL (
                -- No more run than there are ids. Where that leaves room enough, nothing is looked up.
                SELECT CASE
                    WHEN k.max IS NULL OR k.max - coalesce(cardinality(u.running), 0) > p_batch_size
                        THEN coalesce(cardinality(u.running), 0)
                    ELSE (
                        SELECT count(DISTINCT r.id)
                        FROM unnest(u.running) AS r (id)
                        CROSS JOIN LATERAL (
                            SELECT FROM outbox_schema.queue AS q WHERE q.id = r.id AND q.locked_until IS NOT NULL LIMIT 1) AS q
                    )
                END AS live
            ) AS v
            CROSS JOIN LATERAL (
                SELECT coalesce(sum(t.n), 0) AS used, min(t.at) AS first
                FROM unnest(u.starts_at, u.starts) AS t (at, n)
                WHERE t.at >= now_at - k.period
            ) AS w;
            EXIT WHEN pass = 2;
            SELECT array_agg(o.ok ORDER BY o.s) INTO s_ok
            FROM (
                -- What is null has no bound.
                SELECT s.s, s_ok[s.s] AND coalesce(bool_and(k_starts[k.k] > 0 AND (s_late[s.s] OR k_room[k.k] > 0)), true) AS ok
                FROM generate_series(1, cardinality(s_turn)) AS s (s)
                CROSS JOIN LATERAL unnest(key_of[(s.s - 1) * n_max + 1 : s.s * n_max]) AS k (k)
                GROUP BY s.s
            ) AS o;
            SELECT array_agg(DISTINCT k.k) INTO k_locked
            FROM generate_series(1, cardinality(s_turn)) AS s (s)
            CROSS JOIN LATERAL unnest(key_of[(s.s - 1) * n_max + 1 : s.s * n_max]) AS k (k)
            WHERE s_ok[s.s]
              AND k.k IS NOT NULL;
            IF k_missed && k_locked THEN
                INSERT INTO outbox_schema.limit_usage (namespace, topic, per, key)
                SELECT p_namespace, k_topic[k.k], k_per[k.k], k_key[k.k]
                FROM unnest(k_missed) AS k (k)
                WHERE k.k = ANY (k_locked)
                ORDER BY k.k
                ON CONFLICT ON CONSTRAINT limit_usage_pkey DO NOTHING;
            END IF;
            n_wanted := cardinality(k_locked);
            SELECT array_agg(l.k), array_agg(l.ctid) INTO k_locked, k_row
            FROM (
                SELECT k.k, u.ctid
                FROM unnest(k_locked) AS k (k)
                CROSS JOIN LATERAL (
                    SELECT u.ctid
                    FROM outbox_schema.limit_usage AS u
                    WHERE u.namespace = p_namespace
                      AND u.topic = k_topic[k.k]
                      AND u.per = k_per[k.k]
                      AND u.key = k_key[k.k]
                    FOR NO KEY UPDATE SKIP LOCKED
                ) AS u
            ) AS l;
        END LOOP;

        -- The rest is for limits that are nearly reached, and for rates.
        IF (roomy AND n_wanted = cardinality(k_locked) AND true = ALL (s_ok)) IS NOT TRUE THEN
            SELECT array_agg(c.i ORDER BY c.i) INTO chosen
            FROM (
                SELECT c.i, r.ahead, count(*) FILTER (WHERE r.ahead IS NOT NULL) OVER (ORDER BY c.i) AS rated_no
                FROM unnest(chosen) AS c (i)
                CROSS JOIN LATERAL (
                    SELECT min(floor(k_rate[k.k] / 100.0 / extract(epoch FROM k_period[k.k]))) AS ahead
                    FROM unnest(key_of[(c_s[c.i] - 1) * n_max + 1 : c_s[c.i] * n_max]) AS k (k)
                ) AS r
                WHERE s_ok[c_s[c.i]]
            ) AS c
            WHERE c.ahead IS NULL
               OR c.rated_no <= p_rated + least(p_ahead, c.ahead);
            SELECT array_agg(x.idle ORDER BY x.s) INTO s_idle
            FROM (
                SELECT s.s, NOT s.s = ANY (SELECT c_s[c.i] FROM unnest(chosen) AS c (i)) AS idle
                FROM generate_series(1, cardinality(s_turn)) AS s (s)
            ) AS x;
            FOR n IN 1..n_max LOOP
                SELECT array_agg(f.i ORDER BY f.i) INTO chosen
                FROM (
                    SELECT e.i, e.k, c_late[e.i] AS late, row_number() OVER (PARTITION BY e.k ORDER BY e.i) AS place,
                        count(*) FILTER (WHERE NOT c_late[e.i]) OVER (PARTITION BY e.k ORDER BY e.i) AS added
                    FROM (
                        SELECT c.i, key_of[(c_s[c.i] - 1) * n_max + n] AS k
                        FROM unnest(chosen) AS c (i)
                    ) AS e
                ) AS f
                WHERE f.k IS NULL
                   OR f.k = ANY (k_locked)
                       AND f.place <= coalesce(k_starts[f.k], f.place)
                       AND (f.late OR f.added <= coalesce(k_room[f.k], f.added));
            END LOOP;

            -- Turns whose limit is reached with this claim.
            SELECT array_agg(x.full ORDER BY x.s) INTO s_full
            FROM (
                SELECT s.s, bool_or(k_starts[k.k] <= 0 OR k_room[k.k] <= coalesce(t.n, 0)) AS full
                FROM generate_series(1, cardinality(s_turn)) AS s (s)
                CROSS JOIN LATERAL unnest(key_of[(s.s - 1) * n_max + 1 : s.s * n_max]) AS k (k)
                LEFT JOIN (
                    SELECT k.k, count(*) AS n
                    FROM unnest(chosen[1 : p_batch_size]) AS c (i)
                    CROSS JOIN LATERAL unnest(key_of[(c_s[c.i] - 1) * n_max + 1 : c_s[c.i] * n_max]) AS k (k)
                    WHERE NOT c_late[c.i]
                    GROUP BY k.k
                ) AS t ON t.k = k.k
                GROUP BY s.s
            ) AS x;
            SELECT array_agg((
                SELECT min(extract(epoch FROM greatest(k_period[k.k] / 32, least(k_period[k.k] / 4, p_slack))) * 1000000)::bigint
                FROM unnest(key_of[(s.s - 1) * n_max + 1 : s.s * n_max]) AS k (k)
                WHERE k_period[k.k] IS NOT NULL) ORDER BY s.s)
            INTO s_until
            FROM generate_series(1, cardinality(s_turn)) AS s (s);
        END IF;
    END IF;

    -- Few events whose lease ran out, of those that may start.
    IF true = ANY (c_late) THEN
        SELECT array_agg(l.i ORDER BY l.i) INTO chosen
        FROM (
            SELECT c.i, count(*) FILTER (WHERE c_late[c.i]) OVER (ORDER BY c.i) AS lates FROM unnest(chosen) AS c (i)
        ) AS l
        WHERE NOT c_late[l.i]
           OR l.lates <= p_reclaims;
    END IF;

    -- An event that was reclaimed for its last attempt comes alone.
    IF true = ANY (c_last) THEN
        chosen := coalesce((SELECT array[c.i] FROM unnest(chosen) AS c (i) WHERE c_late[c.i] AND c_last[c.i] LIMIT 1), chosen);
    END IF;

    -- Turns of which something is left have more.
    IF cardinality(c_id) > coalesce(cardinality(chosen[1 : p_batch_size]), 0) THEN
        SELECT array_agg(t.more OR t.met > t.taken ORDER BY t.s) INTO s_more
        FROM (
            SELECT s.s, s_more[s.s] AS more, count(c.i) AS met, count(c.i) FILTER (WHERE c.i = ANY (chosen[1 : p_batch_size])) AS taken
            FROM generate_series(1, cardinality(s_turn)) AS s (s)
            LEFT JOIN unnest(c_s) WITH ORDINALITY AS c (s, i) ON c.s = s.s
            GROUP BY s.s
        ) AS t;
    END IF;

    RETURN QUERY
    WITH locked AS MATERIALIZED (
        SELECT l.id, c.i, l.late
        FROM unnest(chosen) AS c (i)
        CROSS JOIN LATERAL (
            SELECT q.id, q.locked_until IS NOT NULL AS late
            FROM outbox_schema.queue AS q
            WHERE q.id = c_id[c.i]
              AND CASE WHEN c_late[c.i] THEN q.locked_until < statement_timestamp() ELSE q.locked_until IS NULL END
              AND q.next_attempt_at <= statement_timestamp()
              AND q.attempts < coalesce(p_max_attempts, q.max_attempts)
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS l
        LIMIT p_batch_size
    ),
    claimed AS (
        UPDATE outbox_schema.queue AS q
        SET attempts = q.attempts + 1,
            max_attempts = coalesce(p_max_attempts, q.max_attempts),
            claim_no = q.claim_no + 1,
            locked_by = p_worker_id,
            locked_until = clock_timestamp() + p_lease,
            updated_at = clock_timestamp(),
            failures = CASE
                WHEN q.locked_until IS NULL THEN q.failures
                ELSE CASE WHEN jsonb_array_length(q.failures) >= 5 THEN q.failures - 0 ELSE coalesce(q.failures, '[]') END
                    || jsonb_build_object('attempt', q.attempts, 'at', statement_timestamp(), 'worker', q.locked_by, 'error',
                        'lease ran out on attempt ' || q.attempts || ', worker ' || coalesce(q.locked_by::text, 'unknown') || ' did not answer')
            END
        FROM locked AS l
        WHERE q.id = l.id
        RETURNING q.id, q.topic, q.version, q.tenant_id, q.attempts, q.max_attempts, q.claim_no, q.next_attempt_at, q.lane, q.turn,
            l.i, l.late
    ),
    used AS (
        UPDATE outbox_schema.limit_usage AS u
        -- Ids that do not run any more are removed when there are many.
        SET running = CASE WHEN cardinality(u.running) + d.n <= least(k_max[d.k], 256) THEN u.running ELSE array(
                SELECT r.id
                FROM unnest(u.running) AS r (id)
                CROSS JOIN LATERAL (
                    SELECT FROM outbox_schema.queue AS q WHERE q.id = r.id AND q.locked_until IS NOT NULL LIMIT 1) AS q
                WHERE NOT r.id = ANY (d.ids)
            ) END || d.ids,
            starts_at = CASE WHEN k_rate[d.k] IS NULL THEN '{}' ELSE array(
                SELECT t.at FROM (
                    SELECT t.at FROM unnest(u.starts_at) AS t (at) WHERE t.at >= now_at - k_period[d.k] AND t.at <> d.at
                    UNION ALL
                    SELECT d.at) AS t ORDER BY t.at) END,
            starts = CASE WHEN k_rate[d.k] IS NULL THEN '{}' ELSE array(
                SELECT t.n::integer FROM (
                    SELECT t.at, t.n FROM unnest(u.starts_at, u.starts) AS t (at, n)
                    WHERE t.at >= now_at - k_period[d.k] AND t.at <> d.at
                    UNION ALL
                    SELECT d.at, d.n + coalesce((
                        SELECT sum(t.n) FROM unnest(u.starts_at, u.starts) AS t (at, n) WHERE t.at = d.at), 0)
                    ) AS t ORDER BY t.at) END,
            updated_at = now_at
        FROM (
            SELECT k.k, array_agg(c.id) AS ids, count(*) AS n,
                date_bin(k_period[k.k] / 64, now_at + greatest(k_period[k.k] / 32, least(k_period[k.k] / 4, p_slack)), 'epoch')
                    + k_period[k.k] / 64 AS at,
                k_row[array_position(k_locked, k.k)] AS place
            FROM claimed AS c
            CROSS JOIN LATERAL unnest(key_of[(c_s[c.i] - 1) * n_max + 1 : c_s[c.i] * n_max]) AS k (k)
            GROUP BY k.k
        ) AS d
        WHERE u.ctid = d.place
    )
    SELECT 0::smallint, c.lane, c.turn, c.id, c.topic, c.version, c.tenant_id, coalesce(e.dedupe_key, ''),
        coalesce(e.partition_key, ''), coalesce(e.entity_type, ''), coalesce(e.entity_id, ''), coalesce(e.entity_version, 0),
        e.headers, e.payload, c.attempts, c.max_attempts, c.claim_no, e.created_at, c.next_attempt_at, c.late,
        s_until[c_s[c.i]]
    FROM claimed AS c
    LEFT JOIN outbox_schema.events AS e ON e.id = c.id
    ORDER BY c.i;

    RETURN QUERY
    SELECT o.kind::smallint, o.lane, o.turn, o.id, '', 0, NULL::uuid, '', '', '', '', 0::bigint, NULL::jsonb, NULL::jsonb, 0, 0, 0::bigint,
        o.at, o.due, false, NULL::bigint
    FROM (
        SELECT
            CASE
                WHEN s_topic[s.no] IS NULL THEN 1
                WHEN NOT s_filed[s.no] THEN 6
                WHEN NOT s_ok[s.no] THEN 2
                WHEN b.busy THEN 3
                WHEN s_idle[s.no] THEN 4
                WHEN s_full[s.no] THEN 2
                ELSE 1
            END AS kind, s.lane, s.turn, s.id, s.due, s.more,
            CASE WHEN NOT s_ok[s.no] OR s_full[s.no] THEN (
                SELECT max(k_at[k.k]) FROM unnest(key_of[(s.no - 1) * n_max + 1 : s.no * n_max]) AS k (k)) END AS at
        FROM unnest(s_lane, s_turn, s_more, s_due, s_id) WITH ORDINALITY AS s (lane, turn, more, due, id, no)
        CROSS JOIN LATERAL (
            SELECT bool_or(NOT coalesce(k.k = ANY (k_locked), false)) AS busy
            FROM unnest(key_of[(s.no - 1) * n_max + 1 : s.no * n_max]) AS k (k)
            WHERE k.k IS NOT NULL
        ) AS b
        UNION ALL
        SELECT 10, h.lane, h.turn, NULL, NULL, true, NULL FROM unnest(h_lane, h_turn) AS h (lane, turn)
        UNION ALL
        SELECT 11, f.lane, '', f.id, f.due, true, NULL FROM unnest(f_lane, f_due, f_id) AS f (lane, due, id)
        UNION ALL
        SELECT 5, x.lane, x.turn, NULL, NULL, true, NULL FROM unnest(x_lane, x_turn) AS x (lane, turn)
        UNION ALL
        SELECT 2, e.lane, e.turn, NULL, NULL, true, e.at FROM unnest(e_lane, e_turn, e_at) AS e (lane, turn, at)
        UNION ALL
        SELECT 12, 0, '', NULL, statement_timestamp(), true, clock_timestamp()
    ) AS o
    WHERE o.more
       OR o.kind > 1;
END
$$;

COMMENT ON FUNCTION outbox_schema.claim_turns IS 'Claims events of topics that take turns or have limits. Dispatchers call it.';

-- Roles get the functions that they need by name. The default of PostgreSQL is that everybody may call them.
REVOKE EXECUTE ON FUNCTION outbox_schema.lane, outbox_schema.check_event, outbox_schema.event_id, outbox_schema.wake,
    outbox_schema.enqueue, outbox_schema.claim_turns FROM PUBLIC;
