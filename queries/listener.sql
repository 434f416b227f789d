-- name: ListenerProbe :exec
-- Fails when a table does not exist that a listener needs.
SELECT
FROM outbox_schema.log, outbox_schema.listeners, outbox_schema.parked, outbox_schema.dead_letters, outbox_schema.pauses
LIMIT 0;

-- name: ListenerLock :exec
-- Keeps registration, rewinding, resharding and pruning apart until the transaction ends. A listener that starts
-- or goes back sees all that pruning has left, and pruning sees where it stands. It assigns no xid. It waits as LimitLock
-- does.
WITH was AS MATERIALIZED (SELECT current_setting('lock_timeout') AS timeout)
SELECT
    set_config('lock_timeout', CASE was.timeout WHEN '0' THEN '30s' ELSE was.timeout END, true),
    pg_advisory_xact_lock(@lock::bigint),
    set_config('lock_timeout', was.timeout, true)
FROM was;

-- name: ListenerAttach :execrows
-- Registers a listener with its shards unless it is there. It is one statement, so that all shards start from one
-- snapshot: for earliest before everything, for latest after all that is visible now. lo_bound is taken after lo,
-- because the transaction has no xid before.
INSERT INTO outbox_schema.listeners (listener, shard, shards, lo, lo_bound, high_seq, max_lag, system_id)
SELECT
    @listener::text, s.shard, @shards::integer,
    CASE WHEN @latest::boolean THEN pg_current_snapshot() ELSE '1:1:'::pg_snapshot END,
    CASE WHEN @latest::boolean THEN pg_current_xact_id() ELSE '1'::xid8 END,
    CASE WHEN @latest::boolean THEN coalesce((SELECT max(g.seq) FROM outbox_schema.log AS g), 0) ELSE 0 END,
    sqlc.narg('max_lag')::interval,
    (SELECT c.system_identifier FROM pg_control_system() AS c)
FROM generate_series(0, -1 + @shards::integer) AS s (shard)
WHERE NOT EXISTS (SELECT FROM outbox_schema.listeners AS l WHERE l.listener = @listener::text)
ON CONFLICT (listener, shard) DO NOTHING;

-- name: ListenerRegistration :one
-- Reads what a process must know of its listener at the start. restored reports that the cursors hold another cluster's
-- xids, or that they, or the log, hold xids that this cluster has not reached: such events would be visible to no
-- cursor.
SELECT
    count(*)::integer AS cursors,
    coalesce(max(l.shards), 0)::integer AS shards,
    coalesce(max(l.reshard_to), 0)::integer AS reshard_to,
    (
        coalesce(bool_or(
            l.system_id <> (SELECT c.system_identifier FROM pg_control_system() AS c)
            OR pg_snapshot_xmax(coalesce(l.hi, l.lo)) > pg_snapshot_xmax(pg_current_snapshot())
        ), false)
        OR coalesce((
            SELECT g.xid -- not EXISTS: a scan of the whole log may look cheap for it
            FROM outbox_schema.log AS g
            ORDER BY g.xid DESC
            LIMIT 1
        ) >= pg_snapshot_xmax(pg_current_snapshot()), false)
    )::boolean AS restored
FROM outbox_schema.listeners AS l
WHERE l.listener = @listener;

-- name: ListenerMaxLag :execrows
-- Records the alarm's bound of the YAML, and writes nothing when it is unchanged. Every statement that writes several
-- cursors of a listener locks them in the order of their shards, so that no two such statements wait for each other.
UPDATE outbox_schema.listeners AS l
SET max_lag = sqlc.narg('max_lag')::interval
FROM (
    SELECT o.shard
    FROM outbox_schema.listeners AS o
    WHERE o.listener = @listener
      AND o.max_lag IS DISTINCT FROM sqlc.narg('max_lag')::interval
    ORDER BY o.shard
    FOR NO KEY UPDATE
) AS s
WHERE l.listener = @listener
  AND l.shard = s.shard;

