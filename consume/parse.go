package consume

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/call/cause"
)

// Parse reads the envelope of m: a CloudEvent 1.0 in binary or structured mode, or plain JSON with outbox headers, also
// those of Debezium's outbox event router. It does not look into the payload, which shares its memory with m. The error
// is an *Error that wraps ErrMalformed.
func Parse(m Message) (Received, error) {
	r, _, err := parse(m, isJSON)
	if err != nil {
		return Received{}, err
	}
	return r, nil
}

// parse is Parse for the content types that reads accepts. It returns the content type of the payload. With an error,
// the event has the type of the message if it could be read.
func parse(m Message, reads func(contentType string) bool) (Received, string, error) {
	switch media := mediaType(m.ContentType); {
	case media == "application/cloudevents+json":
		return parseStructured(m, reads)
	case strings.HasPrefix(media, "application/cloudevents"):
		return Received{}, "", malformed(&Event{}, contentType,
			"is not a supported format of CloudEvents: use application/cloudevents+json")
	case len(m.Attributes) > 0:
		return parseBinary(m, reads)
	}
	r, err := parseJSON(m, reads)
	return r, m.ContentType, err
}

// mediaType returns a content type in lower case, without its parameters.
func mediaType(contentType string) string {
	media, _, _ := strings.Cut(contentType, ";")
	return strings.ToLower(strings.TrimSpace(media))
}

func isJSON(contentType string) bool {
	media := mediaType(contentType)
	return media == "" || media == "application/json" || media == "text/json" || strings.HasSuffix(media, "+json")
}

func parseBinary(m Message, reads func(string) bool) (Received, string, error) {
	of := cmp.Or(m.ContentType, m.Attributes["datacontenttype"])
	r, err := parseCloudEvent(m.Attributes, m.Headers, of, m.Body, reads)
	return r, of, err
}

func parseStructured(m Message, reads func(string) bool) (Received, string, error) {
	none := &Event{}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(m.Body, &members); err != nil || members == nil {
		return Received{}, "", malformed(none, "", "body is not a JSON object")
	}
	data := members["data"]
	encoded, inBase64 := members["data_base64"]
	delete(members, "data")
	delete(members, "data_base64")
	attributes := make(map[string]string, len(members))
	for name, value := range members {
		text, ok := attributeText(value)
		if !ok {
			return Received{}, "", malformed(none, show(name), "is not text, a number, true or false")
		}
		if text != "" {
			attributes[name] = text
		}
	}
	if inBase64 {
		var text string
		if err := json.Unmarshal(encoded, &text); err != nil || data != nil {
			return Received{}, "", malformed(none, "data_base64", "is not text, or there is a member data as well")
		}
		var err error
		if data, err = base64.StdEncoding.DecodeString(text); err != nil {
			return Received{}, "", malformed(none, "data_base64", "is not base64")
		}
	}
	of := attributes["datacontenttype"]
	r, err := parseCloudEvent(attributes, m.Headers, of, data, reads)
	return r, of, err
}

// attributeText returns an attribute of structured mode in the form of binary mode. null means that it is absent.
func attributeText(value json.RawMessage) (string, bool) {
	var decoded any
	if err := json.Unmarshal(value, &decoded); err != nil {
		return "", false
	}
	switch v := decoded.(type) {
	case nil:
		return "", true
	case string:
		return v, true
	case bool, float64:
		return string(value), true // a float64 would lose digits of 9007199254740993
	}
	return "", false
}

func parseCloudEvent(
	attributes, headers map[string]string, contentTypeOf string, data []byte, reads func(string) bool,
) (Received, error) {
	if v, there := attributes["specversion"]; !there {
		return Received{}, malformed(&Event{}, "specversion", "is missing")
	} else if v != "1.0" {
		return Received{}, malformed(&Event{}, "specversion", "is not 1.0")
	}
	e, err := envelope{attributes, cloudNames}.event()
	switch {
	case err != nil:
		return Received{Event: e}, err
	case !reads(contentTypeOf):
		return Received{Event: e}, malformed(&e, contentType, "is not JSON")
	case data == nil:
		return Received{Event: e}, malformed(&e, "data", "is missing")
	}
	e.Source = attributes["source"]
	e.Headers = maps.Clone(headers)
	if e.Headers == nil {
		e.Headers = make(map[string]string)
	}
	for _, name := range [...]string{"traceparent", "tracestate"} {
		if value := attributes[name]; value != "" {
			e.Headers[name] = value
		}
	}
	cloudNames.chain(attributes, e.Headers)
	return Received{Event: e, Payload: data}, nil
}

