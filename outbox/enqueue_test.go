package outbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/migrate"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/payload"
	"github.com/outboxgen/outboxgen/queue"
)

// badMessages are messages that PostgreSQL or a rule refuses, each with what it wraps, if anything.
func badMessages() map[string]struct {
	change func(*outbox.Message)
	want   error
} {
	type bad = struct {
		change func(*outbox.Message)
		want   error
	}
	key := func(key string) func(*outbox.Message) { return func(m *outbox.Message) { m.DedupeKey = key } }
	payload := func(text string) func(*outbox.Message) {
		return func(m *outbox.Message) { m.Payload = []byte(text) }
	}
	id := runtimetest.TenantA.String()
	return map[string]bad{
		"other tenant":       {key(uuid.NewString() + "/1"), outbox.ErrTenantMismatch},
		"upper-case tenant":  {key(strings.ToUpper(id) + "/1"), outbox.ErrTenantMismatch},
		"tenant in braces":   {key("{" + id + "}/1"), outbox.ErrTenantMismatch},
		"tenant w/o hyphens": {key(strings.ReplaceAll(id, "-", "") + "/1"), outbox.ErrTenantMismatch},
		"tenant as URN":      {key("urn:uuid:" + id + "/1"), outbox.ErrTenantMismatch},
		"prefix of tenant":   {key(id[:35] + "/1"), outbox.ErrTenantMismatch},
		"tenant and more":    {key(id + "0/1"), outbox.ErrTenantMismatch},
		"tenant, no slash":   {key(id), outbox.ErrTenantMismatch},
		"space first":        {key(" " + id + "/1"), outbox.ErrTenantMismatch},
		"nothing after":      {key(id + "/"), outbox.ErrEmptyKeyPart},
		"zero tenant":        {func(m *outbox.Message) { m.TenantID.UUID = uuid.Nil }, outbox.ErrEmptyKeyPart},
		"dedupe key long":    {key(id + "/" + strings.Repeat("k", outbox.MaxKeyBytes-36)), outbox.ErrKeyTooLong},
		"partition key long": {func(m *outbox.Message) { m.PartitionKey = strings.Repeat("k", outbox.MaxKeyBytes+1) }, outbox.ErrKeyTooLong},
		"entity id long": {func(m *outbox.Message) {
			m.Entity = outbox.Entity{Type: "turn", ID: strings.Repeat("k", outbox.MaxKeyBytes+1)}
		}, outbox.ErrKeyTooLong},
		"NUL in key":           {key(id + "/a\x00b"), outbox.ErrPayloadInvalid},
		"no UTF-8 in key":      {func(m *outbox.Message) { m.PartitionKey = "\xff" }, outbox.ErrPayloadInvalid},
		"entity w/o type":      {func(m *outbox.Message) { m.Entity.ID = "7" }, outbox.ErrPayloadInvalid},
		"payload large":        {payload(`"` + strings.Repeat("x", outbox.MaxPayloadBytes-1) + `"`), outbox.ErrPayloadTooLarge},
		"payload grows":        {payload("[" + strings.Repeat("1e131071,", 9) + "0]"), outbox.ErrPayloadTooLarge},
		"payload none":         {payload(""), outbox.ErrPayloadInvalid},
		"payload two":          {payload("1 2"), outbox.ErrPayloadInvalid},
		"escaped NUL":          {payload(`{"a":"x\u0000"}`), outbox.ErrPayloadInvalid},
		"escaped NUL in a key": {payload(`{"\u0000":1}`), outbox.ErrPayloadInvalid},
		"raw NUL":              {payload("\"\x00\""), outbox.ErrPayloadInvalid},
		"high surrogate":       {payload(`"\ud83d"`), outbox.ErrPayloadInvalid},
		"high, then text":      {payload(`"\ud83dabcdef"`), outbox.ErrPayloadInvalid},
		"low surrogate":        {payload(`"\ude00"`), outbox.ErrPayloadInvalid},
		"reversed pair":        {payload(`"\ude00\ud83d"`), outbox.ErrPayloadInvalid},
		"two high":             {payload(`"\ud83d\ud83d"`), outbox.ErrPayloadInvalid},
		"raw surrogate":        {payload("\"\xed\xa0\x80\""), outbox.ErrPayloadInvalid},
		"no UTF-8":             {payload("\"\xff\""), outbox.ErrPayloadInvalid},
		"NaN":                  {payload(`{"a":NaN}`), outbox.ErrPayloadInvalid},
		"infinity":             {payload(`-Infinity`), outbox.ErrPayloadInvalid},
		"huge number":          {payload(`1e200000`), outbox.ErrPayloadInvalid},
		"huge exponent":        {payload(`1e99999999999999999999`), outbox.ErrPayloadInvalid},
		"tiny number":          {payload(`1e-200000`), outbox.ErrPayloadInvalid},
		"deep array":           {payload(strings.Repeat("[", 5000) + strings.Repeat("]", 5000)), outbox.ErrPayloadInvalid},
		"deep object":          {payload(strings.Repeat(`{"a":`, 5000) + "1" + strings.Repeat("}", 5000)), outbox.ErrPayloadInvalid},
		"NUL in header":        {func(m *outbox.Message) { m.Headers = map[string]string{"a": "\x00"} }, outbox.ErrPayloadInvalid},
		"colon in header":      {func(m *outbox.Message) { m.Headers = map[string]string{"a:b": "c"} }, outbox.ErrPayloadInvalid},
		"empty header":         {func(m *outbox.Message) { m.Headers = map[string]string{"": "c"} }, outbox.ErrPayloadInvalid},
		"long header":          {func(m *outbox.Message) { m.Headers = map[string]string{strings.Repeat("a", 256): "c"} }, outbox.ErrPayloadInvalid},
		"line in header":       {func(m *outbox.Message) { m.Headers = map[string]string{"a": "b\r\nc: d"} }, outbox.ErrPayloadInvalid},
		"no UTF-8 in header":   {func(m *outbox.Message) { m.Headers = map[string]string{"\xff": "a"} }, outbox.ErrPayloadInvalid},
		"headers large": {func(m *outbox.Message) {
			m.Headers = map[string]string{"a": strings.Repeat("x", outbox.MaxPayloadBytes)}
		}, outbox.ErrPayloadTooLarge},
		"namespace": {func(m *outbox.Message) { m.Namespace = "Mini" }, nil},
		"topic":     {func(m *outbox.Message) { m.Topic = "" }, nil},
		"version":   {func(m *outbox.Message) { m.Version = -1 }, nil},
		"fairness":  {func(m *outbox.Message) { m.Fairness = "tennant" }, nil},
		"fairness, no tenant": {func(m *outbox.Message) {
			m.Fairness, m.TenantID, m.DedupeKey = outbox.FairnessTenant, uuid.NullUUID{}, ""
		}, nil},
		"fairness in a log": {func(m *outbox.Message) { m.Fairness, m.Log = outbox.FairnessTenant, true }, nil},
		"version too large": {func(m *outbox.Message) { m.Version = 1 << 31 }, nil},
		"attempts":          {func(m *outbox.Message) { m.MaxAttempts = -1 }, nil},
		"not before":        {func(m *outbox.Message) { m.NotBefore = time.Date(294277, 1, 1, 0, 0, 0, 0, time.UTC) }, nil},
		"not before, early": {func(m *outbox.Message) { m.NotBefore = time.Date(-5000, 1, 1, 0, 0, 0, 0, time.UTC) }, nil},
	}
}

