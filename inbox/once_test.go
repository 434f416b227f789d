package inbox_test

import (
	"context"
	"runtime"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/migrate"
)

func TestSecondDeliveryIsSkipped(t *testing.T) {
	t.Parallel()
	pool := database(t)
	in := newInbox(t, inbox.Config{})
	event := uuid.New()
	for try := range 3 {
		handled, err := deliver(t.Context(), pool, in, event)
		require.NoError(t, err)
		require.Equal(t, try == 0, handled)
	}
	require.Equal(t, 1, effects(t, pool, event))
	tx := begin(t, pool, "")
	handled, err := inbox.Once(t.Context(), tx, group, event, never(t))
	require.NoError(t, err)
	require.False(t, handled, "Once alone and Inbox.Once share the records")
	usable(t, tx)
}

// The same holds within one transaction, for example if a batch has an event twice.
func TestSecondDeliveryInTheSameTransactionIsSkipped(t *testing.T) {
	t.Parallel()
	pool := database(t)
	event := uuid.New()
	tx := begin(t, pool, "")
	for try := range 2 {
		handled, err := inbox.Once(t.Context(), tx, group, event, effect(tx, event))
		require.NoError(t, err)
		require.Equal(t, try == 0, handled)
	}
	require.NoError(t, tx.Commit(t.Context()))
	require.Equal(t, 1, effects(t, pool, event))
}

func TestEachGroupHandlesAnEvent(t *testing.T) {
	t.Parallel()
	pool := database(t)
	event := uuid.New()
	for _, name := range []string{"billing", "billing.v2", "audit"} {
		handled, err := deliver(t.Context(), pool, newInbox(t, inbox.Config{Group: name}), event)
		require.NoError(t, err)
		require.True(t, handled)
	}
	require.Equal(t, 3, effects(t, pool, event))
}

func TestRollbackForgetsTheEvent(t *testing.T) {
	t.Parallel()
	pool := database(t)
	in := newInbox(t, inbox.Config{})
	event := uuid.New()
	// An error of the effect is returned as it is, and rolled back by the caller.
	for range 2 {
		err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			handled, err := in.Once(t.Context(), tx, event, func(ctx context.Context) error {
				require.NoError(t, effect(tx, event)(ctx))
				return errEffect
			})
			require.False(t, handled)
			require.Equal(t, errEffect, err)
			usable(t, tx)
			return err
		})
		require.Equal(t, errEffect, err)
	}
	require.Zero(t, recorded(t, pool))
	require.Zero(t, effects(t, pool, event))
	// A panic and runtime.Goexit are errors too.
	for want, breaks := range map[string]func(){
		"effect panicked (string)": func() { panic("S3CRET") }, "effect called runtime.Goexit": runtime.Goexit,
	} {
		err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := in.Once(t.Context(), tx, event, func(context.Context) error {
				breaks()
				return nil
			})
			return err
		})
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "S3CRET")
	}
	handled, err := deliver(t.Context(), pool, in, event)
	require.NoError(t, err)
	require.True(t, handled)
	require.Equal(t, 1, effects(t, pool, event))
}

// With a savepoint, a failed event of a batch is rolled back alone.
func TestSavepointUndoesOneEventOfABatch(t *testing.T) {
	t.Parallel()
	pool := database(t)
	in := newInbox(t, inbox.Config{})
	good, bad, last := uuid.New(), uuid.New(), uuid.New()
	failing := bad
	batch := func() {
		tx := begin(t, pool, "")
		for _, event := range []uuid.UUID{good, bad, last} {
			err := pgx.BeginFunc(t.Context(), tx, func(savepoint pgx.Tx) error {
				_, err := in.Once(t.Context(), savepoint, event, func(ctx context.Context) error {
					if event == failing {
						_, err := savepoint.Exec(ctx, "SELECT 1/0") // aborts it
						return err
					}
					return effect(savepoint, event)(ctx)
				})
				return err
			})
			require.Equal(t, event == failing, err != nil)
		}
		require.NoError(t, tx.Commit(t.Context()))
	}
	batch()
	require.Equal(t, 2, recorded(t, pool))
	require.Zero(t, effects(t, pool, bad))
	failing = uuid.Nil
	batch()
	for _, event := range []uuid.UUID{good, bad, last} {
		require.Equal(t, 1, effects(t, pool, event))
	}
	// A released savepoint is rolled back with the transaction around it.
	event := uuid.New()
	tx := begin(t, pool, "")
	require.NoError(t, pgx.BeginFunc(t.Context(), tx, func(savepoint pgx.Tx) error {
		_, err := in.Once(t.Context(), savepoint, event, effect(savepoint, event))
		return err
	}))
	require.NoError(t, tx.Rollback(t.Context()))
	require.Equal(t, 3, recorded(t, pool))
}

