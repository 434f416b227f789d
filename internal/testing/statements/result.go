package statements

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// Result is what a statement did.
type Result struct {
	Returned []string // rows
	Tag      string   // of a statement that returns no rows, with the number of rows that it has changed
	Changed  []string
	Locked   []string // rows that it has locked and not changed
	Err      string
}

// Empty reports whether the statement did nothing.
func (r Result) Empty() bool { return len(r.Returned)+len(r.Changed)+len(r.Locked) == 0 }

// String returns the lines of a file of cases.
func (r Result) String() string {
	var b strings.Builder
	if r.Err != "" {
		return "error " + strings.ReplaceAll(r.Err, "\n", " ") + "\n"
	}
	if r.Tag != "" {
		b.WriteString("did " + r.Tag + "\n")
	}
	for _, line := range r.Returned {
		b.WriteString(strings.TrimSpace("returned "+line) + "\n")
	}
	for _, line := range r.Changed {
		b.WriteString(line + "\n")
	}
	for _, line := range r.Locked {
		b.WriteString("locks " + line + "\n")
	}
	if b.Len() == 0 {
		return "nothing\n"
	}
	return b.String()
}

// returned writes the rows of a result. A statement without an order may return them in any.
func (b *Bench) returned(r *pgconn.Result, ordered bool) []string {
	fields := r.FieldDescriptions
	if len(fields) == 0 {
		return nil
	}
	var all []string
	for _, row := range r.Rows {
		var cells []Cell
		for i, v := range row {
			if v != nil {
				cells = append(cells, Cell{Name: fields[i].Name, Value: b.now.shorten(string(v), fields[i].Name, fields[i].DataTypeOID)})
			}
		}
		all = append(all, writeCells(cells))
	}
	if !ordered {
		slices.Sort(all)
	}
	return all
}

// line is a row of a table as it was read.
type line struct {
	name   string
	place  string
	locked bool
	cells  []Cell
}

// lines returns the rows of a state by table and key.
func (b *Bench) lines(s *state, r *pgconn.Result) map[string]line {
	found := map[string]line{}
	types := pgtype.NewMap()
	tables := map[string]*Table{}
	for _, t := range s.tables {
		tables[t.Name] = t
	}
	for _, row := range r.Rows {
		t := tables[string(row[0])]
		var values []*string
		if err := types.Scan(pgtype.TextArrayOID, pgtype.TextFormatCode, row[4], &values); err != nil {
			panic(err) // an array of text
		}
		l := line{place: string(row[2]), locked: string(row[3]) == "t"}
		for i, v := range values {
			c := Cell{Name: t.Columns[i].Name, Null: v == nil}
			if v != nil {
				c.Value = b.now.shorten(*v, c.Name, t.Columns[i].OID)
			}
			l.cells = append(l.cells, c)
		}
		l.name = t.Name + " " + b.now.shorten(string(row[1]), "", 0)
		found[t.Name+" "+string(row[1])] = l
	}
	return found
}

// changes compares two states.
func (r *Result) changes(before, after map[string]line) {
	keys := map[string]bool{}
	for k := range before {
		keys[k] = true
	}
	for k := range after {
		keys[k] = true
	}
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		was, wasThere := before[k]
		is, isThere := after[k]
		name := is.name
		table, _, _ := strings.Cut(k, " ")
		switch {
		case !isThere:
			r.Changed = append(r.Changed, "deletes "+was.name)
		case !wasThere:
			var cells []Cell
			for _, c := range is.cells {
				if !c.Null {
					cells = append(cells, c)
				}
			}
			r.Changed = append(r.Changed, "inserts "+Row{Table: table, Cells: cells}.String())
		default:
			var parts []string
			for i, c := range is.cells {
				if c != was.cells[i] {
					old := strings.TrimPrefix(was.cells[i].String(), c.Name+"=")
					parts = append(parts, fmt.Sprintf("%s=%s->%s", c.Name, old, strings.TrimPrefix(c.String(), c.Name+"=")))
				}
			}
			switch {
			case len(parts) > 0:
				r.Changed = append(r.Changed, "updates "+name+": "+strings.Join(parts, " "))
			case is.place != was.place:
				r.Changed = append(r.Changed, "updates "+name+": nothing")
			case is.locked:
				r.Locked = append(r.Locked, name)
			}
		}
	}
	slices.Sort(r.Changed)
	slices.Sort(r.Locked)
}
