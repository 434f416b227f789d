// Package schemadrift compares the tables of a schema with those that the migrations make. The migrations are described
// in expected.tsv, which a test keeps equal to what they do. So a comparison only reads catalogs, which every role may.
package schemadrift

import (
	"context"
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
)

// Object is a table, or a part of one, as the catalogs describe it.
type Object struct {
	// Kind is one of the kinds below.
	Kind Kind
	// Table is the table, view, sequence or function. Name is the part of it; empty for the table itself.
	Table, Name string
	// Text is its definition, in which the schema is called outbox_schema.
	Text string
}

// Kind is what an Object is.
type Kind string

// The kinds.
const (
	Table      Kind = "table"
	Column     Kind = "column"
	Constraint Kind = "constraint"
	Index      Kind = "index"
	Storage    Kind = "storage option"
	Trigger    Kind = "trigger"
	Sequence   Kind = "sequence"
	View       Kind = "view"
	Function   Kind = "function"
)

// whole reports whether an object is not a part of another.
func (k Kind) whole() bool { return k == Table || k == Sequence || k == View || k == Function }

func (o Object) key() string { return string(o.Kind) + "\t" + o.Table + "\t" + o.Name }

// Difference is an object that is not as the migrations make it.
type Difference struct {
	Object        // its Text is empty
	Want   string // what the migrations make; empty if they do not make it
	Have   string // what the schema has; empty if it is missing
	Fix    string // SQL; empty if the migrations have it
}

//go:embed expected.tsv
var expectedText string

// change is a line of expected.tsv: what a migration adds, or removes.
type change struct {
	version int
	added   bool
	object  Object
}

var changes = sync.OnceValue(func() []change {
	var all []change
	for line := range strings.Lines(expectedText) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), "\t", 6)
		version, err := strconv.Atoi(f[0])
		if err != nil || len(f) != 6 { // a test compares the file with the migrations
			panic("drift: expected.tsv: " + line)
		}
		all = append(all, change{version, f[1] == "+", Object{Kind(f[2]), f[3], f[4], f[5]}})
	}
	return all
})

// expected returns what the migrations up to version make.
func expected(version int) []Object {
	var objects []Object
	for _, c := range changes() {
		switch {
		case c.version > version:
		case c.added:
			objects = append(objects, c.object)
		default:
			objects = slices.DeleteFunc(objects, func(o Object) bool { return o.key() == c.object.key() })
		}
	}
	return objects
}

// Compare returns how the schema differs from what the migrations up to version make. Parts of a missing table are not
// listed, and neither are tables that the migrations do not make.
func Compare(ctx context.Context, tx pgx.Tx, schema string, version int) ([]Difference, error) {
	have, err := Read(ctx, tx, schema)
	if err != nil {
		return nil, err
	}
	want := expected(version)
	known, there := make(map[string]bool), make(map[string]Object)
	for _, o := range have {
		there[o.key()] = o
		if o.Kind.whole() {
			known[o.Table] = true
		}
	}
	ours, wanted := make(map[string]bool), make(map[string]bool)
	var all []Difference
	for _, o := range want {
		wanted[o.key()] = true
		ours[o.Table] = true
		if !o.Kind.whole() && !known[o.Table] {
			continue
		}
		if h, ok := there[o.key()]; !ok || canonical(h) != canonical(o) {
			all = append(all, difference(schema, o, o.Text, h.Text))
		}
	}
	for _, o := range have {
		if ours[o.Table] && !o.Kind.whole() && !wanted[o.key()] {
			all = append(all, difference(schema, o, "", o.Text))
		}
	}
	return all, nil
}

// difference fills in the SQL.
func difference(schema string, o Object, want, have string) Difference {
	quoted, name := pgx.Identifier{schema}.Sanitize(), pgx.Identifier{o.Name}.Sanitize()
	table := quoted + "." + o.Table
	want, have = strings.ReplaceAll(want, marker, quoted), strings.ReplaceAll(have, marker, quoted)
	d := Difference{Object: Object{Kind: o.Kind, Table: o.Table, Name: o.Name}, Want: want, Have: have}
	alter := "ALTER TABLE " + table + " "
	switch o.Kind {
	case Index:
		var steps []string
		if have != "" {
			steps = append(steps, "DROP INDEX CONCURRENTLY "+quoted+"."+name+";")
		}
		if want != "" {
			steps = append(steps, strings.Replace(want, "INDEX ", "INDEX CONCURRENTLY ", 1)+";")
		}
		d.Fix = strings.Join(steps, " ")
	case Constraint:
		var steps []string
		if have != "" {
			steps = append(steps, "DROP CONSTRAINT "+name)
		}
		if want != "" {
			steps = append(steps, "ADD CONSTRAINT "+name+" "+want)
		}
		d.Fix = alter + strings.Join(steps, ", ") + ";"
		if strings.Contains(have, "REFERENCES "+table) || strings.Contains(have, "REFERENCES "+schema+"."+o.Table) {
			d.Fix = "" // it belongs to another table
		}
	case Storage:
		if d.Fix = alter + "RESET (" + o.Name + ");"; want != "" {
			d.Fix = alter + "SET (" + o.Name + " = " + want + ");"
		}
	case Trigger:
		var steps []string
		if have != "" {
			steps = append(steps, "DROP TRIGGER "+name+" ON "+table+";")
		}
		if want != "" {
			steps = append(steps, want+";")
		}
		d.Fix = strings.Join(steps, " ")
	case Column:
		d.Fix = columnFix(alter, name, want, have)
	}
	return d
}

