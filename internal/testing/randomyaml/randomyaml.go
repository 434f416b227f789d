// Package randomyaml draws files outbox.yaml for tests of random inputs.
package randomyaml

import (
	"fmt"
	"slices"
	"strings"

	"pgregory.net/rapid"
)

// Source draws an outbox.yaml that is valid by construction: names contain a number, so that they never collide.
func Source(t *rapid.T) string {
	s := &sourceWriter{t: t}
	s.line(0, `version: "1"`)
	s.line(0, "package: %s", rapid.SampledFrom([]string{"events", "outbox", "main", "context"}).Draw(t, "package"))
	if rapid.Bool().Draw(t, "schema") {
		s.line(0, "schema: my_outbox")
	}
	s.consumer = rapid.Bool().Draw(t, "consumer")
	if s.consumer {
		s.line(0, "consumer: {package: %s}", rapid.SampledFrom([]string{"userevents", "consume", "payload", "inbox", "pgx"}).Draw(t, "consumer package"))
	}
	s.types()
	s.line(0, "namespaces:")
	for n := range rapid.IntRange(1, 3).Draw(t, "namespaces") {
		namespace := s.name("n", n)
		s.line(2, "%s:", namespace)
		s.doc(4)
		s.line(4, "topics:")
		for i := range rapid.IntRange(1, 4).Draw(t, "topics") {
			name := s.name("t", n*10+i)
			s.topic(name, fmt.Sprintf("%s/%s", namespace, name))
		}
	}
	s.listeners()
	s.operations()
	return s.String()
}

type sourceWriter struct {
	strings.Builder
	t     *rapid.T
	named []string // shared types that may be used
	all   []string // topics
	logs  []string // topics that some listener must read

	consumer bool     // there must be a topic that publishes
	topics   int      // so far
	relayed  []string // log topics that some listener must publish
}

func (s *sourceWriter) line(indent int, format string, args ...any) {
	s.WriteString(strings.Repeat(" ", indent))
	fmt.Fprintf(s, format, args...)
	s.WriteByte('\n')
}

// name draws words that are awkward in Go or in file names, made unique by a number.
func (s *sourceWriter) name(prefix string, n int) string {
	word := rapid.SampledFrom([]string{"turn", "id", "url", "func", "type", "linux", "test", "x_y", "http_api"}).Draw(s.t, "word")
	if rapid.Bool().Draw(s.t, "ends in word") {
		return fmt.Sprintf("%s%d_%s", prefix, n, word)
	}
	return fmt.Sprintf("%s_%s_%d", prefix, word, n)
}

// docRune draws characters that might end a comment or break its layout.
var docRune = rapid.SampledFrom([]rune("aeiou bcd . , : ; - # * / + \n\t`\"'()[]{}é世\u2028\u202e"))

func (s *sourceWriter) doc(indent int) {
	if rapid.Bool().Draw(s.t, "has doc") {
		s.line(indent, "doc: %q", rapid.StringOfN(docRune, 1, 200, -1).Draw(s.t, "doc"))
	}
}

func (s *sourceWriter) types() {
	n := rapid.IntRange(0, 3).Draw(s.t, "types")
	if n == 0 {
		return
	}
	s.line(0, "types:")
	for i := range n {
		name := fmt.Sprintf("shared%d", i)
		s.line(2, "%s:", name)
		s.doc(4)
		switch rapid.SampledFrom([]string{"enum", "scalar", "fields", "fields"}).Draw(s.t, "kind of type") {
		case "enum":
			s.line(4, `enum: [one, two-three, %sv4, {value: "N/A", go: NotApplicable}, {value: "", go: None}]`, strings.Repeat("long_", i*3))
		case "scalar":
			s.line(4, "%s", rapid.SampledFrom([]string{
				"scalar: uuid", "scalar: string", "scalar: string\n    min_len: 1\n    pattern: a`b", "scalar: int32", "scalar: int64\n    max: 7",
			}).Draw(s.t, "scalar"))
		default:
			s.line(4, "fields:")
			for j := range rapid.IntRange(1, 4).Draw(s.t, "fields") {
				s.field(6, fmt.Sprintf("f%d", j))
			}
		}
		s.named = append(s.named, name) // after its fields: no type contains itself
	}
}

