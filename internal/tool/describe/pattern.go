package describe

import (
	"fmt"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode"
)

// ecmaPattern rewrites a pattern of Go (RE2) as a regular expression of ECMA-262 with the flag u, which JSON Schema
// uses (https://json-schema.org/draft/2020-12/json-schema-core#section-6.4). It matches the same texts. It is written
// from the parsed pattern, because the same text can mean something else there: \s, ., (?i), \z, [[:alpha:]].
func ecmaPattern(pattern string) string {
	re, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return pattern // the model has no such pattern
	}
	var b strings.Builder
	writePattern(&b, re)
	return b.String()
}

// plainPatterns are what always has the same form.
var plainPatterns = map[syntax.Op]string{
	syntax.OpNoMatch:        `[^\s\S]`,
	syntax.OpEmptyMatch:     "(?:)",
	syntax.OpAnyCharNotNL:   `[^\n]`,
	syntax.OpAnyChar:        `[\s\S]`,
	syntax.OpBeginLine:      `(?<![^\n])`,
	syntax.OpEndLine:        `(?![^\n])`,
	syntax.OpBeginText:      "^",
	syntax.OpEndText:        "$",
	syntax.OpWordBoundary:   `\b`,
	syntax.OpNoWordBoundary: `\B`,
}

func writePattern(b *strings.Builder, re *syntax.Regexp) {
	switch re.Op {
	case syntax.OpLiteral:
		for _, r := range re.Rune {
			if re.Flags&syntax.FoldCase != 0 && unicode.SimpleFold(r) != r {
				writeClass(b, folded(r))
			} else {
				writeRune(b, r, `^$\.*+?()[]{}|/`)
			}
		}
	case syntax.OpCharClass:
		writeClass(b, re.Rune)
	case syntax.OpCapture:
		group(b, re.Sub[0])
	case syntax.OpStar, syntax.OpPlus, syntax.OpQuest, syntax.OpRepeat:
		writeAtom(b, re.Sub[0])
		b.WriteString(quantifier(re))
	case syntax.OpConcat:
		for _, sub := range re.Sub {
			if sub.Op == syntax.OpAlternate {
				group(b, sub)
			} else {
				writePattern(b, sub)
			}
		}
	case syntax.OpAlternate:
		for i, sub := range re.Sub {
			if i > 0 {
				b.WriteByte('|')
			}
			writePattern(b, sub)
		}
	default:
		b.WriteString(plainPatterns[re.Op])
	}
}

func quantifier(re *syntax.Regexp) string {
	switch {
	case re.Op == syntax.OpStar:
		return "*"
	case re.Op == syntax.OpPlus:
		return "+"
	case re.Op == syntax.OpQuest:
		return "?"
	case re.Max == re.Min:
		return fmt.Sprintf("{%d}", re.Min)
	case re.Max < 0:
		return fmt.Sprintf("{%d,}", re.Min)
	}
	return fmt.Sprintf("{%d,%d}", re.Min, re.Max)
}

func group(b *strings.Builder, re *syntax.Regexp) {
	b.WriteString("(?:")
	writePattern(b, re)
	b.WriteByte(')')
}

// writeAtom writes what a quantifier follows.
func writeAtom(b *strings.Builder, re *syntax.Regexp) {
	switch {
	case re.Op == syntax.OpCharClass, re.Op == syntax.OpAnyChar, re.Op == syntax.OpAnyCharNotNL, re.Op == syntax.OpCapture,
		re.Op == syntax.OpNoMatch, re.Op == syntax.OpEmptyMatch, re.Op == syntax.OpLiteral && len(re.Rune) == 1:
		writePattern(b, re)
	default:
		group(b, re)
	}
}

// folded returns the class of r in every case.
func folded(r rune) []rune {
	all := []rune{r}
	for other := unicode.SimpleFold(r); other != r; other = unicode.SimpleFold(other) {
		all = append(all, other)
	}
	slices.Sort(all)
	var ranges []rune
	for _, r := range all {
		ranges = append(ranges, r, r)
	}
	return ranges
}

