package receive

import (
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/call/backoff"
	"github.com/outboxgen/outboxgen/internal/call/usercode"
)

// talk writes lines about single messages, up to a few per period. The others are counted.
type talk struct {
	log *slog.Logger

	mu     sync.Mutex
	period time.Time
	lines  int
	left   int // lines that were not written since the last one
}

const (
	talkPeriod = 10 * time.Second
	talkLines  = 20
)

// allowed reports whether one more line may be written, and how many were left out before it.
func (t *talk) allowed() (ok bool, left int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := time.Now(); now.Sub(t.period) > talkPeriod {
		t.period, t.lines = now, 0
	}
	if t.lines++; t.lines > talkLines {
		t.left++
		return false, 0
	}
	left, t.left = t.left, 0
	return true, left
}

// settled logs and tells the observer what became of a message.
func (r *Receiver) settled(it *item) {
	switch it.outcome {
	case Applied, Duplicate, Skipped, Quarantined:
		r.deadInARow.Store(0)
	case Dead:
		r.deadInARow.Add(1)
	}
	err := it.last
	if it.fault != nil {
		err = it.fault
	}
	switch {
	case it.outcome == Dead:
		if attrs, ok := r.attrs(it, "attempt", it.attempts, "error", err); ok {
			r.say.log.Error("message is a dead letter", attrs...)
		}
	case it.outcome == Parked && it.after != nil: // not one that waits behind another
		r.parked(it, microseconds(*it.after))
	}
	if r.cfg.Observer.Settled != nil {
		s := Settled{Place: it.message.Place, Event: it.event, Outcome: it.outcome, Attempts: it.attempts}
		if it.outcome == Dead || it.outcome == Parked {
			s.Err = err
		}
		r.observe(func() { r.cfg.Observer.Settled(s) })
	}
}

// attrs returns those of a line about a message, unless there are too many lines.
func (r *Receiver) attrs(it *item, more ...any) (attrs []any, ok bool) {
	ok, left := r.say.allowed()
	attrs = append([]any{"place", it.message.Place, slog.Any("", it.event)}, more...)
	if left > 0 {
		attrs = append(attrs, "lines_left_out", left)
	}
	return attrs, ok
}

// parked says that a message that has failed is parked until its next attempt.
func (r *Receiver) parked(it *item, delay time.Duration) {
	next := time.Now().Add(delay).UTC().Round(time.Second)
	if attrs, ok := r.attrs(it, "attempt", it.attempts, "next_attempt", next, "attempts_left",
		r.cfg.MaxAttempts-it.attempts, "error", it.last); ok {
		r.say.log.Warn("message is parked", attrs...)
	}
}

// continues says what became of messages that were parked: that one which had failed is applied, and which had no
// effect.
func (r *Receiver) continues(items []*item) {
	for _, it := range items {
		switch e := it.event.Entity; {
		case it.outcome == Skipped || it.outcome == Quarantined:
			if attrs, ok := r.attrs(it, "entity_type", e.Type, "version", e.Version, "applied_version", it.newest); ok {
				r.say.log.Warn("parked message had no effect: it is stale, a later version of its entity was applied before",
					attrs...)
			}
		case it.outcome == Duplicate:
			if attrs, ok := r.attrs(it); ok {
				r.say.log.Warn("parked message had no effect: it was applied before", attrs...)
			}
		case it.attempts > 0:
			if attrs, ok := r.attrs(it, "attempt", it.attempts); ok {
				r.say.log.Info("parked message is applied, and its key continues", attrs...)
			}
		}
	}
}

func (r *Receiver) failedOnce(it *item, err error) {
	r.say.log.Debug("message has failed", "place", it.message.Place, slog.Any("", it.event), "attempt", it.attempts,
		"error", err)
	if r.cfg.Observer.Failed != nil {
		r.observe(func() {
			r.cfg.Observer.Failed(Failed{Place: it.message.Place, Event: it.event, Attempt: it.attempts, Err: err})
		})
	}
}

// observe calls code of the user.
func (r *Receiver) observe(call func()) {
	_ = usercode.Call("observer", usercode.Limit, func() error {
		call()
		return nil
	})
}

// wait is why a strand, or the retries of parked messages, make no progress.
type wait struct {
	r      *Receiver
	pauses backoff.Retrier
	waits  bool
}

// begins notes that nothing can be applied because of err.
func (w *wait) begins(err error) {
	if w.waits {
		return
	}
	w.waits = true
	r := w.r
	r.mu.Lock()
	r.waiters++
	first := r.waiters == 1
	if first {
		r.waiting = time.Now()
	}
	r.mu.Unlock()
	if !first {
		return
	}
	if errors.Is(err, inbox.ErrNotMigrated) {
		r.say.log.Error("messages wait: the tables of the inbox are missing or old", "error", err)
	} else {
		r.say.log.Warn("messages wait: the database or a target does not answer", "error", err)
	}
	if r.cfg.Observer.Waiting != nil {
		r.observe(func() { r.cfg.Observer.Waiting(err) })
	}
}

// ends notes that something was applied, or that nobody tries any more.
func (w *wait) ends() {
	w.pauses.Reset()
	if !w.waits {
		return
	}
	w.waits = false
	r := w.r
	r.mu.Lock()
	r.waiters--
	last, since := r.waiters == 0, r.waiting
	r.mu.Unlock()
	if !last {
		return
	}
	r.say.log.Info("messages do not wait any more", "after", time.Since(since).Round(time.Millisecond))
	if r.cfg.Observer.Waiting != nil {
		r.observe(func() { r.cfg.Observer.Waiting(nil) })
	}
}
