package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/call/backoff"
	"github.com/outboxgen/outboxgen/internal/call/errtext"
	"github.com/outboxgen/outboxgen/internal/postgres/bell"
	"github.com/outboxgen/outboxgen/internal/postgres/jsonb"
	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
)

// The reasons in Report.Refused.
const (
	// RefusedKeyTaken: the row of the event was deleted by hand, and a newer event has its dedupe key.
	RefusedKeyTaken = "a newer event has the dedupe key"
	// RefusedNoPayload: the row of the event was deleted by hand before the event died, and its payload with it.
	RefusedNoPayload = "the payload was deleted by hand"
	// RefusedDetached: the listener of the dead letter is not attached.
	RefusedDetached = "the listener is not attached"
)

// ErrNotDead: an event is not a dead letter, or no longer one.
var ErrNotDead = errors.New("not a dead letter")

const (
	deadChunk       = 500 // dead letters per transaction
	chunksPerSecond = 4   // with a rate
	// deadGrace is how long a transaction may still take when ctx has ended. It is finished, so that the report is exact.
	deadGrace = 5 * time.Second
)

// Replay gives the dead letters that f selects back to those who gave them up. f.Status must be "" or StatusDead.
//
// A dead letter of a queue topic goes back into the queue under its id: due now, with no attempt and the max_attempts
// that it had. Its failures stay with it. It gets a new fence, so that a process that had claimed it before can no
// longer settle it. If somebody has deleted its row of events, the row is made again, unless that is impossible: see
// Report.Refused.
//
// A dead letter of a listener goes to that listener alone. If events of its key are parked, it goes before those that
// come after it in the log. Otherwise it is due immediately, and the next events of its key wait while it fails. Only
// if such events are parked, their shards are taken from their holders: what these are handling then is delivered
// again.
//
// A dead letter of a consumer group is parked again, due now and with no attempt, before the messages of its key that
// were parked later. The processes of the consumer apply it.
//
// Any number of replays may run concurrently, and with dispatchers and listeners: one of them puts an event back. What
// dies again meanwhile is not replayed twice. Dead letters are taken oldest first, those of a listener in the order of
// the log, in chunks. Each chunk is a transaction, and the first one writes the audit row, which the others count up.
// When ctx ends, the chunk that is under way is finished, and Replay returns what it did with the error of ctx.
func (a *Admin) Replay(ctx context.Context, f Filter, act Act) (Report, error) {
	const what = "replay"
	if f.Listener != "" {
		if err := requireAttached(ctx, a.db.Each(a.pool), f.Listener); err != nil {
			return Report{}, a.db.Wrap(what, err)
		}
	}
	return a.onDead(ctx, what, f, act, func(ctx context.Context, refs []deadRef, record record) error {
		if f.Consumer != "" {
			return a.inTx(ctx, what, func(q *queries.Queries) error {
				n, err := a.replayConsumed(ctx, q, f.Consumer, refs)
				if err != nil {
					return err
				}
				return record(q, n, nil)
			})
		}
		run, replay := a.inTx, a.replayQueued
		if refs[0].listener != "" {
			run, replay = a.locked, a.replayHeard
		}
		return run(ctx, what, func(q *queries.Queries) error {
			n, refused, err := replay(ctx, q, refs)
			if err != nil {
				return err
			}
			return record(q, n, refused)
		})
	})
}

// Discard deletes the dead letters that f selects. f.Status must be "" or StatusDead, and act.Why must be set. A
// discarded event of a queue topic is gone with its dedupe key: the same key may be enqueued again. An event of a log
// topic stays in the log until it is pruned. The transactions are those of Replay.
func (a *Admin) Discard(ctx context.Context, f Filter, act Act) (Report, error) {
	const what = "discard"
	if act = a.actAs(act); act.Why == "" && !act.DryRun {
		return Report{}, fmt.Errorf("%s: %w", what, argumentError("Act", "Why is empty: say why the events may be lost"))
	}
	return a.onDead(ctx, what, f, act, func(ctx context.Context, refs []deadRef, record record) error {
		return a.inTx(ctx, what, func(q *queries.Queries) error {
			n, err := discard(ctx, q, f.Consumer, numbers(refs))
			if err != nil {
				return err
			}
			return record(q, n, nil)
		})
	})
}

func discard(ctx context.Context, q *queries.Queries, consumer string, nos []int64) (int64, error) {
	if consumer != "" {
		return q.InboxMessageDiscard(ctx, nos)
	}
	return q.DeadLetterDiscard(ctx, nos)
}

