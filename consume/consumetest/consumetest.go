// Package consumetest is the conformance suite of consumers. It tests what package receive promises, through the receiver of a
// broker: every message has its effect exactly once and in the order of its key, whatever the method of a consumer does for
// other messages, and wherever a process is killed. The receivers of this project pass it.
//
// To test your own receiver, say how a message gets into the broker and how the receiver runs:
//
//	func TestConformance(t *testing.T) {
//		consumetest.Conformance(t, consumetest.Harness{
//			Open: func(t testing.TB) consumetest.Broker {
//				b := startBroker(t)
//				return consumetest.Broker{Address: b.URL, Send: b.send, Pending: b.pending}
//			},
//			Run: func(ctx context.Context, url string, pool *pgxpool.Pool, c *consume.Consumer, cfg receive.Config) error {
//				r, err := bus.New(pool, c, bus.Config{URL: url, Receive: cfg})
//				if err != nil {
//					return err
//				}
//				return r.Run(ctx)
//			},
//		})
//	}
//
// The suite makes its own databases, on the server of OUTBOXGEN_TEST_DATABASE_URL, of DATABASE_URL, or on a private one. With
// -short it runs the checks that take a few seconds.
package consumetest

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/receive"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// Harness says how Conformance tests a receiver.
type Harness struct {
	// Open starts a broker for one check, with an empty queue, topic or stream that ends with the check. Checks run
	// concurrently, each with its own Broker.
	Open func(t testing.TB) Broker
	// Run runs the receiver on the Broker with that Address until ctx ends. It passes cfg on as it is, and returns the
	// receiver's error. It may be called in another process, and again or concurrently for the same Broker: these are
	// processes of one consumer group.
	Run func(ctx context.Context, address string, pool *pgxpool.Pool, c *consume.Consumer, cfg receive.Config) error
	// Patience is how long the suite waits for something that must happen; 0 means 2 min. It is longer than the broker takes
	// to give the messages of a killed process to another one.
	Patience time.Duration
}

// Broker is an empty queue, topic or stream of a broker.
type Broker struct {
	// Address is what Run needs to find the broker.
	Address string
	// Local means that another process cannot reach the broker. The checks that kill a process are left out then.
	Local bool
	// Send puts messages into the broker, in their order, as the publisher for it does.
	Send func(ctx context.Context, ms []Message) error
	// Pending returns how many messages the broker would deliver to a new process of the consumer group: those that are not
	// acknowledged. nil means that the broker does not tell.
	Pending func(ctx context.Context) (int, error)
	// Rebalance has the broker distribute its messages again among the running processes, or, if it does not do that, cuts
	// their connections. nil means that the check is left out.
	Rebalance func(ctx context.Context) error
	// Dead returns the error texts of dead letters, by the id of the event, if it is not the receiver that keeps them but the
	// sender. nil means the table inbox_messages.
	Dead func(ctx context.Context) (map[string]string, error)
}

// Message is a CloudEvent in binary mode as it is sent.
type Message struct {
	consume.Message
	// Key is what the broker orders messages by. The attribute partitionkey has it too.
	Key string
}

// Conformance runs the suite. Each of its checks is a parallel subtest of t.
func Conformance(t *testing.T, h Harness) {
	t.Helper()
	if isChild(t, h) {
		return
	}
	for _, c := range checks() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if c.slow {
				pgtest.Slow(t)
			}
			c.run(newBench(t, h, t.Name()))
		})
	}
}

// check is one test of the suite.
type check struct {
	name string
	slow bool // left out by -short
	run  func(*bench)
}

func newBench(t testing.TB, h Harness, name string) *bench {
	t.Helper()
	require.NotNil(t, h.Open, "Harness.Open")
	require.NotNil(t, h.Run, "Harness.Run")
	if h.Patience == 0 {
		h.Patience = pgtest.Patience
	}
	b := &bench{TB: t, Harness: h, Broker: h.Open(t), name: name}
	require.NotNil(t, b.Send, "Broker.Send")
	b.admin = database(t)
	b.pool = pool(t, pgtest.URL(t, b.admin))
	return b
}
