package core

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
)

// TestLeasesAreLookedAt: every tick, however many are added meanwhile.
func TestLeasesAreLookedAt(t *testing.T) {
	t.Parallel()
	d := drive(t)
	tasks := d.tasks("handled", 2)
	d.leases.add(start, tasks[0])
	require.Equal(t, start.Add(d.tick()), d.renewAt)
	d.leases.add(start.Add(time.Second), tasks[1])
	require.Equal(t, start.Add(d.tick()), d.renewAt)
}

// TestAtRisk: those whose lease may be over, and those that are given up.
func TestAtRisk(t *testing.T) {
	t.Parallel()
	d := drive(t)
	tasks := d.tasks("handled", 3)
	for _, task := range tasks {
		d.leases.add(start, task)
	}
	tasks[0].deadline, tasks[1].lost = start.Add(d.margin()), true
	require.Equal(t, ids(tasks[:2]...), d.AtRisk(start))
}

// TestLostOnce: a task that is given up is not given up again when it cannot begin.
func TestLostOnce(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{false, true} {
		d := drive(t)
		task := d.tasks("handled", 1)[0]
		d.adopt(task, d.handled)
		task.deadline, task.lost = d.now, lost
		d.Core.out = nil
		require.False(t, d.begin(d.now, task, "handled"))
		d.out = d.Core.out
		require.Equal(t, !lost, len(all[Lost](d)) == 1)
	}
}

// TestPassesSideBySide: a pass that begins changes nothing of what another does.
func TestPassesSideBySide(t *testing.T) {
	t.Parallel()
	d := drive(t)
	d.first()
	require.True(t, d.looks.running)
	require.True(t, d.reclaiming)
	tasks := d.tasks("handled", 1)
	d.adopt(tasks[0], d.handled)
	d.finished = tasks
	d.beginPass(d.now, &Pass{})
	require.Len(t, d.passes, 2)
	require.True(t, d.looks.running)
	require.True(t, d.reclaiming)
}

// TestSlowClaims: only claims of passes that did nothing else say how long it takes to find nothing.
func TestSlowClaims(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ settles, claims, slow bool }{
		"nothing": {false, false, true}, "settles": {true, false, false}, "claims": {false, true, false},
	} {
		d := drive(t)
		for range 2 {
			p := &Pass{want: 1, Claim: d.claims.request(d.now, 1, false, NoPauses, d.claims.onward(d.now)), began: d.now}
			var claimed []*Task
			if c.settles {
				p.Settle = d.tasks("handled", 1)
				d.adopt(p.Settle[0], d.handled)
			}
			if c.claims {
				claimed = d.tasks("handled", 1)
			}
			d.onPassDone(d.now.Add(time.Second), &PassDone{Pass: p, Claimed: claimed, Found: Found{At: d.now}})
		}
		require.Equal(t, c.slow, d.emptyClaims.Pause() > 0, name)
	}
}

// TestTurnsAfterAFailure: they are looked for again if the claim was of turns.
func TestTurnsAfterAFailure(t *testing.T) {
	t.Parallel()
	for _, ofTurns := range []bool{false, true} {
		d := drive(t, takesTurns(false))
		p := d.first()
		require.True(t, p.turns)
		if !ofTurns {
			d.claimed(p)
			p = the[*Pass](d)
		}
		require.Equal(t, ofTurns, p.turns)
		d.turns.know(TurnStart{Turn: turnAt(d.turns.lanes[0], "a")})
		d.failed(p)
		require.Equal(t, ofTurns, len(d.turns.known) == 0)
	}
}

// TestQuickCalls: only a call that took long has kept claims from what waits for its target.
func TestQuickCalls(t *testing.T) {
	t.Parallel()
	d := drive(t)
	d.claimed(d.first(), d.tasks("sent", 1)...)
	s := the[*Send](d)
	generation := d.generation
	d.sentAll(s, errclass.ClassDone)
	require.Equal(t, generation, d.generation)
}

// TestStopTwice: the second time changes nothing, also of a pause.
func TestStopTwice(t *testing.T) {
	t.Parallel()
	d := drive(t)
	tasks := d.tasks("handled", 1)
	d.claimed(d.first(), tasks...)
	for _, p := range all[*Pass](d) {
		d.claimed(p)
	}
	d.reported(errclass.ClassDone, tasks...)
	d.step(0, Stop{})
	for len(d.passes) > 0 {
		d.failed(d.passes[0])
	}
	require.True(t, d.now.Before(d.pausedUntil))
	d.step(0, Stop{})
	none[*Pass](d)
}

// TestPollClaims: a poll makes the dispatcher claim, and not only look from the head.
func TestPollClaims(t *testing.T) {
	t.Parallel()
	d := drive(t)
	d.asleep()
	d.looks.from, d.turns.stray = d.now.Add(time.Hour), d.now.Add(time.Hour)
	d.step(d.sleeper.PollAt().Sub(d.now), Tick{})
	require.False(t, the[*Pass](d).look)
}

// TestNextOfBothKinds: what comes next for a worker is what was claimed first, with a turn or without.
func TestNextOfBothKinds(t *testing.T) {
	t.Parallel()
	d := drive(t, takesTurns(false))
	turn, plain := d.tasks("handled", 1, inTurn("a"))[0], d.tasks("handled", 1)[0]
	for _, task := range []*Task{turn, plain} {
		task.to = d.handled
		d.start(task)
	}
	require.Same(t, turn, d.peekReady())
	require.Same(t, turn, d.nextReady())
	require.Same(t, plain, d.peekReady())
	require.Same(t, plain, d.nextReady())
	require.Nil(t, d.nextReady())
}

// TestAnyReleaseIsLookedFor: also if what is settled after it is done.
func TestAnyReleaseIsLookedFor(t *testing.T) {
	t.Parallel()
	d := drive(t)
	d.asleep()
	tasks := d.tasks("handled", 2)
	for _, task := range tasks {
		d.adopt(task, d.handled)
	}
	tasks[0].As = Release
	d.settled(&PassDone{Pass: &Pass{Settle: tasks}})
	require.True(t, d.looks.wanted)
}

// TestNoTriesBesideALastAttempt: they are claims, too.
func TestNoTriesBesideALastAttempt(t *testing.T) {
	t.Parallel()
	d := drive(t)
	d.rests(d.sent)
	d.now = d.now.Add(2 * time.Second)
	require.Same(t, d.sent, d.tryable(d.now))
	d.lastAttempt, d.lastAttemptSince = d.tasks("handled", 1)[0], d.now
	require.Nil(t, d.tryable(d.now))
}

// TestLanesOfTries: an event that is tried is of a topic of the target.
func TestLanesOfTries(t *testing.T) {
	t.Parallel()
	d := drive(t, func(c *Config) { c.Topics[0].Turns, c.Topics[1].Turns = true, true })
	for target, topics := range map[*Target][]string{d.sent: {"sent"}, d.handled: {"handled"}, d.routed: nil} {
		lanes, some := d.claims.turnLanes(target)
		require.Equal(t, TurnLanesOf(topics), lanes)
		require.Equal(t, len(topics) > 0, some)
	}
}

// TestCrowded: a batch that fills waits while a quarter of the capacity is free.
func TestCrowded(t *testing.T) {
	t.Parallel()
	d := drive(t, func(c *Config) { c.BatchSize = 40 })
	d.inFlight = 30
	require.False(t, d.crowded())
	d.inFlight = 31
	require.True(t, d.crowded())
}
