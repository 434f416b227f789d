package core

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/postgres/topiclane"
)

var everywhere = func(int32) bool { return true }

// turned are turns of two lanes at start.
func turned() *turns { return newTurns([]int32{7, 8}, true) }

func turnAt(lane int32, key string) Turn { return Turn{Lane: lane, Key: key} }

// answered takes in that the claim q has found events of some turns, and how its visits have ended.
func (t *turns) answered(now time.Time, q *TurnClaim, found []Turn, ends ...TurnEnd) {
	f := &Found{At: now, Took: time.Microsecond, TurnsFound: TurnsFound{Turns: ends}}
	for _, turn := range found {
		f.Rows = append(f.Rows, Seen{Lane: turn.Lane, Turn: turn.Key, At: Place{Due: now.Add(-time.Minute)}})
	}
	t.onClaim(now, q, f)
}

func ended(turn Turn, state TurnState) TurnEnd {
	return TurnEnd{TurnStart: TurnStart{Turn: turn}, State: state}
}

// TestTurnsBeginWithARound: the first claim goes from turn to turn in each lane, and tells the time of the database. From
// then on claims look at what fell due lately.
func TestTurnsBeginWithARound(t *testing.T) {
	t.Parallel()
	w := turned()
	require.True(t, w.due(start))
	q := w.request(start, 100, workers{}, true, everywhere)
	require.Equal(t, []Hop{{7, ""}, {8, ""}}, q.Hops)
	require.Empty(t, q.Front)
	require.False(t, w.due(start), "its claim is under way")
	w.answered(start, q, nil)
	require.False(t, w.more())
	w.wake()
	require.True(t, w.due(start.Add(time.Second)))
	q = w.request(start.Add(time.Second), 100, workers{}, true, everywhere)
	require.Empty(t, q.Hops)
	require.Len(t, q.Front, 2)
	require.Equal(t, start.Add(-longestTrail), q.Front[0].After.Due)
	w.answered(start.Add(time.Second), q, nil)
	require.False(t, w.due(start.Add(time.Second)))
}

// TestRoundOfTurnsInPieces: a round goes on where its piece has ended, in the lanes that have more, and its pieces grow
// while claims are fast. Lanes of topics that rest are left out.
func TestRoundOfTurnsInPieces(t *testing.T) {
	t.Parallel()
	w := turned()
	q := w.request(start, 100, workers{}, true, everywhere)
	require.Equal(t, usualHops, q.Count)
	w.onClaim(start, q, &Found{At: start, Took: time.Microsecond, TurnsFound: TurnsFound{Hops: map[int32]string{7: "m"}}})
	q = w.request(start.Add(time.Microsecond), 100, workers{}, true, everywhere)
	require.Equal(t, []Hop{{7, "m"}}, q.Hops)
	require.Equal(t, 4*usualHops, q.Count)
	w.onClaim(start, q, &Found{At: start, Took: 2 * slowClaim, TurnsFound: TurnsFound{Hops: map[int32]string{7: "n"}}})
	require.Equal(t, 2*usualHops, w.round.count)
	require.False(t, w.due(start), "a slow piece is followed by a pause as long")
	pause := start.Add(2 * slowClaim)
	q = w.request(pause, 100, workers{}, true, func(lane int32) bool { return lane == 8 })
	require.Empty(t, q.Hops, "it has seen that lane")
	require.False(t, w.round.wanted)
	w.over(q)

	w.soon()
	w.round.from = time.Time{}
	q = w.request(start, 100, workers{}, true, everywhere)
	w.soon() // something may have come behind it
	w.answered(start, q, nil)
	require.True(t, w.round.wanted)
	require.False(t, w.due(start), "not before a pause")
	require.Equal(t, start.Add(lookEvery), w.next(start))
	require.True(t, w.due(start.Add(lookEvery)))
}

