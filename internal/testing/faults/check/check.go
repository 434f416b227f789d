package check

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"time"
)

// Handler is one of those who must see the events of a topic.
type Handler struct {
	Name string
	// Once: it writes an effect in a transaction, which must happen exactly once. Otherwise it must have been called, and
	// have returned, at least once.
	Once bool
	// Ordered: it gets the events of an item in the order of their numbers.
	Ordered bool
	// Leased: while it handles an event and was not told to let go of it, nobody else begins with the event.
	Leased bool
	// Counted: each call has used up an attempt of its event, unless the event is Doomed, which may be replayed.
	Counted bool
}

// Rules say who must see what.
type Rules struct {
	Topics map[string][]Handler
	Limits []Limit
	// Lease is how long a handler may not know that an operator took its lease.
	Lease time.Duration
	// Calm: nothing was done to the system, so no handler does an event twice.
	Calm bool
}

// Row is an event as its writer's transaction has it in a business table: it is there exactly if the transaction
// committed.
type Row struct {
	Event       ID
	Topic, Item string
	N           int64 // grows with each event of the item, in the order of their commits
	NotBefore   int64 // microseconds; 0 means at once
	Doomed      bool  // its handlers refuse it for good
	Tenant      string
}

// Effect is what a handler has written for an event.
type Effect struct {
	Handler string
	Event   ID
	Topic   string
	Item    string
	N       int64
}

// Dead is an event that was given up for a handler.
type Dead struct {
	Handler string
	Event   ID
	Reason  string
}

// State is what the tables have in the end. Effects are in the order in which they happened.
type State struct {
	Rows    []Row
	Effects []Effect
	Dead    []Dead
	// Left is what processes have left behind that were told to stop, and were not killed.
	Left []string
	// Noted is what was seen of the tables in between.
	Noted []Violation
}

// The kinds of violations.
const (
	Lost    = "lost"         // committed, and not seen by a handler
	Phantom = "phantom"      // seen, and not committed
	Order   = "out of order" // of its item
	Double  = "double"       // an effect, or without a fault a call, happened twice
	Overlap = "overlap"      // two handlers had it at once, and none of them was told to let go of it
	Over    = "over a limit" // it began although the limit of its key was reached
	Extra   = "extra"        // called more often than its attempts say
	Left    = "left"         // a process that has ended in order has left something behind
	Back    = "went back"    // a cursor, although no operator has moved it
	Again   = "ended again"  // an event that had an end, or that was still to be handled
	Early   = "early"        // before its time
	Wrong   = "wrong"        // another payload than was written; a wrong answer
	Broken  = "broken"       // the database has not kept its word to a writer
	Died    = "died"         // given up without a reason, or without being refused
)

// Violation is a broken promise.
type Violation struct {
	Kind  string
	Event ID // zero if it is about none
	Text  string
}

// String says all of it.
func (v Violation) String() string {
	if v.Event == (ID{}) {
		return v.Kind + ": " + v.Text
	}
	return fmt.Sprintf("%s: event %s %s", v.Kind, v.Event, v.Text)
}

// Account is what a check has found.
type Account struct {
	Committed, Aborted, Unknown int // events, by the last word of their writers
	Resolved                    int // events with an unknown outcome that were committed
	Calls, Duplicates           int // of handlers that are not Once; calls that returned after another one had
	Effects, Dead, Torn         int
	Leased                      int // calls of handlers that are Leased
	Unsure                      int // of them, began in a process that stood still just before, so nothing is known of its lease
	Told                        int // of them, were told to let go of their event
	Limits                      []Reached
	Violations                  []Violation
}

// Count returns how many violations are of a kind.
func (a *Account) Count(kind string) int {
	n := 0
	for _, v := range a.Violations {
		if v.Kind == kind {
			n++
		}
	}
	return n
}

// seen is what one handler did with an event.
type seen struct {
	starts, open, done, effects uint16
	attempts                    int // the highest number of one
	gone, dead                  bool
}

type event struct {
	said string
	row  *Row
	by   []seen // by the index of the handler in the rules of its topic
}

// key is an item at a handler.
type key struct{ handler, topic, item string }

