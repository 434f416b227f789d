package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/call/errtext"
	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/internal/machine/doorbell"
	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue/internal/core"
)

// Ack marks events delivered. The outcomes are in the order of the events. When one of them is Lost, Ack also returns
// an error that wraps ErrLeaseLost and says how many are; the others are settled. Ack is safe to repeat after any other
// error, whose statement may have been committed: a repeat answers Already.
func (s *Store) Ack(ctx context.Context, events ...Claimed) ([]Outcome, error) {
	return s.settle(ctx, roundTrip{settlements: settlementsOf(acking, events)})
}

// Nack ends failed attempts. An event is due again after its backoff, or becomes a dead letter if its attempts are used
// up or the error is Permanent; the database decides which. Outcomes, errors and repeats as in Ack.
func (s *Store) Nack(ctx context.Context, failures ...Failure) ([]Outcome, error) {
	x := roundTrip{settlements: make([]settlement, len(failures))}
	for i := range failures {
		f := &failures[i]
		x.settlements[i] = settlement{kind: nacking, claimed: &f.Claimed, why: f.why(), retryAt: f.RetryAt}
	}
	if slices.ContainsFunc(failures, func(f Failure) bool { return !f.RetryAt.IsZero() }) {
		defer s.places.reset() // they may be due before the places
	}
	return s.settle(ctx, x)
}

// Release hands back events that were not started: they are due as before, and the attempt is not counted. Outcomes,
// errors and repeats as in Ack.
func (s *Store) Release(ctx context.Context, events ...Claimed) ([]Outcome, error) {
	defer s.places.reset()
	return s.settle(ctx, roundTrip{settlements: settlementsOf(releasing, events)})
}

// Extend renews leases: they now end after the given duration. An expired lease is renewed too, unless somebody has
// reclaimed the event. Outcomes and errors as in Ack, except that an event is never Already, and Locked when another
// transaction has its row locked: Extend does not wait for locks, so that one such row does not cost the other leases.
// Locked is an error too.
func (s *Store) Extend(ctx context.Context, lease time.Duration, events ...Claimed) ([]Outcome, error) {
	if lease < config.MinLease {
		return nil, fmt.Errorf("extend: lease %s is shorter than %s", lease, config.MinLease)
	}
	return s.settle(ctx, roundTrip{settlements: settlementsOf(extending, events), lease: lease})
}

// settle runs x, whose settlements are of one kind, and returns their outcomes.
func (s *Store) settle(ctx context.Context, x roundTrip) ([]Outcome, error) {
	what := x.what()
	if err := s.roundTrip(ctx, &x); err != nil {
		return x.outcomes(), err
	}
	outcomes := x.outcomes()
	return outcomes, lostError(what, outcomes)
}

// lostError counts what was not done, so that a caller who ignores the outcomes gets an error.
func lostError(what string, outcomes []Outcome) error {
	var lost, locked int
	for _, o := range outcomes {
		switch o {
		case Lost:
			lost++
		case Locked:
			locked++
		}
	}
	var err error
	if locked > 0 {
		err = fmt.Errorf("%s: %d of %d events are locked by another transaction: try again before their leases end", what,
			locked, len(outcomes))
	}
	if lost > 0 {
		err = errtext.Join(fmt.Errorf("%s: %d of %d events lost: %w", what, lost, len(outcomes), outbox.ErrLeaseLost), err)
	}
	return err
}

// settlement is what is done to one claim, and what has come of it.
type settlement struct {
	kind    settling
	claimed *Claimed
	why     *errclass.Result // of a failure
	retryAt time.Time        // of a failure: when the next attempt is due; zero leaves it to the backoff
	after   time.Duration    // how long after now a release makes it due; 0 keeps the time at which it was due

	outcome Outcome // 0 is not known
	died    bool    // the failure has made it a dead letter
	refusal error   // the reason of the outcome refused
}

// settling is what is done to a claim.
type settling int

const (
	acking settling = iota
	nacking
	releasing
	extending
)

// String returns what errors call it.
func (k settling) String() string { return [...]string{"ack", "nack", "release", "extend"}[k] }

func settlementsOf(kind settling, events []Claimed) []settlement {
	all := make([]settlement, len(events))
	for i := range events {
		all[i] = settlement{kind: kind, claimed: &events[i]}
	}
	return all
}

