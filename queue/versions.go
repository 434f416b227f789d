package queue

import (
	"maps"
	"math"
	"slices"
)

// versions are the newest payload versions that a claimer knows, as SQL has them. Nil means all versions.
type versions struct {
	every  int32 // known of all topics, of those without a bound too
	topics []string
	newest []int32 // in the order of topics
}

// allVersions bounds nothing.
var allVersions = &versions{every: math.MaxInt32, topics: []string{}, newest: []int32{}}

// versionsOf returns the bounds of known, which has the newest version by topic; nil if it has none.
func versionsOf(known map[string]int) *versions {
	if len(known) == 0 {
		return nil
	}
	v := &versions{every: math.MaxInt32}
	for _, topic := range slices.Sorted(maps.Keys(known)) {
		newest := int32(min(max(known[topic], 0), math.MaxInt32))
		v.every = min(v.every, newest)
		v.topics, v.newest = append(v.topics, topic), append(v.newest, newest)
	}
	return v
}

// params returns v, or what bounds nothing.
func (v *versions) params() *versions {
	if v == nil {
		return allVersions
	}
	return v
}
