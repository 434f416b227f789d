package admin_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
	"github.com/outboxgen/outboxgen/seal"
)

type secretNote struct {
	Text string            `json:"text" outbox:"sealed"`
	Tags map[string]string `json:"tags" outbox:"sealed"`
	Open string            `json:"open"`
}

func sealingKey(t testing.TB, id string) *seal.Key {
	t.Helper()
	k, err := seal.NewKey(id, []byte(strings.Repeat(id, seal.KeyBytes)[:seal.KeyBytes]))
	require.NoError(t, err)
	return k
}

func keyring(t testing.TB, ids ...string) *seal.Ring {
	t.Helper()
	var keys []*seal.Key
	for _, id := range ids {
		keys = append(keys, sealingKey(t, id))
	}
	r, err := seal.NewRing(keys[0], keys[1:]...)
	require.NoError(t, err)
	return r
}

// sealedEverywhere puts an event with two sealed values into each of the tables that keep payloads, and one without into
// events. It returns the topic of those in events.
func sealedEverywhere(t testing.TB, pool *pgxpool.Pool, k seal.Keyring) outbox.Topic[secretNote] {
	t.Helper()
	spec := outbox.TopicSpec{Namespace: "notes", Name: "taken", Sealed: outbox.SealedFields()}
	topic := outbox.NewTopic[secretNote](spec)
	spec.Log = true
	logged := outbox.NewTopic[secretNote](spec)
	note := secretNote{Text: "canary", Tags: map[string]string{"a": "canary"}, Open: "sealed:v1:k1:no"}
	ctx := seal.ContextWithKeyring(t.Context(), k)
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := topic.Enqueue(ctx, tx, note)
		require.NoError(t, err)
		_, err = outbox.Enqueue(ctx, tx, "", outbox.Message{Namespace: "notes", Topic: "open", Payload: json.RawMessage(`{"a":"sealed"}`)})
		require.NoError(t, err)
		for range 5 {
			_, err = logged.Enqueue(ctx, tx, note)
			require.NoError(t, err)
		}
		return err
	}))
	pgtest.Execute(t, pool, `WITH l AS (SELECT * FROM outbox.log ORDER BY seq LIMIT 1 OFFSET 1) INSERT INTO outbox.dead_letters (listener, seq, id, namespace, topic, version, payload, bucket, created_at, attempts, error)
		SELECT 'ear', seq, id, namespace, topic, version, payload, bucket, created_at, 1, 'no' FROM l`)
	pgtest.Execute(t, pool, `WITH l AS (SELECT * FROM outbox.log ORDER BY seq LIMIT 1 OFFSET 2) INSERT INTO outbox.parked (listener, key, seq, id, namespace, topic, version, payload, bucket, created_at)
		SELECT 'ear', 'a', seq, id, namespace, topic, version, payload, bucket, created_at FROM l`)
	message := `WITH l AS (SELECT * FROM outbox.log ORDER BY seq LIMIT 1 OFFSET $1) INSERT INTO outbox.inbox_messages (consumer_group, message_id, place, event_id, type, namespace, topic, version, envelope, body, status, attempts, next_attempt_at, error)
		SELECT 'g', $1::text, '', CASE WHEN $1 < 9 THEN id END, 'notes.taken', namespace, topic, version, $2::text::json, convert_to(replace($3, '@', payload::text), 'UTF8'), 'parked', 1, now(), '' FROM l`
	pgtest.Execute(t, pool, message, 3, `{"content_type": "application/json"}`, "@")
	pgtest.Execute(t, pool, message, 4, `{"content_type": "application/cloudevents+json; charset=utf-8"}`, `{"specversion": "1.0", "data": @, "id": "x"}`)
	pgtest.Execute(t, pool, `WITH l AS (SELECT * FROM outbox.log ORDER BY seq LIMIT 1) INSERT INTO outbox.inbox_quarantined (consumer_group, event_id, source, tenant_id, entity_type, entity_id, version, last_version, last_event_id, payload)
		SELECT 'g', id, '', '00000000-0000-0000-0000-000000000000', 'a', 'b', 1, 2, id, convert_to(payload::text, 'UTF8') FROM l`)
	return topic
}

