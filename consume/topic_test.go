package consume_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/payload"
)

// created has the form of a generated payload.
type created struct {
	ID     uuid.UUID         `json:"id"`
	Name   string            `json:"name"`
	At     time.Time         `json:"at"`
	Small  int32             `json:"small"`
	Home   place             `json:"home"`
	Past   []place           `json:"past"`
	Named  map[string]place  `json:"named,omitempty"`
	Note   *int64            `json:"note,omitempty"`
	Extra  json.RawMessage   `json:"extra"`
	Labels map[string]string `json:"labels"`
	Maybe  *place            `json:"maybe,omitempty"`
}

type place struct {
	City  string       `json:"city"`
	Since payload.Date `json:"since"`
}

func (p created) Validate() error {
	return payload.Check("users/user_created", payload.Text("name", p.Name), payload.MaxLen("name", p.Name, 10))
}

var createdTopic = consume.NewTopic[created](consume.TopicSpec{Namespace: "users", Name: "user_created", Version: 2})

const goodPayload = `{
	"id": "0192d4a0-6c7e-7b1a-9a53-0c3f5a9b2e11", "name": "Zoë", "at": "2026-11-21T13:14:15Z", "small": 7,
	"home": {"city": "Bern", "since": "2020-02-29"}, "past": [], "extra": null, "labels": {}, "new": {"ignored": true}
}`

// with returns the valid payload with members set to raw JSON; "" removes a member.
func with(t testing.TB, change map[string]string) json.RawMessage {
	t.Helper()
	var members map[string]json.RawMessage
	require.NoError(t, json.Unmarshal([]byte(goodPayload), &members))
	for name, raw := range change {
		if members[name] = json.RawMessage(raw); raw == "" {
			delete(members, name)
		}
	}
	body, err := json.Marshal(members)
	require.NoError(t, err)
	return body
}

func eventOf(version int, body json.RawMessage) consume.Received {
	return consume.Received{
		Event: consume.Event{ID: eventID, Namespace: "users", Topic: "user_created", Version: version}, Payload: body,
	}
}

func decode(version int, body json.RawMessage) (consume.Delivery[created], error) {
	return createdTopic.Decode(eventOf(version, body))
}

// TestDecodeOfATopicWithoutVersion: 0 means 1, which an outbox.Topic without a version enqueues.
func TestDecodeOfATopicWithoutVersion(t *testing.T) {
	t.Parallel()
	topic := consume.NewTopic[created](consume.TopicSpec{Namespace: "users", Name: "user_created"})
	received := consume.Received{Event: consume.Event{ID: eventID, Namespace: "users", Topic: "user_created", Version: 1}, Payload: json.RawMessage(goodPayload)}
	d, err := topic.Decode(received)
	require.NoError(t, err)
	require.Equal(t, "Zoë", d.Payload.Name)
	received.Version = 2
	_, err = topic.Decode(received)
	require.ErrorIs(t, err, consume.ErrUnknownVersion)
}

func TestDecode(t *testing.T) {
	t.Parallel()
	d, err := decode(2, json.RawMessage(goodPayload))
	require.NoError(t, err)
	require.Equal(t, eventID, d.ID)
	require.Equal(t, "Zoë", d.Payload.Name)
	require.Equal(t, payload.Date{Year: 2020, Month: 2, Day: 29}, d.Payload.Home.Since)
	require.Equal(t, "users/user_created", createdTopic.String())
}

