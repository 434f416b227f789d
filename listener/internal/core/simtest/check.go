package coresim

import (
	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/listener/internal/core"
)

// checkEnd requires that the end of a lease passes no event that is not done. done are those of its own transaction.
func (w *world) checkEnd(shard int, by uuid.UUID, a *core.End, done []int64) {
	if !w.holds(shard, by, a.Lease.No) {
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
			w.fail("shard %d passes event %d of key %s, which is not done", shard, r.seq, r.key)
		}
	}
}

// effect records that an event was handled, and requires that those of its key before it are over.
func (w *world) effect(seq int64) {
	r := w.rowOf(seq)
	for _, earlier := range w.log[:seq-1] {
		if earlier.key == r.key && w.effects[earlier.seq] == 0 && !w.dead.has(earlier.seq) && !w.dying(earlier.seq) {
			w.fail("event %d of key %s was handled before event %d", seq, r.key, earlier.seq)
		}
	}
	if w.effects[seq]++; w.effects[seq] > 1 && w.mode.Transactional {
		w.fail("event %d took effect twice", seq)
	}
}

// dying reports whether an event has failed for good in a lease whose end is not written yet.
func (w *world) dying(seq int64) bool {
	return w.failing[seq] >= w.mode.MaxAttempts || w.poisonTx.has(seq)
}
