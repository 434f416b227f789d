package core

import (
	"fmt"
	"time"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/outbox"
)

// repeat makes the next lease the same one again, because nothing of it was handled, or what was handled was undone.
func (c *Core) repeat() { c.nextID, c.repeats = c.lease.ID, true }

// charge counts the attempt at the event of a one-by-one lease before it is made.
func (c *Core) charge() {
	switch e := c.lease.mustCharge(); {
	case e == nil:
		c.begin()
	case c.cfg.Together > 1 && c.lease.trying == 0:
		c.ask(Try{c.lease}, tryCall)
	default:
		c.ask(Charge{c.lease, e}, chargeCall)
	}
}

// onTried gives a one-by-one lease as many events as may be tried together after a crash.
// They are half of those that were tried before, so no attempt is charged until one is alone.
func (c *Core) onTried(in Tried) {
	if !in.Ours {
		c.closeLease()
		c.goOn()
		return
	}
	lease := c.lease
	lease.trying = in.Size
	if p := in.Next; p != nil && p.Scanned > 0 {
		lease.OneByOne, lease.BatchSize, lease.ScanSize = false, in.Size, in.Size
		lease.Events, lease.Scanned, lease.ScannedTo = append(lease.Events, p.Events...), 1+p.Scanned, p.ScannedTo
		lease.Prepare(&c.cfg, c.now, c.retries)
	}
	c.charge()
}

func (c *Core) onCharged(in Charged) {
	if !in.Ours {
		c.closeLease()
		c.goOn()
		return
	}
	c.lease.LastSeq = c.lease.Events[0].Seq - 1
	c.begin()
}

// begin tells what was taken, and begins the transaction of the handlers if they have one.
func (c *Core) begin() {
	c.do(TellTaken{Lease: c.lease, Carried: c.carriedOn, Took: c.lease.Took})
	if c.cfg.Transactional {
		if c.budget != nil {
			c.before = c.budget.left
		}
		c.ask(Begin{}, beginCall)
		return
	}
	c.handleFirst()
}

// handleFirst hands the first batch of the lease to the shell.
func (c *Core) handleFirst() {
	c.lease.began = c.now
	c.renewAt = c.renewalOf(c.lease)
	c.handleBatch()
}

func (c *Core) handleBatch() {
	entries := c.lease.Current()
	if c.cfg.Transactional {
		entries = c.search.pick(entries)
	}
	c.batch = newBatch(&c.cfg, c.lease, c.budget, entries)
	c.batch.waits = c.waits() && len(c.search.picked) == 0 && !c.lease.OneByOne && c.lease.trying == 0 &&
		c.lease.newer == nil
	// What came after a look that found nothing waits for more, as what a look finds.
	c.batch.fresh, c.foundNone = c.foundNone, false
	c.since, c.handled, c.awaitUntil, c.bytes = c.now, nil, time.Time{}, c.lease.size()
	if c.nextBatch = c.planNextBatch(); c.nextBatch != nil {
		c.do(Prefetch{c.nextBatch})
	}
	c.do(Handle{c.batch})
}

// renewalOf is when lease is to be renewed: when a third of it has passed.
func (c *Core) renewalOf(lease *Lease) time.Time {
	return lease.Deadline.Add(-c.cfg.LeaseDuration + c.cfg.LeaseDuration/3)
}

func (c *Core) onHandled(in Handled) {
	if in.Batch != c.batch || c.handled != nil {
		return
	}
	c.handled = &in
	c.slow = c.now.Sub(c.since) > max(c.cfg.LeaseAge/2, c.cfg.AheadWithin)
	c.grow()
	c.proceed()
}

func (c *Core) onRenewed(in Renewed) {
	if in.Lease != c.lease || !c.renewing {
		return
	}
	c.renewing = false
	switch {
	case in.Lost:
		c.lose()
	case in.Failed: // it is tried again, or given up in time
		c.renewAt = c.now.Add(c.cfg.LeaseDuration / 10)
		if last := in.Lease.Deadline.Add(-c.cfg.LeaseDuration / 5); last.Before(c.renewAt) {
			c.renewAt = last
		}
	default:
		in.Lease.Deadline = in.Sent.Add(c.cfg.LeaseDuration)
		c.renewAt = c.renewalOf(in.Lease)
	}
	c.proceed()
}

