package webhook_test

import (
	"bytes"
	"io"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/binding"
	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/webhook"
)

// decode reads a request with the official SDK, which validates it.
func decode(t testing.TB, q request) (*cloudevents.Event, binding.Encoding) {
	message := cehttp.NewMessageFromHttpRequest(&http.Request{Header: q.header, Body: io.NopCloser(bytes.NewReader(q.body))})
	e, err := binding.ToEvent(t.Context(), message)
	require.NoError(t, err)
	require.NoError(t, e.Validate())
	return e, message.ReadEncoding()
}

func TestCloudEventsByTheOfficialSDK(t *testing.T) {
	t.Parallel()
	for mode, encoding := range map[publish.Mode]binding.Encoding{
		publish.Binary: binding.EncodingBinary, publish.Structured: binding.EncodingStructured,
	} {
		r := newReceiver(t, nil)
		p := newPublisher(t, r.url, func(c *webhook.Config) { c.Encoder = publish.CloudEvents("https://example.com/accounts", mode) })
		o := event("user/17")
		o.Version = 3
		o.TenantID = uuid.NullUUID{UUID: uuid.MustParse("7f000001-89ab-4cde-8f01-23456789abcd"), Valid: true}
		o.DedupeKey = o.TenantID.UUID.String() + "/17"
		o.Entity = outbox.Entity{Type: "user", ID: "17", Version: 1<<53 + 1}
		o.Headers = map[string]string{
			"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=b", "x-reason": "marriage",
		}
		o.CreatedAt = time.Date(2026, 11, 21, 13, 14, 15, 123456000, time.UTC)
		o.Payload = []byte(`{"name": "Zoë", "big": 9007199254740993}`)
		require.NoError(t, send(t, p, o))

		q := r.requests()[0]
		e, got := decode(t, q)
		require.Equal(t, encoding, got)
		require.Equal(t, "1.0", e.SpecVersion())
		require.Equal(t, o.ID.String(), e.ID())
		require.Equal(t, "https://example.com/accounts", e.Source())
		require.Equal(t, "users.user_renamed", e.Type())
		require.Equal(t, "17", e.Subject())
		require.Equal(t, o.CreatedAt, e.Time())
		require.Equal(t, "application/json", e.DataContentType())
		require.Equal(t, map[string]any{
			"dataversion": "3", "partitionkey": "user/17", "dedupekey": o.DedupeKey, "tenantid": o.TenantID.UUID.String(),
			"entitytype": "user", "entityid": "17", "entityversion": "9007199254740993",
			"traceparent": o.Headers["traceparent"], "tracestate": "a=b",
		}, e.Extensions())
		require.Equal(t, string(o.Payload), string(e.Data()))
		require.Equal(t, "marriage", q.header.Get("x-reason"))
	}
}

// TestAttributesArePercentEncoded: the SDK does not decode header values. The HTTP binding requires the encoding.
func TestAttributesArePercentEncoded(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, nil)
	key := "Zoë \"100%\" 😀"
	require.NoError(t, send(t, newPublisher(t, r.url, nil), event(key)))
	q := r.requests()[0]
	require.Equal(t, "Zo%C3%AB%20%22100%25%22%20%F0%9F%98%80", q.header.Get("ce-partitionkey"))
	e, _ := decode(t, q)
	decoded, err := url.PathUnescape(e.Extensions()["partitionkey"].(string))
	require.NoError(t, err)
	require.Equal(t, key, decoded)
	require.Equal(t, "/users", e.Source())
}

func TestPlainJSON(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, nil)
	p := newPublisher(t, r.url, func(c *webhook.Config) { c.Encoder = publish.JSON() })
	o := event("k")
	require.NoError(t, send(t, p, o))
	q := r.requests()[0]
	require.Equal(t, string(o.Payload), string(q.body))
	require.Equal(t, o.ID.String(), q.header.Get("outbox-id"))
	require.Equal(t, "users.user_renamed", q.header.Get("outbox-type"))
	require.Empty(t, q.header.Get("ce-id"))
}
