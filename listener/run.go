package listener

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/outboxgen/outboxgen/internal/call/backoff"
	"github.com/outboxgen/outboxgen/internal/call/errtext"
	"github.com/outboxgen/outboxgen/internal/machine/heartbeat"
	"github.com/outboxgen/outboxgen/internal/machine/report"
	"github.com/outboxgen/outboxgen/internal/machine/shutdown"
	"github.com/outboxgen/outboxgen/internal/machine/target"
	"github.com/outboxgen/outboxgen/internal/postgres/doorbell"
	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
	"github.com/outboxgen/outboxgen/outbox"
)

// listenerRun is one Run: a goroutine per shard, one that waits for the doorbell, and one that prunes.
type listenerRun struct {
	*shutdown.Stages
	l             *Listener
	wakeups       []chan struct{} // makes a shard check what there is to do
	states        chan shardReport
	requesting    sync.Mutex     // shards request other shards one after the other, so that each sees the earlier requests
	calls         sync.WaitGroup // calls of publishers that have outlived their leases
	callsReturned chan struct{}  // holds one: such a call has returned, and the events that wait for it are due; nil in a Drain

	drained *Report // the sum of what was done, in a Drain
	leases  int     // taken in a Drain
	budget  *budget // of a Drain that is bounded by events
}

// runner is what observers are told of l.
func (l *Listener) runner() outbox.Runner {
	return outbox.Runner{Listener: l.spec.Name, WorkerID: l.cfg.WorkerID}
}

// Run handles events until ctx ends and blocks until then. It attaches the listener when it is new. It logs that it starts
// and stops, and while the database does not answer it says so and tries again. Only an error at the start is returned, for
// example ErrNotMigrated or ErrRestored, and later the error that the listener was detached.
//
// When ctx ends, Run starts no more handlers, lets running ones finish for ShutdownTimeout, and then cancels their
// contexts. It moves the cursors, gives up its shards, and returns nil, or an error that names the handlers that are
// still running. It returns at the latest two seconds after ShutdownTimeout, even if handlers ignore their contexts or
// the database does not answer.
func (l *Listener) Run(ctx context.Context) (err error) {
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
	l.warnSmallPool(shards)
	over := l.rep.Run("listener", "topics", report.Topics(l.topics), "mode", l.mode(), "shards", shards, "lease", l.cfg.LeaseDuration,
		"batch_size", l.cfg.BatchSize, "concurrency", l.cfg.Concurrency, "poll", l.cfg.PollInterval, "wake", l.cfg.Wake)
	defer func() { over(err) }()
	r := &listenerRun{l: l, Stages: shutdown.New(outbox.ContextWithRunner(ctx, l.runner())), callsReturned: make(chan struct{}, 1)}
	defer r.Enforce(ctx, l.cfg.ShutdownTimeout, errListenerShutdown)()
	var owned sync.WaitGroup
	maintenance, stopMaintenance := context.WithCancel(ctx) // a run may end before ctx does
	defer stopMaintenance()
	owned.Go(func() { l.maintain(maintenance) })
	owned.Go(func() { l.heart().Run(maintenance) })
	err = errtext.Join(r.generations(ctx, shards), r.waitForCalls())
	stopMaintenance()
	owned.Wait()
	releasing := time.Now()
	released := l.release(r.DBCtx)
	switch {
	case released == nil:
		l.wakeOthers(r.DBCtx)
	case err == nil:
		l.rep.Statement("give up leases", releasing, released)
	}
	return err
}

var (
	errListenerBusy     = fmt.Errorf("it %w", outbox.ErrBusy)
	errListenerShutdown = errors.New("listener is stopping: ShutdownTimeout has passed")
)

// callReturned makes the events due that wait for a call to t which has outlived its lease and has returned now. It
// does not leave this to the end of the next lease, which may take long. What a lease parks at this moment is made due
// by the end of the next one.
func (r *listenerRun) callReturned(t *target.Target) {
	if t.Resting() || r.WorkCtx.Err() != nil {
		return
	}
	ctx, cancel := r.l.limited(r.DBCtx)
	defer cancel()
	began := time.Now()
	err := r.l.db.Each(r.l.pool).ParkedWake(ctx, queries.ParkedWakeParams{Listener: r.l.spec.Name, Topics: t.Rest.Topics})
	r.l.rep.Statement("wake events that waited for a publisher", began, err)
	if err != nil {
		return
	}
	select {
	case r.callsReturned <- struct{}{}:
	default: // the shards check anyway
	}
}

// waitForCalls waits for the calls of publishers that have outlived their leases.
func (r *listenerRun) waitForCalls() error {
	over := make(chan struct{})
	go func() {
		r.calls.Wait()
		close(over)
	}()
	select {
	case <-over:
		return nil
	case <-r.GiveUp:
	}
	if names := r.l.targets.Abandoned(); len(names) > 0 {
		return fmt.Errorf("stop listener: still running after %s: %s", r.l.cfg.ShutdownTimeout, strings.Join(names, ", "))
	}
	return nil
}

