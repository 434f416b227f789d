package core

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// seenTurns are turns of two lanes whose first round is over.
func seenTurns() *turns {
	w := turned()
	w.answered(start, w.request(start, 100, 0, true, everywhere), nil)
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
	w.hops(start, w.request(start, 100, 0, true, everywhere), "m", turnAt(7, "a"))
	w.round.again = false
	w.know(TurnStart{Turn: turnAt(7, "a")})
	w.others = start.Add(time.Hour)
	q := w.request(start, 100, 0, true, everywhere)
	require.Empty(t, q.Hops)
	w.answered(start, q, []Turn{turnAt(7, "a")})
	w.round.again, w.others, w.round.from = false, time.Time{}, time.Time{}
	q = w.request(start, 100, 0, true, everywhere)
	require.NotEmpty(t, q.Hops)
	w.hops(start, q, "")
	require.True(t, w.round.wanted)

	w = turned()
	w.know(TurnStart{Turn: turnAt(7, "a")})
	w.others = start.Add(time.Hour)
	q = w.request(start, 100, 0, true, everywhere)
	w.answered(start, q, []Turn{turnAt(7, "a")}, ended(turnAt(7, "a"), TurnMore))
	require.False(t, w.round.found, "the round has not found it")
}

// TestPausesOfARound: a round goes on at once, unless there is something else to claim meanwhile.
func TestPausesOfARound(t *testing.T) {
	t.Parallel()
	w := turned()
	w.round.urgent = false
	w.hops(start, w.request(start, 100, 0, true, everywhere), "m")
	require.Equal(t, start, w.round.from)
	w.know(TurnStart{Turn: turnAt(7, "a")})
	w.others = time.Time{}
	q := w.request(start, 100, 0, true, everywhere)
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
	q := w.request(now, 100, 0, true, everywhere)
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
	first := w.request(start.Add(time.Second), 100, 0, true, everywhere)
	require.Len(t, first.Front, 2)
	w.know(TurnStart{Turn: turnAt(7, "a")})
	second := w.request(start.Add(time.Hour), 100, 0, true, everywhere)
	require.Len(t, second.Known, 1)
	require.Empty(t, second.Front)
}

