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
	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/outbox"
)

// Ack marks events delivered. The outcomes are in the order of the events. When one of them is Lost, Ack also returns
// an error that wraps ErrLeaseLost and says how many are; the others are settled. Ack is safe to repeat after any other
// error, whose statement may have been committed: a repeat answers Already.
func (s *Store) Ack(ctx context.Context, events ...Claimed) ([]Outcome, error) {
	x := roundTrip{acks: pointers(events)}
	if err := s.roundTrip(ctx, &x); err != nil {
		return x.acked, err
	}
	return x.acked, lostError("ack", x.acked)
}

// Nack ends failed attempts. An event is due again after its backoff, or becomes a dead letter if its attempts are used
// up or the error is Permanent; the database decides which. Outcomes, errors and repeats as in Ack.
func (s *Store) Nack(ctx context.Context, failures ...Failure) ([]Outcome, error) {
	x := roundTrip{nacks: failures}
	if err := s.roundTrip(ctx, &x); err != nil {
		return x.nacked, err
	}
	return x.nacked, lostError("nack", x.nacked)
}

// Release hands back events that were not started: they are due as before, and the attempt is not counted. Outcomes,
// errors and repeats as in Ack.
func (s *Store) Release(ctx context.Context, events ...Claimed) ([]Outcome, error) {
	x := roundTrip{releases: pointers(events)}
	if err := s.roundTrip(ctx, &x); err != nil {
		return x.released, err
	}
	return x.released, lostError("release", x.released)
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
		err = fmt.Errorf("%s: %d of %d events are locked by another transaction: try again before their leases end", what, locked, len(outcomes))
	}
	if lost > 0 {
		err = errtext.Join(fmt.Errorf("%s: %d of %d events lost: %w", what, lost, len(outcomes), outbox.ErrLeaseLost), err)
	}
	return err
}

// Extend renews leases: they now end after the given duration. An expired lease is renewed too, unless somebody has
// reclaimed the event. Outcomes and errors as in Ack, except that an event is never Already, and Locked when another
// transaction has its row locked: Extend does not wait for locks, so that one such row does not cost the other leases.
// Locked is an error too.
func (s *Store) Extend(ctx context.Context, lease time.Duration, events ...Claimed) ([]Outcome, error) {
	if lease < config.MinLease {
		return nil, fmt.Errorf("extend: lease %s is shorter than %s", lease, config.MinLease)
	}
	x := roundTrip{extends: pointers(events), lease: lease}
	if err := s.roundTrip(ctx, &x); err != nil {
		return x.extended, err
	}
	return x.extended, lostError("extend", x.extended)
}

// roundTrip is what one round trip to the database does: any mix of finalisations, then a claim, in one
// transaction.
type roundTrip struct {
	acks, releases, extends []*Claimed
	nacks                   []Failure
	handedBack              int           // how many of releases came back because their target is unavailable
	lease                   time.Duration // of extends
	claim                   *claim        // nil claims nothing
	readPauses              bool          // reads what is paused too, after the claim

	encoding  string // of the database
	committed bool   // the outcomes that are not 0, and what was claimed, are known

	acked, nacked, released, extended []Outcome
	died                              []bool // by nack
	claimed                           []*Claimed
	strays                            []*Claimed      // claimed too, but their events are gone: they are made dead letters
	buried                            []*Claimed      // those of strays that became dead letters
	ends                              map[int16]place // of pieces, by lane
	claimedAt                         time.Time       // by the clock of the database
	claimTook                         time.Duration   // there
	paused                            *pauses         // as readPauses has read them
	unsettled                         int             // final states that were deleted, because their events were queued as well
	refusals                          map[fence]error // the reasons of refused outcomes
}

// leased returns what x has claimed, with the strays, whose rows it has walked over too.
func (x *roundTrip) leased() []*Claimed {
	if len(x.strays) == 0 {
		return x.claimed
	}
	return slices.Concat(x.claimed, x.strays)
}

func pointers(events []Claimed) []*Claimed {
	p := make([]*Claimed, len(events))
	for i := range events {
		p[i] = &events[i]
	}
	return p
}

