package admin

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadrift"
	"github.com/outboxgen/outboxgen/migrate"
)

// schemaState is what is known about the tables.
type schemaState struct {
	recorded bool // package migrate applied them, up to version
	version  int
	tables   int // how many of our tables exist
}

// checkMigrations: the migrations are applied, all of them, and with the text of this version of outboxgen.
func checkMigrations(ctx context.Context, e *examination) ([]Finding, error) {
	err := e.read(ctx, func(ctx context.Context, tx pgx.Tx, _ *queries.Queries) error {
		return tx.QueryRow(ctx, `SELECT (SELECT count(*) FROM (`+ownRelations+`) AS t),
			EXISTS (SELECT FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
				WHERE n.nspname = $1 AND c.relname = 'schema_migrations')`, e.db.Name(), ownTables()).Scan(&e.state.tables,
			&e.state.recorded)
	})
	e.state.version = len(migrate.All())
	switch {
	case err != nil:
		return nil, err
	case e.state.tables == 0:
		e.state.version = 0
		return []Finding{{
			Severity: SeverityError,
			Text:     fmt.Sprintf("schema %s has no table of the outbox", e.db.Name()),
			Means:    "nothing can be enqueued or delivered; or the tables are in another schema or database",
			Fix:      e.command("migrate up"),
		}}, nil
	case !e.state.recorded: // another tool applies them
		return nil, nil
	}
	within, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	states, err := migrate.Status(within, e.pool, e.db.Name())
	if err != nil {
		return nil, err
	}
	var found []Finding
	e.state.version = 0
	for _, s := range states {
		name := fmt.Sprintf("migration %04d_%s", s.Version, s.Name)
		if s.Err == nil || errors.Is(s.Err, migrate.ErrDrift) {
			e.state.version = s.Version
		}
		switch {
		case errors.Is(s.Err, migrate.ErrPending):
			found = append(found, Finding{
				Severity: SeverityError, Text: name + " is not applied",
				Means: "what this version of outboxgen needs is missing, so parts of it fail",
				Fix:   e.command("migrate up"),
			})
		case errors.Is(s.Err, migrate.ErrDrift):
			found = append(found, Finding{
				Severity: SeverityError, Text: name + " was applied with a different text",
				Means: "migrate up refuses to continue; the tables may differ from those of this version",
				Fix:   "run the outboxgen that applied it, or create the tables again (outboxgen migrate down, then up)",
			})
		case errors.Is(s.Err, migrate.ErrUnknown):
			found = append(found, Finding{
				Severity: SeverityNotice, Text: name + " is not known to this version of outboxgen",
				Means: "a newer version migrated the database; this version works on, but cannot compare the tables",
				Fix:   "use the newer version of outboxgen",
			})
			e.state.version = 0
		}
	}
	return found, nil
}

// Schemas returns the schemas of this database that have tables of the outbox, by name, at most 20.
func (a *Admin) Schemas(ctx context.Context) ([]string, error) {
	names, err := a.db.Each(a.pool).DoctorSchemas(ctx)
	return names, a.db.Wrap("list schemas", err)
}

// command returns a command line for the schema.
func (e *examination) command(line string) string {
	if e.db.Name() != "outbox" {
		line += " --schema " + e.db.Name()
	}
	return "outboxgen " + line
}

// checkSchema: tables, columns, constraints, indexes, storage options, functions and the view are what the migrations
// make.
func checkSchema(ctx context.Context, e *examination) (found []Finding, err error) {
	if e.state.version == 0 {
		return nil, nil
	}
	var all []schemadrift.Difference
	err = e.read(ctx, func(ctx context.Context, tx pgx.Tx, _ *queries.Queries) error {
		all, err = schemadrift.Compare(ctx, tx, e.db.Name(), e.state.version)
		return err
	})
	for _, d := range all {
		if d.Kind == schemadrift.Storage && d.Name == "autovacuum_enabled" {
			continue // checkVacuum says what it does
		}
		found = append(found, e.driftFinding(d))
	}
	return found, err
}

