-- name: InboxMessageKnown :many
-- Tells which of these messages the group keeps already, and which keys have a parked message. A message that has a row must
-- not be applied, and one whose key has a parked message must wait behind it. Run it in the transaction of the effects, before
-- them. Each lookup is an index scan of one row: the limits keep the planner off a join.
SELECT w.message_id::text AS message_id, ''::text AS key, k.status::text AS status
FROM (SELECT pg_catalog.unnest(@message_ids::text[]) AS message_id) AS w
CROSS JOIN LATERAL (
    SELECT m.status
    FROM outbox_schema.inbox_messages AS m
    WHERE m.consumer_group = @consumer_group::text
      AND m.message_id = w.message_id
    LIMIT 1
) AS k
UNION ALL
SELECT '', w.key::text, 'parked'
FROM (SELECT pg_catalog.unnest(@keys::text[]) AS key) AS w
CROSS JOIN LATERAL (
    SELECT m.no
    FROM outbox_schema.inbox_messages AS m
    WHERE m.consumer_group = @consumer_group::text
      AND m.status = 'parked'
      AND m.key = w.key
    ORDER BY m.consumer_group, m.key, m.no
    LIMIT 1
) AS k;

-- name: InboxMessagePut :exec
-- Keeps messages, in the order of the arrays. A message that is kept already stays as it is: another process, which has lost
-- its partition, had it first.
INSERT INTO outbox_schema.inbox_messages (
    consumer_group, message_id, place, key, event_id, type, namespace, topic, version, tenant_id, envelope, body,
    status, attempts, max_attempts, next_attempt_at, error)
SELECT @consumer_group::text, w.message_id, w.place, nullif(w.key, ''), w.event_id, w.type, w.namespace, w.topic, w.version, w.tenant_id,
    w.envelope::json, w.body, w.status, w.attempts, @max_attempts::integer,
    CASE WHEN w.delay_us < 0 THEN 'infinity' ELSE statement_timestamp() + w.delay_us::double precision * interval '1 microsecond' END,
    w.error
FROM (
    SELECT
        pg_catalog.unnest(@numbers::integer[]) AS n,
        pg_catalog.unnest(@message_ids::text[]) AS message_id,
        pg_catalog.unnest(@places::text[]) AS place,
        pg_catalog.unnest(@keys::text[]) AS key,
        pg_catalog.unnest(@event_ids::uuid[]) AS event_id,
        pg_catalog.unnest(@types::text[]) AS type,
        pg_catalog.unnest(@namespaces::text[]) AS namespace,
        pg_catalog.unnest(@topics::text[]) AS topic,
        pg_catalog.unnest(@versions::integer[]) AS version,
        pg_catalog.unnest(@tenant_ids::uuid[]) AS tenant_id,
        pg_catalog.unnest(@envelopes::text[]) AS envelope,
        pg_catalog.unnest(@bodies::bytea[]) AS body,
        pg_catalog.unnest(@statuses::text[]) AS status,
        pg_catalog.unnest(@attempts::integer[]) AS attempts,
        pg_catalog.unnest(@delays_us::bigint[]) AS delay_us,
        pg_catalog.unnest(@errors::text[]) AS error
) AS w
ORDER BY w.n
ON CONFLICT (consumer_group, message_id) DO NOTHING;

-- name: InboxMessagePromote :exec
-- Makes the first parked message of each key due if it waits behind none any more. It runs after the transaction that has
-- removed the one before it, and after the one that has put it behind: each may not see the other.
UPDATE outbox_schema.inbox_messages AS m
SET next_attempt_at = statement_timestamp()
FROM (
    SELECT o.no
    FROM (SELECT pg_catalog.unnest(@keys::text[]) AS key) AS w
    CROSS JOIN LATERAL (
        SELECT p.no, p.next_attempt_at
        FROM outbox_schema.inbox_messages AS p
        WHERE p.consumer_group = @consumer_group::text
          AND p.status = 'parked'
          AND p.key = w.key
        ORDER BY p.consumer_group, p.key, p.no
        LIMIT 1
    ) AS o
    WHERE o.next_attempt_at = 'infinity'
) AS first
WHERE m.no = first.no
  AND m.status = 'parked';

