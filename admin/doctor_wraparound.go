package admin

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/internal/postgres/queries"
)

// The ages of a database or table, in transactions. PostgreSQL refuses writes 3 million before 2^31. Its own measures begin
// before these ages: autovacuum_freeze_max_age is 200 million, and vacuum_failsafe_age 1,600 million.
const (
	oldXIDs   = 1_000_000_000
	finalXIDs = 1_600_000_000
)

// aged is a database, a table, or what keeps rows from being frozen, with its age in transactions.
type aged struct {
	Name string
	Age  int64
}

// checkWraparound: no database of the server, and no table of ours, is near the end of the transaction ids. The oldest
// database counts for all.
func checkWraparound(ctx context.Context, e *examination) (found []Finding, err error) {
	var databases, tables, holders []aged
	err = e.read(ctx, func(ctx context.Context, tx pgx.Tx, _ *queries.Queries) (err error) {
		if databases, err = rowsOf[aged](ctx, tx,
			`SELECT d.datname::text, greatest(age(d.datfrozenxid), mxid_age(d.datminmxid))::bigint
			FROM pg_catalog.pg_database AS d
			WHERE greatest(age(d.datfrozenxid), mxid_age(d.datminmxid)) >= $1
			ORDER BY 2 DESC`, oldXIDs); err != nil {
			return err
		}
		if tables, err = rowsOf[aged](ctx, tx,
			`SELECT r.relname::text, greatest(age(c.relfrozenxid), mxid_age(c.relminmxid))::bigint
			FROM (`+ownRelations+`) AS r JOIN pg_catalog.pg_class AS c ON c.oid = r.oid
			WHERE greatest(age(c.relfrozenxid), mxid_age(c.relminmxid)) >= $3
			ORDER BY 2 DESC`, e.db.Name(), ownTables(), oldXIDs); err != nil || len(databases)+len(tables) == 0 {
			return err
		}
		holders, err = rowsOf[aged](ctx, tx, oldestHolder, e.cfg.pinned)
		return err
	})
	if err != nil || len(databases)+len(tables) == 0 {
		return nil, err
	}
	held := "find what pins old versions (check old snapshots)"
	for _, h := range holders {
		held = fmt.Sprintf("end %s, which is %d transactions old", h.Name, h.Age)
	}
	const means = "at 2,144,000,000 PostgreSQL refuses all writes: enqueues, claims and leases fail until it is vacuumed; " +
		"autovacuum should have frozen it at autovacuum_freeze_max_age"
	if len(databases) > 0 {
		found = append(found, Finding{
			Severity: severityOfXIDs(databases), Text: "databases hold transaction ids that are old: " + namesOf(databases),
			Means: means,
			Fix: held + ", then: vacuumdb --all --freeze; look at autovacuum_freeze_max_age, and why autovacuum does not " +
				"keep up",
		})
	}
	if len(tables) > 0 {
		fixes := []string{"VACUUM (FREEZE);"}
		if len(tables) <= shownHolders {
			fixes = nil
			for _, t := range tables {
				fixes = append(fixes, fmt.Sprintf("VACUUM (FREEZE) %s.%s;", pgx.Identifier{e.db.Name()}.Sanitize(), t.Name))
			}
		}
		found = append(found, Finding{
			Severity: severityOfXIDs(tables), Text: "tables hold transaction ids that are old: " + namesOf(tables),
			Means: means, Fix: held + ", then: " + strings.Join(fixes, " "),
		})
	}
	return found, nil
}

// oldestHolder is the session, prepared transaction, slot or standby that has the oldest transaction id, if it is $1
// transactions old. Each session sees what others have pinned, too, so sessions come last.
const oldestHolder = `SELECT h.name, h.age::bigint
	FROM (
		SELECT 1 AS place, format('prepared transaction %L', p.gid) AS name, age(p.transaction) AS age
		FROM pg_catalog.pg_prepared_xacts AS p
		UNION ALL
		SELECT 2, format('replication slot %s', s.slot_name), greatest(age(s.xmin), age(s.catalog_xmin))
		FROM pg_catalog.pg_replication_slots AS s
		UNION ALL
		SELECT 3, format('the query of standby %s', r.application_name), age(r.backend_xmin)
		FROM pg_catalog.pg_stat_replication AS r
		UNION ALL
		SELECT 4, format('session %s', a.pid), greatest(age(a.backend_xid), age(a.backend_xmin))
		FROM pg_catalog.pg_stat_activity AS a
		WHERE a.pid <> pg_backend_pid()
		  AND a.backend_type NOT IN ('autovacuum worker', 'walsender')
	) AS h
	WHERE h.age >= $1
	ORDER BY h.age DESC, h.place
	LIMIT 1`

func severityOfXIDs(oldestFirst []aged) Severity {
	if oldestFirst[0].Age >= finalXIDs {
		return SeverityError
	}
	return SeverityWarning
}

// namesOf lists a few.
func namesOf(all []aged) string {
	var names []string
	for _, a := range all[:min(len(all), shownHolders)] {
		names = append(names, fmt.Sprintf("%s (%d)", a.Name, a.Age))
	}
	text := strings.Join(names, ", ")
	if more := len(all) - len(names); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
