package core

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/internal/machine/rest"
	"github.com/outboxgen/outboxgen/internal/machine/sleep"
	"github.com/outboxgen/outboxgen/outbox"
)

// start is when the tests begin.
var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

var (
	errDown = errors.New("connection reset")
	tenant  = uuid.UUID{7}
)

// least is no jitter: delays and intervals are as short or as long as they can be.
func least(time.Duration) time.Duration { return 0 }

// driven is a core that a test drives by hand, with a handler for the topic "handled", a destination of "sent" and
// "sent2", and destinations that the events of "routed" say.
type driven struct {
	*Core
	t                     *testing.T
	now                   time.Time
	handled, sent, routed *Target
	out                   []Command // of the latest step
	ids                   int
}

func drive(t *testing.T, change ...func(*Config)) *driven {
	t.Helper()
	breaker := config.BreakerWithDefaults(outbox.Breaker{Failures: 2, FirstPause: time.Second, MaxPause: time.Second})
	broker := &rest.Target{Name: "kafka", Kind: rest.Broker, Breaker: breaker, Random: least}
	target := func(name string, kind rest.Kind, of *rest.Target) *Target {
		return &Target{Rest: &rest.Target{Name: name, Kind: kind, Breaker: breaker, Broker: of, Random: least}}
	}
	d := &driven{
		t: t, now: start, handled: target("handled", rest.Handler, nil), sent: target("kafka:sent", rest.Destination, broker),
		routed: target("kafka:*", rest.Destination, broker),
	}
	d.routed.ByEvent = true
	cfg := Config{
		Topics: []Topic{
			{Name: "handled", Target: d.handled}, {Name: "sent", Target: d.sent}, {Name: "sent2", Target: d.sent},
			{Name: "routed", Target: d.routed},
		},
		Targets: []*Target{d.handled, d.sent, d.routed}, Pauses: NoPauses,
		BatchSize: 10, Concurrency: 2, LeaseDuration: 30 * time.Second,
		PollInterval: 10 * time.Second, MaxPollInterval: 40 * time.Second, LastAttemptLimit: time.Second, Doorbell: true,
		FirstPause: breaker.FirstPause, Random: least,
	}
	for _, f := range change {
		f(&cfg)
	}
	d.Core = New(start, cfg)
	return d
}

func asDrain(c *Config) { c.Drain, c.Doorbell = true, false }

// step tells the core of e after some time.
func (d *driven) step(after time.Duration, e Event) []Command {
	d.now = d.now.Add(after)
	d.out = append([]Command(nil), d.Step(d.now, e)...)
	return d.out
}

// all returns the commands of one kind in the latest step.
func all[C Command](d *driven) (found []C) {
	for _, c := range d.out {
		if c, is := c.(C); is {
			found = append(found, c)
		}
	}
	return found
}

// the returns the only command of one kind in the latest step.
func the[C Command](d *driven) C {
	d.t.Helper()
	found := all[C](d)
	require.Len(d.t, found, 1, "%v", d.out)
	return found[0]
}

// none requires that the latest step has no command of one kind.
func none[C Command](d *driven) {
	d.t.Helper()
	require.Empty(d.t, all[C](d))
}

// tasks makes n claimed events of a topic.
func (d *driven) tasks(topic string, n int, change ...func(*Task)) (all []*Task) {
	for range n {
		d.ids++
		t := &Task{
			ID: uuid.UUID{15: byte(d.ids)}, Topic: topic, Tenant: uuid.NullUUID{UUID: tenant, Valid: true},
			Attempt: 1, MaxAttempts: 3, ClaimDeadline: d.now.Add(d.cfg.LeaseDuration),
		}
		for _, f := range change {
			f(t)
		}
		all = append(all, t)
	}
	return all
}

