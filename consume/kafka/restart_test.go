package kafka_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/receive"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
)

// TestDatabaseRestarts: PostgreSQL is shut down, stopped without a checkpoint and killed while records flow, and started again.
// Nothing is lost or charged, each effect happens once and in order, and the log says it per outage and not per record.
func TestDatabaseRestarts(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	const keys, each = 20, 60
	db, c, e := runtimetest.NewRestarts(t, effectsTable), newCluster(t, 1), &effects{}
	e.set(func(context.Context, pgx.Tx, consume.Delivery[counted]) error {
		db.Effect()
		return nil
	})
	cfg := c.config()
	var failed atomic.Int64
	cfg.Receive.Logger, cfg.Receive.BatchSize = db.Log.Logger(), 10
	cfg.Receive.Observer = &receive.Observer{Failed: func(receive.Failed) { failed.Add(1) }}
	stop := start(t, receiver(t, db.Pool, e, cfg))
	all := records(keys, each)
	n := len(all) / runtimetest.Outages
	db.Run(t, n, func(i int) { c.produce(all[i*n : (i+1)*n]...) }, func(int) {})
	require.NoError(t, stop())
	requireCounted(t, db.Pool, keys, each)
	require.Zero(t, failed.Load(), "charged")
}
