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
