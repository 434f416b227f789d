package core

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/machine/rest"
	"github.com/outboxgen/outboxgen/internal/machine/sleep"
	"github.com/outboxgen/outboxgen/internal/postgres/topiclane"
	"github.com/outboxgen/outboxgen/outbox"
)

// TestSettlingIsNoClaim: a pass that only settles says nothing of what is claimable.
func TestSettlingIsNoClaim(t *testing.T) {
	t.Parallel()
	d := drive(t)
	tasks := d.tasks("handled", 10)
	d.claimed(d.first(), tasks...)
	require.True(t, d.claimable, "the claim was full")
	d.reported(errclass.ClassDone, tasks[0])
	p := the[*Pass](d)
	require.Zero(t, p.want, "enough wait for the workers")
	d.claimed(p)
	require.True(t, d.claimable)
	none[AskBell](d)
}

// TestFailedClaimsDoNotMakeIdle: after one, the dispatcher claims again, and does not sleep.
func TestFailedClaimsDoNotMakeIdle(t *testing.T) {
	t.Parallel()
	d := drive(t)
	d.failed(d.first())
	none[AskBell](d)
	require.True(t, d.claimable)
}

// TestIdleOnlyWithoutClaims: while another claim is under way, or something rang during one, nobody is asked to watch.
func TestIdleOnlyWithoutClaims(t *testing.T) {
	t.Parallel()
	d, first, second := atBacklog(t)
	d.claimed(first)
	require.NotZero(t, d.claiming)
	none[AskBell](d)
	d.claimed(second)
	for len(all[AskBell](d)) == 0 {
		d.claimed(the[*Pass](d))
	}
	require.Zero(t, d.claiming)

	d = drive(t)
	p := d.first()
	d.step(0, Woken{})
	d.claimed(p)
	none[AskBell](d)
	d.claimed(the[*Pass](d))
	require.True(t, the[AskBell](d).Asleep)
}

// TestLeftOutLanesAreClaimedNext: a claim of the lanes that are known to have more says nothing of the others.
func TestLeftOutLanesAreClaimedNext(t *testing.T) {
	t.Parallel()
	d := drive(t)
	d.asleep()
	d.claims.walk.stages[1] = stage{dense: true}
	d.claims.walk.all = d.now.Add(time.Hour)
	d.step(0, Woken{})
	p := the[*Pass](d)
	require.Len(t, p.Claim.Starts, 1)
	d.claimed(p)
	require.Len(t, the[*Pass](d).Claim.Starts, len(d.claims.walk.lanes))
	require.False(t, p.Claim.InPieces())
}

// TestWalkInPiecesWhileSomethingIsPaused: any number of paused events may stand in a row.
func TestWalkInPiecesWhileSomethingIsPaused(t *testing.T) {
	t.Parallel()
	for _, paused := range []bool{false, true} {
		d := drive(t, func(c *Config) {
			if paused {
				c.Pauses = PausesOf(false, []string{tenant.String()})
			}
		})
		d.asleep()
		d.step(0, Woken{})
		require.Equal(t, paused, the[*Pass](d).Claim.InPieces())
	}
}

// TestUnknownCommitMovesTheWalk: what is known of a claim counts, even if its pass has failed.
func TestUnknownCommitMovesTheWalk(t *testing.T) {
	t.Parallel()
	d := drive(t)
	d.asleep()
	d.step(0, Woken{})
	p := the[*Pass](d)
	lane := p.Claim.Starts[0].Lane
	found := Found{At: d.now.Add(time.Minute), Rows: []Seen{{Lane: lane, At: Place{Due: d.now}}}}
	before := d.claims.walk.at(lane).after
	d.step(0, &PassDone{Pass: p, Claimed: d.tasks("handled", 1), Found: found, Err: errDown})
	require.Positive(t, d.claims.walk.at(lane).after.Compare(before))
}

