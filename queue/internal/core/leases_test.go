package core

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/machine/sleep"
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

// TestLastAttempt: an event that may kill its process runs alone if possible, and stops claims for a while.
func TestLastAttempt(t *testing.T) {
	t.Parallel()
	suspect := func(t *Task) { t.Reclaimed, t.Attempt = true, 3 }
	last := func(t *Task) { t.Attempt = 3 }
	for name, c := range map[string]struct {
		others []func(*Task)
		report bool // the others are reported after half a second
		want   time.Duration
	}{
		"alone":                        {want: 0},
		"after the others":             {others: []func(*Task){func(*Task) {}}, report: true, want: 501 * time.Millisecond},
		"next to a long handler":       {others: []func(*Task){func(*Task) {}}, want: time.Second},
		"next to another last attempt": {others: []func(*Task){last}, want: 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := drive(t)
			p := d.first()
			var others []*Task
			if c.others != nil {
				others = d.tasks("handled", 1, c.others...)
				d.claimed(p, others...)
				p = the[*Pass](d)
			}
			began := d.now.Add(time.Millisecond)
			task := d.tasks("handled", 1, suspect)[0]
			d.claimed(p, task)
			none[*Pass](d) // claims are paused
			started := func() bool {
				for _, r := range all[Run](d) {
					if r.Task == task {
						return true
					}
				}
				return false
			}
			for !started() {
				at := d.nextTime(d.now)
				if c.report && !d.now.Before(began.Add(400*time.Millisecond)) {
					d.step(began.Add(500*time.Millisecond).Sub(d.now), Tick{})
					d.reported(errclass.ClassDone, others...)
					for _, p := range all[*Pass](d) {
						d.claimed(p)
					}
					c.report = false
					continue
				}
				if c.report {
					at = began.Add(400 * time.Millisecond)
				}
				require.False(t, at.IsZero())
				d.step(at.Sub(d.now), Tick{})
				for _, r := range all[*Renew](d) {
					d.step(0, &Renewed{Renew: r, Outcomes: make([]RenewalOutcome, len(r.Tasks))})
				}
				for _, p := range all[*Pass](d) {
					require.False(t, p.reclaims(), "one of them might kill the process, too")
					d.claimed(p)
				}
			}
			require.InDelta(t, c.want, d.now.Sub(began), float64(4*time.Millisecond))
			require.True(t, d.claimsPaused(d.now), "it usually kills soon")
			d.reported(errclass.ClassDone, task)
			require.Nil(t, d.lastAttempt)
		})
	}
}

// TestLeasesAreRenewed: when a third has passed, until they are lost.
func TestLeasesAreRenewed(t *testing.T) {
	t.Parallel()
	d := drive(t, func(c *Config) { c.PollInterval, c.MaxPollInterval, c.Concurrency = time.Hour, time.Hour, 1 })
	tasks := d.tasks("handled", 3)
	d.claimed(d.first(), tasks...)
	d.claimed(the[*Pass](d))
	require.Empty(t, d.AtRisk(d.now))
	for len(all[*Renew](d)) == 0 {
		at := d.nextTime(d.now)
		d.step(at.Sub(d.now), Tick{})
		for _, p := range all[*Pass](d) {
			d.claimed(p)
		}
		for range all[AskBell](d) {
			d.step(0, Answered{Request: d.sleeper.Request(), Bell: sleep.Watches})
		}
	}
	r := the[*Renew](d)
	require.Equal(t, tasks, r.Tasks)
	require.InDelta(t, 12*time.Second, d.now.Sub(start), float64(time.Second), "at the first tick after a third")
	require.InDelta(t, 6*time.Second, r.Until.Sub(d.now), float64(time.Second))
	d.step(3*time.Second, Tick{})
	none[*Renew](d) // one is under way
	d.step(0, &Renewed{Renew: r})
	require.Len(t, all[*Renew](d), 1, "it has failed: once more")
	r = the[*Renew](d)
	d.step(0, &Renewed{Renew: r, Outcomes: []RenewalOutcome{Prolonged, Gone, Kept}})
	require.Contains(t, d.out, SignalRenewed)
	require.Equal(t, Lost{tasks[1]}, the[Lost](d))
	require.True(t, tasks[1].unstarted, "it has not begun, so it is released")
	require.Equal(t, r.sent.Add(30*time.Second), tasks[0].deadline)
	require.Equal(t, []uuid.UUID{tasks[1].ID, tasks[2].ID}, d.AtRisk(d.now), "the lost one, and the one that was not renewed")
	d.step(tasks[2].deadline.Sub(d.now), Tick{})
	require.Contains(t, all[Lost](d), Lost{tasks[2]}, "its end is near")
	r = the[*Renew](d)
	require.Equal(t, tasks[:1], r.Tasks)
	d.step(tasks[0].deadline.Sub(d.now), &Renewed{Renew: r})
	require.Contains(t, all[Lost](d), Lost{tasks[0]}, "it is cancelled")
	d.step(0, &Renewed{Renew: r, Outcomes: []RenewalOutcome{Prolonged}})
	require.True(t, tasks[0].lost, "too late")
	before := d.inFlight
	d.reported(errclass.ClassFailed, tasks[0])
	require.Equal(t, Drop{tasks[0]}, the[Drop](d), "a failure may be another worker's now")
	require.Equal(t, before-1, d.inFlight)
	require.NotContains(t, d.leases.tasks, tasks[0])
}

