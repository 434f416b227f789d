package model

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/spec"
)

// Broker is a kind of publisher, by its name in the configuration.
type Broker string

// The brokers that have a key in the YAML under their name. Any other is custom.
const (
	Kafka   Broker = "kafka"
	NATS    Broker = "nats"
	AMQP    Broker = "amqp"
	Redis   Broker = "redis"
	Webhook Broker = "webhook"
)

// BuiltIn reports whether b has a key in the YAML under its name. Otherwise it is custom.
func (b Broker) BuiltIn() bool { return b != custom && destinations[b].key != "" }

// Brokers returns the brokers that are built in.
func Brokers() (all []Broker) {
	for b := range destinations {
		if b.BuiltIn() {
			all = append(all, b)
		}
	}
	return all
}

// custom is the key in the YAML of the brokers that are not built in.
const custom Broker = "custom"

// Publication says where the events of a topic are published.
type Publication struct {
	Broker      Broker
	Destination string    // topic of Kafka, subject of NATS, address of AMQP, stream of Redis, name of a webhook
	Field       *Field    // has the destination of each event; nil if Destination is that of all
	Key         *Template // nil for the partition key
	Headers     []*Header
	Tombstone   bool     // the records of a Kafka topic have no value
	WireName    string   // "" for namespace.topic
	Former      []string // wire names of older versions, oldest first
}

// BrokerKey returns the key of the YAML under which p names its broker: kafka, or custom.
func (p *Publication) BrokerKey() string {
	if p.Broker.BuiltIn() {
		return string(p.Broker)
	}
	return string(custom)
}

// DestinationKey returns the key of the YAML under which p names its destination: topic for kafka, to_field for a
// webhook by field.
func (p *Publication) DestinationKey() string {
	_, key, _ := strings.Cut(destinations[Broker(p.BrokerKey())].key, ".")
	if p.Field != nil {
		key += "_field"
	}
	return key
}

// To returns the destination of p, or the field that has it, in braces.
func (p *Publication) To() string {
	if p.Field != nil {
		return "{" + p.Field.Name + "}"
	}
	return p.Destination
}

