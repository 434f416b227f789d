package listener

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/internal/machine/target"
	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
	"github.com/outboxgen/outboxgen/listener/internal/core"
	"github.com/outboxgen/outboxgen/outbox"
)

// takeOverPause is how long a shard with events is left to its preferred process. A live process takes its lease within
// a few milliseconds. The shard of a killed process waits this long.
const takeOverPause = 100 * time.Millisecond

// leaseAge is core.Config.LeaseAge.
const leaseAge = 50 * time.Millisecond

// relayAge is that of a listener that publishes: the end of a lease, in which nothing is sent, comes half as often.
const relayAge = 100 * time.Millisecond

// relayAhead is core.Config.AheadWithin of a listener that publishes: twice as long as its batches may take when they grow.
const relayAhead = 200 * time.Millisecond

// awayKeys is how many times as many keys may be parked while their target is unavailable. Nobody has to examine those,
// and events of other targets need not wait for them.
const awayKeys = 10

// limited bounds the time of a statement, because the connection may be dead without an error.
func (l *Listener) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, max(l.cfg.LeaseDuration, 5*time.Second))
}

// parkedCount is the number up to which parked keys are counted.
func (l *Listener) parkedCount() int32 {
	if l.targets.Away.Load() > 0 {
		return l.parkedLimit * awayKeys
	}
	return l.parkedLimit
}

// wrap adds the listener, and what it did, to an error of the database.
func (s *shard) wrap(what string, err error) error {
	return s.l.db.Wrap("listener "+s.l.spec.Name+what, err)
}

func (s *shard) queue(b *pgx.Batch, call func(*queries.Queries)) *pgx.QueuedQuery {
	return s.l.db.Queue(b, call)
}

// check reads what the shard waits for.
func (s *shard) check() core.Event {
	began := time.Now()
	w, ok, err := s.readWait()
	if s.run.drained == nil && s.run.DBCtx.Err() == nil {
		s.l.rep.Statement("look for events", began, err)
	}
	if err != nil {
		return s.failed(err)
	}
	return core.Checked{Gone: !ok, NewerAt: s.l.metNewer(), Wait: core.Wait{
		Shards: int(w.Shards), LeaseNo: w.LeaseNo, Paused: w.Paused, Resharding: w.Resharding, Blocked: w.Blocked,
		ForeignLease: w.ForeignLease, Kept: w.Kept, Ready: w.Ready, In: time.Duration(w.WaitUs) * time.Microsecond,
	}}
}

// readWait reads what the shard waits for, on the connection that was lent with a wake-up, if there is one. If that
// fails, which says nothing about the others, it tries one of the pool.
func (s *shard) readWait() (w queries.ListenerWaitRow, ok bool, err error) {
	if conn := s.loan.Take(); conn != nil {
		if w, ok, err = s.readWaitOn(conn); err == nil {
			return w, ok, nil
		}
		s.loan.Return()
	}
	return s.readWaitOn(s.l.pool)
}

