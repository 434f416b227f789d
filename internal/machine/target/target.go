package target

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/call/backoff"
	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/machine/report"
	"github.com/outboxgen/outboxgen/internal/machine/testsignal"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

const (
	// unwantedPause is the pause of a topic whose handler is not written: nothing changes before the next deployment.
	unwantedPause = 30 * time.Second
	// longestHint limits the pause that a target requests by RetryAfter.
	longestHint = 5 * time.Minute
)

// Target is where events go: the handler of a topic, a destination of a broker, or a broker. It keeps track of whether
// that is available. It may be used from any number of goroutines.
type Target struct {
	Name         string            // for logs: "jobs/mail", "kafka:orders" or "kafka"
	Publisher    publish.Publisher // of a destination
	ByEvent      *ByEvent          // nil unless each event says where it goes
	broker       *Target           // of a destination
	destinations []*Target         // by a broker: its destinations
	breaker      outbox.Breaker
	log          *slog.Logger
	hooks        *report.Hooks

	mu           sync.Mutex
	Topics       []string  // the topics of its events
	since        time.Time // when its rest began; zero if it does not rest
	until        time.Time // no event is tried before
	tries        int       // how often in a row it was found unavailable
	cause        errclass.Result
	trying       bool              // an event is being tried to find out whether it is available again
	tryRequested bool              // such an event is being claimed, or waits for a worker
	failedInRow  []uuid.UUID       // different events that failed in a row
	handedBack   int               // events that were not charged in this rest
	away         *atomic.Int32     // how many targets of the dispatcher or listener rest
	returns      *atomic.Int64     // how often one of them became available again
	changed      testsignal.Signal // tells that what rests has changed
	// the events that wait for it in the database may be tried as soon as it answers
	returnPending bool
	answered      bool                          // it has answered since its rest began
	undelivered   bool                          // its rest is over, and no event has been delivered since
	callsBegan    []time.Time                   // when the publisher's calls under way began, the oldest first
	pendingCalls  int                           // how many calls have outlived their lease of a listener
	lateResults   map[uuid.UUID]errclass.Result // of such calls, until their events are read again
}

// withBroker returns t and its broker, the broker first.
func (t *Target) withBroker() []*Target {
	if t.broker != nil {
		return []*Target{t.broker, t}
	}
	return []*Target{t}
}

// Resting reports whether t or its broker is unavailable.
func (t *Target) Resting() bool { return t.Why().Class == errclass.ClassUnavailable }

// Why returns the result of an event that is handed back because t rests; the zero Result if t does not rest.
func (t *Target) Why() (because errclass.Result) {
	for _, each := range t.withBroker() {
		each.mu.Lock()
		switch {
		case because.Class != errclass.ClassDone:
		case !each.since.IsZero():
			because = each.cause
		case each.pendingCalls > 0:
			because = t.waitsForCall()
		}
		each.mu.Unlock()
	}
	return because
}

// left returns how long it takes until the next event is tried; 0 if t does not rest.
func (t *Target) left() (left time.Duration) {
	for _, each := range t.withBroker() {
		each.mu.Lock()
		if !each.since.IsZero() {
			left = max(left, time.Until(each.until))
		}
		each.mu.Unlock()
	}
	return left
}

// RetryIn is how long it takes until any process may try a tried event again. It is at most MaxPause, even if the rest
// in this process is longer: a process that has just started may find the target available.
func (t *Target) RetryIn() time.Duration { return min(t.left(), t.breaker.MaxPause) }

// Admit returns how many of n events may be tried now: all, none, or one that finds out whether t is available again.
// others is the result of the other events, which is of class ClassUnavailable. The results of the admitted events must
// be passed to OnResults.
func (t *Target) Admit(n int) (admitted int, others errclass.Result) {
	var first *Target // the broker, if this is a try of it
	for _, each := range t.withBroker() {
		each.mu.Lock()
		switch {
		case each.pendingCalls > 0: // an event must not overtake what that call has sent
			n, others = 0, t.waitsForCall()
		case each.since.IsZero():
		case each.trying || time.Now().Before(each.until):
			n, others = 0, each.cause
		default:
			each.trying, n, others = true, min(n, 1), each.cause
			if each != t {
				first = each
			}
		}
		each.mu.Unlock()
		if n == 0 {
			if first != nil { // the event that the broker has admitted is not tried
				first.mu.Lock()
				first.trying = false
				first.mu.Unlock()
			}
			break
		}
	}
	return n, others
}

// waitsForCall is the result of an event that waits for a call which has outlived its lease.
func (t *Target) waitsForCall() errclass.Result {
	return errclass.New(errclass.ClassUnavailable, "a call of the publisher to %s has not returned yet", t.Name)
}

// Tryable reports whether t rests and it is time to claim one event as a try.
func (t *Target) Tryable() bool {
	if !t.Resting() || t.left() > 0 {
		return false
	}
	for _, each := range t.withBroker() {
		each.mu.Lock()
		busy := each.trying || each.tryRequested
		each.mu.Unlock()
		if busy {
			return false
		}
	}
	return true
}

