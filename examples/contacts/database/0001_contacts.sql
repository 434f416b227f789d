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
    type        text        NOT NULL,
    value       text        NOT NULL,
    linked_at   timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT identities_pkey PRIMARY KEY (id),
    CONSTRAINT identities_type_check CHECK (type IN ('external_id', 'email', 'phone')),
    CONSTRAINT identities_contact_fkey FOREIGN KEY (tenant_id, contact_id) REFERENCES crm.contacts (tenant_id, id)
);

-- What must differ within a tenant and type: e-mails in any case, and phone numbers however they are written.
CREATE OR REPLACE FUNCTION crm.identity_key(type text, value text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN CASE type
    WHEN 'email' THEN lower(value)
    WHEN 'phone' THEN regexp_replace(value, '[^0-9]', '', 'g')
    ELSE value
END;

CREATE UNIQUE INDEX IF NOT EXISTS identities_key ON crm.identities (tenant_id, type, crm.identity_key(type, value));

-- The handler fills this table from the events, so that contacts can be looked up.
CREATE TABLE IF NOT EXISTS crm.directory (
    -- One entry an identity, however often its event is delivered.
    identity_id uuid NOT NULL,
    tenant_id   uuid NOT NULL,
    contact_id  uuid NOT NULL,
    type        text NOT NULL,
    value       text NOT NULL,
    CONSTRAINT directory_pkey PRIMARY KEY (identity_id)
);
