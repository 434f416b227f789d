package inbox_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/inbox"
)

func newEvents(n int) []uuid.UUID {
	events := make([]uuid.UUID, n)
	for i := range events {
		events[i] = uuid.New()
	}
	return events
}

func TestOnceManyHandlesWhatIsFresh(t *testing.T) {
	t.Parallel()
	pool := database(t)
	in := newInbox(t, inbox.Config{})
	e := newEvents(6)
	_, err := deliver(t.Context(), pool, in, e[2])
	require.NoError(t, err)
	tx := begin(t, pool, "")
	var got []int
	handled, err := in.OnceMany(t.Context(), tx, []uuid.UUID{e[5], e[2], e[1], e[5], e[0], e[1]}, func(_ context.Context, fresh []int) error {
		got = fresh
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, 3, handled)
	require.Equal(t, []int{0, 2, 4}, got, "in the order of the batch; of equal ids the first")
	// Again in the same transaction and in the next one: nothing is fresh, so fn does not run.
	none := func(context.Context, []int) error { return never(t)(t.Context()) }
	handled, err = in.OnceMany(t.Context(), tx, []uuid.UUID{e[0], e[1], e[2], e[5]}, none)
	require.NoError(t, err)
	require.Zero(t, handled)
	require.NoError(t, tx.Commit(t.Context()))
	handled, err = in.OnceMany(t.Context(), begin(t, pool, ""), nil, none)
	require.NoError(t, err)
	require.Zero(t, handled)
	require.Equal(t, 4, recorded(t, pool))
}

func TestOnceManyIsUndoneAsAWhole(t *testing.T) {
	t.Parallel()
	pool := database(t)
	in := newInbox(t, inbox.Config{})
	e := newEvents(3)
	for _, fails := range []bool{true, false} {
		var handled int
		err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) (err error) {
			handled, err = in.OnceMany(t.Context(), tx, e, func(ctx context.Context, fresh []int) error {
				for _, i := range fresh {
					require.NoError(t, effect(tx, e[i])(ctx))
				}
				if fails {
					return errEffect
				}
				return nil
			})
			return err
		})
		if fails {
			require.Equal(t, errEffect, err)
			require.Zero(t, handled)
			require.Zero(t, recorded(t, pool))
			continue
		}
		require.NoError(t, err)
		require.Equal(t, len(e), handled)
	}
	for _, event := range e {
		require.Equal(t, 1, effects(t, pool, event))
	}
}

// Batches with events in common, each in a different order, wait for each other and never deadlock.
func TestOnceManyOverlappingDoesNotDeadlock(t *testing.T) {
	t.Parallel()
	const workers, rounds, events = 4, 3, 1000
	pool := database(t)
	in := newInbox(t, inbox.Config{})
	var wg sync.WaitGroup
	all := newEvents(rounds * events)
	for range workers {
		wg.Go(func() {
			for round := range rounds {
				var batch []uuid.UUID
				for _, n := range rand.Perm(events)[:events*3/4] {
					batch = append(batch, all[round*events+n])
				}
				check(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
					_, err := in.OnceMany(t.Context(), tx, batch, func(ctx context.Context, fresh []int) error {
						ids := make([]uuid.UUID, len(fresh))
						for i, n := range fresh {
							ids[i] = batch[n]
						}
						_, err := tx.Exec(ctx, "INSERT INTO effects (event) SELECT unnest($1::uuid[])", ids)
						return err
					})
					return err
				}))
			}
		})
	}
	wg.Wait()
	require.Equal(t, recorded(t, pool), value[int](t, pool, "SELECT count(*) FROM effects"))
	require.Equal(t, recorded(t, pool), value[int](t, pool, "SELECT count(DISTINCT event) FROM effects"))
}
