package admin

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/outbox"
)

// ErrNotSkippable: a listener can skip only its next event and parked events, and the event is neither. Or no event was
// named, and it is not clear which one is meant.
var ErrNotSkippable = errors.New("event cannot be skipped")

// skipped is the error of a dead letter that Skip made. The error of the failed event follows it.
const skipped = "skipped by operator"

// headLimit is how many events of a shard Skip reads.
const headLimit = 100

// notSkippableError is an ErrNotSkippable that says why, and what could be skipped instead.
type notSkippableError struct{ text string }

func (r *notSkippableError) Error() string        { return r.text }
func (r *notSkippableError) Is(target error) bool { return target == ErrNotSkippable }

func notSkippable(format string, args ...any) error {
	return &notSkippableError{fmt.Sprintf(format, args...)}
}

// skipTarget is an event that a listener may skip: the next event of a shard, or a parked one.
type skipTarget struct {
	event    outbox.Event
	shard    int32
	seq      int64
	head     bool // the attempts of its shard may be of this event
	failed   bool
	text     string // what it failed with, if that is known
	inBatch  bool
	parkedNo int64 // of a parked event
	key      string
	bucket   int32
}

// deadLetterError is the error of the dead letter that t becomes.
func (t skipTarget) deadLetterError() string {
	if t.text == "" {
		return skipped
	}
	return skipped + ": " + t.text
}

func (t skipTarget) String() string {
	return fmt.Sprintf("%s (%s/%s)", t.event.ID, t.event.Namespace, t.event.Topic)
}

// Skip makes the listener pass one event, and returns the event without its payload. The event becomes a dead letter
// with the error "skipped by operator", followed by the error that the event has failed with. It must be the next event
// of a shard or a parked one; for any other, the error wraps ErrNotSkippable. The zero UUID means the event that has
// failed, if there is exactly one. In a restored database Skip returns ErrRestored.
//
// The shard is taken from its holder: the events that are being handled at the moment are not settled and are delivered
// again, except the skipped event.
func (a *Admin) Skip(ctx context.Context, name string, id uuid.UUID) (outbox.Event, error) {
	const what = "skip event"
	act, err := a.actor(what)
	if err != nil {
		return outbox.Event{}, err
	}
	for range adminTries {
		t, err := a.skipTarget(ctx, name, id)
		if err != nil {
			return outbox.Event{}, a.db.Wrap(what, err)
		}
		if a.preview {
			return t.event, nil
		}
		moved, err := a.skip(ctx, what, name, t, act)
		if err != nil {
			return outbox.Event{}, err
		}
		if moved {
			a.wakeListeners(ctx)
			return t.event, nil
		}
	}
	return outbox.Event{}, fmt.Errorf("%s: listener %s keeps moving: pause it, then try again", what, name)
}

// skip moves t to the dead letters. moved is false if the event is no longer where it was.
func (a *Admin) skip(ctx context.Context, what, name string, t skipTarget, act Act) (moved bool, err error) {
	var n int64
	audit := func(q *queries.Queries) error {
		if n == 0 {
			return nil
		}
		s := auditScope{Listener: name, Namespace: t.event.Namespace, Topic: t.event.Topic, ID: &t.event.ID}
		return act.audit(ctx, q, "skip", s, n)
	}
	if t.parkedNo != 0 {
		err = a.locked(ctx, what, func(q *queries.Queries) (err error) {
			worker := uuid.New()
			if _, err = a.takeOver(ctx, q, name, worker, &t.bucket); err != nil {
				return err
			}
			if n, err = q.ParkedSkip(ctx, queries.ParkedSkipParams{Error: t.deadLetterError(), No: t.parkedNo}); err != nil {
				return err
			}
			if err := q.ParkedPromote(ctx, queries.ParkedPromoteParams{Keys: []string{t.key}, Listener: name}); err != nil {
				return err
			}
			if err := q.ListenerHandBack(ctx, queries.ListenerHandBackParams{
				Listener: name, WorkerID: pgvalue.UUID(worker),
			}); err != nil {
				return err
			}
			return audit(q)
		})
		return n > 0, err
	}
	if !t.inBatch {
		err := a.locked(ctx, what, func(q *queries.Queries) error {
			_, err := q.ListenerOpen(ctx, queries.ListenerOpenParams{Listener: name, Shard: t.shard})
			return err
		})
		if err != nil {
			return false, err
		}
	}
	err = a.locked(ctx, what, func(q *queries.Queries) (err error) {
		n, err = q.ListenerSkip(ctx, queries.ListenerSkipParams{
			Attempts: int32(t.event.Attempt), Error: t.deadLetterError(), BatchSize: oneByOneAfterAdmin, Head: t.head,
			Seq: t.seq, Listener: name, Shard: t.shard,
		})
		if err != nil {
			return err
		}
		return audit(q)
	})
	return n > 0, err
}

