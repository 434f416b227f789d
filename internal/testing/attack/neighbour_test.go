package attack_test

import (
	"context"
	"fmt"
	"hash/fnv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/postgres/bell"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/migrate"
	"github.com/outboxgen/outboxgen/outbox"
)

// TestNeighbourRingsAndLocks: while a neighbour rings the doorbells with texts of its own and holds the advisory locks of the
// doorbells, shared or not, events are delivered, no doorbell loses its connection, and nothing is logged as a fault.
func TestNeighbourRingsAndLocks(t *testing.T) {
	t.Parallel()
	db, err := schemadb.Open("outbox")
	require.NoError(t, err)
	for _, how := range []string{"shared", "exclusive"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			people := logins(t, pool)
			other := people[len(people)-1]
			require.Equal(t, neighbour, other.name)
			lock := map[string]string{"shared": "SELECT pg_advisory_lock_shared($1)", "exclusive": "SELECT pg_advisory_lock($1)"}[how]
			bells := []bell.Bell{bell.Of(db, "jobs"), bell.OfLog(db)}
			for _, b := range bells {
				_, err := other.session.Exec(t.Context(), lock, b.Key)
				require.NoError(t, err)
			}
			spy := runtimetest.NewLogSpy()
			cfg := runtimetest.QuickConfig()
			cfg.Logger = spy.Logger()
			topic := runtimetest.JobTopic("mail")
			stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, runtimetest.Succeed)))
			notes := runtimetest.NewNotes()
			stopListener := runtimetest.StartListener(t, runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{Logger: spy.Logger()}, notes))
			for i := range 10 {
				for _, b := range bells {
					for _, text := range []string{"", "garbage", strings.Repeat("\x7f", 7000), fmt.Sprint(i)} {
						_, err := other.session.Exec(t.Context(), "SELECT pg_notify($1, $2)", b.Channel, text)
						require.NoError(t, err)
					}
				}
				runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(1)...)
				runtimetest.Put(t, pool, "a", i)
			}
			pgtest.Settles(t, pool, 10, runtimetest.DeliveredSQL)
			notes.Await(t, 10)
			require.NoError(t, stop())
			stopListener()
			require.NotContains(t, spy.String(), "level=ERROR")
			require.NotContains(t, spy.String(), "doorbell: polling until it is back", "a ring with a text has cost a connection")
		})
	}
}

// TestNeighbourHoldsOtherLocks: while a neighbour holds the locks of migrations and cursors, events are enqueued and delivered by
// what runs. What needs these locks waits for a bounded time, says what it waits for, changes nothing, and works afterwards.
func TestNeighbourHoldsOtherLocks(t *testing.T) {
	t.Parallel()
	db, err := schemadb.Open("outbox")
	require.NoError(t, err)
	pool := pgtest.Database(t)
	people := logins(t, pool)
	other := people[len(people)-1]
	topic, notes := runtimetest.JobTopic("mail"), runtimetest.NewNotes()
	stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(topic, runtimetest.Succeed)))
	stopListener := runtimetest.StartListener(t, runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{}, notes))
	runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(1)...)
	runtimetest.Put(t, pool, "a", 1)
	pgtest.Settles(t, pool, 1, runtimetest.DeliveredSQL)
	notes.Await(t, 1)

	h := fnv.New64a()
	_, _ = h.Write([]byte("outboxgen/migrate/outbox"))
	keys := []int64{int64(h.Sum64()), db.CursorLock(), bell.Of(db, "jobs limits").Key}
	for _, key := range keys {
		_, err := other.session.Exec(t.Context(), "SELECT pg_advisory_lock($1)", key)
		require.NoError(t, err)
	}
	runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(1)...)
	runtimetest.Put(t, pool, "a", 2)
	pgtest.Settles(t, pool, 2, runtimetest.DeliveredSQL)
	notes.Await(t, 2)

	ops := runtimetest.AdminOf(t, pool)
	prune := func(ctx context.Context) error {
		_, err := ops.Prune(ctx, map[string]outbox.Retention{"test/said": {Delivered: time.Nanosecond}})
		return err
	}
	up := func(ctx context.Context) error {
		_, err := migrate.Up(ctx, pool, "outbox")
		return err
	}
	for name, call := range map[string]func(context.Context) error{"prune": prune, "migrate": up} {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- call(ctx) }()
		pgtest.AwaitBlocked(t, pool, 1)
		cancel()
		require.ErrorIs(t, pgtest.Receive(t, ended, name), context.Canceled, name)
	}
	impatient := pgtest.Pool(t, pgtest.URL(t, pool)+"&lock_timeout=10") // milliseconds
	limited := runtimetest.Dispatcher(t, impatient, runtimetest.QuickConfig(), runtimetest.OnJob(topic, runtimetest.Succeed))
	require.ErrorContains(t, limited.Run(t.Context()), "declare limits: another session holds a lock for too long: pg_locks shows which")
	l := runtimetest.ListenTo(t, impatient, listener.Spec{Name: "late"}, listener.Config{}, notes)
	require.ErrorContains(t, l.Run(t.Context()), "attach: another session holds a lock for too long: pg_locks shows which")
	_, err = migrate.Up(t.Context(), impatient, "outbox")
	require.ErrorContains(t, err, "another session holds the lock of migrations: pg_locks shows which")
	require.Equal(t, 2, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.log"))
	_, err = other.session.Exec(t.Context(), "SELECT pg_advisory_unlock_all()")
	require.NoError(t, err)
	require.NoError(t, prune(t.Context()))
	require.NoError(t, up(t.Context()))
	require.NoError(t, stop())
	stopListener()
}
