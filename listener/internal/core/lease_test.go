package core

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
)

// TestEnd checks what is written of the log at the end of a lease of the events 5, 6, ..., of which two more positions
// were read.
func TestEnd(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		keys string // see batchCase
		set  func(*play, *Lease)
		want func(*End)
	}{
		"all are done": {"a b", nil, func(a *End) { a.LastSeq, a.Handled, a.Closes = 8, 2, true }},
		"a full batch": {"a b", func(_ *play, l *Lease) { l.BatchSize = 2 }, func(a *End) { a.LastSeq, a.Handled = 6, 2 }},
		"a full scan":  {"a b", func(_ *play, l *Lease) { l.ScanSize = 4 }, func(a *End) { a.LastSeq, a.Handled = 8, 2 }},
		"a failure blocks": {"a b! c", nil, func(a *End) {
			a.LastSeq, a.Handled, a.RetryCount, a.Delayed, a.Delay, a.LastError = 5, 1, 1, true, 500*time.Millisecond, text("1")
			a.Failures = Failures{[]uuid.UUID{{15: 2}}, []int32{1}, []string{"1"}}
		}},
		"done after a failure": {"a! b", func(p *play, _ *Lease) { p.core.cfg.Concurrency = 2 }, func(a *End) {
			a.LastSeq, a.RetryCount, a.Delayed, a.Delay, a.LastError = 4, 1, true, 500*time.Millisecond, text("1")
			a.AheadSeqs, a.AheadAttempts = []int64{6}, []int32{0}
			a.Failures = Failures{[]uuid.UUID{{15: 1}}, []int32{1}, []string{"1"}}
		}},
		"two failures": {"a! b!", func(p *play, l *Lease) {
			p.core.cfg.Concurrency = 2
			l.Events[1].Attempt = 2
		}, func(a *End) {
			a.LastSeq, a.RetryCount, a.Delayed, a.Delay, a.LastError = 4, 1, true, 500*time.Millisecond, text("1")
			a.AheadSeqs, a.AheadAttempts = []int64{6}, []int32{2}
			a.Failures = Failures{[]uuid.UUID{{15: 1}, {15: 2}}, []int32{1, 2}, []string{"1", "1"}}
		}},
		"dead": {"a# b", nil, func(a *End) {
			a.LastSeq, a.Handled, a.Closes = 8, 2, true
			a.Dead = DeadEvents{[]int64{5}, []string{"a"}, []int32{1}, []string{"2"}}
			a.Failures = Failures{[]uuid.UUID{{15: 1}}, []int32{1}, []string{"2"}}
		}},
		"attempts spent before": {"a", func(_ *play, l *Lease) { l.Events[0].Used = 3; l.Events[0].number(3) }, func(a *End) {
			a.LastSeq, a.Handled, a.Closes = 8, 1, true
			a.Dead = DeadEvents{[]int64{5}, []string{"a"}, []int32{3}, []string{spentText}}
		}},
		"parked": {"a! a b", func(p *play, _ *Lease) { p.core.cfg.ParkKeys = true }, func(a *End) {
			a.LastSeq, a.Handled, a.Closes = 8, 3, true
			a.Parking = ParkingEvents{[]int64{5, 6}, []string{"a", "a"}, []int32{1, 0}, []int64{500_000, -1}, []string{"1", ""}}
			a.Failures = Failures{[]uuid.UUID{{15: 1}}, []int32{1}, []string{"1"}}
			a.Promote, a.Heads = []string{"a"}, []int64{5}
		}},
		"parked, the target is away": {"a? b", func(p *play, _ *Lease) { twoTargets(p, nil); p.target.retryIn = time.Second }, func(a *End) {
			a.LastSeq, a.Handled, a.Closes = 8, 2, true
			a.Parking = ParkingEvents{[]int64{5}, []string{"a"}, []int32{0}, []int64{1_000_000}, []string{"3"}}
			a.Promote, a.Heads = []string{"a"}, []int64{5}
		}},
		"the only target is away": {"a? b", func(p *play, _ *Lease) { p.target.retryIn, p.target.rests = time.Second, true }, func(a *End) {
			a.LastSeq, a.Delayed, a.Delay, a.LastError = 4, true, time.Second, text("3")
		}},
		"the only target is back already": {"a? b", func(p *play, _ *Lease) { p.target.retryIn = time.Second }, func(a *End) {
			a.LastSeq, a.Delayed, a.LastError = 4, true, text("3")
		}},
		"an earlier retry": {"wa wb", func(p *play, l *Lease) {
			p.core.cfg.Concurrency = 2
			l.Events[1].retry.until = p.now.Add(time.Second)
		}, func(a *End) { a.LastSeq, a.Delayed, a.Delay, a.LastError = 4, true, time.Second, text("it failed") }},
		"what was not read this time": {"a! b", func(_ *play, l *Lease) { l.attemptsAhead = map[int64]int32{9: 2, 3: 1, 5: 1} }, func(a *End) {
			a.LastSeq, a.RetryCount, a.Delayed, a.Delay, a.LastError = 4, 1, true, 500*time.Millisecond, text("1")
			a.AheadSeqs, a.AheadAttempts = []int64{9}, []int32{2}
			a.Failures = Failures{[]uuid.UUID{{15: 1}}, []int32{1}, []string{"1"}}
		}},
		"an unknown version": {"a nb", func(_ *play, l *Lease) { l.newer = l.Events[1] }, func(a *End) { a.LastSeq, a.Handled = 5, 1 }},
		"an unknown version, parked": {"a nb", func(_ *play, l *Lease) { l.newer = l.Events[1]; l.newer.Status = Parked }, func(a *End) {
			a.LastSeq, a.Handled = 6, 2
			a.Parking = ParkingEvents{[]int64{6}, []string{"b"}, []int32{0}, []int64{-1}, []string{""}}
			a.Promote = []string{"b"}
		}},
		"earlier batches": {"a", func(p *play, l *Lease) {
			l.earlier, _ = p.entriesOf("x y")
			l.earlier[0].Status, l.earlier[1].Status = Done, Parked
		}, func(a *End) {
			a.LastSeq, a.Handled, a.Closes = 8, 3, true
			a.Parking = ParkingEvents{[]int64{2}, []string{"y"}, []int32{0}, []int64{-1}, []string{""}}
			a.Promote = []string{"y"}
		}},
		"only parked events": {"", func(_ *play, l *Lease) { l.parkedOnly, l.LastSeq, l.RetryCount = true, 4, 2 }, func(a *End) { a.LastSeq, a.RetryCount = 4, 2 }},
		"a target is back":   {"a", func(p *play, _ *Lease) { p.target.back = true }, func(a *End) { a.LastSeq, a.Handled, a.Closes = 8, 1, true }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlay(t, nil)
			entries, results := p.entriesOf(c.keys)
			for i, e := range entries {
				e.Seq = int64(i + 5)
			}
			lease := &Lease{Events: entries, LastSeq: 4, BatchSize: 10, ScanSize: 10, Scanned: 4, ScannedTo: 8, MayPark: true, MayParkAway: true}
			if c.set != nil {
				c.set(p, lease)
			}
			b := newBatch(&p.core.cfg, lease, nil, entries)
			var running []*Entry
			for e := b.Next(p.now); e != nil; e = b.Next(p.now) {
				if running = append(running, e); p.core.cfg.Concurrency == 1 {
					b.Finish(p.now, e, results[e])
				}
			}
			if p.core.cfg.Concurrency > 1 {
				for _, e := range running {
					b.Finish(p.now, e, results[e])
				}
			}
			want := &End{Lease: lease, AheadSeqs: []int64{}, AheadAttempts: []int32{}}
			c.want(want)
			if p.target.back {
				want.Returned = []Target{p.target}
			}
			got := p.core.cfg.End(lease, p.now, false)
			require.Equal(t, want, got)
			got.restoreReturned()
			require.Equal(t, p.target.back, p.target.restored)
		})
	}
}

