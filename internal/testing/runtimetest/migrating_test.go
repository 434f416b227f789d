package runtimetest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// The payloads of docs/start/migrating.md.
type (
	orderChanged struct {
		OrderID string `json:"order_id"`
		N       int64  `json:"n"`
	}
	mailRequested struct {
		To string `json:"to"`
		N  int64  `json:"n"`
	}
)

var (
	changedTopic = shopTopic[orderChanged]("order_changed", true)
	mailTopic    = shopTopic[mailRequested]("mail_requested", false)
)

// sides collects what each side has delivered, in order: "a 4".
type sides struct {
	mu       sync.Mutex
	old      []string // by the old publisher
	log, que []string // by outboxgen
}

func (s *sides) HandleChanged(_ context.Context, d outbox.Delivery[orderChanged]) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, fmt.Sprint(d.Payload.OrderID, " ", d.Payload.N))
	return nil
}

func (s *sides) HandleMail(_ context.Context, d outbox.Delivery[mailRequested]) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.que = append(s.que, fmt.Sprint(d.Payload.To, " ", d.Payload.N))
	return nil
}

// start runs a listener and a dispatcher until the test ends.
func (s *sides) start(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	l, err := listener.New(pool, listener.Spec{Name: "ears"}, listener.Config{Logger: runtimetest.DiscardLogger()}, listener.Handle(changedTopic, s, s.HandleChanged))
	require.NoError(t, err)
	t.Cleanup(runtimetest.StartListener(t, l))
	runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), queue.Handle(mailTopic, s, s.HandleMail)))
}

// of returns the events of a key in the order in which outboxgen has delivered them.
func (s *sides) of(key string) (ns []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, event := range append(slices.Clone(s.log), s.que...) {
		if k, n, _ := strings.Cut(event, " "); k == key {
			ns = append(ns, n)
		}
	}
	return ns
}

// await waits until outboxgen has delivered these events of a key.
func (s *sides) await(t *testing.T, key, want string, anyOrder bool) {
	t.Helper()
	pgtest.Eventually(t, func() bool {
		got := s.of(key)
		if anyOrder {
			slices.Sort(got)
		}
		return strings.Join(got, " ") == want
	}, func() string { return fmt.Sprintf("of %s: %v, not %s", key, s.of(key), want) })
}

// oldTable is a hand-written outbox of docs/start/migrating.md.
type oldTable struct {
	heading, name string
	create        string
	types         [3]string // of the log topic, the queue topic, and one that stays
	insert        string    // type, payload
	done          string    // what the publisher does with the rows that it has sent, by payload
	waiting       string    // what of the old table is not done: payloads
	reset         string    // everything that was moved is pending again, by mistake
}