// ReplayEdited replays one dead letter with another payload: of a queue topic if listener is "", otherwise of that
// listener. The other columns stay, so payload must have the same tenant and keys. Nobody checks here whether payload
// fits the topic; the command outboxgen does. If the event is no such dead letter, the error wraps ErrNotDead. The
// audit row says that it was edited, and not how. At other listeners and in the log the event stays as it was.
func (a *Admin) ReplayEdited(
	ctx context.Context, id uuid.UUID, listener string, payload json.RawMessage, act Act,
) (Report, error) {
	const what = "replay edited"
	act = a.actAs(act)
	f := Filter{IDs: []uuid.UUID{id}, Listener: listener}
	if err := errtext.Join(act.validate(), f.validateDead()); err != nil {
		return Report{}, fmt.Errorf("%s: %w", what, err)
	}
	if err := jsonb.Check(payload); err != nil {
		return Report{}, fmt.Errorf("%s: payload: %w", what, err)
	}
	if listener != "" {
		if err := requireAttached(ctx, a.db.Each(a.pool), listener); err != nil {
			return Report{}, a.db.Wrap(what, err)
		}
	}
	refs, err := a.selectDead(ctx, f, 0)
	if err != nil {
		return Report{}, a.db.Wrap(what, err)
	}
	refs = slices.DeleteFunc(refs, func(r deadRef) bool { return r.listener != listener })
	notDead := fmt.Errorf("%s: event %s of listener %s: %w", what, id, listener, ErrNotDead)
	if listener == "" {
		notDead = fmt.Errorf("%s: event %s of a queue topic: %w", what, id, ErrNotDead)
	}
	if len(refs) == 0 {
		return Report{}, notDead
	}
	refs = refs[len(refs)-1:] // of several that a rewind has caused, the latest
	if act.DryRun {
		return Report{Matched: 1}, nil
	}
	run, replay := a.inTx, a.replayQueued
	if listener != "" {
		run, replay = a.locked, a.replayHeard
	}
	scope := auditScope{ID: &id, Listener: listener, Edited: true}
	err = run(ctx, what, func(q *queries.Queries) error {
		if n, err := q.DeadLetterEdit(ctx, queries.DeadLetterEditParams{Payload: payload, No: refs[0].no}); err != nil {
			return err
		} else if n == 0 {
			return notDead
		}
		n, refused, err := replay(ctx, q, refs)
		if err != nil {
			return err
		}
		for reason := range refused {
			return fmt.Errorf("event %s: %s", id, reason)
		}
		if n == 0 {
			return notDead
		}
		return act.audit(ctx, q, "replay", scope, n)
	})
	switch {
	case errors.Is(err, ErrNotDead):
		return Report{}, notDead
	case err != nil:
		return Report{}, err
	}
	return Report{Matched: 1, Done: 1}, nil
}

// inTx runs call in a transaction, and repeats it after a deadlock.
func (a *Admin) inTx(ctx context.Context, what string, call func(*queries.Queries) error) error {
	return a.retried(func() error { return a.db.Wrap(what, a.db.InTx(ctx, a.pool, call)) })
}

// replayQueued puts dead letters of queue topics back, in the transaction of q.
func (a *Admin) replayQueued(ctx context.Context, q *queries.Queries, refs []deadRef) (int64, map[string]int64, error) {
	r, err := q.DeadLetterReplay(ctx, numbers(refs))
	if err != nil {
		return 0, nil, err
	}
	rung := make(map[string]bool)
	for _, ref := range refs {
		if rung[ref.namespace] {
			continue
		}
		rung[ref.namespace] = true
		if err := q.BellRing(ctx, bell.Of(a.db, ref.namespace).Channel); err != nil {
			return 0, nil, err
		}
	}
	refused := make(map[string]int64)
	if r.KeyTaken > 0 {
		refused[RefusedKeyTaken] = int64(r.KeyTaken)
	}
	if r.PayloadGone > 0 {
		refused[RefusedNoPayload] = r.PayloadGone
	}
	return r.Replayed, refused, nil
}

// replayHeard hands dead letters of one listener to it, in the transaction of q, which has the lock of the cursors.
//
// A running lease of the shard does not know them. If the lease then parks an event of such a key, ParkedPromote sees
// that the dead letter comes first. But it cannot settle parked events whose numbers have changed, so the shards are
// taken over then.
func (a *Admin) replayHeard(ctx context.Context, q *queries.Queries, refs []deadRef) (int64, map[string]int64, error) {
	listener, nos := refs[0].listener, numbers(refs)
	shards, err := q.ListenerHold(ctx, listener)
	if err != nil {
		return 0, nil, err
	}
	if len(shards) == 0 {
		return 0, map[string]int64{RefusedDetached: int64(len(refs))}, nil
	}
	followed, err := q.DeadLetterFollowed(ctx, queries.DeadLetterFollowedParams{Nos: nos, Listener: listener})
	if err != nil {
		return 0, nil, err
	}
	worker := uuid.New()
	if followed {
		if _, err := a.takeOver(ctx, q, listener, worker, nil); err != nil {
			return 0, nil, err
		}
	}
	r, err := q.DeadLetterPark(ctx, queries.DeadLetterParkParams{Nos: nos, Listener: listener})
	if err != nil {
		return 0, nil, err
	}
	if err := q.ParkedPromote(ctx, queries.ParkedPromoteParams{Keys: r.Keys, Listener: listener}); err != nil {
		return 0, nil, err
	}
	if followed {
		if err := q.ListenerHandBack(ctx, queries.ListenerHandBackParams{
			Listener: listener, WorkerID: pgvalue.UUID(worker),
		}); err != nil {
			return 0, nil, err
		}
	}
	return r.Replayed, nil, q.BellRing(ctx, bell.OfLog(a.db).Channel)
}

