package spec

import (
	"slices"
	"strings"
	"time"

	"github.com/outboxgen/outboxgen/generator/diag"
)

// The key tables: every key of an outbox.yaml, where it is allowed, what its value looks like, and what it means. The
// decoder, its suggestions, the JSON Schema, Format and editors read them: their order is the one that Format gives the
// keys. A new key needs a line here, a member of the spec, and its rule in the model.

var (
	nameText     shape[Value[string]] = &text{pattern: namePattern}
	goName       shape[Value[string]] = &text{pattern: goNamePattern, example: "TurnFinalized"}
	freeText     shape[Value[string]] = &text{}
	fieldText    shape[Value[string]] = &text{pattern: namePattern, refers: FieldThing}
	headerText   shape[Value[string]] = &text{refers: Template}
	templateText shape[Value[string]] = &text{example: `"{tenant_id}/{turn_id}"`, refers: Template}
	typeText     shape[Value[string]] = &text{pattern: typePattern, example: "uuid", refers: TypeThing}
	enumText     shape[Value[string]] = &text{pattern: enumPattern}
	topicText    shape[Value[string]] = &text{
		pattern: topicPattern, example: "threads/message_created", refers: TopicThing,
	}
	wireText   shape[Value[string]]        = &text{pattern: wirePattern, example: "user.created"}
	dirText    shape[Value[string]]        = &text{pattern: dirPattern, example: "../userevents"}
	flag       shape[Value[bool]]          = boolean{}
	span       shape[Value[time.Duration]] = duration{}
	secretText shape[Value[Secrecy]]       = secrecy{}
	rateText   shape[Value[Rate]]          = rate{}
	limit      shape[Value[Bound]]         = bound{}
	length                                 = whole(0, 1<<31-1)
)

func oneOf(values ...string) shape[Value[string]] { return &option{values} }

func whole(least, most int64) shape[Value[int64]] { return &integer{least, most} }

var file = &record[Spec]{
	name: "outbox",
	doc:  "The events of a Go module, from which outboxgen generates a typed transactional outbox.",
	elsewhere: map[string]string{
		"topics": "topics belong to a namespace, under namespaces",
	},
	keys: []key[Spec]{
		required("version", oneOf(formatVersion), func(s *Spec) *Value[string] { return &s.Version },
			`Version of this file's format. Quote it: "1".`),
		required("package", nameText, func(s *Spec) *Value[string] { return &s.Package },
			"Go package of the generated code."),
		optional("schema", nameText, func(s *Spec) *Value[string] { return &s.Schema },
			"PostgreSQL schema of the outbox tables. Default: outbox."),
		optional("consumer", consumer, func(s *Spec) *Consumer { return &s.Consumer },
			"Code for services that consume the published topics, in a separate package."),
		optional("defaults", policy, func(s *Spec) *Policy { return &s.Defaults },
			"Settings of every topic that does not override them; retry and lease also apply to listeners."),
		optional("types", types, func(s *Spec) *Section[*Type] { return &s.Types },
			"Structs, enums and scalars that fields can use by name."),
		required("namespaces", namespaces, func(s *Spec) *Section[*Namespace] { return &s.Namespaces },
			"Owner modules and their topics."),
		optional("listeners", listeners, func(s *Spec) *Section[*Listener] { return &s.Listeners },
			"Named consumers of log topics, each with its own cursor."),
		optional("operations", operations, func(s *Spec) *Section[*Operation] { return &s.Operations },
			"Transactions that commit only with the events of one of their outcomes."),
	},
}

var consumer = &record[Consumer]{
	name:  "consumer",
	doc:   "A package for services that consume the published topics. It does not depend on the code of the producer.",
	form:  "{package: userevents}",
	start: func(c *Consumer) *diag.Pos { return &c.Pos },
	keys: []key[Consumer]{
		required("package", nameText, func(c *Consumer) *Value[string] { return &c.Package },
			"Go package. It is also the sub-folder of the output folder that the code is generated into, unless dir names "+
				"another."),
		optional("dir", dirText, func(c *Consumer) *Value[string] { return &c.Dir },
			"Folder of the package, relative to the output folder: for example ../../userevents, if the output folder is "+
				"below internal."),
	},
}