func TestEnqueueRefusesBeforeSendingAndLeavesTransactionUsable(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		var b pgx.Batch
		for name, bad := range badMessages() {
			m := runtimetest.Message(runtimetest.TenantA, 1)
			bad.change(&m)
			check := func(err error) {
				require.Error(t, err, name)
				if bad.want != nil {
					require.ErrorIs(t, err, bad.want, name)
				}
				var pg *pgconn.PgError
				require.NotErrorAs(t, err, &pg, name)
			}
			_, err := outbox.Enqueue(t.Context(), tx, "", m)
			check(err)
			_, err = outbox.EnqueueMany(t.Context(), tx, "", []outbox.Message{runtimetest.Message(runtimetest.TenantA, 2), m})
			check(err)
			require.ErrorContains(t, err, "event 2 of 2", name)
			_, err = outbox.EnqueueInBatch(&b, "", m)
			check(err)
			require.Zero(t, b.Len(), name)
		}
		for _, schema := range []string{"Outbox", `x"; DROP TABLE y; --`, "select", "pg_catalog"} {
			_, err := outbox.Enqueue(t.Context(), tx, schema, runtimetest.Message(runtimetest.TenantA, 1))
			require.Error(t, err)
		}
		_, err := outbox.EnqueueMany(t.Context(), tx, "", []outbox.Message{runtimetest.Message(runtimetest.TenantA, 1), {Namespace: runtimetest.Namespace, Topic: "pong", Payload: []byte("1")}})
		require.ErrorContains(t, err, "one call takes one topic")
		require.Zero(t, pgtest.Value[int](t, tx, "SELECT count(*) FROM testing.events"))
		_, err = outbox.Enqueue(t.Context(), tx, "", runtimetest.Message(runtimetest.TenantA, 1))
		require.NoError(t, err)
	})
	require.Equal(t, 1, runtimetest.CountWhere(t, pool, "true"))
}

