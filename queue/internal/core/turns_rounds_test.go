package core

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// seenTurns are turns of two lanes whose first round is over.
func seenTurns() *turns {
	w := turned()
	w.answered(start, w.request(start, 100, workers{}, true, everywhere), nil)
	return w
}

// hops answers the claim q: its round has come to a turn in both lanes, or to the end if that is "".
func (t *turns) hops(now time.Time, q *TurnClaim, to string, found ...Turn) {
	f := &Found{At: now, Took: time.Microsecond, TurnsFound: TurnsFound{Hops: map[int32]string{7: to, 8: to}}}
	for _, turn := range found {
		f.Rows = append(f.Rows, Seen{Lane: turn.Lane, Turn: turn.Key, At: Place{Due: now.Add(-time.Minute)}})
	}
	t.onClaim(now, q, f)
}

// TestAnotherRoundFollowsOneThatFound: what a round has found may not be all, even if its last piece was empty.
func TestAnotherRoundFollowsOneThatFound(t *testing.T) {
	t.Parallel()
	w := seenTurns()
	require.False(t, w.round.wanted, "nothing was found")

	w = turned()
	w.hops(start, w.request(start, 100, workers{}, true, everywhere), "m", turnAt(7, "a"))
	w.round.again = false
	w.know(TurnStart{Turn: turnAt(7, "a")})
	w.others = start.Add(time.Hour)
	q := w.request(start, 100, workers{}, true, everywhere)
	require.Empty(t, q.Hops)
	w.answered(start, q, []Turn{turnAt(7, "a")})
	w.round.again, w.others, w.round.from = false, time.Time{}, time.Time{}
	q = w.request(start, 100, workers{}, true, everywhere)
	require.NotEmpty(t, q.Hops)
	w.hops(start, q, "")
	require.True(t, w.round.wanted)

	w = turned()
	w.know(TurnStart{Turn: turnAt(7, "a")})
	w.others = start.Add(time.Hour)
	q = w.request(start, 100, workers{}, true, everywhere)
	w.answered(start, q, []Turn{turnAt(7, "a")}, ended(turnAt(7, "a"), TurnMore))
	require.False(t, w.round.found, "the round has not found it")
}

// TestPausesOfARound: a round goes on at once, unless there is something else to claim meanwhile.
func TestPausesOfARound(t *testing.T) {
	t.Parallel()
	w := turned()
	w.round.urgent = false
	w.hops(start, w.request(start, 100, workers{}, true, everywhere), "m")
	require.Equal(t, start, w.round.from)
	w.know(TurnStart{Turn: turnAt(7, "a")})
	w.others = time.Time{}
	q := w.request(start, 100, workers{}, true, everywhere)
	require.NotEmpty(t, q.Hops)
	w.onClaim(start, q, &Found{At: start, Took: time.Microsecond, TurnsFound: TurnsFound{
		Hops: map[int32]string{7: "n", 8: "n"}, Turns: []TurnEnd{ended(turnAt(7, "a"), TurnMore)},
	}})
	require.Equal(t, start.Add(lookShare*time.Microsecond), w.round.from)
}

// TestClaimsWithoutARound: a claim goes from turn to turn only in a round, and does not delay the next one.
func TestClaimsWithoutARound(t *testing.T) {
	t.Parallel()
	w := seenTurns()
	now := w.round.from
	q := w.request(now, 100, workers{}, true, everywhere)
	require.Empty(t, q.Hops)
	w.over(q)
	w.soon()
	require.True(t, w.due(now))
}

// TestOneClaimVisitsOthers: while it is under way, other claims visit known turns only.
func TestOneClaimVisitsOthers(t *testing.T) {
	t.Parallel()
	w := seenTurns()
	w.wake()
	first := w.request(start.Add(time.Second), 100, workers{}, true, everywhere)
	require.Len(t, first.Front, 2)
	w.know(TurnStart{Turn: turnAt(7, "a")})
	second := w.request(start.Add(time.Hour), 100, workers{}, true, everywhere)
	require.Len(t, second.Known, 1)
	require.Empty(t, second.Front)
}

// TestFrontStaysWhereItIs: a claim that does not look at the front does not move it, and none moves it back.
func TestFrontStaysWhereItIs(t *testing.T) {
	t.Parallel()
	w := seenTurns()
	w.know(TurnStart{Turn: turnAt(7, "a")})
	w.others = start.Add(time.Hour)
	q := w.request(start, 100, workers{}, true, everywhere)
	require.Empty(t, q.Front)
	before := w.front.stages[0].after
	w.answered(start.Add(time.Minute), q, nil)
	require.Equal(t, before, w.front.stages[0].after)

	w.others = time.Time{}
	w.wake()
	q = w.request(start, 100, workers{}, true, everywhere)
	require.NotEmpty(t, q.Front)
	w.answered(start.Add(-time.Minute), q, nil)
	require.Equal(t, before, w.front.stages[0].after, "the clock of another server is late")
	w.wake()
	w.answered(start.Add(time.Minute), w.request(start, 100, workers{}, true, everywhere), nil)
	require.Equal(t, start.Add(time.Minute-longestTrail), w.front.stages[0].after.Due)
}

