-- A shop and a chat on an ordinary day: a partner's server is down, an operator has paused a topic, and a CRM refuses a customer.

SELECT seed.delivered('orders', 'order_placed', 26000, '60 min');
SELECT seed.delivered('orders', 'payment_captured', 11000, '60 min');
SELECT seed.delivered('orders', 'invoice_requested', 5200, '60 min');
SELECT seed.delivered('billing', 'partner_webhook', 2100, '60 min');
SELECT seed.delivered('mini_chat', 'turn_finalized', 59000, '60 min');
SELECT seed.delivered('mini_chat', 'usage_reported', 3000, '30 min');
DELETE FROM outbox.delivered WHERE topic IN ('partner_webhook') AND finalized_at > now() - interval '22 min';
UPDATE outbox.delivered SET finalized_at = finalized_at - interval '14 min' WHERE topic = 'usage_reported';

-- waiting
SELECT seed.event('orders', 'order_placed', 'pending', n * interval '9 ms') FROM generate_series(1, 5) AS n;
SELECT seed.event('orders', 'order_placed', 'processing', n * interval '31 ms') FROM generate_series(1, 8) AS n;
SELECT seed.event('orders', 'payment_captured', 'pending', n * interval '21 ms') FROM generate_series(1, 2) AS n;
SELECT seed.event('orders', 'payment_captured', 'processing', n * interval '61 ms') FROM generate_series(1, 3) AS n;
SELECT seed.event('orders', 'payment_captured', 'pending', n * interval '4 min', jsonb_build_object('due', n * interval '40 s', 'attempts', 2 + n,
    'errors', ARRAY['POST https://api.cards.example/v2/captures: 503 Service Unavailable', 'POST https://api.cards.example/v2/captures: 503 Service Unavailable'])) FROM generate_series(1, 3) AS n;
SELECT seed.event('orders', 'invoice_requested', 'pending', n * interval '3 min', jsonb_build_object('due', n * interval '17 min')) FROM generate_series(1, 214) AS n;
SELECT seed.event('billing', 'partner_webhook', 'pending', n * interval '1100 ms') FROM generate_series(1, 1190) AS n;
SELECT seed.event('billing', 'partner_webhook', 'pending', interval '20 min' + n * interval '700 ms', jsonb_build_object('due', '3 min', 'attempts', 4,
    'errors', ARRAY['dial tcp 203.0.113.17:443: connect: connection refused'])) FROM generate_series(1, 36) AS n;
SELECT seed.event('mini_chat', 'turn_finalized', 'pending', n * interval '14 ms') FROM generate_series(1, 14) AS n;
SELECT seed.event('mini_chat', 'turn_finalized', 'processing', n * interval '33 ms') FROM generate_series(1, 20) AS n;
SELECT seed.event('mini_chat', 'usage_reported', 'pending', n * interval '2100 ms') FROM generate_series(1, 361) AS n;

-- limits: a mailing of one tenant, whose mailboxes send ten mails in a minute
SELECT seed.delivered('mails', 'mail_due', 900, '60 min');
SELECT seed.event('mails', 'mail_due', CASE WHEN n <= 7 THEN 'processing' ELSE 'pending' END, n * interval '740 ms', jsonb_build_object('tenant', '8c1f0a52-5d7e-4d0a-9b36-2f4f6d1f2a0' || CASE WHEN n <= 5 OR n > 12 THEN 1 ELSE 2 END,
    'partition', CASE WHEN n <= 5 THEN 'news-' || n WHEN n <= 12 THEN 'sales-' || n ELSE 'news-' || (1 + (n * n) % 3) END)) FROM generate_series(1, 240) AS n;
UPDATE outbox.queue AS q SET lane = q.lane | (1 << 30), turn = concat_ws('/', 'm', q.tenant_id, e.partition_key || '@shop.example')
FROM outbox.events AS e WHERE e.id = q.id AND q.topic = 'mail_due';
INSERT INTO outbox.limits (namespace, topic, per, counted_as, nth, tag, part, concurrency, rate, period, declared_at) VALUES
    ('mails', 'mail_due', 'tenant', 'mail_due', 1, 'm', 1, 5, NULL, NULL, now() - interval '3 h'),
    ('mails', 'mail_due', '{mailbox}', 'mail_due', 2, 'm', 2, 1, 10, '1 min', now() - interval '3 h');
