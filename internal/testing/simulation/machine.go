package simulation

import (
	"fmt"
	"runtime/debug"
	"time"
)

// Machine is a core with a model of its tables.
type Machine struct {
	Name string
	// Rates has the kinds of faults that the machine has.
	Rates Rates
	// Controls are the guards that can be left out, each with what is wrong then.
	Controls []Control
	// Play plays a schedule. trace gets what happens, unless it is nil.
	Play func(s *Schedule, trace Trace) *Result
}

// Control is a guard that is left out to see that the invariants notice. Seed is that of a schedule which has shown it, where
// tests begin; 0 is the first.
type Control struct {
	Name, What string
	Seed       uint64
}

// Trace gets what happens: when, counted from the beginning, to whom, and what.
type Trace func(at time.Duration, who, what string)

// Result is what has become of a schedule.
type Result struct {
	Steps     int     // of cores
	Events    int     // that were enqueued
	Processes int     // that started at the beginning
	Faults    []Fault // that happened
	Busy      time.Duration
	Counts    map[string]int // of what the machine counts
	Violation *Violation     // nil if everything held
}

// Violation is an invariant that does not hold.
type Violation struct {
	Invariant string        // I1 to I11 of docs/run/delivery.md, "liveness", or "core" for what a core must not do
	Text      string        // what is wrong
	At        time.Duration // since the beginning of the schedule
}

// String returns the violation as one line.
func (v *Violation) String() string {
	return fmt.Sprintf("%s, after %s: %s", v.Invariant, v.At.Round(time.Millisecond), v.Text)
}

// Violated returns a panic's value for Catch.
func Violated(invariant, format string, args ...any) any {
	return &Violation{Invariant: invariant, Text: fmt.Sprintf(format, args...)}
}

// Catch is deferred. It makes a panic of Violated a violation at a time, and a panic of the machine one of the core.
func Catch(r *Result, at func() time.Duration) {
	switch p := recover().(type) {
	case nil:
	case *Violation:
		p.At = at()
		r.Violation = p
	default:
		r.Violation = &Violation{Invariant: "core", Text: fmt.Sprintf("panic: %v\n%s", p, debug.Stack()), At: at()}
	}
}

// Fails reports whether s violates the invariant.
func (m *Machine) Fails(s *Schedule, invariant string) bool {
	v := m.Play(s, nil).Violation
	return v != nil && v.Invariant == invariant
}

// Shrink returns a schedule that violates the same invariant with fewer processes, events and faults and in a shorter
// time. It plays up to tries schedules, and returns s itself if s violates nothing.
func (m *Machine) Shrink(s *Schedule, tries int) *Schedule {
	r := m.Play(s, nil)
	if r.Violation == nil {
		return s
	}
	small := &shrinking{m: m, invariant: r.Violation.Invariant, tries: tries, best: s}
	fixed := *s
	if !s.Fixed {
		fixed.Fixed, fixed.Faults, fixed.Events = true, r.Faults, make([]int, r.Events)
		for i := range fixed.Events {
			fixed.Events[i] = i
		}
		fixed.Processes, fixed.Busy = r.Processes, r.Busy
		if !small.try(fixed) {
			return s
		}
	}
	for before := 0; before != small.size(); {
		before = small.size()
		for n := 1; n < small.best.Processes; n++ {
			fewer := *small.best
			if fewer.Processes = n; small.try(fewer) {
				break
			}
		}
		small.best.Faults = reduce(small.best.Faults, func(some []Fault) bool {
			fewer := *small.best
			fewer.Faults = some
			return small.try(fewer)
		})
		small.best.Events = reduce(small.best.Events, func(some []int) bool {
			fewer := *small.best
			fewer.Events = some
			return small.try(fewer)
		})
		for d := small.best.Busy / 2; d > 100*time.Millisecond; d /= 2 {
			shorter := *small.best
			if shorter.Busy = small.best.Busy - d; shorter.Busy > 0 && small.try(shorter) {
				d *= 2
			}
		}
	}
	return small.best
}

type shrinking struct {
	m         *Machine
	invariant string
	tries     int
	best      *Schedule
}

func (s *shrinking) size() int {
	return s.best.Processes + len(s.best.Events) + len(s.best.Faults) + int(s.best.Busy/(100*time.Millisecond))
}

// salts is how many times it is tried whether a smaller schedule fails, each time with other durations.
const salts = 4

// try takes a schedule if it violates the invariant, too.
func (s *shrinking) try(smaller Schedule) bool {
	for range salts {
		if s.tries <= 0 {
			return false
		}
		if s.tries--; s.m.Fails(&smaller, s.invariant) {
			s.best = &smaller
			return true
		}
		smaller.Salt++
	}
	return false
}

// reduce leaves out parts of all as long as fails says that the rest still fails: halves first, then smaller parts.
func reduce[T any](all []T, fails func([]T) bool) []T {
	for part := (len(all) + 1) / 2; part > 0 && len(all) > 0; {
		left := false
		for at := 0; at < len(all); {
			rest := append(append([]T{}, all[:at]...), all[min(at+part, len(all)):]...)
			if fails(rest) {
				all, left = rest, true
			} else {
				at += part
			}
		}
		if part == 1 && !left {
			break
		}
		part = max(min(part/2, len(all)/2), 1)
	}
	return all
}
