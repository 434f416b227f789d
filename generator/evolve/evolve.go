// Package evolve finds the changes of a topic that its events would not survive: it compares the topic with a frozen
// version, or with another outbox.yaml.
package evolve

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/lock"
	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/generator/spec"
)

// Class says what a change breaks.
type Class string

// The classes.
const (
	Wire     Class = "wire"      // stored payloads, and processes of the other build
	GoSource Class = "go-source" // code that uses the generated package
	Dedupe   Class = "dedupe"    // which events count as the same
	Delivery Class = "delivery"  // whether stored events reach a handler
	Routing  Class = "routing"   // where events go, and in which order
)

// ClassOf returns the class of a rule about changes, "" for any other rule.
func ClassOf(rule diag.Rule) Class {
	switch rule {
	case diag.ChangeFieldRemoved, diag.ChangeFieldAdded, diag.ChangeFieldOptional, diag.ChangeFieldType, diag.ChangeBounds,
		diag.ChangeEnumValue, diag.ChangeSealed:
		return Wire
	case diag.ChangeGoName:
		return GoSource
	case diag.ChangeDedupeKey, diag.ChangeTenant:
		return Dedupe
	case diag.ChangeDelivery, diag.ChangeTopicRemoved, diag.ChangeVersion, diag.LockGap:
		return Delivery
	case diag.ChangePartitionKey, diag.ChangeEntity, diag.ChangePublish:
		return Routing
	}
	return ""
}

// WithLock compares m, whose source is s, with the frozen versions in l.
func WithLock(l *lock.Lock, m *model.Model, s *spec.Spec) diag.List {
	c := newComparison(s, " is frozen")
	now := topicsOf(m)
	file := filepath.Base(l.File)
	for _, frozen := range l.Topics {
		t := now[frozen.Name]
		newest := frozen.Newest()
		if t == nil {
			if heir := heirOf(m, frozen.Name); heir != nil {
				c.inherited(l, frozen, heir)
				continue
			}
		}
		switch {
		case t == nil:
			c.find(c.namespacePos(frozen.Name), diag.ChangeTopicRemoved, diag.Error,
				"topic %s is frozen in %s and no longer declared, so its events would wait forever: put it back, name it in "+
					"renamed_from of the topic that takes them, or run outboxgen freeze --retire %s when none are left",
				frozen.Name, file, frozen.Name)
		case t.Version < newest.Version:
			c.find(c.at(t).version(), diag.ChangeVersion, diag.Error,
				"version: %d of topic %s is lower than %d, which is frozen: set version: %d", t.Version, t.FullName(),
				newest.Version, newest.Version)
		case t.Version > newest.Version+1:
			c.find(c.at(t).version(), diag.LockGap, diag.Error,
				"version: %d of topic %s skips %d, so no event could be brought from %d to %d: set version: %d", t.Version,
				t.FullName(), newest.Version+1, newest.Version, t.Version, newest.Version+1)
		case t.Version > newest.Version:
			c.raised(newest.Topic, t)
		default:
			c.topic(newest.Topic, t)
		}
	}
	return c.findings()
}

// Between compares m, whose source is s, with an older outbox.yaml.
func Between(old, m *model.Model, s *spec.Spec) diag.List {
	c := newComparison(s, "")
	now := topicsOf(m)
	for _, ns := range old.Namespaces {
		for _, before := range ns.Topics {
			t := now[before.FullName()]
			if t == nil {
				t = heirOf(m, before.FullName())
			}
			switch {
			case t == nil:
				c.find(c.namespacePos(before.FullName()), diag.ChangeTopicRemoved, diag.Error,
					"topic %s is no longer declared, so its events would wait forever: put it back until none are left, "+
						"or name it in renamed_from of the topic that takes them", before.FullName())
			case t.Version < before.Version:
				c.find(c.at(t).version(), diag.ChangeVersion, diag.Error,
					"version: %d of topic %s is lower than %d: set version: %d", t.Version, t.FullName(), before.Version,
					before.Version)
			case t.Version > before.Version:
				c.raised(before, t)
			default:
				c.topic(before, t)
				if before.GoName != t.GoName {
					c.goName(c.at(t).name(), "topic "+t.FullName(), before.GoName, t.GoName)
				}
			}
		}
	}
	return c.findings()
}

// Payloads compares the payloads of two topics, as if they were one version of one topic. Positions are unknown.
func Payloads(old, now []*model.Field) diag.List {
	c := newComparison(&spec.Spec{}, "")
	c.now = &model.Topic{Namespace: &model.Namespace{Name: "any"}, Name: "topic", Version: 1}
	c.fields(old, now, section{what: "payload"})
	return c.findings()
}

// heirOf returns the topic of m that an older name belongs to, or nil.
func heirOf(m *model.Model, name string) *model.Topic {
	for _, ns := range m.Namespaces {
		for _, t := range ns.Topics {
			for _, old := range t.Renamed {
				if ns.Name+"/"+old == name {
					return t
				}
			}
		}
	}
	return nil
}

