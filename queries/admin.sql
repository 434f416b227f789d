-- name: ListenerList :many
-- Lists the cursors of all listeners. It needs a few probes of an index for each, and one pass over the dead letters and
-- the parked heads, however long the log is: unread is the distance of positions, divided among the shards.
--
-- Not passed are three kinds of events: what lies behind the position of the cursor, the event at which the cursor stands
-- when that has failed, which may be a straggler far before the position, and the heads of parked keys. The oldest of
-- them makes the lag.
WITH dead_counts AS MATERIALIZED (
    SELECT d.listener, d.bucket, count(*) AS count
    FROM outbox_schema.dead_letters AS d
    WHERE d.listener IS NOT NULL
    GROUP BY d.listener, d.bucket
),
parked_counts AS MATERIALIZED (
    SELECT p.listener, p.bucket, count(*) AS count, count(p.retry_after) AS keys, min(p.created_at) AS oldest
    FROM outbox_schema.parked AS p
    GROUP BY p.listener, p.bucket
)
SELECT
    l.listener, l.shard, l.shards, l.lease_by, l.lease_until,
    coalesce(l.lease_until >= statement_timestamp(), false)::boolean AS leased,
    l.running, (u.listener IS NOT NULL)::boolean AS paused, l.in_batch, l.retry_count, l.retry_after,
    coalesce(l.last_error, '') AS last_error,
    coalesce(l.reshard_to, 0)::integer AS reshard_to,
    (
        l.system_id <> (SELECT c.system_identifier FROM pg_control_system() AS c)
        OR pg_snapshot_xmax(coalesce(l.hi, l.lo)) > pg_snapshot_xmax(pg_current_snapshot())
        OR coalesce((
            SELECT g.xid -- not EXISTS: a scan of the whole log may look cheap for it
            FROM outbox_schema.log AS g
            ORDER BY g.xid DESC
            LIMIT 1
        ) >= pg_snapshot_xmax(pg_current_snapshot()), false)
    )::boolean AS restored,
    greatest(l.high_seq, l.last_seq)::bigint AS position,
    l.created_at, l.advanced_at,
    greatest((e.seq - greatest(l.high_seq, l.last_seq) + l.shards - 1) / l.shards, 0)::bigint AS unread,
    coalesce(extract(epoch FROM statement_timestamp() - least(
        (
            SELECT g.created_at
            FROM outbox_schema.log AS g
            WHERE g.seq > greatest(l.high_seq, l.last_seq)
            ORDER BY g.seq
            LIMIT 1
        ),
        (
            SELECT g.created_at
            FROM outbox_schema.log AS g
            WHERE g.seq = l.last_seq + 1
              AND l.retry_count > 0
        ),
        p.oldest
    )) * 1000000, 0)::bigint AS lag_us,
    coalesce(extract(epoch FROM l.max_lag) * 1000000, 0)::bigint AS max_lag_us,
    coalesce(d.count, 0)::bigint AS dead_letters,
    coalesce(p.keys, 0)::bigint AS parked_keys,
    coalesce(p.count, 0)::bigint AS parked_events
FROM outbox_schema.listeners AS l
CROSS JOIN (SELECT coalesce(max(g.seq), 0)::bigint AS seq FROM outbox_schema.log AS g) AS e
LEFT JOIN LATERAL (
    SELECT sum(o.count) AS count
    FROM dead_counts AS o
    WHERE o.listener = l.listener
      AND o.bucket % l.shards = l.shard
) AS d ON true
LEFT JOIN LATERAL (
    SELECT sum(o.count) AS count, sum(o.keys) AS keys, min(o.oldest) AS oldest
    FROM parked_counts AS o
    WHERE o.listener = l.listener
      AND o.bucket % l.shards = l.shard
) AS p ON true
LEFT JOIN LATERAL (
    SELECT o.listener
    FROM outbox_schema.pauses AS o
    WHERE o.namespace = ''
      AND o.topic = ''
      AND o.tenant_id = '00000000-0000-0000-0000-000000000000'
      AND o.listener = l.listener
      AND (o.until IS NULL OR o.until > statement_timestamp())
    LIMIT 1
) AS u ON true
ORDER BY l.listener, l.shard;

-- name: ListenerNames :many
-- Lists the listeners that are attached.
SELECT DISTINCT l.listener
FROM outbox_schema.listeners AS l
ORDER BY l.listener;

