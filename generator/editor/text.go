package editor

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/outboxgen/outboxgen/generator/diag"
)

// Position is a place in a text as the Language Server Protocol counts: from 0, and characters in UTF-16 code units. A
// line ends with LF, CRLF or CR.
type Position struct {
	Line      int `json:"line"`
	Character int `json:"character"`
}

// Range is a part of a text. End is behind its last character.
type Range struct {
	Start Position `json:"start"`
	End   Position `json:"end"`
}

// Edit replaces a part of a text.
type Edit struct {
	Range   Range  `json:"range"`
	NewText string `json:"newText"`
}

// text is a source with the starts of its lines: as editors count them, and as YAML does, for which U+0085, U+2028 and
// U+2029 end lines too.
type text struct {
	src       string
	lines     []int
	yamlLines []int
}

func newText(src string) *text {
	t := &text{src: src, lines: []int{0}, yamlLines: []int{0}}
	for i := 0; i < len(src); i++ {
		switch c := src[i]; {
		case c == '\n', c == '\r' && (i+1 == len(src) || src[i+1] != '\n'):
			t.lines = append(t.lines, i+1)
			t.yamlLines = append(t.yamlLines, i+1)
		case c == 0xC2 && strings.HasPrefix(src[i:], "\u0085"):
			t.yamlLines = append(t.yamlLines, i+2)
		case c == 0xE2 && (strings.HasPrefix(src[i:], "\u2028") || strings.HasPrefix(src[i:], "\u2029")):
			t.yamlLines = append(t.yamlLines, i+3)
		}
	}
	return t
}

// position returns the place of a byte of the source, and of the first byte of its character.
func (t *text) position(offset int) Position {
	offset = min(max(offset, 0), len(t.src))
	for offset > 0 && offset < len(t.src) && !utf8.RuneStart(t.src[offset]) {
		offset--
	}
	line, found := slices.BinarySearch(t.lines, offset)
	if !found {
		line--
	}
	character := 0
	for _, r := range t.src[t.lines[line]:offset] {
		character += units(r)
	}
	return Position{line, character}
}

// units is how many UTF-16 code units r takes.
func units(r rune) int {
	if r > 0xFFFF {
		return 2
	}
	return 1
}

// offset returns the byte at p. A place outside of the text becomes the nearest one in it: a character behind the end of
// a line its end, a place within a character its start.
func (t *text) offset(p Position) int {
	if p.Line < 0 {
		return 0
	}
	if p.Line >= len(t.lines) {
		return len(t.src)
	}
	at, end := t.lines[p.Line], t.lineEnd(p.Line)
	for left := p.Character; at < end; {
		r, size := utf8.DecodeRuneInString(t.src[at:])
		if left -= units(r); left < 0 {
			break
		}
		at += size
	}
	return at
}

// lineEnd returns the end of a line, without what ends it.
func (t *text) lineEnd(line int) int {
	end := len(t.src)
	if line+1 < len(t.lines) {
		end = t.lines[line+1]
	}
	return t.lines[line] + len(strings.TrimRight(t.src[t.lines[line]:end], "\r\n"))
}

// at returns the byte at the place of a finding.
func (t *text) at(pos diag.Pos) int {
	line := min(max(pos.Line, 1), len(t.yamlLines)) - 1
	at := t.yamlLines[line]
	if line == 0 {
		at += len(t.src) - len(strings.TrimPrefix(t.src, "\uFEFF")) // columns do not count it
	}
	for range pos.Column - 1 {
		if at == len(t.src) || t.src[at] == '\n' || t.src[at] == '\r' {
			break
		}
		_, size := utf8.DecodeRuneInString(t.src[at:])
		at += size
	}
	return at
}

// span is a part of a source, in bytes.
type span struct{ start, end int }

func (t *text) of(s span) string { return t.src[s.start:s.end] }

func (t *text) rangeOf(s span) Range { return Range{t.position(s.start), t.position(s.end)} }

// Apply returns a text with an edit made, as an editor tells it.
func Apply(src string, r Range, with string) string {
	t := newText(src)
	start, end := t.offset(r.Start), t.offset(r.End)
	return src[:start] + with + src[max(start, end):]
}
