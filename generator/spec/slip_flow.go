package spec

import (
	"cmp"
	"strings"
)

const (
	templateHint = "a template needs quotes"
	commaHint    = `put a "," between entries`
	typeHint     = `a type such as "[]string" needs quotes`
	flowTypeHint = `inside { } a type such as "uuid?" needs quotes`
)

func quoteHint(c byte) string {
	if c == '"' {
		return `inside "..." write a quote as \"`
	}
	return `inside '...' write a quote as ''`
}

// quoted reads the quoted text that starts at the byte at, which may span several lines, and returns where it ends.
func (s *slipScanner) quoted(at, indent int) int {
	quote, line, start := s.lines[s.line][at], s.line, at
	for at++; ; at++ {
		text := s.lines[s.line]
		if at >= len(text) {
			if s.line++; s.line == len(s.lines) || dedented(s.lines[s.line], indent) {
				s.fail(line, start, "the quote is not closed", "close it with "+string(quote))
			}
			at = -1
			continue
		}
		switch {
		case text[at] == '\\' && quote == '"':
			if at++; at < len(text) && !strings.ContainsRune("0abtnvfre \"/\\N_LPxuU\t", rune(text[at])) {
				s.fail(s.line, at-1, `\`+string([]rune(text[at:])[0])+` is not a valid escape in YAML`, `use single quotes, or double the \`)
			}
		case text[at] != quote:
		case quote == '\'' && strings.HasPrefix(text[at+1:], "'"):
			at++
		default:
			return at + 1
		}
	}
}

// flow reads the brackets that open at the byte at, and returns where they are closed.
func (s *slipScanner) flow(at, indent int, hint string) int {
	type bracket struct {
		line, at int
		close    byte
	}
	var open []bracket
	var (
		value  bool   // whether there is something before the next comma or colon
		closed bool   // whether that is in quotes or brackets
		word   [2]int // the line and byte where its last word starts
		pair   bool   // whether the entry has its colon
		pairs  []bool // those of the outer brackets
	)
	for ; ; at++ {
		text := s.lines[s.line]
		if at >= len(text) {
			last := open[len(open)-1]
			s.line++
			for s.line < len(s.lines) && isBlank(s.lines[s.line]) {
				s.line++
			}
			if s.line == len(s.lines) || dedented(s.lines[s.line], indent) && strings.TrimLeft(s.lines[s.line], " \t")[0] != last.close {
				s.fail(last.line, last.at, "the "+s.lines[last.line][last.at:last.at+1]+" is not closed", cmp.Or(hint, "close it with "+string(last.close)))
			}
			at = -1
			continue
		}
		switch c := text[at]; {
		case c == ' ' || c == '\t':
		case c == '#' && (at == 0 || text[at-1] == ' ' || text[at-1] == '\t'):
			at = len(text)
		case c == '{' || c == '[':
			if value {
				s.flowMismatch(at, word)
			}
			open = append(open, bracket{s.line, at, map[byte]byte{'{': '}', '[': ']'}[c]})
			pairs, pair = append(pairs, pair), false
		case c == '}' || c == ']':
			if last := open[len(open)-1]; last.close != c {
				s.fail(s.line, at, "the "+s.lines[last.line][last.at:last.at+1]+" is closed by "+string(c), "close it with "+string(last.close))
			}
			pair, pairs = pairs[len(pairs)-1], pairs[:len(pairs)-1]
			if open = open[:len(open)-1]; len(open) == 0 {
				return at + 1
			}
			value, closed, word = true, true, [2]int{s.line, at}
		case c == ',':
			if !value && !pair {
				s.fail(s.line, at, "there is nothing before this comma", "remove the comma")
			}
			value, pair = false, false
		case isColon(text, at, !closed || !value):
			if pair {
				if word[0] == s.line && word[1] > 0 && isWord(text[word[1]:at]) {
					s.fail(word[0], word[1], "a comma is missing before this", commaHint)
				}
				s.fail(s.line, at, "this entry has a second colon", `put a comma between entries; text that holds ": " needs quotes`)
			}
			value, pair = false, true
		case c == '"' || c == '\'':
			if value {
				s.fail(s.line, at, "a comma is missing before this", commaHint)
			}
			word = [2]int{s.line, at}
			at = s.quoted(at, indent) - 1
			value, closed = true, true
		case !value && (c == '@' || c == '`' || c == '%'):
			s.fail(s.line, at, "a value cannot start with "+string(c), "quote the text")
		case !value && (c == '*' || c == '&' || c == '!'):
			word = [2]int{s.line, at}
			value, closed = c == '*', false
			for at+1 < len(text) && !strings.ContainsRune(" \t,[]{}", rune(text[at+1])) {
				at++
			}
		case c == '?' && !strings.HasPrefix(text[at:], "? "):
			s.fail(s.line, at, `"?" has a special meaning inside brackets`, flowTypeHint)
		default: // a word of plain text
			if value && text[at-1] != ' ' && text[at-1] != '\t' {
				s.flowMismatch(at, word)
			}
			word, value, closed = [2]int{s.line, at}, true, false
			for at+1 < len(text) && !strings.ContainsRune(" \t,[]{}?", rune(text[at+1])) && !isColon(text, at+1, true) {
				at++
			}
		}
	}
}

// flowMismatch reports text or a bracket that follows an entry without a comma.
func (s *slipScanner) flowMismatch(at int, word [2]int) {
	text := s.lines[s.line]
	start := at
	if word[0] == s.line {
		start = min(word[1], at)
	}
	switch {
	case strings.HasPrefix(text[start:], "map[") || strings.HasPrefix(text[start:], "]"):
		s.fail(s.line, start-len(text[:start])+len(strings.TrimRight(text[:start], "[")), "a bracket follows text", `inside { } a type such as "[]string" needs quotes`)
	case text[start] == '}' || text[at] == '{':
		s.fail(s.line, start, "text follows the closing }", templateHint)
	}
	s.fail(s.line, at, "a comma is missing before this", commaHint)
}