-- name: ListenerHead :many
-- Reads the first events, up to event_limit per shard, that the shards of a listener have not handled: those of the open
-- window, otherwise those of the one that would be opened now. The rule is that of LogRead, for events of any topic, because
-- only the listener's process knows which topics it reads. attempts is what the cursor keeps of an event behind the first
-- one that is not done. exact reports that this is the first one and has failed: the cursor was left right before it.
WITH RECURSIVE cur AS MATERIALIZED (
    SELECT l.shard, l.shards, l.lo, l.lo_bound, l.high_seq, l.last_seq, l.in_batch, l.retry_count, l.one_by_one,
        l.ahead_seqs, l.ahead_attempts,
        coalesce(l.hi, l.barrier, pg_current_snapshot()) AS hi,
        coalesce(l.hi_seq, l.barrier_seq, 9223372036854775807) AS hi_seq, l.last_error
    FROM outbox_schema.listeners AS l
    WHERE l.listener = @listener
),
span AS MATERIALIZED (
    SELECT c.shard, b.xid AS after, lead(b.xid, 1, c.lo_bound) OVER (PARTITION BY c.shard ORDER BY b.xid) AS before
    FROM cur AS c
    CROSS JOIN LATERAL (
        SELECT (((pg_snapshot_xmax(c.lo)::text)::bigint - 1)::text)::xid8 AS xid
        UNION ALL
        SELECT p.xid
        FROM (SELECT pg_snapshot_xip(c.hi) AS xid) AS p
        WHERE p.xid >= pg_snapshot_xmax(c.lo)
          AND p.xid < c.lo_bound
    ) AS b
    WHERE pg_snapshot_xmax(c.lo) < c.lo_bound
),
hop AS (
    SELECT s.shard, s.before, (
        SELECT o.xid
        FROM outbox_schema.log AS o
        WHERE o.xid > s.after
          AND o.xid < s.before
        ORDER BY o.xid
        LIMIT 1
    ) AS xid
    FROM span AS s
    UNION ALL
    SELECT h.shard, h.before, (
        SELECT o.xid
        FROM outbox_schema.log AS o
        WHERE o.xid > h.xid
          AND o.xid < h.before
        ORDER BY o.xid
        LIMIT 1
    ) AS xid
    FROM hop AS h
    WHERE h.xid IS NOT NULL
)
SELECT
    c.shard, c.in_batch, c.retry_count, coalesce(c.last_error, '') AS last_error,
    (c.retry_count > 0 AND c.one_by_one = 0 AND g.seq = c.last_seq + 1)::boolean AS exact,
    coalesce(c.ahead_attempts[array_position(c.ahead_seqs, g.seq)], 0)::integer AS attempts,
    g.seq, g.id, g.namespace, g.topic, g.version, g.tenant_id,
    coalesce(g.dedupe_key, '') AS dedupe_key,
    coalesce(g.partition_key, '') AS partition_key,
    coalesce(g.entity_type, '') AS entity_type,
    coalesce(g.entity_id, '') AS entity_id,
    coalesce(g.entity_version, 0) AS entity_version,
    g.headers, g.created_at
FROM cur AS c
CROSS JOIN LATERAL (
    SELECT w.seq
    FROM (
        (
            SELECT s.seq
            FROM (
                SELECT pg_snapshot_xip(c.lo) AS xid
                UNION ALL
                SELECT h.xid
                FROM hop AS h
                WHERE h.shard = c.shard
                  AND h.xid IS NOT NULL
            ) AS x
            CROSS JOIN LATERAL (
                SELECT o.seq
                FROM outbox_schema.log AS o
                WHERE o.xid = ANY (ARRAY[x.xid]) -- as in LogRead
                  AND o.seq > c.last_seq
                  AND o.seq <= c.high_seq
                  AND o.bucket % c.shards = c.shard
                  AND c.ahead_attempts[array_position(c.ahead_seqs, o.seq)] IS DISTINCT FROM 0
                ORDER BY o.xid, o.seq
                LIMIT @event_limit::integer
            ) AS s
            WHERE pg_visible_in_snapshot(x.xid, c.hi)
        )
        UNION ALL
        (
            SELECT o.seq
            FROM outbox_schema.log AS o
            WHERE o.seq > greatest(c.high_seq, c.last_seq)
              AND o.seq <= c.hi_seq
              AND pg_visible_in_snapshot(o.xid, c.hi)
              AND o.bucket % c.shards = c.shard
              AND c.ahead_attempts[array_position(c.ahead_seqs, o.seq)] IS DISTINCT FROM 0
            ORDER BY o.seq
            LIMIT @event_limit::integer
        )
    ) AS w
    ORDER BY w.seq
    LIMIT @event_limit::integer
) AS first
JOIN outbox_schema.log AS g ON g.seq = first.seq
WHERE NOT @blocked::boolean OR c.retry_count > 0
ORDER BY c.shard, g.seq;

-- name: ListenerOpen :execrows
-- Opens a window as ListenerTakeLease does, without a lease, so that an event in it can be skipped.
UPDATE outbox_schema.listeners AS l
SET in_batch = true,
    hi = coalesce(l.barrier, pg_current_snapshot()),
    hi_bound = coalesce(l.barrier_bound, pg_current_xact_id()),
    hi_seq = coalesce(l.barrier_seq, pg_sequence_last_value('outbox_schema.log_seq'::regclass), (SELECT max(g.seq) FROM outbox_schema.log AS g), 0)
