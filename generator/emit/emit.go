// Package emit renders a Model as Go files. It makes no decisions about the YAML: the model is valid and holds every
// name. All Go is built with jennifer, except the stubs, which are templates because a person will own them.
package emit

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/outboxgen/outboxgen/generator/model"
)

// File is one rendered file, named relative to the output folder, with a slash before the name in a sub-folder.
type File struct {
	Name    string
	Content []byte
	// Stub is set for a file that a person owns: it is written once and then never changed.
	Stub *Stub
}

// Stub says which hand-written code replaces a stub.
type Stub struct {
	Receiver string // the type: MiniChatHandler
	Method   string // the method on it; "" when the stub declares the type itself
	OptOut   string // the type to embed instead of writing all methods: UnimplementedMiniChatHandlers
}

// Options say what to render in addition to the generated files.
type Options struct {
	Stubs bool // also render the handler stubs
}

// Files renders every file of m, sorted by name. The bytes depend only on m.
func Files(m *model.Model, o Options) ([]File, error) {
	e := &emitter{
		model: m, sensitive: sensitiveTypes(m), patterns: patternNames(m),
		pkg: m.Package, guard: outboxPath,
	}
	files, err := renderAll(append(e.jobs(o), e.consumerJobs()...))
	if err != nil {
		return nil, err
	}
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	return files, nil
}

// emitter holds what is computed once and then only read by several goroutines.
type emitter struct {
	model     *model.Model
	sensitive map[*model.Type]bool    // shared structs that hold a sensitive value
	patterns  map[*model.Field]string // variable of a field's compiled pattern

	pkg   string // package of the files
	part  string // what the header says before the part
	guard string // import path of the compile-time check
}

// job renders one file.
type job struct {
	name   string
	stub   *Stub
	render func() ([]byte, error)
}

func (e *emitter) jobs(o Options) []job {
	var jobs []job
	if len(e.model.Types) > 0 {
		jobs = append(jobs, job{name: sharedTypesFile, render: func() ([]byte, error) {
			return e.sharedTypes(e.model.Types)
		}})
	}
	if topics := allTopics(e.model); len(topics) > 0 {
		jobs = append(jobs, job{name: maskFile, render: func() ([]byte, error) { return e.mask(topics) }})
	}
	stubNames := newStubNames()
	for _, ns := range e.model.Namespaces {
		for _, t := range ns.Topics {
			jobs = append(jobs, job{name: topicFile(t), render: func() ([]byte, error) { return e.topic(t) }})
			for _, p := range t.History {
				jobs = append(jobs, job{name: pastFile(t, p), render: func() ([]byte, error) { return e.past(t, p) }})
			}
		}
		if len(ns.Topics) == 0 {
			continue
		}
		jobs = append(jobs, job{name: namespaceFile(ns), render: func() ([]byte, error) { return e.namespace(ns) }})
		jobs = append(jobs, job{name: fakeFile(ns), render: func() ([]byte, error) { return e.fake(ns) }})
		if r := dispatched(ns); o.Stubs && ns.Stubs && len(r.topics) > 0 {
			jobs = append(jobs, e.stubs(r, "namespace "+ns.Name, stubNames.handlers(ns), stubNames.handle)...)
		}
	}
	for _, l := range e.model.Listeners {
		jobs = append(jobs, job{name: listenerFile(l), render: func() ([]byte, error) { return e.listener(l) }})
		if o.Stubs && l.Stubs && !l.Publish {
			handle := func(t *model.Topic) string { return stubNames.listen(l, t) }
			jobs = append(jobs, e.stubs(listening(l), "listener "+l.Name, stubNames.listener(l), handle)...)
		}
	}
	for _, o := range e.model.Operations {
		jobs = append(jobs, job{name: operationFile(o), render: func() ([]byte, error) { return e.operation(o) }})
	}
	return jobs
}

