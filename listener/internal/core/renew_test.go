package core

import (
	"testing"

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
