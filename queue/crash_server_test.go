package queue_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/deliveryhistory"
	"github.com/outboxgen/outboxgen/internal/testing/pgserver"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/migrate"
	"github.com/outboxgen/outboxgen/outbox"
)

// produce runs transactions until ctx ends, a third of them rolled back, and records how each ended. It continues while
// the server is down.
func (b *book) produce(ctx context.Context, t testing.TB, pool *pgxpool.Pool, topic outbox.Topic[runtimetest.Job]) {
	for ctx.Err() == nil {
		if err := b.transaction(t, pool, topic); err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
}

func (b *book) transaction(t testing.TB, pool *pgxpool.Pool, topic outbox.Topic[runtimetest.Job]) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	tx, err := pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	receipts, err := topic.EnqueueMany(ctx, tx, runtimetest.NumberedJobs(1+rand.IntN(5)))
	if err != nil {
		return err // nothing was recorded, so nothing can have been committed
	}
	ids := make([]uuid.UUID, len(receipts))
	for i, r := range receipts {
		ids[i] = r.ID
	}
	name := uuid.New()
	if rand.IntN(3) == 0 {
		require.NoError(t, b.log.Tx(name, deliveryhistory.Aborted, ids...))
		return tx.Rollback(ctx)
	}
	require.NoError(t, b.log.Tx(name, deliveryhistory.Unknown, ids...))
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	require.NoError(t, b.log.Tx(name, deliveryhistory.Committed, ids...))
	return nil
}

// crashing is a server under load that its test crashes.
type crashing struct {
	*book
	server    *pgserver.Server
	pool      *pgxpool.Pool
	delivery  chan time.Time // times of the latest deliveries
	producers *pgxpool.Pool
	stop      func() error
	finish    func() // ends the producers
}

func newCrashing(t testing.TB, settings map[string]string) *crashing {
	t.Helper()
	c := &crashing{book: newBook(t), server: pgtest.Server(t, pgserver.Options{Durable: true, Settings: settings}), delivery: make(chan time.Time, 1)}
	c.pool = pgtest.Pool(t, c.server.URL())
	_, err := migrate.Up(t.Context(), c.pool, pgtest.Schema)
	require.NoError(t, err)
	c.producers = pgtest.Pool(t, c.server.URL())
	topic := patient()
	cfg := shortLease()
	c.stop = runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, c.pool, cfg, runtimetest.OnJob(topic, func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
		err := c.log.Delivery(d.ID, d.Attempt, "test")
		select {
		case c.delivery <- time.Now():
		default:
		}
		return err
	})))
	ctx, cancel := context.WithCancel(context.Background())
	var producers sync.WaitGroup
	for range 4 {
		producers.Go(func() { c.produce(ctx, t, c.producers, topic) })
	}
	c.finish = func() {
		cancel()
		producers.Wait()
	}
	t.Cleanup(c.finish)
	return c
}

// loaded waits for n more deliveries.
func (c *crashing) loaded(t testing.TB, n int) {
	t.Helper()
	for range n {
		pgtest.Receive(t, c.delivery, "a delivery")
	}
}

// drained waits until everything is delivered, and stops the dispatchers.
func (c *crashing) drained(t testing.TB) {
	t.Helper()
	c.finish()
	pgtest.Settles(t, c.pool, 0, "SELECT count(*) FROM outbox.event_status WHERE finalized_at IS NULL")
	require.NoError(t, c.stop())
}

// TestServerRestartsUnderLoad restarts PostgreSQL in its immediate mode: nothing is lost, nothing that was rolled back
// is delivered, and deliveries continue.
func TestServerRestartsUnderLoad(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	c := newCrashing(t, nil)
	var worst time.Duration
	restarts := runtimetest.Rounds(4)
	for n := range restarts {
		c.loaded(t, 10+rand.IntN(100))
		if n%2 == 0 {
			require.NoError(t, c.server.Kill())
		}
		require.NoError(t, c.server.Restart())
		back := time.Now()
		first := pgtest.Receive(t, c.delivery, "a delivery")
		for first.Before(back) { // from before the crash
			first = pgtest.Receive(t, c.delivery, "a delivery")
		}
		worst = max(worst, first.Sub(back))
	}
	c.drained(t)
	h := c.check(t, c.pool, deliveryhistory.Conditions{Faults: true, MaxAttempts: patientLimit})
	unknown := 0
	for _, o := range h.Outcomes {
		if o == deliveryhistory.Unknown {
			unknown++
		}
	}
	t.Logf("%d restarts, %d events, %d of unknown outcome, first delivery at most %s after the server was back", restarts, len(h.Outcomes), unknown, worst)
}

// TestAsyncCommitLeavesNoPhantoms: producers do not wait for the disk and the server crashes, so committed events may
// be lost. But no lost event was handled.
func TestAsyncCommitLeavesNoPhantoms(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	c := newCrashing(t, map[string]string{"synchronous_commit": "off", "wal_writer_delay": "10s"})
	for range runtimetest.Rounds(4) {
		c.loaded(t, 10+rand.IntN(100))
		require.NoError(t, c.server.Kill())
		h, err := deliveryhistory.Read(c.path)
		require.NoError(t, err)
		require.NoError(t, c.server.Restart())
		rows, err := deliveryhistory.Rows(t.Context(), c.pool, pgtest.Schema)
		require.NoError(t, err)
		for id := range h.Deliveries {
			require.Contains(t, rows, id, "handled, but its row was lost")
		}
	}
	c.drained(t)
	h := c.check(t, c.pool, deliveryhistory.Conditions{Faults: true, AsyncCommit: true, MaxAttempts: patientLimit})
	rows, err := deliveryhistory.Rows(t.Context(), c.pool, pgtest.Schema)
	require.NoError(t, err)
	lost := 0
	for id, o := range h.Outcomes {
		if _, there := rows[id]; !there && o == deliveryhistory.Committed {
			lost++
		}
	}
	t.Logf("%d events, %d committed without waiting and lost in a crash, none of them handled", len(h.Outcomes), lost)
}
