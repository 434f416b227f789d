package drivertest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/lib/pq"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	"github.com/uptrace/bun/driver/pgdriver"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/sqltx"
	"github.com/outboxgen/outboxgen/sqltx/drivertest/events"
)

// each runs test for each library, on a database of its own with a table of orders.
func each(t *testing.T, test func(t *testing.T, pool *pgxpool.Pool, l library)) {
	for name, open := range libraries {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			pgtest.Execute(t, pool, "CREATE TABLE orders (id uuid PRIMARY KEY)")
			test(t, pool, open(t, pool))
		})
	}
}

// start begins a transaction that is rolled back after the test, unless it is over by then.
func (l library) start(t testing.TB, level sql.IsolationLevel) *transaction {
	t.Helper()
	tx, err := l.begin(t.Context(), level)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.rollback() })
	return tx
}

// message returns an event of a queue topic or of a log topic. The same n have the same dedupe key.
func message(log bool, n int) outbox.Message {
	return outbox.Message{
		Namespace: "test", Topic: "ping", Log: log, TenantID: outbox.Tenant(runtimetest.TenantA),
		DedupeKey: fmt.Sprintf("%s/%d", runtimetest.TenantA, n), Payload: []byte(`{"a": [1.50, "é", "\"q\\\" {,}"], "n": null}`),
	}
}

func count(t testing.TB, pool *pgxpool.Pool, log bool) int {
	t.Helper()
	if log {
		return pgtest.Count(t, pool, "SELECT count(*) FROM outbox.log")
	}
	events := pgtest.Count(t, pool, "SELECT count(*) FROM outbox.events")
	require.Equal(t, events, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.queue"))
	return events
}

// TestExamplesOfTheDocs: the order and its event commit together, the event reaches a dispatcher, and neither is there if one
// of them fails.
func TestExamplesOfTheDocs(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, pool *pgxpool.Pool, l library) {
		order := events.OrderPaid{OrderID: uuid.New(), Cents: 1<<62 + 1, Note: `"é" \ {,} ' $1 ?`}
		require.NoError(t, l.pay(t.Context(), order))
		require.Error(t, l.pay(t.Context(), order), "the order exists already")
		require.ErrorIs(t, l.pay(t.Context(), events.OrderPaid{OrderID: uuid.New(), Cents: -1}), outbox.ErrPayloadInvalid)
		require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*) FROM orders"))
		require.Equal(t, 1, count(t, pool, false))
		got := make(chan events.OrderPaid, 1)
		d, err := events.NewShopDispatcher(pool, handler(got), runtimetest.QuickConfig())
		require.NoError(t, err)
		stop := runtimetest.StartDispatcher(t, d)
		require.Equal(t, order, pgtest.Receive(t, got, "the event"))
		require.NoError(t, stop())
	})
}

type handler chan events.OrderPaid

func (h handler) HandleOrderPaid(_ context.Context, d outbox.Delivery[events.OrderPaid]) error {
	h <- d.Payload
	return nil
}

func TestCommitAndRollback(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, pool *pgxpool.Pool, l library) {
		for _, log := range []bool{false, true} {
			before := count(t, pool, log)
			for n, commit := range []bool{true, false} {
				tx := l.start(t, sql.LevelDefault)
				r, err := outbox.Enqueue(t.Context(), tx.tx, "", message(log, n))
				require.NoError(t, err)
				require.False(t, r.Duplicate)
				_, err = outbox.EnqueueMany(t.Context(), tx.tx, "", []outbox.Message{message(log, n+10), message(log, n+20)})
				require.NoError(t, err)
				require.Equal(t, before+3*n, count(t, pool, log), "nobody sees an event before the commit")
				if !commit {
					require.NoError(t, tx.rollback())
					continue
				}
				require.NoError(t, tx.commit())
				require.Equal(t, before+3, count(t, pool, log))
			}
			require.Equal(t, before+3, count(t, pool, log))
		}
	})
}

// TestCommitAndRollbackOfTheWrapper: whoever has only the outbox.Tx can end the transaction too.
func TestCommitAndRollbackOfTheWrapper(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, pool *pgxpool.Pool, l library) {
		for n, end := range []func(outbox.Tx) error{
			func(tx outbox.Tx) error { return tx.Commit(t.Context()) },
			func(tx outbox.Tx) error { return tx.Rollback(t.Context()) },
		} {
			tx := l.start(t, sql.LevelDefault)
			_, err := outbox.Enqueue(t.Context(), tx.tx, "", message(false, n))
			require.NoError(t, err)
			require.NoError(t, end(tx.tx))
		}
		require.Equal(t, 1, count(t, pool, false))
	})
}

