package consume_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

var (
	eventID  = uuid.MustParse("0192d4a0-6c7e-7b1a-9a53-0c3f5a9b2e11")
	tenantID = uuid.MustParse("7f000001-89ab-4cde-8f01-23456789abcd")
)

// outgoing is an event with every fact that an event can have.
func outgoing() publish.Outgoing {
	return publish.Outgoing{
		Event: outbox.Event{
			ID: eventID, Namespace: "users", Topic: "user_created", Version: 2, TenantID: outbox.Tenant(tenantID),
			DedupeKey: tenantID.String() + "/17", PartitionKey: "user/a%2Fb",
			Entity:  outbox.Entity{Type: "user", ID: "Zoë 17", Version: 9007199254740993},
			Headers: map[string]string{"traceparent": "00-a-b-01", "tracestate": "a=b", "reason": "marriage", "causation_id": eventID.String(), "correlation_id": "Zoë 17"},
			Attempt: 1, CreatedAt: time.Date(2026, 11, 21, 13, 14, 15, 123456000, time.UTC),
		},
		Payload: json.RawMessage(`{"name":"Zoë","big":9007199254740993}`),
	}
}

func received() consume.Received {
	return consume.Received{
		Event: consume.Event{
			ID: eventID, Type: "users.user_created", Namespace: "users", Topic: "user_created", Version: 2, TenantID: uuid.NullUUID{UUID: tenantID, Valid: true},
			DedupeKey: tenantID.String() + "/17", PartitionKey: "user/a%2Fb",
			Entity:  consume.Entity{Type: "user", ID: "Zoë 17", Version: 9007199254740993},
			Headers: map[string]string{"traceparent": "00-a-b-01", "tracestate": "a=b", "reason": "marriage", "causation_id": eventID.String(), "correlation_id": "Zoë 17"},
			Time:    time.Date(2026, 11, 21, 13, 14, 15, 123456000, time.UTC),
		},
		Payload: json.RawMessage(`{"name":"Zoë","big":9007199254740993}`),
	}
}

var encoders = map[string]publish.Encoder{
	"binary":     publish.CloudEvents("/accounts", publish.Binary),
	"structured": publish.CloudEvents("/accounts", publish.Structured),
	"json":       publish.JSON(),
}

// TestParseReadsWhatEncodersWrite: no fact of an event is lost, in any mode.
func TestParseReadsWhatEncodersWrite(t *testing.T) {
	t.Parallel()
	bare := publish.Outgoing{Event: outbox.Event{ID: eventID, Namespace: "users", Topic: "user_created"}, Payload: json.RawMessage(`{}`)}
	for mode, encode := range encoders {
		want := received()
		if mode != "json" {
			want.Source = "/accounts"
		}
		m, err := encode.Encode(outgoing())
		require.NoError(t, err)
		got, err := consume.Parse(consume.Message(m))
		require.NoError(t, err, mode)
		require.Equal(t, want, got, mode)

		m, err = encode.Encode(bare)
		require.NoError(t, err)
		got, err = consume.Parse(consume.Message(m))
		require.NoError(t, err, mode)
		got.Source = ""
		require.Equal(t, consume.Received{
			Event:   consume.Event{ID: eventID, Type: "users.user_created", Namespace: "users", Topic: "user_created", Version: 1, Headers: map[string]string{}},
			Payload: json.RawMessage(`{}`),
		}, got, mode)
	}
}

// TestParseForeignCloudEvents: events in forms that other producers of CloudEvents may write are read.
func TestParseForeignCloudEvents(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"numbers":     `{"specversion":"1.0","id":"%s","source":"/a","type":"users.user_created","dataversion":2,"entitytype":"user","entityid":"1","entityversion":9007199254740993,"data":{"a":1}}`,
		"base64":      `{"specversion":"1.0","id":"%s","source":"/a","type":"users.user_created","dataversion":"2","datacontenttype":"application/json","data_base64":"eyJhIjoxfQ=="}`,
		"null, extra": `{"specversion":"1.0","id":"%s","source":"/a","type":"users.user_created","dataversion":"2","tenantid":null,"urgent":true,"data":{"a":1}}`,
	} {
		r, err := consume.Parse(consume.Message{ContentType: "Application/CloudEvents+JSON; charset=utf-8", Body: fmt.Appendf(nil, body, eventID)})
		require.NoError(t, err, name)
		require.Equal(t, 2, r.Version, name)
		require.JSONEq(t, `{"a":1}`, string(r.Payload), name)
		if name == "numbers" {
			require.Equal(t, int64(9007199254740993), r.Entity.Version)
		}
	}
}