WHERE l.listener = @listener
  AND l.shard = @shard
  AND NOT l.in_batch
  AND CASE WHEN l.barrier IS NULL THEN l.reshard_to IS NULL ELSE l.lo_bound <> l.barrier_bound END
  AND l.lease_no = (
    SELECT s.lease_no
    FROM outbox_schema.listeners AS s
    WHERE s.listener = @listener
      AND s.shard = @shard
  );

-- name: ListenerSkip :execrows
-- Copies one event of the open window to the dead letters and notes it as done, so that the next lease passes it. The
-- holder of the shard loses it: lease_no and lease_id change, so that what it still sends is not taken for the answer to an
-- earlier try. The event is compared with the cursor in the newest version of the row: a statement that had to wait for
-- the row skips nothing that was handled meanwhile.
WITH moved AS (
    UPDATE outbox_schema.listeners AS l
    SET ahead_seqs = CASE WHEN array_position(l.ahead_seqs, g.seq) IS NULL THEN l.ahead_seqs || g.seq ELSE l.ahead_seqs END,
        ahead_attempts = CASE
            WHEN array_position(l.ahead_seqs, g.seq) IS NULL THEN l.ahead_attempts || 0
            ELSE l.ahead_attempts[:array_position(l.ahead_seqs, g.seq) - 1] || 0 || l.ahead_attempts[array_position(l.ahead_seqs, g.seq) + 1:]
        END,
        lease_by = NULL,
        lease_until = NULL,
        lease_no = l.lease_no + 1,
        lease_id = gen_random_uuid(),
        running = false,
        one_by_one = CASE WHEN l.running AND l.lease_until < clock_timestamp() THEN greatest(l.one_by_one, @batch_size::integer) ELSE l.one_by_one END,
        wanted_by = NULL,
        retry_count = CASE WHEN @head::boolean THEN 0 ELSE l.retry_count END,
        retry_after = CASE WHEN @head::boolean THEN NULL ELSE l.retry_after END,
        last_error = CASE WHEN @head::boolean THEN NULL ELSE l.last_error END
    FROM outbox_schema.log AS g
    WHERE g.seq = @seq
      AND l.listener = @listener
      AND l.shard = @shard
      AND l.in_batch
      AND g.bucket % l.shards = l.shard
      AND g.seq > l.last_seq
      AND pg_visible_in_snapshot(g.xid, l.hi)
      AND NOT (g.seq <= l.high_seq AND pg_visible_in_snapshot(g.xid, l.lo))
      AND l.ahead_attempts[array_position(l.ahead_seqs, g.seq)] IS DISTINCT FROM 0
    RETURNING l.listener, g.seq, g.id, g.namespace, g.topic, g.version, g.tenant_id, g.dedupe_key, g.partition_key,
        g.entity_type, g.entity_id, g.entity_version, g.headers, g.payload, g.bucket, g.created_at
)
INSERT INTO outbox_schema.dead_letters (
    listener, seq, id, namespace, topic, version, tenant_id, dedupe_key, partition_key, entity_type,
    entity_id, entity_version, headers, payload, bucket, created_at, attempts, error)
SELECT m.listener, m.seq, m.id, m.namespace, m.topic, m.version, m.tenant_id, m.dedupe_key, m.partition_key,
    m.entity_type, m.entity_id, m.entity_version, m.headers, m.payload, m.bucket, m.created_at, @attempts, @error
FROM moved AS m;

-- name: ListenerTakeOver :many
-- Takes the shards of a listener from their holders, all or the one of a bucket, and names them. What the holders were
-- doing is refused, and no lease is taken until this one is over. If a holder has died, the next one takes events one by
-- one, as it would have done anyway.
UPDATE outbox_schema.listeners AS l
SET lease_by = @worker_id,
    lease_until = clock_timestamp() + @lease::interval,
    lease_no = l.lease_no + 1,
    lease_id = gen_random_uuid(),
    running = false,
    one_by_one = CASE WHEN l.running AND l.lease_until < clock_timestamp() THEN greatest(l.one_by_one, @batch_size::integer) ELSE l.one_by_one END,
    wanted_by = NULL
FROM (
    SELECT o.shard
    FROM outbox_schema.listeners AS o
    WHERE o.listener = @listener
      AND (sqlc.narg('bucket')::integer IS NULL OR sqlc.narg('bucket')::integer % o.shards = o.shard)
    ORDER BY o.shard
    FOR NO KEY UPDATE
) AS s
WHERE l.listener = @listener
  AND l.shard = s.shard
RETURNING l.shard;

