package core

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestWindowsThatAreNotCut: only what waits for more events leaves its window, and only if nothing in that has been tried.
func TestWindowsThatAreNotCut(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		set  func(b *Batch)
		want bool
	}{
		"held back":     {func(*Batch) {}, true},
		"not held back": {func(b *Batch) { b.held = false }, false},
		"a failure":     {func(b *Batch) { b.entries[0].Status = Retried }, false},
		"done ahead":    {func(b *Batch) { b.entries[1].Status = Done }, false},
		"the window is over": {func(b *Batch) {
			b.Lease.Scanned, b.Lease.ScanSize = 2, 9
			b.entries[0].Status, b.entries[1].Status = Done, Done
			b.Lease.BatchSize = 3
		}, false},
	} {
		p := newPlay(t, nil)
		p.handling(nil, 1, 2)
		b := p.core.batch
		b.held = true
		c.set(b)
		p.core.endLease(false)
		require.Equal(t, c.want, latest[RoundTrip](p.flush()).End.Cuts, name)
	}
}

// TestWhichBatchesWait: none of a lease that is special in some way, because what it has is to be over soon.
func TestWhichBatchesWait(t *testing.T) {
	t.Parallel()
	waits := func(p *play, set func(*Lease), seqs ...int64) *play {
		p.taking()
		p.step(Filled{Events: 4})
		p.step(p.taken(set, seqs...))
		return p
	}
	require.True(t, waits(newPlay(t, fills), nil, 1, 2).core.batch.waits)
	p := newPlay(t, gets4)
	p.handling(nil, 1, 2)
	require.False(t, p.core.batch.waits, "they need not")
	require.False(t, waits(newPlay(t, fills), func(l *Lease) { l.Events[1].Version = 2 }, 1, 2).core.batch.waits, "an unknown version")
	p = waits(newPlay(t, fills), oneByOne, 1)
	p.step(p.tried(2, 2))
	require.False(t, p.core.batch.waits, "after a crash")
	p = waits(newPlay(t, fills), func(l *Lease) { oneByOne(l); l.Events[0].retry = &Retry{until: p.now.Add(time.Hour)} }, 1)
	require.False(t, p.core.batch.waits, "one by one")
	p = newPlay(t, func(c *Config) { fills(c); transactional(c) })
	p.core.search.onBroken([]*Entry{p.event(1), p.event(2)}, 0)
	waits(p, nil, 1, 2)
	p.step(Begun{})
	require.Len(t, p.core.batch.entries, 1)
	require.False(t, p.core.batch.waits, "a search")
}

// TestWhatIsWaitedFor: a shard does not wait for events of a lease that it cannot have, or has had before, or when it ends.
func TestWhatIsWaitedFor(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		wait func(*Wait)
		set  func(*Core)
		want bool
	}{
		"as usual":                     {nil, nil, true},
		"paused":                       {func(w *Wait) { w.Paused = true }, nil, false},
		"blocked":                      {func(w *Wait) { w.Blocked = true }, nil, false},
		"resharding":                   {resharding, nil, false},
		"a foreign lease":              {foreign, nil, false},
		"left to another":              {func(w *Wait) { w.Kept = true }, nil, false},
		"left to another for too long": {readyFor, func(c *Core) { c.untaken = untaken{c.afterNo, start.Add(-time.Hour)} }, true},
		"filled":                       {nil, func(c *Core) { c.filled = true }, false},
		"taken before":                 {nil, func(c *Core) { c.repeats = true }, false},
		"a drain":                      {nil, func(c *Core) { c.cfg.Drain = true }, false},
		"stopping":                     {nil, func(c *Core) { c.stopping = true }, false},
	} {
		p := newPlay(t, fills)
		p.checking()
		p.step(checked(c.wait))
		if c.set != nil {
			c.set(p.core)
		}
		require.Equal(t, c.want, p.core.mustFill(), name)
	}
}

// TestLooksForMoreEvents: a lease is taken when none wait any more, and what need not wait is not kept.
func TestLooksForMoreEvents(t *testing.T) {
	t.Parallel()
	p := newPlay(t, fills)
	p.taking()
	p.step(Filled{Events: 1})
	require.Equal(t, Filling, p.core.State())
	p.wait(time.Second)
	p.step(Tick{})
	p.step(Filled{})
	require.Equal(t, Taking, p.core.State(), "there is nothing to wait for")

	p = newPlay(t, fills)
	p.taking()
	p.step(Filled{Ready: true})
	p.step(p.taken(nil, 1))
	require.NotNil(t, p.core.batch.NextCall(p.now), "it was not looked for")
}

// TestTakeOver: of a lease that is left to another process, if that has not taken it for long.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	p := newPlay(t, nil)
	p.checking()
	p.step(checked(func(w *Wait) { w.LeaseNo = 0 }))
	require.False(t, latest[RoundTrip](p).Take.TakeOver, "nothing was left to anybody")
	for name, c := range map[string]struct {
		no    int64
		since time.Duration
		want  bool
	}{
		"long ago":         {7, 100 * time.Millisecond, true},
		"lately":           {7, 99 * time.Millisecond, false},
		"an earlier lease": {6, time.Hour, false},
	} {
		p := newPlay(t, nil)
		p.taking()
		p.core.untaken = untaken{c.no, p.now.Add(-c.since)}
		require.Equal(t, c.want, p.core.mayTakeOver(), name)
	}
}

// TestSinceWhenALeaseIsLeft: since the first check that has seen it so.
func TestSinceWhenALeaseIsLeft(t *testing.T) {
	t.Parallel()
	no := int64(0)
	p := newPlay(t, nil)
	check := func() time.Time {
		p.core.check()
		p.step(checked(func(w *Wait) { readyFor(w); w.LeaseNo = no }))
		p.step(p.nothing())
		return p.core.untaken.since
	}
	p.checking()
	first := check()
	require.Equal(t, p.now, first)
	p.wait(10 * time.Millisecond)
	require.Equal(t, first, check())
	no = 1
	require.Equal(t, p.now, check(), "it is another one")
}

// TestFallsDueNow: a shard whose next retry is due at once checks again soon.
func TestFallsDueNow(t *testing.T) {
	t.Parallel()
	p := newPlay(t, nil)
	p.sleeping(dueIn(0))
	require.Equal(t, p.now.Add(time.Millisecond), latest[Timer](p).At)
	p = newPlay(t, nil)
	p.sleeping(func(w *Wait) { foreign(w); w.In = 10 * time.Millisecond })
	require.Equal(t, p.now.Add(11*time.Millisecond), latest[Timer](p).At, "earlier than it looks for the lease of another")
}

// TestShardsOfOthers: a process asks for them, unless it has met a version that it does not know lately; it wakes who got one
// from it.
func TestShardsOfOthers(t *testing.T) {
	t.Parallel()
	for after, want := range map[time.Duration]bool{newerFor - 1: false, newerFor: true} {
		p := newPlay(t, nil)
		p.checking()
		in := checked(foreign)
		in.NewerAt = p.now.Add(-after)
		p.step(in)
		p.step(p.nothing())
		require.Equal(t, want, has[RequestShard](p))
	}
	for _, set := range []func(*Wait){nil, foreign} {
		p := newPlay(t, nil)
		afterLease(set)(p)
		p.step(p.nothing())
		require.Equal(t, set != nil, has[WakeOthers](p))
	}
}
