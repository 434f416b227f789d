package listener_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
)

// txFunc is a transactional handler.
type txFunc func(context.Context, pgx.Tx, outbox.Delivery[runtimetest.Said]) error

func (f txFunc) handle(ctx context.Context, tx pgx.Tx, d outbox.Delivery[runtimetest.Said]) error {
	return f(ctx, tx, d)
}

func listenTxFunc(t testing.TB, pool *pgxpool.Pool, spec listener.Spec, cfg listener.Config, f txFunc) *listener.Listener {
	t.Helper()
	runtimetest.MakeEffects(t, pool)
	spec.Name = "ears"
	if cfg.Logger == nil {
		cfg.Logger = runtimetest.DiscardLogger()
	}
	l, err := listener.New(pool, runtimetest.WithLateRetries(spec), cfg, listener.HandleTx(runtimetest.SaidTopic, f, f.handle))
	require.NoError(t, err)
	return l
}

// effect is what every handler of these tests writes first.
func effect(ctx context.Context, tx pgx.Tx, d outbox.Delivery[runtimetest.Said]) error {
	_, err := tx.Exec(ctx, runtimetest.EffectSQL, d.ID, d.Payload.Key, d.Payload.N, d.Attempt)
	return err
}

// effects returns the committed effects, in order.
func effects(t testing.TB, pool *pgxpool.Pool) string {
	t.Helper()
	return pgtest.Value[string](t, pool, "SELECT coalesce(string_agg(key || n, ' ' ORDER BY no), '') FROM effects")
}