// columnFix returns the statement that gives a column its definition: type, default, not null.
func columnFix(alter, name, want, have string) string {
	if want == "" {
		return alter + "DROP COLUMN " + name + ";"
	}
	if have == "" {
		return alter + "ADD COLUMN " + name + " " + want + ";"
	}
	w, h := columnParts(want), columnParts(have)
	var steps []string
	if w.kind != h.kind {
		steps = append(steps, "ALTER COLUMN "+name+" TYPE "+w.kind)
	}
	switch {
	case w.value == h.value:
	case w.value == "":
		steps = append(steps, "ALTER COLUMN "+name+" DROP DEFAULT")
	default:
		steps = append(steps, "ALTER COLUMN "+name+" SET DEFAULT "+w.value)
	}
	switch {
	case w.notNull && !h.notNull:
		steps = append(steps, "ALTER COLUMN "+name+" SET NOT NULL")
	case !w.notNull && h.notNull:
		steps = append(steps, "ALTER COLUMN "+name+" DROP NOT NULL")
	}
	if len(steps) == 0 {
		return ""
	}
	return alter + strings.Join(steps, ", ") + ";"
}

type columnDefinition struct {
	kind, value string
	notNull     bool
}

func columnParts(text string) (c columnDefinition) {
	text, c.value, _ = strings.Cut(text, " DEFAULT ")
	c.kind, c.notNull = strings.CutSuffix(text, " NOT NULL")
	return c
}

// marker is what expected.tsv calls the schema, as the files of the migrations do.
const marker = "outbox_schema"

// qualifier is the table or schema before a name. PostgreSQL's versions do not agree where a view has one.
var qualifier = regexp.MustCompile(`\b[a-z_][a-z0-9_]*\.`)

var noise = strings.NewReplacer("(", "", ")", "", " ", "", "\n", "", "\t", "", "::text", "")

// canonical is the text of o without what differs between versions of PostgreSQL: parentheses, spaces, casts to text,
// and the qualifiers of a view.
func canonical(o Object) string {
	if o.Kind == View {
		o.Text = qualifier.ReplaceAllString(o.Text, "")
	}
	return noise.Replace(o.Text)
}

// Read returns what the schema has, by kind, table and name. The search path of tx becomes pg_catalog.
func Read(ctx context.Context, tx pgx.Tx, schema string) ([]Object, error) {
	if _, err := tx.Exec(ctx, "SET LOCAL search_path = pg_catalog"); err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, catalog, pgx.QueryExecModeExec, schema)
	if err != nil {
		return nil, fmt.Errorf("read catalogs: %w", err)
	}
	objects, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Object])
	if err != nil {
		return nil, fmt.Errorf("read catalogs: %w", err)
	}
	for i := range objects {
		objects[i].Text = neutral(objects[i], schema)
	}
	slices.SortStableFunc(objects, func(a, b Object) int { return strings.Compare(a.key(), b.key()) })
	return objects, nil
}

// neutral returns the text of o with marker in place of the schema.
func neutral(o Object, schema string) string {
	switch o.Kind {
	case Function:
		return strings.ReplaceAll(o.Text, `"`+schema+`"`, marker)
	case Index:
		return strings.Replace(o.Text, " ON "+schema+".", " ON "+marker+".", 1)
	case Trigger:
		return strings.ReplaceAll(o.Text, " "+schema+".", " "+marker+".")
	case Column:
		return strings.ReplaceAll(o.Text, "'"+schema+".", "'"+marker+".")
	}
	return strings.Join(strings.Fields(o.Text), " ")
}

