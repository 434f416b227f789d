package core

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/machine/rest"
	"github.com/outboxgen/outboxgen/outbox"
)

const (
	// sendSize is how many events one call of a publisher takes.
	sendSize = 1000
	// maxIdle limits how many destinations are known that no event is on its way to.
	maxIdle = 10_000
	// maxNamed limits how many resting destinations are named. Any number of customers may be unreachable.
	maxNamed = 20
)

// Target is where the events of some topics go: a handler, a destination of a broker, or destinations that the events
// say. What it knows of rests outlives a Core; only one Core at a time may use it.
type Target struct {
	Rest    *rest.Target
	ByEvent bool         // each event says where it goes
	Batch   outbox.Batch // its handler gets so many events in one call; a Size of 0 means one event per call

	known  map[string]*line // by destination: those in use, that rest, or whose latest events have failed
	active int              // how many of known are in use
	queue                   // of a destination, of what waits for its destination to be known, or of a batch that fills
	again  []*Task          // for batches, apart: those whose lease had run out
}

// sends reports whether t has a publisher.
func (t *Target) sends() bool { return t.Rest.Kind != rest.Handler }

// queue is what waits for a target.
type queue struct {
	ready    []*Task // claimed, not given out
	inFlight int     // claimed and not reported
	busy     bool    // a call is under way, or tasks are being routed
}

// line has the events in flight for one destination of a target that goes by event. So destinations do not wait for
// each other. The events of one that rests or has stalled are handed back, because a claim cannot leave them out: it
// knows topics, not destinations.
type line struct {
	destination string
	rest        *rest.Target
	queue
}

// reset forgets what a Core has left behind that was given up.
func (t *Target) reset() {
	t.queue, t.active, t.again = queue{}, 0, nil
	for _, n := range t.known {
		n.queue = queue{}
	}
}

// lineOf returns the line of a destination.
func (t *Target) lineOf(destination string) *line {
	if n := t.known[destination]; n != nil {
		return n
	}
	of := t.Rest
	n := &line{destination: destination, rest: &rest.Target{
		Name: of.Broker.Name + ":" + destination, Topics: of.Topics, Kind: rest.Destination, Breaker: of.Breaker,
		Broker: of.Broker, Random: of.Random,
	}}
	if t.known == nil {
		t.known = make(map[string]*line)
	}
	t.known[destination] = n
	return n
}

// addToLine makes tasks wait for a call to the destination of n.
func (c *Core) addToLine(t *Target, n *line, task *Task) {
	if n.inFlight == 0 {
		c.lines = append(c.lines, activeLine{t, n})
		t.active++
	}
	n.inFlight++
	task.line = n
	n.ready = append(n.ready, task)
}

// removeFromLine records that task is not on its way to its destination any more.
func (c *Core) removeFromLine(now time.Time, task *Task) {
	n := task.line
	if n.inFlight--; n.inFlight == 0 {
		i := slices.IndexFunc(c.lines, func(a activeLine) bool { return a.line == n })
		c.lines = slices.Delete(c.lines, i, i+1)
		task.to.active--
		c.forgetUnused(now, task.to, n)
	}
}

// forgetUnused forgets n, which no event is on its way to, unless there is something to remember.
func (c *Core) forgetUnused(now time.Time, t *Target, n *line) {
	if n.rest.IsClean() {
		delete(t.known, n.destination)
	} else if len(t.known)-t.active > maxIdle {
		c.forget(now, t)
	}
}

// forget forgets a tenth of the idle destinations, those first that do not rest.
func (c *Core) forget(now time.Time, t *Target) {
	left := maxIdle / 10
	var notes []rest.Note
	for _, resting := range []bool{false, true} {
		for _, name := range slices.Sorted(maps.Keys(t.known)) {
			n := t.known[name]
			if left == 0 || n.inFlight > 0 || n.rest.Rests() != resting {
				continue
			}
			delete(t.known, name)
			left--
			if resting {
				notes = append(notes, rest.Note{Target: n.rest, Change: rest.Forgotten, Rested: now.Sub(n.rest.Since())})
			}
		}
	}
	c.tellRests(notes)
}

