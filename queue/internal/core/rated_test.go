package core

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/postgres/topiclane"
)

// ratedTurn is the turn of the events that rated makes.
var ratedTurn = Turn{topiclane.OfTurns("handled"), "a"}

// rated makes n claimed events of limited rate, which may begin within a time.
func (d *driven) rated(n int, within time.Duration) []*Task {
	return d.tasks("handled", n, inTurn("a"), func(t *Task) { t.StartWithin = d.now.Add(within) })
}

// turnsClaimed answers p, a claim of events that have turns, after some time: what it has claimed, and how the visit to the
// turn of rated has ended.
func (d *driven) turnsClaimed(after time.Duration, p *Pass, state TurnState, tasks ...*Task) []Command {
	e := &PassDone{Pass: p, Claimed: tasks, Found: Found{At: d.now, Took: after}}
	for _, t := range tasks {
		e.Found.Rows = append(e.Found.Rows, Seen{Lane: t.Lane, Turn: t.Turn, At: Place{d.now.Add(-time.Second), t.ID}})
	}
	e.Found.Turns = []TurnEnd{ended(ratedTurn, state)}
	return d.step(after, e)
}

// claimOfTurns answers claims of other events, which find nothing, until one is of events that have turns.
func (d *driven) claimOfTurns() *Pass {
	d.t.Helper()
	for range 10 {
		switch passes := d.passes; {
		case len(passes) == 0:
			d.step(time.Millisecond, Tick{})
		case passes[0].Claim != nil && passes[0].Claim.Turns != nil:
			return passes[0]
		default:
			d.claimed(passes[0])
		}
	}
	require.Fail(d.t, "no claim of turns")
	return nil
}

// TestEventsOfLimitedRateBeginInTime: they are claimed for workers that are idle, and handed back if they cannot begin in
// time.
func TestEventsOfLimitedRateBeginInTime(t *testing.T) {
	t.Parallel()
	d := drive(t, takesTurns(true), func(c *Config) { c.Ahead = 2 })
	require.Equal(t, 2, d.first().Claim.Turns.Idle)

	rated := d.rated(2, time.Second)
	rated[1].StartWithin = d.now
	for _, task := range rated {
		task.to = d.handled
		d.leases.add(d.now, task)
	}
	require.True(t, d.begin(d.now, rated[0], "handled"))
	require.Equal(t, rated[0].StartWithin, rated[0].StartBy)
	require.False(t, d.begin(d.now, rated[1], "handled"))
	require.True(t, rated[1].unstarted)
}

// TestAWorkerIsKeptForEventsOfLimitedRate: while some wait to be claimed, others leave one worker to them, however many
// others wait. What is claimed for that worker goes before the others.
func TestAWorkerIsKeptForEventsOfLimitedRate(t *testing.T) {
	t.Parallel()
	d := drive(t, takesTurns(true), func(c *Config) { c.Ahead = 2 })
	others := d.tasks("handled", 4, inTurn("other"))
	d.turnsClaimed(time.Millisecond, d.first(), TurnIdle, others...)
	require.Len(t, all[Run](d), 1, "the other worker is kept")
	p := d.claimOfTurns()
	require.Equal(t, 1, d.places(d.now))
	require.Equal(t, 1, p.Claim.Turns.Idle)
	require.Equal(t, []TurnStart{{Turn: ratedTurn}}, p.Claim.Turns.Known)
	require.Zero(t, d.forRated(d.now).idle, "it is promised to that claim")

	task := d.rated(1, time.Second)
	d.turnsClaimed(time.Millisecond, p, TurnMore, task...)
	require.Equal(t, task[0], the[Run](d).Task)
	require.True(t, d.turns.hungry, "the turn has more")
	d.reported(errclass.ClassDone, task...)
	d.turnsClaimed(time.Millisecond, d.claimOfTurns(), TurnFull)
	require.False(t, d.keepsWorker(d.now), "its rate allows no more")
	require.Equal(t, 4, d.places(d.now))
}