// policyKeys are the settings of defaults, which a topic may override.
func policyKeys[T any](of func(*T) *Policy) []key[T] {
	return []key[T]{
		optional("retry", retry, func(t *T) *Retry { return &of(t).Retry },
			"How often and how fast a failed event is retried. Retries that end within ten minutes are a warning."),
		optional("lease", span, func(t *T) *Value[time.Duration] { return &of(t).Lease },
			"How long a dispatcher holds an event before another may take it over; renewed while the handler runs. "+
				"Default: 30s."),
		optional("retention", retention, func(t *T) *Retention { return &of(t).Retention },
			"How long finished events are kept."),
		optional("wake", oneOf("doorbell", "none"), func(t *T) *Value[string] { return &of(t).Wake },
			"Whether enqueue wakes a sleeping dispatcher: doorbell (default), or none for producers that use PREPARE "+
				"TRANSACTION."),
	}
}

var policy = &record[Policy]{
	name: "defaults",
	doc:  "Settings of every topic that does not override them; retry and lease also apply to listeners.",
	keys: policyKeys(func(p *Policy) *Policy { return p }),
}

var retry = &record[Retry]{
	name: "retry",
	doc:  "Retries with equal jitter: the delay doubles from base_delay up to max_delay.",
	form: "{max_attempts: 25}",
	keys: []key[Retry]{
		optional("max_attempts", whole(1, 1000), func(r *Retry) *Value[int64] { return &r.MaxAttempts },
			"Attempts before an event becomes a dead letter, the first one included. Default: 25."),
		optional("base_delay", span, func(r *Retry) *Value[time.Duration] { return &r.BaseDelay },
			"Delay after the first failure. Default: 1s."),
		optional("max_delay", span, func(r *Retry) *Value[time.Duration] { return &r.MaxDelay },
			"Longest delay between two attempts. Default: 30m."),
	},
}

var retention = &record[Retention]{
	name: "retention",
	doc:  "How long finished events are kept.",
	form: "{delivered: 168h}",
	keys: []key[Retention]{
		optional("delivered", span, func(r *Retention) *Value[time.Duration] { return &r.Delivered },
			"How long delivered events are kept, which is also the dedupe window. It must be longer than the retries of an "+
				"event can take. 0s deletes events on ack, and is not allowed with a dedupe_key. In a log topic it counts from "+
				"the enqueue and must not be 0s. Default: 168h."),
		optional("dead", span, func(r *Retention) *Value[time.Duration] { return &r.Dead },
			"How long dead letters are kept: at least as long as delivered events. Default: 720h."),
	},
}

var types = &dict[Type]{
	item:  sharedType,
	of:    TypeThing,
	name:  func(t *Type) *Value[string] { return &t.Name },
	label: func(_, name string) string { return "type " + name },
}

var sharedType = &record[Type]{
	name:  "type",
	doc:   "A struct with fields, an enum, or a scalar with its own Go type.",
	oneOf: []string{"fields", "enum", "scalar"},
	keys: []key[Type]{
		optional("doc", freeText, func(t *Type) *Value[string] { return &t.Doc },
			"Text for the Go doc comment, where it becomes a separate paragraph."),
		optional("go", goName, func(t *Type) *Value[string] { return &t.Go },
			"Go name. Default: made from the YAML name."),
		optional("fields", fieldsOf(true), func(t *Type) *Section[*Field] { return &t.Fields },
			"Fields of the struct, in order."),
		optional("enum", &list[EnumValue]{enumValue, diag.EnumEmpty}, func(t *Type) *Section[EnumValue] { return &t.Enum },
			"Values of the enum: text, or {value, go} to name the constant."),
		optional("scalar", oneOf("uuid", "string", "int32", "int64"), func(t *Type) *Value[string] { return &t.Scalar },
			"What the values are. The Go type is distinct, so that an id of one kind cannot be used as an id of another."),
		optional("min", limit, func(t *Type) *Value[Bound] { return &t.Min },
			"Minimum value of a scalar int32 or int64."),
		optional("max", limit, func(t *Type) *Value[Bound] { return &t.Max },
			"Maximum value of a scalar int32 or int64."),
		optional("min_len", length, func(t *Type) *Value[int64] { return &t.MinLen },
			"Minimum length of a scalar string, in characters."),
		optional("max_len", length, func(t *Type) *Value[int64] { return &t.MaxLen },
			"Maximum length of a scalar string, in characters."),
		optional("pattern", freeText, func(t *Type) *Value[string] { return &t.Pattern },
			"Regular expression (RE2) that a scalar string must match."),
	},
}

