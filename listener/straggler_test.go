package listener_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
)

// waits reads what a process waits for that is not the one that gets the next lease of shard 0 of "ears".
func waits(t *testing.T, pool *pgxpool.Pool) queries.ListenerWaitRow {
	t.Helper()
	db, err := schemadb.Open("")
	require.NoError(t, err)
	row, err := db.Each(pool).ListenerWait(t.Context(), queries.ListenerWaitParams{
		WorkerID: pgvalue.UUID(uuid.New()), Listener: "ears",
	})
	require.NoError(t, err)
	return row
}

// outOfTurn makes a worker that has died the one that gets the next lease of each shard.
func outOfTurn(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	pgtest.Execute(t, pool, "UPDATE outbox.listeners SET preferred = gen_random_uuid()")
}

// TestStragglerAtThePositionOfARewind: a cursor goes back to the number that a transaction drew which is still open. When that
// commits, its event is delivered, although nothing is above it. A process that waits for its turn is told.
func TestStragglerAtThePositionOfARewind(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	l := runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{}, h)
	runtimetest.DrainAll(t, l) // attached
	runtimetest.Put(t, pool, "a", 1)
	late := pgtest.Begin(t, pool, pgx.TxOptions{})
	_, err := runtimetest.SaidTopic.Enqueue(t.Context(), late, runtimetest.Said{Key: "b", N: 1})
	require.NoError(t, err)
	runtimetest.Put(t, pool, "c", 1)
	require.Equal(t, 2, runtimetest.DrainAll(t, l).Delivered)
	to := pgtest.Value[time.Time](t, pool, "SELECT created_at FROM outbox.log WHERE seq = 3")
	runtimetest.Rewind(t, runtimetest.AdminOf(t, pool), to)
	pgtest.Execute(t, pool, "DELETE FROM outbox.log WHERE seq = 3")
	require.Equal(t, 2, pgtest.Value[int](t, pool, "SELECT high_seq FROM outbox.listeners"))
	outOfTurn(t, pool)
	require.False(t, waits(t, pool).Ready)
	require.NoError(t, late.Commit(t.Context()))
	require.True(t, waits(t, pool).Ready)
	pgtest.Execute(t, pool, "UPDATE outbox.listeners SET preferred = NULL")
	require.Equal(t, 1, runtimetest.DrainAll(t, l).Delivered)
	require.Equal(t, []string{"a1", "c1", "b1"}, h.Names())
	outOfTurn(t, pool)
	require.False(t, waits(t, pool).Ready, "everything is delivered")
}

// TestListenerWaitsWhilePaused: a pause counts until it ends, that of another listener does not.
func TestListenerWaitsWhilePaused(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	l := runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{}, h)
	runtimetest.DrainAll(t, l) // attached
	pause := func(name string, until any) {
		pgtest.Execute(t, pool, "DELETE FROM outbox.pauses")
		pgtest.Execute(t, pool, "INSERT INTO outbox.pauses (listener, until, who) VALUES ($1, $2, 'anna')", name, until)
	}
	for n, c := range []struct {
		listener string
		until    any
		paused   bool
	}{
		{"ears", nil, true},
		{"ears", time.Now().Add(time.Hour), true},
		{"ears", time.Now().Add(-time.Hour), false},
		{"others", nil, false},
	} {
		runtimetest.Put(t, pool, "a", n)
		outOfTurn(t, pool)
		pause(c.listener, c.until)
		row := waits(t, pool)
		require.Equal(t, c.paused, row.Paused, c)
		require.Equal(t, !c.paused, row.Ready, c)
		pgtest.Execute(t, pool, "UPDATE outbox.listeners SET preferred = NULL")
		require.Equal(t, !c.paused, runtimetest.DrainAll(t, l).Delivered > 0, c)
	}
	require.Len(t, h.Names(), 4)
}

// TestListenerWaitTellsHowLong: the wait is until the lease of another ends or a retry is due, whichever is first, and -1 if
// nothing falls due by itself. What is over counts no more.
func TestListenerWaitTellsHowLong(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{}, runtimetest.NewNotes())) // attached
	minutes := func(n int) any {
		if n == 0 {
			return nil
		}
		return time.Duration(n) * time.Minute
	}
	for _, c := range []struct{ lease, retry, wait int }{ // minutes from now
		{0, 0, 0}, {10, 0, 10}, {-10, 0, 0}, {0, 10, 10}, {0, -10, 0}, {10, 30, 10}, {30, 10, 10}, {-10, 30, 30}, {30, -10, 30},
	} {
		pgtest.Execute(t, pool, `UPDATE outbox.listeners SET lease_by = CASE WHEN $1::interval IS NOT NULL THEN gen_random_uuid() END,
			lease_until = now() + $1::interval, retry_after = now() + $2::interval`, minutes(c.lease), minutes(c.retry))
		row := waits(t, pool)
		require.Equal(t, c.lease > 0, row.ForeignLease, c)
		require.Equal(t, c.retry > 0, row.Blocked, c)
		if c.wait == 0 {
			require.EqualValues(t, -1, row.WaitUs, c)
			continue
		}
		most := time.Duration(c.wait) * time.Minute
		require.Greater(t, time.Duration(row.WaitUs)*time.Microsecond, most-9*time.Minute, c)
		require.LessOrEqual(t, time.Duration(row.WaitUs)*time.Microsecond, most, c)
	}
}
