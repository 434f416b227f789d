package core

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
)

// callAll makes the calls of a batch, each of which fails as a whole if one of its events fails, and lists their keys.
func (p *play) callAll(b *Batch, results map[*Entry]errclass.Result) (calls []string) {
	for c := b.NextCall(p.now); c != nil; c = b.NextCall(p.now) {
		for more := true; more; {
			var keys []string
			got := make([]errclass.Result, len(c.Entries()))
			whole := false
			for i, e := range c.Entries() {
				require.True(p.t, e.Running && e.Started)
				keys = append(keys, e.Key)
				if r := results[e]; r.Class != errclass.ClassDone {
					whole = true
					got[0], got[i] = r, r
				}
			}
			for i := range got {
				got[i] = got[0]
			}
			calls = append(calls, strings.Join(keys, " "))
			more = c.Finish(p.now, got, whole)
		}
	}
	return calls
}

func perCall(n int) func(*play, *Batch) { return func(p *play, _ *Batch) { p.core.cfg.Batch = n } }

func both(sets ...func(*play, *Batch)) func(*play, *Batch) {
	return func(p *play, b *Batch) {
		for _, set := range sets {
			set(p, b)
		}
	}
}

// Calls of a handler of batches; see batchCase. It fails as a whole.
func TestCalls(t *testing.T) {
	t.Parallel()
	used := func(n int) func(*play, *Batch) { return func(_ *play, b *Batch) { b.entries[n].Used = 1 } }
	last := func(_ *play, b *Batch) { b.entries[3].Attempt = 3 }
	waits := func(_ *play, b *Batch) { b.waits = true }
	for name, c := range map[string]batchCase{
		"all at once":                   {"a b a", perCall(9), "a b a", "a done, b done, a done"},
		"up to a size":                  {"a b a", perCall(2), "a b, a", "a done, b done, a done"},
		"a topic that is not read":      {"ua a", perCall(9), "a, a", "a done, a done"},
		"another topic":                 {"a ub", perCall(9), "a, b", "a done, b done"},
		"what was done before":          {"a db c", perCall(9), "a c", "a done, b done, c done"},
		"parked ones apart":             {"pa b", perCall(9), "a, b", "a done, b done"},
		"what has failed before apart":  {"a b c", both(perCall(9), used(1)), "a, b, c", "a done, b done, c done"},
		"a retry is not due":            {"a wb c", perCall(9), "a", "a done, b waiting, c waiting"},
		"a search":                      {"a b c! d e", both(perCall(9), parking), "a b c d e, a b, c, d e", "a done, b done, c parked, d done, e done"},
		"a search, to the left":         {"a! b c d", both(perCall(9), parking), "a b c d, a b, a, b c d", "a parked, b done, c done, d done"},
		"behind the one that fails":     {"a! a b", both(perCall(9), parking), "a a b, a, b", "a parked, a parked, b done"},
		"the one that fails blocks":     {"a b! c d", perCall(9), "a b c d, a b, a, b", "a done, b retried, c waiting, d waiting"},
		"refused":                       {"a b# c", perCall(9), "a b c, a, b, c", "a done, b dead, c done"},
		"all are tried again later":     {"a b/ c", both(perCall(9), parking), "a b c", "a parked, b parked, c parked"},
		"unavailable":                   {"a b? c", both(perCall(9), twoTargets), "a b c", "a parked, b parked, c parked"},
		"too many fail":                 {"a! b! c! d! e!", both(perCall(9), parking), "a b c d e, a b, a, b c d e, b c, b, c d e, c, d e", "a parked, b parked, c parked, d parked, e parked"},
		"too many fail, a last attempt": {"a! b! c! d e", both(perCall(9), parking, last), "a b c d e, a b, a, b c d e, b c, b, c d e, c, d e", "a parked, b parked, c parked, d done, e done"},
		"all fail, a last attempt":      {"a! b! c! d! e!", both(perCall(9), parking, last), "a b c d e, a b, a, b c d e, b c, b, c d e, c, d e, d, e", "a parked, b parked, c parked, d dead, e parked"},
		"a budget":                      {"a b c", both(perCall(9), func(_ *play, b *Batch) { b.budget = &budget{2} }), "a b", "a done, b done, c waiting"},
		"a rest waits for more":         {"a b c", both(perCall(2), waits), "a b", "a done, b done, c waiting"},
		"the first one does not wait":   {"a", both(perCall(2), waits), "a", "a done"},
		"what has failed does not wait": {"a b c", both(perCall(2), waits, used(2)), "a b, c", "a done, b done, c done"},
		"the target rests":              {"a b", both(perCall(2), func(p *play, _ *Batch) { p.target.rests = true }), "a, b", "a done, b done"},
		"refused, with a delay":         {"a% b%", perCall(9), "a b, a, b", "a dead, b dead"},
		"a failure before the others":   {"a! b c", perCall(1), "a", "a retried, b waiting, c waiting"},
		"several workers":               {"a! b c", both(perCall(1), severalWorkers), "a, b, c", "a retried, b done, c done"},
		"a parked failure":              {"pa! b", perCall(9), "a, b", "a retried, b done"},
		"not sent":                      {"a- b", perCall(1), "a", "a waiting, b waiting"},
		"done, and of another topic":    {"a udb c", perCall(9), "a c", "a done, b done, c done"},
		"a full rest does not wait":     {"a b c d", both(perCall(2), waits), "a b, c d", "a done, b done, c done, d done"},
		"what is cut off does not wait": {"a b c d", both(perCall(2), waits, used(3)), "a b, c, d", "a done, b done, c done, d done"},
		"after a parked one":            {"pa b", both(perCall(2), waits), "a, b", "a done, b done"},
		"a parked rest does not wait":   {"a b pc", both(perCall(2), waits), "a b, c", "a done, b done, c done"},
		"many fail, a last attempt":     {"a! b! c! d e f g!", both(perCall(9), parking, last), "a b c d e f g, a b c, a, b c d e f g, b c d, b, c d e f g, c d, c, d e f g, d, e f g, e, f, g", "a parked, b parked, c parked, d done, e done, f done, g parked"},
		"stopping":                      {"a", both(perCall(2), func(_ *play, b *Batch) { b.Stopping = true }), "", "a waiting"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlay(t, nil)
			entries, results := p.entriesOf(c.keys)
			b := p.batchOf(entries)
			c.set(p, b)
			left := 0
			if b.budget != nil {
				left = b.budget.left
			}
			require.Equal(t, c.started, strings.Join(p.callAll(b, results), ", "))
			require.Equal(t, c.want, outcomes(entries))
			for _, e := range entries {
				require.False(t, e.Running)
				require.False(t, e.Started && e.Status == Waiting && e.retry == nil)
			}
			if b.budget != nil {
				require.Equal(t, left-2, b.budget.left)
			}
			require.Equal(t, name == "a rest waits for more", b.held)
		})
	}
}

