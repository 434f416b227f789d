package target

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/machine/report"
	"github.com/outboxgen/outboxgen/internal/machine/rest"
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
	brokers    map[string]*rest.Target
	Away       atomic.Int32      // how many of All and of the brokers rest, as a listener has seen it last
	Hooks      *report.Hooks     // nil calls nobody
	Changed    testsignal.Signal // has an element when what rests, or why, has changed

	mu    sync.Mutex     // of the methods of Target; a dispatcher's core needs none
	rests []*rest.Target // of All and of the brokers
}

func NewTargets(breaker outbox.Breaker, publishers map[string]publish.Publisher, log *slog.Logger) *Targets {
	return &Targets{
		breaker: breaker, publishers: publishers, log: log, ByTopic: make(map[string]*Target),
		brokers: make(map[string]*rest.Target), Changed: make(testsignal.Signal, 1),
	}
}

// Add gives a topic its target: that of its publication, or a separate one for its handler.
func (s *Targets) Add(topic string, p *Route) error {
	t := &Target{Name: topic, Rest: &rest.Target{Breaker: s.breaker, ReturnPending: true}, all: s}
	if p != nil {
		publisher, err := s.publisher(p.broker)
		if err != nil {
			return err
		}
		t.Name, t.Publisher, t.ByEvent, t.Rest.Kind = p.broker+":"+p.destination, publisher, p.byEvent, rest.Destination
		if p.byEvent {
			t.Name = p.broker + ":*"
		}
		for _, known := range s.All {
			if known.Name == t.Name && known.Publisher != nil && known.ByEvent == p.byEvent {
				t = known
			}
		}
		broker := s.brokers[p.broker]
		if broker == nil {
			broker = &rest.Target{Name: p.broker, Kind: rest.Broker, Breaker: s.breaker}
			s.brokers[p.broker], s.rests = broker, append(s.rests, broker)
		}
		t.Rest.Broker = broker
		broker.Topics = append(broker.Topics, topic)
	}
	if t.Rest.Topics = append(t.Rest.Topics, topic); len(t.Rest.Topics) == 1 {
		t.Rest.Name = t.Name
		s.All, s.rests = append(s.All, t), append(s.rests, t.Rest)
		if t.Rest.Broker != nil {
			t.Rest.Broker.Destinations = append(t.Rest.Broker.Destinations, t.Rest)
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
	t.Rest.Topics = append(t.Rest.Topics, name)
	if t.Rest.Broker != nil {
		t.Rest.Broker.Topics = append(t.Rest.Broker.Topics, name)
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

// Tell logs notes, tells the observer of them, and says in Changed that what rests has changed.
func (s *Targets) Tell(notes []rest.Note) {
	if len(notes) > 0 {
		s.Changed.Emit()
		Tell(s.log, s.Hooks, notes)
	}
}

// Reasons returns why each of the targets that are unavailable rests.
func (s *Targets) Reasons() map[string]string {
	reasons := make(map[string]string)
	for _, t := range s.All {
		if why := t.Why(); why.Class == errclass.ClassUnavailable {
			reasons[t.Name] = why.Text
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
	}
	return names
}

// Abandoned names the targets with a call that has outlived its lease and has not returned.
func (s *Targets) Abandoned() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.All {
		if t.Rest.IsAbandoned() {
			names = append(names, t.Name+" ("+strings.Join(t.Rest.Topics, ", ")+")")
		}
	}
	return names
}
