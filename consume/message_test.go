package consume_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume"
)

// Clients of Kafka have headers of their own types, of this form.
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
