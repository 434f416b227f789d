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
	hidden := func(r rune) bool { return r != ' ' && (unicode.IsSpace(r) || unicode.Is(unicode.Cf, r)) }
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
	case missingSpace.MatchString(text):
		return "a space is missing after the colon"
	}
	return ""
}

// shapeHint says how to write what is needed instead of n, which is the value of a key if keyed is set, and otherwise the file.
func shapeHint(n *node, want string, keyed bool) string {
	block := n.Style&flowStyle == 0
	wants := func(what string) bool { return strings.HasPrefix(want, what) }
	switch {
	case wants("text") && n.Kind == mappingNode && !block && len(n.Content) == 2 && n.Content[1].Tag == nullTag:
		return templateHint
	case wants("text") && n.Kind == sequenceNode && len(n.Content) == 0:
		return typeHint
	case wants("a mapping") && n.Kind == scalarNode && n.Tag == nullTag && keyed:
		return "indent the lines that belong to it"
	case wants("a mapping") && n.Kind == sequenceNode && block:
		return `write "name: value" lines without "- "`
	case wants("a list") && n.Kind == mappingNode && block:
		return `start each line with "- "`
	case wants("a list") && n.Kind == scalarNode && n.Tag == stringTag && plainHint(n.Value) == "":
		if strings.HasPrefix(n.Value, "-") {
			return `a space is missing after the "-"`
		}
		return "put it in [ ]"
	case wants("a whole number") && n.Kind == scalarNode && n.Tag == stringTag:
		if _, err := ParseInt(n.Value); err == nil {
			return "remove the quotes"
		}
	case wants("a duration") && n.Kind == scalarNode:
		if better := betterDuration(n.Value); better != "" {
			return "did you mean " + strconv.Quote(better) + "?"
		}
	case wants("true or false") && n.Kind == scalarNode:
		switch strings.ToLower(n.Value) {
		case "yes", "y", "on", "1", "true":
			return `did you mean "true"?`
		case "no", "n", "off", "0", "false":
			return `did you mean "false"?`
		}
	}
	return ""
}
