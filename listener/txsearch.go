package listener

// txSearch finds the event that broke the transaction of its lease, among those that were handled in it: by halves, because
// each try costs a transaction that is rolled back. No attempt is charged for a try with several events.
type txSearch struct {
	candidates []eventPlace        // of which one broke the latest transaction, in the order in which they were handled
	nextCount  int                 // how many of them the next lease handles
	picked     []eventPlace        // those of the current lease
	culprits   map[eventPlace]bool // each broke a transaction by itself, and is tried again by itself
}

// eventPlace is where an event stands: in the log, or parked.
type eventPlace struct{ seq, no int64 }

func (e *entry) place() eventPlace { return eventPlace{e.seq, e.parkedNo} }

// maxCulprits bounds what is remembered of events that were not seen again.
const maxCulprits = 1000

// pick returns those of entries that the lease may handle: all of them while nothing is searched for.
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

// pickCandidates returns the first candidates that are there, and none behind another event of its key.
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

// firstOfKey reports whether no other event of the key of e waits in front of it.
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

// onBroken takes in that the transaction of started was broken. If the latest of them did it while it ran, the others are
// tried without it.
func (d *txSearch) onBroken(started []*entry, running bool) {
	d.candidates = nil
	for _, e := range started {
		d.candidates = append(d.candidates, e.place())
	}
	if d.nextCount = len(started) / 2; running {
		d.nextCount = len(started) - 1
	}
}

// found takes in that e broke a transaction by itself.
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

// onCommitted takes in that the transaction of the lease was committed: what it handled has not broken it.
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
