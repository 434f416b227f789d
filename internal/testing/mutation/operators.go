package main

import (
	"slices"
	"strconv"
	"strings"
)

// edit replaces a part of a text.
type edit struct {
	start, end int
	new        string
	says       string // instead of new, in the id of the mutant
}

// apply returns text with e done.
func (e edit) apply(text string) string { return text[:e.start] + e.new + text[e.end:] }

// sqlEdits returns the changes of one statement, or of one object of the schema, each of which is a mutant. A change that
// any test finds that finds another one is left out: where an operand is removed, its = is not turned into <>.
func sqlEdits(sql string) []edit {
	m := &maker{nesting: nest(sql)}
	for i := range m.tokens {
		if m.tokens[i].is("with") && m.oneOf(i-1, ")") && m.at(i+1).is("(") && m.at(0).is("create") {
			break // the storage parameters of a table, which end it
		}
		m.last = i
	}
	m.last++
	for i := range m.last {
		m.operands(i)
	}
	for i := range m.last {
		m.compare(i)
		m.order(i)
		m.limitAndLock(i)
		m.words(i)
		m.values(i)
		m.schema(i)
	}
	return m.edits
}

type maker struct {
	nesting
	edits []edit
	last  int // the token behind the last that is changed
	// removed has the operands that are removed, from a token up to another.
	removed [][2]int
}

// covered reports whether token i is what an operand that is removed says, and not a part of a part of it.
func (m *maker) covered(i int) bool {
	for _, r := range m.removed {
		if r[0] <= i && i < r[1] && m.depth[i] == m.depth[r[0]] {
			return true
		}
	}
	return false
}

// remove makes an operand true or false. The text keeps it, so that the types of its parameters stay known, and the planner
// leaves it out.
func (m *maker) remove(i, j int, text string) {
	if i >= j || m.source(i, j) == text {
		return
	}
	operator := " OR "
	if text == "false" {
		operator = " AND "
	}
	m.replace(i, j, "("+text+operator+"("+m.source(i, j)+"))")
	m.edits[len(m.edits)-1].says = text
	m.removed = append(m.removed, [2]int{i, j})
}

// source returns the text of the tokens from i up to j.
func (m *maker) source(i, j int) string { return m.sql[m.tokens[i].start:m.tokens[j-1].end] }

// replace replaces the tokens from i up to j.
func (m *maker) replace(i, j int, text string) {
	if i < j {
		m.edits = append(m.edits, edit{start: m.tokens[i].start, end: m.tokens[j-1].end, new: text, says: text})
	}
}

var neighbours = map[string]string{
	"=": "<>", "<>": "=", "<": "<=", "<=": "<", ">": ">=", ">=": ">", "!~": "~", "+": "-", "-": "+",
}

// compare changes comparisons, and + and -.
func (m *maker) compare(i int) {
	t := m.tokens[i]
	if other, ok := neighbours[t.text]; ok && t.kind == sign {
		unary := m.at(i-1).kind == sign && !m.oneOf(i-1, ")", "]") && !strings.HasPrefix(m.at(i-1).text, "$") ||
			m.oneOf(i-1, "select", "then", "else", "all")
		bound := t.is("<") || t.is("<=") || t.is(">") || t.is(">=")
		sum := t.is("+") || t.is("-")
		if sum && m.at(i+1).is("0") {
			return // it keeps an index from being used, or is the first of a list
		}
		switch {
		case bound && !m.clock(i), sum && !unary, !bound && !sum && !m.covered(i) && !m.assigns(i):
			m.replace(i, i+1, other)
		}
	}
	if t.is("is") && !m.covered(i) {
		not := m.at(i + 1).is("not")
		switch {
		case not && m.at(i+2).is("null"), not && m.at(i+2).is("distinct"):
			m.replace(i+1, i+2, "")
		case m.at(i + 1).is("null"), m.at(i + 1).is("distinct"):
			m.replace(i, i+1, "IS NOT")
		}
	}
}

// assigns reports whether the = at i is that of an UPDATE ... SET, or of a RAISE.
func (m *maker) assigns(i int) bool {
	start := m.since(i-1, func(j int) bool {
		return m.oneOf(j, "set", "where", "from", "on", "when", "and", "or", "select", "having", "then", "if", "elsif", "case")
	})
	return m.at(start-1).is("set") || m.at(i-1).is("message")
}

