package core

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/machine/sleep"
	"github.com/outboxgen/outboxgen/internal/testing/coretest"
)

// state names what d does, as docs/inside/states.md explains it.
func (d *driven) state() string {
	switch {
	case d.ended:
		return "ended"
	case d.stopping:
		return "stopping"
	case d.now.Before(d.pausedUntil):
		return "pausing"
	case d.claiming > 0:
		return "claiming"
	case len(d.passes) > 0:
		return "settling"
	case d.inFlight > 0 && len(d.handled.ready) == d.inFlight:
		return "filling"
	case d.inFlight > 0:
		return "handling"
	case d.sweeping:
		return "sweeping"
	case d.sleeper.IsAsking():
		return "asking"
	}
	return "sleeping"
}

// words are the commands of the latest step, for the table.
func (d *driven) words() (words []string) {
	add := func(word string) {
		if len(words) == 0 || words[len(words)-1] != word {
			words = append(words, word)
		}
	}
	for _, c := range d.out {
		switch c := c.(type) {
		case Run:
			add("run")
		case *RunBatch:
			add("runBatch")
		case Recall:
			add("recall")
		case *Send:
			add("send")
		case *Route:
			add("route")
		case Lost:
			add("lost")
		case Drop:
			add("drop")
		case *Pass:
			switch {
			case c.Claim == nil:
				add("pass(settle)")
			case c.look && len(c.Settle) > 0:
				add("pass(settle, look)")
			case c.look:
				add("pass(look)")
			case c.try != nil:
				add("pass(try)")
			case len(c.Settle) > 0:
				add("pass(settle, claim)")
			default:
				add("pass(claim)")
			}
		case *Renew:
			add("renew")
		case AskBell:
			add(map[bool]string{true: "askBell(asleep)", false: "askBell(awake)"}[c.Asleep])
		case ReadPauses:
			add("readPauses")
		case Sweep:
			add("sweep")
		case TellRests:
			add("tellRests")
		case Timer:
			add("timer")
		case *End:
			add("end")
		}
	}
	return words
}

// situation is a core in a state, with what an event needs to happen in it.
type situation struct {
	*driven
	tasks []*Task
	pass  *Pass
	send  *Send
	route *Route
}

// situations bring a core into each state.
var situations = []struct {
	name string
	make func(t *testing.T) *situation
}{
	{"new", func(t *testing.T) *situation {
		return &situation{driven: drive(t)}
	}},
	{"claiming", func(t *testing.T) *situation {
		s := &situation{driven: drive(t)}
		s.pass = s.first()
		return s
	}},
	{"handling", func(t *testing.T) *situation {
		s := &situation{driven: drive(t)}
		s.tasks = append(append(s.driven.tasks("handled", 8), s.driven.tasks("sent", 1)...), s.driven.tasks("routed", 1)...)
		s.claimed(s.first(), s.tasks...)
		s.send, s.route = the[*Send](s.driven), the[*Route](s.driven)
		return s
	}},
	{"filling", func(t *testing.T) *situation {
		s := &situation{driven: drive(t, asBatched(4, 3*time.Second))}
		s.tasks = s.driven.tasks("handled", 2)
		s.claimed(s.first(), s.tasks...)
		for _, p := range all[*Pass](s.driven) {
			s.claimed(p)
		}
		return s
	}},
	{"settling", func(t *testing.T) *situation {
		s := &situation{driven: drive(t)}
		s.tasks = s.driven.tasks("handled", 2)
		s.claimed(s.first(), s.tasks...)
		for _, p := range all[*Pass](s.driven) {
			s.claimed(p)
		}
		s.reported(errclass.ClassDone, s.tasks[0])
		s.pass = the[*Pass](s.driven)
		return s
	}},
	{"pausing", func(t *testing.T) *situation {
		s := &situation{driven: drive(t)}
		s.failed(s.first())
		return s
	}},
	{"asking", func(t *testing.T) *situation {
		s := &situation{driven: drive(t)}
		s.claimed(s.first())
		return s
	}},
	{"sleeping", func(t *testing.T) *situation {
		s := &situation{driven: drive(t)}
		s.asleep()
		return s
	}},
	{"drain: claiming", func(t *testing.T) *situation {
		s := &situation{driven: drive(t, asDrain)}
		s.pass = s.first()
		return s
	}},
	{"drain: handling", func(t *testing.T) *situation {
		s := &situation{driven: drive(t, asDrain)}
		s.tasks = s.driven.tasks("handled", 1)
		s.claimed(s.first(), s.tasks...)
		return s
	}},
	{"drain: sweeping", func(t *testing.T) *situation {
		s := &situation{driven: drive(t, asDrain)}
		s.claimed(s.first())
		s.claimed(the[*Pass](s.driven))
		return s
	}},
	{"stopping", func(t *testing.T) *situation {
		s := &situation{driven: drive(t)}
		s.tasks = s.driven.tasks("handled", 2)
		s.claimed(s.first(), s.tasks...)
		for _, p := range all[*Pass](s.driven) {
			s.claimed(p)
		}
		s.step(0, Stop{})
		return s
	}},
}

