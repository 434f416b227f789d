package core

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/machine/sleep"
)

// TestWhenEnqueuesNeedNotRing: when many events were found lately, when there is a backlog, when half of the room is
// taken, and when an event waits for a handler to return.
func TestWhenEnqueuesNeedNotRing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		found, inFlight int
		backlog         bool
		running         int
		after           time.Duration // since the others were found
		busy            bool
	}{
		"few":               {found: 1},
		"as many as few":    {found: fewEvents},
		"many":              {found: fewEvents + 1, busy: true},
		"many in two parts": {found: fewEvents, after: fewWithin + 1},
		"a backlog":         {found: 1, backlog: true, busy: true},
		"room":              {found: 1, inFlight: 4},
		"half of the room":  {found: 1, inFlight: 5, busy: true},
		"all handlers":      {found: 1, running: 2},
		"one waits":         {found: 1, running: 3, busy: true},
	} {
		d := drive(t)
		d.foundSince, d.found = d.now, 0
		if c.after > 0 {
			require.False(t, d.isBusy(d.now, 1), name)
		}
		d.backlog, d.inFlight, d.running = c.backlog, c.inFlight, c.running
		require.Equal(t, c.busy, d.isBusy(d.now.Add(c.after), c.found), name)
	}
}

// TestRingBesideAPass: a claim follows a ring although it is for less than half a batch, which a pass under way keeps back
// otherwise.
func TestRingBesideAPass(t *testing.T) {
	t.Parallel()
	d := drive(t)
	tasks := d.tasks("handled", 8)
	d.claimed(d.first(), tasks...)
	d.asleepFrom()
	d.reported(errclass.ClassDone, tasks[0])
	require.Nil(t, the[*Pass](d).Claim)
	d.requestClaim()
	d.step(0, Tick{})
	none[*Pass](d)
	d.step(0, Woken{})
	require.Equal(t, 2, the[*Pass](d).Claim.Size)
}

// TestRingBesideAClaimOfTurns: claims of events that have turns follow each other, so that a ring leaves no room for another.
func TestRingBesideAClaimOfTurns(t *testing.T) {
	t.Parallel()
	for active, size := range map[bool]int{false: 5, true: 10} {
		d := drive(t, func(c *Config) { c.Topics[0].Turns = active })
		d.step(0, Woken{})
		require.Equal(t, size, the[*Pass](d).Claim.Size)
	}
}

// TestWalkGoesOnBesideLooks: a look that has found nothing in its piece says nothing of where the main walk is, which goes
// on at once.
func TestWalkGoesOnBesideLooks(t *testing.T) {
	t.Parallel()
	d := drive(t)
	p := d.first()
	require.True(t, p.look)
	ends := map[int32]Place{}
	for _, lane := range d.claims.walk.lanes {
		ends[lane] = Place{Due: d.now.Add(-time.Hour)}
	}
	d.step(time.Millisecond, &PassDone{Pass: p, Found: Found{At: d.now, Took: time.Millisecond, Ends: ends}})
	require.False(t, the[*Pass](d).look)
}

// TestEnqueuesThatRingForNobody: the doorbell is told that enqueues need not ring only where it was asked for rings.
func TestEnqueuesThatRingForNobody(t *testing.T) {
	t.Parallel()
	d := drive(t)
	d.claimed(d.first(), d.tasks("handled", 10)...)
	require.True(t, d.isBusy(d.now, 0))
	none[AskBell](d)
}

// TestFreedWithNobodyWaiting: the settled event of a turn makes room that no other turn of its lane waits for.
func TestFreedWithNobodyWaiting(t *testing.T) {
	t.Parallel()
	w := turned()
	w.shared[7] = true
	w.fill(turnAt(8, "a"), time.Time{})
	w.freed(turnAt(7, "b"))
	require.Empty(t, w.known)
}

// TestLastAttemptsOfABatch: they count, unless they were made together with others and failed with them.
func TestLastAttemptsOfABatch(t *testing.T) {
	t.Parallel()
	for _, shared := range []bool{false, true} {
		d := drive(t, asBatched(2, 0))
		task := d.tasks("handled", 1, func(t *Task) { t.Attempt = t.MaxAttempts })[0]
		d.claimed(d.first(), task)
		task.Shared = shared
		d.reportedBatch(all[*RunBatch](d)[0], errclass.ClassFailed, task)
		require.Equal(t, shared, task.unstarted)
	}
}