-- name: ListenerTakeLease :one
-- Takes the lease of one shard, and opens a window unless one is open. There is no row, and nothing is written, when
-- the shard is paused, waits for a retry, is held by another worker, has nothing to do, or had another lease since the
-- taker's last check.
--
-- A lease is held only while its events are handled. Between leases preferred names the worker that gets the next one, so
-- that shards stay where they are. Another worker takes it over, when it saw something to do and the preferred worker
-- did not take it.
--
-- What has committed behind high_seq belongs to the transactions that lo lists, or to those from its xmax up to lo_bound.
-- Between these two there may be millions, of any database, because a savepoint takes an xid too. log_xid is read by
-- ranges that end where a transaction is still open, so that no walk covers its rows.
--
-- Events above the last value of the sequence, which must have been set back, are in no window, and no window is opened
-- for them.
--
-- hi_seq is the log's highest seq where the sequence tells nothing: in PostgreSQL 18 for a role without a privilege on it.
-- With 0 instead, a window would hold nothing, and would be opened again and again.
--
-- The transaction must have no xid yet: hi is this statement's snapshot, and hi_bound the xid that is assigned after it
-- was taken, above every one that was assigned before. after_no is the lease_no that the taker has seen. It fences the
-- lease in two ways. A statement that waited for the row's lock continues with its newer version: without the comparison
-- it could put a snapshot older than lo into hi, and deliver again what another holder has delivered meanwhile. And a copy
-- of the statement that reaches the server late, when its taker has sent it again and handled that lease, takes nothing.
--
-- running is still set when the end of the latest lease never came: its handlers may have killed their process. Then
-- events are taken one by one (one_by_one), and each attempt is counted before it is made. A taker that got no answer asks
-- again with the same lease_id, and gets the lease that is running; a lease that has ended is never taken again. A running
-- lease belongs to its holder until its time is over. It is not given even to the same worker id, which another process
-- may have. The exception is previous, which the taker knows to be over: its end was lost in a crash of the server.
UPDATE outbox_schema.listeners AS l
SET lease_by = @worker_id,
    lease_until = clock_timestamp() + @lease::interval,
    lease_no = CASE WHEN l.running AND l.lease_id = @lease_id THEN l.lease_no ELSE l.lease_no + 1 END,
    lease_id = @lease_id,
    preferred = @worker_id,
    wanted_by = CASE WHEN l.preferred = @worker_id THEN l.wanted_by END,
    running = true,
    one_by_one = CASE
        WHEN l.running AND NOT (l.lease_id = @lease_id OR l.lease_by = @worker_id AND l.lease_id = @previous_id)
            THEN greatest(@one_by_one_size::integer, l.one_by_one)
        ELSE l.one_by_one
    END,
    in_batch = true,
    hi = CASE
        WHEN l.in_batch THEN l.hi
        WHEN l.barrier IS NOT NULL THEN l.barrier
        ELSE pg_current_snapshot()
    END,
    hi_bound = CASE
        WHEN l.in_batch THEN l.hi_bound
        WHEN l.barrier IS NOT NULL THEN l.barrier_bound
        ELSE pg_current_xact_id()
    END,
    hi_seq = CASE
        WHEN l.in_batch THEN l.hi_seq
        WHEN l.barrier IS NOT NULL THEN l.barrier_seq
        ELSE coalesce(pg_sequence_last_value('outbox_schema.log_seq'::regclass), (SELECT max(g.seq) FROM outbox_schema.log AS g), 0)
    END
