package simtest

import (
	"time"

	"github.com/google/uuid"
)

// Fence is a claim of an event.
type Fence struct {
	Worker  uuid.UUID
	ClaimNo int
}

// Lease leases r to a worker. It reports whether an earlier lease ran out.
func (t *Table) Lease(r *Row, worker uuid.UUID, now time.Time, lease time.Duration) (again bool) {
	again = r.leased()
	r.Attempts++
	r.ClaimNo++
	r.LockedBy, r.LockedUntil, r.Updated = worker, now.Add(lease), now
	return again
}

// owns reports whether f is the claim that r is leased to. Each kind of statement has the guard.
func (t *Table) owns(r *Row, f Fence, statement string) bool {
	if t.lacks("fence-of-" + statement) {
		return r.Final == "" && r.leased()
	}
	return r.ClaimNo == f.ClaimNo && r.LockedBy == f.Worker && r.Final == "" && (r.leased() || t.lacks("settle-once"))
}

// Ack is EventAck.
func (t *Table) Ack(r *Row, f Fence) bool {
	if !t.owns(r, f, "ack") {
		return false
	}
	r.Final, r.LockedUntil = "delivered", time.Time{}
	return true
}

// Nack is EventNack. The event is due again at due.
func (t *Table) Nack(r *Row, f Fence, now time.Time, permanent bool, due time.Time) bool {
	if !t.owns(r, f, "nack") {
		return false
	}
	r.LockedUntil = time.Time{}
	if permanent && !t.lacks("nack-permanent") || r.Attempts >= r.Max && !t.lacks("nack-last") {
		r.Final = "dead"
	} else {
		r.Due, r.Updated = due, now
	}
	return true
}

// Release is EventRelease. The event is due as before, or after a while.
func (t *Table) Release(r *Row, f Fence, now time.Time, after time.Duration) bool {
	if !t.owns(r, f, "release") {
		return false
	}
	if !t.lacks("release-attempt") {
		r.Attempts = max(r.Attempts-1, 0)
	}
	if r.LockedUntil, r.Updated = (time.Time{}), now; after > 0 {
		r.Due = now.Add(after)
	}
	return true
}

// Extend is EventExtend.
func (t *Table) Extend(r *Row, f Fence, now time.Time, lease time.Duration) bool {
	if !t.owns(r, f, "extend") || r.busy != nil {
		return false
	}
	r.LockedUntil, r.Updated = now.Add(lease), now
	return true
}

// Sweep is EventSweepDead: it notes events that no claim takes again, and makes dead letters of those that were noted a
// grace ago. It leaves alone what it may not sweep.
func (t *Table) Sweep(now time.Time, grace time.Duration, may func(*Row) bool) (died []*Row, noted int) {
	if t.lacks("sweep") {
		return nil, 0
	}
	for _, r := range t.rows {
		over := r.LockedUntil.Before(now) || t.lacks("sweep-lease")
		known := r.Updated.After(r.LockedUntil)
		if r.Attempts < r.Max || r.Due.After(now) || r.busy != nil || !may(r) || r.leased() && !over {
			continue
		}
		switch {
		case !r.leased() || known && !r.Updated.After(now.Add(-grace)) || grace == 0 || t.lacks("sweep-lease"):
			r.Final, r.LockedUntil = "dead", time.Time{}
			died = append(died, r)
		case !known:
			r.Updated = now
			noted++
		}
	}
	t.sort()
	return died, noted
}

// Replay is DeadLetterReplay.
func (t *Table) Replay(r *Row, now time.Time) {
	r.Final, r.Attempts, r.Due, r.Updated, r.LockedBy = "", 0, now, now, uuid.Nil
	r.ClaimNo++
	t.rows = append(t.rows, r)
	t.sort()
}
