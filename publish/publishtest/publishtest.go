// Package publishtest is the conformance suite of publishers. It tests what publish.Publisher promises, against a broker that
// fails in the ways in which brokers fail. The publishers for Kafka, NATS and webhooks pass it.
//
// To test your own publisher, write a broker that can be made to fail, and call Run with a Harness:
//
//	func TestConformance(t *testing.T) {
//		publishtest.Run(t, publishtest.Harness{Start: func(t testing.TB) publishtest.Target {
//			broker := startBroker(t)
//			return publishtest.Target{
//				Publisher:   &BusPublisher{Bus: broker.Client(), Timeout: time.Second},
//				Destination: "users.renamed",
//				Received:    broker.Received,
//				Set:         broker.Set,
//				Refuse:      func(o *publish.Outgoing) { o.Payload = tooLarge },
//			}
//		}})
//	}
package publishtest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/publish"
)

// Fault is how a broker treats events from now on. The comment of each Fault says what the publisher must return.
type Fault int

const (
	// Healthy: the broker takes everything.
	Healthy Fault = iota
	// Failing: the broker answers every event with an error that may pass. Each event is a failed attempt: an ordinary
	// error or outbox.RetryAfter.
	Failing
	// Down: the broker cannot be reached or says that it cannot work. Each event is outbox.Unavailable.
	Down
	// Hanging: the broker takes events and never answers. Publish returns when its context ends.
	Hanging
)

// String names the fault.
func (f Fault) String() string {
	if names := []string{"healthy", "failing", "down", "hanging"}; f >= 0 && int(f) < len(names) {
		return names[f]
	}
	return fmt.Sprintf("fault %d", int(f))
}

// Harness says how Run tests a publisher.
type Harness struct {
	// Start starts a broker for one test, and a publisher for it whose Encoder is nil. Both must end with the test. Tests
	// run concurrently, each with its own Target.
	Start func(t testing.TB) Target
	// Lacks are the faults that this broker cannot have. Run leaves out their tests.
	Lacks []Fault
	// Patience is how long Publish may take to find that its broker is Down, and how long to return after its context has
	// ended. 0 means 30 s. A call that a healthy broker takes may last ten times as long, for up to 2,000 events.
	Patience time.Duration
}

// Target is a publisher and the broker behind it.
type Target struct {
	Publisher publish.Publisher
	// Destination is a destination that the broker has.
	Destination string
	// Received returns what the broker has taken at Destination, in the broker's order. A message that it took twice is
	// there twice. Attributes have their plain names and values, as the encoder made them: Received takes them out of what
	// the protocol made of them, such as headers with a prefix. The suite finds an event by its attribute id. There may be
	// more headers than were sent, and their names may differ in case. A broker in memory must copy what it keeps: the suite
	// overwrites payloads and headers after Publish has returned.
	Received func() []publish.Message
	// Set puts the broker into a state and returns when it is in that state. The broker keeps what it has taken.
	Set func(Fault)
	// Refuse changes an event so that the broker refuses this event, and no other, permanently: outbox.Permanent.
	Refuse func(*publish.Outgoing)
}

// Run runs the suite. Each of its tests is a parallel subtest of t.
func Run(t *testing.T, h Harness) {
	t.Helper()
	for _, c := range checks {
		if slices.Contains(h.Lacks, c.needs) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(newBench(t, h))
		})
	}
}

// check is one test of the suite.
type check struct {
	name  string
	needs Fault
	run   func(*bench)
}

var checks = []check{
	{name: "everything arrives once", run: everythingArrives},
	{name: "the envelope survives", run: envelopeSurvives},
	{name: "an empty batch", run: emptyBatch},
	{name: "a large batch", run: largeBatch},
	{name: "order within a key", run: orderWithinKey},
	{name: "concurrent calls", run: concurrentCalls},
	{name: "an event that the broker refuses", run: refusedEvent},
	{name: "refused events in a large batch", run: refusedInALargeBatch},
	{name: "an event that cannot be encoded", run: unencodableEvent},
	{name: "a context that has ended", run: endedContext},
	{name: "a failing broker", needs: Failing, run: failingBroker},
	{name: "a broker that is down", needs: Down, run: brokerDown},
	{name: "a hanging broker", needs: Hanging, run: hangingBroker},
	{name: "nothing is lost under faults", run: nothingLost},
}

// bench is a Target with its test.
type bench struct {
	testing.TB
	Target
	lacks    []Fault
	patience time.Duration
	made     int
}

func newBench(t testing.TB, h Harness) *bench {
	b := &bench{TB: t, lacks: h.Lacks, patience: h.Patience}
	if b.patience <= 0 {
		b.patience = 30 * time.Second
	}
	b.Target = h.Start(t)
	require.NotNil(t, b.Publisher, "Target.Publisher")
	require.NotNil(t, b.Received, "Target.Received")
	require.NotNil(t, b.Refuse, "Target.Refuse")
	require.NotNil(t, b.Set, "Target.Set")
	return b
}