// driftMeans is what follows from a difference of each kind, if nothing more is known of it.
var driftMeans = map[schemadrift.Kind]struct {
	severity Severity
	means    string
}{
	schemadrift.Table:  {SeverityError, "what uses the table fails"},
	schemadrift.Column: {SeverityError, "statements that use the column fail, or write something else"},
	schemadrift.Index: {SeverityError,
		"what reads through the index reads the whole table instead, and a unique one no longer " +
			"keeps duplicates out"},
	schemadrift.Constraint: {SeverityWarning, "rows that do not fit are not refused"},
	schemadrift.Storage: {SeverityWarning,
		"autovacuum or the space for heap-only updates is not as measured: claims and looks " +
			"may get slower and slower"},
	schemadrift.Trigger:  {SeverityWarning, "each row costs more, and an error of the trigger fails enqueues or claims"},
	schemadrift.Sequence: {SeverityError, "events of log topics cannot be numbered"},
	schemadrift.View:     {SeverityWarning, "people and programs that read the view see something else"},
	schemadrift.Function: {SeverityError, "enqueues from SQL and other languages fail, or do something else"},
}

// driftFinding says what a difference means.
func (e *examination) driftFinding(d schemadrift.Difference) Finding {
	what := fmt.Sprintf("%s %s", d.Kind, d.Table)
	if d.Name != "" {
		what = fmt.Sprintf("%s %s of %s", d.Kind, d.Name, d.Table)
	}
	f := Finding{Severity: driftMeans[d.Kind].severity, Means: driftMeans[d.Kind].means, Fix: d.Fix}
	switch {
	case d.Have == "":
		f.Text = what + " is missing"
	case d.Kind == schemadrift.Function:
		f.Text = what + " is not as the migrations make it"
	case d.Want == "":
		f.Text = fmt.Sprintf("%s is not one of the migrations: %s", what, d.Have)
	default:
		f.Text = fmt.Sprintf("%s is %s, and the migrations make %s", what, d.Have, d.Want)
	}
	switch {
	case d.Kind == schemadrift.Table && d.Have != "":
		f.Text = fmt.Sprintf("table %s is %s, and the migrations make it %s", d.Table, d.Have, d.Want)
		f.Means = "a crash of the server empties an unlogged table, and a standby does not have it"
		f.Fix = fmt.Sprintf("ALTER TABLE %s.%s SET LOGGED;", pgx.Identifier{e.db.Name()}.Sanitize(), d.Table)
	case d.Kind == schemadrift.Column && d.Want == "":
		f.surplusColumn(d)
	case d.Kind == schemadrift.Index:
		f.otherIndex(d)
	case d.Kind == schemadrift.Constraint:
		f.otherConstraint(d)
	case d.Kind == schemadrift.Sequence:
		f.Fix = "restore it from the migrations: outboxgen migrate get"
	}
	if f.Fix == "" {
		f.Fix = fmt.Sprintf("take the definition of %s from outboxgen migrate get", d.Table)
	}
	return f
}

func (f *Finding) surplusColumn(d schemadrift.Difference) {
	f.Severity, f.Means = SeverityNotice, "outboxgen does not use it; a later migration may"
	if strings.Contains(d.Have, " NOT NULL") && !strings.Contains(d.Have, " DEFAULT ") {
		f.Severity, f.Means = SeverityError, "inserts fail, because they do not fill it"
	}
}

func (f *Finding) otherIndex(d schemadrift.Difference) {
	if strings.Contains(d.Have, "-- not valid") {
		f.Text = fmt.Sprintf("index %s of %s is not valid: its build was interrupted", d.Name, d.Table)
		return
	}
	if d.Want != "" {
		return
	}
	f.Severity = SeverityWarning
	f.Means = "each write of the table writes this index too, and updates of its columns are no longer heap-only (HOT)"
	if strings.HasPrefix(d.Have, "CREATE UNIQUE") {
		f.Means += "; a unique index may refuse events"
	}
}

func (f *Finding) otherConstraint(d schemadrift.Difference) {
	switch {
	case strings.Contains(d.Want, "KEY ") || strings.Contains(d.Want, "UNIQUE "):
		f.Severity, f.Means = SeverityError, "duplicates are not refused, and lookups read the whole table"
	case d.Want == "":
		f.Means = "it may refuse events, or keep them from being pruned"
		if d.Fix == "" {
			f.Fix = "drop the foreign key from the table that has it"
		}
	}
}