var payloadTables = []string{"events", "log", "dead_letters", "parked", "inbox_messages", "inbox_quarantined"}

// keysIn returns how often keys are named in all tables.
func keysIn(t testing.TB, pool *pgxpool.Pool, id string) int {
	t.Helper()
	return pgtest.Count(t, pool, `SELECT sum((length(x.t) - length(replace(x.t, '"sealed:v1:' || $1 || ':', ''))) / length('"sealed:v1:' || $1 || ':'))::int FROM (
		SELECT payload::text AS t FROM outbox.events UNION ALL SELECT payload::text FROM outbox.log UNION ALL
		SELECT payload::text FROM outbox.dead_letters UNION ALL SELECT payload::text FROM outbox.parked UNION ALL
		SELECT convert_from(body, 'UTF8') FROM outbox.inbox_messages UNION ALL SELECT convert_from(payload, 'UTF8') FROM outbox.inbox_quarantined) AS x`, id)
}

func ofTables(r admin.ResealReport, key string) map[string]admin.ResealRow {
	rows := make(map[string]admin.ResealRow)
	for _, row := range r.Rows {
		if row.Key == key {
			rows[row.Table] = row
		}
	}
	return rows
}

// TestReseal: every value of every table gets the new key, at its place; texts that only look sealed stay. A second run
// finds nothing to do, and handlers get the same payload.
func TestReseal(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := sealedEverywhere(t, pool, keyring(t, "k1"))
	ops := runtimetest.AdminOf(t, pool)
	require.Equal(t, 33, keysIn(t, pool, "k1"), "11 rows, each with two values and a text that looks like one")

	plan, err := ops.Preview().Reseal(t.Context(), nil, "", admin.Act{})
	require.NoError(t, err)
	values := map[string]int64{"events": 3, "log": 15, "dead_letters": 3, "parked": 3, "inbox_messages": 6, "inbox_quarantined": 3}
	for _, table := range payloadTables {
		require.Equal(t, admin.ResealRow{Table: table, Key: "k1", Values: values[table]}, ofTables(plan, "k1")[table])
	}
	require.Equal(t, 33, keysIn(t, pool, "k1"), "a dry run")

	both := keyring(t, "k1", "k2")
	done, err := ops.Reseal(t.Context(), both, "k2", admin.Act{Who: "ann", Why: "rotation"})
	require.NoError(t, err)
	for _, table := range payloadTables {
		row := ofTables(done, "k1")[table]
		require.Equal(t, values[table]/3*2, row.Changed, table)
		require.Equal(t, map[string]int64{seal.ErrAltered.Error(): values[table] / 3}, row.Refused, table)
	}
	require.Equal(t, 11, keysIn(t, pool, "k1"), "the texts")
	require.Equal(t, 22, keysIn(t, pool, "k2"))
	require.Equal(t, "ann reseal rotation {\"key\": \"k2\"} 11", pgtest.Value[string](t, pool, "SELECT concat_ws(' ', who, act, why, scope, events) FROM outbox.audit"))

	again, err := ops.Reseal(t.Context(), both, "k2", admin.Act{Who: "ann"})
	require.NoError(t, err)
	for _, row := range again.Rows {
		require.Zero(t, row.Changed)
	}
	require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.audit"))

	var got secretNote
	cfg := runtimetest.QuickConfig()
	cfg.Keyring, cfg.Topics = keyring(t, "k2"), []string{"taken"}
	d := runtimetest.Dispatcher(t, pool, cfg, queue.Handle(topic, 1, func(_ context.Context, d outbox.Delivery[secretNote]) error {
		got = d.Payload
		return nil
	}))
	report, err := d.Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, report.Delivered)
	require.Equal(t, secretNote{Text: "canary", Tags: map[string]string{"a": "canary"}, Open: "sealed:v1:k1:no"}, got)
	body := pgtest.Value[string](t, pool, "SELECT convert_from(body, 'UTF8') FROM outbox.inbox_messages WHERE message_id = '4'")
	require.Regexp(t, `^\{"specversion": "1.0", "data": \{.*\}, "id": "x"\}$`, body)
}

