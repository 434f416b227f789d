package listener_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
)

// TestListenerSmallPoolIsOneWarning: a pool in which handlers could block each other is one warning at the start, with
// both numbers. A pool that is large enough is not.
func TestListenerSmallPoolIsOneWarning(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		for conns, want := range map[int32]string{6: "max_conns=6 used=7", 7: ""} {
			cfg := pgtest.Database(t).Config()
			cfg.MaxConns = conns
			pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
			require.NoError(t, err)
			t.Cleanup(pool.Close)
			log := runtimetest.NewLogSpy()
			l := runtimetest.ListenAs(t, pool, transactional, listener.Spec{Shards: 2}, listener.Config{Logger: log.Logger()}, runtimetest.NewNotes())
			watch := listener.Watch(l)
			stop := runtimetest.StartListener(t, l)
			pgtest.Receive(t, watch.Idle, "sleep")
			stop()
			if want == "" {
				require.NotContains(t, log.String(), "max_conns")
				continue
			}
			require.Equal(t, 1, strings.Count(log.String(), want), "%s", log)
		}
	})
}
