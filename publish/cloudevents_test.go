package publish_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

var (
	eventID  = uuid.MustParse("0192d4a0-6c7e-7b1a-9a53-0c3f5a9b2e11")
	tenantID = uuid.MustParse("7F000001-89ab-4cde-8f01-23456789abcd")
)

const causeID = "0192d4a0-6c7e-7b1a-9a53-0c3f5a9b2e10"

// full returns an event that has every fact.
func full() publish.Outgoing {
	return publish.Outgoing{
		Event: outbox.Event{
			ID: eventID, Namespace: "users", Topic: "user_renamed", Version: 3,
			TenantID:     uuid.NullUUID{UUID: tenantID, Valid: true},
			DedupeKey:    tenantID.String() + "/17",
			PartitionKey: "user/17",
			Entity:       outbox.Entity{Type: "user", ID: "17", Version: 1<<53 + 1},
			Headers: map[string]string{
				"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=b", "reason": "marriage",
				"causation_id": causeID, "correlation_id": "request 7 (ü)",
			},
			CreatedAt: time.Date(2026, 11, 21, 13, 14, 15, 123456000, time.FixedZone("", 3600)),
		},
		Payload:     json.RawMessage(`{"name": "Zoë <z>", "big": 9007199254740993}`),
		Destination: "crm",
		Key:         "user/17",
	}
}

func fullAttributes() map[string]string {
	return map[string]string{
		"specversion": "1.0", "id": eventID.String(), "source": "/accounts", "type": "users.user_renamed", "subject": "17",
		"time": "2026-11-21T12:14:15.123456Z", "dataversion": "3", "partitionkey": "user/17",
		"dedupekey": tenantID.String() + "/17", "tenantid": tenantID.String(),
		"entitytype": "user", "entityid": "17", "entityversion": "9007199254740993",
		"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=b",
		"causationid": causeID, "correlationid": "request 7 (ü)",
	}
}

func TestBinaryPutsTheAttributesBesideThePayload(t *testing.T) {
	t.Parallel()
	o := full()
	m, err := publish.CloudEvents("/accounts", publish.Binary)(o)
	require.NoError(t, err)
	require.Equal(t, publish.Message{
		ContentType: "application/json", Attributes: fullAttributes(), Headers: map[string]string{"reason": "marriage"}, Body: o.Payload,
	}, m)
	require.Len(t, o.Headers, 5, "the event's own headers are untouched")
}

func TestStructuredIsOneDocument(t *testing.T) {
	t.Parallel()
	o := full()
	m, err := publish.CloudEvents("/accounts", publish.Structured)(o)
	require.NoError(t, err)
	require.Equal(t, "application/cloudevents+json", m.ContentType)
	require.Empty(t, m.Attributes)
	require.Equal(t, map[string]string{"reason": "marriage"}, m.Headers)
	require.Contains(t, string(m.Body), `"data":`+string(o.Payload), "the payload is unchanged, byte for byte")

	var document map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(m.Body, &document))
	delete(document, "data")
	got := make(map[string]string)
	for name, value := range document {
		var text string
		require.NoError(t, json.Unmarshal(value, &text))
		got[name] = text
	}
	want := fullAttributes()
	want["datacontenttype"] = "application/json"
	require.Equal(t, want, got)
}

func TestMissingFactsAreLeftOut(t *testing.T) {
	t.Parallel()
	o := publish.Outgoing{Event: outbox.Event{ID: eventID, Namespace: "users", Topic: "user_renamed"}, Payload: json.RawMessage(`1`)}
	m, err := publish.CloudEvents("", publish.Binary)(o)
	require.NoError(t, err)
	require.Equal(t, map[string]string{
		"specversion": "1.0", "id": eventID.String(), "source": "/users", "type": "users.user_renamed", "dataversion": "1",
	}, m.Attributes)
	require.Empty(t, m.Headers)

	o.PartitionKey = "k"
	m, err = publish.CloudEvents("", publish.Binary)(o)
	require.NoError(t, err)
	require.Equal(t, "k", m.Attributes["subject"], "without an entity, the partition key is the subject")
}

// TestNamesOfAttributes: CloudEvents allows lower-case letters and digits, at most 20 of them.
func TestNamesOfAttributes(t *testing.T) {
	t.Parallel()
	m, err := publish.CloudEvents("", publish.Binary)(full())
	require.NoError(t, err)
	for name := range m.Attributes {
		require.Regexp(t, `^[a-z0-9]{1,20}$`, name)
	}
}