// tellRests tells notes, and claims again when a target is available again that claims have left out.
func (c *Core) tellRests(notes []rest.Note) {
	for i := range notes {
		switch n := &notes[i]; {
		case n.Change == rest.Began:
			c.recall() // some of what waits for a worker may not begin now
		case n.Change == rest.Ended && c.ownTargets[n.Target]:
			c.requestClaim() // earlier claims have left out the events that wait for that target
		}
	}
	if len(notes) > 0 {
		c.do(TellRests{notes})
	}
}

// start makes t wait for its target.
func (c *Core) start(t *Task) {
	c.fair.enter(t)
	switch {
	case t.to.sends():
		t.to.ready = append(t.to.ready, t)
	case t.to.batches():
		t.to.startBatched(t)
	case t.limitedRate():
		c.rated.tasks = append(c.rated.tasks, t)
	case t.Turn != "":
		c.fair.push(t)
	default:
		c.ready = append(c.ready, t)
	}
}

// peekReady returns the task that is handled next; nil if there is none.
func (c *Core) peekReady() *Task {
	if len(c.rated.tasks) > 0 {
		return c.rated.tasks[0]
	}
	if len(c.ready) > 0 && !c.fair.before(c.ready[0]) {
		return c.ready[0]
	}
	return c.fair.first()
}

// nextReady takes the task out that is handled next; nil if there is none.
func (c *Core) nextReady() *Task {
	switch {
	case len(c.rated.tasks) > 0:
		return takeFirst(&c.rated.tasks)
	case len(c.ready) == 0 && len(c.fair.tasks) == 0:
		return nil
	case len(c.ready) == 0 || c.fair.before(c.ready[0]):
		return c.fair.pop()
	}
	return takeFirst(&c.ready)
}

func takeFirst(queue *[]*Task) *Task {
	t := (*queue)[0]
	(*queue)[0], *queue = nil, (*queue)[1:]
	return t
}

// begin reports whether t may begin. It may not if its lease is over, because the process was stopped or starved while
// t waited.
func (c *Core) begin(now time.Time, t *Task, what string) bool {
	if !t.lost && c.leases.over(t, now) {
		c.lose(t)
	}
	if t.lost {
		t.unstarted, t.Result = true, errclass.New(errclass.ClassNotSent, "its lease ran out before it was %s", what)
		c.report(now, t)
		return false
	}
	if t.StartBy = t.deadline.Add(-c.margin()); !t.limitedRate() {
		return true
	}
	if t.expired(now) {
		c.releaseExpired(now, t)
		return false
	}
	if t.StartWithin.Before(t.StartBy) {
		t.StartBy = t.StartWithin
	}
	c.turns.ahead.began(now, c.early(now, t))
	return true
}

// hand gives what is ready to workers and publishers. Some of it waits there for a worker, so that one that is done has
// the next at once.
func (c *Core) hand(now time.Time) {
	for c.running < c.places(now) {
		if len(c.rated.tasks) > 0 {
			// These go before a batch.
		} else if handed, wait := c.handBatch(now); handed {
			continue
		} else if wait {
			break
		}
		t := c.nextReady()
		if t == nil {
			break
		}
		if !c.begin(now, t, "handled") {
			continue
		}
		resting := t.to.Rest.Resting()
		if n, why := t.to.Rest.Admit(now, 1); n == 0 {
			t.Result = why
			c.report(now, t)
			continue
		}
		t.begun, t.admitted, c.rated.latest = true, resting, t.limitedRate()
		c.running++
		c.do(Run{t})
	}
	for _, t := range c.cfg.Targets {
		if t.sends() {
			c.handTo(now, t)
		}
	}
	for i := 0; i < len(c.lines); {
		if n := c.lines[i]; !n.busy && len(n.ready) > 0 {
			c.send(now, &Send{To: n.of, Destination: n.destination, Tasks: n.take(), line: n.line}, &n.queue, n.rest)
		} else {
			i++
		}
	}
}

