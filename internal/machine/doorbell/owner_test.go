package doorbell

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/machine/sleep"
	"github.com/outboxgen/outboxgen/internal/postgres/bell"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// running starts the doorbell of a process.
func running(t *testing.T, pool *pgxpool.Pool) *Doorbell {
	t.Helper()
	db, err := schemadb.Open("")
	require.NoError(t, err)
	d := New(&Config{
		Bell: bell.Of(db, "jobs"), DB: db, Main: pool, Log: slog.New(slog.DiscardHandler), Listening: func(time.Time, error) {},
	})
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() {
		d.Run(ctx, context.Background())
		close(over)
	}()
	t.Cleanup(func() {
		cancel()
		<-over
	})
	d.heard(t) // it is connected
	return d
}

// heard returns the next ring.
func (d *Doorbell) heard(t *testing.T) Ring {
	t.Helper()
	r := pgtest.Receive(t, d.Rang(), "a ring")
	r.Loan().Return()
	return r
}

// asks asks to sleep until that is the answer.
func (d *Doorbell) asks(t *testing.T, want sleep.Bell) {
	t.Helper()
	var got []sleep.Bell
	for len(got) == 0 || got[len(got)-1] != want {
		require.Less(t, len(got), 1000, "%v", got)
		d.Request(asleep)
		a := pgtest.Receive(t, d.Answers(), "an answer")
		a.Loan().Return()
		got = append(got, a.State())
	}
}

// TestWhoRings: an enqueue rings for the process that has the lock, and all others may leave the event to it. One that
// gives up the lock rings for all of them.
func TestWhoRings(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	first := running(t, pool)
	second := running(t, pool)
	first.heard(t) // the second has connected
	first.asks(t, sleep.Watches)
	second.asks(t, sleep.Watches)

	_, err := pool.Exec(t.Context(), "SELECT pg_notify($1, '')", first.bell.bell.Channel) // as an enqueue does
	require.NoError(t, err)
	r := first.heard(t)
	require.True(t, r.Watched())
	require.False(t, r.Left())
	r = second.heard(t)
	require.True(t, r.Watched())
	require.True(t, r.Left())

	first.Request(awake)
	r = second.heard(t)
	require.False(t, r.Watched())
	require.False(t, r.Left())

	second.asks(t, sleep.Watches)
	require.NoError(t, first.bell.db.Each(pool).BellRing(t.Context(), first.bell.bell.Channel))
	r = second.heard(t)
	require.True(t, r.Watched(), "it has the lock itself")
	require.False(t, r.Left())
}

// TestUnreadRings: a ring that nobody has read before the next one came still counts.
func TestUnreadRings(t *testing.T) {
	t.Parallel()
	b := newDoorbell(&Config{})
	enqueued := Ring{enqueued: true}
	b.ring(enqueued)
	b.ring(enqueued)
	require.Equal(t, enqueued, <-b.rang)
	b.ring(Ring{})
	b.ring(enqueued)
	require.Equal(t, Ring{}, <-b.rang)
	b.ring(enqueued)
	b.ring(Ring{})
	require.Equal(t, Ring{}, <-b.rang)
}
