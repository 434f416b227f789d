-- name: DeadLetterPrune :execrows
-- Deletes one chunk of dead letters of listeners past the retention of their topic.
WITH retention AS MATERIALIZED (
    SELECT
        unnest(@topics::text[]) AS topic,
        unnest(@retentions_us::bigint[]) * interval '1 microsecond' AS keep
),
old AS MATERIALIZED (
    SELECT d.no
    FROM outbox_schema.dead_letters AS d
    JOIN retention AS r ON r.topic = d.namespace || '/' || d.topic
    WHERE d.listener IS NOT NULL
      AND d.died_at < statement_timestamp() - r.keep
    LIMIT @batch_size::integer
    FOR UPDATE OF d SKIP LOCKED
)
DELETE FROM outbox_schema.dead_letters AS d
USING old AS o
WHERE d.no = o.no;

-- name: DeadLetterScan :many
-- Reads a piece of the dead letters and returns those that match. The piece begins after the row after_no, in the order of no
-- or, with newest, in the opposite one. With ids it is instead all dead letters of these events. texts says whether the
-- errors are returned. The row that does not match comes last: it tells how many rows the piece had and where it ended.
WITH piece AS MATERIALIZED (
    (
        SELECT d.no, d.listener, d.seq, d.namespace, d.topic, d.tenant_id, d.dedupe_key, d.partition_key, d.created_at, d.died_at, d.error
        FROM outbox_schema.dead_letters AS d
        WHERE cardinality(@ids::uuid[]) = 0
          AND NOT @newest::boolean
          AND d.no > @after_no::bigint
        ORDER BY d.no
        LIMIT @piece::integer
    )
    UNION ALL
    (
        SELECT d.no, d.listener, d.seq, d.namespace, d.topic, d.tenant_id, d.dedupe_key, d.partition_key, d.created_at, d.died_at, d.error
        FROM outbox_schema.dead_letters AS d
        WHERE cardinality(@ids::uuid[]) = 0
          AND @newest::boolean
          AND d.no < @after_no::bigint
        ORDER BY d.no DESC
        LIMIT @piece::integer
    )
    UNION ALL
    (
        SELECT d.no, d.listener, d.seq, d.namespace, d.topic, d.tenant_id, d.dedupe_key, d.partition_key, d.created_at, d.died_at, d.error
        FROM (SELECT unnest(@ids::uuid[]) AS id) AS w
        JOIN outbox_schema.dead_letters AS d ON d.id = w.id
        WHERE d.listener IS NULL
    )
    UNION ALL
    (
        SELECT d.no, d.listener, d.seq, d.namespace, d.topic, d.tenant_id, d.dedupe_key, d.partition_key, d.created_at, d.died_at, d.error
        FROM (SELECT unnest(@ids::uuid[]) AS id) AS w
        JOIN outbox_schema.dead_letters AS d ON d.id = w.id
        WHERE d.listener IS NOT NULL
    )
)
SELECT
    true AS matches,
    p.no::bigint AS no,
    coalesce(p.listener, '')::text AS listener,
    coalesce(p.seq, 0)::bigint AS seq,
    p.namespace::text AS namespace,
    p.topic::text AS topic,
    p.tenant_id::uuid AS tenant_id,
    p.died_at::timestamptz AS died_at,
    CASE WHEN @texts::boolean THEN p.error ELSE '' END::text AS error,
    0::bigint AS scanned
FROM piece AS p
WHERE (@namespace::text = '' OR p.namespace = @namespace::text)
  AND (@topic::text = '' OR p.topic = @topic::text)
  AND (@listener::text = '' OR p.listener = @listener::text)
  AND (sqlc.narg('tenant_id')::uuid IS NULL OR p.tenant_id = sqlc.narg('tenant_id')::uuid)
  AND (@key::text = '' OR p.dedupe_key = @key::text OR p.partition_key = @key::text)
  AND (sqlc.narg('since')::timestamptz IS NULL OR p.created_at >= sqlc.narg('since')::timestamptz)
  AND (sqlc.narg('until')::timestamptz IS NULL OR p.created_at < sqlc.narg('until')::timestamptz)
  AND (@error::text = '' OR strpos(p.error, @error::text) > 0)
UNION ALL
SELECT
    false,
    CASE WHEN @newest::boolean THEN coalesce(min(p.no), 0) ELSE coalesce(max(p.no), 0) END,
    '', 0, '', '', NULL, statement_timestamp(), '', count(*)
FROM piece AS p;

-- name: DeadLetterRead :many
-- Reads dead letters by no, newest first.
SELECT d.no,
    coalesce(d.listener, '') AS listener,
    coalesce(d.seq, 0) AS seq,
    d.id, d.namespace, d.topic, d.version, d.tenant_id,
    coalesce(d.dedupe_key, '') AS dedupe_key,
    coalesce(d.partition_key, '') AS partition_key,
    coalesce(d.entity_type, '') AS entity_type,
    coalesce(d.entity_id, '') AS entity_id,
    coalesce(d.entity_version, 0) AS entity_version,
    d.headers, d.payload, d.created_at, d.attempts,
    coalesce(d.max_attempts, 0) AS max_attempts,
    coalesce(d.claim_no, 0) AS claim_no,
    d.locked_by, d.failures, d.error, d.died_at
