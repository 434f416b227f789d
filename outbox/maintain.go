package outbox

import (
	"context"
	"time"
)

// maintain sweeps once a lease and prunes once a PruneInterval until ctx ends, each with jitter.
func (d *Dispatcher) maintain(ctx context.Context) {
	sweep := time.NewTimer(jitter(d.cfg.LeaseDuration))
	defer sweep.Stop()
	var pruneC <-chan time.Time
	prune := time.NewTimer(jitter(max(d.cfg.PruneInterval, 0)))
	defer prune.Stop()
	if d.cfg.PruneInterval > 0 {
		pruneC = prune.C
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-sweep.C:
			n, err := d.store.sweep(ctx, d.scope())
			if err != nil && ctx.Err() == nil {
				d.log.Warn("sweep dead", "error", err)
			}
			if n > 0 {
				d.log.Error("events are dead: their workers died on the last attempt", "count", n)
			}
			sweep.Reset(jitter(d.cfg.LeaseDuration))
		case <-pruneC:
			n, err := d.store.Prune(ctx)
			if err != nil && ctx.Err() == nil {
				d.log.Warn("prune", "error", err)
			}
			if n > 0 {
				d.log.Info("pruned", "count", n)
			}
			prune.Reset(jitter(d.cfg.PruneInterval))
		}
		d.signals.maintained.emit()
	}
}
