package outbox_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

// TestListenerPausesBetweenEmptyChecks: looks that find nothing and take long, as those behind many uncommitted events do, are
// four times as far apart as they are long: while the bell is refused, because a transaction that has enqueued is open, and
// while there is none.
func TestListenerPausesBetweenEmptyChecks(t *testing.T) {
	t.Parallel()
	for _, wake := range []outbox.Wake{outbox.WakeDoorbell, outbox.WakePoll} {
		t.Run(string(wake), func(t *testing.T) {
			t.Parallel()
			const look = 50 * time.Millisecond
			pool := pgtest.Database(t)
			cfg := outbox.ListenerConfig{PollInterval: rarely, LeaseDuration: 3 * rarely, Wake: wake}
			if wake == outbox.WakePoll {
				cfg.PollInterval, cfg.MaxPollInterval = time.Millisecond, time.Millisecond
			}
			watched, leases := gated(t, pool, "name: ListenerTakeLease ")
			began := make(chan time.Time, 1000)
			leases.onPass(func() { began <- time.Now() })
			l := listenTo(t, watched, outbox.ListenerSpec{}, cfg, newNotes())
			outbox.Mutate(l, outbox.SlowLease)
			tx := begin(t, pool, pgx.TxOptions{})
			_, err := saidTopic.Untyped().Enqueue(t.Context(), tx, said{Key: "a", N: 1})
			require.NoError(t, err)
			watch := outbox.WatchListener(l)
			startListener(t, l)
			restful(t, ifDoorbell(wake, watch.Refused), began, look)
		})
	}
}
