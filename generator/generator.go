// Package generator turns an outbox.yaml into Go. Generate is pure. Plan compares its files with a folder, and Changes
// writes the differences or shows them.
package generator

import (
	"cmp"

	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/emit"
	"github.com/outboxgen/outboxgen/generator/model"
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
	// Warn, unless it is nil, is called once with the warnings, sorted by position, if there are any.
	Warn func(diag.List)
}

// File is one file of the output, named relative to the output folder.
type File = emit.File

// Generate renders the files of an outbox.yaml, sorted by name. It does not use the disk, the clock or the environment:
// equal sources give equal bytes. If the source has findings of severity error, the error is a diag.List with all
// findings.
func Generate(source []byte, o Options) ([]File, error) {
	if o.Source == "" {
		o.Source = "outbox.yaml"
	}
	m, findings := model.LoadFor(source, o.Source, cmp.Or(o.Folder, "."))
	if err := findings.Err(); err != nil {
		return nil, err
	}
	if len(findings) > 0 && o.Warn != nil {
		o.Warn(findings)
	}
	return emit.Files(m, emit.Options{Stubs: o.Stubs != StubsNone})
}
