package outbox_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
	"github.com/outboxgen/outboxgen/internal/postgres/topiclane"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/migrate"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// enqueueSQL calls the SQL function of a schema.
func enqueueSQL(t testing.TB, db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, schema, args string, values ...any,
) (id uuid.UUID, duplicate bool) {
	t.Helper()
	pgtest.Check(t, db.QueryRow(t.Context(), "SELECT id, duplicate FROM "+schema+".enqueue("+args+")", values...).Scan(&id, &duplicate))
	return id, duplicate
}

// TestEnqueueSQLRefusesWhatGoRefuses, with a message that names the event and what is wrong, and without writing.
func TestEnqueueSQLRefusesWhatGoRefuses(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	tenant := "'" + runtimetest.TenantA.String() + "'"
	const event = "'test', 'ping', '1'"
	for args, want := range map[string]string{
		"NULL, 'ping', '1'":                                                          "enqueue NULL/ping: namespace is not a name like mini_chat",
		"'', 'ping', '1'":                                                            "enqueue /ping: namespace is not a name like mini_chat",
		"'Test', 'ping', '1'":                                                        "enqueue Test/ping: namespace is not a name like mini_chat",
		"'test', NULL, '1'":                                                          "enqueue test/NULL: topic is not a name like turn_finalized",
		"'test', 'pïng', '1'":                                                        "enqueue test/pïng: topic is not a name like turn_finalized",
		"'test', E'ping\\n', '1'":                                                    "enqueue test/ping\n: topic is not a name like turn_finalized",
		"'test', repeat('p', 42), '1'":                                               "enqueue test/" + strings.Repeat("p", 42) + ": topic is not a name like turn_finalized",
		"'test', 'ping', NULL":                                                       "enqueue test/ping: payload is NULL",
		"'test', 'ping', to_jsonb(repeat('x', 1048575))":                             "enqueue test/ping: payload has more than 1048576 bytes",
		event + ", version => 0":                                                     "enqueue test/ping: version is not a positive number",
		event + ", version => NULL":                                                  "enqueue test/ping: version is not a positive number",
		event + ", max_attempts => 0":                                                "enqueue test/ping: max_attempts is not a positive number",
		event + ", max_attempts => NULL":                                             "enqueue test/ping: max_attempts is not a positive number",
		event + ", not_before => 'infinity'":                                         "enqueue test/ping: not_before is not a time of the years 1 to 9999",
		event + ", not_before => '-infinity'":                                        "enqueue test/ping: not_before is not a time of the years 1 to 9999",
		event + ", not_before => '10000-01-01Z'":                                     "enqueue test/ping: not_before is not a time of the years 1 to 9999",
		event + ", not_before => '0001-12-31Z BC'":                                   "enqueue test/ping: not_before is not a time of the years 1 to 9999",
		event + ", entity_id => '7'":                                                 "enqueue test/ping: entity has an id or version but no type",
		event + ", entity_type => '', entity_version => 7":                           "enqueue test/ping: entity has an id or version but no type",
		event + ", fairness => 'topic', tenant_id => " + tenant:                      "enqueue test/ping: fairness is not 'tenant' or NULL",
		event + ", fairness => 'tenant'":                                             "enqueue test/ping: fairness by tenant needs a tenant_id",
		event + ", tenant_id => '00000000-0000-0000-0000-000000000000'":              "enqueue test/ping: tenant is the zero UUID",
		event + ", tenant_id => " + tenant + ", dedupe_key => 'x'":                   "enqueue test/ping: dedupe key does not start with tenant " + runtimetest.TenantA.String() + " and a slash",
		event + ", tenant_id => " + tenant + ", dedupe_key => " + tenant + " || '/'": "enqueue test/ping: dedupe key has nothing after its tenant",
		event + ", dedupe_key => repeat('€', 171)":                                   "enqueue test/ping: dedupe key has 513 bytes of at most 512",
		event + ", partition_key => repeat('k', 513)":                                "enqueue test/ping: partition key has 513 bytes of at most 512",
		event + ", entity_type => repeat('k', 513)":                                  "enqueue test/ping: entity type has 513 bytes of at most 512",
		event + ", entity_type => 'a', entity_id => repeat('k', 513)":                "enqueue test/ping: entity id has 513 bytes of at most 512",
		event + ", headers => '[]'":                                                  "enqueue test/ping: headers are not an object",
		event + ", headers => 'null'":                                                "enqueue test/ping: headers are not an object",
		event + `, headers => '{"a": "b", "c": 1}'`:                                  "enqueue test/ping: headers have a value that is not a string",
		event + `, headers => '{"a:b": "c"}'`:                                        "enqueue test/ping: header a:b: use a name of 1 to 255 ASCII letters, digits and !#$%&'*+-.^_`|~",
		event + `, headers => '{"": "c"}'`:                                           "enqueue test/ping: header : use a name of 1 to 255 ASCII letters, digits and !#$%&'*+-.^_`|~",
		event + `, headers => jsonb_build_object(repeat('x', 256), 'y')`:             "enqueue test/ping: header " + strings.Repeat("x", 80) + ": use a name of 1 to 255 ASCII letters, digits and !#$%&'*+-.^_`|~",
		event + `, headers => '{"a": "b\r\nc: d"}'`:                                  "enqueue test/ping: header a: use a value without control characters; a tab is allowed",
		event + `, headers => jsonb_build_object('a', repeat('x', 1048576))`:         "enqueue test/ping: headers have more than 1048576 bytes",
	} {
		for _, function := range []string{"enqueue", "enqueue_log"} {
			if function == "enqueue_log" && (strings.Contains(args, "max_attempts") || strings.Contains(args, "not_before") || strings.Contains(args, "fairness")) {
				continue // log topics have no such argument
			}
			_, err := pool.Exec(t.Context(), "SELECT outbox."+function+"("+args+")")
			var pg *pgconn.PgError
			require.ErrorAs(t, err, &pg, "%s(%s)", function, args)
			require.Equal(t, want, pg.Message, "%s(%s)", function, args)
			require.Equal(t, "22023", pg.Code, "%s(%s)", function, args)
		}
	}
	require.Zero(t, pgtest.Count(t, pool, "SELECT (SELECT count(*) FROM outbox.events) + (SELECT count(*) FROM outbox.queue) + (SELECT count(*) FROM outbox.log)"))
}

