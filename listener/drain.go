package listener

import (
	"context"
	"fmt"
	"time"

	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/internal/machine/shutdown"
	"github.com/outboxgen/outboxgen/listener/internal/core"
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
// at the end of ctx, but returns no error: the report says which bound it was, and the next drain continues. Any number
// of processes may drain concurrently. One listener may not: the second call returns an error.
func (l *Listener) DrainUpTo(ctx context.Context, limit outbox.DrainLimit) (Report, error) {
	report := Report{Ended: outbox.EndStopped}
	ctx = config.WithKeyring(ctx, l.cfg.Keyring)
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

// drain drains until bounded ends, which has the time of limit, or until its events were handled. The end of bounded,
// which may be that of ctx, counts as EndTime.
func (l *Listener) drain(
	ctx, bounded context.Context, limit outbox.DrainLimit, report *Report,
) (outbox.DrainEnd, error) {
	attaching, cancel := ctx, context.CancelFunc(func() {})
	if limit.Time > 0 { // longer than that: a database that does not answer is an error
		attaching, cancel = context.WithDeadline(ctx, time.Now().Add(limit.Time).Add(max(l.cfg.LeaseDuration, 5*time.Second)))
	}
	shards, err := l.attach(attaching)
	cancel()
	if err != nil {
		return 0, err
	}
	r := &listenerRun{l: l, Stages: shutdown.New(outbox.ContextWithRunner(bounded, l.runner())), drained: report}
	defer r.Enforce(bounded, l.cfg.ShutdownTimeout, errListenerShutdown)()
	if !config.IsInline(ctx) {
		return r.drainShards(bounded, shards, limit.Events)
	}
	r.inline = &inline{calls: make(chan func()), gone: make(chan struct{})}
	var end outbox.DrainEnd
	r.inline.serve(bounded, func(ctx context.Context) { end, err = r.drainShards(ctx, shards, limit.Events) })
	return end, err
}

// drainShards drains one shard after the other, until none of them has anything to do. It starts at most events
// handlers; 0 means any number.
func (r *listenerRun) drainShards(ctx context.Context, shards, events int) (outbox.DrainEnd, error) {
	left := events
	for shard, idle := 0, 0; idle < shards; shard = (shard + 1) % shards {
		s := r.shard(shard, shards, left)
		s.loop(ctx)
		left = s.core.Left()
		switch {
		case s.core.Err() != nil:
			return 0, s.core.Err()
		case events > 0 && left <= 0:
			return outbox.EndEvents, r.l.release(r.DBCtx)
		case ctx.Err() != nil:
			_ = r.l.release(r.DBCtx)
			return outbox.EndTime, nil
		case s.core.State() == core.Detached:
			return 0, errDetached
		case s.core.State() == core.Reshaped:
			shards, shard, idle = s.core.Shards(), -1, 0
		case s.core.Leases() > 0:
			idle = 0
		default:
			idle++
		}
	}
	return outbox.EndDrained, r.l.release(r.DBCtx)
}

// inline runs the handlers of a Drain in the goroutine that has called it, where a test's FailNow works. The shards go
// on in another goroutine, which renews the leases meanwhile.
type inline struct {
	calls chan func()
	gone  chan struct{} // closed when nobody runs calls any more
}

// call lets the goroutine of Drain run f. If a handler has ended that goroutine, f runs elsewhere; by then, Drain is
// stopping.
func (i *inline) call(f func()) {
	select {
	case i.calls <- f:
	case <-i.gone:
		go f()
	}
}

// serve runs drain beside this goroutine, which runs the calls until drain has returned. If a handler ends this
// goroutine, drain is stopped.
func (i *inline) serve(ctx context.Context, drain func(context.Context)) {
	ctx, stop := context.WithCancel(ctx)
	over := make(chan struct{})
	go func() {
		defer close(over)
		drain(ctx)
	}()
	defer func() {
		stop()
		close(i.gone)
		<-over
	}()
	for {
		select {
		case f := <-i.calls:
			f()
		case <-over:
			return
		}
	}
}
