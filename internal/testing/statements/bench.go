package statements

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Bench executes cases in a transaction that is never committed.
type Bench struct {
	conn   *pgx.Conn
	schema string
	open   string // the xid of a transaction of another session
	system string // the identifier of the cluster
	tables map[string]*Table
	// indexes has the table of each unique index that belongs to no constraint.
	indexes   map[string]string
	bodies    map[string]string // of functions and views
	now       now
	sequences []string
	reset     string // sets the sequences to what the case says
	guard     string // the settings of the runtime's transactions
	before    map[string]line
	last      int  // the number of prepared statements
	unindexed bool // whether the session has plans without indexes
}

// Table is a table of the schema.
type Table struct {
	Name    string
	Columns []Column
	Key     []int // indexes of Columns
}

// Column is a column of a table.
type Column struct {
	Name    string
	Type    string
	OID     uint32
	NotNull bool
	Default bool // whether the column has one, or is an identity
}

// Hold begins a transaction that stays open while cases are executed, and returns its xid. It has the advisory lock 71
// exclusively, and 72 shared.
func Hold(ctx context.Context, other *pgx.Conn) (xid string, err error) {
	if _, err := other.Exec(ctx, "BEGIN"); err != nil {
		return "", err
	}
	err = other.QueryRow(ctx, "SELECT pg_current_xact_id()::text FROM pg_advisory_xact_lock(71), pg_advisory_xact_lock_shared(72)").Scan(&xid)
	return xid, err
}

// Open reads the tables of schema. open is what Hold has returned. guard is a statement that is executed first in each
// transaction. Empty means none.
func Open(ctx context.Context, conn *pgx.Conn, open, schema, guard string) (*Bench, error) {
	b := &Bench{conn: conn, open: open, schema: schema, tables: map[string]*Table{}, indexes: map[string]string{}, bodies: map[string]string{}, guard: guard}
	if err := conn.QueryRow(ctx, "SELECT system_identifier::text FROM pg_control_system()").Scan(&b.system); err != nil {
		return nil, err
	}
	rows, err := conn.Query(ctx, `
		SELECT c.relname::text, a.attname::text, format_type(a.atttypid, a.atttypmod), a.atttypid::oid, a.attnotnull,
			a.atthasdef OR a.attidentity <> '', coalesce(a.attnum = ANY (i.indkey), false)
		FROM pg_class AS c
		JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
		LEFT JOIN pg_index AS i ON i.indrelid = c.oid AND i.indisprimary
		WHERE c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1) AND c.relkind = 'r'
		ORDER BY c.relname, a.attnum`, schema)
	if err != nil {
		return nil, err
	}
	var table string
	var column Column
	var key bool
	if _, err := pgx.ForEachRow(rows, []any{&table, &column.Name, &column.Type, &column.OID, &column.NotNull, &column.Default, &key},
		func() error {
			t := b.tables[table]
			if t == nil {
				t = &Table{Name: table}
				b.tables[table] = t
			}
			if key {
				t.Key = append(t.Key, len(t.Columns))
			}
			t.Columns = append(t.Columns, column)
			return nil
		}); err != nil {
		return nil, err
	}
	rows, err = conn.Query(ctx, `
		SELECT p.proname::text, p.prosrc FROM pg_proc AS p WHERE p.pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1)
		UNION ALL
		SELECT c.relname, pg_get_viewdef(c.oid) FROM pg_class AS c
		WHERE c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1) AND c.relkind = 'v'`, schema)
	if err != nil {
		return nil, err
	}
	var name, body string
	if _, err := pgx.ForEachRow(rows, []any{&name, &body}, func() error {
		b.bodies[name] = body
		return nil
	}); err != nil {
		return nil, err
	}
	rows, err = conn.Query(ctx, `SELECT i.indexrelid::regclass::text, i.indrelid::regclass::text FROM pg_index AS i
		JOIN pg_class AS c ON c.oid = i.indexrelid
		WHERE c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1) AND i.indisunique AND NOT EXISTS (
			SELECT FROM pg_constraint AS o WHERE o.conindid = i.indexrelid)`, schema)
	if err != nil {
		return nil, err
	}
	if _, err := pgx.ForEachRow(rows, []any{&name, &table}, func() error {
		b.indexes[strings.TrimPrefix(name, schema+".")] = strings.TrimPrefix(table, schema+".")
		return nil
	}); err != nil {
		return nil, err
	}
	rows, err = conn.Query(ctx, `SELECT c.relname::text FROM pg_class AS c
		WHERE c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1) AND c.relkind = 'S' ORDER BY 1`, schema)
	if err != nil {
		return nil, err
	}
	if b.sequences, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
		return nil, err
	}
	_, err = conn.Exec(ctx, "SET TimeZone = 'UTC'; SET DateStyle = 'ISO'; SET IntervalStyle = 'postgres'; SET statement_timeout = '30s'; "+
		"SET max_parallel_workers_per_gather = 0")
	return b, err
}