// TestWhenAWorkerIsKept: a worker is kept only for a claim that is under way or can begin. Otherwise it would have nothing to
// do, and what it could handle keeps the room that the claim needs.
func TestWhenAWorkerIsKept(t *testing.T) {
	t.Parallel()
	claims := func(idle int) []*Pass {
		return []*Pass{{turns: true, Claim: &Claim{Turns: &TurnClaim{Idle: idle}}}}
	}
	full := func(d *driven) { d.inFlight = d.growth.Size(d.capacity) }
	for name, c := range map[string]struct {
		change func(*driven)
		want   bool
	}{
		"a turn waits":                   {func(*driven) {}, true},
		"a turn has more":                {func(d *driven) { d.turns.starved = nil; d.turns.know(TurnStart{Turn: ratedTurn}) }, true},
		"there is nothing to claim":      {func(d *driven) { d.turns.starved = nil }, false},
		"there is no room":               {full, false},
		"there is room for one":          {func(d *driven) { full(d); d.inFlight-- }, true},
		"a last attempt pauses claims":   {func(d *driven) { d.lastAttempt, d.lastAttemptSince = &Task{}, d.now }, false},
		"the database does not answer":   {func(d *driven) { d.pausedUntil = d.now.Add(time.Second) }, false},
		"a claim for it is under way":    {func(d *driven) { full(d); d.passes = claims(1) }, true},
		"a claim of others is under way": {func(d *driven) { full(d); d.passes = claims(0) }, false},
		"nothing waits":                  {func(d *driven) { d.turns.hungry = false }, false},
	} {
		d := drive(t, takesTurns(true))
		d.turns.fresh, d.turns.round.wanted = false, false
		d.turns.hungry, d.turns.starved = true, []Turn{ratedTurn}
		c.change(d)
		require.Equal(t, c.want, d.keepsWorker(d.now), name)
	}
}

// TestAKeptWorkerHasAClaimAtOnce: however little room there is, if the worker has nothing to do.
func TestAKeptWorkerHasAClaimAtOnce(t *testing.T) {
	t.Parallel()
	for running, want := range map[int]int{1: 1, 2: 0} {
		d := drive(t, takesTurns(true))
		d.turns.fresh, d.turns.round.wanted = false, false
		d.turns.hungry = true
		d.turns.know(TurnStart{Turn: ratedTurn})
		d.running, d.inFlight = running, d.growth.Size(d.capacity)-1
		require.Equal(t, want, d.room(d.now), "%d run", running)
	}
}

// TestWhichBatchesHaveTheKeptWorker: those of limited rate, new ones and those whose lease had run out.
func TestWhichBatchesHaveTheKeptWorker(t *testing.T) {
	t.Parallel()
	for _, limited := range []bool{false, true} {
		for _, again := range []bool{false, true} {
			d := drive(t, asBatched(4, time.Minute))
			tasks := d.tasks("handled", 1)
			if limited {
				tasks = d.rated(1, time.Second)
			}
			if again {
				d.handled.again = tasks
			} else {
				d.handled.ready = tasks
			}
			require.Equal(t, limited, d.ratedWaits(), "limited %v, again %v", limited, again)
		}
	}
}

// TestAClaimForNoWorkerSaysNothing: it neither leaves events for want of workers nor shows how fast they are.
func TestAClaimForNoWorkerSaysNothing(t *testing.T) {
	t.Parallel()
	w := turned()
	w.onRated(&TurnClaim{Idle: 2}, &Found{}, 2)
	require.True(t, w.hungry)
	w.ahead.began(start, true)
	w.onRated(&TurnClaim{}, &Found{}, 0)
	require.False(t, w.hungry)
	w.ahead.began(start, true)
	require.Equal(t, 4, w.ahead.allowed(start), "of the claim before")
}

// TestTheOnlyWorkerAlternates: a process with one worker handles events of limited rate in turn with others.
func TestTheOnlyWorkerAlternates(t *testing.T) {
	t.Parallel()
	d := drive(t, takesTurns(true), func(c *Config) { c.Concurrency, c.Ahead = 1, 1 })
	others := d.tasks("handled", 8, inTurn("other"))
	d.turnsClaimed(time.Millisecond, d.first(), TurnIdle, others...)
	none[Run](d)
	task := d.rated(1, time.Second)
	d.turnsClaimed(time.Millisecond, d.claimOfTurns(), TurnMore, task...)
	require.Equal(t, []Run{{task[0]}, {others[0]}}, all[Run](d), "the second waits there for the worker")
	d.reported(errclass.ClassDone, task...)
	none[Run](d)
	d.reported(errclass.ClassDone, others[0])
	none[Run](d)
	d.turnsClaimed(time.Millisecond, d.claimOfTurns(), TurnIdle) // which began while the worker was busy
	require.Equal(t, 1, d.claimOfTurns().Claim.Turns.Idle, "now one of limited rate")
}

// TestABatchOfARateHasTheKeptWorker: no worker is kept from events of limited rate that wait for others of their batch.
func TestABatchOfARateHasTheKeptWorker(t *testing.T) {
	t.Parallel()
	d := drive(t, asBatched(4, time.Minute), takesTurns(true), func(c *Config) { c.Concurrency = 1 })
	tasks := d.rated(1, time.Second)
	d.turnsClaimed(time.Millisecond, d.first(), TurnMore, tasks...)
	require.True(t, d.turns.hungry)
	none[*RunBatch](d)
	d.step(500*time.Millisecond, Tick{})
	require.Equal(t, tasks, the[*RunBatch](d).Tasks)
	require.True(t, d.Core.rated.latest)
}

