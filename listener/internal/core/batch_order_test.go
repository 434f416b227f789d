package core

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
)

// TestTargetsOfOneWorker: one worker keeps the order of the log also between targets, several workers do not.
func TestTargetsOfOneWorker(t *testing.T) {
	t.Parallel()
	for workers, want := range map[int]string{1: "a waiting, b waiting", 2: "a waiting, b done"} {
		p := newPlay(t, func(c *Config) { c.Concurrency = workers })
		entries, _ := p.entriesOf("a b")
		entries[1].Of = &Topic{Version: 1, Target: &toyTarget{admits: 9}}
		p.target.admits = 0
		b := p.batchOf(entries)
		if e := b.Next(p.now); e != nil {
			b.Finish(p.now, e, errclass.Result{})
		}
		require.Equal(t, want, outcomes(entries))
	}
}

// TestNamedFailureBlocks: after a call of which one event has failed by its name, no other begins with one worker.
func TestNamedFailureBlocks(t *testing.T) {
	t.Parallel()
	p := newPlay(t, nil)
	perCall(2)(p, nil)
	entries, _ := p.entriesOf("a b c")
	b := p.batchOf(entries)
	require.False(t, b.NextCall(p.now).Finish(p.now, []errclass.Result{result(errclass.ClassFailed), {}}, false))
	require.Nil(t, b.NextCall(p.now))
	require.Equal(t, "a retried, b done, c waiting", outcomes(entries))
}

// TestRestIsHeldBackAfterAnyFreshCall: also if a call with events that have failed before was in between.
func TestRestIsHeldBackAfterAnyFreshCall(t *testing.T) {
	t.Parallel()
	p := newPlay(t, nil)
	perCall(2)(p, nil)
	entries, _ := p.entriesOf("a b c d")
	entries[2].Used = 1
	b := p.batchOf(entries)
	b.waits = true
	require.Equal(t, []string{"a b", "c"}, p.callAll(b, nil))
	require.True(t, b.held)
}

// TestBrokenTransactionOfACall: its events were tried, because one of them has broken it.
func TestBrokenTransactionOfACall(t *testing.T) {
	t.Parallel()
	p := newPlay(t, nil)
	perCall(9)(p, nil)
	entries, _ := p.entriesOf("a b")
	b := p.batchOf(entries)
	c := b.NextCall(p.now)
	b.BreakTx()
	bad := result(errclass.ClassFailed)
	require.False(t, c.Finish(p.now, []errclass.Result{bad, bad}, true))
	require.Len(t, b.Lease.resetStarted(), 2)
}

// TestSearchEndsWithTheLease: what is left to suspect is not called any more.
func TestSearchEndsWithTheLease(t *testing.T) {
	t.Parallel()
	p := newPlay(t, nil)
	perCall(9)(p, nil)
	entries, _ := p.entriesOf("a b c d")
	b := p.batchOf(entries)
	c := b.NextCall(p.now)
	bad := result(errclass.ClassFailed)
	require.True(t, c.Finish(p.now, []errclass.Result{bad, bad, bad, bad}, true))
	b.LoseLease()
	require.False(t, c.Finish(p.now, make([]errclass.Result, 2), false))
	require.Equal(t, "a done, b done, c waiting, d waiting", outcomes(entries))
}

// TestFruitlessCalls: only the failure of an event that is alone says that the cause is hardly in the events.
func TestFruitlessCalls(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		classes []errclass.Class
		want    int
	}{
		"alone":              {[]errclass.Class{errclass.ClassFailed}, 1},
		"refused":            {[]errclass.Class{errclass.ClassRefused}, 1},
		"with others":        {[]errclass.Class{errclass.ClassFailed, errclass.ClassFailed}, 0},
		"of its target":      {[]errclass.Class{errclass.ClassUnavailable}, 0},
		"not sent":           {[]errclass.Class{errclass.ClassNotSent}, 0},
		"done":               {[]errclass.Class{errclass.ClassDone}, 0},
		"done, and with one": {[]errclass.Class{errclass.ClassFailed, errclass.ClassDone}, 0},
	} {
		p := newPlay(t, nil)
		perCall(9)(p, nil)
		entries, _ := p.entriesOf("a b")
		b := p.batchOf(entries[:len(c.classes)])
		call := b.NextCall(p.now)
		var results []errclass.Result
		for _, class := range c.classes {
			results = append(results, result(class))
		}
		call.Finish(p.now, results, false)
		require.Equal(t, c.want, b.fruitless, name)
	}
}

