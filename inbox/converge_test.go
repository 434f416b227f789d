package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/outboxgen/outboxgen/inbox"
)

// delivery is one delivery of an event.
type delivery struct {
	event inbox.Event
	// crash rolls the transaction back after the effect. The event comes again at the end.
	crash bool
}

// TestAnyOrderOfDeliveriesConverges: with any order of deliveries, repetitions, crashes and missing versions, the
// projection is the one that the order of the versions gives.
func TestAnyOrderOfDeliveriesConverges(t *testing.T) {
	t.Parallel()
	pool := database(t)
	execute(t, pool, "CREATE TABLE projection (consumer text, id text, state bigint NOT NULL, PRIMARY KEY (consumer, id))")
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		name := fmt.Sprintf("run-%d", run)
		policy := rapid.SampledFrom([]inbox.Stale{inbox.Skip, inbox.Error, inbox.Quarantine}).Draw(rt, "stale")
		in, err := inbox.New(inbox.Config{Group: name, Stale: policy})
		require.NoError(rt, err)
		want := map[string]int64{}
		var deliveries []delivery
		distinct := 0
		for n := range rapid.IntRange(1, 3).Draw(rt, "users") {
			version := int64(0)
			for range rapid.IntRange(1, 4).Draw(rt, "versions") {
				version += rapid.Int64Range(1, 3).Draw(rt, "step")
				e := user(n, version)
				want[e.EntityID] = version // in order, the last one wins
				distinct++
				for range rapid.IntRange(1, 3).Draw(rt, "copies") {
					deliveries = append(deliveries, delivery{e, rapid.IntRange(0, 5).Draw(rt, "crash") == 0})
				}
			}
		}
		deliveries = rapid.Permutation(deliveries).Draw(rt, "order")
		applied := map[string][]int64{}
		stale := map[uuid.UUID]bool{}
		for i := 0; i < len(deliveries); i++ {
			d := deliveries[i]
			outcome, err := project(t, pool, in, name, d)
			switch {
			case d.crash:
				require.ErrorIs(rt, err, errEffect)
				deliveries = append(deliveries, delivery{event: d.event})
			case errors.Is(err, inbox.ErrStale):
				require.Equal(rt, inbox.Error, policy)
				stale[d.event.ID] = true
			default:
				require.NoError(rt, err)
				if outcome == inbox.Applied {
					applied[d.event.EntityID] = append(applied[d.event.EntityID], d.event.Version)
				} else if outcome != inbox.Duplicate {
					stale[d.event.ID] = true
				}
			}
		}
		total := len(stale)
		for id, versions := range applied {
			total += len(versions)
			require.IsIncreasing(rt, append([]int64{0}, versions...), "user %s", id)
		}
		require.Equal(rt, distinct, total, "each event is applied once or stale")
		rows, err := pool.Query(t.Context(), "SELECT id, state FROM projection WHERE consumer = $1", name)
		require.NoError(rt, err)
		got := map[string]int64{}
		var id string
		var state int64
		_, err = pgx.ForEachRow(rows, []any{&id, &state}, func() error {
			got[id] = state
			return nil
		})
		require.NoError(rt, err)
		require.Equal(rt, want, got)
		if policy == inbox.Quarantine {
			require.Len(rt, stale, value[int](t, pool, "SELECT count(*) FROM outbox.inbox_quarantined WHERE consumer_group = $1", name))
		}
	})
}

// project makes the delivery d.
func project(t *testing.T, pool *pgxpool.Pool, in *inbox.Inbox, consumer string, d delivery) (outcome inbox.Outcome, err error) {
	ctx := t.Context()
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) (err error) {
		outcome, err = in.Apply(ctx, tx, d.event, func(ctx context.Context) error {
			_, err := tx.Exec(ctx, "INSERT INTO projection VALUES ($1, $2, $3) ON CONFLICT (consumer, id) DO UPDATE SET state = excluded.state",
				consumer, d.event.EntityID, d.event.Version)
			return err
		})
		if d.crash {
			return errEffect
		}
		return err
	})
	return outcome, err
}