-- name: ListenerRewind :execrows
-- Sends the cursors of a listener that the worker has taken over back to since, or to the start when that is null: behind
-- the last event before the first one that was enqueued then. They never go forward, and never past an event that is not
-- handled: straggler is the first such one before the position. What a cursor has seen of the log is what this statement
-- sees, because nothing has moved since it was taken over. lo_bound is taken after lo, because the transaction has no xid
-- before this statement.
WITH RECURSIVE target AS MATERIALIZED (
    SELECT CASE
        WHEN sqlc.narg('since')::timestamptz IS NULL THEN 0
        ELSE coalesce(
            (
                SELECT g.seq - 1
                FROM outbox_schema.log AS g
                WHERE g.created_at >= sqlc.narg('since')::timestamptz
                ORDER BY g.seq
                LIMIT 1
            ),
            9223372036854775807
        )
    END::bigint AS seq
),
span AS MATERIALIZED (
    SELECT b.xid AS after, lead(b.xid, 1, s.bound) OVER (PARTITION BY s.shard, s.bound ORDER BY b.xid) AS before
    FROM (
        SELECT l.shard, l.lo AS snapshot, l.lo_bound AS bound
        FROM outbox_schema.listeners AS l
        WHERE l.listener = @listener
        UNION ALL
        SELECT l.shard, l.hi AS snapshot, l.hi_bound AS bound
        FROM outbox_schema.listeners AS l
        WHERE l.listener = @listener
          AND l.in_batch
    ) AS s
    CROSS JOIN LATERAL (
        SELECT (((pg_snapshot_xmax(s.snapshot)::text)::bigint - 1)::text)::xid8 AS xid
        UNION ALL
        SELECT p.xid
        FROM (SELECT pg_snapshot_xip(pg_current_snapshot()) AS xid) AS p
        WHERE p.xid >= pg_snapshot_xmax(s.snapshot)
          AND p.xid < s.bound
    ) AS b
    WHERE pg_snapshot_xmax(s.snapshot) < s.bound
),
hop AS (
    SELECT s.before, (
        SELECT o.xid
        FROM outbox_schema.log AS o
        WHERE o.xid > s.after
          AND o.xid < s.before
        ORDER BY o.xid
        LIMIT 1
    ) AS xid
    FROM span AS s
    UNION ALL
    SELECT h.before, (
        SELECT o.xid
        FROM outbox_schema.log AS o
        WHERE o.xid > h.xid
          AND o.xid < h.before
        ORDER BY o.xid
        LIMIT 1
    ) AS xid
    FROM hop AS h
    WHERE h.xid IS NOT NULL
),
straggler AS MATERIALIZED (
    SELECT l.shard, min(g.seq) AS seq
    FROM outbox_schema.listeners AS l
    CROSS JOIN LATERAL (
        SELECT pg_snapshot_xip(l.lo) AS xid
        UNION
        SELECT pg_snapshot_xip(l.hi) AS xid
        UNION
        SELECT h.xid
        FROM hop AS h
        WHERE h.xid IS NOT NULL
    ) AS x
    CROSS JOIN LATERAL (
        SELECT o.seq
        FROM outbox_schema.log AS o
        WHERE o.xid = ANY (ARRAY[x.xid]) -- as in LogRead
          AND o.seq <= greatest(l.high_seq, l.last_seq)
          AND o.bucket % l.shards = l.shard
          AND NOT (o.seq <= l.high_seq AND pg_visible_in_snapshot(o.xid, l.lo))
          AND NOT coalesce(l.in_batch AND o.seq <= l.last_seq AND pg_visible_in_snapshot(o.xid, l.hi), false)
          AND l.ahead_attempts[array_position(l.ahead_seqs, o.seq)] IS DISTINCT FROM 0
        ORDER BY o.xid, o.seq
        LIMIT 1
    ) AS g
    WHERE l.listener = @listener
    GROUP BY l.shard
)
UPDATE outbox_schema.listeners AS l
SET lo = pg_current_snapshot(),
    lo_bound = pg_current_xact_id(),
    high_seq = least(t.seq, greatest(l.high_seq, l.last_seq), coalesce(s.seq - 1, 9223372036854775807)),
    hi = NULL,
    hi_bound = NULL,
    hi_seq = NULL,
    last_seq = 0,
    in_batch = false,
    ahead_seqs = '{}',
    ahead_attempts = '{}',
    lease_by = NULL,
    lease_until = NULL,
    lease_no = l.lease_no + 1,
    lease_id = gen_random_uuid(),
    one_by_one = 0,
    wanted_by = NULL,
    retry_count = 0,
    retry_after = NULL,
    last_error = NULL,
    barrier = NULL,
    barrier_bound = NULL,
    barrier_seq = NULL
FROM target AS t, outbox_schema.listeners AS o
LEFT JOIN straggler AS s ON s.shard = o.shard
WHERE l.listener = @listener
  AND l.lease_by = @worker_id
  AND o.listener = l.listener
  AND o.shard = l.shard;

-- name: ListenerRemaining :one
-- Counts the events of the log behind the cursors of a listener, of any topic.
SELECT count(*)
FROM outbox_schema.listeners AS l
JOIN outbox_schema.log AS g ON g.seq > l.high_seq AND g.bucket % l.shards = l.shard
WHERE l.listener = @listener;

