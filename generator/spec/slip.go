package spec

import (
	"cmp"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// slip is the first mistake that keeps a file from being valid YAML, as its author sees it.
type slip struct {
	line, column int
	what         string // "the { is not closed"
	hint         string // what to do about it; may be empty
}

// findSlip looks for the mistake in a source that the library has refused. The library says where its parser stopped,
// which is often a line later, or at the start of the block. Here the lines are read as a person reads them: by
// indentation, with a key and a value per line. It knows the YAML of an outbox.yaml, not all of YAML. The result ok is
// false when nothing looks wrong.
func findSlip(source []byte) (found slip, ok bool) {
	s := &slipScanner{lines: splitLines(source), value: slipValue{indent: -1}}
	defer func() { found, ok = recover().(slip) }() // for any other panic the answer of the library is used
	for s.line = 0; s.line < len(s.lines) && s.block(s.lines[s.line]); s.line++ {
	}
	return slip{}, false
}

// slipScanner is one run of findSlip. It panics with the first slip, which ends the run.
type slipScanner struct {
	lines  []string
	line   int // index of the line that is read
	levels []slipLevel
	value  slipValue // of the last key or dash
}

// slipLevel is an open mapping or list, by the column of its keys or dashes.
type slipLevel struct {
	indent int
	list   bool
}

// slipValue is what follows the last key or dash.
type slipValue struct {
	kind   slipKind
	indent int // of the key or dash
	line   int // of the text
	column int
}

type slipKind int

const (
	noValue     slipKind = iota // a mapping, list or text may follow on deeper lines
	ownText                     // text on separate lines below the key
	plainText                   // text after the key, which deeper lines continue
	closedValue                 // in quotes or brackets: nothing deeper may follow
	blockText                   // after | or >: all deeper lines are text
)

func (s *slipScanner) fail(line, at int, what, hint string) {
	panic(slip{line: line + 1, column: 1 + utf8.RuneCountInString(s.lines[line][:at]), what: what, hint: hint})
}

// block reads the line at which a block starts, and the lines that a quote or bracket of it spans. It returns false
// when it cannot read the line.
func (s *slipScanner) block(text string) bool {
	indent := len(text) - len(strings.TrimLeft(text, " "))
	if s.value.kind == blockText && (indent > s.value.indent || strings.TrimSpace(text) == "") {
		return true
	}
	rest := text[indent:]
	if strings.TrimSpace(rest) == "" || strings.HasPrefix(strings.TrimLeft(rest, " \t"), "#") {
		return true
	}
	if isMarker(text) {
		s.levels, s.value = nil, slipValue{indent: -1}
		return strings.TrimSpace(text[3:]) == ""
	}
	if text[0] == '%' && len(s.levels) == 0 {
		return true // a directive
	}
	if r, _ := utf8.DecodeRuneInString(rest); unicode.IsSpace(r) {
		hint := "indent with spaces"
		if r != '\t' {
			hint = "it looks like a space but is another character: indent with plain spaces"
		}
		s.fail(s.line, indent, "the indentation holds "+nameOf(r), hint)
	}
	return s.entry(indent)
}

// entry reads the dash, key or text at the byte at of the line.
func (s *slipScanner) entry(at int) bool {
	text := s.lines[s.line]
	if isDash(text[at:]) {
		if at > s.value.indent && (s.value.kind == plainText || s.value.kind == ownText) {
			return true // the text continues, and holds a dash
		}
		s.open(at, true)
		s.value = slipValue{indent: at, line: s.line}
		next := at + 1 + len(text[at+1:]) - len(strings.TrimLeft(text[at+1:], " \t"))
		if next == len(text) || text[next] == '#' {
			return true
		}
		if isDash(text[next:]) || keyEnd(text, next) >= 0 {
			return s.entry(next)
		}
		return s.scalar(next, at)
	}
	if strings.HasPrefix(text[at:], "? ") {
		return false
	}
	end := keyEnd(text, at)
	if end < 0 {
		return s.bare(at)
	}
	s.open(at, false)
	s.value = slipValue{indent: at, line: s.line}
	next := end + 1 + len(text[end+1:]) - len(strings.TrimLeft(text[end+1:], " \t"))
	if next == len(text) || text[next] == '#' {
		return true
	}
	return s.scalar(next, at)
}

// open enters the mapping or list whose key or dash is at indent, or returns to it.
func (s *slipScanner) open(indent int, list bool) {
	top := func() slipLevel {
		if len(s.levels) == 0 {
			return slipLevel{indent: -1}
		}
		return s.levels[len(s.levels)-1]
	}
	if indent > top().indent {
		switch s.value.kind {
		case noValue:
			s.levels = append(s.levels, slipLevel{indent, list})
			return
		case ownText:
			s.missingColon(s.value.line, s.value.column)
		case plainText:
			s.fail(s.line, indent, "this line is indented deeper than the one above, which already has a value",
				`indent it like the line above, or quote the text if it spans several lines`)
		default:
			s.fail(s.line, indent, "this line is indented deeper than the one above, which already has a value",
				"indent it like the line above")
		}
	}
	for indent < top().indent {
		s.levels = s.levels[:len(s.levels)-1]
	}
	if indent != top().indent {
		s.fail(s.line, indent, "the indentation of this line does not match any line above",
			"indent it like the keys that it belongs to")
	}
	if !list && top().list && len(s.levels) > 1 && s.levels[len(s.levels)-2].indent == indent {
		s.levels = s.levels[:len(s.levels)-1] // the dashes may have the indentation of their key
	}
	if list && !top().list {
		if s.value.kind != noValue || s.value.indent != indent {
			s.fail(s.line, indent, `this "- " is among keys`, `remove the "- ", or put the list under its own key`)
		}
		s.levels = append(s.levels, slipLevel{indent, true})
	}
	if !list && top().list {
		s.fail(s.line, indent, "this key is among the entries of a list",
			`start each entry with "- ", or indent the key like the others`)
	}
}

// bare reads a line without a key.
func (s *slipScanner) bare(at int) bool {
	text := s.lines[s.line]
	switch {
	case s.value.kind == plainText && at > s.value.indent, s.value.kind == ownText && at > s.value.indent:
		return true // the text continues
	case text[at] == '}' || text[at] == ']':
		s.fail(s.line, at, "the "+text[at:at+1]+" has nothing to close", "remove it")
	case s.value.kind == noValue && at > s.value.indent:
		indent := s.value.indent
		if !s.scalar(at, indent) {
			return false
		}
		if s.value.kind == plainText {
			s.value = slipValue{kind: ownText, indent: indent, line: s.line, column: at}
		}
		return true
	}
	s.missingColon(s.line, at)
	return false
}

// missingColon reports the text at the byte at of a line, where a key is needed.
func (s *slipScanner) missingColon(line, at int) {
	text := s.lines[line][at:]
	if strings.HasPrefix(text, "//") || strings.HasPrefix(text, "/*") {
		s.fail(line, at, "this is not a comment", `a comment starts with "#"`)
	}
	if text[0] == '-' {
		s.fail(line, at, `a space is missing after the "-"`, `write "- value"`)
	}
	name := strings.IndexFunc(text, func(r rune) bool {
		return !strings.ContainsRune(`_-"'`, r) && !unicode.IsLetter(r) && !unicode.IsDigit(r)
	})
	if name > 0 {
		sign, size := utf8.DecodeRuneInString(strings.TrimLeft(text[name:], " "))
		after, _ := utf8.DecodeRuneInString(text[min(name+size, len(text)):])
		switch {
		case sign == ':' && unicode.IsSpace(after):
			s.fail(line, at+name, "the colon is followed by "+nameOf(after), "put a plain space after the colon")
		case sign == ':':
			s.fail(line, at+name, "a space is missing after the colon", `write "key: value"`)
		case sign == '\uFF1A':
			s.fail(line, at+name, "the colon is not a plain colon", `write "key: value"`)
		case sign == '=':
			s.fail(line, at+name, `the key is followed by "=" instead of ":"`, `write "key: value"`)
		}
	}
	s.fail(line, at, "the colon of a key is missing", `write "key: value"`)
}

// scalar reads the value at the byte at, of the key or dash at indent.
func (s *slipScanner) scalar(at, indent int) bool {
	text := s.lines[s.line]
	s.value = slipValue{kind: closedValue, indent: indent, line: s.line, column: at}
	switch c := text[at]; c {
	case '"', '\'':
		s.rest(s.quoted(at, indent), "the closing "+string(c), quoteHint(c))
	case '{', '[':
		start := text[at:]
		hint := ""
		if c == '{' && bareTemplate.MatchString(start) {
			hint = templateHint
		} else if c == '[' && strings.HasPrefix(start, "[]") {
			hint = typeHint
		}
		s.rest(s.flow(at, indent, hint), "the closing "+map[byte]string{'{': "}", '[': "]"}[c], hint)
	case '|', '>':
		s.value.kind = blockText
	case '}', ']', ',':
		s.fail(s.line, at, "a value cannot start with "+string(c), "remove it, or quote the text")
	case '@', '`', '%':
		s.fail(s.line, at, "a value cannot start with "+string(c), "quote the text")
	case '*':
		if !aliasOnly.MatchString(text[at:]) {
			s.fail(s.line, at, "a value cannot start with *", "quote the text")
		}
	case '&', '!':
		end := strings.IndexAny(text[at:], " \t")
		if end < 0 {
			s.value.kind = noValue
			return true
		}
		next := at + end + len(text[at+end:]) - len(strings.TrimLeft(text[at+end:], " \t"))
		if next == len(text) || text[next] == '#' {
			s.value.kind = noValue
			return true
		}
		return s.scalar(next, indent)
	default:
		if isDash(text[at:]) {
			s.fail(s.line, at, "a list cannot start on the line of its key",
				`start it on the next line, or write [a, b]; quote text that starts with "- "`)
		}
		s.value.kind = plainText
		if end := keyEnd(text, at); end >= 0 {
			s.fail(s.line, end, "this line has a second colon", `text that holds ": " needs quotes`)
		}
	}
	return true
}

var aliasOnly = regexp.MustCompile(`^\*[A-Za-z0-9_-]+\s*(\s#.*)?$`)

// rest checks that only a comment follows the value that ends before the byte at.
func (s *slipScanner) rest(at int, after, hint string) {
	text := s.lines[s.line]
	blank := strings.TrimLeft(text[at:], " \t")
	next := len(text) - len(blank)
	if blank == "" || blank[0] == '#' && next > at {
		return
	}
	if blank[0] == '}' || blank[0] == ']' {
		s.fail(s.line, next, "the "+blank[:1]+" has nothing to close", "remove it")
	}
	if blank[0] == '#' {
		hint = `a comment needs a space before "#"`
	}
	if hint != templateHint && hint != typeHint {
		s.fail(s.line, next, "text follows "+after, hint)
	}
	s.fail(s.value.line, s.value.column, "text follows "+after, hint)
}

// splitLines returns the lines of source without their line ends.
func splitLines(source []byte) []string {
	text := strings.ReplaceAll(string(source), "\r\n", "\n")
	return strings.Split(strings.Map(func(r rune) rune {
		if isBreak(r) {
			return '\n'
		}
		return r
	}, text), "\n")
}

// keyEnd returns the index of the colon that ends the key at the byte at of text, or -1 without one.
func keyEnd(text string, at int) int {
	if c := text[at]; c == '"' || c == '\'' {
		end := at + 1
		for end < len(text) && text[end] != c {
			if text[end] == '\\' && c == '"' {
				end++
			}
			end++
		}
		next := min(end+1, len(text))
		next += len(text[next:]) - len(strings.TrimLeft(text[next:], " "))
		if next < len(text) && isColon(text, next, true) {
			return next
		}
		return -1
	}
	if strings.IndexByte("{[|>@`%", text[at]) >= 0 {
		return -1
	}
	for i := at; i < len(text); i++ {
		switch {
		case text[i] == '#' && i > at && (text[i-1] == ' ' || text[i-1] == '\t'):
			return -1
		case text[i] == ':' && (i+1 == len(text) || text[i+1] == ' ' || text[i+1] == '\t'):
			return i
		}
	}
	return -1
}

// isColon reports whether the colon at the byte at of text, inside brackets, ends a key. After plain text it must be
// followed by a space or bracket, after quoted text not.
func isColon(text string, at int, plain bool) bool {
	if text[at] != ':' {
		return false
	}
	return !plain || at+1 == len(text) || strings.IndexByte(" \t,[]{}", text[at+1]) >= 0
}

func isDash(text string) bool {
	return text == "-" || strings.HasPrefix(text, "- ") || strings.HasPrefix(text, "-\t")
}

// isMarker reports whether text starts or ends a document.
func isMarker(text string) bool {
	mark := len(text) >= 3 && (text[:3] == "---" || text[:3] == "...")
	return mark && (len(text) == 3 || text[3] == ' ' || text[3] == '\t')
}

func isWord(text string) bool { return !strings.ContainsAny(text, " \t") }

func isBlank(text string) bool {
	text = strings.TrimLeft(text, " \t")
	return text == "" || text[0] == '#'
}

// dedented reports whether text is indented by at most indent, and so ends what started there.
func dedented(text string, indent int) bool {
	return strings.TrimSpace(text) != "" && len(text)-len(strings.TrimLeft(text, " \t")) <= max(indent, 0) && indent >= 0
}

// nameOf names an invisible character.
func nameOf(r rune) string {
	return cmp.Or(map[rune]string{'\t': "a tab", '\u00A0': "a non-breaking space"}[r], "an unusual space")
}
