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
)

// Header names of the Kafka protocol binding of CloudEvents.
const (
	contentType     = "content-type"
	attributePrefix = "ce_"
)

// recordOf encodes an event. The record shares the event's payload.
func recordOf(encoder publish.Encoder, o publish.Outgoing) (*kgo.Record, error) {
	if o.Destination == "" {
		return nil, outbox.Permanent(errors.New("produce event: its destination is empty"))
	}
	m, err := encoder.Encode(o)
	if err != nil {
		return nil, err
	}
	r := &kgo.Record{Topic: o.Destination, Value: m.Body, Headers: headersOf(m)}
	if o.Key != "" {
		r.Key = []byte(o.Key)
	}
	return r, nil
}

// headersOf returns the headers of a message, always in the same order. It leaves out headers of the event that would be
// read as attributes, as the other publishers do: only the encoder sets attributes.
func headersOf(m publish.Message) []kgo.RecordHeader {
	headers := make([]kgo.RecordHeader, 0, 1+len(m.Attributes)+len(m.Headers))
	add := func(name, value string) {
		headers = append(headers, kgo.RecordHeader{Key: name, Value: []byte(value)})
	}
	if m.ContentType != "" {
		add(contentType, m.ContentType)
	}
	for _, name := range slices.Sorted(maps.Keys(m.Attributes)) {
		add(attributePrefix+name, m.Attributes[name])
	}
	for _, name := range slices.Sorted(maps.Keys(m.Headers)) {
		if !withheld(name) {
			add(name, m.Headers[name])
		}
	}
	return headers
}

// withheld reports whether a header of an event is left out, because it has a meaning for consumers.
func withheld(name string) bool {
	return strings.EqualFold(name, contentType) ||
		len(name) >= len(attributePrefix) && strings.EqualFold(name[:len(attributePrefix)], attributePrefix)
}

// The maximum that Kafka's format adds to a batch, a record and a header: every length and delta as a varint of the largest
// size (https://kafka.apache.org/documentation/#messageformat).
const (
	batchOverhead  = 128
	recordOverhead = 1 + 10 + 4*5
	headerOverhead = 2 * 5
)

// sizeOf returns an upper bound of the size of a record in a batch, before compression.
func sizeOf(r *kgo.Record) int {
	size := recordOverhead + len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		size += headerOverhead + len(h.Key) + len(h.Value)
	}
	return size
}

// produceError adds the topic to an error of Kafka or the client.
func produceError(topic string, err error) error { return fmt.Errorf("produce to %s: %w", topic, err) }