-- name: ParkedRewind :many
-- Deletes the parked events that will come from the log again, and names their keys.
DELETE FROM outbox_schema.parked AS p
USING outbox_schema.listeners AS l
WHERE l.listener = @listener
  AND p.listener = l.listener
  AND p.bucket % l.shards = l.shard
  AND p.seq > l.high_seq
  AND EXISTS (SELECT FROM outbox_schema.log AS g WHERE g.seq = p.seq)
RETURNING p.key;

-- name: ParkedFind :one
-- Reads a parked event by its id.
SELECT p.no, p.key, p.bucket, p.attempts, coalesce(p.last_error, '') AS last_error, p.id, p.namespace, p.topic, p.version, p.tenant_id,
    coalesce(p.dedupe_key, '') AS dedupe_key,
    coalesce(p.partition_key, '') AS partition_key,
    coalesce(p.entity_type, '') AS entity_type,
    coalesce(p.entity_id, '') AS entity_id,
    coalesce(p.entity_version, 0) AS entity_version,
    p.headers, p.created_at
FROM outbox_schema.parked AS p
WHERE p.listener = @listener
  AND p.id = @id
ORDER BY p.no
LIMIT 1;

-- name: ParkedHeads :many
-- Reads the first heads of parked keys by when they are due.
SELECT p.id, p.namespace, p.topic
FROM outbox_schema.parked AS p
WHERE p.listener = @listener
  AND p.retry_after IS NOT NULL
ORDER BY p.retry_after, p.no
LIMIT @event_limit::integer;

-- name: ParkedSkip :execrows
-- Moves a parked event to the dead letters. Its shard is taken over, so nobody is handling it.
WITH gone AS (
    DELETE FROM outbox_schema.parked AS p
    WHERE p.no = @no
    RETURNING p.listener, p.seq, p.id, p.namespace, p.topic, p.version, p.tenant_id, p.dedupe_key, p.partition_key,
        p.entity_type, p.entity_id, p.entity_version, p.headers, p.payload, p.bucket, p.created_at, p.key, p.attempts
)
INSERT INTO outbox_schema.dead_letters (
    listener, seq, id, namespace, topic, version, tenant_id, dedupe_key, partition_key, entity_type,
    entity_id, entity_version, headers, payload, bucket, created_at, key, attempts, error)
SELECT g.listener, g.seq, g.id, g.namespace, g.topic, g.version, g.tenant_id, g.dedupe_key, g.partition_key,
    g.entity_type, g.entity_id, g.entity_version, g.headers, g.payload, g.bucket, g.created_at, g.key, g.attempts, @error
FROM gone AS g;

-- name: ListenerHandBack :exec
-- Gives up the shards that a worker has taken over.
UPDATE outbox_schema.listeners AS l
SET lease_by = NULL,
    lease_until = NULL
WHERE l.listener = @listener
  AND l.lease_by = @worker_id;

-- name: ListenerDetach :execrows
-- Deletes the cursors of a listener. This comes before its parked events are deleted, so that none is added.
DELETE FROM outbox_schema.listeners AS l
WHERE l.listener = @listener;

-- name: ParkedDetach :execrows
-- Deletes the parked events of a listener whose cursors are deleted.
DELETE FROM outbox_schema.parked AS p
WHERE p.listener = @listener;

-- name: LogBlocked :many
-- Counts for each listener the events past their retention that it has not passed, by the rule of LogPrune. Walks the
-- whole log.
WITH retention AS MATERIALIZED (
    SELECT
        unnest(@topics::text[]) AS topic,
        unnest(@retentions_us::bigint[]) * interval '1 microsecond' AS keep
)
SELECT l.listener, count(DISTINCT g.seq) AS blocked
FROM outbox_schema.log AS g
JOIN retention AS r ON r.topic = g.namespace || '/' || g.topic AND g.created_at < statement_timestamp() - r.keep
JOIN outbox_schema.listeners AS l
    ON NOT (g.seq <= l.high_seq AND pg_visible_in_snapshot(g.xid, l.lo))
    AND NOT coalesce(l.in_batch AND g.seq <= l.last_seq AND pg_visible_in_snapshot(g.xid, l.hi), false)
GROUP BY l.listener
ORDER BY l.listener;

-- name: LogPrunable :one
-- Counts the events past their retention, and how many of them some listener has not passed, which LogPrune would keep.
WITH retention AS MATERIALIZED (
    SELECT
        unnest(@topics::text[]) AS topic,
        unnest(@retentions_us::bigint[]) * interval '1 microsecond' AS keep
)
SELECT count(*) AS old, count(*) FILTER (WHERE EXISTS (
    SELECT
    FROM outbox_schema.listeners AS l
    WHERE NOT (g.seq <= l.high_seq AND pg_visible_in_snapshot(g.xid, l.lo))
      AND NOT coalesce(l.in_batch AND g.seq <= l.last_seq AND pg_visible_in_snapshot(g.xid, l.hi), false)
)) AS blocked
FROM outbox_schema.log AS g
JOIN retention AS r ON r.topic = g.namespace || '/' || g.topic AND g.created_at < statement_timestamp() - r.keep;

