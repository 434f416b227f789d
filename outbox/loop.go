package outbox

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
)

// loop is one Run: a single goroutine that owns what is held, claims when there is room, and settles what
// workers report. Each pass is one round trip that finalises and claims together; while it is under way
// reports pile up, so the busier the database, the larger the batches.
type loop struct {
	d       *Dispatcher
	ctx     context.Context         // ends the claiming
	work    context.Context         // of the handlers; outlives ctx
	cancel  context.CancelCauseFunc // of work
	leases  *leases
	bell    *doorbell // nil when polling
	workers sync.WaitGroup

	queue    chan *task // claimed, not started; has room for everything held
	reports  chan *task // finished; likewise
	held     int
	finished []*task
	solo     *task // an event on its last attempt, run when nothing else does
	soloing  bool  // solo is queued or running

	hungry      bool // there may be something to claim
	armed       bool // the doorbell watches for us
	heard       bool // it woke us
	nextSuspect time.Time
	report      DrainReport
}

// signals let tests wait for what happens inside; nil channels cost nothing.
type signals struct {
	idle, renewed, maintained signal
}

type signal chan struct{}

func (s signal) emit() {
	select {
	case s <- struct{}{}:
	default:
	}
}

func newLoop(ctx context.Context, d *Dispatcher) *loop {
	room := max(d.cfg.BatchSize, d.cfg.Concurrency)
	l := &loop{
		d: d, ctx: ctx, leases: newLeases(d), hungry: true,
		queue: make(chan *task, room), reports: make(chan *task, room),
	}
	l.work, l.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	if d.cfg.Wake == WakeDoorbell {
		l.bell = newDoorbell(d)
	}
	return l
}

func (l *loop) run() error {
	defer l.cancel(nil)
	helpers, stop := context.WithCancel(context.WithoutCancel(l.ctx))
	var owned sync.WaitGroup
	owned.Go(func() { l.leases.renew(helpers) })
	owned.Go(func() { l.d.maintain(l.ctx) })
	if l.bell != nil {
		owned.Go(func() { l.bell.run(l.ctx) })
	}
	for range l.d.cfg.Concurrency {
		l.workers.Go(l.worker)
	}
	l.deliver()
	err := l.stop()
	close(l.queue)
	if err == nil {
		l.workers.Wait()
	}
	stop()
	owned.Wait()
	return err
}

// worker runs queued tasks until the queue is closed. A handler that ends its goroutine ends the worker,
// so another takes its place.
func (l *loop) worker() {
	closed := false
	defer func() {
		if !closed {
			l.workers.Go(l.worker)
		}
	}()
	for t := range l.queue {
		l.d.do(l.work, l.leases, t, func(t *task) { l.reports <- t })
	}
	closed = true
}

// deliver claims and settles until ctx ends.
func (l *loop) deliver() {
	var trouble retrier
	poll := time.NewTimer(jitter(l.d.cfg.PollInterval))
	defer poll.Stop()
	for l.ctx.Err() == nil {
		l.collect()
		want := l.room()
		if len(l.finished) == 0 && want == 0 {
			l.wait(poll)
			continue
		}
		if err := l.pass(want); err != nil {
			l.d.log.Error("talk to the database", "error", err)
			l.pause(trouble.next())
			continue
		}
		trouble.reset()
	}
}

// room returns how many events to claim now: none without appetite, none while a solo is pending, and not
// a few at a time while enough wait for the workers.
func (l *loop) room() int {
	free := cap(l.queue) - l.held
	if !l.hungry || l.solo != nil || free == 0 {
		return 0
	}
	if l.held > l.d.cfg.Concurrency && free < cap(l.queue)/4 {
		return 0
	}
	return min(free, l.d.cfg.BatchSize)
}

// pass makes one round trip: settle what is finished, claim up to want.
func (l *loop) pass(want int) error {
	x := l.d.settlement(l.leases, l.finished)
	suspects := false
	if want > 0 {
		suspects = !time.Now().Before(l.nextSuspect)
		x.claim = l.d.request(want, suspects)
	}
	if err := l.exchange(x); err != nil {
		return err
	}
	l.held -= len(l.finished)
	l.finished = l.finished[:0]
	l.d.account(x, &l.report)
	if want > 0 {
		l.took(x.claimed, suspects)
	}
	l.startSolo()
	return nil
}

// exchange talks to the database on a context of its own: a statement that is cut off may be committed.
func (l *loop) exchange(x *exchange) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.ctx), max(l.d.cfg.LeaseDuration, 5*time.Second))
	defer cancel()
	return l.d.store.exchange(ctx, x)
}

