package outbox

// doubt finds the event that broke the transaction of its turn, among those that were handled in it: by halves, because
// each try costs a transaction that is rolled back. Nobody is charged for a try with company.
type doubt struct {
	suspects []eventPlace        // of which one broke the latest transaction, in the order in which they were handled
	share    int                 // how many of them the next turn handles
	picked   []eventPlace        // those of the turn under way
	breakers map[eventPlace]bool // each broke a transaction by itself, and is tried again by itself
}

// eventPlace is where an event stands: in the log, or set aside.
type eventPlace struct{ seq, no int64 }

func (e *entry) place() eventPlace { return eventPlace{e.seq, e.no} }

// breakersLimit bounds what is remembered of events that were not seen again.
const breakersLimit = 1000

// pick returns those of entries that the turn may handle: all of them while nothing is in doubt.
func (d *doubt) pick(entries []*entry) []*entry {
	d.picked = nil
	if picked := d.some(entries); len(picked) > 0 {
		for _, e := range picked {
			d.picked = append(d.picked, e.place())
		}
		return picked
	}
	d.suspects = nil
	for _, e := range entries {
		if d.breakers[e.place()] && e.fate == waiting && e.held == nil && first(entries, e) {
			return []*entry{e}
		}
	}
	return entries
}

// some returns the first suspects that are there, and none behind another event of its key.
func (d *doubt) some(entries []*entry) (picked []*entry) {
	if len(d.suspects) == 0 {
		return nil
	}
	suspect := make(map[eventPlace]bool, len(d.suspects))
	for _, p := range d.suspects {
		suspect[p] = true
	}
	left := make(map[string]bool)
	for _, e := range entries {
		switch {
		case e.fate != waiting:
		case len(picked) < d.share && suspect[e.place()] && e.held == nil && !left[e.key]:
			picked = append(picked, e)
		default:
			left[e.key] = true
		}
	}
	return picked
}

// first tells whether no other event of the key of e waits in front of it.
func first(entries []*entry, e *entry) bool {
	for _, o := range entries {
		switch {
		case o == e:
			return true
		case o.key == e.key && o.fate == waiting:
			return false
		}
	}
	return false
}

// broke takes in that the transaction of started was broken. If the latest of them did it while it ran, the others are
// tried without it.
func (d *doubt) broke(started []*entry, running bool) {
	d.suspects = nil
	for _, e := range started {
		d.suspects = append(d.suspects, e.place())
	}
	if d.share = len(started) / 2; running {
		d.share = len(started) - 1
	}
}

// found takes in that e broke a transaction by itself.
func (d *doubt) found(e *entry) {
	d.suspects = nil
	delete(d.breakers, e.place())
	if e.fate == dead {
		return
	}
	if d.breakers == nil || len(d.breakers) >= breakersLimit {
		d.breakers = make(map[eventPlace]bool)
	}
	d.breakers[e.place()] = true
}

// passed takes in that the transaction of the turn was committed: what it handled is innocent.
func (d *doubt) passed(handled []*entry) {
	for _, e := range handled {
		if e.fate != failed {
			delete(d.breakers, e.place())
		}
	}
	if len(d.picked) == 0 {
		return
	}
	innocent := make(map[eventPlace]bool, len(d.picked))
	for _, p := range d.picked {
		innocent[p] = true
	}
	var rest []eventPlace
	for _, p := range d.suspects {
		if !innocent[p] {
			rest = append(rest, p)
		}
	}
	d.suspects, d.share, d.picked = rest, (len(rest)+1)/2, nil
}