// TestListenerTransactionSurvivesItsHandlers: whatever a handler does to the transaction, its event fails, what it
// wrote is rolled back, and the events before and after it are handled once. With one attempt the event is dead
// immediately.
func TestListenerTransactionSurvivesItsHandlers(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for name, c := range map[string]struct {
		breaks txFunc // of the event x1, after its effect is written
		want   string // in the dead letter
	}{
		"error": {func(context.Context, pgx.Tx, outbox.Delivery[runtimetest.Said]) error { return runtimetest.ErrHandler }, "handler failed"},
		"panic": {func(context.Context, pgx.Tx, outbox.Delivery[runtimetest.Said]) error { panic("oh") }, "handler panicked: oh"},
		"Goexit": {func(context.Context, pgx.Tx, outbox.Delivery[runtimetest.Said]) error {
			runtime.Goexit()
			return nil
		}, "handler called runtime.Goexit"},
		"SQL error": {func(ctx context.Context, tx pgx.Tx, _ outbox.Delivery[runtimetest.Said]) error {
			_, err := tx.Exec(ctx, "SELECT 1/0")
			return err
		}, "division by zero"},
		"SQL error ignored": {func(ctx context.Context, tx pgx.Tx, _ outbox.Delivery[runtimetest.Said]) error {
			_, _ = tx.Exec(ctx, "SELECT 1/0")
			return nil
		}, "handler returned nil, but left its transaction failed: ERROR: division by zero"},
		"Commit": {func(ctx context.Context, tx pgx.Tx, _ outbox.Delivery[runtimetest.Said]) error {
			return tx.Commit(ctx)
		}, "the listener ends this transaction"},
		"COMMIT": {func(ctx context.Context, tx pgx.Tx, _ outbox.Delivery[runtimetest.Said]) error {
			_, _ = tx.Exec(ctx, "COMMIT")
			return nil
		}, "handler sent COMMIT: the listener ends this transaction"},
		"ROLLBACK in a batch": {func(ctx context.Context, tx pgx.Tx, _ outbox.Delivery[runtimetest.Said]) error {
			b := &pgx.Batch{}
			b.Queue("ROLLBACK")
			return tx.SendBatch(ctx, b).Close()
		}, "sent ROLLBACK: the listener ends this transaction"},
		"hidden ROLLBACK": {func(ctx context.Context, tx pgx.Tx, _ outbox.Delivery[runtimetest.Said]) error {
			_, _ = tx.Exec(ctx, "SELECT 1; ROLLBACK")
			return nil
		}, "handler ended its transaction: the listener ends this transaction"},
		"deferred constraint": {func(ctx context.Context, tx pgx.Tx, _ outbox.Delivery[runtimetest.Said]) error {
			_, err := tx.Exec(ctx, "INSERT INTO deferred VALUES (1)")
			return err
		}, `violates unique constraint "deferred_n_key"`},
		"cancelled in a query": {cancelledInQuery, "context canceled"},
		"cancelled in a query, and ignored": {func(ctx context.Context, tx pgx.Tx, d outbox.Delivery[runtimetest.Said]) error {
			_ = cancelledInQuery(ctx, tx, d)
			return nil
		}, "handler returned nil, but left its transaction failed"},
		"statement timeout": {func(ctx context.Context, tx pgx.Tx, _ outbox.Delivery[runtimetest.Said]) error {
			_, err := tx.Exec(ctx, "SET LOCAL statement_timeout = '20ms'")
			if err == nil {
				_, err = tx.Exec(ctx, "SELECT pg_sleep(600)")
			}
			return err
		}, "canceling statement due to statement timeout"},
		"session killed": {func(ctx context.Context, tx pgx.Tx, _ outbox.Delivery[runtimetest.Said]) error {
			_, err := tx.Exec(ctx, "SELECT pg_terminate_backend(pg_backend_pid())")
			return err
		}, "terminating connection due to administrator command"},
		"rows left open": {func(ctx context.Context, tx pgx.Tx, _ outbox.Delivery[runtimetest.Said]) error {
			_, err := tx.Query(ctx, "SELECT * FROM generate_series(1, 10)")
			return err
		}, "conn busy"},
		"too long between two statements": {func(ctx context.Context, tx pgx.Tx, _ outbox.Delivery[runtimetest.Said]) error {
			if err := untilGone(ctx, tx); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "SELECT 1")
			return err
		}, "terminating connection due to idle-in-transaction timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			pgtest.Execute(t, pool, "CREATE TABLE deferred (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
			pgtest.Execute(t, pool, "INSERT INTO deferred VALUES (1)")
			l := listenTxFunc(t, pool, listener.Spec{Retry: soon(1)}, listener.Config{LeaseDuration: runtimetest.CrashLease},
				func(ctx context.Context, tx pgx.Tx, d outbox.Delivery[runtimetest.Said]) error {
					if err := effect(ctx, tx, d); err != nil {
						return err
					}
					if d.Payload.Key == "x" {
						return c.breaks(ctx, tx, d)
					}
					return nil
				})
			runtimetest.PutAll(t, pool, "a1", "b1", "x1", "a2", "b2")
			require.Equal(t, listener.Report{Delivered: 4, Dead: 1}, runtimetest.DrainAll(t, l))
			require.Equal(t, "a1 b1 a2 b2", effects(t, pool))
			require.Equal(t, "x 1", pgtest.Value[string](t, pool, "SELECT payload->>'key' || ' ' || attempts FROM outbox.dead_letters"))
			require.Contains(t, pgtest.Value[string](t, pool, "SELECT error FROM outbox.dead_letters"), c.want)
			require.Equal(t, 1, pgtest.Value[int](t, pool, "SELECT count(*)::int FROM deferred"))
		})
	}
}

// onOtherConn calls look, on a separate connection, until it returns true.
func onOtherConn(ctx context.Context, tx pgx.Tx, look func(conn *pgx.Conn) (bool, error)) (err error) {
	conn, err := pgx.ConnectConfig(ctx, tx.Conn().Config())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	for {
		if done, err := look(conn); done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pgtest.Interval):
		}
	}
}

// cancelledInQuery cancels its context while the server runs its query.
func cancelledInQuery(ctx context.Context, tx pgx.Tx, _ outbox.Delivery[runtimetest.Said]) error {
	ctx, cancel := context.WithCancel(ctx)
	pid := tx.Conn().PgConn().PID()
	seen := make(chan error, 1)
	go func() {
		defer cancel()
		seen <- onOtherConn(ctx, tx, func(conn *pgx.Conn) (asleep bool, err error) {
			const query = "SELECT count(*) > 0 FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'PgSleep'"
			return asleep, conn.QueryRow(ctx, query, pid).Scan(&asleep)
		})
	}()
	_, err := tx.Exec(ctx, "SELECT pg_sleep(600)")
	cancel()
	if err := <-seen; err != nil {
		return fmt.Errorf("look at the query: %w", err)
	}
	return err
}

