package doorbell

import (
	"context"
	"errors"
	"fmt"
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
	if err := q.BellRing(ctx, b.bell.Channel); err != nil {
		return fmt.Errorf("ring doorbell: %w", err)
	}
	return nil
}

// lock tries to take the lock. If it is held already, lock only checks the connection. The end of run's context does
// not cut it off, because a lock that it took would then be released without a ring.
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
		return true, sleep.Watches, nil
	}
	other, err := q.BellLocked(ctx, b.bell.Key)
	switch {
	case err != nil:
		return false, sleep.Gone, fmt.Errorf("lock doorbell: %w", err)
	case other:
		return false, sleep.Watches, nil
	case time.Now().Before(b.impatient):
		return false, sleep.Busy, nil
	}
	switch locked, err = b.await(ctx, conn); {
	case err != nil:
		return false, sleep.Gone, fmt.Errorf("lock doorbell: %w", err)
	case locked:
		return true, sleep.Watches, nil
	}
	return false, sleep.Busy, nil
}

const (
	// longOpen is how long a sleeper does not wait for open transactions after one was open for longer than a wait.
	longOpen = time.Second
	// refusedWait is how long it does not wait after PostgreSQL has refused to.
	refusedWait = 10 * time.Minute
)

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

// await waits for the end of the transactions that are open and have enqueued, for a few milliseconds at most, and then
// tries to take the lock. Most transactions are over by then, and their events are found at once. Meanwhile conn hears no
// ring, so it does not wait again soon if one of them is still open.
func (b *doorbell) await(ctx context.Context, conn *pgx.Conn) (locked bool, err error) {
	batch := &pgx.Batch{}
	b.db.Begin(batch)
	b.db.Queue(batch, func(q *queries.Queries) { _ = q.BellPatience(ctx, b.bell.Key) })
	batch.Queue(awaitLock)
	b.db.Queue(batch, func(q *queries.Queries) { _, _ = q.BellTryLock(ctx, b.bell.Key) }).QueryRow(func(r pgx.Row) error {
		return r.Scan(&locked)
	})
	b.db.Commit(batch)
	err = conn.SendBatch(ctx, batch).Close()
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &pg) && !locked: // the role may not use PL/pgSQL, or a statement may not take so long
		b.impatient = time.Now().Add(refusedWait)
		b.log.Debug("doorbell: cannot wait for open transactions", "error", err)
		return false, b.settle(conn)
	case err != nil:
		return false, err
	case !locked:
		b.impatient = time.Now().Add(longOpen)
	}
	return locked, nil
}
