package queue_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// cutEverywhere calls operate with the connection cut at every n-th byte of the request and of the reply, until a call
// succeeds. prepare runs before each, without a cut, and warms up the connection.
func cutEverywhere(t *testing.T, s *pgtest.Scissors, prepare func(), operate func() error, after func(err error)) {
	t.Helper()
	cuts := 0
	for _, replies := range []bool{false, true} {
		for k := 0; ; k += pgtest.EveryNth {
			prepare()
			s.Arm(replies, k)
			err := operate()
			wasCut := s.Disarm()
			after(err)
			if !wasCut {
				require.NoError(t, err)
				break
			}
			cuts++
			require.Error(t, err, "cut at byte %d", k)
		}
	}
	require.Greater(t, cuts, 10)
}

func TestCutConnectionAtEveryByteOfAnAck(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	testCut(t, func(s *queue.Store, c queue.Claimed) ([]queue.Outcome, error) { return s.Ack(t.Context(), c) }, "delivered")
}

func TestCutConnectionAtEveryByteOfANack(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	testCut(t, func(s *queue.Store, c queue.Claimed) ([]queue.Outcome, error) {
		return s.Nack(t.Context(), queue.Failure{Claimed: c, Err: outbox.Permanent(runtimetest.ErrHandler)})
	}, "dead")
}

// testCut repeats a finalisation after its connection was cut. The outcome is Applied if the server had not done it,
// Already if it had, and never Lost.
func testCut(t *testing.T, finalise func(*queue.Store, queue.Claimed) ([]queue.Outcome, error), status string) {
	t.Helper()
	pool := pgtest.Database(t)
	cut, scissors := pgtest.Cuttable(t, pool)
	s := runtimetest.StoreOf(t, cut, uuid.New())
	var c queue.Claimed
	seen := map[queue.Outcome]int{}
	cutEverywhere(t, scissors, func() {
		runtimetest.EnqueueN(t, pool, 2)
		claimed := runtimetest.ClaimN(t, s, 2)
		_, err := finalise(s, claimed[0]) // prepares the statements on this connection
		require.NoError(t, err)
		c = claimed[1]
	}, func() error {
		_, err := finalise(s, c)
		return err
	}, func(error) {
		before := runtimetest.RowOf(t, pool, c.ID)
		outcomes, err := finalise(s, c)
		require.NoError(t, err)
		require.NotEqual(t, queue.Lost, outcomes[0])
		if before.Status == status {
			require.Equal(t, queue.Already, outcomes[0])
		}
		after := runtimetest.RowOf(t, pool, c.ID)
		require.Equal(t, status, after.Status)
		require.Equal(t, 1, after.Attempts)
		seen[outcomes[0]]++
	})
	require.NotZero(t, seen[queue.Applied], "some cuts come before the commit")
	require.NotZero(t, seen[queue.Already], "and some behind it")
}

func TestCutConnectionAtEveryByteOfAClaim(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	cut, scissors := pgtest.Cuttable(t, pool)
	s, successor := runtimetest.NewStore(t, cut), runtimetest.NewStore(t, pool)
	var id uuid.UUID
	var claimed []queue.Claimed
	attempts := map[int]int{}
	cutEverywhere(t, scissors, func() {
		runtimetest.ClaimN(t, s, 0) // prepares the statement on this connection
		id = runtimetest.EnqueueN(t, pool, 1)[0].ID
	}, func() (err error) {
		claimed, err = s.Claim(t.Context(), queue.ClaimConfig{LeaseDuration: runtimetest.LongLease})
		return err
	}, func(err error) {
		if err == nil {
			require.Equal(t, []uuid.UUID{id}, runtimetest.IDsOf(claimed))
		} else {
			require.Empty(t, claimed, "what may not be committed is not handed out")
		}
		// The next claim gets it, immediately or when the lease has run out. The statement may still be under way.
		pgtest.Eventually(t, func() bool {
			runtimetest.ExpireLeases(t, pool)
			claimed, err := successor.Claim(t.Context(), queue.ClaimConfig{LeaseDuration: runtimetest.LongLease})
			require.NoError(t, err)
			if len(claimed) == 0 {
				return false
			}
			require.Equal(t, []uuid.UUID{id}, runtimetest.IDsOf(claimed))
			attempts[claimed[0].Attempt]++
			_, err = successor.Ack(t.Context(), claimed...)
			require.NoError(t, err)
			return true
		})
	})
	require.NotZero(t, attempts[1], "some cuts come before the commit")
	require.NotZero(t, attempts[2], "and some behind it")
	require.Equal(t, len(attempts), 2)
}

