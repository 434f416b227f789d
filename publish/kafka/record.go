package kafka

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/internal/attributes"
)

// Header names of the Kafka protocol binding of CloudEvents.
const (
	contentType     = "content-type"
	attributePrefix = "ce_"
)

// prefixed are the header names of the attributes.
var prefixed = func() (names [attributes.Count]string) {
	for i, name := range attributes.Names {
		names[i] = attributePrefix + name
	}
	return names
}()

var jsonType = []byte(attributes.ContentType)

// record is what is produced of an event each time that it is sent.
type record struct {
	key, value []byte
	headers    []kgo.RecordHeader
	size       int // upper bound of its size in a batch, before compression
}

// encoding makes the records of the events of one call. The records share allocations.
type encoding struct {
	encoder publish.Encoder // nil means CloudEvents in binary mode, which are encoded without publish.Message
	left    int             // number of events that may still be encoded

	list    attributes.List
	found   []attributes.Attribute
	names   []string
	headers []kgo.RecordHeader // room for the headers of the next records
}

// record encodes an event. The record shares the event's payload.
func (e *encoding) record(o *publish.Outgoing) (record, error) {
	if o.Destination == "" {
		return record{}, outbox.Permanent(errors.New("produce event: its destination is empty"))
	}
	if o.Tombstone && o.Key == "" {
		return record{}, outbox.Permanent(errors.New(
			"produce event: a tombstone without a key deletes nothing: give its topic a partition_key"))
	}
	var r record
	if e.encoder == nil {
		var err error
		if e.found, err = e.list.Append(e.found[:0], "", o.Type(), &o.Event); err != nil {
			return record{}, err
		}
		r.value = o.Payload
		e.room(2 + len(e.found) + len(o.Headers))
		e.add(contentType, jsonType)
		for _, a := range e.found {
			e.add(prefixed[a.Name], a.Value)
			if a.Name == attributes.PartitionKey && string(a.Value) == o.Key {
				r.key = a.Value
			}
		}
		e.addHeaders(o.Headers, true)
	} else {
		m, err := e.encoder.Encode(*o)
		if err != nil {
			return record{}, err
		}
		r.value = m.Body
		e.room(2 + len(m.Attributes) + len(m.Headers))
		if m.ContentType != "" {
			e.add(contentType, []byte(m.ContentType))
		}
		for _, name := range e.sorted(m.Attributes) {
			e.add(attributePrefix+name, []byte(m.Attributes[name]))
		}
		e.addHeaders(m.Headers, false)
	}
	if o.Tombstone {
		e.add(publish.TombstoneHeader, r.value)
		r.value = nil
	}
	r.headers, e.headers = e.headers[:len(e.headers):len(e.headers)], e.headers[len(e.headers):]
	if r.key == nil && o.Key != "" {
		r.key = []byte(o.Key)
	}
	r.size = sizeOf(r)
	e.left--
	return r, nil
}

// headersPerEvent is how many headers most events have at most.
const headersPerEvent = 10

// room makes room for n headers.
func (e *encoding) room(n int) {
	if cap(e.headers) < n {
		e.headers = make([]kgo.RecordHeader, 0, max(n, headersPerEvent*min(e.left, 256)))
	}
	e.headers = e.headers[:0]
}

func (e *encoding) add(name string, value []byte) {
	e.headers = append(e.headers, kgo.RecordHeader{Key: name, Value: value})
}

// addHeaders adds the headers of an event in the order of their names. It leaves out those that would be read as
// attributes, as the other publishers do: only the encoder sets attributes. sent says that those of a trace and of a
// chain are attributes already.
func (e *encoding) addHeaders(headers map[string]string, sent bool) {
	if len(headers) == 0 {
		return
	}
	for _, name := range e.sorted(headers) {
		if value := headers[name]; !withheld(name) && !(sent && attributes.IsHeader(name, value)) {
			e.add(name, []byte(value))
		}
	}
}

// sorted returns the names of values in order. The result is valid until the next call.
func (e *encoding) sorted(values map[string]string) []string {
	e.names = slices.AppendSeq(e.names[:0], maps.Keys(values))
	slices.Sort(e.names)
	return e.names
}

// withheld reports whether a header of an event is left out, because it has a meaning for consumers.
func withheld(name string) bool {
	return strings.EqualFold(name, contentType) || strings.EqualFold(name, publish.TombstoneHeader) ||
		len(name) >= len(attributePrefix) && strings.EqualFold(name[:len(attributePrefix)], attributePrefix)
}

// The maximum that Kafka's format adds to a batch, a record and a header: every length and delta as a varint of the
// largest size (https://kafka.apache.org/documentation/#messageformat).
const (
	batchOverhead  = 128
	recordOverhead = 1 + 10 + 4*5
	headerOverhead = 2 * 5
)

// sizeOf returns an upper bound of the size of a record in a batch, before compression.
func sizeOf(r record) int {
	size := recordOverhead + len(r.key) + len(r.value)
	for _, h := range r.headers {
		size += headerOverhead + len(h.Key) + len(h.Value)
	}
	return size
}

// produceError adds the topic to an error of Kafka or the client.
func produceError(topic string, err error) error { return fmt.Errorf("produce to %s: %w", topic, err) }