// A topic's payload comes from json.Marshal, which is not asked again whether it is JSON; a RawMessage in it may still
// hold what jsonb does not take.
func TestTopicRefusesWhatMarshalLetsThrough(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := outbox.NewTopic[json.RawMessage](outbox.TopicSpec{Namespace: runtimetest.Namespace, Name: "ping"})
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		tried := 0
		for name, bad := range badMessages() {
			m := outbox.Message{}
			bad.change(&m)
			if m.Payload == nil {
				continue
			}
			tried++
			_, err := topic.Enqueue(t.Context(), tx, m.Payload)
			require.ErrorIs(t, err, bad.want, name)
			_, err = topic.EnqueueMany(t.Context(), tx, []json.RawMessage{m.Payload})
			require.ErrorIs(t, err, bad.want, name)
		}
		require.Greater(t, tried, 15)
		_, err := topic.Enqueue(t.Context(), tx, json.RawMessage(` {"a": "\u0001\ud83d\ude00"} `))
		require.NoError(t, err)
	})
}

func TestEnqueueAcceptsValuesAtTheLimits(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	id := runtimetest.TenantA.String()
	ms := []outbox.Message{runtimetest.Message(runtimetest.TenantA, 0), runtimetest.Message(runtimetest.TenantA, 0), runtimetest.Message(runtimetest.TenantA, 0), runtimetest.Message(runtimetest.TenantA, 0)}
	ms[0].DedupeKey = id + "/" + strings.Repeat("k", outbox.MaxKeyBytes-37)
	ms[0].PartitionKey = strings.Repeat("p", outbox.MaxKeyBytes)
	ms[0].Entity = outbox.Entity{Type: "turn", ID: strings.Repeat("e", outbox.MaxKeyBytes), Version: 1<<63 - 1}
	ms[1].Payload = []byte(`"` + strings.Repeat("x", outbox.MaxPayloadBytes-2) + `"`)
	ms[2].DedupeKey, ms[2].MaxAttempts = "", 1<<31-1
	ms[2].NotBefore = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
	ms[3].DedupeKey, ms[3].TenantID = "any/key", uuid.NullUUID{}
	ms[3].Payload = []byte(strings.Repeat("[", 1000) + strings.Repeat("]", 1000))
	for _, m := range ms {
		pgtest.InTx(t, pool, func(tx pgx.Tx) {
			receipt, err := outbox.Enqueue(t.Context(), tx, "", m)
			require.NoError(t, err)
			require.False(t, receipt.Duplicate)
			require.EqualValues(t, 7, receipt.ID.Version())
		})
	}
	claimed := runtimetest.ClaimN(t, runtimetest.NewStore(t, pool), 3)
	require.Equal(t, ms[0].Entity, claimed[0].Entity)
	require.Equal(t, ms[0].PartitionKey, claimed[0].PartitionKey)
	require.Equal(t, ms[0].DedupeKey, claimed[0].DedupeKey)
	require.Equal(t, ms[1].Payload, claimed[1].Payload)
	require.False(t, claimed[2].TenantID.Valid)
}

// tenantOracle says by other means than the code under test whether key may go with tenant: it takes the
// text before the first slash apart by hand.
func tenantOracle(tenant uuid.UUID, key string) bool {
	first, rest, found := strings.Cut(key, "/")
	groups := strings.Split(first, "-")
	if !found || rest == "" || len(groups) != 5 {
		return false
	}
	var hex strings.Builder
	for i, size := range [...]int{8, 4, 4, 4, 12} {
		if len(groups[i]) != size {
			return false
		}
		hex.WriteString(groups[i])
	}
	return hex.String() == fmt.Sprintf("%x", tenant[:])
}

