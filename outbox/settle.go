package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outboxgen/outboxgen/internal/dbsqlc"
)

// Ack marks events delivered. The outcomes are in the order of the events. It is safe to repeat after an
// error, whose statement may have been committed: a repeat answers Already.
func (s *Store) Ack(ctx context.Context, events ...Claimed) ([]Outcome, error) {
	x := exchange{acks: pointers(events)}
	err := s.exchange(ctx, &x)
	return x.acked, err
}

// Nack ends failed attempts: an event is due again after its back-off, or becomes a dead letter when its
// attempts are spent or the error is Permanent; the database decides which. Outcomes and repeats as in Ack.
func (s *Store) Nack(ctx context.Context, failures ...Failure) ([]Outcome, error) {
	x := exchange{nacks: failures}
	err := s.exchange(ctx, &x)
	return x.nacked, err
}

// Release hands events back that were not started: due as before, with the attempt given back. Outcomes and
// repeats as in Ack.
func (s *Store) Release(ctx context.Context, events ...Claimed) ([]Outcome, error) {
	x := exchange{releases: pointers(events)}
	err := s.exchange(ctx, &x)
	return x.released, err
}

// Extend renews the leases of events, to end lease from now, also those that have run out while nobody
// claimed the event. Outcomes in the order of the events, never Already.
func (s *Store) Extend(ctx context.Context, lease time.Duration, events ...Claimed) ([]Outcome, error) {
	if lease < minLease {
		return nil, fmt.Errorf("extend: lease %s is shorter than %s", lease, minLease)
	}
	x := exchange{extends: pointers(events), lease: lease}
	err := s.exchange(ctx, &x)
	return x.extended, err
}

// exchange is what one round trip to the database does: any mix of finalisations, then a claim, in one
// transaction.
type exchange struct {
	acks, releases, extends []*Claimed
	nacks                   []Failure
	lease                   time.Duration // of extends
	claim                   *claim        // nil claims nothing

	acked, nacked, released, extended []Outcome
	died                              []bool // by nack
	claimed                           []*Claimed
}

func pointers(events []Claimed) []*Claimed {
	p := make([]*Claimed, len(events))
	for i := range events {
		p[i] = &events[i]
	}
	return p
}

// deadlockTries is how often a transaction that PostgreSQL sacrificed to a deadlock is run. Locks are taken
// in one order, so only statements of others can cause one.
const deadlockTries = 5

func (s *Store) exchange(ctx context.Context, x *exchange) error {
	if x.claim == nil && len(x.acks)+len(x.nacks)+len(x.releases)+len(x.extends) == 0 {
		return nil
	}
	var err error
	for range deadlockTries {
		var pg *pgconn.PgError
		if err = s.try(ctx, x); !errors.As(err, &pg) || pg.Code != "40P01" {
			break
		}
	}
	if err != nil {
		return wrap(x.what(), err)
	}
	return s.judge(ctx, x)
}

func (x *exchange) what() string {
	switch {
	case len(x.acks) > 0:
		return "ack"
	case len(x.nacks) > 0:
		return "nack"
	case len(x.releases) > 0:
		return "release"
	case len(x.extends) > 0:
		return "extend"
	}
	return "claim"
}