func TestDuplicates(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, pool *pgxpool.Pool, l library) {
		for _, log := range []bool{false, true} {
			first := runtimetest.EnqueueAll(t, pool, message(log, 1))[0]
			tx := l.start(t, sql.LevelDefault)
			r, err := outbox.Enqueue(t.Context(), tx.tx, "", message(log, 1))
			require.NoError(t, err)
			require.Equal(t, outbox.Receipt{ID: first.ID, Duplicate: true}, r)
			own, err := outbox.Enqueue(t.Context(), tx.tx, "", message(log, 2))
			require.NoError(t, err)
			require.False(t, own.Duplicate)
			many, err := outbox.EnqueueMany(t.Context(), tx.tx, "", []outbox.Message{message(log, 2), message(log, 3), message(log, 1), message(log, 3)})
			require.NoError(t, err)
			require.Equal(t, outbox.Receipt{ID: own.ID, Duplicate: true}, many[0])
			require.Equal(t, outbox.Receipt{ID: first.ID, Duplicate: true}, many[2])
			require.Equal(t, many[1].ID, many[3].ID)
			require.NotEqual(t, many[1].Duplicate, many[3].Duplicate)
			all, err := outbox.EnqueueMany(t.Context(), tx.tx, "", []outbox.Message{message(log, 2), message(log, 1)})
			require.NoError(t, err)
			require.Equal(t, []outbox.Receipt{{ID: own.ID, Duplicate: true}, {ID: first.ID, Duplicate: true}}, all)
			require.NoError(t, tx.commit())
			require.Equal(t, 3, count(t, pool, log))
		}
	})
}

// TestConcurrentDuplicates: an enqueue waits for the transaction that has its key, and neither aborts.
func TestConcurrentDuplicates(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, pool *pgxpool.Pool, l library) {
		n := 0
		for _, log := range []bool{false, true} {
			for _, many := range []bool{false, true} {
				for _, commit := range []bool{true, false} {
					n++
					enqueue := func(tx *transaction) (outbox.Receipt, error) {
						if !many {
							return outbox.Enqueue(t.Context(), tx.tx, "", message(log, n))
						}
						rs, err := outbox.EnqueueMany(t.Context(), tx.tx, "", []outbox.Message{message(log, n), message(log, n+100)})
						if err != nil {
							return outbox.Receipt{}, err
						}
						return rs[0], nil
					}
					one, two := l.start(t, sql.LevelDefault), l.start(t, sql.LevelDefault)
					first, err := enqueue(one)
					require.NoError(t, err)
					type result struct {
						receipt outbox.Receipt
						err     error
					}
					done := make(chan result, 1)
					go func() {
						r, err := enqueue(two)
						done <- result{r, err}
					}()
					pgtest.AwaitBlocked(t, pool, 1)
					if commit {
						require.NoError(t, one.commit())
					} else {
						require.NoError(t, one.rollback())
					}
					second := pgtest.Receive(t, done, "the second enqueue")
					require.NoError(t, second.err)
					require.Equal(t, commit, second.receipt.Duplicate)
					require.Equal(t, commit, second.receipt.ID == first.ID)
					require.NoError(t, two.exec(t.Context(), "SELECT 1"))
					require.NoError(t, two.commit())
				}
			}
		}
		require.Equal(t, 6, count(t, pool, false))
		require.Equal(t, 6, count(t, pool, true))
	})
}