func TestTenantMismatchAgainstOracleAndCheck(t *testing.T) {
	t.Parallel()
	const pairs = 10_000
	pool := pgtest.Database(t)
	random := rand.New(rand.NewPCG(1, 2))
	mangle := []func(id string) string{
		func(id string) string { return id + "/x" },
		func(id string) string { return id + "/x/y" },
		func(id string) string { return id + "/" + id },
		func(id string) string { return strings.ToUpper(id) + "/x" },
		func(id string) string { return strings.ReplaceAll(id, "-", "") + "/x" },
		func(id string) string { return "{" + id + "}/x" },
		func(id string) string { return id[:random.IntN(len(id))] + "/x" },
		func(id string) string { return id + string("0123456789abcdef-/ "[random.IntN(19)]) + "x" },
		func(id string) string { return uuid.NewString() + "/" + id + "/x" },
		func(id string) string { return "/" + id + "/x" },
		func(id string) string { return id + "\u2215x" },
		func(id string) string { return strings.Replace(id, "-", "\u2010", 1) + "/x" },
		func(id string) string { // one character changed
			at := random.IntN(len(id))
			return id[:at] + string("0123456789abcdefABCDEF-"[random.IntN(23)]) + id[at+1:] + "/x"
		},
	}
	tenants, keys, want := make([]uuid.UUID, pairs), make([]string, pairs), make([]bool, pairs)
	var b pgx.Batch
	for i := range pairs {
		tenants[i] = uuid.New()
		keys[i] = mangle[random.IntN(len(mangle))](tenants[i].String())
		want[i] = tenantOracle(tenants[i], keys[i])
		m := runtimetest.Message(tenants[i], 0)
		m.DedupeKey = keys[i]
		_, err := outbox.EnqueueInBatch(&b, "", m)
		if want[i] {
			require.NoError(t, err, "%s %q", tenants[i], keys[i])
		} else {
			require.ErrorIs(t, err, outbox.ErrTenantMismatch, "%s %q", tenants[i], keys[i])
		}
	}
	pgtest.Execute(t, pool, `CREATE FUNCTION accepts(tenant uuid, key text) RETURNS boolean LANGUAGE plpgsql AS $$
		BEGIN
			INSERT INTO testing.events (namespace, topic, tenant_id, dedupe_key, payload) VALUES ('test', 'raw', tenant, key, '1');
			RETURN true;
		EXCEPTION WHEN check_violation THEN RETURN false;
		END $$`)
	got := pgtest.Value[[]bool](t, pool, `SELECT array_agg(accepts(tenant, key) ORDER BY n)
		FROM unnest($1::uuid[], $2::text[]) WITH ORDINALITY AS u (tenant, key, n)`, tenants, keys)
	require.Equal(t, want, got)
}

