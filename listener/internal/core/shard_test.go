package core

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/outbox"
)

// has reports whether the latest step has a command of type T.
func has[T Command](p *play) bool {
	for _, cmd := range p.last {
		if _, is := cmd.(T); is {
			return true
		}
	}
	return false
}

// TestGiveUpAfterTheBatch: handlers that have returned are not given up, although the lease still waits for what is read.
func TestGiveUpAfterTheBatch(t *testing.T) {
	t.Parallel()
	p := newPlay(t, nil)
	p.handling(nil, 1, 2)
	h := p.handled(nil)
	p.step(h)
	require.Equal(t, Handling, p.core.State())
	p.step(GiveUp{})
	require.False(t, has[Abandon](p))
	h.Running = "one"
	p.step(h)
	require.Empty(t, p.core.handled.Running, "a batch is over once")
}

// TestWaitForTheNextBatch: it is given up after a while, once.
func TestWaitForTheNextBatch(t *testing.T) {
	t.Parallel()
	p := newPlay(t, nil)
	p.handling(nil, 1, 2)
	p.step(p.handled(nil))
	require.Equal(t, p.now.Add(p.core.cfg.LeaseAge), latest[Timer](p).At)
	p.step(Tick{})
	require.False(t, has[DropPrefetch](p), "not yet")
	p.wait(p.core.cfg.LeaseAge)
	p.step(Tick{})
	require.True(t, has[DropPrefetch](p))
	p.step(Tick{})
	require.False(t, has[DropPrefetch](p), "once")
	p.step(Prefetched{latest[Prefetch](p).Next})
	require.Equal(t, Ending, p.core.State())
}

// TestLateAnswerOfARead: what was given up may be read when the lease is long over.
func TestLateAnswerOfARead(t *testing.T) {
	t.Parallel()
	p := newPlay(t, nil)
	p.handling(nil, 1, 2)
	next := latest[Prefetch](p).Next
	p.core.nextBatch = nil
	p.step(p.handled(nil))
	p.step(p.nothing())
	p.step(checked(nil))
	p.step(p.nothing())
	require.Equal(t, Sleeping, p.core.State())
	p.wait(time.Hour)
	p.step(Prefetched{next})
	require.Equal(t, Sleeping, p.core.State())
	require.Empty(t, p.last)
}

// TestBatchesOfOneAreCharged: a handler that gets one event at a time is tried with that.
func TestBatchesOfOneAreCharged(t *testing.T) {
	t.Parallel()
	for batch, tries := range map[int]bool{0: false, 1: false, 2: true} {
		p := newPlay(t, func(c *Config) { c.Batch = batch })
		p.handling(oneByOne, 1)
		require.Equal(t, tries, has[Try](p))
		require.Equal(t, !tries, has[Charge](p))
	}
}

// TestLeasesWithSomethingToDo: those that only meet an event of an unknown version do not count, and those whose events were
// done before do.
func TestLeasesWithSomethingToDo(t *testing.T) {
	t.Parallel()
	p := newPlay(t, nil)
	stoppedAt(p)
	p.step(p.handled(nil))
	p.step(ProcessFound{})
	require.Zero(t, p.core.Leases())

	p = newPlay(t, nil)
	p.handling(func(l *Lease) { l.AheadSeqs, l.AheadAttempts = []int64{1}, []int32{0} }, 1)
	p.step(p.handled(nil))
	require.Equal(t, 1, p.core.Leases())
}

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