// claimed answers p: it has claimed tasks, and come to the end of its lanes.
func (d *driven) claimed(p *Pass, tasks ...*Task) []Command {
	e := &PassDone{Pass: p, Claimed: tasks, Found: Found{At: d.now, Took: time.Millisecond}}
	for _, t := range tasks {
		at := Place{d.now.Add(-time.Second), t.ID}
		e.Found.Rows = append(e.Found.Rows, Seen{At: at, Reclaimed: t.Reclaimed, Last: t.isLastAttempt()})
	}
	return d.step(time.Millisecond, e)
}

// failed answers p: nothing is known to be committed.
func (d *driven) failed(p *Pass) []Command {
	return d.step(time.Millisecond, &PassDone{Pass: p, Open: p.Settle, Err: errDown})
}

// reported reports tasks with one result.
func (d *driven) reported(class errclass.Class, tasks ...*Task) []Command {
	for _, t := range tasks {
		t.Result, t.Tried, t.Began = errclass.New(class, "%d", class), true, d.now
	}
	return d.step(time.Millisecond, &Reported{Tasks: tasks})
}

// sentAll answers a call: all of its events have one result.
func (d *driven) sentAll(s *Send, class errclass.Class) []Command {
	for _, t := range s.Tasks {
		t.Result, t.Tried = errclass.New(class, "%d", class), true
	}
	return d.step(time.Millisecond, &Sent{Send: s, Tasks: s.Tasks})
}

// first starts the core and returns its first pass.
func (d *driven) first() *Pass {
	d.step(0, Started{})
	return the[*Pass](d)
}

// asleep makes the core sleep, and a doorbell watch.
func (d *driven) asleep() {
	d.t.Helper()
	d.claimed(d.first())
	ask := the[AskBell](d)
	require.True(d.t, ask.Asleep)
	d.step(0, Answered{Request: ask.Request, Bell: sleep.Watches})
	for len(all[*Pass](d)) > 0 || d.looks.wanted {
		if p := all[*Pass](d); len(p) > 0 {
			d.claimed(p[0])
		} else {
			d.step(time.Second, Tick{})
		}
	}
	require.Contains(d.t, d.out, SignalIdle)
}

// TestFirstPassLooksFromTheHead: the first claim may reclaim, and takes as much as fits.
func TestFirstPassLooksFromTheHead(t *testing.T) {
	t.Parallel()
	d := drive(t)
	p := d.first()
	require.Equal(t, 10, p.Claim.Size)
	require.Equal(t, ReclaimsPerClaim, p.Claim.Reclaims)
	require.Equal(t, []string{"handled", "sent", "sent2", "routed"}, p.Claim.Topics)
	require.True(t, p.Claim.InPieces())
	require.Empty(t, p.Settle)
}

// TestWorkersAreNotGivenMoreThanTheyRun: what is ready waits in the core.
func TestWorkersAreNotGivenMoreThanTheyRun(t *testing.T) {
	t.Parallel()
	d := drive(t)
	tasks := d.tasks("handled", 5)
	d.claimed(d.first(), tasks...)
	require.Equal(t, []Run{{tasks[0]}, {tasks[1]}}, all[Run](d))
	d.reported(errclass.ClassDone, tasks[1])
	require.Equal(t, []Run{{tasks[2]}}, all[Run](d))
}

// TestWorkersHaveTheNextEvent: as many events as Ahead wait for the workers there.
func TestWorkersHaveTheNextEvent(t *testing.T) {
	t.Parallel()
	d := drive(t, func(c *Config) { c.Ahead = 1 })
	tasks := d.tasks("handled", 5)
	d.claimed(d.first(), tasks...)
	require.Equal(t, []Run{{tasks[0]}, {tasks[1]}, {tasks[2]}}, all[Run](d))
	d.reported(errclass.ClassDone, tasks[1])
	require.Equal(t, []Run{{tasks[3]}}, all[Run](d))
}