func TestControlCharactersAreRefusedPermanently(t *testing.T) {
	t.Parallel()
	spoil := map[string]func(o *publish.Outgoing, bad string){
		"partitionkey": func(o *publish.Outgoing, bad string) { o.PartitionKey = bad },
		"dedupekey":    func(o *publish.Outgoing, bad string) { o.DedupeKey = bad },
		"entitytype":   func(o *publish.Outgoing, bad string) { o.Entity.Type = bad },
		"entityid":     func(o *publish.Outgoing, bad string) { o.Entity.ID = bad },
		"tracestate":   func(o *publish.Outgoing, bad string) { o.Headers["tracestate"] = bad },
	}
	for name, set := range spoil {
		for _, mode := range []publish.Mode{publish.Binary, publish.Structured} {
			for _, bad := range []string{"se\ncret", "se\x7fcret", "se\u0085cret", "se\xffcret", "se\ufdd0cret", "se\U0001fffecret"} {
				o := full()
				set(&o, bad)
				_, err := publish.CloudEvents("/accounts", mode)(o)
				require.Truef(t, outbox.IsPermanent(err), "%s %q: %v", name, bad, err)
				require.ErrorContains(t, err, name)
				require.NotContains(t, err.Error(), "cret")
			}
			o := full()
			set(&o, "an honest \ufffd, and \U0001F600")
			_, err := publish.CloudEvents("/accounts", mode)(o)
			require.NoError(t, err)
		}
	}
}

func TestStructuredRefusesWhatIsNotJSON(t *testing.T) {
	t.Parallel()
	for _, payload := range []string{"", "{", `1,"id":"forged"`} {
		o := full()
		o.Payload = json.RawMessage(payload)
		_, err := publish.CloudEvents("", publish.Structured)(o)
		require.True(t, outbox.IsPermanent(err), payload)
	}
}

// TestWrongConfigurationHoldsEventsBack: the events are not at fault.
func TestWrongConfigurationHoldsEventsBack(t *testing.T) {
	t.Parallel()
	for name, encode := range map[string]publish.Encoder{
		"encode event: CloudEvents source is not a URI reference":                 publish.CloudEvents("http://[", publish.Binary),
		"encode event: CloudEvents source has a control character":                publish.CloudEvents("a\nb", publish.Structured),
		"encode event: CloudEvents mode 7 is not valid: use Binary or Structured": publish.CloudEvents("/accounts", publish.Mode(7)),
	} {
		_, err := encode(full())
		require.True(t, outbox.IsUnavailable(err), name)
		require.ErrorContains(t, err, name)
	}
}

// TestStructuredRoundTrip: any keys and any payload can be read back from the document.
func TestStructuredRoundTrip(t *testing.T) {
	t.Parallel()
	encode := publish.CloudEvents("/accounts", publish.Structured)
	rapid.Check(t, func(t *rapid.T) {
		o := full()
		o.PartitionKey = rapid.StringMatching(`[ -~¡-ÿ<>&"\\]{1,20}`).Draw(t, "key")
		payload, err := json.Marshal(rapid.MapOf(rapid.String(), rapid.Int64()).Draw(t, "payload"))
		require.NoError(t, err)
		o.Payload = payload
		m, err := encode(o)
		require.NoError(t, err)
		var got struct {
			PartitionKey string `json:"partitionkey"`
			Data         json.RawMessage
		}
		require.NoError(t, json.Unmarshal(m.Body, &got))
		require.Equal(t, o.PartitionKey, got.PartitionKey)
		require.Equal(t, string(payload), string(got.Data))
	})
}

// TestAChainWithAnOddValueStaysAHeader: anybody may set the header, and what PostgreSQL has taken must be sent.
func TestAChainWithAnOddValueStaysAHeader(t *testing.T) {
	t.Parallel()
	o := full()
	o.Headers = map[string]string{"causation_id": "a\tb", "correlation_id": "\u0085", "Correlation_ID": "mine"}
	m, err := publish.CloudEvents("", publish.Binary)(o)
	require.NoError(t, err)
	require.Equal(t, o.Headers, m.Headers)
	require.NotContains(t, m.Attributes, "causationid")
	require.NotContains(t, m.Attributes, "correlationid")
	o.Headers = map[string]string{"causation_id": "", "correlation_id": "x"}
	m, err = publish.CloudEvents("", publish.Binary)(o)
	require.NoError(t, err)
	require.Empty(t, m.Headers)
	require.NotContains(t, m.Attributes, "causationid")
	require.Equal(t, "x", m.Attributes["correlationid"])
}