var oldTables = []oldTable{
	{
		heading: "A table with processed_at", name: "outbox_events",
		create: `CREATE TABLE outbox_events (id bigserial PRIMARY KEY, topic text NOT NULL, payload jsonb NOT NULL,
			created_at timestamptz NOT NULL DEFAULT now(), processed_at timestamptz)`,
		types:   [3]string{"order.changed", "mail.requested", "stock.counted"},
		insert:  "INSERT INTO outbox_events (topic, payload) VALUES ($1, $2) RETURNING id::text",
		done:    "UPDATE outbox_events SET processed_at = now() WHERE payload = $1::jsonb",
		waiting: "SELECT payload::text FROM outbox_events WHERE processed_at IS NULL ORDER BY id",
		reset:   "UPDATE outbox_events SET processed_at = NULL WHERE payload ->> 'n' NOT IN ('1', '2', '3', '4')",
	},
	{
		heading: "A table by Debezium's names", name: "outbox_messages",
		create: `CREATE TABLE outbox_messages (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregate_type text NOT NULL, aggregate_id text NOT NULL,
			type text NOT NULL, payload jsonb NOT NULL, created_at timestamptz NOT NULL DEFAULT now())`,
		types:   [3]string{"OrderChanged", "MailRequested", "StockCounted"},
		insert:  "INSERT INTO outbox_messages (type, aggregate_type, aggregate_id, payload) VALUES ($1, 'order', coalesce($2::jsonb ->> 'order_id', ''), $2::jsonb)",
		done:    "DELETE FROM outbox_messages WHERE payload = $1::jsonb",
		waiting: "SELECT payload::text FROM outbox_messages ORDER BY created_at",
	},
	{
		heading: "A table with a status", name: "outbox_jobs",
		create: `CREATE TABLE outbox_jobs (id bigserial PRIMARY KEY, type text NOT NULL, payload text NOT NULL, status text NOT NULL DEFAULT 'pending',
			attempts int NOT NULL DEFAULT 0, available_at timestamptz NOT NULL DEFAULT now(), locked_until timestamptz, last_error text)`,
		types:   [3]string{"order_changed", "mail_requested", "stock_counted"},
		insert:  "INSERT INTO outbox_jobs (type, payload) VALUES ($1, $2) RETURNING id::text",
		done:    "UPDATE outbox_jobs SET status = 'done', locked_until = NULL WHERE payload = $1",
		waiting: "SELECT payload FROM outbox_jobs WHERE status IN ('pending', 'processing') ORDER BY id",
		reset:   "UPDATE outbox_jobs SET status = 'pending' WHERE status = 'done' AND payload::jsonb ->> 'n' NOT IN ('1', '2', '3', '4')",
	},
}

// old is what the old producer and publisher do.
type old struct {
	oldTable
	sides *sides
}

type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// produce inserts an event: "a 4" of the log topic, "mail 4" of the queue topic, "stock 4" of the one that stays.
func (o old) produce(t *testing.T, db execer, events ...string) {
	t.Helper()
	for _, event := range events {
		kind := o.types[0]
		switch key, _, _ := strings.Cut(event, " "); key {
		case "mail":
			kind = o.types[1]
		case "stock":
			kind = o.types[2]
		}
		tag, err := db.Exec(t.Context(), o.insert, kind, payloadOf(event))
		require.NoError(t, err, event)
		if strings.Contains(o.insert, "RETURNING") {
			require.EqualValues(t, 1, tag.RowsAffected(), "old code gets its row")
		}
	}
}

// sends delivers events and marks their rows.
func (o old) sends(t *testing.T, db execer, events ...string) {
	t.Helper()
	for _, event := range events {
		o.sides.old = append(o.sides.old, event)
		_, err := db.Exec(t.Context(), o.done, payloadOf(event))
		require.NoError(t, err, event)
	}
}

// holds locks the rows of events, as a publisher does while it sends them.
func (o old) holds(t *testing.T, tx pgx.Tx, events ...string) {
	t.Helper()
	for _, event := range events {
		tag, err := tx.Exec(t.Context(), "SELECT FROM "+o.name+" WHERE payload::jsonb = $1::jsonb FOR UPDATE SKIP LOCKED", payloadOf(event))
		require.NoError(t, err)
		require.EqualValues(t, 1, tag.RowsAffected(), event)
	}
}

func payloadOf(event string) string {
	key, n, _ := strings.Cut(event, " ")
	switch key {
	case "mail":
		return `{"n": ` + n + `, "to": "mail"}`
	case "stock":
		return `{"n": ` + n + `}`
	}
	return `{"n": ` + n + `, "order_id": "` + key + `"}`
}

// move runs the SQL of a section until it does not wait for a lock in vain.
func move(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	for {
		_, err := pool.Exec(t.Context(), sql)
		var pg *pgconn.PgError
		if errors.As(err, &pg) && pg.Code == "55P03" {
			require.Equal(t, "canceling statement due to lock timeout", pg.Message)
			continue
		}
		pgtest.Check(t, err)
		return
	}
}

func series(key string, from, to int) (events []string) {
	for n := from; n <= to; n++ {
		events = append(events, fmt.Sprint(key, " ", n))
	}
	return events
}

