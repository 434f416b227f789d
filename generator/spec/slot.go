package spec

import "sync"

// Thing is what a name or a text of an outbox.yaml stands for.
type Thing string

// The things that a file declares and refers to. A Template refers to fields of the payload, and a LimitKey is tenant,
// destination or a Template.
const (
	TypeThing      Thing = "type"
	NamespaceThing Thing = "namespace"
	TopicThing     Thing = "topic"
	FieldThing     Thing = "field"
	ListenerThing  Thing = "listener"
	OperationThing Thing = "operation"
	OutcomeThing   Thing = "outcome"
	HeaderThing    Thing = "header"
	Template       Thing = "template"
	LimitKey       Thing = "limit key"
)

// Slot is a place for a value in an outbox.yaml: what can be written there, as the key tables have it. It is for
// editors. A value that can be written in two forms, as text or as a mapping, has both.
type Slot struct {
	Doc      string     // of the key that has the value, "" if the user chooses its name
	Required bool       // the key must be there
	Keys     []NamedKey // of a mapping with known keys
	Declares Thing      // of a mapping whose keys are names that the user chooses
	Names    bool       // it is such a mapping
	Item     *Slot      // of a list, and of such a mapping
	List     bool
	Values   []string // of text from a closed set
	Refers   Thing    // what text refers to, "" for text of no meaning
	Example  string   // of the value, "" for none
}

// NamedKey is a key of a mapping with the place of its value.
type NamedKey struct {
	Name string
	Slot *Slot
}

// Root returns the place of a whole file. It must not be changed.
func Root() *Slot { return root() }

var root = sync.OnceValue(func() *Slot { return file.slot() })

// Under returns the place of the value of a key, nil if there is none.
func (s *Slot) Under(key string) *Slot {
	if s == nil {
		return nil
	}
	for _, k := range s.Keys {
		if k.Name == key {
			return k.Slot
		}
	}
	if s.Names {
		return s.Item
	}
	return nil
}

// Each returns the place of the items of a list, nil if it is not one.
func (s *Slot) Each() *Slot {
	if s == nil || !s.List {
		return nil
	}
	return s.Item
}

func (r *record[T]) slot() *Slot {
	s := &Slot{Doc: r.doc, Example: r.form}
	for _, k := range r.keys {
		under := *k.slot()
		under.Doc, under.Required = k.doc, k.required
		s.Keys = append(s.Keys, NamedKey{k.name, &under})
	}
	return s
}

func (m *dict[T]) slot() *Slot {
	return &Slot{Names: true, Declares: m.of, Item: m.item.slot(), Example: m.form}
}

func (l *list[T]) slot() *Slot { return &Slot{List: true, Item: l.item.slot()} }

func (s *shorthand[T, V]) slot() *Slot {
	both, short := *s.long.slot(), s.short.slot()
	both.Values, both.Refers, both.Example = short.Values, short.Refers, short.Example
	return &both
}

func (o *only[T, V]) slot() *Slot { return o.shape.slot() }
func (t *text) slot() *Slot       { return &Slot{Refers: t.refers, Example: t.example} }
func (o *option) slot() *Slot     { return &Slot{Values: o.values} }
func (*integer) slot() *Slot      { return &Slot{} }
func (boolean) slot() *Slot       { return &Slot{Values: []string{"true", "false"}} }
func (secrecy) slot() *Slot       { return &Slot{Values: []string{"true", "sealed", "false"}} }
func (duration) slot() *Slot      { return &Slot{Example: "30s"} }
func (rate) slot() *Slot          { return &Slot{Example: "10/1m"} }
func (bound) slot() *Slot         { return &Slot{} }