// Tables returns the tables by their names.
func (b *Bench) Tables() map[string]*Table { return b.tables }

// Functions returns a statement for each function of the schema that may be called, and for each view.
func (b *Bench) Functions(ctx context.Context) ([]Statement, error) {
	rows, err := b.conn.Query(ctx, `
		SELECT 'function ' || p.proname, 'SELECT * FROM `+Marker+`.' || p.proname, a.names, a.types, p.pronargdefaults
		FROM pg_proc AS p
		CROSS JOIN LATERAL (
			SELECT coalesce(array_agg(i.name ORDER BY i.n), '{}') AS names,
				(SELECT coalesce(array_agg(t.oid ORDER BY t.n), '{}') FROM unnest(p.proargtypes::oid[]) WITH ORDINALITY AS t (oid, n)) AS types
			FROM unnest(p.proargnames, p.proargmodes::text[]) WITH ORDINALITY AS i (name, mode, n)
			WHERE coalesce(i.mode, 'i') IN ('i', 'b', 'v')
		) AS a
		WHERE p.pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1) AND p.prorettype <> 'trigger'::regtype
		ORDER BY 1`, b.schema)
	if err != nil {
		return nil, err
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s Statement, err error) {
		s.Call = true
		err = row.Scan(&s.Unit, &s.Text, &s.Params, &s.types, &s.defaults)
		return s, err
	})
	if err != nil {
		return nil, err
	}
	rows, err = b.conn.Query(ctx, `SELECT 'view ' || c.relname, 'SELECT * FROM `+Marker+`.' || c.relname FROM pg_class AS c
		WHERE c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1) AND c.relkind = 'v' ORDER BY 1`, b.schema)
	if err != nil {
		return nil, err
	}
	views, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s Statement, err error) {
		err = row.Scan(&s.Unit, &s.Text)
		return s, err
	})
	return append(all, views...), err
}

// Inserts returns a statement for each table, and for each index: a case inserts a row.
func (b *Bench) Inserts() []Statement {
	var all []Statement
	for name := range b.tables {
		all = append(all, Statement{Unit: "table " + name, Table: name})
	}
	for index, table := range b.indexes {
		all = append(all, Statement{Unit: "index " + index, Table: table})
	}
	return all
}

// Uses returns the tables that text reads or writes, with what it calls.
func (b *Bench) Uses(text string) []*Table {
	whole := b.reach(text)
	var used []*Table
	for name, t := range b.tables {
		if regexp.MustCompile(`\b` + regexp.QuoteMeta(b.schema) + `"?\.` + name + `\b`).MatchString(whole) {
			used = append(used, t)
		}
	}
	slices.SortFunc(used, func(x, y *Table) int { return strings.Compare(x.Name, y.Name) })
	return used
}

// Begin begins a transaction. End rolls it back.
func (b *Bench) Begin(ctx context.Context) error {
	if _, err := b.conn.Exec(ctx, "BEGIN ISOLATION LEVEL READ COMMITTED"); err != nil {
		return err
	}
	if b.guard != "" {
		if _, err := b.conn.Exec(ctx, b.guard); err != nil {
			return err
		}
	}
	// An xid that is over is above that of this transaction, so that snapshots always have it below their xmax.
	return b.exec(ctx, "SET LOCAL lock_timeout = '20s'; SELECT pg_current_xact_id(); SAVEPOINT world; CREATE TABLE pg_temp.burnt (); "+
		"ROLLBACK TO world")
}

// End rolls back what Begin began.
func (b *Bench) End(ctx context.Context) error {
	_, err := b.conn.Exec(ctx, "ROLLBACK")
	return err
}