WHERE l.listener = @listener
  AND l.shard = @shard
  AND (
    l.lease_by IS NULL AND (l.preferred IS NULL OR l.preferred = @worker_id OR @take_over::boolean)
    OR l.lease_until < statement_timestamp()
    OR l.lease_by = @worker_id AND l.running AND l.lease_id IN (@lease_id, @previous_id)
  )
  AND (l.lease_no = @after_no::bigint AND l.lease_id IS DISTINCT FROM @lease_id OR l.running AND l.lease_id = @lease_id)
  AND (
    SELECT u.listener
    FROM outbox_schema.pauses AS u
    WHERE u.namespace = ''
      AND u.topic = ''
      AND u.tenant_id = '00000000-0000-0000-0000-000000000000'
      AND u.listener = l.listener
      AND (u.until IS NULL OR u.until > statement_timestamp())
    LIMIT 1
  ) IS NULL
  AND (l.retry_after IS NULL OR l.retry_after <= statement_timestamp())
  AND CASE
    WHEN l.in_batch THEN true
    WHEN l.barrier IS NOT NULL THEN l.lo_bound <> l.barrier_bound
    WHEN l.reshard_to IS NOT NULL THEN false
    WHEN (
        SELECT p.retry_after
        FROM outbox_schema.parked AS p
        WHERE p.listener = l.listener
          AND p.retry_after <= statement_timestamp()
          AND p.bucket % l.shards = l.shard
        ORDER BY p.retry_after
        LIMIT 1
    ) IS NOT NULL THEN true
    WHEN (
        SELECT g.seq -- not EXISTS: it has no order, and the planner may walk the whole of log_xid for it instead of log_pkey
        FROM outbox_schema.log AS g
        WHERE g.seq > l.high_seq
          AND g.seq <= (SELECT coalesce(pg_sequence_last_value('outbox_schema.log_seq'::regclass), 9223372036854775807))
        ORDER BY g.seq
        LIMIT 1
    ) IS NOT NULL THEN true
    ELSE EXISTS (
        SELECT
        FROM (SELECT pg_snapshot_xip(l.lo) AS xid) AS x
        WHERE pg_visible_in_snapshot(x.xid, pg_current_snapshot())
          AND EXISTS (
            SELECT
            FROM outbox_schema.log AS g
            WHERE g.xid = ANY (ARRAY[x.xid])
              AND g.seq <= l.high_seq
          )
    ) OR EXISTS (
        SELECT
        FROM (
            SELECT b.xid AS after, lead(b.xid, 1, l.lo_bound) OVER (ORDER BY b.xid) AS before
            FROM (
                SELECT (((pg_snapshot_xmax(l.lo)::text)::bigint - 1)::text)::xid8 AS xid
                UNION ALL
                SELECT p.xid
                FROM (SELECT pg_snapshot_xip(pg_current_snapshot()) AS xid) AS p
                WHERE p.xid >= pg_snapshot_xmax(l.lo)
                  AND p.xid < l.lo_bound
            ) AS b
            WHERE pg_snapshot_xmax(l.lo) < l.lo_bound
        ) AS s
        WHERE (
            SELECT g.xid -- the first visible one, because nothing visible is above high_seq here
            FROM outbox_schema.log AS g
            WHERE g.xid > s.after
              AND g.xid < s.before
              AND g.seq <= l.high_seq
            ORDER BY g.xid, g.seq
            LIMIT 1
        ) IS NOT NULL
    )
  END
RETURNING
    l.shards, l.lease_no, l.last_seq, l.retry_count, l.one_by_one, l.ahead_seqs, l.ahead_attempts,
    ((
        SELECT p.retry_after
        FROM outbox_schema.parked AS p
        WHERE p.listener = l.listener
          AND p.retry_after <= statement_timestamp()
          AND p.bucket % l.shards = l.shard
        ORDER BY p.retry_after
        LIMIT 1
    ) IS NOT NULL)::boolean AS parked_due,
    (
        SELECT count(*)
        FROM (
            SELECT
            FROM outbox_schema.parked AS p
            WHERE p.listener = l.listener
              AND p.retry_after IS NOT NULL
            ORDER BY p.retry_after
            LIMIT @parked_limit::integer
        ) AS k
    )::integer AS parked_keys;

