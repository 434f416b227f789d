package core

import (
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/machine/rest"
	"github.com/outboxgen/outboxgen/internal/machine/sleep"
)

func ids(tasks ...*Task) (all []uuid.UUID) {
	for _, t := range tasks {
		all = append(all, t.ID)
	}
	return all
}

// TestRestingTarget: claims leave its topics out, one event is tried after each pause, and what claims have left out is
// claimed when it is back.
func TestRestingTarget(t *testing.T) {
	t.Parallel()
	d := drive(t)
	tasks := d.tasks("handled", 3)
	d.claimed(d.first(), tasks...)
	p := the[*Pass](d)
	d.reported(errclass.ClassUnavailable, tasks[0])
	require.Len(t, the[TellRests](d).Notes, 1)
	require.Equal(t, errclass.ClassUnavailable, tasks[2].Result.Class, "handed back before it was tried")
	require.False(t, tasks[2].Tried)
	d.reported(errclass.ClassUnavailable, tasks[1])
	d.requestClaim()
	d.claimed(p)
	require.Equal(t, []string{"sent", "sent2", "routed"}, the[*Pass](d).Claim.Topics)
	d.claimed(the[*Pass](d))
	require.Equal(t, map[string]string{"handled": "3"}, Reasons(d.cfg.Targets))
	require.Equal(t, []string{"handled"}, Resting(d.cfg.Targets))

	try := d.until(t, func(p *Pass) bool { return p.try != nil })
	require.Equal(t, []string{"handled"}, try.Claim.Topics)
	d.claimed(try)
	require.Nil(t, d.tryable(d.now), "there was no event: the next try waits")
	try = d.until(t, func(p *Pass) bool { return p.try != nil })
	tasks = d.tasks("handled", 1)
	d.claimed(try, tasks...)
	require.Equal(t, Run{tasks[0]}, the[Run](d))
	require.Nil(t, d.tryable(d.now.Add(time.Hour)), "one at a time")
	d.reported(errclass.ClassDone, tasks...)
	require.Equal(t, rest.Ended, the[TellRests](d).Notes[0].Change)
	require.True(t, d.claimable)
	claim := d.until(t, func(p *Pass) bool { return p.Claim != nil })
	require.Equal(t, []string{"handled", "sent", "sent2", "routed"}, claim.Claim.Topics)
}

// TestBrokerIsTriedWithAnyTarget: a broker that rests is tried with an event of another target, if the first target has none. Without that
// the events of the others wait until the first has one.
func TestBrokerIsTriedWithAnyTarget(t *testing.T) {
	t.Parallel()
	d := drive(t)
	broker := &Target{Rest: d.sent.Rest.Broker}
	task := d.tasks("", 1)[0]
	broker.Rest.OnResults(d.now, d.now, ids(task), []errclass.Result{{Class: errclass.ClassUnavailable, Broker: true, Text: "away"}})
	require.True(t, d.sent.Rest.Resting())
	require.True(t, d.routed.Rest.Resting())
	for range 2 {
		try := d.until(t, func(p *Pass) bool { return p.try != nil })
		require.Same(t, d.sent, try.try)
		d.claimed(try)
		try = d.until(t, func(p *Pass) bool { return p.try != nil })
		require.Same(t, d.routed, try.try)
		require.Zero(t, d.sent.Rest.Left(d.now), "at once")
		d.claimed(try)
		require.Nil(t, d.tryable(d.now), "none has an event: the next try waits")
		require.Positive(t, d.sent.Rest.Left(d.now))
	}
	d.claimed(d.until(t, func(p *Pass) bool { return p.try == d.sent }))
	d.claimed(d.until(t, func(p *Pass) bool { return p.try == d.routed }), d.tasks("routed", 1)...)
	require.Empty(t, d.without)
}

// until answers passes and waits until there is one that is wanted.
func (d *driven) until(t *testing.T, wanted func(*Pass) bool) *Pass {
	t.Helper()
	for range 1000 {
		passes := all[*Pass](d)
		if len(passes) == 0 {
			at := d.nextTime(d.now)
			require.False(t, at.IsZero(), "it sleeps for ever")
			d.step(at.Sub(d.now), Tick{})
			continue
		}
		if wanted(passes[0]) {
			return passes[0]
		}
		d.claimed(passes[0])
	}
	require.Fail(t, "no such pass")
	return nil
}

// TestEverythingRests: then nothing is claimed, whatever rings, except by tries.
func TestEverythingRests(t *testing.T) {
	t.Parallel()
	d := drive(t)
	for _, to := range d.cfg.Targets {
		d.rests(to)
	}
	d.step(0, Started{})
	none[*Pass](d)
	require.True(t, the[AskBell](d).Asleep)
	d.step(0, Woken{})
	none[*Pass](d)
	require.Equal(t, start.Add(500*time.Millisecond), d.nextOfTargets(d.now), "the first try")
}

