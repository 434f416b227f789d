package spec

import "slices"

// arranger says in which order Format puts the keys of a mapping, and who arranges what is in it.
type arranger interface {
	// under returns the rank of a key and the arranger of its value. Keys with equal ranks keep their order.
	under(key string) (rank int, value arranger)
	// each returns the arranger of the items of a list.
	each() arranger
}

// arrangerOf returns the arranger of a shape.
func arrangerOf(shape any) arranger {
	if a, ok := shape.(arranger); ok {
		return a
	}
	return asIs{}
}

// asIs keeps the order that it finds.
type asIs struct{}

func (asIs) under(string) (int, arranger) { return 0, asIs{} }
func (asIs) each() arranger               { return asIs{} }

func (r *record[T]) under(name string) (int, arranger) {
	at := slices.IndexFunc(r.keys, func(k key[T]) bool { return k.name == name })
	if at < 0 {
		return len(r.keys), asIs{}
	}
	return at, r.keys[at].order
}

func (r *record[T]) each() arranger { return asIs{} }

// under keeps the order of names: that of fields, topics and so on is the order of the generated code.
func (m *dict[T]) under(string) (int, arranger) { return 0, arrangerOf(m.item) }
func (m *dict[T]) each() arranger               { return asIs{} }

func (l *list[T]) under(string) (int, arranger) { return 0, asIs{} }
func (l *list[T]) each() arranger               { return arrangerOf(l.item) }

func (s *shorthand[T, V]) under(key string) (int, arranger) { return arrangerOf(s.long).under(key) }
func (s *shorthand[T, V]) each() arranger                   { return arrangerOf(s.short).each() }

func (o *only[T, V]) under(key string) (int, arranger) { return arrangerOf(o.shape).under(key) }
func (o *only[T, V]) each() arranger                   { return arrangerOf(o.shape).each() }
