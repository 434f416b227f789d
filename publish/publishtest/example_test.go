package publishtest_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/publishtest"
)

// BusPublisher is a complete publisher of 60 lines (docs/run/publishers.md), here with a broker in memory.
func Example() {
	bus := new(fakeBus)
	publisher := &BusPublisher{Bus: bus, Timeout: time.Second}
	errs := publisher.Publish(context.Background(), []publish.Outgoing{{
		Event:       outbox.Event{ID: uuid.MustParse("0192d4a0-6c7e-7b1a-9a53-0c3f5a9b2e11"), Namespace: "users", Topic: "user_renamed", Version: 1},
		Payload:     []byte(`{"name":"Zoë"}`),
		Destination: "users.renamed",
		Key:         "user/17",
	}})
	m := bus.Received()[0]
	fmt.Println(errs[0], m.Attributes["type"], m.Attributes["id"], string(m.Body))
	// Output: <nil> users.user_renamed 0192d4a0-6c7e-7b1a-9a53-0c3f5a9b2e11 {"name":"Zoë"}
}

// Run is for a test of your publisher. The broker must be able to fail as Set says.
func ExampleRun() {
	_ = func(t *testing.T) { // TestConformance
		publishtest.Run(t, publishtest.Harness{Start: func(t testing.TB) publishtest.Target {
			bus := new(fakeBus)
			return publishtest.Target{
				Publisher:   &BusPublisher{Bus: bus, Timeout: 10 * time.Second},
				Destination: "users.renamed",
				Received:    bus.Received,
				Set:         bus.Set, // publishtest.Healthy, Failing, Down or Hanging
				Refuse:      func(o *publish.Outgoing) { o.Payload = []byte(`"` + strings.Repeat("x", maxBody) + `"`) },
			}
		}})
	}
}