// TestHowOftenOthersAreVisited: less often while nothing of others is found, and again as often when something is.
func TestHowOftenOthersAreVisited(t *testing.T) {
	t.Parallel()
	w := seenTurns()
	a, b := turnAt(7, "a"), turnAt(7, "b")
	w.know(TurnStart{Turn: a})
	every := func(found ...Turn) time.Duration {
		w.others = time.Time{}
		q := w.request(start, 100, workers{}, true, everywhere)
		require.True(t, q.others)
		w.answered(start, q, found, ended(a, TurnMore))
		return w.every
	}
	first := every(a)
	require.Greater(t, every(a), first)
	for range 20 {
		require.LessOrEqual(t, every(), seldomTurns)
	}
	require.Equal(t, seldomTurns, every(a))
	require.Equal(t, newTurnsEvery, every(a, b))
	w.others = start.Add(time.Hour)
	q := w.request(start, 100, workers{}, true, everywhere)
	require.False(t, q.others)
	w.answered(start, q, []Turn{a}, ended(a, TurnMore))
	require.Equal(t, newTurnsEvery, w.every, "it did not look for others")
}

// TestHurryAtTheEndOfABacklog: when the last known turn has no more, a round soon looks for what was passed.
func TestHurryAtTheEndOfABacklog(t *testing.T) {
	t.Parallel()
	for _, more := range []bool{false, true} {
		w := seenTurns()
		w.round.free = start
		a := turnAt(7, "a")
		w.know(TurnStart{Turn: a})
		w.others = start.Add(time.Hour)
		q := w.request(start, 100, workers{}, true, everywhere)
		if more {
			w.answered(start, q, []Turn{a}, ended(a, TurnMore))
		} else {
			w.answered(start, q, []Turn{a})
		}
		require.True(t, w.round.wanted)
		require.Equal(t, !more, w.round.urgent)
	}
}

// TestPauseAfterBusyKeys: claims pause only if they have met nothing but keys that others had locked.
func TestPauseAfterBusyKeys(t *testing.T) {
	t.Parallel()
	a, b := turnAt(7, "a"), turnAt(8, "b")
	for _, c := range []struct {
		ends   []TurnEnd
		found  []Turn
		pauses bool
	}{
		{[]TurnEnd{ended(a, TurnBusy), ended(b, TurnBusy)}, nil, true},
		{[]TurnEnd{ended(a, TurnSeen), ended(b, TurnBusy)}, nil, false},
		{[]TurnEnd{ended(a, TurnBusy), ended(b, TurnSeen)}, nil, false},
		{[]TurnEnd{ended(a, TurnBusy)}, []Turn{b}, false},
		{[]TurnEnd{ended(a, TurnFull), ended(b, TurnBusy)}, nil, false},
	} {
		w := seenTurns()
		w.know(TurnStart{Turn: a})
		w.know(TurnStart{Turn: b})
		w.answered(start, w.request(start, 100, workers{}, true, everywhere), c.found, c.ends...)
		require.Equal(t, c.pauses, w.from.After(start), "%v", c.ends)
	}
}

// TestBacklogOfTurns: another claim starts at the same time if one has found events, and there are more.
func TestBacklogOfTurns(t *testing.T) {
	t.Parallel()
	w := seenTurns()
	require.False(t, w.backlog(start, 0, 10))
	require.False(t, w.backlog(start, 9, 10))
	require.True(t, w.backlog(start, 10, 10))
	w.know(TurnStart{Turn: turnAt(7, "a")})
	require.True(t, w.backlog(start, 9, 10))
	require.False(t, w.backlog(start, 0, 10))
	require.True(t, w.more(), "a turn has more")
	w.contended = start.Add(time.Second)
	require.False(t, w.backlog(start, 10, 10))

	w = seenTurns()
	require.False(t, w.more())
	w.wake()
	require.True(t, w.more(), "something may have fallen due")
}

