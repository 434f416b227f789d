package consume_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

// in64 is a content type whose bodies are JSON in base64.
const in64 = "application/x-base64"

func from64(_ consume.Event, body []byte) (json.RawMessage, error) {
	text, err := base64.StdEncoding.DecodeString(string(body))
	return text, err
}

// encoded returns m with a payload in base64.
func encoded(m consume.Message) consume.Message {
	m.ContentType = "Application/X-Base64; v=1"
	m.Body = []byte(base64.StdEncoding.EncodeToString(m.Body))
	return m
}

// TestDecoder: a payload of a content type with a decoder is consumed like one in JSON, in binary CloudEvents and in plain
// messages. JSON is still read. The inbox keeps JSON.
func TestDecoder(t *testing.T) {
	t.Parallel()
	pool := database(t)
	plain := newConsumer(t, &projection{}, inbox.Quarantine)
	c := plain.WithDecoder("application/x-Base64", from64)
	m := encoded(message(t, uuid.New(), 0))
	outcome, err := c.Consume(t.Context(), pool, m)
	require.NoError(t, err)
	require.Equal(t, inbox.Applied, outcome)
	outcome, err = c.Consume(t.Context(), pool, m)
	require.NoError(t, err)
	require.Equal(t, inbox.Duplicate, outcome)
	outcome, err = c.Consume(t.Context(), pool, message(t, uuid.New(), 0))
	require.NoError(t, err)
	require.Equal(t, inbox.Applied, outcome)

	o := outgoing()
	o.ID, o.Payload, o.Entity.Version = uuid.New(), json.RawMessage(goodPayload), 0
	byHeaders, err := publish.JSON().Encode(o)
	require.NoError(t, err)
	_, err = c.Consume(t.Context(), pool, encoded(consume.Message(byHeaders)))
	require.NoError(t, err)
	require.Equal(t, 3, count(t, pool, "effects"))

	_, err = c.Consume(t.Context(), pool, message(t, uuid.New(), 7))
	require.NoError(t, err)
	outcome, err = c.Consume(t.Context(), pool, encoded(message(t, uuid.New(), 6)))
	require.NoError(t, err)
	require.Equal(t, inbox.Quarantined, outcome)
	var kept string
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT convert_from(payload, 'UTF8') FROM outbox.inbox_quarantined").Scan(&kept))
	require.JSONEq(t, goodPayload, kept)

	// The consumer that c was made of reads JSON only, and so does one whose decoder was removed.
	for _, c := range []*consume.Consumer{plain, c.WithDecoder(in64, nil)} {
		_, err = c.Consume(t.Context(), pool, encoded(message(t, uuid.New(), 0)))
		require.ErrorIs(t, err, consume.ErrMalformed)
		require.ErrorContains(t, err, "content-type is not JSON")
	}
}

// TestDecoderOfStructuredEvents: a structured CloudEvent has such a payload in data_base64.
func TestDecoderOfStructuredEvents(t *testing.T) {
	t.Parallel()
	pool := database(t)
	body := fmt.Sprintf(`{"specversion": "1.0", "id": %q, "source": "/users", "type": "users.user_created", "dataversion": 2,
		"datacontenttype": %q, "data_base64": %q}`, uuid.New(), in64,
		base64.StdEncoding.EncodeToString([]byte(base64.StdEncoding.EncodeToString([]byte(goodPayload)))))
	m := consume.Message{ContentType: "application/cloudevents+json", Body: []byte(body)}
	outcome, err := newConsumer(t, &projection{}, inbox.Quarantine).WithDecoder(in64, from64).Consume(t.Context(), pool, m)
	require.NoError(t, err)
	require.Equal(t, inbox.Applied, outcome)
}

// TestDecoderLearnsTheTopic: a decoder learns the topic and version, also if the message has a wire name.
func TestDecoderLearnsTheTopic(t *testing.T) {
	t.Parallel()
	ib, err := inbox.New(inbox.Config{Group: "billing"})
	require.NoError(t, err)
	topic := consume.NewTopic[created](consume.TopicSpec{Namespace: "users", Name: "user_created", WireName: "user.created", Version: 2})
	c, err := consume.New(ib, consume.Handle(topic, &projection{}, (*projection).ConsumeUserCreated))
	require.NoError(t, err)
	var got consume.Event
	c = c.WithDecoder(in64, func(e consume.Event, body []byte) (json.RawMessage, error) {
		got = e
		return from64(e, body)
	})
	m := encoded(message(t, uuid.New(), 0))
	m.Attributes["type"] = "user.created"
	_, err = c.Consume(t.Context(), database(t), m)
	require.NoError(t, err)
	require.Equal(t, "users", got.Namespace)
	require.Equal(t, "user_created", got.Topic)
	require.Equal(t, 2, got.Version)
}

// TestDecoderFails: an error of a decoder is permanent unless it is marked otherwise, and so are a panic and a result that does
// not fit. A newer version is found before.
func TestDecoderFails(t *testing.T) {
	t.Parallel()
	pool := database(t)
	for name, c := range map[string]struct {
		decode    consume.Decoder
		version   string
		permanent bool
		is        error
		says      string
	}{
		"error": {func(consume.Event, []byte) (json.RawMessage, error) { return nil, errors.New("no such schema") }, "", true, consume.ErrInvalidPayload, "decode payload: no such schema: "},
		"panic": {func(consume.Event, []byte) (json.RawMessage, error) { panic("hunter2") }, "", true, consume.ErrInvalidPayload, "decode payload: decoder panicked (string)\n"},
		"Goexit": {func(consume.Event, []byte) (json.RawMessage, error) {
			runtime.Goexit()
			return nil, nil
		}, "", true, consume.ErrInvalidPayload, "decode payload: decoder called runtime.Goexit"},
		"away": {func(consume.Event, []byte) (json.RawMessage, error) {
			return nil, outbox.Unavailable(errors.New("no registry"))
		}, "", false, nil, "decode payload: no registry"},
		"later": {func(consume.Event, []byte) (json.RawMessage, error) {
			return nil, outbox.RetryAfter(0, errors.New("busy"))
		}, "", false, nil, "decode payload: busy"},
		"no JSON":  {func(consume.Event, []byte) (json.RawMessage, error) { return json.RawMessage("{"), nil }, "", true, consume.ErrInvalidPayload, "payload is not JSON"},
		"nothing":  {func(consume.Event, []byte) (json.RawMessage, error) { return nil, nil }, "", true, consume.ErrInvalidPayload, "payload is not JSON"},
		"no field": {func(consume.Event, []byte) (json.RawMessage, error) { return json.RawMessage("{}"), nil }, "", true, consume.ErrInvalidPayload, "is missing"},
		"newer":    {func(consume.Event, []byte) (json.RawMessage, error) { panic("called") }, "3", true, consume.ErrUnknownVersion, "versions up to 2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := encoded(message(t, uuid.New(), 0))
			if c.version != "" {
				m.Attributes["dataversion"] = c.version
			}
			_, err := newConsumer(t, &projection{fail: func(context.Context, pgx.Tx) error { panic("called") }}, inbox.Quarantine).
				WithDecoder(in64, c.decode).Consume(t.Context(), pool, m)
			require.ErrorContains(t, err, c.says)
			require.NotContains(t, err.Error(), "hunter2")
			require.Equal(t, c.permanent, consume.IsPermanent(err))
			if c.is != nil {
				require.ErrorIs(t, err, c.is)
			}
			var about *consume.Error
			require.ErrorAs(t, err, &about)
			require.Equal(t, "users/user_created", about.Topic)
		})
	}
}
