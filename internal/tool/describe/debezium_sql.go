package describe

import (
	"fmt"
	"slices"
	"strings"

	"github.com/outboxgen/outboxgen/generator/model"
)

// debeziumSetup returns the SQL that Debezium needs. It can be run again: it creates what is missing. The names in it
// have only letters, digits and _.
func debeziumSetup(schema string, cfg DebeziumConfig, tables []string) []byte {
	var full []string
	for _, table := range tables {
		full = append(full, schema+"."+table)
	}
	of := strings.Join(full, ", ")
	filtered, check := of, ""
	if cfg.Namespace != "" {
		for i := range full {
			full[i] += " WHERE (namespace = '" + cfg.Namespace + "')"
		}
		filtered = strings.Join(full, ", ")
		check = `    IF current_setting('server_version_num')::int < 150000 THEN
        RAISE EXCEPTION 'a publication of one namespace needs PostgreSQL 15' USING HINT = 'Export without --namespace.';
    END IF;
`
	}
	return []byte(strings.NewReplacer("{name}", cfg.Name, "{role}", cfg.Role, "{schema}", schema, "{tables}", of,
		"{published}", quoted(filtered),
		"{check}\n", check).Replace(setupSQL))
}

// quoted returns text as it stands in a string of SQL.
func quoted(text string) string { return strings.ReplaceAll(text, "'", "''") }

const setupSQL = `-- What Debezium needs in PostgreSQL to publish the events of {tables}. Run it with psql as a superuser, or as a
-- role that may create roles, publications and slots. It can be run again.
--
-- The outbox needs no other REPLICA IDENTITY: the publication has only inserts. Prune deletes rows as before.
--
-- The slot keeps the WAL until Debezium has read it. Limit it with max_slot_wal_keep_size, and monitor
-- pg_replication_slots: a slot that lost its WAL has lost events. To undo everything, after the connector is deleted:
--   SELECT pg_drop_replication_slot('{name}');
--   DROP PUBLICATION {name};
--   DROP OWNED BY {role}; DROP ROLE {role};

DO $$
BEGIN
    IF current_setting('wal_level') <> 'logical' THEN
        RAISE EXCEPTION 'wal_level is %, and Debezium needs logical', current_setting('wal_level')
            USING HINT = 'ALTER SYSTEM SET wal_level = logical, then restart PostgreSQL.';
    END IF;
{check}
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{role}') THEN
        CREATE ROLE {role} LOGIN REPLICATION; -- it has no password yet: \password {role}
    END IF;
    IF EXISTS (SELECT FROM pg_publication WHERE pubname = '{name}') THEN
        EXECUTE 'ALTER PUBLICATION {name} SET TABLE {published}';
    ELSE
        EXECUTE 'CREATE PUBLICATION {name} FOR TABLE {published} WITH (publish = ''insert'')';
    END IF;
END
$$;

GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT ON {tables} TO {role};

-- From here on no event is missed, whenever the connector starts. This statement cannot be in a transaction that writes.
SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')
WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = '{name}');
`

// debeziumCleanup returns the SQL that deletes the events of queue topics, which no dispatcher delivers, by their
// retention.
func debeziumCleanup(schema string, topics []*model.Topic) []byte {
	var b strings.Builder
	fmt.Fprintf(&b,
		`-- Deletes the events that Debezium has published from the queue, because no dispatcher delivers them. Run it every hour.
-- It does not look at Debezium: an event that is deleted here is still in the WAL, from which Debezium reads it. Until then
-- the dedupe key of an event is taken.
`)
	for _, t := range slices.Clone(topics) {
		names := []string{"'" + t.Name + "'"}
		for _, old := range t.Renamed {
			names = append(names, "'"+old+"'")
		}
		fmt.Fprintf(&b, `
WITH published AS (
    DELETE FROM %[1]s.queue AS q
    USING %[1]s.events AS e
    WHERE q.namespace = '%[2]s' AND q.topic IN (%[3]s)
      AND e.id = q.id AND e.created_at < statement_timestamp() - interval '%[4]d seconds'
    RETURNING q.id
)
DELETE FROM %[1]s.events AS e USING published AS p WHERE e.id = p.id;
`, schema, t.Namespace.Name, strings.Join(names, ", "), int64(t.Retention.Delivered.Seconds()))
	}
	return []byte(b.String())
}
