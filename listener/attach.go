package listener

import (
	"context"
	"fmt"

	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
	"github.com/outboxgen/outboxgen/outbox"
)

// attach registers the listener unless it is registered, requests the number of shards that it should have, and returns
// the number that it has.
func (l *Listener) attach(ctx context.Context) (shards int, err error) {
	maxLag := pgvalue.Interval(l.spec.MaxLag)
	maxLag.Valid = l.spec.MaxLag > 0
	if err := l.db.Each(l.pool).ListenerProbe(ctx); err != nil {
		return 0, schemadb.WrapProbe(l.db, l.pool, err)
	}
	reg, err := l.registration(ctx)
	if err != nil {
		return 0, err
	}
	if reg.Restored { // also for a new listener: none of its windows would see what the log holds
		return 0, outbox.ErrRestored
	}
	if _, _, err := l.db.CheckSequence(ctx, l.db.Each(l.pool)); err != nil {
		return 0, l.db.Wrap("attach", err)
	}
	if reg.Cursors == 0 {
		err := l.db.WithCursorLock(ctx, l.pool, "attach", func(q *queries.Queries) error {
			_, err := q.ListenerAttach(ctx, queries.ListenerAttachParams{
				Listener: l.spec.Name, Shards: int32(l.spec.Shards), Latest: l.spec.Latest, MaxLag: maxLag,
			})
			return err
		})
		if err != nil {
			return 0, err
		}
		if reg, err = l.registration(ctx); err != nil {
			return 0, err
		}
	}
	if l.rate != nil {
		if err := l.db.Each(l.pool).ListenerRateAdd(ctx, l.spec.Name); err != nil {
			return 0, l.db.Wrap("attach", err)
		}
	}
	lag := queries.ListenerMaxLagParams{MaxLag: maxLag, Listener: l.spec.Name}
	if _, err := l.db.Each(l.pool).ListenerMaxLag(ctx, lag); err != nil {
		return 0, l.db.Wrap("attach", err)
	}
	if int(reg.Shards) != l.spec.Shards || reg.ReshardTo != 0 {
		var n int64
		err := l.db.WithCursorLock(ctx, l.pool, "ask for another number of shards", func(q *queries.Queries) (err error) {
			n, err = q.ListenerReshard(ctx, queries.ListenerReshardParams{Shards: int32(l.spec.Shards), Listener: l.spec.Name})
			return err
		})
		if err != nil {
			return 0, err
		}
		if n > 0 {
			l.log.Info("requested another number of shards", "shards", reg.Shards, "requested", l.spec.Shards)
		}
	}
	return int(reg.Shards), nil
}

func (l *Listener) registration(ctx context.Context) (queries.ListenerRegistrationRow, error) {
	reg, err := l.db.Each(l.pool).ListenerRegistration(ctx, l.spec.Name)
	return reg, l.db.Wrap(fmt.Sprintf("read listeners of schema %s", l.db.Name()), err)
}

// reshard takes the next step towards another number of shards. The first step sets the barrier at which the cursors
// stop. When all have reached it, the next step writes the cursors of the new number, which continue from the barrier.
// Any process may take any step. stepped is false if no step can be taken yet.
func (l *Listener) reshard(ctx context.Context) (stepped bool, err error) {
	ctx, cancel := l.limited(ctx)
	defer cancel()
	err = l.db.WithCursorLock(ctx, l.pool, "reshard", func(q *queries.Queries) error {
		n, err := q.ListenerBarrier(ctx, l.spec.Name)
		stepped = n > 0
		if err != nil || stepped {
			return err
		}
		a, err := q.ListenerArrived(ctx, l.spec.Name)
		if err != nil || !a.Arrived {
			return err
		}
		stepped = true
		before, err := q.ListenerRegistration(ctx, l.spec.Name)
		if err != nil {
			return err
		}
		drop := queries.ListenerDropShardsParams{Listener: l.spec.Name, Shards: a.ReshardTo}
		if err := q.ListenerDropShards(ctx, drop); err != nil {
			return err
		}
		if err := q.ListenerRestart(ctx, queries.ListenerRestartParams{
			Shards: a.ReshardTo, HighSeq: a.HighSeq, LeaseNo: a.LeaseNo + 1, Listener: l.spec.Name,
		}); err != nil {
			return err
		}
		return q.ListenerAddShards(ctx, queries.ListenerAddShardsParams{First: before.Shards, Listener: l.spec.Name})
	})
	return stepped, err
}