func text(s string) *string { return &s }

// TestEndOfParkedEvents checks what is written of the parked events of a lease.
func TestEndOfParkedEvents(t *testing.T) {
	t.Parallel()
	p := newPlay(t, nil)
	entries, _ := p.entriesOf("pa pb pc pd pe pf pf")
	for i, e := range entries {
		e.Head, e.Taken, e.Used, e.Attempt = i < 6, 3, 1, 2
	}
	entries[0].Status, entries[1].Status, entries[2].Status = Done, Dead, Retried
	entries[1].Result, entries[2].Result = result(errclass.ClassRefused), result(errclass.ClassFailed)
	entries[3].Newer, entries[3].retry = true, &Retry{until: p.now.Add(time.Second)}
	entries[4].retry = &Retry{until: p.now.Add(time.Minute), text: "away"}
	a := p.core.cfg.End(&Lease{Parked: entries, OneByOne: true, parkedOnly: true}, p.now, false)
	require.Equal(t, &Settle{
		Done: []int64{1}, Dead: []int64{2}, Failed: []int64{3, 4, 5, 6}, DeadAttempts: []int32{2}, DeadErrors: []string{"2"},
		FailedAttempts: []int32{2, 1, 1, 1}, FailedTaken: []int32{0, 3, 0, 0}, FailedDelaysUs: []int64{1_000_000, 1_000_000, 60_000_000, 0},
		FailedErrors: []string{"1", "", "away", ""},
	}, a.Settle)
	require.Equal(t, []string{"a", "b", "c", "d", "e", "f"}, a.Promote)
	require.EqualValues(t, 2, a.Taken)
}