// generations runs the shards, and restarts them when their number changes.
func (r *listenerRun) generations(ctx context.Context, shards int) error {
	for {
		err := r.generation(ctx, shards)
		if !errors.Is(err, errReshaped) {
			return err
		}
		for {
			began := time.Now()
			reg, err := r.l.registration(r.DBCtx)
			r.l.rep.Statement("read the number of shards", began, err)
			if err == nil && reg.Cursors == 0 {
				return fmt.Errorf("run listener %s: %w", r.l.spec.Name, errDetached)
			}
			if err == nil {
				shards = int(reg.Shards)
				break
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(backoff.LongestPause):
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
	r.wakeups = make([]chan struct{}, shards)
	for i := range r.wakeups {
		r.wakeups[i] = make(chan struct{}, 1)
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

// firstOf returns the most important error: an error of a shard takes precedence over a change of shards.
func firstOf(errs []error) error {
	var found error
	for _, err := range errs {
		if err != nil && (found == nil || errors.Is(found, errReshaped)) {
			found = err
		}
	}
	return found
}

// account logs the results of a lease and adds them up.
func (r *listenerRun) account(a *advance, moved bool) {
	var sum Report
	for _, e := range a.lease.entries() {
		if e.away {
			sum.HandedBack++
		}
		if !e.started && e.status != statusDead {
			continue
		}
		if moved && e.status == statusDone { // nearly all
			sum.Delivered++
			r.l.rep.Delivered(&e.Event)
			continue
		}
		switch {
		case !moved:
			sum.Lost++
			r.l.rep.Trouble(report.Lost, "event was handled but its lease was lost", e.Event, e.result.Text)
		case e.status == statusDead:
			sum.Dead++
			r.l.rep.Trouble(report.Dead, "event is dead", e.Event, e.result.Text)
		case e.status == statusParked:
			sum.Retried++
			r.l.rep.Trouble(report.Failed, "event failed and is parked", e.Event, e.result.Text)
		case e.status == statusFailed:
			sum.Retried++
			r.l.rep.Trouble(report.Failed, "event failed", e.Event, e.result.Text)
		}
	}
	r.l.rep.Add(sum)
	r.l.tellEnds(a.lease, moved)
	if r.drained != nil {
		r.drained.Add(sum)
	}
	r.l.signals.ended.Emit()
}

// mode is the mode of the listener, for the log.
func (l *Listener) mode() string {
	switch {
	case l.publishes:
		return "publishing"
	case l.transactional:
		return "transactional"
	}
	return "leased"
}

// warnSmallPool warns when the handlers of all shards, if they use the pool, could block each other permanently. A
// shard uses one connection for its transaction or for reading ahead, and one to renew its lease; pruning uses one.
func (l *Listener) warnSmallPool(shards int) {
	const own = 2
	if l.publishes {
		schemadb.WarnSmallPool(l.log, l.pool, own*shards+1, fmt.Sprintf("the listener (%d per shard, 1 for pruning)", own))
		return
	}
	what := fmt.Sprintf("the listener (%d per shard, 1 for pruning) and its handlers (%d per shard)", own, l.cfg.Concurrency)
	schemadb.WarnSmallPool(l.log, l.pool, (own+l.cfg.Concurrency)*shards+1, what)
}

// heart returns what keeps the row of l in the table processes.
func (l *Listener) heart() *heartbeat.Heart {
	topics := make(map[string]heartbeat.Topic, len(l.handlers))
	for name, h := range l.handlers {
		topics[name] = heartbeat.Topic{Version: h.version}
	}
	return &heartbeat.Heart{
		DB: l.db, Pool: l.pool, Log: l.log, WorkerID: l.cfg.WorkerID, Kind: heartbeat.Listener, Name: l.spec.Name,
		Topics: topics, Resting: l.targets.Reasons, Changed: l.targets.Changed,
	}
}

// release gives up the shards whose next lease is left to this process.
func (l *Listener) release(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, doorbell.Timeout)
	defer cancel()
	_, err := l.db.Each(l.pool).ListenerRelease(ctx, queries.ListenerReleaseParams{Listener: l.spec.Name, WorkerID: pgvalue.UUID(l.cfg.WorkerID)})
	return err
}

// wakeOthers wakes the other processes so that they can take over our shards. Polling covers a missed wake-up.
func (l *Listener) wakeOthers(ctx context.Context) {
	if l.cfg.Wake != outbox.WakeDoorbell {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, doorbell.Timeout)
	defer cancel()
	_ = l.db.Each(l.pool).BellRing(ctx, doorbell.OfLog(l.db).Channel)
}