// TestRecall: what waits for a worker is taken back when it may not begin any more, and to be given out until later.
func TestRecall(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		event func(d *driven, tasks []*Task) Event
		after time.Duration
		again bool // it may begin
		why   errclass.Class
	}{
		"stop":    {event: func(*driven, []*Task) Event { return Stop{} }},
		"pause":   {event: func(*driven, []*Task) Event { return &PausesRead{Pauses: PausesOf(false, []string{"handled"})} }},
		"other":   {event: func(*driven, []*Task) Event { return &PausesRead{Pauses: PausesOf(false, []string{"sent"})} }, again: true},
		"renewal": {event: func(*driven, []*Task) Event { return Tick{} }, after: 3 * time.Second, again: true},
		"lost lease": {event: func(d *driven, tasks []*Task) Event {
			d.leases.renewing = true
			return &Renewed{Renew: &Renew{Tasks: tasks, sent: d.now}, Outcomes: []RenewalOutcome{Prolonged, Prolonged, Prolonged, Gone}}
		}},
		"rest": {event: func(d *driven, tasks []*Task) Event {
			tasks[0].Result, tasks[0].Tried, tasks[0].Began = errclass.New(errclass.ClassUnavailable, "away"), true, d.now
			return &Reported{Tasks: tasks[:1]}
		}, why: errclass.ClassUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := drive(t, func(c *Config) { c.Ahead = 2 })
			tasks := d.tasks("handled", 4)
			d.claimed(d.first(), tasks...)
			last := tasks[3]
			until := last.StartBy
			last.deadline = last.deadline.Add(time.Second) // renewed since
			d.step(c.after, c.event(d, tasks))
			the[Recall](d)
			d.Core.out = nil
			d.recall()
			require.Empty(t, d.Core.out, "one is under way")
			d.step(0, &Recalled{Tasks: tasks[3:]})
			if c.again {
				require.Equal(t, []Run{{last}}, all[Run](d))
				require.Equal(t, until.Add(time.Second), last.StartBy)
				return
			}
			none[Run](d)
			require.True(t, last.finished)
			require.Equal(t, c.why == 0, last.unstarted)
			if c.why != 0 {
				require.Equal(t, c.why, last.Result.Class)
			}
		})
	}
}

// TestReportDuringAPass: what is reported while two passes are under way is settled by the next one.
func TestReportDuringAPass(t *testing.T) {
	t.Parallel()
	d := drive(t, func(c *Config) { c.Concurrency = 10 })
	tasks := d.tasks("handled", 10)
	d.claimed(d.first(), tasks...)
	d.reported(errclass.ClassDone, tasks[:5]...)
	one := the[*Pass](d)
	d.reported(errclass.ClassDone, tasks[5:]...)
	two := the[*Pass](d)
	require.Len(t, two.Settle, 5)
	more := d.tasks("handled", 2)
	d.claimed(one, more...)
	d.reported(errclass.ClassDone, more...)
	none[*Pass](d) // another one is under way, and this is not half a batch
	d.claimed(two)
	require.Equal(t, more, the[*Pass](d).Settle)
}

