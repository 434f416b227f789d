package core

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
)

func suspicious(t *Task) { t.Reclaimed, t.Attempt = true, t.MaxAttempts }

// TestClaimsGoOnAfterALastAttempt: at once, when it is over.
func TestClaimsGoOnAfterALastAttempt(t *testing.T) {
	t.Parallel()
	d := drive(t)
	task := d.tasks("handled", 1, suspicious)[0]
	d.claimed(d.first(), task)
	require.Equal(t, Run{task}, the[Run](d))
	require.True(t, d.claimsPaused(d.now))
	d.reported(errclass.ClassDone, task)
	require.False(t, d.claimsPaused(d.now))
	require.Positive(t, the[*Pass](d).want)
}

// TestClaimsGoOnBesideALastAttempt: when it has run for so long that it will hardly kill its process.
func TestClaimsGoOnBesideALastAttempt(t *testing.T) {
	t.Parallel()
	d := drive(t)
	d.claimed(d.first(), d.tasks("handled", 1, suspicious)...)
	none[*Pass](d)
	require.True(t, d.claimsPaused(d.now.Add(d.cfg.LastAttemptLimit-time.Millisecond-1)))
	require.False(t, d.claimsPaused(d.now.Add(d.cfg.LastAttemptLimit)))
}

// TestLastAttemptWaitsForAClaim: what that takes would be next to it.
func TestLastAttemptWaitsForAClaim(t *testing.T) {
	t.Parallel()
	d, first, second := atBacklog(t)
	for _, p := range []*Pass{first, second} {
		require.NotZero(t, p.want)
	}
	task := d.tasks("handled", 1, suspicious)[0]
	d.claimed(first, task)
	require.Equal(t, 1+len(second.Settle), d.inFlight)
	none[Run](d)
	d.inFlight = 1
	d.startLastAttempt(d.now)
	require.False(t, d.lastAttemptStarted, "a claim is under way")
	d.inFlight += len(second.Settle)
	d.claimed(second)
	require.True(t, d.lastAttemptStarted)
	require.Equal(t, task, the[Run](d).Task)
	for range 2 {
		d.startLastAttempt(d.now)
	}
	require.Empty(t, d.ready, "it is started once")
}

// TestOtherLastAttemptsThatAreOver: they have nothing to lose any more.
func TestOtherLastAttemptsThatAreOver(t *testing.T) {
	t.Parallel()
	d := drive(t)
	other := d.tasks("handled", 1, func(t *Task) { t.Attempt = t.MaxAttempts })[0]
	d.claimed(d.first(), other)
	require.True(t, d.hasLastAttempt(nil))
	require.False(t, d.hasLastAttempt(other))
	other.finished = true
	require.False(t, d.hasLastAttempt(nil))
}

// TestWithdrawalOfALastAttempt: only what has not begun, and is not to begin any more, is handed back.
func TestWithdrawalOfALastAttempt(t *testing.T) {
	t.Parallel()
	d := drive(t)
	p := d.first()
	d.claimed(p, d.tasks("handled", 1)...)
	task := d.tasks("handled", 1, suspicious)[0]
	d.claimed(the[*Pass](d), task)
	require.Same(t, task, d.lastAttempt)
	d.step(0, &PausesRead{Pauses: PausesOf(false, []string{"sent"})})
	require.Same(t, task, d.lastAttempt, "another topic is paused")
	require.False(t, task.unstarted)

	d = drive(t)
	task = d.tasks("handled", 1, suspicious)[0]
	d.claimed(d.first(), task)
	require.True(t, d.lastAttemptStarted)
	d.step(0, Stop{})
	require.False(t, task.finished, "it runs")
}

// TestRenewalsOfWhatIsOver: what has ended or is given up is not told to be lost again.
func TestRenewalsOfWhatIsOver(t *testing.T) {
	t.Parallel()
	d := drive(t)
	tasks := d.tasks("handled", 2)
	d.claimed(d.first(), tasks...)
	d.step(0, Tick{})
	tasks[0].finished, tasks[1].lost = true, true
	d.renewing = true
	d.step(0, &Renewed{Renew: &Renew{Tasks: tasks, sent: d.now}, Outcomes: []RenewalOutcome{Gone, Gone}})
	none[Lost](d)
	require.False(t, tasks[0].lost)
}

