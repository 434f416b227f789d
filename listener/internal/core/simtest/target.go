package simtest

import (
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
)

// target is a target as a process knows it.
type target struct {
	w        *world
	number   int       // of the target in the world
	rests    bool      // it was found unavailable
	until    time.Time // nothing is tried before
	trying   bool      // an event finds out whether it is available again
	returned bool      // it is available again, and the events that wait for it are due
}

// pause is the time between two tries of a target.
const pause = 50 * time.Millisecond

func (t *target) Resting() bool { return t.rests }

func (t *target) Why() errclass.Result {
	return errclass.Result{Class: errclass.ClassUnavailable, Text: "away"}
}

func (t *target) Admit(now time.Time, n int) (int, errclass.Result) {
	switch {
	case !t.rests:
		return n, errclass.Result{}
	case t.trying || now.Before(t.until):
		return 0, t.Why()
	}
	t.trying = true
	return min(n, 1), t.Why()
}

func (t *target) Untried() { t.trying = t.w.lacks("untried") }

func (t *target) RetryIn(now time.Time) time.Duration { return max(t.until.Sub(now), 0) }
func (t *target) LaterDelay() time.Duration           { return 2 * pause }

func (t *target) TakeReturned() bool {
	is := t.returned && !t.rests
	t.returned = t.returned && !is
	return is
}

func (t *target) RestoreReturned() { t.returned = true }
func (t *target) Abandon()         {}

func (t *target) TakeLateResult(uuid.UUID) (r errclass.Result, is bool) { return r, false }

// call is the result of a call of the target, which is away now or not.
func (t *target) call() (r errclass.Result) {
	t.trying = false
	if t.w.now.Before(t.w.away[t.number]) {
		t.rests, t.until = true, t.w.now.Add(pause)
		return t.Why()
	}
	t.returned = t.returned || t.rests
	t.rests = false
	return r
}
