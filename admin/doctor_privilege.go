package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/migrate"
	"github.com/outboxgen/outboxgen/outbox"
)

// checkPrivileges: the role has the grants of what it is to do.
func checkPrivileges(ctx context.Context, e *examination) ([]Finding, error) {
	if e.state.tables == 0 {
		return nil, nil
	}
	missing, able := make(map[migrate.Role][]migrate.Grant), []string(nil)
	var user string
	err := e.read(ctx, func(ctx context.Context, tx pgx.Tx, _ *queries.Queries) error {
		if err := tx.QueryRow(ctx, "SELECT current_user").Scan(&user); err != nil {
			return err
		}
		for _, role := range migrate.Roles() {
			for _, g := range migrate.Grants(role) {
				lacks, err := e.lacks(ctx, tx, g)
				if err != nil {
					return err
				}
				if len(lacks) > 0 {
					g.Privileges = lacks
					missing[role] = append(missing[role], g)
				}
				if len(lacks) > 0 && g.Kind == "SCHEMA" {
					break // nothing in it can be reached
				}
			}
			if len(missing[role]) == 0 {
				able = append(able, string(role))
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(e.cfg.Roles) == 0 {
		return ableFinding(user, able, missing), nil
	}
	var found []Finding
	for _, role := range migrate.Roles() {
		if len(missing[role]) == 0 || !slices.Contains(e.cfg.Roles, role) {
			continue
		}
		var fixes []string
		for _, g := range missing[role] {
			fixes = append(fixes, g.SQL(e.db.Name(), pgx.Identifier{user}.Sanitize()))
		}
		found = append(found, Finding{
			Severity: SeverityError,
			Text:     fmt.Sprintf("role %s cannot be a %s: it lacks %s", user, role, grantsText(missing[role])),
			Means:    "what it is to do fails with permission denied", Fix: strings.Join(fixes, " "),
		})
	}
	return found, nil
}

// ableFinding says what a role may do, if it may not do everything.
func ableFinding(user string, able []string, missing map[migrate.Role][]migrate.Grant) []Finding {
	if len(able) == len(migrate.Roles()) {
		return nil
	}
	f := Finding{
		Severity: SeverityNotice, Text: fmt.Sprintf("role %s may be: %s", user, strings.Join(able, ", ")),
		Means: "the other roles are refused to it",
		Fix:   "say what it is to do, to see what is missing: outboxgen doctor --as dispatcher",
	}
	if len(able) == 0 {
		f.Severity = SeverityWarning
		f.Text = fmt.Sprintf("role %s cannot be a producer, dispatcher, operator, reader or viewer", user)
		f.Means = "as a producer it lacks " + grantsText(missing[migrate.Producer])
		f.Fix = "grant it what it needs: outboxgen migrate get --roles"
	}
	return []Finding{f}
}

func grantsText(grants []migrate.Grant) string {
	var parts []string
	for _, g := range grants {
		name := g.Object
		if g.Kind == "SCHEMA" {
			name = "the schema"
		}
		parts = append(parts, strings.Join(g.Privileges, ", ")+" on "+name)
	}
	return strings.Join(parts, "; ")
}

// lacks returns those privileges of g that the role does not have. It returns none if the object does not exist.
func (e *examination) lacks(ctx context.Context, tx pgx.Tx, g migrate.Grant) (lacks []string, err error) {
	// The catalogs are asked, and not to_regclass, which needs USAGE on the schema.
	schema := e.db.Name()
	for _, p := range g.Privileges {
		var has bool
		word, columns, _ := strings.Cut(strings.TrimSuffix(p, ")"), " (")
		switch {
		case g.Kind == "SCHEMA":
			err = tx.QueryRow(ctx, "SELECT coalesce((SELECT has_schema_privilege(n.oid, $2) FROM pg_catalog.pg_namespace AS n "+
				"WHERE n.nspname = $1), true)", schema, word).Scan(&has)
		case g.Kind == "FUNCTION":
			name, _, _ := strings.Cut(g.Object, "(")
			err = tx.QueryRow(ctx,
				`SELECT coalesce(bool_and(has_function_privilege(p.oid, $3)), true) FROM pg_catalog.pg_proc AS p
				JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace WHERE n.nspname = $1 AND p.proname = $2`, schema,
				name, word).Scan(&has)
		case g.Kind == "SEQUENCE":
			err = tx.QueryRow(ctx,
				`SELECT coalesce(bool_and(has_sequence_privilege(c.oid, $3)), true) FROM pg_catalog.pg_class AS c
				JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
				WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind = 'S'`, schema, g.Object, word).Scan(&has)
		case columns != "":
			err = tx.QueryRow(ctx,
				`SELECT coalesce(bool_and(has_column_privilege(c.oid, a.attnum, $3)), true) FROM pg_catalog.pg_class AS c
				JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
				JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid
				WHERE n.nspname = $1 AND c.relname = $2 AND a.attname = ANY ($4::text[])`, schema, g.Object, word,
				strings.Split(columns, ", ")).Scan(&has)
		default:
			err = tx.QueryRow(ctx, `SELECT coalesce(bool_and(has_table_privilege(c.oid, $3)), true) FROM pg_catalog.pg_class AS c
				JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
				WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind IN ('r', 'p', 'v')`, schema, g.Object, word).Scan(&has)
		}
		if err != nil {
			return nil, err
		}
		if !has {
			lacks = append(lacks, p)
		}
	}
	return lacks, nil
}

// seesAll says that a policy shows the role all rows of the table r, and that none takes some away.
const seesAll = `EXISTS (
		SELECT FROM pg_catalog.pg_policy AS p
		WHERE p.polrelid = r.oid AND p.polpermissive AND p.polcmd = '*'
		  AND pg_get_expr(p.polqual, p.polrelid) = 'true' AND coalesce(pg_get_expr(p.polwithcheck, p.polrelid), 'true') = 'true'
		  AND EXISTS (SELECT FROM unnest(p.polroles) AS o (oid) WHERE o.oid = 0 OR pg_has_role(o.oid, 'USAGE')))
	AND NOT EXISTS (SELECT FROM pg_catalog.pg_policy AS p WHERE p.polrelid = r.oid AND NOT p.polpermissive)`

// checkRowSecurity: no policy hides rows from the role.
func checkRowSecurity(ctx context.Context, e *examination) (found []Finding, err error) {
	type secured struct {
		Table    string
		Policies []string
	}
	var rows []secured
	err = e.read(ctx, func(ctx context.Context, tx pgx.Tx, _ *queries.Queries) error {
		rows, err = rowsOf[secured](ctx, tx,
			`SELECT r.relname::text,
				ARRAY(SELECT p.polname::text FROM pg_catalog.pg_policy AS p WHERE p.polrelid = r.oid ORDER BY 1)
			FROM (`+ownRelations+`) AS r WHERE row_security_active(r.oid) AND NOT (`+seesAll+`) ORDER BY 1`, e.db.Name(), ownTables())
		return err
	})
	for _, r := range rows {
		table := pgx.Identifier{e.db.Name()}.Sanitize() + "." + r.Table
		f := Finding{
			Severity: SeverityWarning,
			Text: fmt.Sprintf("row level security of table %s applies to this role, with the policies %s", r.Table,
				strings.Join(r.Policies, ", ")),
			Means: "rows that the policies hide are not delivered, counted or pruned, and no error says so",
			Fix: "let the policies show all rows to this role, or: ALTER ROLE ... BYPASSRLS, or: ALTER TABLE " + table +
				" DISABLE ROW LEVEL SECURITY;",
		}
		if len(r.Policies) == 0 {
			f.Severity = SeverityError
			f.Text = fmt.Sprintf("row level security of table %s applies to this role, and there is no policy", r.Table)
			f.Means = "all rows are hidden, and inserts are refused"
		}
		found = append(found, f)
	}
	return found, err
}

// checkEnqueue: an enqueue of each kind works, alone and as a duplicate. It is rolled back. Whether the role is a
// producer at all is found by checkPrivileges.
func checkEnqueue(ctx context.Context, e *examination) (found []Finding, err error) {
	if e.state.tables == 0 {
		return nil, nil
	}
	for _, log := range []bool{false, true} {
		m := outbox.Message{
			Namespace: "outboxgen", Topic: "doctor", DedupeKey: uuid.NewString(), Payload: []byte("{}"), Log: log,
		}
		err := e.try(ctx, "", func(ctx context.Context, tx pgx.Tx, _ *queries.Queries) error {
			first, err := outbox.Enqueue(ctx, tx, e.db.Name(), m)
			if err != nil {
				return err
			}
			again, err := outbox.Enqueue(ctx, tx, e.db.Name(), m)
			if err == nil && (!again.Duplicate || again.ID != first.ID) {
				err = errors.New("an event with the same dedupe key was enqueued twice")
			}
			return err
		})
		if err == nil || ctx.Err() != nil || foundElsewhere(err) {
			continue
		}
		what := "an event of a queue topic"
		if log {
			what = "an event of a log topic"
		}
		f := Finding{
			Severity: SeverityError, Text: fmt.Sprintf("%s could not be enqueued: %v", what, err),
			Means: "enqueues of the application fail, and so do its transactions",
			Fix:   "fix what the error names: a column, a policy, a trigger or a function; the check schema compares them",
		}
		var pg *pgconn.PgError
		if errors.As(err, &pg) && (pg.Code == "57014" || pg.Code == "55P03") || errors.Is(err, context.DeadlineExceeded) {
			f.Severity, f.Text = SeverityWarning, fmt.Sprintf("%s could not be enqueued within %v", what, checkTime)
			f.Means = "the database is very slow, or another session has locked the table"
			f.Fix = "look for ungranted locks in pg_locks"
		}
		found = append(found, f)
	}
	return found, ctx.Err()
}

// foundElsewhere reports whether err is what other checks report: a privilege, a read-only database, a missing table or
// the sequence of the log.
func foundElsewhere(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return false
	}
	return pg.Code == "42501" && strings.HasPrefix(pg.Message, "permission denied") ||
		pg.Code == "25006" || pg.Code == "42P01" || pg.Code == "3F000" || pg.ConstraintName == "log_pkey"
}
