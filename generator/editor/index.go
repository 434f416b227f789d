package editor

import (
	"slices"
	"strings"

	"github.com/outboxgen/outboxgen/generator/spec"
)

// symbol is a name that the file declares. Its id is unique in the file: the thing, and the names that lead to it.
type symbol struct {
	id    string
	thing spec.Thing
	name  string
	owner string // of a field: the id of its topic or type
	node  *node
}

// mention is a place where a symbol is declared or used.
type mention struct {
	id   string
	span span
	decl bool
}

// index has the symbols of a tree and the places that mention them, in the order of the text.
type index struct {
	symbols  map[string]*symbol
	order    []*symbol
	mentions []mention
	starts   []start
}

// start is where a key, a scalar or a bracket begins. Those of an index are sorted.
type start struct {
	at   int
	node *node
}

// begins returns the node whose key or value begins at an offset, nil if there is none.
func (x *index) begins(at int) *node {
	i, found := slices.BinarySearchFunc(x.starts, at, func(s start, at int) int { return s.at - at })
	if !found {
		return nil
	}
	return x.starts[i].node
}

func newIndex(t *text, tree *node) *index {
	x := &index{symbols: make(map[string]*symbol)}
	begin := func(at int, n *node) {
		if last := len(x.starts) - 1; last < 0 || x.starts[last].at < at {
			x.starts = append(x.starts, start{at, n})
		}
	}
	tree.walk(func(n *node) {
		if n.key.end > n.key.start {
			begin(n.key.start, n)
		}
		if n.kind == scalar || n.flow {
			begin(n.value.start, n)
		}
		if n.parent == nil {
			return
		}
		if slotOf(n.parent).Declares != "" && n.colon {
			s := &symbol{thing: slotOf(n.parent).Declares, name: n.name, node: n}
			if s.thing == spec.FieldThing || s.thing == spec.HeaderThing || s.thing == spec.OutcomeThing {
				s.owner = ownerOf(n.parent)
			}
			s.id = idOf(s.thing, s.owner, fullName(n, s.thing))
			if x.symbols[s.id] == nil {
				x.symbols[s.id] = s
				x.order = append(x.order, s)
			}
			x.mentions = append(x.mentions, mention{s.id, unquoted(t, n.key), true})
		}
		if n.kind == scalar {
			x.mention(t, n)
		}
	})
	slices.SortStableFunc(x.mentions, func(a, b mention) int { return a.span.start - b.span.start })
	return x
}

// unquoted returns s without quotes around it.
func unquoted(t *text, s span) span {
	if s.end-s.start >= 2 && (t.src[s.start] == '"' || t.src[s.start] == '\'') {
		return span{s.start + 1, s.end - 1}
	}
	return s
}

func idOf(thing spec.Thing, owner, name string) string {
	id := string(thing) + " " + name
	if owner != "" {
		id += " of " + owner
	}
	return id
}

// fullName returns namespace/topic for a topic, and else the name.
func fullName(n *node, thing spec.Thing) string {
	if thing == spec.TopicThing {
		return n.parent.parent.name + "/" + n.name
	}
	return n.name
}

// ownerOf returns the id of the topic, type or operation that n is in, "" for none.
func ownerOf(n *node) string {
	for ; n != nil && n.parent != nil; n = n.parent {
		switch thing := slotOf(n.parent).Declares; thing {
		case spec.TopicThing, spec.TypeThing, spec.OperationThing:
			return idOf(thing, "", fullName(n, thing))
		}
	}
	return ""
}

// mention adds what the text of n refers to.
func (x *index) mention(t *text, n *node) {
	add := func(thing spec.Thing, owner string, s span) {
		if s.end > s.start {
			x.mentions = append(x.mentions, mention{idOf(thing, owner, t.of(s)), s, false})
		}
	}
	inner := n.inner()
	switch slotOf(n).Refers {
	case spec.TypeThing:
		add(spec.TypeThing, "", typeWord(t, inner))
	case spec.TopicThing:
		add(spec.TopicThing, "", inner)
	case spec.FieldThing:
		add(spec.FieldThing, ownerOf(n), inner)
	case spec.Template, spec.LimitKey:
		for _, p := range placeholders(t, n) {
			add(spec.FieldThing, ownerOf(n), p)
		}
	}
}

// typeWord returns the name in a type such as "map[string][]usage?".
func typeWord(t *text, s span) span {
	raw := t.of(s)
	s.end = s.start + len(strings.TrimSuffix(raw, "?"))
	for {
		raw = t.of(s)
		rest := strings.TrimPrefix(strings.TrimPrefix(raw, "[]"), "map[string]")
		if rest == raw {
			return s
		}
		s.start = s.end - len(rest)
	}
}

// placeholders returns the names between the braces of a template.
func placeholders(t *text, n *node) (names []span) {
	if n.quote == '|' || n.quote == '>' {
		return nil
	}
	inner := n.inner()
	raw := t.of(inner)
	for at := 0; ; {
		open := strings.IndexByte(raw[at:], '{')
		if open < 0 {
			return names
		}
		at += open + 1
		length := strings.IndexAny(raw[at:], "{}/")
		if length < 0 {
			return names
		}
		if raw[at+length] == '}' {
			names = append(names, span{inner.start + at, inner.start + at + length})
		}
		at += length
	}
}

// at returns the mention at an offset.
func (x *index) at(offset int) (mention, bool) {
	for _, m := range x.mentions {
		if m.span.start <= offset && offset <= m.span.end {
			return m, true
		}
	}
	return mention{}, false
}

// of returns the symbols of a thing, those of an owner for fields, in the order of the text.
func (x *index) of(thing spec.Thing, owner string) (list []*symbol) {
	for _, s := range x.order {
		if s.thing == thing && s.owner == owner {
			list = append(list, s)
		}
	}
	return list
}
