package operation_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/operation"
	"github.com/outboxgen/outboxgen/outbox"
)

// turn is a payload whose text is its dedupe key.
type turn struct {
	Text string `json:"text"`
}

func (t turn) Validate() error {
	if t.Text == "bad" {
		return errors.New("text: is bad")
	}
	return nil
}

var (
	turnEnded = outbox.NewTopic[turn](outbox.TopicSpec{
		Namespace: runtimetest.Namespace, Name: "turn_ended",
		Keys: func(p any) outbox.Keys {
			return outbox.Keys{Dedupe: eventkey.NewKey(eventkey.StringPart("text", p.(*turn).Text))}
		},
	}).Untyped()
	turnLogged = outbox.NewTopic[turn](outbox.TopicSpec{Namespace: runtimetest.Namespace, Name: "turn_logged", Log: true}).Untyped()
)

func event(topic *outbox.UntypedTopic, text string) operation.Emission {
	return operation.Emission{Topic: topic, Payload: &turn{text}}
}

// operationFixture is a database with a table of business rows.
type operationFixture struct {
	t    *testing.T
	pool *pgxpool.Pool
}

func newOperationFixture(t *testing.T) *operationFixture {
	f := &operationFixture{t, pgtest.Database(t)}
	pgtest.Execute(t, f.pool, "CREATE TABLE turns (id text PRIMARY KEY)")
	return f
}

type outcomeFunc = func(context.Context, *operation.Operation) (operation.Outcome, error)

// run runs an operation on the pool.
func (f *operationFixture) run(do outcomeFunc) error {
	return operation.Run(f.t.Context(), f.pool, "end_turn", do)
}

// write writes a business row with the transaction of o.
func (f *operationFixture) write(o *operation.Operation, id string) {
	_, err := o.Tx().Exec(f.t.Context(), "INSERT INTO turns VALUES ($1)", id)
	require.NoError(f.t, err)
}

