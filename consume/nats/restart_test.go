package nats_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume/nats"
	"github.com/outboxgen/outboxgen/consume/receive"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
)

// TestDatabaseRestarts: PostgreSQL is shut down, stopped without a checkpoint and killed while messages flow, and started again.
// Nothing is lost or charged, each effect happens once and in order, and the log says it per outage and not per message. Each
// outage also costs the lock of the durable consumer.
func TestDatabaseRestarts(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	const each = 20
	keys := []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"}
	db, b, e := runtimetest.NewRestarts(t, effectsTable), newBroker(t), &effects{}
	e.set(func(context.Context, pgx.Tx, step) error {
		db.Effect()
		return nil
	})
	var failed atomic.Int64
	r := run(t, db.Pool, e, b.config(func(c *nats.Config) {
		c.AckWait, c.Receive.BatchSize, c.Receive.Logger = 6*time.Second, 10, db.Log.Logger()
		c.Receive.Observer = &receive.Observer{Failed: func(receive.Failed) { failed.Add(1) }}
	}))
	said := func(text string, times int) {
		pgtest.Eventually(t, func() bool { return strings.Count(db.Log.String(), text) >= times }, db.Log.String)
	}
	db.Run(t, each*len(keys), func(i int) { b.put(i*each+1, (i+1)*each, keys...) }, func(i int) {
		said("the lock of the durable consumer was lost", i+1)
		said("the lock of the durable consumer cannot be taken", (i+2)/2) // not while it restarts in one step
	})
	b.acknowledged("projection")
	require.NoError(t, r.stop())
	requireSteps(t, db.Pool, runtimetest.Outages*each, keys...)
	require.Zero(t, failed.Load(), "charged")
}