func TestOnceRefusesBeforeSendingAndLeavesTheTransactionUsable(t *testing.T) {
	t.Parallel()
	pool := database(t)
	in := newInbox(t, inbox.Config{})
	tx := begin(t, pool, "")
	_, err := in.Once(t.Context(), tx, uuid.Nil, never(t))
	require.ErrorIs(t, err, inbox.ErrInvalidEvent)
	require.EqualError(t, err, "record event: id is the zero UUID: invalid event")
	_, err = in.OnceMany(t.Context(), tx, []uuid.UUID{uuid.New(), uuid.Nil}, func(context.Context, []int) error { return never(t)(t.Context()) })
	require.ErrorIs(t, err, inbox.ErrInvalidEvent)
	require.EqualError(t, err, "record event 2 of 2: id is the zero UUID: invalid event")
	_, err = in.Once(t.Context(), tx, uuid.New(), nil)
	require.ErrorContains(t, err, "no function to run")
	_, err = in.OnceMany(t.Context(), tx, nil, nil)
	require.ErrorContains(t, err, "no function to run")
	_, err = in.Apply(t.Context(), tx, inbox.Event{}, nil)
	require.ErrorContains(t, err, "no function to run")
	usable(t, tx)
	require.NoError(t, tx.Commit(t.Context()))
	require.Zero(t, recorded(t, pool))
}

func TestNotMigratedSaysSo(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Empty(t))
	in := newInbox(t, inbox.Config{})
	calls := map[string]func(tx pgx.Tx) error{
		"once": func(tx pgx.Tx) error {
			_, err := in.Once(t.Context(), tx, uuid.New(), never(t))
			return err
		},
		"many": func(tx pgx.Tx) error {
			_, err := in.OnceMany(t.Context(), tx, []uuid.UUID{uuid.New()}, func(context.Context, []int) error { return never(t)(t.Context()) })
			return err
		},
		"apply": func(tx pgx.Tx) error {
			_, err := in.Apply(t.Context(), tx, user(1, 1), never(t))
			return err
		},
		"prune": func(pgx.Tx) error {
			_, err := in.Prune(t.Context(), pool)
			return err
		},
		"reset": func(tx pgx.Tx) error { return in.Reset(t.Context(), tx) },
	}
	refused := func() {
		t.Helper()
		for name, call := range calls {
			tx := begin(t, pool, "")
			err := call(tx)
			require.ErrorIs(t, err, inbox.ErrNotMigrated, name)
			require.ErrorContains(t, err, "run `outboxgen migrate up --schema outbox`", name)
			require.NoError(t, tx.Rollback(t.Context()))
		}
	}
	refused()
	_, err := migrate.Up(t.Context(), pool, "outbox")
	require.NoError(t, err)
	_, err = migrate.Down(t.Context(), pool, "outbox", 2) // like a producer's database from before the inbox
	require.NoError(t, err)
	refused()
	_, err = migrate.Up(t.Context(), pool, "outbox")
	require.NoError(t, err)
	for _, name := range []string{"once", "many", "apply"} {
		delete(calls, name)
	}
	for name, call := range calls {
		tx := begin(t, pool, "")
		require.NoError(t, call(tx), name)
		require.NoError(t, tx.Rollback(t.Context()))
	}
}

func TestSchemasAreApart(t *testing.T) {
	t.Parallel()
	pool := cardsDatabase(t)
	_, err := migrate.Up(t.Context(), pool, "app")
	require.NoError(t, err)
	event := uuid.New()
	for _, schema := range []string{"", "app"} {
		in := newInbox(t, inbox.Config{Schema: schema})
		handled, err := deliver(t.Context(), pool, in, event)
		require.NoError(t, err)
		require.True(t, handled)
		outcome, err := apply(t.Context(), pool, in, user(1, 1))
		require.NoError(t, err)
		require.Equal(t, inbox.Applied, outcome)
	}
	require.Equal(t, 2, recorded(t, pool))
	require.Equal(t, 2, value[int](t, pool, "SELECT count(*) FROM app.processed_events"))
	require.Equal(t, 1, value[int](t, pool, "SELECT count(*) FROM app.entity_versions"))
}

// A context that ends while Once waits for another transaction ends the wait.
func TestContextBoundsTheWait(t *testing.T) {
	t.Parallel()
	pool := database(t)
	in := newInbox(t, inbox.Config{})
	event := uuid.New()
	holder, waiting := begin(t, pool, ""), begin(t, pool, "")
	_, err := in.Once(t.Context(), holder, event, nothing)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := in.Once(ctx, waiting, event, never(t))
		done <- err
	}()
	blocked(t, pool, waiting, holder)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	require.NoError(t, holder.Commit(t.Context()))
}
