package queue_test

import (
	"context"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// TestForeignKeyBlocksNothing: a row of the user refers to an event, in a transaction that stays open and so holds a
// KEY SHARE lock on the event. Every operation that does not delete the event succeeds without waiting.
func TestForeignKeyBlocksNothing(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	pgtest.Execute(t, pool, "CREATE TABLE note (event_id uuid REFERENCES outbox.events)")
	s := runtimetest.NewStore(t, pool)
	runtimetest.EnqueueN(t, pool, 5)
	tx := pgtest.Begin(t, pool, pgx.TxOptions{})
	_, err := tx.Exec(t.Context(), "INSERT INTO note SELECT id FROM testing.events")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
	defer cancel()
	claimed, err := s.Claim(ctx, queue.ClaimConfig{LeaseDuration: runtimetest.LongLease})
	require.NoError(t, err)
	require.Len(t, claimed, 5)
	outcomes, err := s.Extend(ctx, runtimetest.LongLease, claimed...)
	require.NoError(t, err)
	require.Equal(t, runtimetest.Repeat(5, queue.Applied), outcomes)
	_, err = s.Ack(ctx, claimed[0])
	require.NoError(t, err)
	later := queue.Failure{Claimed: claimed[1], Err: runtimetest.ErrHandler, RetryAt: time.Now().Add(time.Hour)}
	_, err = s.Nack(ctx, later)
	require.NoError(t, err)
	_, err = s.Release(ctx, claimed[2])
	require.NoError(t, err)
	pgtest.Execute(t, pool, "UPDATE testing.events SET attempts = max_attempts WHERE id = $1", claimed[3].ID)
	runtimetest.ExpireLeases(t, pool, claimed[3].ID, claimed[4].ID)
	n, err := s.SweepDead(ctx)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	again, err := s.Claim(ctx, queue.ClaimConfig{})
	require.NoError(t, err)
	require.ElementsMatch(t, []uuid.UUID{claimed[2].ID, claimed[4].ID}, runtimetest.IDsOf(again), "released, and reclaimed")
	// Prune deletes, which the foreign key forbids, so it leaves the event for later.
	pruner, err := queue.NewStore(pool, queue.StoreConfig{Namespace: runtimetest.Namespace, Retention: map[string]outbox.Retention{"ping": {Delivered: 1, Dead: 1}}})
	require.NoError(t, err)
	n, err = pruner.Prune(ctx)
	require.NoError(t, err)
	require.Zero(t, n)
	require.NoError(t, tx.Rollback(t.Context()))
	n, err = pruner.Prune(ctx)
	require.NoError(t, err)
	require.Equal(t, 2, n)
}

// TestLockedRowCostsOnlyItsOwnLease: the lease of a locked event cannot be renewed; the others in the same batch are
// renewed repeatedly.
func TestLockedRowCostsOnlyItsOwnLease(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("one")
	log := runtimetest.NewLogSpy()
	cfg := shortLease()
	cfg.Logger = log.Logger()
	var mu sync.Mutex
	causes := map[int64]error{}
	started, open, lost := make(chan struct{}, 3), make(chan struct{}), make(chan struct{})
	d := runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, func(ctx context.Context, d outbox.Delivery[runtimetest.Job]) error {
		started <- struct{}{}
		select {
		case <-open:
		case <-ctx.Done():
			mu.Lock()
			causes[d.Payload.N] = context.Cause(ctx)
			mu.Unlock()
			close(lost)
		}
		return nil
	}))
	watch := queue.Watch(d)
	stop := runtimetest.StartDispatcher(t, d)
	ids := runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(3)...)
	for range ids {
		pgtest.Receive(t, started, "a handler")
	}
	tx := pgtest.Begin(t, pool, pgx.TxOptions{})
	_, err := tx.Exec(t.Context(), "SELECT FROM outbox.queue WHERE id = $1 FOR UPDATE", ids[1])
	require.NoError(t, err)
	pgtest.Receive(t, lost, "the end of the locked event's lease")
	for range 6 { // two more leases
		pgtest.Receive(t, watch.Renewed, "a renewal")
	}
	require.NoError(t, tx.Rollback(t.Context()))
	close(open)
	pgtest.Settles(t, pool, 3, runtimetest.DeliveredSQL)
	require.NoError(t, stop())
	mu.Lock()
	defer mu.Unlock()
	require.Len(t, causes, 1)
	require.ErrorIs(t, causes[1], outbox.ErrLeaseLost)
	require.Contains(t, log.String(), "another transaction has the event locked")
	require.Equal(t, 3, pgtest.Count(t, pool, runtimetest.DeliveredSQL+" AND attempts = 1"), "no other worker claimed one")
}

// TestExtendDoesNotWaitForLocks: a locked row has another outcome than a lost lease, and does not delay the others.
func TestExtendDoesNotWaitForLocks(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	s := runtimetest.NewStore(t, pool)
	runtimetest.EnqueueN(t, pool, 4)
	claimed := runtimetest.ClaimN(t, s, 4)
	steal := claimed[3].ID
	pgtest.Execute(t, pool, stealSQL, steal, uuid.New())
	tx := pgtest.Begin(t, pool, pgx.TxOptions{})
	_, err := tx.Exec(t.Context(), "SELECT FROM outbox.queue WHERE id IN ($1, $2) FOR UPDATE", claimed[1].ID, steal)
	require.NoError(t, err)
	outcomes, err := s.Extend(t.Context(), 2*runtimetest.LongLease, claimed...)
	require.Equal(t, []queue.Outcome{queue.Applied, queue.Locked, queue.Applied, queue.Lost}, outcomes)
	require.ErrorIs(t, err, outbox.ErrLeaseLost)
	require.EqualError(t, err, "extend: 1 of 4 events lost: lease lost; "+
		"extend: 1 of 4 events are locked by another transaction: try again before their leases end")
	require.Equal(t, 2, runtimetest.CountWhere(t, pool, "locked_until > statement_timestamp() + $1::interval", runtimetest.LongLease+time.Minute))
	require.Equal(t, "locked", queue.Locked.String())
	require.NoError(t, tx.Rollback(t.Context()))
	outcomes, err = s.Extend(t.Context(), runtimetest.LongLease, claimed[1])
	require.NoError(t, err)
	require.Equal(t, runtimetest.Repeat(1, queue.Applied), outcomes)
}

// TestOnlyDeletesLockKeys: in no query does an update take a lock that conflicts with the KEY SHARE of a foreign key.
func TestOnlyDeletesLockKeys(t *testing.T) {
	t.Parallel()
	files, err := fs.Glob(os.DirFS("../queries"), "*.sql")
	require.NoError(t, err)
	strong := regexp.MustCompile(`(?m)^\s*FOR UPDATE\b`)
	found := 0
	for _, file := range files {
		text, err := os.ReadFile("../queries/" + file)
		require.NoError(t, err)
		for _, query := range strings.Split(string(text), "-- name: ")[1:] {
			if strong.MatchString(query) {
				found++
				require.Contains(t, query, "DELETE FROM", "%s takes FOR UPDATE and deletes nothing: FOR NO KEY UPDATE will do", strings.Fields(query)[0])
			}
		}
	}
	require.NotZero(t, found, "the pattern finds nothing any more")
}
