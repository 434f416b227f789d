package core

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
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
		"more than full, few run":      {41, 36, 0},
	} {
		d := drive(t, func(c *Config) { c.BatchSize, c.Concurrency = 40, 10 })
		d.inFlight, d.settling = c.inFlight, c.settling
		require.Equal(t, c.want, d.room(d.now), name)
	}
}