// enumValue is a text, or a mapping that names its constant.
var enumValue = &shorthand[EnumValue, Value[string]]{
	short:  enumText,
	member: func(v *EnumValue) *Value[string] { return &v.Value },
	long: &record[EnumValue]{
		name: "enum_value",
		doc:  "A value of an enum with the name of its constant.",
		keys: []key[EnumValue]{
			required("value", freeText, func(v *EnumValue) *Value[string] { return &v.Value },
				"The value, as it is written in JSON. With go it can be any printable text, or empty."),
			optional("go", goName, func(v *EnumValue) *Value[string] { return &v.Go },
				"Name of the Go constant, which follows the name of the enum: NotApplicable."),
		},
	},
}

var namespaces = &dict[Namespace]{
	item:  namespace,
	of:    NamespaceThing,
	name:  func(n *Namespace) *Value[string] { return &n.Name },
	label: func(_, name string) string { return "namespace " + name },
	some:  true,
}

var namespace = &record[Namespace]{
	name: "namespace",
	doc:  "An owner module and its topics. Its queue topics share a handlers interface and a dispatcher.",
	keys: []key[Namespace]{
		optional("doc", freeText, func(n *Namespace) *Value[string] { return &n.Doc },
			"Text for the Go doc comment, where it becomes a separate paragraph."),
		optional("go", goName, func(n *Namespace) *Value[string] { return &n.Go },
			"Go name. Default: made from the YAML name."),
		optional("stubs", oneOf("none"), func(n *Namespace) *Value[string] { return &n.Stubs },
			"none: no handler stubs are written, because the handlers live in another package."),
		required("topics", topics, func(n *Namespace) *Section[*Topic] { return &n.Topics },
			"Topics of this namespace: its kinds of event."),
	},
}

var topics = &dict[Topic]{
	item: topic,
	of:   TopicThing,
	name: func(t *Topic) *Value[string] { return &t.Name },
	label: func(outer, name string) string {
		return "topic " + strings.TrimPrefix(outer, "namespace ") + "/" + name
	},
	some: true,
}

