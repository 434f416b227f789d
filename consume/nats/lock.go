package nats

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/outboxgen/outboxgen/internal/call/backoff"
	"github.com/outboxgen/outboxgen/internal/postgres/advisory"
)

// errLockLost is the cause when the connection that holds the lock is gone.
var errLockLost = errors.New("the lock was lost, with its connection to the database")

// lock waits until this process has the advisory lock of the durable consumer in the consumer's database. Its holder is
// the only process that reads the durable consumer in order. It returns nil if no lock is wanted.
func (r *Receiver) lock(ctx context.Context, ackWait time.Duration) (*advisory.Lock, error) {
	if r.cfg.Unordered {
		return nil, nil
	}
	waits := false
	for {
		l, err := r.tryLock(ctx, ackWait)
		switch {
		case l != nil:
			if waits {
				r.log.Info("this process reads the durable consumer now")
			}
			return l, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err != nil && !waits:
			r.log.Warn("the lock of the durable consumer cannot be taken: the database does not answer", "error", err)
			waits = true
		case !waits:
			r.log.Info("another process reads the durable consumer: this one waits to take over")
			waits = true
		}
		backoff.Sleep(ctx, min(time.Second, ackWait/10))
	}
}

// tryLock returns nil if another process has the lock.
func (r *Receiver) tryLock(ctx context.Context, ackWait time.Duration) (*advisory.Lock, error) {
	name := fmt.Sprintf("outboxgen consume/nats %s %s/%s/%s", r.receiver.Group(), r.cfg.Domain, r.cfg.Stream,
		r.cfg.Durable)
	return advisory.Try(ctx, r.cfg.LockPool, name, ackWait/3)
}