// TestResultsAreSettled: each class of results becomes an ack, a nack or a release, due at the right time.
func TestResultsAreSettled(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		topic      string
		class      errclass.Class
		tried      bool
		as         Settlement
		after      time.Duration
		handedBack int
	}{
		{"handled", errclass.ClassDone, true, Ack, 0, 0},
		{"handled", errclass.ClassFailed, true, Nack, 0, 0},
		{"handled", errclass.ClassRefused, true, Nack, 0, 0},
		{"handled", errclass.ClassUnavailable, true, Release, 500 * time.Millisecond, 1},
		{"handled", errclass.ClassNotSent, true, Release, 500 * time.Millisecond, 1}, // a handler does not send
		{"sent", errclass.ClassNotSent, true, Release, time.Second, 1},
		{"sent", errclass.ClassNotSent, false, Release, 0, 1},
		{"sent", errclass.ClassUnavailable, true, Release, 500 * time.Millisecond, 1},
		{"sent", errclass.ClassRefused, false, Nack, 0, 0},
	} {
		t.Run(fmt.Sprintf("%s %d %v", c.topic, c.class, c.tried), func(t *testing.T) {
			t.Parallel()
			d := drive(t)
			task := d.tasks(c.topic, 1)[0]
			d.claimed(d.first(), task)
			p := all[*Pass](d)
			require.Len(t, p, 1, "it claims once more")
			d.claimed(p[0])
			task.Result, task.Tried, task.Began = errclass.New(c.class, "x"), c.tried, d.now
			if s := task.to; s.sends() && c.tried {
				d.step(0, &Sent{Send: &Send{To: s}, Tasks: []*Task{task}})
			} else {
				d.step(0, &Reported{Tasks: []*Task{task}})
			}
			for len(all[*Pass](d)) == 0 {
				d.step(time.Millisecond, Tick{})
			}
			settle := the[*Pass](d)
			require.Equal(t, []*Task{task}, settle.Settle)
			require.Equal(t, c.as, task.As)
			require.InDelta(t, c.after, task.After, float64(5*time.Millisecond))
			require.Equal(t, c.handedBack, settle.HandedBack)
		})
	}
}

// TestUnknownCommit: tasks whose settlement is not known are settled again, those that are known are not, and what was
// claimed is handled although the pass has an error.
func TestUnknownCommit(t *testing.T) {
	t.Parallel()
	d := drive(t)
	tasks := d.tasks("handled", 2)
	d.claimed(d.first(), tasks...)
	d.claimed(the[*Pass](d))
	d.requestClaim()
	d.reported(errclass.ClassDone, tasks...)
	p := the[*Pass](d)
	more := d.tasks("handled", 1)
	found := Found{At: d.now, Rows: []Seen{{At: Place{Due: d.now}}}}
	d.step(0, &PassDone{Pass: p, Open: tasks[:1], Claimed: more, Found: found, Err: errDown})
	require.Equal(t, Run{more[0]}, the[Run](d))
	require.Equal(t, 2, d.inFlight)
	none[*Pass](d) // it pauses
	require.Equal(t, 25*time.Millisecond, the[Timer](d).At.Sub(d.now))
	d.step(25*time.Millisecond, Tick{})
	again := the[*Pass](d)
	require.Equal(t, tasks[:1], again.Settle)
	d.failed(again)
	none[*Pass](d)
	require.Equal(t, tasks[:1], d.finished, "all of it is open")
}

// TestReclaimsRestAfterAnOutage: other processes have yet to settle what they have in flight.
func TestReclaimsRestAfterAnOutage(t *testing.T) {
	t.Parallel()
	d := drive(t)
	d.failed(d.first())
	d.step(25*time.Millisecond, Tick{})
	d.claimed(the[*Pass](d))
	require.Equal(t, d.now.Add(reclaimPause), d.reclaimFrom)
	require.False(t, d.mayReclaim(d.now))
	require.True(t, d.mayReclaim(d.now.Add(reclaimPause)))
	require.Zero(t, d.failures)
}

// atBacklog returns a core with two claims of a backlog under way.
func atBacklog(t *testing.T) (d *driven, first, second *Pass) {
	t.Helper()
	d = drive(t, func(c *Config) { c.BatchSize, c.Concurrency = 100, 100 })
	d.claimed(d.first(), d.tasks("handled", 100)...)
	none[*Pass](d) // there is no room
	tasks := append([]*Task(nil), d.tasks0()...)
	d.reported(errclass.ClassDone, tasks[:50]...)
	first = the[*Pass](d)
	d.reported(errclass.ClassDone, tasks[50:]...)
	second = the[*Pass](d)
	require.Equal(t, 50, first.want)
	require.Equal(t, 50, second.want)
	return d, first, second
}

// tasks0 returns what is in flight.
func (d *driven) tasks0() []*Task { return d.leases.tasks }

