package core

import (
	"fmt"
	"time"

	"github.com/outboxgen/outboxgen/internal/call/errtext"
	"github.com/outboxgen/outboxgen/outbox"
)

// check reads what the shard waits for. It sleeps when it has read that and then got no lease. In the other order it
// would miss events that fall due in between.
func (c *Core) check() {
	c.pace.Start(c.now)
	c.state, c.until, c.woken = Checking, time.Time{}, false
	c.ask(Check{}, checkCall)
}

func (c *Core) onChecked(in Checked) {
	if in.Gone || in.Wait.Shards != c.cfg.Shards {
		c.reshape = true
		c.goOn()
		return
	}
	w := in.Wait
	c.wait, c.afterNo, c.newerAt, c.due = &w, w.LeaseNo, in.NewerAt, time.Time{}
	if w.In >= 0 {
		c.due = c.now.Add(w.In + time.Millisecond)
	}
	switch {
	case !w.Ready:
		c.untaken = untaken{}
	case c.untaken.leaseNo != w.LeaseNo || c.untaken.since.IsZero():
		c.untaken = untaken{leaseNo: w.LeaseNo, since: c.now}
	}
	c.goOn()
}

// idle follows when there is no lease to be had: it checks why, or sleeps if it has.
func (c *Core) idle() {
	switch {
	case c.wait == nil:
		c.check()
	case c.wait.Resharding:
		c.pace.Stop(c.now)
		c.state = Checking
		c.ask(Reshard{}, reshardCall)
	case c.cfg.Drain:
		c.finish(Stopped, nil)
	default:
		c.pace.Stop(c.now)
		c.sleep()
	}
}

func (c *Core) onResharded(in Resharded) {
	if !c.cfg.Drain {
		c.sleep()
		return
	}
	if in.Stepped {
		c.leases++ // there may be more to do now
	}
	c.finish(Stopped, nil)
}

// reshardPoll is the pause between the steps of a change of shards.
const reshardPoll = 20 * time.Millisecond

// newerFor is how long after it has met an event of an unknown version a process asks for no shards of others: it would
// give them up at the next such event.
const newerFor = 30 * time.Second

