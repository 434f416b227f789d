package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/migrate"
)

func (a *app) migrateCommand() *cobra.Command {
	var db database
	c := group("migrate", "Create, change and remove the tables in PostgreSQL",
		`migrate applies the migrations of this version of outboxgen to a schema of a database, each in its own
transaction. Concurrent runs wait for each other. migrate get prints them for another migration tool.`,
		a.migrateUp(&db), a.migrateDown(&db), a.migrateStatus(&db), a.migrateValidate(&db), a.migrateGet(&db))
	db.flags(c)
	return c
}

// migrationRow is a migration in the --json document.
type migrationRow struct {
	Version   int       `json:"version"`
	Name      string    `json:"name"`
	State     string    `json:"state,omitempty"` // applied, pending, drifted, unknown
	AppliedAt time.Time `json:"applied_at,omitzero"`
}

// migrationList is the --json document.
type migrationList struct {
	Migrations []migrationRow `json:"migrations"`
}

func migrationRows(all []migrate.Migration) []migrationRow {
	rows := []migrationRow{}
	for _, m := range all {
		rows = append(rows, migrationRow{Version: m.Version, Name: m.Name})
	}
	return rows
}

func stateRow(s migrate.State) migrationRow {
	row := migrationRow{Version: s.Version, Name: s.Name, State: "applied", AppliedAt: s.AppliedAt.UTC()}
	switch {
	case errors.Is(s.Err, migrate.ErrPending):
		row.State = "pending"
	case errors.Is(s.Err, migrate.ErrDrift):
		row.State = "drifted"
	case errors.Is(s.Err, migrate.ErrUnknown):
		row.State = "unknown"
	}
	return row
}

// on runs fn with a connection and the name of the schema.
func (a *app) on(
	db *database, fn func(ctx context.Context, conn *pgx.Conn, schema string) error,
) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		return run(func(ctx context.Context, _ []string) error {
			schema, err := db.schemaName(a)
			if err != nil {
				return err
			}
			conn, err := db.connect(ctx, a)
			if err != nil {
				return err
			}
			defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // its transactions have ended
			return fn(ctx, conn, schema)
		})(c, args)
	}
}

func (a *app) migrateUp(db *database) *cobra.Command {
	return &cobra.Command{
		Use:   "up",
		Short: "Apply the migrations that are not applied yet",
		Long: `up creates the schema and its tables, or upgrades them. Each migration runs in its own transaction under an
advisory lock, so that several processes may run up concurrently. Its checksum is recorded. If a migration
that was applied has changed since, up applies nothing and says which one.`,
		Args: cobra.NoArgs,
		RunE: a.on(db, func(ctx context.Context, conn *pgx.Conn, schema string) error {
			applied, err := migrate.Up(ctx, conn, schema)
			if len(applied) == 0 && err == nil {
				err = a.noteCurrent(ctx, conn, schema)
			}
			return errors.Join(err, a.printMigrations("applied", schema, applied))
		}),
	}
}

// noteCurrent says that there was nothing to apply, also when a newer outboxgen has migrated the schema further.
func (a *app) noteCurrent(ctx context.Context, conn *pgx.Conn, schema string) error {
	states, err := migrate.Status(ctx, conn, schema)
	if err != nil {
		return err
	}
	if newest := states[len(states)-1]; errors.Is(newest.Err, migrate.ErrUnknown) {
		a.notef("schema %s is newer than this version of outboxgen: its last migration is %04d_%s; there is nothing to apply",
			schema, newest.Version, newest.Name)
		return nil
	}
	a.notef("schema %s is up to date", schema)
	return nil
}