// TestSamePausesChangeNothing: only other pauses make the dispatcher claim again.
func TestSamePausesChangeNothing(t *testing.T) {
	t.Parallel()
	something := PausesOf(false, []string{tenant.String()})
	d := drive(t, func(c *Config) { c.Pauses = something })
	d.asleep()
	d.step(d.pausesAt.Sub(d.now), Tick{})
	generation := d.generation
	d.step(0, &PausesRead{Pauses: PausesOf(false, []string{tenant.String()})})
	require.Equal(t, generation, d.generation)
	d.step(0, &PausesRead{Pauses: NoPauses})
	require.Greater(t, d.generation, generation)
}

// TestNoThirdPass: whatever is to be tried, two passes are under way at most, and the core is not called for a third.
func TestNoThirdPass(t *testing.T) {
	t.Parallel()
	d, first, _ := atBacklog(t)
	d.rests(d.sent)
	require.Equal(t, d.now.Add(500*time.Millisecond), d.nextOfTargets(d.now))
	require.NotEqual(t, d.nextOfTargets(d.now), d.nextTime(d.now))
	d.looks.wanted, d.looks.from = true, d.now.Add(50*time.Millisecond)
	d.turns.round.wanted, d.turns.round.from = true, d.now.Add(60*time.Millisecond)
	require.Greater(t, d.nextTime(d.now).Sub(d.now), time.Second)
	d.step(500*time.Millisecond, Tick{})
	require.Equal(t, d.sent, d.tryable(d.now))
	none[*Pass](d)
	d.turns.round.wanted = false
	d.claimed(first)
	require.Equal(t, d.sent, all[*Pass](d)[0].try)
}

// TestTimers: the core is called when something is due, and not for what is under way or has ended.
func TestTimers(t *testing.T) {
	t.Parallel()
	d := drive(t, func(c *Config) { c.PollInterval, c.MaxPollInterval = time.Hour, time.Hour })
	tasks := d.tasks("handled", 1)
	d.claimed(d.first(), tasks...)
	d.asleepFrom()
	require.Equal(t, d.renewAt, d.nextTime(d.now))
	d.renewing = true
	require.NotEqual(t, d.renewAt, d.nextTime(d.now), "a renewal is under way")
	d.renewing = false
	d.reported(errclass.ClassDone, tasks...)
	d.asleepFrom()
	require.NotEqual(t, d.renewAt, d.nextTime(d.now), "there is nothing to renew")

	d = drive(t)
	d.asleep()
	require.Equal(t, d.pausesAt, d.nextTime(d.now))
	d.step(d.pausesAt.Sub(d.now), Tick{})
	require.Len(t, all[ReadPauses](d), 1)
	d.pausesAt = d.now.Add(time.Millisecond)
	require.NotEqual(t, d.pausesAt, d.nextTime(d.now), "they are being read")
}

// TestUnsettledAfterOneFailure: the end says why something could not be settled, although another pass was fine.
func TestUnsettledAfterOneFailure(t *testing.T) {
	t.Parallel()
	d, first, second := atBacklog(t)
	d.failed(first)
	d.step(0, &PassDone{Pass: second, Found: Found{At: d.now}})
	d.step(0, Stop{})
	d.step(0, DatabaseOver{})
	for len(all[*End](d)) == 0 {
		d.step(0, &PassDone{Pass: d.passes[0], Open: d.passes[0].Settle})
	}
	end := the[*End](d)
	require.Equal(t, 50, end.Unsettled)
}

// TestWhyIsUnsettled: an error is kept until what it has left open is settled.
func TestWhyIsUnsettled(t *testing.T) {
	t.Parallel()
	d, first, second := atBacklog(t)
	d.failed(first)
	d.step(0, &PassDone{Pass: second, Found: Found{At: d.now}})
	require.ErrorIs(t, d.settleErr, errDown)
}

