package listener

import (
	"github.com/outboxgen/outboxgen/internal/machine/report"
	"github.com/outboxgen/outboxgen/outbox"
)

// tellClaimed tells the observer of the events that lease has read, without those that were done before or are left to other processes.
func (l *Listener) tellClaimed(lease *shardLease, entries []*entry) {
	if !l.hooks.WantsClaimed() {
		return
	}
	events := make([]outbox.Event, 0, len(entries))
	for _, e := range entries {
		if e.status != statusDone && !e.newer {
			events = append(events, e.Event)
		}
	}
	l.hooks.Claimed(events, lease.took)
}

// tellEnds tells the observer what has become of the events of lease. moved is false if the lease was lost or rolled back.
func (l *Listener) tellEnds(lease *shardLease, moved bool) {
	if !l.hooks.WantsEnds() {
		return
	}
	all := lease.entries()
	ends := make([]report.End, 0, len(all))
	for _, e := range all {
		end := report.End{Event: e.Event}
		switch {
		case e.running, e.newer && e.status == statusWaiting, e.status == statusDone && !e.started: // done before
			continue
		case !moved:
		case e.status == statusDone:
			end.As = outbox.SettledDelivered
		case e.status == statusDead:
			end.As, end.Reason = outbox.SettledDead, e.result.Text
		case e.status == statusFailed:
			end.As = outbox.SettledRetried
		case e.status == statusParked && !e.away:
			end.As = outbox.SettledParked
		default:
			end.As = outbox.SettledReleased
		}
		ends = append(ends, end)
	}
	l.hooks.Ended(ends)
}