// TestPrepare checks what is known of the events of a lease before a handler is called.
func TestPrepare(t *testing.T) {
	t.Parallel()
	p := newPlay(t, nil)
	lease := &Lease{LastSeq: 4, RetryCount: 2, AheadSeqs: []int64{6, 7, 9}, AheadAttempts: []int32{0, 1, 3}}
	for seq := range int64(6) {
		lease.Events = append(lease.Events, p.event(seq+5))
	}
	lease.Events[0].Of = &Topic{Version: 1, Target: p.target, KeyPrefix: "kafka:orders "}
	lease.Events[5].Version = 2
	lease.Events = append(lease.Events, p.event(11))
	retries := map[int64]Retry{7: {until: p.now.Add(time.Second)}, 8: {until: p.now}}
	lease.Prepare(&p.core.cfg, p.now, retries)
	require.Equal(t, "kafka:orders k5 waiting, k6 done, k7 waiting, k8 waiting, k9 dead, k10 waiting", outcomes(lease.Events))
	require.Equal(t, []int{3, 2, 1}, []int{lease.Events[0].Attempt, lease.Events[2].Attempt, lease.Events[3].Attempt})
	require.NotNil(t, lease.Events[2].retry)
	require.Nil(t, lease.Events[3].retry)
	require.Equal(t, lease.Events[5], lease.newer)
	require.Equal(t, lease.newer, lease.stoppedAt())
	require.False(t, lease.idle())
}

// TestAddParked: the first event of a key is its head, and a one-by-one lease with a parked event handles none of the
// log.
func TestAddParked(t *testing.T) {
	t.Parallel()
	p := newPlay(t, nil)
	parked, _ := p.entriesOf("pa pa pb pc")
	parked[2].Version, parked[3].Version = 2, 2
	lease := &Lease{OneByOne: true, Events: []*Entry{p.event(1)}}
	lease.AddParked(&p.core.cfg, p.now, parked)
	require.Equal(t, []bool{true, false, true, true}, []bool{parked[0].Head, parked[1].Head, parked[2].Head, parked[3].Head})
	require.Equal(t, parked[2], lease.newerParked)
	require.Empty(t, lease.Events)
	require.True(t, lease.parkedOnly)
	require.Nil(t, lease.mustCharge())
	require.True(t, lease.idle())
	parked[0].Started = true
	require.False(t, lease.idle())
	empty := &Lease{OneByOne: true, Events: []*Entry{p.event(1)}}
	empty.AddParked(&p.core.cfg, p.now, nil)
	require.NotNil(t, empty.mustCharge())
	empty.Events[0].retry = &Retry{}
	require.Nil(t, empty.mustCharge())
}

