package core

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/machine/growth"
)

// relayed is a play of a listener that publishes a window without an end.
type relayed struct {
	*play
	seq   int64
	bytes int           // of each payload
	took  time.Duration // each batch
	reads int           // leases that were taken with their first batch
}

func relay(t *testing.T, set ...func(*Config)) *relayed {
	r := &relayed{play: newPlay(t, func(c *Config) {
		c.Grows, c.LeaseBatches = true, 32
		for _, f := range set {
			f(c)
		}
	})}
	r.target.admits = 1 << 30
	r.taking()
	r.step(r.take())
	return r
}

// take answers a round trip with a lease: with events if they are asked for, and behind those that were read ahead if not.
func (r *relayed) take() RoundTripDone {
	take := latest[RoundTrip](r.play).Take
	lease := &Lease{
		ID: take.ID, No: take.AfterNo + 1, Shards: 1, BatchSize: take.BatchSize, ScanSize: take.ScanSize, MayPark: true,
		Deadline: r.now.Add(30 * time.Second), LastSeq: r.seq,
	}
	if !take.Read {
		lease.LastSeq = r.core.following.After
		return RoundTripDone{Ours: true, Lease: lease}
	}
	r.reads++
	for lease.Scanned < lease.ScanSize {
		lease.Scanned++
		if !lease.Add(r.next(), r.core.cfg.BatchSize) {
			r.seq--
			break
		}
	}
	lease.ScannedTo = r.seq
	return RoundTripDone{Ours: true, Lease: lease}
}

func (r *relayed) next() *Entry {
	r.seq++
	e := r.event(r.seq)
	e.Payload = make([]byte, r.bytes)
	return e
}

// batches handles so many batches, and returns how many events the largest and the latest had, and the most of a lease.
func (r *relayed) batches(n int) (most, latest, inLease int) {
	for range n {
		b := r.core.batch
		latest = len(b.entries)
		most = max(most, latest)
		if p := r.core.nextBatch; p != nil {
			for p.Scanned < p.Size {
				if p.Scanned++; !p.Add(r.next()) {
					p.Failed, r.seq = true, p.After
					break
				}
				p.ScannedTo = r.seq
			}
			r.step(Prefetched{p})
		}
		r.wait(r.took)
		inLease = max(inLease, len(r.core.lease.Entries()))
		took := r.core.leases
		r.step(r.handled(nil))
		for r.core.state == Ending || r.core.state == Taking {
			r.step(r.take())
		}
		require.GreaterOrEqual(r.t, r.core.leases, took)
		require.Equal(r.t, Handling, r.core.state)
	}
	return most, latest, inLease
}

// TestBatchesOfRelaysGrow: batches grow while they are published fast, up to sixteen times the usual size, within the bound of a
// lease and as long as their payload is small. They are small again when that is slow or has failed.
func TestBatchesOfRelaysGrow(t *testing.T) {
	t.Parallel()
	r := relay(t)
	most, _, inLease := r.batches(40)
	require.Equal(t, 32, most)
	require.LessOrEqual(t, inLease, 64)
	require.Greater(t, inLease, 32)

	r.took = time.Second
	_, latest, _ := r.batches(10)
	require.Equal(t, 2, latest, "publishing has become slow")

	r.took = 0
	_, latest, _ = r.batches(40)
	require.Equal(t, 32, latest)
	r.bytes = 1 << 19
	_, latest, _ = r.batches(8)
	require.Equal(t, 16, latest, "8 MiB")
	r.bytes = prefetchBytes
	_, latest, _ = r.batches(8)
	require.Equal(t, 2, latest, "the usual size, whatever the payload is")

	r = relay(t, func(c *Config) { c.LeaseBatches = 3 })
	most, _, inLease = r.batches(40)
	require.Equal(t, 6, most, "as many as a lease may have")
	require.Equal(t, 6, inLease)

	r = relay(t, func(c *Config) { c.Grows = false })
	most, _, _ = r.batches(40)
	require.Equal(t, 2, most)
}

