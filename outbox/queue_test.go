package outbox_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
)

func TestQueueRidesInTheCallersBatch(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	old := runtimetest.EnqueueAll(t, pool, runtimetest.Message(runtimetest.TenantA, 1))[0]
	pgtest.Execute(t, pool, "CREATE TABLE business (n int)")
	tx := pgtest.Begin(t, pool, pgx.TxOptions{})
	var b pgx.Batch
	b.Queue("INSERT INTO business VALUES (1)")
	fresh, err := outbox.EnqueueInBatch(&b, "", runtimetest.Message(runtimetest.TenantA, 2))
	require.NoError(t, err)
	b.Queue("INSERT INTO business VALUES (2)")
	taken, err := outbox.EnqueueInBatch(&b, "", runtimetest.Message(runtimetest.TenantA, 1))
	require.NoError(t, err)
	twice, err := outbox.EnqueueInBatch(&b, "", runtimetest.Message(runtimetest.TenantA, 2))
	require.NoError(t, err)
	require.Equal(t, 5, b.Len())
	_, err = fresh.Receipt()
	require.ErrorContains(t, err, "have not been read")
	_, err = fresh.Resolve(t.Context(), tx)
	require.ErrorContains(t, err, "have not been read")
	require.NoError(t, tx.SendBatch(t.Context(), &b).Close())

	first, err := fresh.Receipt()
	require.NoError(t, err)
	require.False(t, first.Duplicate)
	receipt, err := taken.Receipt()
	require.NoError(t, err)
	require.Equal(t, outbox.Receipt{ID: old.ID, Duplicate: true}, receipt)
	// The rival is of the same batch, so its row is visible to the statement.
	receipt, err = twice.Receipt()
	require.NoError(t, err)
	require.Equal(t, outbox.Receipt{ID: first.ID, Duplicate: true}, receipt)
	require.NoError(t, tx.Commit(t.Context()))
	require.Equal(t, 2, runtimetest.CountWhere(t, pool, "true"))
	require.Equal(t, 2, pgtest.Value[int](t, pool, "SELECT count(*) FROM business"))
}

func TestQueueDuplicateWhoseRivalCommitsMeanwhile(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	rivalTx := pgtest.Begin(t, pool, pgx.TxOptions{})
	rival, err := outbox.Enqueue(t.Context(), rivalTx, "", runtimetest.Message(runtimetest.TenantA, 1))
	require.NoError(t, err)

	tx := pgtest.Begin(t, pool, pgx.TxOptions{})
	var b pgx.Batch
	queued, err := outbox.EnqueueInBatch(&b, "", runtimetest.Message(runtimetest.TenantA, 1))
	require.NoError(t, err)
	sent := make(chan error, 1)
	go func() { sent <- tx.SendBatch(t.Context(), &b).Close() }()
	pgtest.AwaitBlocked(t, pool, 1)
	require.NoError(t, rivalTx.Commit(t.Context()))
	require.NoError(t, <-sent)
	receipt, err := queued.Receipt()
	require.NoError(t, err)
	require.True(t, receipt.Duplicate)
	for range 2 {
		receipt, err = queued.Resolve(t.Context(), tx)
		require.NoError(t, err)
		require.Equal(t, outbox.Receipt{ID: rival.ID, Duplicate: true}, receipt)
	}
	require.NoError(t, tx.Commit(t.Context()))
}

// TestResolveOfADeletedRival: the rival of a duplicate commits while the batch waits for it, and is deleted before its id is
// asked for. There is no id, and nothing was written.
func TestResolveOfADeletedRival(t *testing.T) {
	t.Parallel()
	for _, log := range []bool{false, true} {
		pool := pgtest.Database(t)
		m := runtimetest.Message(runtimetest.TenantA, 1)
		m.Log = log
		rivalTx := pgtest.Begin(t, pool, pgx.TxOptions{})
		_, err := outbox.Enqueue(t.Context(), rivalTx, "", m)
		require.NoError(t, err)
		tx := pgtest.Begin(t, pool, pgx.TxOptions{})
		var b pgx.Batch
		queued, err := outbox.EnqueueInBatch(&b, "", m)
		require.NoError(t, err)
		sent := make(chan error, 1)
		go func() { sent <- tx.SendBatch(t.Context(), &b).Close() }()
		pgtest.AwaitBlocked(t, pool, 1)
		require.NoError(t, rivalTx.Commit(t.Context()))
		require.NoError(t, <-sent)
		pgtest.Execute(t, pool, "DELETE FROM testing.events")
		pgtest.Execute(t, pool, "DELETE FROM outbox.log")
		for range 2 {
			receipt, err := queued.Resolve(t.Context(), tx)
			require.EqualError(t, err, "resolve test/ping: the event that held its dedupe key has been deleted since, and nothing was written: enqueue it again")
			require.Zero(t, receipt)
		}
		again, err := outbox.Enqueue(t.Context(), tx, "", m)
		require.NoError(t, err, "the transaction is usable")
		require.False(t, again.Duplicate)
		receipt, err := queued.Resolve(t.Context(), tx)
		require.NoError(t, err)
		require.Equal(t, outbox.Receipt{ID: again.ID, Duplicate: true}, receipt)
	}
}

func TestEnqueueWaitsForAnOpenRival(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	for _, commits := range []bool{true, false} {
		m := runtimetest.Message(runtimetest.TenantA, map[bool]int{true: 1, false: 2}[commits])
		rivalTx := pgtest.Begin(t, pool, pgx.TxOptions{})
		rival, err := outbox.Enqueue(t.Context(), rivalTx, "", m)
		require.NoError(t, err)
		tx := pgtest.Begin(t, pool, pgx.TxOptions{})
		got := make(chan outbox.Receipt, 1)
		go func() {
			receipt, err := outbox.Enqueue(t.Context(), tx, "", m)
			pgtest.Check(t, err)
			got <- receipt
		}()
		pgtest.AwaitBlocked(t, pool, 1)
		if commits {
			require.NoError(t, rivalTx.Commit(t.Context()))
			require.Equal(t, outbox.Receipt{ID: rival.ID, Duplicate: true}, <-got)
		} else {
			require.NoError(t, rivalTx.Rollback(t.Context()))
			receipt := <-got
			require.False(t, receipt.Duplicate)
			require.NotEqual(t, rival.ID, receipt.ID)
		}
		require.NoError(t, tx.Commit(t.Context()))
		require.Equal(t, 1, runtimetest.CountWhere(t, pool, "dedupe_key = $1", m.DedupeKey))
	}
}

func TestQueueAfterAFailedStatement(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	tx := pgtest.Begin(t, pool, pgx.TxOptions{})
	var b pgx.Batch
	b.Queue("SELECT 1/0")
	queued, err := outbox.EnqueueInBatch(&b, "", runtimetest.Message(runtimetest.TenantA, 1))
	require.NoError(t, err)
	require.Error(t, tx.SendBatch(t.Context(), &b).Close())
	_, err = queued.Receipt()
	require.Error(t, err)
	require.NoError(t, tx.Rollback(t.Context()))
	require.Zero(t, runtimetest.CountWhere(t, pool, "true"))
}

func TestQueueReportsItsOwnError(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Empty(t))
	tx := pgtest.Begin(t, pool, pgx.TxOptions{})
	var b pgx.Batch
	queued, err := outbox.EnqueueInBatch(&b, "", runtimetest.Message(runtimetest.TenantA, 1))
	require.NoError(t, err)
	require.Error(t, tx.SendBatch(t.Context(), &b).Close())
	_, err = queued.Receipt()
	require.Error(t, err)
}
