package nats_test

import (
	"context"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume/nats"
	"github.com/outboxgen/outboxgen/consume/receive"
	"github.com/outboxgen/outboxgen/internal/pgserver"
	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/internal/runtimetest"
	"github.com/outboxgen/outboxgen/migrate"
)

// TestDatabaseRestarts: PostgreSQL is shut down, stopped without a checkpoint and killed while messages flow, and started again.
// Nothing is lost or charged, each effect happens once and in order, and the log says it per outage and not per message.
func TestDatabaseRestarts(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	const each = 20
	keys := []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"}
	server := pgtest.Server(t, pgserver.Options{})
	pool, b := pgtest.Pool(t, server.URL()), newBroker(t)
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	_, err = migrate.Up(t.Context(), conn.Conn(), pgtest.Schema)
	conn.Release()
	require.NoError(t, err)
	pgtest.Execute(t, pool, effectsTable)

	e := &effects{}
	var armed atomic.Bool
	hit, resume := make(chan struct{}), make(chan struct{})
	e.set(func(context.Context, pgx.Tx, step) error {
		if armed.CompareAndSwap(true, false) {
			hit <- struct{}{}
			<-resume // in the middle of a transaction
		}
		return nil
	})
	log := runtimetest.NewLogSpy()
	var failed atomic.Int64
	r := run(t, pool, e, b.config(func(c *nats.Config) {
		c.AckWait, c.Receive.BatchSize, c.Receive.Logger = 6*time.Second, 10, log.Logger()
		c.Receive.Observer = &receive.Observer{Failed: func(receive.Failed) { failed.Add(1) }}
	}))
	faults := []func(){
		func() {
			process, err := os.FindProcess(server.Pid())
			require.NoError(t, err)
			require.NoError(t, process.Signal(syscall.SIGINT)) // what `pg_ctl -m fast` sends
		},
		func() {}, // Restart stops it in immediate mode
		func() { require.NoError(t, server.Kill()) },
	}
	for i, fault := range faults {
		armed.Store(true)
		b.put(i*each+1, (i+1)*each, keys...)
		pgtest.Receive(t, hit, "an effect")
		fault()
		if i == 1 {
			require.NoError(t, server.Restart())
			resume <- struct{}{}
		} else {
			resume <- struct{}{}
			log.Await(t, "messages wait: the database or a target does not answer")
			require.NoError(t, server.Restart())
			log.Await(t, "messages do not wait any more")
		}
		pgtest.Settles(t, pool, (i+1)*each*len(keys), "SELECT count(*) FROM effects")
	}
	b.acknowledged("projection")
	require.NoError(t, r.stop())
	requireSteps(t, pool, len(faults)*each, keys...)
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.inbox_messages"))
	require.Zero(t, failed.Load(), "charged")
	troubles := 0
	for _, line := range log.Lines() {
		if !strings.Contains(line, "level=INFO") {
			troubles++
		}
	}
	require.LessOrEqual(t, troubles, 5*len(faults), "lines per outage:\n%s", strings.Join(log.Lines(), "\n"))
}