-- name: InboxMessageKeys :many
-- Reads the keys with parked messages after a key, in order: it jumps from one key to the next in the index.
WITH RECURSIVE walk AS (
    (
        SELECT m.key
        FROM outbox_schema.inbox_messages AS m
        WHERE m.consumer_group = @consumer_group::text
          AND m.status = 'parked'
          AND m.key > @after::text
        ORDER BY m.consumer_group, m.key
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT m.key
        FROM outbox_schema.inbox_messages AS m
        WHERE m.consumer_group = @consumer_group::text
          AND m.status = 'parked'
          AND m.key > w.key
        ORDER BY m.consumer_group, m.key
        LIMIT 1
    )
    FROM walk AS w
    WHERE w.key IS NOT NULL
)
SELECT w.key::text AS key
FROM walk AS w
WHERE w.key IS NOT NULL
LIMIT @batch_size::integer;

-- name: InboxMessageDue :many
-- Reads parked messages that are due, the longest first.
SELECT m.no, coalesce(m.key, '')::text AS key
FROM outbox_schema.inbox_messages AS m
WHERE m.consumer_group = @consumer_group::text
  AND m.status = 'parked'
  AND m.next_attempt_at <= statement_timestamp()
ORDER BY m.next_attempt_at
LIMIT @batch_size::integer;

-- name: InboxMessageTake :many
-- Locks a due message and reads it with the next ones of its key, in order. No row means that another process has it, or that
-- it is settled. Only who has the lock of the first may apply the others, so these are not locked. A message that is
-- not the first parked one of its key is not taken: concurrent replays make several due, because none sees the others.
WITH head AS MATERIALIZED (
    SELECT m.no, m.key
    FROM outbox_schema.inbox_messages AS m
    WHERE m.no = @no
      AND m.status = 'parked'
      AND m.next_attempt_at <= statement_timestamp()
      AND m.no = coalesce((
          SELECT p.no
          FROM outbox_schema.inbox_messages AS p
          WHERE p.consumer_group = @consumer_group::text
            AND p.status = 'parked'
            AND p.key = m.key
          ORDER BY p.consumer_group, p.key, p.no
          LIMIT 1
      ), m.no)
    FOR NO KEY UPDATE SKIP LOCKED
)
SELECT m.no, m.message_id, m.place, coalesce(m.key, '')::text AS key, m.envelope::text AS envelope, m.body, m.attempts
FROM (
    SELECT h.no
    FROM head AS h
    UNION ALL
    (
        SELECT f.no
        FROM head AS h
        CROSS JOIN LATERAL (
            SELECT p.no
            FROM outbox_schema.inbox_messages AS p
            WHERE p.consumer_group = @consumer_group::text
              AND p.status = 'parked'
              AND p.key = h.key
              AND p.no > h.no
            ORDER BY p.consumer_group, p.key, p.no
            LIMIT @followers::integer
        ) AS f
    )
) AS w
JOIN outbox_schema.inbox_messages AS m ON m.no = w.no
ORDER BY m.no;

-- name: InboxMessageDelete :exec
-- Deletes messages that were applied, by their primary key. They are parked, because InboxMessageTake has locked the first of
-- them. A condition for that would let the planner read all parked messages by a partial index.
DELETE FROM outbox_schema.inbox_messages AS m
USING (SELECT pg_catalog.unnest(@nos::bigint[]) AS no) AS w
WHERE m.no = w.no;

-- name: InboxMessageFail :execrows
-- Records a failed attempt of a parked message, which is then tried later or given up. attempts is the number before, so that
-- an attempt of another process is not counted as this one's.
UPDATE outbox_schema.inbox_messages AS m
SET status = CASE WHEN @dead::boolean THEN 'dead' ELSE 'parked' END,
    attempts = m.attempts + 1,
    max_attempts = @max_attempts::integer,
    next_attempt_at = statement_timestamp() + @delay::interval,
    error = @error,
    failed_at = statement_timestamp()
