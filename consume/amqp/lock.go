package amqp

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

// lockValid is how long a process may be cut off from the database before it gives the queue up. It does no harm if it
// notices that later than the server: the next process waits until its consumer has gone.
const lockValid = 10 * time.Second

// lock waits until this process has the advisory lock of the queue, and the database answers. It returns nil if no lock
// is wanted.
func (r *Receiver) lock(ctx context.Context, c *connection) (*advisory.Lock, error) {
	waits, away := false, false
	for {
		l, ours, err := r.tryLock(ctx, c)
		switch {
		case ours:
			if waits {
				r.log.Info("this process reads the queue now")
			}
			return l, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err != nil && !away:
			r.log.Warn("the lock of the queue cannot be taken: the database does not answer", "error", err)
			away = true
		case err == nil && !waits:
			r.log.Info("another process reads the queue: this one waits to take over")
			waits = true
		}
		backoff.Sleep(ctx, time.Second)
	}
}

// tryLock returns false if another process has the lock.
func (r *Receiver) tryLock(ctx context.Context, c *connection) (l *advisory.Lock, ours bool, err error) {
	asking, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	// A quorum queue counts how often it delivers a message, so none is fetched while the database is away.
	if err := r.pool.Ping(asking); err != nil || r.cfg.Unordered {
		return nil, err == nil, err
	}
	cluster, _ := c.Properties["cluster_name"].(string)
	name := fmt.Sprintf("outboxgen consume/amqp %s %q/%q/%q", r.receiver.Group(), cluster, c.Config.Vhost, r.cfg.Queue)
	l, err = advisory.Try(ctx, r.cfg.LockPool, name, lockValid)
	return l, l != nil, err
}
