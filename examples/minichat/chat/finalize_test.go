package chat_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/examples/minichat/chat"
	"github.com/outboxgen/outboxgen/examples/minichat/events"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
)

func TestFinalizeSettlesAndEnqueues(t *testing.T) {
	t.Parallel()
	for _, outcome := range []events.Outcome{events.OutcomeCompleted, events.OutcomeFailed, events.OutcomeAborted} {
		t.Run(string(outcome), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			start := f.request(reserve)
			turn, err := f.Start(t.Context(), start)
			require.NoError(t, err)
			require.Equal(t, chat.Quota{Budget: budget, Reserved: reserve}, f.quota())

			end := f.ending(turn)
			end.Outcome, end.Note = outcome, "as told"
			done, err := f.Finalize(t.Context(), end)
			require.NoError(t, err)
			require.False(t, done.Duplicate)

			require.Equal(t, string(outcome), f.state(turn))
			require.Equal(t, chat.Quota{Budget: budget, Used: 200}, f.quota())
			p := outboxtest.RequireEnqueued(t, f.pool, events.TurnFinalizedTopic, of(turn))
			require.Equal(t, outcome, p.Outcome)
			require.Equal(t, end.Usage, p.Usage)
			require.Equal(t, "as told", *p.Note)
			require.Equal(t, int64(2), p.TurnVersion)
			require.Equal(t, f.tenant.String()+"/"+turn.String()+"/"+start.RequestID.String(), p.DedupeKey())
		})
	}
}

func TestFinalizeAgainIsDuplicate(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	turn := f.start()
	first, err := f.Finalize(t.Context(), f.ending(turn))
	require.NoError(t, err)

	late := f.ending(turn)
	late.Outcome, late.Usage.OutputTokens = events.OutcomeAborted, 500
	second, err := f.Finalize(t.Context(), late)
	require.NoError(t, err)

	require.Equal(t, chat.Finalized{EventID: first.EventID, Duplicate: true}, second)
	require.Equal(t, "completed", f.state(turn))
	require.Equal(t, chat.Quota{Budget: budget, Used: 200}, f.quota())
	require.Equal(t, 1, f.eventCount())
}

func TestRefusedTurnHasNoEvent(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	turn, err := f.Start(t.Context(), f.request(budget+1))
	require.ErrorIs(t, err, chat.ErrQuotaExceeded)
	require.Equal(t, "refused", f.state(turn))
	require.Equal(t, chat.Quota{Budget: budget}, f.quota())

	_, err = f.Finalize(t.Context(), f.ending(turn))
	require.ErrorIs(t, err, chat.ErrTurnNotRunning)
	require.Zero(t, f.eventCount())

	// Not even in an open transaction.
	tx := f.begin()
	_, err = f.FinalizeTx(t.Context(), tx, f.ending(turn))
	require.ErrorIs(t, err, chat.ErrTurnNotRunning)
	outboxtest.RequireNotEnqueued(t, tx, events.TurnFinalizedTopic, of(turn))
	outboxtest.RequireNotEnqueued(t, tx, events.TurnStartedTopic, func(p events.TurnStarted) bool { return p.TurnID == turn })
}

func TestStartReservesAndEnqueues(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r := f.request(reserve)
	turn, err := f.Start(t.Context(), r)
	require.NoError(t, err)
	require.Equal(t, chat.Quota{Budget: budget, Reserved: reserve}, f.quota())
	want := events.TurnStarted{TenantID: f.tenant, TurnID: turn, ChatID: r.ChatID, Model: r.Model}
	require.Equal(t, want, outboxtest.RequireEnqueued(t, f.pool, events.TurnStartedTopic, func(p events.TurnStarted) bool { return p.TurnID == turn }))

	_, err = f.Start(t.Context(), r) // the same request again: its transaction rolls back
	require.ErrorIs(t, err, chat.ErrRequestRepeated)
	outboxtest.RequireNotEnqueued(t, f.pool, events.TurnStartedTopic, func(p events.TurnStarted) bool { return p.TurnID != turn })
	require.Equal(t, chat.Quota{Budget: budget, Reserved: reserve}, f.quota())
}

func TestFailingSettlementLeavesNothing(t *testing.T) {
	t.Parallel()
	t.Run("over budget", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		turn := f.start()
		end := f.ending(turn)
		end.Usage.OutputTokens = budget
		_, err := f.Finalize(t.Context(), end)
		require.ErrorIs(t, err, chat.ErrQuotaExceeded)
		f.requireUntouched(turn)

		// The turn can still be ended in another way.
		done, err := f.Finalize(t.Context(), f.ending(turn))
		require.NoError(t, err)
		require.False(t, done.Duplicate)
	})
	t.Run("statement fails", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		turn := f.start()
		_, err := f.pool.Exec(t.Context(), "ALTER TABLE quotas ADD CONSTRAINT outage CHECK (used_tokens = 0)")
		require.NoError(t, err)
		_, err = f.Finalize(t.Context(), f.ending(turn))
		require.ErrorContains(t, err, "outage")
		f.requireUntouched(turn)
	})
	t.Run("invalid payload", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		turn := f.start()
		end := f.ending(turn)
		end.Outcome = "vanished"
		_, err := f.Finalize(t.Context(), end)
		require.ErrorIs(t, err, outbox.ErrPayloadInvalid)
		f.requireUntouched(turn)
	})
}

// requireUntouched fails unless turn is running and unchanged.
func (f *fixture) requireUntouched(turn events.TurnID) {
	f.t.Helper()
	require.Equal(f.t, "running", f.state(turn))
	require.Equal(f.t, chat.Quota{Budget: budget, Reserved: reserve}, f.quota())
	outboxtest.RequireNotEnqueued(f.t, f.pool, events.TurnFinalizedTopic, of(turn))
}

func TestFinalizeOfAnotherTenantsTurn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	turn := f.start()
	end := f.ending(turn)
	end.TenantID = uuid.New()
	_, err := f.Finalize(t.Context(), end)
	require.ErrorIs(t, err, chat.ErrTurnNotFound)
	f.requireUntouched(turn)
}

// When the event is past its retention, the dedupe key is free again, and the state of the turn is the guard.
func TestFinalizeAfterRetention(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	turn := f.start()
	_, err := f.Finalize(t.Context(), f.ending(turn))
	require.NoError(t, err)
	_, err = f.pool.Exec(t.Context(), "WITH e AS (DELETE FROM outbox.events) DELETE FROM outbox.queue")
	require.NoError(t, err)

	_, err = f.Finalize(t.Context(), f.ending(turn))
	require.ErrorIs(t, err, chat.ErrTurnNotRunning)
	require.Equal(t, chat.Quota{Budget: budget, Used: 200}, f.quota())
	require.Zero(t, f.eventCount())
}

func TestRepeatedRequestStartsOneTurn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r := f.request(reserve)
	_, err := f.Start(t.Context(), r)
	require.NoError(t, err)
	_, err = f.Start(t.Context(), r)
	require.ErrorIs(t, err, chat.ErrRequestRepeated)
	require.Equal(t, chat.Quota{Budget: budget, Reserved: reserve}, f.quota())
}