func (a *app) migrateDown(db *database) *cobra.Command {
	var to int
	var yes bool
	c := &cobra.Command{
		Use:   "down",
		Short: "Revert migrations, dropping tables and the events in them",
		Long: `down reverts the newest migration. With --to it reverts all migrations above that version, newest first:
--to 0 reverts all of them. It drops tables with all events in them, delivered or not. Without --yes it only
shows what it would revert.`,
		Args: cobra.NoArgs,
	}
	c.RunE = a.on(db, func(ctx context.Context, conn *pgx.Conn, schema string) error {
		states, err := migrate.Status(ctx, conn, schema)
		if err != nil {
			return err
		}
		var above []migrate.Migration
		for i := len(states) - 1; i >= 0; i-- {
			s := states[i]
			if errors.Is(s.Err, migrate.ErrPending) {
				continue
			}
			if !c.Flags().Changed("to") {
				to = s.Version - 1
				above = append(above, s.Migration)
				break
			}
			if s.Version > to {
				above = append(above, s.Migration)
			}
		}
		switch {
		case len(above) == 0:
			a.notef("schema %s has nothing to revert", schema)
			return a.printMigrations("reverted", schema, nil)
		case !yes:
			a.notef("dry run: nothing was changed; add --yes to revert these migrations and drop their events")
			return a.printMigrations("would revert", schema, above)
		}
		reverted, err := migrate.Down(ctx, conn, schema, to)
		return errors.Join(err, a.printMigrations("reverted", schema, reverted))
	})
	c.Flags().IntVar(&to, "to", 0,
		"revert all migrations above this `version` (default: one below the newest applied migration)")
	c.Flags().BoolVar(&yes, "yes", false, "apply the change")
	c.PreRunE = func(*cobra.Command, []string) error {
		if to < 0 {
			return fmt.Errorf("--to: version %d: must not be negative", to)
		}
		return nil
	}
	return c
}

func (a *app) migrateStatus(db *database) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "List migrations and whether they are applied",
		Long: `status lists the migrations of this version and those that the database has recorded: applied, pending,
drifted if the recorded checksum is another one, or unknown if this version does not have it.`,
		Args: cobra.NoArgs,
		RunE: a.on(db, func(ctx context.Context, conn *pgx.Conn, schema string) error {
			states, err := migrate.Status(ctx, conn, schema)
			if err != nil {
				return err
			}
			rows := []migrationRow{}
			for _, s := range states {
				rows = append(rows, stateRow(s))
			}
			if a.json {
				return a.printJSON(migrationList{rows})
			}
			table := [][]any{{"VERSION", "NAME", "STATE", "APPLIED AT"}}
			for _, row := range rows {
				table = append(table, []any{fmt.Sprintf("%04d", row.Version), row.Name, row.State, dateText(row.AppliedAt)})
			}
			return a.printTable(table)
		}),
	}
}

func (a *app) migrateValidate(db *database) *cobra.Command {
	return &cobra.Command{
		Use:   "validate",
		Short: "Compare the applied migrations with those of this version",
		Long: `validate exits with 1 if a migration is not applied, was applied with a different text, or is not known to
this version of outboxgen. It names each of them.`,
		Args: cobra.NoArgs,
		RunE: a.on(db, func(ctx context.Context, conn *pgx.Conn, schema string) error {
			states, err := migrate.Status(ctx, conn, schema)
			if err != nil {
				return err
			}
			problems := []migrationRow{}
			for _, s := range states {
				if s.Err == nil {
					continue
				}
				problems = append(problems, stateRow(s))
				if !a.json {
					a.notef("schema %s: %04d_%s: %v", schema, s.Version, s.Name, s.Err)
				}
			}
			if a.json {
				err = a.printJSON(migrationList{problems})
			}
			switch {
			case err != nil:
				return err
			case len(problems) > 0:
				return errReported
			}
			a.notef("schema %s: %s applied, no differences", schema, count(len(states), "migration"))
			return nil
		}),
	}
}

// printMigrations lists the migrations with what was done to them.
func (a *app) printMigrations(verb, schema string, all []migrate.Migration) error {
	if a.json {
		return a.printJSON(migrationList{migrationRows(all)})
	}
	var err error
	for _, m := range all {
		err = a.printf("%s %s %04d_%s\n", verb, schema, m.Version, m.Name)
	}
	return err
}
