package editor

import "strings"

// flow scans a mapping or list in brackets. Indent is that of the line where it begins: a later line that is indented no
// more and looks like a key ends it, because the bracket is missing.
func (s *scanner) flow(n *node, indent int) {
	n.flow, n.comma, n.kind = true, true, mapping
	last := byte('}')
	if s.peek() == '[' {
		n.kind, last = sequence, ']'
	}
	n.value = span{s.at, s.at + 1}
	s.last = n
	s.at++
	for {
		s.flowSpace(indent)
		n.value.end = max(n.value.end, min(s.at, s.lineEnd(n.value.end)))
		switch c := s.peek(); {
		case s.at >= len(s.src):
			if s.open == nil {
				s.open = n
			}
			n.value.end = s.at
			return
		case s.atBreak(): // the bracket is missing
			return
		case c == last:
			s.at++
			n.value.end, n.closed = s.at, true
			s.last = n
			return
		case c == '}' || c == ']': // one too many
			return
		case c == ',':
			s.at++
			n.comma = true
		default:
			n.comma = false
			s.flowEntry(n, indent)
			n.value.end = s.at
			if s.open != nil {
				return
			}
		}
	}
}

// flowSpace skips spaces, comments and line ends, but stops before a line that ends the brackets.
func (s *scanner) flowSpace(indent int) {
	for s.at < len(s.src) {
		s.spaces()
		if s.peek() == '#' && s.at > 0 && strings.IndexByte(" \t\n", s.src[s.at-1]) >= 0 {
			s.at = s.lineEnd(s.at)
			s.rest = s.at == len(s.src)
		}
		if !s.atBreak() || s.at == len(s.src) {
			return
		}
		here := s.at
		s.newline()
		if s.keyLine(s.at, indent) {
			s.at = here
			return
		}
	}
}

func (s *scanner) flowEntry(n *node, indent int) {
	if n.kind == sequence {
		item := n.add(&node{item: true, value: span{s.at, s.at}})
		s.flowValue(item, indent)
		return
	}
	start, quote := s.at, s.peek()
	child := &node{}
	if quote == '"' || quote == '\'' {
		inner, closed := s.quoted(s.lineEnd(s.at))
		child.key, child.quote, child.closed = span{start, s.at}, quote, closed
		child.name = plainText(s.src[inner.start:inner.end], quote)
	} else {
		child.key = s.flowPlain(true)
		child.name = s.src[child.key.start:child.key.end]
	}
	child.quote, child.closed = 0, true
	s.spaces()
	child.colon = s.peek() == ':'
	n.add(child)
	child.value = span{s.at, s.at}
	s.last = child
	if !child.colon {
		if s.at == start { // something that is neither a key nor a bracket
			s.at++
		}
		return
	}
	s.at++
	s.flowSpace(indent)
	child.value = span{s.at, s.at}
	if s.at < len(s.src) && !s.atBreak() && strings.IndexByte(",}]", s.peek()) < 0 {
		s.flowValue(child, indent)
	}
}

func (s *scanner) flowValue(n *node, indent int) {
	start := s.at
	switch c := s.peek(); c {
	case '{', '[':
		s.flow(n, indent)
	case '"', '\'':
		_, closed := s.quoted(s.lineEnd(s.at))
		s.scalar(n, span{start, s.at}, c, closed)
	default:
		value := s.flowPlain(false)
		s.scalar(n, value, 0, true)
		if s.at == start {
			s.at++
		}
	}
}

// flowPlain scans text without quotes, and a key up to its colon.
func (s *scanner) flowPlain(key bool) span {
	start := s.at
	for ; !s.atBreak(); s.at++ {
		c := s.src[s.at]
		if c == ',' || c == '}' || c == ']' || c == '#' && s.at > start && s.src[s.at-1] == ' ' {
			break
		}
		if (c == '{' || c == '[') && s.at > start {
			break
		}
		if key && c == ':' && (s.at+1 == len(s.src) || strings.IndexByte(" \t\r\n,}]", s.src[s.at+1]) >= 0) {
			break
		}
	}
	raw := strings.TrimRight(s.src[start:s.at], " \t")
	return span{start, start + len(raw)}
}