// roundTrip is what one round trip to the database does: any mix of settlements, then a claim, in one transaction.
type roundTrip struct {
	settlements []settlement
	lease       time.Duration // of those that are extending
	claim       *claim        // nil claims nothing
	readPauses  bool          // reads what is paused too, after the claim
	// loan lends the connection for the first try; nil takes one of the pool. It is returned after that try.
	loan *doorbell.Loan
	lent bool // the latest try was on that connection

	encoding  string // of the database
	committed bool   // the outcomes that are not 0, and what was claimed, are known

	claimed     []*Claimed
	orphans     []*Claimed   // claimed too, but their events are gone: they are made dead letters
	deadOrphans []*Claimed   // those of orphans that became dead letters
	found       core.Found   // what the claim walks on from, with the orphans, whose rows it has walked over too
	paused      *core.Pauses // as readPauses has read them
	unsettled   int          // final states that were deleted, because their events were queued as well
}

// outcomes returns the outcomes of the settlements, nil if there are none.
func (x *roundTrip) outcomes() []Outcome {
	if len(x.settlements) == 0 {
		return nil
	}
	outcomes := make([]Outcome, len(x.settlements))
	for i := range outcomes {
		outcomes[i] = x.settlements[i].outcome
	}
	return outcomes
}

// what says what x does, for errors: the first of its kinds.
func (x *roundTrip) what() string {
	if len(x.settlements) == 0 {
		return "claim"
	}
	first := extending
	for i := range x.settlements {
		first = min(first, x.settlements[i].kind)
	}
	return first.String()
}

// deadlockTries is how often a transaction is run that PostgreSQL aborts to end a deadlock. We take locks in one order,
// so only other programs' statements can cause one.
const deadlockTries = 5

func (s *Store) roundTrip(ctx context.Context, x *roundTrip) error {
	if x.claim == nil && len(x.settlements) == 0 {
		return nil
	}
	var err error
	for range deadlockTries {
		var pg *pgconn.PgError
		err = s.try(ctx, x)
		if !errors.As(err, &pg) {
			if err != nil && x.lent && ctx.Err() == nil {
				continue // a connection that listens may be lost, which says nothing about those of the pool
			}
			break
		}
		if pg.Code == "23505" && (pg.ConstraintName == "delivered_pkey" || pg.ConstraintName == "dead_letters_event") {
			if n := s.unsettle(ctx, x); n > 0 {
				x.unsettled += n
				continue
			}
		}
		if pg.Code != "40P01" {
			break
		}
	}
	if err != nil {
		return s.db.Wrap(x.what(), err)
	}
	x.committed = true
	if len(x.orphans) > 0 {
		x.deadOrphans = s.endOrphans(ctx, x.orphans)
	}
	return s.resolveOutcomes(ctx, x)
}

// unsettle deletes the final states of what x settles, as far as it is queued, and returns how many there were. An
// event has both only if somebody has written it by hand.
func (s *Store) unsettle(ctx context.Context, x *roundTrip) (n int) {
	var ids []pgtype.UUID
	for i := range x.settlements {
		if c := &x.settlements[i]; c.kind == acking || c.kind == nacking {
			ids = append(ids, pgvalue.UUID(c.claimed.ID))
		}
	}
	_ = s.guarded(ctx, x.what(), func(q *queries.Queries) error {
		rows, err := q.EventUnsettle(ctx, ids)
		n = int(rows)
		return err
	})
	return n
}

var errOrphan = outbox.Permanent(errors.New(
	"the event is gone from the table events: somebody has deleted its row by hand"))

// endOrphans makes dead letters of claims whose events are gone, and returns them. If it fails, their leases run out
// and the next claim tries again.
func (s *Store) endOrphans(ctx context.Context, orphans []*Claimed) (deadOrphans []*Claimed) {
	why := errclass.Of(errOrphan)
	x := roundTrip{settlements: make([]settlement, len(orphans))}
	for i, c := range orphans {
		x.settlements[i] = settlement{kind: nacking, claimed: c, why: &why}
	}
	_ = s.roundTrip(ctx, &x)
	for i := range x.settlements {
		if x.settlements[i].died {
			deadOrphans = append(deadOrphans, orphans[i])
		}
	}
	return deadOrphans
}

// connOf returns the connection for a try of x, and what gives it back.
func (s *Store) connOf(ctx context.Context, x *roundTrip) (conn *pgx.Conn, release func(), err error) {
	conn = x.loan.Take()
	if x.lent = conn != nil; x.lent {
		return conn, x.loan.Return, nil
	}
	pooled, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, nil, err
	}
	return pooled.Conn(), pooled.Release, nil
}

