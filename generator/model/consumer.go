package model

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/spec"
)

// Consumer is the package for services that consume the published events.
type Consumer struct {
	Package string
	Dir     string // its folder, as a slash path from the output folder, cleaned
}

// dirPattern is what a dir looks like.
var dirPattern = regexp.MustCompile(`^(\.\./)*[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*$`)

// unusableFolders are folders that Go cannot import from another module, or at all, and the names of devices on
// Windows.
var unusableFolders = regexp.MustCompile(`^(internal|main|testdata|vendor|con|prn|aux|nul|com[0-9]|lpt[0-9])$`)

// consumer sets the consumer package and checks its name.
func (b *builder) consumer(s *spec.Spec) {
	if !s.Consumer.Pos.IsValid() {
		return
	}
	name, dir := s.Consumer.Package, s.Consumer.Dir
	c := &Consumer{Package: name.V, Dir: name.V}
	b.model.Consumer = c
	b.checkPackage(name)
	if !name.Set() {
		return // already reported
	}
	pos := name.Pos
	if dir.Set() {
		pos = dir.Pos
		if c.Dir = path.Clean(dir.V); !dirPattern.MatchString(dir.V) || c.Dir != dir.V {
			b.Errorf(pos, diag.BadName, "dir: %q is not a valid folder: use names of letters, digits, '_', '-' and '.', "+
				"joined by '/', after any number of '../'", dir.V)
			return
		}
	}
	last := path.Base(c.Dir)
	switch where := path.Join(b.folder, c.Dir); {
	case unusableFolders.MatchString(last) || unusableFolders.MatchString(name.V):
		b.Errorf(pos, diag.BadName, "%s: other services cannot import %q: choose another name",
			map[bool]string{false: "package", true: "dir"}[dir.Set()], last)
	case isInternal(where):
		b.Warnf(pos, diag.ConsumerInternal,
			"consumer: other modules cannot import package %s from %s, because it is below internal: set dir, for example to %q",
			name.V, where, outside(b.folder, name.V))
	}
}

// isInternal reports whether Go restricts who can import the package of folder.
func isInternal(folder string) bool { return slices.Contains(strings.Split(folder, "/"), "internal") }

// outside returns the path from folder to a folder called name that is not below internal.
func outside(folder, name string) string {
	elements := strings.Split(folder, "/")
	at := slices.Index(elements, "internal")
	if at < 0 {
		return name
	}
	return strings.Repeat("../", len(elements)-at) + name
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
	b.Errorf(s.Consumer.Pos, diag.ConsumerEmpty,
		"consumer: no topic has publish, so there is nothing to consume: add publish to a topic, or remove consumer")
}

// ConsumedTypes returns the shared types that the payloads of published topics use, in YAML order. The types that
// belong to an older version are not among them.
func (m *Model) ConsumedTypes() []*Type {
	var payloads [][]*Field
	for _, n := range m.Namespaces {
		for _, t := range n.Published() {
			payloads = append(payloads, t.Fields)
			for _, p := range t.History {
				payloads = append(payloads, p.Fields)
			}
		}
	}
	return m.typesOf(payloads...)
}

// typesOf returns the types that structs of these fields use, in YAML order.
func (m *Model) typesOf(structs ...[]*Field) []*Type {
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
	for _, fields := range structs {
		visit(fields)
	}
	var types []*Type
	for _, t := range m.Types {
		if used[t] {
			types = append(types, t)
		}
	}
	return types
}