// renew renews the lease when that is due. A lease that cannot be renewed is given up before it has run out, also if the
// database does not answer.
func (c *Core) renew() {
	last := c.lease.Deadline.Add(-c.cfg.LeaseDuration / 5) // then it is given up
	switch {
	case c.lost || c.renewing || c.now.Before(c.renewAt):
	case !c.now.Before(last):
		c.lose()
	default:
		c.renewing, c.cancelled = true, false
		until := c.now.Add(max(c.cfg.LeaseDuration/5, time.Second)) // then once more, on another connection
		if last.Before(until) {
			until = last
		}
		c.do(Renew{c.lease, until})
	}
}

func (c *Core) lose() {
	c.lost = true
	c.growth.Reset(c.now)
	c.do(TellLost{})
	c.do(StopHandlers{c.batch})
}

// proceed decides how the lease goes on, when its batch is over and nothing else of it is under way.
func (c *Core) proceed() {
	if c.batch == nil || c.asked != noCall {
		return
	}
	if c.handled == nil {
		c.renew()
		return
	}
	p := c.nextBatch
	if p != nil && !p.done {
		c.awaitNextBatch(p)
		return
	}
	if p != nil && p.tooLarge() {
		c.growth.Reset(c.now)
	}
	if c.nextBatch = nil; c.usable(p) {
		c.lease.noteParked()
		p.parkedNow = c.lease.parkedNow
		if !c.full(p) {
			c.continueWith(p)
			c.do(TellTaken{Lease: c.lease, Continued: true, Took: c.lease.Took})
			c.handleBatch()
			return
		}
		c.carried = p
	}
	if c.renewing { // a lease that has ended must not be renewed
		if !c.cancelled {
			c.cancelled = true
			c.do(CancelRenew{})
		}
		return
	}
	switch {
	case c.handled.Running != "":
		c.abandon()
	case c.cfg.Transactional:
		c.endTx()
	default:
		c.endLease(false)
	}
}

// awaitNextBatch waits for what is being read, but not long.
func (c *Core) awaitNextBatch(p *NextBatch) {
	switch {
	case c.awaitUntil.IsZero():
		c.awaitUntil = c.now.Add(c.cfg.LeaseAge)
	case !p.dropped && !c.now.Before(c.awaitUntil):
		p.dropped = true
		c.do(DropPrefetch{p})
	}
}

// abandon ends a lease whose handlers still run although the time to stop is over. The results of the other handlers
// are kept. Nobody gets the shard until the lease runs out. A transaction is still in use, and cannot be ended.
func (c *Core) abandon() {
	c.abandoned = fmt.Errorf("stop listener: still running after %s: %s", c.cfg.ShutdownTimeout, c.handled.Running)
	if c.cfg.Transactional {
		c.do(RollbackLater{c.batch})
		c.finish(Stopped, c.abandoned)
		return
	}
	c.end = c.cfg.End(c.lease, c.now, false)
	c.end.LetLeaseExpire = true
	c.closeLease()
	c.goOn()
}

// endLease computes the end of the lease. If it stopped at an event of an unknown version, the core first asks who
// knows it.
func (c *Core) endLease(inTx bool) {
	c.end, c.inTx = c.cfg.End(c.lease, c.now, c.stopping), inTx
	c.heldBack = c.batch.held
	c.end.Cuts = c.batch.held && !c.end.Closes && c.end.RetryCount == 0 && len(c.end.AheadSeqs) == 0
	if c.newer = c.lease.stoppedAt(); c.newer != nil && (c.newer == c.lease.newer || !c.cfg.Drain) {
		c.ask(FindProcess{c.newer}, processCall)
		return
	}
	c.write()
}

// stoppedAt returns the event of an unknown version because of which the shard may be given up; nil if there is none.
func (lease *Lease) stoppedAt() *Entry {
	if e := lease.newer; e != nil && e.Status != Parked { // behind another event of its key
		return e
	}
	return lease.newerParked
}