// TestPublisher: one call at a time, in the order of the claims, and as many events as fit.
func TestPublisher(t *testing.T) {
	t.Parallel()
	d := drive(t, func(c *Config) { c.BatchSize = 2000 })
	tasks := d.tasks("sent", sendSize+200)
	d.claimed(d.first(), tasks...)
	s := the[*Send](d)
	require.Equal(t, tasks[:sendSize], s.Tasks)
	d.step(0, Tick{})
	none[*Send](d)
	d.step(0, &Reported{Tasks: s.Tasks[:1]}) // it could not be sent
	none[*Send](d)
	d.step(0, &Sent{Send: s, Tasks: s.Tasks[1:]})
	require.Equal(t, tasks[sendSize:], the[*Send](d).Tasks)
	require.Equal(t, 200, d.sent.inFlight)
}

// TestStalledPublisher: after a while its events take no room from the others, and no more are claimed for it until the
// call returns.
func TestStalledPublisher(t *testing.T) {
	t.Parallel()
	d := drive(t)
	d.claimed(d.first(), d.tasks("sent", 10)...)
	s := the[*Send](d)
	none[*Pass](d)
	require.Equal(t, d.now.Add(rest.StallAfter), d.nextOfTargets(d.now))
	require.Zero(t, d.room(d.now), "all of it is taken")
	d.step(rest.StallAfter, Tick{})
	for _, p := range all[*Pass](d) {
		require.Equal(t, []string{"handled", "routed"}, p.Claim.Topics)
	}
	require.NotEmpty(t, all[*Pass](d))
	d.asleepFrom()
	d.sentAll(s, errclass.ClassDone)
	p := the[*Pass](d)
	require.Equal(t, []string{"handled", "sent", "sent2", "routed"}, p.Claim.Topics, "nobody rings for what was left out")
}

// asleepFrom answers passes until there is nothing to do.
func (d *driven) asleepFrom() {
	var passes []*Pass
	for n := 0; ; n++ {
		require.Less(d.t, n, 1000)
		passes = append(passes, all[*Pass](d)...)
		d.out = nil
		switch {
		case len(passes) > 0:
			p := passes[0]
			passes = passes[1:]
			d.claimed(p)
		case !d.claimable && !d.looks.wanted && !d.sleeper.IsAsking():
			return
		case d.sleeper.IsAsking():
			d.step(0, Answered{Request: d.sleeper.Request(), Bell: sleep.Watches})
		default:
			d.step(100*time.Millisecond, Tick{})
		}
	}
}

// TestTries: one event of what a claim for a try has found is tried, whatever the claim has found.
func TestTries(t *testing.T) {
	t.Parallel()
	d := drive(t)
	d.rests(d.sent)
	tasks := d.tasks("sent", 3)
	d.now = d.now.Add(2 * time.Second)
	try := d.first()
	require.Equal(t, d.sent, try.try)
	require.Equal(t, 1, try.Claim.Reclaims)
	d.claimed(try, tasks...)
	s := the[*Send](d)
	require.True(t, s.Try)
	require.Equal(t, tasks[:1], s.Tasks)
	require.Equal(t, errclass.ClassUnavailable, tasks[1].Result.Class)
	require.Zero(t, tasks[1].wait)
	d.step(0, &Sent{Send: s})
	require.Nil(t, d.tryable(d.now), "it was not sent, and is reported by itself")
}

// TestLines: destinations that events say do not wait for each other. Those of one that rests or stalls are handed
// back.
func TestLines(t *testing.T) {
	t.Parallel()
	d := drive(t)
	tasks := d.tasks("routed", 5)
	d.claimed(d.first(), tasks...)
	r := the[*Route](d)
	require.Equal(t, tasks, r.Tasks)
	d.step(0, &Routed{Route: r, Destinations: []Destined{{"a", tasks[:2]}, {"b", tasks[2:4]}, {"c", tasks[4:]}}})
	calls := all[*Send](d)
	require.Len(t, calls, 3)
	require.Equal(t, "a", calls[0].Destination)
	require.Equal(t, d.now.Add(rest.StallAfter), d.nextOfTargets(d.now))

	d.sentAll(calls[1], errclass.ClassUnavailable)
	require.Equal(t, []string{"kafka:b"}, Resting(d.cfg.Targets))
	require.Equal(t, map[string]string{"kafka:b": "3"}, Reasons(d.cfg.Targets))
	require.False(t, d.routed.Rest.Resting(), "the topic does not rest")
	require.InDelta(t, 500*time.Millisecond, tasks[2].wait, float64(time.Millisecond))
	d.sentAll(calls[2], errclass.ClassDone)
	require.NotContains(t, d.routed.known, "c", "there is nothing to remember")

	d.now = d.now.Add(rest.StallAfter)
	require.Equal(t, 2, d.stalled(d.now))
	more := d.tasks("routed", 3)
	for _, task := range more {
		d.adopt(task, d.routed)
	}
	d.step(0, &Routed{Route: r, Destinations: []Destined{{"a", more[:1]}, {"b", more[1:2]}, {"d", more[2:]}}})
	require.Equal(t, "d", the[*Send](d).Destination)
	require.Equal(t, "a call of the publisher to kafka:a takes long", more[0].Result.Text)
	require.Equal(t, 2*time.Second, more[0].wait)
	require.Equal(t, "3", more[1].Result.Text)
	d.sentAll(calls[0], errclass.ClassFailed)
	require.Contains(t, d.routed.known, "a", "its latest events have failed")

	d.now = d.now.Add(time.Second) // the pause is over
	more = d.tasks("routed", 2)
	for _, task := range more {
		d.adopt(task, d.routed)
	}
	d.step(0, &Routed{Route: r, Destinations: []Destined{{"b", more}}})
	s := the[*Send](d)
	require.Equal(t, more[:1], s.Tasks, "one is tried")
	require.True(t, s.Try)
	require.Equal(t, 2*time.Second, more[1].wait)
	d.sentAll(s, errclass.ClassDone)
	require.Equal(t, rest.Ended, the[TellRests](d).Notes[0].Change)
	require.NotContains(t, d.routed.known, "b")
}