func TestRawSQLCannotBreakTheTable(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	insert := func(table, columns, values string) error {
		_, err := pool.Exec(t.Context(), "INSERT INTO outbox."+table+" (namespace, topic, "+columns+") VALUES ('test', 'raw', "+values+")")
		return err
	}
	id := "'" + runtimetest.TenantA.String() + "'"
	require.NoError(t, insert("events", "payload, tenant_id, dedupe_key", "'1', "+id+", '"+runtimetest.TenantA.String()+"/1'"))
	require.NoError(t, insert("queue", "id", id))
	const letter, of = "id, payload, version, attempts, error, created_at, ", "gen_random_uuid(), '1', 1, 1, 'x', now(), "
	require.NoError(t, insert("dead_letters", letter+"listener", of+"NULL"))
	require.NoError(t, insert("dead_letters", letter+"listener, seq, bucket", of+"'mail', 1, 1"))
	for _, c := range [][3]string{
		{"events", "payload, tenant_id, dedupe_key", "'1', " + id + ", 'x/1'"},
		{"events", "payload, tenant_id, dedupe_key", "'1', " + id + ", upper(" + id + ") || '/1'"},
		{"events", "payload, tenant_id, dedupe_key, partition_key", "'1', " + id + ", '', NULL"},
		{"events", "payload, dedupe_key", "'1', repeat('k', 513)"},
		{"events", "payload, version", "'1', 0"},
		{"queue", "id, attempts", "gen_random_uuid(), -1"},
		{"queue", "id, max_attempts", "gen_random_uuid(), 0"},
		{"queue", "id, lane", "gen_random_uuid(), -1"},
		{"queue", "id, failures", "gen_random_uuid(), '{}'"},
		{"dead_letters", letter + "listener", of + "'mail'"},
		{"dead_letters", letter + "seq, bucket", of + "1, 1"},
	} {
		var pg *pgconn.PgError
		require.ErrorAs(t, insert(c[0], c[1], c[2]), &pg, c)
		require.Equal(t, "23514", pg.Code, c)
	}
	for table, columns := range map[string]string{"events": "id, payload", "queue": "id", "delivered": "id, attempts", "dead_letters": letter + "listener"} {
		values := map[string]string{"events": id + ", '1'", "queue": id, "delivered": id + ", 1", "dead_letters": id + ", '1', 1, 1, 'x', now(), NULL"}[table]
		if table != "queue" { // where it is already
			require.NoError(t, insert(table, columns, values), table)
		}
		var pg *pgconn.PgError
		require.ErrorAs(t, insert(table, columns, values), &pg, table)
		require.Equal(t, "23505", pg.Code, table)
	}
	_, err := pool.Exec(t.Context(), "UPDATE outbox.events SET tenant_id = gen_random_uuid()")
	require.ErrorContains(t, err, "events_dedupe_tenant_check")
}

func TestEnqueueNotMigrated(t *testing.T) {
	t.Parallel()
	empty := pgtest.Pool(t, pgtest.Empty(t))
	for schema, pool := range map[string]interface {
		Begin(context.Context) (pgx.Tx, error)
	}{"outbox": empty, "nosuch": pgtest.Database(t)} {
		tx, err := pool.Begin(t.Context())
		require.NoError(t, err)
		_, err = outbox.Enqueue(t.Context(), tx, schema, runtimetest.Message(runtimetest.TenantA, 1))
		require.ErrorIs(t, err, outbox.ErrNotMigrated)
		require.ErrorContains(t, err, "outboxgen migrate up --schema "+schema)
		require.NoError(t, tx.Rollback(t.Context()))
	}
	s := runtimetest.NewStore(t, empty)
	_, err := s.Claim(t.Context(), queue.ClaimConfig{})
	require.ErrorIs(t, err, outbox.ErrNotMigrated)
	_, err = s.SweepDead(t.Context())
	require.ErrorIs(t, err, outbox.ErrNotMigrated)
	s, err = queue.NewStore(empty, queue.StoreConfig{Namespace: runtimetest.Namespace, Retention: map[string]outbox.Retention{"ping": {}}})
	require.NoError(t, err)
	_, err = s.Prune(t.Context())
	require.ErrorIs(t, err, outbox.ErrNotMigrated)
}

func TestEnqueueIntoAnotherSchema(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	_, err := migrate.Up(t.Context(), pool, "second")
	require.NoError(t, err)
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		_, err := outbox.Enqueue(t.Context(), tx, "second", runtimetest.Message(runtimetest.TenantA, 1))
		require.NoError(t, err)
	})
	require.Zero(t, runtimetest.CountWhere(t, pool, "true"))
	s, err := queue.NewStore(pool, queue.StoreConfig{Schema: "second", Namespace: runtimetest.Namespace})
	require.NoError(t, err)
	claimed := runtimetest.ClaimN(t, s, 1)
	outcomes, err := s.Ack(t.Context(), claimed...)
	require.NoError(t, err)
	require.Equal(t, runtimetest.Repeat(1, queue.Applied), outcomes)
}

func TestRolledBackEventIsNeverThere(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	for range 300 {
		tx, err := pool.Begin(t.Context())
		require.NoError(t, err)
		_, err = outbox.Enqueue(t.Context(), tx, "", runtimetest.Message(runtimetest.TenantA, 1))
		require.NoError(t, err)
		require.NoError(t, tx.Rollback(t.Context()))
	}
	runtimetest.ClaimN(t, runtimetest.NewStore(t, pool), 0)
	require.Zero(t, runtimetest.CountWhere(t, pool, "true"))
}