// TestWhenTurnsWantTheNextClaim: at the first time that is yet to come.
func TestWhenTurnsWantTheNextClaim(t *testing.T) {
	t.Parallel()
	second := func(n int) time.Time { return start.Add(time.Duration(n) * time.Second) }
	for name, c := range map[string]struct {
		change func(w *turns)
		want   time.Time
	}{
		"nothing":                      {func(*turns) {}, time.Time{}},
		"nothing, and a pause":         {func(w *turns) { w.from = second(1) }, time.Time{}},
		"a known turn, now":            {func(w *turns) { w.know(TurnStart{Turn: turnAt(7, "a")}) }, time.Time{}},
		"a known turn, after a pause":  {func(w *turns) { w.from = second(1); w.know(TurnStart{Turn: turnAt(7, "a")}) }, second(1)},
		"something new, after a pause": {func(w *turns) { w.from = second(1); w.wake() }, second(1)},
		"a rate":                       {func(w *turns) { w.fill(turnAt(7, "a"), second(3)) }, second(3)},
		"a rate, and a pause that is over": {func(w *turns) {
			w.fill(turnAt(7, "a"), second(3))
			w.from = second(-1)
			w.wake()
		}, second(3)},
		"a round": {func(w *turns) { w.soon(); w.round.from = second(2) }, second(2)},
		"a round that is due, and a rate": {func(w *turns) {
			w.soon()
			w.round.from = second(-2)
			w.fill(turnAt(7, "a"), second(3))
		}, second(3)},
	} {
		w := seenTurns()
		w.from, w.round.from = time.Time{}, time.Time{}
		c.change(w)
		require.Equal(t, c.want, w.next(start), name)
	}
}

// TestFrontsOfLanesThatRest: a claim moves the front only in the lanes that it has visited.
func TestFrontsOfLanesThatRest(t *testing.T) {
	t.Parallel()
	w := seenTurns()
	before := w.front.stages[0].after
	w.wake()
	q := w.request(start.Add(time.Minute), 100, workers{}, true, func(lane int32) bool { return lane == 8 })
	require.Len(t, q.Front, 1)
	w.answered(start.Add(time.Minute), q, nil)
	require.Equal(t, before, w.front.stages[0].after)
	require.Equal(t, start.Add(time.Minute-longestTrail), w.front.stages[1].after.Due)
}

// TestRoundsAreUrgentOnlyAtTheEnd: of a backlog of known turns, not after any claim that has found something.
func TestRoundsAreUrgentOnlyAtTheEnd(t *testing.T) {
	t.Parallel()
	w := seenTurns()
	w.round.free = start
	w.wake()
	q := w.request(start, 100, workers{}, true, everywhere)
	require.True(t, q.others)
	w.answered(start, q, []Turn{turnAt(7, "a")})
	require.True(t, w.round.wanted)
	require.False(t, w.round.urgent)

	w = turned()
	w.round.urgent = false
	w.hops(start, w.request(start, 100, workers{}, true, everywhere), "m", turnAt(7, "a"))
	require.Equal(t, start.Add(lookShare*time.Microsecond), w.round.from, "there is something else to do")
}

// TestShareOfKnownTurns: a claim visits more turns when they give less than half of what it may take.
func TestShareOfKnownTurns(t *testing.T) {
	t.Parallel()
	for found, want := range map[int]int{1: mostShare / 2, 7: mostShare / 2, 8: mostShare, 16: mostShare} {
		w := seenTurns()
		for _, key := range []string{"a", "b"} {
			w.know(TurnStart{Turn: turnAt(7, key)})
		}
		q := w.request(start, 2*mostShare, workers{}, true, everywhere)
		require.Len(t, q.Known, 2)
		turns := make([]Turn, found)
		for i := range turns {
			turns[i] = turnAt(7, "a")
		}
		w.answered(start, q, turns)
		require.Equal(t, want, w.share, "%d of %d", found, 2*mostShare)
	}
}

// TestKnownTurnsKeepTheirOrder: those that have more are visited again in the order of before.
func TestKnownTurnsKeepTheirOrder(t *testing.T) {
	t.Parallel()
	w := seenTurns()
	a, b := turnAt(7, "a"), turnAt(7, "b")
	w.know(TurnStart{Turn: a})
	w.know(TurnStart{Turn: b})
	w.answered(start, w.request(start, 100, workers{}, true, everywhere), []Turn{a, b}, ended(b, TurnMore), ended(a, TurnMore))
	w.others = start.Add(time.Hour)
	require.Equal(t, a, w.request(start, 8, workers{}, true, everywhere).Known[0].Turn)
}

// TestTurnsAreVisitedFromTheirHead: if something in them is due again, and otherwise further on.
func TestTurnsAreVisitedFromTheirHead(t *testing.T) {
	t.Parallel()
	w := seenTurns()
	a := turnAt(7, "a")
	w.know(TurnStart{Turn: a, After: at(5)})
	w.know(TurnStart{Turn: a, After: at(4)})
	require.Equal(t, at(5), w.known[a].After)
	w.know(TurnStart{Turn: a, After: at(6)})
	require.Equal(t, at(6), w.known[a].After)
	w.know(TurnStart{Turn: a})
	require.Zero(t, w.known[a].After)
}

// TestPausesOfTurns: nothing is visited before the pause is over, not even for others.
func TestPausesOfTurns(t *testing.T) {
	t.Parallel()
	w := seenTurns()
	w.wake()
	require.True(t, w.dueOthers(start.Add(time.Second)))
	w.from = start.Add(2 * time.Second)
	require.False(t, w.dueOthers(start.Add(time.Second)))
}
