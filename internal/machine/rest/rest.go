// Package rest decides when a target that is unavailable is tried again: the handler of a topic, a destination of a
// broker, or a whole broker. It is a value that takes the time: it reads no clock, and only one goroutine at a time may
// use the targets of one dispatcher or listener.
package rest

import (
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/call/backoff"
	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/outbox"
)

const (
	// unwantedPause is the pause of a topic whose handler is not written: nothing changes before the next deployment.
	unwantedPause = 30 * time.Second
	// longestHint limits the pause that a target requests by RetryAfter.
	longestHint = 5 * time.Minute
	// StallAfter is how long a call of a Publisher may take before its destination is given no more events until it
	// returns.
	StallAfter = 200 * time.Millisecond
	// maxLateResults limits how many results are kept. Events of shards that another process has taken over are not
	// read again here.
	maxLateResults = 10_000
)

// Kind is what a target is.
type Kind int

const (
	// Handler is the user's code for a topic.
	Handler Kind = iota
	// Destination is a topic or subject of a broker.
	Destination
	// Broker is what destinations have in common.
	Broker
)

// Target knows whether a target is available, and when it is tried again if it is not.
type Target struct {
	Name    string   // for logs: "jobs/mail", "kafka:orders" or "kafka"
	Topics  []string // the topics of its events
	Kind    Kind
	Breaker outbox.Breaker
	Broker  *Target // of a destination
	// Random spreads the pauses.
	Random backoff.Random
	// Destinations are those of a broker.
	Destinations []*Target
	// ReturnPending: the events that wait for it in the database may be tried as soon as it answers.
	ReturnPending bool

	since        time.Time // when its rest began; zero if it does not rest
	until        time.Time // no event is tried before
	tries        int       // how often in a row it was found unavailable
	cause        errclass.Result
	trying       bool                          // an event is being tried to find out whether it is available again
	tryRequested bool                          // such an event is being claimed, or waits for a worker
	failedInRow  []uuid.UUID                   // different events that failed in a row
	handedBack   int                           // events that were not charged in this rest
	answered     bool                          // it has answered since its rest began
	undelivered  bool                          // its rest is over, and no event has been delivered since
	callsBegan   []time.Time                   // when the publisher's calls under way began, the oldest first
	pendingCalls int                           // how many calls have outlived their lease of a listener
	lateResults  map[uuid.UUID]errclass.Result // of such calls, until their events are read again
}

// Change is what a Note tells.
type Change int

const (
	// Began: a rest has begun.
	Began Change = iota
	// Ended: a rest is over.
	Ended
	// Delivers: an event was delivered, for the first time since a rest ended without a delivery.
	Delivers
	// Forgotten: too many targets rest, and nothing is known of this one any more.
	Forgotten
)

// Note tells of a change of a target, for logs and observers.
type Note struct {
	Target     *Target
	Change     Change
	Result     errclass.Result // what has caused it
	Rested     time.Duration   // of Ended
	Tries      int             // of Ended
	HandedBack int             // of Ended
}

// withBroker returns t and its broker, the broker first.
func (t *Target) withBroker() [2]*Target { return [2]*Target{t.Broker, t} }

// Rests reports whether t itself rests, whatever its broker does.
func (t *Target) Rests() bool { return !t.since.IsZero() }

// Since returns when the rest of t itself began.
func (t *Target) Since() time.Time { return t.since }

// IsAway reports whether t itself is given no events.
func (t *Target) IsAway() bool { return t.Rests() || t.pendingCalls > 0 }

// Resting reports whether t or its broker is unavailable.
func (t *Target) Resting() bool { return t.IsAway() || t.Broker != nil && t.Broker.IsAway() }

// IsClean reports whether t is like a new one.
func (t *Target) IsClean() bool { return t.since.IsZero() && len(t.failedInRow) == 0 && !t.undelivered }

// Why returns the result of an event that is handed back because t rests; the zero Result if t does not rest.
func (t *Target) Why() errclass.Result {
	for _, each := range t.withBroker() {
		switch {
		case each == nil:
		case each.Rests():
			return each.cause
		case each.pendingCalls > 0:
			return t.waitsForCall()
		}
	}
	return errclass.Result{}
}

