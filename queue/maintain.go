package queue

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outboxgen/outboxgen/internal/call/backoff"
	"github.com/outboxgen/outboxgen/internal/machine/heartbeat"
	"github.com/outboxgen/outboxgen/internal/machine/report"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
)

// grace is how long the holder of an event that a sweep has found may still settle it: another lease, and the time to
// reach the database again. It counts from the sweep, not from the end of the lease: a database that was unavailable to
// the sweep was unavailable to the holder too.
func (d *Dispatcher) grace() time.Duration { return d.cfg.LeaseDuration + 2*backoff.LongestPause }

// onSwept tells of dead letters that a sweep has made: their workers died on the last attempt, or the limit was
// lowered.
func (d *Dispatcher) onSwept(ends []report.End) {
	d.rep.Add(Report{Dead: len(ends)})
	for i := range ends {
		d.rep.Trouble(report.Dead, "event is dead: a sweep has found it", ends[i].Event, ends[i].Reason)
	}
	d.hooks.Ended(ends)
}

// maintain sweeps once per LeaseDuration, except for what is in flight, and prunes once per PruneInterval until ctx
// ends, each with jitter. With each sweep it checks some rows, and looks for events of the namespace that no process
// takes.
func (d *Dispatcher) maintain(ctx context.Context, inFlight func() []uuid.UUID) {
	sweep := time.NewTimer(backoff.Around(d.cfg.LeaseDuration))
	defer sweep.Stop()
	var pruneC <-chan time.Time
	prune := time.NewTimer(backoff.Around(max(d.cfg.PruneInterval, 0)))
	defer prune.Stop()
	if d.cfg.PruneInterval > 0 {
		pruneC = prune.C
	}
	var check misfits
	orphans := heartbeat.NewOrphans(d.store.db, d.pool, d.log, []string{d.store.namespace}, d.orphanAge)
	for {
		select {
		case <-ctx.Done():
			return
		case <-sweep.C:
			began := time.Now()
			if err := check.next(ctx, d); ctx.Err() == nil {
				d.rep.Statement("check rows", began, err)
			}
			c := d.scope()
			c.InFlight = inFlight()
			began = time.Now()
			_, noted, err := d.store.sweep(ctx, c, d.grace(), d.onSwept)
			if ctx.Err() == nil {
				d.rep.Statement("sweep", began, err)
			}
			if err := orphans.Check(ctx); err != nil { // it needs a privilege that nothing else needs
				d.log.Debug("cannot look for events that nobody takes", "error", err)
			}
			if noted > 0 {
				sweep.Reset(d.grace() + backoff.UpTo(d.cfg.LeaseDuration/10))
			} else {
				sweep.Reset(backoff.Around(d.cfg.LeaseDuration))
			}
		case <-pruneC:
			began := time.Now()
			n, err := d.store.Prune(ctx)
			if ctx.Err() == nil {
				d.rep.Statement("prune", began, err)
			}
			if n > 0 {
				d.log.Debug("pruned", "count", n)
			}
			prune.Reset(backoff.Around(d.cfg.PruneInterval))
		}
		d.signals.maintained.Emit()
	}
}

// misfits checks the rows of the namespace, a piece at a time and again from the beginning, for events whose rows do
// not fit together. Each kind is logged once.
type misfits struct {
	queued, enqueued       pgtype.UUID // the last ones checked
	saidFinal, saidNoState bool
}

// misfitPiece is how many rows of each table are checked with one sweep.
const misfitPiece = 2000

func (m *misfits) next(ctx context.Context, d *Dispatcher) error {
	var row queries.EventMisfitsRow
	err := d.store.guarded(ctx, "check rows", func(q *queries.Queries) (err error) {
		m.queued.Valid, m.enqueued.Valid = true, true
		row, err = q.EventMisfits(ctx, queries.EventMisfitsParams{
			AfterQueued: m.queued, AfterEnqueued: m.enqueued, BatchSize: misfitPiece, Namespace: d.store.namespace,
		})
		return err
	})
	if err != nil {
		return err
	}
	m.queued, m.enqueued = row.CheckedQueued, row.CheckedEnqueued // after the last one, null: from the beginning
	if row.Final > 0 && !m.saidFinal {
		m.saidFinal = true
		d.log.Error(
			"events are queued although they are final: somebody has written their rows by hand; they are handled again",
			"count", row.Final)
	}
	if row.Stateless > 0 && !m.saidNoState {
		m.saidNoState = true
		d.log.Error("events have no state: somebody has written or deleted rows by hand; they are not delivered until they "+
			"have a row in the table queue", "count", row.Stateless)
	}
	return nil
}