func (s *sourceWriter) topic(name, full string) {
	s.line(6, "%s:", name)
	s.doc(8)
	delivery := rapid.SampledFrom([]string{"queue", "queue", "log", "log", "unread"}).Draw(s.t, "delivery")
	if s.topics == 0 {
		delivery = "queue"
	}
	log, unread := delivery == "log", delivery == "unread"
	switch delivery {
	case "log":
		s.line(8, "delivery: log")
		s.logs = append(s.logs, full)
	case "unread":
		s.line(8, "delivery: log")
		s.line(8, "listeners: none")
	}
	tenant := rapid.Bool().Draw(s.t, "tenant")
	if tenant {
		s.line(8, "tenant: tenant_id")
		s.line(8, `dedupe_key: "{tenant_id}/p-{text}-s/lit/{number}"`)
	}
	if tenant && delivery == "queue" && rapid.Bool().Draw(s.t, "fairness") {
		s.line(8, "fairness: tenant")
	}
	if rapid.Bool().Draw(s.t, "partition") {
		s.line(8, `partition_key: "{day}"`)
		s.line(8, `entity: {type: thing, id: "{small}", version: small}`)
	}
	if rapid.Bool().Draw(s.t, "silent") {
		s.line(8, "wake: none")
	}
	s.topics++
	s.all = append(s.all, full)
	published := !unread && (s.consumer && s.topics == 1 || rapid.Bool().Draw(s.t, "publish"))
	byField := published && s.publish(log, full)
	if delivery == "queue" {
		s.limits(tenant, byField)
	}
	if delivery == "queue" && !published {
		s.batch(8)
	}
	s.line(8, "payload:")
	for _, required := range []string{"tenant_id: uuid", "text: string", "number: int64", "small: int32", "day: date"} {
		s.line(10, "%s", required)
	}
	for i := range rapid.IntRange(0, 6).Draw(s.t, "fields") {
		s.field(10, s.name("f", i))
	}
}

// brokerForms are where a topic is published, for each broker.
var brokerForms = []string{
	"kafka: {topic: Some.Topic-1}", "nats: {subject: some.sub_ject}", "amqp: {address: /exchanges/some/key}",
	"redis: {stream: 'some:stream'}", "webhook: {to: partner}",
}

// limits draws up to four limits.
func (s *sourceWriter) limits(tenant, byField bool) {
	keys := []string{"", `per: "{day}", `, `per: "s/x-{small}/{text}", `, `per: "{tenant_id}/{number}", `}
	if tenant {
		keys = append(keys, "per: tenant, ")
	}
	if byField {
		keys = append(keys, "per: destination, ")
	}
	var limits []string
	for _, key := range rapid.SliceOfNDistinct(rapid.SampledFrom(keys), 0, 4, rapid.ID).Draw(s.t, "limits") {
		limits = append(limits, "{"+key+rapid.SampledFrom([]string{
			"concurrency: 1", "rate: 10/1m", "concurrency: 2147483647, rate: 1/1.5s", "rate: 2147483647/24h",
		}).Draw(s.t, "limit")+"}")
	}
	if limits != nil {
		s.line(8, "limits: [%s]", strings.Join(limits, ", "))
	}
}

// batch draws the batch of a topic or listener.
func (s *sourceWriter) batch(indent int) {
	if rapid.Bool().Draw(s.t, "has batch") {
		s.line(indent, "batch: %s", rapid.SampledFrom([]string{"{size: 2}", "{size: 10000, wait: 1m}", "{size: 9, wait: 0s}"}).Draw(s.t, "batch"))
	}
}

// publish draws where a topic is published, and returns whether a field of each event says so.
func (s *sourceWriter) publish(log bool, full string) (byField bool) {
	brokers := brokerForms
	if log {
		brokers = brokers[:1]
		s.relayed = append(s.relayed, full)
	}
	s.line(8, "publish:")
	broker := rapid.SampledFrom(brokers).Draw(s.t, "broker")
	byField = strings.HasPrefix(broker, "webhook") && rapid.Bool().Draw(s.t, "by field")
	if byField {
		broker = "webhook: {to_field: text}"
	}
	s.line(10, "%s", broker)
	if !log && rapid.Bool().Draw(s.t, "key") {
		s.line(10, `key: "k/{text}"`)
	}
	if rapid.Bool().Draw(s.t, "headers") {
		s.line(10, `headers: {plain: "a text", number: "{number}-{small}", rest: "{tenant_id}/{text}{day}"}`)
	}
	return byField
}