// waitsForCall is the result of an event that waits for a call which has outlived its lease.
func (t *Target) waitsForCall() errclass.Result {
	return errclass.New(errclass.ClassUnavailable, "a call of the publisher to %s has not returned yet", t.Name)
}

// Left returns how long it takes until the next event is tried; 0 if t does not rest.
func (t *Target) Left(now time.Time) (left time.Duration) {
	for _, each := range t.withBroker() {
		if each != nil && each.Rests() {
			left = max(left, each.until.Sub(now))
		}
	}
	return left
}

// RetryIn is how long it takes until any process may try a tried event again. It is at most MaxPause, even if the rest
// in this process is longer: a process that has just started may find the target available.
func (t *Target) RetryIn(now time.Time) time.Duration { return min(t.Left(now), t.Breaker.MaxPause) }

// Admit returns how many of n events may be tried now: all, none, or one that finds out whether t is available again.
// others is the result of the other events, which is of class ClassUnavailable. The results of the admitted events must
// be passed to OnResults.
func (t *Target) Admit(now time.Time, n int) (admitted int, others errclass.Result) {
	brokerTried := false // this is a try of the broker
	for _, each := range t.withBroker() {
		switch {
		case each == nil:
		case each.pendingCalls > 0: // an event must not overtake what that call has sent
			n, others = 0, t.waitsForCall()
		case !each.Rests():
		case each.trying || now.Before(each.until):
			n, others = 0, each.cause
		default:
			each.trying, n, others = true, min(n, 1), each.cause
			brokerTried = each != t
		}
		if n == 0 {
			if brokerTried { // the event that the broker has admitted is not tried
				t.Broker.trying = false
			}
			break
		}
	}
	return n, others
}

// Untried records that an event which Admit has admitted was not tried.
func (t *Target) Untried() {
	for _, each := range t.withBroker() {
		if each != nil {
			each.trying = false
		}
	}
}

// Tryable reports whether t rests and it is time to claim one event as a try.
func (t *Target) Tryable(now time.Time) bool {
	if !t.Resting() || t.Left(now) > 0 {
		return false
	}
	for _, each := range t.withBroker() {
		if each != nil && (each.trying || each.tryRequested) {
			return false
		}
	}
	return true
}

// RequestTry records that one event is being claimed as a try. OnTry must be called if there was no event, or when its
// result is known. Until then there is no other try, however long the workers are busy with other events.
func (t *Target) RequestTry() {
	for _, each := range t.withBroker() {
		if each != nil {
			each.tryRequested = each.Rests()
		}
	}
}

// OnTry ends a try that RequestTry began. If any is false, there was no event to try, and the next try waits as after a
// failure.
func (t *Target) OnTry(now time.Time, any bool) {
	for _, each := range t.withBroker() {
		if each == nil {
			continue
		}
		if each.tryRequested && !any {
			each.until = now.Add(each.pause())
		}
		each.tryRequested = false
	}
}

// pause returns the next pause.
func (t *Target) pause() time.Duration {
	pause := t.Random.Delay(t.Breaker.FirstPause, t.Breaker.MaxPause, t.tries)
	if t.cause.Unwanted {
		pause = max(pause, unwantedPause)
	}
	if t.cause.After != nil {
		pause = max(pause, min(*t.cause.After, longestHint))
	}
	return pause
}

// OnCall is OnResults after a call of a publisher. If cut is set, the context of the call was over when it returned.
// That a call was cut short says nothing about the target, but what may have been sent is an attempt.
func (t *Target) OnCall(now, began time.Time, ids []uuid.UUID, results []errclass.Result, cut bool) []Note {
	if !cut || t.Rests() {
		return t.OnResults(now, began, ids, results)
	}
	judged := slices.Clone(results)
	for i := range judged {
		if judged[i].Class == errclass.ClassFailed {
			judged[i].Class = errclass.ClassNotSent
		}
	}
	return t.OnResults(now, began, ids, judged)
}