// skipTarget finds the event to skip.
func (a *Admin) skipTarget(ctx context.Context, name string, id uuid.UUID) (skipTarget, error) {
	q := a.db.Each(a.pool)
	if err := requireMovable(ctx, q, name); err != nil {
		return skipTarget{}, err
	}
	events, err := headEvents(ctx, q, name)
	if err != nil {
		return skipTarget{}, err
	}
	if id == uuid.Nil {
		return onlyFailed(ctx, q, name, events)
	}
	for _, t := range events {
		if t.event.ID == id {
			return t, nil
		}
	}
	p, err := parkedTarget(ctx, q, name, id)
	if !errors.Is(err, pgx.ErrNoRows) { // found, or an error
		return p, err
	}
	text := fmt.Sprintf("listener %s can skip only its next event and parked events, not event %s", name, id)
	if len(events) > 0 {
		text += "; next: " + joinTargets(events)
	}
	return skipTarget{}, &notSkippableError{text}
}

// onlyFailed returns the event that has failed, if there is exactly one.
func onlyFailed(ctx context.Context, q *queries.Queries, name string, events []skipTarget) (skipTarget, error) {
	var failed, candidates []skipTarget
	for _, t := range events {
		switch {
		case t.failed:
			failed = append(failed, t)
		case t.head && t.event.Attempt > 0:
			candidates = append(candidates, t)
		}
	}
	heads, err := q.ParkedHeads(ctx, queries.ParkedHeadsParams{Listener: name, EventLimit: maxListed + 1})
	if err != nil {
		return skipTarget{}, err
	}
	for _, h := range heads {
		failed = append(failed, skipTarget{
			event: outbox.Event{ID: h.ID.Bytes, Namespace: h.Namespace, Topic: h.Topic}, parkedNo: -1,
		})
	}
	switch {
	case len(failed) > 1:
		return skipTarget{}, notSkippable("listener %s has several failed events: name one of %s", name, joinTargets(failed))
	case len(candidates) > 0:
		return skipTarget{}, notSkippable("listener %s: a process died while handling an event, and it is not known which "+
			"one: name the event to skip; the first possible one is %s", name, joinTargets(candidates))
	case len(failed) == 0:
		return skipTarget{}, notSkippable("listener %s has no failed event: name the event to skip", name)
	case failed[0].parkedNo != 0:
		return parkedTarget(ctx, q, name, failed[0].event.ID)
	}
	return failed[0], nil
}

// headEvents returns the next events of the shards of a listener. For a shard these are the events that have failed. If
// none has, it is the first event of each topic, because only the listener's process knows which topics it reads.
func headEvents(ctx context.Context, q *queries.Queries, name string) ([]skipTarget, error) {
	rows, err := q.ListenerHead(ctx, queries.ListenerHeadParams{EventLimit: headLimit, Listener: name})
	if err != nil {
		return nil, err
	}
	var targets []skipTarget
	var blocked bool
	var topics map[string]bool
	for i, r := range rows {
		first := i == 0 || rows[i-1].Shard != r.Shard
		if first {
			blocked, topics = r.Exact, make(map[string]bool)
		}
		topic := r.Namespace + "/" + r.Topic
		next := !blocked && !topics[topic]
		topics[topic] = true
		t := skipTarget{
			shard: r.Shard, seq: r.Seq, head: first || !blocked, failed: r.Exact || r.Attempts > 0, inBatch: r.InBatch,
		}
		if !t.failed && !next {
			continue
		}
		if r.Exact {
			t.text = r.LastError
		}
		attempts := r.Attempts
		if t.head {
			attempts = max(attempts, r.RetryCount)
		}
		t.event = eventOf(outbox.Event{
			Namespace: r.Namespace, Topic: r.Topic, Version: int(r.Version), DedupeKey: r.DedupeKey,
			PartitionKey: r.PartitionKey, Entity: outbox.Entity{Type: r.EntityType, ID: r.EntityID, Version: r.EntityVersion},
			Attempt: int(attempts), CreatedAt: r.CreatedAt.Time,
		}, r.ID, r.TenantID, r.Headers)
		targets = append(targets, t)
	}
	return targets, nil
}

// parkedTarget returns a parked event.
func parkedTarget(ctx context.Context, q *queries.Queries, name string, id uuid.UUID) (skipTarget, error) {
	r, err := q.ParkedFind(ctx, queries.ParkedFindParams{Listener: name, ID: pgvalue.UUID(id)})
	if err != nil {
		return skipTarget{}, err
	}
	return skipTarget{
		parkedNo: r.No, key: r.Key, bucket: int32(r.Bucket), text: r.LastError,
		event: eventOf(outbox.Event{
			Namespace: r.Namespace, Topic: r.Topic, Version: int(r.Version), DedupeKey: r.DedupeKey,
			PartitionKey: r.PartitionKey, Entity: outbox.Entity{Type: r.EntityType, ID: r.EntityID, Version: r.EntityVersion},
			Attempt: int(r.Attempts), CreatedAt: r.CreatedAt.Time,
		}, r.ID, r.TenantID, r.Headers),
	}, nil
}

// maxListed limits the events that an error names.
const maxListed = 5

func joinTargets(targets []skipTarget) string {
	var names []string
	for i, t := range targets {
		if i == maxListed {
			names = append(names, "...")
			break
		}
		names = append(names, t.String())
	}
	return strings.Join(names, ", ")
}
