package queue

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/call/usercode"
	"github.com/outboxgen/outboxgen/internal/machine/report"
	"github.com/outboxgen/outboxgen/internal/machine/target"
	"github.com/outboxgen/outboxgen/internal/machine/testsignal"
	"github.com/outboxgen/outboxgen/outbox"
)

// task is one claimed event in this process. The loop owns it until it is queued, the worker while it runs, the loop
// again once it is reported; leases owns its lease.
type task struct {
	*Claimed
	result    errclass.Result         // what the handler made of it
	tried     bool                    // the handler or the publisher was called
	try       *target.Target          // set if it was claimed to find out whether this target is available again
	wait      time.Duration           // until an event is due again whose own destination is unavailable; 0 leaves it to the topic
	unstarted bool                    // handed back by the loop, or because its lease was over
	cancel    context.CancelCauseFunc // of the handler's context, set by leases.begin
	lost      bool                    // its lease is not renewed any more
	finished  bool                    // nothing runs any more; it is to be settled
}

// notStarted is the result of an event that is released unstarted.
var notStarted = errclass.New(errclass.ClassNotSent, "it was handed back before it was handled")

// leases knows every event that is in flight in this process until it is settled, renews their leases, and cancels the handlers of
// those it could not keep.
type leases struct {
	d      *Dispatcher
	lapsed testsignal.Signal // what has not been started has lost its lease
	mu     sync.Mutex
	tasks  map[*task]struct{}
}

func newLeases(d *Dispatcher) *leases {
	return &leases{d: d, lapsed: make(testsignal.Signal, 1), tasks: make(map[*task]struct{})}
}

func (l *leases) add(t *task) {
	l.mu.Lock()
	l.tasks[t] = struct{}{}
	l.mu.Unlock()
}

// finish records that nothing runs for t any more, and reports whether there is anything to settle. A failure is not
// settled if the lease was lost, because the event may belong to another worker then. A success, and an event that is
// released with its attempt uncounted, are settled anyway: the fence decides.
func (l *leases) finish(t *task) bool {
	settle := t.unstarted || !t.result.Class.Charged()
	l.mu.Lock()
	t.finished = true
	if settle = settle || !t.lost; !settle {
		delete(l.tasks, t)
	}
	l.mu.Unlock()
	if !settle {
		l.d.rep.Trouble(report.Lost, "event lost", t.Event, t.result.Text)
		l.d.rep.Add(Report{Lost: 1})
		if l.d.hooks.WantsEnds() {
			l.d.hooks.Ended([]report.End{{Event: t.Event}})
		}
	}
	return settle
}

// settled removes tasks that the database has settled.
func (l *leases) settled(tasks []*task) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range tasks {
		delete(l.tasks, t)
	}
}

func (l *leases) isLost(t *task) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return t.lost
}

// atRisk returns the events in flight whose lease may have run out, because they still run or wait to be settled. No
// claim and no sweep of this process takes them.
func (l *leases) atRisk() []uuid.UUID {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	var ids []uuid.UUID
	for t := range l.tasks {
		if t.lost || l.over(t, now) {
			ids = append(ids, t.ID)
		}
	}
	return ids
}

// hasLastAttempt reports whether any unfinished task except other is on its last attempt.
func (l *leases) hasLastAttempt(other *task) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for t := range l.tasks {
		if t != other && !t.finished && t.Attempt >= t.MaxAttempts {
			return true
		}
	}
	return false
}

// begin registers cancel, which is called if t loses its lease, and reports whether the handler may start. It may not
// if the lease is already over, because the process was stopped or starved while t waited.
func (l *leases) begin(t *task, cancel context.CancelCauseFunc) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !t.lost && l.over(t, time.Now()) {
		l.lose(t)
	}
	t.cancel, t.unstarted = cancel, t.lost
	return !t.lost
}

// margin is how long before its end a lease is given up: two ticks of renew, so that a handler has at least one tick to
// notice that its context is cancelled.
func (l *leases) margin() time.Duration { return l.d.cfg.LeaseDuration / 5 }

func (l *leases) over(t *task, now time.Time) bool { return t.deadline.Sub(now) <= l.margin() }

// renew renews leases until ctx ends, or until dbCtx ends during a statement. A lease is renewed when a third of it has
// passed, and given up shortly before its end. The end is measured on this process's monotonic clock, from before the
// claim was sent, so it is never later than the end in the database.
func (l *leases) renew(ctx, dbCtx context.Context) {
	lease := l.d.cfg.LeaseDuration
	tick := time.NewTicker(lease / 10)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if due, until := l.due(time.Now()); len(due) > 0 {
			l.extend(dbCtx, due, until)
		}
	}
}