// flush adds the commands that a call of a method has made.
func (p *play) flush() *play {
	p.last = append([]Command(nil), p.core.out...)
	p.all = append(p.all, p.last...)
	return p
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

// TestNewerVersionsAreLeft: for a while, and permanently by a Drain.
func TestNewerVersionsAreLeft(t *testing.T) {
	t.Parallel()
	for drain, want := range map[bool]bool{false: false, true: true} {
		p := newPlay(t, func(c *Config) { c.Drain = drain })
		p.checking()
		require.False(t, p.core.leavesToOthers())
		p.core.newerUntil = p.now.Add(time.Second)
		require.True(t, p.core.leavesToOthers())
		p.core.now = p.now.Add(time.Second)
		require.Equal(t, want, p.core.leavesToOthers())
	}
}

// TestNewerVersionsThatAreParked: the shard goes to the process that knows the version, who is told in any case.
func TestNewerVersionsThatAreParked(t *testing.T) {
	t.Parallel()
	other := uuid.NullUUID{UUID: another, Valid: true}
	for _, knows := range []bool{false, true} {
		p := newPlay(t, nil)
		newerParked(p)
		p.step(p.handled(nil))
		worker := uuid.NullUUID{}
		if knows {
			worker = other
		}
		p.step(ProcessFound{Worker: worker})
		a := latest[RoundTrip](p).End
		require.Equal(t, knows, a.Release)
		require.Equal(t, worker, a.HandTo)
	}
	p := newPlay(t, nil)
	stoppedAt(p)
	c, e := p.core, p.core.lease.newer
	for range 2 { // the end of the first is not committed, and the lease is taken again
		c.lease, c.newer, c.batch = &Lease{newer: e, Events: []*Entry{e}}, e, newBatch(&c.cfg, &Lease{}, nil, nil)
		c.end = &End{Lease: c.lease}
		c.onProcessFound(ProcessFound{Worker: other})
	}
	require.True(t, c.wakesOthers, "nobody was woken yet")
}

// TestEndOfAGeneration: a lease that tells of another number of shards is ended, and no other is taken, or the shard released.
func TestEndOfAGeneration(t *testing.T) {
	t.Parallel()
	p := newPlay(t, nil)
	reshaped(p)
	trip := latest[RoundTrip](p)
	require.Nil(t, trip.Take)
	require.False(t, trip.End.Release)
	p.step(RoundTripDone{Ours: true})
	require.Equal(t, Reshaping, p.core.State())

	p = newPlay(t, nil)
	p.handling(func(l *Lease) { l.Shards = 2 }, 1)
	p.step(Stop{})
	p.step(p.handled(nil))
	p.step(RoundTripDone{Ours: true})
	require.Equal(t, Stopped, p.core.State(), "the new number is of no use")

	p = newPlay(t, nil)
	p.checking()
	p.step(Checked{Gone: true, Wait: Wait{Shards: 1}})
	require.Equal(t, Reshaping, p.core.State())
}

// TestAbandonedLease: no other is taken, and if it was lost, the error says so.
func TestAbandonedLease(t *testing.T) {
	t.Parallel()
	for _, ours := range []bool{true, false} {
		p := newPlay(t, nil)
		abandoned(p)
		require.Nil(t, latest[RoundTrip](p).Take)
		p.step(RoundTripDone{Ours: ours})
		if !ours {
			p.step(LeaseState{})
		}
		require.Equal(t, Stopped, p.core.State())
		require.ErrorContains(t, p.core.Err(), "still running")
		require.Equal(t, !ours, isLost(p.core.Err()))
	}
	p := newPlay(t, nil)
	abandoned(p)
	p.core.stopping = false
	require.False(t, p.core.mayTake())
}

func isLost(err error) bool { return errors.Is(err, outbox.ErrLeaseLost) }

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

// TestBrokenTransactionOfSeveral: if it broke while a handler was running, the others are tried without that, otherwise the
// first half of them.
func TestBrokenTransactionOfSeveral(t *testing.T) {
	t.Parallel()
	p := newPlay(t, func(c *Config) { transactional(c); c.BatchSize = 3 })
	begun(1, 2, 3)(p)
	p.step(broken(p))
	require.Equal(t, 2, p.core.search.nextCount)

	p = newPlay(t, func(c *Config) { transactional(c); c.BatchSize = 3 })
	committing(1, 2, 3)(p)
	p.step(CommitFailed{Err: errTest, Alive: true})
	require.Equal(t, 1, p.core.search.nextCount)
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

// TestFateOfAnEnd: it is known from the latest lease of the shard.
func TestFateOfAnEnd(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		state func(p *play) LeaseState
		ours  bool
	}{
		"ended":   {func(p *play) LeaseState { return LeaseState{Known: true, ID: p.core.end.Lease.ID} }, true},
		"it runs": {func(p *play) LeaseState { return LeaseState{Known: true, ID: p.core.end.Lease.ID, Running: true} }, false},
		"the next was taken": {func(p *play) LeaseState {
			return LeaseState{Known: true, ID: p.core.nextID, No: p.core.end.Lease.No + 1, Running: true}
		}, true},
		"a later one": {func(p *play) LeaseState {
			return LeaseState{Known: true, ID: p.core.nextID, No: p.core.end.Lease.No + 2}
		}, false},
		"no shard":           {func(p *play) LeaseState { return LeaseState{ID: p.core.end.Lease.ID} }, false},
		"of another process": {func(*play) LeaseState { return LeaseState{Known: true, ID: another} }, false},
	} {
		p := newPlay(t, nil)
		unmoved(p)
		p.step(c.state(p))
		require.Equal(t, c.ours, latest[TellEnd](p).Ours, name)
	}
}

// TestRenewalsThatNobodyAskedFor: they say nothing, and one is under way at most.
func TestRenewalsThatNobodyAskedFor(t *testing.T) {
	t.Parallel()
	p := newPlay(t, nil)
	p.handling(nil, 1)
	p.step(Renewed{Lease: p.core.lease, Lost: true})
	require.False(t, has[TellLost](p))
	p.wait(10 * time.Second)
	p.step(Tick{})
	require.True(t, has[Renew](p))
	p.wait(10 * time.Second)
	p.step(Tick{})
	require.False(t, has[Renew](p))
}

// TestDrainCountsSteps: of a change of shards, because there may be more to do after one.
func TestDrainCountsSteps(t *testing.T) {
	t.Parallel()
	for stepped, want := range map[bool]int{false: 0, true: 1} {
		p := newPlay(t, drains)
		p.sleeping(resharding)
		p.step(Resharded{Stepped: stepped})
		require.Equal(t, Stopped, p.core.State())
		require.Equal(t, want, p.core.Leases())
	}
}

// TestStopWithAnEndToWrite: it pauses after an error as before, because it has something to write.
func TestStopWithAnEndToWrite(t *testing.T) {
	t.Parallel()
	p := newPlay(t, nil)
	p.ending(1)
	p.step(Stop{})
	p.step(Failed{Err: errTest})
	require.Equal(t, Pausing, p.core.State())
	p.wait(time.Second)
	p.step(Tick{})
	require.Equal(t, Ending, p.core.State())
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

// TestAnswersOfAnUnreadTopic: its events have no version, and wait for nothing.
func TestAnswersOfAnUnreadTopic(t *testing.T) {
	t.Parallel()
	p := newPlay(t, nil)
	e := p.event(1)
	e.Of = nil
	require.False(t, e.isNewer())
	b := p.batchOf([]*Entry{e})
	require.Same(t, e, b.Next(p.now))
	b.Finish(p.now, e, errclass.Result{})
	require.Equal(t, Done, e.Status)
}