// TestOpenReleasesAreNotClaimable: a turn has more only when its released event is known to be due again.
func TestOpenReleasesAreNotClaimable(t *testing.T) {
	t.Parallel()
	d := drive(t, takesTurns(false))
	task := d.tasks("handled", 1, inTurn("a"))[0]
	d.claimed(d.first(), task)
	task.As = Release
	d.settled(&PassDone{Pass: &Pass{Settle: []*Task{task}}, Open: []*Task{task}, Err: errDown})
	require.Empty(t, d.turns.known)
}

// TestRoomNextToIdleWorkers: little room is enough to claim if a worker has nothing to do.
func TestRoomNextToIdleWorkers(t *testing.T) {
	t.Parallel()
	d := drive(t, func(c *Config) { c.Concurrency = 10 })
	tasks := d.tasks("handled", 10)
	d.claimed(d.first(), tasks...)
	d.reported(errclass.ClassDone, tasks[0])
	require.Equal(t, 1, the[*Pass](d).want)
}

// TestOnlyTurns: a dispatcher all of whose topics have limits claims nothing without its turn.
func TestOnlyTurns(t *testing.T) {
	t.Parallel()
	d := drive(t, takesTurns(true), func(c *Config) { c.Topics = c.Topics[:1] })
	for p := d.first(); p != nil; {
		require.NotNil(t, p.Claim.Turns)
		d.claimed(p)
		passes := all[*Pass](d)
		if p = nil; len(passes) > 0 {
			p = passes[0]
		}
	}
	require.Empty(t, d.claims.unlimited([]string{"handled"}))
	d.turns.active = true
	d.turns.last = true
	d.requestClaim()
	require.True(t, d.nextIsOfTurns(d.now), "there are no others")

	d.rests(d.handled)
	require.Nil(t, d.claims.ofTurns(d.now, 10, 0, true, true, NoPauses))
	require.Equal(t, d.now.Add(lookEvery), d.turns.from, "it is not asked again at once")
}

// TestLooksTakeTurnsWithTurns: a look that is due comes after a claim of events that have turns, too.
func TestLooksTakeTurnsWithTurns(t *testing.T) {
	t.Parallel()
	d := drive(t, takesTurns(false))
	d.claimed(d.first())
	d.asleepFrom()
	d.now = d.now.Add(time.Minute)
	d.requestLook()
	d.claimable, d.turns.last, d.turns.from = false, true, time.Time{}
	require.True(t, d.turns.due(d.now))
	require.True(t, d.looks.due(d.now))
	require.False(t, d.nextIsOfTurns(d.now))
	require.True(t, d.nextIsOfTurns(d.now))
}

// TestTurnsOfTopicsThatRest: claims do not visit the lanes of topics whose targets rest, and take reclaimed events only when
// they go from turn to turn.
func TestTurnsOfTopicsThatRest(t *testing.T) {
	t.Parallel()
	d := drive(t, func(c *Config) {
		for i := range c.Topics {
			c.Topics[i].Turns = true
		}
	})
	q := d.claims.ofTurns(d.now, 10, 0, true, true, NoPauses)
	require.Len(t, q.Turns.Hops, 4)
	require.Equal(t, ReclaimsPerClaim, q.Reclaims)
	d.turns.over(q.Turns)
	d.rests(d.handled)
	q = d.claims.ofTurns(d.now, 10, 0, true, true, NoPauses)
	require.Len(t, q.Turns.Hops, 3)
	for _, h := range q.Turns.Hops {
		require.NotEqual(t, topiclane.OfTurns("handled"), h.Lane)
	}
	d.turns.over(q.Turns)
	d.turns.round.wanted = false
	q = d.claims.ofTurns(d.now, 10, 0, true, true, NoPauses)
	require.Empty(t, q.Turns.Hops)
	require.Zero(t, q.Reclaims)
}