var topic = &record[Topic]{
	name: "topic",
	doc:  "A kind of event.",
	elsewhere: map[string]string{
		"concurrency": "put it under limits, as in limits: [{concurrency: 5}]",
		"rate":        "put it under limits, as in limits: [{rate: 10/1m}]",
	},
	keys: slices.Concat([]key[Topic]{
		optional("doc", freeText, func(t *Topic) *Value[string] { return &t.Doc },
			"Text for the Go doc comment, where it becomes a separate paragraph."),
		optional("go", goName, func(t *Topic) *Value[string] { return &t.Go },
			"Go name. Default: made from the YAML name."),
		optional("version", whole(1, 1<<31-1), func(t *Topic) *Value[int64] { return &t.Version },
			"Payload version. Default: 1."),
		optional("renamed_from", &list[Value[string]]{nameText, diag.EmptySection}, func(t *Topic) *Section[Value[string]] {
			return &t.RenamedFrom
		},
			"Earlier names of the topic, in this namespace. Events that have one of them are handled like the others, by the "+
				"same handler."),
		optional("delivery", oneOf("queue", "log"), func(t *Topic) *Value[string] { return &t.Delivery },
			"queue (default): one handler handles each event. log: any number of listeners read each event."),
		optional("listeners", oneOf("none"), func(t *Topic) *Value[string] { return &t.Listeners },
			"none: no listener reads this log topic yet."),
		optional("tenant", fieldText, func(t *Topic) *Value[string] { return &t.Tenant },
			"Payload field with the tenant that owns the event: a required uuid."),
		optional("dedupe_key", templateText, func(t *Topic) *Value[string] { return &t.DedupeKey },
			"Template of the idempotency key: segments of text and {field}, separated by '/'. With a tenant it must start "+
				"with {<tenant field>}/."),
		optional("partition_key", templateText, func(t *Topic) *Value[string] { return &t.PartitionKey },
			"Template of the key that keeps events together when they are published, and in order when a listener reads them."),
		optional("fairness", oneOf("tenant"), func(t *Topic) *Value[string] { return &t.Fairness },
			"tenant: no tenant waits behind another's burst. Queue topics with a tenant only. Default: the oldest due event "+
				"is first, whoever owns it."),
		optional("limits", &list[Limit]{limits, diag.EmptySection}, func(t *Topic) *Section[Limit] { return &t.Limits },
			"How many events may be handled at once, and how many attempts may start in a period, over all processes together. "+
				"Queue topics only. Default: no limit."),
		optional("batch", batch, func(t *Topic) *Batch { return &t.Batch },
			"Makes the handler get several events in one call. Queue topics with a handler only. Default: one event per call."),
		optional("entity", entity, func(t *Topic) *Entity { return &t.Entity },
			"The versioned thing that the event is about."),
		optional("sealed", flag, func(t *Topic) *Value[bool] { return &t.Sealed },
			"Whether the payload is encrypted as a whole, in the tables and at brokers, with a key of the process's keyring. "+
				"Keys, tenant and entity are not. Default: false."),
	}, policyKeys(func(t *Topic) *Policy { return &t.Policy }), []key[Topic]{
		optional("max_lag", span, func(t *Topic) *Value[time.Duration] { return &t.MaxLag },
			"How old the oldest waiting event may be before outboxgen status --check fails: at least 1s. Queue topics only. "+
				"Default: no bound."),
		optional("publish", publish, func(t *Topic) *Publish { return &t.Publish },
			"Where the events are published. It replaces the handler of a queue topic. A log topic is published by a listener "+
				"with publish: true."),
		optional("wire_name", wireText, func(t *Topic) *Value[string] { return &t.WireName },
			"Name of the topic in published messages, such as user.created: the type of the CloudEvent. Default: "+
				"namespace.topic."),
		required("payload", fieldsOf(false), func(t *Topic) *Section[*Field] { return &t.Payload },
			"Fields of the payload, in order."),
	}),
}

var limits = &record[Limit]{
	name:  "limit",
	doc:   "A limit of the events that have the same key. It has concurrency, rate or both.",
	form:  "{per: tenant, concurrency: 5}",
	oneOf: []string{"concurrency", "rate"}, several: true, oneOfRule: diag.LimitEmpty,
	start: func(l *Limit) *diag.Pos { return &l.Pos },
	keys: []key[Limit]{
		optional("per", &text{example: `"{mailbox_id}"`, refers: LimitKey}, func(l *Limit) *Value[string] { return &l.Per },
			"Which events share the limit: tenant, destination, or a template of payload fields. Default: all of the topic."),
		optional("concurrency", whole(1, 1<<31-1), func(l *Limit) *Value[int64] { return &l.Concurrency },
			"How many events with the same key may be handled at once."),
		optional("rate", rateText, func(l *Limit) *Value[Rate] { return &l.Rate },
			"How many attempts for events with the same key may start in a period of 1s to 24h, wherever it begins: 10/1m."),
	},
}

var batch = &record[Batch]{
	name:  "batch",
	doc:   "How many events a handler gets in one call.",
	form:  "{size: 500, wait: 200ms}",
	start: func(b *Batch) *diag.Pos { return &b.Pos },
	keys: []key[Batch]{
		required("size", whole(2, 10_000), func(b *Batch) *Value[int64] { return &b.Size },
			"How many events one call gets at most: 2 to 10000."),
		optional("wait", span, func(b *Batch) *Value[time.Duration] { return &b.Wait },
			"How long the first event of a batch waits for others, at most 1m. Default: 0s."),
	},
}

var entity = &record[Entity]{
	name:  "entity",
	doc:   "The versioned thing that an event is about.",
	form:  `{type: user, id: "{user_id}"}`,
	start: func(e *Entity) *diag.Pos { return &e.Pos },
	keys: []key[Entity]{
		required("type", nameText, func(e *Entity) *Value[string] { return &e.Type },
			"Kind of thing, such as turn."),
		required("id", templateText, func(e *Entity) *Value[string] { return &e.ID },
			"Template of its id, like a dedupe_key."),
		optional("version", fieldText, func(e *Entity) *Value[string] { return &e.Version },
			"Payload field with its version: a required int32 or int64."),
	},
}