// TestWritesWhatPgxWrites: more events than a statement has, with every column filled, empty and mixed, by Enqueue and by
// EnqueueMany. The rows are those that pgx writes.
func TestWritesWhatPgxWrites(t *testing.T) {
	t.Parallel()
	const n = 1100
	each(t, func(t *testing.T, pool *pgxpool.Pool, l library) {
		for _, log := range []bool{false, true} {
			for _, sparse := range []bool{false, true} {
				ms := make([]outbox.Message, n)
				for i := range ms {
					ms[i] = outbox.Message{Namespace: "test", Topic: fmt.Sprint("many_", sparse), Log: log, Payload: fmt.Appendf(nil, `{"n": %d, "s": "\"\\ é{,}\n NULL"}`, i)}
					if sparse {
						continue
					}
					ms[i].Payload = []byte([]string{"null", `""`, "1.50", "[ ]", `"NULL"`, `"\u0001\\\""`}[i%6])
					if i%2 == 0 {
						ms[i].TenantID = outbox.Tenant(runtimetest.TenantA)
					}
					if i%3 == 0 {
						ms[i].PartitionKey = []string{"NULL", `a"b\c{,}`, " é ", "null", "'", "$1 ?"}[i/3%6]
					}
					if i%4 == 0 {
						ms[i].Entity = outbox.Entity{Type: "order", ID: fmt.Sprint(i), Version: []int64{0, 1<<63 - 1, -1}[i/4%3]}
					}
					if i%5 == 0 {
						ms[i].Headers = map[string]string{"a'$1|~": `"\ é {,} ?`, "B-`^#%": "", "n": fmt.Sprint(i)}
					}
					if i%8 != 0 {
						ms[i].DedupeKey = fmt.Sprintf(`%s"{\,/%d`, map[bool]string{true: runtimetest.TenantA.String() + "/"}[i%2 == 0], n-i)
					}
					if !log {
						ms[i].MaxAttempts = 1 + i%40
						if i%2 == 0 && i%3 == 0 {
							ms[i].Fairness = outbox.FairnessTenant
						}
						if i%7 == 0 {
							ms[i].NotBefore = time.Date([]int{1, 999, 1970, 2100, 9999}[i/7%5], 12, 31, 23, 59, 59, 123456789, time.FixedZone("", 3600*(i%12)))
						}
					}
				}
				write := func(tx outbox.Tx, namespace string) (receipts []outbox.Receipt) {
					of := make([]outbox.Message, n)
					for i := range ms {
						of[i] = ms[i]
						of[i].Namespace = namespace
					}
					for i := range of[:60] {
						r, err := outbox.Enqueue(t.Context(), tx, "", of[i])
						require.NoError(t, err)
						require.False(t, r.Duplicate)
						receipts = append(receipts, r)
					}
					rs, err := outbox.EnqueueMany(t.Context(), tx, "", of[60:])
					require.NoError(t, err)
					return append(receipts, rs...)
				}
				tx := l.start(t, sql.LevelDefault)
				got := write(tx.tx, "theirs")
				require.NoError(t, tx.commit())
				var want []outbox.Receipt
				pgtest.InTx(t, pool, func(tx pgx.Tx) { want = write(tx, "ours") })
				require.Equal(t, rowsOf(t, pool, log, want), rowsOf(t, pool, log, got))
			}
		}
	})
}

// rowsOf returns the rows of events in the order of their receipts, without what differs between two events.
func rowsOf(t *testing.T, pool *pgxpool.Pool, log bool, receipts []outbox.Receipt) []string {
	t.Helper()
	ids := make([]uuid.UUID, len(receipts))
	for i, r := range receipts {
		ids[i] = r.ID
	}
	query := `SELECT (to_jsonb(e) - '{id,namespace,created_at}'::text[])::text || ' ' || (to_jsonb(q) - '{id,namespace,next_attempt_at,updated_at}'::text[])::text || ' ' ||
			CASE WHEN q.next_attempt_at = e.created_at THEN 'now' ELSE q.next_attempt_at::text END
		FROM unnest($1::uuid[]) WITH ORDINALITY AS w(id, n) JOIN outbox.events AS e ON e.id = w.id JOIN outbox.queue AS q ON q.id = e.id ORDER BY w.n`
	if log {
		query = `SELECT (to_jsonb(e) - '{id,namespace,created_at,seq,xid,bucket}'::text[])::text || ' ' || rank() OVER (ORDER BY e.seq) || CASE WHEN e.partition_key IS NOT NULL THEN ' ' || e.bucket ELSE '' END
		FROM unnest($1::uuid[]) WITH ORDINALITY AS w(id, n) JOIN outbox.log AS e ON e.id = w.id ORDER BY w.n`
	}
	rows, err := pool.Query(t.Context(), query, ids)
	require.NoError(t, err)
	texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Len(t, texts, len(receipts))
	return texts
}

// TestWakesASleeper: with the doorbell alone, a dispatcher handles what each library enqueues.
func TestWakesASleeper(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, pool *pgxpool.Pool, l library) {
		got := make(chan events.OrderPaid, 1)
		d, err := events.NewShopDispatcher(pool, handler(got), runtimetest.SleeperConfig())
		require.NoError(t, err)
		stop := runtimetest.StartDispatcher(t, d)
		for range 2 {
			runtimetest.TakenOver(t, pool, 0) // it sleeps
			order := events.OrderPaid{OrderID: uuid.New(), Cents: 5, Note: "n"}
			require.NoError(t, l.pay(t.Context(), order))
			require.Equal(t, order, pgtest.Receive(t, got, "the event"))
		}
		require.NoError(t, stop())
	})
}

