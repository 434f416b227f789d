// Package playground answers what the page of the playground asks about an outbox.yaml. A question and its answer are
// JSON, so that a page can call it as WebAssembly. It uses no disk, clock or connection.
package playground

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"github.com/outboxgen/outboxgen/generator"
	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/editor"
	"github.com/outboxgen/outboxgen/generator/explain"
)

// source is what findings call the YAML.
const source = "outbox.yaml"

// maxText bounds what is worked on. The generator refuses longer YAML, too.
const maxText = 1 << 20

// Session is a page with its YAML. It remembers the last text that could be read, for completion and hover in one that
// cannot. The zero value is ready to use, also concurrently.
type Session struct {
	file editor.File
	mu   sync.Mutex
	last *editor.Document
}

// question is what the page asks.
type question struct {
	Ask   string          `json:"ask"`   // a key of answers
	Text  string          `json:"text"`  // the YAML
	Older string          `json:"older"` // the YAML that it is compared with
	At    editor.Position `json:"at"`    // of the cursor
	Rule  diag.Rule       `json:"rule"`
}

// answers are what can be asked. A result of nil is null.
var answers = map[string]func(*Session, question) any{
	"findings": func(s *Session, q question) any { return findings(s.document(q.Text)) },
	"complete": func(s *Session, q question) any { return completions(s.document(q.Text).Complete(q.At)) },
	"hover":    func(s *Session, q question) any { return hovered(s.document(q.Text).Hover(q.At)) },
	"format":   func(s *Session, q question) any { return append([]editor.Edit{}, s.document(q.Text).Format()...) },
	"explain":  func(_ *Session, q question) any { return explained(q.Rule) },
	"go":       func(_ *Session, q question) any { return goCode(q.Text) },
	"sql":      func(_ *Session, q question) any { return tables(q.Text) },
	"schema":   func(_ *Session, q question) any { return schemas(q.Text) },
	"asyncapi": func(_ *Session, q question) any { return asyncAPI(q.Text) },
	"breaking": func(_ *Session, q question) any { return breaking(q.Older, q.Text) },
}

// failure is the answer to a question that has none.
type failure struct {
	Error string `json:"error"`
}

// Answer answers a question. Whatever the question is, it returns JSON and does not panic: what has no answer gets an
// object with the key error.
func (s *Session) Answer(asked []byte) (answer []byte) {
	defer func() {
		if p := recover(); p != nil {
			answer = encode(failure{fmt.Sprintf("panic: %v", p)})
		}
	}()
	var q question
	if err := json.Unmarshal(asked, &q); err != nil {
		return encode(failure{"read the question: " + err.Error()})
	}
	find, ok := answers[q.Ask]
	switch {
	case !ok:
		return encode(failure{fmt.Sprintf("unknown question %q", q.Ask)})
	case len(q.Text) > maxText || len(q.Older) > maxText:
		return encode(failure{"the text is longer than 1 MiB"})
	}
	return encode(find(s, q))
}

func encode(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil { // a bug: answers are plain values
		text, _ = json.Marshal(failure{"write the answer: " + err.Error()})
	}
	return text
}

// document returns the document of a text. Questions about the same text share it.
func (s *Session) document(text string) *editor.Document {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil || s.last.Text() != text {
		s.last = s.file.Open(text, generator.Options{Source: source})
	}
	return s.last
}

// finding is a finding as the page shows it.
type finding struct {
	Range    editor.Range  `json:"range"`
	Severity diag.Severity `json:"severity"`
	Rule     diag.Rule     `json:"rule"`
	Message  string        `json:"message"`
	Fixes    []fix         `json:"fixes"`
}

type fix struct {
	Title string        `json:"title"`
	Edits []editor.Edit `json:"edits"`
}

func findings(d *editor.Document) any {
	list := []finding{}
	for _, f := range d.Findings() {
		found := finding{f.Range, f.Severity, f.Rule, f.Message, []fix{}}
		for _, x := range d.Fixes(f) {
			found.Fixes = append(found.Fixes, fix{x.Title, x.Edits})
		}
		list = append(list, found)
	}
	return struct {
		Findings []finding `json:"findings"`
	}{list}
}

type completion struct {
	Label  string                `json:"label"`
	Kind   editor.CompletionKind `json:"kind"`
	Detail string                `json:"detail"`
	Doc    string                `json:"doc"`
	Edit   editor.Edit           `json:"edit"`
}

func completions(list []editor.Completion) any {
	found := []completion{}
	for _, c := range list {
		found = append(found, completion{c.Label, c.Kind, c.Detail, c.Doc, c.Edit})
	}
	return found
}

func hovered(h *editor.Hover) any {
	if h == nil {
		return nil
	}
	return struct {
		Text  string       `json:"text"`
		Range editor.Range `json:"range"`
	}{h.Text, h.Range}
}

// explained returns what outboxgen explain prints.
func explained(rule diag.Rule) any {
	e, ok := explain.Of(rule)
	if !ok {
		return nil
	}
	return struct {
		Summary string `json:"summary"`
		Text    string `json:"text"`
		Frozen  string `json:"frozen"`
		Bad     string `json:"bad"`
		Good    string `json:"good"`
	}{e.Summary, e.Text, e.Frozen, strings.TrimSpace(e.Bad.YAML + e.Bad.Lock), strings.TrimSpace(e.Good.YAML + e.Good.Lock)}
}