// TestMovingAHandWrittenTable takes the steps of docs/start/migrating.md with its SQL, while a listener and a dispatcher run: old events
// that are done, pending and in flight, producers that are in the middle of a transaction, old and new producers together, and
// the SQL a second time. Every event is delivered by one side, once, and in order per key.
func TestMovingAHandWrittenTable(t *testing.T) {
	t.Parallel()
	page := runtimetest.OpenPage(t, "../../../docs/start/migrating.md")
	for _, table := range oldTables {
		n := 2
		switch table.name {
		case "outbox_events", "outbox_jobs":
			n = 3
		}
		blocks := page.Take(t, table.heading, "sql", n)
		t.Run(table.name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Plain(t)
			pgtest.Execute(t, pool, table.create)
			s := &sides{}
			o := old{table, s}
			s.start(t, pool)
			o.produce(t, pool, slices.Concat(series("a", 1, 3), series("b", 1, 3), series("mail", 1, 1), series("stock", 1, 1))...)
			o.sends(t, pool, slices.Concat(series("a", 1, 3), series("b", 1, 3), series("mail", 1, 1), series("stock", 1, 1))...)
			for i := 4; i <= 6; i++ {
				o.produce(t, pool, slices.Concat(series("a", i, i), series("b", i, i), series("mail", i-2, i-2), series("stock", i-2, i-2))...)
			}

			// In flight: a publisher that commits, one that rolls back, and a producer.
			commits, fails, producer := pgtest.Begin(t, pool, pgx.TxOptions{}), pgtest.Begin(t, pool, pgx.TxOptions{}), pgtest.Begin(t, pool, pgx.TxOptions{})
			o.holds(t, commits, "a 4", "mail 2")
			o.holds(t, fails, "b 4", "mail 3")
			o.produce(t, producer, "b 7")
			pgtest.Execute(t, pool, blocks[0])
			moved := make(chan struct{})
			go func() {
				defer close(moved)
				move(t, pool, blocks[1])
			}()
			pgtest.AwaitBlocked(t, pool, 1)
			require.NoError(t, producer.Commit(t.Context()))
			pgtest.AwaitBlocked(t, pool, 1) // by the publishers
			require.NoError(t, fails.Rollback(t.Context()))
			o.sends(t, commits, "a 4", "mail 2")
			require.NoError(t, commits.Commit(t.Context()))
			pgtest.Receive(t, moved, "the move")

			// Old and new producers together, and a rollback.
			o.produce(t, pool, "a 7", "b 8", "mail 5", "stock 5")
			enqueueNew(t, pool, "a 8", "mail 6")
			o.produce(t, pool, "a 9", "mail 7")
			tx := pgtest.Begin(t, pool, pgx.TxOptions{})
			o.produce(t, tx, "a 10", "mail 8")
			require.NoError(t, tx.Rollback(t.Context()))

			// Again: nothing is moved twice, even if somebody resets the old rows.
			for range 2 {
				move(t, pool, blocks[1])
				if table.reset != "" {
					pgtest.Execute(t, pool, table.reset)
				}
			}
			move(t, pool, blocks[1])
			s.await(t, "a", "5 6 7 8 9", false)
			s.await(t, "b", "4 5 6 7 8", false)
			s.await(t, "mail", "3 4 5 6 7", true)
			requireWaiting(t, pool, table, series("stock", 2, 5)...)
			require.Equal(t, slices.Concat(series("a", 1, 3), series("b", 1, 3), []string{"mail 1", "stock 1", "a 4", "mail 2"}), s.old)
			requireNothingElse(t, pool, 10, 5)
			if table.name == "outbox_events" {
				pgtest.Execute(t, pool, blocks[2])
				o.produce(t, pool, "a 11")
				requireWaiting(t, pool, table, append(series("stock", 2, 5), "a 11")...)
			}
		})
	}

	// The leases and delays of the third shape.
	blocks := page.Take(t, "A table with a status", "sql", 3)
	t.Run("leases", func(t *testing.T) {
		t.Parallel()
		pool := pgtest.Plain(t)
		table := oldTables[2]
		pgtest.Execute(t, pool, table.create)
		s := &sides{}
		o := old{table, s}
		s.start(t, pool)
		o.produce(t, pool, slices.Concat(series("a", 1, 4), series("mail", 1, 5))...)
		row := func(event, set string) {
			pgtest.Execute(t, pool, "UPDATE outbox_jobs SET "+set+" WHERE payload = $1", payloadOf(event))
		}
		row("a 1", "status = 'processing', attempts = 1, locked_until = now() + interval '1 hour'")
		row("a 2", "status = 'processing', attempts = 1, locked_until = now() - interval '1 second'")
		row("mail 1", "status = 'processing', attempts = 1, locked_until = now() + interval '1 hour'")
		row("mail 2", "status = 'processing', attempts = 3, locked_until = NULL")
		row("mail 3", "attempts = 23, available_at = now() + interval '1 hour', last_error = 'x'")
		row("mail 4", "status = 'failed', attempts = 25, last_error = 'x'")
		pgtest.Execute(t, pool, blocks[0])
		move(t, pool, blocks[1])
		s.await(t, "a", "2 3 4", false)
		s.await(t, "mail", "2 5", true)
		require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.queue WHERE max_attempts = 2 AND next_attempt_at > now() + interval '50 minutes'"))
		requireWaiting(t, pool, table, "a 1", "mail 1")
		require.Equal(t, 2, pgtest.Count(t, pool, "SELECT count FROM ("+strings.TrimSuffix(strings.TrimSpace(blocks[2]), ";")+") AS q"), "what still runs")

		o.sends(t, pool, "mail 1")                            // a worker succeeds
		row("a 1", "status = 'pending', locked_until = NULL") // and one fails
		move(t, pool, blocks[1])
		s.await(t, "a", "2 3 4 1", false)
		pgtest.Execute(t, pool, "UPDATE outbox.queue SET next_attempt_at = now()")
		s.await(t, "mail", "2 3 5", true)
		require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM ("+strings.TrimSuffix(strings.TrimSpace(blocks[2]), ";")+") AS q"))
		require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*) FROM outbox_jobs WHERE status = 'failed'"), "what was given up stays")
		requireNothingElse(t, pool, 4, 3)
	})
}

