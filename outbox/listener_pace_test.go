package outbox_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
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

// restful demands that checks which take so long are followed by a pause of four times as long, once a few have been measured.
// The doorbell, if there is one, rings when it has connected, for a look without a pause: refused says that it was asked since.
func restful(t *testing.T, refused <-chan struct{}, began <-chan time.Time, look time.Duration) {
	t.Helper()
	if refused != nil {
		for range 3 { // the ring is heard after the first at the latest
			receive(t, refused, "a refusal")
		}
	}
	for len(began) > 0 {
		<-began
	}
	last := receive(t, began, "the first look")
	gap := func() time.Duration {
		next := receive(t, began, "a look")
		defer func() { last = next }()
		return next.Sub(last)
	}
	for tries := 0; gap() < 5*look; tries++ {
		require.Less(t, tries, 10, "the looks do not pause")
	}
	for range 5 {
		require.GreaterOrEqual(t, gap(), 5*look, "a look, and a pause of four")
	}
}

// TestDispatcherPausesBetweenEmptyClaims: the same of a dispatcher.
func TestDispatcherPausesBetweenEmptyClaims(t *testing.T) {
	t.Parallel()
	for _, wake := range []outbox.Wake{outbox.WakeDoorbell, outbox.WakePoll} {
		t.Run(string(wake), func(t *testing.T) {
			t.Parallel()
			const look = 50 * time.Millisecond
			pool := pgtest.Database(t)
			watched, claims := gated(t, pool, "name: EventClaim")
			began := make(chan time.Time, 1000)
			claims.onPass(func() {
				began <- time.Now()
				<-time.After(look) // as if it took the database so long
			})
			cfg := outbox.DispatcherConfig{PollInterval: rarely, MaxPollInterval: rarely, LeaseDuration: 3 * rarely, Wake: wake, Logger: quiet()}
			if wake == outbox.WakePoll {
				cfg.PollInterval, cfg.MaxPollInterval = time.Millisecond, time.Millisecond
			}
			topic := jobTopic("one")
			tx := begin(t, pool, pgx.TxOptions{})
			_, err := topic.Untyped().Enqueue(t.Context(), tx, job{TenantID: uuid.New(), N: 1})
			require.NoError(t, err)
			d := dispatcher(t, watched, cfg, onJob(topic, succeed))
			watch := outbox.Watch(d)
			start(t, d)
			restful(t, ifDoorbell(wake, watch.Refused), began, look)
		})
	}
}

// ifDoorbell returns refused, nil for who polls.
func ifDoorbell(wake outbox.Wake, refused <-chan struct{}) <-chan struct{} {
	if wake == outbox.WakePoll {
		return nil
	}
	return refused
}
