package chat_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/examples/minichat/chat"
	"github.com/outboxgen/outboxgen/examples/minichat/events"
	"github.com/outboxgen/outboxgen/outboxtest"
)

func TestRaceHasOneWinner(t *testing.T) {
	t.Parallel()
	const rounds, rivals = 10, 6
	f := newFixture(t)
	require.NoError(t, f.SetBudget(t.Context(), f.tenant, rounds*reserve))
	for range rounds {
		turn := f.start()
		results := make([]chat.Finalized, rivals)
		errs := make([]error, rivals)
		begin := make(chan struct{})
		var busy sync.WaitGroup
		for i := range rivals {
			busy.Go(func() {
				end := f.ending(turn)
				if i%2 == 1 {
					end.Outcome = events.OutcomeAborted
				}
				<-begin
				results[i], errs[i] = f.Finalize(t.Context(), end)
			})
		}
		close(begin)
		busy.Wait()

		winners := 0
		for i, result := range results {
			require.NoError(t, errs[i])
			require.Equal(t, results[0].EventID, result.EventID, "all get the same event")
			if !result.Duplicate {
				winners++
			}
		}
		require.Equal(t, 1, winners)
		p := outboxtest.RequireEnqueued(t, f.pool, events.TurnFinalizedTopic, of(turn))
		require.Equal(t, f.state(turn), string(p.Outcome), "the event is from the winner")
	}
	require.Equal(t, chat.Quota{Budget: rounds * reserve, Used: rounds * 200}, f.quota())
	require.Equal(t, rounds, f.eventCount())
}

// The second finaliser starts while the transaction of the first is open: it waits for the end of that transaction.
func TestRaceWaitsForTheFirst(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change    func(pgx.Tx, context.Context) error
		duplicate bool
	}{
		"first commits":    {pgx.Tx.Commit, true},
		"first rolls back": {pgx.Tx.Rollback, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			turn := f.start()
			tx := f.begin()
			first, err := f.FinalizeTx(t.Context(), tx, f.ending(turn))
			require.NoError(t, err)
			require.False(t, first.Duplicate)

			var second chat.Finalized
			var secondErr error
			var busy sync.WaitGroup
			busy.Go(func() { second, secondErr = f.Finalize(t.Context(), f.ending(turn)) })
			f.waitUntilBlocked()
			require.NoError(t, c.change(tx, t.Context()))
			busy.Wait()

			require.NoError(t, secondErr)
			require.Equal(t, c.duplicate, second.Duplicate)
			require.Equal(t, c.duplicate, second.EventID == first.EventID)
			require.Equal(t, chat.Quota{Budget: budget, Used: 200}, f.quota())
			require.Equal(t, 1, f.eventCount())
		})
	}
}

// waitUntilBlocked waits until a session of the database waits for a lock.
func (f *fixture) waitUntilBlocked() {
	f.t.Helper()
	require.EventuallyWithT(f.t, func(c *assert.CollectT) {
		var blocked bool
		err := f.pool.QueryRow(f.t.Context(), `
			SELECT EXISTS (
			    SELECT FROM pg_stat_activity
			    WHERE datname = current_database() AND wait_event_type = 'Lock')`).Scan(&blocked)
		require.NoError(c, err)
		require.True(c, blocked)
	}, 2*time.Minute, 10*time.Millisecond)
}