// One poison among 500 is found in few calls, wherever it is.
func TestCallsOfASearch(t *testing.T) {
	t.Parallel()
	for at := range 500 {
		p := newPlay(t, nil)
		both(perCall(500), parking)(p, nil)
		entries := make([]*Entry, 500)
		for i := range entries {
			entries[i] = p.event(int64(i + 1))
			entries[i].number(3)
		}
		calls := p.callAll(p.batchOf(entries), map[*Entry]errclass.Result{entries[at]: result(errclass.ClassFailed)})
		require.LessOrEqual(t, len(calls), 12)
		for i, e := range entries {
			require.Equal(t, i != at, e.Status == Done)
		}
	}
}

// An event that fails by its name stops its key, and what was not named is done. A search ends then.
func TestCallThatNames(t *testing.T) {
	t.Parallel()
	p := newPlay(t, nil)
	both(perCall(9), parking)(p, nil)
	entries, _ := p.entriesOf("a b a c")
	b := p.batchOf(entries)
	c := b.NextCall(p.now)
	bad := result(errclass.ClassFailed)
	require.True(t, c.Finish(p.now, []errclass.Result{bad, bad, bad, bad}, true))
	require.Equal(t, entries[:2], c.Entries())
	require.False(t, c.Finish(p.now, []errclass.Result{bad, {}}, false))
	c = b.NextCall(p.now)
	require.Equal(t, entries[3:], c.Entries())
	require.Equal(t, "a parked, b done, a parked, c waiting", outcomes(entries))
}

// A call may be cut. The rest is in the next one.
func TestCallThatIsCut(t *testing.T) {
	t.Parallel()
	p := newPlay(t, nil)
	perCall(9)(p, nil)
	entries, _ := p.entriesOf("a b c")
	b := p.batchOf(entries)
	c := b.NextCall(p.now)
	c.Cut(1)
	require.Equal(t, entries[:1], c.Entries())
	require.False(t, entries[1].Running)
	require.False(t, c.Finish(p.now, make([]errclass.Result, 1), false))
	require.Equal(t, entries[1:], b.NextCall(p.now).Entries())
}

