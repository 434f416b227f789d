package events

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/operation"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
)

// TestGeneratedOperation: what is generated commits rows and event together with an outcome, and neither without one.
func TestGeneratedOperation(t *testing.T) {
	pool := outboxtest.Postgres(t)
	_, err := pool.Exec(t.Context(), "CREATE TABLE turns (id uuid)")
	require.NoError(t, err)
	p := TurnFinalized{TurnID: uuid.New()}
	finalize := func(end func(ctx context.Context, tx *FinalizeTurnTx) (FinalizeTurnOutcome, error)) error {
		return FinalizeTurn(t.Context(), pool, func(ctx context.Context, tx *FinalizeTurnTx) (FinalizeTurnOutcome, error) {
			_, err := tx.Exec(ctx, "INSERT INTO turns VALUES ($1)", p.TurnID)
			require.NoError(t, err)
			require.ErrorIs(t, tx.Commit(ctx), operation.ErrTxOwned)
			return end(ctx, tx)
		})
	}
	rows := func() (n int) {
		require.NoError(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM turns").Scan(&n))
		return n
	}
	same := func(event TurnFinalized) bool { return event == p }

	err = finalize(func(context.Context, *FinalizeTurnTx) (FinalizeTurnOutcome, error) { return FinalizeTurnOutcome{}, nil })
	require.ErrorIs(t, err, operation.ErrNoOutcome)
	err = finalize(func(ctx context.Context, tx *FinalizeTurnTx) (FinalizeTurnOutcome, error) {
		outcome, err := tx.Settled(ctx, p)
		tx.Refused()
		return outcome, err
	})
	require.ErrorIs(t, err, operation.ErrNoOutcome)
	err = finalize(func(ctx context.Context, tx *FinalizeTurnTx) (FinalizeTurnOutcome, error) {
		return tx.Settled(ctx, TurnFinalized{})
	})
	require.ErrorIs(t, err, outbox.ErrPayloadInvalid)
	err = finalize(func(ctx context.Context, _ *FinalizeTurnTx) (FinalizeTurnOutcome, error) {
		return new(FinalizeTurnTx).Settled(ctx, p)
	})
	require.ErrorIs(t, err, operation.ErrNoOutcome)
	require.Zero(t, rows())
	outboxtest.RequireNotEnqueued(t, pool, TurnFinalizedTopic, same)

	require.NoError(t, finalize(func(_ context.Context, tx *FinalizeTurnTx) (FinalizeTurnOutcome, error) { return tx.Refused(), nil }))
	require.Equal(t, 1, rows())
	outboxtest.RequireNotEnqueued(t, pool, TurnFinalizedTopic, same)

	require.NoError(t, finalize(func(ctx context.Context, tx *FinalizeTurnTx) (FinalizeTurnOutcome, error) {
		outcome, err := tx.With(outbox.WithHeaders(map[string]string{"by": "test"})).Settled(ctx, p)
		require.Len(t, outcome.Receipts(), 1)
		return outcome, err
	}))
	require.Equal(t, 2, rows())
	outboxtest.RequireEnqueued(t, pool, TurnFinalizedTopic, same)
	var by string
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT headers->>'by' FROM outbox.events").Scan(&by))
	require.Equal(t, "test", by)
}

// TestFakeInAGeneratedOperation: an event that is enqueued with the transaction of an operation is recorded with its
// outcome, and dropped without one, whether the fake or the function of the topic enqueues it.
func TestFakeInAGeneratedOperation(t *testing.T) {
	for _, commits := range []bool{true, false} {
		fake := NewFakeMiniChat()
		err := FinalizeTurn(t.Context(), fake, func(ctx context.Context, tx *FinalizeTurnTx) (FinalizeTurnOutcome, error) {
			_, err := fake.EnqueueChatOpened(ctx, tx, ChatOpened{ChatID: uuid.New()})
			require.NoError(t, err)
			_, err = EnqueueChatOpened(ctx, tx.With(), ChatOpened{ChatID: uuid.New()})
			require.NoError(t, err)
			require.NoError(t, pgx.BeginFunc(ctx, tx, func(savepoint pgx.Tx) error {
				_, err := ChatOpenedTopic.EnqueueMany(ctx, savepoint, []ChatOpened{{ChatID: uuid.New()}})
				return err
			}))
			require.Empty(t, fake.Events(), "recorded before the commit")
			if !commits {
				return FinalizeTurnOutcome{}, nil
			}
			return tx.Settled(ctx, TurnFinalized{TurnID: uuid.New()})
		})
		if !commits {
			require.ErrorIs(t, err, operation.ErrNoOutcome)
			require.Empty(t, fake.Events())
			continue
		}
		require.NoError(t, err)
		require.Len(t, fake.ChatOpened(), 3)
		require.Len(t, fake.TurnFinalized(), 1)
	}
	var none *FinalizeTurnTx
	fake := NewFakeMiniChat()
	_, err := fake.EnqueueChatOpened(t.Context(), none, ChatOpened{ChatID: uuid.New()})
	require.NoError(t, err)
	require.Len(t, fake.ChatOpened(), 1, "no transaction: recorded immediately")
	_, err = EnqueueChatOpened(t.Context(), none, ChatOpened{ChatID: uuid.New()})
	require.EqualError(t, err, "enqueue mini_chat/chat_opened: no transaction given (nil)")
}