var publish = &record[Publish]{
	name:      "publish",
	doc:       "Where the events of a topic are published: one broker.",
	form:      "{kafka: {topic: sc.domain.user}}",
	start:     func(p *Publish) *diag.Pos { return &p.Pos },
	oneOf:     []string{"kafka", "nats", "amqp", "redis", "webhook", "custom"},
	oneOfRule: diag.PublishBroker,
	keys: []key[Publish]{
		optional("kafka", broker("kafka", "kafka", "{topic: sc.domain.user}", kafkaTopic), func(p *Publish) *Broker {
			return &p.Kafka
		},
			"Publishes to a Kafka topic, with the publisher that the configuration has under kafka."),
		optional("nats", broker("nats", "nats", "{subject: users.renamed}", natsSubject), func(p *Publish) *Broker {
			return &p.NATS
		},
			"Publishes to a NATS subject, with the publisher that the configuration has under nats."),
		optional("amqp", broker("amqp", "amqp", "{address: /exchanges/users/user.renamed}", amqpAddress),
			func(p *Publish) *Broker { return &p.AMQP },
			"Publishes to an exchange or a queue of RabbitMQ, with the publisher that the configuration has under amqp."),
		optional("redis", broker("redis", "redis", "{stream: users}", redisStream), func(p *Publish) *Broker {
			return &p.Redis
		},
			"Publishes to a Redis stream, with the publisher that the configuration has under redis."),
		optional("webhook", byField(broker("webhook", "webhook", "{to: crm}", webhookTo), "to", "to_field",
			"Payload field with the destination of each event, such as customer_id: required and not sensitive. The publisher "+
				"looks up the endpoint. Queue topics only."),
			func(p *Publish) *Broker { return &p.Webhook },
			"Publishes to a webhook, with the publisher that the configuration has under webhook."),
		optional("custom",
			byField(broker("custom", "your own broker", "{name: sqs, destination: users}", customName, customDestination),
				"destination", "destination_field",
				"Payload field with the destination of each event: required and not sensitive. Queue topics only."),
			func(p *Publish) *Broker { return &p.Custom },
			"Publishes with your own publisher, which the configuration has under the name."),
		optional("key", templateText, func(p *Publish) *Value[string] { return &p.Key },
			"Template of the key by which the broker keeps events in order. Queue topics only. Default: the partition_key."),
		optional("headers", headers, func(p *Publish) *Section[*Header] { return &p.Headers },
			"Headers of each event, in addition to those that it is enqueued with: text with {field}."),
		optional("tombstone", flag, func(p *Publish) *Value[bool] { return &p.Tombstone },
			"Whether an event deletes what a compacted Kafka topic keeps of its key: the record has no value, and the payload "+
				"in a header. Default: false."),
	},
}

// broker is a mapping that says where events go in one broker.
func broker(name, where, form string, keys ...key[Broker]) *record[Broker] {
	return &record[Broker]{
		name:  "publish-" + name,
		doc:   "Where events go in " + where + ".",
		form:  form,
		start: func(b *Broker) *diag.Pos { return &b.Pos },
		keys:  keys,
	}
}

// byField returns r with a key for a payload field, which may be used in place of the key fixed.
func byField(r *record[Broker], fixed, field, doc string) *record[Broker] {
	r.oneOf, r.oneOfRule = []string{fixed, field}, diag.PublishDestination
	r.keys = append(r.keys, optional(field, fieldText, func(b *Broker) *Value[string] { return &b.Field }, doc))
	return r
}

func destination(b *Broker) *Value[string] { return &b.Destination }

var (
	kafkaTopic  = required("topic", matching(kafkaPattern), destination, "Kafka topic.")
	natsSubject = required("subject", matching(natsPattern), destination, "NATS subject, without wildcards.")
	amqpAddress = required("address", matching(amqpPattern), destination,
		"Address in RabbitMQ: /exchanges/NAME/ROUTING-KEY, /exchanges/NAME or /queues/NAME.")
	redisStream = required("stream", matching(redisPattern), destination, "Redis stream.")
	webhookTo   = optional("to", matching(namePattern), destination,
		"Name of the endpoint in the configuration of the publisher.")
	customName = required("name", nameText, func(b *Broker) *Value[string] {
		return &b.Name
	}, "Name of the publisher in the configuration, such as sqs.")
	customDestination = optional("destination", matching(customPattern), destination,
		"Where events go, in the publisher's own terms.")
)