-- name: DeadLetterPrunable :one
-- Counts the dead letters of listeners past the retention of their topic.
WITH retention AS MATERIALIZED (
    SELECT
        unnest(@topics::text[]) AS topic,
        unnest(@retentions_us::bigint[]) * interval '1 microsecond' AS keep
)
SELECT count(*)
FROM outbox_schema.dead_letters AS d
JOIN retention AS r ON r.topic = d.namespace || '/' || d.topic
WHERE d.listener IS NOT NULL
  AND d.died_at < statement_timestamp() - r.keep;

-- name: EventPrunableDelivered :one
-- Counts the events of a queue topic that EventPruneDelivered would delete.
SELECT count(*)
FROM outbox_schema.delivered AS d
WHERE d.namespace = @namespace
  AND d.topic = @topic
  AND d.finalized_at < statement_timestamp() - @retention::interval;

-- name: EventPrunableDead :one
-- Counts the dead letters of a queue topic that EventPruneDead would delete.
SELECT count(*)
FROM outbox_schema.dead_letters AS d
WHERE d.namespace = @namespace
  AND d.topic = @topic
  AND d.listener IS NULL
  AND d.died_at < statement_timestamp() - @retention::interval;

-- name: RebaseNeeded :one
-- Reports whether the xids of some cursor, or of the log, belong to another cluster.
SELECT (
    EXISTS (
        SELECT
        FROM outbox_schema.listeners AS l
        WHERE l.system_id <> (SELECT c.system_identifier FROM pg_control_system() AS c)
           OR pg_snapshot_xmax(coalesce(l.hi, l.lo)) > pg_snapshot_xmax(pg_current_snapshot())
    )
    OR coalesce((
        SELECT g.xid
        FROM outbox_schema.log AS g
        ORDER BY g.xid DESC
        LIMIT 1
    ) >= pg_snapshot_xmax(pg_current_snapshot()), false)
)::boolean AS needed;

-- name: RebaseLock :exec
-- Keeps every cursor as it is until the transaction ends. A LOCK takes no snapshot, so a transaction at REPEATABLE READ
-- sees what was committed before it was granted.
LOCK TABLE outbox_schema.listeners IN SHARE ROW EXCLUSIVE MODE;

-- name: RebaseStart :one
-- Takes the lock of ListenerLock if it is free, and reads the snapshot of the transaction and how much there is to do.
SELECT pg_try_advisory_xact_lock(@lock::bigint)::boolean AS locked, (pg_current_snapshot()::text)::text AS snapshot,
    (SELECT count(*) FROM outbox_schema.log) AS events,
    (SELECT coalesce(max(g.seq), 0) FROM outbox_schema.log AS g)::bigint AS last_seq;

-- name: RebaseCursors :many
-- Reads up to where each cursor has delivered anything, and whether a process holds it.
SELECT l.listener, l.shard, l.lease_by,
    coalesce(l.running AND l.lease_until >= statement_timestamp(), false)::boolean AS live,
    l.lease_until,
    greatest(l.high_seq, l.last_seq, (
        SELECT max(a.seq)
        FROM (SELECT unnest(l.ahead_seqs) AS seq, unnest(l.ahead_attempts) AS attempts) AS a
        WHERE a.attempts = 0
    ))::bigint AS high_seq
FROM outbox_schema.listeners AS l
ORDER BY l.listener, l.shard;

-- name: RebaseMissed :many
-- Reads the events up to there that a cursor has not delivered. The cursor is given by its place in RebaseCursors. The
-- statement relies on the snapshots alone: comparing xids with them is arithmetic, and needs no state of a cluster.
WITH cur AS MATERIALIZED (
    SELECT row_number() OVER (ORDER BY l.listener, l.shard) - 1 AS place,
        l.shard, l.shards, l.lo, l.high_seq, l.hi, l.last_seq, l.in_batch, l.ahead_seqs, l.ahead_attempts,
        greatest(l.high_seq, l.last_seq, (
            SELECT max(a.seq)
            FROM (SELECT unnest(l.ahead_seqs) AS seq, unnest(l.ahead_attempts) AS attempts) AS a
            WHERE a.attempts = 0
        )) AS top
    FROM outbox_schema.listeners AS l
)
SELECT g.seq, array_agg(c.place::integer ORDER BY c.place)::integer[] AS places
FROM outbox_schema.log AS g
JOIN cur AS c ON g.bucket % c.shards = c.shard AND g.seq <= c.top
WHERE NOT (g.seq <= c.high_seq AND pg_visible_in_snapshot(g.xid, c.lo))
  AND NOT coalesce(c.in_batch AND g.seq <= c.last_seq AND pg_visible_in_snapshot(g.xid, c.hi), false)
  AND c.ahead_attempts[array_position(c.ahead_seqs, g.seq)] IS DISTINCT FROM 0
