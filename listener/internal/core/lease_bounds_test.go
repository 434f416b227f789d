package core

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
)

// TestEventsAheadOfTheCursor: those that were not read this time are kept while the window is open, if the cursor has not
// passed them.
func TestEventsAheadOfTheCursor(t *testing.T) {
	t.Parallel()
	for closes, want := range map[bool][]int64{false: {9}, true: {}} {
		p := newPlay(t, nil)
		lease := &Lease{LastSeq: 8, ScannedTo: 8, BatchSize: 10, ScanSize: 10, attemptsAhead: map[int64]int32{8: 1, 9: 2}}
		if !closes {
			lease.Scanned = 10
		}
		a := p.core.cfg.End(lease, p.now, false)
		require.Equal(t, closes, a.Closes)
		require.Equal(t, want, a.AheadSeqs)
	}
}

// TestParkedEventsThatWereTakenTogether: a one-by-one lease says how many are left that may have killed their process, when it
// has settled one.
func TestParkedEventsThatWereTakenTogether(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status   Status
		oneByOne bool
		want     int32
	}{
		{Done, true, 2}, {Dead, true, 2}, {Retried, true, 0}, {Waiting, true, 0}, {Done, false, 0}, {Dead, false, 0},
	} {
		p := newPlay(t, nil)
		entries, _ := p.entriesOf("pa")
		entries[0].Head, entries[0].Taken, entries[0].Status = true, 3, c.status
		a := p.core.cfg.End(&Lease{Parked: entries, OneByOne: c.oneByOne, BatchSize: 1}, p.now, false)
		require.Equal(t, c.want, a.Taken, "%s %v", c.status, c.oneByOne)
	}
}

// TestParkedForATargetThatIsBack: it is the head of its key, due at once.
func TestParkedForATargetThatIsBack(t *testing.T) {
	t.Parallel()
	p := newPlay(t, nil)
	e := p.event(5)
	e.Status, e.Away, e.retry = Parked, true, &Retry{until: p.now, away: p.target}
	a := p.core.cfg.End(&Lease{Events: []*Entry{e}, BatchSize: 1}, p.now, false)
	require.Equal(t, []int64{5}, a.Heads)
	require.Equal(t, []int64{0}, a.Parking.DelaysUs)
}

// TestLastAttemptsAreKept: the error of the last attempt is kept, and none of an attempt that was not made.
func TestLastAttemptsAreKept(t *testing.T) {
	t.Parallel()
	for attempt, want := range map[int]int{2: 1, 3: 1, 4: 0} {
		p := newPlay(t, nil)
		e := p.event(1)
		e.Attempt, e.MaxAttempts, e.Status, e.Result = attempt, 3, Dead, result(errclass.ClassRefused)
		a := p.core.cfg.End(&Lease{Events: []*Entry{e}, BatchSize: 1}, p.now, false)
		require.Len(t, a.Failures.IDs, want)
	}
}

// TestWhatIsParkedIsNotJudged: an event whose key was parked before is neither of an unknown version nor dead here, and an
// event of a topic that is not read any more has no version.
func TestWhatIsParkedIsNotJudged(t *testing.T) {
	t.Parallel()
	p := newPlay(t, nil)
	lease := &Lease{AheadSeqs: []int64{1}, AheadAttempts: []int32{3}}
	for seq := range int64(3) {
		lease.Events = append(lease.Events, p.event(seq+1))
	}
	lease.Events[0].Status = Parked
	lease.Events[1].Status, lease.Events[1].Version = Parked, 2
	lease.Events[2].Of = nil
	lease.Prepare(&p.core.cfg, p.now, nil)
	require.Equal(t, "k1 parked, k2 parked, k3 waiting", outcomes(lease.Events))
	require.Nil(t, lease.newer)

	parked, _ := p.entriesOf("pa pa upb")
	parked[1].Version = 2
	lease.AddParked(&p.core.cfg, p.now, parked)
	require.Nil(t, lease.newerParked, "another event of its key is before it")
	require.Len(t, lease.Events, 3, "the lease has events of the log, too")
	require.False(t, lease.parkedOnly)
}

// TestStoppedAt: a lease stops at an event of an unknown version, unless that is to be parked behind another.
func TestStoppedAt(t *testing.T) {
	t.Parallel()
	p := newPlay(t, nil)
	newer, parked := p.event(1), p.parkedEvent(2)
	lease := &Lease{newer: newer, newerParked: parked}
	require.Same(t, newer, lease.stoppedAt())
	newer.Status = Parked
	require.Same(t, parked, lease.stoppedAt())
}

// TestIdleLeases: a lease that stops at an event of an unknown version had nothing to do if it has handled nothing.
func TestIdleLeases(t *testing.T) {
	t.Parallel()
	p := newPlay(t, nil)
	before, newer := p.event(1), p.event(2)
	newer.Newer = true
	lease := &Lease{Events: []*Entry{before, newer}}
	require.False(t, lease.idle())
	lease.newer = newer
	require.True(t, lease.idle())
	before.Status, before.ParkedBefore = Parked, true
	require.True(t, lease.idle(), "its key was parked before")
	before.ParkedBefore = false
	require.False(t, lease.idle())
}

