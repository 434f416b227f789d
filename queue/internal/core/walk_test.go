package core

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/postgres/topiclane"
)

var tenLanes = []int32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}

// TestTrail: it is a second, and shorter when a second has many events.
func TestTrail(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var w Walk
	w.count(0, now)
	require.Equal(t, longestTrail, w.trail)
	step := func(n int) time.Duration {
		now = now.Add(longestTrail/4 + 1)
		w.count(n, now)
		return w.trail
	}
	require.Equal(t, longestTrail, step(0))
	require.Equal(t, longestTrail, step(100))
	require.InDelta(t, 100*time.Millisecond, step(2500), float64(time.Millisecond))
	require.Equal(t, shortestTrail, step(1_000_000))
	require.Equal(t, longestTrail, step(1))
}

// TestPiecesAreAsLongAsClaimsAreFast: they grow while claims that walk a whole piece are fast, and shrink when one is
// slow, within bounds. A claim that fails makes them shorter still, for a while.
func TestPiecesAreAsLongAsClaimsAreFast(t *testing.T) {
	t.Parallel()
	w := NewWalk(tenLanes)
	step := func(took time.Duration) int {
		q := &Claim{Size: 10, Starts: w.Pieces(10, false)}
		w.Advance(time.Now(), q, &Found{Took: took, At: time.Now(), Ends: map[int32]Place{5: {time.Now(), uuid.New()}}})
		return w.piece
	}
	require.Equal(t, 4*FirstPiece, step(fastClaim/2))
	require.Equal(t, 16*FirstPiece, step(fastClaim/2))
	require.Equal(t, 16*FirstPiece, step((fastClaim+slowClaim)/2))
	require.Equal(t, largestPiece, step(fastClaim/2))
	require.Equal(t, largestPiece, step(fastClaim/2))
	require.Equal(t, largestPiece/2, step(2*slowClaim))
	for range 20 {
		step(2 * slowClaim)
	}
	require.Equal(t, FirstPiece, w.piece, "the machine is busy: less would be as slow")
	w.Failed()
	require.Equal(t, smallestPiece, w.piece)
	require.Equal(t, 2*smallestPiece, step(2*slowClaim))
	for range 20 {
		step(2 * slowClaim)
	}
	require.Equal(t, FirstPiece, w.piece)
}

// TestOnwardSharesTheBatch: lanes that are known to have more share the batch and come last, each of the others may
// fill it, and they are left out for a moment at most.
func TestOnwardSharesTheBatch(t *testing.T) {
	t.Parallel()
	now := time.Now()
	w := NewWalk(tenLanes)
	for i := range w.stages {
		w.stages[i].seen = true
	}
	all := w.onward(100, now)
	require.Len(t, all, len(tenLanes))
	for _, s := range all {
		require.Equal(t, 100, s.Quota)
		require.Zero(t, s.Piece)
	}
	w.stages[3], w.stages[7], w.stages[9] = stage{dense: true}, stage{dense: true}, stage{dense: true}
	few := w.onward(100, now)
	require.Len(t, few, 3)
	for _, s := range few {
		require.Contains(t, []int32{3, 7, 9}, s.Lane)
		require.Equal(t, 34, s.Quota)
	}
	first := few[0].Lane
	require.NotEqual(t, first, func() int32 {
		for range tenLanes {
			if s := w.onward(100, now); s[0].Lane != first {
				return s[0].Lane
			}
		}
		return first
	}(), "they take turns in being the first")
	all = w.onward(100, now.Add(othersEvery))
	require.Len(t, all, len(tenLanes))
	for i, s := range all {
		require.Equal(t, i >= len(tenLanes)-3, w.at(s.Lane).dense)
	}
	w.Failed()
	for _, s := range w.onward(100, now) {
		require.Equal(t, max(smallestPiece, 200), s.Piece, "after a failure it walks in short pieces")
	}
}

// TestLanesThatAreKnownToHaveMoreComeLast: a claim in pieces does not come to all lanes if many have a backlog.
func TestLanesThatAreKnownToHaveMoreComeLast(t *testing.T) {
	t.Parallel()
	w := NewWalk(tenLanes)
	for i := range 6 {
		w.stages[i].dense = true
	}
	w.stages[9].seen = true
	lanes := func(unseenOnly bool) (lanes []int32) {
		for _, s := range w.Pieces(10, unseenOnly) {
			lanes = append(lanes, s.Lane)
		}
		return lanes
	}
	require.Equal(t, []int32{6, 7, 8, 9, 0, 1, 2, 3, 4, 5}, lanes(false))
	require.Equal(t, []int32{6, 7, 8, 1, 2, 3, 4, 5, 0}, lanes(true), "they take turns")
}