WHERE m.no = @no
  AND m.status = 'parked'
  AND m.attempts = @attempts::integer;

-- name: InboxMessageCount :one
-- Counts what a group keeps, each up to a limit, and how long the parked message with the lowest number has waited. That is
-- the oldest one, because a replayed message keeps its number. Only the index of the group has the order of no + 0.
SELECT
    (SELECT count(*) FROM (
        SELECT FROM outbox_schema.inbox_messages AS m
        WHERE m.consumer_group = @consumer_group::text AND m.status = 'parked'
        ORDER BY m.no + 0
        LIMIT @most::bigint) AS p)::bigint AS parked,
    (SELECT count(*) FROM (
        SELECT FROM outbox_schema.inbox_messages AS m
        WHERE m.consumer_group = @consumer_group::text AND m.status = 'dead'
        ORDER BY m.no + 0
        LIMIT @most::bigint) AS d)::bigint AS dead,
    (SELECT coalesce(extract(epoch FROM statement_timestamp() - min(o.received_at)) * 1000000::numeric, 0::numeric) FROM (
        SELECT m.received_at FROM outbox_schema.inbox_messages AS m
        WHERE m.consumer_group = @consumer_group::text AND m.status = 'parked'
        ORDER BY m.no + 0
        LIMIT 1) AS o)::bigint AS oldest_us;

-- name: InboxMessageStatus :many
-- InboxMessageCount for all groups, with the latest failures: it jumps from one group to the next in the index.
WITH RECURSIVE walk AS (
    (
        SELECT m.consumer_group
        FROM outbox_schema.inbox_messages AS m
        ORDER BY m.consumer_group
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT m.consumer_group
        FROM outbox_schema.inbox_messages AS m
        WHERE m.consumer_group > w.consumer_group
        ORDER BY m.consumer_group
        LIMIT 1
    )
    FROM walk AS w
    WHERE w.consumer_group IS NOT NULL
)
SELECT
    w.consumer_group::text AS consumer_group,
    (SELECT count(*) FROM (
        SELECT FROM outbox_schema.inbox_messages AS m
        WHERE m.consumer_group = w.consumer_group AND m.status = 'parked'
        ORDER BY m.no + 0
        LIMIT @most::bigint) AS p)::bigint AS parked,
    (SELECT count(*) FROM (
        SELECT FROM outbox_schema.inbox_messages AS m
        WHERE m.consumer_group = w.consumer_group AND m.status = 'dead'
        ORDER BY m.no + 0
        LIMIT @most::bigint) AS d)::bigint AS dead,
    coalesce(extract(epoch FROM statement_timestamp() - o.received_at) * 1000000, 0)::bigint AS parked_us,
    coalesce(o.attempts, 0)::integer AS attempts,
    coalesce(o.error, '')::text AS parked_error,
    coalesce(greatest(extract(epoch FROM statement_timestamp() - nullif(n.next_attempt_at, 'infinity')), 0) * 1000000, 0)::bigint AS overdue_us,
    f.failed_at::timestamptz AS first_died_at,
    l.failed_at::timestamptz AS last_died_at,
    coalesce(l.error, '')::text AS dead_error
FROM walk AS w
LEFT JOIN LATERAL (
    SELECT m.received_at, m.attempts, m.error
    FROM outbox_schema.inbox_messages AS m
    WHERE m.consumer_group = w.consumer_group AND m.status = 'parked'
    ORDER BY m.no + 0
    LIMIT 1
) AS o ON true
LEFT JOIN LATERAL (
    SELECT m.next_attempt_at
    FROM outbox_schema.inbox_messages AS m
    WHERE m.consumer_group = w.consumer_group
      AND m.status = 'parked'
    ORDER BY m.consumer_group, m.next_attempt_at
    LIMIT 1
) AS n ON true
LEFT JOIN LATERAL (
    SELECT m.failed_at
    FROM outbox_schema.inbox_messages AS m
    WHERE m.consumer_group = w.consumer_group
      AND m.status = 'dead'
    ORDER BY m.consumer_group, m.failed_at
    LIMIT 1
) AS f ON true
LEFT JOIN LATERAL (
    SELECT m.failed_at, m.error
    FROM outbox_schema.inbox_messages AS m
    WHERE m.consumer_group = w.consumer_group
      AND m.status = 'dead'
    ORDER BY m.consumer_group DESC, m.failed_at DESC
    LIMIT 1
) AS l ON true
WHERE w.consumer_group IS NOT NULL;