func matching(pattern string) shape[Value[string]] { return &text{pattern: pattern} }

var headers = &dict[Header]{
	item:  &only[Header, Value[string]]{shape: headerText, member: func(h *Header) *Value[string] { return &h.Value }},
	name:  func(h *Header) *Value[string] { return &h.Name },
	of:    HeaderThing,
	label: func(outer, name string) string { return "header " + name + " of " + outer },
	names: headerPattern,
	form:  `{plan: "{plan}"}`,
}

// fieldsOf is a mapping of fields. A payload may be empty; a shared type without fields is a mistake.
func fieldsOf(some bool) *dict[Field] {
	return &dict[Field]{
		item:  field,
		of:    FieldThing,
		name:  func(f *Field) *Value[string] { return &f.Name },
		label: func(outer, name string) string { return "field " + name + " of " + outer },
		some:  some,
		form:  "{user_id: uuid}",
	}
}

// field is a type, or a mapping that has one.
var field = &shorthand[Field, Value[string]]{
	short:  typeText,
	member: func(f *Field) *Value[string] { return &f.Type },
	long: &record[Field]{
		name: "field",
		doc:  "A field with attributes.",
		elsewhere: map[string]string{
			"sealed": "write sensitive: sealed",
			"enum":   "declare the enum under types, and use its name as the type",
			"values": "declare an enum under types, and use its name as the type",
			"fields": "declare the struct under types, and use its name as the type",
		},
		keys: []key[Field]{
			required("type", typeText, func(f *Field) *Value[string] { return &f.Type },
				"string, bool, int32, int64, float64, uuid, timestamp, date, duration, bytes, json, a name from types, []T or "+
					"map[string]T. A trailing ? makes the field optional."),
			optional("doc", freeText, func(f *Field) *Value[string] { return &f.Doc },
				"Text for the Go doc comment, where it becomes a separate paragraph."),
			optional("optional", flag, func(f *Field) *Value[bool] { return &f.Optional },
				"Whether the field can be left out, like a trailing ? in its type."),
			optional("min", limit, func(f *Field) *Value[Bound] { return &f.Min },
				"Minimum value of an int32, int64, float64 or duration."),
			optional("max", limit, func(f *Field) *Value[Bound] { return &f.Max },
				"Maximum value of an int32, int64, float64 or duration."),
			optional("min_len", length, func(f *Field) *Value[int64] { return &f.MinLen },
				"Minimum length: characters of a string, bytes of bytes, items of a list, entries of a map."),
			optional("max_len", length, func(f *Field) *Value[int64] { return &f.MaxLen },
				"Maximum length: characters of a string, bytes of bytes, items of a list, entries of a map."),
			optional("pattern", freeText, func(f *Field) *Value[string] { return &f.Pattern },
				"Regular expression (RE2) that a string must match."),
			optional("sensitive", secretText, func(f *Field) *Value[Secrecy] { return &f.Sensitive },
				"true: the value is kept out of logs, errors, the CLI and keys. sealed: it is also encrypted in the tables and at "+
					"brokers, with a key of the process's keyring. Default: false."),
			optional("go", goName, func(f *Field) *Value[string] { return &f.Go },
				"Go name. Default: made from the YAML name."),
		},
	},
}

var listeners = &dict[Listener]{
	item:  listener,
	of:    ListenerThing,
	name:  func(l *Listener) *Value[string] { return &l.Name },
	label: func(_, name string) string { return "listener " + name },
}

// listenerLimits says what a listener has in place of limits.
const listenerLimits = "a listener reads in order per key: use its concurrency, shards and rate"

