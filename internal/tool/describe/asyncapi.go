package describe

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/outboxgen/outboxgen/generator/model"
)

// Encoding is how a publisher puts events into messages: the Encoder in its configuration.
type Encoding string

// The encodings.
const (
	Binary     Encoding = "cloudevents"            // publish.CloudEvents(source, publish.Binary), the default
	Structured Encoding = "cloudevents-structured" // publish.CloudEvents(source, publish.Structured)
	JSON       Encoding = "json"                   // publish.JSON()
)

// Encodings returns all encodings.
func Encodings() []Encoding { return []Encoding{Binary, Structured, JSON} }

// AsyncAPIConfig says what the YAML does not.
type AsyncAPIConfig struct {
	Title    string // "" is made from the package
	Version  string // of the document
	Encoding Encoding
	Source   string // the source of the CloudEvents; "" means a slash and the namespace
}

// AsyncAPI returns an AsyncAPI 3.0 document of the published topics of m: a channel per destination, a message per
// version of a payload, and an operation per topic.
func AsyncAPI(m *model.Model, cfg AsyncAPIConfig) ([]byte, error) {
	a := &asyncapi{cfg: cfg, schemas: newSchemas("#/components/schemas/", true), ids: make(map[string]bool)}
	for _, k := range Kinds(m) {
		a.add(k)
	}
	title := cfg.Title
	if title == "" {
		title = "Events of package " + m.Package
	}
	info := object{{"title", title}, {"version", cfg.Version}}
	var docs []string
	for _, n := range m.Namespaces {
		if doc := sentence(n.GoName, n.Doc); doc != "" && len(n.Published()) > 0 {
			docs = append(docs, n.Name+": "+doc)
		}
	}
	info.add("description", strings.Join(docs, "\n\n"))
	channels, operations := object{}, object{}
	for _, c := range a.channels {
		channels.add(c.id, c.object())
		for _, o := range c.operations {
			operations.add(o.id, o.object(c))
		}
	}
	components := object{{"messages", a.messages}}
	components.add("schemas", append(a.payloads, a.schemas.definitions()...))
	return document(object{
		{"asyncapi", "3.0.0"}, {"info", info}, {"defaultContentType", "application/json"},
		{"channels", channels}, {"operations", operations}, {"components", components},
	})
}

type asyncapi struct {
	cfg      AsyncAPIConfig
	schemas  *schemas
	channels []*channel
	ids      map[string]bool // of channels
	messages object
	payloads object
}

// channel is a destination.
type channel struct {
	id         string
	broker     model.Broker
	address    string // "" if it is not known
	messages   []string
	operations []*operation
}

// operation is what the producer sends of one topic.
type operation struct {
	id, doc  string
	messages []string
}

// add adds the message of k, and its channel and operation if they are new.
func (a *asyncapi) add(k Kind) {
	name := k.Name()
	a.payloads.add(name, a.schemas.payload(k))
	a.messages.add(name, a.message(k))
	c := a.channel(k.Topic)
	c.messages = append(c.messages, name)
	id := "send." + k.Topic.Namespace.Name + "." + k.Topic.Name
	at := slices.IndexFunc(c.operations, func(o *operation) bool { return o.id == id })
	if at < 0 {
		at = len(c.operations)
		c.operations = append(c.operations, &operation{id: id, doc: sentence(k.Topic.GoName, k.Topic.Doc)})
	}
	c.operations[at].messages = append(c.operations[at].messages, name)
}

// channel returns the channel of the destination of t.
func (a *asyncapi) channel(t *model.Topic) *channel {
	p := t.Publish
	for _, c := range a.channels {
		if c.broker == p.Broker && c.address == p.Destination && c.address != "" {
			return c
		}
	}
	address := p.Destination
	if address == "" { // the event has it
		address = t.Namespace.Name + "." + t.Name
	}
	id := string(p.Broker) + "." + strings.Map(func(r rune) rune {
		if r < 0x80 &&
			(r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' || strings.ContainsRune("._-", r)) {
			return r
		}
		return '_'
	}, address)
	for n, stem := 2, id; a.ids[id]; n++ {
		id = stem + "_" + strconv.Itoa(n)
	}
	a.ids[id] = true
	c := &channel{id: id, broker: p.Broker, address: p.Destination}
	a.channels = append(a.channels, c)
	return c
}

