package editor

import (
	"slices"
	"strings"

	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/generator/spec"
)

// CompletionKind is what a completion inserts.
type CompletionKind string

// The kinds of completion.
const (
	KeyCompletion   CompletionKind = "key"
	ValueCompletion CompletionKind = "value"
	TypeCompletion  CompletionKind = "type"
	FieldCompletion CompletionKind = "field"
	TopicCompletion CompletionKind = "topic"
)

// Completion is something that can be written at a place.
type Completion struct {
	Label  string
	Kind   CompletionKind
	Detail string // a few words
	Doc    string // sentences of Markdown
	Edit   Edit
}

// Complete returns what can be written at a position: keys that are not there yet, values from a closed set, types,
// fields, topics.
func (d *Document) Complete(at Position) []Completion {
	p, ok := d.placeAt(d.offset(at))
	if !ok {
		return nil
	}
	c := &completing{Document: d, place: p, here: d.offset(at)}
	slot := slotOf(p.node)
	if p.key {
		c.keys(slot)
	}
	if p.value {
		c.values(slot)
	}
	return c.list
}

type completing struct {
	*Document
	place
	here int
	list []Completion
}

func (c *completing) add(label string, kind CompletionKind, detail, doc, text string) {
	c.list = append(c.list, Completion{label, kind, detail, doc, Edit{c.rangeOf(c.word), text}})
}

func (c *completing) keys(slot *spec.Slot) {
	there := make(map[string]bool)
	if same := c.check().same(c.node); same != nil {
		for _, child := range same.children {
			there[child.name] = there[child.name] || child.key.end < c.word.start || child.key.start > c.word.end
		}
	}
	after := strings.TrimLeft(c.src[c.word.end:], " \t")
	for _, k := range slot.Keys {
		if there[k.Name] {
			continue
		}
		text, detail := k.Name, ""
		switch {
		case strings.HasPrefix(after, ":"):
		case !c.flow && k.Slot.Refers == "" && (k.Slot.Names || len(k.Slot.Keys) > 0):
			text += ":"
		default:
			text += ": "
		}
		if k.Slot.Required {
			detail = "required"
		}
		c.add(k.Name, KeyCompletion, detail, k.Slot.Doc, text)
	}
}

func (c *completing) values(slot *spec.Slot) {
	for _, v := range slot.Values {
		c.add(v, ValueCompletion, "", slot.Doc, v)
	}
	_, topic := topicOf(c.node)
	owner := idOf(spec.TopicThing, "", topic)
	switch slot.Refers {
	case spec.TypeThing:
		c.types()
	case spec.TopicThing:
		c.topics()
	case spec.FieldThing:
		c.fields(owner)
	case spec.LimitKey:
		if !strings.Contains(c.before(), "{") {
			c.add("tenant", ValueCompletion, "", "Events of the same tenant share the limit.", "tenant")
			c.add("destination", ValueCompletion, "", "Events to the same destination share the limit.", "destination")
		}
		c.template(owner)
	case spec.Template:
		c.template(owner)
	default:
		if len(slot.Values) == 0 && slot.Example != "" && c.word.start == c.here {
			c.add(slot.Example, ValueCompletion, "example", slot.Doc, slot.Example)
		}
	}
}

// before returns what stands before the cursor in its word.
func (c *completing) before() string { return c.src[c.word.start:c.here] }

func (c *completing) types() {
	if word := c.before(); strings.Contains(word, "]") {
		c.word.start += strings.LastIndex(word, "]") + 1
	}
	for _, kind := range model.Scalars() {
		c.add(string(kind), TypeCompletion, "built in", scalarDocs[kind], string(kind))
	}
	for _, s := range c.names().of(spec.TypeThing, "") {
		c.add(s.name, TypeCompletion, typeForm(s.node), docOf(s.node), s.name)
	}
}

// topics offers the topics that can be named: those with delivery log in a listener, and those that the list does not
// have yet.
func (c *completing) topics() {
	path := c.node.path()
	var there []string
	if same := c.check().same(c.node.parent); same != nil {
		for _, item := range same.children {
			if item.kind == scalar && (item.value.end < c.word.start || item.value.start > c.word.end) {
				there = append(there, item.text)
			}
		}
	}
	for _, s := range c.names().of(spec.TopicThing, "") {
		name := fullName(s.node, spec.TopicThing)
		delivery := s.node.child("delivery")
		isLog := delivery != nil && delivery.text == string(model.Log)
		if slices.Contains(there, name) || path[0] == "listeners" && !isLog {
			continue
		}
		c.word.end = max(c.word.end, c.pathEnd())
		c.add(name, TopicCompletion, "", docOf(s.node), name)
	}
}

// pathEnd returns the end of a text such as namespace/topic around the cursor.
func (c *completing) pathEnd() int {
	end := c.here
	for end < len(c.src) && (wordByte(c.src[end]) || c.src[end] == '/') {
		end++
	}
	return end
}

// fields offers the fields of a topic as the value of a key.
func (c *completing) fields(owner string) {
	for _, f := range c.names().of(spec.FieldThing, owner) {
		kind, ok := c.names().keyable(f)
		switch c.node.name {
		case "tenant":
			ok = ok && kind == model.UUID
		case "version":
			ok = ok && (kind == model.Int32 || kind == model.Int64)
		}
		if ok {
			c.add(f.name, FieldCompletion, fieldType(f.node), docOf(f.node), f.name)
		}
	}
}

// template offers the fields of a topic in a template.
func (c *completing) template(owner string) {
	before := c.before()
	open := strings.LastIndexByte(before, '{')
	inBraces := open > strings.LastIndexByte(before, '}')
	c.word = span{c.here, c.here}
	for c.word.end < len(c.src) && wordByte(c.src[c.word.end]) {
		c.word.end++
	}
	quote := ""
	if inBraces {
		c.word.start -= len(before) - open - 1
	} else if c.quote == 0 && before == "" {
		quote = `"`
	}
	closed := strings.HasPrefix(c.src[c.word.end:], "}")
	for _, f := range c.names().of(spec.FieldThing, owner) {
		if _, ok := c.names().keyable(f); !ok {
			continue
		}
		label, text := f.name, f.name
		if !inBraces {
			label = "{" + f.name + "}"
			text = quote + label + quote
		} else if !closed {
			text += "}"
		}
		c.add(label, FieldCompletion, fieldType(f.node), docOf(f.node), text)
	}
}