// require compares the numbers of business rows, of events of the queue topic and of the log topic. It also checks that no
// connection is left in a transaction.
func (f *operationFixture) require(rows, queued, logged int, msg ...any) {
	f.t.Helper()
	require.Equal(f.t, rows, pgtest.Count(f.t, f.pool, "SELECT count(*) FROM turns"), msg...)
	require.Equal(f.t, queued, pgtest.Count(f.t, f.pool, "SELECT count(*) FROM outbox.events"), msg...)
	require.Equal(f.t, logged, pgtest.Count(f.t, f.pool, "SELECT count(*) FROM outbox.log"), msg...)
	require.Zero(f.t, pgtest.Count(f.t, f.pool, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'"), msg...)
}

// An outcome commits the business rows and all its events together.
func TestOperationCommitsRowsAndEvents(t *testing.T) {
	t.Parallel()
	f := newOperationFixture(t)
	var receipts []outbox.Receipt
	require.NoError(t, f.run(func(ctx context.Context, o *operation.Operation) (operation.Outcome, error) {
		f.write(o, "1")
		outcome, err := o.Emit(ctx, "settled", nil, event(turnEnded, "1"), event(turnLogged, "1"))
		receipts = outcome.Receipts()
		require.Zero(t, pgtest.Count(t, f.pool, "SELECT count(*) FROM outbox.events"), "nothing is committed yet")
		f.write(o, "2")
		return outcome, err
	}))
	f.require(2, 1, 1)
	require.Len(t, receipts, 2)
	require.Equal(t, 1, pgtest.Count(t, f.pool, "SELECT count(*) FROM outbox.events WHERE id = $1", receipts[0].ID))
	require.Equal(t, 1, pgtest.Count(t, f.pool, "SELECT count(*) FROM outbox.log WHERE id = $1", receipts[1].ID))
}

// An outcome without events commits the business rows alone.
func TestOperationWithoutEventsCommitsRows(t *testing.T) {
	t.Parallel()
	f := newOperationFixture(t)
	require.NoError(t, f.run(func(_ context.Context, o *operation.Operation) (operation.Outcome, error) {
		f.write(o, "1")
		outcome := o.NoEvents("refused")
		require.Empty(t, outcome.Receipts())
		return outcome, nil
	}))
	f.require(1, 0, 0)
}

// A duplicate is an outcome too: its receipt says so, and the function decides what to write.
func TestOperationTellsDuplicates(t *testing.T) {
	t.Parallel()
	f := newOperationFixture(t)
	var ids []uuid.UUID
	for i, duplicate := range []bool{false, true} {
		require.NoError(t, f.run(func(ctx context.Context, o *operation.Operation) (operation.Outcome, error) {
			outcome, err := o.Emit(ctx, "settled", nil, event(turnEnded, "1"))
			require.NoError(t, err)
			require.Equal(t, duplicate, outcome.Receipts()[0].Duplicate)
			ids = append(ids, outcome.Receipts()[0].ID)
			if !duplicate {
				f.write(o, fmt.Sprint(i))
			}
			return outcome, nil
		}))
	}
	require.Equal(t, ids[0], ids[1])
	f.require(1, 1, 0)
}

// The options of an outcome apply to each of its events.
func TestOperationPassesOptionsOn(t *testing.T) {
	t.Parallel()
	f := newOperationFixture(t)
	opts := []outbox.EnqueueOption{outbox.WithHeaders(map[string]string{"a": "b"})}
	require.NoError(t, f.run(func(ctx context.Context, o *operation.Operation) (operation.Outcome, error) {
		return o.Emit(ctx, "settled", opts, event(turnEnded, "1"), event(turnLogged, "1"))
	}))
	require.Equal(t, 1, pgtest.Count(t, f.pool, `SELECT count(*) FROM outbox.events WHERE headers = '{"a": "b"}'`))
	require.Equal(t, 1, pgtest.Count(t, f.pool, `SELECT count(*) FROM outbox.log WHERE headers = '{"a": "b"}'`))
}

// Whatever a function returns, only its own outcome commits. Everything else leaves neither rows nor events.
func TestOperationRollsBackWithoutItsOutcome(t *testing.T) {
	t.Parallel()
	f := newOperationFixture(t)
	var stale operation.Outcome
	require.NoError(t, f.run(func(_ context.Context, o *operation.Operation) (operation.Outcome, error) {
		stale = o.NoEvents("refused")
		return stale, nil
	}))
	failure := errors.New("the quota is used up")
	for name, c := range map[string]struct {
		do   outcomeFunc
		want error
		text string
	}{
		"zero outcome": {func(_ context.Context, _ *operation.Operation) (operation.Outcome, error) {
			return operation.Outcome{}, nil
		}, operation.ErrNoOutcome, "operation end_turn: no valid outcome: it returned a zero outcome and no error"},
		"zero outcome although one was made": {func(ctx context.Context, o *operation.Operation) (operation.Outcome, error) {
			_, err := o.Emit(ctx, "settled", nil, event(turnEnded, "1"))
			return operation.Outcome{}, err
		}, operation.ErrNoOutcome, "zero outcome"},
		"outcome of an earlier run": {func(_ context.Context, _ *operation.Operation) (operation.Outcome, error) {
			return stale, nil
		}, operation.ErrNoOutcome, "the outcome of another transaction"},
		"outcome of another operation in its place": {func(ctx context.Context, o *operation.Operation) (operation.Outcome, error) {
			var inner operation.Outcome
			err := operation.Run(ctx, o.Tx(), "inner", func(ctx context.Context, o *operation.Operation) (_ operation.Outcome, err error) {
				inner, err = o.Emit(ctx, "settled", nil, event(turnEnded, "1"))
				return inner, err
			})
			return inner, err
		}, operation.ErrNoOutcome, "operation end_turn: no valid outcome: it returned the outcome of another transaction"},
		"two outcomes": {func(ctx context.Context, o *operation.Operation) (operation.Outcome, error) {
			outcome, err := o.Emit(ctx, "settled", nil, event(turnEnded, "1"))
			require.NoError(t, err)
			o.NoEvents("refused")
			return outcome, nil
		}, operation.ErrNoOutcome, "operation end_turn: outcome refused: no valid outcome: the operation already has outcome settled"},
		"two outcomes, the second with events": {func(ctx context.Context, o *operation.Operation) (operation.Outcome, error) {
			first := o.NoEvents("refused")
			_, err := o.Emit(ctx, "settled", nil, event(turnEnded, "1"))
			require.ErrorIs(t, err, operation.ErrNoOutcome)
			return first, nil
		}, operation.ErrNoOutcome, "outcome settled: no valid outcome: the operation already has outcome refused"},
		"ignored error of an outcome": {func(ctx context.Context, o *operation.Operation) (operation.Outcome, error) {
			outcome, err := o.Emit(ctx, "settled", nil, event(turnLogged, "1"), event(turnEnded, "bad"))
			require.Error(t, err)
			return outcome, nil
		}, nil, "operation end_turn: outcome settled: enqueue " + runtimetest.Namespace + "/turn_ended: text: is bad"},
		"error": {func(_ context.Context, _ *operation.Operation) (operation.Outcome, error) {
			return operation.Outcome{}, failure
		}, failure, failure.Error()},
		"error with an outcome": {func(ctx context.Context, o *operation.Operation) (operation.Outcome, error) {
			outcome, err := o.Emit(ctx, "settled", nil, event(turnEnded, "1"), event(turnLogged, "1"))
			return outcome, errors.Join(err, failure)
		}, failure, failure.Error()},
		"outcome in a savepoint": {func(ctx context.Context, o *operation.Operation) (outcome operation.Outcome, err error) {
			sp, err := o.Tx().Begin(ctx)
			require.NoError(t, err)
			outcome, err = o.Emit(ctx, "settled", nil, event(turnEnded, "1"))
			require.ErrorContains(t, err, "a savepoint is open")
			require.NoError(t, sp.Rollback(ctx))
			return outcome, nil
		}, operation.ErrNoOutcome, "a savepoint is open, which could roll back the events: end it first"},
		"aborted transaction": {func(ctx context.Context, o *operation.Operation) (operation.Outcome, error) {
			outcome, err := o.Emit(ctx, "settled", nil, event(turnEnded, "1"))
			require.NoError(t, err)
			_, err = o.Tx().Exec(ctx, "SELECT 1/0")
			require.Error(t, err)
			return outcome, nil
		}, pgx.ErrTxCommitRollback, "operation end_turn: commit: "},
	} {
		err := f.run(func(ctx context.Context, o *operation.Operation) (operation.Outcome, error) {
			f.write(o, "1")
			return c.do(ctx, o)
		})
		if c.want != nil {
			require.ErrorIs(t, err, c.want, name)
		}
		require.ErrorContains(t, err, c.text, name)
		f.require(0, 0, 0, name)
	}
	require.Same(t, failure, f.run(func(context.Context, *operation.Operation) (operation.Outcome, error) {
		return operation.Outcome{}, failure
	}), "the error of the function is returned as it is")
}

// A panic, or the end of the goroutine, rolls back and continues.
func TestOperationRollsBackAPanic(t *testing.T) {
	t.Parallel()
	f := newOperationFixture(t)
	half := func(end func()) outcomeFunc {
		return func(ctx context.Context, o *operation.Operation) (operation.Outcome, error) {
			f.write(o, "1")
			outcome, err := o.Emit(ctx, "settled", nil, event(turnEnded, "1"))
			require.NoError(t, err)
			end()
			return outcome, nil
		}
	}
	require.PanicsWithValue(t, "boom", func() { _ = f.run(half(func() { panic("boom") })) })
	f.require(0, 0, 0)

	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = f.run(half(func() { (&testing.T{}).SkipNow() })) // runtime.Goexit
		panic("the goroutine has not ended")
	}()
	<-ended
	f.require(0, 0, 0)
}

// A context that has ended rolls back, and the connection stays in the pool.
func TestOperationRollsBackWhenItsContextEnds(t *testing.T) {
	t.Parallel()
	f := newOperationFixture(t)
	before := pgtest.Count(t, f.pool, "SELECT pg_backend_pid()")
	ctx, cancel := context.WithCancel(t.Context())
	err := operation.Run(ctx, f.pool, "end_turn", func(ctx context.Context, o *operation.Operation) (operation.Outcome, error) {
		f.write(o, "1")
		outcome, err := o.Emit(ctx, "settled", nil, event(turnEnded, "1"))
		cancel()
		return outcome, err
	})
	require.ErrorIs(t, err, context.Canceled)
	f.require(0, 0, 0)
	require.Equal(t, before, pgtest.Count(t, f.pool, "SELECT pg_backend_pid()"))

	require.ErrorIs(t, operation.Run(ctx, f.pool, "end_turn", nil), context.Canceled, "it does not begin")
}

// The connection dies in the function: the error is that of the function, and nothing is left.
func TestOperationWhoseConnectionDies(t *testing.T) {
	t.Parallel()
	f := newOperationFixture(t)
	err := f.run(func(ctx context.Context, o *operation.Operation) (operation.Outcome, error) {
		f.write(o, "1")
		pid := o.Tx().Conn().PgConn().PID()
		require.Equal(t, 1, pgtest.Count(t, f.pool, "SELECT count(*) FROM (SELECT pg_terminate_backend($1, 60000)) AS t WHERE pg_terminate_backend", pid))
		return o.Emit(ctx, "settled", nil, event(turnEnded, "1"))
	})
	require.ErrorContains(t, err, "operation end_turn: outcome settled: enqueue ")
	require.NotContains(t, err.Error(), "roll back", "the server has rolled back by itself")
	f.require(0, 0, 0)
}

// The operation owns its transaction: Commit and Rollback of the function do nothing.
func TestOperationOwnsItsTransaction(t *testing.T) {
	t.Parallel()
	f := newOperationFixture(t)
	var late *operation.Operation
	require.NoError(t, f.run(func(ctx context.Context, o *operation.Operation) (operation.Outcome, error) {
		f.write(o, "1")
		require.ErrorIs(t, o.Tx().Commit(ctx), operation.ErrTxOwned)
		require.ErrorIs(t, o.Tx().Rollback(ctx), operation.ErrTxOwned)
		require.Zero(t, pgtest.Count(t, f.pool, "SELECT count(*) FROM turns"))
		late = o
		return o.NoEvents("refused"), nil
	}))
	f.require(1, 0, 0)
	_, err := late.Emit(t.Context(), "settled", nil, event(turnEnded, "1"))
	require.ErrorIs(t, err, operation.ErrNoOutcome)
	_, err = late.Tx().Exec(t.Context(), "SELECT 1")
	require.ErrorIs(t, err, pgx.ErrTxClosed)
}

// Savepoints of the function work for business rows, before and after the outcome.
func TestOperationWithSavepoints(t *testing.T) {
	t.Parallel()
	f := newOperationFixture(t)
	require.NoError(t, f.run(func(ctx context.Context, o *operation.Operation) (operation.Outcome, error) {
		f.write(o, "1")
		require.Error(t, pgx.BeginFunc(ctx, o.Tx(), func(sp pgx.Tx) error {
			_, err := sp.Exec(ctx, "INSERT INTO turns VALUES ('1')")
			return err
		}))
		require.NoError(t, pgx.BeginFunc(ctx, o.Tx(), func(sp pgx.Tx) error {
			_, err := sp.Exec(ctx, "INSERT INTO turns VALUES ('2')")
			return err
		}))
		outcome, err := o.Emit(ctx, "settled", nil, event(turnEnded, "1"))
		require.NoError(t, err)
		sp, err := o.Tx().Begin(ctx)
		require.NoError(t, err)
		_, err = sp.Exec(ctx, "INSERT INTO turns VALUES ('3')")
		require.NoError(t, err)
		return outcome, sp.Rollback(ctx)
	}))
	f.require(2, 1, 0)
}

// An operation in a transaction is a savepoint of it: it leaves nothing if it fails, and takes effect with the transaction.
func TestOperationInATransaction(t *testing.T) {
	t.Parallel()
	f := newOperationFixture(t)
	tx, err := f.pool.Begin(t.Context())
	require.NoError(t, err)
	run := func(id string, failure error) error {
		return operation.Run(t.Context(), tx, "end_turn", func(ctx context.Context, o *operation.Operation) (operation.Outcome, error) {
			f.write(o, id)
			outcome, err := o.Emit(ctx, "settled", nil, event(turnEnded, id))
			return outcome, errors.Join(err, failure)
		})
	}
	require.NoError(t, run("1", nil))
	require.Error(t, run("2", errors.New("no")))
	require.NoError(t, run("3", nil))
	require.Zero(t, pgtest.Count(t, f.pool, "SELECT count(*) FROM turns"))
	require.NoError(t, tx.Commit(t.Context()))
	f.require(2, 2, 0)
}

// badBeginner fails to begin, or begins a transaction that cannot be rolled back.
type badBeginner struct {
	tx  pgx.Tx
	err error
}

func (b *badBeginner) Begin(context.Context) (pgx.Tx, error) { return b.tx, b.err }

type badTx struct{ pgx.Tx }

var errRollback = errors.New("the disk is full")

func (tx badTx) Rollback(ctx context.Context) error {
	return errors.Join(tx.Tx.Rollback(ctx), errRollback)
}

// What is wrong with the arguments, with begin and with rollback is said in the error.
func TestOperationErrorsOfItsDatabase(t *testing.T) {
	t.Parallel()
	never := func(context.Context, *operation.Operation) (operation.Outcome, error) { panic("called") }
	var noContext context.Context
	require.EqualError(t, operation.Run(noContext, &badBeginner{}, "end_turn", never), "operation end_turn: no context given (nil)")
	require.EqualError(t, operation.Run(t.Context(), nil, "end_turn", never), "operation end_turn: no database given (nil)")
	require.EqualError(t, operation.Run(t.Context(), (*pgxpool.Pool)(nil), "end_turn", never), "operation end_turn: no database given (nil)")
	down := errors.New("the database is down")
	err := operation.Run(t.Context(), &badBeginner{err: down}, "end_turn", never)
	require.ErrorIs(t, err, down)
	require.EqualError(t, err, "operation end_turn: begin transaction: the database is down")

	f := newOperationFixture(t)
	tx, err := f.pool.Begin(t.Context())
	require.NoError(t, err)
	failure := errors.New("no quota")
	err = operation.Run(t.Context(), &badBeginner{tx: badTx{tx}}, "end_turn", func(context.Context, *operation.Operation) (operation.Outcome, error) {
		return operation.Outcome{}, failure
	})
	require.ErrorIs(t, err, failure)
	require.ErrorIs(t, err, errRollback)
	require.ErrorContains(t, err, "operation end_turn: roll back: the disk is full")
}

// The zero Operation, of a transaction that somebody made without its operation, has no outcomes.
func TestZeroOperationHasNoOutcome(t *testing.T) {
	t.Parallel()
	var o *operation.Operation
	_, err := o.Emit(t.Context(), "settled", nil, event(turnEnded, "1"))
	require.ErrorIs(t, err, operation.ErrNoOutcome)
	require.Equal(t, operation.Outcome{}, o.NoEvents("refused"))
}