// TestEnqueueSQLRefusesUnknownArguments: an argument that a function does not have, such as a delay for a log topic, is an
// error with the name of the function.
func TestEnqueueSQLRefusesUnknownArguments(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	for call, want := range map[string]string{
		"enqueue('test', 'ping', '1', delay => '1 s')":                         "function outbox.enqueue(unknown, unknown, unknown, delay => unknown) does not exist",
		"enqueue('test', 'ping')":                                              "function outbox.enqueue(unknown, unknown) does not exist",
		"enqueue('test', 'ping', '{')":                                         "invalid input syntax for type json",
		"enqueue('test', 'ping', '{\"a\": \"\\u0000\"}')":                      "unsupported Unicode escape sequence",
		"enqueue('test', 'ping', '1', tenant_id => 'acme')":                    `invalid input syntax for type uuid: "acme"`,
		"enqueue_log('test', 'ping', '1', not_before => now())":                "function outbox.enqueue_log(unknown, unknown, unknown, not_before => timestamp with time zone) does not exist",
		"enqueue_log('test', 'ping', '1', fairness => 'tenant')":               "function outbox.enqueue_log(unknown, unknown, unknown, fairness => unknown) does not exist",
		"enqueue_log('test', 'ping', '1', max_attempts => 3)":                  "function outbox.enqueue_log(unknown, unknown, unknown, max_attempts => integer) does not exist",
		"enqueue_log('test', 'ping', '1', entity_type => 'a', version => 'b')": `invalid input syntax for type integer: "b"`,
	} {
		_, err := pool.Exec(t.Context(), "SELECT outbox."+call)
		require.ErrorContains(t, err, want, call)
	}
	require.Zero(t, pgtest.Count(t, pool, "SELECT (SELECT count(*) FROM outbox.events) + (SELECT count(*) FROM outbox.queue) + (SELECT count(*) FROM outbox.log)"))
}