func TestEnqueueInsideSavepoints(t *testing.T) {
	t.Parallel()
	const depth = 100 // more than the 64 subtransactions that a backend caches
	pool := pgtest.Database(t)
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		for n := range depth {
			sp, err := tx.Begin(t.Context())
			require.NoError(t, err)
			_, err = outbox.Enqueue(t.Context(), sp, "", runtimetest.Message(runtimetest.TenantA, n))
			require.NoError(t, err)
			if n%2 == 1 {
				require.NoError(t, sp.Rollback(t.Context()))
				// The key is free again.
				receipt, err := outbox.Enqueue(t.Context(), tx, "", runtimetest.Message(runtimetest.TenantA, n))
				require.NoError(t, err)
				require.False(t, receipt.Duplicate)
				_, err = tx.Exec(t.Context(), "DELETE FROM testing.events WHERE id = $1", receipt.ID)
				require.NoError(t, err)
				continue
			}
			require.NoError(t, sp.Commit(t.Context()))
		}
		// A statement that failed is undone by the caller's savepoint, and the events before it stay.
		sp, err := tx.Begin(t.Context())
		require.NoError(t, err)
		_, err = outbox.Enqueue(t.Context(), sp, "", runtimetest.Message(runtimetest.TenantA, depth))
		require.NoError(t, err)
		_, err = sp.Exec(t.Context(), "SELECT 1/0")
		require.Error(t, err)
		require.NoError(t, sp.Rollback(t.Context()))
	})
	require.Equal(t, depth/2, runtimetest.CountWhere(t, pool, "true"))
	runtimetest.ClaimN(t, runtimetest.NewStore(t, pool), depth/2)
}

func TestEnqueueOptions(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	headers := map[string]string{"traceparent": "00-abc-01", "x-note": "</script>\u2028"}
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		_, err := noteTopic.Enqueue(t.Context(), tx, note{Tenant: runtimetest.TenantA, Text: "due"}, outbox.WithHeaders(headers), outbox.WithTenant(runtimetest.TenantA))
		require.NoError(t, err)
		_, err = noteTopic.Enqueue(t.Context(), tx, note{Tenant: runtimetest.TenantA, Text: "later"}, outbox.WithNotBefore(time.Now().Add(runtimetest.LongLease)))
		require.NoError(t, err)
		_, err = noteTopic.Enqueue(t.Context(), tx, note{Tenant: runtimetest.TenantA, Text: "foreign"}, outbox.WithTenant(uuid.New()))
		require.ErrorIs(t, err, outbox.ErrTenantMismatch)
		_, err = outbox.NewTopic[note](outbox.TopicSpec{Namespace: runtimetest.Namespace, Name: "bare"}).Untyped().Enqueue(t.Context(), tx, note{}, outbox.WithTenant(runtimetest.TenantA))
		require.ErrorIs(t, err, outbox.ErrTenantMismatch, "an event without a tenant is not this one's")
		_, err = noteTopic.Enqueue(t.Context(), tx, note{Tenant: runtimetest.TenantA})
		require.ErrorIs(t, err, outbox.ErrEmptyKeyPart)
		require.ErrorContains(t, err, "text")
		_, err = noteTopic.Enqueue(t.Context(), tx, note{Text: "x"})
		require.ErrorIs(t, err, outbox.ErrEmptyKeyPart)
		_, err = noteTopic.Enqueue(t.Context(), tx, note{Tenant: runtimetest.TenantA, Text: "nul", Extra: "a\x00"})
		require.ErrorIs(t, err, outbox.ErrPayloadInvalid)
	})
	claimed := runtimetest.ClaimN(t, runtimetest.NewStore(t, pool), 1)
	require.Equal(t, headers, claimed[0].Headers)
	require.Equal(t, outbox.Tenant(runtimetest.TenantA), claimed[0].TenantID)
	require.Equal(t, runtimetest.TenantA.String()+"/due", claimed[0].DedupeKey)
	require.Equal(t, 2, claimed[0].Version)
	require.Equal(t, 7, claimed[0].MaxAttempts)
	require.Equal(t, 1, runtimetest.CountWhere(t, pool, "next_attempt_at > statement_timestamp() + interval '59 min'"))
}

