-- name: LogInsert :one
-- EventInsert for a log topic: no row if the dedupe key is taken. seq and xid come from their defaults, in that
-- order.
INSERT INTO outbox_schema.log (
    id, namespace, topic, version, tenant_id, dedupe_key, partition_key, entity_type, entity_id,
    entity_version, headers, payload, bucket)
VALUES (
    @id, @namespace, @topic, @version, @tenant_id, @dedupe_key::text, sqlc.narg('partition_key')::text,
    sqlc.narg('entity_type')::text, sqlc.narg('entity_id')::text, sqlc.narg('entity_version')::bigint, @headers, @payload, @bucket)
ON CONFLICT (namespace, topic, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING
RETURNING
    (CASE
        WHEN pg_try_advisory_xact_lock_shared(sqlc.narg('lock_key')::bigint) IS NOT FALSE THEN false
        ELSE pg_notify(@channel::text, '') IS NOT NULL
    END)::boolean AS woke;

-- name: LogInsertKeyless :one
-- EventInsertKeyless for a log topic.
INSERT INTO outbox_schema.log (
    id, namespace, topic, version, tenant_id, partition_key, entity_type, entity_id,
    entity_version, headers, payload, bucket)
VALUES (
    @id, @namespace, @topic, @version, @tenant_id, sqlc.narg('partition_key')::text,
    sqlc.narg('entity_type')::text, sqlc.narg('entity_id')::text, sqlc.narg('entity_version')::bigint, @headers, @payload, @bucket)
RETURNING
    (CASE
        WHEN pg_try_advisory_xact_lock_shared(sqlc.narg('lock_key')::bigint) IS NOT FALSE THEN false
        ELSE pg_notify(@channel::text, '') IS NOT NULL
    END)::boolean AS woke;

-- name: LogInsertMany :one
-- EventInsertMany for a log topic. Rows are inserted by dedupe key, as there, but their seqs are drawn in the order of the
-- call, which is the order in which listeners get them. The xid is taken before, as by the default of seq.
WITH wanted AS (
    SELECT
        pg_catalog.unnest(@ids::uuid[]) AS id,
        pg_catalog.unnest(@tenant_ids::uuid[]) AS tenant_id,
        pg_catalog.unnest(@dedupe_keys::text[]) AS dedupe_key,
        pg_catalog.unnest(@partition_keys::text[]) AS partition_key,
        pg_catalog.unnest(@entity_types::text[]) AS entity_type,
        pg_catalog.unnest(@entity_ids::text[]) AS entity_id,
        pg_catalog.unnest(@entity_versions::bigint[]) AS entity_version,
        pg_catalog.unnest(@headers::jsonb[]) AS headers,
        pg_catalog.unnest(@payloads::jsonb[]) AS payload,
        pg_catalog.unnest(@buckets::smallint[]) AS bucket,
        pg_catalog.unnest(@places::integer[]) AS place
),
numbered AS MATERIALIZED (
    SELECT
        w.id, w.tenant_id, w.dedupe_key, w.partition_key, w.entity_type, w.entity_id, w.entity_version,
        w.headers, w.payload, w.bucket,
        CASE WHEN pg_current_xact_id() IS NOT NULL THEN nextval('outbox_schema.log_seq') END AS seq
    FROM (
        SELECT o.id, o.tenant_id, o.dedupe_key, o.partition_key, o.entity_type, o.entity_id, o.entity_version,
            o.headers, o.payload, o.bucket
        FROM wanted AS o
        ORDER BY o.place
    ) AS w
),
inserted AS (
    INSERT INTO outbox_schema.log (
        seq, id, namespace, topic, version, tenant_id, dedupe_key, partition_key, entity_type, entity_id,
        entity_version, headers, payload, bucket)
    SELECT
        w.seq, w.id, @namespace, @topic, @version, w.tenant_id, nullif(w.dedupe_key, ''), nullif(w.partition_key, ''),
        nullif(w.entity_type, ''), nullif(w.entity_id, ''),
        CASE WHEN w.entity_type <> '' THEN w.entity_version END,
        w.headers, w.payload, w.bucket
    FROM numbered AS w
    ORDER BY w.dedupe_key COLLATE "C"
    ON CONFLICT (namespace, topic, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING
    RETURNING log.id
)
SELECT
    count(*) AS written,
    (CASE WHEN count(*) < pg_catalog.cardinality(@ids::uuid[]) THEN (SELECT pg_catalog.array_agg(i.id) FROM inserted AS i) END)::uuid[] AS ids,
    (CASE
        WHEN count(*) = 0 THEN false
        WHEN pg_try_advisory_xact_lock_shared(sqlc.narg('lock_key')::bigint) IS NOT FALSE THEN false
        ELSE pg_notify(@channel::text, '') IS NOT NULL
    END)::boolean AS woke
FROM inserted;

-- name: LogInsertManyKeyless :one
-- EventInsertManyKeyless for a log topic. Rows are inserted in the order of the call, and seq's default numbers them in it.
WITH wanted AS (
    SELECT
        pg_catalog.unnest(@ids::uuid[]) AS id,
        pg_catalog.unnest(@tenant_ids::uuid[]) AS tenant_id,
        pg_catalog.unnest(@dedupe_keys::text[]) AS dedupe_key,
        pg_catalog.unnest(@partition_keys::text[]) AS partition_key,
        pg_catalog.unnest(@entity_types::text[]) AS entity_type,
        pg_catalog.unnest(@entity_ids::text[]) AS entity_id,
        pg_catalog.unnest(@entity_versions::bigint[]) AS entity_version,
        pg_catalog.unnest(@headers::jsonb[]) AS headers,
        pg_catalog.unnest(@payloads::jsonb[]) AS payload,
        pg_catalog.unnest(@buckets::smallint[]) AS bucket,
        pg_catalog.unnest(@places::integer[]) AS place
),
inserted AS (
    INSERT INTO outbox_schema.log (
        id, namespace, topic, version, tenant_id, dedupe_key, partition_key, entity_type, entity_id,
        entity_version, headers, payload, bucket)
    SELECT
        w.id, @namespace, @topic, @version, w.tenant_id, nullif(w.dedupe_key, ''), nullif(w.partition_key, ''),
        nullif(w.entity_type, ''), nullif(w.entity_id, ''),
        CASE WHEN w.entity_type <> '' THEN w.entity_version END,
        w.headers, w.payload, w.bucket
    FROM wanted AS w
    ORDER BY w.place
    RETURNING log.id
)
SELECT
    count(*) AS written,
    (CASE WHEN count(*) < pg_catalog.cardinality(@ids::uuid[]) THEN (SELECT pg_catalog.array_agg(i.id) FROM inserted AS i) END)::uuid[] AS ids,
    (CASE
        WHEN count(*) = 0 THEN false
        WHEN pg_try_advisory_xact_lock_shared(sqlc.narg('lock_key')::bigint) IS NOT FALSE THEN false
        ELSE pg_notify(@channel::text, '') IS NOT NULL
    END)::boolean AS woke
FROM inserted;

-- name: LogQueue :one
-- EventQueue for a log topic.
WITH inserted AS (
    INSERT INTO outbox_schema.log (
        id, namespace, topic, version, tenant_id, dedupe_key, partition_key, entity_type, entity_id,
        entity_version, headers, payload, bucket)
    VALUES (
        @id, @namespace, @topic, @version, @tenant_id, @dedupe_key::text, sqlc.narg('partition_key')::text,
        sqlc.narg('entity_type')::text, sqlc.narg('entity_id')::text, sqlc.narg('entity_version')::bigint, @headers, @payload, @bucket)
    ON CONFLICT (namespace, topic, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING
    RETURNING
        CASE
            WHEN pg_try_advisory_xact_lock_shared(sqlc.narg('lock_key')::bigint) IS NOT FALSE THEN false
            ELSE pg_notify(@channel::text, '') IS NOT NULL
        END AS woke
)
SELECT
    n.written,
    (CASE WHEN NOT n.written THEN (
        SELECT g.id
        FROM outbox_schema.log AS g
        WHERE g.namespace = @namespace
          AND g.topic = @topic
          AND g.dedupe_key = @dedupe_key::text
    ) END)::uuid AS rival
FROM (SELECT EXISTS (SELECT FROM inserted WHERE woke IS NOT NULL) AS written) AS n;

-- name: LogIDByKey :many
-- EventIDByKey for a log topic.
SELECT g.id, g.dedupe_key::text AS dedupe_key
FROM (SELECT pg_catalog.unnest(@dedupe_keys::text[]) AS dedupe_key) AS w
CROSS JOIN LATERAL (
    SELECT o.id, o.dedupe_key
    FROM outbox_schema.log AS o
    WHERE o.namespace = @namespace
      AND o.topic = @topic
      AND o.dedupe_key = w.dedupe_key
    LIMIT 1
) AS g;

-- name: LogRead :many
-- Reads the next events of a shard's open window: up to batch_size of them, from up to scan_size positions. What a
-- listener skips, because it belongs to other topics or shards, counts only against scan_size. After a crash events come
-- one by one. Each row repeats how many positions were passed (scanned) and the last of them. Without an event there is
-- one row with nulls.
--
-- late holds the transactions that were unfinished in lo and are visible in hi. These are the xids that lo lists, and
-- those between its xmax and lo_bound, which had been assigned but are in no list, because xmax follows the latest that
-- had ended. There may be millions between these two, of any database, because a savepoint takes one too. hop finds those
-- that have rows, each by one probe of log_xid behind the one before. It goes around those that hi lists, and each span
-- ends at one, so that no probe walks the rows of a large transaction that is not visible yet.
--
-- The rows of late up to high_seq are the stragglers. They are walked by log_xid, with a limit for each transaction. The
-- condition is xid = ANY, because with a plain xid = ... only seq is left as an order, and with poor statistics the planner
-- may walk log_pkey through the whole backlog. It is not a range of (xid, seq), because such a walk ends with the last row
-- of xid and not at high_seq. fresh is what lies above high_seq, by log_pkey. It ends at hi_seq, so that a window does not
-- read on into what was enqueued after it was opened. Stragglers have the smaller seqs, so seq orders both.
--
-- Whether a key is parked is looked up only between the first and the last parked key: those of a destination that is away
-- stand together, and the others cost two comparisons. The lookup is a range of parked_key, in the order of that index.
-- Otherwise a plan that was made while nothing was parked, and is still in use, might walk everything parked by another index.
WITH RECURSIVE cur AS MATERIALIZED (
    SELECT l.lo, l.lo_bound, l.high_seq, l.hi, l.hi_seq, l.last_seq, l.shard, l.shards, l.one_by_one
    FROM outbox_schema.listeners AS l
    WHERE l.listener = @listener
      AND l.shard = @shard
      AND l.lease_by = @worker_id
      AND l.running
),
span AS MATERIALIZED (
    SELECT b.xid AS after, lead(b.xid, 1, c.lo_bound) OVER (ORDER BY b.xid) AS before
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
late AS MATERIALIZED (
    SELECT x.xid
    FROM cur AS c
    CROSS JOIN LATERAL (
        SELECT pg_snapshot_xip(c.lo) AS xid
        UNION ALL
        SELECT h.xid
        FROM hop AS h
        WHERE h.xid IS NOT NULL
    ) AS x
    WHERE pg_visible_in_snapshot(x.xid, c.hi)
),
straggler AS MATERIALIZED (
    SELECT g.seq, g.id, g.namespace, g.topic, g.version, g.tenant_id, g.dedupe_key, g.partition_key, g.entity_type,
        g.entity_id, g.entity_version, g.headers, g.payload, g.bucket, g.created_at
    FROM cur AS c
    CROSS JOIN late AS x
    CROSS JOIN LATERAL (
        SELECT o.seq, o.id, o.namespace, o.topic, o.version, o.tenant_id, o.dedupe_key, o.partition_key,
            o.entity_type, o.entity_id, o.entity_version, o.headers, o.payload, o.bucket, o.created_at
        FROM outbox_schema.log AS o
        WHERE o.xid = ANY (ARRAY[x.xid])
          AND o.seq > c.last_seq
          AND o.seq <= c.high_seq
        ORDER BY o.xid, o.seq
        LIMIT @scan_size::integer
    ) AS g
    ORDER BY g.seq
    LIMIT @scan_size::integer
),
seen AS MATERIALIZED (
    SELECT s.seq, s.id, s.namespace, s.topic, s.version, s.tenant_id, s.dedupe_key, s.partition_key, s.entity_type,
        s.entity_id, s.entity_version, s.headers, s.payload, s.bucket, s.created_at
    FROM straggler AS s
    UNION ALL
    SELECT g.seq, g.id, g.namespace, g.topic, g.version, g.tenant_id, g.dedupe_key, g.partition_key, g.entity_type,
        g.entity_id, g.entity_version, g.headers, g.payload, g.bucket, g.created_at
    FROM cur AS c
    CROSS JOIN LATERAL (
        SELECT o.seq, o.id, o.namespace, o.topic, o.version, o.tenant_id, o.dedupe_key, o.partition_key,
            o.entity_type, o.entity_id, o.entity_version, o.headers, o.payload, o.bucket, o.created_at
        FROM outbox_schema.log AS o
        WHERE o.seq > greatest(c.high_seq, c.last_seq)
          AND o.seq <= c.hi_seq
          AND pg_visible_in_snapshot(o.xid, c.hi)
        ORDER BY o.seq
        LIMIT -(SELECT count(*) FROM straggler) + @scan_size::integer
    ) AS g
),
picked AS (
    SELECT s.seq, s.id, s.namespace, s.topic, s.version, s.tenant_id, s.dedupe_key, s.partition_key, s.entity_type,
        s.entity_id, s.entity_version, s.headers, s.payload, s.created_at,
        (@key_prefixes::text[])[array_position(@topics::text[], s.namespace || '/' || s.topic)]
            || coalesce(s.partition_key, s.id::text) AS key
    FROM seen AS s
    CROSS JOIN cur AS c
    WHERE s.namespace || '/' || s.topic = ANY (@topics::text[])
      AND s.bucket % c.shards = c.shard
    ORDER BY s.seq
    LIMIT (SELECT CASE WHEN c.one_by_one > 0 THEN 1 ELSE @batch_size::integer END FROM cur AS c)
)
SELECT t.scanned, coalesce(t.last_seq, 0)::bigint AS scanned_to,
    p.seq, p.id, p.namespace, p.topic, p.version, p.tenant_id,
    coalesce(p.dedupe_key, '') AS dedupe_key,
    coalesce(p.partition_key, '') AS partition_key,
    coalesce(p.entity_type, '') AS entity_type,
    coalesce(p.entity_id, '') AS entity_id,
    coalesce(p.entity_version, 0) AS entity_version,
    p.headers, p.payload, p.created_at,
    ((p.key >= (SELECT a.key FROM outbox_schema.parked AS a WHERE a.listener = @listener ORDER BY a.listener, a.key LIMIT 1)
    AND p.key <= (SELECT a.key FROM outbox_schema.parked AS a WHERE a.listener = @listener ORDER BY a.listener DESC, a.key DESC LIMIT 1)
    AND (
        SELECT k.no
        FROM outbox_schema.parked AS k
        WHERE k.listener = @listener
          AND k.key >= p.key
          AND k.key <= p.key
        ORDER BY k.listener, k.key, k.no
        LIMIT 1
    ) IS NOT NULL) IS TRUE)::boolean AS parked
FROM (SELECT count(*) AS scanned, max(s.seq) AS last_seq FROM seen AS s) AS t
LEFT JOIN picked AS p ON true
ORDER BY p.seq;

-- name: LogReadNext :many
-- Reads on in the open window of a lease, behind after_seq, while what comes before is handled: the next scan_size
-- positions, each a row. topic is the place in topics, and null where the event is not the listener's. There is no row
-- unless this is what LogRead would read once the cursor stands at after_seq: the lease is running and no straggler is
-- left. For as long as the lease holds, neither the window nor what is in it can change. A key can become parked only at
-- the end of this lease, and its holder knows the keys that it parks.
--
-- Unlike in LogRead, nothing is materialized or sorted. One walk of log_pkey has its events in order, and the cursor comes
-- by subqueries and not a join, so that the planner knows this. Whether a key is parked is asked as in LogRead, and only if
-- one is, because the keys of all events would cost a third of the statement.
WITH cur AS MATERIALIZED (
    SELECT l.hi, l.hi_seq, l.shard, l.shards
    FROM outbox_schema.listeners AS l
    WHERE l.listener = @listener
      AND l.shard = @shard
      AND l.lease_by = @worker_id
      AND l.lease_no = @lease_no
      AND l.running
      AND l.high_seq <= @after_seq::bigint
)
SELECT g.topic, g.seq, g.id, g.version, g.tenant_id, g.dedupe_key, g.partition_key, g.entity_type, g.entity_id, g.entity_version,
    CASE WHEN g.topic IS NOT NULL THEN g.headers END AS headers,
    CASE WHEN g.topic IS NOT NULL THEN g.payload END AS payload,
    g.created_at,
    (CASE WHEN (SELECT a.key FROM outbox_schema.parked AS a WHERE a.listener = @listener ORDER BY a.listener, a.key LIMIT 1) IS NOT NULL
        THEN (
            SELECT (
                p.key >= (SELECT a.key FROM outbox_schema.parked AS a WHERE a.listener = @listener ORDER BY a.listener, a.key LIMIT 1)
                AND p.key <= (SELECT a.key FROM outbox_schema.parked AS a WHERE a.listener = @listener ORDER BY a.listener DESC, a.key DESC LIMIT 1)
                AND (
                    SELECT k.no
                    FROM outbox_schema.parked AS k
                    WHERE k.listener = @listener
                      AND k.key >= p.key
                      AND k.key <= p.key
                    ORDER BY k.listener, k.key, k.no
                    LIMIT 1
                ) IS NOT NULL
            ) IS TRUE
            FROM (SELECT (@key_prefixes::text[])[g.topic] || coalesce(g.partition_key, g.id::text) AS key) AS p
        )
        ELSE false
    END)::boolean AS parked
FROM (
    SELECT o.seq, o.id, o.version, o.tenant_id, o.dedupe_key, o.partition_key, o.entity_type, o.entity_id,
        o.entity_version, o.headers, o.payload, o.created_at,
        CASE WHEN o.bucket % (SELECT c.shards FROM cur AS c) = (SELECT c.shard FROM cur AS c)
            THEN array_position(@topics::text[], o.namespace || '/' || o.topic)
        END AS topic
    FROM outbox_schema.log AS o
    WHERE o.seq > @after_seq::bigint
      AND o.seq <= (SELECT c.hi_seq FROM cur AS c)
      AND pg_visible_in_snapshot(o.xid, (SELECT c.hi FROM cur AS c))
    ORDER BY o.seq
    LIMIT @scan_size::integer
) AS g
ORDER BY g.seq;

-- name: LogPrune :one
-- Deletes, of the next scan_size positions after after_seq, the events that are older than the retention of their
-- topic and that every listener is past: visible in its finished windows, or delivered in its open one. Returns how
-- far it went, how many it deleted, how many are kept for a listener, and whether everything it saw was too young for any retention, which ends the walk. With
-- count_only it deletes nothing.
WITH retention AS MATERIALIZED (
    SELECT
        unnest(@topics::text[]) AS topic,
        unnest(@retentions_us::bigint[]) * interval '1 microsecond' AS keep
),
seen AS MATERIALIZED (
    SELECT g.seq, g.xid, g.namespace || '/' || g.topic AS topic, g.created_at
    FROM outbox_schema.log AS g
    WHERE g.seq > @after_seq
    ORDER BY g.seq
    LIMIT @scan_size::integer
),
old AS MATERIALIZED (
    SELECT s.seq, s.xid
    FROM seen AS s
    JOIN retention AS r ON r.topic = s.topic AND s.created_at < statement_timestamp() - r.keep
),
passed AS MATERIALIZED (
    SELECT o.seq
    FROM old AS o
    WHERE NOT EXISTS (
        SELECT
        FROM outbox_schema.listeners AS l
        WHERE NOT (o.seq <= l.high_seq AND pg_visible_in_snapshot(o.xid, l.lo))
          AND NOT (l.in_batch AND o.seq <= l.last_seq AND pg_visible_in_snapshot(o.xid, l.hi))
      )
),
gone AS (
    DELETE FROM outbox_schema.log AS g
    USING passed AS p
    WHERE g.seq = p.seq
      AND NOT @count_only::boolean
    RETURNING g.seq
)
SELECT
    (SELECT coalesce(max(s.seq), 0) FROM seen AS s)::bigint AS last_seq,
    (SELECT count(*) FROM seen)::bigint AS scanned,
    ((SELECT count(*) FROM old) - (SELECT count(*) FROM passed))::bigint AS blocked,
    (SELECT count(*) FROM gone)::bigint AS deleted,
    (SELECT NOT coalesce(bool_or(s.created_at < statement_timestamp() - (SELECT min(r.keep) FROM retention AS r)), false) FROM seen AS s)::boolean AS young;
