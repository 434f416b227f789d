package simtest

import (
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/listener/internal/core"
)

// checkEnd requires that the end of a lease passes no event that is not done. done are those of its own transaction.
func (w *world) checkEnd(shard int, by uuid.UUID, a *core.End, done []int64) {
	if !w.holds(shard, by, a.Lease.No, "") {
		return
	}
	c := w.shards[shard]
	var settled set
	for _, list := range [][]int64{a.Dead.Seqs, a.Parking.Seqs, done} {
		for _, seq := range list {
			settled.add(seq)
		}
	}
	for _, r := range w.window(c, c.hi) {
		passed := a.Closes || r.seq <= a.LastSeq
		for i, seq := range a.AheadSeqs {
			passed = passed || seq == r.seq && a.AheadAttempts[i] == 0
		}
		n, before := c.ahead[r.seq]
		if r.bucket%len(w.shards) == shard && passed && !settled.has(r.seq) && w.effects[r.seq] == 0 && !(before && n == 0) {
			w.fail("I8", "shard %d passes event %d of key %s, which is not done", shard, r.seq, r.key)
		}
	}
}

// checkGrowth requires that the cursors of a listener only grow, and remembers where they are.
func (w *world) checkGrowth() {
	for i, c := range w.shards {
		was, known := w.was[c]
		if known && len(was.lo) > 0 && !slices.Equal(was.lo, c.lo) {
			for seq, has := range was.lo {
				if has && !c.lo.has(int64(seq)) {
					w.fail("I8", "the cursor of shard %d goes back before event %d", i, seq)
				}
			}
		}
		if known && was.inBatch && c.inBatch && slices.Equal(was.lo, c.lo) && c.lastSeq < was.lastSeq {
			w.fail("I8", "the cursor of shard %d goes back from %d to %d", i, was.lastSeq, c.lastSeq)
		}
		w.was[c] = *c
	}
}

// begin records that a handler gets an event.
func (w *world) begin(s *shard, b *core.Batch, e *core.Entry) {
	r := w.rowOf(e.Seq)
	w.note(s.name(), fmt.Sprintf("handles event %d of key %s, attempt %d", e.Seq, r.key, e.Attempt))
	if !r.visible {
		invariant := "I2"
		if slices.Contains(w.lost, r) {
			invariant = "I3"
		}
		w.fail(invariant, "event %d is handled, and its transaction is not committed", e.Seq)
	}
	if e.Attempt > w.mode.MaxAttempts {
		w.fail("I6", "event %d is handled for attempt %d of %d", e.Seq, e.Attempt, w.mode.MaxAttempts)
	}
	if e.Version > e.Of.Version {
		w.fail("core", "event %d has version %d, which %s does not know", e.Seq, e.Version, s.p.name)
	}
	for _, o := range w.running[e.Seq] {
		others := o.s != s && !o.s.p.gone && !o.s.p.frozen && o.s.batch == o.batch && !o.s.lost && !o.s.core.Over() &&
			o.s.endedLate != o.batch.Lease.No
		if others && !w.stepped {
			w.fail("I4", "%s handles event %d while %s still does", s.name(), e.Seq, o.s.name())
		}
	}
	w.seen[e.Seq]++
	w.running[e.Seq] = append(w.running[e.Seq], &call{s, b})
	if w.poison.has(e.Seq) {
		w.note(s.name(), fmt.Sprintf("FAULT: event %d kills it", e.Seq))
		w.after(0, func() {
			if !s.p.gone {
				w.kill(s.p)
			}
		})
	}
}

// over records that a handler is over with an event.
func (w *world) over(s *shard, b *core.Batch, seq int64) {
	w.running[seq] = slices.DeleteFunc(w.running[seq], func(o *call) bool { return o.s == s && o.batch == b })
}

// effect records that an event was handled, and requires that those of its key before it are over.
func (w *world) effect(s *shard, seq int64) {
	r := w.rowOf(seq)
	for _, earlier := range w.log[:seq-1] {
		if earlier.visible && earlier.key == r.key && w.effects[earlier.seq] == 0 && !w.dead.has(earlier.seq) && !w.dying(earlier.seq) &&
			w.effects[seq] == 0 {
			w.fail("I7", "event %d of key %s was handled before event %d", seq, r.key, earlier.seq)
		}
	}
	w.counts["handled"]++
	w.note(s.name(), fmt.Sprintf("has handled event %d", seq))
	if w.effects[seq]++; w.effects[seq] == 1 {
		return
	}
	switch {
	case w.mode.Transactional:
		w.fail("I10", "event %d took effect twice", seq)
	case !w.excused && (w.mode.Batch == 0 || len(w.failing) == 0):
		w.fail("I9", "event %d was handled twice, and nothing explains it", seq)
	}
}

// dying reports whether an event has failed for good in a lease whose end is not written yet.
func (w *world) dying(seq int64) bool {
	return w.failing[seq] >= w.mode.MaxAttempts || w.poisonTx.has(seq) || w.poison.has(seq) && w.seen[seq] >= w.mode.MaxAttempts
}
