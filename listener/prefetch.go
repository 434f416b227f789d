package listener

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/internal/dbsqlc"
	"github.com/outboxgen/outboxgen/internal/pgvalue"
	"github.com/outboxgen/outboxgen/internal/settings"
)

// The lease of a leased listener continues with the next batch of its window, without a statement in between. That
// batch was read while the previous one was handled. The lease continues if all events of the previous batch are done,
// or are parked because their target is unavailable or their key is parked already. Its bounds:
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
	scanned   int
	scannedTo int64
	events    []*entry
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
	case lease.parkedDue, len(lease.parked) > 0, len(lease.ahead) > 0, len(lease.earlier)+len(lease.events)+size > settings.LeaseBatches*size:
		return nil
	}
	bytes := 0
	for _, e := range lease.events {
		if bytes += len(e.payload); bytes > prefetchBytes || e.status != statusWaiting && !e.parkedBefore || e.retry != nil {
			return nil
		}
	}
	ctx, cancel := s.l.limited(s.run.DBCtx)
	p := &prefetch{after: lease.reach(), waitLimit: s.l.leaseAge, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		began := time.Now()
		p.err = s.readNext(ctx, lease.leaseNo, p)
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

// continueWith gives the lease of b the batch that was read ahead. It returns false if the lease ends with b.
func (s *shardLoop) continueWith(ctx context.Context, b *batch, p *prefetch) bool {
	lease := b.lease
	if p == nil || b.leaseLost || time.Since(lease.began) > s.l.leaseAge || len(lease.parkedNow) > maxParkedKeys {
		return false
	}
	for _, e := range lease.events {
		if e.status != statusDone && e.status != statusParked || e.result.Class.Charged() {
			return false
		}
	}
	if !p.wait() || ctx.Err() != nil || p.err != nil || p.scanned == 0 {
		return false // if the database has failed, the end of the lease will report it
	}
	p.cancel()
	for _, e := range lease.events {
		s.l.slim(e)
		if e.status == statusParked && !e.parkedBefore {
			if lease.parkedNow == nil {
				lease.parkedNow = make(map[string]bool)
			}
			lease.parkedNow[e.key] = true
		}
	}
	lease.earlier = append(lease.earlier, lease.events...)
	lease.events, lease.scanned, lease.scannedTo, lease.lastSeq, lease.retryCount = p.events, p.scanned, p.scannedTo, p.after, 0
	s.l.prepare(lease, nil, nil, s.retries)
	for _, e := range lease.events { // the keys that this lease parks were not parked yet when p was read
		if lease.parkedNow[e.key] {
			e.status, e.parkedBefore = statusParked, true
		}
	}
	lease.took = p.took
	s.l.tellClaimed(lease, lease.events)
	s.l.signals.continued.Emit()
	return true
}

// readNext reads the batch of p under the lease leaseNo.
func (c *cursor) readNext(ctx context.Context, leaseNo int64, p *prefetch) error {
	size := c.l.cfg.BatchSize
	b := &pgx.Batch{}
	c.l.db.BeginReadOnly(b)
	c.queue(b, func(q *dbsqlc.Queries) {
		_, _ = q.LogReadNext(ctx, dbsqlc.LogReadNextParams{
			Topics: c.l.topics, KeyPrefixes: c.l.keyPrefixes, AfterSeq: p.after, ScanSize: int32(size), Listener: c.l.spec.Name, Shard: int32(c.shard),
			WorkerID: pgvalue.UUID(c.l.cfg.WorkerID), LeaseNo: leaseNo,
		})
	}).Query(func(rows pgx.Rows) error { return p.scan(c.l, rows, size) })
	c.l.db.Commit(b)
	return c.l.pool.SendBatch(ctx, b).Close()
}