// TestRingDuringAClaim: a claim that was under way when the doorbell rang, and that finds nothing, does not make the
// dispatcher sleep. The same holds for a poll and an answer.
func TestRingDuringAClaim(t *testing.T) {
	t.Parallel()
	for name, e := range map[string]Event{
		"ring": Woken{}, "answer": Answered{Request: 1, Bell: sleep.Watches}, "poll": Tick{},
		"connection lost": Answered{Bell: sleep.Gone},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := drive(t)
			p := d.first()
			after := time.Millisecond
			if name == "poll" {
				after = 10 * time.Second
			}
			if name == "answer" {
				d.sleeper.Idle()
			}
			d.step(after, e)
			d.claimed(p)
			if len(all[*Pass](d)) == 0 { // a look waits for its time
				d.step(time.Hour, Tick{})
			}
			require.NotEmpty(t, all[*Pass](d))
		})
	}
}

// TestEmptyClaimKeepsWakeArmed: a claim that was under way when a poll requested another one does not withdraw the
// request to the doorbell.
func TestEmptyClaimKeepsWakeArmed(t *testing.T) {
	t.Parallel()
	d := drive(t)
	d.claimed(d.first())
	require.True(t, the[AskBell](d).Asleep)
	d.step(time.Second, Woken{})
	late := the[*Pass](d)
	d.step(0, Woken{})
	require.Len(t, all[*Pass](d), 1)
	d.claimed(late)
	none[AskBell](d)
	require.True(t, d.sleeper.IsAsleep())
}

// TestDoorbell: the dispatcher sleeps when somebody watches, pauses when nobody can, and tells when it is awake.
func TestDoorbell(t *testing.T) {
	t.Parallel()
	d := drive(t)
	d.claimed(d.first())
	ask := the[AskBell](d)
	d.step(0, Answered{Request: ask.Request - 1, Bell: sleep.Watches})
	none[*Pass](d) // the answer to an earlier request
	d.step(0, Answered{Request: ask.Request, Bell: sleep.Busy})
	require.Contains(t, d.out, SignalRefused)
	none[*Pass](d)
	d.step(time.Millisecond, Tick{})
	d.claimed(the[*Pass](d))
	ask = the[AskBell](d)
	d.step(0, Answered{Request: ask.Request, Bell: sleep.Watches})
	room := the[*Pass](d).want
	d.claimed(the[*Pass](d), d.tasks("handled", room)...)
	require.False(t, the[AskBell](d).Asleep, "enqueues need not ring")
	require.IsType(t, Run{}, d.out[0], "the handler competes with what the others wake, so it starts first")
}

// watched returns a dispatcher that sleeps, and whose doorbell watches.
func watched(t *testing.T) *driven {
	d := drive(t)
	d.claimed(d.first())
	d.settle()
	return d
}

// TestEnqueuesRingWhileLittleIsFound: each event is claimed as soon as it is committed, until there are many.
func TestEnqueuesRingWhileLittleIsFound(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		every time.Duration
		busy  bool
	}{"few": {2 * time.Millisecond, false}, "many": {time.Millisecond, true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := watched(t)
			for range 2 * fewEvents {
				began := d.now
				d.step(0, Woken{})
				d.claimed(the[*Pass](d), d.tasks("handled", 1)...)
				if asks := all[AskBell](d); len(asks) > 0 {
					require.True(t, c.busy)
					require.False(t, asks[0].Asleep)
					return
				}
				task := the[Run](d).Task
				claims := the[*Pass](d)
				d.step(0, &Reported{Tasks: []*Task{task}})
				d.claimed(claims)
				d.now = began.Add(c.every)
			}
			require.False(t, c.busy)
			require.True(t, d.sleeper.IsAsleep())
		})
	}
}

