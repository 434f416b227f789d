package spec

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/outboxgen/outboxgen/generator/diag"
)

// maxBytes is the largest file that is read.
const maxBytes = 1 << 20

// parse returns the root of the only document of source, or nil after a finding that leaves nothing to
// decode. A source without any document has an empty mapping as its root.
func (d *decoder) parse(source []byte) *node {
	if len(source) > d.most {
		d.Errorf(d.Pos(1, 1), diag.YAMLTooLarge, "the file has %d bytes: the limit is %d", len(source), d.most)
		return nil
	}
	source = bytes.TrimPrefix(source, []byte("\uFEFF"))
	if !d.checkEncoding(source) {
		return nil
	}
	parser := newParser(bytes.NewReader(source))
	var document node
	switch err := next(parser, &document); {
	case errors.Is(err, io.EOF):
		return &node{Kind: mappingNode, Line: 1, Column: 1}
	case err != nil:
		d.syntaxError(source, err, 0)
		return nil
	}
	var second node
	switch err := next(parser, &second); {
	case errors.Is(err, io.EOF):
	case err != nil:
		d.syntaxError(source, err, 1)
		return nil
	default:
		d.Errorf(d.at(&second), diag.YAMLDocument, "a second document starts here: a file must hold only one")
		return nil // keys that look missing may be in the other document
	}
	if document.Kind == documentNode && len(document.Content) == 1 {
		return document.Content[0]
	}
	return &document
}

// next reads a document. The library panics on a few inputs that it should refuse; such a panic becomes an error.
func next(parser interface{ Decode(any) error }, into *node) (err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("the parser stopped")
		}
	}()
	return parser.Decode(into)
}

// checkEncoding reports the first character that YAML does not allow: the library would report it without a position.
// It returns whether the source is free of them, and has then counted the lines.
func (d *decoder) checkEncoding(source []byte) bool {
	line, column := 1, 1
	for i := 0; i < len(source); {
		r, size := utf8.DecodeRune(source[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			d.Errorf(d.Pos(line, column), diag.YAMLEncoding, "the byte 0x%02x is not UTF-8", source[i])
			return false
		case r == 0:
			d.Errorf(d.Pos(line, column), diag.YAMLEncoding, "there is a NUL byte here: remove it")
			return false
		case r == 0xFEFF:
			d.Errorf(d.Pos(line, column), diag.YAMLEncoding,
				"there is a byte order mark here, which most editors do not show: remove it")
			return false
		case !allowed(r):
			d.Errorf(d.Pos(line, column), diag.YAMLEncoding, "the character %U is not allowed in YAML", r)
			return false
		}
		i += size
		column++
		if isBreak(r) && (r != '\r' || i == len(source) || source[i] != '\n') {
			line, column = line+1, 1
		}
	}
	d.lines = line
	return true
}

// allowed follows the character set of YAML 1.1, section 5.1, without the byte order mark, which the library
// ignores in some places.
func allowed(r rune) bool {
	switch {
	case r == '\t', r == '\n', r == '\r', r == 0x85:
		return true
	case r < 0x20, r >= 0x7F && r < 0xA0:
		return false
	}
	return r != 0xFEFF && r != 0xFFFE && r != 0xFFFF
}

func isBreak(r rune) bool {
	return r == '\n' || r == '\r' || r == 0x85 || r == 0x2028 || r == 0x2029
}

// syntaxError reports an error of the library about source, found after some good documents. The place and words of
// findSlip are better, so the library's text is used only when findSlip sees nothing wrong. The library gives at most
// a line, of what it was parsing, which does not help to find a missing key or comma. For these it parses again, one
// byte at a time, to see how far it reads.
func (d *decoder) syntaxError(source []byte, err error, good int) {
	line, text := splitLine(err.Error())
	lines := splitLines(source)
	if rest, ok := strings.CutPrefix(text, "unknown anchor '"); ok {
		name, _, _ := strings.Cut(rest, "'")
		line, column := findAlias(lines, name)
		d.aliasRefused(d.Pos(line, column), name, " (text that starts with * needs quotes)")
		return
	}
	if s, ok := findSlip(source); ok {
		hint := ""
		if s.hint != "" {
			hint = " (" + s.hint + ")"
		}
		d.Errorf(d.Pos(s.line, s.column), diag.YAMLSyntax, "not valid YAML: %s%s", s.what, hint)
		return
	}
	if line == 0 || strings.HasPrefix(text, "did not find expected") {
		line = readUntil(source, good)
	}
	line, column := firstText(lines, line)
	d.Errorf(d.Pos(line, column), diag.YAMLSyntax, "not valid YAML: %s", text)
}

// bareTemplate is the value of a key that was meant as a template.
var bareTemplate = regexp.MustCompile(`^\{\{?\s*[a-z0-9_.]+\s*\}?\}`)

// findAlias returns the place of the first alias of that name.
func findAlias(lines []string, name string) (line, column int) {
	alias := regexp.MustCompile(`(^|[\s,\[{])\*` + regexp.QuoteMeta(name))
	for i, text := range lines {
		if at := alias.FindStringIndex(text); at != nil {
			return i + 1, 1 + utf8.RuneCountInString(text[:strings.Index(text[at[0]:], "*")+at[0]])
		}
	}
	return 1, 1
}

// splitLine takes "yaml: line 3: text" apart. The line is 0 when the text has none.
func splitLine(text string) (int, string) {
	text = strings.TrimPrefix(text, "yaml: ")
	rest, found := strings.CutPrefix(text, "line ")
	if !found {
		return 0, text
	}
	digits, rest, found := strings.Cut(rest, ": ")
	line, err := strconv.Atoi(digits)
	if !found || err != nil {
		return 0, text
	}
	return line, rest
}

// byteReader returns one byte per call and counts them.
type byteReader struct {
	source []byte
	read   int
}

func (r *byteReader) Read(p []byte) (int, error) {
	if r.read == len(r.source) {
		return 0, io.EOF
	}
	p[0] = r.source[r.read]
	r.read++
	return 1, nil
}

// readUntil returns the line of the last text that the library read before it failed.
func readUntil(source []byte, good int) int {
	reader := &byteReader{source: source}
	parser := newParser(reader)
	for range good + 1 {
		var document node
		if next(parser, &document) != nil {
			break
		}
	}
	return len(splitLines(bytes.TrimRight(source[:reader.read], " \t\r\n")))
}

// firstText returns line, or the nearest line before it that is not blank, and the column of its first text.
func firstText(lines []string, line int) (int, int) {
	for line = min(max(line, 1), len(lines)); line > 1 && strings.TrimSpace(lines[line-1]) == ""; {
		line--
	}
	text := lines[line-1]
	indent := len(text) - len(strings.TrimLeft(text, " \t"))
	if indent == len(text) {
		indent = 0
	}
	return line, indent + 1
}
