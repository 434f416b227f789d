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