// TestResealRefuses: what has no key stays, and the report says so; what is wrong is said before anything is done.
func TestResealRefuses(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	sealedEverywhere(t, pool, keyring(t, "k1"))
	ops := runtimetest.AdminOf(t, pool)
	r, err := ops.Reseal(t.Context(), keyring(t, "k2"), "k2", admin.Act{Who: "ann"})
	require.NoError(t, err)
	require.Equal(t, admin.ResealRow{
		Table: "log", Key: "k1", Values: 15, Refused: map[string]int64{seal.ErrNoKey.Error(): 15},
	}, ofTables(r, "k1")["log"])
	r, err = ops.Reseal(t.Context(), keyring(t, "k1"), "k2", admin.Act{Who: "ann"})
	require.NoError(t, err)
	require.Equal(t, map[string]int64{"nothing to seal with: key k2: the keyring has no such key": 15}, ofTables(r, "k1")["log"].Refused)
	require.Equal(t, 33, keysIn(t, pool, "k1"))
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.audit"))

	pgtest.Execute(t, pool, `UPDATE outbox.inbox_messages SET body = convert_to(to_json(convert_from(body, 'UTF8'))::text, 'UTF8') WHERE message_id = '3'`)
	r, err = ops.Preview().Reseal(t.Context(), nil, "", admin.Act{})
	require.NoError(t, err)
	require.Equal(t, admin.ResealRow{Table: "inbox_messages", Key: "unknown", Refused: map[string]int64{admin.RefusedForm: 1}},
		ofTables(r, "unknown")["inbox_messages"])

	_, err = ops.Reseal(t.Context(), nil, "k2", admin.Act{Who: "ann"})
	require.ErrorContains(t, err, "reseal: keyring: there is none (nil)")
	_, err = ops.Reseal(t.Context(), keyring(t, "k1"), "k1", admin.Act{})
	require.ErrorContains(t, err, "Who is empty")
}

// TestResealContinues: pages are transactions of their own, so that a run that is stopped loses nothing, and the next one
// does the rest.
func TestResealContinues(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := outbox.NewTopic[secretNote](outbox.TopicSpec{Namespace: "notes", Name: "taken", Sealed: outbox.SealedFields()})
	const n = 450
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := topic.EnqueueMany(seal.ContextWithKeyring(t.Context(), keyring(t, "k1")), tx, make([]secretNote, n))
		return err
	}))
	ops := runtimetest.AdminOf(t, pool)
	ctx, stop := context.WithCancel(t.Context())
	both := &stopping{Keyring: keyring(t, "k1", "k2"), after: 300, stop: stop}
	r, err := ops.Reseal(ctx, both, "k2", admin.Act{Who: "ann"})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, int64(800), r.Rows[0].Changed, "the page under way is finished")
	require.Equal(t, 800, keysIn(t, pool, "k2"))
	r, err = ops.Reseal(t.Context(), keyring(t, "k1", "k2"), "k2", admin.Act{Who: "ann"})
	require.NoError(t, err)
	require.Equal(t, int64(100), ofTables(r, "k1")["events"].Changed)
	require.Equal(t, 2*n, keysIn(t, pool, "k2"))
	require.Equal(t, []string{"400", "50"}, pgtest.Value[[]string](t, pool, "SELECT array_agg(events::text ORDER BY no) FROM outbox.audit"))
}

// stopping ends a context after so many calls.
type stopping struct {
	seal.Keyring
	after int
	stop  func()
}

func (s *stopping) OpeningKey(ctx context.Context, tenant uuid.NullUUID, id string) (*seal.Key, error) {
	if id == "k1" {
		if s.after--; s.after == 0 {
			s.stop()
		}
	}
	return s.Keyring.OpeningKey(ctx, tenant, id)
}
