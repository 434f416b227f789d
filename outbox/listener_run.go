package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/outboxgen/outboxgen/internal/dbsqlc"
)

// listenerRun is one Run: a goroutine for each shard, one that waits for the doorbell, and one that prunes.
type listenerRun struct {
	l      *Listener
	work   context.Context // of the handlers; outlives that of Run
	talk   context.Context // of what settles; outlives work
	give   chan struct{}   // closed when handlers that still run are given up
	looks  []chan struct{} // makes a shard look
	states chan shardReport
	asking sync.Mutex // one shard after the other asks for more, so that each knows what was asked for

	drained *DrainReport // adds up what was done, in a Drain
	turns   int          // taken in a Drain
}

// Run handles events until ctx ends and blocks until then. It attaches the listener when it is new. Trouble with the
// database is logged and waited out; only at the start does it return an error for it, ErrNotMigrated and ErrRestored
// among them, and later when the listener was detached.
//
// When ctx ends Run starts no more handlers, lets those that run finish for ShutdownTimeout, cancels their contexts
// after that, moves the cursors, gives up its shards, and returns nil, or an error that names the handlers that are
// still running.
func (l *Listener) Run(ctx context.Context) error {
	if !l.busy.CompareAndSwap(false, true) {
		return fmt.Errorf("run listener %s: %w", l.spec.Name, errListenerBusy)
	}
	defer l.busy.Store(false)
	shards, err := l.attach(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("run listener %s: %w", l.spec.Name, err)
	}
	work, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	talk, hangUp := context.WithCancel(context.WithoutCancel(ctx))
	defer hangUp()
	r := &listenerRun{l: l, work: work, talk: talk, give: make(chan struct{})}
	over := make(chan struct{})
	var owned sync.WaitGroup
	owned.Go(func() { r.patience(ctx, over, func() { cancel(errListenerShutdown) }, hangUp) })
	tidy, rest := context.WithCancel(ctx) // a run may end by itself
	defer rest()
	owned.Go(func() { l.maintain(tidy) })
	err = r.generations(ctx, shards)
	close(over)
	rest()
	owned.Wait()
	released := l.release(talk)
	switch {
	case released == nil:
		l.ring(talk)
	case err == nil:
		l.log.Warn("give up leases", "error", released)
	}
	return err
}

var (
	errListenerBusy     = errors.New("it is running already")
	errListenerShutdown = errors.New("listener is stopping: ShutdownTimeout has passed")
)

// patience cancels handlers, then gives them up, then hangs up, when they take too long to stop.
func (r *listenerRun) patience(ctx context.Context, over <-chan struct{}, cancel, hangUp func()) {
	select {
	case <-ctx.Done():
	case <-over:
		return
	}
	for _, step := range [...]struct {
		wait time.Duration
		do   func()
	}{
		{r.l.cfg.ShutdownTimeout, cancel},
		{shutdownGrace, func() { close(r.give) }},
		{shutdownGrace, hangUp},
	} {
		timer := time.NewTimer(step.wait)
		select {
		case <-over:
			timer.Stop()
			return
		case <-timer.C:
			step.do()
		}
	}
}

// generations runs the shards, anew when their number changes.
func (r *listenerRun) generations(ctx context.Context, shards int) error {
	for {
		err := r.generation(ctx, shards)
		if !errors.Is(err, errReshaped) {
			return err
		}
		for {
			reg, err := r.l.registration(r.talk)
			if err == nil && reg.Cursors == 0 {
				return fmt.Errorf("run listener %s: %w", r.l.spec.Name, errDetached)
			}
			if err == nil {
				shards = int(reg.Shards)
				break
			}
			r.l.log.Error("talk to the database", "error", err)
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(longestPause):
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		r.l.log.Info("listener has another number of shards", "shards", shards)
	}
}

// generation runs loops for shards until ctx ends or one of them finds another number.
func (r *listenerRun) generation(ctx context.Context, shards int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.looks = make([]chan struct{}, shards)
	for i := range r.looks {
		r.looks[i] = make(chan struct{}, 1)
	}
	r.states = make(chan shardReport, shards)
	errs := make([]error, shards)
	var loops, owned sync.WaitGroup
	for i := range shards {
		loops.Go(func() {
			s := &shardLoop{cursor: r.l.cursor(i), run: r, shards: shards}
			if errs[i] = s.loop(ctx); errs[i] != nil {
				cancel()
			}
		})
	}
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	owned.Go(func() { newWatch(r).run(watching) })
	loops.Wait()
	stop()
	owned.Wait()
	return firstOf(errs)
}

// firstOf returns the error that says most: one of a stop before a change of shape.
func firstOf(errs []error) error {
	var found error
	for _, err := range errs {
		if err != nil && (found == nil || errors.Is(found, errReshaped)) {
			found = err
		}
	}
	return found
}

// account logs what became of the entries of a turn and, in a Drain, adds it up.
func (r *listenerRun) account(a *advance, moved bool) {
	var report DrainReport
	for _, e := range a.turn.entries() {
		if !e.started && e.fate != dead {
			continue
		}
		if moved && e.fate == done { // nearly all
			report.Delivered++
			continue
		}
		attrs := []any{"namespace", e.Namespace, "topic", e.Topic, "event_id", e.ID, "attempt", e.Attempt}
		if e.TenantID.Valid {
			attrs = append(attrs, "tenant_id", e.TenantID.UUID)
		}
		if e.err != nil {
			attrs = append(attrs, "error", errorText(e.err))
		}
		switch {
		case !moved:
			report.Lost++
			r.l.log.Error("event was handled but its lease was lost", attrs...)
		case e.fate == dead:
			report.Dead++
			r.l.log.Error("event is dead", attrs...)
		case e.fate == aside:
			report.Retried++
			r.l.log.Warn("event failed and is set aside", attrs...)
		case e.fate == failed:
			report.Retried++
			r.l.log.Warn("event failed", attrs...)
		}
	}
	if r.drained != nil {
		r.drained.add(report)
	}
	r.l.signals.ended.emit()
}

// release gives up what leases are held without a turn.
func (l *Listener) release(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bellTimeout)
	defer cancel()
	_, err := l.db.each(l.pool).ListenerRelease(ctx, dbsqlc.ListenerReleaseParams{Listener: l.spec.Name, WorkerID: pgUUID(l.cfg.WorkerID)})
	return err
}

// ring has the other processes look, since a shard of this one is theirs to take. What is not heard is found by polling.
func (l *Listener) ring(ctx context.Context) {
	if l.cfg.Wake != WakeDoorbell {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bellTimeout)
	defer cancel()
	_ = l.db.each(l.pool).BellRing(ctx, l.db.logBell().channel)
}