// try sends x as one batch.
func (s *Store) try(ctx context.Context, x *roundTrip) error {
	conn, release, err := s.connOf(ctx, x)
	if err != nil {
		return err
	}
	defer release()
	x.encoding = errclass.EncodingOf(conn)
	for i := range x.settlements {
		x.settlements[i].outcome, x.settlements[i].died = 0, false // of an earlier try
	}
	b := &pgx.Batch{}
	s.db.Begin(b)
	s.queueAcks(b, x)
	s.queueNacks(b, x)
	s.queueChange(b, x.of(func(f *settlement) bool {
		return f.kind == releasing
	}), func(q *queries.Queries, some []*settlement, ids []pgtype.UUID, nos []int64) {
		p := queries.EventReleaseParams{
			Ids: ids, ClaimNos: nos, WorkerID: pgvalue.UUID(s.worker), DelaysUs: make([]int64, len(ids)),
		}
		for i, f := range some {
			p.DelaysUs[i] = f.after.Microseconds()
		}
		_, _ = q.EventRelease(ctx, p)
	})
	s.queueChange(b, x.of(func(f *settlement) bool {
		return f.kind == extending
	}), func(q *queries.Queries, _ []*settlement, ids []pgtype.UUID, nos []int64) {
		_, _ = q.EventExtend(ctx, queries.EventExtendParams{
			Ids: ids, ClaimNos: nos, WorkerID: pgvalue.UUID(s.worker), Lease: pgvalue.Interval(x.lease),
		})
	})
	if x.claim != nil {
		sent := time.Now()
		deadline := sent.Add(x.claim.lease)
		s.queue(b, func(q *queries.Queries) { s.claimFrom(ctx, q, x.claim) }).Query(func(rows pgx.Rows) error {
			x.claimed, x.orphans, x.found = nil, nil, core.Found{} // of an earlier try
			if x.claim.Turns != nil {
				return s.scanTurns(rows, x, sent, deadline)
			}
			return s.scanClaimed(rows, x, deadline)
		})
	}
	if x.readPauses {
		s.queue(b, func(q *queries.Queries) {
			_, _ = q.PauseOfNamespace(ctx, s.namespace)
		}).Query(func(rows pgx.Rows) (err error) {
			x.paused, err = scanPauses(rows)
			return err
		})
	}
	s.db.Commit(b)
	if err := conn.SendBatch(ctx, b).Close(); err != nil {
		x.claimed, x.orphans, x.found = nil, nil, core.Found{} // rolled back, or unknown: their leases run out
		return err
	}
	return nil
}

func (s *Store) queue(b *pgx.Batch, call func(*queries.Queries)) *pgx.QueuedQuery {
	return s.db.Queue(b, call)
}

// of returns the settlements that are wanted.
func (x *roundTrip) of(wanted func(*settlement) bool) (some []*settlement) {
	for i := range x.settlements {
		if f := &x.settlements[i]; wanted(f) {
			if some == nil {
				some = make([]*settlement, 0, len(x.settlements)-i)
			}
			some = append(some, f)
		}
	}
	return some
}

// queueAcks queues the acks: some delete their events, those of topics that do not keep what is delivered.
func (s *Store) queueAcks(b *pgx.Batch, x *roundTrip) {
	drops := func(f *settlement) bool { return s.policyOf(f.claimed.Topic).retention.DeleteOnAck }
	s.queueChange(b, x.of(func(f *settlement) bool {
		return f.kind == acking && !drops(f)
	}), func(q *queries.Queries, _ []*settlement, ids []pgtype.UUID, nos []int64) {
		_, _ = q.EventAck(context.Background(), queries.EventAckParams{
			Ids: ids, ClaimNos: nos, WorkerID: pgvalue.UUID(s.worker),
		})
	})
	s.queueChange(b, x.of(func(f *settlement) bool {
		return f.kind == acking && drops(f)
	}), func(q *queries.Queries, _ []*settlement, ids []pgtype.UUID, nos []int64) {
		_, _ = q.EventAckDelete(context.Background(), queries.EventAckDeleteParams{
			Ids: ids, ClaimNos: nos, WorkerID: pgvalue.UUID(s.worker),
		})
	})
}

// queueChange queues a statement that returns the claims it changed, and sets the outcomes from its answer: Applied, or
// 0 where resolveOutcomes has to find out.
func (s *Store) queueChange(
	b *pgx.Batch, some []*settlement, call func(*queries.Queries, []*settlement, []pgtype.UUID, []int64),
) {
	if len(some) == 0 {
		return
	}
	ids, nos := make([]pgtype.UUID, len(some)), make([]int64, len(some))
	for i, f := range some {
		ids[i], nos[i] = pgvalue.UUID(f.claimed.ID), f.claimed.ClaimNo
	}
	s.queue(b, func(q *queries.Queries) { call(q, some, ids, nos) }).Query(func(rows pgx.Rows) error {
		changed := make([]fence, 0, len(some))
		var id pgtype.UUID
		var no int64
		if _, err := pgx.ForEachRow(rows, []any{&id, &no}, func() error {
			changed = append(changed, fence{id.Bytes, no})
			return nil
		}); err != nil {
			return err
		}
		markApplied(some, changed)
		return nil
	})
}

