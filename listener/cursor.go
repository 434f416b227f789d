package listener

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/internal/machine/target"
	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/outbox"
)

// cursor takes and ends the leases of one shard. One goroutine owns it.
type cursor struct {
	l           *Listener
	shard       int
	nextID      uuid.UUID              // id of the next lease; kept until that is taken
	afterNo     int64                  // the number of the latest lease that this cursor knows of; the next is taken only if there was none since
	vacancy     vacancy                // of a shard that is left to another process
	takeOverNow bool                   // such a shard is taken immediately
	repeats     bool                   // nextID is a lease that was taken already, and may have ended
	previousID  uuid.UUID              // the latest lease that was ended
	scanSize    int                    // positions to read
	carried     *prefetch              // the batch that the next lease begins with
	txSearch    txSearch               // events that may have broken their transaction
	retries     map[int64]pendingRetry // by seq, events that failed here and are not due yet

	newerUntil  time.Time // until when the shard is left to others, because of an event of an unknown version
	newerSeq    int64     // the latest such event
	wakesOthers bool      // the others do not know of it yet
}

// unknownNo is the number of the latest lease as long as it was not read.
const unknownNo int64 = -1

// vacancy records since when a shard that is left to another process has had events and no lease.
type vacancy struct {
	leaseNo int64
	since   time.Time // zero if there is no vacancy
}

// takeOverPause is how long a shard with events is left to its preferred process. A live process takes its lease within
// a few milliseconds. The shard of a killed process waits this long.
const takeOverPause = 100 * time.Millisecond

// mayTakeOver reports whether this process may take the next lease although it is left to another process. A Drain
// takes it immediately.
func (c *cursor) mayTakeOver() bool {
	return c.takeOverNow || !c.vacancy.since.IsZero() && c.vacancy.leaseNo == c.afterNo && time.Since(c.vacancy.since) >= c.l.takeOverAfter
}

// pendingRetry is when and why an event is tried again. The database keeps only the earliest of a shard.
type pendingRetry struct {
	until time.Time
	text  string         // the error of the attempt
	away  *target.Target // the target that it waits for, if it waits for nothing else
}

// due reports whether the wait is over.
func (r *pendingRetry) due() bool { return !time.Now().Before(r.until) || r.targetBack() }

// targetBack reports whether the event waits for a target that is available again.
func (r *pendingRetry) targetBack() bool { return r.away != nil && !r.away.Resting() }

func (l *Listener) cursor(shard int) *cursor {
	return &cursor{l: l, shard: shard, nextID: uuid.New(), afterNo: unknownNo, scanSize: l.cfg.BatchSize, retries: make(map[int64]pendingRetry)}
}

// remaining is how long r still lasts; 0 for nil.
func (r *pendingRetry) remaining() time.Duration {
	if r == nil {
		return 0
	}
	return max(time.Until(r.until), 0)
}

// why is the error of r; "" for nil.
func (r *pendingRetry) why() string {
	if r == nil {
		return ""
	}
	return r.text
}

// limited bounds the time of a statement, because the connection may be dead without an error.
func (l *Listener) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, max(l.cfg.LeaseDuration, 5*time.Second))
}

// repeat makes the next lease the same one again, because nothing of it was handled.
func (c *cursor) repeat(lease *shardLease) { c.nextID, c.repeats = lease.id, true }

// maxScan limits the positions that a lease reads to find few events.
const maxScan = 1000

// maxParkedKeys is how many keys of a listener may be parked. If that many fail, the cause is hardly in the events, and
// the listener waits instead.
const maxParkedKeys = 1000

// awayKeys is how many times as many keys may be parked while their target is unavailable. Nobody has to examine those,
// and events of other targets need not wait for them.
const awayKeys = 10

// parkedCount is the number up to which parked keys are counted.
func (l *Listener) parkedCount() int32 {
	if l.targets.Away.Load() > 0 {
		return l.parkedLimit * awayKeys
	}
	return l.parkedLimit
}

// parkedBatch is how many parked events of one key a lease takes.
const parkedBatch = 50