// TestEmptyKeysAreOneLine: an event without the field of its keys has an error in one line, with each fact once.
func TestEmptyKeysAreOneLine(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	for want, p := range map[string]renamed{
		"enqueue test/renamed: user_id is not set; empty key part in partition key, entity id":                                                {Slug: "s"},
		"enqueue test/renamed: user_id is not set; render dedupe key: field slug: empty key part; empty key part in partition key, entity id": {},
		"enqueue test/renamed: render dedupe key: field slug: empty key part":                                                                 {UserID: runtimetest.TenantA},
	} {
		pgtest.InTx(t, pool, func(tx pgx.Tx) {
			_, err := renamedTopic.Enqueue(t.Context(), tx, p)
			require.ErrorIs(t, err, outbox.ErrEmptyKeyPart)
			require.EqualError(t, err, want)
			var invalid *payload.ValidationError
			require.Equal(t, p.UserID == uuid.Nil, errors.As(err, &invalid))
			require.Equal(t, p.UserID == uuid.Nil, errors.Is(err, outbox.ErrPayloadInvalid))
		})
	}
}

type renamed struct {
	UserID uuid.UUID `json:"user_id"`
	Slug   string    `json:"slug"`
}

func (r renamed) Validate() error {
	if r.UserID == uuid.Nil {
		return payload.Check("test/renamed", payload.FieldErrors{{Field: "user_id", Rule: "required", Message: "is not set"}})
	}
	return nil
}

var renamedTopic = outbox.NewTopic[renamed](outbox.TopicSpec{
	Namespace: runtimetest.Namespace, Name: "renamed",
	Keys: func(v any) outbox.Keys {
		p := v.(*renamed)
		user := eventkey.NewKey(eventkey.UUIDPart("user_id", p.UserID))
		return outbox.Keys{
			Dedupe: eventkey.NewKey(eventkey.StringPart("slug", p.Slug)), Partition: user, EntityType: "user", EntityID: user,
		}
	},
})

type note struct {
	Tenant uuid.UUID `json:"tenant"`
	Text   string    `json:"text"`
	Extra  string    `json:"extra,omitempty"`
}

var noteTopic = outbox.NewTopic[note](outbox.TopicSpec{
	Namespace: runtimetest.Namespace, Name: "note", Version: 2, Retry: outbox.Retry{MaxAttempts: 7},
	Keys: func(v any) outbox.Keys {
		p := v.(*note)
		return outbox.Keys{
			TenantID: outbox.Tenant(p.Tenant),
			Dedupe:   eventkey.NewKey(eventkey.UUIDPart("tenant", p.Tenant), eventkey.StringPart("text", p.Text)),
		}
	},
})

// sabotagedTx runs a step of the test before the n-th statement of a transaction.
type sabotagedTx struct {
	pgx.Tx
	mu     sync.Mutex
	before map[int]func()
	n      int
}

func (s *sabotagedTx) step() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n++
	if f := s.before[s.n]; f != nil {
		f()
	}
}

func (s *sabotagedTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	s.step()
	return s.Tx.Query(ctx, sql, args...)
}

func (s *sabotagedTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	s.step()
	return s.Tx.QueryRow(ctx, sql, args...)
}

func TestEnqueueWhenOwnerOfTheKeyIsPrunedMeanwhile(t *testing.T) {
	t.Parallel()
	for _, many := range []bool{false, true} {
		pool := pgtest.Database(t)
		old := runtimetest.EnqueueAll(t, pool, runtimetest.Message(runtimetest.TenantA, 1))[0]
		tx := &sabotagedTx{Tx: pgtest.Begin(t, pool, pgx.TxOptions{}), before: map[int]func(){
			2: func() { pgtest.Execute(t, pool, "DELETE FROM testing.events") },
		}}
		var receipt outbox.Receipt
		if many {
			receipts, err := outbox.EnqueueMany(t.Context(), tx, "", []outbox.Message{runtimetest.Message(runtimetest.TenantA, 0), runtimetest.Message(runtimetest.TenantA, 1), runtimetest.Message(runtimetest.TenantA, 2)})
			require.NoError(t, err)
			receipt = receipts[1]
		} else {
			var err error
			receipt, err = outbox.Enqueue(t.Context(), tx, "", runtimetest.Message(runtimetest.TenantA, 1))
			require.NoError(t, err)
		}
		require.False(t, receipt.Duplicate)
		require.NotEqual(t, old.ID, receipt.ID)
		require.NoError(t, tx.Commit(t.Context()))
		require.Equal(t, 1, runtimetest.CountWhere(t, pool, "id = $1", receipt.ID))
	}
}
