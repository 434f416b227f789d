// Package generator turns an outbox.yaml into Go. Generate is pure. Plan compares its files with a folder, and Changes
// writes the differences or shows them.
package generator

import (
	"cmp"
	"sync"

	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/emit"
	"github.com/outboxgen/outboxgen/generator/evolve"
	"github.com/outboxgen/outboxgen/generator/lock"
	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/generator/spec"
)

// StubMode says which handler stubs Generate adds to the generated files.
type StubMode string

// The stub modes.
const (
	// StubsMissing adds a stub for every handler; Plan drops those whose code already exists. The zero value means the
	// same.
	StubsMissing StubMode = "missing"
	// StubsNone adds no stubs.
	StubsNone StubMode = "none"
)

// Options say how to generate. The zero value is ready to use.
type Options struct {
	// Source is the path of the YAML as findings quote it. Generated headers have its base name. Default: outbox.yaml.
	Source string
	// Folder is the output folder, as a slash path from the root of its module; "" when it is not known.
	Folder string
	// Stubs is StubsMissing by default. A namespace or listener with stubs: none in the YAML never has any.
	Stubs StubMode
	// Lock is the content of the outbox.lock.yaml next to the YAML; nil means that there is none. Versions that are frozen
	// in it may only change in compatible ways, and the payloads of older versions are generated.
	Lock []byte
	// Warn, unless it is nil, is called once with the warnings, sorted by position, if there are any.
	Warn func(diag.List)
}

// File is one file of the output, named relative to the output folder.
type File = emit.File

// Generate renders the files of an outbox.yaml, sorted by name. It does not use the disk, the clock or the environment:
// equal sources give equal bytes. If the source or its lock has findings of severity error, the error is a diag.List
// with all findings.
func Generate(source []byte, o Options) ([]File, error) {
	m, findings := Load(source, o)
	if err := findings.Err(); err != nil {
		return nil, err
	}
	if len(findings) > 0 && o.Warn != nil {
		o.Warn(findings)
	}
	return emit.Files(m, emit.Options{Stubs: o.Stubs != StubsNone})
}

// Load checks an outbox.yaml and its lock and builds the Model. It returns the findings of all rules, sorted. The Model
// is nil when one of them is an error.
func Load(source []byte, o Options) (*model.Model, diag.List) {
	_, m, findings := load(source, o)
	return m, findings
}

// load is Load. It also returns the lock, an empty one if there is none, and nil if it has findings.
func load(source []byte, o Options) (*lock.Lock, *model.Model, diag.List) {
	name := cmp.Or(o.Source, "outbox.yaml")
	frozen, locked := &lock.Lock{File: lock.Name(name)}, diag.List(nil)
	var reading sync.WaitGroup
	if o.Lock != nil { // it takes as long as the YAML, and an editor waits
		reading.Go(func() { frozen, locked = lock.Parse(o.Lock, lock.Name(name)) })
	}
	s, findings := spec.Decode(source, name)
	reading.Wait()
	followRenames(frozen, s)
	m, more := model.BuildFor(s, cmp.Or(o.Folder, "."), frozen.History())
	findings = diag.Merge(findings, more)
	if !findings.HasErrors() && frozen != nil {
		findings = diag.Merge(findings, evolve.WithLock(frozen, m, s))
	}
	findings = diag.Merge(findings, locked)
	if findings.HasErrors() {
		m = nil
	}
	return frozen, m, findings
}

// followRenames gives the topics of l the names that they have in s. The history of a topic goes with it.
func followRenames(l *lock.Lock, s *spec.Spec) {
	if l == nil || s == nil {
		return
	}
	for _, ns := range s.Namespaces.Items {
		for _, t := range ns.Topics.Items {
			for _, old := range t.RenamedFrom.Items {
				before, now := ns.Name.V+"/"+old.V, ns.Name.V+"/"+t.Name.V
				if l.Topic(now) == nil && l.Topic(before) != nil && !declares(s, before) {
					l.Rename(before, now)
				}
			}
		}
	}
}