// roundTrip ends the lease of a, if not nil, then takes the next one if take is set. It is one round trip with two
// transactions, because taking a lease needs a transaction without an xid. The lease is nil if there is nothing to do.
// moved reports whether this cursor still had the lease that it ended.
func (c *cursor) roundTrip(ctx context.Context, a *advance, take bool) (moved bool, lease *shardLease, err error) {
	if a == nil && !take {
		return false, nil, nil
	}
	ctx, cancel := c.l.limited(ctx)
	defer cancel()
	conn, err := c.l.pool.Acquire(ctx)
	if err != nil {
		return false, nil, c.l.db.Wrap("listener "+c.l.spec.Name, err)
	}
	b := &pgx.Batch{}
	if a != nil {
		a.encode(errclass.EncodingOf(conn.Conn()))
		c.previousID, c.afterNo = a.lease.id, a.lease.leaseNo
		c.l.db.Begin(b)
		if take {
			// The commit of the lease that follows is flushed, and this one with it. If both are lost, the events are
			// delivered again.
			b.Queue("SET LOCAL synchronous_commit = off")
		}
		c.queueEnd(b, a, &moved)
		c.l.db.Commit(b)
	}
	carried := c.carried
	c.carried = nil
	if take {
		lease = &shardLease{id: c.nextID, batchSize: c.l.cfg.BatchSize, deadline: time.Now().Add(c.l.cfg.LeaseDuration)}
		lease.scanSize = max(c.scanSize, lease.batchSize)
		c.l.db.Begin(b)
		c.queueTake(b, lease)
		if carried == nil {
			c.queueRead(b, lease)
		}
		c.l.db.Commit(b)
	}
	began := time.Now()
	err = conn.SendBatch(ctx, b).Close()
	if err == nil && take && carried != nil && lease.leaseNo != 0 {
		err = c.begin(ctx, conn, lease, carried)
	}
	took := time.Since(began)
	conn.Release()
	if err != nil {
		if a != nil {
			a.restoreReturned()
		}
		return false, nil, c.l.db.Wrap("listener "+c.l.spec.Name, err)
	}
	if a != nil && !moved {
		if moved, err = c.endedBefore(ctx, a); err != nil {
			return false, nil, err
		}
	}
	if !take {
		return moved, nil, nil
	}
	repeated := c.repeats
	if lease.took == 0 {
		lease.took = took
	}
	if lease = c.onTaken(lease); lease == nil && repeated {
		_, lease, err = c.roundTrip(ctx, nil, true)
	} else if lease == nil {
		c.l.hooks.Claimed(nil, took)
	}
	return moved, lease, err
}

func (c *cursor) queue(b *pgx.Batch, call func(*queries.Queries)) *pgx.QueuedQuery {
	return c.l.db.Queue(b, call)
}

// queueEnd puts the statements that end a lease into b.
func (c *cursor) queueEnd(b *pgx.Batch, a *advance, moved *bool) {
	ctx := context.Background() // recorded, not run
	if a.settle != nil {
		c.queue(b, func(q *queries.Queries) { _ = q.ParkedSettle(ctx, *a.settle) })
	}
	if a.fail != nil {
		c.queue(b, func(q *queries.Queries) { _ = q.ListenerFail(ctx, *a.fail) })
	}
	c.queue(b, func(q *queries.Queries) { _, _ = q.ListenerAdvance(ctx, a.params) }).QueryRow(func(row pgx.Row) error {
		return row.Scan(moved)
	})
	if len(a.returned) > 0 {
		c.queue(b, func(q *queries.Queries) {
			_ = q.ParkedWake(ctx, queries.ParkedWakeParams{Listener: c.l.spec.Name, Topics: target.TopicsOf(a.returned)})
		})
	}
	if len(a.promote) > 0 {
		c.queue(b, func(q *queries.Queries) {
			_ = q.ParkedPromote(ctx, queries.ParkedPromoteParams{Keys: a.promote, Taken: a.taken, Heads: a.heads, Listener: c.l.spec.Name})
		})
	}
}

// maxPerLease is the maximum number of log events in a lease. If the process dies, any of them may be the cause.
func (l *Listener) maxPerLease() int32 {
	n := l.cfg.BatchSize
	if !l.transactional {
		n *= config.LeaseBatches
	}
	return int32(n)
}

