package errtext

import (
	"regexp"
	"strings"
	"unicode"
)

// length is how much Short leaves of an error, in characters.
const length = 200

// ofMessage is how an error of a consumer begins. It repeats what stands next to it: topic, version and event.
var ofMessage = regexp.MustCompile(`^consume \S+( version \d+)?(, event [0-9a-f-]{36})?: `)

// Short returns an error on one line, without characters that control a terminal. A long error is cut in the middle:
// its beginning says what was done, and its end says why it failed. Of several lines only the first is left then,
// because a stack may follow.
func Short(text string) string {
	whole := []rune(ofMessage.ReplaceAllString(Line(text), ""))
	if len(whole) > length {
		first, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
		whole = []rune(ofMessage.ReplaceAllString(Line(first), ""))
	}
	const gap = "..."
	if left := (length - len(gap)) / 2; len(whole) > length {
		return string(whole[:left]) + gap + string(whole[len(whole)-(length-len(gap)-left):])
	}
	return string(whole)
}

// Line returns text on one line, without characters that control a terminal.
func Line(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r)
	}), " ")
}