// TestRestingDestinationsAreBounded: the memory for destinations that rest is bounded, and so is what is told of them.
func TestRestingDestinationsAreBounded(t *testing.T) {
	t.Parallel()
	d := drive(t)
	d.step(0, Started{})
	resumed := 0
	const n = maxIdle + 500
	for i := range n {
		task := d.tasks("routed", 1)[0]
		d.adopt(task, d.routed)
		line := d.routed.lineOf(strconv.Itoa(i))
		d.addToLine(d.routed, line, task)
		if i%2 == 0 {
			line.rest.OnResults(d.now, d.now, ids(task), []errclass.Result{errclass.New(errclass.ClassUnavailable, "away")})
		} else {
			line.rest.OnResults(d.now, d.now, ids(task), []errclass.Result{errclass.New(errclass.ClassFailed, "no")})
		}
		line.ready = nil
		d.Core.out = nil
		d.report(d.now, task)
		for _, c := range d.Core.out {
			resumed += len(c.(TellRests).Notes)
		}
	}
	require.LessOrEqual(t, len(d.routed.known), maxIdle)
	require.Zero(t, resumed, "those that do not rest are forgotten first")
	require.Zero(t, d.routed.active)
	lines := d.routed.restingLines()
	names := Resting(d.cfg.Targets)
	require.Len(t, names, maxNamed+1)
	require.Equal(t, "kafka:* ("+strconv.Itoa(len(lines)-maxNamed)+" more)", names[maxNamed])
	require.Len(t, Reasons(d.cfg.Targets), maxNamed+1)
	d.Core.out = nil
	for range 10 {
		d.forget(d.now, d.routed)
	}
	for _, c := range d.Core.out {
		resumed += len(c.(TellRests).Notes)
	}
	require.Equal(t, len(lines)-len(d.routed.restingLines()), resumed, "an observer is told of those that rest")
	require.Positive(t, resumed)
	d.addToLine(d.routed, d.routed.lineOf("x"), d.tasks("routed", 1)[0])
	New(d.now, d.cfg)
	require.Zero(t, d.routed.active, "another run begins anew")
	require.Zero(t, d.routed.known["x"].inFlight)
}

// on makes n events be on their way to a destination, without a call.
func (d *driven) on(destination string, n int) (line *line, tasks []*Task) {
	tasks = d.tasks("routed", n)
	for _, task := range tasks {
		d.adopt(task, d.routed)
		line = d.routed.lineOf(destination)
		d.addToLine(d.routed, line, task)
	}
	line.ready = nil
	return line, tasks
}

// TestDestinationsAreRememberedWhileTheyRest: a destination without events is forgotten, except while it rests or its
// latest events have failed.
func TestDestinationsAreRememberedWhileTheyRest(t *testing.T) {
	t.Parallel()
	d := drive(t)
	try := func(destination string, class errclass.Class) *line {
		line, tasks := d.on(destination, 1)
		d.now = d.now.Add(time.Millisecond)
		line.rest.OnResults(d.now, d.now, ids(tasks...), []errclass.Result{errclass.New(class, "private")})
		d.report(d.now, tasks[0])
		return line
	}
	one, tasks := d.on("one", 2)
	require.Same(t, one, d.routed.lineOf("one"), "it is in use")
	d.report(d.now, tasks[0])
	require.Len(t, d.routed.known, 1)
	d.report(d.now, tasks[1])
	require.Empty(t, d.routed.known)
	require.Empty(t, d.lines)

	try("one", errclass.ClassUnavailable)
	require.True(t, d.routed.lineOf("one").rest.Resting())
	two := try("two", errclass.ClassFailed)
	require.Same(t, two, d.routed.lineOf("two"))
	for _, class := range []errclass.Class{errclass.ClassUnavailable, errclass.ClassRefused} {
		try("three", class)
		require.Contains(t, d.routed.known, "three", "the log still has to say that it is back")
	}
	try("three", errclass.ClassDone)
	require.NotContains(t, d.routed.known, "three")
}
