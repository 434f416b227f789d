package describe

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/model"
)

// DebeziumConfig says what the YAML does not.
type DebeziumConfig struct {
	Name      string // of the slot and the publication, and with "-" for "_" of the connector; "" means <schema>_debezium
	Role      string // that Debezium connects as; "" means debezium
	Namespace string // only the events of this namespace; "" means all
	Queue     bool   // captures queue topics too
	File      string // the YAML, as errors name it; "" means the name of the model
	Source    string // the source of the CloudEvents that our publishers sent; "" means none, or a slash and the namespace
}

// Debezium is the configuration of Debezium for the topics of a YAML.
type Debezium struct {
	Connector []byte // for the REST interface of Kafka Connect
	Setup     []byte // SQL to run once before the connector starts, and again after each export
	Cleanup   []byte // SQL to run from time to time; nil without queue topics
	Topics    []string
	Kafka     []string // the Kafka topics that must exist, sorted
	Notes     []string // what is different from our publishers
}

// The columns of an outbox table, and the header in which each is sent: the names that package consume reads. The event
// router has no way to join namespace and topic, or to send the members of headers as headers, so consume does it.
var debeziumHeaders = [][2]string{
	{"id", "outbox-id"},
	{"namespace", "outbox-namespace"},
	{"topic", "outbox-topic"},
	{"version", "outbox-version"},
	{"created_at", "outbox-time"},
	{"tenant_id", "outbox-tenant-id"},
	{"entity_type", "outbox-entity-type"},
	{"entity_id", "outbox-entity-id"},
	{"entity_version", "outbox-entity-version"},
	{"partition_key", "outbox-partition-key"},
	{"dedupe_key", "outbox-dedupe-key"},
	{"headers", "outbox-headers"},
}