// WireNames returns the types that messages of t have, have had, or had under its earlier names. The topic has a
// publish.
func (t *Topic) WireNames() []string {
	names := []string{t.Namespace.Name + "." + t.Name}
	for _, old := range t.Renamed {
		names = append(names, t.Namespace.Name+"."+old)
	}
	for _, name := range append([]string{t.Publish.WireName}, t.Publish.Former...) {
		if name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// Header is a header of published events: the texts of its parts, joined.
type Header struct {
	Name  string
	Parts []HeaderPart
}

// HeaderPart is a literal, or the value of a field when there is one. Literals are not empty.
type HeaderPart struct {
	Literal string
	Field   *Field
}

// Published returns the topics with a publish, in YAML order.
func (n *Namespace) Published() []*Topic {
	var published []*Topic
	for _, t := range n.Topics {
		if t.Publish != nil {
			published = append(published, t)
		}
	}
	return published
}

var publishKeyRules = &keyRules{"publish.key", diag.PublishKey, diag.PublishKey,
	diag.PublishKey, diag.PublishKey, diag.PublishKey}

// destinations are the YAML keys of the brokers' destinations, and what a destination looks like.
var destinations = map[Broker]struct {
	key, want string
	names     *regexp.Regexp
}{
	Kafka: {
		"kafka.topic", "1 to 249 letters, digits, '.', '_' or '-', but not only dots",
		regexp.MustCompile(`^[a-zA-Z0-9._-]{1,249}$`),
	},
	NATS: {
		"nats.subject", "tokens of printable ASCII joined by '.', without spaces or wildcards",
		regexp.MustCompile(`^[^\s.*>]+(\.[^\s.*>]+)*$`),
	},
	AMQP: {
		"amqp.address",
		"/exchanges/NAME/ROUTING-KEY, /exchanges/NAME or /queues/NAME, in printable ASCII, with other characters and '/' " +
			"percent-encoded", regexp.MustCompile(`^/(queues/[^\s/]+|exchanges/[^\s/]+(/[^\s/]+)?)$`),
	},
	Redis: {
		"redis.stream", "1 to 249 characters of printable ASCII without spaces", regexp.MustCompile(`^[^\s]{1,249}$`),
	},
	Webhook: {"webhook.to", "a lower-case letter, then up to 40 of a-z, 0-9 or _", namePattern},
	custom: {
		"custom.destination", "1 to 500 printable ASCII characters without spaces", regexp.MustCompile(`^[!-~]{1,500}$`),
	},
}

// wireName matches what a wire_name looks like.
var wireName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._:/-]{0,126}[A-Za-z0-9])?$`)

// publish sets the publication of t.
func (b *builder) publish(s *spec.Topic, t *Topic) {
	if w := s.WireName; w.Set() {
		if !wireName.MatchString(w.V) {
			b.Errorf(w.Pos, diag.PublishWireName,
				"wire_name: %s of topic %s is not a valid name: use 1 to 128 letters, digits, '.', '_', '-', ':' or '/', and "+
					"begin and end with a letter or digit", spec.Show(w.V), showTopic(t))
		}
		if !s.Publish.Pos.IsValid() {
			b.Errorf(w.Pos, diag.PublishWireName,
				"wire_name: topic %s is not published, so no message has this name: add publish, or remove wire_name",
				showTopic(t))
		}
	}
	if !s.Publish.Pos.IsValid() {
		return
	}
	p := &Publication{WireName: s.WireName.V}
	t.Publish = p
	for _, given := range []struct {
		broker Broker
		spec.Broker
	}{{Kafka, s.Publish.Kafka}, {NATS, s.Publish.NATS}, {
		AMQP, s.Publish.AMQP,
	}, {Redis, s.Publish.Redis}, {Webhook, s.Publish.Webhook}, {custom, s.Publish.Custom}} {
		if given.Pos.IsValid() {
			name := given.broker
			if name == custom {
				name = b.customName(given.Name, t)
			}
			p.Broker = cmp.Or(p.Broker, name)
		}
		if given.Destination.Set() {
			p.Destination = given.Destination.V
			b.destination(given.broker, given.Destination, t)
		}
		if given.Field.Set() {
			p.Field = b.destinationField(given.broker, given.Field, t)
			b.sealedPublish(given.Field.Pos, "publish."+destinations[given.broker].key+"_field", "name the destination", t)
		}
	}
	p.Key, _ = b.template(s.Publish.Key, t, publishKeyRules)
	if s.Publish.Key.Set() && t.Delivery == Log {
		b.Errorf(s.Publish.Key.Pos, diag.PublishKey,
			"publish.key: topic %s has delivery log, which is published in the order of its partition_key: remove the key",
			showTopic(t))
	}
	if s.Publish.Key.Set() && t.Delivery != Log {
		b.sealedPublish(s.Publish.Key.Pos, "publish.key", "use a partition_key", t)
	}
	for _, h := range s.Publish.Headers.Items {
		header := b.header(h, t)
		p.Headers = append(p.Headers, header)
		if slices.ContainsFunc(header.Parts, func(part HeaderPart) bool { return part.Field != nil }) {
			b.sealedPublish(h.Value.Pos, "publish.headers", "send the header by outbox.WithHeaders", t)
		}
	}
	if p.Tombstone = s.Publish.Tombstone.V; p.Tombstone {
		b.tombstone(s, t)
	}
}

// sealedPublish reports what a publisher would have to open the payload of t for.
func (b *builder) sealedPublish(pos diag.Pos, key, fix string, t *Topic) {
	if t.Sealed {
		b.Errorf(pos, diag.PublishSealed,
			"%s: topic %s is sealed as a whole, and publishers do not open payloads: %s, or seal fields by sensitive: sealed",
			key, showTopic(t), fix)
	}
}

// tombstone reports why the events of t cannot be tombstones.
func (b *builder) tombstone(s *spec.Topic, t *Topic) {
	pos := s.Publish.Tombstone.Pos
	if broker := t.Publish.Broker; broker != Kafka && broker != "" {
		b.Errorf(pos, diag.PublishTombstone,
			"publish.tombstone: topic %s is published to %s, but only Kafka topics are compacted: remove it", showTopic(t),
			broker)
		return
	}
	if !s.PartitionKey.Set() && !s.Publish.Key.Set() {
		b.Errorf(pos, diag.PublishTombstone,
			"publish.tombstone: topic %s has no key, so its events would delete nothing: add a partition_key, the same as "+
				"that of the topics whose records it deletes", showTopic(t))
		return
	}
	if t.Delivery == Queue {
		b.Warnf(pos, diag.PublishTombstoneOrder,
			"publish.tombstone: topic %s is a queue topic, which has no order, so a record of its key that is retried may "+
				"come after the tombstone and stay: use delivery: log", showTopic(t))
	}
}

// connection matches the address of an endpoint or a broker, which is not a destination.
var connection = regexp.MustCompile(`^(?i:https?|kafka|nats|tls|wss?|amqps?|rediss?)://`)