// clock reports whether the comparison at i has the time of now on one side. No test can meet its microsecond.
func (m *maker) clock(i int) bool {
	return m.oneOf(i+1, "statement_timestamp", "clock_timestamp", "now_at") ||
		m.oneOf(i-3, "statement_timestamp", "clock_timestamp") && m.at(i-1).is(")") || m.at(i-1).is("now_at")
}

// opens reports whether token j is what an operand of AND or OR may follow.
func (m *maker) opens(j int) bool {
	return m.oneOf(j, "and", "or", "where", "on", "having", "when", "if", "elsif", "then", "else", "select", "return", ",",
		":=", "set", "check", "into", "exit", "default", "begin", "loop", "as") ||
		m.at(j).is("=") && m.inSet(j)
}

// inSet reports whether the = at j belongs to the SET of an UPDATE.
func (m *maker) inSet(j int) bool { return m.oneOf(j-2, "set", ",") }

// closes reports whether token j is what may follow an operand of AND or OR.
func (m *maker) closes(j int) bool {
	if m.at(j).is("from") && m.at(j-1).is("distinct") || m.at(j).is("left") && m.at(j+1).is("(") {
		return false
	}
	return m.oneOf(j, "and", "or", "where", "having", "group", "order", "limit", "for", "returning", "then", "else", "when",
		"end", "union", "join", "left", "cross", "inner", "as", ",", "from", "into", "window", "do", "loop", "filter", "on")
}

// between reports whether the AND at j belongs to a BETWEEN.
func (m *maker) between(j int) bool {
	if !m.at(j).is("and") {
		return false
	}
	for k := j - 1; k >= 0 && m.depth[k] >= m.depth[j]; k-- {
		if m.depth[k] == m.depth[j] && m.oneOf(k, "between", "and", "or", "where") {
			return m.at(k).is("between")
		}
	}
	return false
}

// operands makes each operand of AND and OR true or false, whichever removes it, and the conditions of WHERE, ON, HAVING,
// IF and WHEN.
func (m *maker) operands(i int) {
	t := m.tokens[i]
	ends := func(j int) bool { return m.closes(j) && !m.between(j) }
	follows := i+1 < len(m.tokens)
	switch {
	case (t.is("and") || t.is("or")) && !m.between(i) && follows && i > 0:
		start := m.since(i-1, func(j int) bool { return m.opens(j) && !m.between(j) })
		if !m.oneOf(start-1, "and", "or") {
			m.remove(start, i, neutral(t.is("and")))
		}
		end := m.until(i+1, ends)
		m.remove(i+1, end, neutral(t.is("and") || m.at(end).is("and")))
	case t.is("where"), t.is("on") && !m.oneOf(i+1, "conflict", "table", "column", "function", "view") &&
		!m.oneOf(i-2, "index") && !m.at(i-1).is("distinct"), t.is("having"):
		if follows {
			end := m.until(i+1, ends)
			m.remove(i+1, end, neutral(!m.at(end).is("or")))
		}
	case t.is("when") || (t.is("if") || t.is("elsif")) && !m.at(i-1).is("end") && !m.oneOf(i+1, "not", "exists"):
		if follows {
			end := m.until(i+1, func(j int) bool { return m.at(j).is("then") })
			// A condition of several operands loses each of them, and is not made true or false as a whole.
			if m.at(end).is("then") && m.until(i+1, func(j int) bool { return m.oneOf(j, "and", "or") }) >= end {
				m.remove(i+1, end, "true")
				m.remove(i+1, end, "false")
			}
		}
	}
}

// neutral is what an operand is replaced by to remove it.
func neutral(conjunction bool) string {
	if conjunction {
		return "true"
	}
	return "false"
}

// endsClause reports whether token j ends a list of ORDER BY.
func (m *maker) endsClause(j int) bool {
	return m.oneOf(j, "limit", "for", "union", "on", "returning", "loop", "offset", "rows", "range", "where")
}

// order turns the first key of an ORDER BY, and removes the last of several. Without any ORDER BY the rows often come in
// the same order by luck, which no test could tell.
func (m *maker) order(i int) {
	if !m.tokens[i].is("order") || !m.at(i+1).is("by") || i+2 >= len(m.tokens) {
		return
	}
	end := m.until(i+2, m.endsClause)
	key := m.until(i+2, func(j int) bool { return m.at(j).is(",") || m.endsClause(j) })
	last := key
	if m.oneOf(key-1, "asc", "desc") {
		last--
	}
	turned := " DESC"
	if m.at(key - 1).is("desc") {
		turned = ""
	}
	m.edits = append(m.edits, edit{m.tokens[last-1].end, m.tokens[key-1].end, turned, turned})
	comma := -1
	for j := i + 2; j < end; j++ {
		if m.depth[j] == m.depth[i] && m.tokens[j].is(",") {
			comma = j
		}
	}
	if comma > 0 {
		m.replace(comma, end, "")
	}
}

