package core

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestHandlersAreStoppedBeforeTheLeaseEnds: a renewal that fails late is not tried again after the end of the lease. The
// handlers are told in time.
func TestHandlersAreStoppedBeforeTheLeaseEnds(t *testing.T) {
	t.Parallel()
	p := newPlay(t, nil)
	renewing(p)
	lease, margin := p.core.lease, p.core.cfg.LeaseDuration/5
	p.wait(lease.Deadline.Sub(p.now) - margin/10) // what is left is less than the time until another try
	p.step(Renewed{Lease: lease, Failed: true})
	p.step(Tick{})
	require.Same(t, p.core.batch, latest[StopHandlers](p).Batch)
	require.True(t, p.now.Before(lease.Deadline))
}

// TestRenewalsEndBeforeTheLease: one that is not answered ends when the lease is given up, also if a lease is so short that
// a try has more time than the rest of it.
func TestRenewalsEndBeforeTheLease(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ lease, first, second time.Duration }{
		{30 * time.Second, 6 * time.Second, 5 * time.Second},
		{3 * time.Second, time.Second, 100 * time.Millisecond},
		{time.Second, 466 * time.Millisecond, 0},
	} {
		p := newPlay(t, func(cfg *Config) { cfg.LeaseDuration = c.lease })
		p.handling(nil, 1)
		lease := p.core.lease
		lease.Deadline = p.now.Add(c.lease)
		p.core.renewAt = p.core.renewalOf(lease)
		p.wait(p.core.renewAt.Sub(p.now))
		p.step(Tick{})
		given := lease.Deadline.Add(-c.lease / 5)
		began, first := p.now, latest[Renew](p).Until
		require.InDelta(t, c.first, first.Sub(began), float64(10*time.Millisecond), c.lease)
		require.False(t, first.After(given))
		p.wait(first.Sub(p.now))
		p.step(Renewed{Lease: lease, Failed: true})
		if c.second > 0 {
			p.wait(given.Sub(p.now) - c.second)
			p.step(Tick{})
			require.Equal(t, given, latest[Renew](p).Until, c.lease)
			p.wait(given.Sub(p.now))
			p.step(Renewed{Lease: lease, Failed: true})
		}
		require.Same(t, p.core.batch, latest[StopHandlers](p).Batch)
		require.Equal(t, given, p.now)
	}
}