-- name: ListenerAdvance :one
-- Ends a lease: moves the cursor to last_seq and, when the window is done (closes), makes it the latest finished one.
-- In the same statement dead events are copied to the dead letters, and failed or waiting keys are parked. Guarded by
-- the lease and by running, which makes a repeat change nothing: moved is then false, and ListenerLeaseState tells why.
-- The next lease is left to the same worker, or to one that asks for the shard, if it still asks: a worker that stops
-- does not. release leaves it to hand_to, or to no worker if that is null. let_lease_expire lets the lease run out, because handlers of it still run.
WITH moved AS (
    UPDATE outbox_schema.listeners AS l
    SET last_seq = CASE WHEN @closes::boolean THEN 0 ELSE @last_seq::bigint END,
        lo = CASE WHEN @closes::boolean THEN l.hi ELSE l.lo END,
        lo_bound = CASE WHEN @closes::boolean THEN l.hi_bound ELSE l.lo_bound END,
        high_seq = CASE WHEN @closes::boolean THEN greatest(l.high_seq, @last_seq::bigint) ELSE l.high_seq END,
        hi = CASE WHEN @closes::boolean THEN NULL ELSE l.hi END,
        hi_bound = CASE WHEN @closes::boolean THEN NULL ELSE l.hi_bound END,
        hi_seq = CASE WHEN @closes::boolean THEN NULL ELSE l.hi_seq END,
        in_batch = NOT @closes::boolean,
        ahead_seqs = @ahead_seqs,
        ahead_attempts = @ahead_attempts,
        retry_count = @retry_count,
        retry_after = clock_timestamp() + sqlc.narg('delay')::interval,
        last_error = sqlc.narg('last_error')::text,
        running = false,
        one_by_one = CASE WHEN @closes::boolean THEN 0 ELSE greatest(l.one_by_one - @handled::integer, 0) END,
        lease_by = CASE WHEN @let_lease_expire::boolean THEN gen_random_uuid() END,
        lease_until = CASE WHEN @let_lease_expire::boolean THEN l.lease_until END,
        preferred = CASE
            WHEN @release::boolean THEN sqlc.narg('hand_to')::uuid
            WHEN NOT @let_lease_expire::boolean THEN coalesce(l.wanted_by, l.lease_by)
        END,
        wanted_by = NULL,
        advanced_at = clock_timestamp()
    WHERE l.listener = @listener
      AND l.shard = @shard
      AND l.lease_by = @worker_id
      AND l.lease_no = @lease_no
      AND l.running
    RETURNING l.listener
),
dead AS (
    INSERT INTO outbox_schema.dead_letters (
        listener, seq, id, namespace, topic, version, tenant_id, dedupe_key, partition_key, entity_type,
        entity_id, entity_version, headers, payload, bucket, created_at, key, attempts, error)
    SELECT
        m.listener, g.seq, g.id, g.namespace, g.topic, g.version, g.tenant_id, g.dedupe_key, g.partition_key,
        g.entity_type, g.entity_id, g.entity_version, g.headers, g.payload, g.bucket, g.created_at,
        w.key, w.attempts, w.error
    FROM moved AS m
    CROSS JOIN (
        SELECT
            unnest(@dead_seqs::bigint[]) AS seq,
            unnest(@dead_keys::text[]) AS key,
            unnest(@dead_attempts::integer[]) AS attempts,
            unnest(@dead_errors::text[]) AS error
    ) AS w
    CROSS JOIN LATERAL (
        SELECT o.seq, o.id, o.namespace, o.topic, o.version, o.tenant_id, o.dedupe_key, o.partition_key,
            o.entity_type, o.entity_id, o.entity_version, o.headers, o.payload, o.bucket, o.created_at
        FROM outbox_schema.log AS o
        WHERE o.seq = w.seq
        LIMIT 1
    ) AS g
    ORDER BY g.seq
),
parking AS (
    INSERT INTO outbox_schema.parked (
        listener, key, seq, id, namespace, topic, version, tenant_id, dedupe_key, partition_key, entity_type,
        entity_id, entity_version, headers, payload, bucket, created_at, attempts, retry_after, last_error)
    SELECT
        m.listener, w.key, g.seq, g.id, g.namespace, g.topic, g.version, g.tenant_id,
        g.dedupe_key, g.partition_key, g.entity_type, g.entity_id, g.entity_version, g.headers, g.payload, g.bucket,
        g.created_at, w.attempts,
        CASE WHEN w.delay_us >= 0 THEN clock_timestamp() + w.delay_us * interval '1 microsecond' END,
        nullif(w.error, '')
    FROM moved AS m
    CROSS JOIN (
        SELECT
            unnest(@parked_keys::text[]) AS key,
            unnest(@parked_seqs::bigint[]) AS seq,
            unnest(@parked_attempts::integer[]) AS attempts,
            unnest(@parked_delays_us::bigint[]) AS delay_us,
            unnest(@parked_errors::text[]) AS error
    ) AS w
    CROSS JOIN LATERAL (
        SELECT o.seq, o.id, o.namespace, o.topic, o.version, o.tenant_id, o.dedupe_key, o.partition_key,
            o.entity_type, o.entity_id, o.entity_version, o.headers, o.payload, o.bucket, o.created_at
        FROM outbox_schema.log AS o
        WHERE o.seq = w.seq
        LIMIT 1
    ) AS g
    ORDER BY g.seq
    ON CONFLICT (seq, listener) DO NOTHING
)
SELECT EXISTS (SELECT FROM moved)::boolean AS moved;

