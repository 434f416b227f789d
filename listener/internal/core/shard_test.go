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
	for together, tries := range map[int]bool{0: false, 1: false, 2: true} {
		p := newPlay(t, func(c *Config) { c.Together = together })
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

// flush adds the commands that a call of a method has made.
func (p *play) flush() *play {
	p.last = append([]Command(nil), p.core.out...)
	p.all = append(p.all, p.last...)
	return p
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
	found := func(knows uuid.NullUUID) {
		c.lease, c.newer, c.batch = &Lease{newer: e, Events: []*Entry{e}}, e, newBatch(&c.cfg, &Lease{}, nil, nil)
		c.end = &End{Lease: c.lease}
		c.onProcessFound(ProcessFound{Worker: knows})
	}
	found(other)
	found(other) // the end of the first is not committed, and the lease is taken again
	require.True(t, c.wakesOthers, "nobody was woken yet")
	c.wakesOthers = false
	found(other)
	require.False(t, c.wakesOthers, "it was woken before")
	found(uuid.NullUUID{UUID: uuid.UUID{8}, Valid: true})
	require.True(t, c.wakesOthers, "this one was not")
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