// RequestTry records that one event is being claimed as a try. OnTry must be called if there was no event, or when its
// result is known. Until then there is no other try, however long the workers are busy with other events.
func (t *Target) RequestTry() {
	for _, each := range t.withBroker() {
		each.mu.Lock()
		each.tryRequested = !each.since.IsZero()
		each.mu.Unlock()
	}
}

// OnTry ends a try that RequestTry began. If any is false, there was no event to try, and the next try waits as after a
// failure.
func (t *Target) OnTry(any bool) {
	for _, each := range t.withBroker() {
		each.mu.Lock()
		if each.tryRequested && !any {
			each.until = time.Now().Add(each.pause())
		}
		each.tryRequested = false
		each.mu.Unlock()
	}
}

// pause returns the next pause. The caller holds t.mu.
func (t *Target) pause() time.Duration {
	pause := backoff.Delay(t.breaker.FirstPause, t.breaker.MaxPause, t.tries)
	if t.cause.Unwanted {
		pause = max(pause, unwantedPause)
	}
	if t.cause.After != nil {
		pause = max(pause, min(*t.cause.After, longestHint))
	}
	return pause
}

// OnResults updates t from the results of events that were tried from began on. It changes the class of a failure that
// belongs to an outage to ClassUnavailable in results.
func (t *Target) OnResults(began time.Time, ids []uuid.UUID, results []errclass.Result) {
	if t.Publisher == nil {
		for i := range results { // a handler has no earlier event, and does not send
			if results[i].Class == errclass.ClassNotSent {
				results[i].Class = errclass.ClassUnavailable
			}
		}
	}
	var logs []func()
	if t.broker != nil {
		t.broker.mu.Lock()
		logs = t.broker.update(began, nil, results)
		returned := t.broker.returnPending
		t.broker.returnPending = false
		t.broker.mu.Unlock()
		if returned { // events of its destinations have waited for it
			for _, each := range t.broker.destinations {
				each.RestoreReturned()
			}
		}
	}
	t.mu.Lock()
	logs = append(logs, t.update(began, ids, results)...)
	t.mu.Unlock()
	for _, line := range logs { // a logger may be slow
		line()
	}
}

// update does the work of OnResults and returns what is to be logged. For a broker, ids is nil. The caller holds t.mu.
func (t *Target) update(began time.Time, ids []uuid.UUID, results []errclass.Result) (logs []func()) {
	tried := t.trying
	t.trying = false
	isBroker, hasHandler := ids == nil, t.Publisher == nil && ids != nil
	var away *errclass.Result
	for i := range results {
		r := &results[i]
		switch {
		case r.Class == errclass.ClassNotSent:
		case r.Class == errclass.ClassUnavailable && (hasHandler || r.Broker == isBroker):
			away = r
		case r.Class == errclass.ClassUnavailable && !isBroker: // a failure of the broker says nothing about a destination
		case r.Class == errclass.ClassFailed && !isBroker && !hasHandler && t.breaker.Failures > 0:
			if !slices.Contains(t.failedInRow, ids[i]) {
				t.failedInRow = append(t.failedInRow, ids[i])
			}
			if !t.since.IsZero() || len(t.failedInRow) >= t.breaker.Failures {
				away, t.failedInRow = r, nil
			}
		default: // it answered
			away, t.failedInRow, t.answered = nil, nil, true
			logs = append(logs, t.endRest(began, r, isBroker)...)
		}
	}
	switch {
	case away != nil:
		logs = append(logs, t.startRest(*away)...)
	case tried && !t.since.IsZero() && len(results) > 0: // the try had no result: the next one waits as long again
		t.until = time.Now().Add(t.pause())
	}
	if t.since.IsZero() || isBroker {
		return logs
	}
	for i := range results {
		r := &results[i]
		if r.Class == errclass.ClassFailed && !hasHandler && t.breaker.Failures > 0 {
			r.Class = errclass.ClassUnavailable
		}
		if r.Class == errclass.ClassUnavailable {
			t.handedBack++
		}
	}
	return logs
}

// startRest begins or prolongs a rest. The caller holds t.mu.
func (t *Target) startRest(cause errclass.Result) (logs []func()) {
	now := time.Now()
	if !t.since.IsZero() && now.Before(t.until) {
		return nil // one of several that were under way when it began
	}
	cause.Class = errclass.ClassUnavailable
	t.cause = cause
	t.tries++
	t.until = now.Add(t.pause())
	if !t.since.IsZero() {
		return nil
	}
	if t.since, t.answered, t.undelivered = now, false, false; t.pendingCalls == 0 {
		t.away.Add(1)
	}
	t.changed.Emit()
	level, text := slog.LevelWarn, "resting: the target is unavailable, its events wait and no attempt is charged"
	if cause.Unwanted {
		level, text = slog.LevelError, "resting: no handler is written, the events wait and no attempt is charged"
	}
	attrs := []any{"target", t.Name, "topics", strings.Join(t.Topics, ","), "error", cause.Text}
	return []func(){func() {
		t.log.Log(context.Background(), level, text, attrs...)
		t.hooks.Resting(t.Name, cause.Text)
	}}
}