// TestDecodeRefuses: the error names the faulty field, at any depth, and never its value.
func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	const secret = "S3CRET"
	place := func(city, since string) string { return fmt.Sprintf(`{"city": %s, "since": %s}`, city, since) }
	for want, change := range map[string]map[string]string{
		"field id does not fit uuid.UUID":                {"id": `"` + secret + `"`},
		"field name does not fit string":                 {"name": `41111111`},
		"field small does not fit int32":                 {"small": `2147483648`},
		"field note does not fit int64":                  {"note": `"` + secret + `"`},
		"field at does not fit time.Time":                {"at": `"` + secret + `"`},
		"field home.since does not fit payload.Date":     {"home": place(`"Bern"`, `"`+secret+`"`)},
		"field home does not fit consume_test.place":     {"home": `"` + secret + `"`},
		"field past[1].city does not fit string":         {"past": "[" + place(`"Bern"`, `"2020-01-01"`) + "," + place(`5`, `"2020-01-01"`) + "]"},
		"field named[*].since does not fit payload.Date": {"named": `{"` + secret + `": ` + place(`"Bern"`, `7`) + "}"},
		"field maybe.city does not fit string":           {"maybe": place(`[]`, `"2020-01-01"`)},
		"field labels[*] does not fit string":            {"labels": `{"` + secret + `": 1}`},
		"field id is missing":                            {"id": ""},
		"field id is the zero UUID":                      {"id": `"00000000-0000-0000-0000-000000000000"`},
		"field name is null":                             {"name": "null"},
		"field home is null":                             {"home": "null"},
		"field past is null":                             {"past": "null"},
		"field home.city is missing":                     {"home": `{"since": "2020-01-01"}`},
		"field past is missing":                          {"past": ""},
		"field past[0].since is missing":                 {"past": `[{"city": "Bern"}]`},
		"field named[*].city is missing":                 {"named": `{"` + secret + `": {"since": "2020-01-01"}}`},
		"field maybe.since is missing":                   {"maybe": `{"city": "Bern"}`},
		"name has 11 characters, at most 10 allowed":     {"name": `"` + secret + `78901"`},
	} {
		r := eventOf(2, with(t, change))
		_, lenient := createdTopic.Decode(r)
		_, err := createdTopic.DecodeStrict(r)
		if strings.Contains(want, "at most") {
			require.NoError(t, lenient, "bounds are not checked")
		} else {
			require.Equal(t, err, lenient, "both check the structure")
		}
		require.ErrorIs(t, err, consume.ErrInvalidPayload, want)
		require.ErrorContains(t, err, "consume users/user_created version 2, event "+eventID.String()+": "+want)
		require.NotContains(t, err.Error(), secret)
		require.NotContains(t, err.Error(), "41111111")
		require.True(t, consume.IsPermanent(err))
		var facts *consume.Error
		require.ErrorAs(t, err, &facts)
		require.NotEmpty(t, facts.Field, want)
		require.Contains(t, want, facts.Field)
	}
	for body, want := range map[string]string{
		"": "payload is not JSON", `{"a": S3CRET}`: "payload is not JSON", "{} {}": "payload is not JSON",
		"null": "payload is not a JSON object", `"S3CRET"`: "payload is not a JSON object", "[1]": "payload is not a JSON object",
	} {
		_, err := decode(2, json.RawMessage(body))
		require.ErrorIs(t, err, consume.ErrInvalidPayload)
		require.ErrorContains(t, err, ": "+want+": invalid payload")
	}
}

func TestDecodeByVersion(t *testing.T) {
	t.Parallel()
	_, err := decode(3, json.RawMessage(goodPayload))
	require.ErrorIs(t, err, consume.ErrUnknownVersion)
	require.EqualError(t, err, "consume users/user_created version 3, event "+eventID.String()+": this consumer knows versions up to 2: unknown payload version")

	_, err = decode(1, with(t, map[string]string{"home": ""}))
	require.ErrorContains(t, err, "field home is missing", "an older payload must be complete too")
	d, err := decode(1, with(t, map[string]string{"name": `"longer than ten"`}))
	require.NoError(t, err, "an older payload need not follow the rules of the newer one")
	require.Equal(t, "longer than ten", d.Payload.Name)
	require.Equal(t, 1, d.Version)
	_, err = createdTopic.DecodeStrict(eventOf(1, with(t, map[string]string{"name": `"longer than ten"`})))
	require.NoError(t, err)
	_, err = decode(1, with(t, map[string]string{"small": `"x"`}))
	require.ErrorContains(t, err, "field small does not fit int32")

	_, err = createdTopic.Decode(consume.Received{Event: consume.Event{ID: eventID, Namespace: "users", Topic: "user_deleted", Version: 1}})
	require.ErrorIs(t, err, consume.ErrUnknownTopic)
	require.EqualError(t, err, "consume users/user_deleted version 1, event "+eventID.String()+": unknown topic")
}