// queueTake puts the statement that takes a lease into b. Its result is scanned into lease.
func (c *cursor) queueTake(b *pgx.Batch, lease *shardLease) {
	ctx := context.Background() // recorded, not run
	l := c.l
	row := &lease.at
	c.queue(b, func(q *queries.Queries) {
		_, _ = q.ListenerTakeLease(ctx, queries.ListenerTakeLeaseParams{
			WorkerID: pgvalue.UUID(l.cfg.WorkerID), Lease: pgvalue.Interval(l.cfg.LeaseDuration), LeaseID: pgvalue.UUID(lease.id), PreviousID: pgvalue.UUID(c.previousID),
			OneByOneSize: l.maxPerLease(), Listener: l.spec.Name, Shard: int32(c.shard), TakeOver: c.mayTakeOver(), AfterNo: c.afterNo,
			ParkedLimit: l.parkedCount(),
		})
	}).QueryRow(func(r pgx.Row) error {
		err := r.Scan(&row.Shards, &row.LeaseNo, &row.LastSeq, &row.RetryCount, &row.OneByOne, &row.AheadSeqs,
			&row.AheadAttempts, &row.ParkedDue, &row.ParkedKeys)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		lease.leaseNo, lease.shards, lease.lastSeq, lease.retryCount = row.LeaseNo, int(row.Shards), row.LastSeq, int(row.RetryCount)
		lease.oneByOne = row.OneByOne > 0
		lease.parkedDue, lease.mayPark = row.ParkedDue, row.ParkedKeys < l.parkedLimit
		lease.mayParkAway = row.ParkedKeys < l.parkedLimit*awayKeys
		return err
	})
}

// queueRead puts the statement that reads the first batch of a lease into b. Its events are scanned into lease.
func (c *cursor) queueRead(b *pgx.Batch, lease *shardLease) {
	l := c.l
	c.queue(b, func(q *queries.Queries) {
		_, _ = q.LogRead(context.Background(), queries.LogReadParams{
			Listener: l.spec.Name, Shard: int32(c.shard), WorkerID: pgvalue.UUID(l.cfg.WorkerID),
			ScanSize: int32(lease.scanSize), Topics: l.topics, KeyPrefixes: l.keyPrefixes, BatchSize: int32(lease.batchSize),
		})
	}).Query(func(rows pgx.Rows) error {
		if err := lease.scanEvents(rows); err != nil {
			return err
		}
		if lease.oneByOne {
			lease.batchSize = 1
		}
		l.prepare(lease, lease.at.AheadSeqs, lease.at.AheadAttempts, c.retries)
		return nil
	})
}

// begin gives the lease the batch that was read ahead for it, or reads its first batch if that one does not follow.
func (c *cursor) begin(ctx context.Context, conn *pgxpool.Conn, lease *shardLease, carried *prefetch) error {
	if carried.follows(lease) {
		lease.scanSize = lease.batchSize
		lease.begin(c.l, carried, c.retries)
		c.l.signals.carried.Emit()
		return nil
	}
	b := &pgx.Batch{}
	c.l.db.BeginReadOnly(b)
	c.queueRead(b, lease)
	c.l.db.Commit(b)
	return conn.SendBatch(ctx, b).Close()
}

// onTaken prepares for the next lease, and returns this one unless it is empty.
func (c *cursor) onTaken(lease *shardLease) *shardLease {
	if lease.leaseNo == 0 {
		// An earlier attempt to take the lease may still reach the server. The next attempt then requests the same
		// lease, and gets it.
		if c.repeats {
			c.nextID, c.repeats = uuid.New(), false // that lease is over
		}
		return nil
	}
	c.nextID, c.repeats, c.afterNo = uuid.New(), false, lease.leaseNo
	switch {
	case len(lease.events) < lease.scanned/4:
		c.scanSize = min(2*lease.scanSize, max(maxScan, c.l.cfg.BatchSize))
	case lease.scanSize > c.l.cfg.BatchSize:
		c.scanSize = c.l.cfg.BatchSize
	}
	return lease
}