// destination reports a destination that the broker would refuse.
func (b *builder) destination(broker Broker, to spec.Value[string], t *Topic) {
	d := destinations[broker]
	dots := broker == Kafka && strings.Trim(to.V, ".") == ""
	if broker != custom && connection.MatchString(to.V) {
		what := "use the name that the broker has for it; the address of the broker is configuration of its publisher"
		if broker == Webhook {
			what = "use the name of an endpoint, such as crm, whose URL is in Endpoints of webhook.Config"
		}
		b.Errorf(to.Pos, diag.PublishDestination, "publish.%s: %s of topic %s is a URL: %s", d.key, spec.Show(to.V),
			showTopic(t), what)
		return
	}
	if dots || broker != custom && len(to.V) > 249 || !d.names.MatchString(to.V) || !printable(to.V) {
		b.Errorf(to.Pos, diag.PublishDestination, "publish.%s: %s of topic %s is not a valid destination: use %s", d.key,
			spec.Show(to.V), showTopic(t), d.want)
	}
}

// customName returns the broker with a custom name, and reports a name that is not valid.
func (b *builder) customName(name spec.Value[string], t *Topic) Broker {
	broker := Broker(name.V)
	switch {
	case !name.Set(): // already reported
	case !ValidName(name.V), broker == custom:
		b.Errorf(name.Pos, diag.PublishBroker,
			"publish.custom.name: %s of topic %s is not a valid name of a publisher: use a lower-case letter, then up to 40 "+
				"of a-z, 0-9 or _, but not custom", spec.Show(name.V), showTopic(t))
	case broker.BuiltIn():
		b.Errorf(name.Pos, diag.PublishBroker,
			"publish.custom.name: %s of topic %s is the name of a built-in broker: use publish: {%s: {%s: ...}}, or choose "+
				"another name", name.V, showTopic(t), broker, (&Publication{Broker: broker}).DestinationKey())
	}
	return broker
}

// destinationField looks up the field with the destination of each event and reports why it cannot be one.
func (b *builder) destinationField(broker Broker, name spec.Value[string], t *Topic) *Field {
	key := "publish." + destinations[broker].key + "_field"
	where := "topic " + showTopic(t)
	if t.Delivery == Log {
		b.Errorf(name.Pos, diag.PublishDestinationField,
			"%s: %s has delivery log, whose destination is the same for all events: use %s, or delivery queue", key, where,
			strings.TrimSuffix(key, "_field"))
	}
	f := t.field(name.V)
	fault := ""
	switch {
	case f == nil:
		b.unknownField(name.Pos, diag.PublishDestinationField, key, name.V, where, t)
		return nil
	case f.Optional:
		fault = "is optional: use a required field"
	case b.sealedIn(name.Pos, key, f, where):
		return f
	case f.Sensitive:
		fault = "is sensitive: use another field, because logs show destinations"
	case f.Type.Kind == "" || destinationKinds[f.Type.Base()], f.Type.Kind == Named && b.isEnum(f.Type.Type):
		return f
	default:
		fault = "is a " + f.Type.String() + ": use a uuid, string, int32, int64 or enum field"
	}
	b.Errorf(name.Pos, diag.PublishDestinationField, "%s: field %q of %s %s", key, name.V, where, fault)
	return f
}

