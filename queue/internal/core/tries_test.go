package core

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/machine/rest"
)

// brokerAnswers gives the broker of "sent" and "routed" a result.
func (d *driven) brokerAnswers(class errclass.Class) {
	task := d.tasks("", 1)[0]
	d.sent.Rest.Broker.OnResults(d.now, d.now, ids(task), []errclass.Result{{Class: class, Broker: true, Text: "away"}})
}

// restsFor makes a target rest for a long time.
func (d *driven) restsFor(to *Target, after time.Duration) {
	task := d.tasks("", 1)[0]
	to.Rest.OnResults(d.now, d.now, ids(task), []errclass.Result{{Class: errclass.ClassUnavailable, After: &after, Text: "away"}})
}

// try answers passes until one is a try.
func (d *driven) try() *Pass {
	d.t.Helper()
	return d.until(d.t, func(p *Pass) bool { return p.try != nil })
}

// TestTriesDoNotWaitForOthers: a target without an event is tried again after its own pause, although another rests for
// longer, which is not of the same broker, or whose broker is not what rests.
func TestTriesDoNotWaitForOthers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		of    func(*driven) *Target // that is tried
		other func(*driven) *Target // that rests for longer
		rest  func(*driven)         // what makes it rest
		tried int                   // how many targets are tried in vain
	}{
		"a broker and a handler": {
			of:    func(d *driven) *Target { return d.sent },
			other: func(d *driven) *Target { return d.handled },
			rest:  func(d *driven) { d.brokerAnswers(errclass.ClassUnavailable) },
			tried: 2,
		},
		"two destinations of a broker": {
			of:    func(d *driven) *Target { return d.sent },
			other: func(d *driven) *Target { return d.routed },
			rest:  func(d *driven) { d.rests(d.sent) },
			tried: 1,
		},
	} {
		d := drive(t)
		d.restsFor(c.other(d), 4*time.Minute)
		c.rest(d)
		for range c.tried {
			d.claimed(d.try())
		}
		require.Nil(t, d.tryable(d.now), name)
		require.Same(t, c.of(d), d.tryable(d.now.Add(time.Second)), name)
	}
}

// TestTriesOfAHandlerThatWasBack: it has answered while a claim looked for an event to try it with, and rests again.
func TestTriesOfAHandlerThatWasBack(t *testing.T) {
	t.Parallel()
	other := &Target{Rest: &rest.Target{Name: "other", Kind: rest.Handler, Random: least}}
	d := drive(t, func(c *Config) {
		other.Rest.Breaker = c.Targets[0].Rest.Breaker
		c.Targets = append(c.Targets, other)
		c.Topics = append(c.Topics, Topic{Name: "other", Target: other})
	})
	d.restsFor(other, 4*time.Minute)
	d.rests(d.handled)
	p := d.try()
	require.Same(t, d.handled, p.try)
	d.handled.Rest.OnResults(d.now, d.now, newIDs(1), make([]errclass.Result, 1))
	require.False(t, d.handled.Rest.Resting())
	d.claimed(p)
	d.rests(d.handled)
	require.Same(t, d.handled, d.tryable(d.now.Add(time.Second)))
}

// TestTriesOfABrokerBeginAgain: with the first target, unless that was just found to have no event.
func TestTriesOfABrokerBeginAgain(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(d *driven, p *Pass){
		"nobody has looked": func(d *driven, p *Pass) { d.failed(p) },
		"an event was found": func(d *driven, p *Pass) {
			d.claimed(p, d.tasks("sent", 1)...)
			d.sentAll(the[*Send](d), errclass.ClassFailed)
			d.brokerAnswers(errclass.ClassUnavailable)
		},
		"the broker was back": func(d *driven, p *Pass) {
			d.brokerAnswers(errclass.ClassDone)
			d.claimed(p)
			d.brokerAnswers(errclass.ClassUnavailable)
		},
	} {
		d := drive(t)
		d.brokerAnswers(errclass.ClassUnavailable)
		p := d.try()
		require.Same(t, d.sent, p.try, name)
		answer(d, p)
		require.Same(t, d.sent, d.try().try, name)
	}
}

// TestUnsentEventsFreeNoWorker: the events of a call that could not be encoded occupied none.
func TestUnsentEventsFreeNoWorker(t *testing.T) {
	t.Parallel()
	d := drive(t)
	sent := d.tasks("sent", 2)
	d.claimed(d.first(), append(sent, d.tasks("handled", 4)...)...)
	require.Len(t, all[Run](d), 2)
	sent[0].Result = errclass.New(errclass.ClassRefused, "it is too large")
	d.step(0, &Reported{Tasks: sent[:1]})
	none[Run](d)
}
