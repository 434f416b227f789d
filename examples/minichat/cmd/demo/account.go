package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/examples/minichat/events"
)

// Account is the result of the demo. Committed, RolledBack, Refused and Duplicates come from the records of the
// producers, the other numbers from those of the handlers. Each is checked against the tables.
type Account struct {
	Committed   int      `json:"committed"`
	RolledBack  int      `json:"rolled_back"`
	Refused     int      `json:"refused"`
	Duplicates  int      `json:"duplicates"`
	Delivered   int      `json:"delivered"`
	Retried     int      `json:"retried"`         // delivered again after a failure
	Redelivered int      `json:"redelivered"`     // delivered again without a failure
	InHand      int      `json:"in_hand_at_kill"` // held by the dispatcher that was killed
	Dead        int      `json:"dead"`
	Left        int      `json:"left"`
	Started     int      `json:"started"`     // turns; each has an event that the listeners read
	Activity    int      `json:"activity"`    // turns that the listener activity wrote
	Shown       int      `json:"shown"`       // turns that the listener typing showed
	ShownAgain  int      `json:"shown_again"` // of these
	Messages    int      `json:"messages"`    // that the other service got from Kafka
	Analytics   int      `json:"analytics"`   // turns that it applied
	Seconds     float64  `json:"seconds"`
	Correct     bool     `json:"correct"`
	Problems    []string `json:"problems"`
}

// settle returns the account of a history. The account is correct if it has no problems.
func settle(h history) Account {
	s := &settlement{
		account:   Account{InHand: h.kill.inHand, Problems: []string{}},
		committed: make(map[uuid.UUID]events.TurnID), undone: make(map[uuid.UUID]bool), open: make(map[events.TurnID]bool),
		handled: make(map[uuid.UUID]*handling),
	}
	s.producers(h.attempts)
	s.handlers(h.deliveries)
	s.table(h.events)
	s.effects(h)
	s.starts(h)
	if !h.kill.done || h.kill.inHand == 0 {
		s.problem("no worker was killed in the middle of a batch")
	}
	if !h.died {
		s.problem("the consumer of the other service did not die before it committed its offsets")
	}
	a := &s.account
	if a.Committed != a.Delivered+a.Dead {
		s.problem("%d committed events are not %d delivered and %d dead", a.Committed, a.Delivered, a.Dead)
	}
	a.Correct = len(a.Problems) == 0
	return *a
}

// settlement collects the account.
type settlement struct {
	account   Account
	committed map[uuid.UUID]events.TurnID // by event
	undone    map[uuid.UUID]bool          // events that were rolled back
	open      map[events.TurnID]bool      // turns that never ended
	handled   map[uuid.UUID]*handling     // by event
}

// handling has the handlers' records of one event.
type handling struct {
	handled, failed bool
	last            map[int]string // step by attempt
}

func (s *settlement) problem(format string, args ...any) {
	s.account.Problems = append(s.account.Problems, fmt.Sprintf(format, args...))
}

func (s *settlement) producers(attempts []attempt) {
	ended := make(map[events.TurnID]bool)
	for _, a := range attempts {
		switch a.Fate {
		case committed:
			s.account.Committed++
			if ended[a.Turn] {
				s.problem("turn %s was finalised twice", a.Turn)
			}
			ended[a.Turn] = true
			s.committed[a.Event.UUID] = a.Turn
		case rolledBack:
			s.account.RolledBack++
			if a.Event.Valid {
				s.undone[a.Event.UUID] = true
			}
		case duplicate:
			s.account.Duplicates++
		case refused:
			s.account.Refused++
		}
	}
	for _, a := range attempts {
		if !ended[a.Turn] {
			s.open[a.Turn] = true
		}
		if a.Fate == duplicate && s.committed[a.Event.UUID] != a.Turn {
			s.problem("duplicate of turn %s names event %s, which is not committed for it", a.Turn, a.Event.UUID)
		}
	}
}

func (s *settlement) handlers(deliveries []delivery) {
	for _, d := range deliveries {
		switch _, ok := s.committed[d.Event]; {
		case s.undone[d.Event], s.open[d.Turn]:
			s.problem("event %s of turn %s was rolled back, and reached a handler", d.Event, d.Turn)
		case !ok:
			s.problem("event %s reached a handler, and no producer knows it", d.Event)
		}
		h := s.handled[d.Event]
		if h == nil {
			h = &handling{last: make(map[int]string)}
			s.handled[d.Event] = h
		}
		h.handled = h.handled || d.Step == handled
		h.failed = h.failed || d.Step == failed
		if d.Step != started || h.last[d.Attempt] == "" {
			h.last[d.Attempt] = d.Step
		}
	}
	for _, h := range s.handled {
		retried, redelivered := h.again()
		if retried {
			s.account.Retried++
		}
		if redelivered {
			s.account.Redelivered++
		}
	}
}

// again reports whether a handler got the event again after a failure, and whether it got the event again without
// one.
func (h *handling) again() (retried, redelivered bool) {
	latest := 0
	for n := range h.last {
		latest = max(latest, n)
	}
	for n, step := range h.last {
		if n < latest {
			retried = retried || step == failed
			redelivered = redelivered || step != failed
		}
	}
	return retried, redelivered
}

