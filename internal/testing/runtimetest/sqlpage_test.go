package runtimetest_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/migrate"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// The payloads of docs/run/sql.md.
type (
	orderPaid struct {
		OrderID uuid.UUID `json:"order_id"`
		Cents   int64     `json:"cents"`
	}
	orderPlaced struct {
		OrderID  uuid.UUID `json:"order_id"`
		Cents    int64     `json:"cents"`
		PlacedAt time.Time `json:"placed_at"`
	}
)

// shop collects what the handlers of the namespace shop get.
type shop struct {
	paid   []outbox.Delivery[orderPaid]
	placed []outbox.Delivery[orderPlaced]
}

func (s *shop) HandlePaid(_ context.Context, d outbox.Delivery[orderPaid]) error {
	s.paid = append(s.paid, d)
	return nil
}

func (s *shop) HandlePlaced(_ context.Context, d outbox.Delivery[orderPlaced]) error {
	s.placed = append(s.placed, d)
	return nil
}

func shopTopic[P any](name string, log bool) outbox.Topic[P] {
	return outbox.NewTopic[P](outbox.TopicSpec{Namespace: "shop", Name: name, Version: 1, Strict: true, Log: log})
}

// handled drains the queue topics of the shop.
func handled(t *testing.T, pool *pgxpool.Pool) *shop {
	t.Helper()
	s := &shop{}
	cfg := runtimetest.QuickConfig()
	cfg.Concurrency = 1
	_, err := runtimetest.Dispatcher(t, pool, cfg,
		queue.Handle(shopTopic[orderPaid]("order_paid", false), s, s.HandlePaid),
		queue.Handle(shopTopic[orderPlaced]("order_placed", false), s, s.HandlePlaced)).Drain(t.Context())
	require.NoError(t, err)
	return s
}

const shopTables = "CREATE TABLE orders (id uuid PRIMARY KEY, cents bigint NOT NULL, placed_at timestamptz NOT NULL DEFAULT now(), paid_at timestamptz)"

var (
	quoted      = regexp.MustCompile(`"((?:UPDATE|SELECT)[^"]*)"|'((?:UPDATE)[^']*)'`)
	placeholder = regexp.MustCompile(`%\((\w+)\)s`)
)

