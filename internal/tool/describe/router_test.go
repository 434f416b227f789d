package describe_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// router does what Debezium and Kafka Connect do with rows, as their documentation describes it, by the configuration that we
// export: the PostgreSQL connector with pgoutput, the outbox event router
// (https://debezium.io/documentation/reference/stable/transformations/outbox-event-router.html), Kafka's RegexRouter and Filter
// (https://kafka.apache.org/documentation/#connect_included_transformation), and its StringConverter for keys, values and headers.
type router struct {
	t      testing.TB
	config map[string]string
}

func newRouter(t testing.TB, connector []byte) *router {
	t.Helper()
	var c struct {
		Name   string
		Config map[string]string
	}
	require.NoError(t, json.Unmarshal(connector, &c))
	require.NotEmpty(t, c.Name)
	for _, converter := range []string{"key.converter", "value.converter", "header.converter"} {
		require.Equal(t, "org.apache.kafka.connect.storage.StringConverter", c.Config[converter])
	}
	return &router{t, c.Config}
}

// record is a Kafka record. A key or header may be null.
type record struct {
	Topic   string       `json:"topic"`
	Key     *string      `json:"key"`
	Headers [][2]*string `json:"headers"`
	Value   string       `json:"value"`
}

func (r *record) header(name string, value *string) {
	r.Headers = append(r.Headers, [2]*string{&name, value})
}

// row is an insert that pgoutput reported: the columns in the form in which Debezium has them. nil is null.
type row struct {
	table  string
	values map[string]*string
}

// records returns the records of what the slot has new.
func (r *router) records(conn *pgx.Conn) []record {
	r.t.Helper()
	var out []record
	for _, row := range changes(r.t, conn, r.config["slot.name"], r.config["publication.name"]) {
		if !match(r.config["table.include.list"], row.table) {
			continue
		}
		for column := range row.values {
			if match(r.config["column.exclude.list"], row.table+"."+column) {
				delete(row.values, column)
			}
		}
		if rec := r.transform(row); rec != nil {
			out = append(out, *rec)
		}
	}
	return out
}

// match reports whether one of a list of regular expressions matches all of text.
func match(list, text string) bool {
	return slices.ContainsFunc(strings.Split(list, ","), func(pattern string) bool {
		return pattern != "" && regexp.MustCompile("^(?:"+pattern+")$").MatchString(text)
	})
}

// transform runs the chain of transforms. A record that a Filter drops is nil.
func (r *router) transform(row row) *record {
	r.t.Helper()
	var rec *record
	for _, name := range strings.Split(r.config["transforms"], ",") {
		option := func(key string) string { return r.config["transforms."+name+"."+key] }
		switch option("type") {
		case "io.debezium.transforms.outbox.EventRouter":
			rec = r.route(row, option)
		case "org.apache.kafka.connect.transforms.RegexRouter":
			rec.Topic = r.replace(rec.Topic, option("regex"), option("replacement"))
		case "org.apache.kafka.connect.transforms.InsertHeader":
			value := option("value.literal")
			rec.header(option("header"), &value)
		case "org.apache.kafka.connect.transforms.Filter":
			predicate := "predicates." + option("predicate") + "."
			require.Contains(r.t, strings.Split(r.config["predicates"], ","), option("predicate"))
			require.Equal(r.t, "org.apache.kafka.connect.transforms.predicates.TopicNameMatches", r.config[predicate+"type"])
			if match(r.config[predicate+"pattern"], rec.Topic) {
				return nil
			}
		default:
			require.Fail(r.t, "unknown transform", name)
		}
	}
	return rec
}

// replace does what RegexRouter does: nothing unless pattern matches all of topic.
func (r *router) replace(topic, pattern, replacement string) string {
	if !match(pattern, topic) {
		return topic
	}
	return regexp.MustCompile(pattern).ReplaceAllString(topic, strings.ReplaceAll(replacement, "$1", "${1}"))
}

