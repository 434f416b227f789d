// Package advisory holds advisory locks of PostgreSQL for as long as their connection lives. A consumer that reads a
// broker in order takes one, so that one process at a time reads.
package advisory

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// askTimeout bounds a question to the database.
const askTimeout = 5 * time.Second

// Lock is an advisory lock, held by a connection of its own. A nil Lock is one that nobody wants: it is always held.
// The methods are safe for concurrent use, but Release must come last.
type Lock struct {
	mu      sync.Mutex // of conn
	conn    *pgx.Conn
	valid   time.Duration // since the last answer
	answers atomic.Int64  // when the last question with an answer was asked, as nanoseconds since epoch
	epoch   time.Time
}

// Try takes the lock with a name. It returns nil if another session has it. The connection is taken out of pool. Holds
// is true for the time valid after the database has answered last. The server ends a session of which it hears nothing
// for 10 s longer, so that another process gets the lock of one that is cut off.
func Try(ctx context.Context, pool *pgxpool.Pool, name string, valid time.Duration) (*Lock, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	pooled, err := pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	l := &Lock{conn: pooled.Hijack(), valid: valid, epoch: time.Now()}
	const query = "SELECT pg_try_advisory_lock(hashtextextended($1, 0)), set_config('idle_session_timeout', $2, false)"
	var ours bool
	err = l.conn.QueryRow(ctx, query, name, strconv.FormatInt((valid+10*time.Second).Milliseconds(), 10)).Scan(&ours, nil)
	if err != nil || !ours {
		l.Release()
		return nil, err
	}
	return l, nil
}

// Holds reports whether no other process can have the lock.
func (l *Lock) Holds() bool {
	return l == nil || time.Since(l.epoch)-time.Duration(l.answers.Load()) < l.valid
}

// Confirm asks the server whether the connection lives.
func (l *Lock) Confirm(ctx context.Context) bool {
	if l == nil {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	asked := time.Since(l.epoch)
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.valid)
	defer cancel()
	if l.conn.Ping(asking) != nil {
		return false
	}
	l.answers.Store(int64(asked))
	return true
}

// Watch confirms the lock from time to time, until ctx ends. It returns false when the connection is gone.
func (l *Lock) Watch(ctx context.Context) bool {
	if l == nil {
		<-ctx.Done()
		return true
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(min(time.Second, l.valid/4))
		select {
		case <-ctx.Done():
			return true
		case <-timer.C:
		}
		if !l.Confirm(ctx) {
			return false
		}
	}
}

// Release gives the lock up.
func (l *Lock) Release() {
	if l == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.conn.Close(ctx)
}
