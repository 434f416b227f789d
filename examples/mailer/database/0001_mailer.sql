-- The tables of the mailer. The tables of the outbox have their own migrations: see Migrate.
--
-- The file is sent as one query, so it is one transaction. The lock makes processes that start concurrently
-- wait for each other, because CREATE IF NOT EXISTS does not.
SELECT pg_advisory_xact_lock(hashtext('mailer migrations'));

CREATE SCHEMA IF NOT EXISTS mailer;

CREATE TABLE IF NOT EXISTS mailer.mails (
    id         uuid        NOT NULL,
    tenant_id  uuid        NOT NULL,
    mailbox_id uuid        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    sent_at    timestamptz,
    CONSTRAINT mails_pkey PRIMARY KEY (id)
);

CREATE TABLE IF NOT EXISTS mailer.digests (
    digest_id  uuid        NOT NULL,
    reader_id  uuid        NOT NULL,
    tenant_id  uuid        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    sent_at    timestamptz,
    CONSTRAINT digests_pkey PRIMARY KEY (digest_id, reader_id)
);