// TestClaimsAheadOfWorkers: claims take more events of limited rate than workers are idle while those begin early, fewer
// when they begin later, and none for a while after one could not begin.
func TestClaimsAheadOfWorkers(t *testing.T) {
	t.Parallel()
	var a ahead
	full := func(n int, early bool) {
		a.claimed(n, n)
		for range n {
			a.began(start, early)
		}
	}
	full(2, true)
	require.Equal(t, 4, a.allowed(start))
	full(6, true)
	require.Equal(t, 12, a.allowed(start))
	a.claimed(5, 14)
	for range 5 {
		a.began(start, true)
	}
	require.Equal(t, 12, a.allowed(start), "a claim that could have taken more shows nothing")
	a.claimed(14, 14)
	for range 13 {
		a.began(start, true)
	}
	require.Equal(t, 12, a.allowed(start), "the last has yet to begin")
	a.began(start, false)
	require.Equal(t, 6, a.allowed(start))
	a.claimed(8, 8)
	a.missed(start)
	require.Zero(t, a.allowed(start))
	for range 8 {
		a.began(start, true)
	}
	full(2, true)
	require.Zero(t, a.allowed(start.Add(aheadPause)))
	a.claimed(2, 2)
	a.began(start.Add(aheadPause), true)
	a.began(start.Add(aheadPause), true)
	require.Equal(t, 4, a.allowed(start.Add(aheadPause)))
}

// TestWhatIsClaimedAheadComesFirst: the claims of a core take more than it has workers, and what waits for a worker is
// handed back when its time is over, whatever the workers do.
func TestWhatIsClaimedAheadComesFirst(t *testing.T) {
	t.Parallel()
	d := drive(t, takesTurns(true), func(c *Config) { c.Topics, c.Ahead = c.Topics[:1], 1 })
	tasks := d.rated(2, time.Second)
	d.turnsClaimed(time.Millisecond, d.first(), TurnMore, tasks...)
	require.Equal(t, workers{ahead: 4}, d.forRated(d.now), "both workers have one")
	d.reported(errclass.ClassDone, tasks...)
	d.turnsClaimed(time.Millisecond, d.claimOfTurns(), TurnIdle) // which began while the workers were busy
	p := d.claimOfTurns()
	require.Equal(t, 2, p.Claim.Turns.Idle)
	require.Equal(t, 4, p.Claim.Turns.Ahead)

	tasks = d.rated(6, time.Second)
	d.turnsClaimed(time.Millisecond, p, TurnMore, tasks...)
	require.Len(t, all[Run](d), 3, "one waits there for a worker")
	require.Len(t, d.rated0(), 3)
	require.Equal(t, workers{ahead: 1}, d.forRated(d.now), "three of the four wait")
	d.step(time.Second, Tick{})
	require.Len(t, all[Recall](d), 1, "also from there")
	require.Empty(t, d.rated0())
	for _, task := range tasks[3:] {
		require.True(t, task.unstarted)
	}
	d.step(0, &Recalled{Tasks: tasks[2:3]})
	require.True(t, tasks[2].unstarted)
	require.Equal(t, workers{}, d.forRated(d.now), "starts were lost")
}

// TestRecalledEventsOfLimitedRate: they go first again.
func TestRecalledEventsOfLimitedRate(t *testing.T) {
	t.Parallel()
	d := drive(t, takesTurns(true))
	tasks := append(d.rated(1, time.Second), d.tasks("handled", 1)...)
	for _, task := range tasks {
		task.to = d.handled
		d.leases.add(d.now, task)
	}
	d.running = 2
	d.onRecalled(d.now, &Recalled{Tasks: tasks})
	require.Equal(t, tasks[:1], d.rated0())
	require.Equal(t, tasks[1:], d.ready)
}

// TestALateClaimLosesNothingAhead: an event whose time the claim itself has taken says nothing of the workers.
func TestALateClaimLosesNothingAhead(t *testing.T) {
	t.Parallel()
	d := drive(t, takesTurns(true), func(c *Config) { c.Topics = c.Topics[:1] })
	tasks := d.rated(2, time.Second)
	d.turnsClaimed(2*time.Second, d.first(), TurnMore, tasks...)
	none[Run](d)
	require.True(t, tasks[0].unstarted)
	require.True(t, d.turns.ahead.from.IsZero())
}

// rated0 returns the events of limited rate that wait for a worker.
func (d *driven) rated0() []*Task { return d.Core.rated.tasks }