-- name: InboxMessagePrune :one
-- ProcessedPrune for dead messages.
WITH old AS MATERIALIZED (
    SELECT m.no, m.failed_at
    FROM outbox_schema.inbox_messages AS m
    WHERE m.consumer_group = @consumer_group::text
      AND m.status = 'dead'
      AND m.failed_at >= @after::timestamptz
      AND m.failed_at < statement_timestamp() - @retention::interval
    ORDER BY m.failed_at
    LIMIT @batch_size::integer
    FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM outbox_schema.inbox_messages AS m
    USING old AS o
    WHERE m.no = o.no
    RETURNING m.no
)
SELECT
    (SELECT count(*) FROM gone)::bigint AS deleted,
    (SELECT coalesce(max(o.failed_at), '-infinity') FROM old AS o)::timestamptz AS last;

-- name: InboxMessageScan :many
-- DeadLetterScan for the dead messages of a consumer group. The order is that of InboxMessageCount.
WITH piece AS MATERIALIZED (
    (
        SELECT d.no, d.event_id, d.type, d.namespace, d.topic, d.tenant_id, d.key, d.received_at, d.failed_at, d.error, d.consumer_group
        FROM outbox_schema.inbox_messages AS d
        WHERE cardinality(@ids::uuid[]) = 0
          AND NOT @newest::boolean
          AND d.consumer_group = @consumer_group::text
          AND d.status = 'dead'
          AND d.no + 0 > @after_no::bigint
        ORDER BY d.no + 0
        LIMIT @piece::integer
    )
    UNION ALL
    (
        SELECT d.no, d.event_id, d.type, d.namespace, d.topic, d.tenant_id, d.key, d.received_at, d.failed_at, d.error, d.consumer_group
        FROM outbox_schema.inbox_messages AS d
        WHERE cardinality(@ids::uuid[]) = 0
          AND @newest::boolean
          AND d.consumer_group = @consumer_group::text
          AND d.status = 'dead'
          AND d.no + 0 < @after_no::bigint
        ORDER BY d.no + 0 DESC
        LIMIT @piece::integer
    )
    UNION ALL
    (
        SELECT d.no, d.event_id, d.type, d.namespace, d.topic, d.tenant_id, d.key, d.received_at, d.failed_at, d.error, d.consumer_group
        FROM (SELECT unnest(@ids::uuid[]) AS id) AS w
        JOIN outbox_schema.inbox_messages AS d ON d.event_id = w.id
        WHERE d.status = 'dead'
    )
)
SELECT
    true AS matches,
    p.no::bigint AS no,
    p.namespace::text AS namespace,
    CASE WHEN p.topic <> '' THEN p.topic WHEN p.type <> '' THEN p.type ELSE 'unreadable' END::text AS topic,
    p.tenant_id::uuid AS tenant_id,
    p.failed_at::timestamptz AS died_at,
    CASE WHEN @texts::boolean THEN p.error ELSE '' END::text AS error,
    0::bigint AS scanned
