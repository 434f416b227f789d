package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/call/errtext"
	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/internal/machine/doorbell"
	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
)

// Rewind makes the listener handle the events again that were enqueued at or after to and are still in the log. The
// zero time means all events in the log. It returns how many events of the log, of any topic, the listener has ahead of
// it then. A few older events may be delivered again too: those that lie in the log among the newer ones, and those
// that the listener has not handled yet, because a rewind never skips an event. Attempts count from 1 again. Dead
// letters stay, and their events are delivered again. Parked events are delivered again from the log, or stay parked.
//
// Events that are being handled at the moment are not settled and are delivered again. In a restored database Rewind
// returns ErrRestored.
func (a *Admin) Rewind(ctx context.Context, name string, to time.Time) (events int64, err error) {
	const what = "rewind listener"
	act, err := a.actor(what)
	if err != nil {
		return 0, err
	}
	worker := uuid.New()
	shards := 0
	takeOver := func(q *queries.Queries) (err error) {
		if err := requireMovable(ctx, q, name); err != nil {
			return err
		}
		shards, err = a.takeOver(ctx, q, name, worker, nil)
		return err
	}
	move := func(q *queries.Queries) (err error) {
		if events, err = rewind(ctx, q, name, worker, to, shards); err != nil || a.preview {
			return err
		}
		return act.audit(ctx, q, "rewind",
			auditScope{Listener: name, To: moment(pgvalue.Clamp(to)), Start: to.IsZero()}, events)
	}
	if a.preview {
		err = a.locked(ctx, what, func(q *queries.Queries) error {
			if err := takeOver(q); err != nil {
				return err
			}
			return move(q)
		})
		return events, err
	}
	for range adminTries {
		if err := a.locked(ctx, what, takeOver); err != nil {
			return 0, err
		}
		switch err := a.locked(ctx, what, move); {
		case err == nil:
			a.wakeListeners(ctx)
			return events, nil
		case !errors.Is(err, errTaken):
			return 0, errtext.Join(err, a.handBack(ctx, name, worker))
		}
	}
	return 0, fmt.Errorf("%s: listener %s: %w", what, name, errTaken)
}

// errTaken: another process took a shard that was taken over, because this process was too slow.
var errTaken = errors.New("other processes keep taking its shards")

// rewind moves the cursors that were taken over. The transaction must not have an xid yet.
func rewind(
	ctx context.Context, q *queries.Queries, name string, worker uuid.UUID, to time.Time, shards int,
) (int64, error) {
	n, err := q.ListenerRewind(ctx, queries.ListenerRewindParams{
		Listener: name, WorkerID: pgvalue.UUID(worker), Since: pgvalue.Time(pgvalue.Clamp(to)),
	})
	if err != nil {
		return 0, err
	}
	if int(n) != shards {
		return 0, errTaken
	}
	keys, err := q.ParkedRewind(ctx, name)
	if err != nil {
		return 0, err
	}
	if len(keys) > 0 {
		if err := q.ParkedPromote(ctx, queries.ParkedPromoteParams{Keys: keys, Listener: name}); err != nil {
			return 0, err
		}
	}
	return q.ListenerRemaining(ctx, name)
}

// takeOverLease is how long shards that were taken over stay leased if the process that took them is killed.
const takeOverLease = time.Minute

// oneByOneAfterAdmin is how many events are handled one by one after the shard of a dead holder was taken over.
// They are those of the largest lease, which is that of a listener that publishes.
const oneByOneAfterAdmin = max(config.RelayLeaseBatches*config.DefaultBatchSize, config.ParkedKeyBatch)

// takeOver takes all shards of a listener, or the shard of bucket, from their holders.
func (a *Admin) takeOver(
	ctx context.Context, q *queries.Queries, name string, worker uuid.UUID, bucket *int32,
) (int, error) {
	shards, err := q.ListenerTakeOver(ctx, queries.ListenerTakeOverParams{
		WorkerID: pgvalue.UUID(worker), Lease: pgvalue.Interval(takeOverLease), BatchSize: oneByOneAfterAdmin, Listener: name,
		Bucket: bucket,
	})
	return len(shards), err
}

// handBack gives up shards that were taken over, even when ctx has ended.
func (a *Admin) handBack(ctx context.Context, name string, worker uuid.UUID) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), doorbell.Timeout)
	defer cancel()
	return a.db.Each(a.pool).ListenerHandBack(ctx, queries.ListenerHandBackParams{
		Listener: name, WorkerID: pgvalue.UUID(worker),
	})
}
