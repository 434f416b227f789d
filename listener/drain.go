package listener

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/internal/machine/shutdown"
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
	return l.DrainUpTo(ctx, outbox.DrainLimit{})
}

// DrainUpTo is Drain within limit. When it comes to a bound, it waits for the running handlers and moves the cursors as
// at the end of ctx, but returns no error: the report says which bound it was, and the next drain continues. Any number of
// processes may drain concurrently. One listener may not: the second call returns an error.
func (l *Listener) DrainUpTo(ctx context.Context, limit outbox.DrainLimit) (Report, error) {
	report := Report{Ended: outbox.EndStopped}
	bounded, cancel, err := config.DrainContext(ctx, limit)
	if err != nil {
		return report, fmt.Errorf("drain listener %s: %w", l.spec.Name, err)
	}
	defer cancel()
	if !l.busy.CompareAndSwap(false, true) {
		return report, fmt.Errorf("drain listener %s: %w", l.spec.Name, errListenerBusy)
	}
	defer l.busy.Store(false)
	ended, err := l.drain(ctx, bounded, limit, &report)
	report.Resting = l.targets.Resting()
	l.rep.Flush()
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return report, fmt.Errorf("drain listener %s: %w", l.spec.Name, err)
	}
	report.Ended = ended
	return report, nil
}

// drain drains until bounded ends, which has the time of limit, or until its events were handled. The end of bounded, which
// may be that of ctx, counts as EndTime.
func (l *Listener) drain(ctx, bounded context.Context, limit outbox.DrainLimit, report *Report) (outbox.DrainEnd, error) {
	attaching, cancel := ctx, context.CancelFunc(func() {})
	if limit.Time > 0 { // longer than that: a database that does not answer is an error
		attaching, cancel = context.WithDeadline(ctx, time.Now().Add(limit.Time).Add(max(l.cfg.LeaseDuration, 5*time.Second)))
	}
	shards, err := l.attach(attaching)
	cancel()
	if err != nil {
		return 0, err
	}
	ctx = bounded
	r := &listenerRun{l: l, Stages: shutdown.New(outbox.ContextWithRunner(ctx, l.runner())), drained: report}
	if limit.Events > 0 {
		r.budget = &budget{left: limit.Events}
	}
	defer r.Enforce(ctx, l.cfg.ShutdownTimeout, errListenerShutdown)()
	dbCtx := r.DBCtx
	for idle := 0; idle < shards; {
		for i := 0; i < shards; i++ {
			before := r.leases
			s := &shardLoop{cursor: l.cursor(i), run: r, shards: shards}
			s.takeOverNow = true
			err := s.loop(ctx)
			over := r.budget.spent() || ctx.Err() != nil
			if err == nil && !over {
				err = s.stepReshard(dbCtx)
			}
			switch {
			case errors.Is(err, errReshaped) && !over:
				reg, err := l.registration(dbCtx)
				if err != nil {
					return 0, err
				}
				if reg.Cursors == 0 {
					return 0, errDetached
				}
				shards, idle, i = int(reg.Shards), 0, -1
				continue
			case err != nil && !errors.Is(err, errReshaped):
				return 0, err
			case r.budget.spent():
				return outbox.EndEvents, l.release(dbCtx)
			case ctx.Err() != nil:
				_ = l.release(dbCtx)
				return outbox.EndTime, nil
			}
			if r.leases > before {
				idle = 0
			} else {
				idle++
			}
		}
	}
	return outbox.EndDrained, l.release(dbCtx)
}

// budget is how many more handlers a Drain may start. A nil budget has no bound.
type budget struct {
	mu   sync.Mutex
	left int
}

// take reduces b by n events; a negative n gives them back.
func (b *budget) take(n int) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left -= n
}

// spent reports whether nothing may be started any more.
func (b *budget) spent() bool { return b != nil && b.remaining() <= 0 }

// atMost returns n, or what is left of b if that is less.
func (b *budget) atMost(n int) int {
	if b == nil {
		return n
	}
	return min(n, b.remaining())
}

// remaining returns what is left of b; 0 if b is nil.
func (b *budget) remaining() int {
	if b == nil {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.left
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
