package outbox_test

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

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

// TestForeignKeyBlocksNothing: somebody's row refers to an event, in a transaction that stays open and so holds a KEY
// SHARE lock on it. Whatever does not delete the event goes through without waiting.
func TestForeignKeyBlocksNothing(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	execute(t, pool, "CREATE TABLE note (event_id uuid REFERENCES outbox.events)")
	s := newStore(t, pool)
	enqueueN(t, pool, 5)
	tx := begin(t, pool, pgx.TxOptions{})
	_, err := tx.Exec(t.Context(), "INSERT INTO note SELECT id FROM outbox.events")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	claimed, err := s.Claim(ctx, outbox.ClaimConfig{LeaseDuration: longLease})
	require.NoError(t, err)
	require.Len(t, claimed, 5)
	outcomes, err := s.Extend(ctx, longLease, claimed...)
	require.NoError(t, err)
	require.Equal(t, all(5, outbox.Applied), outcomes)
	_, err = s.Ack(ctx, claimed[0])
	require.NoError(t, err)
	_, err = s.Nack(ctx, failures(errHandler, claimed[1])...)
	require.NoError(t, err)
	_, err = s.Release(ctx, claimed[2])
	require.NoError(t, err)
	execute(t, pool, "UPDATE outbox.events SET attempts = max_attempts WHERE id = $1", claimed[3].ID)
	expire(t, pool, claimed[3].ID, claimed[4].ID)
	n, err := s.SweepDead(ctx)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	again, err := s.Claim(ctx, outbox.ClaimConfig{})
	require.NoError(t, err)
	require.ElementsMatch(t, []uuid.UUID{claimed[2].ID, claimed[4].ID}, idsOf(again), "released, and reclaimed")
	// Prune deletes, which the foreign key forbids: it leaves the event for later.
	pruner, err := outbox.NewStore(pool, outbox.StoreConfig{Namespace: space, Retention: map[string]outbox.Retention{"ping": {Delivered: 1, Dead: 1}}})
	require.NoError(t, err)
	n, err = pruner.Prune(ctx)
	require.NoError(t, err)
	require.Zero(t, n)
	require.NoError(t, tx.Rollback(t.Context()))
	n, err = pruner.Prune(ctx)
	require.NoError(t, err)
	require.Equal(t, 2, n)
}

// TestLockedRowCostsOnlyItsOwnLease: an event that somebody has locked cannot be renewed; those in the same batch are,
// again and again.
func TestLockedRowCostsOnlyItsOwnLease(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := jobTopic("one")
	log := newSpy()
	cfg := shortLease()
	cfg.Logger = log.logger()
	var mu sync.Mutex
	causes := map[int64]error{}
	started, open, lost := make(chan struct{}, 3), make(chan struct{}), make(chan struct{})
	d := dispatcher(t, pool, cfg, onJob(topic, func(ctx context.Context, d outbox.Delivery[job]) error {
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
	watch := outbox.Watch(d)
	stop := start(t, d)
	ids := enqueueJobs(t, pool, topic, numbered(3)...)
	for range ids {
		receive(t, started, "a handler")
	}
	tx := begin(t, pool, pgx.TxOptions{})
	_, err := tx.Exec(t.Context(), "SELECT FROM outbox.events WHERE id = $1 FOR UPDATE", ids[1])
	require.NoError(t, err)
	receive(t, lost, "the end of the locked event's lease")
	for range 6 { // two leases more
		receive(t, watch.Renewed, "a renewal")
	}
	require.NoError(t, tx.Rollback(t.Context()))
	close(open)
	settles(t, pool, 3, delivered)
	require.NoError(t, stop())
	mu.Lock()
	defer mu.Unlock()
	require.Len(t, causes, 1)
	require.ErrorIs(t, causes[1], outbox.ErrLeaseLost)
	require.Contains(t, log.String(), "another transaction has the event locked")
	require.Equal(t, 3, count(t, pool, delivered+" AND attempts = 1"), "nobody else took one")
}

// TestExtendDoesNotWaitForLocks: a locked row is told from a lost lease, and does not hold up the others.
func TestExtendDoesNotWaitForLocks(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	s := newStore(t, pool)
	enqueueN(t, pool, 4)
	claimed := claimN(t, s, 4)
	steal := claimed[3].ID
	execute(t, pool, stealSQL, steal, uuid.New())
	tx := begin(t, pool, pgx.TxOptions{})
	_, err := tx.Exec(t.Context(), "SELECT FROM outbox.events WHERE id IN ($1, $2) FOR UPDATE", claimed[1].ID, steal)
	require.NoError(t, err)
	outcomes, err := s.Extend(t.Context(), 2*longLease, claimed...)
	require.Equal(t, []outbox.Outcome{outbox.Applied, outbox.Locked, outbox.Applied, outbox.Lost}, outcomes)
	require.ErrorIs(t, err, outbox.ErrLeaseLost)
	require.EqualError(t, err, "extend: 1 of 4 events lost: lease lost\n"+
		"extend: 1 of 4 events are locked by another transaction: try again before their leases end")
	require.Equal(t, 2, countWhere(t, pool, "locked_until > statement_timestamp() + $1::interval", longLease+time.Minute))
	require.Equal(t, "locked", outbox.Locked.String())
	require.NoError(t, tx.Rollback(t.Context()))
	outcomes, err = s.Extend(t.Context(), longLease, claimed[1])
	require.NoError(t, err)
	require.Equal(t, all(1, outbox.Applied), outcomes)
}

// TestOnlyDeletesLockKeys: a statement that updates takes no lock that a foreign key's KEY SHARE refuses, in any query.
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
