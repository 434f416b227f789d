package describe_test

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/generator"
	"github.com/outboxgen/outboxgen/internal/testing/pgserver"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/tool/describe"
	"github.com/outboxgen/outboxgen/migrate"
	"github.com/outboxgen/outboxgen/outbox"
)

// logical returns a database of a server with logical decoding, with the outbox in it.
func logical(t *testing.T) *pgxpool.Pool {
	t.Helper()
	server := pgtest.Server(t, pgserver.Options{Settings: map[string]string{"wal_level": "logical"}})
	pool := pgtest.Pool(t, server.URL())
	_, err := migrate.Up(t.Context(), pool, "outbox")
	require.NoError(t, err)
	return pool
}

// hijacked returns a connection of pool that is the test's.
func hijacked(t *testing.T, pool *pgxpool.Pool) *pgx.Conn {
	t.Helper()
	c, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	conn := c.Hijack()
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	return conn
}

// run runs a script as psql does, each statement by itself.
func run(t *testing.T, conn *pgx.Conn, script []byte) error {
	t.Helper()
	for _, part := range strings.Split(string(script), "\n\n") {
		if _, err := conn.PgConn().Exec(t.Context(), part).ReadAll(); err != nil {
			return err
		}
	}
	return nil
}

func debezium(t *testing.T, cfg describe.DebeziumConfig) *describe.Debezium {
	t.Helper()
	d, err := describe.ExportDebezium(load(t), cfg)
	require.NoError(t, err)
	return d
}

// receive returns what package consume makes of records.
func receive(t testing.TB, records []record) (all []consume.Received) {
	t.Helper()
	for _, rec := range records {
		r, err := consume.Parse(rec.message())
		require.NoError(t, err)
		all = append(all, r)
	}
	return all
}

func (r record) message() consume.Message {
	type header struct {
		Key   string
		Value []byte
	}
	var headers []header
	for _, h := range r.Headers {
		var value []byte
		if h[1] != nil {
			value = []byte(*h[1])
		}
		headers = append(headers, header{*h[0], value})
	}
	return consume.FromKafka(headers, []byte(r.Value))
}

type renamed struct {
	UserID uuid.UUID `json:"user_id"`
	Name   string    `json:"name"`
	Plan   string    `json:"plan"`
}

var (
	userID   = uuid.MustParse("0192d4a0-6c7e-7b1a-9a53-0c3f5a9b2e11")
	tenantID = uuid.MustParse("7f000001-89ab-4cde-8f01-23456789abcd")
	renaming = json.RawMessage(`{"name":"Zoë \"Z\"","plan":"free","user_id":"` + userID.String() + `"}`)
)