// onProcessFound gives the shard to the process that knows the version, and notes that this process is not to take it
// again soon. It keeps the shard if only parked events are newer and no other process knows their version.
func (c *Core) onProcessFound(in ProcessFound) {
	if e := c.newer; e == c.lease.newer || in.Worker.Valid {
		c.end.Release, c.end.HandTo = true, in.Worker
		c.newerUntil = c.now.Add(c.cfg.PollInterval)
		c.wakesOthers = c.wakesOthers || c.newerSeq != e.Seq || c.newerTo != in.Worker
		c.newerSeq, c.newerTo = e.Seq, in.Worker
		c.do(TellNewer{e, in.Worker.Valid})
	}
	c.write()
}

// write writes the end of the lease.
func (c *Core) write() {
	if c.inTx {
		c.ask(Commit{c.end}, commitCall)
		return
	}
	c.rememberRetries(c.end)
	c.closeLease()
	c.goOn()
}

// rememberRetries keeps the pending retries in case this process takes the next lease too.
func (c *Core) rememberRetries(a *End) {
	if a.Closes {
		clear(c.retries)
	}
	for _, e := range c.lease.earlier {
		delete(c.retries, e.Seq)
	}
	for _, e := range c.lease.Events {
		if e.retry != nil {
			c.retries[e.Seq] = *e.retry
		} else {
			delete(c.retries, e.Seq)
		}
	}
}

// closeLease forgets the lease, whose end, if it has one, is yet to be written.
func (c *Core) closeLease() {
	if c.lease.idle() || c.nothingAllowed() {
		c.worked = false
		c.leases--
	}
	if c.batch != nil {
		c.resumes = c.batch.resumes
	}
	c.reshape = c.reshape || c.lease.Shards != c.cfg.Shards
	c.lease, c.batch, c.handled, c.nextBatch, c.newer = nil, nil, nil, nil, nil
}

// endTx ends a lease in the transaction of its handlers, if that is still well.
func (c *Core) endTx() {
	switch h := c.handled; {
	case c.lost: // takes precedence over what has happened since
		c.do(Rollback{})
		c.undone(outbox.ErrLeaseLost, false)
	case h.TxErr != nil:
		c.onBrokenTx(h.TxErr, h.TxResult, true)
	default:
		c.endLease(true)
	}
}

func (c *Core) onCommitted(in Committed) {
	a := c.end
	c.end = nil
	if !in.Ours {
		a.restoreReturned()
		c.do(Rollback{})
	}
	c.search.onCommitted(c.lease.Entries())
	c.rememberRetries(a)
	c.do(TellEnd{End: a, Ours: in.Ours, InTx: true})
	c.closeLease()
	c.goOn()
}

func (c *Core) onCommitFailed(in CommitFailed) {
	c.end.restoreReturned()
	c.end = nil
	if in.Alive { // a deferred constraint, for example
		c.onBrokenTx(in.Err, in.Result, false)
		return
	}
	c.do(Rollback{})
	c.undone(in.Err, false)
}

// onBrokenTx handles a transaction that a handler made unusable. If it broke while a handler was running, this is the
// handler that was started last. If it broke at the commit, it is one of them. If only one was started, its event has
// failed, with result. Otherwise each of the next leases takes fewer events, until the event is found.
func (c *Core) onBrokenTx(cause error, result errclass.Result, running bool) {
	c.do(Rollback{})
	started := c.lease.resetStarted()
	switch {
	case c.stopping, len(started) == 0:
		c.undone(cause, false)
	case len(started) > 1:
		last := 0
		if running {
			last = max(c.batch.lastCall, 1)
		}
		c.search.onBroken(started, last)
		c.undone(cause, !running) // if it was running, the connection may be lost because of the database
	default:
		c.cfg.decide(started[0], result)
		c.search.found(started[0])
		c.endLease(false)
	}
}

// undone handles a lease whose events are rolled back. If they were committed nevertheless, the next lease continues
// after them. found says that the database is well: an event broke the transaction, and is searched for.
func (c *Core) undone(cause error, found bool) {
	c.do(TellRolledBack{c.lease, cause})
	c.repeat()
	if c.budget != nil { // a bounded Drain must come to the event that is searched for
		c.budget.left = c.before
	}
	if c.stopping { // the next holder need not wait, or handle events one by one
		c.lease.resetStarted()
		c.end = c.cfg.End(c.lease, c.now, true)
		c.closeLease()
		c.goOn()
		return
	}
	c.do(TellUndone{c.lease, false})
	c.closeLease()
	if found {
		c.goOn()
		return
	}
	c.pauseAfterError()
}