// TestTriesGoOn: a claim that looks for an event to try begins where the one before has ended.
func TestTriesGoOn(t *testing.T) {
	t.Parallel()
	d := drive(t)
	d.rests(d.sent)
	d.now = d.now.Add(2 * time.Second)
	p := d.first()
	require.NotNil(t, p.try)
	lane := p.Claim.Starts[0].Lane
	d.step(0, &PassDone{Pass: p, Found: Found{At: d.now, Ends: map[int32]Place{lane: at(7)}}})
	p = d.until(t, func(p *Pass) bool { return p.try != nil })
	require.Equal(t, lane, p.Claim.Starts[len(p.Claim.Starts)-1].Lane)
	require.Equal(t, at(7), p.Claim.Starts[len(p.Claim.Starts)-1].After)
}

// TestRestsOfLinesAreNotClaimedAgain: claims leave out topics, not destinations that events say, so the end of such a rest, or
// of a call that took long, is no reason to claim. Nor is the first delivery after a rest.
func TestRestsOfLinesAreNotClaimedAgain(t *testing.T) {
	t.Parallel()
	d := drive(t)
	line, tasks := d.on("one", 2)
	d.tellRests(line.rest.OnResults(d.now, d.now, ids(tasks[0]), []errclass.Result{errclass.New(errclass.ClassUnavailable, "away")}))
	generation := d.generation
	d.tellRests(line.rest.OnResults(d.now, d.now, ids(tasks[0]), make([]errclass.Result, 1)))
	require.False(t, line.rest.Rests())
	d.tellRests([]rest.Note{{Target: d.sent.Rest, Change: rest.Delivers}})
	require.Equal(t, generation, d.generation)
	d.tellRests([]rest.Note{{Target: d.sent.Rest, Change: rest.Ended}})
	require.Equal(t, generation+1, d.generation)

	line.rest.CallBegins(d.now)
	s := &Send{To: d.routed, line: line, began: d.now}
	d.now = d.now.Add(rest.StallAfter)
	generation = d.generation
	d.onSent(d.now, &Sent{Send: s})
	require.Equal(t, generation, d.generation)
}

// TestDelaysBeginSmallAfterACall: of events that a destination did not take.
func TestDelaysBeginSmallAfterACall(t *testing.T) {
	t.Parallel()
	d := drive(t)
	line, _ := d.on("one", 1)
	for range 1000 {
		line.rest.LaterDelay()
	}
	long := line.rest.LaterDelay()
	line.rest.CallBegins(d.now)
	d.onSent(d.now, &Sent{Send: &Send{To: d.routed, line: line, began: d.now}})
	require.Less(t, line.rest.LaterDelay(), long)
}

// TestBusyDestinationsAreNotForgotten: however many rest.
func TestBusyDestinationsAreNotForgotten(t *testing.T) {
	t.Parallel()
	d := drive(t)
	line, _ := d.on("one", 1)
	for range 2 {
		d.forget(d.now, d.routed)
	}
	require.Same(t, line, d.routed.known["one"])
}

// TestIdleBellIsAskedOnce: the signal that nothing is due waits for the answer of the doorbell.
func TestIdleBellIsAskedOnce(t *testing.T) {
	t.Parallel()
	d := drive(t)
	d.claimed(d.first())
	ask := the[AskBell](d)
	d.looks.wanted, d.turns.round.wanted = false, false
	p := &Pass{want: 1, Claim: &Claim{Size: 1, Starts: d.claims.walk.onward(1, d.now)}, generation: d.generation}
	d.Core.out = nil
	d.onClaim(d.now, &PassDone{Pass: p, Found: Found{At: d.now}})
	require.NotContains(t, d.Core.out, SignalIdle)
	d.sleeper.OnAnswer(d.now, ask.Request, sleep.Watches)
	d.Core.out = nil
	d.onClaim(d.now, &PassDone{Pass: p, Found: Found{At: d.now}})
	require.Contains(t, d.Core.out, SignalIdle)
}

