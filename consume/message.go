package consume

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Message is an event as a broker delivers it, in the same form for every protocol. It has the fields of
// publish.Message, so that one converts into the other.
type Message struct {
	// ContentType is that of Body; "" means JSON.
	ContentType string
	// Attributes are the context attributes of CloudEvents in binary mode, by name without the protocol's prefix (id,
	// source, type, ...). They are empty in structured mode and for plain JSON.
	Attributes map[string]string
	// Headers are all other headers, by their own names.
	Headers map[string]string
	Body    []byte
}

// KafkaHeader is a header of a Kafka record. The header types of franz-go, confluent-kafka-go and kafka-go have this
// form.
type KafkaHeader interface {
	~struct {
		Key   string
		Value []byte
	}
}

// tombstone is the header that has what would be the value of a Kafka record: publish.TombstoneHeader.
const tombstone = "outbox-tombstone"

// FromKafka returns the Message of a Kafka record. Headers that begin with ce_, in any case, become attributes. Of
// several headers with one name the first counts. The record may come from Debezium, in the configuration that
// outboxgen export debezium prints.
//
// A tombstone of the publisher, which is a record without a value, has its body in a header. It is decoded like any
// other message of its topic, so its handler gets the payload. Other records without a value are malformed.
func FromKafka[H KafkaHeader](headers []H, value []byte) Message {
	m := newMessage(value)
	for _, header := range headers {
		h := struct {
			Key   string
			Value []byte
		}(header)
		if strings.EqualFold(h.Key, contentType) {
			m.setContentType(string(h.Value))
		} else if strings.EqualFold(h.Key, tombstone) {
			if len(m.Body) == 0 {
				m.Body = h.Value
			}
		} else if name, is := strings.CutPrefix(strings.ToLower(h.Key), "ce_"); is {
			setOnce(m.Attributes, name, string(h.Value))
		} else {
			setOnce(m.Headers, h.Key, string(h.Value))
		}
	}
	return m
}

// FromNATS returns the Message of a NATS message. Headers that begin with ce-, in any case, become attributes; their
// values are percent-decoded. Headers of NATS itself (Nats-...) are left out.
func FromNATS(headers map[string][]string, data []byte) Message {
	return fromHeaders(headers, data, func(name string) (string, bool) {
		return name, !strings.HasPrefix(strings.ToLower(name), "nats-")
	})
}

// FromHTTP returns the Message of an HTTP request, given its http.Header and body. Headers that begin with Ce- become
// attributes; their values are percent-decoded. HTTP does not preserve the case of names, so the names in Message are
// in lower case. Headers about the connection, the body or the caller are left out, including credentials. FromHTTP
// does not check the signature of a webhook: check it first.
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

// FromAMQP returns the Message of an AMQP message: the headers, the content type and the body of a delivery of RabbitMQ
// (AMQP 0-9-1), or the application properties, the content type and the data of a message of AMQP 1.0. Headers that
// begin with cloudEvents: or cloudEvents_, in any case, become attributes. Values that are neither text, numbers, truth
// values nor times are left out.
func FromAMQP(headers map[string]any, contentType string, body []byte) Message {
	m := newMessage(body)
	m.setContentType(contentType)
	for _, name := range backwards(headers) {
		value, ok := scalarText(headers[name])
		if !ok {
			continue
		}
		lower := strings.ToLower(name)
		attribute, is := strings.CutPrefix(lower, "cloudevents:")
		if !is {
			attribute, is = strings.CutPrefix(lower, "cloudevents_")
		}
		if is {
			setOnce(m.Attributes, attribute, value)
		} else {
			setOnce(m.Headers, name, value)
		}
	}
	return m
}

// FromRedis returns the Message of an entry of a Redis stream, given its fields. The field data is the body,
// content-type is the content type, and fields that begin with ce_, in any case, become attributes. All others become
// headers. Values that are not text are left out.
func FromRedis(fields map[string]any) Message {
	m := newMessage(nil)
	for _, name := range backwards(fields) {
		value, ok := scalarText(fields[name])
		if !ok {
			continue
		}
		if name == "data" {
			m.Body = []byte(value)
		} else if strings.EqualFold(name, contentType) {
			m.setContentType(value)
		} else if attribute, is := strings.CutPrefix(strings.ToLower(name), "ce_"); is {
			setOnce(m.Attributes, attribute, value)
		} else {
			setOnce(m.Headers, name, value)
		}
	}
	return m
}

// scalarText returns a value as text, in the form of an attribute.
func scalarText(value any) (string, bool) {
	switch v := value.(type) {
	case string:
		return v, true
	case []byte:
		return string(v), true
	case time.Time:
		return v.UTC().Format(time.RFC3339Nano), true
	case bool, int, int8, int16, int32, int64, uint, uint8, uint16, uint32, uint64, float32, float64:
		return fmt.Sprint(v), true
	}
	return "", false
}

// contentType is the name of the content type's header in every protocol.
const contentType = "content-type"

func newMessage(body []byte) Message {
	return Message{Attributes: make(map[string]string), Headers: make(map[string]string), Body: body}
}

func (m *Message) setContentType(value string) {
	m.ContentType = cmp.Or(m.ContentType, value)
}

func setOnce(into map[string]string, name, value string) {
	if _, taken := into[name]; !taken {
		into[name] = value
	}
}

// fromHeaders makes a Message of headers that may have several values. keep renames a header or leaves it out.
func fromHeaders(headers map[string][]string, body []byte, keep func(name string) (string, bool)) Message {
	const prefix = "ce-"
	m := newMessage(body)
	// Of names that differ only in case the one in lower case counts, because publishers write that one.
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

// backwards returns the keys of m in descending order, which puts lower case before upper case.
func backwards[V any](m map[string]V) []string {
	names := slices.Sorted(maps.Keys(m))
	slices.Reverse(names)
	return names
}

// percentDecoded is the inverse of wireheader.PercentEncoded. It returns a value that is not validly encoded as it is.
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

// unquoted removes the backslashes from the inside of a quoted string (RFC 9110, section 5.6.4).
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