// TestKnownTurnsAlternate: a claim visits the turns that are known to have more, those first that were visited longest ago,
// each behind what was claimed of it. Those that have no more are forgotten.
func TestKnownTurnsAlternate(t *testing.T) {
	t.Parallel()
	w := turned()
	a, b, c := turnAt(7, "a"), turnAt(7, "b"), turnAt(8, "c")
	q := w.request(start, 16, workers{}, true, everywhere)
	w.answered(start, q, []Turn{a}, ended(a, TurnMore), ended(b, TurnSeen), ended(c, TurnMore))
	q = w.request(start, 16, workers{}, true, everywhere)
	require.Equal(t, []TurnStart{{a, Place{Due: start.Add(-time.Minute)}}, {Turn: b}}, q.Known)
	require.Empty(t, q.Front, "others are visited from time to time")
	next := w.request(start, 16, workers{}, true, everywhere)
	require.Equal(t, []TurnStart{{Turn: c}, q.Known[0]}, next.Known, "another claim may be under way")
	w.answered(start, q, []Turn{b}, TurnEnd{TurnStart{a, Place{Due: start}}, TurnMore})
	require.Len(t, w.known, 2)
	require.Equal(t, start, w.known[a].After.Due, "a piece of it has ended")
	w.answered(start, next, nil)
	require.Empty(t, w.known)
	require.Empty(t, w.request(start, 16, workers{}, true, everywhere).Known)

	w.know(TurnStart{Turn: a})
	q = w.request(start, 16, workers{}, true, func(int32) bool { return false })
	require.Empty(t, q.Known)
	require.Empty(t, w.known, "its topic rests: a round finds it again")
	w.know(TurnStart{Turn: a})
	require.Empty(t, w.request(start, 16, workers{}, false, everywhere).Known, "only others")
}

// TestOthersAreVisitedNextToABacklog: while turns are known to have more, the others are visited every few milliseconds.
func TestOthersAreVisitedNextToABacklog(t *testing.T) {
	t.Parallel()
	w := turned()
	a := turnAt(7, "a")
	w.answered(start, w.request(start, 100, workers{}, true, everywhere), []Turn{a}, ended(a, TurnMore))
	q := w.request(start, 100, workers{}, true, everywhere)
	require.Empty(t, q.Front)
	w.answered(start, q, []Turn{a}, ended(a, TurnMore))
	require.False(t, w.dueOthers(start))
	later := start.Add(newTurnsEvery)
	require.True(t, w.dueOthers(later))
	q = w.request(later, 100, workers{}, true, everywhere)
	require.Len(t, q.Known, 1)
	require.Len(t, q.Front, 2)
	require.False(t, w.dueOthers(later.Add(newTurnsEvery)), "one at a time")
	end := Place{Due: later, ID: tenant}
	w.onClaim(later, q, &Found{At: later, Took: time.Microsecond, Ends: map[int32]Place{7: end}})
	require.Equal(t, 4*usualFront, w.piece)
	require.True(t, w.dueOthers(later), "there is more at the front")
	q = w.request(later, 100, workers{}, true, everywhere)
	require.Equal(t, end, q.Front[0].After)
	w.onClaim(later, q, &Found{At: later, Took: 2 * slowClaim})
	require.Equal(t, 2*usualFront, w.piece)
	w.failed()
	require.Equal(t, smallestFront, w.piece)
	require.Equal(t, fewestHops, w.round.count)
}

// TestBurst: when more events have fallen due than a claim passes, the front goes to those that fell due lately, and a
// round finds what is between, soon. The next such round comes after a pause.
func TestBurst(t *testing.T) {
	t.Parallel()
	w := turned()
	a, now := turnAt(7, "a"), start
	var front Place
	w.answered(now, w.request(now, 100, workers{}, true, everywhere), []Turn{a}, ended(a, TurnMore))
	burst := func() {
		t.Helper()
		now = now.Add(seldomTurns)
		q := w.request(now, 100, workers{}, true, everywhere)
		require.Empty(t, q.Hops)
		end := Place{Due: now.Add(-time.Second), ID: tenant}
		front = Place{now.Add(-shortestTrail), lastID}
		w.onClaim(now, q, &Found{At: now, Took: time.Millisecond, Ends: map[int32]Place{7: end}, TurnsFound: TurnsFound{Turns: []TurnEnd{ended(a, TurnMore)}}})
	}
	round := func() {
		t.Helper()
		q := w.request(now, 100, workers{}, true, everywhere)
		require.Len(t, q.Hops, 2)
		require.Equal(t, front, q.Front[0].After)
		w.onClaim(now, q, &Found{At: now, Took: 20 * time.Millisecond, TurnsFound: TurnsFound{Turns: []TurnEnd{ended(a, TurnMore)}}})
	}
	burst()
	require.True(t, w.dueOthers(now), "at once")
	round()
	burst()
	require.True(t, w.round.wanted)
	require.True(t, now.Before(w.round.from))
	require.Equal(t, w.round.free, w.round.from, "four times as long as the one before took")
	now = w.round.from
	round()
}

