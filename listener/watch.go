package listener

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/outboxgen/outboxgen/internal/machine/doorbell"
	"github.com/outboxgen/outboxgen/internal/machine/sleep"
	"github.com/outboxgen/outboxgen/internal/postgres/bell"
	"github.com/outboxgen/outboxgen/listener/internal/core"
	"github.com/outboxgen/outboxgen/outbox"
)

type shardReport struct {
	shard    int
	activity core.Activity
	pause    time.Duration // the pause that the last check requires
}

// watch uses the doorbell for all shards of a process. When all have found nothing, it requests to be woken. When that
// is granted, it makes them check once more, and it wakes them when the doorbell rings. One goroutine owns it.
type watch struct {
	*doorbell.Sleeper
	of     *listenerRun
	states []core.Activity
	woken  []bool // and has not reported since
	pauses []time.Duration
	ask    <-chan time.Time // when to check and ask the doorbell again, because it awaits the lock; nil if it does not
}

func newWatch(r *listenerRun) *watch {
	n := len(r.wakeups)
	w := &watch{of: r, states: make([]core.Activity, n), woken: make([]bool, n), pauses: make([]time.Duration, n)}
	var e *doorbell.Config
	if r.l.cfg.Wake == outbox.WakeDoorbell {
		e = &doorbell.Config{
			Bell: bell.OfLog(r.l.db), DB: r.l.db, Main: r.l.pool, Listen: r.l.cfg.ListenPool, Log: r.l.log,
			Listening: r.l.rep.Listening(r.l.cfg.ListenPool != nil),
		}
	}
	w.Sleeper = doorbell.NewSleeper(e, r.l.cfg.PollInterval, r.l.cfg.MaxPollInterval)
	return w
}

// run watches until ctx ends.
func (w *watch) run(ctx context.Context) {
	defer w.Stop()
	var sleeper sync.WaitGroup
	sleeper.Go(func() { w.Sleeper.Run(ctx, w.of.DBCtx) })
	defer sleeper.Wait()
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-w.of.states:
			w.states[r.shard], w.woken[r.shard], w.pauses[r.shard] = r.activity, false, r.pause
			if r.activity == core.IsWorking {
				w.Found()
			}
			w.Rest(r.pause)
			w.updateSleeper()
		case a := <-w.Answers():
			again = w.onWake(a)
		case <-again:
			again = nil
			w.wakeShards(nil)
		case <-w.ask:
			w.ask = nil
			w.OnRing(doorbell.Ring{})
			w.wakeShards(nil)
		case <-w.of.callsReturned:
			w.wakeShards(nil)
		case r := <-w.Rang():
			w.OnRing(r)
			w.wakeShards(r.Loan())
		case <-w.Polls():
			w.pollShards()
			w.OnPoll(w.pause()) // and later, when the checks are over
		}
	}
}

// pause is the longest pause that the checks of the shards require.
func (w *watch) pause() time.Duration { return slices.Max(w.pauses) }

// wakeShards makes every shard check what there is to do, also those that are checking now. The first one that is not at
// work gets the connection that loan lends.
func (w *watch) wakeShards(loan *doorbell.Loan) {
	for i, state := range w.states {
		if state == core.IsWorking {
			w.wake(i, nil)
			continue
		}
		w.wake(i, loan)
		loan = nil
	}
	loan.Return()
}

// pollShards makes every shard check except those that have not finished the check they were woken for. A check that is
// slower than its pause is not followed by another without a pause.
func (w *watch) pollShards() {
	for i, woken := range w.woken {
		if !woken {
			w.wake(i, nil)
		}
	}
}

func (w *watch) wake(shard int, loan *doorbell.Loan) {
	w.woken[shard] = true
	if w.states[shard] != core.IsWorking {
		w.states[shard] = core.IsChecking
	}
	select {
	case w.of.wakeups[shard] <- loan:
	default: // it checks anyway
		loan.Return()
	}
}

// updateSleeper requests from the doorbell what the states of the shards require.
func (w *watch) updateSleeper() {
	idle := false
	for _, state := range w.states {
		switch state {
		case core.IsWorking:
			w.Busy()
			return
		case core.IsChecking:
			return
		case core.IsIdle:
			idle = true
		}
	}
	switch {
	case !idle:
		w.Busy() // no event would give a shard work
	case w.Idle() && w.ask == nil:
		w.of.l.signals.idle.Emit()
	}
}

// onWake handles an answer of the doorbell: it wakes the shards, or returns a channel that says when to wake them.
func (w *watch) onWake(a doorbell.Answer) (again <-chan time.Time) {
	look, pause := w.OnAnswer(a)
	if look && pause == 0 {
		w.wakeShards(a.Loan())
		return nil
	}
	if a.Loan().Return(); pause == 0 {
		return nil
	}
	w.of.l.signals.refused.Emit()
	after := time.After(max(pause, w.pause()))
	if a.State() == sleep.Awaits { // what rings is followed meanwhile
		w.ask, after = after, nil
	}
	return after
}