// writeClass writes ranges, pairs of runes, as a class.
func writeClass(b *strings.Builder, ranges []rune) {
	if len(ranges) >= 2 && ranges[0] == 0 && ranges[len(ranges)-1] == unicode.MaxRune {
		b.WriteString("[^")
		ranges = complement(ranges)
	} else {
		b.WriteByte('[')
	}
	if len(ranges) > 60 { // a class of Unicode, such as \p{L}
		var names []string
		if names, ranges = categories(ranges); names != nil {
			b.WriteString(strings.Join(names, ""))
		}
	}
	for i := 0; i < len(ranges); i += 2 {
		low, high := ranges[i], ranges[i+1]
		writeRune(b, low, `^\[]-`)
		if high == low {
			continue
		}
		if high > low+1 {
			b.WriteByte('-')
		}
		writeRune(b, high, `^\[]-`)
	}
	b.WriteByte(']')
}

// writeRune writes a character that stands for itself, with a backslash if it is one of special.
func writeRune(b *strings.Builder, r rune, special string) {
	switch {
	case r == '\n':
		b.WriteString(`\n`)
	case r == '\t':
		b.WriteString(`\t`)
	case r < ' ' || r >= 0x7f && r <= 0xa0:
		fmt.Fprintf(b, `\x%02x`, r)
	case strings.ContainsRune(special, r):
		b.WriteByte('\\')
		b.WriteRune(r)
	case r >= 0xd800 && r <= 0xdfff: // only as the end of a range: no text has it
		fmt.Fprintf(b, `\u%04x`, r)
	default:
		b.WriteRune(r)
	}
}

// complement returns the ranges between ranges.
func complement(ranges []rune) []rune {
	var rest []rune
	next := rune(0)
	for i := 0; i < len(ranges); i += 2 {
		if ranges[i] > next {
			rest = append(rest, next, ranges[i]-1)
		}
		next = ranges[i+1] + 1
	}
	if next <= unicode.MaxRune {
		rest = append(rest, next, unicode.MaxRune)
	}
	return rest
}

// categories returns the general categories of Unicode that are within ranges, as escapes of ECMA-262, and the rest.
// Larger ones go first.
func categories(ranges []rune) (names []string, rest []rune) {
	var known []string
	for name := range unicode.Categories {
		if len(name) <= 2 && name != "LC" && name != "Cn" {
			known = append(known, name)
		}
	}
	slices.SortFunc(known, func(a, b string) int {
		if len(a) != len(b) {
			return len(a) - len(b)
		}
		return strings.Compare(a, b)
	})
	for _, name := range known {
		if table := tableRanges(unicode.Categories[name]); len(table) > 0 && within(table, ranges) {
			ranges = intersection(ranges, complement(table))
			names = append(names, `\p{`+name+`}`)
		}
	}
	return names, ranges
}

// tableRanges returns a table as sorted ranges that do not touch.
func tableRanges(t *unicode.RangeTable) []rune {
	var ranges []rune
	add := func(low, high, stride rune) {
		for r := low; r <= high; r += stride {
			end := r
			if stride == 1 {
				end = high
			}
			if n := len(ranges); n > 0 && ranges[n-1]+1 >= r {
				ranges[n-1] = end
			} else {
				ranges = append(ranges, r, end)
			}
			if stride == 1 {
				return
			}
		}
	}
	for _, r := range t.R16 {
		add(rune(r.Lo), rune(r.Hi), rune(r.Stride))
	}
	for _, r := range t.R32 {
		add(rune(r.Lo), rune(r.Hi), rune(r.Stride))
	}
	return ranges
}

// within reports whether all of a is in b.
func within(a, b []rune) bool {
	return slices.Equal(intersection(a, b), a)
}

// intersection returns what two sorted lists of ranges have in common.
func intersection(a, b []rune) []rune {
	var both []rune
	for i, j := 0, 0; i < len(a) && j < len(b); {
		if low, high := max(a[i], b[j]), min(a[i+1], b[j+1]); low <= high {
			both = append(both, low, high)
		}
		if a[i+1] < b[j+1] {
			i += 2
		} else {
			j += 2
		}
	}
	return both
}
