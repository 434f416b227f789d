package outbox

import (
	"context"
	"sync"
	"time"
)

// ending bounds the end of a Run, whatever hangs: a handler, a publisher or the database. Everything is counted from
// the moment in which the context of Run ends, and by a goroutine that nothing else can block.
type ending struct {
	work   context.Context // of the handlers; outlives that of Run by the shutdown timeout
	talk   context.Context // of what is said to the database at the end; outlives work
	give   chan struct{}   // closed when handlers that still run are given up
	cancel context.CancelCauseFunc
	hangUp context.CancelFunc
}

// shutdownGrace is how long handlers get to notice that their contexts are cancelled, and then what they did to be
// settled. So Run returns two of them after the shutdown timeout at the latest.
const shutdownGrace = time.Second

func newEnding(ctx context.Context) *ending {
	e := &ending{give: make(chan struct{})}
	e.work, e.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	e.talk, e.hangUp = context.WithCancel(context.WithoutCancel(ctx))
	return e
}

// enforce waits for the end of ctx. It then cancels the handlers after timeout, with cause, gives up those that still
// run a shutdownGrace later, and ends all talk with the database after another one. The caller defers over.
func (e *ending) enforce(ctx context.Context, timeout time.Duration, cause error) (over func()) {
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
			{shutdownGrace, func() { close(e.give) }},
			{shutdownGrace, e.hangUp},
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
		e.hangUp()
	}
}

// givenUp tells whether handlers that still run are given up.
func (e *ending) givenUp() bool {
	select {
	case <-e.give:
		return true
	default:
		return false
	}
}