// OnResults updates t from the results of events that were tried from began on. It changes the class of a failure that
// belongs to an outage to ClassUnavailable in results.
func (t *Target) OnResults(now, began time.Time, ids []uuid.UUID, results []errclass.Result) (notes []Note) {
	if t.Kind == Handler {
		for i := range results { // a handler has no earlier event, and does not send
			if results[i].Class == errclass.ClassNotSent {
				results[i].Class = errclass.ClassUnavailable
			}
		}
	}
	if t.Broker != nil {
		notes = t.Broker.update(now, began, nil, results)
		if t.Broker.ReturnPending { // events of its destinations have waited for it
			t.Broker.ReturnPending = false
			for _, each := range t.Broker.Destinations {
				each.RestoreReturned()
			}
		}
	}
	return append(notes, t.update(now, began, ids, results)...)
}

// update does the work of OnResults for t alone.
func (t *Target) update(now, began time.Time, ids []uuid.UUID, results []errclass.Result) (notes []Note) {
	tried := t.trying
	t.trying = false
	var away *errclass.Result
	for i := range results {
		r := &results[i]
		switch t.judge(r) {
		case unavailable:
			away = r
		case failed:
			if t.failsTooOften(ids[i]) {
				away, t.failedInRow = r, nil
			}
		case answered:
			away, t.failedInRow, t.answered = nil, nil, true
			notes = append(notes, t.endRest(now, began, r)...)
		}
	}
	switch {
	case away != nil:
		notes = append(notes, t.startRest(now, *away)...)
	case tried && t.Rests() && len(results) > 0: // the try had no result: the next one waits as long again
		t.until = now.Add(t.pause())
	}
	if t.Rests() && t.Kind != Broker {
		t.handBack(results)
	}
	return notes
}

// verdict is what the result of an event says about a target.
type verdict int

const (
	nothing verdict = iota
	unavailable
	failed // perhaps because the target is unavailable
	answered
)

// judge returns what r says about t.
func (t *Target) judge(r *errclass.Result) verdict {
	switch {
	case r.Class == errclass.ClassNotSent:
		return nothing
	case r.Class == errclass.ClassUnavailable && (t.Kind == Handler || r.Broker == (t.Kind == Broker)):
		return unavailable
	case r.Class == errclass.ClassUnavailable && t.Kind != Broker:
		return nothing // a failure of the broker says nothing about a destination
	case r.Class == errclass.ClassFailed && t.breaks():
		return failed
	}
	return answered
}

// failsTooOften adds an event to those that failed in a row, and reports whether that is an outage of t.
func (t *Target) failsTooOften(id uuid.UUID) bool {
	if !slices.Contains(t.failedInRow, id) {
		t.failedInRow = append(t.failedInRow, id)
	}
	return t.Rests() || len(t.failedInRow) >= t.Breaker.Failures
}

// handBack changes the class of the failures that belong to the outage of t, and counts the events that are not
// charged.
func (t *Target) handBack(results []errclass.Result) {
	for i := range results {
		r := &results[i]
		if r.Class == errclass.ClassFailed && t.breaks() {
			r.Class = errclass.ClassUnavailable
		}
		if r.Class == errclass.ClassUnavailable {
			t.handedBack++
		}
	}
}

// breaks reports whether ordinary failures in a row are an outage of t.
func (t *Target) breaks() bool { return t.Kind == Destination && t.Breaker.Failures > 0 }

// startRest begins or prolongs a rest.
func (t *Target) startRest(now time.Time, cause errclass.Result) []Note {
	if t.Rests() && now.Before(t.until) {
		return nil // one of several that were under way when it began
	}
	cause.Class = errclass.ClassUnavailable
	t.cause = cause
	t.tries++
	t.until = now.Add(t.pause())
	if t.Rests() {
		return nil
	}
	t.since, t.answered, t.undelivered = now, false, false
	return []Note{{Target: t, Change: Began, Result: cause}}
}

// endRest ends a rest if it began before began, which is the start of an attempt that was answered with r. Delivers is
// told when an event was delivered.
func (t *Target) endRest(now, began time.Time, r *errclass.Result) []Note {
	delivered := r.Class == errclass.ClassDone
	if delivered && !t.Rests() && t.undelivered {
		t.undelivered = false
		return []Note{{Target: t, Change: Delivers, Result: *r}}
	}
	if !t.Rests() || began.Before(t.since) {
		return nil
	}
	note := Note{Target: t, Change: Ended, Result: *r, Rested: now.Sub(t.since), Tries: t.tries, HandedBack: t.handedBack}
	t.since, t.until, t.tries, t.cause = time.Time{}, time.Time{}, 0, errclass.Result{}
	t.failedInRow, t.handedBack = nil, 0
	t.undelivered = !delivered
	t.ReturnPending = true
	return []Note{note}
}

