package core

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/machine/sleep"
	"github.com/outboxgen/outboxgen/internal/postgres/topiclane"
)

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
	require.Nil(t, d.claims.ofTurns(d.now, 10, workers{}, true, true, NoPauses))
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
	q := d.claims.ofTurns(d.now, 10, workers{}, true, true, NoPauses)
	require.Len(t, q.Turns.Hops, 4)
	require.Equal(t, ReclaimsPerClaim, q.Reclaims)
	d.turns.over(q.Turns)
	d.rests(d.handled)
	q = d.claims.ofTurns(d.now, 10, workers{}, true, true, NoPauses)
	require.Len(t, q.Turns.Hops, 3)
	for _, h := range q.Turns.Hops {
		require.NotEqual(t, topiclane.OfTurns("handled"), h.Lane)
	}
	d.turns.over(q.Turns)
	d.turns.round.wanted = false
	q = d.claims.ofTurns(d.now, 10, workers{}, true, true, NoPauses)
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
		d.looks.wanted, d.turns.round.wanted, d.turns.fresh, d.claimable, d.now = false, false, false, false, d.now.Add(time.Minute)
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
	asks := func(d *driven) { d.sleeper.OnRing(false) }
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
	d.claims.walk.stages[0] = stage{}
	d.onClaim(d.now, &PassDone{Pass: p, Found: Found{At: d.now}})
	require.False(t, d.claimable, "the look goes on by itself")
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
