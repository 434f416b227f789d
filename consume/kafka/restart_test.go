package kafka_test

import (
	"context"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/receive"
	"github.com/outboxgen/outboxgen/internal/pgserver"
	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/internal/runtimetest"
	"github.com/outboxgen/outboxgen/migrate"
)

// TestDatabaseRestarts: PostgreSQL is shut down, stopped without a checkpoint and killed while records flow, and started again.
// Nothing is lost or charged, each effect happens once and in order, and the log says it per outage and not per record.
func TestDatabaseRestarts(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	const keys, each = 20, 60
	server := pgtest.Server(t, pgserver.Options{})
	pool, c := pgtest.Pool(t, server.URL()), newCluster(t, 1)
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	_, err = migrate.Up(t.Context(), conn.Conn(), pgtest.Schema)
	conn.Release()
	require.NoError(t, err)
	pgtest.Execute(t, pool, effectsTable)

	e := &effects{}
	var armed atomic.Bool
	hit, resume := make(chan struct{}), make(chan struct{})
	e.set(func(context.Context, pgx.Tx, consume.Delivery[counted]) error {
		if armed.CompareAndSwap(true, false) {
			hit <- struct{}{}
			<-resume // in the middle of a transaction
		}
		return nil
	})
	cfg, log := c.config(), runtimetest.NewLogSpy()
	var failed atomic.Int64
	cfg.Receive.Logger = log.Logger()
	cfg.Receive.BatchSize = 10
	cfg.Receive.Observer = &receive.Observer{Failed: func(receive.Failed) { failed.Add(1) }}
	stop := start(t, receiver(t, pool, e, cfg))
	faults := []func(){
		func() {
			process, err := os.FindProcess(server.Pid())
			require.NoError(t, err)
			require.NoError(t, process.Signal(syscall.SIGINT)) // what `pg_ctl -m fast` sends
		},
		func() {}, // Restart stops it in immediate mode
		func() { require.NoError(t, server.Kill()) },
	}
	all := records(keys, each)
	for i, fault := range faults {
		armed.Store(true)
		c.produce(all[i*len(all)/len(faults) : (i+1)*len(all)/len(faults)]...)
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
		pgtest.Settles(t, pool, (i+1)*len(all)/len(faults), "SELECT count(*) FROM effects")
	}
	require.NoError(t, stop())
	requireCounted(t, pool, keys, each)
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
