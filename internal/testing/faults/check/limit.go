package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Limit is one of those of a topic whose handlers are leased.
type Limit struct {
	Topic     string
	PerTenant bool // its key is the tenant, and otherwise there is one key
	// AtOnce is how many events of a key may be handled at once, the earliest value first.
	AtOnce []Value
	// Starts is how many calls for a key may begin within Period, wherever that begins; 0 means any number.
	Starts int
	Period time.Duration
}

// Value holds from a time on, in microseconds; 0 is the beginning.
type Value struct {
	From int64
	N    int
}

// String names the limit.
func (l *Limit) String() string {
	if l.PerTenant {
		return l.Topic + " per tenant"
	}
	return l.Topic
}

// most is the highest value that was in force between two times.
func (l *Limit) most(from, to int64) (n int) {
	for i, v := range l.AtOnce {
		ended := i+1 < len(l.AtOnce) && l.AtOnce[i+1].From < from
		if v.From <= to && !ended {
			n = max(n, v.N)
		}
	}
	return n
}

// Reached is how near a limit was.
type Reached struct {
	Limit        string
	Calls        int // that were looked at
	AtOnce       int // the most
	OfAtOnce     int // what the limit allowed then
	Starts       int // the most within a period
	OfStarts     int
	FullAtOnce   int // how many calls began as the last that the limit allowed
	FullOfStarts int
}

// String tells it to people.
func (r Reached) String() string {
	return fmt.Sprintf("limit of %s: %d calls, at most %d of %d at once (so many %d times), at most %d of %d starts in a period (%d times)",
		r.Limit, r.Calls, r.AtOnce, r.OfAtOnce, r.FullAtOnce, r.Starts, r.OfStarts, r.FullOfStarts)
}

// counter counts the calls for one key of a limit.
type counter struct {
	running []*run
	starts  []int64
}

// judgeLimits looks for calls that began although their limit was reached.
func (c *checker) judgeLimits() {
	if len(c.Rules.Limits) == 0 {
		return
	}
	slices.SortFunc(c.runs, func(a, b run) int { return cmp.Compare(a.from, b.from) })
	for i := range c.Rules.Limits {
		l := &c.Rules.Limits[i]
		reached, keys := Reached{Limit: l.String()}, make(map[string]*counter)
		for i := range c.runs {
			r := &c.runs[i]
			if r.row.Topic != l.Topic {
				continue
			}
			key := ""
			if l.PerTenant {
				key = r.row.Tenant
			}
			if keys[key] == nil {
				keys[key] = &counter{}
			}
			c.count(l, keys[key], r, &reached)
		}
		c.Account.Limits = append(c.Account.Limits, reached)
	}
}

// count counts a call that begins. One that a process began after it stood still has been counted when it should have begun.
func (c *checker) count(l *Limit, k *counter, r *run, reached *Reached) {
	at := r.from
	k.running = slices.DeleteFunc(k.running, func(o *run) bool { return o.until <= at })
	k.running = append(k.running, r)
	if !c.sure(r, at) {
		return
	}
	reached.Calls++
	have, since := make(map[ID]bool), at
	for _, o := range k.running {
		if c.sure(o, at) {
			have[o.id] = true
			since = min(since, o.from)
		}
	}
	// A call begins within two leases after its event was leased.
	if n, most := len(have), l.most(since-2*c.Lease.Microseconds(), at); n > most {
		c.report(Over, r.id, "was started when %d events of %s were handled already, and the limit is %d", n-1, l, most)
	} else {
		if n > reached.AtOnce {
			reached.AtOnce, reached.OfAtOnce = n, most
		}
		if n == most {
			reached.FullAtOnce++
		}
	}
	if l.Starts == 0 {
		return
	}
	first := at - l.Period.Microseconds() + grace
	k.starts = append(slices.DeleteFunc(k.starts, func(t int64) bool { return t <= first }), at)
	switch n := len(k.starts); {
	case n > l.Starts:
		c.report(Over, r.id, "is the start number %d of %s within less than %s, and the limit is %d", n, l, l.Period, l.Starts)
	case n == l.Starts:
		reached.FullOfStarts++
		fallthrough
	default:
		reached.Starts, reached.OfStarts = max(reached.Starts, n), l.Starts
	}
}
