package statements

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Case is a few rows, a call of the statement, and what it does.
type Case struct {
	Note   []string // what the case shows, for a reader
	Runs   []string // SQL that is executed behind the insertion of the rows, for example to alter a sequence
	Rows   []Row
	Locked []Row // of Rows, those that another session has locked: the values are those of the key
	// Meanwhile is SQL that another session has executed when the call begins, and commits when the call waits for it.
	Meanwhile []string
	// Unindexed executes the call without an index, so that the order of rows is only what the statement asks for.
	Unindexed bool
	Args      []Cell
	Want      string // what Result.String returns
}

// Row is a row of a table. A column without a cell has its default. A row of a sequence is its last number, or 0 if it has
// given none; otherwise that is 1000.
type Row struct {
	Table string
	Cells []Cell
}

// Contended reports whether another session takes part, for which the rows are committed.
func (c Case) Contended() bool { return len(c.Locked)+len(c.Meanwhile) > 0 }

// Cell is a value, as PostgreSQL writes it, except that #7 stands for a UUID that ends in 7, #now-5m for one of version 7, now-2h for the time two hours
// before the statement, turns(x) for the lane of the turns of topic x, cluster for the identifier of the cluster, open for
// the xid of a transaction of another session, rep(k,513) for that many k, and cur for that of the transaction, or any other xid of this cluster.
type Cell struct {
	Name  string
	Value string
	Null  bool
}

// Clone returns a copy that shares nothing.
func (c Case) Clone() Case {
	c.Note, c.Args, c.Runs = slices.Clone(c.Note), slices.Clone(c.Args), slices.Clone(c.Runs)
	c.Meanwhile = slices.Clone(c.Meanwhile)
	c.Rows, c.Locked = cloneRows(c.Rows), cloneRows(c.Locked)
	return c
}

func cloneRows(rows []Row) []Row {
	rows = slices.Clone(rows)
	for i := range rows {
		rows[i].Cells = slices.Clone(rows[i].Cells)
	}
	return rows
}

// Get returns a cell, and whether it is there.
func Get(cells []Cell, name string) (Cell, bool) {
	i := slices.IndexFunc(cells, func(c Cell) bool { return c.Name == name })
	if i < 0 {
		return Cell{}, false
	}
	return cells[i], true
}

// Set replaces or adds a cell.
func Set(cells []Cell, c Cell) []Cell {
	if i := slices.IndexFunc(cells, func(o Cell) bool { return o.Name == c.Name }); i >= 0 {
		cells[i] = c
		return cells
	}
	return append(cells, c)
}

// String returns name=value.
func (c Cell) String() string {
	switch {
	case c.Null:
		return c.Name + "=null"
	case c.Value == "" || c.Value == "null" || strings.ContainsAny(c.Value, " \"\\\n\t"):
		return c.Name + "=" + strconv.Quote(c.Value)
	}
	return c.Name + "=" + c.Value
}

func writeCells(cells []Cell) string {
	var parts []string
	for _, c := range cells {
		parts = append(parts, c.String())
	}
	return strings.Join(parts, " ")
}

// String returns the table and the cells.
func (r Row) String() string { return strings.TrimSpace(r.Table + " " + writeCells(r.Cells)) }

// Format returns the text of a file of cases.
func Format(cases []Case) string {
	var b strings.Builder
	for i, c := range cases {
		if i > 0 {
			b.WriteString("\n")
		}
		_, _ = fmt.Fprintf(&b, "case %d\n", i+1)
		for _, line := range c.Note {
			b.WriteString("# " + line + "\n")
		}
		for _, r := range c.Rows {
			b.WriteString("row " + r.String() + "\n")
		}
		for _, sql := range c.Runs {
			b.WriteString("run " + sql + "\n")
		}
		for _, r := range c.Locked {
			b.WriteString("locked " + r.String() + "\n")
		}
		for _, sql := range c.Meanwhile {
			b.WriteString("meanwhile " + sql + "\n")
		}
		if c.Unindexed {
			b.WriteString("unindexed\n")
		}
		b.WriteString(strings.TrimSpace("call "+writeCells(c.Args)) + "\n" + c.Want)
	}
	return b.String()
}

// Parse reads what Format writes.
func Parse(text string) ([]Case, error) {
	var all []Case
	for n, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		kind, rest, _ := strings.Cut(line, " ")
		if kind == "case" {
			all = append(all, Case{})
			continue
		}
		if line == "" {
			continue
		}
		if len(all) == 0 {
			return nil, fmt.Errorf("line %d: not in a case", n+1)
		}
		c := &all[len(all)-1]
		var err error
		switch {
		case kind == "#":
			c.Note = append(c.Note, rest)
		case kind == "row" || kind == "locked":
			r := Row{}
			r.Table, rest, _ = strings.Cut(rest, " ")
			if r.Cells, err = parseCells(rest); kind == "row" {
				c.Rows = append(c.Rows, r)
			} else {
				c.Locked = append(c.Locked, r)
			}
		case kind == "run":
			c.Runs = append(c.Runs, rest)
		case kind == "meanwhile":
			c.Meanwhile = append(c.Meanwhile, rest)
		case line == "unindexed":
			c.Unindexed = true
		case kind == "call":
			c.Args, err = parseCells(rest)
		default:
			c.Want += line + "\n"
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n+1, err)
		}
	}
	return all, nil
}

func parseCells(text string) ([]Cell, error) {
	var cells []Cell
	for text = strings.TrimSpace(text); text != ""; text = strings.TrimSpace(text) {
		name, rest, ok := strings.Cut(text, "=")
		if !ok {
			return nil, fmt.Errorf("%q is not name=value", text)
		}
		c := Cell{Name: name}
		if strings.HasPrefix(rest, `"`) {
			quoted, err := strconv.QuotedPrefix(rest)
			if err != nil {
				return nil, fmt.Errorf("value of %s: %w", name, err)
			}
			c.Value, _ = strconv.Unquote(quoted) // QuotedPrefix has read it
			text = rest[len(quoted):]
		} else {
			c.Value, text, _ = strings.Cut(rest, " ")
			if c.Value == "null" {
				c = Cell{Name: name, Null: true}
			}
		}
		cells = append(cells, c)
	}
	return cells, nil
}

// ReadCases reads the cases of a unit in the folder dir. A unit may have none.
func ReadCases(dir, unit string) ([]Case, error) {
	text, err := os.ReadFile(filepath.Join(dir, Name(unit)))
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	cases, err := Parse(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", Name(unit), err)
	}
	return cases, nil
}

// WriteCases writes the cases of a unit, or removes its file if there are none.
func WriteCases(dir, unit string, cases []Case) error {
	path := filepath.Join(dir, Name(unit))
	if len(cases) == 0 {
		if err := os.Remove(path); !os.IsNotExist(err) {
			return err
		}
		return nil
	}
	return os.WriteFile(path, []byte(Format(cases)), 0o600)
}