// limitAndLock removes LIMIT and adds one to it, and removes locks and SKIP LOCKED.
func (m *maker) limitAndLock(i int) {
	switch t := m.tokens[i]; {
	// LIMIT 0 only asks whether the tables exist, and LIMIT 1 of a row that a key names only holds the planner to a probe.
	case t.is("limit") && i+1 < len(m.tokens) && !m.at(i+1).is("0") && !(m.at(i+1).is("1") && m.oneRow(i)):
		end := m.until(i+1, func(j int) bool { return m.oneOf(j, "for", "union", "offset", "loop", "on") })
		m.replace(i+1, end, "("+m.source(i+1, end)+") + 1000000000")
		m.edits[len(m.edits)-1].says = "none"
		if !m.at(i + 1).is("1") { // one row more than the first is as wrong as all of them
			m.replace(i+1, end, "("+m.source(i+1, end)+") + 1")
		}
	case t.is("for") && (m.oneOf(i+1, "update", "share") || m.oneOf(i+1, "no", "key") && m.oneOf(i+2, "key", "share")):
		end := m.until(i, func(j int) bool { return m.oneOf(j, "union", "limit", "loop") })
		m.replace(i, end, "")
	case t.is("skip") && m.at(i+1).is("locked"), t.is("nowait"):
		m.replace(i, i+1+btoi(t.is("skip")), "")
	}
}

// keys has the unique keys of tables. The columns of dead_letters are compared with an id and with NULL.
var keys = map[string][][]string{
	"events": {{"id"}, {"namespace", "topic", "dedupe_key"}}, "log": {{"seq"}, {"namespace", "topic", "dedupe_key"}},
	"queue": {{"id"}}, "delivered": {{"id"}}, "dead_letters": {{"id", "listener"}}, "parked": {{"no"}}, "inbox_messages": {{"no"}},
	"listeners": {{"listener", "shard"}}, "limit_usage": {{"namespace", "topic", "per", "key"}},
	"pauses": {{"namespace", "topic", "tenant_id", "listener"}}, "processed_events": {{"consumer_group", "event_id"}},
}