// due returns the tasks to renew and the time until which a renewal is useful. It cancels the tasks whose lease is
// over.
func (l *leases) due(now time.Time) (due []*task, until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lease := l.d.cfg.LeaseDuration
	until = now.Add(max(lease/5, time.Second)) // then once more, on another connection
	for t := range l.tasks {
		switch {
		case t.lost, t.finished:
		case l.over(t, now):
			l.lose(t)
		case t.deadline.Sub(now) <= lease-lease/3:
			due = append(due, t)
			if end := t.deadline.Add(-l.margin()); end.Before(until) {
				until = end
			}
		}
	}
	return due, until
}

// lose cancels t's handler; l.mu is held.
func (l *leases) lose(t *task) {
	t.lost = true
	if t.cancel != nil {
		t.cancel(outbox.ErrLeaseLost)
	} else {
		l.lapsed.Emit()
	}
	l.d.rep.Trouble(report.Lapsed, "lease lost", t.Event, outbox.ErrLeaseLost.Error())
	l.d.signals.lost.Emit()
}

func (l *leases) extend(dbCtx context.Context, due []*task, until time.Time) {
	lease := l.d.cfg.LeaseDuration
	x := roundTrip{lease: lease}
	for _, t := range due {
		x.extends = append(x.extends, t.Claimed)
	}
	ctx, cancel := context.WithDeadline(dbCtx, until)
	defer cancel()
	sent := time.Now()
	err := l.d.store.roundTripByParts(ctx, &x)
	if dbCtx.Err() == nil {
		l.d.rep.Statement("renew leases", sent, err)
	}
	if err != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, t := range due {
		if t.finished {
			continue
		}
		switch x.extended[i] {
		case Lost:
			l.lose(t)
		case refused:
			l.d.logRefusal(&x, t.Claimed)
		case Locked: // tried again with the next tick
			l.d.rep.Trouble(report.Locked, "renew lease: another transaction has the event locked", t.Event, "another transaction has the event locked")
		default:
			t.deadline = sent.Add(lease)
		}
	}
	l.d.signals.renewed.Emit()
}

// runHandler runs the handler of t and reports its result. It recovers from panics, and reports runtime.Goexit, which
// still ends the goroutine. All user code is called here, so that the loop sees only results.
func (d *Dispatcher) runHandler(ctx context.Context, l *leases, t *task, over func(*task)) {
	ctx, cancel := context.WithCancelCause(ctx)
	to := d.target(t.Topic)
	began := time.Now()
	var told []outbox.Event // nil if nobody is told
	usercode.Run("handler", func() error {
		if !l.begin(t, cancel) {
			t.result = errclass.New(errclass.ClassNotSent, "its lease ran out before it was handled")
			return nil
		}
		if n, why := to.Admit(1); n == 0 {
			t.result = why
			return nil
		}
		t.tried = true
		if d.hooks.WantsCalls() {
			told = []outbox.Event{t.Event}
			d.hooks.Started(ctx, told)
			began = time.Now()
		}
		run := d.handlers[t.Topic].run
		if len(d.cfg.Middleware) == 0 {
			return run(ctx, t.Event, t.Payload)
		}
		return report.Chain(ctx, d.cfg.Middleware, t.Event, func(ctx context.Context) error { return run(ctx, t.Event, t.Payload) })
	}, func(err error) {
		if t.tried {
			if told != nil {
				d.hooks.Finished(ctx, told, []error{err}, time.Since(began))
			}
			results := []errclass.Result{errclass.Of(err)}
			to.OnResults(began, []uuid.UUID{t.ID}, results)
			t.result = results[0]
			if crashed, ok := err.(*usercode.Crash); ok { // ours, as it came from the guard
				d.log.Debug("handler did not return", slog.Any("", t.Event), "stack", crashed.Error())
			}
		}
		cancel(nil)
		over(t)
	})
}

// settlement turns finished tasks into the acks and nacks of a round trip.
func (d *Dispatcher) settlement(finished []*task) *roundTrip {
	x := &roundTrip{acks: make([]*Claimed, 0, len(finished))}
	for _, t := range finished {
		if t.unstarted {
			x.releases = append(x.releases, t.Claimed)
			continue
		}
		switch t.result.Class {
		case errclass.ClassDone:
			x.acks = append(x.acks, t.Claimed)
		case errclass.ClassFailed, errclass.ClassRefused:
			x.nacks = append(x.nacks, Failure{Claimed: *t.Claimed, result: &t.result})
		case errclass.ClassUnavailable:
			x.handedBack++
			if t.wait > 0 {
				t.after = t.wait
			} else if t.tried { // due after those that were not tried, so that the next try is of another event
				t.after = max(d.target(t.Topic).RetryIn(), time.Millisecond)
			}
			x.releases = append(x.releases, t.Claimed)
		case errclass.ClassNotSent:
			x.handedBack++
			if t.tried { // otherwise it would be claimed again immediately, for nothing
				t.after = d.cfg.Breaker.FirstPause
			}
			x.releases = append(x.releases, t.Claimed)
		}
	}
	return x
}

