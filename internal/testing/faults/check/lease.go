package check

import (
	"cmp"
	"slices"
	"time"
)

// StandsStill is how long a process must stand still to say so. It is less than the time between the moment when a handler must
// be told to let go and the end of its lease.
const StandsStill = 150 * time.Millisecond

// grace is how long after a process stood still its handlers need not know yet that their leases have run out, in microseconds.
const grace = int64(300 * time.Millisecond / time.Microsecond)

// span is a time from and to, in microseconds.
type span struct{ from, to int64 }

// run is a call of a handler that is leased.
type run struct {
	id      ID
	handler string
	who     string
	row     *Row
	from    int64
	// until is when it ended or was told to let go of the event, whichever was first; 0 if neither is known.
	until int64
}

// caller is a call in its process.
type caller struct {
	who  string
	call int64
}

// leases is what is known of calls of handlers that are leased. Who calls a handler must tell it to let go before the lease
// runs out. It cannot while its process stands still, so nothing is said of what happens then.
type leases struct {
	runs   []run
	open   map[caller]int    // those of runs that have not ended
	latest map[string]int64  // when a process wrote its latest line
	still  map[string][]span // when a process stood still, with grace
	moved  map[string][]span // when an operator took the leases of a handler
}

func newLeases() leases {
	return leases{
		open: make(map[caller]int), latest: make(map[string]int64), still: make(map[string][]span), moved: make(map[string][]span),
	}
}

// leased notes what a call says.
func (c *checker) leased(l *Line, row *Row) {
	k := caller{l.Who, l.Call}
	if l.Say == Start {
		c.Leased++
		c.open[k] = len(c.runs)
		c.runs = append(c.runs, run{l.Event, l.Handler, l.Who, row, l.At, 0})
		return
	}
	i, open := c.open[k]
	if !open {
		return // it was told as it ended
	}
	if r := &c.runs[i]; r.until == 0 || l.At < r.until {
		r.until = l.At
	}
	if l.Say == Told {
		c.Told++
	} else {
		delete(c.open, k)
	}
}

// unsure returns until when nothing is known of the lease of r, if that is so at a time: its process cannot know.
func (c *checker) unsure(r *run, at int64) (until int64, is bool) {
	for _, spans := range [...][]span{c.still[r.who], c.moved[r.handler]} {
		for _, s := range spans {
			if s.from <= at && at <= s.to {
				until, is = max(until, s.to), true
			}
		}
	}
	return until, is
}

// sure reports whether r has a lease at a time, as far as its process can know.
func (c *checker) sure(r *run, at int64) bool {
	_, unsure := c.unsure(r, at)
	return !unsure
}

// together returns when two calls that run at once both have a lease, as far as their processes can know.
func (c *checker) together(a, b *run) (at int64, are bool) {
	for at = max(a.from, b.from); at < min(a.until, b.until); {
		first, unsure := c.unsure(a, at)
		second, either := c.unsure(b, at)
		if !unsure && !either {
			return at, true
		}
		at = max(first, second) + 1
	}
	return 0, false
}

// judgeLeases looks for handlers that had an event at once.
func (c *checker) judgeLeases() {
	for i := range c.runs {
		r := &c.runs[i]
		if r.until == 0 { // it ran at least as long as its process wrote lines
			r.until = c.latest[r.who]
		}
		if !c.sure(r, r.from) {
			c.Unsure++
		}
	}
	slices.SortFunc(c.runs, func(a, b run) int {
		return cmp.Or(slices.Compare(a.id[:], b.id[:]), cmp.Compare(a.handler, b.handler), cmp.Compare(a.from, b.from))
	})
	for i := range c.runs {
		r := &c.runs[i]
		for k := i - 1; k >= 0 && c.runs[k].id == r.id && c.runs[k].handler == r.handler; k-- {
			o := &c.runs[k]
			if at, are := c.together(o, r); are {
				c.report(Overlap, r.id, "was with %s in %s since %d us, and in %s since %d us, which was not told to let go for %d us more", r.handler,
					r.who, at-r.from, o.who, at-o.from, o.until-at)
				break
			}
		}
	}
}