func parseJSON(m Message, reads func(string) bool) (Received, error) {
	const prefix = "outbox-"
	facts, headers := make(map[string]string), make(map[string]string)
	for _, name := range backwards(m.Headers) { // brokers and proxies may change the case of a name
		if lower := strings.ToLower(name); strings.HasPrefix(lower, prefix) {
			setOnce(facts, lower, m.Headers[name])
		} else {
			headers[name] = m.Headers[name]
		}
	}
	if len(facts) == 0 {
		return Received{}, malformed(&Event{}, "", "it has neither CloudEvent attributes nor outbox headers")
	}
	body, err := routed(facts, headers, m.Body)
	if err != nil {
		return Received{}, err
	}
	e, err := envelope{facts, outboxNames}.event()
	switch {
	case err != nil:
		return Received{Event: e}, err
	case !reads(m.ContentType):
		return Received{Event: e}, malformed(&e, contentType, "is not JSON")
	}
	outboxNames.chain(facts, headers)
	e.Source = facts[routedSource]
	e.Headers = headers
	return Received{Event: e, Payload: body}, nil
}

// names are the names of an event's facts in one kind of envelope.
type names struct {
	id, topic, version, time, tenant, entityType, entityID, entityVersion, partitionKey, dedupeKey string
	causation, correlation                                                                         string // headers of the event
}

// chain puts the headers that say what has caused the event among the others.
func (n *names) chain(facts, headers map[string]string) {
	if value := facts[n.causation]; value != "" {
		headers[cause.Header] = value
	}
	if value := facts[n.correlation]; value != "" {
		headers[cause.Correlation] = value
	}
}

var (
	cloudNames = names{
		id: "id", topic: "type", version: "dataversion", time: "time", tenant: "tenantid", entityType: "entitytype",
		entityID: "entityid", entityVersion: "entityversion", partitionKey: "partitionkey", dedupeKey: "dedupekey",
		causation: "causationid", correlation: "correlationid",
	}
	outboxNames = names{
		id: "outbox-id", topic: "outbox-type", version: "outbox-version", time: "outbox-time", tenant: "outbox-tenant-id",
		entityType: "outbox-entity-type", entityID: "outbox-entity-id", entityVersion: "outbox-entity-version",
		partitionKey: "outbox-partition-key", dedupeKey: "outbox-dedupe-key",
		causation: "outbox-causation-id", correlation: "outbox-correlation-id",
	}
)

// envelope holds the facts of an event as text.
type envelope struct {
	facts map[string]string
	names names
}

var topicType = regexp.MustCompile(`^([a-z][a-z0-9_]{0,40})\.([a-z][a-z0-9_]{0,40})$`)

// event reads the facts. It reads the identifying ones first, so that an error about another one names the event.
func (v envelope) event() (Event, error) {
	var e Event
	id, kind := v.facts[v.names.id], v.facts[v.names.topic]
	if kind == "" {
		return e, malformed(&e, v.names.topic, "is missing")
	}
	e.Type = kind
	if parts := topicType.FindStringSubmatch(kind); parts != nil {
		e.Namespace, e.Topic = parts[1], parts[2]
	}
	parsed, err := uuid.Parse(id)
	switch {
	case id == "":
		return e, malformed(&e, v.names.id, "is missing")
	case err != nil || parsed == uuid.Nil:
		return e, malformed(&e, v.names.id, "is not a UUID, or is the zero UUID")
	}
	e.ID = parsed

	version := int64(1)
	if text, there := v.facts[v.names.version]; there {
		if version, err = strconv.ParseInt(text, 10, 32); err != nil || version < 1 {
			return e, malformed(&e, v.names.version, "is not a number from 1 to 2147483647")
		}
	}
	e.Version = int(version)
	if text := v.facts[v.names.tenant]; text != "" {
		tenant, err := uuid.Parse(text)
		if err != nil {
			return e, malformed(&e, v.names.tenant, "is not a UUID")
		}
		e.TenantID = uuid.NullUUID{UUID: tenant, Valid: true}
	}
	if text := v.facts[v.names.time]; text != "" {
		if e.Time, err = time.Parse(time.RFC3339Nano, text); err != nil {
			return e, malformed(&e, v.names.time, "is not an RFC 3339 time")
		}
	}
	e.PartitionKey, e.DedupeKey = v.facts[v.names.partitionKey], v.facts[v.names.dedupeKey]
	return e, v.entity(&e)
}

func (v envelope) entity(e *Event) error {
	e.Entity = Entity{Type: v.facts[v.names.entityType], ID: v.facts[v.names.entityID]}
	text := v.facts[v.names.entityVersion]
	if text == "" {
		return nil
	}
	version, err := strconv.ParseInt(text, 10, 64)
	switch {
	case err != nil || version < 1:
		return malformed(e, v.names.entityVersion, "is not a number from 1 to 9223372036854775807")
	case e.Entity.Type == "":
		return malformed(e, v.names.entityType, "is missing, but there is an entity version")
	case e.Entity.ID == "":
		return malformed(e, v.names.entityID, "is missing, but there is an entity version")
	}
	e.Entity.Version = version
	return nil
}