// destinationKinds are the types that a field with a destination may have, in addition to enums.
var destinationKinds = map[Kind]bool{String: true, Int32: true, Int64: true, UUID: true}

// wireNames reports a wire_name that another published topic has: a consumer could not tell their messages apart.
func (b *builder) wireNames(s *spec.Spec) {
	owners := make(map[string]*Topic)
	for _, n := range b.model.Namespaces {
		for _, t := range n.Published() {
			for _, name := range t.WireNames() {
				if name != t.Publish.WireName && owners[name] == nil {
					owners[name] = t
				}
			}
		}
	}
	for i, n := range b.model.Namespaces {
		for j, t := range n.Topics {
			given := s.Namespaces.Items[i].Topics.Items[j].WireName
			if t.Publish == nil || !given.Set() {
				continue
			}
			if other := owners[given.V]; other != nil && other != t {
				b.Errorf(given.Pos, diag.PublishWireName,
					"wire_name: %s of topic %s is the name that messages of topic %s have or had: choose another name",
					spec.Show(given.V), showTopic(t), showTopic(other))
			} else {
				owners[given.V] = t
			}
		}
	}
}

func printable(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' })
}

var headerPattern = regexp.MustCompile(`^[a-z][a-z0-9-]{0,60}$`)

// Headers that publishers or their protocols set, or that identify the caller. A header of the YAML with such a name
// would be lost, or misread by the receiver.
var (
	takenPrefixes = []string{"ce-", "content-", "nats-", "outbox-", "proxy-", "webhook-"}
	takenHeaders  = setOf(`accept-encoding authorization connection cookie data expect host keep-alive te traceparent
		tracestate trailer transfer-encoding upgrade user-agent`)
)

