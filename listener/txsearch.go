package listener

// txSearch finds the event that broke the transaction of its lease, among those handled in it. It searches by halves,
// because each try costs a transaction that is rolled back. A try with several events counts no attempt.
type txSearch struct {
	candidates []eventPlace        // one of them broke the latest transaction; in the order in which they were handled
	nextCount  int                 // how many of them the next lease handles
	picked     []eventPlace        // those of the current lease
	culprits   map[eventPlace]bool // each broke a transaction alone, and is tried again alone
}

// eventPlace is the place of an event: in the log, or among the parked ones.
type eventPlace struct{ seq, no int64 }

func (e *entry) place() eventPlace { return eventPlace{e.seq, e.parkedNo} }

// maxCulprits limits the culprits that are remembered, because some are never read again.
const maxCulprits = 1000

// pick returns those of entries that the lease may handle: all of them if no search is under way.
func (d *txSearch) pick(entries []*entry) []*entry {
	d.picked = nil
	if picked := d.pickCandidates(entries); len(picked) > 0 {
		for _, e := range picked {
			d.picked = append(d.picked, e.place())
		}
		return picked
	}
	d.candidates = nil
	for _, e := range entries {
		if d.culprits[e.place()] && e.status == statusWaiting && e.retry == nil && firstOfKey(entries, e) {
			return []*entry{e}
		}
	}
	return entries
}

// pickCandidates returns the first candidates among entries, but none that is after another event of its key.
func (d *txSearch) pickCandidates(entries []*entry) (picked []*entry) {
	if len(d.candidates) == 0 {
		return nil
	}
	candidate := make(map[eventPlace]bool, len(d.candidates))
	for _, p := range d.candidates {
		candidate[p] = true
	}
	left := make(map[string]bool)
	for _, e := range entries {
		switch {
		case e.status != statusWaiting:
		case len(picked) < d.nextCount && candidate[e.place()] && e.retry == nil && !left[e.key]:
			picked = append(picked, e)
		default:
			left[e.key] = true
		}
	}
	return picked
}

// firstOfKey reports whether no other event of e's key waits before e.
func firstOfKey(entries []*entry, e *entry) bool {
	for _, o := range entries {
		switch {
		case o == e:
			return true
		case o.key == e.key && o.status == statusWaiting:
			return false
		}
	}
	return false
}

// onBroken records that the transaction of started was broken. If the last of them broke it while running, the others
// are tried without it.
func (d *txSearch) onBroken(started []*entry, running bool) {
	d.candidates = nil
	for _, e := range started {
		d.candidates = append(d.candidates, e.place())
	}
	if d.nextCount = len(started) / 2; running {
		d.nextCount = len(started) - 1
	}
}

// found records that e broke a transaction alone.
func (d *txSearch) found(e *entry) {
	d.candidates = nil
	delete(d.culprits, e.place())
	if e.status == statusDead {
		return
	}
	if d.culprits == nil || len(d.culprits) >= maxCulprits {
		d.culprits = make(map[eventPlace]bool)
	}
	d.culprits[e.place()] = true
}

// onCommitted records that the transaction of the lease was committed, so none of handled has broken it.
func (d *txSearch) onCommitted(handled []*entry) {
	for _, e := range handled {
		if e.status != statusFailed {
			delete(d.culprits, e.place())
		}
	}
	if len(d.picked) == 0 {
		return
	}
	cleared := make(map[eventPlace]bool, len(d.picked))
	for _, p := range d.picked {
		cleared[p] = true
	}
	var rest []eventPlace
	for _, p := range d.candidates {
		if !cleared[p] {
			rest = append(rest, p)
		}
	}
	d.candidates, d.nextCount, d.picked = rest, (len(rest)+1)/2, nil
}