// TestFailuresStopGrowth: after a failure, or a lease that was lost, batches are small for a while.
func TestFailuresStopGrowth(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(r *relayed){
		"an event has failed": func(r *relayed) {
			r.core.lease.Events[0].Result, r.core.lease.Events[0].Status = errclass.New(errclass.ClassFailed, "test"), Retried
			r.core.grow()
		},
		"a destination is away": func(r *relayed) { r.core.lease.Events[0].Away = true; r.core.grow() },
		"a lost lease":          func(r *relayed) { r.core.lose() },
		"what was read ahead is too large": func(r *relayed) {
			p := r.core.nextBatch
			p.Failed = !p.Add(&Entry{Payload: make([]byte, prefetchBytes+1)})
			r.step(Prefetched{p})
			r.step(r.handled(nil))
		},
	} {
		r := relay(t)
		r.batches(40)
		require.Equal(t, 32, r.core.batchSize())
		r.core.now = r.now
		fail(r)
		require.Equal(t, 2, r.core.batchSize(), name)
		r.core.growth.Done(r.now, 100, 0)
		require.Equal(t, 2, r.core.batchSize(), name)
		r.core.growth.Done(r.now.Add(growth.Pause), 100, 0) // a step less
		r.core.growth.Done(r.now.Add(growth.Pause), 100, 0)
		require.Equal(t, 4, r.core.batchSize(), name)
	}
	r := relay(t)
	lease := r.core.lease
	p := &NextBatch{Size: 9, After: 2, Scanned: 3, ScannedTo: 5, Events: []*Entry{r.event(3), r.event(4), r.event(5)}}
	lease.begin(&r.core.cfg, r.now, p, nil)
	for _, e := range lease.Events {
		e.Status = Done
	}
	require.True(t, r.core.cfg.End(lease, r.now, false).Closes, "fewer than were asked for: the window is done")

	r = relay(t)
	r.batches(40)
	r.core.lease.Events[0].Result, r.core.lease.Events[0].Status = errclass.New(errclass.ClassRefused, "test"), Dead
	r.core.grow()
	require.Equal(t, 32, r.core.batchSize(), "a dead letter says nothing about the others")
}

// TestLargePayloadEndsTheBatch: a batch of more events than usual ends before its payload is too large to keep, and is followed
// by what was read behind its end.
func TestLargePayloadEndsTheBatch(t *testing.T) {
	t.Parallel()
	p := newPlay(t, nil)
	lease := &Lease{BatchSize: 10, ScanSize: 10, Scanned: 10, ScannedTo: 10}
	add := func(seq int64, bytes int) bool {
		e := p.event(seq)
		e.Payload = make([]byte, bytes)
		return lease.Add(e, 2)
	}
	require.True(t, add(1, prefetchBytes))
	require.True(t, add(2, prefetchBytes), "as many as usual, whatever they have")
	require.False(t, add(3, 1))
	require.Len(t, lease.Events, 2)
	require.Equal(t, int64(2), lease.reach())
	for _, e := range lease.Events {
		e.Status = Done
	}
	a := p.core.cfg.End(lease, p.now, false)
	require.Equal(t, int64(2), a.LastSeq)
	require.False(t, a.Closes)
	lease = &Lease{BatchSize: 16, ScanSize: 16}
	for seq := range int64(16) {
		require.True(t, add(seq, prefetchBytes/16), "as much as may be kept")
	}
	require.Equal(t, 16, lease.BatchSize)
}

// TestSlowBatchesOfARelayAreReadAhead: a lease that is too old ends, and the next one begins with what was read while the batch
// before was published, unless that took longer than AheadWithin.
func TestSlowBatchesOfARelayAreReadAhead(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		took, within time.Duration
		reads        int // leases that were taken with a batch
	}{
		{took: 100 * time.Millisecond, within: 0, reads: 10},
		{took: 100 * time.Millisecond, within: 200 * time.Millisecond, reads: 1},
		{took: 201 * time.Millisecond, within: 200 * time.Millisecond, reads: 10},
	} {
		r := relay(t, func(cfg *Config) { cfg.AheadWithin = c.within })
		r.took = c.took
		leases := r.core.leases
		r.batches(10)
		require.Equal(t, 10, r.core.leases-leases, "each is too old after a batch")
		require.Equal(t, c.reads, r.reads, "%s within %s", c.took, c.within)
	}
}