// debeziumName matches what a slot may be called.
var debeziumName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,62}$`)

// route leads the events of topics to a Kafka topic.
type route struct {
	names       []string
	destination string // "" drops them
}

// ExportDebezium returns the configuration of Debezium that publishes the topics of m to Kafka in place of our
// publishers. Its errors are about the YAML or cfg, in the words of the user.
func ExportDebezium(m *model.Model, cfg DebeziumConfig) (*Debezium, error) {
	suffix := "_debezium"
	if cfg.Namespace != "" {
		suffix = "_" + cfg.Namespace + suffix
	}
	cfg.Name, cfg.Role = cmp.Or(cfg.Name, m.Schema+suffix), cmp.Or(cfg.Role, "debezium")
	for _, name := range []struct{ flag, value string }{{"--name", cfg.Name}, {"--role", cfg.Role}} {
		if !debeziumName.MatchString(name.value) {
			return nil, fmt.Errorf("%s: %q is not a valid name: use a lower-case letter, then up to 62 of a-z, 0-9 or _",
				name.flag, name.value)
		}
	}
	cfg.File = cmp.Or(cfg.File, m.Source)
	var namespaces []string
	for _, n := range m.Namespaces {
		namespaces = append(namespaces, n.Name)
	}
	if cfg.Namespace != "" && !slices.Contains(namespaces, cfg.Namespace) {
		return nil, fmt.Errorf("--namespace: %s has no namespace %q%s", cfg.File, cfg.Namespace,
			diag.NewReporter("").DidYouMean(cfg.Namespace, namespaces))
	}
	d := &Debezium{}
	routes, queued, err := d.routes(m, cfg)
	if err != nil {
		return nil, err
	}
	if cfg.Queue && len(queued) == 0 {
		d.Notes = append(d.Notes, "--queue-topics has no effect: no queue topic"+cfg.where()+" has a publish with kafka")
	}
	tables := []string{"log"}
	switch {
	case len(queued) == len(d.Topics):
		tables = []string{"events"}
	case len(queued) > 0:
		tables = append(tables, "events")
	}
	if d.Connector, err = document(connector(m.Schema, cfg, tables, routes)); err != nil {
		return nil, err
	}
	for _, r := range routes {
		if r.destination != "" && !slices.Contains(d.Kafka, r.destination) {
			d.Kafka = append(d.Kafka, r.destination)
		}
	}
	d.Kafka = append(d.Kafka, unknownTopic(cfg))
	slices.Sort(d.Kafka)
	d.Setup = debeziumSetup(m.Schema, cfg, tables)
	if len(queued) > 0 {
		d.Cleanup = debeziumCleanup(m.Schema, queued)
	}
	return d, nil
}

// unknownTopic is the Kafka topic of events whose topic the export did not know.
func unknownTopic(cfg DebeziumConfig) string { return cfg.Name + ".unknown" }

// routes says where the events of each topic go. The router can only look at the name of a topic, without its
// namespace.
func (d *Debezium) routes(m *model.Model, cfg DebeziumConfig) (routes []*route, queued []*model.Topic, err error) {
	var topics []*model.Topic
	for _, n := range m.Namespaces {
		if cfg.Namespace == "" || n.Name == cfg.Namespace {
			topics = append(topics, n.Topics...)
		}
	}
	r := router{owners: make(map[string]*model.Topic), target: make(map[*model.Topic]string)}
	for _, t := range topics {
		if t.Delivery == model.Queue && !cfg.Queue {
			continue
		}
		if to := d.destination(t); to != "" {
			r.target[t] = to
			d.Topics = append(d.Topics, t.FullName())
			if t.Delivery == model.Queue {
				queued = append(queued, t)
			}
		}
	}
	if len(d.Topics) == 0 {
		return nil, nil, nothing(m, cfg)
	}
	for _, t := range topics {
		if t.Delivery == model.Queue && len(queued) == 0 || t.Delivery == model.Log && len(queued) == len(d.Topics) {
			continue // its table is not captured
		}
		for _, name := range append([]string{t.Name}, t.Renamed...) {
			if err := r.add(t, name); err != nil {
				return nil, nil, err
			}
		}
	}
	// What is dropped comes last.
	slices.SortStableFunc(r.routes, func(a, b *route) int {
		return cmp.Compare(fmt.Sprint(a.destination == ""), fmt.Sprint(b.destination == ""))
	})
	return r.routes, queued, nil
}

// router collects routes.
type router struct {
	owners map[string]*model.Topic // by the name of a topic
	target map[*model.Topic]string
	routes []*route
}

// add adds a name of a topic to the route of its destination.
func (r *router) add(t *model.Topic, name string) error {
	if other := r.owners[name]; other != nil && r.target[other] != r.target[t] {
		return fmt.Errorf("topics %s and %s have the same name and different destinations, and Debezium's router sees only "+
			"the name: export each namespace with --namespace into its own connector, or rename one", other.FullName(),
			t.FullName())
	}
	r.owners[name] = t
	at := slices.IndexFunc(r.routes, func(to *route) bool { return to.destination == r.target[t] })
	if at < 0 {
		at = len(r.routes)
		r.routes = append(r.routes, &route{destination: r.target[t]})
	}
	if !slices.Contains(r.routes[at].names, name) {
		r.routes[at].names = append(r.routes[at].names, name)
	}
	return nil
}

// destination returns the Kafka topic of t, "" if Debezium does not publish it, and notes what is different.
func (d *Debezium) destination(t *model.Topic) string {
	p := t.Publish
	switch {
	case p == nil:
		return ""
	case p.Broker != model.Kafka:
		d.note("%s is left out: it publishes to %s, and Debezium writes to Kafka", t, p.Broker)
		return ""
	case p.Destination == "":
		d.note("%s is left out: its Kafka topic is a field of the payload, which Debezium's router does not see", t)
		return ""
	}
	if p.Key != nil {
		d.note("%s: the key of the records is the partition_key; publish.key is not used", t)
	}
	if len(p.Headers) > 0 {
		d.note("%s: publish.headers are not sent, because Debezium's router does not see the payload", t)
	}
	if p.WireName != "" {
		d.note("%s: records do not have the wire_name; a generated consumer knows the topic by namespace and name too", t)
	}
	for _, l := range t.Listeners {
		if l.Publish {
			d.note("%s: listener %s publishes it too: stop and detach it when Debezium runs", t, l.Name)
		}
	}
	if t.Delivery == model.Queue {
		d.note("%s: no dispatcher may run it; delete its rows with the SQL for cleaning up", t)
	}
	return p.Destination
}

func (d *Debezium) note(format string, t *model.Topic, args ...any) {
	d.Notes = append(d.Notes, fmt.Sprintf(format, append([]any{t.FullName()}, args...)...))
}

func nothing(m *model.Model, cfg DebeziumConfig) error {
	for _, n := range m.Namespaces {
		for _, t := range n.Published() {
			if (cfg.Namespace == "" || n.Name == cfg.Namespace) && t.Publish.Broker == model.Kafka &&
				t.Publish.Destination != "" {
				return fmt.Errorf(
					"no log topic%s has a publish with kafka: add one, or export queue topics such as %s with --queue-topics",
					cfg.where(), t.FullName())
			}
		}
	}
	return fmt.Errorf("no topic%s has a publish with kafka: add one, because Debezium writes to Kafka", cfg.where())
}

// where says where the topics of cfg are: " in outbox.yaml".
func (cfg DebeziumConfig) where() string {
	if cfg.Namespace != "" {
		return " in namespace " + cfg.Namespace + " of " + cfg.File
	}
	return " in " + cfg.File
}

// unrouted is in front of the names of topics until their events are routed.
const unrouted = "outboxgen-unrouted."

// connector returns the configuration of the connector. Passwords come from the environment of Kafka Connect.
func connector(schema string, cfg DebeziumConfig, tables []string, routes []*route) object {
	var placed []string
	for _, h := range debeziumHeaders {
		placed = append(placed, h[0]+":header:"+h[1])
	}
	c := object{
		{"connector.class", "io.debezium.connector.postgresql.PostgresConnector"},
		{"tasks.max", "1"},
		{"database.hostname", "${env:PGHOST}"},
		{"database.port", "${env:PGPORT}"},
		{"database.dbname", "${env:PGDATABASE}"},
		{"database.user", cfg.Role},
		{"database.password", "${env:PGPASSWORD}"},
		{"topic.prefix", cfg.Name},
		{"plugin.name", "pgoutput"},
		{"slot.name", cfg.Name},
		{"slot.drop.on.stop", "false"},
		{"publication.name", cfg.Name},
		{"publication.autocreate.mode", "disabled"},
		{"snapshot.mode", "no_data"},
		{"table.include.list", schema + `\.(` + strings.Join(tables, "|") + ")"},
		{"column.exclude.list", schema + `\.log\.xid`}, // a type that Debezium does not know
		{"skipped.operations", "u,d,t"},
		{"tombstones.on.delete", "false"},
		{"heartbeat.interval.ms", "10000"},
		{"key.converter", "org.apache.kafka.connect.storage.StringConverter"},
		{"value.converter", "org.apache.kafka.connect.storage.StringConverter"},
		{"header.converter", "org.apache.kafka.connect.storage.StringConverter"},
	}
	router := object{
		{"type", "io.debezium.transforms.outbox.EventRouter"},
		{"table.op.invalid.behavior", "error"},
		{"table.field.event.id", "id"},
		{"table.field.event.key", "partition_key"},
		{"table.field.event.payload", "payload"},
		{"table.expand.json.payload", "false"},
		{"table.fields.additional.placement", strings.Join(placed, ",")},
		{"route.by.field", "topic"},
		{"route.topic.regex", "(.*)"},
		{"route.topic.replacement", unrouted + "$1"},
	}
	transforms, settings := []string{"outbox"}, object{}
	set := func(name string, o object) {
		for _, m := range o {
			settings = append(settings, member{"transforms." + name + "." + m.name, m.value})
		}
	}
	set("outbox", router)
	if cfg.Source != "" {
		transforms = append(transforms, "source")
		set("source", object{
			{"type", "org.apache.kafka.connect.transforms.InsertHeader"}, {"header", "outbox-source"},
			{"value.literal", cfg.Source},
		})
	}
	reroute := func(name, pattern, to string) {
		transforms = append(transforms, name)
		set(name, object{
			{"type", "org.apache.kafka.connect.transforms.RegexRouter"}, {"regex", pattern}, {"replacement", to},
		})
	}
	predicates := object{}
	stem := regexp.QuoteMeta(unrouted)
	for i, r := range routes {
		pattern := stem + "(" + strings.Join(r.names, "|") + ")"
		if r.destination != "" {
			reroute(fmt.Sprintf("route%d", i+1), pattern, r.destination)
			continue
		}
		transforms = append(transforms, "unpublished")
		set("unpublished", object{{"type", "org.apache.kafka.connect.transforms.Filter"}, {"predicate", "unpublished"}})
		predicates = object{
			{"predicates", "unpublished"},
			{"predicates.unpublished.type", "org.apache.kafka.connect.transforms.predicates.TopicNameMatches"},
			{"predicates.unpublished.pattern", pattern},
		}
	}
	reroute("unknown", stem+".*", unknownTopic(cfg))
	c.add("transforms", strings.Join(transforms, ","))
	c = append(append(c, settings...), predicates...)
	return object{{"name", strings.ReplaceAll(cfg.Name, "_", "-")}, {"config", c}}
}