GROUP BY g.seq
ORDER BY g.seq;

-- name: RebaseCursor :exec
-- Turns a cursor into one of this cluster, at high_seq. lo_bound is above every xid that was assigned when the snapshot of
-- the transaction was taken, because the transaction's own xid is assigned by the first of these statements.
UPDATE outbox_schema.listeners AS l
SET lo = (@lo::text)::pg_snapshot,
    lo_bound = pg_current_xact_id(),
    high_seq = @high_seq,
    hi = NULL,
    hi_bound = NULL,
    hi_seq = NULL,
    last_seq = 0,
    in_batch = false,
    ahead_seqs = '{}',
    ahead_attempts = '{}',
    lease_by = NULL,
    lease_until = NULL,
    lease_no = l.lease_no + 1,
    lease_id = gen_random_uuid(),
    running = false,
    one_by_one = 0,
    preferred = NULL,
    wanted_by = NULL,
    retry_count = 0,
    retry_after = NULL,
    barrier = NULL,
    barrier_bound = NULL,
    barrier_seq = NULL,
    system_id = (SELECT c.system_identifier FROM pg_control_system() AS c)
WHERE l.listener = @listener
  AND l.shard = @shard;

-- name: RebaseRewrite :one
-- Gives an xid that is visible in every snapshot to the events of the next scan_size positions whose own xid means nothing
-- here. Such an xid is not below first, the oldest that this cluster's snapshot does not count as ended, or is among those
-- up to last that mark events.
WITH part AS MATERIALIZED (
    SELECT g.seq, g.xid
    FROM outbox_schema.log AS g
    WHERE g.seq > @after_seq
    ORDER BY g.seq
    LIMIT @scan_size::integer
),
done AS (
    UPDATE outbox_schema.log AS g
    SET xid = '3'::xid8
    FROM part AS p
    WHERE g.seq = p.seq
      AND (p.xid >= (@first::text)::xid8 OR p.xid > '3'::xid8 AND p.xid <= (@last::text)::xid8)
    RETURNING g.seq
)
SELECT
    (SELECT coalesce(max(p.seq), 0) FROM part AS p)::bigint AS last_seq,
    (SELECT count(*) FROM part)::bigint AS scanned,
    (SELECT count(*) FROM done)::bigint AS rewritten;

-- name: RebaseMark :exec
-- Gives events the xids that mark them.
UPDATE outbox_schema.log AS g
SET xid = (w.xid::text)::xid8
FROM (
    SELECT
        unnest(@seqs::bigint[]) AS seq,
        unnest(@xids::bigint[]) AS xid
) AS w
WHERE g.seq = w.seq;

-- name: RebaseSequence :exec
-- Makes the positions continue above least, in case a restore has left the sequence behind.
SELECT CASE
    WHEN coalesce(pg_sequence_last_value('outbox_schema.log_seq'::regclass), 0) < @least::bigint
    THEN setval('outbox_schema.log_seq', @least::bigint)
END;

-- name: LogSequence :one
-- Reads what the order of the log depends on: that seq is drawn one by one, after xid was assigned, and above every
-- position that the log or a listener has reached. last is -1 where the role may not read the sequence, and 0 when it was
-- never drawn from.
SELECT
    coalesce(bool_and(s.seqincrement = 1 AND s.seqcache = 1 AND NOT s.seqcycle), false)::boolean AS plain,
    coalesce((
        SELECT bool_and(CASE a.attname
            WHEN 'seq' THEN pg_get_expr(d.adbin, d.adrelid) ~ '^\s*CASE\s+WHEN \(pg_current_xact_id\(\) IS NOT NULL\) THEN nextval\(''(.+\.)?log_seq''::regclass\)\s+ELSE NULL::bigint\s+END$'
            ELSE pg_get_expr(d.adbin, d.adrelid) = 'pg_current_xact_id()'
        END) AND count(*) = 2
        FROM pg_catalog.pg_attrdef AS d
        JOIN pg_catalog.pg_attribute AS a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
        WHERE d.adrelid = 'outbox_schema.log'::regclass
          AND a.attname IN ('seq', 'xid')
    ), false)::boolean AS drawn,
    (CASE WHEN has_sequence_privilege('outbox_schema.log_seq', 'SELECT')
        THEN coalesce(pg_sequence_last_value('outbox_schema.log_seq'::regclass), 0)
        ELSE -1
    END)::bigint AS last,
    greatest(
        (SELECT max(g.seq) FROM outbox_schema.log AS g),
        (SELECT max(greatest(l.high_seq, l.last_seq)) FROM outbox_schema.listeners AS l),
        0
    )::bigint AS reached
FROM pg_catalog.pg_sequence AS s
WHERE s.seqrelid = 'outbox_schema.log_seq'::regclass;

-- name: ListenerHold :many
-- Locks the cursors of a listener: no lease of it is taken, moved or ended until the transaction ends.
SELECT l.shard
FROM outbox_schema.listeners AS l
WHERE l.listener = @listener
ORDER BY l.shard
FOR NO KEY UPDATE;

