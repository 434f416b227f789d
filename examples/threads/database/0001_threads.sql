-- The tables of the chat. The tables of the outbox have their own migrations: see Migrate.
--
-- The file is sent as one query, so it is one transaction. The lock makes processes that start concurrently
-- wait for each other, because CREATE IF NOT EXISTS does not.
SELECT pg_advisory_xact_lock(hashtext('chat migrations'));

CREATE SCHEMA IF NOT EXISTS chat;

CREATE TABLE IF NOT EXISTS chat.threads (
    id          uuid        NOT NULL,
    tenant_id   uuid        NOT NULL,
    -- Number of the latest message. A post locks the row, so that numbers and commits are in the same order.
    last_number bigint      NOT NULL DEFAULT 0,
    created_at  timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT threads_pkey PRIMARY KEY (id)
);

CREATE TABLE IF NOT EXISTS chat.messages (
    thread_id uuid        NOT NULL,
    number    bigint      NOT NULL,
    id        uuid        NOT NULL,
    role      text        NOT NULL,
    author    text        NOT NULL,
    text      text        NOT NULL,
    posted_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT messages_pkey PRIMARY KEY (thread_id, number),
    -- One message per id, however often it is posted.
    CONSTRAINT messages_id_key UNIQUE (thread_id, id),
    CONSTRAINT messages_thread_fkey FOREIGN KEY (thread_id) REFERENCES chat.threads (id)
);