// TestOldestBatchGoesFirst: of two topics, that of the batch whose first event was claimed first.
func TestOldestBatchGoesFirst(t *testing.T) {
	t.Parallel()
	d := drive(t, asBatched(2, 0), func(c *Config) {
		c.Concurrency = 1
		c.Targets[len(c.Targets)-1].Batch = outbox.Batch{Size: 2}
	})
	first, second := d.tasks("handled", 2), d.tasks("single", 2)
	d.claimed(d.first(), append(append([]*Task{}, first...), second...)...)
	require.Equal(t, first, the[*RunBatch](d).Tasks)
	d.reportedBatch(the[*RunBatch](d), errclass.ClassDone, first...)
	require.Equal(t, second, the[*RunBatch](d).Tasks)
}

// TestOneClaimReclaims: at a time, because what it finds may kill the process, and one look is under way.
func TestOneClaimReclaims(t *testing.T) {
	t.Parallel()
	d := drive(t)
	p := d.first()
	require.True(t, p.look)
	require.True(t, p.reclaims())
	require.True(t, d.looks.running)
	require.False(t, d.mayReclaim(d.now))
	d.claimed(p)
	require.False(t, d.looks.running && len(all[*Pass](d)) == 0)
}

// TestFailedClaimOfAnAsleepDispatcher: it claims again before it sleeps.
func TestFailedClaimOfAnAsleepDispatcher(t *testing.T) {
	t.Parallel()
	d := drive(t)
	d.asleep()
	d.step(0, Woken{})
	d.failed(the[*Pass](d))
	none[AskBell](d)
}

// TestFailureToSettle: says nothing of claims.
func TestFailureToSettle(t *testing.T) {
	t.Parallel()
	d := drive(t)
	tasks := d.tasks("handled", 10)
	d.claimed(d.first(), tasks...)
	d.reported(errclass.ClassDone, tasks[0])
	p := the[*Pass](d)
	require.Zero(t, p.want)
	generation, piece := d.generation, d.claims.walk.piece
	d.failed(p)
	require.Equal(t, generation, d.generation)
	require.Equal(t, piece, d.claims.walk.piece)
	require.Equal(t, tasks[:1], d.finished)
}

// TestRoom: what is claimed is bounded by the capacity, and little room is not claimed for while every worker has something.
func TestRoom(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ inFlight, settling, want int }{
		"empty":                        {0, 0, 40},
		"a quarter":                    {30, 0, 10},
		"less than a quarter":          {31, 0, 0},
		"full":                         {40, 0, 0},
		"more than full":               {50, 0, 0},
		"as many run as there may":     {35, 25, 5},
		"one more than there may":      {36, 25, 0},
		"as many as there may, settle": {40, 30, 0},
	} {
		d := drive(t, func(c *Config) { c.BatchSize, c.Concurrency = 40, 10 })
		d.inFlight, d.settling = c.inFlight, c.settling
		require.Equal(t, c.want, d.room(d.now), name)
	}
}

// TestWhatIsTried: no target of a topic that is paused.
func TestWhatIsTried(t *testing.T) {
	t.Parallel()
	d := drive(t)
	require.Nil(t, d.tryable(d.now))
	d.rests(d.sent)
	d.now = d.now.Add(2 * time.Second)
	require.Same(t, d.sent, d.tryable(d.now))
	d.pauses = PausesOf(false, []string{"sent", "sent2"})
	require.Nil(t, d.tryable(d.now))
	d.pauses = PausesOf(false, []string{"sent"})
	require.Same(t, d.sent, d.tryable(d.now), "it has another topic")
}

// TestBrokersAreOwn: claims have left out the events of all its destinations when it rests.
func TestBrokersAreOwn(t *testing.T) {
	t.Parallel()
	d := drive(t)
	generation := d.generation
	d.tellRests([]rest.Note{{Target: d.sent.Rest.Broker, Change: rest.Ended}})
	require.Equal(t, generation+1, d.generation)
}

