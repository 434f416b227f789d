package emit

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/dave/jennifer/jen"

	"github.com/outboxgen/outboxgen/generator/model"
)

// commentWidth is the column at which comments wrap.
const commentWidth = 100

// comment renders paragraphs as line comments, wrapped. Empty paragraphs are left out. Every line of text starts with
// "// ", so that the user's text cannot become a directive such as //go:embed.
func comment(paragraphs ...string) []jen.Code {
	var lines []jen.Code
	for _, text := range paragraphs {
		for i, line := range wrap(model.PlainText(text), commentWidth-len("// ")) {
			if i == 0 && len(lines) > 0 {
				lines = append(lines, jen.Comment("//"))
			}
			lines = append(lines, jen.Comment("// "+line))
		}
	}
	return lines
}

// addComment adds paragraphs as the comment of what comes next in g.
func addComment(g *jen.Group, paragraphs ...string) {
	for _, line := range comment(paragraphs...) {
		g.Add(line)
	}
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

// verbs are the words with which a doc can continue a name: "TurnFinalized is emitted once". Words that may also be
// plural nouns (records, names, lists) are left out.
var verbs = set(
	"is are was has holds carries says means tells describes represents contains announces happens occurs " +
		"fires gives identifies keeps tells tracks belongs refers denotes indicates can may must will should does")

// userDoc returns the user's doc of name as a paragraph, "" without one. A doc that starts with a verb gets name as its
// subject.
func userDoc(name, doc string) string {
	doc = model.PlainText(doc)
	first, _, _ := strings.Cut(doc, " ")
	switch {
	case doc == "":
		return ""
	case verbs[first]:
		return name + " " + sentence(doc)
	}
	return sentence(capital(doc))
}

// sentence ends text with a full stop unless it already has an end.
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

// capital makes the first letter of a sentence upper-case, unless its first word is a name that this would change, such
// as eBay or tenant_id.
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