// TestEndBeforeStart: what a worker did not begin because the run had ended is handed back as if it had waited here.
func TestEndBeforeStart(t *testing.T) {
	t.Parallel()
	d := drive(t, func(c *Config) { c.Concurrency = 1 })
	tasks := d.tasks("handled", 2)
	d.claimed(d.first(), tasks...)
	d.step(0, Stop{})
	tasks[0].Ended = true
	d.step(0, &Reported{Tasks: tasks[:1]})
	none[Lost](d)
	require.True(t, tasks[0].unstarted)
	require.Equal(t, notStarted, tasks[0].Result)
}

// TestSlowPayloads: an event that took too long to open is handed back with what it says, and later claims leave more time.
func TestSlowPayloads(t *testing.T) {
	t.Parallel()
	for name, report := range map[string]func(d *driven, tasks []*Task){
		"one": func(d *driven, tasks []*Task) { d.step(0, &Reported{Tasks: tasks}) },
		"a batch": func(d *driven, tasks []*Task) {
			d.step(0, &BatchReported{Batch: &RunBatch{Tasks: tasks, left: 1}, Tasks: tasks})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := drive(t)
			tasks := d.tasks("handled", 1)
			d.claimed(d.first(), tasks...)
			waits := errclass.New(errclass.ClassNotSent, "its payload took long")
			waits.Waits = true
			tasks[0].Ended, tasks[0].Result, tasks[0].Opened = true, waits, time.Second
			report(d, tasks)
			require.True(t, tasks[0].unstarted)
			require.Equal(t, waits, tasks[0].Result)
			require.Equal(t, slackFactor*time.Second, d.turns.slack)
		})
	}
}

// TestLateStart: what was given out and could not begin in time, or waits while its lease runs out, is released.
func TestLateStart(t *testing.T) {
	t.Parallel()
	for _, topic := range []string{"handled", "sent"} {
		d := drive(t, func(c *Config) { c.Concurrency = 1 })
		tasks := d.tasks(topic, 2)
		d.claimed(d.first(), tasks...)
		tasks[0].Late, tasks[0].Result = true, notStarted
		d.now = d.now.Add(29 * time.Second)
		d.leases.renewing = true // not yet noticed
		d.step(0, &Reported{Tasks: tasks[:1]})
		if topic == "handled" {
			require.Equal(t, []Lost{{tasks[0]}, {tasks[1]}}, all[Lost](d))
			require.Equal(t, "its lease ran out before it was handled", tasks[1].Result.Text)
			require.True(t, tasks[1].unstarted)
		} else {
			require.Equal(t, []Lost{{tasks[0]}}, all[Lost](d), "the other is in the call")
		}
		none[Run](d)
		require.True(t, tasks[0].unstarted)
	}
	d := drive(t)
	d.claimed(d.first(), d.tasks("sent", 1)...)
	late := d.tasks("sent", 1)[0]
	d.adopt(late, d.sent)
	d.start(late)
	d.now = d.now.Add(29 * time.Second)
	d.leases.renewing = true
	d.sentAll(the[*Send](d), errclass.ClassDone)
	none[*Send](d)
	require.True(t, late.unstarted)
}

// TestDoneAfterLossIsSettled: a success after the lease was lost is settled anyway: the fence decides.
func TestDoneAfterLossIsSettled(t *testing.T) {
	t.Parallel()
	d := drive(t)
	task := d.tasks("handled", 1)[0]
	d.claimed(d.first(), task)
	d.claimed(the[*Pass](d))
	d.lose(task)
	d.reported(errclass.ClassDone, task)
	require.Equal(t, []*Task{task}, the[*Pass](d).Settle)
}