// TestLeftOverParked: a usual lease handles an event that may kill its process alone, if it is told of one whose version it knows.
func TestLeftOverParked(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		due            string
		taken, version []int
		alone          bool
	}{
		"left over":      {"pa", []int{3}, []int{1}, true},
		"not taken":      {"pa", []int{0}, []int{1}, false},
		"newer":          {"pa", []int{3}, []int{2}, false},
		"newer of two":   {"pa pb", []int{3, 0}, []int{2, 1}, false},
		"nothing is due": {"", nil, nil, false},
	} {
		p := newPlay(t, nil)
		parked, _ := p.entriesOf(c.due)
		for i, e := range parked {
			e.Taken, e.Version = int32(c.taken[i]), c.version[i]
		}
		lease := &Lease{Events: []*Entry{p.event(1)}}
		lease.AddParked(&p.core.cfg, p.now, parked)
		require.Equal(t, c.alone, lease.OneByOne, name)
		require.Equal(t, c.alone, lease.parkedOnly, name)
		require.Equal(t, c.alone, len(lease.Events) == 0, name)
	}
}

// TestReadAhead: what follows is read unless the lease could not continue with it.
func TestReadAhead(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		set  func(*Core, *Lease)
		want bool
	}{
		"as usual":                     {func(*Core, *Lease) {}, true},
		"stopping":                     {func(c *Core, _ *Lease) { c.stopping = true }, false},
		"slow":                         {func(c *Core, _ *Lease) { c.slow = true }, false},
		"transactional":                {func(c *Core, _ *Lease) { c.cfg.Transactional = true }, false},
		"the rest of a budget":         {func(c *Core, _ *Lease) { c.budget = &budget{2} }, false},
		"a budget with more":           {func(c *Core, _ *Lease) { c.budget = &budget{3} }, true},
		"one by one":                   {func(_ *Core, l *Lease) { l.OneByOne = true }, false},
		"many positions":               {func(_ *Core, l *Lease) { l.ScanSize = 4 }, false},
		"another number of shards":     {func(_ *Core, l *Lease) { l.Shards = 2 }, false},
		"the end of the window":        {func(_ *Core, l *Lease) { l.Events, l.Scanned = l.Events[:1], 1 }, false},
		"few events":                   {func(_ *Core, l *Lease) { l.Events = l.Events[:1] }, true},
		"parked events":                {func(_ *Core, l *Lease) { l.ParkedDue = true }, false},
		"events tried before":          {func(_ *Core, l *Lease) { l.attemptsAhead = map[int64]int32{9: 1} }, false},
		"an event that is done":        {func(_ *Core, l *Lease) { l.Events[0].Status = Done }, false},
		"an event whose key is parked": {func(_ *Core, l *Lease) { l.Events[0].Status, l.Events[0].ParkedBefore = Parked, true }, true},
		"an event that waits":          {func(_ *Core, l *Lease) { l.Events[0].retry = &Retry{} }, false},
		"a large event":                {func(_ *Core, l *Lease) { l.Events[0].Payload = make([]byte, prefetchBytes+1) }, false},
		"an unknown version":           {func(_ *Core, l *Lease) { l.newer = l.Events[1] }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlay(t, nil)
			p.handling(nil, 1, 2)
			c.set(p.core, p.core.lease)
			require.Equal(t, c.want, p.core.planNextBatch() != nil)
		})
	}
	p := &NextBatch{}
	require.True(t, p.Add(&Entry{Payload: make([]byte, prefetchBytes)}))
	require.False(t, p.Add(&Entry{Payload: make([]byte, 1)}))
}

