package spec

import (
	"slices"
	"strings"
)

// entry is a key of a mapping, or an item of a list, with its lines.
type entry struct {
	rank       int
	head, body []outLine // head: comments and blank lines above
}

// mapping arranges n, whose keys are indented by the given number of spaces in the result. from is the first line that
// may belong to its first key, limit is the first line after n that belongs to something else, and column is where
// comments that belong to n begin at least. It returns the first line that does not belong to n.
func (f *formatter) mapping(n *node, from, limit, indent, column int, order arranger) ([]outLine, int) {
	var entries []*entry
	end := from
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i], n.Content[i+1]
		next := limit
		if i+2 < len(n.Content) {
			next = f.spotOf(n.Content[i+2]).line
		}
		e := &entry{head: f.between(entries, end, f.spotOf(name).line, indent)}
		var within arranger
		e.rank, within = order.under(name.Value)
		e.body, end = f.entry(name, value, next, indent, within)
		entries = append(entries, e)
	}
	slices.SortStableFunc(entries, func(a, b *entry) int { return a.rank - b.rank })
	return f.joined(entries, end, limit, indent, column)
}

// sequence arranges the items of n, as mapping does with keys.
func (f *formatter) sequence(n *node, from, limit, indent, column int, order arranger) ([]outLine, int) {
	var entries []*entry
	end := from
	for i, item := range n.Content {
		dash := f.dash(end, limit)
		if dash < 0 {
			f.refuse(spot{from, 0}, "this list")
			return nil, limit
		}
		next := limit
		if i+1 < len(n.Content) {
			// The next item begins at the first dash in the column of this one, after the text of this one.
			next = f.spotOf(n.Content[i+1]).line
			for next > dash+1 && !f.isDash(next) {
				next--
			}
		}
		e := &entry{head: f.between(entries, end, dash, indent)}
		e.body, end = f.item(item, dash, next, indent, order.each())
		entries = append(entries, e)
	}
	return f.joined(entries, end, limit, indent, column)
}

func (f *formatter) isDash(line int) bool {
	text := strings.TrimLeft(f.lines[line], " ")
	return text == "-" || strings.HasPrefix(text, "- ") || strings.HasPrefix(text, "-\t")
}

// dash returns the first line from from that begins an item, -1 if there is none before limit.
func (f *formatter) dash(from, limit int) int {
	for line := from; line < limit; line++ {
		if f.isDash(line) {
			return line
		}
	}
	return -1
}

// between splits the lines between an entry and the next one. A comment directly below an entry, and separated from the
// next one, belongs to the former. Everything else is the head of the latter.
func (f *formatter) between(entries []*entry, from, to, indent int) (head []outLine) {
	lines, end := f.trivia(from, to)
	if end != to {
		f.refuse(spot{end, 0}, "this line")
	}
	for i := range lines {
		lines[i].indent = indent
	}
	foot := 0
	for foot < len(lines) && !lines[foot].blank() {
		foot++
	}
	if len(entries) > 0 && foot > 0 && foot < len(lines) {
		last := entries[len(entries)-1]
		last.body = append(append(last.body, lines[:foot]...), outLine{})
		lines = lines[foot:]
	}
	return lines
}

// joined joins the entries of a mapping or list, and takes the comments below that are indented by column at least.
func (f *formatter) joined(entries []*entry, end, limit, indent, column int) ([]outLine, int) {
	var out []outLine
	for i, e := range entries {
		if i == 0 {
			e.head = trimBlank(e.head)
		}
		out = append(append(out, e.head...), e.body...)
	}
	taken := end
	for line := end; line < limit; line++ {
		text := strings.TrimLeft(f.lines[line], " \t")
		if text == "" {
			continue
		}
		if !strings.HasPrefix(text, "#") || len(f.lines[line])-len(text) < column {
			break
		}
		taken = line + 1
	}
	tail, _ := f.trivia(end, taken)
	for i := range tail {
		tail[i].indent = indent
	}
	return append(out, tail...), taken
}

// trivia returns the comments and blank lines from from, and the first line that is something else, or to.
func (f *formatter) trivia(from, to int) ([]outLine, int) {
	var out []outLine
	for line := from; line < to; line++ {
		text := strings.TrimSpace(f.lines[line])
		if text != "" && text[0] != '#' && text != "..." {
			return out, line
		}
		out = append(out, outLine{text: text})
	}
	return out, max(from, to)
}

