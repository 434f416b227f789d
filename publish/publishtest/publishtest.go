// Package publishtest is the conformance suite of publishers: what outbox.Publisher promises, put to the test against
// a broker that fails in the ways brokers do. Every publisher of this module passes it.
package publishtest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

// Fault is how a broker treats what it gets from now on. Sent beside it stands what its publisher is to make of it.
type Fault int

const (
	// Healthy: the broker takes everything.
	Healthy Fault = iota
	// Failing: the broker answers every event with an error that may pass. Each is a failed attempt: an ordinary error
	// or outbox.RetryAfter.
	Failing
	// Down: the broker cannot be reached, or says that it cannot work: outbox.Unavailable.
	Down
	// Hanging: the broker takes what it gets and never answers. Publish returns when its context ends.
	Hanging
)

// String names the fault.
func (f Fault) String() string {
	if names := []string{"healthy", "failing", "down", "hanging"}; f >= 0 && int(f) < len(names) {
		return names[f]
	}
	return fmt.Sprintf("fault %d", int(f))
}

// Harness is what Run has to know of a publisher.
type Harness struct {
	// Start starts a broker for one test, and a publisher for it whose Encoder is nil; both end with the test.
	// Tests run at the same time, each with a Target of its own.
	Start func(t testing.TB) Target
	// Lacks are the faults that this broker cannot have; the tests of them are left out.
	Lacks []Fault
	// Patience is how long Publish may take to find that its broker is Down, and to return once its context has ended;
	// 0 means 30 s. A call that a healthy broker takes has ten times as long, for up to 1,000 events.
	Patience time.Duration
}

// Target is a publisher and the broker behind it.
type Target struct {
	Publisher outbox.Publisher
	// Destination is one that the broker has.
	Destination string
	// Received returns what the broker has taken at Destination, in the order that it keeps; what it took twice stands
	// twice. Attributes are there by their bare names, without what the protocol adds to names and values. Headers may
	// hold more than was sent, and in other cases.
	Received func() []publish.Message
	// Set puts the broker into a state and returns when it is in it. What it has taken it keeps.
	Set func(Fault)
	// Refuse changes an event such that the broker refuses it for good, and only it: outbox.Permanent.
	Refuse func(*outbox.Outgoing)
}

// Run runs the suite, each test of it as a parallel subtest.
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
	{name: "an event that cannot be encoded", run: unencodableEvent},
	{name: "a context that has ended", run: endedContext},
	{name: "a failing broker", needs: Failing, run: failingBroker},
	{name: "a broker that is down", needs: Down, run: brokerDown},
	{name: "a hanging broker", needs: Hanging, run: hangingBroker},
	{name: "nothing is lost under faults", run: nothingLost},
}

// bench is a Target with the test that it serves.
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
