package spec

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/outboxgen/outboxgen/generator/diag"
)

// shape is the form of a value in the file. It decodes a node into a T, with a finding for everything that does
// not fit, and describes itself in JSON Schema and for editors.
type shape[T any] interface {
	decode(d *decoder, n *node, at place, into *T)
	schema(defs *definitions) object
	slot() *Slot
}

// record is a mapping with a fixed set of keys.
type record[T any] struct {
	name  string // of its definition in the schema
	doc   string
	form  string // optional: an example, shown in the message about a value that is not a mapping
	keys  []key[T]
	start func(*T) *diag.Pos // optional: takes the position of the value, also of one that is not a mapping
	oneOf []string           // keys of which exactly one must be there

	several bool // several of oneOf may be there

	elsewhere map[string]string // what to do with keys that people look for here

	oneOfRule diag.Rule // for none or several of oneOf; "" means MissingKey or AttributeConflict
}

// key is one key of a record.
type key[T any] struct {
	name     string
	doc      string
	required bool
	decode   func(d *decoder, n *node, at place, into *T)
	schema   func(defs *definitions) object
	slot     func() *Slot
	order    arranger
}

// required returns a key that must be there, and whose value has shape s.
func required[T, V any](name string, s shape[V], member func(*T) *V, doc string) key[T] {
	k := optional(name, s, member, doc)
	k.required = true
	return k
}

// optional returns a key that may be left out.
func optional[T, V any](name string, s shape[V], member func(*T) *V, doc string) key[T] {
	return key[T]{
		name: name,
		doc:  doc,
		decode: func(d *decoder, n *node, at place, into *T) {
			s.decode(d, n, at, member(into))
		},
		schema: s.schema,
		slot:   s.slot,
		order:  arrangerOf(s),
	}
}

func (r *record[T]) decode(d *decoder, n *node, at place, into *T) {
	if r.start != nil {
		*r.start(into) = d.at(n)
	}
	if n.Kind != mappingNode {
		d.wrongType(n, at, "a mapping"+suchAs(r.form))
		return
	}
	if at.key != "" {
		at.in = inner(at)
	}
	first := make([]diag.Pos, len(r.keys))
	misspelt := make(map[string]bool) // known keys for which an unknown name was probably meant
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i], n.Content[i+1]
		if isMerge(name) || refused(name) {
			continue
		}
		if name.Kind != scalarNode {
			d.Errorf(d.at(name), diag.WrongType, "a key%s must be text, not %s", at.inside(), describe(name))
			continue
		}
		known := slices.IndexFunc(r.keys, func(k key[T]) bool { return k.name == name.Value })
		switch {
		case known < 0:
			near, hint := d.nearestKey(name.Value, r.names()), ""
			if hint = diag.Hint(near); strings.HasPrefix(name.Value, near+":") {
				hint = "" // the space is missing: see plainHint
			}
			if there := r.elsewhere[name.Value]; hint == "" && there != "" {
				hint = " (" + there + ")"
			}
			misspelt[near] = true
			d.Errorf(d.at(name), diag.UnknownKey, "unknown key %s%s%s", quoteShort(name.Value), at.inside(), hint)
		case first[known].IsValid():
			d.duplicate(name, first[known], at)
		default:
			first[known] = d.at(name)
			r.keys[known].decode(d, value, at.under(name.Value), into)
		}
	}
	for i, k := range r.keys {
		if k.required && !first[i].IsValid() && !misspelt[k.name] {
			d.Errorf(d.at(n), diag.MissingKey, "missing key %q%s", k.name, at.inside())
		}
	}
	r.checkOneOf(d, n, at, first, slices.ContainsFunc(r.oneOf, func(name string) bool { return misspelt[name] }))
}

// suchAs returns form, if there is one, as a message shows it.
func suchAs(form string) string {
	if form == "" {
		return ""
	}
	return " such as " + form
}

// checkOneOf reports when not exactly one key of r.oneOf is there, or none if there may be several. Present has the
// position of each key. A key that is misspelt has already been reported.
func (r *record[T]) checkOneOf(d *decoder, n *node, at place, present []diag.Pos, misspelt bool) {
	if r.oneOf == nil {
		return
	}
	var found diag.List
	var names []string
	for i, k := range r.keys {
		if present[i].IsValid() && slices.Contains(r.oneOf, k.name) {
			found = append(found, diag.Diagnostic{Pos: present[i]})
			names = append(names, k.name)
		}
	}
	switch {
	case len(found) == 0 && !misspelt:
		d.Errorf(d.at(n), cmp.Or(r.oneOfRule, diag.MissingKey), "missing key%s: add %s", at.inside(), join(r.oneOf, "or"))
	case len(found) > 1 && !r.several:
		found.Sort()
		d.Errorf(found[1].Pos, cmp.Or(r.oneOfRule, diag.AttributeConflict), "%s cannot be combined%s: keep one of them",
			join(names, "and"), at.inside())
	}
}