// TestRingIsFollowedBesideAnotherPass: that pass may have chosen what it claims before the event was committed, and it
// waits for its commit.
func TestRingIsFollowedBesideAnotherPass(t *testing.T) {
	t.Parallel()
	d := watched(t)
	d.step(time.Second, Woken{})
	first := the[*Pass](d)
	d.step(0, Tick{})
	none[*Pass](d)
	d.step(0, Woken{})
	second := the[*Pass](d)
	require.NotNil(t, second.Claim)
	d.step(0, Woken{})
	none[*Pass](d) // two are enough
	d.claimed(first)
	require.NotNil(t, the[*Pass](d).Claim, "of the third ring")
}

// TestRefusalsGrow: while a transaction that has enqueued is open, the pauses grow when nothing was found for a second.
func TestRefusalsGrow(t *testing.T) {
	t.Parallel()
	d := drive(t, func(c *Config) { c.Random = func(d time.Duration) time.Duration { return d } })
	refuse := func() time.Duration {
		d.sleeper.Idle()
		look, pause := d.sleeper.OnAnswer(d.now, d.sleeper.Request(), sleep.Busy)
		require.True(t, look)
		d.now = d.now.Add(pause)
		return pause
	}
	for began := d.now; d.now.Sub(began) < 900*time.Millisecond; {
		require.LessOrEqual(t, refuse(), 3*time.Millisecond)
	}
	var longest time.Duration
	for range 500 {
		longest = max(longest, refuse())
	}
	require.Equal(t, 25*time.Millisecond, longest)
	d.sleeper.Found(d.now)
	require.LessOrEqual(t, refuse(), 3*time.Millisecond)
}

// TestPollsWithoutADoorbell: they become rarer while nothing is found, up to a limit, and frequent again.
func TestPollsWithoutADoorbell(t *testing.T) {
	t.Parallel()
	d := drive(t, func(c *Config) { c.Doorbell = false })
	d.claimed(d.first())
	require.Contains(t, d.out, SignalIdle)
	none[AskBell](d)
	var gaps []time.Duration
	for range 4 {
		at := d.sleeper.PollAt()
		d.step(at.Sub(d.now), Tick{})
		for d.looks.wanted {
			for _, p := range all[*Pass](d) {
				d.claimed(p)
			}
			if d.looks.wanted && len(d.passes) == 0 {
				d.step(100*time.Millisecond, Tick{})
			}
		}
		gaps = append(gaps, d.sleeper.PollAt().Sub(at).Round(time.Second))
	}
	require.Equal(t, []time.Duration{20 * time.Second, 40 * time.Second, 40 * time.Second, 40 * time.Second}, gaps)
	d.sleeper.Found(d.now)
	require.Equal(t, 10*time.Second, d.sleeper.PollAt().Sub(d.now))
}

// TestRingUnwatches: the process that watched may have rung because it stopped, so the doorbell is asked again.
func TestRingUnwatches(t *testing.T) {
	t.Parallel()
	for name, e := range map[string]Event{"ring": Woken{}, "poll": Tick{}} {
		d := drive(t)
		d.asleep()
		after := time.Duration(0)
		if name == "poll" {
			after = d.sleeper.PollAt().Sub(d.now)
		}
		d.step(after, e)
		d.claimed(the[*Pass](d))
		require.True(t, the[AskBell](d).Asleep, name)
	}
}

// TestRingWhileSomebodyWatches: the doorbell is not asked again, and the dispatcher looks soon for what was committed behind
// its walk.
func TestRingWhileSomebodyWatches(t *testing.T) {
	t.Parallel()
	d := drive(t)
	d.asleep()
	d.step(0, Woken{Watched: true})
	claim := the[*Pass](d)
	require.False(t, claim.look)
	d.claimed(claim)
	none[AskBell](d)
	require.True(t, d.looks.wanted)
	d.step(lookEvery, Tick{})
	require.True(t, the[*Pass](d).look)
}

// leaving returns a dispatcher whose claims after rings have found nothing. Another process holds the doorbell.
func leaving(t *testing.T, change ...func(*Config)) *driven {
	d := drive(t, change...)
	d.asleep()
	for range manyMissed {
		d.step(0, Woken{Watched: true, Left: true})
		d.claimed(the[*Pass](d))
		d.settle()
	}
	return d
}

