package advisory_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/postgres/advisory"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// TestOneHolder: one session has the lock, until it gives it up or its connection is gone. Locks with other names are free.
func TestOneHolder(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	try := func(name string) *advisory.Lock {
		l, err := advisory.Try(t.Context(), pool, name, time.Minute)
		require.NoError(t, err)
		if l != nil {
			t.Cleanup(l.Release)
		}
		return l
	}
	first := try("a")
	require.NotNil(t, first)
	require.True(t, first.Holds())
	require.True(t, first.Confirm(t.Context()))
	require.Nil(t, try("a"))
	require.NotNil(t, try("b"))
	first.Release()
	require.False(t, first.Confirm(t.Context()))
	second := try("a")
	require.NotNil(t, second)
	pgtest.Settles(t, pool, 2, `SELECT count(pg_terminate_backend(pid)) FROM pg_locks
		WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
	require.False(t, second.Watch(t.Context()), "it notices that its connection is gone")
	require.NotNil(t, try("a"))
}

// TestCutOff: a process whose connection has become silent does not hold its lock any more, and the server gives it to another
// one.
func TestCutOff(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t) // the server waits for 11 s
	pool := pgtest.Database(t)
	proxy := pgtest.NewProxy(t, pool)
	lost, err := advisory.Try(t.Context(), proxy.Pool(t), "a", time.Second)
	require.NoError(t, err)
	require.NotNil(t, lost)
	proxy.Swallow()
	require.False(t, lost.Watch(t.Context()))
	require.False(t, lost.Holds())
	pgtest.Eventually(t, func() bool {
		l, err := advisory.Try(t.Context(), pool, "a", time.Minute)
		require.NoError(t, err)
		if l != nil {
			l.Release()
		}
		return l != nil
	})
	proxy.Pass()
	lost.Release()
}

// TestNobodyWantsIt: a nil Lock is held until the context ends.
func TestNobodyWantsIt(t *testing.T) {
	t.Parallel()
	var l *advisory.Lock
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.True(t, l.Holds() && l.Confirm(ctx) && l.Watch(ctx))
	l.Release()
}