// happenings are the events of the table. An event that cannot happen in a situation does not.
var happenings = []struct {
	name string
	make func(s *situation) bool
}{
	{"started", func(s *situation) bool { return s.say(!s.started(), 0, Started{}) }},
	{"pass found events", func(s *situation) bool {
		if s.pass == nil || s.pass.Claim == nil {
			return false
		}
		s.claimed(s.pass, s.driven.tasks("handled", 3)...)
		return true
	}},
	{"pass found nothing", func(s *situation) bool {
		if s.pass != nil {
			s.claimed(s.pass)
		}
		return s.pass != nil
	}},
	{"pass failed", func(s *situation) bool {
		if s.pass != nil {
			s.failed(s.pass)
		}
		return s.pass != nil
	}},
	{"handled", func(s *situation) bool {
		if s.runs() == nil {
			return false
		}
		s.reported(errclass.ClassDone, s.runs())
		return true
	}},
	{"handled: the target is away", func(s *situation) bool {
		if s.runs() == nil {
			return false
		}
		s.reported(errclass.ClassUnavailable, s.runs())
		return true
	}},
	{"sent", func(s *situation) bool {
		if s.send != nil {
			s.sentAll(s.send, errclass.ClassDone)
		}
		return s.send != nil
	}},
	{"routed", func(s *situation) bool {
		return s.route != nil && s.say(true, 0, &Routed{Route: s.route, Destinations: []Destined{{"a", s.route.Tasks}}})
	}},
	{"lease near its end", func(s *situation) bool {
		return s.say(s.runs() != nil, 12*time.Second, Tick{})
	}},
	{"renewed: lost", func(s *situation) bool {
		r := &Renew{Tasks: []*Task{s.runs()}}
		return s.runs() != nil && s.say(true, 0, &Renewed{Renew: r, Outcomes: []RenewalOutcome{Gone}})
	}},
	{"batch has waited", func(s *situation) bool {
		return s.say(len(s.handled.ready) > 0 && s.handled.batches(), 3*time.Second, Tick{})
	}},
	{"woken", func(s *situation) bool { return s.say(s.started(), 0, Woken{}) }},
	{"doorbell: watches", func(s *situation) bool {
		return s.say(s.sleeper.IsAsking(), 0, Answered{Request: s.sleeper.Request(), Bell: sleep.Watches})
	}},
	{"doorbell: refused", func(s *situation) bool {
		return s.say(s.sleeper.IsAsking(), 0, Answered{Request: s.sleeper.Request(), Bell: sleep.Busy})
	}},
	{"doorbell: gone", func(s *situation) bool { return s.say(s.started(), 0, Answered{Bell: sleep.Gone}) }},
	{"paused: everything", func(s *situation) bool {
		return s.say(s.started(), 0, &PausesRead{Pauses: PausesOf(true, nil)})
	}},
	{"listed", func(s *situation) bool { return s.say(s.started(), 0, Listed{}) }},
	{"pause over", func(s *situation) bool {
		return s.say(s.pausedUntil.After(s.now), s.pausedUntil.Sub(s.now), Tick{})
	}},
	{"poll", func(s *situation) bool {
		return s.say(s.started() && s.runs() == nil, s.sleeper.PollAt().Sub(s.now), Tick{})
	}},
	{"swept", func(s *situation) bool { return s.say(s.sweeping, 0, Swept{}) }},
	{"stop", func(s *situation) bool { return s.say(s.started(), 0, Stop{}) }},
	{"give up", func(s *situation) bool { return s.say(s.stopping, 0, GiveUp{}) }},
	{"database over", func(s *situation) bool { return s.say(s.stopping, 0, DatabaseOver{}) }},
}

func (s *situation) say(can bool, after time.Duration, e Event) bool {
	if can {
		s.step(after, e)
	}
	return can
}

// started reports whether the core has done something.
func (s *situation) started() bool {
	return s.generation > 0 || len(s.passes) > 0 || !s.timerAt.IsZero()
}

// runs returns a task whose handler runs.
func (s *situation) runs() *Task {
	for _, t := range s.tasks {
		if t.begun && !t.finished && t.Topic == "handled" {
			return t
		}
	}
	return nil
}

// TestStates draws docs/inside/states.md.
func TestStates(t *testing.T) {
	t.Parallel()
	var rows []coretest.Row
	for _, in := range situations {
		for _, e := range happenings {
			s := in.make(t)
			before := s.state()
			require.True(t, in.name == "new" || strings.TrimPrefix(in.name, "drain: ") == before, "%s is %s", in.name, before)
			if !e.make(s) {
				continue
			}
			if words, after := s.words(), s.state(); len(words) > 0 || after != before {
				rows = append(rows, coretest.Row{State: in.name, Event: e.name, Commands: words, Next: after})
			}
		}
	}
	coretest.RequireStates(t, "queue", rows)
}
