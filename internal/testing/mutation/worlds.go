package main

import (
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/outboxgen/outboxgen/internal/testing/statements"
)

// worlds makes random cases of a statement: few rows and arguments, with values of small domains, so that they meet.
type worlds struct {
	unindexed bool // whether cases are executed without indexes
	uneven    bool // whether arrays may have different lengths
	r         *rand.Rand
	tables    []*statements.Table
	params    []string
	arrays    map[string]bool // which of params
	types     map[string]uint32
	plain     bool              // whether topics are without their namespace
	v7        bool              // whether ids tell times
	sequence  bool              // whether the statement reads log_seq
	insert    *statements.Table // of a unit that is a table: where the call inserts
}

func (w *worlds) pick(values ...string) string { return values[w.r.IntN(len(values))] }

func (w *worlds) chance(p float64) bool { return w.r.Float64() < p }

// value draws a value for a name and a type.
func (w *worlds) value(name, typ string, notNull bool) statements.Cell {
	text := w.draw(name, typ)
	for notNull && text == null {
		text = w.draw(name, typ)
	}
	if text == null {
		return statements.Cell{Name: name, Null: true}
	}
	return statements.Cell{Name: name, Value: text}
}

func (w *worlds) draw(name, typ string) string {
	switch {
	case name == "topics" && typ == "jsonb":
		name = "topics_json"
	case name == "starts" && strings.HasSuffix(typ, "[]"):
		name = "starts_column"
	case name == "tenant_ids" && strings.HasSuffix(typ, "[]"):
		name = "tenant_ids_column"
	}
	if w.v7 && name == "id" {
		return w.pick("#now-5m", "#now-30m", "#now-59m", "#now-61m", "#now-150m", "#now+5m", "#now+2m", "#now+0m", "#1")
	}
	if domain, ok := domains[name]; ok && !(typ == "boolean" && name != "wake" && !strings.HasPrefix(domain, "true")) {
		v := w.pick(strings.Fields(domain)...)
		switch {
		case v == "~":
			return null
		case v == "_" && fits("", typ):
			return ""
		case fits(v, typ):
			return v
		}
	}
	switch strings.TrimSuffix(typ, "[]") {
	case "uuid":
		return w.pick("#1", "#2", "#3", "#21", null)
	case "boolean":
		return w.pick("true", "false")
	case "integer", "bigint", "smallint", "numeric", "double precision":
		return w.pick("0", "1", "2", "3")
	case "timestamp with time zone":
		if strings.HasSuffix(name, "created_at") || strings.HasSuffix(name, "started_at") || name == "finalized_at" || name == "died_at" {
			return w.pick("now-1h", "now-2h", "now-3h", "now-4h")
		}
		return w.pick("now-1h", "now-2h", "now-3h", "now+1h", "now+2h", null)
	case "interval":
		return w.pick("30m", "90m", "150m", "30m", "90m", "0")
	case "jsonb", "json":
		return w.pick("{}", `{"p":1}`)
	case "xid8":
		return w.pick("5", "10", "15")
	case "pg_snapshot":
		return w.pick("10:10:", "15:20:")
	case "bytea":
		return w.pick(`\x01`, `\x02`)
	}
	return w.pick("a", "x", "e1", "l1", "")
}

// row makes a row of t. A column with a default often keeps it.
func (w *worlds) row(t *statements.Table) statements.Row {
	row := statements.Row{Table: t.Name}
	for i, c := range t.Columns {
		if c.Default && !slices.Contains(t.Key, i) && w.chance(0.4) {
			continue
		}
		if !c.NotNull && w.chance(0.25) {
			continue
		}
		cell := w.value(c.Name, c.Type, c.NotNull)
		if cell.Null {
			continue
		}
		row.Cells = append(row.Cells, cell)
	}
	return row
}

