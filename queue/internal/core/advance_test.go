package core

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// at is a place so many seconds after start.
func at(seconds int) Place {
	return Place{Due: start.Add(time.Duration(seconds) * time.Second), ID: uuid.UUID{1}}
}

// row is an event that a claim has found.
func row(lane int32, seconds int) Seen { return Seen{Lane: lane, At: at(seconds)} }

func reclaimedRow(lane int32, seconds int) Seen {
	return Seen{Lane: lane, At: at(seconds), Reclaimed: true}
}

// TestWhereAClaimEnds: a lane is seen to its end only if the claim has looked at all of it. A claim that is full has not come
// to the lanes behind the one that filled it, and one that takes few events whose lease ran out may have passed others.
func TestWhereAClaimEnds(t *testing.T) {
	t.Parallel()
	here, seen := stage{after: at(-9)}, stage{after: Place{start.Add(-longestTrail), lastID}, seen: true}
	lane := func(n int32, quota int) Start { return Start{Lane: n, Quota: quota} }
	for name, c := range map[string]struct {
		size   int
		starts []Start
		rows   []Seen
		ends   map[int32]Place
		want   []stage
	}{
		"nothing": {
			2, []Start{lane(1, 2), lane(2, 2), lane(3, 2)}, nil, nil, []stage{seen, seen, seen},
		},
		"filled by the second": {
			2, []Start{lane(1, 2), lane(2, 2), lane(3, 2)}, []Seen{row(2, 1), row(2, 2)}, nil,
			[]stage{seen, {after: at(2), dense: true}, here},
		},
		"filled by two": {
			3, []Start{lane(1, 3), lane(2, 3), lane(3, 3)}, []Seen{row(1, 1), row(2, 2), row(2, 3)}, nil,
			[]stage{seen, {after: at(3)}, here},
		},
		"filled, some after their lease": {
			2, []Start{lane(1, 3), lane(2, 3), lane(3, 3)}, []Seen{reclaimedRow(1, 1), row(3, 2)}, nil,
			[]stage{{after: at(1)}, here, {after: at(2)}},
		},
		"not filled, some after their lease": {
			9, []Start{lane(1, 3), lane(2, 3), lane(3, 3)}, []Seen{reclaimedRow(1, 1), row(3, 2)}, nil, []stage{seen, seen, seen},
		},
		"as many after their lease as it may take": {
			9, []Start{lane(1, 9), lane(2, 9), lane(3, 9)},
			[]Seen{reclaimedRow(1, 1), reclaimedRow(1, 2), reclaimedRow(1, 3), reclaimedRow(1, 4), reclaimedRow(1, 5)}, nil,
			[]stage{here, here, here},
		},
		"a last attempt, which comes alone": {
			9, []Start{lane(1, 9), lane(2, 9), lane(3, 9)},
			[]Seen{{Lane: 1, At: at(1), Reclaimed: true, Last: true}, reclaimedRow(1, 2)}, nil, []stage{here, here, here},
		},
		"ended after a piece": {
			5, []Start{{Lane: 1, Quota: 5, Piece: 9}, {Lane: 2, Quota: 5, Piece: 9}, {Lane: 3, Quota: 5, Piece: 9}},
			[]Seen{row(1, 1)}, map[int32]Place{1: at(4), 2: at(5), 3: {}}, []stage{{after: at(4)}, {after: at(5)}, here},
		},
	} {
		w := NewWalk([]int32{1, 2, 3})
		q := &Claim{Size: c.size, Starts: c.starts, Reclaims: ReclaimsPerClaim}
		for i := range w.stages {
			w.stages[i], c.starts[i].After = here, here.after
		}
		w.Advance(start, q, &Found{At: start, Rows: c.rows, Ends: c.ends})
		require.Equal(t, c.want, w.stages, name)
	}
}

// TestClaimsThatOverlap: a claim moves the walk only forward, and not at all if the walk was sent back since.
func TestClaimsThatOverlap(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		walk, began int // seconds
		end         Place
		want        stage
	}{
		"began here":                {10, 10, at(20), stage{after: at(20)}},
		"began before, came less":   {10, 0, at(5), stage{after: at(10)}},
		"began before, came more":   {10, 0, at(20), stage{after: at(20)}},
		"began before, saw the end": {10, 0, Place{}, stage{after: Place{start.Add(-longestTrail), lastID}, seen: true}},
		"began before, came as far": {10, 0, at(10), stage{after: at(10), dense: true}},
		"began where it was before": {0, 10, at(20), stage{after: at(0)}},
	} {
		w := NewWalk([]int32{1})
		w.stages[0] = stage{after: at(c.walk), dense: c.want.dense}
		q := &Claim{Size: 5, Starts: []Start{{Lane: 1, After: at(c.began), Quota: 5, Piece: 9}}}
		f := &Found{At: start, Rows: []Seen{row(1, c.began+1)}}
		if c.end != (Place{}) {
			f.Ends = map[int32]Place{1: c.end}
		}
		w.Advance(start, q, f)
		require.Equal(t, c.want, w.stages[0], name)
	}
}

// TestLanesThatAreNotWalkedAnyMore: a claim of them says nothing.
func TestLanesThatAreNotWalkedAnyMore(t *testing.T) {
	t.Parallel()
	w := NewWalk([]int32{1, 2})
	q := &Claim{Size: 5, Starts: w.Pieces(5, false)}
	w.Cover([]int32{2, 3})
	w.Advance(start, q, &Found{At: start})
	require.Equal(t, []bool{true, false}, []bool{w.stages[0].seen, w.stages[1].seen})
}

