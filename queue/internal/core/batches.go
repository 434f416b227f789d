package core

import (
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
)

// maxBatched limits the events in flight that are in batches, and what a drain claims at once for them.
const maxBatched = 10_000

// batching is what a core knows of targets whose handlers get batches, and of events whose lease had run out.
type batching struct {
	batchTargets []*Target
	batched      int // events of batches in flight and not finished
	extra        int // so many of them take no room from the others

	suspects      int       // events in flight whose lease had run out: one of them may have killed its process
	suspectsSince time.Time // when the first of them was claimed
}

// batches reports whether the handler of t gets batches.
func (t *Target) batches() bool { return t.Batch.Size > 0 }

// newBatching makes room in cfg for a full batch in one claim, and for one per worker in flight.
func newBatching(cfg *Config) (b batching) {
	largest := 0
	for _, t := range cfg.Targets {
		if t.batches() {
			b.batchTargets = append(b.batchTargets, t)
			largest = max(largest, t.Batch.Size)
		}
	}
	cfg.BatchSize = max(cfg.BatchSize, largest)
	b.extra = max(min(largest*cfg.Concurrency, maxBatched), largest)
	return b
}

// largest returns the size of the largest batches.
func (b *batching) largest() (size int) {
	for _, t := range b.batchTargets {
		size = max(size, t.Batch.Size)
	}
	return size
}

// added notes that t was claimed.
func (b *batching) added(now time.Time, t *Task) {
	if t.to.batches() {
		b.batched++
	}
	if t.Reclaimed {
		if b.suspects == 0 {
			b.suspectsSince = now
		}
		b.suspects++
	}
}

// left notes that t is finished. Claims take few events whose lease has run out at first, because one of them may kill
// this process too, and each that it holds then loses an attempt. With batches they take twice as many when all of those
// are finished, up to half a batch. So a process that dies of an event loses an attempt of at most half as many others as
// the one before.
func (c *Core) left(t *Task) {
	if t.to.batches() {
		c.batched--
	}
	if !t.Reclaimed {
		return
	}
	if c.suspects--; c.suspects != c.suspectsLimit()-1 {
		return
	}
	if t.Tried {
		c.claims.reclaims = max(min(2*c.claims.reclaims, c.largest()/2), ReclaimsPerClaim)
	}
	c.requestLook()
}

// suspectsLimit is how many events whose lease had run out may be in flight when others are claimed: as many as the workers
// handle at once, and none with batches.
func (c *Core) suspectsLimit() int {
	if len(c.batchTargets) > 0 {
		return 1
	}
	return max(c.cfg.Concurrency, ReclaimsPerClaim)
}

// suspecting reports whether so many events whose lease had run out are in flight that no others are claimed. It does so
// for LastAttemptLimit, because an event that kills its process usually does so soon.
func (c *Core) suspecting(now time.Time) bool {
	return c.suspects >= c.suspectsLimit() && now.Sub(c.suspectsSince) < c.cfg.LastAttemptLimit
}

// startBatched makes t wait for others of its target. Those whose lease had run out wait apart.
func (t *Target) startBatched(task *Task) {
	if task.Reclaimed {
		t.again = append(t.again, task)
	} else {
		t.ready = append(t.ready, task)
	}
}

// limit returns how many events a batch with task may have. An event whose lease had run out may have killed its
// process: with each attempt it gets a batch of half the size, and on its last attempt it is alone.
func (t *Target) limit(task *Task) int {
	switch {
	case !task.Reclaimed:
		return t.Batch.Size
	case task.isLastAttempt():
		return 1
	}
	return max(t.Batch.Size>>min(task.Attempt-1, 30), 1)
}

// handBatch gives a batch to the workers if one comes before the event that waits longest. wait says that one does, and
// must wait for a worker that is free.
func (c *Core) handBatch(now time.Time) (handed, wait bool) {
	to, q := c.oldestBatch(now)
	if q == nil {
		return false, false
	}
	if next := c.peekReady(); next != nil && next.order < (*q)[0].order {
		return false, false
	}
	if q == &to.ready && len(*q) < to.Batch.Size && c.running >= c.cfg.Concurrency {
		return false, true // until then it may become larger
	}
	c.runBatch(now, to, to.takeBatch(q))
	return true, false
}