func reference(path ...string) object {
	for i := range path {
		path[i] = strings.NewReplacer("~", "~0", "/", "~1").Replace(path[i])
	}
	return object{{"$ref", "#/" + strings.Join(path, "/")}}
}

func (c *channel) object() object {
	var o object
	switch {
	case c.address == "":
		o = object{{"address", nil}, {"description", "The address is a field of each event."}}
	case c.broker == model.Webhook:
		o = object{
			{"address", nil}, {"title", "Webhook " + c.address},
			{"description", "The producer's configuration has the URL of endpoint " + c.address + "."},
		}
	default:
		o = object{{"address", c.address}}
	}
	messages := object{}
	for _, name := range c.messages {
		messages.add(name, reference("components", "messages", name))
	}
	o.add("messages", messages)
	if c.broker == model.Kafka && c.address != "" {
		o.add("description", "The producer does not compress its records, unless its configuration says so.")
		o.add("bindings", object{{"kafka", object{{"topic", c.address}, {"bindingVersion", "0.5.0"}}}})
	}
	return o
}

func (o *operation) object(c *channel) object {
	operation := object{{"action", "send"}, {"channel", reference("channels", c.id)}}
	operation.add("summary", o.doc)
	var messages []object
	for _, name := range o.messages {
		messages = append(messages, reference("channels", c.id, "messages", name))
	}
	operation.add("messages", messages)
	if c.broker == model.Webhook {
		operation.add("bindings", object{{"http", object{{"method", "POST"}, {"bindingVersion", "0.3.0"}}}})
	}
	return operation
}

// message returns the message of k.
func (a *asyncapi) message(k Kind) object {
	t := k.Topic
	o := object{{"name", k.Name()}, {"title", k.goName}}
	o.add("summary", k.doc())
	payload := reference("components", "schemas", k.Name())
	attributes := a.attributes(k)
	headers := object{}
	var required []string
	header := func(f fact, name string) {
		headers.add(name, f.schema)
		if f.required {
			required = append(required, name)
		}
	}
	contentType := "application/json"
	switch a.cfg.Encoding {
	case Structured:
		contentType = "application/cloudevents+json"
		members, needed := object{}, []string{}
		for _, f := range attributes {
			members.add(f.cloud, f.schema)
			if f.required {
				needed = append(needed, f.cloud)
			}
		}
		members.add("data", payload)
		payload = object{{"type", "object"}, {"properties", members}, {"required", append(needed, "data")}}
	case JSON:
		for _, f := range attributes {
			if f.plain != "" {
				header(f, f.plain)
			}
		}
	default:
		for _, f := range attributes {
			if f.cloud != "datacontenttype" { // it is the content type
				header(f, attributePrefix(t.Publish.Broker)+f.cloud)
			}
		}
	}
	header(fact{schema: constant(contentType), required: true}, "content-type")
	if t.Publish.Broker == model.Webhook {
		id := text("The id of the event.")
		header(fact{schema: append(id, member{"format", "uuid"}), required: true}, "webhook-id")
		header(fact{schema: text("Seconds since 1970, part of what is signed."), required: true}, "webhook-timestamp")
		header(fact{
			schema: text("Signatures as Standard Webhooks specifies, separated by spaces, if the endpoint has a secret."),
		}, "webhook-signature")
	}
	if k.current() {
		for _, h := range t.Publish.Headers {
			headers.add(h.Name, text("Of the form "+formOf(h)+"."))
			required = append(required, h.Name)
		}
	}
	if t.Publish.Tombstone {
		header(fact{
			schema: text("The payload as JSON: the record has no value. Its form: " + k.Name() + "."), required: true,
		}, "outbox-tombstone")
		payload = object{{"type", "null"}}
	}
	o.add("contentType", contentType)
	described := object{{"type", "object"}}
	if !t.Publish.Broker.BuiltIn() {
		described.add("description",
			"The names are those of CloudEvents and of the built-in publishers. The producer's own publisher "+
				strconv.Quote(string(t.Publish.Broker))+" may use other names.")
	}
	o.add("headers", append(described, member{"properties", headers}, member{"required", required}))
	o.add("payload", payload)
	if t.Publish.Broker == model.Kafka {
		key := t.Publish.Key
		key = cmp.Or(key, t.PartitionKey)
		if key != nil {
			o.add("bindings", object{{"kafka", object{
				{"key", text("Of the form " + key.Text + ". Records with one key are in order.")}, {"bindingVersion", "0.5.0"},
			}}})
		}
	}
	return o
}

