package model

import (
	"regexp"

	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/spec"
)

// Consumer is the package for those who consume what is published.
type Consumer struct {
	Package string // and the sub-folder of the output folder
}

// unusableFolders are folders that Go does not import from another module, or from anywhere, and those that Windows
// takes for devices.
var unusableFolders = regexp.MustCompile(`^(internal|main|testdata|vendor|con|prn|aux|nul|com[0-9]|lpt[0-9])$`)

// consumer sets the consumer package and checks its name.
func (b *builder) consumer(s *spec.Spec) {
	if !s.Consumer.Pos.IsValid() {
		return
	}
	name := s.Consumer.Package
	b.model.Consumer = &Consumer{Package: name.V}
	b.checkPackage(name)
	if unusableFolders.MatchString(name.V) {
		b.Errorf(name.Pos, diag.BadName, "package: %q cannot be imported by other services", name.V)
	}
}

// consumed checks that there is something to consume.
func (b *builder) consumed(s *spec.Spec) {
	if b.model.Consumer == nil {
		return
	}
	for _, n := range b.model.Namespaces {
		if len(n.Published()) > 0 {
			return
		}
	}
	b.Errorf(s.Consumer.Pos, diag.ConsumerEmpty, "consumer: no topic says publish: there is nothing to consume")
}

// ConsumedTypes returns the shared types that the payloads of published topics are made of, in YAML order.
func (m *Model) ConsumedTypes() []*Type {
	used := make(map[*Type]bool)
	var visit func(fields []*Field)
	visit = func(fields []*Field) {
		for _, f := range fields {
			if t := f.Type.named(); t != nil && !used[t] {
				used[t] = true
				visit(t.Fields)
			}
		}
	}
	for _, n := range m.Namespaces {
		for _, t := range n.Published() {
			visit(t.Fields)
		}
	}
	var types []*Type
	for _, t := range m.Types {
		if used[t] {
			types = append(types, t)
		}
	}
	return types
}