func numbers(refs []deadRef) []int64 {
	nos := make([]int64, len(refs))
	for i, r := range refs {
		nos[i] = r.no
	}
	return nos
}

// record adds what a transaction changes to the audit row and, when that has committed, to the report.
type record func(q *queries.Queries, n int64, refused map[string]int64) error

// onDead runs chunk with the dead letters that f selects, a chunk at a time. All dead letters of a chunk are of one
// listener, or of queue topics. chunk runs one transaction and calls record in it.
func (a *Admin) onDead(
	ctx context.Context, what string, f Filter, act Act, chunk func(ctx context.Context, refs []deadRef,
		record record) error,
) (Report, error) {
	var r Report
	act = a.actAs(act)
	if err := errtext.Join(act.validate(), f.validateDead()); err != nil {
		return r, fmt.Errorf("%s: %w", what, err)
	}
	refs, err := a.selectDead(ctx, f, act.Limit)
	if r.Matched = int64(len(refs)); err != nil || act.DryRun {
		return r, a.db.Wrap(what, err)
	}
	slices.SortStableFunc(refs, func(x, y deadRef) int {
		return cmp.Or(cmp.Compare(x.listener, y.listener), cmp.Compare(x.seq, y.seq))
	})
	size := deadChunk
	if act.Rate > 0 {
		size = int(min(max(act.Rate/chunksPerSecond, 1), deadChunk))
	}
	scope := scopeOf(f, act)
	if f.IDs == nil && len(refs) <= maxScopeIDs {
		if scope.Selected, err = a.eventsOfDead(ctx, f.Consumer, numbers(refs)); err != nil {
			return r, a.db.Wrap(what, err)
		}
	}
	var auditNo int64
	began, done := time.Now(), 0
	for done < len(refs) {
		if err := pace(ctx, began, done, act.Rate); err != nil {
			return r, fmt.Errorf("%s: %w", what, err)
		}
		next := refs[done:min(done+size, len(refs))]
		if i := slices.IndexFunc(next, func(ref deadRef) bool { return ref.listener != next[0].listener }); i > 0 {
			next = next[:i]
		}
		var n, no int64
		var refused map[string]int64
		err := finished(ctx, func(ctx context.Context) error {
			return chunk(ctx, next, func(q *queries.Queries, count int64, why map[string]int64) (err error) {
				n, refused, no = count, why, auditNo
				if count > 0 {
					no, err = act.auditPart(ctx, q, auditNo, what, scope, count)
				}
				return err
			})
		})
		if err != nil {
			return r, err
		}
		auditNo = no
		r.Done += n
		for reason, count := range refused {
			if r.Refused == nil {
				r.Refused = make(map[string]int64)
			}
			r.Refused[reason] += count
		}
		done += len(next)
		a.progress(int64(done), r.Matched)
	}
	return r, nil
}

// eventsOfDead returns the ids of the events of dead letters.
func (a *Admin) eventsOfDead(ctx context.Context, consumer string, nos []int64) ([]uuid.UUID, error) {
	read := a.db.Each(a.pool).DeadLetterIDs
	if consumer != "" {
		read = a.db.Each(a.pool).InboxMessageIDs
	}
	rows, err := read(ctx, nos)
	ids := make([]uuid.UUID, len(rows))
	for i, id := range rows {
		ids[i] = id.Bytes
	}
	return ids, err
}

// pace waits until the next chunk may begin, when done events were taken since began. It returns the error of ctx.
func pace(ctx context.Context, began time.Time, done int, rate float64) error {
	if rate > 0 {
		due := began.Add(time.Duration(min(float64(done)/rate, maxPace) * float64(time.Second)))
		backoff.Sleep(ctx, time.Until(due))
	}
	return ctx.Err()
}

// maxPace is the longest wait in seconds, a hundred years, which a time.Duration can hold.
const maxPace = 100 * 365 * 24 * 3600

// finished runs a transaction that ends of itself when ctx ends, within deadGrace.
func finished(ctx context.Context, transaction func(context.Context) error) error {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	var grace *time.Timer
	started := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		grace = time.AfterFunc(deadGrace, cancel)
		close(started)
	})
	defer func() {
		if !stop() {
			<-started
			grace.Stop()
		}
	}()
	return transaction(own)
}

// maxScopeIDs is how many ids an audit row names.
const maxScopeIDs = 100

// scopeOf returns the filter of an act for its audit row.
func scopeOf(f Filter, act Act) auditScope {
	s := auditScope{
		Since: moment(f.Since), Until: moment(f.Until), Namespace: f.Namespace, Topic: f.Topic, Listener: f.Listener,
		Consumer: f.Consumer, Key: f.Key, Error: f.Error, Group: f.Group, Limit: act.Limit,
	}
	if f.TenantID.Valid {
		s.TenantID = &f.TenantID.UUID
	}
	s.IDs = f.IDs[:min(len(f.IDs), maxScopeIDs)]
	s.MoreIDs = len(f.IDs) - len(s.IDs)
	return s
}