// untilGone waits until the server has ended the session of tx.
func untilGone(ctx context.Context, tx pgx.Tx) error {
	return onOtherConn(ctx, tx, func(conn *pgx.Conn) (gone bool, err error) {
		const query = "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $1"
		return gone, conn.QueryRow(ctx, query, tx.Conn().PgConn().PID()).Scan(&gone)
	})
}

// TestListenerEndsTheTransactionItself: handlers can neither commit nor roll back, but may use savepoints.
func TestListenerEndsTheTransactionItself(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	var refusals []error
	l := listenTxFunc(t, pool, listener.Spec{}, listener.Config{}, func(ctx context.Context, tx pgx.Tx, d outbox.Delivery[runtimetest.Said]) error {
		refusals = append(refusals, tx.Commit(ctx), tx.Rollback(ctx))
		undone := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
			return errors.Join(effect(ctx, tx, d), runtimetest.ErrHandler)
		})
		return errors.Join(effect(ctx, tx, d), pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
			if !errors.Is(undone, runtimetest.ErrHandler) {
				return errors.New("not undone")
			}
			return effect(ctx, tx, d)
		}))
	})
	runtimetest.PutAll(t, pool, "a1", "a2")
	require.Equal(t, listener.Report{Delivered: 2}, runtimetest.DrainAll(t, l))
	require.Equal(t, "a1 a1 a2 a2", effects(t, pool))
	require.Len(t, refusals, 4)
	for _, err := range refusals {
		require.EqualError(t, err, "the listener ends this transaction, after its handlers: return nil to keep what was written, or an error")
	}
}

// TestListenerEffectsAndCursorAreOneTransaction: what a handler wrote is not visible before the cursor has moved.
func TestListenerEffectsAndCursorAreOneTransaction(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	h.Hold = make(chan struct{})
	watch := make(chan struct{})
	l := runtimetest.ListenTx(t, pool, listener.Spec{}, listener.Config{BatchSize: 2}, h)
	// xmin would be the xid of the savepoint.
	pgtest.Execute(t, pool, "ALTER TABLE effects ADD COLUMN txid xid8 NOT NULL DEFAULT pg_current_xact_id()")
	runtimetest.PutAll(t, pool, "a1", "a2", "a3")
	go func() {
		defer close(watch)
		_, _ = l.Drain(t.Context())
	}()
	require.Equal(t, 1, pgtest.Receive(t, h.Started, "the handler").Payload.N)
	require.Zero(t, pgtest.Value[int](t, pool, "SELECT count(*)::int FROM effects"))
	close(h.Hold)
	<-watch
	require.Equal(t, "a1 a2 a3", effects(t, pool))
	require.Equal(t, 2, pgtest.Value[int](t, pool, "SELECT count(DISTINCT txid)::int FROM effects"), "two leases, two transactions")
}

// TestListenerDeadLetterIsWrittenWithTheCursor makes the statement that writes a dead letter fail. Then the cursor has
// not moved, and nothing of the transaction is visible. Once the statement works, the cursor moves and the dead letter
// exists.
func TestListenerDeadLetterIsWrittenWithTheCursor(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		pgtest.Execute(t, pool, "ALTER TABLE outbox.dead_letters ADD CONSTRAINT no_room CHECK (false) NOT VALID")
		h := runtimetest.NewNotes()
		h.Hold = make(chan struct{}, 3)
		h.Fail = func(d outbox.Delivery[runtimetest.Said]) error {
			if d.Payload.Key == "x" {
				return outbox.Permanent(runtimetest.ErrHandler)
			}
			return nil
		}
		log := runtimetest.NewLogSpy()
		l := runtimetest.ListenAs(t, pool, transactional, listener.Spec{Retry: soon(1)}, listener.Config{Logger: log.Logger()}, h)
		runtimetest.MakeEffects(t, pool)
		runtimetest.PutAll(t, pool, "a1", "x1", "a2")
		for range 3 { // the first lease; the next one, which takes them one by one, has to wait
			h.Hold <- struct{}{}
		}
		stop := runtimetest.StartListener(t, l)
		log.Await(t, "check constraint")
		require.Equal(t, int64(0), pgtest.Value[int64](t, pool, "SELECT greatest(last_seq, high_seq) FROM outbox.listeners"))
		require.Zero(t, pgtest.Value[int](t, pool, "SELECT count(*)::int FROM effects"))
		pgtest.Execute(t, pool, "ALTER TABLE outbox.dead_letters DROP CONSTRAINT no_room")
		close(h.Hold)
		finished(t, pool)
		stop()
		require.Equal(t, "x1", pgtest.Value[string](t, pool, "SELECT concat(payload->>'key', payload->>'n') FROM outbox.dead_letters"))
		if transactional {
			require.Equal(t, "a1 a2", effects(t, pool))
		} else {
			require.Equal(t, []string{"a1", "a2"}, h.Names())
		}
	})
}

