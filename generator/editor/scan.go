package editor

import (
	"strings"

	"github.com/outboxgen/outboxgen/generator/spec"
)

// scanner makes the tree of a text. It goes by indentation, brackets and colons, never fails, and recovers at the next
// line that can only be a key of a block.
type scanner struct {
	src   string
	at    int
	stack []*node // the open nodes in block style, the root first
	last  *node   // that was touched last
	open  *node   // the innermost bracket that is open at the end
	rest  bool    // the end is in a comment or in a text of several lines
}

func scan(src string) *scanner {
	root := &node{indent: -1, slot: spec.Root()}
	s := &scanner{src: src, at: len(src) - len(strings.TrimPrefix(src, "\uFEFF")), stack: []*node{root}, last: root}
	for s.at < len(s.src) {
		s.line()
	}
	root.finish()
	return s
}

func (s *scanner) root() *node { return s.stack[0] }
func (s *scanner) top() *node  { return s.stack[len(s.stack)-1] }

func (s *scanner) peek() byte {
	if s.at < len(s.src) {
		return s.src[s.at]
	}
	return 0
}

// spaces skips spaces and tabs.
func (s *scanner) spaces() {
	for s.at < len(s.src) && (s.src[s.at] == ' ' || s.src[s.at] == '\t') {
		s.at++
	}
}

func (s *scanner) atBreak() bool {
	return s.at >= len(s.src) || s.src[s.at] == '\n' || s.src[s.at] == '\r'
}

// lineEnd returns where the line of at ends.
func (s *scanner) lineEnd(at int) int {
	if i := strings.IndexAny(s.src[at:], "\r\n"); i >= 0 {
		return at + i
	}
	return len(s.src)
}

// newline goes to the start of the next line.
func (s *scanner) newline() {
	s.at = s.lineEnd(s.at)
	s.rest = s.at == len(s.src) && s.rest
	if s.peek() == '\r' {
		s.at++
	}
	if s.peek() == '\n' {
		s.at++
	}
}

// lineStart returns where the line of at starts.
func (s *scanner) lineStart(at int) int { return strings.LastIndexAny(s.src[:at], "\r\n") + 1 }

// comment goes to the end of the line, and notes if it is a comment.
func (s *scanner) comment() {
	s.spaces()
	s.rest = s.peek() == '#'
	s.newline()
}

func (s *scanner) isDash() bool {
	return s.peek() == '-' && (s.at+1 == len(s.src) || strings.IndexByte(" \t\r\n", s.src[s.at+1]) >= 0)
}

// line scans a line in block style, and the lines that its value takes.
func (s *scanner) line() {
	start := s.at
	s.spaces()
	if s.atBreak() || s.peek() == '#' || s.at == start && (strings.HasPrefix(s.src[s.at:], "---") || s.peek() == '%') {
		s.comment()
		return
	}
	for {
		column := s.at - start
		dash := s.isDash()
		s.popTo(column, dash)
		if !dash {
			break
		}
		n := s.top().add(&node{item: true, indent: column, value: span{s.at, s.at + 1}})
		n.parent.kind = sequence
		s.push(n)
		s.at++
		s.spaces()
		n.value = span{s.at, s.at}
		if s.atBreak() || s.peek() == '#' {
			s.comment()
			return
		}
	}
	s.entry(s.at - start)
	s.comment()
}

// popTo closes the nodes that a line with that indentation does not belong to. A list may have the indentation of its
// key.
func (s *scanner) popTo(column int, dash bool) {
	for len(s.stack) > 1 {
		top := s.top()
		if top.indent < column || dash && top.indent == column && !top.item {
			return
		}
		s.stack = s.stack[:len(s.stack)-1]
	}
}

func (s *scanner) push(n *node) {
	s.stack = append(s.stack, n)
	s.last = n
}

// entry scans "key: value" or a value.
func (s *scanner) entry(column int) {
	parent := s.top()
	if key, name, ok := s.key(); ok {
		n := parent.add(&node{indent: column, key: key, name: name, colon: true})
		parent.kind = mapping
		s.push(n)
		s.spaces()
		s.value(n)
		return
	}
	if parent.parent == nil || parent.kind != empty { // a word that is being typed
		parent = parent.add(&node{indent: column})
		s.last = parent
	}
	s.value(parent)
}