// TestChargedEvents: only an event that is to be tried is charged before.
func TestChargedEvents(t *testing.T) {
	t.Parallel()
	p := newPlay(t, nil)
	for name, c := range map[string]struct {
		set  func(e *Entry)
		want bool
	}{
		"as usual":           {func(*Entry) {}, true},
		"its attempts spent": {func(e *Entry) { e.Status = Dead }, false},
		"an unknown version": {func(e *Entry) { e.Newer = true }, false},
		"a retry":            {func(e *Entry) { e.retry = &Retry{} }, false},
	} {
		lease := &Lease{OneByOne: true, Events: []*Entry{p.event(1)}}
		c.set(lease.Events[0])
		require.Equal(t, c.want, lease.mustCharge() != nil, name)
	}
}

// TestKeysThatALeaseHasParked: those that were parked before do not count.
func TestKeysThatALeaseHasParked(t *testing.T) {
	t.Parallel()
	p := newPlay(t, nil)
	lease := &Lease{Events: []*Entry{p.event(1), p.event(2), p.event(3)}}
	lease.Events[0].Status = Parked
	lease.Events[1].Status, lease.Events[1].ParkedBefore = Parked, true
	lease.noteParked()
	require.Equal(t, map[string]bool{"k1": true}, lease.parkedNow)
}

// TestFollows: what was read ahead is the first batch of the next lease only if nothing has become of it meanwhile.
func TestFollows(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		set  func(l *Lease)
		want bool
	}{
		"as usual":              {func(*Lease) {}, true},
		"another position":      {func(l *Lease) { l.LastSeq++ }, false},
		"an event tried before": {func(l *Lease) { l.RetryCount = 1 }, false},
		"events done ahead":     {func(l *Lease) { l.AheadSeqs = []int64{9} }, false},
		"after a crash":         {func(l *Lease) { l.OneByOne = true }, false},
	} {
		lease := &Lease{LastSeq: 4}
		c.set(lease)
		require.Equal(t, c.want, (&NextBatch{After: 4}).follows(lease), name)
	}
}

// TestBoundsOfReadingAhead: of payloads, of ages, and of keys that are parked.
func TestBoundsOfReadingAhead(t *testing.T) {
	t.Parallel()
	p := newPlay(t, nil)
	p.handling(nil, 1, 2)
	p.core.lease.Events[0].Payload = make([]byte, prefetchBytes-1)
	p.core.lease.Events[1].Payload = make([]byte, 1)
	require.NotNil(t, p.core.planNextBatch())
	require.False(t, p.core.full(&NextBatch{Size: 2}))
	p.core.lease.parkedNow = make(map[string]bool)
	for n := range MaxParkedKeys {
		p.core.lease.parkedNow[strconv.Itoa(n)] = true
	}
	require.False(t, p.core.full(&NextBatch{Size: 2}))
	p.core.lease.parkedNow["more"] = true
	require.True(t, p.core.full(&NextBatch{Size: 2}))
	p.core.lease.parkedNow = nil
	p.core.now = p.core.lease.began.Add(p.core.cfg.LeaseAge + 1)
	require.True(t, p.core.full(&NextBatch{Size: 2}))
}

// TestUnusableBatches: what was not read, and what follows a handler that still runs.
func TestUnusableBatches(t *testing.T) {
	t.Parallel()
	p := newPlay(t, nil)
	p.handling(nil, 1, 2)
	ahead := p.prefetched(3, 4).Next
	h := p.handled(nil)
	p.core.handled = &h
	require.True(t, p.core.usable(ahead))
	ahead.Failed = true
	require.False(t, p.core.usable(ahead))
	ahead.Failed, h.Running = false, "one"
	require.False(t, p.core.usable(ahead))
}

// TestScanSizeOfAQuarter: as many events as a quarter of the positions are enough.
func TestScanSizeOfAQuarter(t *testing.T) {
	t.Parallel()
	for events, want := range map[int]int{1: 4, 2: 2} {
		p := newPlay(t, nil)
		p.taking()
		p.step(p.taken(func(l *Lease) { l.Scanned, l.ScannedTo = 8, 100 }, []int64{1, 2}[:events]...))
		require.Equal(t, want, max(p.core.scanSize, p.core.cfg.BatchSize))
	}
}

// TestRetriesOfALongWindow: those of events that were not read this time are kept until the window is done.
func TestRetriesOfALongWindow(t *testing.T) {
	t.Parallel()
	for _, closes := range []bool{false, true} {
		p := newPlay(t, nil)
		p.handling(nil, 1)
		p.core.retries[9] = Retry{until: p.now.Add(time.Hour)}
		p.core.rememberRetries(&End{Closes: closes})
		require.Equal(t, !closes, len(p.core.retries) == 1)
	}
}

// TestSearchPicks: only events that wait and are due, and of a key none before another that waits.
func TestSearchPicks(t *testing.T) {
	t.Parallel()
	p := newPlay(t, nil)
	entries, _ := p.entriesOf("a a b")
	var s search
	s.found(entries[1])
	entries[0].Status = Done
	require.Equal(t, entries[1:2], s.pick(entries), "the one before it is done")
	entries[1].retry = &Retry{}
	require.Equal(t, entries, s.pick(entries), "it is not due")
	entries[1].retry, entries[1].Status = nil, Dead
	require.Equal(t, entries, s.pick(entries), "it is over")

	entries, _ = p.entriesOf("a b c d")
	s.onBroken(entries, 4)
	require.Equal(t, entries[:2], s.pick(entries), "all of them were running")
	entries[0].retry = &Retry{}
	require.Equal(t, entries[1:3], s.pick(entries), "the first is not due")
}
