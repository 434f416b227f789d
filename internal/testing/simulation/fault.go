// Package simulation plays random schedules of cores against models of tables, in virtual time. A machine is a core with
// its model. A schedule is a value: a seed, and if something was found, the events and faults that are needed for it.
package simulation

import (
	"fmt"
	"slices"
	"time"
)

// Kind is a kind of fault.
type Kind int

// The kinds. A machine does not have all of them.
const (
	Cut          Kind = iota // a statement has no effect, and fails
	Unanswered               // a statement takes effect, and its answer is lost
	Late                     // a statement fails at once, and takes effect later
	Pause                    // a process stands still, for up to twice the time of its lease
	Kill                     // a process ends without a word
	Poison                   // an event kills whoever handles it
	Restart                  // the server crashes and restarts: what is not on disk and answers are lost
	Down                     // the database does not answer
	ClockStep                // the clock of the database jumps
	LostRing                 // a notification reaches nobody
	DoubledRing              // a notification comes twice
	LostBell                 // the connection of a doorbell is lost
	Exhausted                // the pool of a process has no connection
	LimitChange              // a limit changes
	NewVersion               // an event has a version that some processes do not know
	Rollback                 // a transaction that enqueues is rolled back
	LateCommit               // a transaction that enqueues commits late
	Away                     // a target is unavailable
	Failure                  // a handler fails
	Slow                     // a handler takes longer than its lease
	Stop                     // a process is told to stop, and another starts
	OperatorStop             // an operator pauses something
	Replay                   // dead letters are replayed
	Reshard                  // the number of shards changes
	Locked                   // a row is locked by another transaction
	DoubledSend              // a broker delivers a message twice
	Unsynced                 // a transaction that enqueues does not wait for the disk, so a restart of the server may undo it
	kinds
)

var kindNames = [kinds]string{
	"cut", "unanswered", "late", "pause", "kill", "poison", "restart", "down", "clock-step", "lost-ring", "doubled-ring",
	"lost-bell", "exhausted", "limit-change", "new-version", "rollback", "late-commit", "away", "failure", "slow", "stop",
	"operator-pause", "replay", "reshard", "locked", "doubled-send", "unsynced",
}

// String returns the name of k, for example "clock-step".
func (k Kind) String() string { return kindNames[k] }

// KindOf returns the kind of a name.
func KindOf(name string) (Kind, error) {
	if i := slices.Index(kindNames[:], name); i >= 0 {
		return Kind(i), nil
	}
	return 0, fmt.Errorf("%q is not a kind of fault", name)
}

// Fault is something that goes wrong.
type Fault struct {
	Kind Kind
	N    int    // the place where it happens: the Nth of those where a fault of this kind might happen, from 0
	Pick uint64 // decides what is left open: which process, how long
}

// Pick1 returns one of 0 to n-1.
func (f Fault) Pick1(n int) int { return int(mix(f.Pick, 1) % uint64(n)) }

// Pick2 returns one of 0 to n-1, which does not depend on Pick1.
func (f Fault) Pick2(n int) int { return int(mix(f.Pick, 2) % uint64(n)) }

// UpTo returns a duration of up to d.
func (f Fault) UpTo(d time.Duration) time.Duration {
	return time.Duration(mix(f.Pick, 3) % uint64(d+1))
}

// mix returns a number that a and b decide: that of SplitMix64.
func mix(a, b uint64) uint64 {
	z := a + (b+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// Roll returns one of 0 to n-1, which a seed and two numbers decide.
func Roll(seed, a, b uint64, n int) int { return int(mix(mix(seed, a), b) % uint64(n)) }

// Rates says for each kind of fault that a machine has how rare it is: it happens at one of so many places.
type Rates map[Kind]int

// Faults are those of one schedule. Each is drawn from the seed and from its place alone, so that another one that does not
// happen leaves it as it is. About half of the kinds happen in a schedule, others in another.
type Faults struct {
	Happened []Fault
	// Calm says that nothing goes wrong any more.
	Calm bool

	seed  uint64
	rates [kinds]int
	given map[[2]int]Fault // nil draws
	n     [kinds]int
}

// NewFaults returns the faults of a schedule at these rates.
func NewFaults(s *Schedule, rates Rates) *Faults {
	f := &Faults{seed: mix(s.Seed, 0xfa)}
	for k, rate := range rates {
		switch {
		case s.Rough:
			f.rates[k] = max(rate/3, 2)
		case mix(f.seed, uint64(k)<<32)%2 == 0:
			f.rates[k] = rate
		}
	}
	if s.Fixed {
		f.given = make(map[[2]int]Fault, len(s.Faults))
		for _, fault := range s.Faults {
			f.given[[2]int{int(fault.Kind), fault.N}] = fault
		}
	}
	return f
}

// Without takes kinds out of the schedule, unless its faults are given.
func (f *Faults) Without(some ...Kind) {
	for _, k := range some {
		f.rates[k] = 0
	}
}

// Draw returns the fault of kind k that happens here, if one does.
func (f *Faults) Draw(k Kind) (fault Fault, happens bool) {
	n := f.n[k]
	if f.n[k]++; f.Calm {
		return fault, false
	}
	if f.given != nil {
		fault, happens = f.given[[2]int{int(k), n}]
	} else if rate := f.rates[k]; rate > 0 {
		pick := mix(mix(f.seed, uint64(k)+1), uint64(n)+1)
		fault, happens = Fault{k, n, pick}, pick%uint64(rate) == 0
	}
	if happens {
		f.Happened = append(f.Happened, fault)
	}
	return fault, happens
}

// First returns the first of several kinds that happens here, if one does.
func (f *Faults) First(some ...Kind) (fault Fault, happens bool) {
	for _, k := range some {
		if drawn, is := f.Draw(k); is && !happens {
			fault, happens = drawn, true
		}
	}
	return fault, happens
}