func takenHeader(name string) bool {
	for _, prefix := range takenPrefixes {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return takenHeaders[name]
}

func (b *builder) header(s *spec.Header, t *Topic) *Header {
	h := &Header{Name: s.Name.V}
	where := "topic " + showTopic(t)
	better := strings.ReplaceAll(Snake(h.Name), "_", "-")
	switch {
	case takenHeader(h.Name), takenHeader(better):
		b.Errorf(s.Name.Pos, diag.PublishHeader,
			"publish.headers: %s of %s is reserved for publishers and their protocols: choose another name",
			spec.Show(h.Name), where)
	case !headerPattern.MatchString(h.Name):
		hint := ""
		if headerPattern.MatchString(better) {
			hint = diag.Hint(better)
		}
		b.Errorf(s.Name.Pos, diag.PublishHeader,
			"publish.headers: %q of %s is not a valid header name: use a lower-case letter, then up to 60 of a-z, 0-9 or -%s",
			h.Name, where, hint)
	}
	if !s.Value.Set() {
		return h
	}
	// A header is one segment of a template in which a slash is like any other character.
	segment, err := parseSegment(s.Value.V)
	if s.Value.V == "" {
		segment, err = patternSegment{}, nil
	}
	if err != nil {
		b.Errorf(s.Value.Pos, diag.PublishHeader, "publish.headers: the value of %s of %s %s", spec.Show(h.Name), where, err)
		return h
	}
	for i, literal := range segment.literals {
		if literal != "" {
			h.Parts = append(h.Parts, HeaderPart{Literal: literal})
		}
		if i < len(segment.fields) {
			if f := b.headerField(s.Value.Pos, segment.fields[i], h, t); f != nil {
				h.Parts = append(h.Parts, HeaderPart{Field: f})
			}
		}
	}
	return h
}

// headerField looks up a field of a header and reports why its value cannot be in one.
func (b *builder) headerField(pos diag.Pos, name string, h *Header, t *Topic) *Field {
	where := spec.Show(h.Name) + " of topic " + showTopic(t)
	f := t.field(name)
	fault := ""
	switch {
	case f == nil:
		b.unknownField(pos, diag.PublishHeader, "publish.headers", name, where, t)
		return nil
	case f.Optional:
		fault = "is optional: use a required field"
	case b.sealedIn(pos, "publish.headers", f, where):
		return f
	case f.Sensitive:
		fault = "is sensitive: use another field, because logs and the broker show headers"
	case f.Type.Kind == "" || f.Type.Kind == Named && b.isEnum(f.Type.Type):
		return f
	case headerKinds[f.Type.Base()]:
		return f
	default:
		fault = "is a " + f.Type.String() + ": use a scalar or an enum"
	}
	b.Errorf(pos, diag.PublishHeader, "publish.headers: field %q in %s %s", name, where, fault)
	return f
}

// headerKinds are the types that a header may use, in addition to enums.
var headerKinds = map[Kind]bool{
	String: true, Bool: true, Int32: true, Int64: true, Float64: true, UUID: true, Timestamp: true, Date: true,
	Duration: true,
}

// publishing checks the rules of a listener that publishes. It runs when its topics are known.
func (b *builder) publishing(s *spec.Listener, l *Listener, where string) {
	if s.Publish.Bad {
		for _, t := range l.Topics {
			b.meant[t.FullName()] = true // it probably publishes them
		}
	}
	if !s.Publish.V {
		return
	}
	l.Publish = true
	if l.Transactional {
		b.Errorf(s.Mode.Pos, diag.ListenerPublish,
			"mode: %s publishes, which a transaction cannot undo: use mode leased", where)
	}
	var first *Topic
	for _, t := range l.Topics {
		pos := b.topicPos(s, t)
		switch {
		case t.Publish == nil:
			b.Errorf(pos, diag.ListenerPublish, "topics: %s publishes, but topic %s has no publish: add it to the topic", where,
				showTopic(t))
		case t.Publish.Broker == "": // already reported
		case first == nil:
			first = t
		case t.Publish.Broker != first.Publish.Broker:
			b.Errorf(pos, diag.ListenerPublish,
				"topics: topic %s of %s publishes to %s, and topic %s to %s: use one listener per broker", showTopic(t), where,
				t.Publish.Broker, showTopic(first), first.Publish.Broker)
		}
	}
}

// warnOrder warns of a published log topic whose events have no order, which is rarely meant.
func (b *builder) warnOrder(s *spec.Topic, t *Topic) {
	if t.Publish != nil && t.Publish.Broker != "" && t.Delivery == Log && !s.PartitionKey.Set() && !s.PartitionKey.Bad &&
		!t.Publish.Tombstone {
		b.Warnf(s.Publish.Pos, diag.PublishUnordered,
			"publish: topic %s has no partition_key, so its events reach %s in no order and without a key: add a "+
				"partition_key, unless this is intended", showTopic(t), t.Publish.Broker)
	}
}

// warnTwice warns of a topic that several listeners publish to its one destination.
func (b *builder) warnTwice(t *Topic, specs map[*Listener]*spec.Listener) {
	var first *Listener
	for _, l := range t.Listeners {
		switch {
		case !l.Publish:
		case first == nil:
			first = l
		default:
			b.Warnf(b.topicPos(specs[l], t), diag.PublishTwice,
				"topics: listener %s publishes topic %s, as listener %s does, so each event is published more than once: remove "+
					"it from one of them", spec.Show(l.Name), showTopic(t), spec.Show(first.Name))
		}
	}
}

// topicPos returns where s names t.
func (b *builder) topicPos(s *spec.Listener, t *Topic) diag.Pos {
	for _, name := range s.Topics.Items {
		if name.V == t.FullName() {
			return name.Pos
		}
	}
	return s.Topics.Pos
}

// Unpublished reports whether t is a log topic with a publish that no listener publishes: another tool does.
func (t *Topic) Unpublished() bool {
	if t.Publish == nil || t.Delivery != Log {
		return false
	}
	for _, l := range t.Listeners {
		if l.Publish {
			return false
		}
	}
	return true
}