// handTo gives what waits for t to its publisher.
func (c *Core) handTo(now time.Time, t *Target) {
	for !t.busy && len(t.ready) > 0 {
		tasks := t.take()
		if t.ByEvent {
			t.busy = true
			c.do(&Route{To: t, Tasks: tasks})
		} else {
			c.send(now, &Send{To: t, Tasks: tasks}, &t.queue, t.Rest)
		}
	}
}

// take takes as much out of the queue as fits into one call.
func (q *queue) take() []*Task {
	n := min(len(q.ready), sendSize)
	tasks := q.ready[:n:n]
	if q.ready = q.ready[n:]; len(q.ready) == 0 {
		q.ready = nil
	}
	return tasks
}

// send makes the call s, as far as to takes its events now.
func (c *Core) send(now time.Time, s *Send, q *queue, to *rest.Target) {
	begun := make([]*Task, 0, len(s.Tasks))
	for _, t := range s.Tasks {
		if c.begin(now, t, "published") {
			begun = append(begun, t)
		}
	}
	if len(begun) == 0 {
		return
	}
	resting := to.Resting()
	admitted, why := to.Admit(now, len(begun))
	for _, t := range begun[admitted:] {
		t.Result = why
		if s.line != nil {
			t.wait = to.LaterDelay()
		}
		c.report(now, t)
	}
	if s.Tasks = begun[:admitted]; admitted == 0 {
		return
	}
	for _, t := range s.Tasks {
		t.begun = true
	}
	s.Try, s.began, q.busy = resting, now, true
	to.CallBegins(now)
	c.do(s)
}

// onRouted takes in the destinations of tasks.
func (c *Core) onRouted(now time.Time, e *Routed) {
	to := e.Route.To
	to.busy = false
	for _, d := range e.Destinations {
		n := to.lineOf(d.Destination)
		for _, t := range d.Tasks {
			if c.gone(t) {
				c.releaseUnstarted(now, t)
				continue
			}
			if why, takes := n.rest.Refuses(now); !takes {
				t.Result, t.wait = why, n.rest.LaterDelay()
				c.report(now, t)
				continue
			}
			c.addToLine(to, n, t)
		}
		if n.inFlight == 0 {
			c.forgetUnused(now, to, n)
		}
	}
}

// activeLine is a line that events are on their way to.
type activeLine struct {
	of *Target
	*line
}

// onSent takes in the results of a call.
func (c *Core) onSent(now time.Time, e *Sent) {
	s := e.Send
	q, to := &s.To.queue, s.To.Rest
	if s.line != nil {
		q, to = &s.line.queue, s.line.rest
	}
	q.busy = false
	if stalled, _ := to.Stalled(now); stalled && s.line == nil {
		c.requestClaim() // claims have left out the events that wait for it
	}
	to.CallEnds(s.began)
	ids, results := make([]uuid.UUID, len(e.Tasks)), make([]errclass.Result, len(e.Tasks))
	for i, t := range e.Tasks {
		ids[i], results[i] = t.ID, t.Result
	}
	c.tellRests(to.OnCall(now, s.began, ids, results, e.Cut))
	if s.line != nil {
		to.CallReturned()
	}
	for i := range e.Tasks {
		e.Tasks[i].Result.Class = results[i].Class
	}
	c.shrink(now, e.Tasks)
	for _, t := range e.Tasks {
		if s.line != nil {
			t.wait = max(to.RetryIn(now), time.Millisecond)
		}
		c.report(now, t)
	}
}

