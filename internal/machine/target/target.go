package target

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/machine/report"
	"github.com/outboxgen/outboxgen/internal/machine/rest"
	"github.com/outboxgen/outboxgen/publish"
)

// StallAfter is how long a call of a Publisher may take before its destination is given no more events until it
// returns.
const StallAfter = rest.StallAfter

// Target is where events go: the handler of a topic, or a destination of a broker. Its methods may be used from any
// number of goroutines: they give the clock and a lock to Rest, which keeps track of whether the target is available.
type Target struct {
	Name      string
	Publisher publish.Publisher // of a destination
	ByEvent   bool              // each event says where it goes
	Rest      *rest.Target
	all       *Targets
}

// with calls f with the lock, and tells what has changed.
func (t *Target) with(f func(r *rest.Target) []rest.Note) {
	s := t.all
	s.mu.Lock()
	notes := f(t.Rest)
	away := int32(0)
	for _, each := range s.rests {
		if each.IsAway() {
			away++
		}
	}
	s.Away.Store(away)
	s.mu.Unlock()
	s.Tell(notes) // a logger may be slow
}

// Resting reports whether t or its broker is unavailable.
func (t *Target) Resting() (is bool) {
	t.all.mu.Lock()
	defer t.all.mu.Unlock()
	return t.Rest.Resting()
}

// Why returns the result of an event that is handed back because t rests; the zero Result if t does not rest.
func (t *Target) Why() errclass.Result {
	t.all.mu.Lock()
	defer t.all.mu.Unlock()
	return t.Rest.Why()
}

// RetryIn is rest.Target.RetryIn.
func (t *Target) RetryIn(now time.Time) time.Duration {
	t.all.mu.Lock()
	defer t.all.mu.Unlock()
	return t.Rest.RetryIn(now)
}

// Admit is rest.Target.Admit.
func (t *Target) Admit(now time.Time, n int) (admitted int, others errclass.Result) {
	t.all.mu.Lock()
	defer t.all.mu.Unlock()
	return t.Rest.Admit(now, n)
}

// Untried is rest.Target.Untried.
func (t *Target) Untried() {
	t.all.mu.Lock()
	defer t.all.mu.Unlock()
	t.Rest.Untried()
}

// OnResults updates t from the results of events that were tried from began on. It changes the class of a failure that
// belongs to an outage to ClassUnavailable in results.
func (t *Target) OnResults(now, began time.Time, ids []uuid.UUID, results []errclass.Result) {
	t.with(func(r *rest.Target) []rest.Note { return r.OnResults(now, began, ids, results) })
}

// TakeReturned is rest.Target.TakeReturned.
func (t *Target) TakeReturned() bool {
	t.all.mu.Lock()
	defer t.all.mu.Unlock()
	return t.Rest.TakeReturned()
}

// RestoreReturned makes TakeReturned report it once more.
func (t *Target) RestoreReturned() {
	t.all.mu.Lock()
	defer t.all.mu.Unlock()
	t.Rest.RestoreReturned()
}

// LaterDelay is rest.Target.LaterDelay.
func (t *Target) LaterDelay() time.Duration {
	t.all.mu.Lock()
	defer t.all.mu.Unlock()
	return t.Rest.LaterDelay()
}

// Abandon records that a lease ends before the call under way has returned. Until the call returns, nothing else is
// sent.
func (t *Target) Abandon() {
	t.with(func(r *rest.Target) []rest.Note { r.Abandon(); return nil })
}

// KeepLateResults keeps the results of a call that has outlived its lease, until their events are read again.
func (t *Target) KeepLateResults(ids []uuid.UUID, results []errclass.Result) {
	t.with(func(r *rest.Target) []rest.Note { r.KeepLateResults(ids, results); return nil })
}

// TakeLateResult returns the result of an event whose call has outlived its lease, if the call has returned since.
func (t *Target) TakeLateResult(id uuid.UUID) (r errclass.Result, is bool) {
	t.all.mu.Lock()
	defer t.all.mu.Unlock()
	return t.Rest.TakeLateResult(id)
}

// Stalled reports whether a call of t's publisher takes longer than StallAfter. If not, at is when it will have taken
// that long; zero if there is no call.
func (t *Target) Stalled(now time.Time) (is bool, at time.Time) {
	t.all.mu.Lock()
	defer t.all.mu.Unlock()
	return t.Rest.Stalled(now)
}

// KeyPrefix is the prefix of keys of events that are published to t: destinations do not wait for each other.
func (t *Target) KeyPrefix() string { return t.Name + " " }

// TopicsOf returns the topics that go to any of all.
func TopicsOf(all []*Target) (topics []string) {
	for _, t := range all {
		topics = append(topics, t.Rest.Topics...)
	}
	return topics
}

// Tell logs notes, and tells the observer of them. It is called without a lock, because a logger may be slow.
func Tell(log *slog.Logger, hooks *report.Hooks, notes []rest.Note) {
	for i := range notes {
		switch n := &notes[i]; n.Change {
		case rest.Began:
			level, text := slog.LevelWarn, "resting: the target is unavailable, its events wait and no attempt is charged"
			if n.Result.Unwanted {
				level, text = slog.LevelError, "resting: no handler is written, the events wait and no attempt is charged"
			}
			log.Log(context.Background(), level, text, "target", n.Target.Name, "topics", strings.Join(n.Target.Topics, ","),
				"error", n.Result.Text)
			hooks.Resting(n.Target.Name, n.Result.Text)
		case rest.Ended:
			logEnd(log, n)
			hooks.Resumed(n.Target.Name, n.Rested)
		case rest.Delivers:
			log.Info("back: events are delivered again", "target", n.Target.Name)
		case rest.Forgotten:
			hooks.Resumed(n.Target.Name, n.Rested)
		}
	}
}

// logEnd logs that a rest is over. That events are delivered again is said when one was.
func logEnd(log *slog.Logger, n *rest.Note) {
	attrs := []any{
		"target", n.Target.Name, "rested", n.Rested.Round(time.Millisecond), "tries", n.Tries, "handed_back", n.HandedBack,
	}
	if n.Result.Class == errclass.ClassDone {
		log.Info("back: events are delivered again", attrs...)
		return
	}
	attrs = append(attrs, "error", n.Result.Text)
	// a refused event says nothing about other destinations
	if n.Result.Class == errclass.ClassRefused && n.Target.Kind != rest.Broker {
		log.Warn("rest is over: the target refuses an event permanently, and it becomes a dead letter", attrs...)
	} else {
		log.Info("rest is over: the target answers, and no event has been delivered yet", attrs...)
	}
}