FROM (SELECT unnest(@nos::bigint[]) AS no) AS w
JOIN outbox_schema.dead_letters AS d ON d.no = w.no
ORDER BY d.no DESC;

-- name: DeadLetterReplay :one
-- Puts dead letters of queue topics back into the queue. The lock and the DELETE make one of several replays do it, and an
-- event that pruning has taken is not put back. It is FOR UPDATE without SKIP LOCKED: a replay that finds a row locked by
-- another waits, and does it if the other one is rolled back. Rows are locked in the order of no. If the row of events was
-- deleted by hand, it is made again from the copy, unless a newer event has its dedupe key (key_taken), or the copy has no
-- payload because the event was gone already when it died (payload_gone). claim_no continues above the latest claim, so that
-- its holder can settle nothing. coalesce keeps the planner off the partial indexes: without statistics it may walk one of
-- them for each row instead of looking up no.
WITH want AS MATERIALIZED (
    SELECT w.no
    FROM (SELECT unnest(@nos::bigint[]) AS no) AS w
    ORDER BY w.no
),
letters AS MATERIALIZED (
    SELECT d.no, d.id, d.namespace, d.topic, d.version, d.tenant_id, d.dedupe_key, d.partition_key, d.entity_type, d.entity_id,
        d.entity_version, d.headers, d.payload, d.created_at, e.id IS NULL AS gone
    FROM want AS w
    JOIN outbox_schema.dead_letters AS d ON d.no = w.no
    LEFT JOIN outbox_schema.events AS e ON e.id = d.id
    WHERE coalesce(d.listener, '') = ''
    FOR UPDATE OF d
),
restored AS (
    INSERT INTO outbox_schema.events (
        id, namespace, topic, version, tenant_id, dedupe_key, partition_key, entity_type, entity_id, entity_version,
        headers, payload, created_at)
    SELECT l.id, l.namespace, l.topic, l.version, l.tenant_id, l.dedupe_key, l.partition_key, l.entity_type, l.entity_id,
        l.entity_version, l.headers, l.payload, l.created_at
    FROM letters AS l
    WHERE l.gone
      AND l.payload <> 'null'
    ORDER BY l.dedupe_key COLLATE "C"
    ON CONFLICT DO NOTHING
    RETURNING id
),
back AS (
    DELETE FROM outbox_schema.dead_letters AS d
    USING letters AS l
    WHERE d.no = l.no
      AND (NOT l.gone OR l.id IN (SELECT r.id FROM restored AS r))
    RETURNING d.id, d.namespace, d.topic, d.version, d.tenant_id, d.lane, d.turn, d.max_attempts, d.claim_no, d.failures
),
queued AS (
    INSERT INTO outbox_schema.queue (id, namespace, topic, version, tenant_id, lane, turn, max_attempts, claim_no, failures)
    SELECT b.id, b.namespace, b.topic, b.version, b.tenant_id, coalesce(b.lane, outbox_schema.lane(b.topic)), b.turn,
        coalesce(b.max_attempts, 25), coalesce(b.claim_no, 0) + 1, b.failures
    FROM back AS b
    ON CONFLICT (id) DO NOTHING
)
SELECT
    (SELECT count(*) FROM back) AS replayed,
    (SELECT count(*) FROM letters AS l WHERE l.gone AND l.payload = 'null') AS payload_gone,
    (SELECT count(*) FROM letters AS l WHERE l.gone AND l.payload <> 'null') - (SELECT count(*) FROM restored) AS key_taken;

-- name: DeadLetterFollowed :one
-- Reports whether events of the keys of these dead letters are parked that come after them.
SELECT EXISTS (
    SELECT
    FROM (SELECT unnest(@nos::bigint[]) AS no) AS w
    JOIN outbox_schema.dead_letters AS d ON d.no = w.no
    WHERE coalesce(d.listener, '') = @listener::text -- as in DeadLetterReplay
      AND (
        SELECT o.no
        FROM outbox_schema.parked AS o
        WHERE o.listener = @listener::text
          AND o.key >= coalesce(d.key, d.partition_key, d.id::text)
          AND o.key <= coalesce(d.key, d.partition_key, d.id::text)
          AND o.seq > d.seq
        ORDER BY o.listener, o.key, o.no
        LIMIT 1
      ) IS NOT NULL
)::boolean AS followed;

