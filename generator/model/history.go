package model

import (
	"slices"
	"strconv"
	"strings"

	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/spec"
)

// Frozen is a version of a topic as the lock holds it, checked. It has no policies.
type Frozen struct {
	Version int
	Topic   *Topic
	Types   []*Type // that its payload uses
}

// History holds the frozen versions of topics by their full names, oldest first and without a gap.
type History map[string][]*Frozen

// Past is an older version of the payload of a topic. Its Go type is made of the types of today where they are the
// same, and of its own types elsewhere.
type Past struct {
	Version int
	GoName  string // TurnFinalizedV1
	Sealed  bool   // as a whole
	Fields  []*Field
	Types   []*Type // its own: TurnFinalizedV1Usage for usage
}

// Upcaster returns the Go name of the function that turns p into the next version.
func (p *Past) Upcaster() string { return "upcast" + p.GoName }

// Next returns the Go type of the version of t after p.
func (t *Topic) Next(p *Past) string {
	for i, past := range t.History {
		if past == p && i+1 < len(t.History) {
			return t.History[i+1].GoName
		}
	}
	return t.GoName
}

// BuildFrozen checks a version of topic name ("namespace/topic") that a lock, file, holds.
func BuildFrozen(name string, version int, f *spec.Frozen, file string) (*Frozen, diag.List) {
	named := func(text string) spec.Value[string] { return spec.Value[string]{V: text, Pos: f.Version.Pos} }
	namespace, topic, _ := strings.Cut(name, "/")
	t := f.Topic
	t.Name, t.Go = named(topic), named("FrozenTopic")
	t.Version = spec.Value[int64]{V: int64(version), Pos: f.Version.Pos}
	s := &spec.Spec{File: file, Pos: f.Version.Pos, Package: named("frozen"), Types: f.Types}
	if t.Delivery.V == string(Log) {
		// A log topic needs a listener, or to say that it has none, which a lock does not hold.
		if t.Publish.Pos.IsValid() {
			s.Listeners = spec.Section[*spec.Listener]{Pos: f.Version.Pos, Items: []*spec.Listener{{
				Name: named("frozen"), Go: named("Frozen"), Publish: spec.Value[bool]{V: true, Pos: f.Version.Pos},
				Topics: spec.Section[spec.Value[string]]{Pos: f.Version.Pos, Items: []spec.Value[string]{named(name)}},
			}}}
		} else {
			t.Listeners = named("none")
		}
	}
	s.Namespaces = spec.Section[*spec.Namespace]{Pos: f.Version.Pos, Items: []*spec.Namespace{{
		Name: named(namespace), Go: named("FrozenNamespace"),
		Topics: spec.Section[*spec.Topic]{Pos: f.Version.Pos, Items: []*spec.Topic{&t}},
	}}}
	m, findings := Build(s)
	if m == nil {
		return nil, findings
	}
	return &Frozen{Version: version, Topic: m.Namespaces[0].Topics[0], Types: m.Types}, nil
}

// Freeze returns the present version of t.
func (m *Model) Freeze(t *Topic) *Frozen {
	return &Frozen{Version: t.Version, Topic: t, Types: m.typesOf(t.Fields)}
}

// history gives t the older versions of its payload.
func (b *builder) history(t *Topic, self *decl) {
	for _, f := range b.past[t.FullName()] {
		if f.Version >= t.Version {
			return
		}
		if old := f.Topic.Publish; old != nil && t.Publish != nil && old.WireName != "" &&
			old.WireName != t.Publish.WireName && !slices.Contains(t.Publish.Former, old.WireName) {
			t.Publish.Former = append(t.Publish.Former, old.WireName)
		}
		p := &Past{Version: f.Version, GoName: t.GoName + "V" + strconv.Itoa(f.Version), Sealed: f.Topic.Sealed}
		t.History = append(t.History, p)
		r := &reviver{today: b.types, past: p, known: make(map[*Type]*Type)}
		p.Fields = r.fields(f.Topic.Fields)
		names := []string{p.GoName, p.Upcaster()}
		for _, own := range p.Types {
			names = append(names, own.GoName)
			if own.IsEnum() {
				names = append(names, own.GoName+"Values")
			}
			if own.Parsed() {
				names = append(names, "Parse"+own.GoName)
			}
			for _, v := range own.Values {
				names = append(names, v.GoName)
			}
		}
		b.goNames.declare(self, names...)
		if b.model.Consumer != nil && t.Publish != nil {
			b.consumerNames.declare(self, names...)
		}
	}
}

// reviver makes the Go types of an older version.
type reviver struct {
	today map[string]*Type
	past  *Past
	known map[*Type]*Type
}

func (r *reviver) fields(frozen []*Field) []*Field {
	fields := make([]*Field, len(frozen))
	for i, f := range frozen {
		fields[i] = &Field{
			Name: f.Name, GoName: f.GoName, Type: r.ref(f.Type), Optional: f.Optional, Sensitive: f.Sensitive, Sealed: f.Sealed,
		}
	}
	return fields
}

func (r *reviver) ref(ref TypeRef) TypeRef {
	switch {
	case ref.Elem != nil:
		elem := r.ref(*ref.Elem)
		ref.Elem = &elem
	case ref.Type != nil:
		ref.Type = r.typeOf(ref.Type)
	}
	return ref
}

// typeOf returns the type of today that is the same in Go, or one that belongs to the version.
func (r *reviver) typeOf(frozen *Type) *Type {
	if t := r.known[frozen]; t != nil {
		return t
	}
	if t := r.today[frozen.Name]; t != nil && sameGoType(frozen, t) {
		r.known[frozen] = t
		return t
	}
	own := &Type{Name: frozen.Name, GoName: r.past.GoName + frozen.GoName}
	r.known[frozen] = own
	if frozen.Scalar != nil {
		own.Scalar = &Field{Type: frozen.Scalar.Type}
	}
	for _, v := range frozen.Values {
		own.Values = append(own.Values, EnumValue{
			Value: v.Value, GoName: own.GoName + strings.TrimPrefix(v.GoName, frozen.GoName),
		})
	}
	own.Fields = r.fields(frozen.Fields)
	r.past.Types = append(r.past.Types, own) // after the types that it uses
	return own
}

// sameGoType reports whether every value of frozen is one of today's type, under the same names in Go. An enum may have
// more values today. Rules do not count: an older version is not validated.
func sameGoType(frozen, today *Type) bool {
	switch {
	case frozen.GoName != today.GoName || frozen.IsEnum() != today.IsEnum() ||
		(frozen.Scalar != nil) != (today.Scalar != nil):
		return false
	case frozen.IsEnum():
		return !slices.ContainsFunc(frozen.Values, func(v EnumValue) bool { return !slices.Contains(today.Values, v) })
	case frozen.Scalar != nil:
		return frozen.Scalar.Type.Kind == today.Scalar.Type.Kind
	case len(frozen.Fields) != len(today.Fields):
		return false
	}
	for i, f := range frozen.Fields {
		t := today.Fields[i]
		if f.Name != t.Name || f.GoName != t.GoName || f.Optional != t.Optional || f.Sensitive != t.Sensitive || f.Sealed != t.Sealed ||
			!sameGoRef(f.Type, t.Type) {
			return false
		}
	}
	return true
}

func sameGoRef(frozen, today TypeRef) bool {
	switch {
	case frozen.Kind != today.Kind:
		return false
	case frozen.Elem != nil:
		return sameGoRef(*frozen.Elem, *today.Elem)
	case frozen.Type != nil:
		return sameGoType(frozen.Type, today.Type)
	}
	return true
}