-- name: ListenerTry :one
-- Notes how many events the handler of a listener with batches gets together after a crash, before it gets them: most at
-- first, and after each further crash half as many as before. Guarded by the lease.
UPDATE outbox_schema.listeners AS l
SET trying = least(CASE WHEN l.trying = 0 THEN @most::integer ELSE greatest(l.trying / 2, 1) END, @most::integer)
WHERE l.listener = @listener
  AND l.shard = @shard
  AND l.lease_by = @worker_id
  AND l.lease_no = @lease_no
  AND l.running
RETURNING l.trying;

-- name: ListenerTried :exec
-- Notes how many events are tried next after a crash, twice that because ListenerTry halves it, or forgets it when no event
-- is suspected any more. It runs after ListenerAdvance, in its transaction.
UPDATE outbox_schema.listeners AS l
SET trying = CASE WHEN l.one_by_one > 0 THEN @trying::integer ELSE 0 END
WHERE l.listener = @listener
  AND l.shard = @shard
  AND l.lease_no = @lease_no
  AND NOT l.running;

-- name: ListenerCut :exec
-- Makes what is left of the open window of a shard part of the next one, so that it can fill a batch together with what has
-- come since. The window ends at last_seq instead. Everything up to there is delivered that is visible in hi, which holds
-- only if no straggler is left: the cursor is not behind high_seq. Nothing else may be known of the events behind it. It
-- runs after ListenerAdvance, in its transaction. A barrier is not cut: the shard would count as done with it.
UPDATE outbox_schema.listeners AS l
SET lo = l.hi,
    lo_bound = l.hi_bound,
    high_seq = l.last_seq,
    hi = NULL,
    hi_bound = NULL,
    hi_seq = NULL,
    last_seq = 0,
    in_batch = false
WHERE l.listener = @listener
  AND l.shard = @shard
  AND l.lease_no = @lease_no
  AND NOT l.running
  AND l.in_batch
  AND l.last_seq >= l.high_seq
  AND l.barrier IS NULL
  AND l.retry_count = 0
  AND l.one_by_one = 0
  AND l.ahead_seqs = '{}';

-- name: ListenerFill :one
-- Counts the events that wait for a shard, among the next scan_size positions of the log, and tells how long the oldest of
-- them has waited. ready is set if the shard has something that is not to wait for a full batch: parked events that are due,
-- or events of its open window that were tried before.
WITH cur AS MATERIALIZED (
    SELECT l.listener, l.shard, l.shards, greatest(l.high_seq, l.last_seq) AS after_seq,
        l.one_by_one > 0 OR l.retry_count > 0 OR l.ahead_seqs <> '{}' AS tried
    FROM outbox_schema.listeners AS l
    WHERE l.listener = @listener
      AND l.shard = @shard
),
seen AS MATERIALIZED (
    SELECT g.namespace, g.topic, g.bucket, g.created_at
    FROM cur AS c
    CROSS JOIN LATERAL (
        SELECT o.namespace, o.topic, o.bucket, o.created_at
        FROM outbox_schema.log AS o
        WHERE o.seq > c.after_seq
        ORDER BY o.seq
        LIMIT @scan_size::integer
    ) AS g
)
SELECT
    (SELECT count(*) FROM seen)::integer AS scanned,
    n.events,
    n.age_us,
    (c.tried OR (
        SELECT p.retry_after
        FROM outbox_schema.parked AS p
        WHERE p.listener = c.listener
          AND p.retry_after <= statement_timestamp()
          AND p.bucket % c.shards = c.shard
        ORDER BY p.retry_after
        LIMIT 1
    ) IS NOT NULL)::boolean AS ready
FROM cur AS c
CROSS JOIN LATERAL (
    SELECT
        count(*)::integer AS events,
        coalesce(extract(epoch FROM statement_timestamp() - min(s.created_at)) * 1000000, 0)::bigint AS age_us
    FROM seen AS s
    WHERE s.bucket % c.shards = c.shard
      AND s.namespace || '/' || s.topic = ANY (@topics::text[])
) AS n;

-- name: ListenerLeaseState :one
-- Reads who had the latest lease of a shard, and whether it has ended.
SELECT l.lease_by, l.lease_no, l.lease_id, l.running
FROM outbox_schema.listeners AS l
WHERE l.listener = @listener
  AND l.shard = @shard;

