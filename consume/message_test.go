package consume_test

import (
	"net/http"
	"net/textproto"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume"
)

// Each Kafka client has its own header type, all of this form.
type clientHeader struct {
	Key   string
	Value []byte
}

func TestFromKafka(t *testing.T) {
	t.Parallel()
	m := consume.FromKafka([]clientHeader{
		{"content-type", []byte("application/json")}, {"ce_id", []byte("7")}, {"ce_id", []byte("forged")},
		{"ce_partitionkey", []byte("a%2Fb")}, {"reason", []byte("marriage")}, {"reason", []byte("late")}, {"Content-Type", []byte("text/plain")},
	}, []byte("{}"))
	require.Equal(t, consume.Message{
		ContentType: "application/json",
		Attributes:  map[string]string{"id": "7", "partitionkey": "a%2Fb"},
		Headers:     map[string]string{"reason": "marriage"},
		Body:        []byte("{}"),
	}, m)
}

func TestFromHTTP(t *testing.T) {
	t.Parallel()
	header := make(http.Header)
	for name, value := range map[string]string{
		"Content-Type": "application/json; charset=utf-8", "Content-Length": "2", "CE-Id": "7", "ce-subject": "Zo%C3%AB%20%22100%25%22",
		"ce-source": `"a \"b\" c"`, "ce-broken": "100%", "ce-odd": "%ff", "X-Reason": "marriage", "Traceparent": "00-a-b-01",
		"Authorization": "secret", "Cookie": "secret", "Webhook-Signature": "v1,x", "User-Agent": "curl", "Proxy-Authorization": "secret",
	} {
		header.Set(name, value)
	}
	header["Empty"] = nil
	require.Equal(t, consume.Message{
		ContentType: "application/json; charset=utf-8",
		Attributes:  map[string]string{"id": "7", "subject": `Zoë "100%"`, "source": `a "b" c`, "broken": "100%", "odd": "%ff"},
		Headers:     map[string]string{"x-reason": "marriage", "traceparent": "00-a-b-01"},
		Body:        []byte("{}"),
	}, consume.FromHTTP(header, []byte("{}")))
}

func TestFromNATS(t *testing.T) {
	t.Parallel()
	m := consume.FromNATS(map[string][]string{
		"ce-id": {"7"}, "ce-entityid": {"a%252Fb"}, "Nats-Msg-Id": {"7"}, "X-Reason": {"marriage"}, "Content-Type": {"application/cloudevents+json"},
	}, nil)
	require.Equal(t, consume.Message{
		ContentType: "application/cloudevents+json",
		Attributes:  map[string]string{"id": "7", "entityid": "a%2Fb"},
		Headers:     map[string]string{"X-Reason": "marriage"},
	}, m)
}

func TestFromAMQP(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 13, 14, 15, 0, time.FixedZone("", 3600))
	m := consume.FromAMQP(map[string]any{
		"cloudEvents:id": "7", "cloudEvents_source": "/users", "cloudEvents:time": at, "cloudEvents:dataversion": int32(2), "x-reason": []byte("marriage"),
		"x-final": true, "x-death": []any{map[string]any{"count": 1}}, "cloudEvents:odd": nil,
	}, "application/json", []byte("{}"))
	require.Equal(t, consume.Message{
		ContentType: "application/json",
		Attributes:  map[string]string{"id": "7", "source": "/users", "time": "2026-11-21T12:14:15Z", "dataversion": "2"},
		Headers:     map[string]string{"x-reason": "marriage", "x-final": "true"},
		Body:        []byte("{}"),
	}, m)
	for range 20 {
		m := consume.FromAMQP(map[string]any{"cloudEvents:id": "7", "cloudEvents_id": "8", "CLOUDEVENTS:ID": "9"}, "", nil)
		require.Equal(t, "8", m.Attributes["id"], "always the same one")
	}
}

func TestFromRedis(t *testing.T) {
	t.Parallel()
	require.Equal(t, consume.Message{
		ContentType: "application/json",
		Attributes:  map[string]string{"id": "7", "partitionkey": "a%2Fb"},
		Headers:     map[string]string{"reason": "marriage", "Data": "other"},
		Body:        []byte("{}"),
	}, consume.FromRedis(map[string]any{
		"content-type": "application/json", "ce_id": "7", "CE_ID": "forged", "ce_partitionkey": "a%2Fb", "reason": "marriage", "Data": "other",
		"data": "{}", "odd": nil,
	}))
}

// TestHeaderNamesAreComparedWithoutCase: a client, proxy or broker may change the case of a name. Of two names that differ
// only in case, the one that publishers write counts.
func TestHeaderNamesAreComparedWithoutCase(t *testing.T) {
	t.Parallel()
	cases := map[string]func(string) string{
		"as written": func(name string) string { return name }, "canonical": textproto.CanonicalMIMEHeaderKey, "upper": strings.ToUpper,
	}
	for encoding, encode := range encoders {
		m, err := encode.Encode(outgoing())
		require.NoError(t, err)
		want, err := consume.Parse(consume.Message(m))
		require.NoError(t, err)
		for name, change := range cases {
			kafka, nats, http := []clientHeader{{change("content-type"), []byte(m.ContentType)}}, make(map[string][]string), make(map[string][]string)
			nats[change("content-type")], http[change("content-type")] = []string{m.ContentType}, []string{m.ContentType}
			amqp, redis := make(map[string]any), map[string]any{change("content-type"): m.ContentType, "data": string(m.Body)}
			for attribute, value := range m.Attributes {
				amqp[change("cloudEvents:"+attribute)], redis[change("ce_"+attribute)] = value, value
				kafka = append(kafka, clientHeader{change("ce_" + attribute), []byte(value)})
				nats[change("ce-"+attribute)], http[change("ce-"+attribute)] = []string{url.PathEscape(value)}, []string{url.PathEscape(value)}
			}
			for header, value := range m.Headers {
				if strings.HasPrefix(header, "outbox-") {
					header = change(header)
				}
				kafka = append(kafka, clientHeader{header, []byte(value)})
				nats[header], http[header] = []string{value}, []string{value}
				amqp[header], redis[header] = value, value
			}
			for from, m := range map[string]consume.Message{
				"Kafka": consume.FromKafka(kafka, m.Body), "NATS": consume.FromNATS(nats, m.Body), "HTTP": consume.FromHTTP(http, m.Body),
				"AMQP": consume.FromAMQP(amqp, m.ContentType, m.Body), "Redis": consume.FromRedis(redis),
			} {
				got, err := consume.Parse(m)
				require.NoError(t, err, "%s, %s, %s", encoding, name, from)
				require.Equal(t, want, got, "%s, %s, %s", encoding, name, from)
			}
		}
	}
	for range 20 {
		m := consume.FromNATS(map[string][]string{"ce-id": {"7"}, "Ce-Id": {"8"}, "CE-ID": {"9"}}, nil)
		require.Equal(t, map[string]string{"id": "7"}, m.Attributes)
	}
}