// Prepared is a statement that the server has parsed.
type Prepared struct {
	name    string // empty if the text depends on the case
	text    string // with the schema
	of      Statement
	oids    []uint32
	ordered bool
	// numbered is whether the sequences matter.
	numbered bool
	state    *state
}

// state is how the rows of the tables are read that a statement may change.
type state struct {
	tables []*Table
	name   string
}

var (
	// numbering is in what draws numbers from a sequence.
	numbering = regexp.MustCompile(`_seq\b|INSERT INTO [\w".]*\b(dead_letters|parked|audit|log|inbox_messages)\b`)
	writes    = regexp.MustCompile(`(?i)\b(INSERT INTO|UPDATE|DELETE FROM|FOR UPDATE|FOR NO KEY UPDATE|FOR SHARE|FOR KEY SHARE|setval)\b`)
)

// reach returns the text of what text calls, together with it.
func (b *Bench) reach(text string) string {
	text = comments.ReplaceAllString(text, "")
	whole := text
	seen := map[string]bool{}
	names := regexp.MustCompile(`\b` + regexp.QuoteMeta(b.schema) + `"?\."?(\w+)`)
	for more := text; more != ""; {
		next := ""
		for _, m := range names.FindAllStringSubmatch(more, -1) {
			if body, ok := b.bodies[m[1]]; ok && !seen[m[1]] {
				seen[m[1]] = true
				next += "\n" + comments.ReplaceAllString(body, "")
			}
		}
		whole, more = whole+next, next
	}
	return whole
}