// endRest ends a rest if it began before began, which is the start of an attempt that was answered with r. The log says
// that events are delivered again when one was. The caller holds t.mu.
func (t *Target) endRest(began time.Time, r *errclass.Result, isBroker bool) (logs []func()) {
	delivered := r.Class == errclass.ClassDone
	if delivered && t.since.IsZero() && t.undelivered {
		t.undelivered = false
		return []func(){func() { t.log.Info("back: events are delivered again", "target", t.Name) }}
	}
	if t.since.IsZero() || began.Before(t.since) {
		return nil
	}
	rested := time.Since(t.since)
	attrs := []any{
		"target", t.Name, "rested", rested.Round(time.Millisecond), "tries", t.tries, "handed_back", t.handedBack,
	}
	t.since, t.until, t.tries = time.Time{}, time.Time{}, 0
	t.cause, t.failedInRow, t.handedBack = errclass.Result{}, nil, 0
	t.undelivered = !delivered
	t.returns.Add(1)
	t.changed.Emit()
	if t.returnPending = true; t.pendingCalls == 0 {
		t.away.Add(-1)
	}
	if !delivered {
		attrs = append(attrs, "error", r.Text)
	}
	// a refused event says nothing about the broker's other destinations
	refused := r.Class == errclass.ClassRefused && !isBroker
	return []func(){func() {
		switch {
		case delivered:
			t.log.Info("back: events are delivered again", attrs...)
		case refused:
			t.log.Warn("rest is over: the target refuses an event permanently, and it becomes a dead letter", attrs...)
		default:
			t.log.Info("rest is over: the target answers, and no event has been delivered yet", attrs...)
		}
		t.hooks.Resumed(t.Name, rested)
	}}
}

// TakeReturned reports, once, that t is available again or has answered for the first time: the events that wait for it
// in the database may be tried. Another process may have left them there.
func (t *Target) TakeReturned() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	is := t.returnPending && t.answered && t.since.IsZero() && t.pendingCalls == 0
	t.returnPending = t.returnPending && !is
	return is
}

// RestoreReturned makes TakeReturned report it once more.
func (t *Target) RestoreReturned() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.returnPending = true
	if t.since.IsZero() {
		t.handedBack = 0
	}
}

// LaterDelay is how long an event waits that is not the next one to try t. It grows with the number of such events, so
// that they cost the others little. The wait ends when t is available again.
func (t *Target) LaterDelay() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.handedBack++
	return min(max(time.Duration(t.handedBack)*5*time.Millisecond, 2*t.breaker.MaxPause), time.Minute)
}

// KeyPrefix is the prefix of keys of events that are published to t: destinations do not wait for each other.
func (t *Target) KeyPrefix() string { return t.Name + " " }

// TopicsOf returns the topics that go to any of all.
func TopicsOf(all []*Target) (topics []string) {
	for _, t := range all {
		topics = append(topics, t.Topics...)
	}
	return topics
}

// StallAfter is how long a call of a Publisher may take before its destination is given no more events until it
// returns.
const StallAfter = 200 * time.Millisecond

// Abandon records that a lease ends before the call under way has returned. Until the call returns, nothing else is
// sent.
func (t *Target) Abandon() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pendingCalls++; t.pendingCalls == 1 && t.since.IsZero() {
		t.away.Add(1)
	}
}

// KeepLateResults keeps the results of a call that has outlived its lease, until their events are read again.
func (t *Target) KeepLateResults(ids []uuid.UUID, results []errclass.Result) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pendingCalls--; t.pendingCalls == 0 && t.since.IsZero() {
		t.away.Add(-1)
	}
	t.returnPending, t.answered = true, true
	if t.since.IsZero() {
		t.handedBack = 0
	}
	if t.lateResults == nil || len(t.lateResults) > maxLateResults {
		t.lateResults = make(map[uuid.UUID]errclass.Result)
	}
	for i, id := range ids {
		t.lateResults[id] = results[i]
	}
}

// maxLateResults limits how many results are kept. Events of shards that another process has taken over are not read
// again here.
const maxLateResults = 10_000

// TakeLateResult returns the result of an event whose call has outlived its lease, if the call has returned since.
func (t *Target) TakeLateResult(id uuid.UUID) (r errclass.Result, is bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
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
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.callsBegan) == 0 {
		return false, time.Time{}
	}
	at = t.callsBegan[0].Add(StallAfter)
	return !now.Before(at), at
}

// callBegins records that a call of t's publisher begins. Each shard of a listener may have one. over records its end.
func (t *Target) callBegins(began time.Time) (over func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.callsBegan = append(t.callsBegan, began)
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		i := slices.Index(t.callsBegan, began)
		t.callsBegan = slices.Delete(t.callsBegan, i, i+1)
	}
}
