package inbox_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/inbox"
)

// way is a call that records an event.
type way struct {
	name string
	call func(ctx context.Context, tx pgx.Tx, event uuid.UUID, fn func(context.Context) error) (handled bool, err error)
}

func ways(in *inbox.Inbox) []way {
	return []way{
		{"once", in.Once},
		{"many", func(ctx context.Context, tx pgx.Tx, event uuid.UUID, fn func(context.Context) error) (bool, error) {
			n, err := in.OnceMany(ctx, tx, []uuid.UUID{event}, func(ctx context.Context, _ []int) error { return fn(ctx) })
			return n == 1, err
		}},
		{"apply", func(ctx context.Context, tx pgx.Tx, event uuid.UUID, fn func(context.Context) error) (bool, error) {
			e := inbox.Event{ID: event, EntityType: "event", EntityID: event.String(), Version: 1}
			outcome, err := in.Apply(ctx, tx, e, fn)
			return outcome == inbox.Applied, err
		}},
	}
}

// answer is what a call in another goroutine returned.
type answer struct {
	handled bool
	err     error
}

// second delivers event in a separate transaction, which the caller commits.
func second(t testing.TB, w way, tx pgx.Tx, event uuid.UUID) chan answer {
	answers := make(chan answer, 1)
	go func() {
		handled, err := w.call(t.Context(), tx, event, effect(tx, event))
		answers <- answer{handled, err}
	}()
	return answers
}

func TestConcurrentSecondDeliveryWaitsAndSkips(t *testing.T) {
	t.Parallel()
	pool := database(t)
	for _, w := range ways(newInbox(t, inbox.Config{})) {
		event := uuid.New()
		first, other := begin(t, pool, ""), begin(t, pool, "")
		handled, err := w.call(t.Context(), first, event, effect(first, event))
		require.NoError(t, err, w.name)
		require.True(t, handled, w.name)
		answers := second(t, w, other, event)
		blocked(t, pool, other, first)
		require.Empty(t, answers, w.name)
		require.NoError(t, first.Commit(t.Context()))
		require.Equal(t, answer{handled: false}, <-answers, w.name)
		usable(t, other)
		require.NoError(t, other.Commit(t.Context()))
		require.Equal(t, 1, effects(t, pool, event), w.name)
	}
}

func TestRollbackOfTheFirstLetsTheSecondRun(t *testing.T) {
	t.Parallel()
	pool := database(t)
	for _, w := range ways(newInbox(t, inbox.Config{})) {
		event := uuid.New()
		first, other := begin(t, pool, ""), begin(t, pool, "")
		_, err := w.call(t.Context(), first, event, effect(first, event))
		require.NoError(t, err, w.name)
		answers := second(t, w, other, event)
		blocked(t, pool, other, first)
		require.NoError(t, first.Rollback(t.Context()))
		require.Equal(t, answer{handled: true}, <-answers, w.name)
		require.NoError(t, other.Commit(t.Context()))
		require.Equal(t, 1, effects(t, pool, event), w.name)
	}
}

// The rollback of a savepoint does so too, while the transaction around it continues.
func TestRollbackOfASavepointLetsTheSecondRun(t *testing.T) {
	t.Parallel()
	pool := database(t)
	for _, w := range ways(newInbox(t, inbox.Config{})) {
		event := uuid.New()
		first, other := begin(t, pool, ""), begin(t, pool, "")
		savepoint, err := first.Begin(t.Context())
		require.NoError(t, err)
		_, err = w.call(t.Context(), savepoint, event, effect(savepoint, event))
		require.NoError(t, err, w.name)
		answers := second(t, w, other, event)
		blocked(t, pool, other, first)
		require.NoError(t, savepoint.Rollback(t.Context()))
		require.Equal(t, answer{handled: true}, <-answers, w.name)
		require.NoError(t, other.Commit(t.Context()))
		require.NoError(t, first.Commit(t.Context()))
		require.Equal(t, 1, effects(t, pool, event), w.name)
	}
}

func TestConcurrentDeliveriesHaveOneEffect(t *testing.T) {
	t.Parallel()
	pool := database(t)
	all := ways(newInbox(t, inbox.Config{}))
	for _, rivals := range []int{2, 2, 3, 5, 8, 13, 32} {
		event := uuid.New()
		w := all[rivals%len(all)]
		var handled, rolledBack atomic.Int32
		start := make(chan struct{})
		var wg sync.WaitGroup
		for range rivals {
			wg.Go(func() {
				<-start
				for { // redeliver as a broker does, until the event is handled
					done := false
					err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) (err error) {
						if done, err = w.call(t.Context(), tx, event, effect(tx, event)); err == nil && rand.IntN(2) == 0 {
							return errEffect
						}
						return err
					})
					if errors.Is(err, errEffect) {
						rolledBack.Add(1)
						continue
					}
					if check(t, err) && done {
						handled.Add(1)
					}
					return
				}
			})
		}
		close(start)
		wg.Wait()
		require.EqualValues(t, 1, handled.Load(), "%d rivals, %s", rivals, w.name)
		require.Equal(t, 1, effects(t, pool, event), "%d rivals, %s, %d rolled back", rivals, w.name, rolledBack.Load())
	}
}

func TestDuplicateUnderEachIsolationLevel(t *testing.T) {
	t.Parallel()
	pool := database(t)
	for _, w := range ways(newInbox(t, inbox.Config{})) {
		for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
			event := uuid.New()
			rival := begin(t, pool, level)
			tx := begin(t, pool, level)
			usable(t, tx) // takes the snapshot
			_, err := w.call(t.Context(), rival, event, effect(rival, event))
			require.NoError(t, err)
			answers := second(t, w, tx, event)
			blocked(t, pool, tx, rival)
			require.NoError(t, rival.Commit(t.Context()))
			a := <-answers
			require.False(t, a.handled)
			if level == pgx.ReadCommitted {
				require.NoError(t, a.err, w.name)
			} else {
				require.ErrorIs(t, a.err, inbox.ErrSerialization, "%s %s", level, w.name)
				require.ErrorContains(t, a.err, "40001")
			}
			require.NoError(t, tx.Rollback(t.Context()))
			// Again from a snapshot that sees the rival's commit: a normal duplicate.
			tx = begin(t, pool, level)
			handled, err := w.call(t.Context(), tx, event, never(t))
			require.NoError(t, err, "%s %s", level, w.name)
			require.False(t, handled)
			require.NoError(t, tx.Commit(t.Context()))
			require.Equal(t, 1, effects(t, pool, event))
			// A rival that rolls back has no effect at any level.
			event = uuid.New()
			rival, tx = begin(t, pool, level), begin(t, pool, level)
			usable(t, tx)
			_, err = w.call(t.Context(), rival, event, effect(rival, event))
			require.NoError(t, err)
			answers = second(t, w, tx, event)
			blocked(t, pool, tx, rival)
			require.NoError(t, rival.Rollback(t.Context()))
			require.Equal(t, answer{handled: true}, <-answers, "%s %s", level, w.name)
			require.NoError(t, tx.Commit(t.Context()))
			require.Equal(t, 1, effects(t, pool, event))
		}
	}
}
