package simtest

import (
	"slices"
	"time"
)

// walDelay is within what time a commit that does not wait for the disk gets there.
const walDelay = 2 * time.Second

// flush has all commits so far on disk: that of a transaction that waits for the disk has those before it there, too.
func (s *sim) flush() { s.unflushed = nil }

// flushLater is for an event whose producer does not wait for the disk. After a while it is there, with all commits before it.
func (s *sim) flushLater(r *Row, after time.Duration) {
	s.unflushed = append(s.unflushed, r)
	s.note("producer", "FAULT: the commit of event "+r.name()+" does not wait for the disk")
	s.after(after, func() {
		if i := slices.Index(s.unflushed, r); i >= 0 {
			s.unflushed = s.unflushed[i+1:]
		}
	})
}

// loseUnflushed undoes the commits that are not on disk. Nobody may have begun with their events.
func (s *sim) loseUnflushed() {
	for _, r := range s.unflushed {
		s.note("database", "FAULT: the commit of event "+r.name()+" was not on disk, and is undone")
		r.lost = true
		s.counts["undone commits"]++
	}
	s.lost = append(s.lost, s.unflushed...)
	s.unflushed = nil
	isLost := func(r *Row) bool { return r.lost }
	s.rows, s.all = slices.DeleteFunc(s.rows, isLost), slices.DeleteFunc(s.all, isLost)
	s.requireNoTrace()
}

// requireNoTrace checks I3: an event whose producer does not know whether it was committed is delivered only if its row exists.
// That it is delivered if its row exists is checked as for any other event.
func (s *sim) requireNoTrace() {
	for _, r := range s.lost {
		s.require(len(r.begun) == 0 && r.handled == 0 && r.effects == 0, "I3", "the row of event %s does not exist, and it was started", r.name())
	}
}
