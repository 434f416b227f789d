package simulation

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Account counts what was played.
type Account struct {
	Schedules, Steps, Violations int
	Controls, Found              int // how many guards were left out, and of how many an invariant has noticed it
	Playing                      time.Duration
	Faults                       map[string]int // by kind
	Counts                       map[string]int // what the machine counts

	m *Machine
}

// NewAccount returns an empty account of m.
func NewAccount(m *Machine) *Account {
	a := &Account{Faults: make(map[string]int), Counts: make(map[string]int), m: m}
	for k := range m.Rates {
		a.Faults[k.String()] = 0
	}
	return a
}

// Play plays a schedule and counts it.
func (a *Account) Play(s *Schedule) *Violation {
	began := time.Now()
	r := a.m.Play(s, nil)
	a.Playing += time.Since(began)
	a.Schedules++
	a.Steps += r.Steps
	for _, f := range r.Faults {
		a.Faults[f.Kind.String()]++
	}
	for name, n := range r.Counts {
		a.Counts[name] += n
	}
	if r.Violation != nil {
		a.Violations++
	}
	return r.Violation
}

// Rate is how many steps were played in a second.
func (a *Account) Rate() int { return int(float64(a.Steps) / max(a.Playing.Seconds(), 1e-9)) }

// Missing are the kinds of faults that have not happened.
func (a *Account) Missing() (kinds []string) {
	for _, k := range slices.Sorted(maps.Keys(a.Faults)) {
		if a.Faults[k] == 0 {
			kinds = append(kinds, k)
		}
	}
	return kinds
}

// String returns the account as lines.
func (a *Account) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d schedules, %d steps, %d steps/s\n", a.m.Name, a.Schedules, a.Steps, a.Rate())
	for _, all := range []struct {
		what   string
		counts map[string]int
	}{{"faults:", a.Faults}, {"counted:", a.Counts}} {
		line := "  " + all.what
		for _, name := range slices.Sorted(maps.Keys(all.counts)) {
			word := fmt.Sprintf(" %s=%d", name, all.counts[name])
			if len(line)+len(word) > 120 {
				b.WriteString(line + "\n")
				line = "   "
			}
			line += word
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}

// Finding is what has become of a control.
type Finding struct {
	Control   Control
	Schedule  *Schedule // the first that an invariant has noticed
	Violation *Violation
	Schedules int
	Took      time.Duration
}

// enough is how many schedules must suffice to notice that a guard is left out.
const enough = 3000

// Find plays random schedules without a guard, from a seed on, until an invariant notices it. Those with even numbers are rough. What fails
// with the guard, too, does not count.
func (m *Machine) Find(c Control, seed uint64) Finding {
	f := Finding{Control: c}
	for began := time.Now(); f.Violation == nil && f.Schedules < enough; f.Took = time.Since(began) {
		n := max(seed, 1) + uint64(f.Schedules)
		f.Schedule = &Schedule{Machine: m.Name, Seed: n, Rough: n%2 == 0, Without: c.Name}
		f.Schedules++
		if f.Violation = m.Play(f.Schedule, nil).Violation; f.Violation != nil {
			with := *f.Schedule
			if with.Without = ""; m.Play(&with, nil).Violation != nil {
				f.Violation = nil
			}
		}
	}
	return f
}

// String returns the finding as a line.
func (f Finding) String() string {
	found := "NOT FOUND"
	if f.Violation != nil {
		found = "found by " + f.Violation.String()
	}
	return fmt.Sprintf("%-18s %-60s %7s %4d schedules  %s", f.Control.Name, f.Control.What, f.Took.Round(time.Millisecond), f.Schedules, found)
}

// Report returns what happens in a schedule as text for people: the schedule itself, which Parse reads, and as comments
// what is wrong and a table of what happens.
func Report(m *Machine, s *Schedule) string {
	var rows [][3]string
	r := m.Play(s, func(at time.Duration, who, what string) {
		rows = append(rows, [3]string{fmt.Sprintf("%.3fs", at.Seconds()), who, what})
	})
	var b strings.Builder
	if r.Violation != nil {
		fmt.Fprintf(&b, "# %s\n#\n", r.Violation)
	}
	widths := [2]int{len("at"), len("who")}
	for _, row := range rows {
		widths[0], widths[1] = max(widths[0], len(row[0])), max(widths[1], len(row[1]))
	}
	line := func(at, who, what string) {
		fmt.Fprintf(&b, "# | %*s | %-*s | %s\n", widths[0], at, widths[1], who, what)
	}
	line("at", "who", "what")
	if left := len(rows) - longest; left > 0 {
		line("", "", fmt.Sprintf("(%d rows are left out)", left))
		rows = rows[left:]
	}
	for _, row := range rows {
		line(row[0], row[1], row[2])
	}
	return b.String() + s.String()
}

// longest is how many rows the table of a report has at most: the last ones.
const longest = 120
