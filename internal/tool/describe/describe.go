// Package describe describes published events for other tools: as JSON Schema, as an AsyncAPI document, and as the
// configuration of Debezium. It is pure: equal models give equal bytes.
package describe

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"unicode"
	"unicode/utf8"

	"github.com/outboxgen/outboxgen/generator/model"
)

// File is one file of an export.
type File struct {
	Name    string
	Content []byte
}

// Kind is one version of the payload of a published topic.
type Kind struct {
	Topic   *model.Topic
	Version int
	goName  string
	fields  []*model.Field
	sealed  bool // as a whole
}

// Kinds returns the payloads that messages of the published topics have: those of the older versions that the lock
// holds, then the present one, in the order of the YAML.
func Kinds(m *model.Model) []Kind {
	var kinds []Kind
	for _, n := range m.Namespaces {
		for _, t := range n.Published() {
			for _, p := range t.History {
				kinds = append(kinds, Kind{t, p.Version, p.GoName, p.Fields, p.Sealed})
			}
			kinds = append(kinds, KindOf(t))
		}
	}
	return kinds
}

// KindOf returns the payload that events of t have today. t need not be published.
func KindOf(t *model.Topic) Kind { return Kind{t, t.Version, t.GoName, t.Fields, t.Sealed} }

// Name returns the name of k in documents: users.user_created.v2.
func (k Kind) Name() string {
	return k.Topic.Namespace.Name + "." + k.Topic.Name + ".v" + strconv.Itoa(k.Version)
}

// current reports whether k is the version that is enqueued today.
func (k Kind) current() bool { return k.Version == k.Topic.Version }

// doc returns what the YAML says of the topic, as a sentence.
func (k Kind) doc() string { return sentence(k.goName, k.Topic.Doc) }

// sentence returns the text of a doc. One that begins with a verb, such as "is", gets its subject.
func sentence(subject, doc string) string {
	first, _ := utf8.DecodeRuneInString(doc)
	if subject != "" && unicode.IsLower(first) {
		return subject + " " + doc
	}
	return doc
}

// object is a JSON object that keeps the order of its members.
type object []member

type member struct {
	name  string
	value any
}

// add appends a member, unless its value is "" or nil.
func (o *object) add(name string, value any) {
	if value == nil || value == "" {
		return
	}
	*o = append(*o, member{name, value})
}

// has reports whether o has a member.
func (o object) has(name string) bool {
	return slices.ContainsFunc(o, func(m member) bool { return m.name == name })
}

// MarshalJSON encodes o in its own order.
func (o object) MarshalJSON() ([]byte, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	out.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			out.WriteByte(',')
		}
		if err := encoder.Encode(m.name); err != nil {
			return nil, err
		}
		out.WriteByte(':')
		if err := encoder.Encode(m.value); err != nil {
			return nil, err
		}
	}
	out.WriteByte('}')
	return out.Bytes(), nil
}

// document encodes a whole file, indented.
func document(o object) ([]byte, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(o); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
