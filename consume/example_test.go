package consume_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/http"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/payload"
)

// UserRenamed stands for a generated payload, userRenamedTopic for its generated topic, and UsersConsumer for the generated
// interface of the consumers of namespace users.
type UserRenamed struct {
	UserID uuid.UUID `json:"user_id"`
	Name   string    `json:"name"`
}

func (p UserRenamed) Validate() error {
	return payload.Check("users/user_renamed", payload.MaxLen("name", p.Name, 80))
}

var userRenamedTopic = consume.NewTopic[UserRenamed](consume.TopicSpec{Namespace: "users", Name: "user_renamed", Version: 1})

type UsersConsumer interface {
	ConsumeUserRenamed(ctx context.Context, tx pgx.Tx, e consume.Delivery[UserRenamed]) error
}

// Cards is a consumer: it keeps a card per user.
type Cards struct{}

func (Cards) ConsumeUserRenamed(ctx context.Context, tx pgx.Tx, e consume.Delivery[UserRenamed]) error {
	_, err := tx.Exec(ctx, `INSERT INTO cards (user_id, name) VALUES ($1, $2)
		ON CONFLICT (user_id) DO UPDATE SET name = EXCLUDED.name`, e.Payload.UserID, e.Payload.Name)
	return err
}

// renamed is a message of a broker.
var renamed = consume.Message{
	ContentType: "application/json",
	Headers: map[string]string{
		"outbox-id": "0192d4a0-6c7e-7b1a-9a53-0c3f5a9b2e11", "outbox-type": "users.user_renamed", "outbox-version": "1",
	},
	Body: []byte(`{"user_id": "7f000001-89ab-4cde-8f01-23456789abcd", "name": "Zoë"}`),
}

// connect opens the pool of the service, like pgxpool.New, on a database with the inbox.
var connect func() *pgxpool.Pool

// connectToCards also creates the table of the cards.
func connectToCards(ctx context.Context) *pgxpool.Pool {
	pool := connect()
	if _, err := pool.Exec(ctx, "CREATE TABLE cards (user_id uuid PRIMARY KEY, name text NOT NULL)"); err != nil {
		log.Fatal(err)
	}
	return pool
}

// exampleConsumer returns what a generated constructor returns.
func exampleConsumer() *consume.Consumer {
	ib, err := inbox.New(inbox.Config{Group: "cards"})
	if err != nil {
		log.Fatal(err)
	}
	c, err := consume.New(ib, consume.Handle(userRenamedTopic, UsersConsumer(Cards{}), UsersConsumer.ConsumeUserRenamed))
	if err != nil {
		log.Fatal(err)
	}
	return c
}

// A generated constructor, such as NewUsersConsumer(ib, Cards{}), does what New and Handle do here. The consumer finds a
// fault of a message before it uses the database.
func Example() {
	ctx := context.Background()
	ib, err := inbox.New(inbox.Config{Group: "cards"})
	if err != nil {
		log.Fatal(err)
	}
	consumer, err := consume.New(ib, consume.Handle(userRenamedTopic, UsersConsumer(Cards{}), UsersConsumer.ConsumeUserRenamed))
	if err != nil {
		log.Fatal(err)
	}

	m := consume.Message{ContentType: "application/json", Headers: map[string]string{
		"outbox-id": "0192d4a0-6c7e-7b1a-9a53-0c3f5a9b2e11", "outbox-type": "users.user_renamed", "outbox-version": "2",
	}, Body: []byte("{}")}
	_, err = consumer.Consume(ctx, connectToCards(ctx), m)
	fmt.Println(err)
	fmt.Println(errors.Is(err, consume.ErrUnknownVersion), consume.IsPermanent(err))
	// Output:
	// consume users/user_renamed version 2, event 0192d4a0-6c7e-7b1a-9a53-0c3f5a9b2e11: this consumer knows versions up to 1: unknown payload version
	// true true
}

// Acknowledge a message after Consume has returned nil. Quarantine it after a permanent error. After any other error, try it
// again.
func ExampleConsumer_Consume() {
	ctx := context.Background()
	pool := connectToCards(ctx)
	consumer := exampleConsumer()
	acknowledge := func() {}     // to the broker
	quarantine := func(error) {} // keep the message and the reason

	for _, message := range []consume.Message{renamed, renamed, {}} {
		outcome, err := consumer.Consume(ctx, pool, message)
		switch {
		case err == nil:
			fmt.Println(outcome)
			acknowledge()
		case consume.IsPermanent(err):
			fmt.Println("quarantined:", err)
			quarantine(err)
			acknowledge()
		default:
			slog.WarnContext(ctx, "try the message again after a pause", "error", err)
		}
	}
	// Output:
	// applied
	// duplicate
	// quarantined: consume message: it has neither CloudEvent attributes nor outbox headers: malformed message
}

// ConsumeTx is for several messages in one transaction, or for more statements in the same transaction.
func ExampleConsumer_ConsumeTx() {
	ctx := context.Background()
	pool := connectToCards(ctx)
	consumer := exampleConsumer()
	messages := []consume.Message{renamed}
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		for _, m := range messages {
			if _, err := consumer.ConsumeTx(ctx, tx, m); err != nil {
				return err // rolls back
			}
		}
		return nil
	})
	fmt.Println(err) // after an error, try the messages one by one
	// Output: <nil>
}

// A strict consumer also checks the rules of the YAML, here a maximum length.
func ExampleConsumer_Strict() {
	long := renamed
	long.Body = []byte(`{"user_id": "7f000001-89ab-4cde-8f01-23456789abcd", "name": "` + fmt.Sprintf("%081d", 0) + `"}`)
	ctx := context.Background()
	_, err := exampleConsumer().Strict().Consume(ctx, connectToCards(ctx), long)
	var broken *payload.ValidationError
	if errors.As(err, &broken) {
		fmt.Println(broken.Fields[0])
	}
	// Output: name has 81 characters, at most 80 allowed
}