// TestProducersInSQL runs the blocks of docs/run/sql.md: psql, many events in one statement, a trigger, and the statements of the
// programs in Python and Node, with parameters on the server as their drivers send them.
func TestProducersInSQL(t *testing.T) {
	t.Parallel()
	page := runtimetest.OpenPage(t, "../../../docs/run/sql.md")
	first := uuid.MustParse("0190a5c2-7d3e-7b8a-9c1d-2e3f4a5b6c7d")
	database := func(t *testing.T) *pgxpool.Pool {
		pool := pgtest.Plain(t)
		pgtest.Execute(t, pool, shopTables)
		pgtest.Execute(t, pool, "INSERT INTO orders (id, cents) VALUES ($1, 1700)", first)
		return pool
	}
	one := func(t *testing.T, pool *pgxpool.Pool) {
		t.Helper()
		got := handled(t, pool).paid
		require.Len(t, got, 1)
		require.Equal(t, orderPaid{first, 1700}, got[0].Payload)
		require.Equal(t, first.String(), got[0].DedupeKey)
		require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*) FROM orders WHERE paid_at IS NOT NULL"))
	}

	t.Run("psql", func(t *testing.T) {
		pool := database(t)
		text := page.Take(t, "Enqueue from SQL", "sql", 1)[0]
		pgtest.Execute(t, pool, strings.Replace(text, "COMMIT;", "ROLLBACK;", 1))
		require.Empty(t, handled(t, pool).paid)
		for range 2 { // then it is a duplicate
			pgtest.Execute(t, pool, text)
		}
		one(t, pool)
	})

	t.Run("many events", func(t *testing.T) {
		pool := database(t)
		text := page.Take(t, "Many events", "sql", 1)[0]
		pgtest.Execute(t, pool, "INSERT INTO orders (id, cents, paid_at) SELECT ('0190a5c2-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid, n, now() FROM generate_series(1, 300) AS n ORDER BY random()")
		for _, want := range []string{"300 0", "0 300"} {
			var written, duplicates int
			require.NoError(t, pool.QueryRow(t.Context(), text).Scan(&written, &duplicates))
			require.Equal(t, want, fmt.Sprint(written, duplicates))
		}
		for n, d := range handled(t, pool).paid {
			require.EqualValues(t, n+1, d.Payload.Cents, "in the order of the subquery")
		}
		require.Equal(t, 300, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.delivered"))
	})

	t.Run("trigger", func(t *testing.T) {
		blocks := page.Take(t, "From a trigger", "sql", 2)
		pool := database(t)
		pgtest.Execute(t, pool, blocks[0])
		pgtest.InTx(t, pool, func(tx pgx.Tx) {
			_, err := tx.Exec(t.Context(), "SET LOCAL timezone = 'Asia/Kolkata'; INSERT INTO orders (id, cents, placed_at) SELECT gen_random_uuid(), n, '2026-11-23 05:06:07.123456Z' FROM generate_series(1, 3) AS n")
			require.NoError(t, err)
		})
		tx := pgtest.Begin(t, pool, pgx.TxOptions{})
		_, err := tx.Exec(t.Context(), "INSERT INTO orders (id, cents) VALUES (gen_random_uuid(), 4)")
		require.NoError(t, err)
		require.NoError(t, tx.Rollback(t.Context()))
		got := handled(t, pool).placed
		require.Len(t, got, 3)
		for n, d := range got {
			require.EqualValues(t, n+1, d.Payload.Cents)
			require.Equal(t, d.Payload.OrderID.String(), d.DedupeKey)
			require.True(t, d.Payload.PlacedAt.Equal(time.Date(2026, 11, 23, 5, 6, 7, 123456000, time.UTC)), d.Payload.PlacedAt)
		}

		// A role that may change orders and not enqueue. It is rolled back, because roles belong to the whole server.
		tx = pgtest.Begin(t, pool, pgx.TxOptions{})
		defer func() { _ = tx.Rollback(context.Background()) }()
		role := "clerk_" + strings.ReplaceAll(uuid.NewString(), "-", "")
		for _, sql := range []string{"CREATE ROLE " + role, "GRANT SELECT, INSERT ON orders TO " + role, "SAVEPOINT s", "SET LOCAL ROLE " + role} {
			_, err := tx.Exec(t.Context(), sql)
			require.NoError(t, err, sql)
		}
		const insert = "INSERT INTO orders (id, cents) VALUES (gen_random_uuid(), 5)"
		_, err = tx.Exec(t.Context(), insert)
		var pg *pgconn.PgError
		require.ErrorAs(t, err, &pg)
		require.Equal(t, "42501", pg.Code)
		for _, sql := range []string{"ROLLBACK TO s", blocks[1], "SET LOCAL ROLE " + role, insert} {
			_, err := tx.Exec(t.Context(), sql)
			require.NoError(t, err, sql)
		}
	})

	program := func(heading, language string) {
		t.Run(language, func(t *testing.T) {
			pool := database(t)
			text := page.Take(t, heading, language, 1)[0]
			statements := quoted.FindAllStringSubmatch(text, -1)
			require.Len(t, statements, 2)
			pgtest.InTx(t, pool, func(tx pgx.Tx) {
				for _, m := range statements {
					args := []any{first.String(), `{"order_id": "` + first.String() + `", "cents": 1700}`}
					sql := placeholder.ReplaceAllStringFunc(m[1]+m[2], func(name string) string {
						return map[string]string{"%(order)s": "$1", "%(payload)s": "$2"}[name]
					})
					_, err := tx.Exec(t.Context(), sql, args[:strings.Count(sql, "$1")+strings.Count(sql, "$2")]...)
					require.NoError(t, err, sql)
				}
			})
			one(t, pool)
		})
	}
	program("From Python", "python")
	program("From Node", "js")
	page.End(t, "sql", "python", "js")
}

// TestArgumentsOfSQLAreDocumented: docs/run/sql.md has every argument of both functions, with its default, and no other.
func TestArgumentsOfSQLAreDocumented(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	text, err := os.ReadFile("../../../docs/run/sql.md")
	require.NoError(t, err)
	var documented []string
	only := make(map[string]bool) // of enqueue
	_, table, found := strings.Cut(string(text), "| argument | type, default | meaning |\n|---|---|---|\n")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n\n")
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		types := strings.Split(cells[2], ", ") // one for all names, or one each; then the default
		for i, name := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(cells[1], -1) {
			kind, byDefault := types[min(i, max(len(types)-2, 0))], ""
			if len(types) > 1 {
				byDefault = " DEFAULT " + strings.ToLower(strings.TrimSpace(types[len(types)-1]))
			}
			documented = append(documented, name[1]+" "+strings.TrimSpace(kind)+byDefault)
			only[name[1]] = strings.Contains(cells[3], "Only `enqueue`")
		}
	}
	for _, function := range []string{"enqueue", "enqueue_log"} {
		var want []string
		for _, d := range documented {
			if name, _, _ := strings.Cut(d, " "); function == "enqueue" || !only[name] {
				want = append(want, d)
			}
		}
		arguments := pgtest.Value[string](t, pool, "SELECT pg_get_function_arguments(('outbox.' || $1)::regproc)", function)
		arguments = strings.NewReplacer("timestamp with time zone", "timestamptz", "NULL::", "null::", ", OUT id uuid, OUT duplicate boolean", "").Replace(arguments)
		arguments = regexp.MustCompile("::[a-z ]+").ReplaceAllString(arguments, "")
		require.ElementsMatch(t, want, strings.Split(arguments, ", "), function)
	}
}