// TakeReturned reports, once, that t is available again or has answered for the first time: the events that wait for it
// in the database may be tried. Another process may have left them there.
func (t *Target) TakeReturned() bool {
	is := t.ReturnPending && t.answered && !t.IsAway()
	t.ReturnPending = t.ReturnPending && !is
	return is
}

// RestoreReturned makes TakeReturned report it once more.
func (t *Target) RestoreReturned() {
	t.ReturnPending = true
	t.CallReturned()
}

// CallReturned records that a call to t has returned. Delays of events that it did not take begin small again, unless t
// rests.
func (t *Target) CallReturned() {
	if !t.Rests() {
		t.handedBack = 0
	}
}

// LaterDelay is how long an event waits that is not the next one to try t. It grows with the number of such events, so
// that they cost the others little. The wait ends when t is available again.
func (t *Target) LaterDelay() time.Duration {
	t.handedBack++
	return min(max(time.Duration(t.handedBack)*5*time.Millisecond, 2*t.Breaker.MaxPause), time.Minute)
}

// Refuses returns the result of an event that t does not take now, because it rests or a call has stalled. The event is
// to come back after LaterDelay. takes reports that t takes it.
func (t *Target) Refuses(now time.Time) (why errclass.Result, takes bool) {
	if is, _ := t.Stalled(now); is {
		return errclass.New(errclass.ClassUnavailable, "a call of the publisher to %s takes long", t.Name), false
	}
	if t.Resting() && t.Left(now) > 0 {
		return t.Why(), false
	}
	return errclass.Result{}, true
}

// Abandon records that a lease ends before the call under way has returned. Until the call returns, nothing else is
// sent.
func (t *Target) Abandon() { t.pendingCalls++ }

// IsAbandoned reports whether a call has outlived its lease and has not returned.
func (t *Target) IsAbandoned() bool { return t.pendingCalls > 0 }

// KeepLateResults keeps the results of a call that has outlived its lease, until their events are read again.
func (t *Target) KeepLateResults(ids []uuid.UUID, results []errclass.Result) {
	t.pendingCalls--
	t.answered = true
	t.RestoreReturned()
	if t.lateResults == nil || len(t.lateResults) > maxLateResults {
		t.lateResults = make(map[uuid.UUID]errclass.Result)
	}
	for i, id := range ids {
		t.lateResults[id] = results[i]
	}
}

// TakeLateResult returns the result of an event whose call has outlived its lease, if the call has returned since.
func (t *Target) TakeLateResult(id uuid.UUID) (r errclass.Result, is bool) {
	if len(t.lateResults) == 0 { // nearly always
		return r, false
	}
	r, is = t.lateResults[id]
	delete(t.lateResults, id)
	return r, is
}

// Stalled reports whether a call of t's publisher takes longer than StallAfter. If not, at is when it will have taken
// that long; zero if there is no call.
func (t *Target) Stalled(now time.Time) (is bool, at time.Time) {
	if len(t.callsBegan) == 0 {
		return false, time.Time{}
	}
	at = t.callsBegan[0].Add(StallAfter)
	return !now.Before(at), at
}

// CallBegins records that a call of t's publisher begins. Each shard of a listener may have one.
func (t *Target) CallBegins(began time.Time) { t.callsBegan = append(t.callsBegan, began) }

// CallEnds records that the call which began then is over.
func (t *Target) CallEnds(began time.Time) {
	if i := slices.Index(t.callsBegan, began); i >= 0 {
		t.callsBegan = slices.Delete(t.callsBegan, i, i+1)
	}
}

// Next returns when t is to be tried next, or when its next call stalls; zero if there is nothing to wait for.
func (t *Target) Next(now time.Time) time.Time {
	if at := now.Add(t.Left(now)); t.Resting() && at.After(now) {
		return at
	}
	if stalled, at := t.Stalled(now); !stalled {
		return at
	}
	return time.Time{}
}