// stalled counts the events in flight at publishers whose calls take long. They take no room from the others, and no
// more events are claimed for them.
func (c *Core) stalled(now time.Time) (n int) {
	for _, t := range c.cfg.Targets {
		if is, _ := t.Rest.Stalled(now); is {
			n += t.inFlight
		}
	}
	for _, each := range c.lines {
		if is, _ := each.rest.Stalled(now); is {
			n += each.inFlight
		}
	}
	return n
}

// nextOfTargets returns when the next resting target is to be tried, or the next call stalls; zero if there is nothing
// to wait for.
func (c *Core) nextOfTargets(now time.Time) (next time.Time) {
	for _, t := range c.cfg.Targets {
		next = earlier(next, t.Rest.Next(now))
	}
	for _, n := range c.lines {
		if stalled, at := n.rest.Stalled(now); !stalled {
			next = earlier(next, at)
		}
	}
	return next
}

// tryable returns a resting target for which one event should be tried now, or nil. There is none while claims are
// paused. Targets of a broker that rests come in turn, because the first may have no event.
func (c *Core) tryable(now time.Time) *Target {
	if c.claimsPaused(now) {
		return nil
	}
	for i := range c.cfg.Topics {
		if t := &c.cfg.Topics[i]; c.mayTry(t) && t.Target.Rest.Tryable(now) {
			return t.Target
		}
	}
	return nil
}

// mayTry reports whether the target of a topic rests, and was not found without an event since another of its broker was
// tried.
func (c *Core) mayTry(t *Topic) bool {
	return t.Target.Rest.Resting() && !c.pauses.Topic(t.Name) && !c.without[t.Target]
}

// onTried takes in the claim of a try. If there was no event for the target, and its broker rests, the other targets of the
// broker are tried at once: only when none of them has an event the next try waits.
func (c *Core) onTried(now time.Time, t *Target, e *PassDone) {
	broker := t.Rest.Broker
	others := func(u *Target) bool { return broker != nil && u.Rest.Broker == broker }
	if len(e.Claimed) == 0 && e.Err == nil && !t.Rest.IsAway() {
		if c.without[t] = true; slices.ContainsFunc(c.cfg.Topics, func(o Topic) bool { return others(o.Target) && c.mayTry(&o) }) {
			t.Rest.OnTry(now, true)
			return
		}
	}
	maps.DeleteFunc(c.without, func(u *Target, _ bool) bool { return u == t || others(u) })
	if len(e.Claimed) == 0 {
		t.Rest.OnTry(now, false)
	}
}

// Reasons returns why each of targets that is unavailable rests. Of destinations that events say, the first few are
// named.
func Reasons(targets []*Target) map[string]string {
	reasons := make(map[string]string)
	for _, t := range targets {
		if why := t.Rest.Why(); why.Class == errclass.ClassUnavailable {
			reasons[t.Rest.Name] = why.Text
		}
		names := t.restingLines()
		for _, name := range names[:min(len(names), maxNamed)] {
			reasons[t.known[name].rest.Name] = t.known[name].rest.Why().Text
		}
		if more := len(names) - maxNamed; more > 0 {
			reasons[t.Rest.Name] = fmt.Sprintf("%d more destinations rest", more)
		}
	}
	return reasons
}

// Resting names those of targets that are unavailable.
func Resting(targets []*Target) (names []string) {
	for _, t := range targets {
		if t.Rest.Resting() {
			names = append(names, t.Rest.Name)
		}
		lines := t.restingLines()
		for _, name := range lines[:min(len(lines), maxNamed)] {
			names = append(names, t.known[name].rest.Name)
		}
		if more := len(lines) - maxNamed; more > 0 {
			names = append(names, fmt.Sprintf("%s (%d more)", t.Rest.Name, more))
		}
	}
	return names
}

// restingLines returns the destinations of t that rest by themselves, sorted by their names.
func (t *Target) restingLines() (names []string) {
	for name, n := range t.known {
		if n.rest.Rests() {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, strings.Compare)
	return names
}
