package simtest

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// walDelay is within what time a commit that does not wait for the disk gets there.
const walDelay = 2 * time.Second

// commitment is a commit that is not on disk yet.
type commitment struct {
	n    int // it is the nth
	undo func()
}

// flush has all commits so far on disk: that of a transaction that waits for the disk has those before it there, too.
func (w *world) flush() { w.unflushed = nil }

// flushIf is flush, for a transaction that may have changed nothing.
func (w *world) flushIf(changed bool) {
	if changed {
		w.flush()
	}
}

// flushLater is for a commit that does not wait for the disk. After a while it is there, with all commits before it.
func (w *world) flushLater(after time.Duration, undo func()) {
	w.commits++
	n := w.commits
	w.unflushed = append(w.unflushed, commitment{n, undo})
	w.after(after, func() {
		w.unflushed = slices.DeleteFunc(w.unflushed, func(c commitment) bool { return c.n <= n })
	})
}

// commitEvent commits the transaction that enqueues r. It waits for the disk if syncs is 0, and otherwise it is there so long
// after its commit.
func (w *world) commitEvent(r *row, syncs time.Duration) {
	w.commit(r)
	if syncs == 0 {
		w.flush()
		return
	}
	w.note("producer", fmt.Sprintf("FAULT: the commit of event %d does not wait for the disk", r.seq))
	w.flushLater(syncs, func() {
		w.note("database", fmt.Sprintf("FAULT: the commit of event %d was not on disk, and is undone", r.seq))
		w.counts["undone commits"]++
		r.visible, w.latest = false, nil
		w.lost = append(w.lost, r)
	})
}

// endUnflushed is for the end of a lease that changes c, and whose commit does not wait for the disk.
func (w *world) endUnflushed(shard int, c *cursor, change func() bool) bool {
	was, parked, dead, no := *c, make([]parkedRow, len(w.parked)), slices.Clone(w.dead), w.lastNo
	was.ahead = maps.Clone(c.ahead)
	for i, r := range w.parked {
		parked[i] = *r
	}
	moved := change()
	if !moved {
		return false
	}
	w.flushLater(w.random(walDelay), func() {
		w.note("database", fmt.Sprintf("FAULT: the end of lease %d of shard %d was not on disk, and is undone", was.leaseNo, shard))
		w.counts["undone ends"]++
		*c, w.dead, w.lastNo, w.parked = was, dead, no, nil
		for i := range parked {
			w.parked = append(w.parked, &parked[i])
		}
		w.done = 0
		delete(w.was, c)
		for _, p := range w.procs {
			for _, s := range p.cores {
				s.late = true
			}
		}
	})
	return true
}

// loseUnflushed undoes the commits that are not on disk. No handler may have begun with their events.
func (w *world) loseUnflushed() {
	for _, c := range slices.Backward(w.unflushed) {
		c.undo()
	}
	w.flush()
	w.requireNoTrace()
}

// requireNoTrace checks I3: an event whose producer does not know whether it was committed is delivered only if its row exists.
// That it is delivered if its row exists is checked as for any other event.
func (w *world) requireNoTrace() {
	for _, r := range w.lost {
		if w.seen[r.seq] > 0 || w.effects[r.seq] > 0 || w.dead.has(r.seq) {
			w.fail("I3", "the row of event %d does not exist, and it was handled", r.seq)
		}
	}
}
