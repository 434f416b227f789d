package amqp_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume/amqp"
	"github.com/outboxgen/outboxgen/consume/receive"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
)

// TestServerRestarts: a server that is killed or stopped, and started again, costs nothing, with any type of queue. It is not
// parallel because all tests share the server.
func TestServerRestarts(t *testing.T) {
	type consumed struct {
		*broker
		log logs
		r   *running
	}
	var all []*consumed
	for _, kind := range kinds {
		c := &consumed{broker: newBroker(t, kind)}
		all = append(all, c)
	}
	pool, keys := database(t), []string{}
	for i, c := range all {
		keys = append(keys, strings.Repeat("k", i+1))
		c.r = run(t, pool, &effects{}, c.config(shortly, c.log.logger))
		c.put(1, 10, keys[i])
	}
	settlesAt(t, pool, 10*len(all))
	for round, end := range []func(){
		func() { require.NoError(t, all[0].Kill()) },
		func() {
			_, err := all[0].Control("stop_app")
			require.NoError(t, err)
		},
	} {
		end()
		for _, c := range all {
			c.log.said(t, "amqp connection: cannot connect")
		}
		require.NoError(t, all[0].Restart())
		for i, c := range all {
			c.put(10*(round+1)+1, 10*(round+2), keys[i])
		}
		settlesAt(t, pool, 10*(round+2)*len(all))
	}
	requireSteps(t, pool, 30, keys...)
	for _, c := range all {
		require.NoError(t, c.r.stop())
		c.left(0)
	}
}

// TestDatabaseRestarts: PostgreSQL is shut down, stopped without a checkpoint and killed while messages flow, and started again.
// Nothing is lost or charged, each effect happens once and in order, and the log says it per outage and not per message. Each
// outage also costs the lock of the queue.
func TestDatabaseRestarts(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	const each = 20
	keys := []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"}
	db, b, e := runtimetest.NewRestarts(t, effectsTable), newBroker(t, quorum), &effects{}
	e.set(func(context.Context, pgx.Tx, step) error {
		db.Effect()
		return nil
	})
	var failed atomic.Int64
	r := run(t, db.Pool, e, b.config(func(c *amqp.Config) {
		c.Receive.BatchSize, c.Receive.Logger = 10, db.Log.Logger()
		c.Receive.Observer = &receive.Observer{Failed: func(receive.Failed) { failed.Add(1) }}
	}))
	db.Run(t, each*len(keys), func(i int) { b.put(i*each+1, (i+1)*each, keys...) }, func(int) {
		db.Log.Await(t, "the lock of the queue was lost")
	})
	require.NoError(t, r.stop())
	b.left(0)
	requireSteps(t, db.Pool, runtimetest.Outages*each, keys...)
	require.Zero(t, failed.Load(), "charged")
}