// TestBusyKeys: after a claim has met keys that another had locked, each visits half of the known turns. If that does not
// help, there is one claim at a time for a while.
func TestBusyKeys(t *testing.T) {
	t.Parallel()
	w := turned()
	a, b, c, d := turnAt(7, "a"), turnAt(7, "b"), turnAt(7, "c"), turnAt(7, "d")
	w.answered(start, w.request(start, 100, workers{}, true, everywhere), []Turn{a}, ended(a, TurnMore), ended(b, TurnMore), ended(c, TurnMore), ended(d, TurnMore))
	require.True(t, w.backlog(start, 8, 100), "although the claim was not full")
	q := w.request(start, 100, workers{}, true, everywhere)
	require.Len(t, q.Known, 4)
	w.answered(start, q, []Turn{a}, ended(a, TurnMore), ended(b, TurnBusy), ended(c, TurnMore), ended(d, TurnMore))
	require.True(t, w.backlog(start, 8, 100))
	q = w.request(start, 100, workers{}, true, everywhere)
	require.Len(t, q.Known, 2)
	w.answered(start, q, []Turn{a}, ended(a, TurnMore), ended(b, TurnBusy))
	require.False(t, w.backlog(start, 100, 100))
	later := start.Add(halvesFor)
	require.True(t, w.backlog(later, 8, 100))
	require.False(t, w.backlog(later, 0, 100), "nothing was found")
	require.Len(t, w.request(later, 100, workers{}, true, everywhere).Known, 4)
}

// TestTurnsAtTheirLimits: a turn at its limit is visited again when one of its events is settled, with the one that has
// waited longest in its lane if turns of it share a limit; when its rate allows more; and when a claim has found that its
// limit is not reached any more.
func TestTurnsAtTheirLimits(t *testing.T) {
	t.Parallel()
	w := turned()
	w.shared[7] = true
	a, b, c := turnAt(7, "a"), turnAt(7, "b"), turnAt(7, "c")
	until := TurnEnd{TurnStart{c, Place{Due: start.Add(time.Minute)}}, TurnFull}
	w.answered(start, w.request(start, 100, workers{}, true, everywhere), nil, ended(a, TurnFull), ended(b, TurnFull), until)
	require.Empty(t, w.known)
	w.know(TurnStart{Turn: a})
	require.Empty(t, w.known, "it is still full")
	w.freed(turnAt(7, ""))
	require.Empty(t, w.known)
	w.freed(b)
	require.Len(t, w.known, 2)
	require.Contains(t, w.known, a)
	require.Equal(t, start.Add(time.Minute), w.next(start.Add(time.Second)))
	w.onTime(start.Add(time.Second))
	require.Len(t, w.known, 2)
	w.onTime(start.Add(time.Minute))
	require.Contains(t, w.known, c)
	w.fill(a, time.Time{})
	require.NotContains(t, w.known, a)
	w.answered(start, &TurnClaim{}, nil, ended(a, TurnSeen))
	require.Contains(t, w.known, a, "another process had filled it")
	apart := turnAt(8, "a")
	w.fill(apart, time.Time{})
	w.fill(turnAt(8, "b"), time.Time{})
	w.freed(turnAt(8, "b"))
	require.NotContains(t, w.known, apart, "no limit counts events of both")
	w.forget()
	require.Empty(t, w.known)
	require.Empty(t, w.full)
	require.True(t, w.round.wanted)
}