UPDATE outbox.limits SET set_concurrency = 8, set_until = now() + interval '2 h', set_at = now() - interval '20 min', set_by = 'ada' WHERE per = 'tenant';
INSERT INTO outbox.limit_usage (namespace, topic, per, key, running)
SELECT 'mails', 'mail_due', 'tenant', q.tenant_id::text, array_agg(q.id) FROM outbox.queue AS q WHERE q.topic = 'mail_due' AND q.locked_until IS NOT NULL GROUP BY 4;
INSERT INTO outbox.limit_usage (namespace, topic, per, key, running, starts_at, starts)
SELECT 'mails', 'mail_due', '{mailbox}', split_part(q.turn, '/', 3), coalesce(array_agg(q.id) FILTER (WHERE q.locked_until IS NOT NULL), '{}'), ARRAY[now()],
    ARRAY[CASE WHEN split_part(q.turn, '/', 3) LIKE 'news-_@%' THEN 10 - 3 * (count(*) = 1)::integer ELSE 2 END]
FROM outbox.queue AS q WHERE q.topic = 'mail_due' GROUP BY 4;

-- dead
SELECT seed.event('orders', 'order_placed', 'dead', interval '7 h' + n * interval '11 min', jsonb_build_object('tenant', '8c1f0a52-5d7e-4d0a-9b36-2f4f6d1f2a0' || n, 'attempts', 25, 'ended', n * interval '26 min',
    'dedupe', '8c1f0a52-5d7e-4d0a-9b36-2f4f6d1f2a0' || n || '/checkout-90' || n || '41', 'partition', 'order/1004' || n || '7',
    'entity', jsonb_build_object('type', 'order', 'id', '1004' || n || '7', 'version', 3),
    'headers', jsonb_build_object('traceparent', '00-4bf92f3577b34da6a3ce929d0e0e47' || n || '6-00f067aa0ba902b7-01', 'request_id', 'req_01J9ZK7W5D' || n),
    'payload', jsonb_build_object('order_id', '1004' || n || '7', 'email', 'grace@example.com', 'ship_to', 'Grace Hopper, 1 Navy Way', 'total_cents', 12990 + n, 'currency', 'EUR',
        'lines', jsonb_build_array(jsonb_build_object('sku', 'MUG-ENAMEL-350', 'quantity', 2, 'price_cents', 1490), jsonb_build_object('sku', 'TEA-ASSAM-250', 'quantity', 1, 'price_cents', 890))),
    'errors', ARRAY['smtp: 451 4.7.1 greylisted, try again later', 'dial tcp 198.51.100.24:587: i/o timeout', 'dial tcp 198.51.100.24:587: i/o timeout', 'smtp: 451 4.7.1 greylisted, try again later',
        'send confirmation to customer ' || (88120 + n) || ': smtp: 550 5.1.1 mailbox unavailable']))
FROM generate_series(1, 3) AS n;
SELECT seed.event('orders', 'payment_captured', 'dead', interval '3 h' + n * interval '7 min', jsonb_build_object('tenant', gen_random_uuid(), 'attempts', 1, 'ended', interval '50 min' + n * interval '4 min',
    'errors', ARRAY['capture pi_3PdX' || n || 'q: card_declined (insufficient_funds)'])) FROM generate_series(1, 17) AS n;
SELECT seed.event('orders', 'invoice_requested', 'dead', interval '2 days' + n * interval '7 min', jsonb_build_object('attempts', 25, 'ended', interval '30 h' + n * interval '40 s',
    'errors', ARRAY['render invoice: template "invoice_de": line ' || n || ': unknown field "vat_id"'])) FROM generate_series(1, 42) AS n;
SELECT seed.event('mini_chat', 'turn_finalized', 'dead', interval '5 h' + n * interval '7 min', jsonb_build_object('tenant', gen_random_uuid(), 'attempts', 12, 'ended', interval '2 h' + n * interval '4 min',
    'errors', ARRAY['handler panicked: runtime error: index out of range [0] with length 0'])) FROM generate_series(1, 2) AS n;

-- the log, and who reads it
SELECT seed.logged('accounts', 'customer_changed', 3900, '60 min', '{"customer_id": "4711", "email": "ada@example.com", "plan": "team"}');
SELECT seed.logged('catalogue', 'article_imported', 8000, '3 days');
SELECT seed.logged('orders', 'order_changed', 32000, '60 min');
-- listeners
SELECT seed.listener('crm_sync', ARRAY[4861], '5 min');
SELECT seed.listener('fraud_detection', ARRAY[1, 3], '30 s');
SELECT seed.listener('search_index', ARRAY[2, 0, 4, 1]);
SELECT seed.listener('warehouse', ARRAY[2]);
UPDATE outbox.listeners AS l SET retry_count = 6, retry_after = now() + interval '14 min', last_error = 'PATCH https://crm.example/contacts/4711: 422 field "plan": "team" is not one of free, pro',
    last_seq = high_seq WHERE listener = 'crm_sync';