// repair makes a row fit the checks of its table, as far as that is easy.
func (w *worlds) repair(t *statements.Table, r *statements.Row) {
	get := func(name string) string {
		c, ok := statements.Get(r.Cells, name)
		if !ok || c.Null {
			return null
		}
		return c.Value
	}
	drop := func(names ...string) {
		r.Cells = slices.DeleteFunc(slices.Clone(r.Cells), func(c statements.Cell) bool { return slices.Contains(names, c.Name) })
	}
	set := func(name, value string) { r.Cells = statements.Set(r.Cells, statements.Cell{Name: name, Value: value}) }
	together := func(names ...string) {
		missing := slices.ContainsFunc(names, func(n string) bool { return get(n) == null })
		if missing {
			drop(names...)
		}
	}
	switch t.Name {
	case "events", "log":
		key := get("dedupe_key")
		if key != null {
			key = strings.TrimPrefix(strings.TrimPrefix(key, "#7/"), "#8/")
			if tenant := get("tenant_id"); tenant != null {
				key = tenant + "/" + key
			}
			set("dedupe_key", key)
		}
	case "queue":
		if get("turn") != null && !strings.HasPrefix(get("lane"), "turns") && w.chance(0.8) {
			set("lane", "turns("+get("topic")+")")
		}
	case "dead_letters":
		if get("listener") == null {
			drop("seq", "bucket")
		} else {
			if get("seq") == null {
				set("seq", w.pick("1", "2", "3"))
			}
			if get("bucket") == null {
				set("bucket", "0")
			}
		}
	case "listeners":
		if get("shard") >= get("shards") {
			set("shards", "2")
		}
		together("hi", "hi_bound", "hi_seq")
		if get("hi") != null {
			set("in_batch", "true")
		} else {
			drop("in_batch")
		}
		together("lease_by", "lease_until")
		together("barrier", "barrier_bound", "barrier_seq")
		if strings.Count(get("ahead_seqs"), ",") != strings.Count(get("ahead_attempts"), ",") || get("ahead_seqs") == "{}" || get("ahead_attempts") == "{}" {
			drop("ahead_seqs", "ahead_attempts")
		}
	case "listener_rates":
		switch n := strings.Count(get("untils"), ","); {
		case get("untils") == "{}" || get("untils") == null:
			drop("untils", "counts")
		case n == 0:
			set("counts", w.pick("{1}", "{2}"))
		default:
			set("counts", w.pick("{1,2}", "{2,1}"))
		}
	case "limits":
		together("rate", "period")
		together("set_rate", "set_period")
	case "limit_usage":
		switch n := strings.Count(get("starts_at"), ","); {
		case get("starts_at") == "{}" || get("starts_at") == null:
			drop("starts_at", "starts")
		case n == 0:
			set("starts", w.pick("{1}", "{2}"))
		default:
			set("starts", w.pick("{1,2}", "{2,1}"))
		}
	case "pauses":
		if get("listener") != null && get("listener") != "" {
			drop("namespace", "topic", "tenant_id")
		} else if get("topic") != null && get("topic") != "" && (get("namespace") == null || get("namespace") == "") {
			set("namespace", "a")
		}
	}
}

// fresh makes a case from nothing.
func (w *worlds) fresh() statements.Case {
	if slices.Contains(w.params, "p_reclaims") && w.chance(0.8) {
		return w.turnWorld()
	}
	var c statements.Case
	if len(w.tables) > 0 && !w.chance(0.02) {
		for range 1 + w.r.IntN(7) {
			w.addRow(&c)
		}
	}
	w.tidy(&c)
	if w.insert != nil {
		row := w.row(w.insert)
		if w.chance(0.6) {
			w.repair(w.insert, &row)
		}
		c.Args = row.Cells
		if w.chance(0.5) {
			c.Rows = nil
		} else if len(c.Rows) > 0 && w.chance(0.5) { // nearly the same row again
			c.Args = slices.Clone(c.Rows[0].Cells)
			c.Args = statements.Set(c.Args, w.edge(row.Cells))
		}
		for i := range c.Args {
			if w.chance(0.1) {
				c.Args[i] = w.edge(c.Args[i : i+1])
			}
		}
		return c
	}
	w.arguments(&c)
	return c
}

// edge returns one of cells, perhaps with a value that a check may refuse.
func (w *worlds) edge(cells []statements.Cell) statements.Cell {
	if len(cells) == 0 {
		return statements.Cell{Name: w.insert.Columns[0].Name, Null: true}
	}
	c := cells[w.r.IntN(len(cells))]
	for _, col := range w.insert.Columns {
		if col.Name != c.Name {
			continue
		}
		switch col.Type {
		case "integer", "bigint", "smallint":
			c.Value = w.pick("-1", "0", "1", "2")
		case "jsonb":
			c.Value = w.pick("{}", "[]", "1")
		case "text":
			c.Value = w.pick("", "a", "x", "d1", "#7/d1", "#8/d1", "rep(d,512)", "rep(d,513)", "l1", "dead", "dispatcher")
		case "uuid":
			c.Value = w.pick("#0", "#7", "#1")
		}
		c.Null = false
	}
	return c
}