// attributePrefix returns what the bindings of CloudEvents put in front of attributes that are headers.
func attributePrefix(b model.Broker) string {
	switch b {
	case model.Kafka, model.Redis:
		return "ce_"
	case model.AMQP:
		return "cloudEvents:"
	}
	return "ce-"
}

func text(doc string) object { return object{{"type", "string"}, {"description", doc}} }

func constant(value string) object { return object{{"type", "string"}, {"const", value}} }

// formOf returns a header as the YAML writes it.
func formOf(h *model.Header) string {
	form := ""
	for _, part := range h.Parts {
		if part.Field != nil {
			form += "{" + part.Field.Name + "}"
		} else {
			form += part.Literal
		}
	}
	return strconv.Quote(form)
}

// fact is a fact of an event that every message has, or may have.
type fact struct {
	cloud    string // its name as an attribute of CloudEvents
	plain    string // its header with the encoding JSON; "" if there is none
	schema   object
	required bool
}

// attributes returns the facts of the events of k, in the order of the documentation.
func (a *asyncapi) attributes(k Kind) []fact {
	t := k.Topic
	source := a.cfg.Source
	if source == "" {
		source = "/" + t.Namespace.Name
	}
	names := typesOf(k)
	kind := constant(names[0])
	if len(names) > 1 {
		kind = object{{"type", "string"}, {"enum", names}}
	}
	version := constant(strconv.Itoa(k.Version))
	id := append(text("The id of the event. A copy of a message has the same."), member{"format", "uuid"})
	at := append(text("When the event was enqueued."), member{"format", "date-time"})
	facts := []fact{
		{"specversion", "", constant("1.0"), true},
		{"id", "outbox-id", id, true},
		{"source", "", constant(source), true},
		{"type", "outbox-type", kind, true},
		{"datacontenttype", "", constant("application/json"), true},
		{"dataversion", "outbox-version", version, true},
		{"time", "outbox-time", at, true},
	}
	if t.Entity != nil || t.PartitionKey != nil {
		facts = append(facts, fact{"subject", "", text("The id of the entity, or else the partition key."), true})
	}
	if t.Tenant != nil {
		tenant := append(text("The owner of the event."), member{"format", "uuid"})
		facts = append(facts, fact{"tenantid", "outbox-tenant-id", tenant, true})
	}
	if e := t.Entity; e != nil {
		facts = append(facts,
			fact{"entitytype", "outbox-entity-type", constant(e.Type), true},
			fact{"entityid", "outbox-entity-id", text("Of the form " + e.ID.Text + "."), true})
		if e.Version != nil {
			facts = append(facts, fact{
				"entityversion", "outbox-entity-version", text("The field " + e.Version.Name + ", unless it is 0."), false,
			})
		}
	}
	if t.PartitionKey != nil {
		facts = append(facts, fact{
			"partitionkey", "outbox-partition-key", text("Of the form " + t.PartitionKey.Text + "."), true,
		})
	}
	if t.DedupeKey != nil {
		facts = append(facts, fact{"dedupekey", "outbox-dedupe-key", text("Of the form " + t.DedupeKey.Text + "."), true})
	}
	return append(facts,
		fact{"causationid", "outbox-causation-id", text("The id of the event whose handler has enqueued this one."), false},
		fact{"correlationid", "outbox-correlation-id", text("The same for all events of a chain."), false},
		fact{"traceparent", "traceparent", text("The trace of the enqueue (W3C Trace Context)."), false},
		fact{"tracestate", "tracestate", text("The trace of the enqueue (W3C Trace Context)."), false})
}

// typesOf returns the types that messages of k have. Those of an older version may have had another wire name.
func typesOf(k Kind) []string {
	t := k.Topic
	switch {
	case !k.current():
		return t.WireNames()
	case t.Publish.WireName != "":
		return []string{t.Publish.WireName}
	}
	names := []string{t.Namespace.Name + "." + t.Name}
	for _, old := range t.Renamed {
		names = append(names, fmt.Sprintf("%s.%s", t.Namespace.Name, old))
	}
	return names
}
