-- What Debezium needs in PostgreSQL to publish the events of outbox.log, outbox.events. Run it with psql as a superuser, or as a
-- role that may create roles, publications and slots. It can be run again.
--
-- The outbox needs no other REPLICA IDENTITY: the publication has only inserts. Prune deletes rows as before.
--
-- The slot keeps the WAL until Debezium has read it. Limit it with max_slot_wal_keep_size, and monitor
-- pg_replication_slots: a slot that lost its WAL has lost events. To undo everything, after the connector is deleted:
--   SELECT pg_drop_replication_slot('outbox_debezium');
--   DROP PUBLICATION outbox_debezium;
--   DROP OWNED BY debezium; DROP ROLE debezium;

DO $$
BEGIN
    IF current_setting('wal_level') <> 'logical' THEN
        RAISE EXCEPTION 'wal_level is %, and Debezium needs logical', current_setting('wal_level')
            USING HINT = 'ALTER SYSTEM SET wal_level = logical, then restart PostgreSQL.';
    END IF;
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'debezium') THEN
        CREATE ROLE debezium LOGIN REPLICATION; -- it has no password yet: \password debezium
    END IF;
    IF EXISTS (SELECT FROM pg_publication WHERE pubname = 'outbox_debezium') THEN
        EXECUTE 'ALTER PUBLICATION outbox_debezium SET TABLE outbox.log, outbox.events';
    ELSE
        EXECUTE 'CREATE PUBLICATION outbox_debezium FOR TABLE outbox.log, outbox.events WITH (publish = ''insert'')';
    END IF;
END
$$;

GRANT USAGE ON SCHEMA outbox TO debezium;
GRANT SELECT ON outbox.log, outbox.events TO debezium;

-- From here on no event is missed, whenever the connector starts. This statement cannot be in a transaction that writes.
SELECT pg_create_logical_replication_slot('outbox_debezium', 'pgoutput')
WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = 'outbox_debezium');
