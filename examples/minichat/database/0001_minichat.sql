-- The tables of minichat. The tables of the outbox have their own migrations: see Migrate.

CREATE TABLE IF NOT EXISTS quotas (
    tenant_id       uuid   PRIMARY KEY,
    budget_tokens   bigint NOT NULL,
    reserved_tokens bigint NOT NULL DEFAULT 0,  -- by running turns
    used_tokens     bigint NOT NULL DEFAULT 0,  -- by finalised ones
    CONSTRAINT quotas_positive_check CHECK (reserved_tokens >= 0 AND used_tokens >= 0),
    CONSTRAINT quotas_budget_check CHECK (reserved_tokens + used_tokens <= budget_tokens)
);

CREATE TABLE IF NOT EXISTS turns (
    id              uuid        PRIMARY KEY,
    tenant_id       uuid        NOT NULL,
    chat_id         uuid        NOT NULL,
    request_id      uuid        NOT NULL,
    model           text        NOT NULL,
    state           text        NOT NULL,
    version         bigint      NOT NULL DEFAULT 1,
    reserved_tokens bigint      NOT NULL,
    input_tokens    bigint      NOT NULL DEFAULT 0,
    output_tokens   bigint      NOT NULL DEFAULT 0,
    started_at      timestamptz NOT NULL DEFAULT now(),
    finalized_at    timestamptz,
    CONSTRAINT turns_state_check CHECK (state IN ('running', 'refused', 'completed', 'failed', 'aborted')),
    CONSTRAINT turns_request_key UNIQUE (tenant_id, request_id)
);

-- One entry per request of a turn, so that its usage is counted once, even if its event is delivered twice, or if the
-- producer sends a second event after the dedupe window.
CREATE TABLE IF NOT EXISTS usage_ledger (
    tenant_id     uuid        NOT NULL,
    turn_id       uuid        NOT NULL,
    request_id    uuid        NOT NULL,
    event_id      uuid        NOT NULL,  -- the one that was entered
    outcome       text        NOT NULL,
    model         text        NOT NULL,
    input_tokens  bigint      NOT NULL,
    output_tokens bigint      NOT NULL,
    finalized_at  timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, turn_id, request_id)
);
CREATE INDEX IF NOT EXISTS usage_ledger_tenant ON usage_ledger (tenant_id, finalized_at);

-- The turns of each tenant in the order in which they started, by the listener activity.
CREATE TABLE IF NOT EXISTS activity (
    no        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id uuid   NOT NULL,
    turn_id   uuid   NOT NULL,
    event_id  uuid   NOT NULL  -- not unique: the listener's transaction has to write it once
);