// TestLateTasksOfABatch: their leases are given up, once.
func TestLateTasksOfABatch(t *testing.T) {
	t.Parallel()
	d := drive(t, asBatched(2, 0))
	tasks := d.tasks("handled", 2)
	d.claimed(d.first(), tasks...)
	b := the[*RunBatch](d)
	tasks[0].Late, tasks[1].Late = true, true
	tasks[1].lost = true
	d.step(0, &BatchReported{Batch: b, Tasks: tasks})
	require.Equal(t, Lost{tasks[0]}, the[Lost](d))
}

// TestSharedFailureAfterALostLease: of an event on its last attempt is not charged, and so it is settled: the fence decides.
func TestSharedFailureAfterALostLease(t *testing.T) {
	t.Parallel()
	d := drive(t, asBatched(2, 0))
	tasks := d.tasks("handled", 2, func(t *Task) { t.Attempt = t.MaxAttempts })
	d.claimed(d.first(), tasks...)
	b := the[*RunBatch](d)
	for _, task := range tasks {
		task.Shared, task.lost = true, true
	}
	d.reportedBatch(b, errclass.ClassFailed, tasks...)
	none[Drop](d)
	require.Subset(t, append(d.finished, settledBy(d)...), tasks)
}

// TestResultsOfABatchThatHasEnded: each event of it has its own result, also next to one that was tried before and could not
// be tried again.
func TestResultsOfABatchThatHasEnded(t *testing.T) {
	t.Parallel()
	d := drive(t, asBatched(3, 0))
	tasks := d.tasks("handled", 3)
	d.claimed(d.first(), tasks...)
	b := the[*RunBatch](d)
	for i, class := range []errclass.Class{errclass.ClassFailed, errclass.ClassDone, errclass.ClassRefused} {
		tasks[i].Tried, tasks[i].Began, tasks[i].Result = true, d.now, errclass.New(class, "x")
	}
	tasks[0].Ended = true
	d.step(0, &BatchReported{Batch: b, Tasks: tasks})
	require.True(t, tasks[0].unstarted)
	require.Equal(t, errclass.ClassDone, tasks[1].Result.Class)
	require.Equal(t, errclass.ClassRefused, tasks[2].Result.Class)
}

// TestFullBatchDoesNotWait: however long it might.
func TestFullBatchDoesNotWait(t *testing.T) {
	t.Parallel()
	d := drive(t, asBatched(4, time.Hour), func(c *Config) { c.BatchSize, c.Concurrency = 40, 10 })
	d.claimed(d.first(), d.tasks("handled", 3)...)
	require.Empty(t, d.sizes())
	d.claimed(the[*Pass](d), d.tasks("handled", 1)...)
	require.Equal(t, []int{4}, d.sizes())
}

// TestReclaimedBatchesTakenBack: they wait apart again, so that they do not share a batch with others.
func TestReclaimedBatchesTakenBack(t *testing.T) {
	t.Parallel()
	d := drive(t, asBatched(4, 0))
	tasks := append(d.tasks("handled", 2, again(2)), d.tasks("handled", 2)...)
	d.claimed(d.first(), tasks...)
	batches := all[*RunBatch](d)
	require.Len(t, batches, 2)
	d.Core.out = nil
	for _, b := range batches {
		d.takeBack(b)
	}
	require.Equal(t, tasks[:2], d.handled.again)
	require.Equal(t, tasks[2:], d.handled.ready)
}

// TestDrainWaitsForPauses: while they are read, nothing is claimed and they are not asked for again.
func TestDrainWaitsForPauses(t *testing.T) {
	t.Parallel()
	d := drive(t, asDrain)
	p := d.first()
	d.claimed(p, d.tasks("handled", 1)...)
	d.pausesAt = d.now
	d.reported(errclass.ClassDone, d.leases.tasks...)
	require.Len(t, all[ReadPauses](d), 1)
	d.step(0, Woken{})
	none[ReadPauses](d)
	none[*Pass](d)
	d.step(0, &PausesRead{Pauses: NoPauses})
	require.Len(t, all[*Pass](d), 1)
}

