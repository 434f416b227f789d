package nats_test

import (
	"testing"

	natsgo "github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/publishtest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	publishtest.Run(t, publishtest.Harness{Start: func(t testing.TB) publishtest.Target {
		b := newBroker(t)
		f := &faulty{broker: b}
		return publishtest.Target{
			Publisher: b.publisher(t), Destination: subject, Set: f.set, Received: f.messages,
			Refuse: func(o *publish.Outgoing) { *o = large(*o, 600<<10) },
		}
	}})
}

// faulty is a broker that can have the faults of the suite.
type faulty struct {
	*broker
	is      publishtest.Fault
	before  []publish.Message // taken before the broker was down
	usurper *natsgo.Subscription
}

func (f *faulty) set(fault publishtest.Fault) {
	switch f.is {
	case publishtest.Down:
		f.start()
	case publishtest.Failing, publishtest.Hanging:
		f.reinstate()
	}
	f.is = publishtest.Healthy
	switch fault {
	case publishtest.Failing:
		f.usurp([]byte(`{"error":{"code":400,"err_code":10060,"description":"expected stream does not match"}}`))
	case publishtest.Hanging:
		f.usurp(nil)
	case publishtest.Down:
		f.before = f.messages()
		f.kill()
	}
	f.is = fault
}

// usurp takes the subject from the stream. It answers in the stream's place, or does not answer.
func (f *faulty) usurp(answer []byte) {
	cfg := f.stream
	cfg.Subjects = []string{"elsewhere"}
	subjects := f.stream.Subjects
	f.configure(cfg)
	f.stream.Subjects = subjects
	var err error
	f.usurper, err = f.nc.Subscribe(subject, func(m *natsgo.Msg) {
		if answer != nil {
			_ = m.Respond(answer)
		}
	})
	require.NoError(f.t, err)
	require.NoError(f.t, f.nc.Flush())
}

func (f *faulty) reinstate() {
	require.NoError(f.t, f.usurper.Unsubscribe())
	f.configure(f.stream)
}

func (f *faulty) messages() []publish.Message {
	if f.is == publishtest.Down {
		return f.before
	}
	var messages []publish.Message
	for _, m := range f.received() {
		messages = append(messages, decoded(f.t, m.Header, m.Data))
	}
	return messages
}
