-- The tables of the projection. Those of the inbox have migrations of their own, see Migrate.
--
-- The file is sent as one, and so is one transaction. The lock makes processes that start at once wait,
-- which CREATE IF NOT EXISTS does not.
SELECT pg_advisory_xact_lock(hashtext('cards migrations'));

CREATE SCHEMA IF NOT EXISTS cards;

CREATE TABLE IF NOT EXISTS cards.cards (
    user_id    uuid    NOT NULL,
    tenant_id  uuid    NOT NULL,
    version    bigint  NOT NULL,           -- of the user, in the service that has the users
    changes    integer NOT NULL DEFAULT 1, -- events that have made the card what it is
    name       text,
    email      text,
    joined_at  timestamptz,
    -- A user who is deleted leaves a tombstone: an event that is late brings nobody back.
    deleted_at timestamptz,
    CONSTRAINT cards_pkey PRIMARY KEY (tenant_id, user_id),
    CONSTRAINT cards_profile_check CHECK (num_nulls(name, email, joined_at) = CASE WHEN deleted_at IS NULL THEN 0 ELSE 3 END)
);

-- One row: how many times the projection has been started from nothing.
CREATE TABLE IF NOT EXISTS cards.generation (
    singleton boolean NOT NULL DEFAULT true,
    number    bigint  NOT NULL,
    CONSTRAINT generation_pkey PRIMARY KEY (singleton),
    CONSTRAINT generation_singleton_check CHECK (singleton)
);

INSERT INTO cards.generation (number) VALUES (1) ON CONFLICT DO NOTHING;

-- Messages that no retry can mend, as they came, until somebody has mended what is wrong.
CREATE TABLE IF NOT EXISTS cards.set_aside (
    id              bigint      NOT NULL GENERATED ALWAYS AS IDENTITY,
    kafka_topic     text        NOT NULL,
    kafka_partition integer     NOT NULL,
    kafka_offset    bigint      NOT NULL,
    kafka_time      timestamptz NOT NULL, -- tells two topics apart of which one has followed the other
    kafka_key       bytea,
    header_names    bytea[]     NOT NULL,
    header_values   bytea[]     NOT NULL,
    value           bytea,
    reason          text        NOT NULL,
    set_aside_at    timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT set_aside_pkey PRIMARY KEY (id),
    CONSTRAINT set_aside_place_key UNIQUE (kafka_topic, kafka_partition, kafka_offset, kafka_time)
);
