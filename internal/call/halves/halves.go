// Package halves finds the events that make calls with several events fail: it says which of them to call again
// together. It calls nothing itself.
package halves

import "math/bits"

// Search looks for the culprits among the events of a call that has failed as a whole. It halves what is known to have
// a culprit, and calls the first half. If that one passes, the culprit is in the other half, which is halved without
// another call. Each culprit is called alone in the end. What is left over on the way is called together afterwards.
//
// With one culprit there are at most Calls(n) calls, the first one and the last one included. With several there are at
// most Limit(n); what is left then has no result of its own.
type Search[T any] struct {
	bad      []T // one of them makes a call fail
	testing  []T // the call under way
	other    []T // the other half of what testing is half of; nil if there is none
	untested []T // of these nothing is known
	calls    int // made, or under way
	limit    int
}

// Calls is how many calls it takes at most to find one culprit among n events and to call the others.
func Calls(n int) int { return bits.Len(uint(max(n, 1)-1)) + 3 }

// Limit is how many calls a search among n events takes at most.
func Limit(n int) int { return 6 * Calls(n) }

// New returns the search among the events of a call that has failed, of which there are several. It splits the slice up
// and keeps its parts.
func New[T any](failed []T) *Search[T] {
	return &Search[T]{bad: failed, calls: 1, limit: Limit(len(failed))}
}

// Next returns the events of the next call, in their order; nil if the search is over. Passed, Failed or Answered must
// follow.
func (s *Search[T]) Next() []T {
	if s.calls == s.limit {
		return nil
	}
	switch n := len(s.bad); {
	case n > 1:
		half := (n + 1) / 2
		s.testing, s.other = s.bad[:half:half], s.bad[half:]
	case n == 1:
		s.testing = s.bad
	default:
		s.testing, s.untested = s.untested, nil
	}
	if s.bad = nil; len(s.testing) == 0 {
		return nil
	}
	s.calls++
	return s.testing
}

// Passed says that the call has succeeded.
func (s *Search[T]) Passed() { s.testing, s.bad, s.other = nil, s.other, nil }

// Failed says that the call has failed as a whole. It reports whether the event was alone, so that it is the culprit.
func (s *Search[T]) Failed() (alone bool) {
	failed := s.testing
	if s.Answered(); len(failed) > 1 {
		s.bad = failed
		return false
	}
	return true
}

// Answered says that each event of the call has a result of its own.
func (s *Search[T]) Answered() {
	if len(s.other) > 0 {
		s.untested = append(s.other[:len(s.other):len(s.other)], s.untested...)
	}
	s.testing, s.other = nil, nil
}

// Left returns the events without a result, in their order.
func (s *Search[T]) Left() []T {
	left := make([]T, 0, len(s.bad)+len(s.testing)+len(s.other)+len(s.untested))
	for _, some := range [...][]T{s.bad, s.testing, s.other, s.untested} {
		left = append(left, some...)
	}
	return left
}