func (s *settlement) table(rows []event) {
	found := make(map[uuid.UUID]bool, len(rows))
	for _, e := range rows {
		found[e.ID] = true
		if turn, ok := s.committed[e.ID]; !ok || turn.String() != e.Turn {
			s.problem("event %s of turn %s is in the table, and no producer committed it", e.ID, e.Turn)
		}
		h := s.handled[e.ID]
		switch {
		case e.Status == "delivered" && (h == nil || !h.handled):
			s.problem("event %s is delivered, and no handler got it done", e.ID)
		case e.Status == "delivered":
			s.account.Delivered++
		case e.Status == "dead" && (h == nil || !h.failed || e.LastError == ""):
			s.problem("event %s is dead without a reason", e.ID)
		case e.Status == "dead":
			s.account.Dead++
		default:
			s.account.Left++
			s.problem("event %s is left in status %s", e.ID, e.Status)
		}
	}
	for id, turn := range s.committed {
		if !found[id] {
			s.problem("event %s of turn %s is lost", id, turn)
		}
	}
}

// effects compares the tables of minichat with the events: there must be one finalised turn per event, and one entry in
// the ledger per handled event.
func (s *settlement) effects(h history) {
	turns := make(map[events.TurnID]bool, len(h.finalized))
	for _, turn := range h.finalized {
		turns[turn] = true
	}
	entries := make(map[uuid.UUID]bool, len(h.ledger))
	for _, id := range h.ledger {
		entries[id] = true
		if _, ok := s.committed[id]; !ok {
			s.problem("the ledger has an entry of event %s, which no producer committed", id)
		}
	}
	for id, turn := range s.committed {
		if !turns[turn] {
			s.problem("event %s is committed without its turn %s", id, turn)
		}
		delete(turns, turn)
		if done := s.handled[id]; done != nil && done.handled && !entries[id] {
			s.problem("event %s was handled without an entry in the ledger", id)
		}
	}
	for turn := range turns {
		s.problem("turn %s is finalised without an event", turn)
	}
}

// starts compares the turns that were started with what each reader of the log has of them.
func (s *settlement) starts(h history) {
	a := &s.account
	a.Started, a.Messages = len(h.started), h.messages
	if logged := count(h.logged); logged != a.Started {
		s.problem("%d turns were started, and the log has %d events", a.Started, logged)
	}
	a.Activity, a.Analytics = count(h.activity), count(h.analytics)
	for tenant, want := range h.logged {
		s.inOrder("the listener activity", tenant, want, h.activity[tenant])
		s.inOrder("the other service", tenant, want, h.analytics[tenant])
	}
	if a.Activity != a.Started || a.Analytics != a.Started {
		s.problem("%d turns were started, the listener activity has %d and the other service %d", a.Started, a.Activity, a.Analytics)
	}
	times := make(map[events.TurnID]int)
	for _, turn := range h.shown {
		times[turn.Turn]++
	}
	for _, turn := range h.started {
		if times[turn] == 0 {
			s.problem("turn %s was started, and the listener typing did not show it", turn)
		}
		if times[turn] > 1 {
			a.ShownAgain++
		}
	}
	if a.Shown = len(times); a.Shown > a.Started {
		s.problem("%d turns were shown, and %d were started", a.Shown, a.Started)
	}
}

// inOrder requires that a reader has the events of a tenant once each, in the order of the log.
func (s *settlement) inOrder(reader string, tenant uuid.UUID, want, got []uuid.UUID) {
	if !slices.Equal(want, got) {
		s.problem("%s does not have the %d started turns of tenant %s once each and in order: it has %d", reader, len(want), tenant, len(got))
	}
}

func count(byTenant map[uuid.UUID][]uuid.UUID) (n int) {
	for _, found := range byTenant {
		n += len(found)
	}
	return n
}

// write prints the account.
func (a Account) write(out io.Writer, asJSON bool) error {
	if asJSON {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(a)
	}
	var b strings.Builder
	line := func(name string, n int, note string) { fmt.Fprintf(&b, "%-14s%7d   %s\n", name, n, note) }
	line("committed", a.Committed, "events of transactions that committed")
	line("rolled back", a.RolledBack, "of transactions that did not")
	line("refused", a.Refused, "turns without quota, and so without event")
	line("duplicates", a.Duplicates, "told so, and nothing settled twice")
	line("delivered", a.Delivered, "handled and acked")
	line("  retried", a.Retried, "tried again after a failure")
	line("  redelivered", a.Redelivered, fmt.Sprintf("handed out again after SIGKILL, of %d in hand", a.InHand))
	line("dead", a.Dead, "dead letters, each with its reason")
	line("left", a.Left, "neither delivered nor dead")
	line("started", a.Started, "turns, each with an event that three listeners read")
	line("  activity", a.Activity, "written once each, in the listener's transaction")
	line("  typing", a.Shown, fmt.Sprintf("shown, %d of them again after SIGKILL", a.ShownAgain))
	line("  Kafka", a.Analytics, fmt.Sprintf("applied once each by another service, from %d messages", a.Messages))
	outcome := "correct"
	if !a.Correct {
		outcome = "WRONG"
	}
	fmt.Fprintf(&b, "\n%s: %d committed = %d delivered + %d dead, and %d started = %d written = %d shown = %d over Kafka, in %.1f s\n",
		outcome, a.Committed, a.Delivered, a.Dead, a.Started, a.Activity, a.Shown, a.Analytics, a.Seconds)
	const shown = 20
	for i, problem := range a.Problems {
		if i == shown {
			fmt.Fprintf(&b, "  and %d more\n", len(a.Problems)-shown)
			break
		}
		fmt.Fprintf(&b, "  %s\n", problem)
	}
	_, err := io.WriteString(out, b.String())
	return err
}
