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
	require.Equal(t, 2, s.Len())
	b.StopUntil(p.now)
	require.Empty(t, s.Next(p.now, 9))
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