-- name: ListenerPastShards :one
-- Reads which numbers of shards the listener had before. There is no row when it has another number than the asker's: then
-- the asker's lease has ended.
SELECT l.past_shards
FROM outbox_schema.listeners AS l
WHERE l.listener = @listener
  AND l.shard = @shard
  AND l.shards = @shards;

-- name: ListenerCharge :execrows
-- Counts an attempt at the event behind last_seq before it is made, because it may kill its process. retry_count always
-- belongs to the event behind last_seq, so the cursor moves there. What lies between is not the listener's.
UPDATE outbox_schema.listeners AS l
SET last_seq = @last_seq,
    retry_count = @attempts
WHERE l.listener = @listener
  AND l.shard = @shard
  AND l.lease_by = @worker_id
  AND l.lease_no = @lease_no
  AND l.running;

-- name: ListenerRenew :execrows
-- Renews a lease while its events are handled.
UPDATE outbox_schema.listeners AS l
SET lease_until = clock_timestamp() + @lease::interval
WHERE l.listener = @listener
  AND l.shard = @shard
  AND l.lease_by = @worker_id
  AND l.lease_no = @lease_no
  AND l.running;

-- name: ListenerRelease :execrows
-- Gives up what a worker that stops is preferred for, and what it has asked others for. A lease that was never ended runs
-- out. lease_no moves, so that no lease that the worker asked for, without an answer, is taken later.
UPDATE outbox_schema.listeners AS l
SET lease_no = CASE WHEN l.preferred = @worker_id AND NOT l.running THEN l.lease_no + 1 ELSE l.lease_no END,
    preferred = nullif(l.preferred, @worker_id),
    wanted_by = CASE WHEN l.preferred = @worker_id THEN NULL ELSE nullif(l.wanted_by, @worker_id) END
FROM (
    SELECT o.shard
    FROM outbox_schema.listeners AS o
    WHERE o.listener = @listener
      AND (o.preferred = @worker_id OR o.wanted_by = @worker_id)
    ORDER BY o.shard
    FOR NO KEY UPDATE
) AS s
WHERE l.listener = @listener
  AND l.shard = s.shard
  AND (l.preferred = @worker_id OR l.wanted_by = @worker_id);