// markApplied records which of some were changed. Usually all were, and each fence is returned once.
func markApplied(some []*settlement, changed []fence) {
	if len(changed) == len(some) {
		for _, f := range some {
			f.outcome = Applied
		}
		return
	}
	set := make(map[fence]struct{}, len(changed))
	for _, f := range changed {
		set[f] = struct{}{}
	}
	for _, f := range some {
		if _, ok := set[fenceOf(f.claimed)]; ok {
			f.outcome = Applied
		}
	}
}

func (s *Store) queueNacks(b *pgx.Batch, x *roundTrip) {
	some := x.of(func(f *settlement) bool { return f.kind == nacking })
	if len(some) == 0 {
		return
	}
	p := queries.EventNackParams{WorkerID: pgvalue.UUID(s.worker)}
	index := make(map[fence]*settlement, len(some))
	for _, f := range some {
		index[fenceOf(f.claimed)] = f
		p.Ids = append(p.Ids, pgvalue.UUID(f.claimed.ID))
		p.ClaimNos = append(p.ClaimNos, f.claimed.ClaimNo)
		retry := s.policyOf(f.claimed.Topic).retry
		p.DelaysUs = append(p.DelaysUs, f.why.Delay(retry.BaseDelay, retry.MaxDelay, f.claimed.Attempt).Microseconds())
		p.RetryAts = append(p.RetryAts, pgvalue.Time(pgvalue.Clamp(f.retryAt)))
		p.Permanents = append(p.Permanents, f.why.Class == errclass.ClassRefused)
		p.Errors = append(p.Errors, errclass.Storable(f.why.Text, x.encoding))
	}
	s.queue(b, func(q *queries.Queries) { _, _ = q.EventNack(context.Background(), p) }).Query(func(rows pgx.Rows) error {
		var id pgtype.UUID
		var no int64
		var died bool
		_, err := pgx.ForEachRow(rows, []any{&id, &no, &died}, func() error {
			f := index[fence{id.Bytes, no}]
			f.outcome, f.died = Applied, died
			return nil
		})
		return err
	})
}

// fence identifies one claim of one event. A batch may hold two claims of the same event: a worker that lost the event
// and claimed it again settles both.
type fence struct {
	id uuid.UUID
	no int64
}

func fenceOf(c *Claimed) fence { return fence{c.ID, c.ClaimNo} }

// resolveOutcomes reads the state of the events that x did not change, and sets their outcomes. Usually there are none.
func (s *Store) resolveOutcomes(ctx context.Context, x *roundTrip) error {
	open := x.of(func(f *settlement) bool { return f.outcome == 0 })
	if len(open) == 0 {
		return nil
	}
	ids := make([]pgtype.UUID, len(open))
	for i, f := range open {
		ids[i] = pgvalue.UUID(f.claimed.ID)
	}
	var rows []queries.EventStatusesRow
	if err := s.guarded(ctx, x.what(), func(q *queries.Queries) (err error) {
		rows, err = q.EventStatuses(ctx, ids)
		return err
	}); err != nil {
		return err
	}
	statuses := make(map[uuid.UUID]queries.EventStatusesRow, len(rows))
	for _, row := range rows {
		statuses[row.ID.Bytes] = row
	}
	for _, f := range open {
		row, there := statuses[f.claimed.ID]
		if f.outcome = Lost; there && row.ClaimNo == f.claimed.ClaimNo && row.LockedBy == pgvalue.UUID(s.worker) {
			s.resolve(f, &row, x.encoding)
		} else if f.kind == acking && !there && s.policyOf(f.claimed.Topic).retention.DeleteOnAck {
			f.outcome = Already
		}
	}
	return nil
}

// resolve sets the outcome of f, which has changed nothing, if row, which its own claim has left, says that it was not
// lost.
func (s *Store) resolve(f *settlement, row *queries.EventStatusesRow, encoding string) {
	switch {
	case f.kind == acking && row.Status == "delivered":
		f.outcome = Already
	case f.kind == nacking && int(row.Attempts) == f.claimed.Attempt && // a release has one attempt less
		// a sweep has its own text
		(row.Status == "pending" || row.Status == "dead" && row.LastError == errclass.Storable(f.why.Text, encoding)):
		f.outcome, f.died = Already, row.Status == "dead"
	case f.kind == releasing && row.Status == "pending" && int(row.Attempts) < f.claimed.Attempt:
		f.outcome = Already
	case f.kind == extending && row.Status == "processing":
		f.outcome = Locked
	}
}