// TestLimitsOfTheirOwn: an event that is settled makes room for another turn only if a limit counts both.
func TestLimitsOfTheirOwn(t *testing.T) {
	t.Parallel()
	for _, apart := range []bool{false, true} {
		d := drive(t, takesTurns(true), func(c *Config) { c.Topics[0].Apart = apart })
		lane := topiclane.OfTurns("handled")
		d.turns.fill(turnAt(lane, "a"), time.Time{})
		d.turns.freed(turnAt(lane, "b"))
		require.Equal(t, apart, len(d.turns.known) == 0)
	}
}

// TestReasonsOfAFew: as many destinations as are named leave none to count.
func TestReasonsOfAFew(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]int{maxNamed: maxNamed, maxNamed + 1: maxNamed + 1, maxNamed + 5: maxNamed + 1} {
		d := drive(t)
		for i := range n {
			line := d.routed.lineOf(strconv.Itoa(i))
			line.rest.OnResults(d.now, d.now, newIDs(1), []errclass.Result{errclass.New(errclass.ClassUnavailable, "away")})
		}
		require.Len(t, Reasons(d.cfg.Targets), want)
		require.Len(t, Resting(d.cfg.Targets), want)
	}
}

// TestRememberedDestinations: up to a limit all are remembered that have something to be remembered for.
func TestRememberedDestinations(t *testing.T) {
	t.Parallel()
	d := drive(t)
	remember := func(name string) *line {
		line := d.routed.lineOf(name)
		line.rest.OnResults(d.now, d.now, newIDs(1), []errclass.Result{errclass.New(errclass.ClassFailed, "no")})
		return line
	}
	for i := range maxIdle - 1 {
		remember(strconv.Itoa(i))
	}
	d.forgetUnused(d.now, d.routed, remember("last"))
	require.Len(t, d.routed.known, maxIdle)
	d.forgetUnused(d.now, d.routed, remember("more"))
	require.Len(t, d.routed.known, maxIdle+1-maxIdle/10)
}

// TestOneCallPerDestination: what comes while it is under way waits.
func TestOneCallPerDestination(t *testing.T) {
	t.Parallel()
	d := drive(t)
	tasks := d.tasks("routed", 2)
	d.claimed(d.first(), tasks...)
	d.step(0, &Routed{Route: the[*Route](d), Destinations: []Destined{{"one", tasks[:1]}}})
	s := the[*Send](d)
	d.addToLine(d.routed, d.routed.known["one"], tasks[1])
	d.step(0, Tick{})
	none[*Send](d)
	d.sentAll(s, errclass.ClassDone)
	require.Equal(t, tasks[1:], the[*Send](d).Tasks)
}

// TestResultsOfPublishers: only calls say something of a target, not events that were never sent.
func TestResultsOfPublishers(t *testing.T) {
	t.Parallel()
	d := drive(t)
	tasks := d.tasks("sent", 1)
	d.claimed(d.first(), tasks...)
	d.reported(errclass.ClassUnavailable, tasks...)
	require.False(t, d.sent.Rest.Resting())
}

// TestTryThatEndsUntried: a try that could not be repeated leaves the target to the next one.
func TestTryThatEndsUntried(t *testing.T) {
	t.Parallel()
	d := drive(t)
	d.rests(d.handled)
	d.now = d.now.Add(2 * time.Second)
	p := d.first()
	require.Same(t, d.handled, p.try)
	task := d.tasks("handled", 1)[0]
	d.claimed(p, task)
	require.True(t, task.admitted)
	task.Tried, task.Ended = true, true
	d.step(0, &Reported{Tasks: []*Task{task}})
	n, _ := d.handled.Rest.Admit(d.now, 1)
	require.Equal(t, 1, n)
}

