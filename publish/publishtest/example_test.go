package publishtest_test

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/outbox"
)

func Example() {
	bus := newMemoryBus()
	publisher := &BusPublisher{Bus: bus, Timeout: time.Second}
	errs := publisher.Publish(context.Background(), []outbox.Outgoing{{
		Event:       outbox.Event{ID: uuid.MustParse("0192d4a0-6c7e-7b1a-9a53-0c3f5a9b2e11"), Namespace: "users", Topic: "user_renamed", Version: 1},
		Payload:     []byte(`{"name":"Zoë"}`),
		Destination: "users.renamed",
		Key:         "user/17",
	}})
	m := bus.received("users.renamed")[0]
	fmt.Println(errs[0], m.Attributes["type"], m.Attributes["id"], string(m.Body))
	// Output: <nil> users.user_renamed 0192d4a0-6c7e-7b1a-9a53-0c3f5a9b2e11 {"name":"Zoë"}
}