-- name: ListenerWait :one
-- Tells a process that got no lease what it waits for. No row if the listener was detached, or has fewer shards now.
-- wait_us is the time until something falls due by itself: a retry, the end of another's lease, or a parked event; -1
-- when nothing does. ready reports that a shard whose next lease is left to another worker has something to do, by the rule
-- of ListenerTakeLease: then the other worker may be dead.
SELECT
    l.shards,
    l.lease_no,
    (u.listener IS NOT NULL)::boolean AS paused,
    (l.reshard_to IS NOT NULL)::boolean AS resharding,
    coalesce(l.retry_after > statement_timestamp(), false)::boolean AS blocked,
    coalesce(l.lease_until >= statement_timestamp(), false)::boolean AS foreign_lease,
    coalesce(l.lease_by IS NULL AND l.preferred <> @worker_id, false)::boolean AS kept,
    CASE
        WHEN l.lease_by IS NOT NULL OR coalesce(l.preferred = @worker_id, true) OR u.listener IS NOT NULL THEN false
        WHEN l.retry_after > statement_timestamp() THEN false
        WHEN l.in_batch THEN true
        WHEN l.barrier IS NOT NULL THEN l.lo_bound <> l.barrier_bound
        WHEN l.reshard_to IS NOT NULL THEN false
        WHEN (
            SELECT p.retry_after
            FROM outbox_schema.parked AS p
            WHERE p.listener = l.listener
              AND p.retry_after <= statement_timestamp()
              AND p.bucket % l.shards = l.shard
            ORDER BY p.retry_after
            LIMIT 1
        ) IS NOT NULL THEN true
        WHEN (
            SELECT g.seq -- not EXISTS: it has no order, and the planner may walk the whole of log_xid for it instead of log_pkey
            FROM outbox_schema.log AS g
            WHERE g.seq > l.high_seq
              AND g.seq <= (SELECT coalesce(pg_sequence_last_value('outbox_schema.log_seq'::regclass), 9223372036854775807))
            ORDER BY g.seq
            LIMIT 1
        ) IS NOT NULL THEN true
        ELSE EXISTS (
            SELECT
            FROM (SELECT pg_snapshot_xip(l.lo) AS xid) AS x
            WHERE pg_visible_in_snapshot(x.xid, pg_current_snapshot())
              AND EXISTS (
                SELECT
                FROM outbox_schema.log AS g
                WHERE g.xid = ANY (ARRAY[x.xid])
                  AND g.seq <= l.high_seq
              )
        ) OR EXISTS (
            SELECT
            FROM (
                SELECT b.xid AS after, lead(b.xid, 1, l.lo_bound) OVER (ORDER BY b.xid) AS before
                FROM (
                    SELECT (((pg_snapshot_xmax(l.lo)::text)::bigint - 1)::text)::xid8 AS xid
                    UNION ALL
                    SELECT p.xid
                    FROM (SELECT pg_snapshot_xip(pg_current_snapshot()) AS xid) AS p
                    WHERE p.xid >= pg_snapshot_xmax(l.lo)
                      AND p.xid < l.lo_bound
                ) AS b
                WHERE pg_snapshot_xmax(l.lo) < l.lo_bound
            ) AS s
            WHERE (
                SELECT g.xid -- the first visible one, because nothing visible is above high_seq here
                FROM outbox_schema.log AS g
                WHERE g.xid > s.after
                  AND g.xid < s.before
                  AND g.seq <= l.high_seq
                ORDER BY g.xid, g.seq
                LIMIT 1
            ) IS NOT NULL
        )
    END::boolean AS ready,
    coalesce((extract(epoch FROM least(
        CASE WHEN l.retry_after > statement_timestamp() THEN l.retry_after END,
        CASE WHEN l.lease_until >= statement_timestamp() THEN l.lease_until END,
        (
            SELECT p.retry_after
            FROM outbox_schema.parked AS p
            WHERE p.listener = l.listener
              AND p.retry_after > statement_timestamp()
              AND p.bucket % l.shards = l.shard
            ORDER BY p.retry_after
            LIMIT 1
        )
    ) - statement_timestamp()) * 1000000)::bigint, -1)::bigint AS wait_us
FROM outbox_schema.listeners AS l
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
WHERE l.listener = @listener
  AND l.shard = @shard;

-- name: ListenerWant :execrows
-- Asks for a shard of a worker that has at least two more than this one, or will have. Otherwise it writes nothing. It
-- never replaces what another worker has asked for, because idle workers would keep replacing each other's requests.
UPDATE outbox_schema.listeners AS l
SET wanted_by = @worker_id
WHERE l.listener = @listener
  AND l.shard = @shard
  AND l.wanted_by IS NULL
  AND l.preferred <> @worker_id
  AND (
    SELECT count(*) FILTER (WHERE coalesce(o.wanted_by, o.preferred) = l.preferred)
        - count(*) FILTER (WHERE coalesce(o.wanted_by, o.preferred) = @worker_id)
    FROM outbox_schema.listeners AS o
    WHERE o.listener = @listener
  ) > 1;

-- name: ListenerReshard :execrows
-- Asks for another number of shards: from now on no shard opens a window. Asking for the present number takes an earlier
-- request back, at any time: a shard that has come to the barrier, or reads up to it, continues from there as from any
-- window. Under the lock, so that no barrier is being set: a barrier whose snapshot was taken before this statement could
-- be behind a window opened after it.
UPDATE outbox_schema.listeners AS l
SET reshard_to = nullif(@shards::integer, l.shards),
    barrier = CASE WHEN l.shards <> @shards::integer THEN l.barrier END,
    barrier_bound = CASE WHEN l.shards <> @shards::integer THEN l.barrier_bound END,
    barrier_seq = CASE WHEN l.shards <> @shards::integer THEN l.barrier_seq END
FROM (
    SELECT o.shard
    FROM outbox_schema.listeners AS o
    WHERE o.listener = @listener
    ORDER BY o.shard
    FOR NO KEY UPDATE
) AS s
WHERE l.listener = @listener
  AND l.shard = s.shard
  AND l.reshard_to IS DISTINCT FROM nullif(@shards::integer, l.shards);

