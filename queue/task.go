package queue

import (
	"context"
	"log/slog"
	"time"

	"github.com/outboxgen/outboxgen/internal/call/cause"
	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/call/usercode"
	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/internal/machine/report"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/queue/internal/core"
)

// task is one claimed event in this process. The core owns it, except while it runs.
type task struct {
	core.Task
	claimed  *Claimed
	ctx      context.Context         // of the handler
	cancel   context.CancelCauseFunc // of ctx; nil before the handler starts
	outgoing *publish.Outgoing       // of an event that is published
}

// taskOf returns the task of the shell.
func taskOf(t *core.Task) *task { return t.Data.(*task) }

// tasksOf makes tasks of what was claimed.
func tasksOf(claimed []*Claimed) []*core.Task {
	tasks, all := make([]task, len(claimed)), make([]*core.Task, len(claimed))
	for i, c := range claimed {
		t := &tasks[i]
		t.claimed, t.Task = c, core.Task{
			ID: c.ID, Topic: c.Topic, Tenant: c.TenantID, Lane: c.lane, Turn: c.turn,
			StartWithin: c.startWithin, Attempt: c.Attempt, MaxAttempts: c.MaxAttempts, Reclaimed: c.Reclaimed,
			ClaimDeadline: c.deadline, Bytes: len(c.Payload), Data: t,
		}
		all[i] = &t.Task
	}
	return all
}

// late takes note that the lease of t was over before it could begin, because the process was stopped or starved.
func late(t *core.Task, what string) bool {
	switch now := time.Now(); {
	case now.Before(t.StartBy):
		return false
	case !t.StartWithin.IsZero() && !now.Before(t.StartWithin):
		t.Ended = true
		return true
	}
	t.Late, t.Result = true, errclass.New(errclass.ClassNotSent, "its lease ran out before it was %s", what)
	return true
}

// tooLate takes note of how long it took, from began on, to open the payload of t or to make what is published of it. It
// reports whether the rate of t does not allow it to begin any more. Topics without a rate pay nothing.
func tooLate(t *core.Task, began time.Time) bool {
	if t.StartWithin.IsZero() {
		return false
	}
	now := time.Now()
	t.Opened = now.Sub(began)
	if now.Before(t.StartWithin) {
		return false
	}
	t.Tried, t.Ended = false, true
	t.Result = errclass.New(errclass.ClassNotSent,
		"it took %s to open its payload, and by then the rate did not allow it to begin any more", t.Opened.Round(time.Microsecond))
	t.Result.Waits = true
	return true
}

// runHandler runs the handler of t and reports its result. It recovers from panics, and reports runtime.Goexit, which
// still ends the goroutine. All user code is called here, so that the core sees only results.
func (d *Dispatcher) runHandler(t *task, over func(*task)) {
	var told []outbox.Event // nil if nobody is told
	e := &t.claimed.Event
	t.Began = time.Now()
	usercode.Run("handler", func() error {
		if late(&t.Task, "handled") {
			return nil
		}
		if t.ctx.Err() != nil { // while it waited for this worker
			t.Late, t.Result = true, errclass.New(errclass.ClassNotSent, "its lease was lost before it was handled")
			return nil
		}
		t.Tried = true
		h := d.handlers[e.Topic]
		payload, unfit := config.OpenPayload(t.ctx, h.decoder, e, t.claimed.Payload)
		if tooLate(&t.Task, t.Began) {
			return nil
		}
		if d.hooks.WantsCalls() {
			told = []outbox.Event{*e}
			d.hooks.Started(t.ctx, told)
			t.Began = time.Now()
		}
		ctx := cause.With(t.ctx, e.ID, e.Headers)
		if len(d.cfg.Middleware) == 0 && unfit == nil {
			return h.run(ctx, *e, payload)
		}
		return report.Chain(ctx, d.cfg.Middleware, *e, func(ctx context.Context) error {
			if unfit != nil {
				return unfit
			}
			return h.run(ctx, *e, payload)
		})
	}, func(err error) {
		if t.Tried {
			if told != nil {
				d.hooks.Finished(t.ctx, told, []error{err}, time.Since(t.Began))
			}
			t.Result = errclass.Of(err)
			if crashed, ok := err.(*usercode.Crash); ok { // ours, as it came from there
				d.log.Debug("handler did not return", slog.Any("", *e), "stack", crashed.Error())
			}
		}
		t.cancel(nil)
		over(t)
	})
}

