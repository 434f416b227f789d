package outbox

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// targets are those of one dispatcher or listener.
type targets struct {
	breaker    Breaker
	publishers map[string]Publisher
	log        *slog.Logger
	byTopic    map[string]*target // by topic, "namespace/name"
	all        []*target          // each once, in the order of the topics
	brokers    map[string]*target
	away       atomic.Int32 // how many of all and brokers rest
	returns    atomic.Int64 // how often one of them has come back
	publishes  bool
}

func newTargets(breaker Breaker, publishers map[string]Publisher, log *slog.Logger) *targets {
	return &targets{breaker: breaker, publishers: publishers, log: log, byTopic: make(map[string]*target), brokers: make(map[string]*target)}
}

// add gives a topic its target: that of its publication, or one of its own for its handler.
func (s *targets) add(topic string, p *publication) error {
	t := &target{name: topic, breaker: s.breaker, log: s.log, away: &s.away, returns: &s.returns, returnPending: true}
	if p != nil {
		publisher, err := s.publisher(p.broker)
		if err != nil {
			return err
		}
		s.publishes = true
		t.name, t.publisher = p.broker+":"+p.destination, publisher
		for _, known := range s.all {
			if known.name == t.name && known.publisher != nil {
				t = known
			}
		}
		if t.broker = s.brokers[p.broker]; t.broker == nil {
			t.broker = &target{name: p.broker, breaker: s.breaker, log: s.log, away: &s.away, returns: &s.returns}
			s.brokers[p.broker] = t.broker
		}
		t.broker.topics = append(t.broker.topics, topic)
	}
	if t.topics = append(t.topics, topic); len(t.topics) == 1 {
		s.all = append(s.all, t)
		if t.broker != nil {
			t.broker.destinations = append(t.broker.destinations, t)
		}
	}
	s.byTopic[topic] = t
	return nil
}

func (s *targets) publisher(broker string) (Publisher, error) {
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

// resting names the targets that are away.
func (s *targets) resting() []string {
	var names []string
	for _, t := range s.all {
		if t.resting() {
			names = append(names, t.name)
		}
	}
	return names
}

// leftBehind names the targets of which a call was left behind.
func (s *targets) leftBehind() (names []string) {
	for _, t := range s.all {
		t.mu.Lock()
		if t.pendingCalls > 0 {
			names = append(names, t.name+" ("+strings.Join(t.topics, ", ")+")")
		}
		t.mu.Unlock()
	}
	return names
}

// next returns when a target that rests is to be tried, or a call stalls; zero when there is nothing to wait for.
func (s *targets) next(now time.Time) (next time.Time) {
	if s.away.Load() == 0 && !s.publishes {
		return next
	}
	for _, t := range s.all {
		at := now.Add(t.left())
		if !t.resting() || !at.After(now) {
			if stalled, then := t.stalled(now); stalled || then.IsZero() {
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