func requireWaiting(t *testing.T, pool *pgxpool.Pool, table oldTable, events ...string) {
	t.Helper()
	rows, err := pool.Query(t.Context(), table.waiting)
	require.NoError(t, err)
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	var want []string
	for _, event := range events {
		want = append(want, payloadOf(event))
	}
	require.ElementsMatch(t, want, got, "what stays with the old publisher")
}

// requireNothingElse: outboxgen has so many events of the log and of the queue, all of them delivered.
func requireNothingElse(t *testing.T, pool *pgxpool.Pool, log, queue int) {
	t.Helper()
	require.Equal(t, log, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.log"))
	require.Equal(t, queue, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.events"))
	pgtest.Settles(t, pool, 0, "SELECT count(*) FROM outbox.queue")
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.dead_letters"))
}

// enqueueNew is what the new producers do.
func enqueueNew(t *testing.T, pool *pgxpool.Pool, events ...string) {
	t.Helper()
	for _, event := range events {
		var n int64
		key, text, _ := strings.Cut(event, " ")
		_, err := fmt.Sscan(text, &n)
		require.NoError(t, err)
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			if key == "mail" {
				_, err := mailTopic.Enqueue(t.Context(), tx, mailRequested{key, n})
				return err
			}
			_, err := outbox.Enqueue(t.Context(), tx, "", outbox.Message{Namespace: "shop", Topic: "order_changed", Log: true, PartitionKey: key, Payload: []byte(payloadOf(event))})
			return err
		}))
	}
}