// TestEndOfALimitedDrain: it says whether it has come to its limit, or to the end of what is due.
func TestEndOfALimitedDrain(t *testing.T) {
	t.Parallel()
	for found, want := range map[int]Drained{0: DrainDone, 2: DrainDone, 3: DrainLimit} {
		d := drive(t, asDrain, func(c *Config) { c.Limit = 3 })
		require.Equal(t, want, drained(d, d.tasks("handled", found)).Drained)
	}
}

// TestDrainClaimsAgainWhatHandlersEnqueue: after a claim that has found something, it claims once more of both kinds.
func TestDrainClaimsAgainWhatHandlersEnqueue(t *testing.T) {
	t.Parallel()
	d := drive(t, asDrain, takesTurns(false))
	var kinds []bool
	found := map[bool]int{false: 1, true: 1}
	for p := d.first(); p != nil; {
		ofTurns := p.Claim.Turns != nil
		kinds = append(kinds, ofTurns)
		if found[ofTurns] > 0 {
			found[ofTurns]--
			tasks := d.tasks("handled", 1)
			if ofTurns {
				tasks = d.tasks("handled", 1, inTurn("a"))
			}
			d.claimed(p, tasks...)
			d.reported(errclass.ClassDone, tasks...)
		} else {
			d.claimed(p)
		}
		passes := all[*Pass](d)
		if p = nil; len(passes) > 0 {
			p = passes[0]
		}
	}
	require.Len(t, all[Sweep](d), 1)
	require.Equal(t, []bool{false, false, true, false, true}, kinds)
}

// TestDrainGoesFromTurnToTurn: to the end, whether the pieces before have found something or not.
func TestDrainGoesFromTurnToTurn(t *testing.T) {
	t.Parallel()
	d := drive(t, asDrain, takesTurns(true), func(c *Config) { c.Topics = c.Topics[:1] })
	p := d.first()
	lane := p.Claim.Turns.Hops[0].Lane
	d.step(0, &PassDone{Pass: p, Found: Found{At: d.now, TurnsFound: TurnsFound{Hops: map[int32]string{lane: "m"}}}})
	p = the[*Pass](d)
	require.Equal(t, []Hop{{lane, "m"}}, p.Claim.Turns.Hops)
	d.claimed(p)
	require.Len(t, all[Sweep](d), 1, "one round is enough")

	d = drive(t, asDrain, takesTurns(true))
	d.claimed(d.first())
	p = the[*Pass](d)
	lane = p.Claim.Turns.Hops[0].Lane
	d.step(0, &PassDone{Pass: p, Found: Found{At: d.now, TurnsFound: TurnsFound{Hops: map[int32]string{lane: "m"}}}})
	require.NotNil(t, the[*Pass](d).Claim.Turns, "the others were claimed")

	d = drive(t, asDrain, takesTurns(true), func(c *Config) { c.Topics = c.Topics[:1] })
	d.dry, d.turns.round.wanted = true, false
	require.NotEmpty(t, d.drainClaim(d.now, &Pass{want: 1}).Turns.Hops, "each time from the beginning")
}

// TestDrainTriesOnce: a target of which no event was found is not tried again.
func TestDrainTriesOnce(t *testing.T) {
	t.Parallel()
	d := drive(t, asDrain)
	d.rests(d.sent)
	d.now = d.now.Add(2 * time.Second)
	p := d.first()
	require.Equal(t, d.sent, p.try)
	d.claimed(p)
	require.True(t, d.drained[d.sent])

	d = drive(t, asDrain)
	d.rests(d.sent)
	d.now = d.now.Add(2 * time.Second)
	d.drained[d.sent] = true
	require.Nil(t, d.first().try)
}

// TestStopDuringTheLastClaimOfADrain: it ends without a sweep.
func TestStopDuringTheLastClaimOfADrain(t *testing.T) {
	t.Parallel()
	d := drive(t, asDrain)
	p := d.first()
	d.claimed(p)
	p = the[*Pass](d)
	d.step(0, Stop{})
	d.claimed(p)
	none[Sweep](d)
	require.Equal(t, &End{}, the[*End](d))
}