-- name: ListenerBarrier :execrows
-- Sets the snapshot at which the shards of the old number stop. It needs a transaction without an xid, and one that
-- began when ListenerReshard had committed: then every window was opened before, and none can be ahead of it. The locks
-- assign an xid, but after the snapshot was taken.
UPDATE outbox_schema.listeners AS l
SET barrier = pg_current_snapshot(),
    barrier_bound = pg_current_xact_id(),
    barrier_seq = coalesce(pg_sequence_last_value('outbox_schema.log_seq'::regclass), (SELECT max(g.seq) FROM outbox_schema.log AS g), 0)
FROM (
    SELECT o.shard
    FROM outbox_schema.listeners AS o
    WHERE o.listener = @listener
      AND o.reshard_to IS NOT NULL
      AND o.barrier IS NULL
    ORDER BY o.shard
    FOR NO KEY UPDATE
) AS s
WHERE l.listener = @listener
  AND l.shard = s.shard
  AND l.reshard_to IS NOT NULL
  AND l.barrier IS NULL;

-- name: ListenerArrived :one
-- Locks the cursors of a listener and reports whether all have delivered everything up to the barrier.
SELECT
    coalesce(bool_and(l.barrier IS NOT NULL AND NOT l.in_batch AND l.lo_bound = l.barrier_bound), false)::boolean AS arrived,
    coalesce(max(l.reshard_to), 0)::integer AS reshard_to,
    coalesce(max(l.high_seq), 0)::bigint AS high_seq,
    coalesce(max(l.lease_no), 0)::bigint AS lease_no
FROM (
    SELECT o.barrier, o.in_batch, o.lo_bound, o.barrier_bound, o.reshard_to, o.high_seq, o.lease_no
    FROM outbox_schema.listeners AS o
    WHERE o.listener = @listener
    ORDER BY o.shard
    FOR NO KEY UPDATE
) AS l;

-- name: ListenerDropShards :exec
-- Removes the cursors that a smaller number of shards does not need.
DELETE FROM outbox_schema.listeners AS l
WHERE l.listener = @listener
  AND l.shard >= @shards::integer;

-- name: ListenerRestart :exec
-- Lets the remaining cursors continue from the barrier with the new number of shards. high_seq is the highest of the old
-- ones. A row up to it was visible at the barrier and is delivered, or was unfinished there and is a straggler of every
-- new window.
UPDATE outbox_schema.listeners AS l
SET shards = @shards::integer,
    past_shards = array_remove(l.past_shards, l.shards) || l.shards,
    lo = l.barrier,
    lo_bound = l.barrier_bound,
    high_seq = @high_seq,
    lease_no = @lease_no,
    lease_by = NULL,
    lease_until = NULL,
    preferred = NULL,
    wanted_by = NULL,
    reshard_to = NULL,
    barrier = NULL,
    barrier_bound = NULL,
    barrier_seq = NULL
WHERE l.listener = @listener;

-- name: ListenerAddShards :exec
-- Copies cursor 0 to the shards that a larger number adds.
INSERT INTO outbox_schema.listeners (listener, shard, shards, past_shards, lo, lo_bound, high_seq, lease_no, max_lag, system_id, created_at)
SELECT l.listener, n.shard, l.shards, l.past_shards, l.lo, l.lo_bound, l.high_seq, l.lease_no, l.max_lag, l.system_id, l.created_at
FROM outbox_schema.listeners AS l
CROSS JOIN generate_series(@first::integer, l.shards - 1) AS n (shard)
WHERE l.listener = @listener
  AND l.shard = 0;

-- name: ListenerLags :many
-- Lists the cursors that lag more than their bound, by the age that ListenerList shows.
SELECT l.listener, l.shard,
    (extract(epoch FROM statement_timestamp() - o.oldest) * 1000000)::bigint AS lag_us,
    (extract(epoch FROM l.max_lag) * 1000000)::bigint AS max_lag_us,
    coalesce(l.last_error, '') AS last_error
FROM outbox_schema.listeners AS l
CROSS JOIN LATERAL (
    SELECT least(
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
        (
            SELECT min(p.created_at)
            FROM outbox_schema.parked AS p
            WHERE p.listener = l.listener
              AND p.bucket % l.shards = l.shard
        )
    ) AS oldest
) AS o
WHERE l.max_lag < statement_timestamp() - o.oldest
ORDER BY l.listener, l.shard;
