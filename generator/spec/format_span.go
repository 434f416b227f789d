package spec

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// spot is a place in the lines of a file. Both numbers count from 0, col in bytes.
type spot struct{ line, col int }

// spotOf returns where n begins.
func (f *formatter) spotOf(n *node) spot {
	at := spot{line: min(max(n.Line-1, 0), len(f.lines)-1)}
	for range n.Column - 1 {
		_, size := utf8.DecodeRuneInString(f.lines[at.line][at.col:])
		at.col += size
	}
	return at
}

// valueEnd returns where a value ends that is not a mapping or list in block style. column is that of its key, and
// limit the first line that belongs to something else.
func (f *formatter) valueEnd(n *node, at spot, column, limit int) (spot, bool) {
	switch {
	case n.Kind != scalarNode:
		return f.flowEnd(at)
	case n.Style&(literalStyle|foldedStyle) != 0:
		return f.blockEnd(at, column, limit), true
	case n.Style&(doubleStyle|singleStyle) != 0:
		return f.quotedEnd(at)
	}
	end := f.plainEnd(at)
	for line := at.line + 1; line < limit && f.onlyBlank(end); line++ {
		text := strings.TrimSpace(f.lines[line])
		if strings.HasPrefix(text, "#") || f.lines[line] == "..." {
			break
		}
		if text != "" {
			end = f.plainEnd(spot{line, strings.Index(f.lines[line], text)})
		}
	}
	return end, true
}

// scalarEnd returns where a key ends.
func (f *formatter) scalarEnd(n *node, at spot) (spot, bool) {
	if n.Style&(doubleStyle|singleStyle) != 0 {
		return f.quotedEnd(at)
	}
	end := spot{at.line, at.col + len(n.Value)}
	return end, strings.HasPrefix(f.lines[at.line][at.col:], n.Value)
}

// onlyBlank reports whether only spaces follow in the line of at.
func (f *formatter) onlyBlank(at spot) bool {
	return strings.TrimSpace(f.lines[at.line][at.col:]) == ""
}

// plainEnd returns where text without quotes ends in its line.
func (f *formatter) plainEnd(at spot) spot {
	text := f.lines[at.line][at.col:]
	for i := 1; i < len(text); i++ {
		if text[i] == '#' && (text[i-1] == ' ' || text[i-1] == '\t') {
			text = text[:i]
			break
		}
	}
	return spot{at.line, at.col + len(strings.TrimRight(text, " \t"))}
}

// blockEnd returns where the text after | or > ends.
func (f *formatter) blockEnd(at spot, column, limit int) spot {
	header := f.lines[at.line][at.col:]
	header, _, _ = strings.Cut(header, " ")
	least := column + 1
	if !strings.ContainsAny(header, "123456789") {
		for line := at.line + 1; line < limit; line++ {
			if text := strings.TrimLeft(f.lines[line], " "); text != "" {
				least = max(least, len(f.lines[line])-len(text))
				break
			}
		}
	}
	end := at.line
	for line := at.line + 1; line < limit; line++ {
		text := strings.TrimLeft(f.lines[line], " ")
		switch {
		case text == "":
			if strings.Contains(header, "+") || len(f.lines[line]) > least {
				end = line
			}
			continue
		case len(f.lines[line])-len(text) >= least:
			end = line
			continue
		}
		break
	}
	return spot{end, len(f.lines[end])}
}

// quotedEnd returns where text in quotes ends.
func (f *formatter) quotedEnd(at spot) (spot, bool) {
	if at.col >= len(f.lines[at.line]) {
		return at, false
	}
	quote := f.lines[at.line][at.col]
	if quote != '"' && quote != '\'' {
		return at, false
	}
	for line, i := at.line, at.col+1; line < len(f.lines); line, i = line+1, 0 {
		text := f.lines[line]
		for ; i < len(text); i++ {
			switch {
			case quote == '"' && text[i] == '\\':
				i++
			case text[i] == quote && quote == '\'' && i+1 < len(text) && text[i+1] == quote:
				i++
			case text[i] == quote:
				return spot{line, i + 1}, true
			}
		}
	}
	return at, false
}

// flowEnd returns where a mapping or list in braces or brackets ends.
func (f *formatter) flowEnd(at spot) (spot, bool) {
	if at.col >= len(f.lines[at.line]) || !strings.ContainsRune("{[", rune(f.lines[at.line][at.col])) {
		return at, false
	}
	depth := 0
	start := true // of a token
	for at.line < len(f.lines) {
		text := f.lines[at.line]
		if at.col >= len(text) {
			at, start = spot{at.line + 1, 0}, true
			continue
		}
		switch c := text[at.col]; {
		case c == ' ' || c == '\t':
		case commentAt(text, at.col):
			at.col = len(text)
			continue
		case start && (c == '"' || c == '\''):
			end, ok := f.quotedEnd(at)
			if !ok {
				return at, false
			}
			at, start = end, false
			continue
		case c == '{' || c == '[':
			depth++
			start = true
		case c == '}' || c == ']':
			if depth--; depth == 0 {
				return spot{at.line, at.col + 1}, true
			}
			start = false
		default:
			start = c == ',' || c == ':' && (at.col+1 == len(text) || strings.IndexByte(" \t,[]{}\"'", text[at.col+1]) >= 0)
		}
		at.col++
	}
	return at, false
}

// longest is the longest line whose braces are rearranged: nobody writes a longer one, and it would take too long.
const longest = 10_000

// flow returns a mapping or list in braces or brackets, which is on one line, with its keys in order. Unusual forms are
// returned as they are.
func (f *formatter) flow(n *node, order arranger) string {
	at := f.spotOf(n)
	end, ok := f.flowEnd(at)
	if !ok {
		return ""
	}
	raw := f.lines[at.line][at.col:end.col]
	if len(f.lines[at.line]) > longest {
		return raw
	}
	inner := func(n *node, order arranger) (string, bool) {
		if n.Kind != scalarNode {
			text := f.flow(n, order)
			return text, text != ""
		}
		at := f.spotOf(n)
		end, ok := f.scalarEnd(n, at)
		if !ok || n.Value == "" && n.Style == 0 {
			return "", false
		}
		return f.lines[at.line][at.col:end.col], true
	}
	if n.Kind == sequenceNode {
		var items []string
		for _, item := range n.Content {
			text, ok := inner(item, order.each())
			if !ok {
				return raw
			}
			items = append(items, text)
		}
		return "[" + strings.Join(items, ", ") + "]"
	}
	type pair struct {
		rank int
		text string
	}
	var pairs []pair
	for i := 0; i+1 < len(n.Content); i += 2 {
		rank, within := order.under(n.Content[i].Value)
		name, ok := inner(n.Content[i], asIs{})
		value, fine := inner(n.Content[i+1], within)
		if !ok || !fine {
			return raw
		}
		pairs = append(pairs, pair{rank, name + ": " + value})
	}
	slices.SortStableFunc(pairs, func(a, b pair) int { return a.rank - b.rank })
	texts := make([]string, len(pairs))
	for i, p := range pairs {
		texts[i] = p.text
	}
	return "{" + strings.Join(texts, ", ") + "}"
}