// TestPayloadsOfSQLThatDoNotFit: a payload that another language got wrong is a dead letter whose reason names the field, and its
// values are not in it. The events around it are delivered.
func TestPayloadsOfSQLThatDoNotFit(t *testing.T) {
	t.Parallel()
	const good = `{"order_id": "0190a5c2-7d3e-7b8a-9c1d-2e3f4a5b6c7d", "cents": 1}`
	cases := []struct{ payload, reason string }{
		{`{"cents": 1}`, "order_id"},
		{`{"order_id": null, "cents": 1}`, "order_id"},
		{`{"order_id": "s3cret", "cents": 1}`, "order_id"},
		{`{"order_id": "0190a5c2-7d3e-7b8a-9c1d-2e3f4a5b6c7d"}`, "cents"},
		{`{"order_id": "0190a5c2-7d3e-7b8a-9c1d-2e3f4a5b6c7d", "cents": "s3cret"}`, "cents"},
		{`["s3cret"]`, "array"},
		{`null`, "null"},
	}
	for _, log := range []bool{false, true} {
		t.Run(fmt.Sprintf("log %t", log), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Plain(t)
			function := "outbox.enqueue"
			if log {
				function = "outbox.enqueue_log"
			}
			for _, c := range cases {
				for _, p := range []string{c.payload, good} {
					pgtest.Execute(t, pool, "SELECT "+function+"('shop', 'order_paid', $1)", p)
				}
			}
			var got []outbox.Delivery[orderPaid]
			if log {
				s := &shop{}
				l, err := listener.New(pool, listener.Spec{Name: "ears"}, listener.Config{Logger: runtimetest.DiscardLogger(), Concurrency: 1},
					listener.Handle(shopTopic[orderPaid]("order_paid", true), s, s.HandlePaid))
				require.NoError(t, err)
				runtimetest.DrainAll(t, l)
				got = s.paid
			} else {
				got = handled(t, pool).paid
			}
			require.Len(t, got, len(cases))
			rows, err := pool.Query(t.Context(), "SELECT payload::text, error, attempts FROM outbox.dead_letters ORDER BY id")
			require.NoError(t, err)
			n := 0
			var letter, reason string
			var attempts int
			_, err = pgx.ForEachRow(rows, []any{&letter, &reason, &attempts}, func() error {
				require.JSONEq(t, cases[n].payload, letter)
				require.Contains(t, reason, cases[n].reason)
				require.NotContains(t, reason, "s3cret")
				require.Equal(t, 1, attempts, reason)
				n++
				return nil
			})
			require.NoError(t, err)
			require.Equal(t, len(cases), n)
		})
	}
}

// TestRolesEnqueueInSQL: outbox_producer suffices for both functions, and a role without it is refused.
func TestRolesEnqueueInSQL(t *testing.T) {
	t.Parallel()
	pool := pgtest.Plain(t)
	roles := runtimetest.RolePools(t, pool)
	for _, function := range []string{"enqueue", "enqueue_log"} {
		call := "SELECT outbox." + function + "('shop', 'order_paid', '{}', dedupe_key => 'k', partition_key => 'p')"
		for range 2 { // then it is a duplicate
			pgtest.Execute(t, roles[migrate.Producer], call)
		}
		_, err := roles[migrate.Reader].Exec(t.Context(), call)
		var pg *pgconn.PgError
		require.ErrorAs(t, err, &pg)
		require.Equal(t, "42501", pg.Code)
	}
	require.Equal(t, 2, pgtest.Count(t, pool, "SELECT (SELECT count(*) FROM outbox.events) + (SELECT count(*) FROM outbox.log)"))
}
