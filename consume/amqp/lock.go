package amqp

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// errLockLost is the cause when the connection that holds the lock is gone.
var errLockLost = errors.New("the lock was lost, with its connection to the database")

// lock is an advisory lock in the consumer's database, held by a connection of its own. Its holder is the only process of the group
// that reads the queue. A holder that loses it without noticing does no harm: the next one waits until its consumer has gone.
type lock struct{ conn *pgx.Conn }

// lock waits until this process has the lock, and the database answers. It returns nil if no lock is wanted.
func (r *Receiver) lock(ctx context.Context, c *connection) (*lock, error) {
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
			r.log.Warn("the queue is not read: the database does not answer", "error", err)
			away = true
		case err == nil && !waits:
			r.log.Info("another process reads the queue: this one waits to take over")
			waits = true
		}
		sleep(ctx, time.Second)
	}
}

// tryLock returns false if another process has the lock.
func (r *Receiver) tryLock(ctx context.Context, c *connection) (l *lock, ours bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	// While messages wait for the database, a quorum queue would count how often it delivers them.
	if err := r.pool.Ping(ctx); err != nil || r.cfg.Unordered {
		return nil, err == nil, err
	}
	pooled, err := r.cfg.LockPool.Acquire(ctx)
	if err != nil {
		return nil, false, err
	}
	l = &lock{conn: pooled.Hijack()}
	cluster, _ := c.Properties["cluster_name"].(string)
	name := fmt.Sprintf("outboxgen consume/amqp %s %q/%q/%q", r.receiver.Group(), cluster, c.Config.Vhost, r.cfg.Queue)
	err = l.conn.QueryRow(ctx, "SELECT pg_try_advisory_lock(hashtextextended($1, 0))", name).Scan(&ours)
	if err != nil || !ours {
		l.release()
		return nil, false, err
	}
	return l, true, nil
}

// watch asks the server from time to time whether the connection lives, until ctx ends. It returns false if it does not.
func (l *lock) watch(ctx context.Context) bool {
	if l == nil {
		return true
	}
	for {
		sleep(ctx, time.Second)
		if ctx.Err() != nil {
			return true
		}
		asking, cancel := context.WithTimeout(ctx, 2*askTimeout)
		err := l.conn.Ping(asking)
		cancel()
		if err != nil {
			return ctx.Err() != nil
		}
	}
}

// release gives the lock up.
func (l *lock) release() {
	if l == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	_ = l.conn.Close(ctx)
}
