package consume_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume"
)

// routedRecord is a Kafka record of Debezium's outbox event router. A header may be null.
type routedRecord struct {
	Headers [][2]*string
	Value   string
}

func (r routedRecord) message() consume.Message {
	type header struct {
		Key   string
		Value []byte
	}
	var headers []header
	for _, h := range r.Headers {
		var value []byte
		if h[1] != nil {
			value = []byte(*h[1])
		}
		headers = append(headers, header{*h[0], value})
	}
	return consume.FromKafka(headers, []byte(r.Value))
}

// with returns r with another value of a header, or without the header.
func (r routedRecord) with(name string, value *string) routedRecord {
	var headers [][2]*string
	for _, h := range r.Headers {
		if *h[0] != name {
			headers = append(headers, h)
		}
	}
	if value != nil {
		headers = append(headers, [2]*string{&name, value})
	}
	r.Headers = headers
	return r
}

// routedRecords returns the records in testdata/debezium/connector.json, which internal/describe.TestDebeziumRecords makes of rows
// with the exported connector: an event with every fact, and one with few.
func routedRecords(t testing.TB) []routedRecord {
	t.Helper()
	text, err := os.ReadFile("testdata/debezium/connector.json")
	require.NoError(t, err)
	var records []routedRecord
	require.NoError(t, json.Unmarshal(text, &records))
	require.Len(t, records, 2)
	return records
}

// TestParseReadsDebezium: the records of Debezium's outbox event router have all facts of an event, as those of publishers do.
func TestParseReadsDebezium(t *testing.T) {
	t.Parallel()
	records := routedRecords(t)
	full, err := consume.Parse(records[0].message())
	require.NoError(t, err)
	want := received()
	delete(want.Headers, "causation_id") // the events that were recorded had none
	delete(want.Headers, "correlation_id")
	require.JSONEq(t, string(want.Payload), string(full.Payload))
	require.Contains(t, string(full.Payload), "9007199254740993")
	want.Payload, full.Payload = nil, nil
	require.Equal(t, want, full)
	source, topic := "/accounts", "users.user_created"
	sourced, err := consume.Parse(records[0].with("outbox-source", &source).message())
	require.NoError(t, err)
	require.Equal(t, source, sourced.Source)
	plain, err := consume.Parse(records[0].with("outbox-source", &source).with("outbox-type", &topic).message())
	require.NoError(t, err)
	require.Empty(t, plain.Source, "plain JSON has no source")

	few, err := consume.Parse(records[1].message())
	require.NoError(t, err)
	require.JSONEq(t, `{"rate":1.50}`, string(few.Payload))
	few.Payload = nil
	require.Equal(t, consume.Received{Event: consume.Event{
		ID: uuid.MustParse("0192d4a0-6c7e-7b1a-9a53-0c3f5a9b2e12"), Type: "users.user_renamed", Namespace: "users", Topic: "user_renamed", Version: 1,
		Entity: consume.Entity{Type: "user", ID: "x"}, Time: time.Date(2026, 11, 21, 13, 14, 15, 0, time.UTC), Headers: map[string]string{},
	}}, few)
}

// TestParseReadsDebeziumWithOtherConverters: records whose values a JsonConverter wrote have the same payload, in each form that the
// documentation of the router shows.
func TestParseReadsDebeziumWithOtherConverters(t *testing.T) {
	t.Parallel()
	const payload = `{"name": "Zoë \"Z\"", "big": 9007199254740993}`
	quoted, err := json.Marshal(payload)
	require.NoError(t, err)
	for name, value := range map[string]string{
		"text":        payload,
		"escaped":     string(quoted),
		"with schema": `{"schema":{"type":"string","optional":false,"name":"io.debezium.data.Json","version":1},"payload":` + string(quoted) + `}`,
	} {
		r := routedRecords(t)[0]
		r.Value = value
		got, err := consume.Parse(r.message())
		require.NoError(t, err, name)
		require.Equal(t, payload, string(got.Payload), name)
	}
	// A payload that looks alike is left alone, and so are messages that are not of the router.
	r := routedRecords(t)[0]
	r.Value = `{"schema": {"name": "x"}, "payload": "io.debezium.data.Json"}`
	got, err := consume.Parse(r.message())
	require.NoError(t, err)
	require.Equal(t, r.Value, string(got.Payload))
	typed := "users.user_created"
	got, err = consume.Parse(routedRecord{Headers: r.Headers, Value: string(quoted)}.with("outbox-type", &typed).message())
	require.NoError(t, err)
	require.Equal(t, string(quoted), string(got.Payload))
}

func TestParseRefusesFaultyDebezium(t *testing.T) {
	t.Parallel()
	bad, list := "x", "[1]"
	for _, c := range []struct {
		header string
		value  *string
		want   string
	}{
		{"outbox-headers", &bad, "outbox-headers is not a JSON object of texts"},
		{"outbox-headers", &list, "outbox-headers is not a JSON object of texts"},
		{"outbox-id", nil, "outbox-id is missing"},
		{"outbox-id", &bad, "outbox-id is not a UUID, or is the zero UUID"},
		{"outbox-entity-version", &bad, "outbox-entity-version is not a number from 1 to 9223372036854775807"},
		{"outbox-time", &bad, "outbox-time is not an RFC 3339 time"},
		{"outbox-topic", nil, "outbox-type is missing"},
	} {
		_, err := consume.Parse(routedRecords(t)[0].with(c.header, c.value).message())
		require.ErrorIs(t, err, consume.ErrMalformed)
		require.ErrorContains(t, err, c.want)
		require.Equal(t, 1, strings.Count(err.Error(), c.want))
		require.True(t, consume.IsPermanent(err))
	}
}