// TestClaimNextToAFailedOne: the claim found nothing, because the failed one had locked the rows, which are due again
// now. If the core believed that nothing is due, it would sleep while nobody watches.
func TestClaimNextToAFailedOne(t *testing.T) {
	t.Parallel()
	for _, failsFirst := range []bool{false, true} {
		d, empty, failed := atBacklog(t)
		if failsFirst {
			d.failed(failed)
			d.claimed(empty)
		} else {
			d.claimed(empty)
			d.failed(failed)
		}
		require.True(t, d.claimable, "failed first: %v", failsFirst)
	}
}

// TestConcurrentPassFailuresBackOffOnce: together they pause as long as one, and reports are handled meanwhile.
func TestConcurrentPassFailuresBackOffOnce(t *testing.T) {
	t.Parallel()
	d, first, second := atBacklog(t)
	d.failed(first)
	until := d.pausedUntil
	d.failed(second)
	require.Empty(t, d.passes, "taken in during the pause")
	require.Equal(t, 1, d.failures)
	require.Equal(t, until, d.pausedUntil)
	require.Len(t, d.finished, 100)
	d.step(time.Until(time.Now()), Tick{})
	none[*Pass](d)
	d.step(until.Sub(d.now), Tick{})
	require.Len(t, the[*Pass](d).Settle, 100)
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

// settle makes claims find nothing more and the doorbell watch, until the dispatcher sleeps.
func (d *driven) settle() {
	for !slices.Contains(d.out, Command(SignalIdle)) {
		passes, asks := all[*Pass](d), all[AskBell](d)
		switch {
		case len(passes) > 0:
			d.claimed(passes[0])
		case len(asks) > 0:
			d.step(0, Answered{Request: asks[0].Request, Bell: sleep.Watches})
		default:
			d.step(lookEvery/4, Tick{})
		}
	}
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

// TestLookAfterAnEmptyClaim: a look that falls due right after a claim that found nothing waits for the pause, too.
func TestLookAfterAnEmptyClaim(t *testing.T) {
	t.Parallel()
	d := drive(t)
	p := d.first()
	const took = time.Second
	for range 2 {
		d.requestLook()
		d.step(took, &PassDone{Pass: p, Found: Found{At: d.now}})
		for len(all[*Pass](d)) == 0 {
			d.step(time.Second, Tick{})
		}
		p = the[*Pass](d)
	}
	d.requestLook()
	d.step(took, &PassDone{Pass: p, Found: Found{At: d.now}})
	require.True(t, d.looks.wanted)
	require.False(t, d.looks.due(d.now.Add(3*took)))
	require.True(t, d.looks.due(d.now.Add(6*took)))
}

// TestPollDuringAClaim: a poll that falls due during a claim, because the claim takes longer than its pause, causes a look after
// the next pause, and no claim without a pause.
func TestPollDuringAClaim(t *testing.T) {
	t.Parallel()
	d := drive(t)
	p := d.first()
	const took = 20 * time.Second
	for range 2 {
		d.step(took, &PassDone{Pass: p, Found: Found{At: d.now}})
		for len(all[*Pass](d)) == 0 {
			d.step(time.Second, Tick{})
		}
		p = the[*Pass](d)
	}
	d.step(took, &PassDone{Pass: p, Found: Found{At: d.now}})
	none[*Pass](d)
	d.step(time.Second, Woken{})
	p = the[*Pass](d)
	require.False(t, p.look)
	d.step(d.sleeper.PollAt().Sub(d.now), Tick{})
	none[*Pass](d)
	d.step(time.Second, &PassDone{Pass: p, Found: Found{At: d.now}})
	none[*Pass](d)
	for len(all[*Pass](d)) == 0 {
		d.step(time.Second, Tick{})
	}
	require.True(t, the[*Pass](d).look)
}

// TestPausedDispatcherIsIdle: a dispatcher whose topics are all paused does not run in a loop.
func TestPausedDispatcherIsIdle(t *testing.T) {
	t.Parallel()
	d := drive(t, func(c *Config) { c.Pauses = PausesOf(true, nil) })
	d.step(0, Started{})
	none[*Pass](d)
	steps := 0
	for end := d.now.Add(time.Minute); d.now.Before(end); steps++ {
		at := d.timerAt
		require.True(t, at.After(d.now), "%v", d.out)
		d.step(at.Sub(d.now), Tick{})
		none[*Pass](d)
		for range all[ReadPauses](d) {
			d.step(0, &PausesRead{Pauses: PausesOf(true, nil)})
		}
	}
	require.Less(t, steps, 700)
	d.step(0, &PausesRead{Pauses: NoPauses})
	require.Len(t, all[*Pass](d), 1)
}

// TestPauseWithdraws: what is paused and has not begun is released, wherever it waits: for a worker, for a publisher,
// for its destination to be known, for a call to it, or to be alone.
func TestPauseWithdraws(t *testing.T) {
	t.Parallel()
	d := drive(t, func(c *Config) { c.Concurrency = 1 })
	handled, sent, routed := d.tasks("handled", 3), d.tasks("sent", 2), d.tasks("routed", 3)
	last := d.tasks("handled", 1, func(t *Task) { t.Reclaimed, t.Attempt = true, 3 })[0]
	d.claimed(d.first(), append(append(append(handled, sent[0]), routed[:2]...), last)...)
	call, route := the[*Send](d), the[*Route](d)
	require.Equal(t, []*Task{sent[0]}, call.Tasks)
	d.step(0, &Routed{Route: route, Destinations: []Destined{{"a", routed[:1]}, {"b", routed[1:2]}}})
	calls := all[*Send](d)
	require.Len(t, calls, 2)
	d.adopt(sent[1], d.sent)
	d.start(sent[1])
	d.adopt(routed[2], d.routed)
	d.start(routed[2])
	d.step(0, Tick{})
	route = the[*Route](d)
	waiting := d.tasks("routed", 1)[0]
	d.adopt(waiting, d.routed)
	d.addToLine(d.routed, d.routed.known["a"], waiting)

	d.step(0, &PausesRead{Pauses: PausesOf(true, nil)})
	d.step(0, &Routed{Route: route, Destinations: []Destined{{"c", route.Tasks}}})
	require.ElementsMatch(t, []*Task{handled[1], handled[2], sent[1], routed[2], waiting, last},
		append(d.finished, settledBy(d)...))
	for _, task := range append(d.finished, settledBy(d)...) {
		require.True(t, task.unstarted)
	}
	require.Nil(t, d.lastAttempt)
	require.NotContains(t, d.routed.known, "c")
}

// adopt makes the core own t, as a claim does.
func (d *driven) adopt(t *Task, to *Target) {
	t.to = to
	d.leases.add(d.now, t)
	d.inFlight++
	to.inFlight++
}

// settledBy returns what the passes under way settle.
func settledBy(d *driven) (tasks []*Task) {
	for _, t := range d.leases.tasks {
		if t.finished && !contains(d.finished, t) {
			tasks = append(tasks, t)
		}
	}
	return tasks
}

func contains(all []*Task, t *Task) bool {
	for _, o := range all {
		if o == t {
			return true
		}
	}
	return false
}

// TestClaimOfWhatIsPausedMeanwhile: a claim that was sent before the pause is released.
func TestClaimOfWhatIsPausedMeanwhile(t *testing.T) {
	t.Parallel()
	d := drive(t)
	p := d.first()
	d.step(0, &PausesRead{Pauses: PausesOf(false, []string{"handled/" + tenant.String()})})
	tasks := append(d.tasks("handled", 1), d.tasks("sent", 1)...)
	d.claimed(p, tasks...)
	none[Run](d)
	require.Equal(t, tasks[1:], the[*Send](d).Tasks)
	require.Equal(t, tasks[:1], the[*Pass](d).Settle)
	require.Equal(t, Release, tasks[0].As)
}

// TestReadingOfPauses: it is repeated once per poll; after a ring while something is paused, and after the process is
// listed, immediately, and soon again until it succeeds.
func TestReadingOfPauses(t *testing.T) {
	t.Parallel()
	something := PausesOf(false, []string{"sent"})
	for name, e := range map[string]Event{"ring": Woken{}, "listed": Listed{}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := drive(t, func(c *Config) { c.Pauses = something })
			d.asleep()
			d.step(d.pausesAt.Sub(d.now), Tick{})
			require.Len(t, all[ReadPauses](d), 1, "once per poll")
			d.step(0, e)
			none[ReadPauses](d) // one is under way
			d.step(0, &PausesRead{Pauses: something})
			require.Len(t, all[ReadPauses](d), 1, "it may have come too early")
			for range 3 {
				d.step(0, &PausesRead{Err: errDown})
				none[ReadPauses](d)
				require.LessOrEqual(t, d.pausesAt.Sub(d.now), time.Second, "soon")
				d.step(d.pausesAt.Sub(d.now), Tick{})
				require.Len(t, all[ReadPauses](d), 1)
			}
			d.step(0, &PausesRead{Pauses: NoPauses})
			require.Equal(t, 10*time.Second, d.pausesAt.Sub(d.now))
			d.step(d.pausesAt.Sub(d.now), Tick{})
			d.step(0, &PausesRead{Err: errDown})
			require.Equal(t, 10*time.Second, d.pausesAt.Sub(d.now), "nobody has asked")
		})
	}
	d := drive(t)
	d.asleep()
	d.step(0, Woken{})
	none[ReadPauses](d) // nothing is paused, so no pause can have ended
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
	require.Len(t, d.AtRisk(d.now), 1)
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

// TestReleasedEventsAreLookedFor: the main walk may have passed them.
func TestReleasedEventsAreLookedFor(t *testing.T) {
	t.Parallel()
	d := drive(t)
	d.asleep()
	d.step(0, Woken{})
	tasks := d.tasks("sent", 1)
	d.claimed(the[*Pass](d), tasks...)
	s := the[*Send](d)
	d.asleepFrom()
	require.False(t, d.looks.wanted)
	d.sentAll(s, errclass.ClassNotSent)
	d.claimed(the[*Pass](d))
	require.True(t, d.looks.wanted)
}

// TestWalkGoesBack: to the lanes of topics that claims have left out, and to the head of all lanes when a pause has
// ended.
func TestWalkGoesBack(t *testing.T) {
	t.Parallel()
	gone := func(w *Walk) (n int) {
		for i := range w.stages {
			if w.stages[i] == (stage{}) {
				n++
			}
		}
		return n
	}
	for topic, want := range map[string]int{"handled": 1, "sent": 2} {
		d := drive(t)
		d.asleep()
		require.Zero(t, gone(&d.claims.walk))
		to := map[string]*Target{"handled": d.handled, "sent": d.sent}[topic]
		d.rests(to)
		d.step(0, Woken{})
		d.claimed(the[*Pass](d))
		d.now = d.now.Add(time.Millisecond)
		to.Rest.OnResults(d.now, d.now, ids(d.tasks("", 1)...), make([]errclass.Result, 1))
		d.step(0, Woken{})
		require.Equal(t, want, gone(&d.claims.walk), topic)
	}
	d := drive(t, func(c *Config) { c.Pauses = PausesOf(false, []string{tenant.String()}) })
	d.asleep()
	require.Zero(t, gone(&d.claims.walk))
	d.claims.tries[d.sent] = &trial{}
	d.step(0, &PausesRead{Pauses: NoPauses})
	if len(all[*Pass](d)) == 0 {
		d.step(time.Second, Tick{})
	}
	require.Equal(t, 5, gone(&d.claims.walk))
	require.Empty(t, d.claims.tries)
}