FROM piece AS p
WHERE p.consumer_group = @consumer_group::text
  AND (@namespace::text = '' OR p.namespace = @namespace::text)
  AND (@topic::text = '' OR p.topic = @topic::text)
  AND (sqlc.narg('tenant_id')::uuid IS NULL OR p.tenant_id = sqlc.narg('tenant_id')::uuid)
  AND (@key::text = '' OR p.key = @key::text)
  AND (sqlc.narg('since')::timestamptz IS NULL OR p.received_at >= sqlc.narg('since')::timestamptz)
  AND (sqlc.narg('until')::timestamptz IS NULL OR p.received_at < sqlc.narg('until')::timestamptz)
  AND (@error::text = '' OR strpos(p.error, @error::text) > 0)
UNION ALL
SELECT
    false,
    CASE WHEN @newest::boolean THEN coalesce(min(p.no), 0) ELSE coalesce(max(p.no), 0) END,
    '', '', NULL, statement_timestamp(), '', count(*)
FROM piece AS p;

-- name: InboxMessageRead :many
-- Reads dead messages by no, newest first.
SELECT d.no, d.consumer_group, d.place, coalesce(d.key, '')::text AS key, d.event_id, d.namespace,
    CASE WHEN d.topic <> '' THEN d.topic WHEN d.type <> '' THEN d.type ELSE 'unreadable' END::text AS topic,
    d.version, d.tenant_id, d.envelope::text AS envelope, d.body, d.attempts, d.error, d.received_at, d.failed_at
FROM (SELECT unnest(@nos::bigint[]) AS no) AS w
JOIN outbox_schema.inbox_messages AS d ON d.no = w.no
WHERE d.status = 'dead'
ORDER BY d.no DESC;

-- name: InboxMessageReplay :one
-- Parks dead messages again, due now and with no attempt. They keep their numbers, so they come before the messages of their
-- key that were parked later, and these wait behind them. InboxMessagePromote then makes the first of each key due. The
-- messages of a key that are due are at its front: one, or some after concurrent replays.
WITH back AS (
    UPDATE outbox_schema.inbox_messages AS m
    SET status = 'parked',
        attempts = 0,
        next_attempt_at = CASE WHEN m.key IS NULL THEN statement_timestamp() ELSE 'infinity' END
    FROM (SELECT unnest(@nos::bigint[]) AS no) AS w
    WHERE m.no = w.no
      AND m.status = 'dead'
    RETURNING m.no, m.consumer_group, m.key
),
behind AS (
    UPDATE outbox_schema.inbox_messages AS m
    SET next_attempt_at = 'infinity'
    FROM (
        SELECT f.no
        FROM (SELECT b.consumer_group, b.key, min(b.no) AS no FROM back AS b WHERE b.key IS NOT NULL GROUP BY b.consumer_group, b.key) AS k
        CROSS JOIN LATERAL (
            SELECT p.no, p.next_attempt_at
            FROM outbox_schema.inbox_messages AS p
            WHERE p.consumer_group = k.consumer_group
              AND p.key = k.key
              AND p.status = 'parked'
              AND p.no > k.no
            ORDER BY p.consumer_group, p.key, p.no
            LIMIT 20
        ) AS f
        WHERE f.next_attempt_at < 'infinity'
    ) AS w
    WHERE m.no = w.no
      AND m.status = 'parked'
      AND m.next_attempt_at < 'infinity'
)
SELECT
    (SELECT count(*) FROM back)::bigint AS replayed,
    coalesce((SELECT array_agg(DISTINCT b.key) FROM back AS b WHERE b.key IS NOT NULL), '{}')::text[] AS keys;

-- name: InboxMessageDiscard :execrows
-- Deletes dead messages.
DELETE FROM outbox_schema.inbox_messages AS m
USING (SELECT unnest(@nos::bigint[]) AS no) AS w
WHERE m.no = w.no
  AND m.status = 'dead';

-- name: InboxMessageGroups :many
-- Reads the consumer groups that have dead messages: it jumps from one group to the next in the index.
WITH RECURSIVE walk AS (
    (
        SELECT m.consumer_group
        FROM outbox_schema.inbox_messages AS m
        WHERE m.status = 'dead'
        ORDER BY m.consumer_group
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT m.consumer_group
        FROM outbox_schema.inbox_messages AS m
        WHERE m.status = 'dead'
          AND m.consumer_group > w.consumer_group
        ORDER BY m.consumer_group
        LIMIT 1
    )
    FROM walk AS w
    WHERE w.consumer_group IS NOT NULL
)
SELECT w.consumer_group::text AS consumer_group
FROM walk AS w
WHERE w.consumer_group IS NOT NULL;