// TestReadyInTheOrderOfClaims: an event that has a turn comes before one without that was claimed after it.
func TestReadyInTheOrderOfClaims(t *testing.T) {
	t.Parallel()
	for _, turnFirst := range []bool{false, true} {
		d := drive(t, takesTurns(false), func(c *Config) { c.Concurrency = 1 })
		tasks := append(d.tasks("handled", 1), d.tasks("handled", 1, inTurn("a"))...)
		if turnFirst {
			tasks[0], tasks[1] = tasks[1], tasks[0]
		}
		d.claimed(d.first(), tasks...)
		require.Equal(t, tasks[0], the[Run](d).Task)
		d.reported(errclass.ClassDone, tasks[0])
		require.Equal(t, tasks[1], the[Run](d).Task)
	}
}

// TestReleasedWithoutATurn: no turn has more because of it.
func TestReleasedWithoutATurn(t *testing.T) {
	t.Parallel()
	d := drive(t, takesTurns(false))
	task := d.tasks("handled", 1)[0]
	d.claimed(d.first(), task)
	task.As = Release
	d.settled(&PassDone{Pass: &Pass{Settle: []*Task{task}}})
	require.Empty(t, d.turns.known)
}

// TestSuspects: nothing is suspected any more when they are finished.
func TestSuspects(t *testing.T) {
	t.Parallel()
	d := drive(t, asBatched(4, 0))
	task := d.tasks("handled", 1, again(2))[0]
	d.claimed(d.first(), task)
	require.True(t, d.suspecting(d.now))
	d.reportedBatch(all[*RunBatch](d)[0], errclass.ClassDone, task)
	require.False(t, d.suspecting(d.now))
}

// TestTriedBatchDoesNotWait: the event that finds out whether a target is available again begins at once.
func TestTriedBatchDoesNotWait(t *testing.T) {
	t.Parallel()
	d := drive(t, asBatched(4, time.Hour))
	d.rests(d.handled)
	d.now = d.now.Add(2 * time.Second)
	p := d.first()
	require.Same(t, d.handled, p.try)
	d.claimed(p, d.tasks("handled", 1)...)
	require.Equal(t, []int{1}, d.sizes())
}

// TestReclaimedBatchesWaitForNobody: they are as large as they will be.
func TestReclaimedBatchesWaitForNobody(t *testing.T) {
	t.Parallel()
	d := drive(t, asBatched(8, 0), func(c *Config) { c.Concurrency, c.Ahead = 1, 1 })
	single := d.tasks("single", 1)
	d.claimed(d.first(), append(single, d.tasks("handled", 2, again(2))...)...)
	require.Equal(t, Run{single[0]}, the[Run](d))
	require.Equal(t, []int{2}, d.sizes(), "ahead of a free worker")
}

// TestClaimableTakesTurns: a claim of events without turns is next after one of turns, if something may be claimable.
func TestClaimableTakesTurns(t *testing.T) {
	t.Parallel()
	d := drive(t, takesTurns(false))
	d.claimed(d.first())
	d.asleepFrom()
	d.turns.wake()
	d.turns.from, d.turns.last, d.claimable = time.Time{}, true, true
	require.False(t, d.looks.due(d.now))
	require.True(t, d.turns.due(d.now))
	require.False(t, d.nextIsOfTurns(d.now))
	d.turns.last, d.claimable = true, false
	require.True(t, d.nextIsOfTurns(d.now), "there is nothing else")
}

// TestPausedTopicsNextToLimits: if all topics that have no limits are paused, nothing is claimed of them.
func TestPausedTopicsNextToLimits(t *testing.T) {
	t.Parallel()
	d := drive(t, takesTurns(true), func(c *Config) { c.Topics = c.Topics[:2] })
	starts := d.claims.onward(d.now)
	require.Equal(t, []string{"sent"}, d.claims.request(d.now, 10, false, NoPauses, starts).Topics)
	require.Nil(t, d.claims.request(d.now, 10, false, PausesOf(false, []string{"sent"}), starts))
}