// TestSettledBesideAClaim: a claim may have counted an event that another pass settles at the same time, whichever of them
// began first. So the turn stays known although the claim tells that its limit is reached.
func TestSettledBesideAClaim(t *testing.T) {
	t.Parallel()
	for _, claimFirst := range []bool{true, false} {
		d := drive(t, takesTurns(true), func(c *Config) { c.Topics, c.Topics[0].Apart = c.Topics[:1], true })
		running := d.tasks("handled", 10, inTurn("a"))
		d.claimed(d.first(), running...)
		began := len(all[*Pass](d))
		require.Zero(t, began, "there is no room")
		full := running[0].turn()
		claim, settling := &Pass{want: 1, turns: true}, &Pass{}
		begin := func() {
			claim.Claim = d.claims.ofTurns(d.now, 1, workers{idle: 1}, true, false, NoPauses)
			d.beginPass(d.now, claim)
		}
		settle := func() {
			running[0].Result = errclass.New(errclass.ClassDone, "")
			d.report(d.now, running[0])
			d.beginPass(d.now, settling)
		}
		if claimFirst {
			begin()
			settle()
		} else {
			settle()
			begin()
		}
		d.onPassDone(d.now, &PassDone{Pass: settling})
		d.onPassDone(d.now, &PassDone{Pass: claim, Found: Found{
			At: d.now, Took: time.Millisecond, TurnsFound: TurnsFound{Turns: []TurnEnd{ended(full, TurnFull)}},
		}})
		require.Contains(t, d.turns.known, full, "claim first: %v", claimFirst)
	}
}

// TestManyTurnsThatGiveFew: while turns give few events, claims visit more of them, and fewer again when that fills a claim.
func TestManyTurnsThatGiveFew(t *testing.T) {
	t.Parallel()
	w := turned()
	w.answered(start, w.request(start, 100, workers{}, true, everywhere), nil)
	for i := range 100 {
		w.know(TurnStart{Turn: turnAt(7, fmt.Sprint(i))})
	}
	step := func(each int) (visited int) {
		q := w.request(start, 100, workers{}, true, everywhere)
		var found []Turn
		var ends []TurnEnd
		for _, s := range q.Known {
			for range each {
				found = append(found, s.Turn)
			}
			ends = append(ends, ended(s.Turn, TurnMore))
		}
		w.answered(start, q, found[:min(len(found), 100)], ends...)
		return len(q.Known)
	}
	require.Equal(t, []int{12, 25, 50, 50}, []int{step(1), step(1), step(1), step(2)})
	require.Equal(t, []int{25, 12}, []int{step(5), step(9)})
	require.Equal(t, []int{12, 12, 25}, []int{step(5), step(4), step(3)}, "more than half of a claim is enough")
}

// TestTurnsOfOtherClaims: a turn that another claim has locked is visited again soon.
func TestTurnsOfOtherClaims(t *testing.T) {
	t.Parallel()
	w := turned()
	a := turnAt(7, "a")
	w.answered(start, w.request(start, 100, workers{}, true, everywhere), nil, ended(a, TurnBusy))
	require.False(t, w.due(start))
	require.Equal(t, start.Add(busyPause), w.next(start))
	require.True(t, w.due(start.Add(busyPause)))
	w.rest(start)
	require.False(t, w.due(start.Add(busyPause)), "everything rests")
}

// TestTurnsAreBounded: a core remembers so many turns, and finds the others in rounds.
func TestTurnsAreBounded(t *testing.T) {
	t.Parallel()
	w := turned()
	for i := range maxTurns + 1 {
		w.know(TurnStart{Turn: turnAt(7, fmt.Sprint(i))})
		w.fill(turnAt(8, fmt.Sprint(i)), time.Time{})
	}
	require.Len(t, w.known, maxTurns)
	require.Len(t, w.full, maxTurns)
	require.True(t, w.round.again)
}

