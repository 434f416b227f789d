package listener

import (
	"context"
	"errors"
	"fmt"

	"github.com/outboxgen/outboxgen/internal/shutdown"
	"github.com/outboxgen/outboxgen/outbox"
)

// Report says what a Drain did.
type Report = outbox.DrainReport

// Drain handles the events that are due, including those that handlers enqueue meanwhile, and returns when no more are
// due. Use it in a cron job or a test. It attaches a new listener. Events that failed and are due later stay, and so do
// the events of shards that another process holds. Topics and destinations that are unavailable rest, and their events
// stay too; the report names them. When ctx ends, Drain starts no more handlers, waits for the running ones, and
// cancels their contexts after ShutdownTimeout. It then moves the cursors and returns the context's error, or an error
// that names the handlers that are still running a second later. It also returns at the first error of the database.
func (l *Listener) Drain(ctx context.Context) (Report, error) {
	var report Report
	if !l.busy.CompareAndSwap(false, true) {
		return report, fmt.Errorf("drain listener %s: %w", l.spec.Name, errListenerBusy)
	}
	defer l.busy.Store(false)
	err := l.drain(ctx, &report)
	report.Resting = l.targets.Resting()
	l.rep.Flush()
	if err != nil {
		return report, fmt.Errorf("drain listener %s: %w", l.spec.Name, err)
	}
	return report, nil
}

func (l *Listener) drain(ctx context.Context, report *Report) error {
	shards, err := l.attach(ctx)
	if err != nil {
		return err
	}
	r := &listenerRun{l: l, Stages: shutdown.New(outbox.ContextWithRunner(ctx, l.runner())), drained: report}
	defer r.Enforce(ctx, l.cfg.ShutdownTimeout, errListenerShutdown)()
	dbCtx := r.DBCtx
	for idle := 0; idle < shards; {
		for i := 0; i < shards; i++ {
			before := r.leases
			s := &shardLoop{cursor: l.cursor(i), run: r, shards: shards}
			s.takeOverNow = true
			err := s.loop(ctx)
			if err == nil && ctx.Err() == nil {
				err = s.stepReshard(dbCtx)
			}
			switch {
			case errors.Is(err, errReshaped):
				reg, err := l.registration(dbCtx)
				if err != nil {
					return err
				}
				if reg.Cursors == 0 {
					return errDetached
				}
				shards, idle, i = int(reg.Shards), 0, -1
				continue
			case err != nil:
				return err
			case ctx.Err() != nil:
				_ = l.release(dbCtx)
				return ctx.Err()
			}
			if r.leases > before {
				idle = 0
			} else {
				idle++
			}
		}
	}
	return l.release(dbCtx)
}

// stepReshard takes the steps of a change of shards that can be taken now.
func (s *shardLoop) stepReshard(ctx context.Context) error {
	w, ok, err := s.readWait(ctx)
	switch {
	case err != nil:
		return err
	case !ok || int(w.Shards) != s.shards:
		return errReshaped
	case w.Resharding:
		stepped, err := s.l.reshard(ctx)
		if err != nil {
			return err
		}
		if stepped {
			s.run.leases++ // there may be more to do now
		}
	}
	return nil
}
