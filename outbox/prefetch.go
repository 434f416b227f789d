package outbox

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/internal/dbsqlc"
)

// A turn of a leased listener continues with the next batch of its window, without a statement in between, when all events of
// one are done, or are parked because their target is away or their key is parked already: that batch was read while the one
// before was handled. Bounds of that:
const (
	// turnBatches is how many batches a turn has at most: what comes again when its process dies, or is taken one by one.
	turnBatches = 8
	// turnTime is how old a turn may be when a batch begins, so that a pause, a change of shards or another process that
	// asks for the shard does not wait longer than it does for one batch of slow handlers.
	turnTime = 50 * time.Millisecond
	// prefetchBytes is how much payload is read ahead.
	prefetchBytes = 16 << 20
)

// prefetch is the batch that follows the one under way, read while that is handled.
type prefetch struct {
	after     int64 // the position behind which it was read
	scanned   int
	scannedTo int64
	events    []*entry
	err       error
	patience  time.Duration // with what is not there when it is wanted
	cancel    context.CancelFunc
	done      chan struct{} // closed when the rest is there
}

// prefetch starts to read what follows the batch of t. It returns nil where a turn could not go on with it: behind the
// end of the window, or where events wait for a retry, come from those that are parked, or are taken one by one. So it does
// when handlers are slow, since a turn would be too old by then, and when few of the positions are the listener's, which
// LogRead passes faster.
func (s *shardLoop) prefetch(ctx context.Context, t *turn) *prefetch {
	size := s.l.cfg.BatchSize
	switch {
	case ctx.Err() != nil, s.slow, t.careful, t.batch != size, t.scan != size, t.shards != s.shards:
		return nil
	case len(t.events) < size && t.scanned < size: // there is no more
		return nil
	case t.parkedDue, len(t.parked) > 0, len(t.ahead) > 0, len(t.passed)+len(t.events)+size > turnBatches*size:
		return nil
	}
	bytes := 0
	for _, e := range t.events {
		if bytes += len(e.payload); bytes > prefetchBytes || e.fate != waiting && !e.behind || e.held != nil {
			return nil
		}
	}
	ctx, cancel := s.l.limited(s.run.talk)
	p := &prefetch{after: t.reach(), patience: s.l.turnLimit, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.err = s.readOn(ctx, t.leaseNo, p)
	}()
	return p
}

// wait waits for p, but not for long.
func (p *prefetch) wait() (complete bool) {
	timer := time.NewTimer(p.patience)
	defer timer.Stop()
	select {
	case <-p.done:
		return true
	case <-timer.C:
		return false
	}
}

// drop ends p, which is not used. One that is not complete yet costs its connection.
func (p *prefetch) drop() {
	if p == nil {
		return
	}
	p.wait()
	p.cancel()
	<-p.done
}

// goOn gives the turn of b the batch that was read ahead. It is false when the turn ends with b.
func (s *shardLoop) goOn(ctx context.Context, b *batch, p *prefetch) bool {
	t := b.t
	if p == nil || b.lost || time.Since(t.began) > s.l.turnLimit || len(t.parkedNow) > maxParkedKeys {
		return false
	}
	for _, e := range t.events {
		if e.fate != done && e.fate != aside || e.result.class.charged() {
			return false
		}
	}
	if !p.wait() || ctx.Err() != nil || p.err != nil || p.scanned == 0 {
		return false // if there is trouble, the end of the turn will meet it
	}
	p.cancel()
	for _, e := range t.events {
		e.payload, e.Headers = nil, nil
		if e.fate == aside && !e.behind {
			if t.parkedNow == nil {
				t.parkedNow = make(map[string]bool)
			}
			t.parkedNow[e.key] = true
		}
	}
	t.passed = append(t.passed, t.events...)
	t.events, t.scanned, t.scannedTo, t.lastSeq, t.retryCount = p.events, p.scanned, p.scannedTo, p.after, 0
	s.l.begin(t, nil, nil, s.holds)
	for _, e := range t.events { // the keys that this turn parks were not parked yet when p was read
		if t.parkedNow[e.key] {
			e.fate, e.behind = aside, true
		}
	}
	s.l.signals.wentOn.emit()
	return true
}

// readOn reads the batch of p in the turn leaseNo.
func (c *cursor) readOn(ctx context.Context, leaseNo int64, p *prefetch) error {
	size := c.l.cfg.BatchSize
	b := &pgx.Batch{}
	c.l.db.BeginReadOnly(b)
	c.queue(b, func(q *dbsqlc.Queries) {
		_, _ = q.LogReadOn(ctx, dbsqlc.LogReadOnParams{
			Topics: c.l.topics, Lanes: c.l.lanes, AfterSeq: p.after, ScanSize: int32(size), Listener: c.l.spec.Name, Shard: int32(c.shard),
			WorkerID: pgUUID(c.l.cfg.WorkerID), LeaseNo: leaseNo,
		})
	}).Query(func(rows pgx.Rows) error { return p.scan(c.l, rows, size) })
	c.l.db.Commit(b)
	return c.l.pool.SendBatch(ctx, b).Close()
}
