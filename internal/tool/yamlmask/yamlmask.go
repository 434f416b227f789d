// Package yamlmask hides the sensitive fields of payloads from the people who look at events: those with `sensitive:
// true` in the YAML. The library does not know the YAML, so masking is up to what prints a payload.
package yamlmask

import (
	"encoding/json"

	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/internal/payloads/masking"
)

// Masker masks the payloads of the topics of one YAML. It never changes and may be used by several goroutines. A nil
// Masker knows no topic.
type Masker struct {
	topics map[string]*masking.Shape
}

// New returns the Masker of m. It knows the topics by their earlier names too.
func New(m *model.Model) *Masker {
	masker := &Masker{topics: make(map[string]*masking.Shape)}
	types := make(map[*model.Type]*masking.Shape)
	for _, n := range m.Namespaces {
		for _, t := range n.Topics {
			s := shapeOf(t.Fields, types)
			for _, earlier := range t.Renamed {
				masker.topics[n.Name+"/"+earlier] = s
			}
			masker.topics[t.FullName()] = s
		}
	}
	return masker
}

// shapeOf returns the shape of an object. types holds the shapes of the shared types that are known so far; types are
// not recursive.
func shapeOf(fields []*model.Field, types map[*model.Type]*masking.Shape) *masking.Shape {
	shapes := make(map[string]*masking.Shape, len(fields))
	for _, f := range fields {
		if f.Sensitive {
			shapes[f.Name] = masking.Hidden
		} else {
			shapes[f.Name] = shapeOfRef(&f.Type, types)
		}
	}
	return masking.Object(shapes)
}

func shapeOfRef(ref *model.TypeRef, types map[*model.Type]*masking.Shape) *masking.Shape {
	switch ref.Kind {
	case model.JSON:
		return nil
	case model.List, model.Map:
		return masking.Each(shapeOfRef(ref.Elem, types))
	case model.Named:
		t := ref.Type
		if t.Scalar != nil || t.IsEnum() {
			return masking.Plain
		}
		if types[t] == nil {
			types[t] = shapeOf(t.Fields, types)
		}
		return types[t]
	}
	return masking.Plain
}

// Payload returns payload, of an event of "namespace/topic", with the sensitive values replaced by "[masked]". What the
// YAML does not describe is masked too, because it may be of another version in which it was sensitive: fields that the
// topic does not have, and values that are not of the shape of their type. It returns false if it does not know the
// topic or if payload is not JSON; then nothing of payload should be shown.
func (m *Masker) Payload(topic string, payload json.RawMessage) (json.RawMessage, bool) {
	if m == nil {
		return nil, false
	}
	s, ok := m.topics[topic]
	if !ok {
		return nil, false
	}
	return s.Mask(payload)
}
