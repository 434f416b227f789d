package target

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
)

// ByEvent holds the destinations of a Target whose events say where they go. A destination is known while events are on
// their way to it, while it rests, and while its latest events have failed. Each rests alone. It may be used from any
// number of goroutines.
type ByEvent struct {
	of      *Target
	away    atomic.Int32 // the dispatcher claims events of the topic while some destinations rest
	returns atomic.Int64

	mu    sync.Mutex
	known map[string]*Target
	users map[*Target]int // those that events are on their way to
}

const (
	// maxIdle limits how many destinations are known that no event is on its way to.
	maxIdle = 10_000
	// maxNamed limits how many resting destinations are named. Any number of customers may be unreachable.
	maxNamed = 20
)

// Enter returns the target of a destination. Leave must be called when no event is on its way to it.
func (b *ByEvent) Enter(destination string) *Target {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.known[destination]
	if t == nil {
		of := b.of
		t = &Target{
			Name: of.broker.Name + ":" + destination, Publisher: of.Publisher, broker: of.broker, breaker: of.breaker,
			log: of.log, hooks: of.hooks, Topics: of.Topics, away: &b.away, returns: &b.returns, changed: of.changed,
		}
		b.known[destination] = t
	}
	b.users[t]++
	return t
}

// Leave forgets t, which Enter has returned for destination, unless there is something to remember.
func (b *ByEvent) Leave(destination string, t *Target) {
	b.mu.Lock()
	if b.users[t]--; b.users[t] > 0 {
		b.mu.Unlock()
		return
	}
	delete(b.users, t)
	var logs []func()
	if t.clean() {
		delete(b.known, destination)
	} else if len(b.known)-len(b.users) > maxIdle {
		logs = b.forget()
	}
	b.mu.Unlock()
	for _, line := range logs {
		line()
	}
}

// forget forgets a tenth of the idle destinations, those first that do not rest. It returns what is to be told. The
// caller holds b.mu.
func (b *ByEvent) forget() (logs []func()) {
	left := maxIdle / 10
	for _, resting := range []bool{false, true} {
		for name, t := range b.known {
			if left == 0 {
				return logs
			}
			if b.users[t] > 0 || t.rests() != resting {
				continue
			}
			delete(b.known, name)
			left--
			if resting {
				b.away.Add(-1)
				t.mu.Lock()
				rested := time.Since(t.since)
				t.mu.Unlock()
				logs = append(logs, func() { t.hooks.Resumed(t.Name, rested) })
			}
		}
	}
	return logs
}

// clean reports whether t is like a new one.
func (t *Target) clean() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.since.IsZero() && len(t.failedInRow) == 0 && !t.undelivered
}

// rests reports whether t itself rests, whatever its broker does.
func (t *Target) rests() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.since.IsZero()
}

// Refuses returns the result of an event that t does not take now, because it rests or a call has stalled. The event is
// to come back after LaterDelay. ok reports that t takes it.
func (t *Target) Refuses(now time.Time) (why errclass.Result, ok bool) {
	if is, _ := t.Stalled(now); is {
		return errclass.New(errclass.ClassUnavailable, "a call of the publisher to %s takes long", t.Name), false
	}
	if t.Resting() && t.left() > 0 {
		return t.Why(), false
	}
	return errclass.Result{}, true
}

// CallReturned records that a call to t has returned. Delays of events that it did not take begin small again, unless t
// rests.
func (t *Target) CallReturned() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.since.IsZero() {
		t.handedBack = 0
	}
}

// next returns when the next call stalls; zero if none will.
func (b *ByEvent) next(now time.Time) (next time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for t := range b.users {
		if stalled, at := t.Stalled(now); !stalled && !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next
}

// reasons adds why destinations rest to all, for the first few by name.
func (b *ByEvent) reasons(all map[string]string) {
	if b.away.Load() == 0 {
		return
	}
	b.mu.Lock()
	resting := make(map[string]*Target)
	for _, t := range b.known {
		if t.rests() {
			resting[t.Name] = t
		}
	}
	b.mu.Unlock()
	for i, name := range slices.Sorted(maps.Keys(resting)) {
		if i == maxNamed {
			all[b.of.Name] = fmt.Sprintf("%d more destinations rest", len(resting)-maxNamed)
			return
		}
		if why := resting[name].Why(); why.Class == errclass.ClassUnavailable {
			all[name] = why.Text
		}
	}
}

// resting names the destinations that rest, the first few by name.
func (b *ByEvent) resting() []string {
	all := make(map[string]string)
	b.reasons(all)
	names := slices.Sorted(maps.Keys(all))
	if i := slices.Index(names, b.of.Name); i >= 0 {
		names = append(slices.Delete(names, i, i+1),
			b.of.Name+" ("+strings.TrimSuffix(all[b.of.Name], " destinations rest")+")")
	}
	return names
}