// roundTrip runs x, for at most a lease or the time that a reconnect takes. ctx is not the context of Run: a statement
// that is cut off may still be committed.
func (d *Dispatcher) roundTrip(ctx context.Context, x *roundTrip) error {
	ctx, cancel := context.WithTimeout(ctx, max(d.cfg.LeaseDuration, 5*time.Second))
	defer cancel()
	began := time.Now()
	err := d.store.roundTripByParts(ctx, x)
	if d.hooks != nil && x.committed {
		d.tell(x, time.Since(began))
	}
	return err
}

// tell tells the observer what the round trip x, which took took, has settled and claimed.
func (d *Dispatcher) tell(x *roundTrip, took time.Duration) {
	d.hooks.Ended(d.endsOf(x))
	if x.claim != nil && !x.claimedAt.IsZero() && d.hooks.WantsClaimed() {
		leased := x.leased()
		events := make([]outbox.Event, len(leased))
		for i, c := range leased {
			events[i] = c.Event
		}
		d.hooks.Claimed(events, took)
	}
}

// endsOf returns the known ends of the events that x settles.
func (d *Dispatcher) endsOf(x *roundTrip) []report.End {
	if !d.hooks.WantsEnds() {
		return nil
	}
	ends := make([]report.End, 0, len(x.acks)+len(x.nacks)+len(x.releases))
	add := func(o Outcome, c *Claimed, as outbox.Settlement, reason string) {
		switch o {
		case 0: // not known yet
			return
		case Lost, refused:
			as = ""
		}
		ends = append(ends, report.End{Event: c.Event, As: as, Reason: reason})
	}
	for i, o := range x.acked {
		add(o, x.acks[i], outbox.SettledDelivered, "")
	}
	for i, o := range x.nacked {
		f := &x.nacks[i]
		if x.died[i] {
			add(o, &f.Claimed, outbox.SettledDead, f.why().Text)
		} else {
			add(o, &f.Claimed, outbox.SettledRetried, "")
		}
	}
	for i, o := range x.released {
		add(o, x.releases[i], outbox.SettledReleased, "")
	}
	for _, c := range x.buried {
		add(Applied, c, outbox.SettledDead, errStray.Error())
	}
	return ends
}

// account logs the known outcomes of x and adds them up.
func (d *Dispatcher) account(x *roundTrip) (r Report) {
	if !x.committed {
		return r
	}
	if n := len(x.buried); n > 0 {
		r.Dead += n
		for _, c := range x.buried {
			d.rep.Trouble(report.Dead, "event is dead: its row was deleted from the table events by hand", c.Event, errStray.Error())
		}
	}
	if x.unsettled > 0 {
		d.log.Error("events were queued although they were final: somebody has written their rows by hand", "count", x.unsettled)
	}
	for i, o := range x.acked {
		switch o {
		case 0: // not known yet
		case refused:
			r.Lost++
			d.logRefusal(x, x.acks[i])
		case Lost:
			r.Lost++
			d.rep.Trouble(report.Lost, "event was handled but lost to another claim", x.acks[i].Event, "it was handled")
		default:
			r.Delivered++
			d.rep.Delivered(&x.acks[i].Event)
		}
	}
	for i, o := range x.released {
		switch o {
		case refused:
			d.logRefusal(x, x.releases[i])
		case Lost:
			d.rep.Trouble(report.Lost, "event lost", x.releases[i].Event, outbox.ErrLeaseLost.Error())
		}
	}
	for i, o := range x.nacked {
		f := &x.nacks[i]
		why := f.why().Text
		switch {
		case o == 0: // not known yet
		case o == refused:
			r.Lost++
			d.logRefusal(x, &f.Claimed)
		case o == Lost:
			r.Lost++
			d.rep.Trouble(report.Lost, "event failed and was lost to another claim", f.Event, why)
		case x.died[i]:
			r.Dead++
			d.rep.Trouble(report.Dead, "event is dead", f.Event, why)
		default:
			r.Retried++
			d.rep.Trouble(report.Failed, "event failed", f.Event, why)
		}
	}
	r.HandedBack += x.handedBack
	d.rep.Add(r)
	return r
}

// logRefusal logs that PostgreSQL refuses to settle an event. The event stays as it is until its lease runs out.
func (d *Dispatcher) logRefusal(x *roundTrip, c *Claimed) {
	d.rep.Trouble(report.Refused, "event cannot be settled and is left to its lease: PostgreSQL refuses to change it",
		c.Event, x.refusals[fence{c.ID, c.ClaimNo}].Error())
}
