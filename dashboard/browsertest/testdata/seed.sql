-- Functions that put events into any state. Times are ages: '5 min' is five minutes ago.

CREATE SCHEMA seed;

-- A UUID v7 of a time, as the producers make it.
CREATE FUNCTION seed.id(at timestamptz) RETURNS uuid LANGUAGE sql VOLATILE AS $$
    SELECT encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
        PLACING substr(int8send((extract(epoch FROM at) * 1000)::bigint), 3) FROM 1 FOR 6), 52, 1), 53, 1), 'hex')::uuid
$$;

-- The latest failures of an event, one per error, a minute apart, the last one "ago" ago.
CREATE FUNCTION seed.failures(errors text[], attempts integer, ago interval, worker uuid) RETURNS jsonb LANGUAGE sql VOLATILE AS $$
    SELECT jsonb_agg(jsonb_build_object('attempt', attempts - cardinality(errors) + n, 'at', now() - ago - (cardinality(errors) - n) * interval '73 s',
        'worker', worker, 'error', e) ORDER BY n)
    FROM unnest(errors) WITH ORDINALITY AS u (e, n)
$$;

-- One event of a queue topic. more may have due (an interval from now), tenant, dedupe, partition, entity, version, headers, payload,
-- attempts, max_attempts, errors, ended (an age) and worker.
CREATE FUNCTION seed.event(namespace text, topic text, status text, age interval, more jsonb DEFAULT '{}') RETURNS uuid LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    id       uuid := seed.id(now() - event.age);
    tenant   uuid := more->>'tenant';
    errors   text[] := ARRAY(SELECT jsonb_array_elements_text(more->'errors'));
    attempts integer := coalesce((more->>'attempts')::integer, CASE status WHEN 'pending' THEN 0 ELSE 1 END);
    most     integer := coalesce((more->>'max_attempts')::integer, 25);
    worker   uuid := coalesce((more->>'worker')::uuid, gen_random_uuid());
    ended    interval := coalesce((more->>'ended')::interval, age);
    failures jsonb := seed.failures(errors, attempts, ended, worker);
    version  integer := coalesce((more->>'version')::integer, 1);
BEGIN
    INSERT INTO outbox.events VALUES (id, event.namespace, event.topic, version, tenant, more->>'dedupe', more->>'partition', more->'entity'->>'type',
        more->'entity'->>'id', (more->'entity'->>'version')::bigint, more->'headers', coalesce(more->'payload', '{}'), now() - age);
    IF status IN ('pending', 'processing') THEN
        INSERT INTO outbox.queue (id, namespace, topic, version, tenant_id, lane, attempts, max_attempts, claim_no, next_attempt_at, locked_by, locked_until, failures)
        VALUES (id, event.namespace, event.topic, version, tenant, outbox.lane(event.topic), attempts, most, attempts,
            coalesce(now() + (more->>'due')::interval, now() - age),
            CASE WHEN status = 'processing' THEN worker END, CASE WHEN status = 'processing' THEN now() + coalesce((more->>'lease')::interval, '1 h') END, failures);
    ELSIF status = 'delivered' THEN
        INSERT INTO outbox.delivered VALUES (id, now() - ended, attempts, attempts, event.namespace, event.topic, worker, failures);
    ELSIF status = 'dead' THEN
        INSERT INTO outbox.dead_letters (id, namespace, topic, version, tenant_id, dedupe_key, partition_key, headers, payload, created_at, attempts, max_attempts,
            claim_no, lane, locked_by, failures, error, died_at)
        VALUES (id, event.namespace, event.topic, version, tenant, more->>'dedupe', more->>'partition', more->'headers', coalesce(more->'payload', '{}'), now() - age,
            attempts, most, attempts, outbox.lane(event.topic), worker, failures, errors[cardinality(errors)], now() - ended);
    END IF;
    RETURN id;
END
$$;

-- n events of a queue topic that were delivered within span.
CREATE FUNCTION seed.delivered(namespace text, topic text, n integer, span interval) RETURNS void LANGUAGE sql AS $$
    WITH e AS (
        INSERT INTO outbox.events (id, namespace, topic, payload, created_at)
        SELECT seed.id(at), namespace, topic, '{}', at FROM (SELECT now() - random() * span AS at FROM generate_series(1, n)) AS times
        RETURNING id, created_at
    )
    INSERT INTO outbox.delivered (id, finalized_at, attempts, namespace, topic) SELECT id, least(created_at + random() * interval '80 ms', now()), 1, namespace, topic FROM e
$$;