// TestDebezium runs the exported SQL, and follows events from the enqueue through the exported publication, slot and connector to
// a consumer: nothing is lost, in the order of the commits, each with all its facts.
func TestDebezium(t *testing.T) {
	t.Parallel()
	pool := logical(t)
	conn := hijacked(t, pool)
	d := debezium(t, describe.DebeziumConfig{})
	require.NoError(t, run(t, conn, d.Setup))
	require.NoError(t, run(t, conn, d.Setup), "it can be run again")
	r := newRouter(t, d.Connector)
	require.Empty(t, r.records(conn))

	full := outbox.Message{
		Namespace: "users", Topic: "user_renamed", Log: true, Version: 3, TenantID: outbox.Tenant(tenantID), DedupeKey: tenantID.String() + "/a%2Fb",
		PartitionKey: "user/ö", Entity: outbox.Entity{Type: "user", ID: userID.String(), Version: 9007199254740993},
		Headers: map[string]string{"traceparent": "00-a-b-01", "reason": "a\"b"}, Payload: renaming,
	}
	bare := outbox.Message{Namespace: "users", Topic: "user_renamed", Log: true, Payload: renaming}
	named := bare
	named.Entity = outbox.Entity{Type: "user", ID: "7"}
	old, unpublished, unknown := bare, bare, bare
	old.Topic, unpublished.Topic, unknown.Topic = "user_changed", "user_seen", "user_merged"
	queued := outbox.Message{Namespace: "users", Topic: "bill_due", Payload: renaming}
	var ids []uuid.UUID
	enqueue := func(ms ...outbox.Message) {
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			for _, m := range ms {
				receipt, err := outbox.Enqueue(t.Context(), tx, "outbox", m)
				require.NoError(t, err)
				ids = append(ids, receipt.ID)
			}
			return nil
		}))
	}
	enqueue(full, bare)
	tx := pgtest.Begin(t, pool, pgx.TxOptions{})
	_, err := outbox.Enqueue(t.Context(), tx, "outbox", bare)
	require.NoError(t, err)
	require.NoError(t, tx.Rollback(t.Context()))
	enqueue(full, queued) // a duplicate, and a topic of the queue
	enqueue(old, unpublished, unknown, named)
	_, err = pool.Exec(t.Context(), "DELETE FROM outbox.log") // a prune
	require.NoError(t, err)

	records := r.records(conn)
	require.Len(t, records, 5)
	received := receive(t, records)
	for i, want := range []struct {
		id    uuid.UUID
		kafka string
		topic string
		key   string
	}{
		{ids[0], "sc.domain.user", "user_renamed", "user/ö"},
		{ids[1], "sc.domain.user", "user_renamed", ""},
		{ids[4], "sc.domain.user", "user_changed", ""},
		{ids[6], "outbox_debezium.unknown", "user_merged", ""},
		{ids[7], "sc.domain.user", "user_renamed", ""},
	} {
		require.Equal(t, want.kafka, records[i].Topic)
		require.Contains(t, d.Kafka, records[i].Topic)
		if want.key == "" {
			require.Nil(t, records[i].Key)
		} else {
			require.Equal(t, want.key, *records[i].Key)
		}
		got := received[i]
		require.Equal(t, want.id, got.ID)
		require.Equal(t, "users."+want.topic, got.Type)
		require.Equal(t, [2]string{"users", want.topic}, [2]string{got.Namespace, got.Topic})
		require.JSONEq(t, string(renaming), string(got.Payload))
		require.WithinDuration(t, time.Now(), got.Time, time.Hour)
		if i != 0 {
			require.Empty(t, got.Headers)
			require.Zero(t, got.TenantID)
			require.Equal(t, 1, got.Version)
		}
	}
	require.Equal(t, 3, received[0].Version)
	require.Equal(t, uuid.NullUUID{UUID: tenantID, Valid: true}, received[0].TenantID)
	require.Equal(t, full.DedupeKey, received[0].DedupeKey)
	require.Equal(t, full.PartitionKey, received[0].PartitionKey)
	require.Equal(t, consume.Entity{Type: "user", ID: userID.String(), Version: 9007199254740993}, received[0].Entity)
	require.Equal(t, full.Headers, received[0].Headers)
	require.Equal(t, consume.Entity{Type: "user", ID: "7"}, received[4].Entity)

	topic := consume.NewTopic[renamed](consume.TopicSpec{Namespace: "users", Name: "user_renamed", RenamedFrom: []string{"user_changed"}, Version: 3})
	for _, i := range []int{0, 1, 2, 4} {
		delivery, err := topic.Decode(received[i])
		require.NoError(t, err)
		require.Equal(t, renamed{userID, `Zoë "Z"`, "free"}, delivery.Payload)
	}

	// The role may read the tables, and nothing else of the outbox.
	_, err = conn.Exec(t.Context(), "SET ROLE debezium")
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), "SELECT FROM outbox.log")
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), "SELECT FROM outbox.queue")
	require.ErrorContains(t, err, "permission denied")
}

