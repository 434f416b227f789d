package core

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

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

// TestPiecesOfTheFront: they grow while claims are fast and have more before them.
func TestPiecesOfTheFront(t *testing.T) {
	t.Parallel()
	for more, want := range map[bool]int{false: usualFront, true: 4 * usualFront} {
		w := seenTurns()
		w.wake()
		q := w.request(start, 100, workers{}, true, everywhere)
		f := &Found{At: start, Took: time.Microsecond}
		if more {
			f.Ends = map[int32]Place{7: at(1)}
		}
		w.onClaim(start, q, f)
		require.Equal(t, want, w.piece)
	}
}

// TestStarvedTurns: they are visited when a worker is idle, or soon will be.
func TestStarvedTurns(t *testing.T) {
	t.Parallel()
	for rated, want := range map[workers]int{{}: 0, {idle: 1}: 1, {ahead: 1}: 1} {
		w := seenTurns()
		w.starved = []Turn{turnAt(7, "a")}
		require.Len(t, w.request(start, 100, rated, true, everywhere).Known, want)
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
