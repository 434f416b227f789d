package target

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/machine/report"
	"github.com/outboxgen/outboxgen/internal/machine/testsignal"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

// Targets holds the targets of one dispatcher or listener.
type Targets struct {
	breaker    outbox.Breaker
	publishers map[string]publish.Publisher
	log        *slog.Logger
	ByTopic    map[string]*Target // by topic, "namespace/name"
	All        []*Target          // each once, in the order of the topics
	brokers    map[string]*Target
	Away       atomic.Int32 // how many of All and of the brokers rest
	Returns    atomic.Int64 // how often one of them became available again
	Publishes  bool
	Hooks      *report.Hooks     // set before Add; nil calls nobody
	Changed    testsignal.Signal // has an element when what rests, or why, has changed
}

func NewTargets(breaker outbox.Breaker, publishers map[string]publish.Publisher, log *slog.Logger) *Targets {
	return &Targets{
		breaker: breaker, publishers: publishers, log: log, ByTopic: make(map[string]*Target),
		brokers: make(map[string]*Target), Changed: make(testsignal.Signal, 1),
	}
}

// Add gives a topic its target: that of its publication, or a separate one for its handler.
func (s *Targets) Add(topic string, p *Route) error {
	t := &Target{
		Name: topic, breaker: s.breaker, log: s.log, hooks: s.Hooks, changed: s.Changed, away: &s.Away, returns: &s.Returns,
		returnPending: true,
	}
	if p != nil {
		publisher, err := s.publisher(p.broker)
		if err != nil {
			return err
		}
		s.Publishes = true
		t.Name, t.Publisher = p.broker+":"+p.destination, publisher
		if p.byEvent {
			t.Name = p.broker + ":*"
			t.ByEvent = &ByEvent{of: t, known: make(map[string]*Target), users: make(map[*Target]int)}
		}
		for _, known := range s.All {
			if known.Name == t.Name && known.Publisher != nil && (known.ByEvent != nil) == p.byEvent {
				t = known
			}
		}
		if t.broker = s.brokers[p.broker]; t.broker == nil {
			t.broker = &Target{
				Name: p.broker, breaker: s.breaker, log: s.log, hooks: s.Hooks, changed: s.Changed, away: &s.Away,
				returns: &s.Returns,
			}
			s.brokers[p.broker] = t.broker
		}
		t.broker.Topics = append(t.broker.Topics, topic)
	}
	if t.Topics = append(t.Topics, topic); len(t.Topics) == 1 {
		s.All = append(s.All, t)
		if t.broker != nil {
			t.broker.destinations = append(t.broker.destinations, t)
		}
	}
	s.ByTopic[topic] = t
	return nil
}

// Alias gives an earlier name of a topic the target of the topic.
func (s *Targets) Alias(name, topic string) {
	if name == topic {
		return
	}
	t := s.ByTopic[topic]
	t.Topics = append(t.Topics, name)
	if t.broker != nil {
		t.broker.Topics = append(t.broker.Topics, name)
	}
	s.ByTopic[name] = t
}

func (s *Targets) publisher(broker string) (publish.Publisher, error) {
	p, there := s.publishers[broker]
	switch {
	case !there && len(s.publishers) > 0:
		return nil, fmt.Errorf("publishes to %s: field Publishers has none of that name, but %s", broker,
			strings.Join(slices.Sorted(maps.Keys(s.publishers)), ", "))
	case !there:
		return nil, fmt.Errorf("publishes to %s: field Publishers has none of that name", broker)
	case p == nil:
		return nil, fmt.Errorf("publishes to %s: its entry in field Publishers is nil", broker)
	}
	return p, nil
}

// Reasons returns why each of the targets that are unavailable rests.
func (s *Targets) Reasons() map[string]string {
	reasons := make(map[string]string)
	for _, t := range s.All {
		if why := t.Why(); why.Class == errclass.ClassUnavailable {
			reasons[t.Name] = why.Text
		}
		if t.ByEvent != nil {
			t.ByEvent.reasons(reasons)
		}
	}
	return reasons
}

// Resting names the targets that are unavailable.
func (s *Targets) Resting() []string {
	var names []string
	for _, t := range s.All {
		if t.Resting() {
			names = append(names, t.Name)
		}
		if t.ByEvent != nil {
			names = append(names, t.ByEvent.resting()...)
		}
	}
	return names
}

// Abandoned names the targets with a call that has outlived its lease and has not returned.
func (s *Targets) Abandoned() (names []string) {
	for _, t := range s.All {
		t.mu.Lock()
		if t.pendingCalls > 0 {
			names = append(names, t.Name+" ("+strings.Join(t.Topics, ", ")+")")
		}
		t.mu.Unlock()
	}
	return names
}

// Next returns when the next resting target is to be tried, or the next call stalls; zero if there is nothing to wait
// for.
func (s *Targets) Next(now time.Time) (next time.Time) {
	if s.Away.Load() == 0 && !s.Publishes {
		return next
	}
	for _, t := range s.All {
		if t.ByEvent != nil {
			if at := t.ByEvent.next(now); !at.IsZero() && (next.IsZero() || at.Before(next)) {
				next = at
			}
		}
		at := now.Add(t.left())
		if !t.Resting() || !at.After(now) {
			if stalled, then := t.Stalled(now); stalled || then.IsZero() {
				continue
			} else {
				at = then
			}
		}
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return next
}