// try sends x as one batch.
func (s *Store) try(ctx context.Context, x *exchange) error {
	b := &pgx.Batch{}
	s.db.Begin(b)
	keep, drop := s.byHistory(x.acks)
	x.acked = make([]Outcome, len(x.acks))
	s.queueAck(b, x, keep, false)
	s.queueAck(b, x, drop, true)
	s.queueNack(b, x)
	x.released = s.queueChange(b, x.releases, func(q *dbsqlc.Queries, ids []pgtype.UUID, nos []int64) {
		_, _ = q.EventRelease(ctx, dbsqlc.EventReleaseParams{Ids: ids, ClaimNos: nos, WorkerID: pgUUID(s.worker)})
	})
	x.extended = s.queueChange(b, x.extends, func(q *dbsqlc.Queries, ids []pgtype.UUID, nos []int64) {
		_, _ = q.EventExtend(ctx, dbsqlc.EventExtendParams{Ids: ids, ClaimNos: nos, WorkerID: pgUUID(s.worker), Lease: pgInterval(x.lease)})
	})
	if x.claim != nil {
		deadline := time.Now().Add(x.claim.lease)
		s.queue(b, func(q *dbsqlc.Queries) { s.claimFrom(ctx, q, x.claim) }).Query(func(rows pgx.Rows) (err error) {
			x.claimed, err = s.scanClaimed(rows, deadline)
			return err
		})
	}
	s.db.Commit(b)
	if err := s.pool.SendBatch(ctx, b).Close(); err != nil {
		x.claimed = nil // rolled back, or unknown: their leases run out
		return err
	}
	return nil
}

func (s *Store) queue(b *pgx.Batch, call func(*dbsqlc.Queries)) *pgx.QueuedQuery {
	return s.db.queue(b, call)
}

// byHistory splits the indexes of events by whether their topic keeps delivered events.
func (s *Store) byHistory(events []*Claimed) (keep, drop []int) {
	for i := range events {
		if s.policyOf(events[i].Topic).retention.Delivered == 0 {
			drop = append(drop, i)
		} else {
			keep = append(keep, i)
		}
	}
	return keep, drop
}

func (s *Store) queueAck(b *pgx.Batch, x *exchange, indexes []int, drop bool) {
	if len(indexes) == 0 {
		return
	}
	picked := x.acks
	if len(indexes) < len(x.acks) {
		picked = make([]*Claimed, len(indexes))
		for n, i := range indexes {
			picked[n] = x.acks[i]
		}
	}
	s.queueChange(b, picked, func(q *dbsqlc.Queries, ids []pgtype.UUID, nos []int64) {
		if drop {
			_, _ = q.EventAckDelete(context.Background(), dbsqlc.EventAckDeleteParams{Ids: ids, ClaimNos: nos, WorkerID: pgUUID(s.worker)})
		} else {
			_, _ = q.EventAck(context.Background(), dbsqlc.EventAckParams{Ids: ids, ClaimNos: nos, WorkerID: pgUUID(s.worker)})
		}
	}, func(outcomes []Outcome) {
		for n, i := range indexes {
			x.acked[i] = outcomes[n]
		}
	})
}

// queueChange queues a statement that returns the claims it changed, and returns the outcomes that its answer
// fills in: Acked, or 0 where judge has to find out.
func (s *Store) queueChange(b *pgx.Batch, events []*Claimed, call func(*dbsqlc.Queries, []pgtype.UUID, []int64), then ...func([]Outcome)) []Outcome {
	if len(events) == 0 {
		return nil
	}
	ids, nos := fences(events)
	outcomes := make([]Outcome, len(events))
	s.queue(b, func(q *dbsqlc.Queries) { call(q, ids, nos) }).Query(func(rows pgx.Rows) error {
		changed := make([]fence, 0, len(events))
		var id pgtype.UUID
		var no int64
		if _, err := pgx.ForEachRow(rows, []any{&id, &no}, func() error {
			changed = append(changed, fence{id.Bytes, no})
			return nil
		}); err != nil {
			return err
		}
		markAcked(outcomes, events, changed)
		for _, f := range then {
			f(outcomes)
		}
		return nil
	})
	return outcomes
}

// markAcked notes which of events were changed: usually all, and each fence comes back once.
func markAcked(outcomes []Outcome, events []*Claimed, changed []fence) {
	if len(changed) == len(events) {
		for i := range outcomes {
			outcomes[i] = Acked
		}
		return
	}
	set := make(map[fence]struct{}, len(changed))
	for _, f := range changed {
		set[f] = struct{}{}
	}
	for i, e := range events {
		if _, ok := set[fence{e.ID, e.ClaimNo}]; ok {
			outcomes[i] = Acked
		}
	}
}

