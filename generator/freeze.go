package generator

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/evolve"
	"github.com/outboxgen/outboxgen/generator/lock"
	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/generator/spec"
)

// LockName returns the path of the lock of a YAML file: events/outbox.lock.yaml for events/outbox.yaml.
func LockName(source string) string { return lock.Name(source) }

// FrozenVersion is a version of a topic that Freeze adds to the lock, changes in it, or removes from it.
type FrozenVersion struct {
	Topic   string
	Version int
}

// String returns "version 1 of namespace/topic".
func (v FrozenVersion) String() string { return fmt.Sprintf("version %d of %s", v.Version, v.Topic) }

// Frozen is the result of Freeze.
type Frozen struct {
	Lock     []byte // the file next to the YAML
	Examples []byte // the file of ExamplesName
	// Added, Changed and Retired are sorted by topic and version. A changed version was changed in a compatible way.
	Added, Changed, Retired []FrozenVersion
}

// RetireError says that a topic or version cannot be retired.
type RetireError struct{ Reason string }

func (e *RetireError) Error() string { return "retire " + e.Reason }

// Freeze returns the lock of an outbox.yaml: what o.Lock holds, with the present version of each topic. Examples is the
// content of the file of examples, nil if there is none. Retire names what to remove from the lock: "namespace/topic" a
// topic that the YAML no longer has, "namespace/topic@2" the versions of a topic up to 2, which are older than the
// present one. Freeze does not use the disk. The error is a diag.List, an *ExamplesError or a *RetireError.
func Freeze(source []byte, examples []byte, retire []string, o Options) (*Frozen, error) {
	result := &Frozen{}
	if len(retire) > 0 && o.Lock != nil {
		kept, findings := lock.Parse(o.Lock, lock.Name(o.Source))
		if kept == nil {
			return nil, findings
		}
		s, _ := spec.Decode(source, o.Source)
		for _, what := range retire {
			gone, err := retired(kept, s, what)
			if err != nil {
				return nil, err
			}
			result.Retired = append(result.Retired, gone...)
		}
		o.Lock = lock.Render(kept)
	} else if len(retire) > 0 {
		return nil, &RetireError{retire[0] + ": there is no lock"}
	}
	l, m, findings := load(source, o)
	if err := findings.Err(); err != nil {
		return nil, err
	}
	if len(findings) > 0 && o.Warn != nil {
		o.Warn(findings)
	}
	for _, ns := range m.Namespaces {
		for _, t := range ns.Topics {
			f, v := m.Freeze(t), FrozenVersion{t.FullName(), t.Version}
			var have *model.Frozen
			if known := l.Topic(v.Topic); known != nil {
				have = known.Version(v.Version)
			}
			switch {
			case have == nil:
				result.Added = append(result.Added, v)
			case lock.Sum(v.Topic, have) != lock.Sum(v.Topic, f):
				result.Changed = append(result.Changed, v)
			}
			l.Put(v.Topic, f)
		}
	}
	result.Lock = lock.Render(l)
	var err error
	result.Examples, err = withExamples(l, examples)
	return result, err
}

// retired removes what from l and returns the versions.
func retired(l *lock.Lock, s *spec.Spec, what string) ([]FrozenVersion, error) {
	name, version, some := strings.Cut(what, "@")
	t := l.Topic(name)
	if t == nil {
		known := slices.Sorted(maps.Keys(l.History()))
		return nil, &RetireError{what + ": the lock has no such topic" + diag.NewReporter("").DidYouMean(name, known)}
	}
	last := t.Newest().Version
	if some {
		n, err := strconv.Atoi(version)
		if err != nil || t.Version(n) == nil {
			return nil, &RetireError{
				fmt.Sprintf("%s: the lock has versions %d to %d of %s", what, t.Versions[0].Version, last, name),
			}
		}
		if n == last {
			return nil, &RetireError{fmt.Sprintf("%s: it is the newest version of %s, which new events have", what, name)}
		}
		last = n
	} else if declares(s, name) {
		return nil, &RetireError{
			fmt.Sprintf("%s: the YAML declares this topic: remove it there first, or name its oldest versions, as in %s@1",
				what, name),
		}
	}
	var gone []FrozenVersion
	for len(t.Versions) > 0 && t.Versions[0].Version <= last {
		gone = append(gone, FrozenVersion{name, t.Versions[0].Version})
		t.Versions = t.Versions[1:]
	}
	l.Topics = slices.DeleteFunc(l.Topics, func(t *lock.Topic) bool { return len(t.Versions) == 0 })
	return gone, nil
}

func declares(s *spec.Spec, topic string) bool {
	if s == nil {
		return false
	}
	for _, ns := range s.Namespaces.Items {
		for _, t := range ns.Topics.Items {
			if ns.Name.V+"/"+t.Name.V == topic {
				return true
			}
		}
	}
	return false
}

// Breaking compares an outbox.yaml with an older one, without a lock. It returns the findings, sorted; those about the
// older file alone are in the error, a diag.List.
func Breaking(old, source []byte, oldName string, o Options) (diag.List, error) {
	before, findings := model.Load(old, oldName)
	if before == nil {
		return nil, findings
	}
	s, _ := spec.Decode(source, o.Source)
	m, findings := Load(source, Options{Source: o.Source, Folder: o.Folder})
	if m == nil {
		return findings, nil
	}
	return diag.Merge(findings, evolve.Between(before, m, s)), nil
}

// FrozenTopic returns a version of a topic that locked, the lock of the YAML called source, holds, and nil if it holds
// none or has findings.
func FrozenTopic(locked []byte, source, topic string, version int) (*model.Topic, diag.List) {
	if locked == nil {
		return nil, nil
	}
	l, findings := lock.Parse(locked, lock.Name(source))
	if l == nil {
		return nil, findings
	}
	if t := l.Topic(topic); t != nil {
		if f := t.Version(version); f != nil {
			return f.Topic, nil
		}
	}
	return nil, nil
}

// PlanFreeze compares f with the files next to the YAML whose path is source.
func PlanFreeze(source string, f *Frozen) (*Changes, error) {
	dir := filepath.Dir(source)
	var files []File
	for _, file := range []File{
		{Name: lock.Name(source), Content: f.Lock}, {Name: ExamplesName(source), Content: f.Examples},
	} {
		name, err := filepath.Rel(dir, file.Name)
		if err != nil {
			return nil, fmt.Errorf("write %s: %w", file.Name, err)
		}
		files = append(files, File{Name: filepath.ToSlash(name), Content: file.Content})
	}
	return PlanFiles(dir, files)
}

// PlanFiles compares files with those of the folder dir, which it replaces.
func PlanFiles(dir string, files []File) (*Changes, error) {
	c := &Changes{Dir: dir}
	for _, file := range files {
		path := filepath.Join(dir, file.Name)
		change := Change{Name: file.Name, Kind: Create, New: file.Content, mode: 0o644}
		switch old, err := os.ReadFile(path); {
		case err == nil && bytes.Equal(unixLines(old), file.Content):
			change.Kind, change.Old = Unchanged, old
		case err == nil:
			change.Kind, change.Old = Update, old
		case !errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("read %s: %w", path, cause(err))
		}
		c.Files = append(c.Files, change)
	}
	return c, nil
}
