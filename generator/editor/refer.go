package editor

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/outboxgen/outboxgen/generator/lock"
	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/generator/spec"
)

// Definition returns where the name at a position is declared in the file. If it is the declaration itself, declared is
// true, and Go says how the generated code calls it.
func (d *Document) Definition(at Position) (r Range, declared, ok bool) {
	x := d.check().index
	m, ok := x.at(d.offset(at))
	if !ok {
		return Range{}, false, false
	}
	s := x.symbols[m.id]
	if s == nil {
		return Range{}, false, false
	}
	return d.rangeOf(unquoted(d.text, s.node.key)), m.decl, true
}

// References returns the places of the file that use the name at a position, in their order, and its declaration if
// declaration is set.
func (d *Document) References(at Position, declaration bool) []Range {
	x := d.check().index
	m, ok := x.at(d.offset(at))
	if !ok {
		return nil
	}
	var list []Range
	for _, other := range x.mentions {
		if other.id == m.id && (declaration || !other.decl) {
			list = append(list, d.rangeOf(other.span))
		}
	}
	return list
}

// renamed are the things that Rename can rename.
var renamed = []spec.Thing{spec.TopicThing, spec.TypeThing, spec.FieldThing}

// Renamable returns the name at a position if it can be renamed, and where it stands. Of namespace/topic it is the
// topic.
func (d *Document) Renamable(at Position) (r Range, name string, ok bool) {
	s, m := d.renamable(at)
	if s == nil {
		return Range{}, "", false
	}
	return d.rangeOf(nameIn(s, m.span)), s.name, true
}

// nameIn returns the part of a mention that is the name itself.
func nameIn(s *symbol, m span) span {
	return span{m.end - len(s.name), m.end}
}

func (d *Document) renamable(at Position) (*symbol, mention) {
	r := d.check()
	m, ok := r.index.at(d.offset(at))
	s := r.index.symbols[m.id]
	if !ok || !r.readable || s == nil || !slices.Contains(renamed, s.thing) {
		return nil, mention{}
	}
	return s, m
}

// Rename returns the edits that give the topic, type or field at a position another name, wherever it is used. If the
// lock has versions of the topic, its present name is added to renamed_from.
func (d *Document) Rename(at Position, name string) ([]Edit, error) {
	s, _ := d.renamable(at)
	switch {
	case s == nil:
		return nil, errors.New("there is no topic, type or field here, or the file is not valid YAML")
	case !model.ValidName(name):
		return nil, fmt.Errorf("%q is not a valid %s name: use a lower-case letter, then up to 40 of a-z, 0-9 or _", name,
			s.thing)
	case name == s.name:
		return nil, nil
	case s.thing == spec.TypeThing && slices.Contains(model.Scalars(), model.Kind(name)):
		return nil, fmt.Errorf("%s is a built-in type", name)
	}
	x := d.check().index
	id, full := idOf(s.thing, s.owner, name), name
	if s.thing == spec.TopicThing {
		full = s.node.parent.parent.name + "/" + name
		id = idOf(s.thing, "", full)
	}
	if x.symbols[id] != nil {
		return nil, fmt.Errorf("there is already a %s %s", s.thing, full)
	}
	var edits []Edit
	for _, m := range x.mentions {
		if m.id == s.id {
			edits = append(edits, Edit{d.rangeOf(nameIn(s, m.span)), name})
		}
	}
	if s.thing == spec.TopicThing && d.frozen(fullName(s.node, s.thing)) {
		edits = append(edits, d.renamedFrom(s.node, name)...)
	}
	return edits, nil
}

// frozen reports whether the lock has a topic of that name.
func (d *Document) frozen(topic string) bool {
	if d.options.Lock == nil {
		return false
	}
	l, _ := lock.Parse(d.options.Lock, lock.Name(d.options.Source))
	return l != nil && l.Topic(topic) != nil
}

// renamedFrom returns the edit that adds the name of a topic to its renamed_from, unless it is there. Back is its next
// name, which must not be there.
func (d *Document) renamedFrom(topic *node, next string) []Edit {
	list := topic.child("renamed_from")
	if list == nil || list.kind != sequence {
		return []Edit{d.newKey(topic, fmt.Sprintf("renamed_from: [%s]", topic.name))}
	}
	for i, item := range list.children {
		switch item.text {
		case topic.name:
			return nil
		case next: // it gets its old name back
			return []Edit{{d.rangeOf(item.value), topic.name}}
		}
		if last := i == len(list.children)-1; last && list.flow {
			return []Edit{d.insert(item.value.end, ", "+topic.name)}
		} else if last {
			return []Edit{d.insert(item.end, d.newline()+strings.Repeat(" ", item.indent)+"- "+topic.name)}
		}
	}
	return []Edit{{d.rangeOf(list.value), "[" + topic.name + "]"}}
}

func (d *Document) insert(at int, text string) Edit { return Edit{d.rangeOf(span{at, at}), text} }

// newline is how lines of the text end.
func (d *Document) newline() string {
	if i := strings.IndexByte(d.src, '\n'); i > 0 && d.src[i-1] == '\r' {
		return "\r\n"
	}
	return "\n"
}

// newKey returns the edit that inserts "key: value" as the first entry of a mapping that has an entry.
func (d *Document) newKey(n *node, entry string) Edit {
	if n.flow {
		if len(n.children) > 0 {
			entry += ", "
		}
		return d.insert(n.value.start+1, entry)
	}
	if len(n.children) == 0 {
		return d.insert(n.key.end+1, d.newline()+strings.Repeat(" ", n.indent+2)+entry)
	}
	first := n.children[0]
	return d.insert(first.key.start, entry+d.newline()+strings.Repeat(" ", first.indent))
}
