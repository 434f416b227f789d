package listener

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/call/errtext"
	"github.com/outboxgen/outboxgen/internal/call/usercode"
	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/internal/machine/report"
	"github.com/outboxgen/outboxgen/internal/postgres/methodtx"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

// batch runs the handlers of one lease: those of one key one after the other, those of different keys concurrently.
// With one worker all events are handled in the order of the log.
type batch struct {
	l     *Listener
	lease *shardLease
	ctx   context.Context // when it ends, no more handlers are started
	tx    pgx.Tx          // of the handlers, in transactional mode
	of    *listenerRun    // of a batch in leased mode
	limit *budget         // of what may be started
	keys  map[string]*keyState
	lane  publish.Lane // of its calls of publishers

	mu        sync.Mutex
	entries   []*entry // not processed yet, parked ones first
	blocked   bool     // an event of the log blocks the others
	halted    bool     // nothing more is started
	abandoned bool     // nobody waits for the handlers that still run
	leaseLost bool     // the lease is lost: failures from now on are not the handlers'
	txErr     error    // what broke tx
	workers   sync.WaitGroup
	finished  chan struct{} // closed when all handlers have returned
}

// keyState is the state of one key. Most have none while there is one worker.
type keyState struct {
	busy    bool     // its handler is running
	stopped bool     // one of its events waits for a retry
	parked  bool     // and the events behind it are parked
	queue   []*entry // events that came while it was busy
}

func (s *shardLoop) newBatch(ctx context.Context, lease *shardLease, tx pgx.Tx) *batch {
	b := &batch{
		l: s.l, limit: s.run.budget, lease: lease, ctx: ctx, tx: tx, keys: make(map[string]*keyState), finished: make(chan struct{}),
	}
	if s.l.publishes {
		b.lane = publish.Lane{
			Name:    s.l.laneName(s.shard, lease.shards),
			Earlier: func(ctx context.Context) ([]string, error) { return s.earlierLanes(ctx, lease) },
			Held:    func(ctx context.Context) error { return s.held(ctx, lease) },
		}
	}
	b.entries = slices.Concat(lease.parked, lease.events)
	return b
}

// run handles the entries that may be handled, and returns when the handlers have returned or abandon is closed.
func (b *batch) run(work context.Context, abandon <-chan struct{}) {
	if config.IsInline(b.ctx) {
		defer close(b.finished)
		b.workers.Add(1)
		if b.l.publishes {
			b.publish(work)
			return
		}
		b.worker(work)
		return
	}
	if b.l.publishes {
		b.workers.Add(1)
		go b.publish(work)
	} else {
		b.spawn(work)
	}
	go func() {
		b.workers.Wait()
		close(b.finished)
	}()
	select {
	case <-b.finished:
	case <-abandon:
		b.mu.Lock()
		b.halted, b.abandoned = true, true
		b.mu.Unlock()
	}
}

// spawn starts the workers.
func (b *batch) spawn(work context.Context) {
	for range min(b.l.cfg.Concurrency, len(b.entries)) {
		b.workers.Add(1)
		go b.worker(work)
	}
}

// worker runs handlers until none may be started. A handler that ends its goroutine ends the worker, and another worker
// replaces it.
func (b *batch) worker(work context.Context) {
	over := false
	defer func() {
		if over || config.IsInline(b.ctx) {
			b.workers.Done()
		} else {
			go b.worker(work)
		}
	}()
	for e := b.next(); e != nil; e = b.next() {
		b.handle(work, e)
	}
	over = true
}