// TestEventsAreLeftToAnotherProcess: a dispatcher that finds nothing when enqueues ring waits a moment, so that not all
// processes claim at once.
func TestEventsAreLeftToAnotherProcess(t *testing.T) {
	t.Parallel()
	d := leaving(t)
	d.step(0, Woken{Watched: true, Left: true})
	none[*Pass](d)
	d.step(leftFor/2, Woken{Watched: true, Left: true})
	none[*Pass](d)
	require.Equal(t, d.now.Add(leftFor-leftFor/2), d.nextTime(d.now), "the second ring does not make it wait for longer")
	d.step(leftFor-leftFor/2, Tick{})
	d.claimed(the[*Pass](d))
	d.settle()

	d.step(0, Woken{Watched: true, Left: true})
	d.step(0, Woken{Watched: true}) // it holds the doorbell now
	d.claimed(the[*Pass](d))
	none[*Pass](d)
	require.Zero(t, d.leftUntil)
}

// TestEventsThatAreNotLeft: what another process may not want, what nobody has claimed again and again, and what no
// enqueue has told of.
func TestEventsThatAreNotLeft(t *testing.T) {
	t.Parallel()
	alone := leaving(t, func(c *Config) { c.Alone = true })
	alone.step(0, Woken{Watched: true, Left: true})
	the[*Pass](alone)

	handed := leaving(t)
	handed.step(0, Woken{})
	the[*Pass](handed)

	d := leaving(t)
	d.step(0, Woken{Watched: true, Left: true})
	none[*Pass](d)
	d.step(leftFor, Tick{})
	d.claimed(the[*Pass](d), d.tasks("handled", 1)...)
	d.claimed(the[*Pass](d))
	d.step(0, Woken{Watched: true, Left: true})
	the[*Pass](d)
}

// TestDoorbellThatAwaitsTheLock: enqueues ring, and are followed at once. Transactions that were open before do not ring, so
// the dispatcher checks again soon, and asks whether it still waits.
func TestDoorbellThatAwaitsTheLock(t *testing.T) {
	t.Parallel()
	d := drive(t)
	d.claimed(d.first())
	d.step(0, Answered{Request: the[AskBell](d).Request, Bell: sleep.Awaits})
	require.Contains(t, d.out, SignalRefused)
	require.NotContains(t, d.out, SignalIdle, "an event may become visible without a ring")
	none[*Pass](d)
	again := d.askAt
	require.WithinRange(t, again, d.now.Add(15*time.Millisecond), d.now.Add(30*time.Millisecond))
	d.step(time.Millisecond, Woken{Watched: true})
	d.claimed(the[*Pass](d))
	none[AskBell](d)
	require.NotContains(t, d.out, SignalIdle)
	require.Equal(t, again, d.nextTime(d.now))
	d.looks.wanted = false // nothing is left to look for
	d.step(time.Millisecond, Woken{Watched: true})
	d.owesLook = false
	d.claimed(the[*Pass](d))
	require.False(t, d.looks.wanted)
	require.NotContains(t, d.out, SignalIdle, "it awaits the lock")
	d.step(again.Sub(d.now), Tick{})
	d.claimed(the[*Pass](d))
	ask := the[AskBell](d)
	require.True(t, ask.Asleep)
	d.step(0, Answered{Request: ask.Request - 1, Bell: sleep.Awaits})
	require.Zero(t, d.askAt, "the answer to an earlier request")

	d.emptyClaims.Took(100 * time.Millisecond)
	d.emptyClaims.Took(100 * time.Millisecond)
	d.step(0, Answered{Request: ask.Request, Bell: sleep.Awaits})
	require.Equal(t, d.now.Add(400*time.Millisecond), d.askAt, "slow checks are followed by long pauses")
	d.step(0, Woken{Watched: true})
	claim := the[*Pass](d)
	d.step(time.Second, Tick{})
	require.NotZero(t, d.askAt, "a check is under way")
	d.claimed(claim)
	require.True(t, d.askAt.After(d.now))
	d.step(d.askAt.Sub(d.now), Tick{})
	d.claimed(all[*Pass](d)[0])
	for len(all[*Pass](d)) > 0 {
		d.claimed(all[*Pass](d)[0])
	}
	d.step(0, Answered{Request: d.sleeper.Request(), Bell: sleep.Watches})
	d.settle()
	require.Contains(t, d.out, SignalIdle)
}
