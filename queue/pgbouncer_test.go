//go:build unix

package queue_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
)

// TestBellThroughPgBouncer: in transaction mode LISTEN succeeds but has no effect, and a session lock would stay on a
// server connection after its client has disconnected. In session mode everything works.
func TestBellThroughPgBouncer(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	t.Run("transaction mode", func(t *testing.T) {
		t.Parallel()
		direct := pgtest.Database(t)
		falls(t, direct, runtimetest.PgBouncer(t, direct, "transaction"), nil)
	})
	t.Run("session mode", func(t *testing.T) {
		t.Parallel()
		direct := pgtest.Database(t)
		through := runtimetest.PgBouncer(t, direct, "session")
		cfg := runtimetest.SleeperConfig()
		topic := runtimetest.JobTopic("one")
		r := recipientOf(t, through, cfg, topic)
		require.NotZero(t, runtimetest.Holder(t, direct))
		runtimetest.EnqueueJobs(t, direct, topic, runtimetest.NumberedJobs(1)...)
		r.expect(t)
		require.NoError(t, r.stop())
		require.Eventually(t, func() bool { return runtimetest.Holder(t, direct) == 0 }, pgtest.Patience, 10*time.Millisecond)
	})
}
