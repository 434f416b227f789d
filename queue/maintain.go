package queue

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/backoff"
)

// grace is how long the holder of an event that a sweep has found may still settle it: another lease, and the time to
// reach the database again. It counts from the sweep, not from the end of the lease: a database that was unavailable to
// the sweep was unavailable to the holder too.
func (d *Dispatcher) grace() time.Duration { return d.cfg.LeaseDuration + 2*backoff.LongestPause }

// maintain sweeps once per LeaseDuration, except for what is in flight, and prunes once per PruneInterval until ctx
// ends, each with jitter.
func (d *Dispatcher) maintain(ctx context.Context, inFlight func() []uuid.UUID) {
	sweep := time.NewTimer(backoff.Around(d.cfg.LeaseDuration))
	defer sweep.Stop()
	var pruneC <-chan time.Time
	prune := time.NewTimer(backoff.Around(max(d.cfg.PruneInterval, 0)))
	defer prune.Stop()
	if d.cfg.PruneInterval > 0 {
		pruneC = prune.C
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-sweep.C:
			c := d.scope()
			c.inFlight = inFlight()
			n, noted, err := d.store.sweep(ctx, c, d.grace())
			if err != nil && ctx.Err() == nil {
				d.log.Warn("sweep dead", "error", err)
			}
			if n > 0 {
				d.log.Error("events are dead: their workers died on the last attempt", "count", n)
			}
			if noted > 0 {
				sweep.Reset(d.grace() + backoff.UpTo(d.cfg.LeaseDuration/10))
			} else {
				sweep.Reset(backoff.Around(d.cfg.LeaseDuration))
			}
		case <-pruneC:
			n, err := d.store.Prune(ctx)
			if err != nil && ctx.Err() == nil {
				d.log.Warn("prune", "error", err)
			}
			if n > 0 {
				d.log.Info("pruned", "count", n)
			}
			prune.Reset(backoff.Around(d.cfg.PruneInterval))
		}
		d.signals.maintained.Emit()
	}
}