func (s *Store) queueNack(b *pgx.Batch, x *exchange) {
	x.nacked, x.died = make([]Outcome, len(x.nacks)), make([]bool, len(x.nacks))
	if len(x.nacks) == 0 {
		return
	}
	p := dbsqlc.EventNackParams{WorkerID: pgUUID(s.worker)}
	index := make(map[fence]int, len(x.nacks))
	for i := range x.nacks {
		f := &x.nacks[i]
		index[fence{f.ID, f.ClaimNo}] = i
		p.Ids = append(p.Ids, pgUUID(f.ID))
		p.ClaimNos = append(p.ClaimNos, f.ClaimNo)
		p.DelaysUs = append(p.DelaysUs, retryDelay(f.Err, s.policyOf(f.Topic).retry, f.Attempt).Microseconds())
		p.RetryAts = append(p.RetryAts, pgTime(clampTime(f.RetryAt)))
		p.Permanents = append(p.Permanents, isPermanent(f.Err))
		p.Errors = append(p.Errors, errorText(f.Err))
	}
	s.queue(b, func(q *dbsqlc.Queries) { _, _ = q.EventNack(context.Background(), p) }).Query(func(rows pgx.Rows) error {
		var id pgtype.UUID
		var no int64
		var died bool
		_, err := pgx.ForEachRow(rows, []any{&id, &no, &died}, func() error {
			i := index[fence{id.Bytes, no}]
			x.nacked[i], x.died[i] = Acked, died
			return nil
		})
		return err
	})
}

// fence names one claim of one event. A batch may hold two of the same event: a worker that lost it and
// claimed it again settles both.
type fence struct {
	id uuid.UUID
	no int64
}

func fences(events []*Claimed) (ids []pgtype.UUID, nos []int64) {
	ids, nos = make([]pgtype.UUID, len(events)), make([]int64, len(events))
	for i := range events {
		ids[i], nos[i] = pgUUID(events[i].ID), events[i].ClaimNo
	}
	return ids, nos
}

// judge finds out what became of the events that x did not change. Usually there are none.
func (s *Store) judge(ctx context.Context, x *exchange) error {
	var open []pgtype.UUID
	each := func(visit func(c *Claimed, o *Outcome, already func(status string) bool)) {
		for i := range x.acks {
			visit(x.acks[i], &x.acked[i], func(status string) bool { return status == "delivered" })
		}
		for i := range x.nacks {
			visit(&x.nacks[i].Claimed, &x.nacked[i], func(status string) bool { return status == "pending" || status == "dead" })
		}
		for i := range x.releases {
			visit(x.releases[i], &x.released[i], func(status string) bool { return status == "pending" })
		}
		for i := range x.extends {
			visit(x.extends[i], &x.extended[i], func(string) bool { return false })
		}
	}
	each(func(c *Claimed, o *Outcome, _ func(string) bool) {
		if *o == 0 {
			open = append(open, pgUUID(c.ID))
		}
	})
	if len(open) == 0 {
		return nil
	}
	var rows []dbsqlc.EventStatesRow
	if err := s.guarded(ctx, x.what(), func(q *dbsqlc.Queries) (err error) {
		rows, err = q.EventStates(ctx, open)
		return err
	}); err != nil {
		return err
	}
	states := make(map[uuid.UUID]dbsqlc.EventStatesRow, len(rows))
	for _, row := range rows {
		states[row.ID.Bytes] = row
	}
	each(func(c *Claimed, o *Outcome, already func(string) bool) {
		if *o != 0 {
			return
		}
		row, there := states[c.ID]
		switch {
		case there && row.ClaimNo == c.ClaimNo && row.LockedBy == pgUUID(s.worker) && already(row.Status):
			*o = Already
		case !there && already("delivered") && s.policyOf(c.Topic).retention.Delivered == 0:
			*o = Already // deleted on ack
		default:
			*o = Lost
		}
	})
	return nil
}