func (w *worlds) addRow(c *statements.Case) {
	if w.sequence && w.chance(0.15) {
		c.Rows = append(c.Rows, statements.Row{Table: "log_seq", Cells: []statements.Cell{{Name: "last", Value: w.pick("0", "1", "3", "6")}}})
		return
	}
	t := w.tables[w.r.IntN(len(w.tables))]
	row := w.row(t)
	// Rows of other tables with the same id, seq or listener are joined with it.
	if len(c.Rows) > 0 && w.chance(0.7) {
		other := c.Rows[w.r.IntN(len(c.Rows))]
		for _, name := range []string{"id", "namespace", "topic", "listener", "consumer_group", "tenant_id", "seq", "shard", "per", "counted_as", "kind", "name"} {
			have, ok := statements.Get(other.Cells, name)
			if i := slices.IndexFunc(t.Columns, func(col statements.Column) bool { return col.Name == name }); ok && i >= 0 && w.chance(0.8) &&
				!(have.Null && t.Columns[i].NotNull) {
				row.Cells = statements.Set(row.Cells, have)
			}
		}
	}
	c.Rows = append(c.Rows, row)
}

func (w *worlds) table(name string) *statements.Table {
	for _, t := range w.tables {
		if t.Name == name {
			return t
		}
	}
	return nil
}

// tidy repairs the rows, and drops those whose key is taken.
func (w *worlds) tidy(c *statements.Case) {
	seen := map[string]bool{}
	var rows []statements.Row
	for _, r := range c.Rows {
		t := w.table(r.Table)
		if t == nil {
			rows = append(rows, r)
			continue
		}
		w.repair(t, &r)
		key := t.Name
		for _, k := range t.Key {
			cell, ok := statements.Get(r.Cells, t.Columns[k].Name)
			if !ok && t.Name == "pauses" {
				continue
			}
			if !ok {
				cell = w.value(t.Columns[k].Name, t.Columns[k].Type, true)
				r.Cells = append(r.Cells, cell)
			}
			key += " " + cell.Value
		}
		if !seen[key] {
			seen[key] = true
			rows = append(rows, r)
		}
	}
	c.Rows = rows
}

// from takes the value of a parameter from a row.
func from(row statements.Row, param string) (statements.Cell, bool) {
	for _, name := range columnsOf(param) {
		if c, ok := statements.Get(row.Cells, name); ok && !strings.HasPrefix(c.Value, "{") {
			return c, true
		}
	}
	return statements.Cell{}, false
}

// arguments draws all arguments, mostly from rows of the case.
func (w *worlds) arguments(c *statements.Case) {
	c.Args = nil
	n := w.r.IntN(4)
	anchors := make([]int, max(n, 1))
	for i := range anchors {
		anchors[i] = w.r.IntN(max(len(c.Rows), 1))
	}
	if len(c.Rows) > n && w.chance(0.5) { // different rows
		for i, k := range w.r.Perm(len(c.Rows))[:len(anchors)] {
			anchors[i] = k
		}
	}
	qualified := w.chance(0.5)
	w.uneven = w.chance(0.2)
	for _, p := range w.params {
		w.argument(c, p, anchors, n, qualified)
	}
}