// takeParked adds the parked events that are due. A one-by-one lease takes one event that the previous lease had taken,
// and none of the log then: the events that may have killed the process are handled before any other.
func (c *cursor) takeParked(ctx context.Context, lease *shardLease) error {
	keys, events := config.ParkedKeyBatch, parkedBatch
	if lease.oneByOne {
		keys, events = 1, 1
	}
	ctx, cancel := c.l.limited(ctx)
	defer cancel()
	rows, err := c.l.db.Each(c.l.pool).ParkedTake(ctx, queries.ParkedTakeParams{
		Listener: c.l.spec.Name, EventLimit: int32(events), Shards: int32(lease.shards), Shard: int32(c.shard),
		WorkerID: pgvalue.UUID(c.l.cfg.WorkerID), LeaseNo: lease.leaseNo, KeyLimit: int32(keys), OneByOne: lease.oneByOne,
		Topics: c.l.topics, Versions: c.l.versions,
	})
	if err != nil {
		return c.l.db.Wrap("listener "+c.l.spec.Name+": take parked events", err)
	}
	known := make(map[string]bool, keys)
	for _, r := range rows {
		e := &entry{
			Event: outbox.Event{
				Namespace: r.Namespace, Topic: r.Topic, Version: int(r.Version), DedupeKey: r.DedupeKey,
				PartitionKey: r.PartitionKey, Entity: outbox.Entity{Type: r.EntityType, ID: r.EntityID, Version: r.EntityVersion},
				CreatedAt: r.CreatedAt.Time,
			},
			seq: r.Seq, parkedNo: r.No, head: !known[r.Key], used: int(r.Attempts), taken: r.Taken,
		}
		e.fill(r.ID, r.TenantID, r.Headers, r.Payload)
		e.key = r.Key
		known[r.Key] = true
		if c.l.isNewer(e) {
			c.l.postpone(lease, e)
		} else {
			c.l.number(e)
		}
		lease.parked = append(lease.parked, e)
	}
	if lease.oneByOne && len(lease.parked) > 0 {
		lease.events, lease.parkedOnly = nil, true
	}
	return nil
}

// charge counts the attempt at the event of a one-by-one lease before it is made. ours is false if another process has
// the lease.
func (c *cursor) charge(ctx context.Context, lease *shardLease) (ours bool, err error) {
	if !lease.oneByOne || len(lease.events) == 0 || lease.events[0].status != statusWaiting || lease.events[0].retry != nil || lease.events[0].newer {
		return true, nil
	}
	e := lease.events[0]
	ctx, cancel := c.l.limited(ctx)
	defer cancel()
	n, err := c.l.db.Each(c.l.pool).ListenerCharge(ctx, queries.ListenerChargeParams{
		LastSeq: e.seq - 1, Attempts: int32(e.Attempt), Listener: c.l.spec.Name, Shard: int32(c.shard),
		WorkerID: pgvalue.UUID(c.l.cfg.WorkerID), LeaseNo: lease.leaseNo,
	})
	if err != nil {
		return false, c.l.db.Wrap("listener "+c.l.spec.Name+": count an attempt", err)
	}
	lease.lastSeq = e.seq - 1
	return n > 0, nil
}

// endedBefore reports whether an earlier try, whose answer was lost, had already ended the lease of a. That try may
// also have taken the next lease, under nextID.
func (c *cursor) endedBefore(ctx context.Context, a *advance) (bool, error) {
	s, err := c.l.db.Each(c.l.pool).ListenerLeaseState(ctx, queries.ListenerLeaseStateParams{Listener: c.l.spec.Name, Shard: int32(c.shard)})
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, c.l.db.Wrap("listener "+c.l.spec.Name, err)
	}
	latest := uuid.UUID(s.LeaseID.Bytes)
	return latest == a.lease.id && !s.Running || latest == c.nextID && s.LeaseNo == a.lease.leaseNo+1, nil
}

// keepLease renews lease until stop is called, and calls lose if the lease cannot be renewed.
func (c *cursor) keepLease(ctx context.Context, lease *shardLease, lose func()) (stop func()) {
	duration := c.l.cfg.LeaseDuration
	ctx, cancel := context.WithCancel(ctx)
	over := make(chan struct{})
	timer := time.AfterFunc(time.Until(lease.deadline.Add(-duration+duration/3)), func() {
		defer close(over)
		for wait := time.Duration(0); ; wait = duration / 10 {
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
			if left := time.Until(lease.deadline); left <= duration/5 {
				c.l.onLeaseLost(c.shard)
				lose()
				return
			} else if left > duration-duration/3 {
				continue
			}
			if !c.renew(ctx, lease) {
				lose()
				return
			}
		}
	})
	return func() {
		cancel()
		if !timer.Stop() {
			<-over
		}
	}
}

// laneName names the lane of a shard. It has the number of shards, so that the holders of a new number can fence the
// producers of an old one without fencing each other.
func (l *Listener) laneName(shard, shards int) string {
	return fmt.Sprintf("%s/%s/%d-of-%d", l.db.Name(), l.spec.Name, shard, shards)
}