// TestFrontStaysWhereItIs: a claim that does not look at the front does not move it, and none moves it back.
func TestFrontStaysWhereItIs(t *testing.T) {
	t.Parallel()
	w := seenTurns()
	w.know(TurnStart{Turn: turnAt(7, "a")})
	w.others = start.Add(time.Hour)
	q := w.request(start, 100, 0, true, everywhere)
	require.Empty(t, q.Front)
	before := w.front.stages[0].after
	w.answered(start.Add(time.Minute), q, nil)
	require.Equal(t, before, w.front.stages[0].after)

	w.others = time.Time{}
	w.wake()
	q = w.request(start, 100, 0, true, everywhere)
	require.NotEmpty(t, q.Front)
	w.answered(start.Add(-time.Minute), q, nil)
	require.Equal(t, before, w.front.stages[0].after, "the clock of another server is late")
	w.wake()
	w.answered(start.Add(time.Minute), w.request(start, 100, 0, true, everywhere), nil)
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
		q := w.request(start, 100, 0, true, everywhere)
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
	q := w.request(start, 100, 0, true, everywhere)
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
		q := w.request(start, 100, 0, true, everywhere)
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
		w.answered(start, w.request(start, 100, 0, true, everywhere), c.found, c.ends...)
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

// TestTurnsInOrder: a turn keeps its place in the rounds while others wait, and begins again with them when none does.
func TestTurnsInOrder(t *testing.T) {
	t.Parallel()
	var q fairQueue
	add := func(key string) *Task {
		task := &Task{Lane: 7, Turn: key}
		q.enter(task)
		q.push(task)
		return task
	}
	one, two, three := add("a"), add("a"), add("a")
	require.Same(t, one, q.pop())
	four := add("a")
	for _, want := range []*Task{two, three, four} {
		require.Same(t, want, q.pop(), "in the order in which they came")
	}
	one, two = add("a"), add("b")
	require.Same(t, one, q.pop())
	require.Same(t, two, q.pop())
}

// TestTurnWalksBeginAgain: when a claim may have left events behind, and when they are to walk other lanes.
func TestTurnWalksBeginAgain(t *testing.T) {
	t.Parallel()
	a := turnAt(7, "a")
	for name, c := range map[string]struct {
		pieces [][]Seen
		again  bool
	}{
		"few":                   {[][]Seen{{{Lane: 7, Turn: "a", At: Place{Due: start}}}}, false},
		"full":                  {[][]Seen{make([]Seen, 8)}, true},
		"after their lease":     {[][]Seen{{{Lane: 7, Turn: "a", At: Place{Due: start}, Reclaimed: true}}}, true},
		"full, and then none":   {[][]Seen{make([]Seen, 8), nil}, true},
		"one less than is full": {[][]Seen{make([]Seen, 7)}, false},
	} {
		w := NewTurnWalk([]int32{7})
		for i, rows := range c.pieces {
			f := &Found{At: start, Rows: rows}
			if i < len(c.pieces)-1 {
				f.Hops = map[int32]string{7: "m"}
			}
			w.Advance(start, w.Next(8), 8, f)
		}
		require.Equal(t, c.again, w.More(), name)
	}

	w := NewTurnWalk([]int32{7})
	w.End()
	w.Cover([]int32{7})
	require.False(t, w.More())
	w.Cover([]int32{7, 8})
	require.True(t, w.More())

	w = NewTurnWalk([]int32{7})
	w.turns.know(TurnStart{Turn: a})
	f := &Found{At: start, Ends: map[int32]Place{7: {Due: start.Add(-time.Hour)}}}
	w.turns.clock = true
	w.Advance(start, w.Next(8), 8, f)
	require.Equal(t, start.Add(-time.Hour), w.turns.front.stages[0].after.Due, "it passes nothing")
}

// TestTurnWalksOfNothing: a walk of no lanes has nothing to claim, now or later.
func TestTurnWalksOfNothing(t *testing.T) {
	t.Parallel()
	var w TurnWalk
	w.Again(start)
	w.Failed()
	require.False(t, w.More())
	w = NewTurnWalk(nil)
	w.next = start.Add(time.Second)
	w.Again(start)
	require.False(t, w.More())
	w.Again(start.Add(time.Second))
	require.False(t, w.More())
}

// TestTurnWalksGoOn: at first only with what has fallen due, and after a pause from the beginning.
func TestTurnWalksGoOn(t *testing.T) {
	t.Parallel()
	w := NewTurnWalk([]int32{7})
	w.Advance(start, w.Next(8), 8, &Found{At: start})
	require.False(t, w.More())
	require.Equal(t, start.Add(-longestTrail), w.turns.front.stages[0].after.Due)
	w.Again(start)
	require.True(t, w.More())
	require.False(t, w.turns.round.wanted)
	w.Advance(start.Add(time.Millisecond), w.Next(8), 8, &Found{At: start})
	require.Equal(t, start.Add(lookEvery), w.next, "the pause is that after the round")
	w.Again(start.Add(lookEvery))
	require.True(t, w.turns.round.wanted)

	w.End()
	w.turns.starved = []Turn{turnAt(7, "a")}
	require.True(t, w.More(), "the next claim has room for it")
}

// TestFrontsOfLanesThatRest: a claim moves the front only in the lanes that it has visited.
func TestFrontsOfLanesThatRest(t *testing.T) {
	t.Parallel()
	w := seenTurns()
	before := w.front.stages[0].after
	w.wake()
	q := w.request(start.Add(time.Minute), 100, 0, true, func(lane int32) bool { return lane == 8 })
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
	q := w.request(start, 100, 0, true, everywhere)
	require.True(t, q.others)
	w.answered(start, q, []Turn{turnAt(7, "a")})
	require.True(t, w.round.wanted)
	require.False(t, w.round.urgent)

	w = turned()
	w.round.urgent = false
	w.hops(start, w.request(start, 100, 0, true, everywhere), "m", turnAt(7, "a"))
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
		q := w.request(start, 2*mostShare, 0, true, everywhere)
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
	w.answered(start, w.request(start, 100, 0, true, everywhere), []Turn{a, b}, ended(b, TurnMore), ended(a, TurnMore))
	w.others = start.Add(time.Hour)
	require.Equal(t, a, w.request(start, 8, 0, true, everywhere).Known[0].Turn)
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

// TestPiecesOfTheFront: they grow while claims are fast and have more before them.
func TestPiecesOfTheFront(t *testing.T) {
	t.Parallel()
	for more, want := range map[bool]int{false: usualFront, true: 4 * usualFront} {
		w := seenTurns()
		w.wake()
		q := w.request(start, 100, 0, true, everywhere)
		f := &Found{At: start, Took: time.Microsecond}
		if more {
			f.Ends = map[int32]Place{7: at(1)}
		}
		w.onClaim(start, q, f)
		require.Equal(t, want, w.piece)
	}
}

// TestStarvedTurns: they are visited when a worker is idle.
func TestStarvedTurns(t *testing.T) {
	t.Parallel()
	for idle, want := range map[int]int{0: 0, 1: 1} {
		w := seenTurns()
		w.starved = []Turn{turnAt(7, "a")}
		require.Len(t, w.request(start, 100, idle, true, everywhere).Known, want)
	}
}

// TestStrayRounds: a dispatcher whose topics take no turns looks for some now and then.
func TestStrayRounds(t *testing.T) {
	t.Parallel()
	w := newTurns([]int32{7}, false)
	w.stray = start.Add(time.Second)
	w.onTime(start)
	require.False(t, w.round.wanted)
	w.onTime(start.Add(time.Second))
	require.True(t, w.round.wanted)
	w.round.begun = true
	w.onTime(start.Add(time.Second))
	require.False(t, w.round.again, "it is under way")

	w = newTurns([]int32{7}, false)
	w.begin()
	w.round.from, w.stray = start.Add(5*time.Second), start.Add(time.Second)
	require.Equal(t, w.round.from, w.next(start), "a round is to come")

	w = seenTurns()
	w.stray = start
	w.onTime(start)
	require.False(t, w.round.wanted, "it looks anyway")
}

// TestSettledWithoutLimits: what is settled makes room only if something waits for it.
func TestSettledWithoutLimits(t *testing.T) {
	t.Parallel()
	w := seenTurns()
	w.last = true
	w.freed(turnAt(7, "a"))
	require.True(t, w.last, "it is the turn of the others")
	w.fill(turnAt(7, "b"), time.Time{})
	w.freed(turnAt(7, "a"))
	require.False(t, w.last)
}