func (w *worlds) argument(c *statements.Case, p string, anchors []int, n int, qualified bool) {
	element := func(anchor int) string {
		var v string
		switch {
		case p == "status":
			return w.pick("", "pending", "processing")
		case p == "paused" || p == "p_paused":
			return w.pick("x", "y", "#7", "x/#7", "x/#8")
		case (p == "topics" || p == "version_topics") && qualified && !w.plain:
			return w.pick("a/x", "a/x", "a/y", "b/x")
		}
		if len(c.Rows) > 0 && w.chance(0.75) {
			if cell, ok := from(c.Rows[anchor], p); ok && !cell.Null && fits(cell.Value, typeNames[w.types[p]]) {
				return cell.Value
			}
		}
		if len(c.Rows) > 0 && w.chance(0.6) {
			for _, i := range w.r.Perm(len(c.Rows)) {
				if cell, ok := from(c.Rows[i], p); ok && !cell.Null && fits(cell.Value, typeNames[w.types[p]]) {
					return cell.Value
				}
			}
		}
		typ := typeNames[w.types[p]]
		for _, name := range columnsOf(p) {
			if _, ok := domains[name]; ok {
				v = w.draw(name, typ)
				if strings.HasPrefix(v, "{") && !strings.HasPrefix(typ, "json") {
					continue
				}
				return v
			}
		}
		return w.draw(p, typ)
	}
	if w.arrays[p] {
		length := n
		if w.uneven && w.chance(0.25) || strings.HasSuffix(p, "paused") || strings.HasSuffix(p, "in_flight") || strings.HasSuffix(p, "tenant_ids") {
			length = w.r.IntN(3)
			if w.chance(0.5) {
				length = 0
			}
		}
		var parts []string
		for i := range length {
			v := element(anchors[i%len(anchors)])
			switch {
			case v == null:
				v = "NULL"
			case v == "" || strings.ContainsAny(v, `{}", \`):
				v = `"` + strings.ReplaceAll(strings.ReplaceAll(v, `\`, `\\`), `"`, `\"`) + `"`
			}
			parts = append(parts, v)
		}
		c.Args = statements.Set(c.Args, statements.Cell{Name: p, Value: "{" + strings.Join(parts, ",") + "}"})
		return
	}
	v := element(anchors[0])
	switch {
	case typeNames[w.types[p]] == "text" && w.chance(0.12): // which often stands for all
		v = ""
	case strings.HasPrefix(p, "after_due"), strings.HasPrefix(p, "after_at"):
		if w.chance(0.4) {
			v = "-infinity"
		}
	}
	if v == null {
		c.Args = statements.Set(c.Args, statements.Cell{Name: p, Null: true})
		return
	}
	c.Args = statements.Set(c.Args, statements.Cell{Name: p, Value: v})
}

// mutate returns a case with a few changes.
func (w *worlds) mutate(c statements.Case) statements.Case {
	c = c.Clone()
	c.Note = nil
	for range 1 + w.r.IntN(3) {
		w.change(&c)
	}
	w.tidy(&c)
	return c
}

func (w *worlds) change(c *statements.Case) {
	anchors := make([]int, 3)
	for i := range anchors {
		anchors[i] = w.r.IntN(max(len(c.Rows), 1))
	}
	kind := w.r.IntN(10)
	switch {
	case w.insert != nil && kind < 6:
		row := w.row(w.insert)
		if len(row.Cells) > 0 {
			c.Args = statements.Set(c.Args, w.edge(row.Cells))
		}
		if w.chance(0.3) && len(c.Args) > 0 {
			c.Args = slices.Delete(c.Args, 0, 1)
		}
	case kind == 0 && len(w.tables) > 0:
		w.addRow(c)
	case kind == 1 && len(c.Rows) > 1:
		i := w.r.IntN(len(c.Rows))
		c.Rows = slices.Delete(c.Rows, i, i+1)
	case kind == 2 && len(c.Rows) > 0: // a neighbour
		r := c.Rows[anchors[0]]
		r.Cells = slices.Clone(r.Cells)
		if t := w.table(r.Table); t != nil {
			for _, k := range t.Key {
				r.Cells = statements.Set(r.Cells, w.value(t.Columns[k].Name, t.Columns[k].Type, true))
			}
			c.Rows = append(c.Rows, r)
		}
	case kind < 7 && len(c.Rows) > 0:
		r := &c.Rows[anchors[0]]
		t := w.table(r.Table)
		if t == nil {
			return
		}
		col := t.Columns[w.r.IntN(len(t.Columns))]
		other := c.Rows[anchors[1]]
		if cell, ok := statements.Get(other.Cells, col.Name); ok && w.chance(0.3) && (!cell.Null || !col.NotNull) {
			r.Cells = statements.Set(r.Cells, cell)
			return
		}
		cell := w.value(col.Name, col.Type, col.NotNull)
		if cell.Null {
			r.Cells = slices.DeleteFunc(r.Cells, func(o statements.Cell) bool { return o.Name == col.Name })
			return
		}
		r.Cells = statements.Set(r.Cells, cell)
	case len(w.params) > 0:
		if w.chance(0.15) {
			w.arguments(c)
			return
		}
		p := w.params[w.r.IntN(len(w.params))]
		n := w.r.IntN(4)
		if have, ok := statements.Get(c.Args, p); ok && w.arrays[p] && have.Value != "{}" && w.chance(0.7) {
			n = strings.Count(have.Value, ",") + 1
		}
		w.argument(c, p, anchors, n, w.chance(0.5))
	}
}