// TestFairQueue: tasks that wait for a worker come out in rounds, in each of which a turn has one. Those without a turn
// come when they have entered.
func TestFairQueue(t *testing.T) {
	t.Parallel()
	var q fairQueue
	push := func(key string) *Task {
		task := &Task{Lane: 7, Turn: key}
		q.enter(task)
		q.push(task)
		return task
	}
	require.Nil(t, q.first())
	noisy := []*Task{push("noisy"), push("noisy"), push("noisy")}
	quiet := push("quiet")
	plain := &Task{}
	q.enter(plain)
	require.Equal(t, noisy[0], q.first())
	require.True(t, q.before(plain))
	require.Equal(t, noisy[0], q.pop())
	require.Equal(t, quiet, q.pop())
	require.False(t, q.before(plain))
	require.Equal(t, noisy[1], q.pop())
	again := push("quiet")
	require.Equal(t, again, q.pop(), "it is in the round that is under way")
	require.Equal(t, noisy[2], q.pop())
	require.Empty(t, q.last)
}

// takesTurns makes the topic handled one that takes turns, with limits if limits is set.
func takesTurns(limits bool) func(*Config) {
	return func(c *Config) { c.Topics[0].Turns, c.Topics[0].Limits = true, limits }
}

// inTurn gives a task a turn.
func inTurn(key string) func(*Task) {
	return func(t *Task) { t.Lane, t.Turn = topiclane.OfTurns("handled"), key }
}

// TestClaimsOfBothKinds: claims of events that have turns and of others alternate, and a core sleeps when both find nothing.
func TestClaimsOfBothKinds(t *testing.T) {
	t.Parallel()
	d := drive(t, takesTurns(false))
	first := d.first()
	require.NotNil(t, first.Claim.Turns)
	require.Equal(t, ReclaimsPerClaim, first.Claim.Reclaims, "it visits turns from their heads")
	tasks := d.tasks("handled", 3, inTurn("noisy"))
	d.claimed(first, tasks...)
	require.Equal(t, []Command{Run{tasks[0]}, Run{tasks[1]}}, d.out[:2])
	look := the[*Pass](d)
	require.Nil(t, look.Claim.Turns)
	quiet := d.tasks("handled", 1, inTurn("quiet"))
	d.claimed(look)
	d.claimed(the[*Pass](d), quiet...)
	d.reported(errclass.ClassDone, tasks[0])
	require.Equal(t, Run{quiet[0]}, the[Run](d), "its turn comes before the third of the noisy one")
}

// TestReleasedTurnsAreVisited: what is released is due at once, behind the front.
func TestReleasedTurnsAreVisited(t *testing.T) {
	t.Parallel()
	d := drive(t, takesTurns(false))
	task := d.tasks("handled", 1, inTurn("a"))[0]
	d.claimed(d.first(), task)
	require.Empty(t, d.turns.known)
	task.As = Release
	d.settled(&PassDone{Pass: &Pass{Settle: []*Task{task}}})
	require.Contains(t, d.turns.known, task.turn())
}

// TestLimitedTopicsHaveNoOtherClaims: events of a topic with limits are claimed by their turns only, also to find out whether
// its target is available again, and in a drain.
func TestLimitedTopicsHaveNoOtherClaims(t *testing.T) {
	t.Parallel()
	d := drive(t, takesTurns(true))
	d.claimed(d.first())
	for len(all[*Pass](d)) > 0 {
		p := the[*Pass](d)
		if p.Claim.Turns == nil {
			require.NotContains(t, p.Claim.Topics, "handled")
			require.Len(t, d.claims.walk.lanes, 4)
		}
		d.claimed(p)
	}
	d.rests(d.handled)
	d.step(2*time.Second, Tick{})
	try := the[*Pass](d)
	require.Equal(t, d.handled, try.try)
	require.Equal(t, []Hop{{topiclane.OfTurns("handled"), ""}}, try.Claim.Turns.Hops)
	d.claimed(try)
	require.Empty(t, d.claims.tries)

	only := func(c *Config) { c.Topics = c.Topics[:1] }
	d = drive(t, asDrain, takesTurns(true), only)
	require.NotNil(t, d.first().Claim.Turns)
	require.Empty(t, d.claims.walk.lanes)
	d = drive(t, asDrain, takesTurns(true), only)
	require.Equal(t, &End{Drained: DrainDone}, drained(d, d.tasks("handled", 2, inTurn("a"))))
	d = drive(t, asDrain, takesTurns(false), func(c *Config) { c.Topics[0].Target, c.Topics = c.Topics[1].Target, c.Topics[:2] })
	d.rests(d.sent)
	d.now = d.now.Add(2 * time.Second)
	d.claimed(d.first())
	require.Len(t, d.claims.tries, 1, "it has a topic that takes no turns, too")
}

