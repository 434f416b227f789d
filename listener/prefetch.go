package listener

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
)

// The lease of a leased listener continues with the next batch of its window, without a statement in between. That
// batch was read while the previous one was handled. The lease continues if all events of the previous batch are done,
// or are parked because their target is unavailable or their key is parked already. At its bounds it ends, and the next
// lease begins with the batch. The bounds are config.LeaseBatches and:
const (
	// leaseAge is the maximum age of a lease when a batch begins. So a pause, a change of shards, or a process that
	// requests the shard waits no longer than for one batch of slow handlers.
	leaseAge = 50 * time.Millisecond
	// prefetchBytes limits the payload that is read ahead.
	prefetchBytes = 16 << 20
)

// prefetch is the next batch, read while the current one is handled.
type prefetch struct {
	after     int64 // the position after which it was read
	leaseNo   int64 // of the lease under which it was read
	scanned   int
	scannedTo int64
	events    []*entry
	parkedNow map[string]bool // keys that the lease parked before it ended
	err       error
	took      time.Duration // of the round trip
	waitLimit time.Duration // the longest time to wait for it
	cancel    context.CancelFunc
	done      chan struct{} // closed when the rest is there
}

// prefetch starts to read what follows the batch of lease. It returns nil if the lease could not continue with it: at
// the end of the window, or if events wait for a retry, are parked ones, or are taken one by one. It also returns nil
// if handlers are slow, because the lease would be too old by then, and if few of the positions belong to the listener,
// because LogRead passes them faster.
func (s *shardLoop) prefetch(ctx context.Context, lease *shardLease) *prefetch {
	size := s.l.cfg.BatchSize
	switch {
	case s.run.budget.atMost(size+1) <= len(lease.events): // the batch takes all that is left
		return nil
	case ctx.Err() != nil, s.slow, lease.oneByOne, lease.newer != nil, lease.batchSize != size, lease.scanSize != size, lease.shards != s.shards:
		return nil
	case len(lease.events) < size && lease.scanned < size: // the window has no more
		return nil
	case lease.parkedDue, len(lease.parked) > 0, len(lease.ahead) > 0:
		return nil
	}
	bytes := 0
	for _, e := range lease.events {
		if bytes += len(e.payload); bytes > prefetchBytes || e.status != statusWaiting && !e.parkedBefore || e.retry != nil {
			return nil
		}
	}
	ctx, cancel := s.l.limited(s.run.DBCtx)
	p := &prefetch{
		after: lease.reach(), leaseNo: lease.leaseNo,
		waitLimit: s.l.leaseAge, cancel: cancel, done: make(chan struct{}),
	}
	go func() {
		defer close(p.done)
		defer cancel()
		began := time.Now()
		p.err = s.readNext(ctx, p)
		p.took = time.Since(began)
	}()
	return p
}

// wait waits for p, at most for its waitLimit.
func (p *prefetch) wait() (complete bool) {
	timer := time.NewTimer(p.waitLimit)
	defer timer.Stop()
	select {
	case <-p.done:
		return true
	case <-timer.C:
		return false
	}
}

// drop discards p. If p is not complete yet, its connection is closed.
func (p *prefetch) drop() {
	if p == nil {
		return
	}
	p.wait()
	p.cancel()
	<-p.done
}

// usable reports whether p follows b: what b has is done or parked, and p was read.
func (s *shardLoop) usable(ctx context.Context, b *batch, p *prefetch) bool {
	if p == nil || b.leaseLost {
		return false
	}
	for _, e := range b.lease.events {
		if e.status != statusDone && e.status != statusParked || e.result.Class.Charged() {
			return false
		}
	}
	return p.wait() && ctx.Err() == nil && p.err == nil && p.scanned > 0 // if the database has failed, the end of the lease will report it
}

// full reports whether the lease must end before another batch.
func (s *shardLoop) full(lease *shardLease) bool {
	size := s.l.cfg.BatchSize
	return time.Since(lease.began) > s.l.leaseAge || len(lease.earlier)+len(lease.events)+size > config.LeaseBatches*size || len(lease.parkedNow) > maxParkedKeys
}

// continueWith gives the lease the batch that was read ahead.
func (s *shardLoop) continueWith(lease *shardLease, p *prefetch) {
	for _, e := range lease.events {
		s.l.slim(e)
	}
	lease.earlier = append(lease.earlier, lease.events...)
	lease.lastSeq, lease.retryCount = p.after, 0
	lease.begin(s.l, p, s.retries)
	s.l.tellClaimed(lease, lease.events)
	s.l.signals.continued.Emit()
}

// begin gives the lease the events of p as its next batch.
func (lease *shardLease) begin(l *Listener, p *prefetch, retries map[int64]pendingRetry) {
	lease.events, lease.scanned, lease.scannedTo, lease.took = p.events, p.scanned, p.scannedTo, p.took
	l.prepare(lease, nil, nil, retries)
	for _, e := range lease.events { // these keys were not parked yet when p was read
		if p.parkedNow[e.key] {
			e.status, e.parkedBefore = statusParked, true
		}
	}
}

// follows reports whether p is what the lease would read as its first batch. The lease is the one after that of p, with the
// same number of shards: otherwise the statement that takes it would have found another lease_no.
func (p *prefetch) follows(lease *shardLease) bool {
	at := &lease.at
	return at.LastSeq == p.after && len(at.AheadSeqs) == 0 && at.RetryCount == 0 && !lease.oneByOne
}

// readNext reads the batch of p.
func (c *cursor) readNext(ctx context.Context, p *prefetch) error {
	size := c.l.cfg.BatchSize
	b := &pgx.Batch{}
	c.l.db.BeginReadOnly(b)
	c.queue(b, func(q *queries.Queries) {
		_, _ = q.LogReadNext(ctx, queries.LogReadNextParams{
			Topics: c.l.topics, KeyPrefixes: c.l.keyPrefixes, AfterSeq: p.after, ScanSize: int32(size), Listener: c.l.spec.Name, Shard: int32(c.shard),
			WorkerID: pgvalue.UUID(c.l.cfg.WorkerID), LeaseNo: p.leaseNo,
		})
	}).Query(func(rows pgx.Rows) error { return p.scan(c.l, rows, size) })
	c.l.db.Commit(b)
	return c.l.pool.SendBatch(ctx, b).Close()
}