// took queues what a claim brought, and decides whether to go on claiming.
func (l *loop) took(claimed []Claimed, suspects bool) {
	found := false
	for i := range claimed {
		t := &task{Claimed: claimed[i]}
		l.leases.add(t)
		l.held++
		found = found || t.Suspect
		if t.Suspect && t.Attempt >= t.MaxAttempts {
			l.solo = t
			continue
		}
		l.queue <- t
	}
	if suspects && !found {
		l.nextSuspect = time.Now().Add(l.d.cfg.PollInterval)
	}
	l.hungry = len(claimed) > 0 // a short batch proves nothing: an event may have come since
	if l.bell == nil {
		if len(claimed) == 0 {
			l.d.signals.idle.emit()
		}
		return
	}
	switch {
	case len(claimed) > 0 && l.armed:
		l.armed = false
		l.bell.wakeUp(l.heard)
	case len(claimed) == 0 && !l.armed:
		l.bell.sleep()
	case len(claimed) == 0:
		l.d.signals.idle.emit()
	}
}

// startSolo queues the pending solo once it is all that is held.
func (l *loop) startSolo() {
	if l.solo != nil && !l.soloing && l.held == 1 {
		l.soloing = true
		l.queue <- l.solo
	}
}

// collect takes in the reports that are there.
func (l *loop) collect() {
	for {
		select {
		case t := <-l.reports:
			l.take(t)
		default:
			return
		}
	}
}

func (l *loop) take(t *task) {
	l.finished = append(l.finished, t)
	if t == l.solo {
		l.solo, l.soloing = nil, false
	}
}

// wait sleeps until there is something to do.
func (l *loop) wait(poll *time.Timer) {
	var rang <-chan struct{}
	var answers <-chan bellAnswer
	if l.bell != nil {
		rang, answers = l.bell.rang, l.bell.answers
	}
	select {
	case <-l.ctx.Done():
	case t := <-l.reports:
		l.take(t)
	case <-rang:
		l.hungry, l.heard = true, true
	case a := <-answers:
		l.armed = a == bellWatches
		l.hungry = true // look once more, now that nothing can be missed; or soon, while nobody watches
		if a == bellBusy {
			l.pause(l.bell.busyPause())
		}
	case <-poll.C:
		l.hungry, l.heard = true, false
		poll.Reset(jitter(l.d.cfg.PollInterval))
	}
}

// pause waits d, taking in reports, less if ctx ends.
func (l *loop) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-l.ctx.Done():
			return
		case <-timer.C:
			return
		case t := <-l.reports:
			l.take(t)
		}
	}
}

// stop hands back what was not started, waits for what was, and settles it.
func (l *loop) stop() error {
	var unstarted []Claimed
	if l.solo != nil && !l.soloing {
		unstarted = append(unstarted, l.solo.Claimed)
		l.leases.drop(l.solo)
	}
	for drained := false; !drained; {
		select {
		case t := <-l.queue:
			unstarted = append(unstarted, t.Claimed)
			l.leases.drop(t)
		default:
			drained = true
		}
	}
	l.held -= len(unstarted)
	timeout := time.NewTimer(l.d.cfg.ShutdownTimeout)
	defer timeout.Stop()
	var trouble retrier
	const (
		running = iota
		cancelled
		over
	)
	for phase := running; ; {
		l.collect()
		if len(unstarted) > 0 || len(l.finished) > 0 {
			x := l.d.settlement(l.leases, l.finished)
			x.releases = unstarted
			if err := l.exchange(x); err == nil {
				l.held -= len(l.finished)
				l.finished, unstarted = l.finished[:0], nil
				l.d.account(x, &l.report)
				trouble.reset()
				continue
			} else if phase == over {
				return fmt.Errorf("stop dispatcher: %d events could not be settled: %w", len(unstarted)+len(l.finished), err)
			} else {
				l.d.log.Error("talk to the database", "error", err)
			}
		} else if l.held == 0 {
			return nil
		} else if phase == over {
			return fmt.Errorf("stop dispatcher: still running after %s: %s", l.d.cfg.ShutdownTimeout, l.leases.names())
		}
		var again <-chan time.Time
		if len(unstarted) > 0 || len(l.finished) > 0 {
			again = time.After(trouble.next())
		}
		select {
		case t := <-l.reports:
			l.take(t)
		case <-again:
		case <-timeout.C:
			if phase == running {
				l.cancel(errShutdown)
				timeout.Reset(shutdownGrace)
			}
			phase++
		}
	}
}

// names lists the events whose handlers are running.
func (l *leases) names() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var names []string
	for t := range l.of {
		names = append(names, t.Namespace+"/"+t.Topic+" "+t.ID.String())
	}
	return strings.Join(names, ", ")
}