// inherited compares the versions of a topic whose events another topic takes, because it is one of its older names,
// with the versions that decode them.
func (c *comparison) inherited(l *lock.Lock, frozen *lock.Topic, heir *model.Topic) {
	for _, f := range frozen.Versions {
		if f.Version == heir.Version {
			c.topic(f.Topic, heir)
			continue
		}
		same := l.Topic(heir.FullName()).Version(f.Version)
		if same == nil {
			c.find(c.at(heir).version(), diag.ChangeVersion, diag.Error,
				"version: topic %s takes the events of %s, whose version %d it does not have: set version: %d, or run outboxgen "+
					"freeze --retire %s when none are left", heir.FullName(), frozen.Name, f.Version, f.Version, frozen.Name)
			continue
		}
		if l := Payloads(f.Topic.Fields, same.Topic.Fields); l.HasErrors() {
			c.find(c.at(heir).version(), diag.ChangeFieldType, diag.Error,
				"topic %s takes the events of %s, whose version %d has another payload than its own: run outboxgen freeze "+
					"--retire %s when none are left", heir.FullName(), frozen.Name, f.Version, frozen.Name)
		}
	}
}

func topicsOf(m *model.Model) map[string]*model.Topic {
	topics := make(map[string]*model.Topic)
	for _, ns := range m.Namespaces {
		for _, t := range ns.Topics {
			topics[t.FullName()] = t
		}
	}
	return topics
}

// comparison collects findings. A change of a shared type is one finding, however many topics use the type.
type comparison struct {
	source *spec.Spec
	topics map[string]*spec.Topic
	types  map[string]*spec.Type
	frozen string // " is frozen", or "" without a lock

	now     *model.Topic // the topic that is compared
	visited map[[2]*model.Type]bool
	list    []*finding
}

// finding is a diagnostic without its end, which names the topics.
type finding struct {
	diag.Diagnostic
	topics []*model.Topic
}

func newComparison(s *spec.Spec, frozen string) *comparison {
	c := &comparison{source: s, topics: make(map[string]*spec.Topic), types: make(map[string]*spec.Type), frozen: frozen}
	for _, ns := range s.Namespaces.Items {
		for _, t := range ns.Topics.Items {
			c.topics[ns.Name.V+"/"+t.Name.V] = t
		}
	}
	for _, t := range s.Types.Items {
		c.types[t.Name.V] = t
	}
	return c
}

// find adds a finding whose text is complete.
func (c *comparison) find(pos diag.Pos, rule diag.Rule, severity diag.Severity, format string, args ...any) {
	c.list = append(c.list, &finding{
		Diagnostic: diag.Diagnostic{Pos: pos, Rule: rule, Severity: severity, Message: fmt.Sprintf(format, args...)},
	})
}

// changed adds a change of the version that is compared. Findings gives the text its end.
func (c *comparison) changed(pos diag.Pos, rule diag.Rule, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	for _, f := range c.list {
		if f.topics != nil && f.Pos == pos && f.Rule == rule && f.Message == text {
			if !slices.Contains(f.topics, c.now) {
				f.topics = append(f.topics, c.now)
			}
			return
		}
	}
	c.list = append(c.list, &finding{
		Diagnostic: diag.Diagnostic{Pos: pos, Rule: rule, Severity: diag.Error, Message: text}, topics: []*model.Topic{c.now},
	})
}

// goName adds a warning about a name that code uses. A raised version would not help that code.
func (c *comparison) goName(pos diag.Pos, what, old, now string) {
	text := fmt.Sprintf("%s is now %s in Go and was %s: change the code that uses it; stored events are not affected",
		what, now, old)
	for _, f := range c.list {
		if f.Pos == pos && f.Message == text {
			return
		}
	}
	c.find(pos, diag.ChangeGoName, diag.Warning, "%s", text)
}

func (c *comparison) findings() diag.List {
	var l diag.List
	for _, f := range c.list {
		if len(f.topics) > 0 {
			t := f.topics[0]
			others, versions := "", fmt.Sprintf("set version: %d", t.Version+1)
			if n := len(f.topics) - 1; n > 0 {
				var names []string
				for _, other := range f.topics[1 : min(n, 3)+1] {
					names = append(names, other.FullName())
				}
				if n > 3 {
					names = append(names, fmt.Sprintf("%d more", n-3))
				}
				others = ", and so with " + strings.Join(names, ", ")
				versions = "raise the version of each"
			}
			f.Message += fmt.Sprintf(" (version %d of topic %s%s%s): undo it, or %s", t.Version, t.FullName(), c.frozen, others,
				versions)
		}
		if !f.Pos.IsValid() {
			f.Pos = diag.Pos{File: c.source.File, Line: 1, Column: 1}
		}
		l = append(l, f.Diagnostic)
	}
	l.Sort()
	return l
}
