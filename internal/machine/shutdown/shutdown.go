// Package shutdown bounds the end of a Run, whatever hangs.
package shutdown

import (
	"context"
	"sync"
	"time"
)

// Stages bounds the end of a Run, whatever hangs: a handler, a publisher or the database. Every stage counts from the
// moment the context of Run ends, in a goroutine that nothing else can block.
type Stages struct {
	WorkCtx  context.Context // of the handlers; ends at the shutdown timeout after the context of Run
	DBCtx    context.Context // of statements at the end; ends after WorkCtx
	GiveUp   chan struct{}   // closed when nobody waits for running handlers any more
	cancel   context.CancelCauseFunc
	cancelDB context.CancelFunc
}

// grace is the time for handlers to notice that their contexts are cancelled, and then again the time to settle their
// results. So Run returns at the latest two graces after the shutdown timeout.
const grace = time.Second

func New(ctx context.Context) *Stages {
	e := &Stages{GiveUp: make(chan struct{})}
	e.WorkCtx, e.cancel = context.WithCancelCause(context.WithValue(context.WithoutCancel(ctx), runKey{}, ctx))
	e.DBCtx, e.cancelDB = context.WithCancel(context.WithoutCancel(ctx))
	return e
}

type runKey struct{}

// UntilStop returns a context that ends with work, and already when the context of its Run ends, for what is not worth
// to wait for. work is, or descends from, the WorkCtx of Stages; otherwise it just ends with work. The caller calls
// over.
func UntilStop(work context.Context) (ctx context.Context, over func()) {
	run, ok := work.Value(runKey{}).(context.Context)
	if !ok {
		return work, func() {}
	}
	ctx, cancel := context.WithCancelCause(work)
	stop := context.AfterFunc(run, func() { cancel(context.Cause(run)) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// Enforce waits for the end of ctx. It then cancels the handlers after timeout, with cause, gives up those that still
// run a grace later, and cancels all statements after another one. The caller defers over.
func (e *Stages) Enforce(ctx context.Context, timeout time.Duration, cause error) (over func()) {
	done := make(chan struct{})
	var enforcer sync.WaitGroup
	enforcer.Go(func() {
		select {
		case <-ctx.Done():
		case <-done:
			return
		}
		for _, step := range [...]struct {
			wait time.Duration
			do   func()
		}{
			{timeout, func() { e.cancel(cause) }},
			{grace, func() { close(e.GiveUp) }},
			{grace, e.cancelDB},
		} {
			timer := time.NewTimer(step.wait)
			select {
			case <-timer.C:
				step.do()
			case <-done:
				timer.Stop()
				return
			}
		}
	})
	return func() {
		close(done)
		enforcer.Wait()
		e.cancel(nil)
		e.cancelDB()
	}
}

// GivenUp reports whether handlers that still run are given up.
func (e *Stages) GivenUp() bool {
	select {
	case <-e.GiveUp:
		return true
	default:
		return false
	}
}
