package queue

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/backoff"
)

// grace is how long the holder of an event that a sweep has found may still settle it: another lease, or until it has
// reached the database again. It is counted from that find, not from the end of the lease, because a database that was
// away was so for its holder too.
func (d *Dispatcher) grace() time.Duration { return d.cfg.LeaseDuration + 2*backoff.LongestPause }

// maintain sweeps once per LeaseDuration, without what is in flight, and prunes once a PruneInterval until ctx ends, each with jitter.
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
