package core

import (
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
)

// Task is one claimed event in this process. The shell fills in the first fields before it tells of the claim, and
// those of the result before it reports the task. In between they belong to the core.
type Task struct {
	ID            uuid.UUID
	Topic         string
	Tenant        uuid.NullUUID
	Lane          int32
	Turn          string    // "" means none
	StartWithin   time.Time // its rate allows it to begin until then; zero means at any time
	Attempt       int
	MaxAttempts   int
	Reclaimed     bool      // the lease of an earlier claim ran out
	ClaimDeadline time.Time // of the lease, counted from before the claim was sent
	Bytes         int       // of its payload
	Data          any       // the shell's own; the core does not look at it

	Result errclass.Result // what the handler or the publisher made of it
	Tried  bool            // the handler or the publisher was called
	Began  time.Time       // of the call
	Opened time.Duration   // how long its payload took to be made ready for the call; only of an event with StartWithin
	Late   bool            // its lease was over before it could begin
	Ended  bool            // the run, its batch, or the time in which its rate allows it, was over before it could begin
	Shared bool            // its only calls have failed as a whole, with other events

	// As and After are how a Pass settles it.
	As    Settlement
	After time.Duration // how long after now a release makes it due; 0 keeps the time at which it was due

	// StartBy is when it is too late to begin what was given out.
	StartBy time.Time

	round, order int64 // its place among those that wait for a worker

	to        *Target
	line      *line         // of its destination, if its event says it
	try       *Target       // set if it was claimed to find out whether this target is available again
	wait      time.Duration // until it is due again if its own destination is unavailable; 0 leaves it to the topic
	deadline  time.Time     // of the lease as it was renewed
	unstarted bool          // handed back before it was started
	admitted  bool          // its target rests, and has admitted it as a try
	begun     bool          // given to the workers or a publisher
	lost      bool          // its lease is not renewed any more
	open      bool          // not known to be settled
	finished  bool          // nothing runs any more; it is to be settled
	index     int           // in leases.tasks
}

// isLastAttempt reports whether t is on its last attempt.
func (t *Task) isLastAttempt() bool { return t.Attempt >= t.MaxAttempts }

// notStarted is the result of an event that is released unstarted.
var notStarted = errclass.New(errclass.ClassNotSent, "it was handed back before it was handled")

// Settlement is how a task is settled.
type Settlement int

const (
	// Ack marks it delivered.
	Ack Settlement = iota
	// Nack ends a failed attempt.
	Nack
	// Release hands it back, with its attempt uncounted.
	Release
)

// leases knows every event that is in flight in this process until it is settled.
type leases struct {
	lease    time.Duration
	tasks    []*Task
	renewing bool
	renewAt  time.Time // when to look which leases are to be renewed; counts while there are tasks
}

// margin is how long before its end a lease is given up: two ticks, so that a handler has at least one tick to notice
// that its context is cancelled.
func (l *leases) margin() time.Duration { return l.lease / 5 }

// tick is how often leases are looked at.
func (l *leases) tick() time.Duration { return l.lease / 10 }

func (l *leases) over(t *Task, now time.Time) bool { return t.deadline.Sub(now) <= l.margin() }

// renewable reports whether a third of the lease of t has passed, so that it is renewed if it still runs.
func (l *leases) renewable(t *Task, now time.Time) bool {
	return t.deadline.Sub(now) <= l.lease-l.lease/3
}

func (l *leases) add(now time.Time, t *Task) {
	if len(l.tasks) == 0 {
		l.renewAt = now.Add(l.tick())
	}
	t.deadline, t.index = t.ClaimDeadline, len(l.tasks)
	l.tasks = append(l.tasks, t)
}

// remove forgets a task that is settled, or that there is nothing to settle of.
func (l *leases) remove(t *Task) {
	last := len(l.tasks) - 1
	moved := l.tasks[last]
	l.tasks[t.index], moved.index = moved, t.index
	l.tasks[last] = nil
	l.tasks = l.tasks[:last]
}

// atRisk returns the events in flight whose lease may run out before a statement that begins now is over. It may wait for a
// connection for as long as what is left of a lease that is about to be renewed. They still run or wait to be settled, and
// no claim and no sweep of this process takes them.
func (l *leases) atRisk(now time.Time) (ids []uuid.UUID) {
	for _, t := range l.tasks {
		if t.lost || l.renewable(t, now) {
			ids = append(ids, t.ID)
		}
	}
	return ids
}

// hasLastAttempt reports whether any unfinished task except other is on its last attempt.
func (l *leases) hasLastAttempt(other *Task) bool {
	for _, t := range l.tasks {
		if t != other && !t.finished && t.isLastAttempt() {
			return true
		}
	}
	return false
}

// renew asks for the renewal of the leases of which a third has passed, and gives up those that are over. The end of a
// lease is never later here than in the database.
func (c *Core) renew(now time.Time) {
	l := &c.leases
	if len(l.tasks) == 0 || l.renewing || now.Before(l.renewAt) {
		return
	}
	l.renewAt = now.Add(l.tick())
	c.recall() // what waits for a worker is given out again until a later StartBy
	var due []*Task
	until := now.Add(max(l.lease/5, time.Second)) // then once more, on another connection
	for _, t := range l.tasks {
		switch {
		case t.lost, t.finished:
		case l.over(t, now):
			c.lose(t)
		case l.renewable(t, now):
			due = append(due, t)
			if end := t.deadline.Add(-l.margin()); end.Before(until) {
				until = end
			}
		}
	}
	if len(due) > 0 {
		l.renewing = true
		c.do(&Renew{Tasks: due, Until: until, sent: now})
	}
}

// lose gives up a lease. A handler that runs is cancelled; what was not begun is taken back.
func (c *Core) lose(t *Task) {
	t.lost = true
	c.do(Lost{t})
	c.lapsed = true
}

// onRenewed takes in the outcomes of a renewal.
func (c *Core) onRenewed(now time.Time, e *Renewed) {
	l := &c.leases
	l.renewing = false
	for i, t := range e.Renew.Tasks {
		if t.finished || t.lost || e.Outcomes == nil {
			continue
		}
		switch e.Outcomes[i] {
		case Prolonged:
			t.deadline = e.Renew.sent.Add(l.lease)
		case Gone:
			c.lose(t)
		case Kept: // tried again with the next tick
		}
	}
	if e.Outcomes != nil {
		c.do(SignalRenewed)
	}
}