// key scans a key with its colon, in block style. If there is none, it stays where it is.
func (s *scanner) key() (key span, name string, ok bool) {
	start, end := s.at, s.lineEnd(s.at)
	if c := s.peek(); c == '"' || c == '\'' {
		inner, closed := s.quoted(end)
		if after := strings.TrimLeft(s.src[inner.end:end], `"' `); closed && strings.HasPrefix(after, ":") {
			key = span{start, inner.end + 1}
			s.at = end - len(after) + 1
			return key, plainText(s.src[inner.start:inner.end], c), true
		}
		s.at = start
		return span{}, "", false
	}
	if strings.IndexByte("{[", s.peek()) >= 0 {
		return span{}, "", false
	}
	for i := start; i < end; i++ {
		switch {
		case s.src[i] == '#' && i > start && s.src[i-1] == ' ':
			return span{}, "", false
		case s.src[i] == ':' && (i+1 == end || s.src[i+1] == ' ' || s.src[i+1] == '\t'):
			s.at = i + 1
			name = strings.TrimRight(s.src[start:i], " \t")
			return span{start, start + len(name)}, name, true
		}
	}
	return span{}, "", false
}

// quoted scans a text in quotes up to limit and returns the part between them.
func (s *scanner) quoted(limit int) (inner span, closed bool) {
	quote := s.src[s.at]
	s.at++
	inner.start = s.at
	for ; s.at < limit; s.at++ {
		switch {
		case quote == '"' && s.src[s.at] == '\\':
			s.at++
		case s.src[s.at] == quote && quote == '\'' && s.at+1 < limit && s.src[s.at+1] == quote:
			s.at++
		case s.src[s.at] == quote:
			inner.end = s.at
			s.at++
			return inner, true
		}
	}
	s.at = min(s.at, limit)
	inner.end = s.at
	return inner, false
}

// value scans the value of n, in block style.
func (s *scanner) value(n *node) {
	start := s.at
	switch c := s.peek(); {
	case s.atBreak() || c == '#':
		n.value = span{s.at, s.at}
	case c == '{' || c == '[':
		s.flow(n, s.at-s.lineStart(s.at)-len(strings.TrimLeft(s.src[s.lineStart(s.at):s.at], " ")))
	case c == '"' || c == '\'':
		s.quotedValue(n)
	case c == '|' || c == '>':
		n.kind, n.quote = scalar, c
		n.value = span{start, s.lineEnd(start)}
		s.blockText(n)
	default:
		end := s.lineEnd(start)
		for _, mark := range []string{" #", "\t#"} {
			if i := strings.Index(s.src[start:end], mark); i >= 0 {
				end = start + i
			}
		}
		raw := strings.TrimRight(s.src[start:end], " \t")
		s.scalar(n, span{start, start + len(raw)}, 0, true)
		s.at = end
	}
}

func (s *scanner) scalar(n *node, value span, quote byte, closed bool) {
	n.kind, n.value, n.quote, n.closed = scalar, value, quote, closed
	inner := n.inner()
	n.text = plainText(s.src[inner.start:inner.end], quote)
	s.last = n
}

// longest is how many bytes a text in quotes may have to be taken for one of several lines.
const longest = 1 << 16

// quotedValue scans a text in quotes. One that does not end on its line goes on up to a line that looks like a key. If
// it does not end before that, its quote is missing, and it ends with its line.
func (s *scanner) quotedValue(n *node) {
	start, quote := s.at, s.src[s.at]
	_, closed := s.quoted(s.lineEnd(s.at))
	if !closed {
		limit := s.lineEnd(start)
		for s.at = start; s.at < len(s.src) && s.at-start < longest && (s.at == start || !s.keyLine(s.at, longest)); {
			limit = s.lineEnd(s.at)
			s.newline()
		}
		s.at = start
		if _, closed = s.quoted(limit); !closed {
			s.at = start
			s.quoted(s.lineEnd(start))
		}
	}
	s.scalar(n, span{start, s.at}, quote, closed)
	s.rest = false
}

// blockText skips the lines of a text behind | or >.
func (s *scanner) blockText(n *node) {
	s.at = n.value.end
	for s.at < len(s.src) {
		next := s.at
		s.newline()
		line := s.src[s.at:s.lineEnd(s.at)]
		if indent := len(line) - len(strings.TrimLeft(line, " ")); strings.TrimSpace(line) != "" && indent <= max(n.indent, 0) {
			s.at = next
			return
		}
		n.end = s.lineEnd(s.at)
		s.at = n.end
	}
	s.rest = true
	s.last = n
}

// keyLine reports whether the line at begins with a key in block style, or an item, indented by at most indent.
func (s *scanner) keyLine(at, indent int) bool {
	line := s.src[at:s.lineEnd(at)]
	word := strings.TrimLeft(line, " ")
	if len(line)-len(word) > indent || word == "" {
		return false
	}
	if strings.HasPrefix(word, "- ") {
		return true
	}
	name, rest, found := strings.Cut(word, ":")
	return found && (rest == "" || rest[0] == ' ') && name != "" && strings.Trim(name,
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") == ""
}