// stubs are the files that a person completes to handle the topics of r: one for the type, named handlers, and one per
// topic. Of names the namespace or listener.
func (e *emitter) stubs(r reader, of, handlers string, handle func(*model.Topic) string) []job {
	jobs := []job{{
		name:   handlers,
		stub:   &Stub{Receiver: r.handler(), OptOut: r.unimplemented()},
		render: func() ([]byte, error) { return e.handlersStub(r, of) },
	}}
	for _, t := range r.topics {
		jobs = append(jobs, job{
			name:   handle(t),
			stub:   &Stub{Receiver: r.handler(), Method: r.method(t), OptOut: r.unimplemented()},
			render: func() ([]byte, error) { return e.handleStub(r, t) },
		})
	}
	return jobs
}

// renderAll runs the jobs on all processors and keeps their order.
func renderAll(jobs []job) ([]File, error) {
	files := make([]File, len(jobs))
	errs := make([]error, len(jobs))
	next := make(chan int)
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(jobs)) {
		workers.Go(func() {
			for i := range next {
				files[i] = File{Name: jobs[i].name, Stub: jobs[i].stub}
				files[i].Content, errs[i] = jobs[i].render()
			}
		})
	}
	for i := range jobs {
		next <- i
	}
	close(next)
	workers.Wait()
	for i, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("render %s: %w", jobs[i].name, err)
		}
	}
	return files, nil
}

// sensitiveTypes finds the shared structs that hold a sensitive value at any depth. Types are not recursive.
func sensitiveTypes(m *model.Model) map[*model.Type]bool {
	found := make(map[*model.Type]bool, len(m.Types))
	var visit func(t *model.Type) bool
	visit = func(t *model.Type) bool {
		if known, ok := found[t]; ok {
			return known
		}
		found[t] = slices.ContainsFunc(t.Fields, func(f *model.Field) bool {
			inner := namedType(f.Type)
			return f.Sensitive || inner != nil && visit(inner)
		})
		return found[t]
	}
	for _, t := range m.Types {
		visit(t)
	}
	for _, ns := range m.Namespaces {
		for _, t := range ns.Topics {
			for _, p := range t.History {
				for _, own := range p.Types {
					visit(own)
				}
			}
		}
	}
	return found
}

// isSensitive reports whether a struct of these fields holds a sensitive value at any depth.
func (e *emitter) isSensitive(fields []*model.Field) bool {
	return slices.ContainsFunc(fields, func(f *model.Field) bool {
		return f.Sensitive || e.sensitive[namedType(f.Type)]
	})
}

// namedType returns the shared type at the core of ref, or nil.
func namedType(ref model.TypeRef) *model.Type {
	for ref.Elem != nil {
		ref = *ref.Elem
	}
	return ref.Type
}

// patternNames gives each field with a pattern the name of a package-level variable. Names joined from two parts may
// coincide ("AB"+"C", "A"+"BC"), so a later one gets a number.
func patternNames(m *model.Model) map[*model.Field]string {
	names := make(map[*model.Field]string)
	taken := make(map[string]bool)
	add := func(owner string, fields []*model.Field) {
		for _, f := range fields {
			if f.Pattern == "" {
				continue
			}
			name := lowerFirst(owner) + f.GoName + "Pattern"
			for n := 2; taken[name]; n++ {
				name = fmt.Sprintf("%s%sPattern%d", lowerFirst(owner), f.GoName, n)
			}
			taken[name] = true
			names[f] = name
		}
	}
	for _, t := range m.Types {
		add(t.GoName, t.Fields)
		if t.Scalar != nil {
			add(t.GoName, []*model.Field{t.Scalar})
		}
	}
	for _, ns := range m.Namespaces {
		for _, t := range ns.Topics {
			add(t.GoName, t.Fields)
		}
	}
	return names
}

// lowerFirst unexports a Go name: "SKUAdded" becomes "skuAdded", "URL" becomes "url".
func lowerFirst(name string) string {
	upper := 0
	for upper < len(name) && 'A' <= name[upper] && name[upper] <= 'Z' {
		upper++
	}
	if upper > 1 && upper < len(name) && 'a' <= name[upper] && name[upper] <= 'z' {
		upper-- // the last capital starts the next word
	}
	return strings.ToLower(name[:upper]) + name[upper:]
}
