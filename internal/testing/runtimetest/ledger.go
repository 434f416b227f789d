package runtimetest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outbox"
)

// Ledger records what an observer is told, and checks the order.
type Ledger struct {
	mu      sync.Mutex
	claimed map[uuid.UUID]int
	ended   map[uuid.UUID]int
	called  map[uuid.UUID]int // Started
	open    map[string]int    // calls by event and attempt that have started and not finished
	Settled map[outbox.Settlement]int
	Lost    int
	Dead    map[uuid.UUID]string // reasons
	deaths  map[uuid.UUID]int
	Calls   int // of handlers or publishers
	Empty   int // claims of nothing
	Rests   []string
	Returns []string
	Runner  outbox.Runner
	faults  []string
	told    chan struct{} // holds one
}

func NewLedger() *Ledger {
	return &Ledger{
		claimed: make(map[uuid.UUID]int), ended: make(map[uuid.UUID]int), called: make(map[uuid.UUID]int),
		open: make(map[string]int), Settled: make(map[outbox.Settlement]int), Dead: make(map[uuid.UUID]string),
		deaths: make(map[uuid.UUID]int), told: make(chan struct{}, 1),
	}
}

// Await waits until of, which is called with the ledger locked, reports true.
func (l *Ledger) Await(t testing.TB, what string, of func() bool) {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		l.mu.Lock()
		is := of()
		l.mu.Unlock()
		if is {
			return
		}
		select {
		case <-l.told:
		case <-limit:
			require.FailNow(t, "timeout", "%s: %s", what, l)
		}
	}
}

func (l *Ledger) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprintf("settled %v, lost %d, dead %d, calls %d, faults %v", l.Settled, l.Lost, len(l.deaths), l.Calls,
		l.faults)
}

// with runs f with the ledger locked, and then tells Await.
func (l *Ledger) with(r outbox.Runner, f func()) {
	l.mu.Lock()
	f()
	l.Runner = r
	l.mu.Unlock()
	select {
	case l.told <- struct{}{}:
	default:
	}
}

func (l *Ledger) fault(format string, args ...any) {
	l.faults = append(l.faults, fmt.Sprintf(format, args...))
}

func (l *Ledger) end(e outbox.Event, how string) {
	if l.ended[e.ID]++; l.ended[e.ID] > l.claimed[e.ID] {
		l.fault("%s was %s %d times after %d claims", e.ID, how, l.ended[e.ID], l.claimed[e.ID])
	}
}

// Observer returns the observer that l is told by.
func (l *Ledger) Observer() *outbox.Observer {
	name := func(e outbox.Event) string { return fmt.Sprint(e.ID, " ", e.Attempt) }
	return &outbox.Observer{
		Claimed: func(r outbox.Runner, events []outbox.Event, took time.Duration) {
			l.with(r, func() {
				if len(events) == 0 {
					l.Empty++
				}
				if took <= 0 {
					l.fault("a claim took %s", took)
				}
				for _, e := range events {
					l.claimed[e.ID]++
				}
			})
		},
		Started: func(ctx context.Context, r outbox.Runner, events []outbox.Event) {
			l.with(r, func() {
				l.Calls++
				for _, e := range events {
					if l.called[e.ID]++; l.claimed[e.ID] <= l.ended[e.ID] {
						l.fault("%s was started before it was claimed", e.ID)
					}
					l.open[name(e)]++
				}
			})
		},
		Finished: func(ctx context.Context, r outbox.Runner, events []outbox.Event, errs []error, took time.Duration) {
			l.with(r, func() {
				if len(errs) != len(events) || took <= 0 {
					l.fault("%d events have %d errors after %s", len(events), len(errs), took)
				}
				for _, e := range events {
					if l.open[name(e)]--; l.open[name(e)] < 0 {
						l.fault("%s has finished before it was started", e.ID)
					}
				}
			})
		},
		Settled: func(r outbox.Runner, e outbox.Event, s outbox.Settlement) {
			l.with(r, func() {
				l.Settled[s]++
				l.end(e, string(s))
				if l.open[name(e)] > 0 {
					l.fault("%s was %s before its call had finished", e.ID, s)
				}
				if s == outbox.SettledDelivered && l.called[e.ID] == 0 {
					l.fault("%s was delivered without a call", e.ID)
				}
			})
		},
		Lost: func(r outbox.Runner, e outbox.Event) {
			l.with(r, func() {
				l.Lost++
				l.end(e, "lost")
			})
		},
		Dead: func(r outbox.Runner, e outbox.Event, err error) {
			l.with(r, func() {
				if l.deaths[e.ID]++; l.deaths[e.ID] > 1 {
					l.fault("%s died twice", e.ID)
				}
				l.Dead[e.ID] = err.Error()
			})
		},
		Resting: func(r outbox.Runner, target string, cause error) {
			l.with(r, func() { l.Rests = append(l.Rests, target+": "+cause.Error()) })
		},
		Resumed: func(r outbox.Runner, target string, rested time.Duration) {
			l.with(r, func() {
				if l.Returns = append(l.Returns, target); rested <= 0 {
					l.fault("%s rested for %s", target, rested)
				}
			})
		},
	}
}

// RequireWhole requires that every claimed event was settled or lost, and that the order was right.
func (l *Ledger) RequireWhole(t testing.TB) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	require.Empty(t, l.faults)
	require.Equal(t, l.claimed, l.ended)
	for call, n := range l.open {
		require.Zero(t, n, call)
	}
	require.Equal(t, l.Settled[outbox.SettledDead], len(l.deaths))
}
