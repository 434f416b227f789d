package doorbell

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// waitFor is how long a statement of a waiter waits. It bounds how long a stop takes, and the age of a snapshot.
const waitFor = 300 * time.Millisecond

// waiter waits, on a connection of its own, for transactions that stay open, have enqueued without a ring, and so keep its
// sleeper from the lock. While it waits, every enqueue rings, because PostgreSQL refuses a shared lock behind a session
// that waits for the exclusive one; and the listening connection hears it. At the end it has the lock for its sleeper.
//
// It does not wait for a moment between two statements. Transactions that had enqueued before it began commit without a
// ring. So its owner checks now and then: sleep.Awaits.
type waiter struct {
	b    *doorbell
	over chan struct{} // closed when it has ended

	mu      sync.Mutex
	wanted  bool
	has     bool               // the lock
	release context.CancelFunc // ends the time for which it has the lock
	err     error              // why it has ended
}

// startWaiter starts a waiter.
func (b *doorbell) startWaiter() *waiter {
	held, release := context.WithCancel(b.dbCtx)
	w := &waiter{b: b, over: make(chan struct{}), wanted: true, release: release}
	go func() {
		defer release()
		err := w.run(held)
		w.mu.Lock()
		w.has, w.err = false, err
		w.mu.Unlock()
		close(w.over)
		b.ring(Ring{}) // nobody may watch any more
	}()
	return w
}

// active reports whether w waits, or has the lock. A nil waiter does not.
func (w *waiter) active() bool {
	if w == nil {
		return false
	}
	select {
	case <-w.over:
		return false
	default:
		return true
	}
}

// watches reports whether w is active for its sleeper.
func (w *waiter) watches() bool {
	if !w.active() {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.wanted
}

// want says whether the sleeper needs w. If not, w gives up the lock, or ends after the statement that is under way.
func (w *waiter) want(is bool) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.wanted = is; w.has && !is {
		w.release()
	}
}

// hasLock reports whether w has the lock.
func (w *waiter) hasLock() bool {
	if w == nil {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.has
}

// failure returns why w has ended, or nil if it has not.
func (w *waiter) failure() error {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// goesOn records whether w has the lock now. It reports whether the sleeper needs w.
func (w *waiter) goesOn(has bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.has = has && w.wanted
	return w.wanted
}

// run waits for the lock and keeps it until held ends.
func (w *waiter) run(held context.Context) error {
	b := w.b
	conn, err := b.connect(b.dbCtx)
	if err != nil {
		return err
	}
	defer func() {
		end, cancel := context.WithTimeout(b.dbCtx, Timeout)
		defer cancel()
		_ = conn.Close(end)
	}()
	q := b.db.Each(conn)
	for has := false; !has; {
		if has, err = w.wait(conn); err != nil {
			return err
		}
		switch goesOn := w.goesOn(has); {
		case goesOn:
		case has:
			return b.unlock(q)
		default:
			return nil
		}
	}
	// What those transactions have enqueued is visible now.
	if err := b.wakeAll(q); err != nil {
		return err
	}
	for held.Err() == nil {
		if _, err := conn.WaitForNotification(held); err != nil && conn.IsClosed() {
			return fmt.Errorf("keep the lock of the doorbell: %w", err)
		}
	}
	return b.unlock(q)
}

// wait waits for the lock once.
func (w *waiter) wait(conn *pgx.Conn) (has bool, err error) {
	ctx, cancel := context.WithTimeout(w.b.dbCtx, waitFor+Timeout)
	defer cancel()
	return w.b.await(ctx, conn, waitFor)
}
