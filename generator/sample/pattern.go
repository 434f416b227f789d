package sample

import (
	"regexp"
	"regexp/syntax"
	"strings"
	"unicode/utf8"

	"github.com/outboxgen/outboxgen/generator/model"
)

// matching returns texts that match the pattern of f and have its length: a typical, a short and a long one. If it
// finds none, which look-alikes such as \b in the pattern may cause, it returns a text of the right length.
func matching(f *model.Field) []string {
	re, err := syntax.Parse(f.Pattern, syntax.Perl)
	if err != nil {
		return []string{""}
	}
	check, err := regexp.Compile(f.Pattern)
	if err != nil {
		return []string{""}
	}
	sizes := lengths(f, 9, 40)
	var short, long string
	found := false
	for extra := range 65 {
		var b strings.Builder
		spell(&b, re, extra)
		text := b.String()
		n := utf8.RuneCountInString(text)
		for n < sizes[1] && check.MatchString(text+"a") { // the pattern is not anchored
			text, n = text+"a", n+1
		}
		if n > sizes[2] {
			break // the next one is no shorter
		}
		if n < sizes[1] || !check.MatchString(text) {
			continue
		}
		if long = text; !found {
			short, found = text, true
		}
	}
	if !found {
		return []string{strings.Repeat("a", sizes[0])}
	}
	return []string{short, short, long}
}

// member returns a character of a class, which is given by the ends of its ranges: a common one if there is one.
func member(class []rune) rune {
	for _, common := range "aA0-. " {
		for i := 0; i+1 < len(class); i += 2 {
			if class[i] <= common && common <= class[i+1] {
				return common
			}
		}
	}
	for i := 0; i+1 < len(class); i += 2 {
		if class[i+1] >= ' ' { // payloads have no NUL
			return max(class[i], ' ')
		}
	}
	return '\t'
}

// spell writes a text that re matches. Its repetitions repeat up to extra times more than they need.
func spell(b *strings.Builder, re *syntax.Regexp, extra int) {
	times := func(low, high int) {
		n := low + extra
		if high >= 0 {
			n = min(n, high)
		}
		for range n {
			spell(b, re.Sub[0], 0)
		}
	}
	switch re.Op {
	case syntax.OpLiteral:
		b.WriteString(string(re.Rune))
	case syntax.OpCharClass:
		b.WriteRune(member(re.Rune))
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		b.WriteByte('a')
	case syntax.OpCapture, syntax.OpConcat:
		for _, sub := range re.Sub {
			spell(b, sub, extra)
		}
	case syntax.OpAlternate:
		spell(b, re.Sub[0], extra)
	case syntax.OpStar:
		times(0, -1)
	case syntax.OpPlus:
		times(1, -1)
	case syntax.OpQuest:
		times(0, 1)
	case syntax.OpRepeat:
		times(re.Min, re.Max)
	}
}
