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
				s.fail(s.line, at-1, `\`+string([]rune(text[at:])[0])+` is not a valid escape in YAML`,
					`use single quotes, or double the \`)
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
	f := slipFlow{slipScanner: s}
	for ; ; at++ {
		text := s.lines[s.line]
		if at >= len(text) {
			f.nextLine(indent, hint)
			at = -1
			continue
		}
		switch c := text[at]; {
		case strings.IndexByte(" \t", c) >= 0:
		case commentAt(text, at):
			at = len(text)
		case c == '{' || c == '[':
			f.opens(at)
		case c == '}' || c == ']':
			if f.closes(at); len(f.open) == 0 {
				return at + 1
			}
		case c == ',':
			if !f.value && !f.pair {
				s.fail(s.line, at, "there is nothing before this comma", "remove the comma")
			}
			f.value, f.pair = false, false
		case isColon(text, at, !f.closed || !f.value):
			f.colon(at)
		case c == '"' || c == '\'':
			if f.value {
				s.fail(s.line, at, "a comma is missing before this", commaHint)
			}
			f.word = [2]int{s.line, at}
			at = s.quoted(at, indent) - 1
			f.value, f.closed = true, true
		case c == '?' && !strings.HasPrefix(text[at:], "? "):
			s.fail(s.line, at, `"?" has a special meaning inside brackets`, flowTypeHint)
		default:
			at = f.plain(at)
		}
	}
}

// slipFlow is what is known of the brackets that are read.
type slipFlow struct {
	*slipScanner
	open   []slipBracket
	value  bool   // whether there is something before the next comma or colon
	closed bool   // whether that is in quotes or brackets
	word   [2]int // the line and byte where its last word starts
	pair   bool   // whether the entry has its colon
}

type slipBracket struct {
	line, at int
	close    byte
	pair     bool // whether the entry that it is in has its colon
}

// nextLine goes to the next line that has something, which must belong to the brackets.
func (f *slipFlow) nextLine(indent int, hint string) {
	last := f.open[len(f.open)-1]
	f.line++
	for f.line < len(f.lines) && isBlank(f.lines[f.line]) {
		f.line++
	}
	if f.line == len(f.lines) ||
		dedented(f.lines[f.line], indent) && strings.TrimLeft(f.lines[f.line], " \t")[0] != last.close {
		f.fail(last.line, last.at, "the "+f.lines[last.line][last.at:last.at+1]+" is not closed",
			cmp.Or(hint, "close it with "+string(last.close)))
	}
}

// opens reads an opening bracket.
func (f *slipFlow) opens(at int) {
	if f.value {
		f.flowMismatch(at, f.word)
	}
	closing := map[byte]byte{'{': '}', '[': ']'}[f.lines[f.line][at]]
	f.open = append(f.open, slipBracket{f.line, at, closing, f.pair})
	f.pair = false
}

// closes reads a closing bracket.
func (f *slipFlow) closes(at int) {
	c, last := f.lines[f.line][at], f.open[len(f.open)-1]
	if last.close != c {
		f.fail(f.line, at, "the "+f.lines[last.line][last.at:last.at+1]+" is closed by "+string(c),
			"close it with "+string(last.close))
	}
	f.open, f.pair = f.open[:len(f.open)-1], last.pair
	f.value, f.closed, f.word = true, true, [2]int{f.line, at}
}

// colon reads the colon of an entry.
func (f *slipFlow) colon(at int) {
	if f.pair {
		if f.word[0] == f.line && f.word[1] > 0 && isWord(f.lines[f.line][f.word[1]:at]) {
			f.fail(f.word[0], f.word[1], "a comma is missing before this", commaHint)
		}
		f.fail(f.line, at, "this entry has a second colon", `put a comma between entries; text that holds ": " needs quotes`)
	}
	f.value, f.pair = false, true
}

// plain reads a word of plain text, an alias, an anchor or a tag, and returns where it ends.
func (f *slipFlow) plain(at int) int {
	text := f.lines[f.line]
	switch c := text[at]; {
	case f.value && text[at-1] != ' ' && text[at-1] != '\t':
		f.flowMismatch(at, f.word)
	case !f.value && strings.IndexByte("@`%", c) >= 0:
		f.fail(f.line, at, "a value cannot start with "+string(c), "quote the text")
	case !f.value && strings.IndexByte("*&!", c) >= 0:
		f.word, f.value, f.closed = [2]int{f.line, at}, c == '*', false
		for at+1 < len(text) && strings.IndexByte(" \t,[]{}", text[at+1]) < 0 {
			at++
		}
		return at
	}
	f.word, f.value, f.closed = [2]int{f.line, at}, true, false
	for at+1 < len(text) && strings.IndexByte(" \t,[]{}?", text[at+1]) < 0 && !isColon(text, at+1, true) {
		at++
	}
	return at
}

// commentAt reports whether a comment begins at the byte at.
func commentAt(text string, at int) bool {
	return text[at] == '#' && (at == 0 || text[at-1] == ' ' || text[at-1] == '\t')
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
		s.fail(s.line, start-len(text[:start])+len(strings.TrimRight(text[:start], "[")), "a bracket follows text",
			`inside { } a type such as "[]string" needs quotes`)
	case text[start] == '}' || text[at] == '{':
		s.fail(s.line, start, "text follows the closing }", templateHint)
	}
	s.fail(s.line, at, "a comma is missing before this", commaHint)
}