// telltale is a payload whose errors quote values, lenient one without rules.
type (
	telltale struct {
		Name string `json:"name"`
	}
	lenient struct {
		Name string `json:"name"`
	}
)

func (p telltale) Validate() error { return errors.New("bad " + p.Name) }

// TestDecodeHidesForeignErrors: a Validate that outboxgen did not generate may quote values.
func TestDecodeHidesForeignErrors(t *testing.T) {
	t.Parallel()
	topic := consume.NewTopic[telltale](createdTopic.Spec())
	r := consume.Received{Event: consume.Event{Namespace: "users", Topic: "user_created", Version: 2}, Payload: json.RawMessage(goodPayload)}
	_, err := topic.DecodeStrict(r)
	require.EqualError(t, err, "consume users/user_created version 2: invalid payload")
	_, err = consume.NewTopic[lenient](createdTopic.Spec()).DecodeStrict(r)
	require.NoError(t, err)
}

func TestIsPermanent(t *testing.T) {
	t.Parallel()
	for _, err := range []error{
		consume.ErrMalformed, consume.ErrUnknownTopic, consume.ErrUnknownVersion, consume.ErrInvalidPayload, consume.ErrUnimplemented,
		inbox.ErrStale, inbox.ErrInvalidEvent, consume.Permanent(io.EOF),
	} {
		require.True(t, consume.IsPermanent(&consume.Error{Err: fmt.Errorf("wrapped: %w", err)}), err)
	}
	for _, err := range []error{nil, io.EOF, inbox.ErrSerialization, inbox.ErrNotMigrated} {
		require.False(t, consume.IsPermanent(err), err)
	}
	require.NoError(t, consume.Permanent(nil))
	require.ErrorIs(t, consume.Permanent(io.EOF), io.EOF)
}

// createdV1 is version 1 of created.
type createdV1 struct {
	ID    uuid.UUID `json:"id"`
	First string    `json:"first"`
	Last  string    `json:"last"`
}

// TestDecodeOfHistory: a consumer upcasts older versions, whose structure is checked as that of the present one is.
func TestDecodeOfHistory(t *testing.T) {
	t.Parallel()
	refused := errors.New("no first name")
	topic := consume.NewTopic[created](consume.TopicSpec{Namespace: "users", Name: "user_created", Version: 2, History: []payload.Upcaster{
		payload.Upcast[createdV1, created](1, func(old createdV1) (created, error) {
			if old.First == "" {
				return created{}, refused
			}
			return created{ID: old.ID, Name: old.First + " " + old.Last}, nil
		}),
	}})
	old := func(text string) consume.Received { return eventOf(1, json.RawMessage(text)) }
	d, err := topic.Decode(old(`{"id": "0192d4a0-6c7e-7b1a-9a53-0c3f5a9b2e11", "first": "Zoë", "last": "B"}`))
	require.NoError(t, err)
	require.Equal(t, "Zoë B", d.Payload.Name)
	require.Equal(t, 1, d.Version)
	d, err = topic.Decode(eventOf(2, json.RawMessage(goodPayload)))
	require.NoError(t, err)
	require.Equal(t, "Zoë", d.Payload.Name)

	_, err = topic.Decode(old(`{"id": "0192d4a0-6c7e-7b1a-9a53-0c3f5a9b2e11", "first": "Zoë"}`))
	require.ErrorContains(t, err, "field last is missing")
	require.ErrorIs(t, err, consume.ErrInvalidPayload)
	_, err = topic.Decode(old(`{"id": "0192d4a0-6c7e-7b1a-9a53-0c3f5a9b2e11", "first": "", "last": "B"}`))
	require.ErrorIs(t, err, refused)
	require.True(t, consume.IsPermanent(err))
	require.ErrorContains(t, err, "consume users/user_created version 1, event "+eventID.String()+": upcast payload from version 1: no first name")
}