// catalog reads a schema. An index of a constraint is read with its constraint, unless it is not valid. NOT NULL is
// read with the column, because only some versions have a constraint for it. A foreign key also belongs to the table
// that it refers to.
const catalog = `
WITH relations AS (
    SELECT c.oid, c.relname, c.relkind, c.relpersistence, c.reloptions
    FROM pg_class AS c
    JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = $1
)
SELECT 'table' AS kind, r.relname::text AS relation, '' AS name,
    CASE r.relpersistence WHEN 'p' THEN 'logged' WHEN 'u' THEN 'unlogged' ELSE 'temporary' END ||
    CASE r.relkind WHEN 'p' THEN ', partitioned' ELSE '' END AS text
FROM relations AS r
WHERE r.relkind IN ('r', 'p', 'f')
UNION ALL
SELECT 'column', r.relname::text, a.attname::text,
    format_type(a.atttypid, a.atttypmod) ||
    CASE WHEN a.attcollation <> t.typcollation THEN ' COLLATE ' || quote_ident(l.collname) ELSE '' END ||
    CASE WHEN a.attidentity <> ''
        THEN ' GENERATED ' || CASE a.attidentity WHEN 'a' THEN 'ALWAYS' ELSE 'BY DEFAULT' END || ' AS IDENTITY' ELSE '' END ||
    CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END ||
    CASE WHEN a.attgenerated <> '' THEN ' GENERATED ALWAYS AS (' || pg_get_expr(d.adbin, d.adrelid) || ')'
        ELSE coalesce(' DEFAULT ' || regexp_replace(pg_get_expr(d.adbin, d.adrelid), '\s+', ' ', 'g'), '') END
FROM relations AS r
JOIN pg_attribute AS a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN pg_type AS t ON t.oid = a.atttypid
LEFT JOIN pg_collation AS l ON l.oid = a.attcollation
LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE r.relkind IN ('r', 'p', 'f')
UNION ALL
SELECT 'storage option', r.relname::text, split_part(o, '=', 1), substr(o, strpos(o, '=') + 1)
FROM relations AS r
CROSS JOIN unnest(r.reloptions) AS o
WHERE r.relkind IN ('r', 'p')
UNION ALL
SELECT 'constraint', r.relname::text, k.conname::text, pg_get_constraintdef(k.oid)
FROM relations AS r
JOIN pg_constraint AS k ON r.oid IN (k.conrelid, k.confrelid)
WHERE k.contype IN ('p', 'u', 'c', 'x', 'f')
UNION ALL
SELECT 'index', r.relname::text, i.relname::text, pg_get_indexdef(x.indexrelid) ||
    CASE WHEN x.indisvalid AND x.indisready THEN '' ELSE ' -- not valid' END
FROM relations AS r
JOIN pg_index AS x ON x.indrelid = r.oid
JOIN pg_class AS i ON i.oid = x.indexrelid
WHERE NOT EXISTS (SELECT FROM pg_constraint AS k WHERE k.conindid = x.indexrelid AND k.contype IN ('p', 'u', 'x'))
   OR NOT (x.indisvalid AND x.indisready)
UNION ALL
SELECT 'trigger', r.relname::text, g.tgname::text, pg_get_triggerdef(g.oid)
FROM relations AS r
JOIN pg_trigger AS g ON g.tgrelid = r.oid
WHERE NOT g.tgisinternal
UNION ALL
SELECT 'sequence', r.relname::text, '', format_type(s.seqtypid, NULL)
FROM relations AS r
JOIN pg_sequence AS s ON s.seqrelid = r.oid
WHERE NOT EXISTS (SELECT FROM pg_depend AS d
    WHERE d.classid = 'pg_class'::regclass AND d.objid = r.oid AND d.deptype = 'i')
UNION ALL
SELECT 'view', r.relname::text, '', pg_get_viewdef(r.oid)
FROM relations AS r
WHERE r.relkind IN ('v', 'm')
UNION ALL
SELECT 'function', p.proname || '(' || oidvectortypes(p.proargtypes) || ')', '',
    md5(replace(replace(p.prosrc, chr(13), ''), '"' || $1 || '"', 'outbox_schema')) || ' ' || l.lanname ||
    ' ' || p.provolatile::text || ' ' || p.proparallel::text || CASE WHEN p.prosecdef THEN ' security definer' ELSE '' END ||
    ' ' || regexp_replace(pg_get_function_arguments(p.oid), '\s+', ' ', 'g') ||
    ' RETURNS ' || coalesce(replace(pg_get_function_result(p.oid), quote_ident(n.nspname) || '.', 'outbox.'), '')
FROM pg_proc AS p
JOIN pg_namespace AS n ON n.oid = p.pronamespace
JOIN pg_language AS l ON l.oid = p.prolang
WHERE n.nspname = $1 AND p.prokind = 'f'`
