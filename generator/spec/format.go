package spec

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"unicode/utf8"

	"github.com/outboxgen/outboxgen/generator/diag"
)

// Format returns source, an outbox.yaml that positions refer to as name, in its canonical layout. The keys of each
// mapping have the order of the key tables; names, such as those of topics and fields, keep their order. Each level is
// indented by two spaces. Comments stay with what they are about. Values, quotes and the layout of values that take
// several lines are kept, and so are line ends, LF or CRLF, if the first one is applied to all.
//
// Formatted text is not changed by Format. The error is a diag.List if Decode has findings about source, or if a
// construct cannot be arranged.
func Format(source []byte, name string) ([]byte, error) {
	before, findings := Decode(source, name)
	if err := findings.Err(); err != nil {
		return nil, err
	}
	text := bytes.TrimPrefix(source, []byte("\uFEFF"))
	newline := "\n"
	if at := bytes.IndexByte(text, '\n'); at > 0 && text[at-1] == '\r' {
		newline = "\r\n"
	}
	text = bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n"))
	d := &decoder{Reporter: diag.NewReporter(name), hints: make(map[diag.Pos]string), most: maxBytes}
	root := d.parse(text)
	f := &formatter{Reporter: d.Reporter, lines: strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")}
	f.checkBreaks()
	var made string
	if !d.Findings().HasErrors() {
		made = f.file(root)
	}
	if err := d.Findings().Err(); err != nil {
		return nil, err
	}
	made = strings.ReplaceAll(made, "\n", newline)
	after, findings := Decode([]byte(made), name)
	if findings.HasErrors() || !sameValues(reflect.ValueOf(before), reflect.ValueOf(after)) ||
		inkOf(text) != inkOf([]byte(made)) {
		return nil, errors.New("format " + name +
			": the result would not say the same, so the file was left alone: please report this, with the file")
	}
	return []byte(made), nil
}

// sameValues reports whether two Specs are equal apart from positions.
func sameValues(a, b reflect.Value) bool {
	switch a.Kind() {
	case reflect.Pointer:
		return a.IsNil() == b.IsNil() && (a.IsNil() || sameValues(a.Elem(), b.Elem()))
	case reflect.Struct:
		if a.Type() == reflect.TypeFor[diag.Pos]() {
			return (a.FieldByName("Line").Int() > 0) == (b.FieldByName("Line").Int() > 0)
		}
		for i := range a.NumField() {
			if !sameValues(a.Field(i), b.Field(i)) {
				return false
			}
		}
		return true
	case reflect.Slice:
		if a.Len() != b.Len() {
			return false
		}
		for i := range a.Len() {
			if !sameValues(a.Index(i), b.Index(i)) {
				return false
			}
		}
		return true
	case reflect.Map: // hints, by position
		return true
	}
	return a.Equal(b)
}

// inkOf counts the bytes of a text. Format moves text, so only spaces, line ends and commas may differ.
func inkOf(text []byte) (ink [256]int) {
	for _, c := range text {
		ink[c]++
	}
	for _, c := range " \t\r\n," {
		ink[c] = 0
	}
	return ink
}

// formatter is one run of Format. It works on lines, and asks the nodes where things are, because the nodes do not know
// of blank lines and of how a value is written.
type formatter struct {
	*diag.Reporter
	lines []string
}

// outLine is a line of the result. The zero outLine is a blank line.
type outLine struct {
	indent  int
	text    string
	comment string // at the end of the line
	as      bool   // text is the whole line, as it is
}

func (l outLine) blank() bool { return l.text == "" && l.comment == "" && !l.as }

// refuse reports something that Format cannot arrange. The result is not used then.
func (f *formatter) refuse(at spot, what string) {
	f.Errorf(f.Pos(at.line+1, 1+utf8.RuneCountInString(f.lines[at.line][:at.col])), diag.YAMLSyntax,
		"fmt cannot arrange %s", what)
}

// checkBreaks reports line ends that only YAML sees as such.
func (f *formatter) checkBreaks() {
	for i, line := range f.lines {
		if at := strings.IndexAny(line, "\r\u0085\u2028\u2029"); at >= 0 {
			f.refuse(spot{i, at}, "a line that ends with "+quoteShort(string([]rune(line[at:])[:1]))+": end it with LF or CRLF")
		}
	}
}

func (f *formatter) file(root *node) string {
	if root.Kind != mappingNode || root.Style&flowStyle != 0 {
		return strings.Join(f.lines, "\n") + "\n"
	}
	// What is above the first key is about the file, or for the parser or the editor.
	header := f.spotOf(root.Content[0]).line
	var out []outLine
	for _, line := range f.lines[:header] {
		out = append(out, outLine{text: strings.TrimSpace(line)})
	}
	lines, end := f.mapping(root, header, len(f.lines), 0, 0, file)
	tail, _ := f.trivia(end, len(f.lines))
	out = append(append(out, lines...), trimEnd(tail)...)
	return render(tidy(out))
}

// tidy removes blank lines at the start, and all but one elsewhere.
func tidy(lines []outLine) []outLine {
	var out []outLine
	for _, line := range lines {
		if line.blank() && (len(out) == 0 || out[len(out)-1].blank()) {
			continue
		}
		out = append(out, line)
	}
	return trimEnd(out)
}

func trimBlank(lines []outLine) []outLine {
	for len(lines) > 0 && lines[0].blank() {
		lines = lines[1:]
	}
	return lines
}

func trimEnd(lines []outLine) []outLine {
	for len(lines) > 0 && lines[len(lines)-1].blank() {
		lines = lines[:len(lines)-1]
	}
	return lines
}

// widest is the longest line whose comment moves those of its neighbours.
const widest = 60

// render aligns the comments at the ends of neighbouring lines.
func render(lines []outLine) string {
	var b strings.Builder
	for i := 0; i < len(lines); {
		j, column := i, 0
		for ; j < len(lines) && lines[j].comment != ""; j++ {
			if w := lines[j].width(); w <= widest {
				column = max(column, w)
			}
		}
		for ; i < j; i++ {
			l := lines[i]
			b.WriteString(strings.Repeat(" ", l.indent) + l.text + strings.Repeat(" ", max(column-l.width(), 0)+2) +
				l.comment + "\n")
		}
		if i < len(lines) {
			if l := lines[i]; !l.blank() && !l.as {
				b.WriteString(strings.Repeat(" ", l.indent))
			}
			b.WriteString(lines[i].text + "\n")
			i++
		}
	}
	return b.String()
}

func (l outLine) width() int { return l.indent + utf8.RuneCountInString(l.text) }