// last is the latest first call, or effect, of an item at a handler.
type last struct {
	n  int64
	id ID
}

type checker struct {
	Rules
	Account
	events map[ID]*event
	calls  map[key]last
	effect map[key]last
	leases
}

// Check reads a history and compares it with the state of the tables after all that was done has settled.
func Check(history io.Reader, s State, r Rules) (*Account, error) {
	c := &checker{
		Rules: r, events: make(map[ID]*event, len(s.Rows)), calls: make(map[key]last), effect: make(map[key]last), leases: newLeases(),
	}
	for i := range s.Rows {
		row := &s.Rows[i]
		c.of(row.Event).row = row
		c.of(row.Event).by = make([]seen, len(r.Topics[row.Topic]))
	}
	for _, d := range s.Dead {
		c.died(d)
	}
	var err error
	if c.Torn, err = Lines(history, c.line); err != nil {
		return nil, err
	}
	for i := range s.Effects {
		c.effected(&s.Effects[i])
	}
	for id, e := range c.events {
		c.end(id, e)
	}
	c.Violations = append(c.Violations, s.Noted...)
	for _, what := range s.Left {
		c.report(Left, ID{}, "%s", what)
	}
	c.judgeLeases()
	c.judgeLimits()
	slices.SortFunc(c.Violations, func(a, b Violation) int { return cmp.Compare(a.String(), b.String()) })
	return &c.Account, nil
}

func (c *checker) of(id ID) *event {
	e := c.events[id]
	if e == nil {
		e = &event{}
		c.events[id] = e
	}
	return e
}

func (c *checker) report(kind string, id ID, format string, args ...any) {
	c.Violations = append(c.Violations, Violation{kind, id, fmt.Sprintf(format, args...)})
}

// at returns what a handler did with an event that was committed.
func (c *checker) at(e *event, handler string) (*seen, Handler) {
	if e.row == nil {
		return nil, Handler{}
	}
	for i, h := range c.Topics[e.row.Topic] {
		if h.Name == handler {
			return &e.by[i], h
		}
	}
	return nil, Handler{}
}

func (c *checker) died(d Dead) {
	c.Dead++
	e := c.of(d.Event)
	at, _ := c.at(e, d.Handler)
	switch {
	case e.row == nil:
		c.report(Phantom, d.Event, "was given up for %s, but not committed", d.Handler)
	case at == nil:
		c.report(Wrong, d.Event, "was given up for %s, which has nothing to do with it", d.Handler)
	case d.Reason == "":
		c.report(Died, d.Event, "was given up for %s without a reason", d.Handler)
	case !e.row.Doomed:
		c.report(Died, d.Event, "was given up for %s, which would have taken it: %s", d.Handler, d.Reason)
	}
	if at != nil {
		at.dead = true
	}
}

func (c *checker) line(l Line) {
	c.latest[l.Who] = max(c.latest[l.Who], l.At)
	switch l.Kind {
	case Still:
		c.still[l.Who] = append(c.still[l.Who], span{l.At - l.For, l.At + grace})
	case Moved:
		c.moved[l.Handler] = append(c.moved[l.Handler], span{l.At - l.For, l.At + c.Lease.Microseconds()})
	case Tx:
		for _, id := range l.Events {
			c.of(id).said = l.Say
		}
	case Call:
		c.call(&l)
	case Bad:
		c.report(Wrong, l.Event, "%s: %s", l.Who, l.Say)
	case Behind:
		c.report(Left, ID{}, "%s has left a goroutine:\n%s", l.Who, l.Say)
	}
}

func (c *checker) call(l *Line) {
	e := c.of(l.Event)
	if e.row == nil {
		c.report(Phantom, l.Event, "was seen by %s, but not committed: its writer said %q", l.Handler, e.said)
		return
	}
	at, h := c.at(e, l.Handler)
	switch {
	case at == nil:
		c.report(Wrong, l.Event, "of topic %s was seen by %s", e.row.Topic, l.Handler)
		return
	case l.Topic != e.row.Topic || l.Item != e.row.Item || l.N != e.row.N:
		c.report(Wrong, l.Event, "was %s %s %d for %s, not %s %s %d", l.Topic, l.Item, l.N, l.Handler, e.row.Topic, e.row.Item, e.row.N)
		return
	}
	if h.Leased && l.Call > 0 {
		c.leased(l, e.row)
	}
	switch l.Say {
	case Start:
		c.start(l, e.row, at, h)
	case Done:
		c.Calls++
		at.open -= min(at.open, 1)
		at.done++
		if at.done > 1 && !h.Once {
			c.Duplicates++
		}
	case Gone:
		at.gone = true
		fallthrough
	case Fail:
		at.open -= min(at.open, 1)
	}
}

