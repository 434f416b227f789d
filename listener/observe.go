package listener

import (
	"errors"
	"time"

	"github.com/outboxgen/outboxgen/internal/machine/report"
	"github.com/outboxgen/outboxgen/listener/internal/core"
	"github.com/outboxgen/outboxgen/outbox"
)

// tellTaken tells the observer, and the tests, what was taken.
func (l *Listener) tellTaken(cmd core.TellTaken) {
	switch {
	case cmd.Lease == nil:
		l.hooks.Claimed(nil, cmd.Took)
	case l.hooks.WantsClaimed():
		l.hooks.Claimed(claimed(cmd.Lease), cmd.Took)
	}
	if cmd.Carried {
		l.signals.carried.Emit()
	}
	if cmd.Continued {
		l.signals.continued.Emit()
	}
}

// claimed returns the events that lease has read, without those that were done before or are left to other processes.
func claimed(lease *core.Lease) []outbox.Event {
	entries := lease.Current()
	events := make([]outbox.Event, 0, len(entries))
	for _, e := range entries {
		if e.Status != core.Done && !e.Newer {
			events = append(events, e.Event)
		}
	}
	return events
}

// tellEnds tells the observer what has become of the events of lease. moved is false if the lease was lost or rolled
// back.
func (l *Listener) tellEnds(lease *core.Lease, moved bool) {
	if !l.hooks.WantsEnds() {
		return
	}
	all := lease.Entries()
	ends := make([]report.End, 0, len(all))
	for _, e := range all {
		end := report.End{Event: e.Event}
		switch {
		case e.Running, e.Newer && e.Status == core.Waiting, e.Status == core.Done && !e.Started: // done before
			continue
		case !moved:
		case e.Status == core.Done:
			end.As = outbox.SettledDelivered
		case e.Status == core.Dead:
			end.As, end.Reason = outbox.SettledDead, e.Result.Text
		case e.Status == core.Retried:
			end.As = outbox.SettledRetried
		case e.Status == core.Parked && !e.Away:
			end.As = outbox.SettledParked
		default:
			end.As = outbox.SettledReleased
		}
		ends = append(ends, end)
	}
	l.hooks.Ended(ends)
}

// keepingLease is in the log what fails when a lease is lost.
const keepingLease = "keep the lease of a shard"

// tellEnd tells of the end of a lease.
func (s *shard) tellEnd(cmd core.TellEnd) {
	if cmd.Ours && !cmd.InTx {
		s.l.rep.Statement(keepingLease, s.began, nil)
	}
	s.run.account(cmd.End, cmd.Ours)
}

// account logs the results of a lease and adds them up.
func (r *listenerRun) account(a *core.End, moved bool) {
	var sum Report
	for _, e := range a.Lease.Entries() {
		if e.Away {
			sum.HandedBack++
		}
		if e.Lacks != "" {
			sum.HandedBack++
			r.l.rep.Trouble(report.Waiting, "event waits", e.Event, e.Lacks)
		}
		if !e.Started && e.Status != core.Dead {
			continue
		}
		if moved && e.Status == core.Done { // nearly all
			sum.Delivered++
			r.l.rep.Delivered(&e.Event)
			continue
		}
		switch {
		case !moved:
			sum.Lost++
			r.l.rep.Trouble(report.Lost, "event was handled but its lease was lost", e.Event, e.Result.Text)
		case e.Status == core.Dead:
			sum.Dead++
			r.l.rep.Trouble(report.Dead, "event is dead", e.Event, e.Result.Text)
		case e.Status == core.Parked:
			sum.Retried++
			r.l.rep.Trouble(report.Failed, "event failed and is parked", e.Event, e.Result.Text)
		case e.Status == core.Retried:
			sum.Retried++
			r.l.rep.Trouble(report.Failed, "event failed", e.Event, e.Result.Text)
		}
	}
	r.l.rep.Add(sum)
	r.l.tellEnds(a.Lease, moved)
	if r.drained != nil {
		r.drained.Add(sum)
	}
	r.l.signals.ended.Emit()
}

// tellRolledBack records that the transaction of a lease was rolled back.
func (l *Listener) tellRolledBack(shard int, cmd core.TellRolledBack) {
	l.log.Debug("events are rolled back and will be handled again",
		"shard", shard, "count", len(cmd.Lease.Current()), "error", cmd.Cause)
	if errors.Is(cmd.Cause, outbox.ErrLeaseLost) {
		l.rep.LeaseLost(keepingLease)
	} else {
		l.rep.Statement("the transaction of the handlers", time.Now(), cmd.Cause)
	}
}

// tellLost records that the lease of shard is lost while its events are handled.
func (l *Listener) tellLost(shard int) {
	l.log.Debug("lease lost", "shard", shard)
	l.rep.LeaseLost(keepingLease)
	l.signals.lost.Emit()
}