// A record of franz-go has headers with the fields Key and Value, as here. The header types of other clients fit as well.
func ExampleFromKafka() {
	type header struct { // kgo.RecordHeader
		Key   string
		Value []byte
	}
	m := consume.FromKafka([]header{
		{"content-type", []byte("application/json")},
		{"ce_specversion", []byte("1.0")},
		{"ce_id", []byte("0192d4a0-6c7e-7b1a-9a53-0c3f5a9b2e11")},
		{"ce_type", []byte("users.user_renamed")},
		{"plan", []byte("free")},
	}, []byte(`{"name": "Zoë"}`))
	fmt.Println(m.Attributes["type"], m.Headers["plan"])
	// Output: users.user_renamed free
}

// A nats.Header converts to the type of the parameter.
func ExampleFromNATS() {
	m := consume.FromNATS(map[string][]string{
		"ce-type": {"users.user_renamed"}, "ce-entityid": {"a%20b"}, "Nats-Msg-Id": {"0192d4a0-6c7e-7b1a-9a53-0c3f5a9b2e11"},
	}, []byte(`{"name": "Zoë"}`))
	fmt.Println(m.Attributes["type"], m.Attributes["entityid"], len(m.Headers))
	// Output: users.user_renamed a b 0
}

// FromHTTP takes the header and the body of a request. For a webhook, check the signature first.
func ExampleFromHTTP() {
	header := http.Header{"Ce-Type": {"users.user_renamed"}, "X-Plan": {"free"}, "Authorization": {"secret"}}
	m := consume.FromHTTP(header, []byte(`{"name": "Zoë"}`))
	fmt.Println(m.Attributes["type"], m.Headers)
	// Output: users.user_renamed map[x-plan:free]
}

// Parse reads the metadata of an event and leaves the payload as it is.
func ExampleParse() {
	r, err := consume.Parse(renamed)
	fmt.Println(r.Namespace, r.Topic, r.Version, err)
	_, err = consume.Parse(consume.Message{ContentType: "application/json", Body: []byte("{}")})
	fmt.Println(err, consume.IsPermanent(err))
	// Output:
	// users user_renamed 1 <nil>
	// consume message: it has neither CloudEvent attributes nor outbox headers: malformed message true
}

// Decode checks the structure of a payload. The error names the faulty field and never its value.
func ExampleTopic_Decode() {
	r, err := consume.Parse(renamed)
	if err != nil {
		log.Fatal(err)
	}
	d, err := userRenamedTopic.Decode(r)
	fmt.Println(d.Payload.Name, err)

	r.Payload = []byte(`{"user_id": "7f000001-89ab-4cde-8f01-23456789abcd", "name": 17}`)
	_, err = userRenamedTopic.Decode(r)
	var fault *consume.Error
	if errors.As(err, &fault) {
		fmt.Println(fault.Field, errors.Is(err, consume.ErrInvalidPayload))
	}
	// Output:
	// Zoë <nil>
	// name true
}

// DecodeStrict also checks the rules of the YAML.
func ExampleTopic_DecodeStrict() {
	r, err := consume.Parse(renamed)
	if err != nil {
		log.Fatal(err)
	}
	r.Payload = []byte(`{"user_id": "7f000001-89ab-4cde-8f01-23456789abcd", "name": "` + fmt.Sprintf("%081d", 0) + `"}`)
	_, lenient := userRenamedTopic.Decode(r)
	_, strict := userRenamedTopic.DecodeStrict(r)
	fmt.Println(lenient, errors.Is(strict, consume.ErrInvalidPayload))
	// Output: <nil> true
}

// A topic of a consumer has a name and the newest version that the consumer knows. A generated consumer package has a variable
// for each.
func ExampleNewTopic() {
	type userDeleted struct {
		UserID uuid.UUID `json:"user_id"`
	}
	topic := consume.NewTopic[userDeleted](consume.TopicSpec{Namespace: "users", Name: "user_deleted", Version: 1})

	d, err := topic.Decode(consume.Received{
		Event:   consume.Event{Namespace: "users", Topic: "user_deleted", Version: 1},
		Payload: []byte(`{"user_id": "7f000001-89ab-4cde-8f01-23456789abcd"}`),
	})
	fmt.Println(d.Payload.UserID, err)
	// Output: 7f000001-89ab-4cde-8f01-23456789abcd <nil>
}

// Handle ties a topic to a method of the consumer, here by a method expression of its interface. New refuses a nil consumer.
func ExampleHandle() {
	ib, err := inbox.New(inbox.Config{Group: "cards"})
	if err != nil {
		log.Fatal(err)
	}
	_, err = consume.New(ib, consume.Handle(userRenamedTopic, UsersConsumer(Cards{}), UsersConsumer.ConsumeUserRenamed))
	fmt.Println(err)
	_, err = consume.New(ib, consume.Handle(userRenamedTopic, UsersConsumer(nil), UsersConsumer.ConsumeUserRenamed))
	fmt.Println(err)
	// Output:
	// <nil>
	// new consumer: topic users/user_renamed: no consumer given (nil)
}

// A consumer's method marks an error for which trying again cannot help.
func ExamplePermanent() {
	err := consume.Permanent(errors.New("no account 17"))
	fmt.Println(err, consume.IsPermanent(err), consume.IsPermanent(errors.New("connection lost")))
	// Output: no account 17 true false
}