// oneRow reports whether the SELECT that ends before i is of one table, and its WHERE names all columns of a key.
func (m *maker) oneRow(i int) bool {
	start := m.since(i-1, func(j int) bool { return m.at(j).is("select") })
	from := m.until(start, func(j int) bool { return m.oneOf(j, "from", "limit") })
	if !m.at(from+1).is("outbox_schema") || !m.at(from+4).is("as") || !m.at(from+6).is("where") {
		return false
	}
	var named []string
	for j := from + 6; j < i; j++ {
		if m.depth[j] != m.depth[i] {
			continue
		}
		if m.at(j).is("or") {
			return false
		}
		equal := m.at(j+4).is("=") && !m.at(j+5).is("any") || m.at(j+3).is("listener") && m.at(j+4).is("is") && m.at(j+5).is("null")
		if m.oneOf(j, "where", "and") && m.at(j+2).is(".") && equal {
			named = append(named, m.at(j+3).text)
		}
	}
	return slices.ContainsFunc(keys[m.at(from+3).text], func(key []string) bool {
		return !slices.ContainsFunc(key, func(column string) bool { return !slices.Contains(named, column) })
	})
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// words changes NOT, DISTINCT, UNION, joins, ON CONFLICT, and functions that have a counterpart.
func (m *maker) words(i int) {
	t := m.tokens[i]
	if t.kind != word {
		return
	}
	next := m.at(i + 1)
	switch {
	case t.is("not") && !m.oneOf(i+1, "null", "materialized", "exists", "distinct") && !m.at(i-1).is("is"),
		t.is("not") && next.is("exists") && !m.at(i-1).is("if"):
		if !m.covered(i) {
			m.replace(i, i+1, "")
		}
	case t.is("distinct") && !m.oneOf(i-1, "is", "not") && !next.is("on"):
		m.replace(i, i+1, "")
	case t.is("union") && !next.is("all"):
		m.replace(i, i+1, "UNION ALL")
	case t.is("left") && next.is("join"):
		m.replace(i, i+1, "")
	case t.is("on") && next.is("conflict"):
		end := m.until(i, func(j int) bool { return m.at(j).is("returning") || m.at(j).is("do") })
		if m.at(end).is("do") && m.at(end+1).is("nothing") {
			m.replace(i, end+2, "")
		}
	case t.is("true"):
		m.replace(i, i+1, "false")
	case t.is("false"):
		m.replace(i, i+1, "true")
	default:
		for _, pair := range [][2]string{
			{"greatest", "least"}, {"min", "max"}, {"bool_or", "bool_and"},
			{"pg_try_advisory_xact_lock_shared", "pg_try_advisory_xact_lock"},
		} {
			for side, name := range pair {
				if t.is(name) && next.is("(") {
					m.replace(i, i+1, pair[1-side])
				}
			}
		}
	}
}

// values changes numbers, intervals, and what coalesce falls back to.
func (m *maker) values(i int) {
	t := m.tokens[i]
	switch {
	case t.kind == number && m.bounds(i):
		if v, err := strconv.ParseInt(t.text, 10, 64); err == nil {
			if v >= 1000 { // no test can tell a factor from the next one where a time of now is multiplied
				v *= 2
			}
			m.replace(i, i+1, strconv.FormatInt(v+1, 10))
		} else if v, err := strconv.ParseFloat(t.text, 64); err == nil {
			m.replace(i, i+1, strconv.FormatFloat(v+1, 'g', -1, 64))
		}
	case t.kind == quoted && isInterval(t.text):
		count, unit, _ := strings.Cut(strings.Trim(t.text, "'"), " ")
		v, _ := strconv.Atoi(count) // isInterval says that it is one
		m.replace(i, i+1, "'"+strconv.Itoa(2*v+1)+" "+unit+"'")
	case t.is("coalesce") && m.at(i+1).is("("):
		end := m.until(i+2, func(j int) bool { return m.at(j).is(",") })
		if m.at(end).is(",") {
			closing := m.until(i+2, func(int) bool { return false })
			m.replace(i, closing+1, "("+m.source(i+2, end)+")")
		}
	}
}

// bounds reports whether the number at i says something that no other change says: it is not a value of a SELECT, and not
// beside a comparison that is changed.
func (m *maker) bounds(i int) bool {
	if m.at(i).is("0") && m.oneOf(i-1, "+", "-") {
		return false
	}
	item := m.oneOf(i-1, ",", "select", "-", "(") && m.oneOf(i+1, ",", "from", "as", "::", ")") && m.inSelect(i)
	beside := m.oneOf(i-1, "<", "<=", ">", ">=") || m.oneOf(i+1, "<", "<=", ">", ">=") ||
		m.oneOf(i-1, "=", "<>") && m.covered(i)
	return !item && !beside && !m.at(i-1).is("limit")
}

// inSelect reports whether token i is an item of a SELECT, and not an argument.
func (m *maker) inSelect(i int) bool {
	start := m.since(i-1, func(j int) bool { return m.oneOf(j, "select", "values", "from", "where", "on", "set") })
	return m.oneOf(start-1, "select") || m.at(start-1).is("(") && m.at(start-2).is("values")
}

func isInterval(text string) bool {
	count, unit, found := strings.Cut(strings.Trim(text, "'"), " ")
	_, err := strconv.Atoi(count)
	return found && err == nil && strings.Contains(" second seconds minute minutes hour hours day days ", " "+unit+" ")
}

// schema removes defaults, constraints, and what makes an index unique.
func (m *maker) schema(i int) {
	t := m.tokens[i]
	switch {
	case t.is("default") && i+1 < len(m.tokens) && m.at(i+1).kind != number && !m.oneOf(i+1, "true", "false"):
		m.replace(i, m.until(i+1, func(j int) bool { return m.oneOf(j, ",", "constraint", "check", "not") }), "")
	case t.is("constraint") && m.at(i+2).is("check") && m.at(i+3).is("("):
		m.replace(i+3, m.until(i+4, func(int) bool { return false })+1, "(true)")
	case t.is("constraint") && (m.oneOf(i+2, "primary", "unique", "foreign")):
		m.replace(i, m.until(i, func(j int) bool { return m.at(j).is(",") }), "CHECK (true)")
	case t.is("unique") && m.at(i+1).is("index"):
		m.replace(i, i+1, "")
	}
}