// TestUsable: a lease continues only if its events are done, or parked for a reason that is not their own.
func TestUsable(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		set  func(*Core, *NextBatch)
		want bool
	}{
		"as usual":          {func(*Core, *NextBatch) {}, true},
		"nothing more":      {func(_ *Core, p *NextBatch) { p.Scanned = 0 }, false},
		"stopping":          {func(c *Core, _ *NextBatch) { c.stopping = true }, false},
		"the lease is lost": {func(c *Core, _ *NextBatch) { c.lost = true }, false},
		"an event failed":   {func(c *Core, _ *NextBatch) { c.lease.Events[0].Status = Retried }, false},
		"an event died":     {func(c *Core, _ *NextBatch) { c.lease.Events[0].Status = Dead }, false},
		"a key was parked":  {func(c *Core, _ *NextBatch) { c.lease.Events[0].Status = Parked }, true},
		"a failure was parked": {func(c *Core, _ *NextBatch) {
			c.lease.Events[0].Status, c.lease.Events[0].Result = Parked, failing(0)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlay(t, nil)
			p.handling(nil, 1, 2)
			ahead := p.prefetched(3, 4).Next
			h := p.handled(nil)
			p.core.handled = &h
			c.set(p.core, ahead)
			require.Equal(t, c.want, p.core.usable(ahead))
		})
	}
}

// TestKeysParkedInTheLease: events that were read before their key was parked are parked too.
func TestKeysParkedInTheLease(t *testing.T) {
	t.Parallel()
	p := newPlay(t, func(c *Config) { c.KeepHeaders = true })
	p.handling(nil, 1, 2)
	p.core.lease.Events[0].Headers = map[string]string{"a": "b"}
	p.core.lease.Events[1].Status = Parked
	in := p.prefetched(3, 4)
	in.Next.Events[1].Key = "k2"
	p.step(p.handled(nil))
	p.step(in)
	require.Equal(t, "k3 waiting, k2 parked", outcomes(p.core.lease.Events))
	require.True(t, p.core.lease.Events[1].ParkedBefore)
	require.NotEmpty(t, p.core.lease.earlier[0].Headers)
}

// TestScanSize: a lease that found few events reads more positions the next time, and fewer when it finds many.
func TestScanSize(t *testing.T) {
	t.Parallel()
	p := newPlay(t, nil)
	p.taking()
	p.step(p.taken(func(l *Lease) { l.Scanned, l.ScannedTo = 8, 100 }, 1))
	p.step(p.prefetched())
	p.step(p.handled(nil))
	require.Equal(t, 4, latest[RoundTrip](p).Take.ScanSize)
	p.step(p.taken(nil, 101, 102))
	p.step(p.handled(nil))
	require.Equal(t, 2, latest[RoundTrip](p).Take.ScanSize)
}

// TestSearch finds the event that breaks its transaction, by halves.
func TestSearch(t *testing.T) {
	t.Parallel()
	p := newPlay(t, nil)
	entries, _ := p.entriesOf("a b c d")
	var s search
	require.Equal(t, entries, s.pick(entries))
	s.onBroken(entries, 0)
	require.Equal(t, entries[:2], s.pick(entries))
	s.onCommitted(entries[:2])
	require.Equal(t, entries[2:3], s.pick(entries))
	s.onCommitted(entries[2:3])
	require.Equal(t, entries[3:], s.pick(entries))
	s.found(entries[3]) // it is tried again, alone
	require.Equal(t, entries[3:], s.pick(entries))
	entries[3].Status = Done
	s.onCommitted(entries[3:])
	entries[3].Status = Waiting
	require.Equal(t, entries, s.pick(entries))

	s.onBroken(entries, 1) // the last of them was running
	require.Equal(t, entries[:3], s.pick(entries))
	entries[0].Status = Done
	require.Equal(t, entries[1:], s.pick(entries))
	entries[0].Status = Waiting

	dead, _ := p.entriesOf("a")
	dead[0].Status = Dead
	s.found(dead[0])
	require.Equal(t, entries, s.pick(entries))

	same, _ := p.entriesOf("a a b")
	s.onBroken(same[1:], 0)
	require.Equal(t, same[2:], s.pick(same), "none is picked past another event of its key")
	s.onBroken(same[1:2], 0)
	require.Equal(t, same, s.pick(same), "none is left, and the search ends")
	s.found(same[1])
	require.Equal(t, same, s.pick(same), "the culprit is not the first of its key")
	for i := range int64(maxCulprits) {
		s.found(&Entry{Seq: i + 10})
	}
	require.LessOrEqual(t, len(s.culprits), maxCulprits)
}

