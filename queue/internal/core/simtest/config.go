package simtest

import (
	"time"

	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/internal/machine/rest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue/internal/core"
)

// config returns the configuration of p, which is partly random.
func (p *proc) config(drain bool) core.Config {
	s := p.sim
	breaker := config.BreakerWithDefaults(outbox.Breaker{Failures: 3})
	random := func(d time.Duration) time.Duration { return time.Duration(p.rnd.Int64N(int64(d) + 1)) }
	broker := &rest.Target{Name: "broker", Kind: rest.Broker, Breaker: breaker, Random: random}
	handler := func(name string) *core.Target {
		return &core.Target{Rest: &rest.Target{Name: name, Topics: []string{name}, Breaker: breaker, Random: random}}
	}
	destination := func(name string) *core.Target {
		t := &rest.Target{
			Name: name, Topics: []string{name}, Kind: rest.Destination, Breaker: breaker, Broker: broker, Random: random,
		}
		broker.Destinations = append(broker.Destinations, t)
		return &core.Target{Rest: t}
	}
	handled, slow, sent, routed := handler("handled"), handler("slow"), destination("sent"), destination("routed")
	routed.ByEvent = true
	batched := handler("batched")
	batched.Batch = outbox.Batch{Size: 1 + p.rnd.IntN(20), Wait: p.upTo(2 * time.Second)}
	of := map[string]*core.Target{
		"handled": handled, "batched": batched, "slow": slow, "sent": sent, "sent2": sent, "routed": routed,
	}
	cfg := core.Config{
		Targets: []*core.Target{handled, batched, slow, sent, routed}, Pauses: s.pauses,
		BatchSize: 1 + p.rnd.IntN(30), Concurrency: 1 + p.rnd.IntN(8), Ahead: p.rnd.IntN(8),
		LeaseDuration: lease, PollInterval: time.Second, MaxPollInterval: 3 * time.Second, LastAttemptLimit: time.Second,
		Doorbell: s.bells || p.rnd.IntN(2) == 0, Alone: p.rnd.IntN(4) == 0, Drain: drain, FirstPause: breaker.FirstPause, Random: random,
	}
	cfg.Grows = cfg.BatchSize%2 == 0
	if s.bells {
		cfg.PollInterval, cfg.MaxPollInterval, cfg.LeaseDuration = time.Hour, time.Hour, 3*time.Hour
	}
	if drain && p.rnd.IntN(3) == 0 {
		cfg.Limit = 1 + p.rnd.IntN(50)
	}
	for _, name := range s.topics {
		cfg.Topics = append(cfg.Topics, core.Topic{
			Name: name, Target: of[name], Turns: name == fairTopic || name == limitedTopic, Limits: name == limitedTopic,
		})
	}
	return cfg
}