// TestIsolationLevels: a key that was taken after the snapshot is a duplicate at READ COMMITTED, and ErrSerialization above.
func TestIsolationLevels(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, pool *pgxpool.Pool, l library) {
		n := 0
		for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
			for _, log := range []bool{false, true} {
				for _, many := range []bool{false, true} {
					n++
					tx := l.start(t, level)
					require.NoError(t, tx.exec(t.Context(), "SELECT count(*) FROM outbox.events")) // takes the snapshot
					rival := runtimetest.EnqueueAll(t, pool, message(log, n))[0]
					var r outbox.Receipt
					var err error
					if many {
						var rs []outbox.Receipt
						if rs, err = outbox.EnqueueMany(t.Context(), tx.tx, "", []outbox.Message{message(log, n)}); err == nil {
							r = rs[0]
						}
					} else {
						r, err = outbox.Enqueue(t.Context(), tx.tx, "", message(log, n))
					}
					if level == sql.LevelReadCommitted {
						require.NoError(t, err)
						require.Equal(t, outbox.Receipt{ID: rival.ID, Duplicate: true}, r)
					} else {
						require.ErrorIs(t, err, outbox.ErrSerialization)
						var state interface{ SQLState() string }
						require.ErrorAs(t, err, &state)
						require.Equal(t, "40001", state.SQLState())
					}
					require.NoError(t, tx.rollback())
				}
			}
		}
	})
}

// TestErrorsLeaveTheTransactionUsable: what is wrong with an event is found before anything is sent.
func TestErrorsLeaveTheTransactionUsable(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, pool *pgxpool.Pool, l library) {
		tx := l.start(t, sql.LevelDefault)
		for want, change := range map[error]func(*outbox.Message){
			outbox.ErrTenantMismatch:  func(m *outbox.Message) { m.DedupeKey = "other/1" },
			outbox.ErrKeyTooLong:      func(m *outbox.Message) { m.PartitionKey = string(make([]byte, outbox.MaxKeyBytes+1)) },
			outbox.ErrPayloadInvalid:  func(m *outbox.Message) { m.Payload = []byte(`"\u0000"`) },
			outbox.ErrPayloadTooLarge: func(m *outbox.Message) { m.Payload = fmt.Appendf(nil, "%q", make([]byte, outbox.MaxPayloadBytes)) },
			outbox.ErrEmptyKeyPart:    func(m *outbox.Message) { m.TenantID.UUID = uuid.Nil },
		} {
			m := message(false, 1)
			change(&m)
			_, err := outbox.Enqueue(t.Context(), tx.tx, "", m)
			require.ErrorIs(t, err, want)
			_, err = outbox.EnqueueMany(t.Context(), tx.tx, "", []outbox.Message{message(false, 2), m})
			require.ErrorIs(t, err, want)
		}
		require.NoError(t, tx.exec(t.Context(), "INSERT INTO orders VALUES (gen_random_uuid())"))
		_, err := outbox.Enqueue(t.Context(), tx.tx, "", message(false, 3))
		require.NoError(t, err)
		require.NoError(t, tx.commit())
		require.Equal(t, 1, count(t, pool, false))
	})
}

// TestSavepoints: an event goes with the savepoint that it was enqueued in.
func TestSavepoints(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, pool *pgxpool.Pool, l library) {
		tx := l.start(t, sql.LevelDefault)
		require.NoError(t, tx.exec(t.Context(), "SAVEPOINT s"))
		_, err := outbox.Enqueue(t.Context(), tx.tx, "nowhere", message(false, 1))
		require.ErrorIs(t, err, outbox.ErrNotMigrated)
		require.ErrorContains(t, err, "outboxgen migrate up")
		require.NoError(t, tx.exec(t.Context(), "ROLLBACK TO SAVEPOINT s"))
		_, err = outbox.Enqueue(t.Context(), tx.tx, "", message(false, 2))
		require.NoError(t, err)
		require.NoError(t, tx.exec(t.Context(), "ROLLBACK TO SAVEPOINT s"))
		_, err = outbox.Enqueue(t.Context(), tx.tx, "", message(false, 3))
		require.NoError(t, err)
		require.NoError(t, tx.commit())
		require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.events WHERE dedupe_key LIKE '%/3'"))
		require.Equal(t, 1, count(t, pool, false))
	})
}

// TestTransactionThatIsOver: after its end nothing is sent.
func TestTransactionThatIsOver(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, pool *pgxpool.Pool, l library) {
		for n, end := range []func(*transaction) error{
			func(tx *transaction) error { return tx.commit() }, func(tx *transaction) error { return tx.rollback() },
		} {
			tx := l.start(t, sql.LevelDefault)
			require.NoError(t, tx.exec(t.Context(), "SELECT 1"))
			require.NoError(t, end(tx))
			_, err := outbox.Enqueue(t.Context(), tx.tx, "", message(false, n))
			over(t, err)
			_, err = outbox.EnqueueMany(t.Context(), tx.tx, "", []outbox.Message{message(false, n)})
			over(t, err)
		}
		require.Zero(t, count(t, pool, false))
	})
}

