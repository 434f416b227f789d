// Package editor answers what an editor asks about an outbox.yaml: findings, completion, hover, definitions, references,
// renaming, symbols, folding, formatting and fixes. All answers are functions of the text, the lock and a position. It
// uses no disk, clock or connection, so that a language server and a page in a browser can use it.
package editor

import (
	"sync"

	"github.com/outboxgen/outboxgen/generator"
	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/generator/spec"
)

// File is an outbox.yaml that is open in an editor. It remembers the last text that could be read, for answers about one
// that cannot. The zero value is ready to use, also concurrently.
type File struct {
	mu     sync.Mutex
	read   *Document // the newest whose YAML could be read
	valid  *model.Model
	number int // of valid
	next   int // number of the next document
}

// Document is a File with a text. It does not change, and is safe for concurrent use.
type Document struct {
	*text
	file    *File
	number  int
	options generator.Options
	once    sync.Once
	checked result
}

// result is what is known about a document after it was checked.
type result struct {
	tree     *node
	index    *index
	findings diag.List
	readable bool
}

// Open returns a document of f. Options are those of Generate: the path of the YAML, its lock, and its folder.
func (f *File) Open(src string, o generator.Options) *Document {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next++
	return &Document{text: newText(src), file: f, number: f.next, options: o}
}

// Text returns the text of d.
func (d *Document) Text() string { return d.src }

// check reads and validates the text, once.
func (d *Document) check() *result {
	d.once.Do(func() {
		tree := scan(d.src).root()
		tree.end = len(d.src)
		d.checked = result{tree: tree, index: newIndex(d.text, tree)}
		m, findings := generator.Load([]byte(d.src), d.options)
		d.checked.findings = findings
		d.checked.readable = readable(findings)
		d.file.keep(d, m)
	})
	return &d.checked
}

// readable reports whether the YAML could be read, whatever its findings are.
func readable(findings diag.List) bool {
	for _, f := range findings {
		switch f.Rule {
		case diag.YAMLSyntax, diag.YAMLEncoding, diag.YAMLTooLarge, diag.YAMLDocument, diag.UnknownVersion:
			return false
		}
	}
	return true
}

func (f *File) keep(d *Document, m *model.Model) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if d.checked.readable && (f.read == nil || f.read.number < d.number) {
		f.read = d
	}
	if m != nil && f.number < d.number {
		f.valid, f.number = m, d.number
	}
}

// names returns the index to look up names in: that of d, or of the last text that could be read.
func (d *Document) names() *index {
	r := d.check()
	if r.readable {
		return r.index
	}
	d.file.mu.Lock()
	defer d.file.mu.Unlock()
	if d.file.read != nil {
		return d.file.read.checked.index
	}
	return r.index
}

// model returns the Model of the last text without errors, nil if there was none.
func (d *Document) model() *model.Model {
	d.check()
	d.file.mu.Lock()
	defer d.file.mu.Unlock()
	return d.file.valid
}

// topic returns the topic of that full name in the last text without errors, nil if it has none.
func (d *Document) topic(name string) *model.Topic {
	m := d.model()
	if m == nil {
		return nil
	}
	for _, ns := range m.Namespaces {
		for _, t := range ns.Topics {
			if t.FullName() == name {
				return t
			}
		}
	}
	return nil
}

// Finding is a finding with the part of the text that it is about.
type Finding struct {
	diag.Diagnostic
	Range Range
}

// Findings returns what validate finds, with the same words, sorted. Those about the lock have its path as their file,
// and the start of a line of it as their range.
func (d *Document) Findings() []Finding {
	r := d.check()
	var list []Finding
	for _, f := range r.findings {
		found := Finding{Diagnostic: f}
		if f.Pos.File == d.options.Source {
			found.Range = d.rangeOf(d.token(f.Pos))
		} else {
			at := Position{max(f.Pos.Line, 1) - 1, max(f.Pos.Column, 1) - 1}
			found.Range = Range{at, at}
		}
		list = append(list, found)
	}
	return list
}

// token returns the part of the text at the place of a finding: a key, a scalar, or a bracket.
func (d *Document) token(pos diag.Pos) span {
	at := d.at(pos)
	r := d.check()
	if n := r.index.begins(at); n != nil {
		switch {
		case n.key.start == at && n.key.end > at:
			return n.key
		case n.kind == scalar && n.quote != '|' && n.quote != '>':
			return span{at, d.oneLine(n.value)}
		}
	}
	end := at
	for end < len(d.src) && end == at || end < len(d.src) && wordByte(d.src[end]) {
		if d.src[end] == '\n' || d.src[end] == '\r' {
			break
		}
		end++
	}
	return span{at, end}
}

// oneLine returns the end of s, or of its first line.
func (d *Document) oneLine(s span) int {
	for i := s.start; i < s.end; i++ {
		if d.src[i] == '\n' || d.src[i] == '\r' {
			return i
		}
	}
	return s.end
}

func wordByte(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}

// Format returns the edits that give the text its canonical layout, as fmt does; none if it has it already, or cannot
// be formatted because of its findings.
func (d *Document) Format() []Edit {
	made, err := generator.Format([]byte(d.src), d.options.Source)
	if err != nil || string(made) == d.src {
		return nil
	}
	return []Edit{d.replaceAll(string(made))}
}

// replaceAll returns the edit that makes the text another one. It leaves out the lines at the start and at the end that
// stay, so that the editor keeps the cursor.
func (d *Document) replaceAll(made string) Edit {
	start := 0
	for start < len(d.src) && start < len(made) && d.src[start] == made[start] {
		start++
	}
	for start > 0 && d.src[start-1] != '\n' {
		start--
	}
	end := 0
	for end < len(d.src)-start && end < len(made)-start && d.src[len(d.src)-1-end] == made[len(made)-1-end] {
		end++
	}
	for end > 0 && d.src[len(d.src)-1-end] != '\n' {
		end--
	}
	return Edit{d.rangeOf(span{start, len(d.src) - end}), made[start : len(made)-end]}
}

// under returns the innermost node at an offset, and its part there: the key or the value. The node is nil where there
// is neither.
func (r *result) under(offset int) (n *node, inKey bool) {
	r.tree.walk(func(c *node) {
		switch {
		case c.key.end > c.key.start && c.key.start <= offset && offset <= c.key.end:
			n, inKey = c, true
		case c.kind == scalar && c.value.start <= offset && offset <= c.value.end:
			n, inKey = c, false
		}
	})
	return n, inKey
}

// slotOf returns what can stand where n is.
func slotOf(n *node) *spec.Slot {
	if n == nil || n.slot == nil {
		return &spec.Slot{}
	}
	return n.slot
}