// With several workers, a key is in one call at a time, and what came meanwhile follows in order.
func TestCallsOfSeveralWorkers(t *testing.T) {
	t.Parallel()
	p := newPlay(t, func(c *Config) { c.Concurrency, c.Batch = 3, 2 })
	entries, _ := p.entriesOf("a a a b a")
	b := p.batchOf(entries)
	first, second := b.NextCall(p.now), b.NextCall(p.now)
	require.Equal(t, entries[:2], first.Entries())
	require.Equal(t, entries[3:4], second.Entries())
	require.Nil(t, b.NextCall(p.now))
	bad := result(errclass.ClassFailed)
	require.True(t, first.Finish(p.now, []errclass.Result{bad, bad}, true))
	require.Equal(t, entries[:1], first.Entries())
	require.Nil(t, b.NextCall(p.now))
	require.True(t, first.Finish(p.now, make([]errclass.Result, 1), false))
	require.False(t, first.Finish(p.now, make([]errclass.Result, 1), false))
	third := b.NextCall(p.now)
	require.Equal(t, []*Entry{entries[2], entries[4]}, third.Entries())
	require.False(t, third.Finish(p.now, make([]errclass.Result, 2), false))
	require.False(t, second.Finish(p.now, make([]errclass.Result, 1), false))
}

// What a handler returns after the end of its batch counts only as far as it is certain, and no search goes on.
func TestCallThatIsOver(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		over func(*Batch)
		want string // of two events, the first of which is named, and of two that have failed as a whole
	}{
		"lease lost":  {(*Batch).LoseLease, "a waiting, b done, a waiting, b waiting"},
		"transaction": {(*Batch).BreakTx, "a waiting, b waiting, a waiting, b waiting"},
		"abandoned":   {(*Batch).Abandon, "a waiting, b waiting, a waiting, b waiting"},
		"stopping":    {func(b *Batch) { b.Stopping = true }, "a retried, b done, a waiting, b waiting"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			bad := result(errclass.ClassFailed)
			for _, whole := range []bool{false, true} {
				p := newPlay(t, nil)
				perCall(9)(p, nil)
				entries, _ := p.entriesOf("a b")
				b := p.batchOf(entries)
				call := b.NextCall(p.now)
				c.over(b)
				results := []errclass.Result{bad, {}}
				if whole {
					results[1] = bad
				}
				require.False(t, call.Finish(p.now, results, whole))
				got = append(got, outcomes(entries))
			}
			require.Equal(t, c.want, strings.Join(got, ", "))
		})
	}
}

// After a crash the next leases try as many events together, until the one that has killed processes is over.
func TestTrying(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		trying int
		set    func(*Entry)
		tried  bool
		want   int32
	}{
		"no crash":                         {0, func(*Entry) {}, false, 0},
		"all are done":                     {4, func(e *Entry) { e.Status = Done }, true, 8},
		"one is dead":                      {4, func(e *Entry) { e.Status = Dead }, true, 0},
		"one is done that has killed some": {1, func(e *Entry) { e.Status, e.Used = Done, 1 }, true, 0},
		"one fails again":                  {1, func(e *Entry) { e.Status, e.Used = Retried, 1 }, true, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlay(t, nil)
			e := p.event(1)
			c.set(e)
			a := p.core.cfg.End(&Lease{Events: []*Entry{e}, trying: c.trying, BatchSize: 1}, p.now, false)
			require.Equal(t, c.tried, a.Tried)
			require.Equal(t, c.want, a.Trying)
		})
	}
}

// What is left of a window goes to the next one if it waits for more events.
func TestWindowIsCut(t *testing.T) {
	t.Parallel()
	p := newPlay(t, func(c *Config) { fills(c); c.Batch = 2; c.BatchSize = 3 })
	p.taking()
	p.step(Filled{Events: 2})
	p.step(p.taken(nil, 1, 2, 3))
	b := p.core.batch
	p.callAll(b, nil)
	p.step(Handled{Batch: b})
	a := latest[RoundTrip](p).End
	require.True(t, a.Cuts)
	require.Equal(t, int64(2), a.LastSeq)
}

// What comes between a look that finds nothing and the lease waits for more events too.
func TestWhatComesAfterALookWaits(t *testing.T) {
	t.Parallel()
	p := newPlay(t, func(c *Config) { fills(c); c.Batch = 2; c.BatchSize = 3 })
	p.taking()
	p.step(Filled{})
	p.step(p.taken(nil, 1))
	b := p.core.batch
	require.Nil(t, b.NextCall(p.now))
	p.step(Handled{Batch: b})
	a := latest[RoundTrip](p).End
	require.True(t, a.Cuts)
	require.Zero(t, a.LastSeq)
	p.step(RoundTripDone{Ours: true})
	p.step(Filled{Events: 1, Age: time.Minute}) // it has waited for long enough
	p.step(p.taken(nil, 1))
	require.NotNil(t, p.core.batch.NextCall(p.now))

	p = newPlay(t, func(c *Config) { fills(c); c.Batch = 2; c.BatchSize = 3 })
	p.taking()
	p.step(Filled{Events: 1, Age: time.Minute}) // likewise, and no lease has held anything back before
	p.step(p.taken(nil, 1))
	require.NotNil(t, p.core.batch.NextCall(p.now))
}
