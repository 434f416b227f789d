package consume

import (
	"maps"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"
)

// Message is an event as a broker hands it over, of whatever protocol. It has the fields of publish.Message, so that
// one converts into the other.
type Message struct {
	// ContentType of Body; "" means JSON.
	ContentType string
	// Attributes are the context attributes of CloudEvents in binary mode, by their bare names (id, source, type, ...).
	// Empty in structured mode and for plain JSON.
	Attributes map[string]string
	// Headers travelled beside the body under their own names.
	Headers map[string]string
	Body    []byte
}

// KafkaHeader is the header of a Kafka record as franz-go, confluent-kafka-go and kafka-go have it.
type KafkaHeader interface {
	~struct {
		Key   string
		Value []byte
	}
}

// FromKafka returns the Message of a Kafka record: attributes are the headers that begin with ce_, in whatever case. Of
// headers with one name the first counts.
func FromKafka[H KafkaHeader](headers []H, value []byte) Message {
	m := newMessage(value)
	for _, header := range headers {
		h := struct {
			Key   string
			Value []byte
		}(header)
		if strings.EqualFold(h.Key, contentType) {
			m.setContentType(string(h.Value))
		} else if name, is := strings.CutPrefix(strings.ToLower(h.Key), "ce_"); is {
			setOnce(m.Attributes, name, string(h.Value))
		} else {
			setOnce(m.Headers, h.Key, string(h.Value))
		}
	}
	return m
}

// FromNATS returns the Message of a NATS message: attributes are the headers that begin with ce-, in whatever case,
// percent-encoded. Headers of NATS itself are left out.
func FromNATS(headers map[string][]string, data []byte) Message {
	return fromHeaders(headers, data, func(name string) (string, bool) {
		return name, !strings.HasPrefix(strings.ToLower(name), "nats-")
	})
}

// FromHTTP returns the Message of an HTTP request, whose http.Header it takes: attributes are the headers that begin
// with Ce-, percent-encoded. HTTP does not keep the case of names, so Message has them in lower case. Headers that are
// about the connection, the body or the caller are left out, credentials among them. Check the signature of a webhook
// before.
func FromHTTP(header map[string][]string, body []byte) Message {
	return fromHeaders(header, body, func(name string) (string, bool) {
		name = strings.ToLower(name)
		return name, !hopHeaders[name] && !strings.HasPrefix(name, "content-") && !strings.HasPrefix(name, "proxy-") &&
			!strings.HasPrefix(name, "webhook-")
	})
}

var hopHeaders = map[string]bool{
	"accept-encoding": true, "authorization": true, "connection": true, "cookie": true, "expect": true, "host": true,
	"keep-alive": true, "te": true, "trailer": true, "transfer-encoding": true, "upgrade": true, "user-agent": true,
}

// contentType is the header that every protocol has for it.
const contentType = "content-type"

func newMessage(body []byte) Message {
	return Message{Attributes: make(map[string]string), Headers: make(map[string]string), Body: body}
}

func (m *Message) setContentType(value string) {
	if m.ContentType == "" {
		m.ContentType = value
	}
}

func setOnce(into map[string]string, name, value string) {
	if _, taken := into[name]; !taken {
		into[name] = value
	}
}

// fromHeaders takes the headers that keep wants, under the names that it gives them.
func fromHeaders(headers map[string][]string, body []byte, keep func(name string) (string, bool)) Message {
	const prefix = "ce-"
	m := newMessage(body)
	// Of names that differ in their case only, the one in lower case counts, which is what publishers write.
	for _, name := range backwards(headers) {
		values := headers[name]
		if len(values) == 0 {
			continue
		}
		lower := strings.ToLower(name)
		if lower == contentType {
			m.setContentType(values[0])
		} else if attribute, is := strings.CutPrefix(lower, prefix); is {
			setOnce(m.Attributes, attribute, percentDecoded(values[0]))
		} else if name, wanted := keep(name); wanted {
			setOnce(m.Headers, name, values[0])
		}
	}
	return m
}

// backwards returns the keys of m, sorted, the last one first: lower case before upper case.
func backwards[V any](m map[string]V) []string {
	names := slices.Sorted(maps.Keys(m))
	slices.Reverse(names)
	return names
}

// percentDecoded reads an attribute that was a header
// (https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/http-protocol-binding.md#3132-http-header-values).
// What is not encoded stays as it is.
func percentDecoded(s string) string {
	if len(s) >= 2 && s[0] == '"' && s[len(s)-1] == '"' {
		s = unquoted(s[1 : len(s)-1])
	}
	decoded, err := url.PathUnescape(s)
	if err != nil || !utf8.ValidString(decoded) {
		return s
	}
	return decoded
}

// unquoted takes the backslashes out of the inside of a quoted string (RFC 9110, section 5.6.4).
func unquoted(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) {
			i++
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
