package kafka_test

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/publishtest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	publishtest.Run(t, publishtest.Harness{Start: func(t testing.TB) publishtest.Target {
		c := newCluster(t, kfake.BrokerConfigs(map[string]string{"message.max.bytes": "300000"}))
		b := &broken{cluster: c}
		return publishtest.Target{
			Publisher: c.publisher(t), Destination: topic, Set: b.set,
			Received: b.messages,
			Refuse:   func(o *publish.Outgoing) { *o = large(*o) },
		}
	}})
}

// broken is a cluster that can have the faults of the suite.
type broken struct {
	*cluster
	is      publishtest.Fault
	before  []publish.Message // taken before the cluster was down
	failing *kfake.FaultHandle
	hanging *atomic.Bool
}

func (b *broken) set(f publishtest.Fault) {
	switch b.is {
	case publishtest.Failing:
		b.failing.Remove()
	case publishtest.Down:
		b.start()
	case publishtest.Hanging:
		b.hanging.Store(false)
	}
	b.is = f
	switch f {
	case publishtest.Failing:
		b.failing = b.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.UnknownServerError, Count: -1})
	case publishtest.Down:
		b.is = publishtest.Healthy
		b.before, b.is = b.messages(), f
		b.Close()
	case publishtest.Hanging:
		hanging, c := new(atomic.Bool), b.Cluster
		hanging.Store(true)
		b.hanging = hanging
		c.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
			c.KeepControl()
			return nil, nil, hanging.Load()
		})
	}
}

// messages returns the decoded messages that the cluster has taken.
func (b *broken) messages() []publish.Message {
	if b.is == publishtest.Down {
		return b.before
	}
	var messages []publish.Message
	for _, r := range b.received(topic) {
		m := publish.Message{Attributes: make(map[string]string), Headers: make(map[string]string), Body: r.Value}
		for _, h := range r.Headers {
			if name, is := strings.CutPrefix(h.Key, "ce_"); is {
				m.Attributes[name] = string(h.Value)
			} else if h.Key == "content-type" {
				m.ContentType = string(h.Value)
			} else {
				m.Headers[h.Key] = string(h.Value)
			}
		}
		messages = append(messages, m)
	}
	return messages
}
