package core

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/machine/rest"
	"github.com/outboxgen/outboxgen/outbox"
)

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