// TestTriesBeginAgain: after one that has found an event, the next looks from the head.
func TestTriesBeginAgain(t *testing.T) {
	t.Parallel()
	d := drive(t)
	d.rests(d.sent)
	d.now = d.now.Add(2 * time.Second)
	p := d.first()
	found := Found{At: d.now, Rows: []Seen{row(0, 1)}, Ends: map[int32]Place{0: at(1)}}
	d.step(0, &PassDone{Pass: p, Claimed: d.tasks("sent", 1), Found: found})
	require.Empty(t, d.claims.tries)
}

// TestWhenNothingIsDue: that is so only if no look and no round is to come, and the walk and the turns have no more.
func TestWhenNothingIsDue(t *testing.T) {
	t.Parallel()
	idle := func(change func(d *driven)) *driven {
		d := drive(t, takesTurns(false))
		d.claimed(d.first())
		d.asleepFrom()
		d.looks.wanted, d.turns.round.wanted, d.turns.fresh, d.claimable, d.now = false, false, false, true, d.now.Add(time.Minute)
		q := d.claims.request(d.now, 10, false, NoPauses, d.claims.onward(d.now))
		p := &Pass{want: 10, Claim: q, generation: d.generation}
		d.Core.out = nil
		change(d)
		d.onClaim(d.now, &PassDone{Pass: p, Found: Found{At: d.now}})
		d.out = d.Core.out
		return d
	}
	require.Contains(t, idle(func(*driven) {}).out, SignalIdle)
	require.NotContains(t, idle(func(d *driven) { d.looks.wanted = true }).out, SignalIdle)
	require.NotContains(t, idle(func(d *driven) { d.turns.round.wanted, d.turns.round.from = true, d.now.Add(time.Hour) }).out, SignalIdle)
	asks := func(d *driven) { d.sleeper.OnRing() }
	require.Len(t, all[AskBell](idle(asks)), 1)
	d := idle(func(d *driven) { asks(d); d.turns.know(TurnStart{Turn: turnAt(1, "a")}) })
	none[AskBell](d)
	d = idle(func(d *driven) { asks(d); d.claims.walk.stages[0] = stage{} })
	none[AskBell](d)
	require.True(t, d.claimable, "the walk has more")
}

// TestLookSaysNothingOfLeftOutLanes: whether they were left out by the claim before or not.
func TestLookSaysNothingOfLeftOutLanes(t *testing.T) {
	t.Parallel()
	d := drive(t)
	d.asleep()
	d.claimable, d.claims.walk.partial = true, true
	p := &Pass{want: 10, Claim: &Claim{Size: 10, Starts: d.looks.starts(&d.claims.walk)(10)}, look: true, generation: d.generation}
	d.onClaim(d.now, &PassDone{Pass: p, Found: Found{At: d.now}})
	require.False(t, d.claimable)
}

// TestPollsOfTurnsGrow: without a doorbell, while claims of turns find nothing, as others do.
func TestPollsOfTurnsGrow(t *testing.T) {
	t.Parallel()
	d := drive(t, takesTurns(true), func(c *Config) { c.Topics, c.Doorbell = c.Topics[:1], false })
	d.claimed(d.first())
	for range 8 {
		for len(all[*Pass](d)) > 0 {
			d.claimed(the[*Pass](d))
		}
		d.step(d.sleeper.PollAt().Sub(d.now), Tick{})
		for range all[ReadPauses](d) {
			passes := all[*Pass](d)
			d.step(0, &PausesRead{Pauses: NoPauses})
			d.out = append(d.out, toCommands(passes)...)
		}
	}
	require.Greater(t, d.sleeper.PollAt().Sub(d.now), 20*time.Second)
}

func toCommands(passes []*Pass) (all []Command) {
	for _, p := range passes {
		all = append(all, p)
	}
	return all
}
