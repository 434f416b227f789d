package redis_test

import (
	"strings"
	"testing"
	"time"

	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/publishtest"
	"github.com/outboxgen/outboxgen/publish/redis"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	publishtest.Run(t, publishtest.Harness{Patience: time.Minute, Start: func(t testing.TB) publishtest.Target {
		f := &faulty{broker: newBroker(t)}
		return publishtest.Target{
			Publisher:   f.publisher(t, func(cfg *redis.Config) { cfg.MaxBytes = 512 << 10 }),
			Destination: stream, Set: f.set, Received: f.messages,
			Refuse: func(o *publish.Outgoing) { *o = large(*o, 600<<10) },
		}
	}})
}

// faulty is a broker that can have the faults of the suite.
type faulty struct {
	*broker
	is     publishtest.Fault
	before []publish.Message // taken before the broker was down or failing
}

func (f *faulty) set(fault publishtest.Fault) {
	switch f.is {
	case publishtest.Down:
		if err := f.Restart(); err != nil {
			f.t.Errorf("restart: %v", err)
		}
	case publishtest.Hanging:
		f.do("CLIENT", "UNPAUSE")
	case publishtest.Failing:
		f.do("RENAME", "aside", stream)
	}
	f.is = publishtest.Healthy
	switch fault {
	case publishtest.Down:
		f.before = f.messages()
		if err := f.Kill(); err != nil {
			f.t.Errorf("kill: %v", err)
		}
	case publishtest.Hanging:
		f.do("CLIENT", "PAUSE", 3_600_000, "WRITE")
	case publishtest.Failing:
		f.before = f.messages()
		f.do("RENAME", stream, "aside")
		// A stream that has the last possible id takes no more entries.
		f.do("XADD", stream, "18446744073709551615-18446744073709551615", "last", "")
	}
	f.is = fault
}

func (f *faulty) messages() []publish.Message {
	if f.is == publishtest.Down || f.is == publishtest.Failing {
		return f.before
	}
	var messages []publish.Message
	for _, entry := range f.received() {
		m := publish.Message{Attributes: make(map[string]string), Headers: make(map[string]string)}
		for name, value := range entry.Values {
			text := value.(string)
			switch attribute, is := strings.CutPrefix(name, "ce_"); {
			case is:
				m.Attributes[attribute] = text
			case name == "content-type":
				m.ContentType = text
			case name == "data":
				m.Body = []byte(text)
			default:
				m.Headers[name] = text
			}
		}
		messages = append(messages, m)
	}
	return messages
}
