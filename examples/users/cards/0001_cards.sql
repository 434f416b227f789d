-- The tables of the projection. The tables of the inbox have their own migrations: see Migrate.
--
-- The file is sent as one query, so it is one transaction. The lock makes processes that start concurrently
-- wait for each other, because CREATE IF NOT EXISTS does not.
SELECT pg_advisory_xact_lock(hashtext('cards migrations'));

CREATE SCHEMA IF NOT EXISTS cards;

CREATE TABLE IF NOT EXISTS cards.cards (
    user_id    uuid    NOT NULL,
    tenant_id  uuid    NOT NULL,
    version    bigint  NOT NULL,           -- of the user, in the service that has the users
    changes    integer NOT NULL DEFAULT 1, -- how many events have changed the card
    name       text,
    email      text,
    joined_at  timestamptz,
    -- A deleted user leaves a tombstone, so that a late event does not create the card again.
    deleted_at timestamptz,
    CONSTRAINT cards_pkey PRIMARY KEY (tenant_id, user_id),
    CONSTRAINT cards_profile_check CHECK (num_nulls(name, email, joined_at) = CASE WHEN deleted_at IS NULL THEN 0 ELSE 3 END)
);

-- One row: how many times the projection was built from the start.
CREATE TABLE IF NOT EXISTS cards.generation (
    singleton boolean NOT NULL DEFAULT true,
    number    bigint  NOT NULL,
    CONSTRAINT generation_pkey PRIMARY KEY (singleton),
    CONSTRAINT generation_singleton_check CHECK (singleton)
);

INSERT INTO cards.generation (number) VALUES (1) ON CONFLICT DO NOTHING;

-- Messages that no retry can fix, in their original form, until the cause is fixed.
CREATE TABLE IF NOT EXISTS cards.quarantined (
    id              bigint      NOT NULL GENERATED ALWAYS AS IDENTITY,
    kafka_topic     text        NOT NULL,
    kafka_partition integer     NOT NULL,
    kafka_offset    bigint      NOT NULL,
    kafka_time      timestamptz NOT NULL, -- distinguishes a topic from a later topic of the same name
    kafka_key       bytea,
    header_names    bytea[]     NOT NULL,
    header_values   bytea[]     NOT NULL,
    value           bytea,
    reason          text        NOT NULL,
    quarantined_at  timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT quarantined_pkey PRIMARY KEY (id),
    CONSTRAINT quarantined_place_key UNIQUE (kafka_topic, kafka_partition, kafka_offset, kafka_time)
);