// looking returns looks at two lanes, and the main walk, which is ten seconds after start in the first and has seen the second.
func looking() (*looks, *Walk) {
	l, main := &looks{walk: NewWalk([]int32{1, 2}), wanted: true}, NewWalk([]int32{1, 2})
	main.stages[0], main.stages[1] = stage{after: at(10)}, stage{after: at(10), seen: true}
	return l, &main
}

// TestLooksThatFindSomething: what a look finds behind the main walk, or after its lease, may not be the only one: the next
// look follows at once.
func TestLooksThatFindSomething(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		found Seen
		again bool
	}{
		"behind":                          {row(1, 9), true},
		"behind in the other lane":        {row(2, 9), true},
		"ahead":                           {row(1, 11), false},
		"ahead in the other lane":         {row(2, 11), false},
		"ahead, after its lease":          {reclaimedRow(1, 11), true},
		"of a lane that it does not walk": {row(3, 1), false},
	} {
		l, main := looking()
		require.True(t, l.due(start))
		q := &Claim{Size: 10, Reclaims: ReclaimsPerClaim, Starts: l.starts(main)(10)}
		l.running = true
		require.False(t, l.due(start), "one at a time")
		l.running = false
		l.onClaim(start, q, &Found{At: start.Add(time.Hour), Rows: []Seen{c.found}}, main)
		require.Equal(t, c.again, l.wanted && l.due(start), name)
	}
}

// TestLooksEndAtTheMainWalk: a round of looks is over where the main walk was when it began.
func TestLooksEndAtTheMainWalk(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		end  int
		over bool
	}{{9, false}, {10, true}, {11, true}} {
		l, main := looking()
		q := &Claim{Size: 10, Starts: l.starts(main)(10)}
		l.onClaim(start, q, &Found{At: start, Ends: map[int32]Place{1: at(c.end)}}, main)
		require.Equal(t, c.over, !l.wanted, "it has come to %d", c.end)
		require.Equal(t, at(10), main.stages[0].after)
	}
	l, main := looking()
	q := &Claim{Size: 1, Starts: []Start{{Lane: 1, Quota: 1, Piece: 9}, {Lane: 2, Quota: 1, Piece: 9}}}
	_ = l.starts(main)
	l.front = append(l.front, main.stages...)
	l.onClaim(start, q, &Found{At: start, Rows: []Seen{row(1, 10)}}, main)
	require.False(t, main.stages[0].dense, "the main walk goes on where it is")
	require.False(t, l.walk.More())
}

// TestLooksMoveTheMainWalk: to the end that they have seen, if it has not come there, and never back.
func TestLooksMoveTheMainWalk(t *testing.T) {
	t.Parallel()
	end := stage{after: Place{start.Add(time.Hour - longestTrail), lastID}, seen: true}
	for name, c := range map[string]struct{ front, want stage }{
		"not at the end":      {stage{after: at(10)}, end},
		"further, not at end": {stage{after: at(4000)}, end},
		"at an earlier end":   {stage{after: at(10), seen: true}, end},
		"at a later end":      {stage{after: at(4000), seen: true}, stage{after: at(4000), seen: true}},
	} {
		l, main := looking()
		main.stages[0] = c.front
		q := &Claim{Size: 10, Starts: l.starts(main)(10)}
		l.onClaim(start, q, &Found{At: start.Add(time.Hour)}, main)
		require.Equal(t, c.want, main.stages[0], name)
	}
}

// TestLooksThatAreAskedForAgain: what comes behind a round of looks needs another one.
func TestLooksThatAreAskedForAgain(t *testing.T) {
	t.Parallel()
	for _, again := range []bool{false, true} {
		l, main := looking()
		q := &Claim{Size: 10, Starts: l.starts(main)(10)}
		if again {
			l.soon()
		}
		l.onClaim(start, q, &Found{At: start}, main)
		require.Equal(t, again, l.wanted)
	}
}

// TestPiecesGrowOnlyIfThereIsMore: a fast claim that has seen the end says nothing of how long a larger piece takes.
func TestPiecesGrowOnlyIfThereIsMore(t *testing.T) {
	t.Parallel()
	w := NewWalk(tenLanes)
	w.Advance(start, &Claim{Size: 10, Starts: w.Pieces(10, false)}, &Found{At: start, Took: fastClaim / 2})
	require.Equal(t, FirstPiece, w.piece)
}

// TestTrailOfTheFirstClaim: how fast a walk claims is not known before its second claim.
func TestTrailOfTheFirstClaim(t *testing.T) {
	t.Parallel()
	var w Walk
	w.count(1_000_000, start)
	require.Equal(t, longestTrail, w.trail)
	w.count(0, start.Add(time.Second))
	require.Equal(t, longestTrail, w.trail)
}

// TestNothingPaused: no pauses pause no topic, and everything paused is every topic.
func TestNothingPaused(t *testing.T) {
	t.Parallel()
	var nothing *Pauses
	require.False(t, nothing.Every([]string{"a"}))
	require.False(t, nothing.Any())
	require.False(t, NoPauses.Every([]string{"a"}))
	require.False(t, NoPauses.Every(nil))
	require.True(t, PausesOf(true, nil).Every(nil))
	require.True(t, PausesOf(true, nil).Event("a", uuid.NullUUID{}))
	require.False(t, PausesOf(false, []string{uuid.Nil.String()}).Event("a", uuid.NullUUID{}), "it has no tenant")
	require.False(t, PausesOf(false, []string{"a"}).Every(nil), "other topics may be there")
}