// next returns the first entry that may be started, or nil.
func (b *batch) next() *entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.entries) > 0 && !b.halted && b.ctx.Err() == nil && !b.limit.spent() {
		e := b.entries[0]
		b.entries = b.entries[1:]
		if e.status != statusWaiting {
			continue
		}
		var k keyState
		if known := b.keys[e.key]; known != nil {
			k = *known
		}
		switch {
		case k.busy:
			k := b.stateOf(e.key)
			k.queue = append(k.queue, e)
		case k.parked && e.parkedNo == 0:
			e.status = statusParked
		case k.stopped, b.blocked && e.parkedNo == 0:
		case e.newer:
			b.stateOf(e.key).stopped = true
		case b.mustWait(e):
			b.stateOf(e.key).stopped, b.blocked = true, b.l.cfg.Concurrency == 1
		case !b.admitted(e):
		default:
			e.retry, e.started, e.running = nil, true, true
			b.limit.take(1)
			if b.l.cfg.Concurrency > 1 {
				b.stateOf(e.key).busy = true
			}
			return e
		}
	}
	return nil
}

// mustWait reports whether e must not be tried in this lease. A one-by-one lease tries only the event whose attempt it
// has counted.
func (b *batch) mustWait(e *entry) bool {
	return e.retry != nil && (b.lease.oneByOne || !e.retry.targetBack())
}

// admitted reports whether e may be tried now. If not, e waits for its target. The caller holds b.mu.
func (b *batch) admitted(e *entry) bool {
	to := b.l.target(e)
	if to == nil { // it was parked when the listener still read its topic
		return true
	}
	n, why := to.Admit(1)
	if n == 0 {
		b.wait(e, why.Text, false)
	}
	return n > 0
}

// finish records the result of a handler.
func (b *batch) finish(e *entry, r errclass.Result) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.abandoned {
		return // too late: the lease has ended
	}
	e.running = false
	if k := b.keys[e.key]; k != nil {
		k.busy = false
		if len(k.queue) > 0 {
			b.entries, k.queue = slices.Concat(k.queue, b.entries), nil
		}
	}
	if b.halted && (b.leaseLost && r.Class != errclass.ClassDone || b.txErr != nil) {
		return // it counts as not started
	}
	b.settle(e, r, true)
	b.blocked = b.blocked || b.l.cfg.Concurrency == 1 && e.parkedNo == 0 && (e.status == statusFailed || e.status == statusWaiting)
}

// settle sets the status of e, whose result is r. first is set for the first event of a call that finds its target
// unavailable: this event is tried to find out when the target is available again. The caller holds b.mu.
func (b *batch) settle(e *entry, r errclass.Result, first bool) {
	e.running = false
	switch r.Class {
	case errclass.ClassUnavailable:
		b.wait(e, r.Text, first)
		return
	case errclass.ClassNotSent:
		e.started = false
		k := b.stateOf(e.key)
		if k.stopped = true; k.parked && e.parkedNo == 0 {
			e.status = statusParked
		} else if !r.Behind && b.ctx.Err() == nil { // otherwise it would be tried again immediately, for nothing
			e.retry = &pendingRetry{until: time.Now().Add(b.l.cfg.Breaker.FirstPause), text: r.Text}
		}
		return
	}
	if b.l.decide(e, r); e.status != statusFailed {
		return
	}
	k := b.stateOf(e.key)
	if k.stopped && e.parkedNo != 0 { // its publisher has sent it although one before it had failed: a key has one head
		e.status, e.started, e.result = statusWaiting, false, errclass.Result{}
		return
	}
	k.stopped = true
	if e.parkedNo == 0 && b.l.spec.ParkKeys && b.lease.mayPark {
		e.status, k.parked = statusParked, true
	}
}

// wait makes e wait for its target, with its attempt uncounted. Events of other targets do not wait with it: e is
// parked unless all events of the listener have this target. The caller holds b.mu.
func (b *batch) wait(e *entry, why string, first bool) {
	to := b.l.target(e)
	delay := to.RetryIn()
	if !first {
		delay = max(delay, to.LaterDelay())
	}
	e.started, e.running, e.away, e.retry = false, false, true, &pendingRetry{until: time.Now().Add(delay), text: why, away: to}
	k := b.stateOf(e.key)
	k.stopped = true
	switch {
	case e.parkedNo != 0:
	case b.lease.mayParkAway && len(b.l.targets.All) > 1:
		e.status, k.parked = statusParked, true
	default:
		b.blocked = b.l.cfg.Concurrency == 1
	}
}

