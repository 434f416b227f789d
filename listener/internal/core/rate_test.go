package core

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
)

// What the rate does not allow is left as it was, and nothing more of the batch is started.
func TestLimit(t *testing.T) {
	t.Parallel()
	p := newPlay(t, func(c *Config) { c.Concurrency = 2 })
	entries, _ := p.entriesOf("a a b")
	b := p.batchOf(entries)
	b.budget = &budget{9}
	b.Limit(b.Next(p.now), p.now.Add(time.Second))
	require.Nil(t, b.Next(p.now))
	require.Equal(t, "a waiting, a waiting, b waiting", outcomes(entries))
	require.False(t, entries[0].Started || entries[0].Running || b.stateOf("a").busy)
	require.Equal(t, 9, b.budget.left)
	require.Equal(t, p.now.Add(time.Second), b.resumes)
	require.Equal(t, 1, p.target.untried, "if it was to find out whether the target is available, another event may do that")
}

// A call may be stopped by the rate in the middle of a search, and so may what is sent.
func TestLimitOfCalls(t *testing.T) {
	t.Parallel()
	p := newPlay(t, nil)
	perCall(9)(p, nil)
	entries, _ := p.entriesOf("a b")
	b := p.batchOf(entries)
	c := b.NextCall(p.now)
	bad := result(errclass.ClassFailed)
	require.True(t, c.Finish(p.now, []errclass.Result{bad, bad}, true))
	c.Limit(p.now)
	require.Nil(t, b.NextCall(p.now))
	require.False(t, entries[0].Started)

	entries, _ = p.entriesOf("a b")
	b = p.batchOf(entries)
	s := b.Sendings(errclass.Result{})[0]
	require.Len(t, s.queue, 2)
	b.StopUntil(p.now)
	require.Empty(t, s.Next(p.now, 9))
}

// What the rate does not allow of a call of a publisher comes in the next one, and no call is under way while it is asked.
func TestLimitOfACallOfAPublisher(t *testing.T) {
	t.Parallel()
	p := newPlay(t, nil)
	twoTargets(p, nil)
	entries, _ := p.entriesOf("a b a")
	b := p.batchOf(entries)
	b.budget = &budget{9}
	s := b.Sendings(errclass.Result{})[0]
	ready, _ := s.Encoded(p.now, s.Next(p.now, 3), make([]errclass.Result, 3))
	require.False(t, s.Stalled(p.now.Add(time.Hour), time.Second))
	s.Begin(p.now, ready, 1)
	require.Equal(t, 8, b.budget.left)
	require.True(t, s.Stalled(p.now.Add(time.Hour), time.Second))
	require.True(t, entries[0].Running)
	require.False(t, entries[1].Started || entries[1].Running)
	s.Sent(p.now, ready[:1], make([]errclass.Result, 1))
	require.Equal(t, entries[1:], s.Next(p.now, 9))
	s.Begin(p.now, entries[1:], 0)
	b.StopUntil(p.now.Add(time.Second))
	require.Empty(t, s.Next(p.now, 9))
	require.Equal(t, "a done, b waiting, a waiting", outcomes(entries))
	require.Equal(t, 8, b.budget.left)
}

// A lease in which the rate allowed nothing does not count, so that a Drain ends.
func TestLeaseOfAUsedUpRate(t *testing.T) {
	t.Parallel()
	p := newPlay(t, drains)
	rateUsed(p)
	require.Zero(t, p.core.Leases())
	p = newPlay(t, drains)
	p.rated()
	p.step(p.notAllowed())
	require.Equal(t, 1, p.core.Leases())
}
