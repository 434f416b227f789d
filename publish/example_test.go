package publish_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/listener"
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

// Printer is a publisher for a broker that takes one event at a time. This broker is standard output, and it can be away.
type Printer struct {
	Encoder publish.Encoder // nil means CloudEvents in binary mode
	Away    bool
}

// Publish implements publish.Publisher. Events of one key are sent one after another, those of different keys concurrently.
func (p Printer) Publish(ctx context.Context, events []publish.Outgoing) []error {
	return publish.Each(ctx, events, 16, p.send)
}

// send sends one event. Its error says what happens to the event.
func (p Printer) send(ctx context.Context, o publish.Outgoing) error {
	if p.Away {
		return outbox.BrokerUnavailable(errors.New("connect: connection refused")) // all destinations rest
	}
	if o.Destination == "" {
		return outbox.Permanent(errors.New("no destination")) // a dead letter
	}
	m, err := p.Encoder.Encode(o)
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return outbox.ErrNotSent // nothing was handed to the broker, so this costs no attempt
	}
	fmt.Println(o.Destination, o.Key, string(m.Body))
	return nil
}

// A dispatcher or listener gets a publisher by the name of its broker, in Config.Publishers, and calls Publish. Package
// publishtest tests what Publish promises.
func ExamplePublisher() {
	ctx := context.Background()
	var p publish.Publisher = Printer{}
	fmt.Println(p.Publish(ctx, []publish.Outgoing{renamed("user/17", "Zoë")}))

	p = Printer{Away: true}
	errs := p.Publish(ctx, []publish.Outgoing{renamed("user/17", "Zoë"), renamed("user/18", "Max")})
	fmt.Println(outbox.IsBrokerUnavailable(errs[0]), outbox.IsBrokerUnavailable(errs[1]))
	// Output:
	// users.renamed user/17 {"name":"Zoë"}
	// [<nil>]
	// true true
}

// A Publication says where the events of a topic go. Generated code fills it from the YAML; by hand it is an argument of
// queue.Publish or listener.Publish.
func ExamplePublication() {
	type userRenamed struct {
		UserID string `json:"user_id"`
		Plan   string `json:"plan"`
	}
	topic := outbox.NewTopic[userRenamed](outbox.TopicSpec{Namespace: "users", Name: "user_renamed", Log: true})
	publication := publish.Publication{
		Broker:      "kafka",
		Destination: "users.renamed",
		Key: func(p any) eventkey.Key {
			return eventkey.NewKey(eventkey.LiteralPart("user"), eventkey.StringPart("user_id", p.(*userRenamed).UserID))
		},
		Headers: func(p any) map[string]string {
			return map[string]string{"plan": p.(*userRenamed).Plan}
		},
	}
	_ = listener.Publish(topic, publication) // for listener.New

	payload := &userRenamed{UserID: "17", Plan: "free"}
	fmt.Println(publication.Key(payload), publication.Headers(payload))
	// Output: user/17 map[plan:free]
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
