package core

import (
	"slices"

	"github.com/google/uuid"
)

// Pauses is what operators have paused of the events of a namespace. It is not changed after PausesOf. nil is nothing.
type Pauses struct {
	All  bool     // everything
	Keys []string // for SQL, sorted: topics, tenants, and topic/tenant; empty if All is set
}

// NoPauses pauses nothing.
var NoPauses = &Pauses{Keys: []string{}}

// PausesOf returns the pauses of keys, which it sorts.
func PausesOf(all bool, keys []string) *Pauses {
	if all {
		return &Pauses{All: true, Keys: []string{}}
	}
	slices.Sort(keys)
	return &Pauses{Keys: slices.Compact(keys)}
}

func (p *Pauses) has(key string) bool {
	_, is := slices.BinarySearch(p.Keys, key)
	return is
}

// Topic reports whether a whole topic is paused.
func (p *Pauses) Topic(name string) bool { return p.All || p.has(name) }

// Event reports whether an event of a topic and a tenant is paused.
func (p *Pauses) Event(topic string, of uuid.NullUUID) bool {
	if len(p.Keys) == 0 {
		return p.All
	}
	if p.has(topic) || !of.Valid {
		return p.has(topic)
	}
	tenant := of.UUID.String()
	return p.has(tenant) || p.has(topic+"/"+tenant)
}

// Every reports whether all of topics are paused. No topics mean all of the namespace, whatever they are.
func (p *Pauses) Every(topics []string) bool {
	if !p.Any() || p.All || len(topics) == 0 {
		return p.Any() && p.All
	}
	return !slices.ContainsFunc(topics, func(topic string) bool { return !p.has(topic) })
}

// Any reports whether anything is paused.
func (p *Pauses) Any() bool { return p != nil && (p.All || len(p.Keys) > 0) }

// Texts returns the keys as a parameter.
func (p *Pauses) Texts() []string {
	if p == nil {
		return NoPauses.Keys
	}
	return p.Keys
}

// Equal reports whether p and o pause the same.
func (p *Pauses) Equal(o *Pauses) bool { return p.All == o.All && slices.Equal(p.Keys, o.Keys) }

// Ended reports whether something that was paused in before is not paused any more.
func (p *Pauses) Ended(before *Pauses) bool {
	if p.All {
		return false
	}
	return before.All || slices.ContainsFunc(before.Keys, func(key string) bool { return !p.has(key) })
}