// entry arranges a key and its value. It returns the first line after them.
func (f *formatter) entry(name, value *node, limit, indent int, order arranger) ([]outLine, int) {
	at := f.spotOf(name)
	before := strings.TrimLeft(f.lines[at.line][:at.col], " ")
	keyEnd, ok := f.scalarEnd(name, at)
	if ok && keyEnd.line == at.line {
		rest := strings.TrimLeft(f.lines[at.line][keyEnd.col:], " \t")
		ok = strings.HasPrefix(rest, ":") && strings.Trim(before, "- ") == ""
	}
	if !ok || keyEnd.line != at.line {
		f.refuse(at, "this key: write it on one line, followed by a colon")
		return nil, limit
	}
	key := f.lines[at.line][at.col:keyEnd.col] + ":"
	colon := spot{at.line, keyEnd.col + strings.IndexByte(f.lines[at.line][keyEnd.col:], ':') + 1}
	return f.valued(key, colon, at.col, value, limit, indent, order)
}

// item arranges an item of a list, whose dash is in the given line.
func (f *formatter) item(value *node, dash, limit, indent int, order arranger) ([]outLine, int) {
	column := strings.IndexByte(f.lines[dash], '-')
	at := f.spotOf(value)
	if value.Kind == mappingNode && value.Style&flowStyle == 0 && len(value.Content) > 0 &&
		f.spotOf(value.Content[0]).line == dash {
		lines, end := f.mapping(value, dash, limit, indent+2, column+1, order)
		for i := range lines { // the dash goes before the first key
			if l := &lines[i]; !l.blank() && !strings.HasPrefix(l.text, "#") {
				l.indent, l.text = indent, "- "+l.text
				break
			}
			lines[i].indent = indent
		}
		return lines, end
	}
	if value.Kind == scalarNode && value.Value == "" && value.Tag == nullTag ||
		at.line != dash && value.Kind != scalarNode {
		f.refuse(spot{dash, column}, "this item: write it on the line of its dash")
		return nil, limit
	}
	if value.Kind == sequenceNode && value.Style&flowStyle == 0 {
		f.refuse(spot{dash, column}, "a list of lists: use brackets")
		return nil, limit
	}
	return f.valued("-", spot{dash, column + 1}, column, value, limit, indent, order)
}

// valued arranges a value after its key or dash, which begins in the given column. after is where the key ends.
func (f *formatter) valued(
	key string, after spot, column int, value *node, limit, indent int, order arranger,
) ([]outLine, int) {
	block := value.Style&flowStyle == 0 && len(value.Content) > 0
	switch {
	case block && value.Kind == mappingNode:
		head := f.keyLine(key, after, indent)
		lines, end := f.mapping(value, after.line+1, limit, indent+2, column+1, order)
		return append([]outLine{head}, lines...), end
	case block && value.Kind == sequenceNode:
		head := f.keyLine(key, after, indent)
		lines, end := f.sequence(value, after.line+1, limit, indent+2, column+1, order)
		return append([]outLine{head}, lines...), end
	case value.Kind == scalarNode && value.Value == "" && value.Tag == nullTag && value.Style == 0:
		return []outLine{f.keyLine(key, after, indent)}, after.line + 1
	}
	at := f.spotOf(value)
	end, ok := f.valueEnd(value, at, column, limit)
	if !ok {
		f.refuse(at, "this value")
		return nil, limit
	}
	if at.line == after.line && end.line == at.line {
		text := f.lines[at.line][at.col:end.col]
		if value.Kind != scalarNode {
			text = f.flow(value, order)
		}
		return []outLine{{indent: indent, text: key + " " + text, comment: f.comment(end)}}, end.line + 1
	}
	// A value on several lines keeps its layout and is moved as a whole.
	first := key + " " + strings.TrimLeft(f.lines[after.line][after.col:], " \t")
	out := []outLine{{indent: indent, text: strings.TrimRight(first, " \t")}}
	verbatim := value.Kind == scalarNode && value.Style&(literalStyle|foldedStyle) != 0
	for line := after.line + 1; line <= end.line; line++ {
		out = append(out, outLine{text: shifted(f.lines[line], indent-column, verbatim), as: true})
	}
	f.comment(end)
	return out, end.line + 1
}

// shifted moves a line of a value to the right, or to the left. Spaces at the end of a line only count in a block
// scalar.
func shifted(line string, by int, verbatim bool) string {
	if blank := strings.TrimSpace(line) == ""; blank && (!verbatim || line == "") {
		return ""
	}
	if by >= 0 {
		return strings.Repeat(" ", by) + line
	}
	for ; by < 0 && strings.HasPrefix(line, " "); by++ {
		line = line[1:]
	}
	return line
}

// keyLine returns the line of a key whose value is below.
func (f *formatter) keyLine(key string, after spot, indent int) outLine {
	return outLine{indent: indent, text: key, comment: f.comment(after)}
}

// comment returns the comment between at and the end of the line, and reports anything else.
func (f *formatter) comment(at spot) string {
	rest := strings.TrimSpace(f.lines[at.line][at.col:])
	if rest != "" && rest[0] != '#' {
		f.refuse(at, "what follows here")
	}
	return rest
}
