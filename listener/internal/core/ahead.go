package core

import "time"

// The lease of a leased listener continues with the next batch of its window, without a statement in between. That
// batch was read while the previous one was handled. The lease continues if all events of the previous batch are done,
// or are parked because their target is unavailable or their key is parked already. At its bounds it ends, and the next
// lease begins with the batch. The bounds are Config.LeaseAge, Config.LeaseBatches and:
const (
	// prefetchBytes limits the payload that is read ahead.
	prefetchBytes = 16 << 20
	// MaxParkedKeys is how many keys of a listener may be parked. If that many fail, the cause is hardly in the events,
	// and the listener waits instead.
	MaxParkedKeys = 1000
)

// NextBatch is the next batch, read while the current one is handled. The shell fills the exported fields below Lease.
type NextBatch struct {
	Lease     *Lease // the lease under which it is read
	After     int64  // the position after which it is read
	Size      int    // the maximum number of events and of positions
	Scanned   int
	ScannedTo int64
	Events    []*Entry
	Failed    bool          // it was not read; if the database has failed, the end of the lease will report it
	Took      time.Duration // of the round trip

	bytes     int
	parkedNow map[string]bool // keys that the lease parked before it ended
	done      bool
	dropped   bool
}

// Add adds an event that was read. It returns false if that is too much to keep.
func (p *NextBatch) Add(e *Entry) bool {
	if p.bytes += len(e.Payload); p.tooLarge() {
		return false
	}
	p.Events = append(p.Events, e)
	return true
}

// tooLarge reports whether what was read is too much to keep.
func (p *NextBatch) tooLarge() bool { return p.bytes > prefetchBytes }

// planNextBatch returns what follows the batch of the lease, to be read. It returns nil if the lease could not continue
// with it: at the end of the window, or if events wait for a retry, are parked ones, or are taken one by one. It also
// returns nil if handlers are slow, because the lease would be too old by then, and what is read would be old when it is
// handled. It also does if few of the positions belong to the listener, because LogRead passes them faster.
func (c *Core) planNextBatch() *NextBatch {
	lease := c.lease
	switch {
	case c.cfg.Transactional, c.waits(), c.stopping, c.slow:
		return nil
	case c.budget.atMost(lease.BatchSize+1) <= len(lease.Events): // the batch takes all that is left
		return nil
	case lease.OneByOne, lease.trying > 0:
		return nil
	case lease.newer != nil, lease.ScanSize != lease.BatchSize, lease.Shards != c.cfg.Shards:
		return nil
	case lease.Scanned < lease.ScanSize: // the window has no more
		return nil
	case lease.ParkedDue, len(lease.Parked) > 0, len(lease.attemptsAhead) > 0:
		return nil
	}
	bytes := 0
	for _, e := range lease.Events {
		bytes += len(e.Payload)
		if bytes > prefetchBytes || e.Status != Waiting && !e.ParkedBefore || e.retry != nil {
			return nil
		}
	}
	return &NextBatch{Lease: lease, After: lease.reach(), Size: c.batchSize()}
}

// usable reports whether the lease, or the next one, may go on with p: what it has is done or parked, and p was read.
func (c *Core) usable(p *NextBatch) bool {
	if p == nil || p.dropped || p.Failed || p.Scanned == 0 || c.lost || c.stopping || c.handled.Running != "" {
		return false
	}
	for _, e := range c.lease.Events {
		if e.Status != Done && e.Status != Parked || e.Result.Class.Charged() {
			return false
		}
	}
	return true
}

// full reports whether the lease must end before p.
func (c *Core) full(p *NextBatch) bool {
	lease := c.lease
	return c.now.Sub(lease.began) > c.cfg.LeaseAge ||
		len(lease.earlier)+len(lease.Events)+p.Size > c.cfg.LeaseBatches*c.cfg.BatchSize ||
		len(lease.parkedNow) > MaxParkedKeys
}

// continueWith gives the lease the batch that was read ahead.
func (c *Core) continueWith(p *NextBatch) {
	lease := c.lease
	for _, e := range lease.Events {
		c.cfg.dropPayload(e)
	}
	lease.earlier = append(lease.earlier, lease.Events...)
	lease.LastSeq, lease.RetryCount = p.After, 0
	lease.begin(&c.cfg, c.now, p, c.retries)
}

// noteParked records which keys the batch of the lease has parked.
func (lease *Lease) noteParked() {
	for _, e := range lease.Events {
		if e.Status == Parked && !e.ParkedBefore {
			if lease.parkedNow == nil {
				lease.parkedNow = make(map[string]bool)
			}
			lease.parkedNow[e.Key] = true
		}
	}
}

// begin gives the lease the events of p as its next batch.
func (lease *Lease) begin(c *Config, now time.Time, p *NextBatch, retries map[int64]Retry) {
	lease.BatchSize, lease.ScanSize = p.Size, p.Size
	lease.Events, lease.Scanned, lease.ScannedTo, lease.Took = p.Events, p.Scanned, p.ScannedTo, p.Took
	lease.AheadSeqs, lease.AheadAttempts = nil, nil
	lease.Prepare(c, now, retries)
	for _, e := range lease.Events { // these keys were not parked yet when p was read
		if p.parkedNow[e.Key] {
			e.Status, e.ParkedBefore = Parked, true
		}
	}
}

// follows reports whether p is what the lease would read as its first batch. The lease is the one after that of p, with
// the same number of shards: otherwise the statement that takes it would have found another lease_no.
func (p *NextBatch) follows(lease *Lease) bool {
	return lease.LastSeq == p.After && len(lease.AheadSeqs) == 0 && lease.RetryCount == 0 && !lease.OneByOne
}
