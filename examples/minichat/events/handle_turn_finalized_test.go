package events_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/examples/minichat/events"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
	"github.com/outboxgen/outboxgen/queue"
)

// recordFunc is a function as a ledger.
type recordFunc func(eventID uuid.UUID, turn events.TurnFinalized) error

func (f recordFunc) Record(_ context.Context, eventID uuid.UUID, turn events.TurnFinalized) error {
	return f(eventID, turn)
}

func TestHandlerPassesTheEventOn(t *testing.T) {
	t.Parallel()
	pool := outboxtest.Postgres(t)
	turn := events.TurnFinalized{
		TenantID: uuid.New(), TurnID: events.TurnID(uuid.New()), RequestID: uuid.New(), ChatID: uuid.New(), TurnVersion: 2,
		Outcome: events.OutcomeFailed, Usage: events.Usage{InputTokens: 120}, Model: "small-1", Tags: []string{"web"},
		FinalizedAt: time.Now().UTC().Truncate(time.Microsecond),
	}
	var receipt outbox.Receipt
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) (err error) {
		receipt, err = events.EnqueueTurnFinalized(t.Context(), tx, turn)
		return err
	}))
	h := &events.MiniChatHandler{Ledger: recordFunc(func(eventID uuid.UUID, got events.TurnFinalized) error {
		require.Equal(t, receipt.ID, eventID)
		require.Equal(t, turn, got)
		return nil
	})}
	d, err := events.NewMiniChatDispatcher(pool, h, queue.Config{})
	require.NoError(t, err)
	require.Equal(t, queue.Report{Delivered: 1}, outboxtest.Drain(t, d))
}

func TestHandlerReturnsTheErrorOfTheLedger(t *testing.T) {
	t.Parallel()
	full := errors.New("ledger is full")
	h := &events.MiniChatHandler{Ledger: recordFunc(func(uuid.UUID, events.TurnFinalized) error { return full })}
	err := h.HandleTurnFinalized(t.Context(), outbox.Delivery[events.TurnFinalized]{})
	require.ErrorIs(t, err, full)
}
