-- The tables of the shop. The tables of the outbox have their own migrations: see Migrate.
--
-- The file is sent as one query, so it is one transaction. The lock makes processes that start concurrently
-- wait for each other, because CREATE IF NOT EXISTS does not.
SELECT pg_advisory_xact_lock(hashtext('shop migrations'));

CREATE SCHEMA IF NOT EXISTS shop;

CREATE TABLE IF NOT EXISTS shop.orders (
    id          uuid        NOT NULL,
    shop_id     uuid        NOT NULL,
    client_key  text        NOT NULL,
    lines       jsonb       NOT NULL,
    total_cents bigint      NOT NULL,
    ship_to     text        NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT orders_pkey PRIMARY KEY (id),
    -- One order a key, however often the client asks.
    CONSTRAINT orders_client_key UNIQUE (shop_id, client_key)
);

CREATE TABLE IF NOT EXISTS shop.shipments (
    -- One shipment an order, however often its event is delivered.
    order_id  uuid        NOT NULL,
    shop_id   uuid        NOT NULL,
    ship_to   text        NOT NULL,
    pieces    integer     NOT NULL,
    booked_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT shipments_pkey PRIMARY KEY (order_id)
);