func over(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, pgx.ErrTxClosed) {
		return // of pgx itself
	}
	require.ErrorIs(t, err, sql.ErrTxDone)
	require.EqualError(t, err, "enqueue test/ping: nothing was sent: sql: transaction has already been committed or rolled back")
}

// TestContextEnds: an enqueue that waits for another transaction returns when its context ends, and writes nothing.
func TestContextEnds(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, pool *pgxpool.Pool, l library) {
		rival := pgtest.Begin(t, pool, pgx.TxOptions{})
		_, err := outbox.Enqueue(t.Context(), rival, "", message(false, 1))
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		tx := l.start(t, sql.LevelDefault)
		done := make(chan error, 1)
		go func() {
			_, err := outbox.Enqueue(ctx, tx.tx, "", message(false, 1))
			done <- err
		}()
		pgtest.AwaitBlocked(t, pool, 1)
		cancel()
		err = pgtest.Receive(t, done, "the enqueue")
		require.ErrorIs(t, err, context.Canceled)
		require.NotContains(t, err.Error(), "supports")
		_ = tx.rollback()
		_, err = outbox.Enqueue(ctx, l.start(t, sql.LevelDefault).tx, "", message(false, 2))
		require.ErrorIs(t, err, context.Canceled, "a context that has ended before")
		require.NoError(t, rival.Rollback(t.Context()))
		require.Zero(t, count(t, pool, false))
	})
}

// TestErrorsAreThoseOfTheDriver: errors.As finds what the driver returned.
func TestErrorsAreThoseOfTheDriver(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, pool *pgxpool.Pool, l library) {
		pgtest.Execute(t, pool, "ALTER TABLE outbox.events ADD CONSTRAINT ours CHECK (topic <> 'ping')")
		_, err := outbox.Enqueue(t.Context(), l.start(t, sql.LevelDefault).tx, "", message(false, 1))
		var state interface{ SQLState() string }
		require.ErrorAs(t, err, &state)
		require.Equal(t, "23514", state.SQLState())
		var pg *pgconn.PgError
		require.True(t, errors.As(err, &pg) || errors.As(err, new(*pq.Error)) || errors.As(err, new(pgdriver.Error)), "%T", state)
		require.NotContains(t, err.Error(), "1.50", "no payload in an error")
	})
}

// TestGORMOutsideATransaction: the assertion of the example finds it.
func TestGORMOutsideATransaction(t *testing.T) {
	t.Parallel()
	for _, prepared := range []bool{false, true} {
		db, err := gorm.Open(postgres.Open(pgtest.URL(t, pgtest.Database(t))), &gorm.Config{PrepareStmt: prepared})
		require.NoError(t, err)
		plain, err := db.DB()
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, plain.Close()) })
		require.NotImplements(t, (*sqltx.Tx)(nil), db.Statement.ConnPool)
	}
}

// TestNestedTransactionsOfLibraries: the event of an inner transaction that fails is rolled back with it.
func TestNestedTransactionsOfLibraries(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	failed := errors.New("failed")
	enqueue := func(tx sqltx.Tx, n int) {
		_, err := outbox.Enqueue(t.Context(), sqltx.Wrap(tx), "", message(false, n))
		require.NoError(t, err)
	}
	orm, err := gorm.Open(postgres.Open(pgtest.URL(t, pool)), &gorm.Config{})
	require.NoError(t, err)
	plain, err := orm.DB()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, plain.Close()) })
	require.NoError(t, orm.Transaction(func(tx *gorm.DB) error {
		require.ErrorIs(t, tx.Transaction(func(tx *gorm.DB) error {
			enqueue(tx.Statement.ConnPool.(sqltx.Tx), 1)
			return failed
		}), failed)
		enqueue(tx.Statement.ConnPool.(sqltx.Tx), 2)
		return nil
	}))
	require.NoError(t, bun.NewDB(plain, pgdialect.New()).RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
		require.ErrorIs(t, tx.RunInTx(ctx, nil, func(_ context.Context, tx bun.Tx) error {
			enqueue(tx, 3)
			return failed
		}), failed)
		enqueue(tx, 4)
		return nil
	}))
	require.Equal(t, 2, count(t, pool, false))
	require.Equal(t, 2, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.events WHERE dedupe_key LIKE '%/2' OR dedupe_key LIKE '%/4'"))
}
