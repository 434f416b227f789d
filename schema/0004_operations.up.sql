-- What operators see and do. Nothing here is read or written by an enqueue, a claim or an ack.
--
-- A row per running dispatcher and per process of a listener. It is renewed every half minute and deleted at a graceful
-- stop. A row that is older than that belongs to a process that died, or to one without the database.
CREATE TABLE outbox_schema.processes (
    worker_id  uuid        NOT NULL,
    kind       text        NOT NULL,
    name       text        COLLATE "C" NOT NULL,
    host       text        NOT NULL,
    pid        integer     NOT NULL,
    topics     jsonb       NOT NULL,
    tenant_ids uuid[],
    resting    jsonb       NOT NULL DEFAULT '{}',
    started_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    seen_at    timestamptz NOT NULL DEFAULT statement_timestamp(),
    CONSTRAINT processes_pkey PRIMARY KEY (kind, name, worker_id),
    CONSTRAINT processes_kind_check CHECK (kind IN ('dispatcher', 'listener'))
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 500
);

COMMENT ON TABLE outbox_schema.processes IS 'Running dispatchers and listeners: who runs what. Renewed every half minute.';
COMMENT ON COLUMN outbox_schema.processes.kind IS 'dispatcher or listener.';
COMMENT ON COLUMN outbox_schema.processes.name IS 'Namespace of the dispatcher, or name of the listener.';
COMMENT ON COLUMN outbox_schema.processes.topics IS 'The topics that it takes, as namespace/topic: the version that it knows, max_lag in seconds, limits, and at_once, how many events of a topic with limits it handles at once.';
COMMENT ON COLUMN outbox_schema.processes.tenant_ids IS 'The only tenants whose events it takes; null means all.';
COMMENT ON COLUMN outbox_schema.processes.resting IS 'The topics and destinations that rest, each with the reason.';
COMMENT ON COLUMN outbox_schema.processes.seen_at IS 'When the process renewed the row.';

-- What an operator has paused. '' and the zero UUID mean any, so that the primary key holds one row per scope.
CREATE TABLE outbox_schema.pauses (
    namespace text        COLLATE "C" NOT NULL DEFAULT '',
    topic     text        COLLATE "C" NOT NULL DEFAULT '',
    tenant_id uuid        NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    listener  text        COLLATE "C" NOT NULL DEFAULT '',
    paused_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    until     timestamptz,
    who       text        NOT NULL,
    why       text        NOT NULL DEFAULT '',
    CONSTRAINT pauses_pkey PRIMARY KEY (namespace, topic, tenant_id, listener),
    CONSTRAINT pauses_scope_check CHECK (
        CASE WHEN listener <> '' THEN namespace = '' AND topic = '' AND tenant_id = '00000000-0000-0000-0000-000000000000'
             WHEN topic <> '' THEN namespace <> ''
             ELSE namespace <> '' OR tenant_id <> '00000000-0000-0000-0000-000000000000'
        END)
);

COMMENT ON TABLE outbox_schema.pauses IS 'What is paused: a namespace, a topic, a tenant (everywhere, or in a namespace or topic), or a listener. Change it with outboxgen pause and resume.';
COMMENT ON COLUMN outbox_schema.pauses.until IS 'When the pause ends by itself; null means never.';
COMMENT ON COLUMN outbox_schema.pauses.who IS 'Who paused it.';

-- What operators did. Nothing deletes its rows. A forget removes from scope and why what names a tenant or an entity.
CREATE TABLE outbox_schema.audit (
    no         bigint      NOT NULL GENERATED ALWAYS AS IDENTITY,
    at         timestamptz NOT NULL DEFAULT statement_timestamp(),
    who        text        NOT NULL,
    act        text        NOT NULL,
    why        text        NOT NULL DEFAULT '',
    scope      jsonb       NOT NULL,
    events     bigint      NOT NULL DEFAULT 0,
    busy_until timestamptz,
    CONSTRAINT audit_pkey PRIMARY KEY (no)
);

-- Acts that run, or that were broken off.
CREATE INDEX audit_busy ON outbox_schema.audit (no)
    WHERE busy_until IS NOT NULL;

COMMENT ON TABLE outbox_schema.audit IS 'What operators did: replay, discard, pause, resume, skip, rewind, detach, rebase, prune, limit, limit-reset, enqueue, forget, forget-process, reseal. Nothing deletes its rows.';
COMMENT ON COLUMN outbox_schema.audit.busy_until IS 'Of an act in several transactions that has not ended: until when the next one is expected. A forget whose time is over was broken off.';
COMMENT ON COLUMN outbox_schema.audit.scope IS 'What it was done to: the filter of a replay, the scope of a pause, the listener of a rewind.';
COMMENT ON COLUMN outbox_schema.audit.who IS 'Who did it, as they said; otherwise the user of the database.';
COMMENT ON COLUMN outbox_schema.audit.events IS 'How many events it changed.';