// TestDebeziumRecords: the records that the tests of package consume read are those of the exported connector.
func TestDebeziumRecords(t *testing.T) {
	t.Parallel()
	pool := logical(t)
	conn := hijacked(t, pool)
	d := debezium(t, describe.DebeziumConfig{})
	require.NoError(t, run(t, conn, d.Setup))
	_, err := pool.Exec(t.Context(), `INSERT INTO outbox.log (id, namespace, topic, version, tenant_id, dedupe_key, partition_key, entity_type,
		entity_id, entity_version, headers, payload, created_at) VALUES
		('0192d4a0-6c7e-7b1a-9a53-0c3f5a9b2e11', 'users', 'user_created', 2, '7f000001-89ab-4cde-8f01-23456789abcd',
			'7f000001-89ab-4cde-8f01-23456789abcd/17', 'user/a%2Fb', 'user', 'Zoë 17', 9007199254740993,
			'{"traceparent": "00-a-b-01", "tracestate": "a=b", "reason": "marriage"}', '{"name": "Zoë", "big": 9007199254740993}',
			'2026-11-21 13:14:15.123456+00'),
		('0192d4a0-6c7e-7b1a-9a53-0c3f5a9b2e12', 'users', 'user_renamed', 1, NULL, NULL, NULL, 'user', 'x', 0, NULL, '{"rate": 1.50}',
			'2026-11-21 13:14:15+00')`)
	require.NoError(t, err)
	got, err := json.MarshalIndent(newRouter(t, d.Connector).records(conn), "", "  ")
	require.NoError(t, err)
	golden(t, "../../../consume/testdata/debezium/connector.json", append(got, '\n'))
}

// TestDebeziumOfQueueTopics: queue topics are captured on demand, and the SQL for cleaning up deletes what is past its retention.
func TestDebeziumOfQueueTopics(t *testing.T) {
	t.Parallel()
	pool := logical(t)
	conn := hijacked(t, pool)
	d := debezium(t, describe.DebeziumConfig{Queue: true, Name: "billing", Role: "reader", Source: "/accounts"})
	require.NoError(t, run(t, conn, d.Setup))
	require.Equal(t, []string{"billing.unknown", "sc.domain.bill", "sc.domain.user"}, d.Kafka)
	_, err := pool.Exec(t.Context(), `SELECT outbox.enqueue('users', topic, '{"n": 1}') FROM unnest('{bill_due,mail_due,bill_due}'::text[]) AS topic`)
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), `SELECT outbox.enqueue_log('users', 'user_renamed', '{"n": 2}')`)
	require.NoError(t, err)
	records := newRouter(t, d.Connector).records(conn)
	require.Len(t, records, 3, "the topics that publish elsewhere are dropped")
	var to []string
	for _, rec := range records {
		to = append(to, rec.Topic)
	}
	require.Equal(t, []string{"sc.domain.bill", "sc.domain.bill", "sc.domain.user"}, to)
	require.Equal(t, "users.bill_due", receive(t, records)[1].Type)
	require.Equal(t, "/accounts", receive(t, records)[1].Source)

	_, err = pool.Exec(t.Context(), `UPDATE outbox.events SET created_at = created_at - interval '48 hours 1 second'
		WHERE id = (SELECT id FROM outbox.events WHERE topic = 'bill_due' LIMIT 1) OR topic = 'mail_due'`)
	require.NoError(t, err)
	left := func() (events, queued int) {
		require.NoError(t, pool.QueryRow(t.Context(), "SELECT (SELECT count(*) FROM outbox.events), (SELECT count(*) FROM outbox.queue)").Scan(&events, &queued))
		return events, queued
	}
	events, queued := left()
	require.Equal(t, [2]int{3, 3}, [2]int{events, queued})
	require.NoError(t, run(t, conn, d.Cleanup))
	events, queued = left()
	require.Equal(t, [2]int{2, 2}, [2]int{events, queued}, "one of bill_due is past its retention")
}

