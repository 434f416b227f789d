CREATE SCHEMA IF NOT EXISTS ledger;
CREATE TABLE IF NOT EXISTS ledger.orders (
    order_id    uuid PRIMARY KEY,
    customer    text,
    total_cents bigint,
    placed_at   timestamptz,
    tracking    text,
    shipped_at  timestamptz
);