// settlementsOfPass returns what p settles.
func settlementsOfPass(p *core.Pass) []settlement {
	kinds := [...]settling{core.Ack: acking, core.Nack: nacking, core.Release: releasing}
	all := make([]settlement, len(p.Settle))
	for i, t := range p.Settle {
		all[i] = settlement{kind: kinds[t.As], claimed: taskOf(t).claimed, why: &t.Result, after: t.After}
	}
	return all
}

// openOf returns the tasks of p, which x settles, that are not known to be settled.
func openOf(p *core.Pass, x *roundTrip) (open []*core.Task) {
	if !x.committed {
		return p.Settle
	}
	for i := range x.settlements {
		if x.settlements[i].outcome == 0 {
			open = append(open, p.Settle[i])
		}
	}
	return open
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
	if x.claim != nil && !x.found.At.IsZero() && d.hooks.WantsClaimed() {
		events := make([]outbox.Event, 0, len(x.claimed)+len(x.orphans))
		for _, some := range [...][]*Claimed{x.claimed, x.orphans} {
			for _, c := range some {
				events = append(events, c.Event)
			}
		}
		d.hooks.Claimed(events, took)
	}
}

// endsOf returns the known ends of the events that x settles.
func (d *Dispatcher) endsOf(x *roundTrip) []report.End {
	if !d.hooks.WantsEnds() {
		return nil
	}
	ends := make([]report.End, 0, len(x.settlements)+len(x.deadOrphans))
	for i := range x.settlements {
		f := &x.settlements[i]
		end := report.End{Event: f.claimed.Event, As: outbox.SettledDelivered}
		switch {
		case f.outcome == 0: // not known yet
			continue
		case f.outcome == Lost || f.outcome == refused:
			end.As = ""
		case f.kind == releasing:
			end.As = outbox.SettledReleased
		case f.died:
			end.As, end.Reason = outbox.SettledDead, f.why.Text
		case f.kind == nacking:
			end.As = outbox.SettledRetried
		}
		ends = append(ends, end)
	}
	for _, c := range x.deadOrphans {
		ends = append(ends, report.End{Event: c.Event, As: outbox.SettledDead, Reason: errOrphan.Error()})
	}
	return ends
}

// account logs the known outcomes of x, of which so many were handed back, and adds them up.
func (d *Dispatcher) account(x *roundTrip, handedBack int) (r Report) {
	if !x.committed {
		return r
	}
	if n := len(x.deadOrphans); n > 0 {
		r.Dead += n
		for _, c := range x.deadOrphans {
			d.rep.Trouble(report.Dead, "event is dead: its row was deleted from the table events by hand", c.Event,
				errOrphan.Error())
		}
	}
	if x.unsettled > 0 {
		d.log.Error("events were queued although they were final: somebody has written their rows by hand", "count",
			x.unsettled)
	}
	for i := range x.settlements {
		d.accountFor(&x.settlements[i], &r)
	}
	r.HandedBack += handedBack
	d.rep.Add(r)
	return r
}

// accountFor logs the outcome of f and adds it to r.
func (d *Dispatcher) accountFor(f *settlement, r *Report) {
	e := &f.claimed.Event
	switch {
	case f.outcome == 0: // not known yet
		return
	case f.outcome == refused:
		d.logRefusal(f)
	case f.outcome == Lost && f.kind == acking:
		d.rep.Trouble(report.Lost, "event was handled but lost to another claim", *e, "it was handled")
	case f.outcome == Lost && f.kind == nacking:
		d.rep.Trouble(report.Lost, "event failed and was lost to another claim", *e, f.why.Text)
	case f.outcome == Lost:
		d.rep.Trouble(report.Lost, "event lost", *e, outbox.ErrLeaseLost.Error())
	case f.kind == acking:
		r.Delivered++
		d.rep.Delivered(e)
		return
	case f.kind == releasing:
		if f.why.Waits {
			d.rep.Trouble(report.Waiting, "event waits", *e, f.why.Text)
		}
		return
	case f.died:
		r.Dead++
		d.rep.Trouble(report.Dead, "event is dead", *e, f.why.Text)
		return
	default:
		r.Retried++
		d.rep.Trouble(report.Failed, "event failed", *e, f.why.Text)
		return
	}
	if f.kind != releasing {
		r.Lost++
	}
}

// logRefusal logs that PostgreSQL refuses to settle an event. The event stays as it is until its lease runs out.
func (d *Dispatcher) logRefusal(f *settlement) {
	d.rep.Trouble(report.Refused, "event cannot be settled and is left to its lease: PostgreSQL refuses to change it",
		f.claimed.Event, f.refusal.Error())
}
