package spec

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// addHint records a likely mistake in n, if it is text without quotes, for findings about it: a comment without a
// space before it, the quotes of a word processor, an invisible character.
func (d *decoder) addHint(n *node) {
	if n.Kind != scalarNode || n.Style != 0 {
		return
	}
	if hint := plainHint(n.Value); hint != "" {
		d.hints[d.at(n)] = hint
	}
}

var missingSpace = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*:\S`)

func plainHint(text string) string {
	first, _ := utf8.DecodeRuneInString(text)
	last, _ := utf8.DecodeLastRuneInString(text)
	hidden := func(r rune) bool { return (r < ' ' || r > '~') && (unicode.IsSpace(r) || unicode.Is(unicode.Cf, r)) }
	const quotes = "\u201C\u201D\u201E\u2018\u2019\u00AB\u00BB\u00B4"
	switch at := strings.IndexFunc(text, hidden); {
	case at >= 0:
		r, _ := utf8.DecodeRuneInString(text[at:])
		return fmt.Sprintf("it holds the invisible character %U: type the text again", r)
	case strings.ContainsRune(quotes, first) || strings.ContainsRune(quotes, last):
		return `use plain quotes, " or '`
	case strings.Contains(text, "#"):
		return `a comment needs a space before "#"`
	case last == ',' || last == ';':
		return fmt.Sprintf("remove the %q at its end", last)
	case strings.Contains(text, ":") && missingSpace.MatchString(text): // the search is quick, and most text has none
		return "a space is missing after the colon"
	}
	return ""
}

// shapeHints are likely mistakes: text is needed that begins with want, and the node looks as like says.
var shapeHints = []struct {
	want string
	like func(n *node) bool
	hint string
}{
	{"text", func(n *node) bool {
		return isFlow(n, mappingNode) && len(n.Content) == 2 && n.Content[1].Tag == nullTag
	}, templateHint},
	{"text", func(n *node) bool { return n.Kind == sequenceNode && len(n.Content) == 0 }, typeHint},
	{"a mapping", func(n *node) bool { return isBlock(n, sequenceNode) }, `write "name: value" lines without "- "`},
	{"a list", func(n *node) bool { return isBlock(n, mappingNode) }, `start each line with "- "`},
	{"a list", func(n *node) bool { return isText(n) && strings.HasPrefix(n.Value, "-") && plainHint(n.Value) == "" },
		`a space is missing after the "-"`},
	{"a list", func(n *node) bool { return isFlow(n, mappingNode) && len(n.Content) > 0 }, "put it in [ ]"},
	{"a list", func(n *node) bool { return isText(n) && plainHint(n.Value) == "" }, "put it in [ ]"},
	{"a whole number", func(n *node) bool {
		_, err := ParseInt(n.Value)
		return isText(n) && err == nil
	}, "remove the quotes"},
	{"true or false", func(n *node) bool { return isOneOf(n, "yes", "y", "on", "1", "true") }, `did you mean "true"?`},
	{"true or false", func(n *node) bool { return isOneOf(n, "no", "n", "off", "0", "false") }, `did you mean "false"?`},
}

// shapeHint says how to write what is needed instead of n, which is the value of a key if keyed is set, and otherwise
// the file.
func shapeHint(n *node, want string, keyed bool) string {
	for _, h := range shapeHints {
		if strings.HasPrefix(want, h.want) && h.like(n) {
			return h.hint
		}
	}
	switch {
	case keyed && strings.HasPrefix(want, "a mapping") && n.Kind == scalarNode && n.Tag == nullTag:
		return "indent the lines that belong to it"
	case strings.HasPrefix(want, "a rate") && n.Kind == scalarNode:
		if better := betterRate(n.Value); better != "" {
			return better
		}
	case strings.HasPrefix(want, "a duration") && n.Kind == scalarNode:
		if better := betterDuration(n.Value); better != "" {
			return "did you mean " + strconv.Quote(better) + "?"
		}
	}
	return ""
}
