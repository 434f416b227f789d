package driver

import (
	"fmt"
	"strings"
	"time"

	"github.com/outboxgen/outboxgen/internal/testing/faults/check"
)

// Account is what a campaign has caused and found.
type Account struct {
	check.Account
	Seed   uint64
	Took   time.Duration
	Faults map[string]int // by kind
	Exits  map[string]int // ends of processes, by role and status
	// Hanging is how many processes were killed because they did not stop.
	Hanging   int64
	Failed    map[string]error // faults that could not be caused
	Cannot    []string         // kinds that this machine cannot
	Unsettled error            // what was left to do in the end
	Bytes     int64            // of the history
	Histories []string         // of the first violations
}

// Total returns how many faults were caused.
func (a *Account) Total() int {
	n := 0
	for _, count := range a.Faults {
		n += count
	}
	return n
}

// OK reports whether all promises were kept.
func (a *Account) OK() bool {
	return len(a.Violations) == 0 && a.Unsettled == nil && len(a.Failed) == 0
}

// String is the account for people.
func (a *Account) String() string {
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	say("seed %d, %s: %d kinds of fault, %d faults", a.Seed, a.Took.Round(time.Second), len(a.Faults), a.Total())
	for _, kind := range byCount(a.Faults) {
		say("%7d  %s", a.Faults[kind], kind)
	}
	for _, kind := range a.Cannot {
		say("      -  %s", kind)
	}
	say("ends of processes:")
	for _, exit := range byCount(a.Exits) {
		say("%7d  %s", a.Exits[exit], exit)
	}
	say("events: %d committed, %d aborted, %d unknown, of which %d were committed", a.Committed, a.Aborted, a.Unknown, a.Resolved)
	say("handlers: %d calls done, %d of them again, %d effects, %d dead letters of events that are refused; history of %d MB with %d torn lines",
		a.Calls, a.Duplicates, a.Effects, a.Dead, a.Bytes>>20, a.Torn)
	say("leases: %d calls, %d told to let go, %d of which nothing is known because their process stood still", a.Leased, a.Told, a.Unsure)
	for _, l := range a.Limits {
		say("%s", l)
	}
	var counts []string
	for _, kind := range []string{
		check.Lost, check.Phantom, check.Order, check.Double, check.Overlap, check.Over, check.Extra, check.Left, check.Back, check.Again,
		check.Early, check.Wrong, check.Died, check.Broken,
	} {
		counts = append(counts, fmt.Sprintf("%d %s", a.Count(kind), kind))
	}
	say("violations: %s", strings.Join(counts, ", "))
	for kind, err := range a.Failed {
		say("could not be caused: %s: %v", kind, err)
	}
	if a.Unsettled != nil {
		say("%v", a.Unsettled)
	}
	for _, h := range a.Histories {
		say("%s", h)
	}
	if !a.OK() {
		say("FAILED: make faults SEED=%d causes the same faults in the same order", a.Seed)
	}
	return b.String()
}