// TestEnqueueSQLWritesWhatGoWrites: the same event by the function and by Go gives the same rows, except for its id, key and
// times.
func TestEnqueueSQLWritesWhatGoWrites(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	due := time.Date(2100, 1, 2, 3, 4, 5, 6000, time.UTC)
	tenant := outbox.Tenant(runtimetest.TenantA)
	key := runtimetest.TenantA.String() + "/"
	for name, c := range map[string]struct {
		message outbox.Message
		args    string
		values  []any
	}{
		"the least": {
			outbox.Message{Payload: []byte("null")}, "'test', 'ping', 'null'", nil,
		},
		"empty texts": {
			outbox.Message{Payload: []byte("1"), Headers: map[string]string{}},
			"'test', 'ping', '1', dedupe_key => '', partition_key => '', entity_type => '', entity_id => '', headers => '{}'", nil,
		},
		"everything": {
			outbox.Message{
				Payload: []byte(`{"a": [1.50, "é"]}`), TenantID: tenant, DedupeKey: key + "go", PartitionKey: "p", Version: 3, MaxAttempts: 7, NotBefore: due,
				Entity: outbox.Entity{Type: "order", ID: "o7", Version: 9}, Headers: map[string]string{"a": "b", "x-b": "€"}, Fairness: outbox.FairnessTenant,
			},
			`'test', 'ping', '{"a": [1.50, "é"]}', $1, $2, 'p', 'order', 'o7', 9, '{"a": "b", "x-b": "€"}', 3, 7, $3, 'tenant'`,
			[]any{tenant, key + "sql", due},
		},
		"a tenant without fairness, an entity without version": {
			outbox.Message{Payload: []byte("1"), TenantID: tenant, Entity: outbox.Entity{Type: "order"}},
			"'test', 'ping', '1', tenant_id => $1, entity_type => 'order'", []any{tenant},
		},
	} {
		m := c.message
		m.Namespace, m.Topic = "test", "ping"
		want := runtimetest.EnqueueAll(t, pool, m)[0].ID
		begin := pgtest.Value[time.Time](t, pool, "SELECT clock_timestamp()")
		got, duplicate := enqueueSQL(t, pool, "outbox", c.args, c.values...)
		require.False(t, duplicate, name)
		require.EqualValues(t, 7, got.Version(), name)
		require.Equal(t, uuid.RFC4122, got.Variant(), name)
		sec, nsec := got.Time().UnixTime()
		require.WithinRange(t, time.Unix(sec, nsec), begin.Add(-2*time.Millisecond), pgtest.Value[time.Time](t, pool, "SELECT clock_timestamp()").Add(2*time.Millisecond), name)
		rows := func(id uuid.UUID) string {
			return pgtest.Value[string](t, pool, `SELECT jsonb_pretty(to_jsonb(e) - '{id,dedupe_key,created_at}'::text[]) || jsonb_pretty(to_jsonb(q) - '{id,next_attempt_at,updated_at}'::text[]) ||
				(e.dedupe_key IS NULL)::text || CASE WHEN q.next_attempt_at > now() THEN q.next_attempt_at::text WHEN q.next_attempt_at = e.created_at THEN 'now' ELSE 'at another time' END
				FROM outbox.events AS e JOIN outbox.queue AS q ON q.id = e.id WHERE e.id = $1`, id)
		}
		require.Equal(t, rows(want), rows(got), name)
	}
	fair, shared := topiclane.OfTurns("ping"), topiclane.Of("ping")
	require.Equal(t, map[int32]int{shared: 6, fair: 2}, map[int32]int{
		shared: pgtest.Count(t, pool, "SELECT count(*) FROM outbox.queue WHERE lane = $1", shared), fair: pgtest.Count(t, pool, "SELECT count(*) FROM outbox.queue WHERE lane = $1", fair),
	})
	require.Len(t, runtimetest.ClaimN(t, runtimetest.NewStore(t, pool), 6), 6, "what is due")
}

