package ledger_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/examples/minichat/database"
	"github.com/outboxgen/outboxgen/examples/minichat/events"
	"github.com/outboxgen/outboxgen/examples/minichat/ledger"
	"github.com/outboxgen/outboxgen/outboxtest"
	"github.com/outboxgen/outboxgen/queue"
)

func open(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := outboxtest.Postgres(t)
	require.NoError(t, database.Migrate(t.Context(), pool))
	return pool
}

func turnOf(tenant uuid.UUID) events.TurnFinalized {
	return events.TurnFinalized{
		TenantID: tenant, TurnID: events.TurnID(uuid.New()), RequestID: uuid.New(), ChatID: uuid.New(), TurnVersion: 2,
		Outcome: events.OutcomeCompleted, Usage: events.Usage{InputTokens: 120, OutputTokens: 80},
		Model: "small-1", FinalizedAt: time.Now(),
	}
}

func TestDispatcherKeepsTheLedger(t *testing.T) {
	t.Parallel()
	pool := open(t)
	books := ledger.New(pool)
	mine, other := uuid.New(), uuid.New()
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := events.EnqueueTurnFinalizedMany(t.Context(), tx,
			[]events.TurnFinalized{turnOf(mine), turnOf(mine), turnOf(other)})
		return err
	}))

	d, err := events.NewMiniChatDispatcher(pool, &events.MiniChatHandler{Ledger: books}, queue.Config{})
	require.NoError(t, err)
	require.Equal(t, queue.Report{Delivered: 3}, outboxtest.Drain(t, d))

	total, err := books.Total(t.Context(), mine)
	require.NoError(t, err)
	require.Equal(t, ledger.Total{Turns: 2, InputTokens: 240, OutputTokens: 160}, total)
	require.Zero(t, outboxtest.Drain(t, d), "nothing is delivered again")
}

func TestRecordIsIdempotent(t *testing.T) {
	t.Parallel()
	pool := open(t)
	books := ledger.New(pool)
	event, turn := uuid.New(), turnOf(uuid.New())
	for range 3 {
		require.NoError(t, books.Record(t.Context(), event, turn))
	}
	require.NoError(t, books.Record(t.Context(), uuid.New(), turn), "another event of the same request")
	total, err := books.Total(t.Context(), turn.TenantID)
	require.NoError(t, err)
	require.Equal(t, ledger.Total{Turns: 1, InputTokens: 120, OutputTokens: 80}, total)
	turn.RequestID = uuid.New()
	require.NoError(t, books.Record(t.Context(), event, turn))
	total, err = books.Total(t.Context(), turn.TenantID)
	require.NoError(t, err)
	require.Equal(t, ledger.Total{Turns: 2, InputTokens: 240, OutputTokens: 160}, total, "another request is counted")
}
