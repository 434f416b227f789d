package editor

import (
	"fmt"
	"strings"

	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/generator/spec"
)

// Hover is what is known about a part of the text, in Markdown.
type Hover struct {
	Text  string
	Range Range
}

// Hover returns what is known about the key, name or value at a position, nil for nothing.
func (d *Document) Hover(at Position) *Hover {
	offset := d.offset(at)
	r := d.check()
	if m, ok := r.index.at(offset); ok {
		symbol := r.index.symbols[m.id]
		if symbol == nil {
			symbol = d.names().symbols[m.id]
		}
		if symbol != nil {
			return &Hover{d.describe(symbol), d.rangeOf(m.span)}
		}
	}
	n, inKey := r.under(offset)
	switch {
	case n == nil:
		return nil
	case inKey && n.slot != nil:
		return &Hover{paragraphs("**"+n.name+"**", n.slot.Doc, d.details(n)), d.rangeOf(n.key)}
	case inKey || n.slot == nil:
		return nil
	}
	if word := typeWord(d.text, n.inner()); n.slot.Refers == spec.TypeThing {
		kind := model.Kind(d.of(word))
		if doc := scalarDocs[kind]; doc != "" {
			return &Hover{paragraphs("**"+string(kind)+"**", doc), d.rangeOf(word)}
		}
	}
	if text := paragraphs(n.slot.Doc, d.details(n)); text != "" {
		return &Hover{text, d.rangeOf(span{n.value.start, d.oneLine(n.value)})}
	}
	return nil
}

func paragraphs(parts ...string) string {
	var some []string
	for _, p := range parts {
		if p != "" {
			some = append(some, p)
		}
	}
	return strings.Join(some, "\n\n")
}

// details returns what the value of n amounts to: the form of a key, or how long an event is retried.
func (d *Document) details(n *node) string {
	path := n.path()
	_, name := topicOf(n)
	t := d.topic(name)
	for i := len(path) - 1; i >= 0; i-- {
		if path[i] == "retry" || path[i] == "retention" {
			return d.horizon(path, t)
		}
	}
	switch last := path[len(path)-1]; {
	case t == nil:
	case last == "dedupe_key":
		return describeKey(t.DedupeKey)
	case last == "partition_key":
		return describeKey(t.PartitionKey)
	case last == "id" && t.Entity != nil:
		return describeKey(t.Entity.ID)
	case last == "key" && t.Publish != nil:
		return describeKey(t.Publish.Key)
	}
	return ""
}

// horizon says how long an event is retried by the setting that path leads to.
func (d *Document) horizon(path []string, t *model.Topic) string {
	m := d.model()
	switch {
	case m == nil:
		return ""
	case path[0] == "defaults":
		return describeRetry(m.Retry)
	case path[0] == "listeners":
		for _, l := range m.Listeners {
			if l.Name == path[1] {
				return describeRetry(l.Retry)
			}
		}
	case t != nil && t.Delivery == model.Queue:
		return describeRetry(t.Retry)
	}
	return ""
}

func describeRetry(r model.Retry) string {
	return fmt.Sprintf("An event that fails is tried %d times, for up to %s, and then becomes a dead letter.", r.MaxAttempts,
		model.ShowDuration(r.Horizon()))
}

// describe returns the text about a symbol.
func (d *Document) describe(s *symbol) string {
	title, more := "**"+s.name+"**", ""
	switch s.thing {
	case spec.TopicThing:
		title = "**" + fullName(s.node, s.thing) + "**"
		more = d.describeTopic(s.node)
	case spec.TypeThing:
		title += ", " + typeForm(s.node)
		if values := enumValues(s.node); values != nil {
			title += ": " + strings.Join(values, ", ")
		}
	case spec.FieldThing:
		title += ": `" + fieldType(s.node) + "`"
		if n := s.node.child("sensitive"); n != nil && n.text == "sealed" {
			title += ", sealed"
		} else if isTrue(n) {
			title += ", sensitive"
		}
	default:
		title += ", " + string(s.thing)
	}
	return paragraphs(title, docOf(s.node), more)
}

// describeTopic says how the events of a topic are delivered, retried and told apart.
func (d *Document) describeTopic(n *node) string {
	t := d.topic(fullName(n, spec.TopicThing))
	if t == nil {
		return ""
	}
	text := fmt.Sprintf("Version %d, delivery %s.", t.Version, t.Delivery)
	if t.Delivery == model.Queue {
		text += " " + describeRetry(t.Retry)
	}
	for _, l := range t.Listeners {
		text += fmt.Sprintf(" Read by listener %s.", l.Name)
	}
	if t.DedupeKey != nil {
		text += fmt.Sprintf("\n\nDedupe key: `%s`", rendered(t.DedupeKey))
	}
	return text
}
