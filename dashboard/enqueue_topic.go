package dashboard

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"

	"github.com/outboxgen/outboxgen/internal/payloads/decode"
	"github.com/outboxgen/outboxgen/outbox"
)

// TopicForm returns the form of a topic: with its Untyped of generated code, and the JSON Schema of its payload, which may
// be nil. A payload is decoded and validated as by an enqueue of the topic, must be complete, and must have no other field.
func TopicForm(topic *outbox.UntypedTopic, schema json.RawMessage) EnqueueTopic {
	of := topic.Payload()
	decoder := decode.NewDecoder(of, topic.Version(), true)
	return EnqueueTopic{
		Name: topic.String(), Schema: schema, Sealed: !reflect.ValueOf(topic.Spec().Sealed).IsZero(),
		Message: func(payload json.RawMessage) (outbox.Message, error) {
			p, err := decoder.Decode(topic.Version(), payload)
			if err != nil {
				return outbox.Message{}, errors.New(strings.TrimPrefix(err.Error(), "decode payload: "))
			}
			strict := json.NewDecoder(bytes.NewReader(payload))
			strict.DisallowUnknownFields()
			if err := strict.Decode(reflect.New(of).Interface()); err != nil && strings.Contains(err.Error(), "unknown field") {
				return outbox.Message{}, errors.New("it has a field that the topic does not have: " +
					strings.TrimPrefix(err.Error(), "json: unknown field "))
			}
			return topic.Message(p)
		},
	}
}