// structured returns a CloudEvent in structured mode with some members changed; nil removes a member.
func structured(t *testing.T, change map[string]any) consume.Message {
	t.Helper()
	members := map[string]any{
		"specversion": "1.0", "id": eventID, "source": "/a", "type": "users.user_created", "dataversion": "2", "data": map[string]any{"secret": "S3CRET"},
	}
	maps.Copy(members, change)
	maps.DeleteFunc(members, func(_ string, v any) bool { return v == nil })
	body, err := json.Marshal(members)
	require.NoError(t, err)
	return consume.Message{ContentType: "application/cloudevents+json", Body: body}
}

// TestParseRefuses: the error names the faulty place of the envelope and the event if it is known, and no value.
func TestParseRefuses(t *testing.T) {
	t.Parallel()
	known := "consume users/user_created version 2, event " + eventID.String() + ": "
	text := func(contentType, body string) consume.Message {
		return consume.Message{ContentType: contentType, Body: []byte(body)}
	}
	plain := func(change map[string]string) consume.Message {
		headers := map[string]string{"outbox-id": eventID.String(), "outbox-type": "users.user_created", "outbox-version": "2"}
		maps.Copy(headers, change)
		maps.DeleteFunc(headers, func(_, v string) bool { return v == "" })
		return consume.Message{Headers: headers, Body: []byte(`{}`)}
	}
	for want, m := range map[string]consume.Message{
		"consume message: it has neither CloudEvent attributes nor outbox headers: malformed message":                                     text("application/json", `{"S3CRET":1}`),
		"consume message: content-type is not a supported format of CloudEvents: use application/cloudevents+json: malformed message":     text("application/cloudevents-batch+json", `[]`),
		"consume message: body is not a JSON object: malformed message":                                                                   text("application/cloudevents+json", `["S3CRET"]`),
		"consume message: specversion is missing: malformed message":                                                                      structured(t, map[string]any{"specversion": nil}),
		"consume message: specversion is not 1.0: malformed message":                                                                      structured(t, map[string]any{"specversion": "S3CRET"}),
		"consume message: subject is not text, a number, true or false: malformed message":                                                structured(t, map[string]any{"subject": []string{"S3CRET"}}),
		"consume message: data_base64 is not base64: malformed message":                                                                   structured(t, map[string]any{"data": nil, "data_base64": "*S3CRET*"}),
		"consume message: data_base64 is not text, or there is a member data as well: malformed message":                                  structured(t, map[string]any{"data_base64": "e30="}),
		"consume message: type is missing: malformed message":                                                                             structured(t, map[string]any{"type": nil}),
		"consume com.github.push: id is not a UUID, or is the zero UUID: malformed message":                                               structured(t, map[string]any{"type": "com.github.push", "id": "5"}),
		`consume "a b\n": id is missing: malformed message`:                                                                               structured(t, map[string]any{"type": "a b\n", "id": ""}),
		"consume users/user_created: id is missing: malformed message":                                                                    structured(t, map[string]any{"id": ""}),
		"consume users/user_created: id is not a UUID, or is the zero UUID: malformed message":                                            structured(t, map[string]any{"id": uuid.Nil}),
		"consume users/user_created, event " + eventID.String() + ": dataversion is not a number from 1 to 2147483647: malformed message": structured(t, map[string]any{"dataversion": "S3CRET"}),
		known + "tenantid is not a UUID: malformed message":                                                                               structured(t, map[string]any{"tenantid": "S3CRET"}),
		known + "time is not an RFC 3339 time: malformed message":                                                                         structured(t, map[string]any{"time": "S3CRET"}),
		known + "entityversion is not a number from 1 to 9223372036854775807: malformed message":                                          structured(t, map[string]any{"entityversion": "0"}),
		known + "entitytype is missing, but there is an entity version: malformed message":                                                structured(t, map[string]any{"entityversion": "1", "entityid": "1"}),
		known + "entityid is missing, but there is an entity version: malformed message":                                                  structured(t, map[string]any{"entityversion": "1", "entitytype": "user"}),
		known + "data is missing: malformed message":                                                                                      structured(t, map[string]any{"data": nil}),
		known + "content-type is not JSON: malformed message":                                                                             structured(t, map[string]any{"datacontenttype": "text/xml"}),
		"consume users/user_created: outbox-id is missing: malformed message":                                                             plain(map[string]string{"outbox-id": ""}),
		"consume users/user_created: outbox-id is not a UUID, or is the zero UUID: malformed message":                                     plain(map[string]string{"outbox-id": "S3CRET"}),
		"consume message: outbox-type is missing: malformed message":                                                                      plain(map[string]string{"outbox-type": ""}),
		known + "outbox-entity-version is not a number from 1 to 9223372036854775807: malformed message":                                  plain(map[string]string{"outbox-entity-version": "-1"}),
	} {
		_, err := consume.Parse(m)
		require.EqualError(t, err, want)
		require.NotContains(t, err.Error(), "S3CRET")
		require.True(t, consume.IsPermanent(err))
		var facts *consume.Error
		require.ErrorAs(t, err, &facts)
		require.Equal(t, strings.HasPrefix(want, "consume users/user_created"), facts.Topic == "users/user_created")
		if facts.Field != "" {
			require.Contains(t, want, facts.Field)
		}
	}
	binary := consume.Message{Attributes: map[string]string{"specversion": "1.0", "id": eventID.String(), "type": "users.user_created", "datacontenttype": "text/xml"}}
	_, err := consume.Parse(binary)
	require.ErrorContains(t, err, "content-type is not JSON")
}