// TestEnqueueLogSQLWritesWhatGoWrites: the same for log topics. The bucket is compared by TestBucketEqualsSQL if it comes from
// the id.
func TestEnqueueLogSQLWritesWhatGoWrites(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	tenant := outbox.Tenant(runtimetest.TenantA)
	key := runtimetest.TenantA.String() + "/"
	for name, c := range map[string]struct {
		message outbox.Message
		args    string
		values  []any
	}{
		"the least": {
			outbox.Message{Payload: []byte("null")}, "'test', 'ping', 'null'", nil,
		},
		"empty texts": {
			outbox.Message{Payload: []byte("1"), Headers: map[string]string{}},
			"'test', 'ping', '1', dedupe_key => '', partition_key => '', entity_type => '', entity_id => '', headers => '{}'", nil,
		},
		"everything": {
			outbox.Message{
				Payload: []byte(`{"a": [1.50, "é"]}`), TenantID: tenant, DedupeKey: key + "go", PartitionKey: `p\é`, Version: 3,
				Entity: outbox.Entity{Type: "order", ID: "o7", Version: 9}, Headers: map[string]string{"a": "b", "x-b": "€"},
			},
			`'test', 'ping', '{"a": [1.50, "é"]}', $1, $2, E'p\\é', 'order', 'o7', 9, '{"a": "b", "x-b": "€"}', 3`,
			[]any{tenant, key + "sql"},
		},
		"a tenant, an entity without version": {
			outbox.Message{Payload: []byte("1"), TenantID: tenant, Entity: outbox.Entity{Type: "order"}},
			"'test', 'ping', '1', tenant_id => $1, entity_type => 'order'", []any{tenant},
		},
	} {
		m := c.message
		m.Namespace, m.Topic, m.Log = "test", "ping", true
		want := runtimetest.EnqueueAll(t, pool, m)[0].ID
		var got uuid.UUID
		var duplicate bool
		require.NoError(t, pool.QueryRow(t.Context(), "SELECT id, duplicate FROM outbox.enqueue_log("+c.args+")", c.values...).Scan(&got, &duplicate), name)
		require.False(t, duplicate, name)
		rows := func(id uuid.UUID) string {
			return pgtest.Value[string](t, pool, `SELECT jsonb_pretty(to_jsonb(e) - '{id,dedupe_key,created_at,seq,xid,bucket}'::text[]) ||
				(e.dedupe_key IS NULL)::text || CASE WHEN e.partition_key IS NOT NULL THEN e.bucket::text ELSE '' END
				FROM outbox.log AS e WHERE e.id = $1`, id)
		}
		require.Equal(t, rows(want), rows(got), name)
	}
	require.Zero(t, pgtest.Count(t, pool, "SELECT (SELECT count(*) FROM outbox.events) + (SELECT count(*) FROM outbox.queue)"))
}

// TestBucketEqualsSQL: the events of a key are in one shard, whether Go or SQL enqueued them.
func TestBucketEqualsSQL(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	alphabet := []rune("abcXYZ019/-_ \\\n\t'\"%é€𝄞\x01\x7f")
	ms := make([]outbox.Message, 0, 2000)
	for n := range 2000 {
		m := outbox.Message{Namespace: "test", Topic: "ping", Log: true, Payload: []byte("1")}
		if n%2 == 0 {
			var key []rune
			for range 1 + rand.IntN(100) {
				key = append(key, alphabet[rand.IntN(len(alphabet))])
			}
			m.PartitionKey = string(key)
		}
		ms = append(ms, m)
	}
	runtimetest.EnqueueAll(t, pool, ms...)
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.log WHERE bucket <> outbox.bucket(partition_key, id)"))
	require.Greater(t, pgtest.Count(t, pool, "SELECT count(DISTINCT bucket) FROM outbox.log"), 1500)
}

// TestEnqueueSQLKeepsTheOrderOfItsCalls, of which one statement may have many: in the ids of queue topics, whose events are then
// due at the same time, and in the places of a log.
func TestEnqueueSQLKeepsTheOrderOfItsCalls(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	const n = 500
	require.Equal(t, n, pgtest.Count(t, pool, fmt.Sprintf(`SELECT count(*) FROM (SELECT n FROM generate_series(1, %d) AS n ORDER BY n) AS o,
		LATERAL outbox.enqueue('test', 'ping', to_jsonb(o.n)) AS e`, n)))
	require.Equal(t, n, pgtest.Count(t, pool, fmt.Sprintf(`SELECT count(*) FROM (SELECT n FROM generate_series(1, %d) AS n ORDER BY n) AS o,
		LATERAL outbox.enqueue_log('test', 'ping', to_jsonb(o.n)) AS e`, n)))
	require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(DISTINCT next_attempt_at) FROM outbox.queue"))
	require.Zero(t, pgtest.Count(t, pool, `SELECT count(*) FROM (SELECT id, lag(id) OVER (ORDER BY n) AS before
		FROM (SELECT n, outbox.event_id() AS id FROM generate_series(1, 2000) AS n) AS i) AS pairs WHERE id <= before`))
	s := runtimetest.NewStore(t, pool)
	var want, got []string
	for i := range n {
		want = append(want, strconv.Itoa(i+1))
	}
	for len(got) < n {
		claimed := runtimetest.ClaimN(t, s, 100)
		require.NotEmpty(t, claimed)
		for _, c := range claimed {
			got = append(got, string(c.Payload))
		}
	}
	require.Equal(t, want, got)
	require.Equal(t, want, pgtest.Value[[]string](t, pool, "SELECT array_agg(payload::text ORDER BY seq) FROM outbox.log"))
}

