package nats

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// errLockLost is the cause when the connection that holds the lock is gone.
var errLockLost = errors.New("the lock was lost, with its connection to the database")

// lock is an advisory lock in the consumer's database, held by a connection of its own. Its holder is the only process that
// reads the durable consumer in order.
type lock struct {
	conn    *pgx.Conn
	valid   time.Duration // since the last answer
	answers atomic.Int64  // when the last question with an answer was asked, as nanoseconds since epoch
	epoch   time.Time
}

// lock waits until this process has the lock. It returns nil if no lock is wanted.
func (r *Receiver) lock(ctx context.Context, ackWait time.Duration) (*lock, error) {
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
		sleep(ctx, min(time.Second, ackWait/10))
	}
}

// tryLock returns nil if another process has the lock.
func (r *Receiver) tryLock(ctx context.Context, ackWait time.Duration) (*lock, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	pooled, err := r.cfg.LockPool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	l := &lock{conn: pooled.Hijack(), valid: ackWait / 3, epoch: time.Now()}
	name := fmt.Sprintf("outboxgen consume/nats %s %s/%s/%s", r.receiver.Group(), r.cfg.Domain, r.cfg.Stream, r.cfg.Durable)
	var ours bool
	err = l.conn.QueryRow(ctx, "SELECT pg_try_advisory_lock(hashtextextended($1, 0))", name).Scan(&ours)
	if err != nil || !ours {
		l.release()
		return nil, err
	}
	return l, nil
}

// holds reports whether no other process can have the lock. It is safe for concurrent use.
func (l *lock) holds() bool {
	return l == nil || time.Since(l.epoch)-time.Duration(l.answers.Load()) < l.valid
}

// watch asks the server from time to time whether the connection lives, until ctx ends. It returns false if it does not.
func (l *lock) watch(ctx context.Context) bool {
	if l == nil {
		<-ctx.Done()
		return true
	}
	for {
		sleep(ctx, min(time.Second, l.valid/4))
		if ctx.Err() != nil {
			return true
		}
		asked := time.Since(l.epoch)
		asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.valid)
		err := l.conn.Ping(asking)
		cancel()
		if err != nil {
			return false
		}
		l.answers.Store(int64(asked))
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
