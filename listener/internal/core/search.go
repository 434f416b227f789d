package core

import "slices"

// search finds the event that broke the transaction of its lease, among those handled in it. It searches by halves,
// because each try costs a transaction that is rolled back. A try with several events counts no attempt.
type search struct {
	candidates []place        // one of them broke the latest transaction; in the order in which they were handled
	nextCount  int            // how many of them the next lease handles
	picked     []place        // those of the current lease
	culprits   map[place]bool // each broke a transaction alone, and is tried again alone
}

// place is the place of an event: in the log, or among the parked ones.
type place struct{ seq, no int64 }

func (e *Entry) place() place { return place{e.Seq, e.ParkedNo} }

// maxCulprits limits the culprits that are remembered, because some are never read again.
const maxCulprits = 1000

// pick returns those of entries that the lease may handle: all of them if no search is under way.
func (d *search) pick(entries []*Entry) []*Entry {
	d.picked = nil
	if picked := d.pickCandidates(entries); len(picked) > 0 {
		for _, e := range picked {
			d.picked = append(d.picked, e.place())
		}
		return picked
	}
	d.candidates = nil
	for _, e := range entries {
		if d.culprits[e.place()] && e.Status == Waiting && e.retry == nil && firstOfKey(entries, e) {
			return []*Entry{e}
		}
	}
	return entries
}

// pickCandidates returns the first candidates among entries, but none that is after another event of its key.
func (d *search) pickCandidates(entries []*Entry) (picked []*Entry) {
	if len(d.candidates) == 0 {
		return nil
	}
	candidate := make(map[place]bool, len(d.candidates))
	for _, p := range d.candidates {
		candidate[p] = true
	}
	left := make(map[string]bool)
	for _, e := range entries {
		switch {
		case e.Status != Waiting:
		case len(picked) < d.nextCount && candidate[e.place()] && e.retry == nil && !left[e.Key]:
			picked = append(picked, e)
		default:
			left[e.Key] = true
		}
	}
	return picked
}

// firstOfKey reports whether no other event of e's key waits before e.
func firstOfKey(entries []*Entry, e *Entry) bool {
	for _, o := range entries[:slices.Index(entries, e)] {
		if o.Key == e.Key && o.Status == Waiting {
			return false
		}
	}
	return true
}

// onBroken records that the transaction of started was broken. If the last of them, as many as running says, broke it
// while they were running, the others are tried without them.
func (d *search) onBroken(started []*Entry, running int) {
	d.candidates = nil
	for _, e := range started {
		d.candidates = append(d.candidates, e.place())
	}
	if d.nextCount = len(started) - running; running == 0 || d.nextCount == 0 {
		d.nextCount = len(started) / 2
	}
}

// found records that e broke a transaction alone.
func (d *search) found(e *Entry) {
	d.candidates = nil
	delete(d.culprits, e.place())
	if e.Status == Dead {
		return
	}
	if d.culprits == nil || len(d.culprits) >= maxCulprits {
		d.culprits = make(map[place]bool)
	}
	d.culprits[e.place()] = true
}

// onCommitted records that the transaction of the lease was committed, so none of handled has broken it.
func (d *search) onCommitted(handled []*Entry) {
	for _, e := range handled {
		if e.Status != Retried {
			delete(d.culprits, e.place())
		}
	}
	if len(d.picked) == 0 {
		return
	}
	cleared := make(map[place]bool, len(d.picked))
	for _, p := range d.picked {
		cleared[p] = true
	}
	var rest []place
	for _, p := range d.candidates {
		if !cleared[p] {
			rest = append(rest, p)
		}
	}
	d.candidates, d.nextCount, d.picked = rest, (len(rest)+1)/2, nil
}
