package listener_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
)

// Transactions that stay open do not delay other events: each is read at the latest in the second check after its
// commit, because the first may have been under way. Events of open transactions are read when they have committed. A
// reader that waits for the oldest transaction gets nothing meanwhile.
func TestOpenTransactionDelaysNoOtherEvent(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for _, wake := range []outbox.Wake{outbox.WakePoll, outbox.WakeDoorbell} {
		t.Run(string(wake), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			h := runtimetest.NewNotes()
			// The doorbell cannot watch, because a transaction with an event is open, so the listener keeps checking.
			cfg := listener.Config{LeaseDuration: time.Hour, PollInterval: 20 * time.Minute, Wake: wake}
			if wake == outbox.WakePoll {
				cfg.PollInterval = 10 * time.Millisecond
			}
			l := runtimetest.ListenTo(t, pool, listener.Spec{}, cfg, h)
			signals := listener.Watch(l)
			looked := signals.Idle
			if wake == outbox.WakeDoorbell {
				looked = signals.Refused
			}
			held := pgtest.Begin(t, pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
			_, err := runtimetest.SaidTopic.Enqueue(t.Context(), held, runtimetest.Said{Key: "held", N: 1})
			require.NoError(t, err)
			elsewhere := pgtest.Begin(t, pgtest.Pool(t, pgtest.Empty(t)), pgx.TxOptions{})
			pgtest.Value[string](t, elsewhere, "SELECT pg_current_xact_id()::text")
			runtimetest.StartListener(t, l)
			<-looked
			late := 0
			for n := 1; n <= 200; n++ {
				runtimetest.Put(t, pool, "free", n)
				looks := 0
				for len(h.Names()) < n {
					select {
					case <-h.Told:
					case <-looked:
						if len(h.Names()) < n {
							looks++ // perhaps signalled before the commit, and not received until now
						}
					case <-time.After(pgtest.Patience):
						require.FailNow(t, "an event does not come", "%d checks since its commit", looks)
					}
				}
				require.LessOrEqual(t, looks, 2)
				late = max(late, looks)
			}
			t.Logf("at most %d checks without a visible event", late)
			waiting := 0
			require.NoError(t, belowHorizon(t, pool).drain(t.Context(), 100, func(uuid.UUID) { waiting++ }))
			require.Zero(t, waiting, "the control")
			require.NoError(t, held.Commit(t.Context()))
			h.Await(t, 201)
			require.Equal(t, "held1", h.Names()[200])
			for i, name := range h.Names()[:200] {
				require.Equal(t, fmt.Sprintf("free%d", i+1), name)
			}
		})
	}
}