// TestTurnsOfTopicsThatTakeNoMore: a topic may have taken turns until lately, so what is left of them is looked for.
func TestTurnsOfTopicsThatTakeNoMore(t *testing.T) {
	t.Parallel()
	d := drive(t)
	d.asleep()
	d.step(strayEvery, Tick{})
	for range 10 {
		p := all[*Pass](d)
		switch {
		case len(p) == 0:
			d.step(time.Second, Tick{})
		case p[0].Claim.Turns == nil:
			d.claimed(p[0])
		default:
			require.Len(t, p[0].Claim.Turns.Hops, 4)
			d.claimed(p[0], d.tasks("handled", 1, inTurn("left"))...)
			require.True(t, d.turns.active, "there may be others")
			return
		}
	}
	require.Fail(t, "nobody has looked")
}

// TestSlackFollowsClaims: events of limited rate may begin the later, the longer claims take, and for a while after one that
// took long.
func TestSlackFollowsClaims(t *testing.T) {
	t.Parallel()
	d := drive(t, takesTurns(true), func(c *Config) { c.Topics = c.Topics[:1] })
	p := d.first()
	require.Equal(t, leastSlack, p.Claim.Turns.Slack)
	d.step(100*time.Millisecond, &PassDone{Pass: p, Found: Found{At: d.now}})
	require.Equal(t, 800*time.Millisecond, d.turns.slack)
	d.turns.took(time.Millisecond)
	require.Equal(t, 700*time.Millisecond, d.turns.slack)
	for range 40 {
		d.turns.took(time.Millisecond)
	}
	require.Equal(t, leastSlack, d.turns.slack)
}

// TestTurnWalk: the claims of a caller go once from turn to turn, and revisit those that have more.
func TestTurnWalk(t *testing.T) {
	t.Parallel()
	var w TurnWalk
	require.False(t, w.More())
	w.Restart()
	w.End()
	w.Cover([]int32{7})
	require.True(t, w.More())
	a := turnAt(7, "a")
	step := func(q *TurnClaim, hop string, found []Turn, ends ...TurnEnd) {
		f := &Found{At: start, TurnsFound: TurnsFound{Turns: ends, Hops: map[int32]string{7: hop}}}
		for _, turn := range found {
			f.Rows = append(f.Rows, Seen{Lane: turn.Lane, Turn: turn.Key, At: Place{Due: start}})
		}
		w.Advance(start, q, 100, f)
	}
	step(w.Next(8), "a", []Turn{a}, ended(a, TurnMore))
	q := w.Next(8)
	require.Len(t, q.Known, 1)
	step(q, "a", []Turn{a})
	q = w.Next(8)
	require.Empty(t, q.Known)
	require.Equal(t, []Hop{{7, "a"}}, q.Hops)
	w.Cover([]int32{7})
	step(q, "", []Turn{a})
	require.False(t, w.More(), "one round, if no claim was full")
	w.Restart()
	require.True(t, w.More())
	w.Failed()
	w.End()
	require.False(t, w.More())
}

// TestSlackFollowsSlowPayloads: events of limited rate may begin the later, the longer their payloads take to open.
func TestSlackFollowsSlowPayloads(t *testing.T) {
	t.Parallel()
	d := drive(t, takesTurns(true), func(c *Config) { c.Topics = c.Topics[:1] })
	d.turns.opened(leastSlack / slackFactor)
	require.Equal(t, leastSlack, d.turns.slack)
	d.turns.opened(100 * time.Millisecond)
	d.turns.opened(time.Millisecond)
	require.Equal(t, 800*time.Millisecond, d.turns.slack)
}
