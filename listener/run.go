package listener

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/outboxgen/outboxgen/internal/call/errtext"
	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/internal/machine/doorbell"
	"github.com/outboxgen/outboxgen/internal/machine/heartbeat"
	"github.com/outboxgen/outboxgen/internal/machine/report"
	"github.com/outboxgen/outboxgen/internal/machine/shutdown"
	"github.com/outboxgen/outboxgen/internal/machine/target"
	"github.com/outboxgen/outboxgen/internal/postgres/bell"
	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
	"github.com/outboxgen/outboxgen/listener/internal/core"
	"github.com/outboxgen/outboxgen/outbox"
)

// listenerRun is one Run: a goroutine per shard, one that waits for the doorbell, and one that prunes.
type listenerRun struct {
	*shutdown.Stages
	l             *Listener
	wakeups       []chan *doorbell.Loan // makes a shard check what there is to do, with a connection for that or without
	states        chan shardReport
	requesting    sync.Mutex     // shards request other shards one after the other, so that each sees the earlier requests
	calls         sync.WaitGroup // calls of publishers that have outlived their leases
	callsReturned chan struct{}  // holds one: such a call has returned, its events are due; nil in a Drain

	drained *Report // the sum of what was done, in a Drain
	inline  *inline // runs handlers in the goroutine of Drain; nil unless they must run there
}

// runner is what observers are told of l.
func (l *Listener) runner() outbox.Runner {
	return outbox.Runner{Listener: l.spec.Name, WorkerID: l.cfg.WorkerID}
}

// Run handles events until ctx ends and blocks until then. It attaches the listener when it is new. It logs that it
// starts and stops, and while the database does not answer it says so and tries again. Only an error at the start is
// returned, for example ErrNotMigrated or ErrRestored, and later the error that the listener was detached.
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
	ctx = config.WithKeyring(ctx, l.cfg.Keyring)
	shards, err := l.attach(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("run listener %s: %w", l.spec.Name, err)
	}
	l.warnSmallPool(shards)
	over := l.rep.Run("listener", "topics", report.Topics(l.topics), "mode", l.mode(), "shards", shards,
		"lease", l.cfg.LeaseDuration, "batch_size", l.cfg.BatchSize, "concurrency", l.cfg.Concurrency, "poll",
		l.cfg.PollInterval, "wake", l.cfg.Wake)
	defer func() { over(err) }()
	r := &listenerRun{
		l: l, Stages: shutdown.New(outbox.ContextWithRunner(ctx, l.runner())), callsReturned: make(chan struct{}, 1),
	}
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
		over := r.generation(ctx, shards)
		switch {
		case over.Err() != nil:
			return over.Err()
		case over.State() == core.Detached:
			return fmt.Errorf("run listener %s: %w", r.l.spec.Name, errDetached)
		case over.State() == core.Stopped || ctx.Err() != nil:
			return nil
		}
		shards = over.Shards()
		r.l.log.Info("listener has another number of shards", "shards", shards)
	}
}

var errDetached = errors.New("the listener was detached")

// generation runs shards until ctx ends or one of them finds another number. It returns the most important end: an
// error of a shard takes precedence over a change of shards.
func (r *listenerRun) generation(ctx context.Context, shards int) *core.Core {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.wakeups = make([]chan *doorbell.Loan, shards)
	for i := range r.wakeups {
		r.wakeups[i] = make(chan *doorbell.Loan, 1)
	}
	r.states = make(chan shardReport, shards)
	all := make([]*core.Core, shards)
	var loops, owned sync.WaitGroup
	for i := range shards {
		s := r.shard(i, shards, 0)
		all[i] = s.core
		loops.Go(func() {
			if s.loop(ctx); s.core.Err() != nil || s.core.State() != core.Stopped {
				cancel()
			}
		})
	}
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	owned.Go(func() { newWatch(r).run(watching) })
	loops.Wait()
	stop()
	owned.Wait()
	return slices.MaxFunc(all, func(a, b *core.Core) int { return cmp.Compare(importance(a), importance(b)) })
}

// importance orders the ends of shards.
func importance(c *core.Core) int {
	switch {
	case c.Err() != nil:
		return 3
	case c.State() == core.Detached:
		return 2
	case c.State() == core.Reshaped:
		return 1
	}
	return 0
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
	common, why := 1, "1 for pruning"
	if l.rate != nil {
		common, why = 2, "2 for pruning and the rate"
	}
	if l.publishes {
		what := fmt.Sprintf("the listener (%d per shard, %s)", own, why)
		schemadb.WarnSmallPool(l.log, l.pool, own*shards+common, what)
		return
	}
	what := fmt.Sprintf("the listener (%d per shard, %s) and its handlers (%d per shard)", own, why, l.cfg.Concurrency)
	schemadb.WarnSmallPool(l.log, l.pool, (own+l.cfg.Concurrency)*shards+common, what)
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
	_, err := l.db.Each(l.pool).ListenerRelease(ctx, queries.ListenerReleaseParams{
		Listener: l.spec.Name, WorkerID: pgvalue.UUID(l.cfg.WorkerID),
	})
	if l.rate != nil {
		err = errtext.Join(err, l.rate.release(ctx))
	}
	return err
}

// wakeOthers wakes the other processes so that they can take over our shards. Polling covers a missed wake-up.
func (l *Listener) wakeOthers(ctx context.Context) {
	if l.cfg.Wake != outbox.WakeDoorbell {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, doorbell.Timeout)
	defer cancel()
	_ = l.db.Each(l.pool).BellRing(ctx, bell.OfLog(l.db).Channel)
}
