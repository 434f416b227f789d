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