-- name: InboxGroups :many
-- Reads the consumer groups that have recorded or keep anything: it jumps from one group to the next in each index.
WITH RECURSIVE recorded AS (
    (
        SELECT p.consumer_group
        FROM outbox_schema.processed_events AS p
        ORDER BY p.consumer_group
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT p.consumer_group
        FROM outbox_schema.processed_events AS p
        WHERE p.consumer_group > w.consumer_group
        ORDER BY p.consumer_group
        LIMIT 1
    )
    FROM recorded AS w
    WHERE w.consumer_group IS NOT NULL
),
kept AS (
    (
        SELECT m.consumer_group
        FROM outbox_schema.inbox_messages AS m
        ORDER BY m.consumer_group
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT m.consumer_group
        FROM outbox_schema.inbox_messages AS m
        WHERE m.consumer_group > w.consumer_group
        ORDER BY m.consumer_group
        LIMIT 1
    )
    FROM kept AS w
    WHERE w.consumer_group IS NOT NULL
)
SELECT r.consumer_group::text AS consumer_group
FROM recorded AS r
WHERE r.consumer_group IS NOT NULL
UNION
SELECT k.consumer_group
FROM kept AS k
WHERE k.consumer_group IS NOT NULL
ORDER BY 1;

-- name: InboxParked :many
-- Reads the first parked message of keys, and messages without a key, the next to be tried first. Those that wait behind
-- another one are at infinity, and counted with it up to a limit. A head that waits for InboxMessagePromote is not shown.
SELECT m.no, m.place, coalesce(m.key, '')::text AS key, m.event_id,
    CASE WHEN m.topic <> '' THEN m.namespace || '/' || m.topic WHEN m.type <> '' THEN m.type ELSE 'unreadable' END::text AS topic,
    m.tenant_id, m.attempts, m.max_attempts, m.error, m.received_at, m.failed_at, m.next_attempt_at,
    (SELECT count(*) FROM (
        SELECT FROM outbox_schema.inbox_messages AS b
        WHERE b.consumer_group = @consumer_group::text
          AND b.status = 'parked'
          AND b.key = m.key
          AND b.no > m.no
        ORDER BY b.consumer_group, b.key, b.no
        LIMIT @most::bigint) AS f)::bigint AS behind
FROM outbox_schema.inbox_messages AS m
WHERE m.consumer_group = @consumer_group::text
  AND m.status = 'parked'
  AND m.next_attempt_at < 'infinity'
ORDER BY m.consumer_group, m.next_attempt_at
LIMIT @page_size::integer;

-- name: InboxParkedMessage :one
-- InboxParked for one message, with what it contains, also if it waits behind another one.
SELECT m.no, m.place, coalesce(m.key, '')::text AS key, m.event_id,
    CASE WHEN m.topic <> '' THEN m.namespace || '/' || m.topic WHEN m.type <> '' THEN m.type ELSE 'unreadable' END::text AS topic,
    m.tenant_id, m.attempts, m.max_attempts, m.error, m.received_at, m.failed_at, m.next_attempt_at,
    (SELECT count(*) FROM (
        SELECT FROM outbox_schema.inbox_messages AS b
        WHERE b.consumer_group = @consumer_group::text
          AND b.status = 'parked'
          AND b.key = m.key
          AND b.no > m.no
        ORDER BY b.consumer_group, b.key, b.no
        LIMIT @most::bigint) AS f)::bigint AS behind,
    m.version, m.envelope::text AS envelope, m.body
FROM outbox_schema.inbox_messages AS m
WHERE m.no = @no::bigint
  AND m.consumer_group = @consumer_group::text
  AND m.status = 'parked';