// inner returns what messages call the mapping under at.key: "retry of topic mini_chat/turn_finalized".
func inner(at place) string {
	if at.in == "" {
		return at.key
	}
	return at.key + " of " + at.in
}

func (r *record[T]) names() []string {
	names := make([]string, len(r.keys))
	for i, k := range r.keys {
		names[i] = k.name
	}
	return names
}

func (d *decoder) duplicate(name *node, first diag.Pos, at place) {
	d.Errorf(d.at(name), diag.DuplicateKey, "duplicate key %s%s: the first one is at line %d", quoteShort(name.Value),
		at.inside(), first.Line)
}

// dict is a mapping from names that the user chooses to items, in their order.
type dict[T any] struct {
	item  shape[T]
	name  func(*T) *Value[string]
	label func(outer, name string) string // what messages call an item
	of    Thing                           // what the names declare
	some  bool                            // whether there must be an item
	names string                          // pattern of the names; "" means namePattern
	form  string                          // optional: an example, shown in the message about a value that is not a mapping
}

func (m *dict[T]) decode(d *decoder, n *node, at place, into *Section[*T]) {
	if n.Kind != mappingNode {
		d.wrongType(n, at, "a mapping of names"+suchAs(m.form))
		return
	}
	into.Pos = d.at(n)
	if m.some && len(n.Content) == 0 {
		d.Errorf(d.at(n), diag.EmptySection, "%sat least one entry is required%s", at.prefix(), at.inside())
	}
	first := make(map[string]diag.Pos, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i], n.Content[i+1]
		if isMerge(name) || refused(name) {
			continue
		}
		if name.Kind != scalarNode {
			d.Errorf(d.at(name), diag.WrongType, "%sa name must be text, not %s", at.prefix(), describe(name))
			continue
		}
		if pos, twice := first[name.Value]; twice {
			d.duplicate(name, pos, place{in: inner(at)})
			continue
		}
		first[name.Value] = d.at(name)
		if name.Tag != stringTag && nameSyntax.MatchString(name.Value) {
			d.Errorf(d.at(name), diag.WrongType, "%s%s must be quoted to be used as a name", at.prefix(),
				strconv.Quote(name.Value))
		}
		item := new(T)
		*m.name(item) = Value[string]{V: name.Value, Pos: d.at(name)}
		m.item.decode(d, value, place{in: m.label(at.in, Show(name.Value))}, item)
		into.Items = append(into.Items, item)
	}
}

func (m *dict[T]) schema(defs *definitions) object {
	s := object{
		{"type", "object"},
		{"propertyNames", object{{"pattern", cmp.Or(m.names, namePattern)}}},
		{"additionalProperties", m.item.schema(defs)},
	}
	if m.some {
		s = append(s, member{"minProperties", 1})
	}
	return s
}

// list is a list of values of one shape.
type list[T any] struct {
	item  shape[T]
	empty diag.Rule // of the finding about an empty list; "" allows one
}

func (l *list[T]) decode(d *decoder, n *node, at place, into *Section[T]) {
	if n.Kind != sequenceNode {
		want := "a list"
		if l.empty == "" && n.Tag == nullTag {
			want = "a list, or [] for none"
		}
		d.wrongType(n, at, want)
		return
	}
	into.Pos = d.at(n)
	if len(n.Content) == 0 && l.empty != "" {
		d.Errorf(d.at(n), l.empty, "%sat least one entry is required%s", at.prefix(), at.inside())
	}
	for _, child := range n.Content {
		var item T
		l.item.decode(d, child, at, &item)
		into.Items = append(into.Items, item)
	}
}

func (l *list[T]) schema(defs *definitions) object {
	s := object{{"type", "array"}, {"items", l.item.schema(defs)}}
	if l.empty != "" {
		s = append(s, member{"minItems", 1})
	}
	return s
}

// shorthand is a mapping that may be written as only the value of one of its keys.
type shorthand[T, V any] struct {
	short  shape[V]
	member func(*T) *V
	long   shape[T]
}

func (s *shorthand[T, V]) decode(d *decoder, n *node, at place, into *T) {
	if n.Kind == mappingNode {
		s.long.decode(d, n, at, into)
		return
	}
	s.short.decode(d, n, at, s.member(into))
}

func (s *shorthand[T, V]) schema(defs *definitions) object {
	return object{{"oneOf", []object{s.short.schema(defs), s.long.schema(defs)}}}
}

// only is a T that is written as the value of its one member.
type only[T, V any] struct {
	shape  shape[V]
	member func(*T) *V
}

func (o *only[T, V]) decode(d *decoder, n *node, at place, into *T) {
	o.shape.decode(d, n, at, o.member(into))
}

func (o *only[T, V]) schema(defs *definitions) object { return o.shape.schema(defs) }