// route is the outbox event router.
func (r *router) route(row row, option func(string) string) *record {
	r.t.Helper()
	column := func(key string) *string {
		value, there := row.values[option(key)]
		require.True(r.t, there, "%s: %s has no column %q", key, row.table, option(key))
		return value
	}
	rec := &record{Topic: *column("route.by.field"), Key: column("table.field.event.key"), Value: *column("table.field.event.payload")}
	rec.Topic = r.replace(rec.Topic, option("route.topic.regex"), option("route.topic.replacement"))
	require.Equal(r.t, "false", option("table.expand.json.payload"))
	rec.header("id", column("table.field.event.id"))
	for _, placed := range strings.Split(option("table.fields.additional.placement"), ",") {
		parts := strings.Split(placed, ":")
		require.Len(r.t, parts, 3)
		require.Equal(r.t, "header", parts[1])
		value, there := row.values[parts[0]]
		require.True(r.t, there, "%s has no column %q", row.table, parts[0])
		rec.header(parts[2], value)
	}
	return rec
}

// changes reads what the slot has new, as Debezium does with pgoutput
// (https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html).
func changes(t testing.TB, conn *pgx.Conn, slot, publication string) (rows []row) {
	t.Helper()
	messages, err := conn.Query(t.Context(), `SELECT data FROM pg_logical_slot_get_binary_changes($1, NULL, NULL, 'proto_version', '1', 'publication_names', $2)`, slot, publication)
	require.NoError(t, err)
	data, err := pgx.CollectRows(messages, pgx.RowTo[[]byte])
	require.NoError(t, err)
	relations := make(map[uint32]relation)
	for _, message := range data {
		m := &reader{message[1:]}
		switch message[0] {
		case 'R':
			oid, name := m.int32(), m.text()+"."+m.text()
			m.bytes(1)
			rel := relation{name: name}
			for range m.int16() {
				m.bytes(1)
				rel.columns = append(rel.columns, column{m.text(), m.int32()})
				m.int32()
			}
			relations[oid] = rel
		case 'I':
			rel := relations[m.int32()]
			m.bytes(1)
			m.int16()
			row := row{rel.name, make(map[string]*string)}
			for _, c := range rel.columns {
				switch kind := m.bytes(1)[0]; kind {
				case 'n':
					row.values[c.name] = nil
				case 't':
					value := c.convert(t, string(m.bytes(int(m.int32()))))
					row.values[c.name] = &value
				default:
					require.Fail(t, "a value that an insert does not have", "%c", kind)
				}
			}
			rows = append(rows, row)
		case 'U', 'D', 'T':
			require.Fail(t, "only inserts are published", "%c", message[0])
		}
	}
	return rows
}

type relation struct {
	name    string
	columns []column
}

type column struct {
	name string
	oid  uint32
}

// convert returns the text of PostgreSQL in the form that Debezium gives it: a timestamptz is a ZonedTimestamp
// (https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-temporal-types).
func (c column) convert(t testing.TB, text string) string {
	const timestamptz = 1184
	if c.oid != timestamptz {
		return text
	}
	at, err := time.Parse("2006-01-02 15:04:05.999999-07", text)
	require.NoError(t, err)
	return at.UTC().Format("2006-01-02T15:04:05.999999Z07:00")
}

// reader reads the parts of a message.
type reader struct{ rest []byte }

func (r *reader) bytes(n int) []byte {
	part := r.rest[:n]
	r.rest = r.rest[n:]
	return part
}

func (r *reader) int16() int    { return int(binary.BigEndian.Uint16(r.bytes(2))) }
func (r *reader) int32() uint32 { return binary.BigEndian.Uint32(r.bytes(4)) }

func (r *reader) text() string {
	text := string(r.bytes(bytes.IndexByte(r.rest, 0)))
	r.bytes(1)
	return text
}
