package amqp_test

import (
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/outboxgen/outboxgen/internal/testing/brokertest"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/amqp"
	"github.com/outboxgen/outboxgen/publish/publishtest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	sharedServer(t)
	publishtest.Run(t, publishtest.Harness{Patience: time.Minute, Start: func(t testing.TB) publishtest.Target {
		f := newFaulty(t)
		return publishtest.Target{
			Publisher:   f.publisher(t, func(cfg *amqp.Config) { cfg.URL = f.proxy.URL("guest") }),
			Destination: f.destination, Set: f.set, Received: f.messages,
			Refuse: func(o *publish.Outgoing) { *o = large(*o, brokertest.MaxMessageSize) },
		}
	}})
}

// faulty is a broker behind a proxy that can have the faults of the suite.
type faulty struct {
	*broker
	proxy *brokertest.Proxy
	is    publishtest.Fault
	full  string // a queue that refuses everything
}

func newFaulty(t testing.TB) *faulty {
	f := &faulty{broker: newBroker(t)}
	f.proxy = brokertest.NewProxy(t, f.Addr())
	f.full = f.queue + "-full"
	f.control(func(ch *amqp091.Channel) error {
		_, err := ch.QueueDeclare(f.full, true, false, false, false, amqp091.Table{"x-max-length": 0, "x-overflow": "reject-publish"})
		return err
	})
	t.Cleanup(func() {
		f.control(func(ch *amqp091.Channel) error {
			_, err := ch.QueueDelete(f.full, false, false, false)
			return err
		})
	})
	return f
}

func (f *faulty) set(fault publishtest.Fault) {
	switch f.is {
	case publishtest.Down:
		f.proxy.Up()
	case publishtest.Hanging:
		f.proxy.Cut(false)
	case publishtest.Failing:
		f.rebind(f.full, f.queue)
	}
	f.is = fault
	switch fault {
	case publishtest.Down:
		f.proxy.Cut(true)
	case publishtest.Hanging:
		f.proxy.Hang()
	case publishtest.Failing:
		f.rebind(f.queue, f.full)
	}
}

// rebind gives the messages of the exchange to another queue.
func (f *faulty) rebind(from, to string) {
	f.control(func(ch *amqp091.Channel) error {
		if err := ch.QueueBind(to, "user.#", f.exchange, false, nil); err != nil {
			return err
		}
		return ch.QueueUnbind(from, "user.#", f.exchange, nil)
	})
}

func (f *faulty) messages() []publish.Message {
	var messages []publish.Message
	for _, d := range f.received() {
		m := publish.Message{ContentType: d.ContentType, Attributes: make(map[string]string), Headers: make(map[string]string), Body: d.Body}
		for name, value := range d.Headers {
			if attribute, is := strings.CutPrefix(name, "cloudEvents:"); is {
				m.Attributes[attribute] = value.(string)
			} else {
				m.Headers[name] = value.(string)
			}
		}
		messages = append(messages, m)
	}
	return messages
}
