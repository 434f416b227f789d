package consume

import (
	"bytes"
	"encoding/json"
)

// The headers in which Debezium's outbox event router, as outboxgen export debezium configures it, sends the columns of
// the outbox that our publishers do not send as they are.
const (
	routedNamespace = "outbox-namespace"
	routedTopic     = "outbox-topic"
	routedHeaders   = "outbox-headers" // a JSON object
	routedSource    = "outbox-source"  // if our publishers had one
	routedID        = "id"             // the router always adds it
)

// routed brings a record of the router into the form that publish.JSON gives it: it changes facts and headers, and
// returns the payload. It leaves other messages alone.
func routed(facts, headers map[string]string, body []byte) ([]byte, error) {
	topic, is := facts[routedTopic]
	if _, typed := facts[outboxNames.topic]; !is || typed {
		delete(facts, routedSource)
		return body, nil
	}
	facts[outboxNames.topic] = facts[routedNamespace] + "." + topic
	if facts[outboxNames.entityVersion] == "0" { // what the column has without a version
		delete(facts, outboxNames.entityVersion)
	}
	if headers[routedID] == facts[outboxNames.id] {
		delete(headers, routedID)
	}
	if text := facts[routedHeaders]; text != "" {
		var own map[string]string
		if err := json.Unmarshal([]byte(text), &own); err != nil {
			return nil, malformed(&Event{Type: facts[outboxNames.topic]}, routedHeaders, "is not a JSON object of texts")
		}
		for name, value := range own {
			setOnce(headers, name, value)
		}
	}
	return unwrapped(body), nil
}

// unwrapped returns the payload in a record whose value was not written by a StringConverter. A JsonConverter writes
// the column payload, which holds JSON, as a JSON string, and puts the string into an envelope if it writes schemas.
func unwrapped(body []byte) []byte {
	var envelope struct {
		Schema struct {
			Name string `json:"name"`
		} `json:"schema"`
		Payload json.RawMessage `json:"payload"`
	}
	text := bytes.TrimSpace(body)
	if bytes.HasPrefix(text, []byte("{")) && bytes.Contains(text, []byte(`"io.debezium.data.Json"`)) &&
		json.Unmarshal(text, &envelope) == nil && envelope.Schema.Name == "io.debezium.data.Json" {
		text = envelope.Payload
	}
	var payload string
	if bytes.HasPrefix(text, []byte(`"`)) && json.Unmarshal(text, &payload) == nil {
		return []byte(payload)
	}
	return body
}