// sleep waits until the shard may have something to do. If there was a wake-up since the check, it checks again at
// once.
func (c *Core) sleep() {
	w, activity, limit := c.wait, IsIdle, c.cfg.PollInterval
	switch foreign := w.ForeignLease || w.Kept; {
	case w.Resharding:
		activity, limit = IsWaiting, min(limit, reshardPoll)
	case foreign && c.worked: // the shard was just handed to a process that may be asleep
		c.do(WakeOthers{})
	case foreign && c.now.Sub(c.newerAt) >= newerFor: // or it has met none
		c.do(RequestShard{})
	}
	if w.ForeignLease || w.Paused || w.Blocked {
		activity = IsWaiting
	}
	pause := c.pace.Pause()
	var until time.Time // zero: the process wakes an idle shard
	switch wait := c.due.Sub(c.now); {
	case c.leavesToOthers():
		activity, until = IsWaiting, later(c.newerUntil, c.now.Add(pause))
	case w.Ready: // check again when the preferred process has had time to take it
		if activity == IsIdle {
			activity = IsChecking
		}
		until = later(c.untaken.since.Add(c.cfg.TakeOverAfter), c.now.Add(pause))
	case !c.due.IsZero() && (wait < limit || activity == IsIdle):
		until = c.due
	case activity == IsWaiting:
		until = c.now.Add(max(c.cfg.Random.Within(limit), pause))
	}
	c.worked = false
	c.do(Report{activity, pause})
	if c.woken {
		c.check()
		return
	}
	c.state, c.until = Sleeping, until
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// leavesToOthers reports whether the shard is not to be taken now, because its next event has an unknown version. A
// Drain leaves it permanently.
func (c *Core) leavesToOthers() bool {
	return !c.newerUntil.IsZero() && (c.cfg.Drain || c.now.Before(c.newerUntil))
}

// mayTakeOver reports whether this process may take the next lease although it is left to another process. A Drain
// takes it immediately.
func (c *Core) mayTakeOver() bool {
	v := c.untaken
	return c.cfg.Drain ||
		!v.since.IsZero() && v.leaseNo == c.afterNo && c.now.Sub(v.since) >= c.cfg.TakeOverAfter
}

// roundTrip writes the end of a lease, if there is one, and takes the next one if take is set.
func (c *Core) roundTrip(take bool) {
	cmd := RoundTrip{End: c.end}
	c.state = Taking
	if c.end != nil {
		c.state = Ending
		c.end.Release = c.end.Release || !c.mayTake() && !c.reshape && c.abandoned == nil
		c.previousID, c.afterNo = c.end.Lease.ID, c.end.Lease.No
	}
	c.following, c.carried = c.carried, nil
	if take {
		c.filled, c.fillUntil = false, time.Time{}
		size := c.batchSize()
		cmd.Take = &Take{
			ID: c.nextID, Previous: c.previousID, AfterNo: c.afterNo, TakeOver: c.mayTakeOver(), BatchSize: size,
			ScanSize: max(c.scanSize, size), Read: c.following == nil,
		}
	}
	c.ask(cmd, roundTripCall)
}

// onRoundTripFailed follows when it is not known whether the end of a lease was written. It is written again, and the
// same lease is asked for again.
func (c *Core) onRoundTripFailed(in Failed) {
	if c.end != nil {
		c.end.restoreReturned()
	}
	switch {
	case c.abandoned != nil:
		c.finish(Stopped, errtext.Join(c.abandoned, in.Err))
	case in.Final || c.reshape: // the lease runs out
		c.finish(Stopped, c.unsettled(in.Err))
	default:
		c.pauseOrEnd(in.Err)
	}
}

func (c *Core) unsettled(err error) error {
	if c.end == nil {
		return nil
	}
	n := len(c.end.Lease.Entries())
	return fmt.Errorf("stop listener: %d events of shard %d could not be settled: %w", n, c.cfg.Shard, err)
}

func (c *Core) onRoundTripDone(in RoundTripDone) {
	if c.end != nil && !in.Ours { // an earlier try, whose answer was lost, may have ended the lease
		c.tripDone = &in
		c.ask(AskLease{}, leaseStateCall)
		return
	}
	c.onEnded(in)
}

// onLeaseState decides whether an earlier try had already ended the lease. That try may also have taken the next lease.
func (c *Core) onLeaseState(in LeaseState) {
	ended := c.end.Lease
	done := *c.tripDone
	done.Ours = in.Known && (in.ID == ended.ID && !in.Running || in.ID == c.nextID && in.No == ended.No+1)
	c.onEnded(done)
}

// onEnded follows when the fate of the end of a lease is known.
func (c *Core) onEnded(in RoundTripDone) {
	c.dbRetry.Reset()
	if a := c.end; a != nil {
		c.end, c.tripDone = nil, nil
		if !in.Ours {
			a.restoreReturned()
		}
		if c.abandoned != nil {
			c.do(TellUndone{a.Lease, in.Ours})
			c.finish(Stopped, errtext.Join(c.abandoned, lostUnless(in.Ours)))
			return
		}
		c.do(TellEnd{End: a, Ours: in.Ours})
	}
	if c.wakesOthers {
		c.wakesOthers = false
		c.do(WakeOthers{HandedOver: true})
	}
	switch {
	case in.Lease == nil: // none was asked for
		c.goOn()
	case in.Lease.No == 0:
		c.onNothing(in.Took)
	default:
		c.onTaken(in.Lease, in.Took)
	}
}

func lostUnless(ours bool) error {
	if ours {
		return nil
	}
	return outbox.ErrLeaseLost
}

// onNothing follows when no lease could be taken. An earlier attempt to take it may still reach the server: the next
// attempt then requests the same lease, and gets it.
func (c *Core) onNothing(took time.Duration) {
	if c.repeats { // that lease is over
		c.nextID, c.repeats = c.cfg.NewID(), false
		c.goOn()
		return
	}
	c.do(TellTaken{Took: took})
	if !c.mayTake() {
		c.goOn()
		return
	}
	c.idle()
}

// onTaken prepares for the next lease, and reads the first batch of this one unless it was read.
func (c *Core) onTaken(lease *Lease, took time.Duration) {
	c.nextID, c.repeats, c.afterNo = c.cfg.NewID(), false, lease.No
	c.lease, c.wait, c.lost, c.state = lease, nil, false, Handling
	lease.Took = took
	p := c.following
	c.following = nil
	switch {
	case p == nil:
		c.onRead()
	case p.follows(lease):
		lease.begin(&c.cfg, c.now, p, c.retries)
		c.opened(true)
	default:
		c.ask(ReadFirst{lease}, firstCall)
	}
}

func (c *Core) onRead() {
	if c.lease.OneByOne {
		c.lease.BatchSize = 1
	}
	c.lease.Prepare(&c.cfg, c.now, c.retries)
	c.opened(false)
}

// maxScan limits the positions that a lease reads to find few events.
const maxScan = 1000

// ParkedBatch is how many parked events of one key a lease takes.
const ParkedBatch = 50

// opened follows when a lease has its first batch.
func (c *Core) opened(carried bool) {
	lease := c.lease
	c.scanSize = c.cfg.BatchSize
	if len(lease.Events) < lease.Scanned/4 {
		c.scanSize = min(2*lease.ScanSize, max(maxScan, c.cfg.BatchSize))
	}
	c.carriedOn = carried
	c.worked = true
	c.leases++
	if !c.cfg.Drain {
		c.do(Report{IsWorking, 0})
	}
	switch {
	case lease.ParkedDue && lease.OneByOne:
		c.ask(TakeParked{lease, 1, 1}, parkedCall)
	case lease.ParkedDue:
		c.ask(TakeParked{lease, c.cfg.ParkedKeys, ParkedBatch}, parkedCall)
	default:
		c.charge()
	}
}

func (c *Core) onRegistered(in Registered) {
	switch {
	case in.Shards == 0:
		c.finish(Detached, nil)
	case c.stopping:
		c.finish(Stopped, nil)
	default:
		c.shards = in.Shards
		c.finish(Reshaped, nil)
	}
}