// TestEnqueueLogSQLKnowsDuplicates, rolls back with its caller, and wakes a sleeping listener.
func TestEnqueueLogSQLKnowsDuplicates(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	const call = "SELECT id, duplicate FROM outbox.enqueue_log('test', 'ping', '2', dedupe_key => 'a')"
	first := runtimetest.EnqueueAll(t, pool, outbox.Message{Namespace: "test", Topic: "ping", Log: true, DedupeKey: "a", Payload: []byte("1")})[0].ID
	var id uuid.UUID
	var duplicate bool
	require.NoError(t, pool.QueryRow(t.Context(), call).Scan(&id, &duplicate))
	require.True(t, duplicate)
	require.Equal(t, first, id)

	db, err := schemadb.Open("outbox")
	require.NoError(t, err)
	key := db.AdvisoryKey("log topics")
	channel := fmt.Sprintf("outboxgen_%016x", uint64(key))
	ears, sleeper := connection(t, pool), connection(t, pool)
	pgtest.Check(t, execute(t, ears, "LISTEN "+channel))
	pgtest.Check(t, execute(t, sleeper, fmt.Sprintf("SELECT pg_advisory_lock(%d)", key)))
	tx := pgtest.Begin(t, pool, pgx.TxOptions{})
	_, err = tx.Exec(t.Context(), "SELECT outbox.enqueue_log('test', 'ping', '2')")
	require.NoError(t, err)
	require.NoError(t, tx.Rollback(t.Context()))
	pgtest.Execute(t, pool, call)
	pgtest.Execute(t, pool, "SELECT outbox.enqueue_log('test', 'ping', '2', wake => false)")
	pgtest.Check(t, execute(t, ears, "NOTIFY "+channel+", 'quiet'"))
	pgtest.Execute(t, pool, "SELECT outbox.enqueue_log('test', 'ping', '2')")
	for _, want := range []string{"quiet", ""} {
		heard, err := ears.WaitForNotification(t.Context())
		require.NoError(t, err)
		require.Equal(t, want, heard.Payload)
	}
	require.Equal(t, 3, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.log"))
}

// TestEnqueueSQLKnowsDuplicates: of Go, of itself, in the same transaction, and of a transaction that it waits for.
func TestEnqueueSQLKnowsDuplicates(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	first := runtimetest.EnqueueAll(t, pool, outbox.Message{Namespace: "test", Topic: "ping", DedupeKey: "a", Payload: []byte("1")})[0].ID
	id, duplicate := enqueueSQL(t, pool, "outbox", "'test', 'ping', '2', dedupe_key => 'a'")
	require.True(t, duplicate)
	require.Equal(t, first, id)
	second, duplicate := enqueueSQL(t, pool, "outbox", "'test', 'other', '2', dedupe_key => 'a'")
	require.False(t, duplicate, "of another topic")
	require.NotEqual(t, first, second)

	tx := pgtest.Begin(t, pool, pgx.TxOptions{})
	third, duplicate := enqueueSQL(t, tx, "outbox", "'test', 'ping', '3', dedupe_key => 'b'")
	require.False(t, duplicate)
	again, duplicate := enqueueSQL(t, tx, "outbox", "'test', 'ping', '3', dedupe_key => 'b'")
	require.True(t, duplicate)
	require.Equal(t, third, again)
	type answer struct {
		id        uuid.UUID
		duplicate bool
	}
	answered := make(chan answer, 1)
	go func() {
		id, duplicate := enqueueSQL(t, pool, "outbox", "'test', 'ping', '3', dedupe_key => 'b'")
		answered <- answer{id, duplicate}
	}()
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
	require.NoError(t, tx.Commit(t.Context()))
	require.Equal(t, answer{third, true}, pgtest.Receive(t, answered, "the duplicate"))

	receipt := runtimetest.EnqueueAll(t, pool, outbox.Message{Namespace: "test", Topic: "ping", DedupeKey: "b", Payload: []byte("1")})[0]
	require.Equal(t, outbox.Receipt{ID: third, Duplicate: true}, receipt, "Go knows those of SQL")
	require.Equal(t, 3, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.queue"))
}

// TestEnqueueSQLRollsBack with the transaction of its caller.
func TestEnqueueSQLRollsBack(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	tx := pgtest.Begin(t, pool, pgx.TxOptions{})
	enqueueSQL(t, tx, "outbox", "'test', 'ping', '3'")
	require.NoError(t, tx.Rollback(t.Context()))
	require.Zero(t, pgtest.Count(t, pool, "SELECT (SELECT count(*) FROM outbox.events) + (SELECT count(*) FROM outbox.queue)"))
}

// TestEnqueueSQLWakesASleeper: who enqueues rings only if a dispatcher sleeps, which holds the lock of the namespace, and
// not with wake => false. So in every schema: the lock and the channel have the schema in their name.
func TestEnqueueSQLWakesASleeper(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	_, err := migrate.Up(t.Context(), pool, "second")
	require.NoError(t, err)
	for _, schema := range []string{"outbox", "second"} {
		db, err := schemadb.Open(schema)
		require.NoError(t, err)
		key := db.AdvisoryKey("test")
		channel := fmt.Sprintf("outboxgen_%016x", uint64(key))
		ears := connection(t, pool)
		pgtest.Check(t, execute(t, ears, "LISTEN "+channel))
		sleeper := connection(t, pool)

		rings := func(args string) int {
			enqueueSQL(t, pool, schema, args)
			pgtest.Check(t, execute(t, ears, "NOTIFY "+channel+", 'end'"))
			for n := 0; ; n++ {
				heard, err := ears.WaitForNotification(t.Context())
				require.NoError(t, err)
				if heard.Payload == "end" {
					return n
				}
				require.Equal(t, channel, heard.Channel)
			}
		}
		require.Zero(t, rings("'test', 'ping', '1'"), "nobody sleeps")
		pgtest.Check(t, execute(t, sleeper, fmt.Sprintf("SELECT pg_advisory_lock(%d)", key)))
		require.Equal(t, 1, rings("'test', 'ping', '1'"))
		require.Zero(t, rings("'test', 'ping', '1', wake => false"))
		require.Zero(t, rings("'other', 'ping', '1'"), "another namespace")
		enqueueSQL(t, pool, schema, "'test', 'ping', '1', dedupe_key => 'k', wake => false")
		require.Zero(t, rings("'test', 'ping', '1', dedupe_key => 'k'"), "nothing was written")
		pgtest.Check(t, execute(t, sleeper, fmt.Sprintf("SELECT pg_advisory_unlock(%d)", key)))
		require.Equal(t, 5, pgtest.Count(t, pool, "SELECT count(*) FROM "+schema+".queue"))

		// While the transaction of an enqueue is open, nobody can fall asleep.
		tx := pgtest.Begin(t, pool, pgx.TxOptions{})
		enqueueSQL(t, tx, schema, "'test', 'ping', '1'")
		require.False(t, pgtest.Value[bool](t, pool, "SELECT pg_try_advisory_lock($1)", key))
		require.NoError(t, tx.Rollback(t.Context()))
		s, err := queue.NewStore(pool, queue.StoreConfig{Schema: schema, Namespace: "test"})
		require.NoError(t, err)
		require.Len(t, runtimetest.ClaimN(t, s, 4), 4)
	}
}

func connection(t testing.TB, pool *pgxpool.Pool) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), pgtest.URL(t, pool))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	return conn
}

func execute(t testing.TB, conn *pgx.Conn, sql string) error {
	t.Helper()
	_, err := conn.Exec(t.Context(), sql)
	return err
}