func TestCutConnectionAtEveryByteOfAnEnqueueAndItsCommit(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	cut, scissors := pgtest.Cuttable(t, pool)
	n := 0
	enqueue := func() (receipt outbox.Receipt, err error) {
		return receipt, pgx.BeginFunc(t.Context(), cut, func(tx pgx.Tx) error {
			receipt, err = outbox.Enqueue(t.Context(), tx, "", runtimetest.Message(runtimetest.TenantA, n))
			return err
		})
	}
	written := map[bool]int{}
	cutEverywhere(t, scissors, func() {
		n++
		_, err := enqueue() // prepares the statement on this connection
		require.NoError(t, err)
		n++
	}, func() error {
		_, err := enqueue()
		return err
	}, func(error) {
		key := runtimetest.Message(runtimetest.TenantA, n).DedupeKey
		there := runtimetest.CountWhere(t, pool, "dedupe_key = $1", key)
		receipt, err := enqueue()
		require.NoError(t, err)
		if there == 1 {
			require.True(t, receipt.Duplicate, "the producer's retry learns that it had been written")
		}
		require.Equal(t, 1, runtimetest.CountWhere(t, pool, "dedupe_key = $1", key))
		written[receipt.Duplicate]++
	})
	require.NotZero(t, written[true])
	require.NotZero(t, written[false])
	runtimetest.ClaimN(t, runtimetest.NewStore(t, pool), n)
}

func TestBackendKilledInTheMiddleOfAnAck(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	s := runtimetest.NewStore(t, pool)
	for _, kill := range []bool{false, true} {
		runtimetest.EnqueueN(t, pool, 3)
		claimed := runtimetest.ClaimN(t, s, 3)
		// The ack waits for a lock on the second row, so that it is known to be under way.
		tx := pgtest.Begin(t, pool, pgx.TxOptions{})
		_, err := tx.Exec(t.Context(), "SELECT FROM outbox.queue WHERE id = $1 FOR UPDATE", claimed[1].ID)
		require.NoError(t, err)
		done := make(chan error, 1)
		go func() {
			_, err := s.Ack(t.Context(), claimed...)
			done <- err
		}()
		pgtest.AwaitBlocked(t, pool, 1)
		if kill {
			// Without MATERIALIZED the planner may call the function first, for each backend of the server.
			killed := pgtest.Value[int](t, pool, `WITH stuck AS MATERIALIZED (
				SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')
				SELECT count(pg_terminate_backend(pid)) FROM stuck`)
			require.Equal(t, 1, killed)
			require.Error(t, <-done)
			require.Equal(t, 3, runtimetest.CountWhere(t, pool, "status = 'processing'"), "all or nothing")
		}
		require.NoError(t, tx.Rollback(t.Context()))
		if !kill {
			require.NoError(t, <-done)
		}
		outcomes, err := s.Ack(t.Context(), claimed...)
		require.NoError(t, err)
		require.Equal(t, runtimetest.Repeat(3, map[bool]queue.Outcome{true: queue.Applied, false: queue.Already}[kill]), outcomes)
	}
	require.Equal(t, 6, runtimetest.CountWhere(t, pool, "status = 'delivered' AND attempts = 1"))
}

// An ack whose context ends is done completely or not at all, and a repeat says which.
func TestAckWhoseContextEnds(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	s := runtimetest.NewStore(t, pool)
	runtimetest.EnqueueN(t, pool, 2)
	claimed := runtimetest.ClaimN(t, s, 2)
	tx := pgtest.Begin(t, pool, pgx.TxOptions{})
	_, err := tx.Exec(t.Context(), "SELECT FROM outbox.queue WHERE id = $1 FOR UPDATE", claimed[0].ID)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := s.Ack(ctx, claimed...)
		done <- err
	}()
	pgtest.AwaitBlocked(t, pool, 1)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	require.NoError(t, tx.Rollback(t.Context()))
	outcomes, err := s.Ack(t.Context(), claimed...)
	require.NoError(t, err)
	for _, o := range outcomes {
		require.NotEqual(t, queue.Lost, o)
	}
	require.Equal(t, 2, runtimetest.CountWhere(t, pool, "status = 'delivered'"))
}