-- n events of a log topic that were appended within span.
CREATE FUNCTION seed.logged(namespace text, topic text, n integer, span interval, payload jsonb DEFAULT '{}') RETURNS void LANGUAGE sql AS $$
    INSERT INTO outbox.log (id, namespace, topic, partition_key, payload, bucket, created_at)
    SELECT seed.id(at), namespace, topic, 'user/' || (4711 + no % 97), payload, no % 4, at
    FROM (SELECT no, now() - span * (n - no) / n AS at FROM generate_series(1, n) AS no) AS times
$$;

-- A listener whose shards have behind[1], behind[2]... positions before them.
CREATE FUNCTION seed.listener(name text, behind integer[], lag interval DEFAULT NULL, attached interval DEFAULT '40 days') RETURNS void LANGUAGE sql AS $$
    INSERT INTO outbox.listeners (listener, shard, shards, lo, lo_bound, high_seq, max_lag, system_id, created_at, advanced_at)
    SELECT name, n - 1, cardinality(behind), pg_current_snapshot(), pg_snapshot_xmax(pg_current_snapshot()), (SELECT max(seq) FROM outbox.log) - b, lag,
        (SELECT system_identifier FROM pg_control_system()), now() - attached, now()
    FROM unnest(behind) WITH ORDINALITY AS u (b, n)
$$;

-- An event of the log that has failed at a listener, parked as the nth of its key, or dead.
CREATE FUNCTION seed.failed_at(name text, event_id uuid, status text, key text, attempts integer, error text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF status = 'parked' THEN
        INSERT INTO outbox.parked (listener, key, seq, id, namespace, topic, version, partition_key, headers, payload, bucket, created_at, attempts, retry_after, last_error)
        SELECT name, key, seq, l.id, l.namespace, l.topic, l.version, l.partition_key, headers, l.payload, bucket, l.created_at, failed_at.attempts,
            CASE WHEN failed_at.attempts > 0 THEN now() + interval '9 min' END, nullif(error, '')
        FROM outbox.log AS l WHERE l.id = event_id;
    ELSE
        INSERT INTO outbox.dead_letters (listener, seq, id, namespace, topic, version, partition_key, headers, payload, bucket, created_at, attempts, key, error, died_at)
        SELECT name, seq, l.id, l.namespace, l.topic, l.version, l.partition_key, headers, l.payload, bucket, l.created_at, failed_at.attempts, failed_at.key, error, now() - interval '21 min'
        FROM outbox.log AS l WHERE l.id = event_id;
    END IF;
    INSERT INTO outbox.listener_failures
    SELECT event_id, name, n, now() - interval '21 min' - (attempts - n) * interval '47 s', gen_random_uuid(), error
    FROM generate_series(greatest(attempts - 4, 1), attempts) AS n WHERE error <> '';
END
$$;

-- A process that runs topics, like {"orders/order_placed": 2}.
CREATE FUNCTION seed.process(kind text, name text, host text, pid integer, topics jsonb, since interval, seen interval DEFAULT '4 s', resting jsonb DEFAULT '{}') RETURNS void LANGUAGE sql AS $$
    INSERT INTO outbox.processes
    VALUES (gen_random_uuid(), kind, name, host, pid, (SELECT coalesce(jsonb_object_agg(t, jsonb_build_object('version', v, 'max_lag', 300)), '{}') FROM jsonb_each(topics) AS e (t, v)),
        NULL, resting, now() - since, now() - seen)
$$;

-- A message that a consumer group keeps as parked or dead. more may have due (an interval from now; null if it waits behind another one), tenant,
-- key, id, attempts, headers and body (text).
CREATE FUNCTION seed.kept(consumer text, status text, age interval, error text, more jsonb DEFAULT '{}') RETURNS bigint LANGUAGE sql AS $$
    INSERT INTO outbox.inbox_messages (consumer_group, message_id, place, key, event_id, type, namespace, topic, version, tenant_id, envelope, body, status, attempts,
        max_attempts, next_attempt_at, error, received_at, failed_at)
    VALUES (consumer, gen_random_uuid()::text, 'kafka:users/0@' || coalesce(more->>'key', '7'), more->>'key', (more->>'id')::uuid, 'users.renamed.v1', 'users', 'renamed', 1,
        (more->>'tenant')::uuid, json_build_object('content_type', 'application/json', 'attributes', '{"type": "users.renamed.v1"}'::json, 'headers', coalesce(more->'headers', '{}')),
        convert_to(coalesce(more->>'body', '{"name": "Ann"}'), 'UTF8'), status, coalesce((more->>'attempts')::integer, 4), 25,
        coalesce(now() + (more->>'due')::interval, 'infinity'), error, now() - age, now() - age / 2)
    RETURNING no
$$;