// FuzzParse: for any input, Parse returns a complete event or an error.
func FuzzParse(f *testing.F) {
	for _, encode := range encoders {
		m, err := encode.Encode(outgoing())
		require.NoError(f, err)
		attributes, err := json.Marshal(m.Attributes)
		require.NoError(f, err)
		headers, err := json.Marshal(m.Headers)
		require.NoError(f, err)
		f.Add(m.ContentType, attributes, headers, m.Body)
	}
	f.Add("application/cloudevents+json", []byte(`{}`), []byte(`{}`), []byte(`{"specversion":"1.0","data_base64":""}`))
	f.Fuzz(func(t *testing.T, contentType string, attributes, headers, body []byte) {
		m := consume.Message{ContentType: contentType, Body: body}
		if json.Unmarshal(attributes, &m.Attributes) != nil || json.Unmarshal(headers, &m.Headers) != nil {
			return
		}
		before := bytes.Clone(body)
		r, err := consume.Parse(m)
		require.Equal(t, before, body)
		if err != nil {
			require.ErrorIs(t, err, consume.ErrMalformed)
			require.True(t, consume.IsPermanent(err))
			require.Less(t, len(err.Error()), 1000)
			return
		}
		require.NotEqual(t, uuid.Nil, r.ID)
		require.NotEmpty(t, r.Type)
		if r.Namespace != "" || r.Topic != "" {
			require.Regexp(t, `^[a-z][a-z0-9_]{0,40}\.[a-z][a-z0-9_]{0,40}$`, r.Type)
			require.Equal(t, r.Type, r.Namespace+"."+r.Topic)
		}
		require.Positive(t, r.Version)
		require.NotNil(t, r.Headers)
		require.GreaterOrEqual(t, r.Entity.Version, int64(0))
		require.True(t, r.Entity.Version == 0 || r.Entity.Type != "" && r.Entity.ID != "")
	})
}

// FuzzReceive: whatever a broker delivers, in the form of any broker, is an event of the topic or a permanent error in one short
// line, without the values of the payload.
func FuzzReceive(f *testing.F) {
	payloads := []string{`{"id":"7","name":"Zoë"}`, `{"id":7}`, `[[[[`, `{"id":"S3CRET","name":{"a":"S3CRET"}}`, strings.Repeat(`{"a":`, 20000), "\xff", ``}
	for kind := range uint8(5) {
		for _, p := range payloads {
			f.Add(kind, "ce_", "1.0", eventID.String(), "users.user_created", "application/json", "Zo%C3%AB", []byte(p))
			f.Add(kind, "outbox-", "2", "x", "a.b", "application/cloudevents+json", "%zz%", []byte(p))
		}
	}
	f.Fuzz(func(t *testing.T, kind uint8, prefix, version, id, of, contentType, value string, body []byte) {
		headers := map[string]string{
			prefix + "specversion": version, prefix + "id": id, prefix + "type": of, prefix + "dataversion": "2", prefix + "version": version,
			"content-type": contentType, "x": value, prefix + value: value, "Traceparent": value,
		}
		var m consume.Message
		switch kind % 5 {
		case 0:
			var list []clientHeader
			for name, v := range headers {
				list = append(list, clientHeader{Key: name, Value: []byte(v)})
			}
			m = consume.FromKafka(list, body)
		case 1, 2:
			many := make(map[string][]string)
			for name, v := range headers {
				many[name] = []string{v, v}
			}
			if m = consume.FromNATS(many, body); kind%5 == 2 {
				m = consume.FromHTTP(many, body)
			}
		default:
			fields := map[string]any{"body": string(body), "data": body}
			for name, v := range headers {
				fields[name] = v
			}
			if m = consume.FromAMQP(fields, contentType, body); kind%5 == 4 {
				m = consume.FromRedis(fields)
			}
		}
		r, err := consume.Parse(m)
		if err == nil {
			_, err = createdTopic.Decode(r)
		}
		if err != nil {
			require.True(t, consume.IsPermanent(err), "%v", err)
			require.Less(t, len(err.Error()), 1000)
			require.NotContains(t, err.Error(), "\n")
			if !strings.Contains(of+id+prefix+value, "S3CRET") {
				require.NotContains(t, err.Error(), "S3CRET")
			}
		}
	})
}
