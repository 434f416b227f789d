package outbox_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

// TestListenerSmallPoolIsOneWarning: a pool in which handlers could hold up one another is said at the start, with both
// numbers; one that is large enough is not.
func TestListenerSmallPoolIsOneWarning(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, transactional bool) {
		for conns, want := range map[int32]string{6: "max_conns=6 used=7", 7: ""} {
			cfg := pgtest.Database(t).Config()
			cfg.MaxConns = conns
			pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
			require.NoError(t, err)
			t.Cleanup(pool.Close)
			log := newSpy()
			l := listenAs(t, pool, transactional, outbox.ListenerSpec{Shards: 2}, outbox.ListenerConfig{Logger: log.logger()}, newNotes())
			watch := outbox.WatchListener(l)
			stop := startListener(t, l)
			receive(t, watch.Idle, "sleep")
			stop()
			if want == "" {
				require.NotContains(t, log.String(), "max_conns")
				continue
			}
			require.Equal(t, 1, strings.Count(log.String(), want), "%s", log)
		}
	})
}
