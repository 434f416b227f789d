//go:build unix

package runtimetest_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/migrate"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// requireNoSessionState fails the test if anything has left an advisory lock or a setting on the pooler's connections.
func requireNoSessionState(t *testing.T, direct *pgxpool.Pool) {
	t.Helper()
	pgtest.Settles(t, direct, 0, `SELECT count(*) FROM pg_locks
		WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
}

// TestContractThroughPgBouncer: everything except LISTEN works through PgBouncer in transaction mode, where each transaction
// may run on another connection, and nothing stays on a connection after its transaction.
func TestContractThroughPgBouncer(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	start := func(t *testing.T) (direct, pool *pgxpool.Pool) {
		direct = pgtest.Database(t)
		pool = runtimetest.PgBouncer(t, direct, "transaction")
		t.Cleanup(func() { requireNoSessionState(t, direct) })
		return direct, pool
	}

	t.Run("enqueue", func(t *testing.T) {
		t.Parallel()
		direct, pool := start(t)
		topic := runtimetest.JobTopic("one").Untyped()
		undo := errors.New("undo")
		require.ErrorIs(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := topic.EnqueueMany(t.Context(), tx, runtimetest.NumberedJobs(3))
			return errors.Join(err, undo)
		}), undo)
		require.Zero(t, runtimetest.CountWhere(t, direct, "true"))
		m := runtimetest.Message(runtimetest.TenantA, 1)
		var first, again outbox.Receipt
		for _, receipt := range []*outbox.Receipt{&first, &again} {
			require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) (err error) {
				*receipt, err = outbox.Enqueue(t.Context(), tx, "", m)
				return err
			}))
		}
		require.Equal(t, outbox.Receipt{ID: first.ID, Duplicate: true}, again)
		runtimetest.EnqueueJobs(t, pool, runtimetest.JobTopic("one"), runtimetest.NumberedJobs(1500)...)
		require.Equal(t, 1501, runtimetest.CountWhere(t, direct, "status = 'pending'"))
	})

	t.Run("store", func(t *testing.T) {
		t.Parallel()
		direct, pool := start(t)
		s, other := runtimetest.NewStore(t, pool), runtimetest.NewStore(t, pool)
		runtimetest.EnqueueN(t, pool, 4)
		claimed := runtimetest.ClaimN(t, s, 4)
		_, err := s.Extend(t.Context(), time.Hour, claimed...)
		require.NoError(t, err)
		_, err = s.Ack(t.Context(), claimed[0])
		require.NoError(t, err)
		_, err = s.Nack(t.Context(), queue.Failure{Claimed: claimed[1], Err: outbox.Permanent(runtimetest.ErrHandler)})
		require.NoError(t, err)
		_, err = s.Release(t.Context(), claimed[2])
		require.NoError(t, err)
		runtimetest.ExpireLeases(t, direct, claimed[3].ID)
		runtimetest.ClaimN(t, other, 2)
		_, err = s.Ack(t.Context(), claimed[3])
		require.ErrorIs(t, err, outbox.ErrLeaseLost)
		_, err = s.SweepDead(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, runtimetest.CountWhere(t, direct, "status = 'delivered'"))
		require.Equal(t, 1, runtimetest.CountWhere(t, direct, "status = 'dead'"))
	})

	t.Run("dispatchers and listeners", func(t *testing.T) {
		t.Parallel()
		direct, pool := start(t)
		const producers, rounds = 3, 40
		topic := runtimetest.JobTopic("one")
		var mu sync.Mutex
		seen := map[int64]int{}
		var stops []func() error
		for range 2 {
			d := runtimetest.Dispatcher(t, pool, queue.Config{Wake: outbox.WakePoll, PollInterval: 10 * time.Millisecond},
				runtimetest.OnJob(topic, func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
					mu.Lock()
					defer mu.Unlock()
					seen[d.Payload.N]++
					return nil
				}))
			stops = append(stops, runtimetest.StartDispatcher(t, d))
		}
		cfg := listener.Config{Wake: outbox.WakePoll, PollInterval: 10 * time.Millisecond}
		leased, transactional := runtimetest.NewNotes(), runtimetest.NewNotes()
		stopLeased := runtimetest.StartListener(t, runtimetest.ListenTo(t, pool, listener.Spec{Name: "leased", Shards: 2, ParkKeys: true}, cfg, leased))
		stopTransactional := runtimetest.StartListener(t, runtimetest.ListenTxOn(t, direct, pool, listener.Spec{Name: "transactional"}, cfg, transactional))
		var producing sync.WaitGroup
		for p := range producers {
			producing.Go(func() {
				for n := range rounds {
					jobs := runtimetest.NumberedJobs(1)
					jobs[0].N = int64(p*rounds + n)
					runtimetest.EnqueueJobs(t, pool, topic, jobs...)
					runtimetest.Put(t, pool, string(rune('a'+p)), n+1)
				}
			})
		}
		producing.Wait()
		pgtest.Settles(t, direct, producers*rounds, runtimetest.DeliveredSQL)
		leased.Await(t, producers*rounds)
		pgtest.Settles(t, direct, producers*rounds, "SELECT count(*) FROM effects")
		for _, stop := range stops {
			require.NoError(t, stop())
		}
		stopLeased()
		stopTransactional()
		require.Len(t, seen, producers*rounds)
		require.Equal(t, producers*rounds, leased.InOrder(t))
		require.Zero(t, pgtest.Value[int](t, direct, runtimetest.Disorder))
	})

	t.Run("inbox", func(t *testing.T) {
		t.Parallel()
		_, pool := start(t)
		in, err := inbox.New(inbox.Config{Group: "billing"})
		require.NoError(t, err)
		calls := 0
		event := runtimetest.TenantA
		for range 3 {
			require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
				_, err := in.Once(t.Context(), tx, event, func(context.Context) error { calls++; return nil })
				return err
			}))
		}
		require.Equal(t, 1, calls)
	})

	t.Run("admin and migrate", func(t *testing.T) {
		t.Parallel()
		direct, pool := start(t)
		a := runtimetest.AdminOf(t, pool)
		topic := runtimetest.JobTopic("one")
		runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(2)...)
		fails := func(context.Context, outbox.Delivery[runtimetest.Job]) error {
			return outbox.Permanent(runtimetest.ErrHandler)
		}
		r, err := runtimetest.Dispatcher(t, pool, queue.Config{}, runtimetest.OnJob(topic, fails)).Drain(t.Context())
		require.NoError(t, err)
		require.Equal(t, 2, r.Dead)
		replayed, err := a.Replay(t.Context(), admin.Filter{}, admin.Act{Who: "ann"})
		require.NoError(t, err)
		require.EqualValues(t, 2, replayed.Done)
		scope := admin.Scope{Namespace: "jobs"}
		runtimetest.Pause(t, a, scope)
		runtimetest.Resume(t, a, scope)
		r, err = runtimetest.Dispatcher(t, pool, queue.Config{}, runtimetest.OnJob(topic, runtimetest.Succeed)).Drain(t.Context())
		require.NoError(t, err)
		require.Equal(t, 2, r.Delivered)
		_, err = a.Topics(t.Context())
		require.NoError(t, err)
		_, err = a.Prune(t.Context(), map[string]outbox.Retention{"jobs/one": {Delivered: time.Nanosecond}})
		require.NoError(t, err)
		require.Zero(t, runtimetest.CountWhere(t, direct, "true"))
		_, err = migrate.Up(t.Context(), pool, "second")
		require.NoError(t, err)
		require.Zero(t, pgtest.Count(t, direct, "SELECT count(*) FROM second.events"))
	})
}