// TestDebeziumOfOneNamespace: the publication has only its rows, so another namespace may have topics of the same name.
func TestDebeziumOfOneNamespace(t *testing.T) {
	t.Parallel()
	pool := logical(t)
	conn := hijacked(t, pool)
	if version := conn.PgConn().ParameterStatus("server_version"); strings.HasPrefix(version, "14.") {
		t.Skip("row filters of publications need PostgreSQL 15")
	}
	m := read(t, `
namespaces:
  users:
    topics: {changed: {delivery: log, listeners: none, publish: {kafka: {topic: users}}, payload: {id: uuid}}}
  shops:
    topics: {changed: {go: ShopChanged, delivery: log, listeners: none, publish: {kafka: {topic: shops}}, payload: {id: uuid}}}
`)
	_, err := describe.ExportDebezium(m, describe.DebeziumConfig{})
	require.EqualError(t, err, "topics users/changed and shops/changed have the same name and different destinations, and Debezium's router sees only the name: export each namespace with --namespace into its own connector, or rename one")
	users, err := describe.ExportDebezium(m, describe.DebeziumConfig{Namespace: "users"})
	require.NoError(t, err)
	shops, err := describe.ExportDebezium(m, describe.DebeziumConfig{Namespace: "shops"})
	require.NoError(t, err)
	require.NoError(t, run(t, conn, users.Setup))
	require.NoError(t, run(t, conn, shops.Setup))
	require.NoError(t, run(t, conn, shops.Setup))
	_, err = pool.Exec(t.Context(), `SELECT outbox.enqueue_log(n, 'changed', '{"n": 1}') FROM unnest('{users,shops,users,others}'::text[]) AS n`)
	require.NoError(t, err)
	of := func(d *describe.Debezium) (all []string) {
		for _, rec := range newRouter(t, d.Connector).records(conn) {
			all = append(all, rec.Topic)
		}
		return all
	}
	require.Equal(t, []string{"users", "users"}, of(users))
	require.Equal(t, []string{"shops"}, of(shops))
}

// TestDebeziumNeedsLogicalDecoding: the SQL says what to do on a server without it, and changes nothing.
func TestDebeziumNeedsLogicalDecoding(t *testing.T) {
	t.Parallel()
	conn := hijacked(t, pgtest.Plain(t))
	var level string
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT current_setting('wal_level')").Scan(&level))
	if level == "logical" {
		t.Skip("this server has logical decoding")
	}
	err := run(t, conn, debezium(t, describe.DebeziumConfig{}).Setup)
	require.ErrorContains(t, err, "wal_level is "+level+", and Debezium needs logical")
	var publications int
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_publication").Scan(&publications))
	require.Zero(t, publications)
}

// TestDebeziumOptions: the connector has only options that Debezium 3 and Kafka Connect document.
func TestDebeziumOptions(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/debezium-options.txt")
	require.NoError(t, err)
	known := make(map[string]bool)
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			known[line] = true
		}
	}
	for _, cfg := range []describe.DebeziumConfig{{}, {Queue: true}, {Namespace: "users", Source: "/x"}} {
		r := newRouter(t, debezium(t, cfg).Connector)
		for option := range r.config {
			parts := strings.SplitN(option, ".", 3)
			if len(parts) == 3 && (parts[0] == "transforms" || parts[0] == "predicates") {
				class := r.config[parts[0]+"."+parts[1]+".type"]
				option = class[strings.LastIndex(class, ".")+1:] + " " + parts[2]
			}
			require.True(t, known[option], "%s is not documented", option)
		}
	}
}

// TestDebeziumNotes: what is different from our publishers is said.
func TestDebeziumNotes(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{
		"users/user_created: records do not have the wire_name; a generated consumer knows the topic by namespace and name too",
		"users/user_created: listener relay publishes it too: stop and detach it when Debezium runs",
		"users/user_renamed: publish.headers are not sent, because Debezium's router does not see the payload",
		"users/user_renamed: listener relay publishes it too: stop and detach it when Debezium runs",
		"users/mail_due is left out: it publishes to nats, and Debezium writes to Kafka",
		"users/bill_due: the key of the records is the partition_key; publish.key is not used",
		"users/bill_due: no dispatcher may run it; delete its rows with the SQL for cleaning up",
		"users/user_deleted is left out: it publishes to webhook, and Debezium writes to Kafka",
	}, debezium(t, describe.DebeziumConfig{Queue: true}).Notes)
}

func TestDebeziumRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		yaml, want string
		cfg        describe.DebeziumConfig
	}{
		{want: `--name: "A-b" is not a valid name: use a lower-case letter, then up to 62 of a-z, 0-9 or _`, cfg: describe.DebeziumConfig{Name: "A-b"}},
		{want: `--role: "x'" is not a valid name: use a lower-case letter, then up to 62 of a-z, 0-9 or _`, cfg: describe.DebeziumConfig{Role: "x'"}},
		{want: `--namespace: outbox.yaml has no namespace "nobody"`, cfg: describe.DebeziumConfig{Namespace: "nobody"}},
		{yaml: "namespaces: {a: {topics: {x: {publish: {kafka: {topic: t}}, payload: {id: uuid}}}}}",
			want: "no log topic in outbox.yaml has a publish with kafka: add one, or export queue topics such as a/x with --queue-topics"},
		{yaml: "namespaces: {a: {topics: {x: {publish: {nats: {subject: t}}, payload: {id: uuid}}}}}", cfg: describe.DebeziumConfig{Queue: true, Namespace: "a"},
			want: "no topic in namespace a of outbox.yaml has a publish with kafka: add one, because Debezium writes to Kafka"},
		{yaml: `
namespaces:
  a: {topics: {x: {delivery: log, listeners: none, publish: {kafka: {topic: t}}, payload: {id: uuid}}}}
  b: {topics: {y: {renamed_from: [x], delivery: log, listeners: none, payload: {id: uuid}}}}`,
			want: "topics a/x and b/y have the same name and different destinations, and Debezium's router sees only the name: export each namespace with --namespace into its own connector, or rename one"},
	} {
		m := load(t)
		if c.yaml != "" {
			m = read(t, c.yaml)
		}
		_, err := describe.ExportDebezium(m, c.cfg)
		require.EqualError(t, err, c.want)
	}
}

// golden compares got with a file.
func golden(t testing.TB, file string, got []byte) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(file, got, 0o644))
		return
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), string(bytes.ReplaceAll(got, []byte("\r\n"), []byte("\n"))))
}

// TestGoldens: the exports are deterministic, and a change of them is seen.
func TestGoldens(t *testing.T) {
	t.Parallel()
	m := load(t)
	for range 2 {
		for _, k := range describe.Kinds(m) {
			text, err := describe.JSONSchema(k, "https://example.com/")
			require.NoError(t, err)
			if k.Topic.Name == "user_created" {
				golden(t, "testdata/want/"+describe.SchemaName(k), text)
			}
		}
		text, err := describe.JSONSchemas(describe.Kinds(m), "")
		require.NoError(t, err)
		require.True(t, json.Valid(text))
		text, err = describe.AsyncAPI(m, describe.AsyncAPIConfig{Version: "1.0.0", Encoding: describe.Binary})
		require.NoError(t, err)
		golden(t, "testdata/want/asyncapi.json", text)
		d := debezium(t, describe.DebeziumConfig{Queue: true})
		golden(t, "testdata/want/connector.json", d.Connector)
		golden(t, "testdata/want/setup.sql", d.Setup)
		golden(t, "testdata/want/cleanup.sql", d.Cleanup)
	}
}

// TestDocs: the schema in docs/run/exporting.md is that of its YAML, and the headers of Debezium's records are those of the connector.
func TestDocs(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/run/exporting.md")
	require.NoError(t, err)
	block := func(language string) string {
		_, rest, found := strings.Cut(string(page), "\n```"+language+"\n")
		require.True(t, found, language)
		text, _, _ := strings.Cut(rest, "```")
		return text
	}
	m, findings := generator.Load([]byte(block("yaml")), generator.Options{})
	require.NoError(t, findings.Err())
	schema, err := describe.JSONSchema(describe.Kinds(m)[0], "")
	require.NoError(t, err)
	require.Equal(t, string(schema), block("json"))
	d, err := describe.ExportDebezium(m, describe.DebeziumConfig{})
	require.NoError(t, err)
	for _, placed := range strings.Split(newRouter(t, d.Connector).config["transforms.outbox.table.fields.additional.placement"], ",") {
		parts := strings.Split(placed, ":")
		require.Contains(t, string(page), "`"+parts[2]+"`")
		require.Contains(t, string(page), "`"+parts[0]+"`")
	}
	require.Contains(t, string(page), "`outbox_debezium.unknown`")
	require.Contains(t, d.Kafka, "outbox_debezium.unknown")
}