var listener = &record[Listener]{
	name: "listener",
	doc:  "A named consumer of log topics, with its own cursor, retries and dead letters.",
	form: "{topics: [threads/message_created]}",
	elsewhere: map[string]string{
		"limit":    listenerLimits,
		"limits":   listenerLimits,
		"fairness": "a listener reads in order: use shards and on_failure: park_key, so that one key does not hold up others",
	},
	keys: []key[Listener]{
		optional("doc", freeText, func(l *Listener) *Value[string] { return &l.Doc },
			"Text for the Go doc comment, where it becomes a separate paragraph."),
		optional("go", goName, func(l *Listener) *Value[string] { return &l.Go },
			"Go name. Default: made from the YAML name."),
		optional("stubs", oneOf("none"), func(l *Listener) *Value[string] { return &l.Stubs },
			"none: no handler stubs are written, because the handlers live in another package."),
		required("topics", &list[Value[string]]{topicText, diag.EmptySection}, func(l *Listener) *Section[Value[string]] {
			return &l.Topics
		},
			"Log topics that it reads, as namespace/topic."),
		optional("publish", flag, func(l *Listener) *Value[bool] { return &l.Publish },
			"Whether the listener publishes its topics instead of having handlers. All its topics must have publish, to the "+
				"same broker. Default: false."),
		optional("mode", oneOf("leased", "transactional"), func(l *Listener) *Value[string] { return &l.Mode },
			"leased (default): no transaction is open while the handler runs. transactional: the handler gets the transaction "+
				"in which the cursor advances."),
		optional("start", oneOf("earliest", "latest"), func(l *Listener) *Value[string] { return &l.Start },
			"earliest (default): a new listener starts at the earliest event that is kept. latest: it starts after the "+
				"latest event."),
		optional("on_failure", oneOf("block", "park_key"), func(l *Listener) *Value[string] { return &l.OnFailure },
			"block (default): a failed event is retried in place, and the events behind it wait. park_key: the events of its "+
				"partition key are parked, and all others continue."),
		optional("concurrency", whole(1, 1000), func(l *Listener) *Value[int64] { return &l.Concurrency },
			"How many events are handled concurrently, in order per partition key; mode leased only. Default: 1."),
		optional("shards", whole(1, 64), func(l *Listener) *Value[int64] { return &l.Shards },
			"How many shards the listener has, so that several processes share the work. Each has its own cursor, for the "+
				"partition keys that hash to it. Default: 1."),
		optional("batch", batch, func(l *Listener) *Batch { return &l.Batch },
			"Makes the handlers get several events in one call. Default: one event per call."),
		optional("rate", rateText, func(l *Listener) *Value[Rate] { return &l.Rate },
			"How many attempts of the listener may start in a period of 1s to 24h, over all its shards together: 100/1s. "+
				"Default: no limit."),
		optional("lease", span, func(l *Listener) *Value[time.Duration] { return &l.Lease },
			"How long a process holds a shard before another may take it over; renewed while handlers run. Default: the lease "+
				"of defaults, else 30s."),
		optional("max_lag", span, func(l *Listener) *Value[time.Duration] { return &l.MaxLag },
			"How old the oldest waiting event may be before the listener raises an alarm: at least 1s. Default: no alarm."),
		optional("retry", retry, func(l *Listener) *Retry { return &l.Retry },
			"How often and how fast a failed event is retried."),
	},
}

var operations = &dict[Operation]{
	item:  operation,
	of:    OperationThing,
	name:  func(o *Operation) *Value[string] { return &o.Name },
	label: func(_, name string) string { return "operation " + name },
}

var operation = &record[Operation]{
	name: "operation",
	doc:  "A transaction that commits only with the events of one of its outcomes.",
	keys: []key[Operation]{
		optional("doc", freeText, func(o *Operation) *Value[string] { return &o.Doc },
			"Text for the Go doc comment, where it becomes a separate paragraph."),
		optional("go", goName, func(o *Operation) *Value[string] { return &o.Go },
			"Go name. Default: made from the YAML name."),
		required("outcomes", outcomes, func(o *Operation) *Section[*Outcome] { return &o.Outcomes },
			"How it can end: each outcome with the topics of its events, as namespace/topic. An outcome with [] commits "+
				"without an event."),
	},
}

var outcomes = &dict[Outcome]{
	item: &only[Outcome, Section[Value[string]]]{
		shape: &list[Value[string]]{item: topicText}, member: func(o *Outcome) *Section[Value[string]] { return &o.Topics },
	},
	name:  func(o *Outcome) *Value[string] { return &o.Name },
	of:    OutcomeThing,
	label: func(outer, name string) string { return "outcome " + name + " of " + outer },
	some:  true,
}
