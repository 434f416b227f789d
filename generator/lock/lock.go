// Package lock reads and writes outbox.lock.yaml: the versions of topics that are frozen, because events of them may
// exist. Each version is complete in itself and has a checksum, so that an edit by hand is found.
package lock

import (
	"cmp"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/generator/spec"
)

// Name returns the path of the lock of a YAML file: events/outbox.lock.yaml for events/outbox.yaml.
func Name(source string) string {
	return strings.TrimSuffix(source, filepath.Ext(source)) + ".lock.yaml"
}

// Lock is the history of a YAML file. The zero value is that of a file which was never frozen.
type Lock struct {
	File   string
	Topics []*Topic // sorted by name
}

// Topic holds the frozen versions of a topic.
type Topic struct {
	Name     string // namespace/topic
	Was      string // the name in the file, if Rename has changed it
	Pos      diag.Pos
	Versions []*model.Frozen // at least one, each one higher than the one before
}

// Newest returns the newest version of t.
func (t *Topic) Newest() *model.Frozen { return t.Versions[len(t.Versions)-1] }

// Version returns the version of that number, or nil.
func (t *Topic) Version(number int) *model.Frozen {
	for _, f := range t.Versions {
		if f.Version == number {
			return f
		}
	}
	return nil
}

// Topic returns the topic of that full name, or nil.
func (l *Lock) Topic(name string) *Topic {
	for _, t := range l.Topics {
		if t.Name == name {
			return t
		}
	}
	return nil
}

// Rename gives the topic called old its present name.
func (l *Lock) Rename(old, name string) {
	t := l.Topic(old)
	t.Name, t.Was = name, old
	slices.SortFunc(l.Topics, func(a, b *Topic) int { return strings.Compare(a.Name, b.Name) })
}

// History returns the versions of all topics, nil for a nil Lock.
func (l *Lock) History() model.History {
	if l == nil {
		return nil
	}
	history := make(model.History, len(l.Topics))
	for _, t := range l.Topics {
		history[t.Name] = t.Versions
	}
	return history
}

// Put adds a version to the topic of that name, or replaces the version of its number.
func (l *Lock) Put(name string, f *model.Frozen) {
	t := l.Topic(name)
	if t == nil {
		t = &Topic{Name: name}
		l.Topics = append(l.Topics, t)
		slices.SortFunc(l.Topics, func(a, b *Topic) int { return strings.Compare(a.Name, b.Name) })
	}
	t.Versions = slices.DeleteFunc(t.Versions, func(have *model.Frozen) bool { return have.Version == f.Version })
	t.Versions = append(t.Versions, f)
	slices.SortFunc(t.Versions, func(a, b *model.Frozen) int { return cmp.Compare(a.Version, b.Version) })
}

// Parse reads a lock that positions refer to as file. When there are findings, the Lock is nil. It never panics.
func Parse(source []byte, file string) (*Lock, diag.List) {
	s, findings := spec.DecodeLock(source, file)
	r := diag.NewReporter(file)
	restore := "restore " + filepath.Base(file) + " from version control and let outboxgen freeze write it"
	if s == nil {
		first := findings[0] // the others are often its consequences
		r.Errorf(first.Pos, diag.LockInvalid, "%s: %s", first.Message, restore)
		return nil, r.Findings()
	}
	l := &Lock{File: file}
	for _, topic := range s.Topics.Items {
		t := &Topic{Name: topic.Name.V, Pos: topic.Name.Pos}
		l.Topics = append(l.Topics, t)
		for _, version := range topic.Versions.Items {
			number, err := strconv.Atoi(version.Version.V)
			if err != nil || number < 1 || strconv.Itoa(number) != version.Version.V {
				r.Errorf(version.Version.Pos, diag.LockInvalid, "%s is not a valid version of topic %s: %s",
					spec.Show(version.Version.V), show(t.Name), restore)
				continue
			}
			f, findings := model.BuildFrozen(t.Name, number, version, file)
			if f == nil {
				first := findings[slices.IndexFunc(findings, func(d diag.Diagnostic) bool { return d.Severity == diag.Error })]
				r.Errorf(first.Pos, diag.LockInvalid, "%s: %s", first.Message, restore)
				continue
			}
			if sum := Sum(t.Name, f); sum != version.Sum.V {
				r.Errorf(version.Version.Pos, diag.LockEdited,
					"version %d of topic %s was changed by hand, because its sum is not %s: %s", number, show(t.Name),
					spec.Show(version.Sum.V), restore)
				continue
			}
			if n := len(t.Versions); n > 0 && t.Versions[n-1].Version != number-1 {
				r.Errorf(version.Version.Pos, diag.LockGap, "version %d of topic %s follows version %d: %s", number, show(t.Name),
					t.Versions[n-1].Version, restore)
				continue
			}
			t.Versions = append(t.Versions, f)
		}
	}
	if findings := r.Findings(); len(findings) > 0 {
		return nil, findings
	}
	slices.SortFunc(l.Topics, func(a, b *Topic) int { return strings.Compare(a.Name, b.Name) })
	return l, nil
}

// show returns the name of a topic for a message.
func show(name string) string {
	namespace, topic, _ := strings.Cut(name, "/")
	return spec.Show(namespace) + "/" + spec.Show(topic)
}