-- name: DeadLetterPark :one
-- Hands dead letters to their listener again: as parked events of their key, in the order of the log. Those of the key that
-- are parked and come later get new numbers behind them. The caller has locked the cursors. It has also taken over the shards
-- if there are such followers, because a lease settles them by number. ParkedPromote then makes the first of each key due.
-- The window of behind has the order of parked_key, as in ParkedTake: otherwise the planner may walk the primary key.
WITH want AS MATERIALIZED (
    SELECT w.no
    FROM (SELECT unnest(@nos::bigint[]) AS no) AS w
    ORDER BY w.no
),
gone AS (
    DELETE FROM outbox_schema.dead_letters AS d
    USING want AS w
    WHERE d.no = w.no
      AND coalesce(d.listener, '') = @listener::text -- as in DeadLetterReplay
    RETURNING d.seq, d.id, d.namespace, d.topic, d.version, d.tenant_id, d.dedupe_key, d.partition_key, d.entity_type,
        d.entity_id, d.entity_version, d.headers, d.payload, d.bucket, d.created_at, d.error,
        coalesce(d.key, d.partition_key, d.id::text) AS key
),
keys AS MATERIALIZED (
    SELECT g.key, min(g.seq) AS seq
    FROM gone AS g
    GROUP BY g.key
),
behind AS MATERIALIZED (
    SELECT o.no
    FROM keys AS k
    CROSS JOIN LATERAL (
        SELECT p.no, bool_or(p.seq > k.seq) OVER (ORDER BY p.listener, p.key, p.no) AS comes_later
        FROM outbox_schema.parked AS p
        WHERE p.listener = @listener::text
          AND p.key >= k.key
          AND p.key <= k.key
    ) AS o
    WHERE o.comes_later
),
lifted AS (
    DELETE FROM outbox_schema.parked AS p
    USING behind AS b
    WHERE p.no = b.no
    RETURNING p.seq, p.id, p.namespace, p.topic, p.version, p.tenant_id, p.dedupe_key, p.partition_key, p.entity_type,
        p.entity_id, p.entity_version, p.headers, p.payload, p.bucket, p.created_at, p.last_error AS error, p.key, p.attempts
),
placed AS (
    INSERT INTO outbox_schema.parked (
        listener, key, seq, id, namespace, topic, version, tenant_id, dedupe_key, partition_key, entity_type,
        entity_id, entity_version, headers, payload, bucket, created_at, attempts, last_error)
    SELECT @listener::text, n.key, n.seq, n.id, n.namespace, n.topic, n.version, n.tenant_id, n.dedupe_key, n.partition_key,
        n.entity_type, n.entity_id, n.entity_version, n.headers, n.payload, n.bucket, n.created_at, n.attempts, n.error
    FROM (
        SELECT g.seq, g.id, g.namespace, g.topic, g.version, g.tenant_id, g.dedupe_key, g.partition_key, g.entity_type,
            g.entity_id, g.entity_version, g.headers, g.payload, g.bucket, g.created_at, g.error, g.key, 0 AS attempts
        FROM gone AS g
        UNION ALL
        SELECT l.seq, l.id, l.namespace, l.topic, l.version, l.tenant_id, l.dedupe_key, l.partition_key, l.entity_type,
            l.entity_id, l.entity_version, l.headers, l.payload, l.bucket, l.created_at, l.error, l.key, l.attempts
        FROM lifted AS l
    ) AS n
    ORDER BY n.seq
    ON CONFLICT (seq, listener) DO NOTHING
)
SELECT
    (SELECT count(*) FROM gone) AS replayed,
    coalesce((SELECT array_agg(k.key) FROM keys AS k), '{}')::text[] AS keys;

-- name: DeadLetterDiscard :one
-- Deletes dead letters. The event of a queue topic goes too: without its dead letter it would have no state. It stays if it
-- is queued, which only a change by hand can cause.
WITH want AS MATERIALIZED (
    SELECT w.no
    FROM (SELECT unnest(@nos::bigint[]) AS no) AS w
    ORDER BY w.no
),
letters AS MATERIALIZED (
    SELECT d.no
    FROM want AS w
    JOIN outbox_schema.dead_letters AS d ON d.no = w.no
    FOR UPDATE OF d
),
gone AS (
    DELETE FROM outbox_schema.dead_letters AS d
    USING letters AS l
    WHERE d.no = l.no
    RETURNING d.id, d.listener
),
deleted AS (
    DELETE FROM outbox_schema.events AS e
    USING gone AS g
    WHERE e.id = g.id
      AND g.listener IS NULL
      AND NOT EXISTS (SELECT FROM outbox_schema.queue AS q WHERE q.id = e.id)
),
forgotten AS (
    DELETE FROM outbox_schema.listener_failures AS f
    USING gone AS g
    WHERE f.id = g.id
      AND f.listener = g.listener
)
SELECT count(*) FROM gone;

-- name: DeadLetterEdit :execrows
-- Replaces the payload of a dead letter, which is not in the queue yet. The event is deleted and not changed, because
-- what an event says is never updated: DeadLetterReplay makes it again from the dead letter, under the same id, in the same transaction.
WITH edited AS (
    UPDATE outbox_schema.dead_letters AS d
    SET payload = @payload
    WHERE d.no = @no
    RETURNING d.id, d.listener
),
deleted AS (
    DELETE FROM outbox_schema.events AS e
    USING edited AS d
    WHERE e.id = d.id
      AND d.listener IS NULL
)
SELECT d.id FROM edited AS d;