// graphile is what docs/start/migrating.md needs of graphile-worker: the documented view and function, and a minimum below them.
const graphile = `
	CREATE SCHEMA graphile_worker;
	CREATE TABLE graphile_worker._private_tasks (id int PRIMARY KEY GENERATED ALWAYS AS IDENTITY, identifier text UNIQUE NOT NULL);
	CREATE TABLE graphile_worker._private_jobs (
		id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, task_id int NOT NULL, payload json NOT NULL DEFAULT '{}', priority smallint NOT NULL DEFAULT 0,
		run_at timestamptz NOT NULL DEFAULT now(), attempts smallint NOT NULL DEFAULT 0, max_attempts smallint NOT NULL DEFAULT 25, last_error text,
		key text UNIQUE, locked_at timestamptz, locked_by text);
	CREATE VIEW graphile_worker.jobs AS
		SELECT j.id, t.identifier AS task_identifier, j.priority, j.run_at, j.attempts, j.max_attempts, j.last_error, j.key, j.locked_at, j.locked_by
		FROM graphile_worker._private_jobs AS j JOIN graphile_worker._private_tasks AS t ON t.id = j.task_id;
	CREATE FUNCTION graphile_worker.complete_jobs(job_ids bigint[]) RETURNS SETOF graphile_worker._private_jobs LANGUAGE sql AS $$
		DELETE FROM graphile_worker._private_jobs WHERE id = ANY (job_ids) AND (locked_at IS NULL OR locked_at < now() - interval '4 hours') RETURNING *
	$$;
	INSERT INTO graphile_worker._private_tasks (identifier) VALUES ('order_placed'), ('stock_counted');`

// TestMovingFromGraphile: jobs that are running, given up or of another task stay, delays and attempts are kept, and a task that
// enqueues is as good as the move. River and watermill are tested in the module bench, which has them.
func TestMovingFromGraphile(t *testing.T) {
	t.Parallel()
	page := runtimetest.OpenPage(t, "../../../docs/start/migrating.md")
	text, task := page.Take(t, "graphile-worker", "sql", 1)[0], page.Take(t, "graphile-worker", "js", 1)[0]
	pool := pgtest.Plain(t)
	pgtest.Execute(t, pool, graphile)
	pgtest.Execute(t, pool, `INSERT INTO graphile_worker._private_jobs (task_id, payload, priority, attempts, max_attempts, run_at, locked_at) VALUES
		(1, '{"to": "x", "n": 1}', 5, 0, 25, now(), NULL),
		(1, '{"to": "x", "n": 2}', 0, 0, 25, now(), NULL),
		(1, '{"to": "x", "n": 3}', 0, 2, 25, now(), now()),
		(1, '{"to": "x", "n": 4}', 0, 20, 25, now() + interval '1 hour', NULL),
		(1, '{"to": "x", "n": 5}', 0, 25, 25, now(), NULL),
		(2, '{"to": "x", "n": 6}', 0, 0, 25, now(), NULL)`)
	for _, want := range []int{3, 0} {
		require.Equal(t, want, pgtest.Count(t, pool, text))
	}
	require.Equal(t, []int64{3, 5, 6}, pgtest.Value[[]int64](t, pool, "SELECT array_agg(id ORDER BY id) FROM graphile_worker._private_jobs"))
	statement := quoted.FindStringSubmatch(task)[1]
	for range 2 { // the task of the running job, which is tried again
		pgtest.Execute(t, pool, statement, `{"to": "x", "n": 3}`, "3")
	}
	require.Equal(t, []string{"2 25 f", "4 5 t", "1 25 f", "3 25 f"}, pgtest.Value[[]string](t, pool, `SELECT array_agg(concat_ws(' ', e.payload ->> 'n', q.max_attempts,
		(q.next_attempt_at > now() + interval '50 minutes')) ORDER BY e.id) FROM outbox.events AS e JOIN outbox.queue AS q ON q.id = e.id`))
	require.Equal(t, []string{"graphile/1", "graphile/2", "graphile/3", "graphile/4"}, pgtest.Value[[]string](t, pool, "SELECT array_agg(dedupe_key ORDER BY dedupe_key) FROM outbox.events"))

	for heading, n := range map[string]int{"A table with processed_at": 3, "A table by Debezium's names": 2, "A table with a status": 3, "River": 2, "watermill-sql": 3} {
		page.Take(t, heading, "sql", n) // other tests run them
	}
	page.End(t, "sql", "js")
}
