package doorbell

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxgen/outboxgen/internal/machine/sleep"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
)

// unlock gives up the lock and then wakes the sleepers that relied on it.
func (b *doorbell) unlock(q *queries.Queries) error {
	ctx, cancel := context.WithTimeout(b.dbCtx, Timeout)
	defer cancel()
	if _, err := q.BellUnlock(ctx, b.bell.Key); err != nil {
		return fmt.Errorf("unlock doorbell: %w", err)
	}
	return b.wakeAll(q)
}

// wakeAll wakes all sleepers.
func (b *doorbell) wakeAll(q *queries.Queries) error {
	ctx, cancel := context.WithTimeout(b.dbCtx, Timeout)
	defer cancel()
	if err := q.BellRing(ctx, b.bell.Channel); err != nil {
		return fmt.Errorf("ring doorbell: %w", err)
	}
	return nil
}

// lock tries to take the lock. If it is held already, lock only checks the connection. If a transaction that stays open
// keeps it from the lock, it starts a waiter. The end of run's context does not cut it off, because a lock that it took
// would then be released without a ring.
func (b *doorbell) lock(locked bool, conn *pgx.Conn) (bool, sleep.Bell, error) {
	ctx, cancel := context.WithTimeout(b.dbCtx, Timeout)
	defer cancel()
	q := b.db.Each(conn)
	if locked {
		return true, sleep.Watches, conn.Ping(ctx)
	}
	locked, err := q.BellTryLock(ctx, b.bell.Key)
	if err != nil {
		return false, sleep.Gone, fmt.Errorf("lock doorbell: %w", err)
	}
	if locked {
		b.waiter.want(false)
		return true, sleep.Watches, nil
	}
	other, err := q.BellLocked(ctx, b.bell.Key)
	now := time.Now()
	switch {
	case err != nil:
		return false, sleep.Gone, fmt.Errorf("lock doorbell: %w", err)
	case other.Locked:
		b.waiter.want(b.waiter.hasLock())
		return false, sleep.Watches, nil
	case b.waiter.active():
		if b.waiter.want(true); !other.Awaited {
			return false, sleep.Busy, nil // until it waits
		}
		return false, sleep.Awaits, nil
	case other.Awaited:
		b.awaitedUntil = now.Add(betweenWaits)
		return false, sleep.Awaits, nil
	case now.Before(b.awaitedUntil):
		return false, sleep.Awaits, nil
	case b.refused(b.waiter.failure()), now.Before(b.impatient):
		b.waiter = nil
		return false, sleep.Busy, nil
	}
	locked, err = b.await(ctx, conn, shortWait)
	switch {
	case b.refused(err):
		return false, sleep.Busy, b.settle(conn)
	case err != nil:
		return false, sleep.Gone, fmt.Errorf("lock doorbell: %w", err)
	case locked:
		return true, sleep.Watches, nil
	}
	b.impatient = now.Add(waiterEvery)
	b.waiter = b.startWaiter()
	return false, sleep.Busy, nil
}

const (
	// shortWait is how long a sleeper waits on the connection that listens, which hears no ring meanwhile. Most transactions
	// are over by then, and their events are found at once.
	shortWait = 3 * time.Millisecond
	// betweenWaits is how long a sleeper relies on the waiter of another process that does not seem to wait any more. Between
	// two of its statements it does not, and right after it began one it is not noticed.
	betweenWaits = 50 * time.Millisecond
	// waiterEvery is how often a sleeper waits and then starts a waiter, at most.
	waiterEvery = time.Second
	// refusedWait is how long it does not wait after PostgreSQL has refused to.
	refusedWait = 10 * time.Minute
)

// refused reports whether err says that PostgreSQL does not let the sleeper wait: the role may not use PL/pgSQL, or a
// statement may not take so long. Then it does not try again soon.
func (b *doorbell) refused(err error) bool {
	const serverEnds = "57P"
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || strings.HasPrefix(pg.Code, serverEnds) {
		return false
	}
	b.impatient = time.Now().Add(refusedWait)
	b.log.Debug("doorbell: cannot wait for open transactions", "error", err)
	return true
}

// awaitLock waits until the transactions are over that have enqueued and keep a sleeper from taking the doorbell. Every
// enqueue after that rings, because PostgreSQL refuses a lock for which another session waits. The lock is taken until the
// end of the transaction, in which BellTryLock takes it for the session. A wait that is too long is no error, which the
// server would log.
const awaitLock = `DO $$
BEGIN
    PERFORM pg_catalog.pg_advisory_xact_lock(pg_catalog.current_setting('outboxgen.bell')::pg_catalog.int8);
EXCEPTION
    WHEN lock_not_available THEN
        NULL;
END
$$`

// await waits on conn for the end of the transactions that are open and have enqueued, for so long at most, and then tries to
// take the lock.
func (b *doorbell) await(ctx context.Context, conn *pgx.Conn, wait time.Duration) (locked bool, err error) {
	batch := &pgx.Batch{}
	b.db.Begin(batch)
	b.db.Queue(batch, func(q *queries.Queries) {
		_ = q.BellPatience(ctx, queries.BellPatienceParams{LockKey: b.bell.Key, WaitMs: int32(wait.Milliseconds())})
	})
	batch.Queue(awaitLock)
	b.db.Queue(batch, func(q *queries.Queries) { _, _ = q.BellTryLock(ctx, b.bell.Key) }).QueryRow(func(r pgx.Row) error {
		return r.Scan(&locked)
	})
	b.db.Commit(batch)
	return locked, conn.SendBatch(ctx, batch).Close()
}