SELECT seed.failed_at('search_index', id, 'dead', partition_key, 25, 'index article: document exceeds 32766 bytes in field "description"')
FROM (SELECT * FROM outbox.log WHERE topic = 'article_imported' ORDER BY seq DESC LIMIT 4) AS l;
SELECT seed.failed_at('fraud_detection', id, 'parked', partition_key, CASE WHEN n = 1 THEN 3 ELSE 0 END, CASE WHEN n = 1 THEN 'score order: context deadline exceeded' ELSE '' END)
FROM (SELECT *, row_number() OVER (PARTITION BY partition_key ORDER BY seq) AS n FROM outbox.log WHERE topic = 'order_changed' AND partition_key IN ('user/4720', 'user/4733') ORDER BY seq DESC LIMIT 7) AS l;

SELECT seed.process('dispatcher', 'orders', host, pid, '{"orders/order_placed": 2, "orders/payment_captured": 1, "orders/invoice_requested": 1}', since)
FROM (VALUES ('orders-worker-6c8f7d-2xkqp', 1, interval '2 days 3 h'), ('orders-worker-6c8f7d-9wz4m', 1, interval '2 days 3 h')) AS v (host, pid, since);
SELECT seed.process('dispatcher', 'billing', 'billing-worker-5b9d4f-tl8vn', 1, '{"billing/partner_webhook": 1}', '19 h', '2 s', '{"billing/partner_webhook": "dial tcp 203.0.113.17:443: connect: connection refused"}');
SELECT seed.process('dispatcher', 'mails', 'mail-worker-77c9d8-hs2pf', 1, '{"mails/mail_due": 1}', '3 h');
SELECT seed.process('dispatcher', 'mini_chat', host, 1, '{"mini_chat/turn_finalized": 3, "mini_chat/usage_reported": 1}', since)
FROM (VALUES ('chat-worker-7f6b9c-c5hd2', interval '41 min'), ('chat-worker-7f6b9c-mk7rs', interval '40 min')) AS v (host, since);
SELECT seed.process('listener', name, 'orders-worker-6c8f7d-2xkqp', 1, '{"orders/order_changed": 1, "accounts/customer_changed": 2}', '2 days 3 h')
FROM unnest(ARRAY['fraud_detection', 'warehouse']) AS name;
SELECT seed.process('listener', 'crm_sync', 'crm-bridge-58c6bd-n4t9x', 1, '{"accounts/customer_changed": 2}', '6 days 2 h');
SELECT seed.process('listener', 'search_index', 'search-7d94c5-q2w8b', 1, '{"orders/order_changed": 1, "accounts/customer_changed": 2, "catalogue/article_imported": 1}', '11 h');

INSERT INTO outbox.pauses (namespace, topic, who, why, paused_at, until) VALUES
    ('mini_chat', 'usage_reported', 'grace', 'billing database is being upgraded, OPS-1482', now() - interval '13 min', now() + interval '47 min');
INSERT INTO outbox.audit (at, who, act, why, scope, events)
SELECT now() - age, who, act, why, scope::jsonb, events FROM (VALUES
    (interval '6 days', 'linus', 'detach', 'replaced by search_index', '{"listener": "search_old"}', 0),
    (interval '3 days 2 h', 'grace', 'rewind', 'index was rebuilt', '{"listener": "search_index", "to": "2026-11-19T00:00:00Z"}', 184220),
    (interval '2 days 1 h', 'ada', 'replay', 'mail server is back', '{"namespace": "orders", "topic": "order_placed", "error": "i/o timeout"}', 1309),
    (interval '26 h', 'ada', 'discard', 'test orders of the load test', '{"namespace": "orders", "topic": "order_placed", "group": "5d41402abc4b2a76"}', 512),
    (interval '25 h', 'grace', 'skip', 'customer was deleted', '{"listener": "crm_sync", "ids": ["0199aa02-7c1e-7d7b-8f3a-5b1f6f6f1c11"]}', 1),
    (interval '13 min', 'grace', 'pause', 'billing database is being upgraded, OPS-1482', '{"namespace": "mini_chat", "topic": "usage_reported"}', 0)) AS v (age, who, act, why, scope, events);
ANALYZE;