// TestFirstOfACallTriesItsTarget: of the events of a call that find their target unavailable, the first one is tried again
// when the target is, and the others after it.
func TestFirstOfACallTriesItsTarget(t *testing.T) {
	t.Parallel()
	away := result(errclass.ClassUnavailable)
	for name, finish := range map[string]func(p *play, b *Batch, results []errclass.Result){
		"calls": func(p *play, b *Batch, results []errclass.Result) { b.NextCall(p.now).Finish(p.now, results, false) },
		"sending": func(p *play, b *Batch, results []errclass.Result) {
			s := b.Sendings(errclass.Result{})[0]
			s.Sent(p.now, s.Next(p.now, 9), results)
		},
	} {
		p := newPlay(t, nil)
		both(perCall(9), twoTargets)(p, nil)
		p.target.retryIn, p.target.laterDelay = time.Second, time.Minute
		entries, _ := p.entriesOf("a b c d")
		finish(p, p.batchOf(entries), []errclass.Result{away, away, {}, away})
		require.Equal(t, "a parked, b parked, c done, d parked", outcomes(entries), name)
		for i, want := range map[int]time.Duration{0: time.Second, 1: time.Minute, 3: time.Minute} {
			require.Equal(t, want, entries[i].retry.remaining(p.now), "%s: %d", name, i)
		}
	}
}

// TestNotSent: an event that was not sent because of an earlier one waits for that one only, and a parked one stays parked.
func TestNotSent(t *testing.T) {
	t.Parallel()
	p := newPlay(t, nil)
	entries, _ := p.entriesOf("a pb")
	b := p.batchOf(entries)
	behind := result(errclass.ClassNotSent)
	behind.Behind = true
	b.settle(p.now, entries[0], behind, true)
	require.Nil(t, entries[0].retry)
	b.stateOf("b").parked = true
	b.settle(p.now, entries[1], result(errclass.ClassNotSent), true)
	require.Equal(t, "a waiting, b waiting", outcomes(entries))
}

// TestSendingThatIsOver: after the lease is lost, nothing more is sent, and no call is left behind.
func TestSendingThatIsOver(t *testing.T) {
	t.Parallel()
	p := newPlay(t, nil)
	twoTargets(p, nil)
	entries, _ := p.entriesOf("a b")
	b := p.batchOf(entries)
	s := b.Sendings(errclass.Result{})[0]
	sendAll(s, p.now, s.Next(p.now, 1))
	require.True(t, s.Stalled(p.now.Add(time.Hour), time.Second))
	b.LoseLease()
	require.False(t, s.Stalled(p.now.Add(time.Hour), time.Second))
	require.Empty(t, s.Next(p.now, 1))
}

// TestWhatIsLeftBehindWithACall: the events of the call, whatever their keys, and those behind them that may be sent. What is
// over stays so, and what is behind another event of its key waits for that.
func TestWhatIsLeftBehindWithACall(t *testing.T) {
	t.Parallel()
	p := newPlay(t, nil)
	twoTargets(p, nil)
	entries, _ := p.entriesOf("pa pa b a b c dd")
	b := p.batchOf(entries)
	s := b.Sendings(errclass.Result{})[0]
	sendAll(s, p.now, s.Next(p.now, 3))
	s.queue = append(s.queue, entries[6])
	s.LeaveBehind(p.now)
	var away []bool
	for _, e := range entries {
		away = append(away, e.Away)
	}
	require.Equal(t, []bool{true, true, true, false, false, true, false}, away)
	require.Equal(t, "a waiting, a waiting, b parked, a waiting, b parked, c parked, d done", outcomes(entries))
}
