package core

import (
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
)

// Sending is what a batch sends to one destination, in order and many events per call. The mutex of its batch guards
// it.
type Sending struct {
	To        Target
	batch     *Batch
	queue     []*Entry  // not sent yet
	calls     []*Entry  // of the call under way
	since     time.Time // when that call began
	abandoned bool      // the lease ends before that call returns
}

// Sendings takes all events of a batch whose topics are published. The events of topics that the listener does not read
// any more, which unread settles, are refused.
func (b *Batch) Sendings(unread errclass.Result) (all []*Sending) {
	byTarget := make(map[Target]*Sending)
	newer := make(map[string]bool) // keys with an event of an unknown version, behind which none is sent
	for _, e := range b.entries {
		to := e.target()
		switch {
		case e.Newer:
			newer[e.Key] = true
		case newer[e.Key]:
		case to == nil && e.Status == Waiting: // it was parked when the listener still read its topic
			e.Started = true
			b.cfg.decide(e, unread)
		case to != nil:
			s := byTarget[to]
			if s == nil {
				s = &Sending{To: to, batch: b}
				byTarget[to], all = s, append(all, s)
			}
			s.queue = append(s.queue, e)
		}
	}
	b.entries = nil
	return all
}

// Next returns the next events that may be sent, at most limit. They may include several of one key, because a
// publisher sends none after one that failed.
func (s *Sending) Next(now time.Time, limit int) (entries []*Entry) {
	b := s.batch
	for !b.halted && !b.limited && !b.Stopping {
		for entries = nil; len(s.queue) > 0 && len(entries) < b.budget.atMost(limit); s.queue = s.queue[1:] {
			e := s.queue[0]
			if e.Status != Waiting || !b.mayStart(e) {
				continue
			}
			if r, is := s.To.TakeLateResult(e.ID); is {
				e.Started = true
				b.settle(now, e, r, false)
				continue
			}
			entries = append(entries, e)
		}
		if len(entries) == 0 {
			return nil
		}
		n, why := s.To.Admit(now, len(entries))
		if n > 0 {
			b.budget.take(n)
			for _, e := range entries[:n] {
				e.retry, e.Started, e.Running = nil, true, true
			}
			s.queue = slices.Concat(entries[n:], s.queue)
			return entries[:n]
		}
		for _, e := range entries {
			if b.mayStart(e) {
				b.wait(now, e, why.Text, false)
			}
		}
	}
	return nil
}

// Encoded settles the entries that cannot be published, by results. It returns the others, and their places in entries.
func (s *Sending) Encoded(now time.Time, entries []*Entry, results []errclass.Result) (sent []*Entry, places []int) {
	b := s.batch
	sent = make([]*Entry, 0, len(entries))
	for i, e := range entries {
		switch {
		case !b.mayStart(e):
			e.Started, e.Running = false, false
		case results[i].Class != errclass.ClassDone:
			b.settle(now, e, results[i], true)
		default:
			e.Running = true
			sent, places = append(sent, e), append(places, i)
		}
	}
	return sent, places
}

// Begin begins the call with the first n of entries. The others are left as they were, because the rate does not allow
// them yet.
func (s *Sending) Begin(now time.Time, entries []*Entry, n int) {
	s.calls, s.since = entries[:n], now
	left := entries[n:]
	for _, e := range left {
		e.Started, e.Running = false, false
	}
	s.batch.budget.take(-len(left))
	s.queue = slices.Concat(left, s.queue)
}

// Sent records the results of a call. It reports whether the call has outlived its lease, and if so whether the results
// are to be kept until the events are read again.
func (s *Sending) Sent(now time.Time, entries []*Entry, results []errclass.Result) (late, keep bool) {
	b := s.batch
	s.calls = nil
	switch {
	case s.abandoned:
		return true, true
	case b.abandoned: // too late: the lease has ended
		return true, false
	}
	first := true
	for i, e := range entries {
		r := results[i]
		e.Running = false
		if b.leaseLost && r.Class != errclass.ClassDone {
			continue
		}
		b.settle(now, e, r, first)
		first = first && r.Class != errclass.ClassUnavailable
	}
	return false, false
}

// Stalled reports whether the lease may end before the call under way returns: the call takes as long as stall, or its
// destination rests already, and the events can be parked, so that those of other destinations do not wait.
func (s *Sending) Stalled(now time.Time, stall time.Duration) bool {
	b := s.batch
	slow := now.Sub(s.since) >= stall || s.To.Resting()
	return slow && len(s.calls) > 0 && b.Lease.MayParkAway && !b.halted
}

// LeaveBehind lets the call under way outlive the lease. Its events, and those behind it, are parked, and settled when
// they are read again.
func (s *Sending) LeaveBehind(now time.Time) {
	s.abandoned = true
	s.To.Abandon()
	why := s.To.Why().Text
	for _, e := range slices.Concat(s.calls, s.queue) {
		if e.Status == Waiting && (e.Running || s.batch.mayStart(e)) {
			s.batch.wait(now, e, why, false)
		}
	}
}

// IDs returns the ids of entries.
func IDs(entries []*Entry) []uuid.UUID {
	ids := make([]uuid.UUID, len(entries))
	for i, e := range entries {
		ids[i] = e.ID
	}
	return ids
}
