package outbox

import (
	"context"
	"slices"
	"time"

	"github.com/outboxgen/outboxgen/internal/backoff"
)

// shardState is what a shard's loop says of itself.
type shardState int

const (
	shardLooking shardState = iota // it has been told to look, or starts
	shardWorking                   // it found something
	shardIdle                      // it found nothing, and an event would wake it
	shardDeaf                      // it found nothing, and waits for something else: a retry, a lease, a resume
)

type shardReport struct {
	shard int
	state shardState
	pause time.Duration // that the look before it calls for
}

// pace measures the looks of a shard, or of a dispatcher, that find nothing. What one costs may grow with what others have not committed, so
// that a pause of four times as long keeps idle listeners from more than a fifth of a backend's time.
type pace struct {
	began        time.Time
	latest, then time.Duration
}

// restful is how many times as long as a look the pause behind it is at least.
const restful = 4

// start begins a look.
func (p *pace) start() { p.began = time.Now() }

// stop ends a look that has found nothing.
func (p *pace) stop() { p.took(time.Since(p.began)) }

func (p *pace) took(d time.Duration) { p.latest, p.then = d, p.latest }

// pause is how long to wait before the next look, unless somebody rings. Of two looks the shorter one counts: one that had
// to wait for the database once says nothing about the next.
func (p *pace) pause() time.Duration { return restful * min(p.latest, p.then) }

// report tells the watch the state of a shard, and how long it should not be told to look for nothing.
func (r *listenerRun) report(shard int, state shardState, pause time.Duration) {
	if r.drained != nil {
		r.turns++
		return
	}
	r.states <- shardReport{shard: shard, state: state, pause: pause}
}

// watch sleeps with the doorbell for all shards of a process: it asks to be rung when all have found nothing, lets
// them look once more when it is, and tells them to look when it rings. One goroutine owns it.
type watch struct {
	of      *listenerRun
	bell    *doorbell // nil when polling
	states  []shardState
	pauses  []time.Duration
	asked   bool // the doorbell has been asked to watch
	watched bool // and has answered that it does
	wish    int  // the number of the latest thing asked of it
	refused int  // times in a row that it could not, because an enqueue was under way

	patience time.Duration // from one poll to the next
	poll     *time.Timer
	due      time.Time // when it fires
}

// reset has the next poll be in d.
func (w *watch) reset(d time.Duration) {
	w.due = time.Now().Add(d)
	w.poll.Reset(d)
}

func newWatch(r *listenerRun) *watch {
	w := &watch{of: r, states: make([]shardState, len(r.looks)), pauses: make([]time.Duration, len(r.looks))}
	if r.l.cfg.Wake == WakeDoorbell {
		w.bell = newDoorbell(r.l.pool, r.l.cfg.ListenPool, r.l.db, logBell(r.l.db), r.l.log)
	}
	return w
}

// run watches until ctx ends.
func (w *watch) run(ctx context.Context) {
	var rang <-chan struct{}
	var answers <-chan bellAnswer
	over := make(chan struct{})
	if w.bell != nil {
		rang, answers = w.bell.rang, w.bell.answers
		go func() {
			defer close(over)
			w.bell.run(ctx, w.of.talk)
		}()
		defer func() { <-over }()
	}
	w.patience = w.of.l.cfg.PollInterval
	w.poll = time.NewTimer(0)
	defer w.poll.Stop()
	w.reset(backoff.Within(w.patience))
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-w.of.states:
			w.states[r.shard], w.pauses[r.shard] = r.state, r.pause
			if r.state == shardWorking && w.patience > w.of.l.cfg.PollInterval {
				w.patience = w.of.l.cfg.PollInterval
				w.reset(backoff.Within(w.patience))
			}
			if time.Until(w.due) < r.pause {
				w.reset(r.pause)
			}
			w.settle()
		case a := <-answers:
			again = w.heed(a)
		case <-again:
			again = nil
			w.look()
		case <-w.of.landed:
			w.look()
		case <-rang:
			w.watched = false // ask again: it may be who watched that rang, because it stopped
			w.look()
		case <-w.poll.C:
			w.watched = false // ask again: who watched may have been killed
			w.look()
			if w.bell == nil {
				w.patience = min(2*w.patience, w.of.l.cfg.MaxPollInterval) // until something is found
			}
			w.reset(max(backoff.Within(w.patience), w.pause())) // and more, when the looks are over
		}
	}
}

// pause is the longest that the looks of the shards call for.
func (w *watch) pause() time.Duration { return slices.Max(w.pauses) }

// look tells every shard that waits to look.
func (w *watch) look() {
	for i, state := range w.states {
		if state != shardWorking {
			w.states[i] = shardLooking
		}
		select {
		case w.of.looks[i] <- struct{}{}:
		default: // it will look anyway
		}
	}
}

// settle asks the doorbell for what the states of the shards call for.
func (w *watch) settle() {
	idle := false
	for _, state := range w.states {
		switch state {
		case shardWorking:
			w.wake()
			return
		case shardLooking:
			return
		case shardIdle:
			idle = true
		}
	}
	switch {
	case !idle:
		w.wake() // no event would wake anybody
	case w.bell == nil, w.watched:
		w.of.l.signals.idle.emit()
	case !w.asked:
		w.asked = true
		w.wish = w.bell.want(asleep)
	}
}

// wake lets go of the doorbell.
func (w *watch) wake() {
	if w.asked || w.watched {
		w.asked, w.watched = false, false
		w.wish = w.bell.want(awake)
	}
}

// heed takes an answer of the doorbell: look once more, now that nothing can be missed; or soon, while nobody watches.
func (w *watch) heed(a bellAnswer) (again <-chan time.Time) {
	if a.wish != w.wish && a.state != bellGone {
		return nil // to what we wished before
	}
	w.watched = a.state == bellWatches
	w.asked = false
	if a.state != bellBusy {
		w.refused = 0
		w.look()
		return nil
	}
	w.refused++
	w.of.l.signals.refused.emit()
	return time.After(max(backoff.Delay(2*time.Millisecond, 25*time.Millisecond, w.refused), w.pause()))
}
