-- The tables of the contacts. The tables of the outbox have their own migrations: see Migrate.
--
-- The file is sent as one query, so it is one transaction. The lock makes processes that start concurrently
-- wait for each other, because CREATE IF NOT EXISTS does not.
SELECT pg_advisory_xact_lock(hashtext('crm migrations'));

CREATE SCHEMA IF NOT EXISTS crm;

CREATE TABLE IF NOT EXISTS crm.contacts (
    tenant_id uuid   NOT NULL,
    id        uuid   NOT NULL,
    name      text   NOT NULL,
    version   bigint NOT NULL DEFAULT 0,  -- counts the links
    CONSTRAINT contacts_pkey PRIMARY KEY (tenant_id, id)
);

CREATE TABLE IF NOT EXISTS crm.identities (
    id          uuid        NOT NULL,
    tenant_id   uuid        NOT NULL,
    contact_id  uuid        NOT NULL,
    external_id text        NOT NULL,
    email       text,
    linked_at   timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT identities_pkey PRIMARY KEY (id),
    CONSTRAINT identities_contact_fkey FOREIGN KEY (tenant_id, contact_id) REFERENCES crm.contacts (tenant_id, id)
);
CREATE UNIQUE INDEX IF NOT EXISTS identities_external_id_key ON crm.identities (tenant_id, external_id);
CREATE UNIQUE INDEX IF NOT EXISTS identities_email_key ON crm.identities (tenant_id, lower(email));

-- The handler fills this table from the events, so that contacts can be looked up.
CREATE TABLE IF NOT EXISTS crm.directory (
    -- One entry an identity, however often its event is delivered.
    identity_id uuid NOT NULL,
    tenant_id   uuid NOT NULL,
    contact_id  uuid NOT NULL,
    external_id text NOT NULL,
    email       text,
    CONSTRAINT directory_pkey PRIMARY KEY (identity_id)
);