// TestCommittedFailure: an event that has failed may still be the one that breaks its transaction.
func TestCommittedFailure(t *testing.T) {
	t.Parallel()
	p := newPlay(t, nil)
	entries, _ := p.entriesOf("a")
	var s search
	s.found(entries[0])
	entries[0].Status = Retried
	s.onCommitted(entries)
	require.Len(t, s.culprits, 1)
}

// TestBudget: a Drain stops when it has started so many handlers, and what is rolled back does not count.
func TestBudget(t *testing.T) {
	t.Parallel()
	p := newPlay(t, func(c *Config) { c.Drain, c.Events = true, 1 })
	p.handling(nil, 1, 2)
	p.step(p.handled(nil))
	require.Zero(t, p.core.Left())
	require.Equal(t, []string{"roundTrip(end, release)"}, describe(p.now, p.last))
	p.step(RoundTripDone{Ours: true})
	require.Equal(t, Stopped, p.core.State())
	require.Equal(t, 1, p.core.Leases())

	p = newPlay(t, func(c *Config) { c.Transactional, c.Drain, c.Events = true, true, 2 })
	p.handling(nil, 1, 2)
	p.step(Begun{})
	p.step(p.handled(nil))
	require.Zero(t, p.core.Left())
	p.step(CommitFailed{Err: errTest, Alive: true})
	require.Equal(t, 2, p.core.Left())
	require.Zero(t, newPlay(t, nil).core.Left(), "without a limit")
}

// TestRetriesAreRemembered: an event that failed here is not tried before its time, if this process takes the next
// lease too.
func TestRetriesAreRemembered(t *testing.T) {
	t.Parallel()
	p := newPlay(t, func(c *Config) { c.Concurrency = 2 })
	p.handling(nil, 1, 2)
	p.step(p.prefetched())
	p.step(p.handled(func(seq int64) errclass.Result {
		if seq == 1 {
			return failing(1)
		}
		return errclass.Result{}
	}))
	require.Len(t, p.core.retries, 1)
	p.step(p.taken(func(l *Lease) { l.RetryCount = 1 }, 1))
	require.NotNil(t, p.core.lease.Events[0].retry)
	p.wait(time.Second)
	p.core.lease.Events[0].retry = nil
	p.step(p.handled(nil))
	require.Empty(t, p.core.retries)
}

// TestEndedShard: a core that is over tells the new number of shards, and takes no more events.
func TestEndedShard(t *testing.T) {
	t.Parallel()
	p := newPlay(t, nil)
	gone(p)
	p.step(Registered{Shards: 3})
	require.True(t, p.core.Over())
	require.Equal(t, 3, p.core.Shards())
	require.Nil(t, p.core.Step(p.now, Woken{}))
	require.NoError(t, p.core.Err())
}

// TestTurnedAwayTarget: the targets that were available again are told once more when the end of a lease may be lost.
func TestReturnedTargetsAreRestored(t *testing.T) {
	t.Parallel()
	p := newPlay(t, nil)
	p.target.back = true
	p.ending(1)
	p.step(Failed{Err: errTest})
	require.True(t, p.target.restored)
}

// TestReturnedTargetsOfALostLease: its end is not written, so the end of another lease is to tell of them.
func TestReturnedTargetsOfALostLease(t *testing.T) {
	t.Parallel()
	for _, running := range []bool{false, true} {
		p := newPlay(t, nil)
		p.target.back = true
		unmoved(p)
		require.False(t, p.target.restored, "it is not known yet")
		p.step(LeaseState{Known: true, ID: p.core.end.Lease.ID, Running: running})
		require.Equal(t, running, p.target.restored)
	}
}

func TestRetry(t *testing.T) {
	t.Parallel()
	var none *Retry
	require.Zero(t, none.remaining(start))
	require.Empty(t, none.why())
	require.Equal(t, start, later(start, start.Add(-1)))
	require.Equal(t, start, later(start.Add(-1), start))
}