// oldestBatch returns the queue of the batch that has waited longest, nil if none may begin.
func (c *Core) oldestBatch(now time.Time) (of *Target, oldest *[]*Task) {
	for _, t := range c.batchTargets {
		for _, q := range [...]*[]*Task{&t.again, &t.ready} {
			if len(*q) > 0 && (oldest == nil || (*q)[0].order < (*oldest)[0].order) && c.ripe(now, t, q) {
				of, oldest = t, q
			}
		}
	}
	return of, oldest
}

// ripe reports whether the batch q of t waits for no more events: it is full, has waited long enough, or no others can
// come.
func (c *Core) ripe(now time.Time, t *Target, q *[]*Task) bool {
	return q == &t.again || len(*q) >= t.Batch.Size || c.cfg.Drain || !now.Before(c.goesAt(t)) ||
		t.Rest.Resting() || c.claimsPaused(now) || c.crowded()
}

// goesAt returns when the batch that fills for t waits no longer: so long after its first event was claimed, or when half of
// the time is over in which a rate allows it to begin.
func (c *Core) goesAt(t *Target) time.Time {
	first := t.ready[0]
	claimed, wait := first.ClaimDeadline.Add(-c.lease), t.Batch.Wait
	if !first.StartWithin.IsZero() {
		wait = min(wait, first.StartWithin.Sub(claimed)/2)
	}
	return claimed.Add(wait)
}

// crowded reports whether there is so little room that no more is claimed for batches that fill.
func (c *Core) crowded() bool {
	capacity := c.growth.Size(c.capacity)
	return c.inFlight-len(c.finished)-c.settling-min(c.batched, c.extra) > capacity-capacity/4
}

// takeBatch takes the next batch out of q.
func (t *Target) takeBatch(q *[]*Task) []*Task {
	n, limit := 0, t.Batch.Size
	for n < len(*q) {
		if limit = min(limit, t.limit((*q)[n])); n >= limit {
			break
		}
		n++
	}
	tasks := (*q)[:n:n]
	if *q = (*q)[n:]; len(*q) == 0 {
		*q = nil
	}
	return tasks
}

// runBatch gives those of tasks to a worker that may begin now.
func (c *Core) runBatch(now time.Time, to *Target, tasks []*Task) {
	begun := make([]*Task, 0, len(tasks))
	for _, t := range tasks {
		if c.begin(now, t, "handled") {
			begun = append(begun, t)
		}
	}
	if len(begun) == 0 {
		return
	}
	resting := to.Rest.Resting()
	admitted, why := to.Rest.Admit(now, len(begun))
	for _, t := range begun[admitted:] {
		t.Result = why
		c.report(now, t)
	}
	if admitted == 0 {
		return
	}
	b := &RunBatch{Tasks: begun[:admitted:admitted], left: admitted}
	for _, t := range b.Tasks {
		t.begun, t.admitted, c.rated.latest = true, resting, t.limitedRate()
	}
	c.running++
	c.do(b)
}

// onBatchReported takes in the results of some tasks of a batch.
func (c *Core) onBatchReported(now time.Time, e *BatchReported) {
	if e.Batch.left -= len(e.Tasks); e.Batch.left == 0 {
		c.running--
	}
	c.judgeBatch(now, e.Tasks)
	for _, t := range e.Tasks {
		c.turns.opened(t.Opened)
		switch {
		case t.Ended:
			c.releaseExpired(now, t)
			continue
		case t.Late:
			if !t.lost {
				c.lose(t)
			}
			t.unstarted = true
		case t.Shared && t.isLastAttempt():
			t.unstarted = true
		}
		c.report(now, t)
	}
}

// judgeBatch tells the target of tasks how those were handled that were tried.
func (c *Core) judgeBatch(now time.Time, tasks []*Task) {
	ids, results := make([]uuid.UUID, 0, len(tasks)), make([]errclass.Result, 0, len(tasks))
	var tried *Task
	for _, t := range tasks {
		if t.Tried && !t.Ended {
			tried, ids, results = t, append(ids, t.ID), append(results, t.Result)
		}
	}
	if tried == nil {
		return
	}
	c.tellRests(tried.to.Rest.OnResults(now, tried.Began, ids, results))
	for _, t := range tasks {
		if t.Tried && !t.Ended {
			t.Result, results = results[0], results[1:]
		}
	}
}

// takeBack makes a batch that no worker has begun wait here again.
func (c *Core) takeBack(b *RunBatch) {
	c.running--
	to := b.Tasks[0].to
	q := &to.ready
	if b.Tasks[0].Reclaimed {
		q = &to.again
	}
	for _, t := range b.Tasks {
		t.notBegun()
	}
	*q = append(b.Tasks, *q...)
}