// TestLanesOfTopics: a claim of topics walks their lanes, and that of rows without a lane.
func TestLanesOfTopics(t *testing.T) {
	t.Parallel()
	lanes := LanesOf([]string{"b", "a", "b"})
	require.Len(t, lanes, 3)
	require.IsIncreasing(t, lanes)
	require.Subset(t, lanes, []int32{0, topiclane.Of("a"), topiclane.Of("b")})
	require.Equal(t, []int32{0}, LanesOf(nil))
	for _, lane := range TurnLanesOf([]string{"a", "b"}) {
		require.NotContains(t, lanes, lane)
	}
}

// TestWalkCoversOtherLanes: it stays where it is in those that it has walked, and begins at the head of the others.
func TestWalkCoversOtherLanes(t *testing.T) {
	t.Parallel()
	w := NewWalk([]int32{1, 2})
	w.at(2).seen = true
	w.Cover([]int32{2, 3})
	require.True(t, w.at(2).seen)
	require.False(t, w.at(3).seen)
	require.Nil(t, w.at(1))
	require.True(t, w.More())
}

// TestReleasedEventsAreLookedFor: the main walk may have passed them.
func TestReleasedEventsAreLookedFor(t *testing.T) {
	t.Parallel()
	d := drive(t)
	d.asleep()
	d.step(0, Woken{})
	tasks := d.tasks("sent", 1)
	d.claimed(the[*Pass](d), tasks...)
	s := the[*Send](d)
	d.asleepFrom()
	require.False(t, d.looks.wanted)
	d.sentAll(s, errclass.ClassNotSent)
	d.claimed(the[*Pass](d))
	require.True(t, d.looks.wanted)
}

// TestWalkGoesBack: to the lanes of topics that claims have left out, and to the head of all lanes when a pause has
// ended.
func TestWalkGoesBack(t *testing.T) {
	t.Parallel()
	gone := func(w *Walk) (n int) {
		for i := range w.stages {
			if w.stages[i] == (stage{}) {
				n++
			}
		}
		return n
	}
	for topic, want := range map[string]int{"handled": 1, "sent": 2} {
		d := drive(t)
		d.asleep()
		require.Zero(t, gone(&d.claims.walk))
		to := map[string]*Target{"handled": d.handled, "sent": d.sent}[topic]
		d.rests(to)
		d.step(0, Woken{})
		d.claimed(the[*Pass](d))
		d.now = d.now.Add(time.Millisecond)
		to.Rest.OnResults(d.now, d.now, ids(d.tasks("", 1)...), make([]errclass.Result, 1))
		d.step(0, Woken{})
		require.Equal(t, want, gone(&d.claims.walk), topic)
	}
	d := drive(t, func(c *Config) { c.Pauses = PausesOf(false, []string{tenant.String()}) })
	d.asleep()
	require.Zero(t, gone(&d.claims.walk))
	d.claims.tries[d.sent] = &trial{}
	d.step(0, &PausesRead{Pauses: NoPauses})
	if len(all[*Pass](d)) == 0 {
		d.step(time.Second, Tick{})
	}
	require.Equal(t, 5, gone(&d.claims.walk))
	require.Empty(t, d.claims.tries)
}

// TestLookAfterAnEmptyClaim: a look that falls due right after a claim that found nothing waits for the pause, too.
func TestLookAfterAnEmptyClaim(t *testing.T) {
	t.Parallel()
	d := drive(t)
	p := d.first()
	const took = time.Second
	for range 2 {
		d.requestLook()
		d.step(took, &PassDone{Pass: p, Found: Found{At: d.now}})
		for len(all[*Pass](d)) == 0 {
			d.step(time.Second, Tick{})
		}
		p = the[*Pass](d)
	}
	d.requestLook()
	d.step(took, &PassDone{Pass: p, Found: Found{At: d.now}})
	require.True(t, d.looks.wanted)
	require.False(t, d.looks.due(d.now.Add(3*took)))
	require.True(t, d.looks.due(d.now.Add(6*took)))
}

// TestPollDuringAClaim: a poll that falls due during a claim, because the claim takes longer than its pause, causes a look after
// the next pause, and no claim without a pause.
func TestPollDuringAClaim(t *testing.T) {
	t.Parallel()
	d := drive(t)
	p := d.first()
	const took = 20 * time.Second
	for range 2 {
		d.step(took, &PassDone{Pass: p, Found: Found{At: d.now}})
		for len(all[*Pass](d)) == 0 {
			d.step(time.Second, Tick{})
		}
		p = the[*Pass](d)
	}
	d.step(took, &PassDone{Pass: p, Found: Found{At: d.now}})
	none[*Pass](d)
	d.step(time.Second, Woken{})
	p = the[*Pass](d)
	require.False(t, p.look)
	d.step(d.sleeper.PollAt().Sub(d.now), Tick{})
	none[*Pass](d)
	d.step(time.Second, &PassDone{Pass: p, Found: Found{At: d.now}})
	none[*Pass](d)
	for len(all[*Pass](d)) == 0 {
		d.step(time.Second, Tick{})
	}
	require.True(t, the[*Pass](d).look)
}
