package listener

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/internal/call/cause"
	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/call/usercode"
	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/internal/machine/report"
	"github.com/outboxgen/outboxgen/listener/internal/core"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

// batch runs the handlers of a core.Batch. When the last of them has returned, it tells the core.
type batch struct {
	s        *shard
	ctx      context.Context // when it ends, no more handlers are started
	work     context.Context // of the handlers
	cancel   context.CancelCauseFunc
	tx       pgx.Tx        // of the handlers, in transactional mode
	lane     publish.Lane  // of its calls of publishers
	workers  atomic.Int32  // that have not ended
	finished chan struct{} // closed when all handlers have returned

	mu    sync.Mutex
	core  *core.Batch
	txErr error // what broke tx
}

func (s *shard) newBatch(of *core.Batch) *batch {
	b := &batch{s: s, ctx: s.ctx, core: of, finished: make(chan struct{})}
	b.work, b.cancel = context.WithCancelCause(s.run.WorkCtx)
	if s.l.transactional {
		b.tx = s.tx
	}
	if lease := of.Lease; s.l.publishes {
		b.lane = publish.Lane{
			Name:    s.l.laneName(s.number, lease.Shards),
			Earlier: func(ctx context.Context) ([]string, error) { return s.earlierLanes(ctx, lease) },
			Held:    func(ctx context.Context) error { return s.held(ctx, lease) },
		}
	}
	return b
}

// start starts the workers, or one that publishes instead. In a Drain whose handlers run in the caller's goroutine,
// there is one, and that goroutine runs it.
func (b *batch) start() {
	run, n := b.worker, min(b.s.l.cfg.Concurrency, b.core.Len())
	switch {
	case b.s.l.publishes:
		run, n = b.publish, 1
	case b.s.l.spec.Batch.Size > 0:
		run = b.caller
	}
	if b.s.run.inline != nil {
		b.workers.Store(1)
		b.s.run.inline.call(run)
		return
	}
	if n == 0 {
		b.workers.Store(1)
		b.end()
		return
	}
	b.workers.Store(int32(n))
	for range n {
		go run()
	}
}

// end ends a worker. The last one tells the core that the batch is over.
func (b *batch) end() {
	if b.workers.Add(-1) > 0 {
		return
	}
	b.cancel(nil)
	close(b.finished)
	b.s.events <- b.result("")
}

// result is what the core is told when the batch is over, although the handlers of running may still run.
func (b *batch) result(running string) core.Handled {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := core.Handled{Batch: b.core, Running: running, TxErr: b.txErr}
	if b.txErr != nil {
		h.TxResult = brokenTx(b.txErr)
	}
	return h
}

// abandon stops to wait for the handlers.
func (b *batch) abandon() core.Event {
	b.mu.Lock()
	b.core.Abandon()
	running := b.core.Running()
	b.mu.Unlock()
	b.cancel(nil)
	return b.result(running)
}

// rollbackLater rolls back the transaction of the handlers when they, who use it, have returned.
func (b *batch) rollbackLater() {
	go func() {
		<-b.finished
		b.s.rollback(b.tx)
	}()
}

// loseLease cancels the handlers because the lease is lost.
func (b *batch) loseLease() {
	b.mu.Lock()
	b.core.LoseLease()
	b.mu.Unlock()
	b.cancel(outbox.ErrLeaseLost)
}

// failTx records what broke the transaction of the batch.
func (b *batch) failTx(err error) {
	b.mu.Lock()
	b.core.BreakTx()
	b.txErr = cmp.Or(b.txErr, err)
	b.mu.Unlock()
}

// worker runs handlers until none may be started. A handler that ends its goroutine ends the worker, and another worker
// replaces it.
func (b *batch) worker() {
	over := false
	defer func() {
		if over || b.s.run.inline != nil {
			b.end()
		} else {
			go b.worker()
		}
	}()
	now := time.Now()
	for e := b.next(now); e != nil; e = b.next(now) {
		now = b.handle(now, e)
	}
	over = true
}

// errLimited ends what was made ready for an attempt that the rate does not allow yet.
var errLimited = errors.New("the rate of the listener is used up")

// lock gives the caller the core of the batch.
func (b *batch) lock() {
	b.mu.Lock()
	b.core.Stopping = b.ctx.Err() != nil
}

// next returns the first entry that may be started, or nil.
func (b *batch) next(now time.Time) *core.Entry {
	b.lock()
	defer b.mu.Unlock()
	return b.core.Next(now)
}

// finish records the result of a handler.
func (b *batch) finish(now time.Time, e *core.Entry, r errclass.Result) {
	b.lock()
	defer b.mu.Unlock()
	b.core.Finish(now, e, r)
}

// handle runs the handler of e, records its result, and returns when it ended. It recovers from panics, and reports
// runtime.Goexit, which still ends the goroutine. The clock is read once per event: small handlers notice it.
func (b *batch) handle(began time.Time, e *core.Entry) (ended time.Time) {
	l := b.s.l
	h := l.of(e)
	limited := false
	var told []outbox.Event // nil if nobody is told
	usercode.Run("handler", func() error {
		if h == nil { // it was parked when the listener still read its topic
			return outbox.Permanent(fmt.Errorf("%s/%s: %w", e.Namespace, e.Topic, outbox.ErrUnimplemented))
		}
		payload, unfit := config.OpenPayload(b.work, h.decoder, &e.Event, e.Payload)
		return b.inSavepoint(b.work, func(tx pgx.Tx) error {
			if limited = !b.mayStart(e); limited {
				return errLimited
			}
			if l.hooks.WantsCalls() {
				told = []outbox.Event{e.Event}
				l.hooks.Started(b.work, told)
				began = time.Now()
			}
			return l.call(b.work, tx, h, e, payload, unfit)
		})
	}, func(err error) {
		ended = time.Now()
		if limited {
			return // it has not started
		}
		if told != nil {
			l.hooks.Finished(b.work, told, []error{err}, ended.Sub(began))
		}
		results := errclass.All([]error{err})
		if h != nil {
			h.target.OnResults(ended, began, []uuid.UUID{e.ID}, results)
		}
		if crashed, ok := err.(*usercode.Crash); ok { // ours, as it came from usercode
			l.log.Debug("handler did not return", slog.Any("", e.Event), "stack", crashed.Error())
		}
		b.finish(ended, e, results[0])
	})
	return ended
}

// call calls the handler of e inside the middleware, or returns unfit there. What they enqueue has e for its cause.
func (l *Listener) call(ctx context.Context, tx pgx.Tx, h *served, e *core.Entry, payload any, unfit error) error {
	ctx = cause.With(ctx, e.ID, e.Headers)
	if len(l.cfg.Middleware) == 0 && unfit == nil {
		return h.run(ctx, tx, e.Event, payload)
	}
	return report.Chain(ctx, l.cfg.Middleware, e.Event, func(ctx context.Context) error {
		if unfit != nil {
			return unfit
		}
		return h.run(ctx, tx, e.Event, payload)
	})
}
