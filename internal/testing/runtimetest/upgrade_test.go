package runtimetest_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/migrate"
	"github.com/outboxgen/outboxgen/outbox"
)

// needs says from which migration on each part works.
func needs(t *testing.T) map[string]struct {
	version int
	call    func(ctx context.Context, pool *pgxpool.Pool) error
} {
	inTx := func(call func(ctx context.Context, tx pgx.Tx) error) func(context.Context, *pgxpool.Pool) error {
		return func(ctx context.Context, pool *pgxpool.Pool) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return call(ctx, tx) })
		}
	}
	topic := runtimetest.JobTopic("one")
	return map[string]struct {
		version int
		call    func(ctx context.Context, pool *pgxpool.Pool) error
	}{
		"enqueue": {1, inTx(func(ctx context.Context, tx pgx.Tx) error {
			_, err := topic.Enqueue(ctx, tx, runtimetest.Job{TenantID: uuid.New()})
			return err
		})},
		"enqueue many": {1, inTx(func(ctx context.Context, tx pgx.Tx) error {
			_, err := topic.EnqueueMany(ctx, tx, runtimetest.NumberedJobs(2))
			return err
		})},
		"enqueue log": {2, inTx(func(ctx context.Context, tx pgx.Tx) error {
			_, err := runtimetest.SaidTopic.Enqueue(ctx, tx, runtimetest.Said{Key: "a"})
			return err
		})},
		"inbox": {3, inTx(func(ctx context.Context, tx pgx.Tx) error {
			in, err := inbox.New(inbox.Config{Group: "ears"})
			if err != nil {
				return err
			}
			_, err = in.Once(ctx, tx, uuid.New(), func(context.Context) error { return nil })
			return err
		})},
		"run dispatcher": {4, func(ctx context.Context, pool *pgxpool.Pool) error {
			return runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(topic, runtimetest.Succeed)).Run(ctx)
		}},
		"drain dispatcher": {4, func(ctx context.Context, pool *pgxpool.Pool) error {
			_, err := runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(topic, runtimetest.Succeed)).Drain(ctx)
			return err
		}},
		"run listener": {4, func(ctx context.Context, pool *pgxpool.Pool) error {
			return runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{}, runtimetest.NewNotes()).Run(ctx)
		}},
		"drain listener": {4, func(ctx context.Context, pool *pgxpool.Pool) error {
			_, err := runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{}, runtimetest.NewNotes()).Drain(ctx)
			return err
		}},
		"status": {4, func(ctx context.Context, pool *pgxpool.Pool) error {
			_, err := runtimetest.AdminOf(t, pool).Topics(ctx)
			return err
		}},
	}
}

// TestOlderTablesAreRefused: on tables of an older version each part either works or says at its start what to run.
func TestOlderTablesAreRefused(t *testing.T) {
	t.Parallel()
	for version := range 4 {
		t.Run(fmt.Sprint("migration ", version), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Plain(t)
			_, err := migrate.Down(t.Context(), pool, "outbox", version)
			require.NoError(t, err)
			for name, part := range needs(t) {
				err := part.call(t.Context(), pool)
				if version >= part.version {
					require.NoError(t, err, name)
					continue
				}
				require.ErrorIs(t, err, outbox.ErrNotMigrated, name)
				require.ErrorContains(t, err, "outboxgen migrate up", name)
			}
		})
	}
}

// TestTablesWithoutAColumnAreRefused: what an older version of a table lacks is a column, and of a function an argument.
func TestTablesWithoutAColumnAreRefused(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	pgtest.Execute(t, pool, "ALTER TABLE outbox.queue RENAME COLUMN lane TO lane_of_another_version")
	pgtest.Execute(t, pool, "ALTER TABLE outbox.log RENAME COLUMN bucket TO bucket_of_another_version")
	parts := needs(t)
	for _, name := range []string{"enqueue", "enqueue many", "enqueue log", "drain listener"} {
		err := parts[name].call(t.Context(), pool)
		require.ErrorIs(t, err, outbox.ErrNotMigrated, name)
		require.ErrorContains(t, err, "outboxgen migrate up", name)
	}
}

// TestUpgradeUnderLoad: the statements of a running version work on tables to which a newer one adds columns, indexes and
// tables, while events are enqueued and delivered.
func TestUpgradeUnderLoad(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("one")
	spy, notes := runtimetest.NewLogSpy(), runtimetest.NewNotes()
	cfg := runtimetest.QuickConfig()
	cfg.Logger = spy.Logger()
	stopDispatcher := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, runtimetest.Succeed)))
	stopListener := runtimetest.StartListener(t, runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{PollInterval: cfg.PollInterval, Logger: spy.Logger()}, notes))

	stop, stopped := make(chan struct{}), make(chan error, 1)
	enqueued := 0
	go func() {
		for {
			err := pgx.BeginFunc(context.Background(), pool, func(tx pgx.Tx) error {
				if _, err := topic.Enqueue(context.Background(), tx, runtimetest.Job{TenantID: uuid.New()}); err != nil {
					return err
				}
				_, err := runtimetest.SaidTopic.Enqueue(context.Background(), tx, runtimetest.Said{Key: "a", N: enqueued + 1})
				return err
			})
			if err != nil {
				stopped <- err
				return
			}
			enqueued++
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
		}
	}()
	progress := func() {
		before := pgtest.Count(t, pool, runtimetest.DeliveredSQL)
		pgtest.Eventually(t, func() bool { return pgtest.Count(t, pool, runtimetest.DeliveredSQL) > before+5 })
	}
	progress()
	rows, err := pool.Query(t.Context(), "SELECT c.oid::regclass::text FROM pg_class AS c WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'r' ORDER BY 1")
	require.NoError(t, err)
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Contains(t, tables, "outbox.queue")
	for _, table := range tables {
		pgtest.Execute(t, pool, "ALTER TABLE "+table+" ADD COLUMN added int NOT NULL DEFAULT 7")
		pgtest.Execute(t, pool, "CREATE INDEX CONCURRENTLY ON "+table+" (added)")
	}
	pgtest.Execute(t, pool, "CREATE TABLE outbox.added (id int)")
	progress()
	close(stop)
	require.NoError(t, pgtest.Receive(t, stopped, "the producer"))
	pgtest.Settles(t, pool, enqueued, runtimetest.DeliveredSQL+" AND attempts = 1")
	notes.Await(t, enqueued)
	require.NoError(t, stopDispatcher())
	stopListener()
	require.Equal(t, enqueued, notes.InOrder(t))
	for _, line := range spy.Lines() {
		require.False(t, strings.Contains(line, "level=ERROR") || strings.Contains(line, "level=WARN"), line)
	}
}
