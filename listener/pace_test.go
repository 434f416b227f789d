package listener_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
)

// TestListenerPausesBetweenEmptyChecks: a check that finds nothing is followed by a pause of four times its length.
// Checks are slow if there are many uncommitted events, for example. This holds while the doorbell refuses to watch
// because a transaction that has enqueued is open, and also without a doorbell.
func TestListenerPausesBetweenEmptyChecks(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for _, wake := range []outbox.Wake{outbox.WakeDoorbell, outbox.WakePoll} {
		t.Run(string(wake), func(t *testing.T) {
			t.Parallel()
			const look = 50 * time.Millisecond
			pool := pgtest.Database(t)
			cfg := listener.Config{PollInterval: runtimetest.Rarely, LeaseDuration: 3 * runtimetest.Rarely, Wake: wake}
			if wake == outbox.WakePoll {
				cfg.PollInterval, cfg.MaxPollInterval = time.Millisecond, time.Millisecond
			}
			watched, leases := runtimetest.NewGate(t, pool, "name: ListenerTakeLease ")
			ended := runtimetest.SlowChecks(leases, look)
			l := runtimetest.ListenTo(t, watched, listener.Spec{}, cfg, runtimetest.NewNotes())
			tx := pgtest.Begin(t, pool, pgx.TxOptions{})
			_, err := runtimetest.SaidTopic.Enqueue(t.Context(), tx, runtimetest.Said{Key: "a", N: 1})
			require.NoError(t, err)
			watch := listener.Watch(l)
			runtimetest.StartListener(t, l)
			runtimetest.Restful(t, runtimetest.IfDoorbell(wake, watch.Refused), ended, look)
		})
	}
}
