-- The table of the service. The tables of the outbox have their own migrations: see Migrate.
--
-- The file is sent as one query, so it is one transaction. The lock makes processes that start concurrently
-- wait for each other, because CREATE IF NOT EXISTS does not.
SELECT pg_advisory_xact_lock(hashtext('users migrations'));

CREATE SCHEMA IF NOT EXISTS users;

CREATE TABLE IF NOT EXISTS users.users (
    id         uuid        NOT NULL,
    tenant_id  uuid        NOT NULL,
    -- Counts the changes. It goes out with each event, so that consumers know what is late.
    version    bigint      NOT NULL DEFAULT 1,
    name       text        NOT NULL,
    email      text        NOT NULL,
    joined_at  timestamptz NOT NULL DEFAULT now(),
    -- A user who is deleted leaves the row, without name and address: a version must never start again.
    deleted_at timestamptz,
    CONSTRAINT users_pkey PRIMARY KEY (id),
    CONSTRAINT users_version_check CHECK (version >= 1)
);