func (c *checker) start(l *Line, row *Row, at *seen, h Handler) {
	if l.At < row.NotBefore {
		c.report(Early, l.Event, "was started by %s %d us before its time", l.Handler, row.NotBefore-l.At)
	}
	if c.Calm && !h.Once && (at.open > 0 || at.done > 0) {
		c.report(Double, l.Event, "was started again by %s, and nothing explains it", l.Handler)
	}
	at.open++
	at.starts++
	at.attempts = max(at.attempts, l.Attempt)
	if at.starts > 1 || !h.Ordered || h.Once {
		return
	}
	k := key{h.Name, row.Topic, row.Item}
	before, ok := c.calls[k]
	switch {
	case !ok:
	case row.N <= before.n:
		c.report(Order, l.Event, "is number %d of %s, and %s saw number %d before", row.N, row.Item, h.Name, before.n)
	default:
		if was, _ := c.at(c.events[before.id], h.Name); was.done == 0 && !was.gone && !was.dead {
			c.report(Order, l.Event, "is number %d of %s, and %s has not done number %d", row.N, row.Item, h.Name, before.n)
		}
	}
	if !ok || row.N > before.n {
		c.calls[k] = last{row.N, l.Event}
	}
}

func (c *checker) effected(f *Effect) {
	c.Effects++
	e := c.of(f.Event)
	if e.row == nil {
		c.report(Phantom, f.Event, "has an effect of %s, but was not committed", f.Handler)
		return
	}
	at, h := c.at(e, f.Handler)
	if at == nil || !h.Once || f.Topic != e.row.Topic || f.Item != e.row.Item || f.N != e.row.N {
		c.report(Wrong, f.Event, "has the effect %s %s %d of %s", f.Topic, f.Item, f.N, f.Handler)
		return
	}
	if at.effects++; at.effects > 1 {
		return // reported in the end
	}
	k := key{h.Name, f.Topic, f.Item}
	if before, ok := c.effect[k]; h.Ordered && ok && f.N <= before.n {
		c.report(Order, f.Event, "is number %d of %s, and %s had the effect of number %d before", f.N, f.Item, h.Name, before.n)
	} else {
		c.effect[k] = last{f.N, f.Event}
	}
}

// end judges an event after everything else.
func (c *checker) end(id ID, e *event) {
	switch e.said {
	case Committed:
		c.Committed++
	case Aborted:
		c.Aborted++
	case Unknown:
		c.Unknown++
	}
	if e.row == nil {
		if e.said == Committed {
			c.report(Broken, id, "was committed, and its row is not there")
		}
		return
	}
	switch e.said {
	case Aborted:
		c.report(Broken, id, "was aborted, and its row is there")
	case Unknown:
		c.Resolved++
	case "":
		c.report(Broken, id, "has a row, and no writer knows it")
	}
	for i, h := range c.Topics[e.row.Topic] {
		at := e.by[i]
		if h.Counted && !e.row.Doomed && int(at.starts) > at.attempts {
			c.report(Extra, id, "was started %d times by %s, and the highest number of an attempt was %d", at.starts, h.Name, at.attempts)
		}
		switch {
		case h.Once && at.effects > 1:
			c.report(Double, id, "has %d effects of %s", at.effects, h.Name)
		case h.Once && at.effects == 0 && !at.dead:
			c.report(Lost, id, "has no effect of %s, which started it %d times", h.Name, at.starts)
		case !h.Once && at.done == 0 && !at.dead:
			c.report(Lost, id, "was not done by %s, which started it %d times", h.Name, at.starts)
		}
	}
}