// earlierLanes names the lanes of the numbers of shards that the listener had before that of lease. They are read after
// the lease was taken, so none is missing.
func (c *cursor) earlierLanes(ctx context.Context, lease *shardLease) (names []string, err error) {
	ctx, cancel := c.l.limited(ctx)
	defer cancel()
	past, err := c.l.db.Each(c.l.pool).ListenerPastShards(ctx, queries.ListenerPastShardsParams{
		Listener: c.l.spec.Name, Shard: int32(c.shard), Shards: int32(lease.shards),
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, outbox.ErrLeaseLost
	case err != nil:
		return nil, c.l.db.Wrap("listener "+c.l.spec.Name+": read its earlier numbers of shards", err)
	}
	for _, shards := range past {
		if int(shards) == lease.shards { // the same names as now: taking over the lane has fenced its producer
			continue
		}
		for shard := range int(shards) {
			names = append(names, c.l.laneName(shard, int(shards)))
		}
	}
	return names, nil
}

// held returns nil if this process still has lease, which it renews.
func (c *cursor) held(ctx context.Context, lease *shardLease) error {
	ctx, cancel := c.l.limited(ctx)
	defer cancel()
	n, err := c.l.db.Each(c.l.pool).ListenerRenew(ctx, queries.ListenerRenewParams{
		Lease: pgvalue.Interval(c.l.cfg.LeaseDuration), Listener: c.l.spec.Name, Shard: int32(c.shard), WorkerID: pgvalue.UUID(c.l.cfg.WorkerID), LeaseNo: lease.leaseNo,
	})
	switch {
	case err != nil:
		return c.l.db.Wrap("listener "+c.l.spec.Name+": ask for the lease", err)
	case n == 0:
		return outbox.ErrLeaseLost
	}
	return nil
}

// renew extends lease; false means that another process has it. If the database cannot be reached, renew returns true,
// and the caller tries again.
func (c *cursor) renew(ctx context.Context, lease *shardLease) bool {
	duration := c.l.cfg.LeaseDuration
	sent := time.Now()
	try, cancel := context.WithDeadline(ctx, sent.Add(max(duration/5, time.Second)))
	defer cancel()
	n, err := c.l.db.Each(c.l.pool).ListenerRenew(try, queries.ListenerRenewParams{
		Lease: pgvalue.Interval(duration), Listener: c.l.spec.Name, Shard: int32(c.shard), WorkerID: pgvalue.UUID(c.l.cfg.WorkerID), LeaseNo: lease.leaseNo,
	})
	switch {
	case ctx.Err() != nil:
	case err != nil:
		c.l.rep.Statement("renew lease", sent, err)
	case n == 0:
		c.l.onLeaseLost(c.shard)
		return false
	default:
		c.l.rep.Statement("renew lease", sent, nil)
		c.l.rep.Statement(keepingLease, sent, nil)
		lease.deadline = sent.Add(duration)
	}
	return true
}

// onLeaseLost records that the lease of shard is lost while its events are handled.
func (l *Listener) onLeaseLost(shard int) {
	l.log.Debug("lease lost", "shard", shard)
	l.rep.LeaseLost(keepingLease)
	l.signals.lost.Emit()
}

// readWait reads what the shard waits for. ok is false if the shard no longer exists.
func (c *cursor) readWait(ctx context.Context) (w queries.ListenerWaitRow, ok bool, err error) {
	ctx, cancel := c.l.limited(ctx)
	defer cancel()
	b := &pgx.Batch{}
	c.l.db.BeginReadOnly(b)
	c.queue(b, func(q *queries.Queries) {
		_, _ = q.ListenerWait(ctx, queries.ListenerWaitParams{
			WorkerID: pgvalue.UUID(c.l.cfg.WorkerID), Listener: c.l.spec.Name, Shard: int32(c.shard),
		})
	}).QueryRow(func(r pgx.Row) error {
		err := r.Scan(&w.Shards, &w.LeaseNo, &w.Paused, &w.Resharding, &w.Blocked, &w.ForeignLease, &w.Kept, &w.Ready, &w.WaitUs)
		if ok = err == nil; errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	c.l.db.Commit(b)
	if err = c.l.pool.SendBatch(ctx, b).Close(); err != nil {
		return w, false, c.l.db.Wrap(fmt.Sprintf("listener %s", c.l.spec.Name), err)
	}
	if c.afterNo = w.LeaseNo; !w.Ready {
		c.vacancy = vacancy{}
	} else if c.vacancy.leaseNo != w.LeaseNo || c.vacancy.since.IsZero() {
		c.vacancy = vacancy{leaseNo: w.LeaseNo, since: time.Now()}
	}
	return w, ok, nil
}