// readWaitOn reads what the shard waits for. ok is false if the shard no longer exists.
func (s *shard) readWaitOn(db schemadb.Sender) (w queries.ListenerWaitRow, ok bool, err error) {
	ctx, cancel := s.l.limited(s.run.DBCtx)
	defer cancel()
	b := &pgx.Batch{}
	s.l.db.BeginReadOnly(b)
	s.queue(b, func(q *queries.Queries) {
		_, _ = q.ListenerWait(ctx, queries.ListenerWaitParams{
			WorkerID: pgvalue.UUID(s.l.cfg.WorkerID), Listener: s.l.spec.Name, Shard: int32(s.number),
		})
	}).QueryRow(func(r pgx.Row) error {
		err := r.Scan(&w.Shards, &w.LeaseNo, &w.Paused, &w.Resharding, &w.Blocked, &w.ForeignLease, &w.Kept, &w.Ready,
			&w.WaitUs)
		if ok = err == nil; errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	s.l.db.Commit(b)
	return w, ok, s.wrap("", db.SendBatch(ctx, b).Close())
}

// connOf returns the connection for a round trip, and what gives it back. It is the one that was lent with a wake-up,
// for the first round trip after that, or one of the pool.
func (s *shard) connOf(ctx context.Context) (conn *pgx.Conn, release func(), err error) {
	if conn = s.loan.Take(); conn != nil {
		return conn, s.loan.Return, nil
	}
	pooled, err := s.l.pool.Acquire(ctx)
	if err != nil {
		return nil, nil, err
	}
	return pooled.Conn(), pooled.Release, nil
}

// roundTrip ends a lease and takes the next one. It is one round trip with two transactions, because taking a lease
// needs a transaction without an xid.
func (s *shard) roundTrip(cmd core.RoundTrip) core.Event {
	s.began = time.Now()
	answer, err := s.sendRoundTrip(cmd)
	if s.run.DBCtx.Err() == nil {
		s.l.rep.Statement("read and settle", s.began, err)
	}
	if err != nil {
		return s.failed(err)
	}
	return answer
}

func (s *shard) sendRoundTrip(cmd core.RoundTrip) (answer core.RoundTripDone, err error) {
	ctx, cancel := s.l.limited(s.run.DBCtx)
	defer cancel()
	conn, release, err := s.connOf(ctx)
	if err != nil {
		return answer, s.wrap("", err)
	}
	b := &pgx.Batch{}
	if cmd.End != nil {
		s.l.db.Begin(b)
		if cmd.Take != nil {
			// The commit of the lease that follows is flushed, and this one with it. If both are lost, the events are
			// delivered again.
			b.Queue("SET LOCAL synchronous_commit = off")
		}
		s.queueEnd(b, cmd.End, errclass.EncodingOf(conn), &answer.Ours)
		s.l.db.Commit(b)
	}
	if t := cmd.Take; t != nil {
		answer.Lease = &core.Lease{
			ID: t.ID, BatchSize: t.BatchSize, ScanSize: t.ScanSize, Deadline: time.Now().Add(s.l.cfg.LeaseDuration),
		}
		s.l.db.Begin(b)
		s.queueTake(b, t, answer.Lease)
		if t.Read {
			s.queueRead(b, answer.Lease)
		}
		s.l.db.Commit(b)
	}
	began := time.Now()
	err = conn.SendBatch(ctx, b).Close()
	answer.Took = time.Since(began)
	release()
	return answer, s.wrap("", err)
}

// leaseBatches is how many batches of events a lease reads at most. Of a listener whose handlers get batches it is one:
// if the process dies, fewer events are handled one by one. Batches of a relay grow, and its events are tried together.
func (l *Listener) leaseBatches() int {
	switch {
	case l.transactional || l.spec.Batch.Size > 0:
		return 1
	case l.grows:
		return config.RelayLeaseBatches
	}
	return config.LeaseBatches
}

// together returns how many events are tried together after a crash at first: half of what one call usually has. They are
// tried one by one if it is 1 or less.
func (l *Listener) together() int {
	usual := l.spec.Batch.Size
	if l.publishes {
		usual = min(l.cfg.BatchSize, target.BatchSize)
	}
	return (usual + 1) / 2
}

// maxPerLease is the maximum number of log events in a lease. If the process dies, any of them may be the cause.
func (l *Listener) maxPerLease() int32 { return int32(l.cfg.BatchSize * l.leaseBatches()) }

// fillScan is how many positions of the log are read to find out whether a batch is full. Most of them may be those of
// other listeners and shards.
const fillScan = 10_000

// fill reads how many events wait for the shard.
func (s *shard) fill() core.Event {
	ctx, cancel := s.l.limited(s.run.DBCtx)
	defer cancel()
	began := time.Now()
	row, err := s.l.db.Each(s.l.pool).ListenerFill(ctx, queries.ListenerFillParams{
		Listener: s.l.spec.Name, Shard: int32(s.number), ScanSize: fillScan, Topics: s.l.topics,
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows): // the shard does not exist any more
		return core.Filled{Ready: true}
	case err != nil:
		err = s.wrap(": look for more events", err)
		if s.run.DBCtx.Err() == nil {
			s.l.rep.Statement("look for events", began, err)
		}
		return s.failed(err)
	}
	if row.Events > 0 && int(row.Events) < s.l.spec.Batch.Size {
		s.l.signals.filling.Emit()
	}
	return core.Filled{
		Events: int(row.Events), Scanned: int(row.Scanned), Age: time.Duration(row.AgeUs) * time.Microsecond,
		Ready: row.Ready || row.Scanned >= fillScan,
	}
}

// queueTake puts the statement that takes a lease into b. Its result is scanned into lease.
func (s *shard) queueTake(b *pgx.Batch, t *core.Take, lease *core.Lease) {
	ctx := context.Background() // recorded, not run
	l := s.l
	s.queue(b, func(q *queries.Queries) {
		_, _ = q.ListenerTakeLease(ctx, queries.ListenerTakeLeaseParams{
			WorkerID: pgvalue.UUID(l.cfg.WorkerID), Lease: pgvalue.Interval(l.cfg.LeaseDuration), LeaseID: pgvalue.UUID(t.ID),
			PreviousID: pgvalue.UUID(t.Previous), OneByOneSize: l.maxPerLease(), Listener: l.spec.Name, Shard: int32(s.number),
			TakeOver: t.TakeOver, AfterNo: t.AfterNo, ParkedLimit: l.parkedCount(),
		})
	}).QueryRow(func(r pgx.Row) error {
		var leaseNo int64
		var shards, retryCount, oneByOne, parkedKeys int32
		err := r.Scan(&shards, &leaseNo, &lease.LastSeq, &retryCount, &oneByOne, &lease.AheadSeqs, &lease.AheadAttempts,
			&lease.ParkedDue, &parkedKeys)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		lease.No, lease.Shards, lease.RetryCount, lease.OneByOne = leaseNo, int(shards), int(retryCount), oneByOne > 0
		lease.MayPark, lease.MayParkAway = parkedKeys < l.parkedLimit, parkedKeys < l.parkedLimit*awayKeys
		return err
	})
}

// queueRead puts the statement that reads the first batch of a lease into b. Its events are scanned into lease.
func (s *shard) queueRead(b *pgx.Batch, lease *core.Lease) {
	l := s.l
	s.queue(b, func(q *queries.Queries) {
		_, _ = q.LogRead(context.Background(), queries.LogReadParams{
			Listener: l.spec.Name, Shard: int32(s.number), WorkerID: pgvalue.UUID(l.cfg.WorkerID),
			ScanSize: int32(lease.ScanSize), Topics: l.topics, KeyPrefixes: l.keyPrefixes, BatchSize: int32(lease.BatchSize),
		})
	}).Query(func(rows pgx.Rows) error { return l.scanEvents(lease, rows) })
}

// readFirst reads the first batch of a lease that was taken without it.
func (s *shard) readFirst(lease *core.Lease) core.Event {
	ctx, cancel := s.l.limited(s.run.DBCtx)
	defer cancel()
	began := time.Now()
	b := &pgx.Batch{}
	s.l.db.BeginReadOnly(b)
	s.queueRead(b, lease)
	s.l.db.Commit(b)
	if err := s.l.pool.SendBatch(ctx, b).Close(); err != nil {
		err = s.wrap("", err)
		s.l.rep.Statement("read and settle", began, err)
		return s.failed(err)
	}
	return core.Read{}
}

// readNext reads the batch of p, of up to size positions.
func (s *shard) readNext(ctx context.Context, p *core.NextBatch, size int) error {
	l := s.l
	b := &pgx.Batch{}
	l.db.BeginReadOnly(b)
	s.queue(b, func(q *queries.Queries) {
		_, _ = q.LogReadNext(ctx, queries.LogReadNextParams{
			Topics: l.topics, KeyPrefixes: l.keyPrefixes, AfterSeq: p.After, ScanSize: int32(size), Listener: l.spec.Name,
			Shard: int32(s.number), WorkerID: pgvalue.UUID(l.cfg.WorkerID), LeaseNo: p.Lease.No,
		})
	}).Query(func(rows pgx.Rows) error { return l.scanNext(p, rows, size) })
	l.db.Commit(b)
	return l.pool.SendBatch(ctx, b).Close()
}

// takeParked reads the parked events of a lease that are due.
func (s *shard) takeParked(cmd core.TakeParked) core.Event {
	ctx, cancel := s.l.limited(s.run.DBCtx)
	defer cancel()
	rows, err := s.l.db.Each(s.l.pool).ParkedTake(ctx, queries.ParkedTakeParams{
		Listener: s.l.spec.Name, EventLimit: int32(cmd.Events), Shards: int32(cmd.Lease.Shards), Shard: int32(s.number),
		WorkerID: pgvalue.UUID(s.l.cfg.WorkerID), LeaseNo: cmd.Lease.No, KeyLimit: int32(cmd.Keys),
		OneByOne: cmd.Lease.OneByOne, Topics: s.l.topics, Versions: s.l.versions,
	})
	if err != nil {
		return s.unread(s.wrap(": take parked events", err))
	}
	events := make([]*core.Entry, len(rows))
	for i, r := range rows {
		e := &core.Entry{
			Event: outbox.Event{
				Namespace: r.Namespace, Topic: r.Topic, Version: int(r.Version), DedupeKey: r.DedupeKey,
				PartitionKey: r.PartitionKey, Entity: outbox.Entity{Type: r.EntityType, ID: r.EntityID, Version: r.EntityVersion},
				CreatedAt: r.CreatedAt.Time,
			},
			Seq: r.Seq, ParkedNo: r.No, Used: int(r.Attempts), Taken: r.Taken, Of: s.l.topicOf(r.Namespace, r.Topic),
		}
		fill(e, r.ID, r.TenantID, r.Headers, r.Payload)
		e.Key = r.Key
		events[i] = e
	}
	return core.ParkedTaken{Events: events}
}

// try notes how many events of a lease are handled together after a crash, and reads those behind the first one.
func (s *shard) try(cmd core.Try) core.Event {
	ctx, cancel := s.l.limited(s.run.DBCtx)
	defer cancel()
	lease := cmd.Lease
	n, err := s.l.db.Each(s.l.pool).ListenerTry(ctx, queries.ListenerTryParams{
		Most: int32(s.l.together()), Listener: s.l.spec.Name, Shard: int32(s.number),
		WorkerID: pgvalue.UUID(s.l.cfg.WorkerID), LeaseNo: lease.No,
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return core.Tried{}
	case err != nil:
		return s.unread(s.wrap(": note how many events are tried", err))
	case n == 1:
		return core.Tried{Ours: true, Size: 1}
	}
	p := &core.NextBatch{Lease: lease, After: lease.Events[0].Seq}
	switch err := s.readNext(ctx, p, int(n)-1); {
	case errors.Is(err, errPrefetchTooLarge):
		p = nil
	case err != nil:
		return s.unread(s.wrap(": read the events that are tried", err))
	}
	return core.Tried{Ours: true, Size: int(n), Next: p}
}

// charge counts the attempt at an event of a lease before it is made.
func (s *shard) charge(cmd core.Charge) core.Event {
	ctx, cancel := s.l.limited(s.run.DBCtx)
	defer cancel()
	n, err := s.l.db.Each(s.l.pool).ListenerCharge(ctx, queries.ListenerChargeParams{
		LastSeq: cmd.Entry.Seq - 1, Attempts: int32(cmd.Entry.Attempt), Listener: s.l.spec.Name, Shard: int32(s.number),
		WorkerID: pgvalue.UUID(s.l.cfg.WorkerID), LeaseNo: cmd.Lease.No,
	})
	if err != nil {
		return s.unread(s.wrap(": count an attempt", err))
	}
	return core.Charged{Ours: n > 0}
}

// unread records that the events of a lease could not be read.
func (s *shard) unread(err error) core.Event {
	s.l.rep.Statement("take events", time.Now(), err)
	return s.failed(err)
}

// askLease reads the latest lease of the shard.
func (s *shard) askLease() core.Event {
	ctx, cancel := s.l.limited(s.run.DBCtx)
	defer cancel()
	state, err := s.l.db.Each(s.l.pool).ListenerLeaseState(ctx, queries.ListenerLeaseStateParams{
		Listener: s.l.spec.Name, Shard: int32(s.number),
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return core.LeaseState{}
	case err != nil:
		err = s.wrap("", err)
		if s.run.DBCtx.Err() == nil {
			s.l.rep.Statement("read and settle", s.began, err)
		}
		return s.failed(err)
	}
	return core.LeaseState{Known: true, ID: state.LeaseID.Bytes, No: state.LeaseNo, Running: state.Running}
}

// renewLease renews a lease. If ctx ends, nothing is reported.
func (s *shard) renewLease(ctx context.Context, cmd core.Renew) core.Event {
	lease, sent := cmd.Lease, time.Now()
	try, cancel := context.WithDeadline(ctx, cmd.Until)
	defer cancel()
	n, err := s.extend(try, lease)
	switch {
	case ctx.Err() != nil:
		return core.Renewed{Lease: lease, Failed: true}
	case err != nil:
		s.l.rep.Statement("renew lease", sent, err)
		return core.Renewed{Lease: lease, Failed: true}
	case n == 0:
		return core.Renewed{Lease: lease, Lost: true}
	}
	s.l.rep.Statement("renew lease", sent, nil)
	s.l.rep.Statement(keepingLease, sent, nil)
	return core.Renewed{Lease: lease, Sent: sent}
}

// extend makes a lease last for its full length from now on, and returns 0 if another process has it.
func (s *shard) extend(ctx context.Context, lease *core.Lease) (int64, error) {
	return s.l.db.Each(s.l.pool).ListenerRenew(ctx, queries.ListenerRenewParams{
		Lease: pgvalue.Interval(s.l.cfg.LeaseDuration), Listener: s.l.spec.Name, Shard: int32(s.number),
		WorkerID: pgvalue.UUID(s.l.cfg.WorkerID), LeaseNo: lease.No,
	})
}

// wakeOthers wakes the other processes.
func (s *shard) wakeOthers(cmd core.WakeOthers) {
	s.l.wakeOthers(s.run.DBCtx)
	if cmd.HandedOver {
		s.l.signals.handedOver.Emit()
	}
}

// requestShard requests the shard if its holder has at least two more shards than this process.
func (s *shard) requestShard() {
	s.run.requesting.Lock()
	defer s.run.requesting.Unlock()
	ctx, cancel := s.l.limited(s.ctx)
	defer cancel()
	began := time.Now()
	_, err := s.l.db.Each(s.l.pool).ListenerWant(ctx, queries.ListenerWantParams{
		WorkerID: pgvalue.UUID(s.l.cfg.WorkerID), Listener: s.l.spec.Name, Shard: int32(s.number),
	})
	if s.ctx.Err() == nil {
		s.l.rep.Statement("request a shard", began, err)
	}
}

// reshard takes the next step towards another number of shards.
func (s *shard) reshard() core.Event {
	began := time.Now()
	stepped, err := s.l.reshard(s.run.DBCtx)
	if s.run.drained == nil {
		s.l.rep.Statement("change the number of shards", began, err)
	}
	if err != nil {
		return s.failed(err)
	}
	return core.Resharded{Stepped: stepped}
}

// readShards reads the number of shards of the listener.
func (s *shard) readShards() core.Event {
	began := time.Now()
	reg, err := s.l.registration(s.run.DBCtx)
	if s.run.drained == nil {
		s.l.rep.Statement("read the number of shards", began, err)
	}
	switch {
	case err != nil:
		return s.failed(err)
	case reg.Cursors == 0:
		return core.Registered{}
	}
	return core.Registered{Shards: int(reg.Shards)}
}