// deadlockTries is how often a transaction is run that PostgreSQL aborts to end a deadlock. We take locks in one order,
// so only other programs' statements can cause one.
const deadlockTries = 5

func (s *Store) roundTrip(ctx context.Context, x *roundTrip) error {
	if x.claim == nil && len(x.acks)+len(x.nacks)+len(x.releases)+len(x.extends) == 0 {
		return nil
	}
	var err error
	for range deadlockTries {
		var pg *pgconn.PgError
		err = s.try(ctx, x)
		if !errors.As(err, &pg) {
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
	if len(x.strays) > 0 {
		x.buried = s.bury(ctx, x.strays)
	}
	return s.resolveOutcomes(ctx, x)
}

// unsettle deletes the final states of what x settles, as far as it is queued, and returns how many there were. An event
// has both only if somebody has written it by hand.
func (s *Store) unsettle(ctx context.Context, x *roundTrip) (n int) {
	var ids []pgtype.UUID
	for _, c := range x.acks {
		ids = append(ids, pgvalue.UUID(c.ID))
	}
	for i := range x.nacks {
		ids = append(ids, pgvalue.UUID(x.nacks[i].ID))
	}
	_ = s.guarded(ctx, x.what(), func(q *queries.Queries) error {
		rows, err := q.EventUnsettle(ctx, ids)
		n = int(rows)
		return err
	})
	return n
}

var errStray = outbox.Permanent(errors.New("the event is gone from the table events: somebody has deleted its row by hand"))

// bury makes dead letters of claims whose events are gone, and returns them. If it fails, their leases run out and the next
// claim tries again.
func (s *Store) bury(ctx context.Context, strays []*Claimed) (buried []*Claimed) {
	x := roundTrip{}
	for _, c := range strays {
		x.nacks = append(x.nacks, Failure{Claimed: *c, Err: errStray})
	}
	_ = s.roundTrip(ctx, &x)
	for i, c := range strays {
		if i < len(x.died) && x.died[i] {
			buried = append(buried, c)
		}
	}
	return buried
}

// divide splits finished, whose settlement is x. settled are the settled ones. open must be settled again, because x
// failed or their outcome is not known.
func (x *roundTrip) divide(finished []*task) (settled, open []*task) {
	if !x.committed {
		return nil, finished
	}
	unknown := make(map[fence]struct{})
	note := func(c *Claimed, o Outcome) {
		if o == 0 {
			unknown[fence{c.ID, c.ClaimNo}] = struct{}{}
		}
	}
	for i, c := range x.acks {
		note(c, x.acked[i])
	}
	for i := range x.nacks {
		note(&x.nacks[i].Claimed, x.nacked[i])
	}
	for i, c := range x.releases {
		note(c, x.released[i])
	}
	if len(unknown) == 0 {
		return finished, nil
	}
	for _, t := range finished {
		if _, ok := unknown[fence{t.ID, t.ClaimNo}]; ok {
			open = append(open, t)
		} else {
			settled = append(settled, t)
		}
	}
	return settled, open
}

func (x *roundTrip) what() string {
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
func (s *Store) try(ctx context.Context, x *roundTrip) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	b := &pgx.Batch{}
	s.db.Begin(b)
	keep, drop := s.byHistory(x.acks)
	x.acked = make([]Outcome, len(x.acks))
	s.queueAck(b, x, keep, false)
	s.queueAck(b, x, drop, true)
	x.encoding = errclass.EncodingOf(conn.Conn())
	s.queueNack(b, x)
	x.released = s.queueChange(b, x.releases, func(q *queries.Queries, ids []pgtype.UUID, nos []int64) {
		p := queries.EventReleaseParams{Ids: ids, ClaimNos: nos, WorkerID: pgvalue.UUID(s.worker), DelaysUs: make([]int64, len(ids))}
		for i, c := range x.releases {
			p.DelaysUs[i] = c.after.Microseconds()
		}
		_, _ = q.EventRelease(ctx, p)
	})
	x.extended = s.queueChange(b, x.extends, func(q *queries.Queries, ids []pgtype.UUID, nos []int64) {
		_, _ = q.EventExtend(ctx, queries.EventExtendParams{Ids: ids, ClaimNos: nos, WorkerID: pgvalue.UUID(s.worker), Lease: pgvalue.Interval(x.lease)})
	})
	if x.claim != nil {
		deadline := time.Now().Add(x.claim.lease)
		s.queue(b, func(q *queries.Queries) { s.claimFrom(ctx, q, x.claim) }).Query(func(rows pgx.Rows) error {
			x.claimed, x.strays, x.ends = nil, nil, nil // of an earlier try
			return s.scanClaimed(rows, x, deadline)
		})
	}
	if x.readPauses {
		s.queue(b, func(q *queries.Queries) { _, _ = q.PauseOfNamespace(ctx, s.namespace) }).Query(func(rows pgx.Rows) (err error) {
			x.paused, err = scanPauses(rows)
			return err
		})
	}
	s.db.Commit(b)
	if err := conn.SendBatch(ctx, b).Close(); err != nil {
		x.claimed, x.strays = nil, nil // rolled back, or unknown: their leases run out
		return err
	}
	return nil
}

func (s *Store) queue(b *pgx.Batch, call func(*queries.Queries)) *pgx.QueuedQuery {
	return s.db.Queue(b, call)
}

// byHistory splits the indexes of events: keep are those whose topic keeps delivered events.
func (s *Store) byHistory(events []*Claimed) (keep, drop []int) {
	for i := range events {
		if s.policyOf(events[i].Topic).retention.DeleteOnAck {
			drop = append(drop, i)
		} else {
			keep = append(keep, i)
		}
	}
	return keep, drop
}

func (s *Store) queueAck(b *pgx.Batch, x *roundTrip, indexes []int, drop bool) {
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
	s.queueChange(b, picked, func(q *queries.Queries, ids []pgtype.UUID, nos []int64) {
		if drop {
			_, _ = q.EventAckDelete(context.Background(), queries.EventAckDeleteParams{Ids: ids, ClaimNos: nos, WorkerID: pgvalue.UUID(s.worker)})
		} else {
			_, _ = q.EventAck(context.Background(), queries.EventAckParams{Ids: ids, ClaimNos: nos, WorkerID: pgvalue.UUID(s.worker)})
		}
	}, func(outcomes []Outcome) {
		for n, i := range indexes {
			x.acked[i] = outcomes[n]
		}
	})
}

// queueChange queues a statement that returns the claims it changed, and returns the outcomes that its answer
// fills in: Applied, or 0 where resolveOutcomes has to find out.
func (s *Store) queueChange(b *pgx.Batch, events []*Claimed, call func(*queries.Queries, []pgtype.UUID, []int64), then ...func([]Outcome)) []Outcome {
	if len(events) == 0 {
		return nil
	}
	ids, nos := fences(events)
	outcomes := make([]Outcome, len(events))
	s.queue(b, func(q *queries.Queries) { call(q, ids, nos) }).Query(func(rows pgx.Rows) error {
		changed := make([]fence, 0, len(events))
		var id pgtype.UUID
		var no int64
		if _, err := pgx.ForEachRow(rows, []any{&id, &no}, func() error {
			changed = append(changed, fence{id.Bytes, no})
			return nil
		}); err != nil {
			return err
		}
		markApplied(outcomes, events, changed)
		for _, f := range then {
			f(outcomes)
		}
		return nil
	})
	return outcomes
}

// markApplied records which of events were changed. Usually all were, and each fence is returned once.
func markApplied(outcomes []Outcome, events []*Claimed, changed []fence) {
	if len(changed) == len(events) {
		for i := range outcomes {
			outcomes[i] = Applied
		}
		return
	}
	set := make(map[fence]struct{}, len(changed))
	for _, f := range changed {
		set[f] = struct{}{}
	}
	for i, e := range events {
		if _, ok := set[fence{e.ID, e.ClaimNo}]; ok {
			outcomes[i] = Applied
		}
	}
}

func (s *Store) queueNack(b *pgx.Batch, x *roundTrip) {
	x.nacked, x.died = make([]Outcome, len(x.nacks)), make([]bool, len(x.nacks))
	if len(x.nacks) == 0 {
		return
	}
	p := queries.EventNackParams{WorkerID: pgvalue.UUID(s.worker)}
	index := make(map[fence]int, len(x.nacks))
	for i := range x.nacks {
		f := &x.nacks[i]
		index[fence{f.ID, f.ClaimNo}] = i
		p.Ids = append(p.Ids, pgvalue.UUID(f.ID))
		p.ClaimNos = append(p.ClaimNos, f.ClaimNo)
		why := f.why()
		retry := s.policyOf(f.Topic).retry
		p.DelaysUs = append(p.DelaysUs, why.Delay(retry.BaseDelay, retry.MaxDelay, f.Attempt).Microseconds())
		p.RetryAts = append(p.RetryAts, pgvalue.Time(pgvalue.Clamp(f.RetryAt)))
		p.Permanents = append(p.Permanents, why.Class == errclass.ClassRefused)
		p.Errors = append(p.Errors, errclass.Storable(why.Text, x.encoding))
	}
	s.queue(b, func(q *queries.Queries) { _, _ = q.EventNack(context.Background(), p) }).Query(func(rows pgx.Rows) error {
		var id pgtype.UUID
		var no int64
		var died bool
		_, err := pgx.ForEachRow(rows, []any{&id, &no, &died}, func() error {
			i := index[fence{id.Bytes, no}]
			x.nacked[i], x.died[i] = Applied, died
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

func fences(events []*Claimed) (ids []pgtype.UUID, nos []int64) {
	ids, nos = make([]pgtype.UUID, len(events)), make([]int64, len(events))
	for i := range events {
		ids[i], nos[i] = pgvalue.UUID(events[i].ID), events[i].ClaimNo
	}
	return ids, nos
}

// resolveOutcomes reads the state of the events that x did not change, and sets their outcomes. Usually there are none.
func (s *Store) resolveOutcomes(ctx context.Context, x *roundTrip) error {
	var open []pgtype.UUID
	each := func(visit func(kind finalisation, i int, c *Claimed, o *Outcome)) {
		for i := range x.acks {
			visit(acking, i, x.acks[i], &x.acked[i])
		}
		for i := range x.nacks {
			visit(nacking, i, &x.nacks[i].Claimed, &x.nacked[i])
		}
		for i := range x.releases {
			visit(releasing, i, x.releases[i], &x.released[i])
		}
		for i := range x.extends {
			visit(extending, i, x.extends[i], &x.extended[i])
		}
	}
	each(func(_ finalisation, _ int, c *Claimed, o *Outcome) {
		if *o == 0 {
			open = append(open, pgvalue.UUID(c.ID))
		}
	})
	if len(open) == 0 {
		return nil
	}
	var rows []queries.EventStatusesRow
	if err := s.guarded(ctx, x.what(), func(q *queries.Queries) (err error) {
		rows, err = q.EventStatuses(ctx, open)
		return err
	}); err != nil {
		return err
	}
	statuses := make(map[uuid.UUID]queries.EventStatusesRow, len(rows))
	for _, row := range rows {
		statuses[row.ID.Bytes] = row
	}
	each(func(kind finalisation, i int, c *Claimed, o *Outcome) {
		if *o != 0 {
			return
		}
		row, there := statuses[c.ID]
		same := there && row.ClaimNo == c.ClaimNo && row.LockedBy == pgvalue.UUID(s.worker)
		*o = Lost
		switch kind {
		case acking:
			deleted := !there && s.policyOf(c.Topic).retention.DeleteOnAck
			if deleted || same && row.Status == "delivered" {
				*o = Already
			}
		case nacking: // a release has one attempt less, and a sweep has its own error text
			if same && int(row.Attempts) == c.Attempt &&
				(row.Status == "pending" || row.Status == "dead" && row.LastError == errclass.Storable(x.nacks[i].why().Text, x.encoding)) {
				*o, x.died[i] = Already, row.Status == "dead"
			}
		case releasing:
			if same && row.Status == "pending" && int(row.Attempts) < c.Attempt {
				*o = Already
			}
		case extending:
			if same && row.Status == "processing" {
				*o = Locked
			}
		}
	})
	return nil
}

// finalisation is what is done to a claim.
type finalisation int

const (
	acking finalisation = iota
	nacking
	releasing
	extending
)