// Prepare parses text, which is that of s or a mutant of it, with the schema in place of the marker. like is the
// statement whose tables it changes, or nil.
func (b *Bench) Prepare(ctx context.Context, s Statement, text string, like *Prepared) (*Prepared, error) {
	p := &Prepared{text: text, of: s, ordered: ordered(text), oids: s.types}
	switch {
	case like != nil:
		p.state, p.ordered = like.state, like.ordered
	case s.Table != "":
		p.state = &state{tables: []*Table{b.tables[s.Table]}}
	default:
		if whole := b.reach(text); writes.MatchString(whole) {
			p.state = &state{tables: b.Uses(text)}
			if strings.Contains(whole, "advisory") {
				p.state.tables = append(p.state.tables, &Table{Name: advisory, Columns: []Column{{Name: "mode"}}})
			}
		}
	}
	p.numbered = s.Table != "" || numbering.MatchString(b.reach(text))
	if s.Table == "" && !s.Call {
		b.last++
		p.name = fmt.Sprintf("%s_case_%d", b.schema, b.last)
		d, err := b.conn.PgConn().Prepare(ctx, p.name, text, nil)
		if err != nil {
			return nil, err
		}
		p.oids = d.ParamOIDs
	}
	if p.state != nil && p.state.name == "" {
		b.last++
		p.state.name = fmt.Sprintf("%s_state_%d", b.schema, b.last)
		if _, err := b.conn.PgConn().Prepare(ctx, p.state.name, b.readState(p.state.tables), nil); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// advisory stands for the advisory locks among the tables of a state.
const advisory = "advisory"

// Types returns the types of the parameters.
func (p *Prepared) Types() []uint32 { return p.oids }

// Forget frees what Prepare has made.
func (b *Bench) Forget(ctx context.Context, p *Prepared) error {
	if p.name == "" {
		return nil
	}
	return b.conn.PgConn().Deallocate(ctx, p.name)
}

// readState is the statement that reads all rows of tables, with what says where they are and whether the current
// transaction has locked them.
func (b *Bench) readState(tables []*Table) string {
	var parts []string
	for _, t := range tables {
		if t.Name == advisory {
			parts = append(parts, `SELECT 'advisory', mode || ' ' || classid || ' ' || objid, '', false, ARRAY[mode]
				FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'`)
			continue
		}
		var key, all []string
		for i, c := range t.Columns {
			text := pgx.Identifier{c.Name}.Sanitize() + "::text"
			if slices.Contains(t.Key, i) {
				key = append(key, text)
			}
			all = append(all, text)
		}
		if len(key) == 0 {
			key = all
		}
		parts = append(parts, fmt.Sprintf(`SELECT '%s', array_to_string(ARRAY[%s], ' '), ctid::text,
			CASE WHEN xmax::text <> '0' THEN pg_xact_status(xmax::text::xid8) = 'in progress' ELSE false END, ARRAY[%s] FROM %s`,
			t.Name, strings.Join(key, ", "), strings.Join(all, ", "), pgx.Identifier{b.schema, t.Name}.Sanitize()))
	}
	return strings.Join(parts, " UNION ALL ")
}

// Set inserts the rows of a case, instead of those of the case before.
func (b *Bench) Set(ctx context.Context, c Case) error {
	if _, err := b.conn.Exec(ctx, "ROLLBACK TO world"); err != nil {
		return err
	}
	if err := b.plan(ctx, c); err != nil {
		return err
	}
	rows, err := b.conn.Query(ctx, "SELECT clock_timestamp(), pg_current_xact_id()::text")
	if err != nil {
		return err
	}
	n, err := pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (n now, err error) {
		err = row.Scan(&n.time, &n.xid)
		return n, err
	})
	if err != nil {
		return err
	}
	n.open, n.system = b.open, b.system
	b.now = n
	var script strings.Builder
	at := map[string]string{}
	for _, r := range c.Rows {
		if b.tables[r.Table] == nil && len(r.Cells) > 0 {
			at[r.Table] = r.Cells[0].Value
		}
	}
	var before, call []string
	for _, name := range b.sequences {
		quoted := pgx.Identifier{b.schema, name}.Sanitize()
		before = append(before, fmt.Sprintf("setval('%s', 500)", quoted))
		call = append(call, fmt.Sprintf("setval('%s', %s)", quoted, last(at[name])))
	}
	script.WriteString("SELECT " + strings.Join(before, ", ") + ";\n")
	for name := range b.tables {
		if c.Unindexed && slices.ContainsFunc(c.Rows, func(r Row) bool { return r.Table == name }) {
			// Without what earlier cases have left, the rows are stored in the order of the case.
			script.WriteString("TRUNCATE " + pgx.Identifier{b.schema, name}.Sanitize() + ";\n")
		}
	}
	for _, r := range c.Rows {
		if b.tables[r.Table] != nil {
			script.WriteString(b.insert(r.Table, r.Cells) + ";\n")
		}
	}
	for _, sql := range c.Runs {
		script.WriteString(strings.ReplaceAll(sql, Marker, b.schema) + ";\n")
	}
	b.reset = "SELECT " + strings.Join(call, ", ")
	script.WriteString("SAVEPOINT call")
	b.before = nil
	return b.exec(ctx, script.String())
}

// plan holds the planner to what a case says of indexes. A statement that was executed has a plan already, which is dropped.
func (b *Bench) plan(ctx context.Context, c Case) error {
	script := ""
	if c.Unindexed != b.unindexed {
		script, b.unindexed = "DISCARD PLANS;", c.Unindexed
	}
	if c.Unindexed {
		script += "SET LOCAL enable_seqscan = on; SET LOCAL enable_indexscan = off; SET LOCAL enable_indexonlyscan = off;"
	}
	if script == "" {
		return nil
	}
	return b.exec(ctx, script)
}

// last is the arguments of setval for the last number of a sequence before the call, which is 1000 if a case says nothing.
func last(number string) string {
	switch number {
	case "":
		return "1000"
	case "0":
		return "1, false"
	}
	return number
}

// exec runs a script without parameters.
func (b *Bench) exec(ctx context.Context, script string) error {
	_, err := b.conn.PgConn().Exec(ctx, script).ReadAll()
	return err
}

// insert is the statement that inserts a row.
func (b *Bench) insert(table string, cells []Cell) string {
	var names, values []string
	for _, c := range cells {
		names = append(names, pgx.Identifier{c.Name}.Sanitize())
		if c.Null {
			values = append(values, "NULL")
			continue
		}
		values = append(values, quote(b.now.expand(c.Value)))
	}
	if len(names) == 0 {
		return fmt.Sprintf("INSERT INTO %s DEFAULT VALUES", pgx.Identifier{b.schema, table}.Sanitize())
	}
	return fmt.Sprintf("INSERT INTO %s (%s) OVERRIDING SYSTEM VALUE VALUES (%s)", pgx.Identifier{b.schema, table}.Sanitize(),
		strings.Join(names, ", "), strings.Join(values, ", "))
}

func quote(s string) string {
	if strings.Contains(s, `\`) {
		return "E'" + strings.ReplaceAll(strings.ReplaceAll(s, `\`, `\\`), "'", "''") + "'"
	}
	return "'" + strings.ReplaceAll(s, "'", "''") + "'"
}