-- name: ListenerStops :many
-- Reads the event at which each idle shard of a listener has stopped in an open window, and the topics and versions of parked
-- heads, of the first head_limit that are due. A shard that gives up before an event stands right behind it.
SELECT l.listener, l.shard, g.namespace, g.topic, g.version
FROM outbox_schema.listeners AS l
CROSS JOIN LATERAL (
    SELECT o.namespace, o.topic, o.version
    FROM outbox_schema.log AS o
    WHERE o.seq = l.last_seq + 1
      AND o.bucket % l.shards = l.shard
    LIMIT 1
) AS g
WHERE l.in_batch
  AND NOT l.running
UNION
SELECT l.listener, l.shard, h.namespace, h.topic, h.version
FROM outbox_schema.listeners AS l
CROSS JOIN LATERAL (
    SELECT p.namespace, p.topic, p.version
    FROM outbox_schema.parked AS p
    WHERE p.listener = l.listener
      AND p.retry_after IS NOT NULL
      AND p.bucket % l.shards = l.shard
    ORDER BY p.retry_after
    LIMIT @head_limit::integer
) AS h
ORDER BY 1, 2, 3, 4, 5;

-- name: DrainedQueue :many
-- Counts the events of a queue topic that are not final and have a version up to newest, by state: 1 in flight, 2 scheduled,
-- 3 waiting for a retry, 4 due. It reads all of queue.
SELECT
    CASE
        WHEN q.locked_until IS NOT NULL THEN 1
        WHEN q.attempts > 0 THEN 3
        WHEN q.next_attempt_at > statement_timestamp() THEN CASE WHEN q.claim_no > 0 THEN 3 ELSE 2 END
        ELSE 4
    END::integer AS state,
    count(*) AS count
FROM outbox_schema.queue AS q
WHERE q.namespace = @namespace
  AND q.topic = @topic
  AND q.version <= @newest::integer
GROUP BY 1
ORDER BY 1;

-- name: DrainedRest :one
-- Counts what else may be decoded again of a topic's events with a version up to newest: dead letters, parked events, and
-- stale events that an inbox of this database has quarantined. kept are rows of the log that every listener may have
-- passed: a new listener or a rewind would read them.
SELECT
    (
        SELECT count(*)
        FROM outbox_schema.dead_letters AS d
        WHERE d.namespace = @namespace
          AND d.topic = @topic
          AND d.version <= @newest::integer
    ) AS dead,
    (
        SELECT count(*)
        FROM outbox_schema.parked AS p
        WHERE p.namespace = @namespace
          AND p.topic = @topic
          AND p.version <= @newest::integer
    ) AS parked,
    (
        SELECT count(*)
        FROM outbox_schema.inbox_quarantined AS i
        WHERE EXISTS (
                SELECT
                FROM outbox_schema.events AS e
                WHERE e.id = i.event_id
                  AND e.namespace = @namespace
                  AND e.topic = @topic
                  AND e.version <= @newest::integer
            )
            OR EXISTS (
                SELECT
                FROM outbox_schema.log AS g
                WHERE g.id = i.event_id
                  AND g.namespace = @namespace
                  AND g.topic = @topic
                  AND g.version <= @newest::integer
            )
    ) AS quarantined,
    (
        SELECT count(*)
        FROM outbox_schema.log AS g
        WHERE g.namespace = @namespace
          AND g.topic = @topic
          AND g.version <= @newest::integer
    ) AS kept;

-- name: DrainedLog :many
-- Counts, for each listener, the events of a log topic with a version up to newest that it has not passed: what is behind its
-- position, and stragglers, which belong to transactions that its latest finished window did not see. Whoever reads the
-- topic: a listener passes the events of other topics too.
SELECT l.listener, count(*) AS count
FROM outbox_schema.listeners AS l
CROSS JOIN LATERAL (
    SELECT o.seq
    FROM outbox_schema.log AS o
    WHERE o.seq > l.high_seq
      AND o.namespace = @namespace
      AND o.topic = @topic
      AND o.version <= @newest::integer
      AND o.bucket % l.shards = l.shard
      AND NOT (l.in_batch AND o.seq <= l.last_seq AND pg_visible_in_snapshot(o.xid, l.hi))
    UNION ALL
    SELECT o.seq
    FROM outbox_schema.log AS o
    WHERE o.xid >= pg_snapshot_xmin(l.lo)
      AND o.xid < l.lo_bound
      AND o.seq <= l.high_seq
      AND NOT pg_visible_in_snapshot(o.xid, l.lo)
      AND o.namespace = @namespace
      AND o.topic = @topic
      AND o.version <= @newest::integer
      AND o.bucket % l.shards = l.shard
      AND NOT (l.in_batch AND o.seq <= l.last_seq AND pg_visible_in_snapshot(o.xid, l.hi))
) AS g
GROUP BY l.listener
ORDER BY l.listener;
