package listener_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
)

// TestInlineDrainEndsWithItsHandler: a handler that ends the goroutine of Drain, as FailNow does in a test, ends the drain
// too. Its event has failed, and its lease is ended, so another drain continues immediately.
func TestInlineDrainEndsWithItsHandler(t *testing.T) {
	t.Parallel()
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		runtimetest.PutAll(t, pool, "a1", "a2", "a3")
		h := runtimetest.NewNotes()
		h.Fail = func(d outbox.Delivery[runtimetest.Said]) error {
			if d.Payload.N == 2 && d.Attempt == 1 {
				runtime.Goexit()
			}
			return nil
		}
		spec := listener.Spec{Retry: outbox.Retry{BaseDelay: time.Millisecond, MaxDelay: time.Millisecond}}
		l := runtimetest.ListenAs(t, pool, transactional, spec, listener.Config{}, h)
		over, returned := make(chan struct{}), false
		go func() {
			defer close(over)
			_, _ = l.Drain(config.Inline(t.Context()))
			returned = true
		}()
		pgtest.Receive(t, over, "the end of the goroutine")
		require.False(t, returned)
		require.Equal(t, "1 1 false", pgtest.Value[string](t, pool, "SELECT last_seq || ' ' || retry_count || ' ' || running FROM outbox.listeners"))
		runtimetest.RetryNow(t, pool)
		report, err := l.Drain(config.Inline(t.Context()))
		require.NoError(t, err)
		require.Equal(t, listener.Report{Delivered: 2}, report)
		require.Equal(t, []string{"a1", "a2", "a3"}, h.Names())
	})
}

// TestInlineDrainRenewsItsLease: a lease is renewed while a handler runs in the goroutine of Drain.
func TestInlineDrainRenewsItsLease(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	runtimetest.PutAll(t, pool, "a1")
	h := runtimetest.NewNotes()
	h.Fail = func(outbox.Delivery[runtimetest.Said]) error {
		first := pgtest.Value[time.Time](t, pool, "SELECT lease_until FROM outbox.listeners")
		pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.listeners WHERE lease_until > $1", first)
		return nil
	}
	l := runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{LeaseDuration: 3 * time.Second, PollInterval: time.Second}, h)
	report, err := l.Drain(config.Inline(t.Context()))
	require.NoError(t, err)
	require.Equal(t, listener.Report{Delivered: 1}, report)
}
