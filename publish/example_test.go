package publish_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

// renamed stands for an event that a dispatcher or listener hands to a publisher.
func renamed(key, name string) publish.Outgoing {
	return publish.Outgoing{
		Event: outbox.Event{
			ID:        uuid.MustParse("0192d4a0-6c7e-7b1a-9a53-0c3f5a9b2e11"),
			Namespace: "users", Topic: "user_renamed", Version: 1, PartitionKey: key,
		},
		Payload:     json.RawMessage(`{"name":"` + name + `"}`),
		Destination: "users.renamed",
		Key:         key,
	}
}

// In binary mode the attributes are separate from the body, and the protocol carries them as headers.
func ExampleCloudEvents_binary() {
	m, err := publish.CloudEvents("/accounts", publish.Binary)(renamed("user/17", "Zoë"))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(m.ContentType, m.Attributes["source"], m.Attributes["type"], m.Attributes["subject"])
	fmt.Println(string(m.Body))
	// Output:
	// application/json /accounts users.user_renamed user/17
	// {"name":"Zoë"}
}

// In structured mode the body is one JSON document.
func ExampleCloudEvents_structured() {
	m, err := publish.CloudEvents("/accounts", publish.Structured)(renamed("user/17", "Zoë"))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(m.ContentType)
	fmt.Println(string(m.Body))
	// Output:
	// application/cloudevents+json
	// {"datacontenttype":"application/json","dataversion":"1","id":"0192d4a0-6c7e-7b1a-9a53-0c3f5a9b2e11","partitionkey":"user/17","source":"/accounts","specversion":"1.0","subject":"user/17","type":"users.user_renamed","data":{"name":"Zoë"}}
}

// JSON puts the facts of the event into headers.
func ExampleJSON() {
	m, err := publish.JSON()(renamed("user/17", "Zoë"))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(m.Headers["outbox-type"], m.Headers["outbox-version"], m.Headers["outbox-partition-key"], string(m.Body))
	// Output: users.user_renamed 1 user/17 {"name":"Zoë"}
}

// An Encoder of your own can add to another one. It says with outbox.Permanent that an event can never be encoded.
func ExampleEncoder() {
	encode := publish.CloudEvents("/accounts", publish.Binary)
	var region publish.Encoder = func(o publish.Outgoing) (publish.Message, error) {
		if o.Key == "" {
			return publish.Message{}, outbox.Permanent(errors.New("encode event: it has no key"))
		}
		m, err := encode(o)
		if err != nil {
			return publish.Message{}, err
		}
		if m.Headers == nil {
			m.Headers = make(map[string]string)
		}
		m.Headers["region"] = "eu"
		return m, nil
	}
	m, err := region.Encode(renamed("user/17", "Zoë"))
	fmt.Println(m.Headers["region"], err)
	_, err = region.Encode(renamed("", "Zoë"))
	fmt.Println(err, outbox.IsPermanent(err))
	// Output:
	// eu <nil>
	// encode event: it has no key true
}

// A publisher encodes with Encoder.Encode, so that a nil Encoder means CloudEvents in binary mode.
func ExampleEncoder_Encode() {
	var encoder publish.Encoder
	m, err := encoder.Encode(renamed("user/17", "Zoë"))
	fmt.Println(m.Attributes["type"], err)
	// Output: users.user_renamed <nil>
}

// Each makes a Publisher of a function that sends one event. The second event of user/17 is not sent, because the first one
// failed.
func ExampleEach() {
	send := func(_ context.Context, o publish.Outgoing) error {
		if string(o.Payload) == `{"name":""}` {
			return outbox.Permanent(errors.New("the broker refuses an empty name"))
		}
		return nil
	}
	events := []publish.Outgoing{renamed("user/17", ""), renamed("user/17", "Zoë"), renamed("user/18", "Max")}
	errs := publish.Each(context.Background(), events, 16, send)
	fmt.Println(outbox.IsPermanent(errs[0]), errors.Is(errs[1], outbox.ErrBehind), errs[2])
	// Output: true true <nil>
}
