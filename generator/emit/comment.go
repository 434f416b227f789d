package emit

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/dave/jennifer/jen"
)

// commentWidth is the column at which comments wrap.
const commentWidth = 100

// comment renders text as line comments, wrapped. Every line starts with "// ", so that no text of the
// user can become a directive such as //go:embed.
func comment(text string) []jen.Code {
	var lines []jen.Code
	for _, line := range wrap(plain(text), commentWidth-len("// ")) {
		lines = append(lines, jen.Comment("// "+line))
	}
	return lines
}

// addComment adds text as a comment of what comes next in g.
func addComment(g *jen.Group, text string) {
	for _, line := range comment(text) {
		g.Add(line)
	}
}

// plain makes one line of the user's text: runs of space, control characters and line or paragraph
// separators become one space, invisible format characters (which may reorder what a reviewer sees)
// disappear.
func plain(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case r == utf8.RuneError, unicode.Is(unicode.Cf, r):
		case unicode.IsSpace(r), unicode.IsControl(r), !unicode.IsPrint(r):
			b.WriteByte(' ')
		default:
			b.WriteRune(r)
		}
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

// wrap breaks text at spaces into lines of at most width characters; a longer word has its own line.
func wrap(text string, width int) []string {
	var lines []string
	var line strings.Builder
	length := 0
	for word := range strings.FieldsSeq(text) {
		n := utf8.RuneCountInString(word)
		if length > 0 && length+1+n > width {
			lines = append(lines, line.String())
			line.Reset()
			length = 0
		}
		if length > 0 {
			line.WriteByte(' ')
			length++
		}
		line.WriteString(word)
		length += n
	}
	if length > 0 {
		lines = append(lines, line.String())
	}
	return lines
}

// verbs are the words with which a doc can go on after a name: "TurnFinalized is emitted once". Words
// that may be plural nouns as well (records, names, lists) are left out.
var verbs = set("is are was has holds carries says means tells describes represents contains announces happens occurs " +
	"fires gives identifies keeps tells tracks belongs refers denotes indicates can may must will should does")

// typeDoc is the doc comment of name, which is what kind says ("the payload of a/b"). The user's doc goes
// on after the name when it starts with a verb, else it becomes a sentence of its own.
func typeDoc(name, kind, doc string) string {
	doc = plain(doc)
	first, _, _ := strings.Cut(doc, " ")
	switch {
	case doc == "":
		return name + " is " + kind + "."
	case verbs[first]:
		return name + " " + sentence(doc)
	case first == name:
		return sentence(doc)
	}
	return name + " is " + kind + ". " + sentence(capital(doc))
}

// fieldDoc is the comment of a field: "" without a doc.
func fieldDoc(name, doc string) string {
	doc = plain(doc)
	first, _, _ := strings.Cut(doc, " ")
	switch {
	case doc == "":
		return ""
	case verbs[first]:
		return name + " " + sentence(doc)
	}
	return sentence(capital(doc))
}

// sentence ends text with a full stop unless it has an end already.
func sentence(text string) string {
	if text == "" || strings.ContainsRune(".!?:;…)", lastRune(text)) && text[len(text)-1] != ')' {
		return text
	}
	return text + "."
}

func lastRune(text string) rune {
	r, _ := utf8.DecodeLastRuneInString(text)
	return r
}

// capital raises the first letter of a sentence, unless its first word is a name such as eBay or
// tenant_id that would not survive it.
func capital(text string) string {
	first, _, _ := strings.Cut(text, " ")
	for _, r := range first {
		if r == '_' || r == '/' || unicode.IsUpper(r) || unicode.IsDigit(r) {
			return text
		}
	}
	r, size := utf8.DecodeRuneInString(text)
	return string(unicode.ToUpper(r)) + text[size:]
}
