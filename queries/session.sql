-- name: SessionGuard :exec
-- Settings for the rest of one of our transactions. A claim must be on disk before anything is handled, whatever the
-- session prefers. Its flush covers every commit that it has seen, also those of producers that commit asynchronously.
-- The planner is held to the index walks that the statements are written for, because statistics taken while the table
-- was empty make a scan of the backlog look free. Those walks do not depend on the parameters. So planning them for each
-- execution would gain nothing, and takes longer than running them for a few events. What they need and the role has
-- switched off is switched on. With the path of SessionPath.
SELECT
    set_config('search_path', 'pg_catalog, pg_temp', true),
    set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true),
    set_config('enable_indexscan', 'on', true),
    set_config('enable_indexonlyscan', 'on', true),
    set_config('enable_nestloop', 'on', true),
    set_config('enable_seqscan', 'off', true),
    set_config('enable_bitmapscan', 'off', true),
    set_config('enable_hashjoin', 'off', true),
    set_config('enable_mergejoin', 'off', true),
    set_config('plan_cache_mode', 'force_generic_plan', true),
    set_config('jit', 'off', true);

-- name: SessionPath :exec
-- The path for the rest of one of our transactions. PostgreSQL prefers a function or operator whose arguments match exactly
-- to one of pg_catalog that takes any type, in whatever schema of the path it is. Somebody who may create functions there
-- would have them called with the privileges of our role. Statements that run in transactions of others, whose path stays
-- as it is, must call nothing that could be taken for another function: they name pg_catalog and cast.
SELECT set_config('search_path', 'pg_catalog, pg_temp', true);

-- name: SessionPathKeep :exec
-- Remembers the path for SessionPathRestore.
SELECT set_config('outboxgen.search_path', current_setting('search_path'), true);

-- name: SessionPathRestore :exec
-- Gives the code of others, such as a deferred trigger, its path back for the commit.
SELECT set_config('search_path', current_setting('outboxgen.search_path'), true);

-- name: BellTryLock :one
-- Takes the doorbell for a sleeper. Refused while another sleeper holds it, or while a transaction that has enqueued is
-- open.
SELECT pg_try_advisory_lock(@lock_key::bigint)::boolean AS locked;

-- name: BellPatience :exec
-- Says how long a sleeper waits for transactions that are open, and for which doorbell, for the rest of the transaction.
SELECT
    set_config('lock_timeout', (@wait_ms::integer)::text, true),
    set_config('outboxgen.bell', (@lock_key::bigint)::text, true);

-- name: BellUnlock :one
SELECT pg_advisory_unlock(@lock_key::bigint)::boolean AS unlocked;

-- name: BellLocked :one
-- Reports whether some session sleeps with the doorbell: then it was a sleeper that refused BellTryLock. And whether one
-- waits for it, and has waited for longer than a sleeper waits for short transactions.
SELECT
    coalesce(bool_or(l.granted), false)::boolean AS locked,
    coalesce(bool_or(l.waitstart < clock_timestamp() - interval '5 milliseconds'), false)::boolean AS awaited
FROM pg_catalog.pg_locks AS l
WHERE l.locktype = 'advisory'
  AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = current_database())
  AND l.classid = (@lock_key::bigint >> 32 & 4294967295)::oid
  AND l.objid = (@lock_key::bigint & 4294967295)::oid
  AND l.objsubid = 1
  AND l.mode = 'ExclusiveLock';

-- name: BellRing :exec
-- Wakes every sleeper of the channel, which checks at once. An enqueue rings with an empty payload.
SELECT pg_notify(@channel::text, 'check');

-- name: SnapshotHolder :many
-- Finds the session that has been in its transaction for longest, and for longer than open_for, and that keeps
-- PostgreSQL from removing row versions of this database that were replaced since. Sees only sessions that the role may
-- see: its own, or all with pg_read_all_stats. A standby or a slot has no database.
SELECT
    a.pid::integer AS pid,
    coalesce(a.usename::text, '')::text AS role,
    coalesce(a.state, '')::text AS state,
    (extract(epoch FROM statement_timestamp() - a.xact_start) * 1000000)::bigint AS age_us
FROM pg_catalog.pg_stat_activity AS a
WHERE (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
  AND (a.datname = current_database() OR a.datname IS NULL)
  AND a.pid <> pg_backend_pid()
  AND a.backend_type <> 'autovacuum worker'
  AND a.xact_start < statement_timestamp() - @open_for::interval
ORDER BY a.xact_start
LIMIT 1;

-- name: BellProbe :exec
-- BellRing with a token. It shows a sleeper that notifications sent through this connection arrive.
SELECT pg_notify(@channel::text, @token::text);