// TestListenerParksInTransaction: a failing key is parked. Its retries and the events after it are handled in
// transactions of the cursor too, and each effect exists once.
func TestListenerParksInTransaction(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	failing := true
	h.Fail = func(d outbox.Delivery[runtimetest.Said]) error {
		if d.Payload.Key == "x" && failing {
			return runtimetest.ErrHandler
		}
		return nil
	}
	l := runtimetest.ListenTx(t, pool, listener.Spec{ParkKeys: true}, listener.Config{BatchSize: 3}, h)
	runtimetest.PutAll(t, pool, "a1", "x1", "b1", "x2", "a2")
	require.Equal(t, listener.Report{Delivered: 3, Retried: 1}, runtimetest.DrainAll(t, l))
	require.Equal(t, "a1 b1 a2", effects(t, pool))
	runtimetest.RetryNow(t, pool)
	runtimetest.PutAll(t, pool, "x3", "b2")
	require.Equal(t, listener.Report{Delivered: 1, Retried: 1}, runtimetest.DrainAll(t, l))
	failing = false
	runtimetest.RetryNow(t, pool)
	require.Equal(t, listener.Report{Delivered: 3}, runtimetest.DrainAll(t, l))
	require.Equal(t, "a1 b1 a2 b2 x1 x2 x3", effects(t, pool))
	require.Equal(t, "3 1 1", pgtest.Value[string](t, pool, "SELECT string_agg(attempt::text, ' ' ORDER BY no) FROM effects WHERE key = 'x'"))
	require.Zero(t, pgtest.Value[int](t, pool, "SELECT count(*)::int FROM outbox.parked"))
}

// TestListenerFindsTheEventThatBreaksItsTransaction: several events break the transaction at its commit. Each is found.
func TestListenerFindsTheEventThatBreaksItsTransaction(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	pgtest.Execute(t, pool, "CREATE TABLE deferred (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
	pgtest.Execute(t, pool, "INSERT INTO deferred VALUES (1)")
	l := listenTxFunc(t, pool, listener.Spec{Retry: soon(2)}, listener.Config{},
		func(ctx context.Context, tx pgx.Tx, d outbox.Delivery[runtimetest.Said]) error {
			if d.Payload.N%4 == 0 {
				if _, err := tx.Exec(ctx, "INSERT INTO deferred VALUES (1)"); err != nil {
					return fmt.Errorf("insert: %w", err)
				}
			}
			return effect(ctx, tx, d)
		})
	c := runtimetest.NewCrowd("a")
	c.Enqueue(t, pool, 12)
	stop := runtimetest.StartListener(t, l)
	finished(t, pool)
	stop()
	require.Equal(t, "a1 a2 a3 a5 a6 a7 a9 a10 a11", effects(t, pool))
	require.Equal(t, "4 8 12", pgtest.Value[string](t, pool, "SELECT string_agg(payload->>'n', ' ' ORDER BY no) FROM outbox.dead_letters WHERE attempts = 2"))
	require.Equal(t, 1, pgtest.Value[int](t, pool, "SELECT max(attempt) FROM effects"))
}