// listeners draws listeners until each topic of s.logs has one, and some have several.
func (s *sourceWriter) listeners() {
	if len(s.logs) == 0 {
		return
	}
	s.line(0, "listeners:")
	unread := s.logs
	if len(s.relayed) > 0 {
		s.line(2, "relay_of_all:")
		s.line(4, "topics: [%s]", strings.Join(s.relayed, ", "))
		s.line(4, "publish: true")
	}
	for i := 0; i == 0 || len(unread) > 0; i++ {
		n := rapid.IntRange(1, len(unread)).Draw(s.t, "reads")
		topics := unread[:n]
		unread = unread[n:]
		for _, again := range s.logs[:len(s.logs)-len(unread)-n] {
			if rapid.Bool().Draw(s.t, "reads again") {
				topics = append(slices.Clone(topics), again)
			}
		}
		s.listener(s.name("l", i), topics)
	}
}

func (s *sourceWriter) listener(name string, topics []string) {
	s.line(2, "%s:", name)
	s.doc(4)
	s.line(4, "topics: [%s]", strings.Join(topics, ", "))
	if rapid.Bool().Draw(s.t, "transactional") {
		s.line(4, "mode: transactional")
	} else if rapid.Bool().Draw(s.t, "concurrent") {
		s.line(4, "concurrency: %d", rapid.IntRange(1, 1000).Draw(s.t, "concurrency"))
	}
	s.batch(4)
	for _, setting := range []string{"rate: 7/1h", "start: latest", "on_failure: park_key", "shards: 64", "lease: 90s", "max_lag: 1500ms", "retry: {max_attempts: 1}"} {
		if rapid.Bool().Draw(s.t, setting) {
			s.line(4, "%s", setting)
		}
	}
}

// operations draws operations, with outcomes of any topics.
func (s *sourceWriter) operations() {
	n := rapid.IntRange(0, 2).Draw(s.t, "operations")
	if n == 0 {
		return
	}
	s.line(0, "operations:")
	for i := range n {
		s.line(2, "%s:", s.name("o", i))
		s.doc(4)
		s.line(4, "outcomes:")
		for j := range rapid.IntRange(1, 3).Draw(s.t, "outcomes") {
			topics := rapid.SliceOfNDistinct(rapid.SampledFrom(s.all), 0, min(3, len(s.all)), rapid.ID).Draw(s.t, "emits")
			s.line(6, "%s: [%s]", s.name("out", j), strings.Join(topics, ", "))
		}
	}
}

var scalars = []string{"string", "bool", "int32", "int64", "float64", "uuid", "timestamp", "date", "duration", "bytes", "json"}

func (s *sourceWriter) field(indent int, name string) {
	known := slices.Concat(scalars, s.named)
	base := rapid.SampledFrom(known).Draw(s.t, "type")
	shape := rapid.SampledFrom([]string{"", "", "", "[]", "map[string]", "[][]", "map[string][]", "[]map[string]"}).Draw(s.t, "shape")
	attributes := []string{fmt.Sprintf("type: %q", shape+base)}
	add := func(label, text string) {
		if rapid.Bool().Draw(s.t, label) {
			attributes = append(attributes, text)
		}
	}
	add("optional", "optional: true")
	add("sensitive", "sensitive: true")
	add("field doc", `doc: "is a field"`)
	switch {
	case shape != "" || base == "string" || base == "bytes":
		add("min_len", "min_len: 1")
		add("max_len", "max_len: 9")
		if shape == "" && base == "string" {
			add("pattern", `pattern: "^[a-z]+$"`)
		}
	case base == "int32" || base == "int64":
		add("min", "min: -3")
		add("max", "max: 2147483647")
	case base == "float64":
		add("min", "min: -0.25")
		add("max", "max: 1e21")
	case base == "duration":
		add("min", "min: 1ms")
		add("max", "max: 36h")
	}
	s.line(indent, "%s: {%s}", name, strings.Join(attributes, ", "))
}