// loseLease stops starting handlers because the lease is lost.
func (b *batch) loseLease() {
	b.mu.Lock()
	b.halted, b.leaseLost = true, true
	b.mu.Unlock()
}

// failTx records what broke the transaction of the batch.
func (b *batch) failTx(err error) {
	b.mu.Lock()
	b.halted = true
	b.txErr = cmp.Or(b.txErr, err)
	b.mu.Unlock()
}

// names lists the events whose handlers are running.
func (b *batch) names() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var names []string
	for _, e := range slices.Concat(b.lease.parked, b.lease.events) {
		if e.running {
			names = append(names, e.Namespace+"/"+e.Topic+" "+e.ID.String())
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// handle runs the handler of e and records its result. It recovers from panics, and reports runtime.Goexit, which still
// ends the goroutine.
func (b *batch) handle(work context.Context, e *entry) {
	h := b.l.of(e)
	there := h != nil
	began := time.Now()
	var told []outbox.Event // nil if nobody is told
	usercode.Run("handler", func() error {
		if !there { // it was parked when the listener still read its topic
			return outbox.Permanent(fmt.Errorf("%s/%s: %w", e.Namespace, e.Topic, outbox.ErrUnimplemented))
		}
		if b.l.hooks.WantsCalls() {
			told = []outbox.Event{e.Event}
			b.l.hooks.Started(work, told)
			began = time.Now()
		}
		if b.tx == nil {
			return b.l.call(work, nil, h, e)
		}
		return b.inSavepoint(work, func(tx pgx.Tx) error { return b.l.call(work, tx, h, e) })
	}, func(err error) {
		if told != nil {
			b.l.hooks.Finished(work, told, []error{err}, time.Since(began))
		}
		results := []errclass.Result{errclass.Of(err)}
		if there {
			b.l.target(e).OnResults(began, []uuid.UUID{e.ID}, results)
		}
		if crashed, ok := err.(*usercode.Crash); ok { // ours, as it came from the guard
			b.l.log.Debug("handler did not return", slog.Any("", e.Event), "stack", crashed.Error())
		}
		b.finish(e, results[0])
	})
}

// call calls the handler of e inside the middleware.
func (l *Listener) call(ctx context.Context, tx pgx.Tx, h *served, e *entry) error {
	if len(l.cfg.Middleware) == 0 {
		return h.run(ctx, tx, e.Event, e.payload)
	}
	return report.Chain(ctx, l.cfg.Middleware, e.Event, func(ctx context.Context) error { return h.run(ctx, tx, e.Event, e.payload) })
}

// inSavepoint runs call in a savepoint, and rolls back to it if call returns an error.
func (b *batch) inSavepoint(work context.Context, call func(pgx.Tx) error) (err error) {
	ctx := context.WithoutCancel(work)
	if err := b.l.inTx(ctx, b.tx, "SAVEPOINT outboxgen_event"); err != nil {
		b.failTx(err)
		return err
	}
	kept := false
	defer func() {
		if kept {
			return
		}
		if undo := b.l.inTx(ctx, b.tx, "ROLLBACK TO SAVEPOINT outboxgen_event; RELEASE SAVEPOINT outboxgen_event"); undo != nil {
			b.failTx(errtext.Join(err, undo))
		}
	}()
	own := methodtx.New(b.tx, errNotYours)
	if err := own.Check("handler", call(own)); err != nil {
		return err
	}
	if err := b.l.inTx(ctx, b.tx, "RELEASE SAVEPOINT outboxgen_event"); err != nil {
		return fmt.Errorf("handler returned nil, but left its transaction failed: %w", err)
	}
	kept = true
	return nil
}

// inTx runs one of the listener's own statements in tx.
func (l *Listener) inTx(ctx context.Context, tx pgx.Tx, sql string, args ...any) error {
	ctx, cancel := l.limited(ctx)
	defer cancel()
	_, err := tx.Exec(ctx, sql, args...)
	return err
}

var errNotYours = errors.New("the listener ends this transaction, after its handlers: return nil to keep what was written, or an error")
