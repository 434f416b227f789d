package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/examples/orders/database"
	"github.com/outboxgen/outboxgen/examples/orders/order"
	"github.com/outboxgen/outboxgen/outboxtest"
)

// asWorker makes the test program the worker itself.
const asWorker = "ORDERS_TEST_AS_WORKER"

func TestMain(m *testing.M) {
	if os.Getenv(asWorker) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// process returns the command of a separate process, and what it will print.
func process(t *testing.T, pool *pgxpool.Pool, args ...string) (cmd *exec.Cmd, out, log *strings.Builder) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	out, log = &strings.Builder{}, &strings.Builder{}
	cmd = exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), asWorker+"=yes", "DATABASE_URL="+pool.Config().ConnString())
	cmd.Stdout, cmd.Stderr = out, log
	return cmd, out, log
}

// placeOrders takes n orders, each with its event.
func placeOrders(t *testing.T, pool *pgxpool.Pool, n int) {
	t.Helper()
	shop := uuid.New()
	for i := range n {
		_, _, err := order.Create(t.Context(), pool, order.Request{
			ShopID: shop, ClientKey: fmt.Sprint("cart-", i), Lines: []order.Line{{SKU: "mug", Quantity: 1, PriceCents: 950}}, ShipTo: "1 Harbour Street",
		})
		require.NoError(t, err)
	}
}

// backlog is what an operator watches: the events that are not final, and the age of the oldest.
func backlog(t *testing.T, pool *pgxpool.Pool) (waiting int, oldest time.Duration) {
	t.Helper()
	var seconds float64
	require.NoError(t, pool.QueryRow(t.Context(), `
		SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0)
		FROM outbox.event_status
		WHERE namespace = 'orders' AND status IN ('pending', 'processing')`).Scan(&waiting, &seconds))
	return waiting, time.Duration(seconds * float64(time.Second))
}

func shipments(t *testing.T, pool *pgxpool.Pool) (n int) {
	t.Helper()
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM shop.shipments").Scan(&n))
	return n
}

// TestStopAndStartDrill: while the worker is stopped, orders are taken and their events wait, which an operator sees.
// When the worker starts, it ships them all. It stops when it is told to, and the next orders wait again.
func TestStopAndStartDrill(t *testing.T) {
	t.Parallel()
	pool := outboxtest.Postgres(t)
	require.NoError(t, database.Migrate(t.Context(), pool))
	placeOrders(t, pool, 30)
	waiting, oldest := backlog(t, pool)
	require.Equal(t, 30, waiting)
	require.Positive(t, oldest)
	require.Zero(t, shipments(t, pool))

	cmd, _, log := process(t, pool, "run")
	require.NoError(t, cmd.Start())
	require.Eventually(t, func() bool {
		waiting, _ := backlog(t, pool)
		return waiting == 0
	}, time.Minute, 10*time.Millisecond, "the backlog drains")
	require.Equal(t, 30, shipments(t, pool))

	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	require.Eventually(t, func() bool { // timeout(1) sends two signals, too
		_ = cmd.Process.Signal(syscall.SIGTERM)
		return len(ended) > 0
	}, time.Minute, time.Millisecond)
	require.NoError(t, <-ended, log.String())
	require.Contains(t, log.String(), "dispatcher has stopped")
	placeOrders(t, pool, 5)
	waiting, _ = backlog(t, pool)
	require.Equal(t, 5, waiting)
}

// TestDrainOnce: drain ships what is due, within its bounds, and prints a report.
func TestDrainOnce(t *testing.T) {
	t.Parallel()
	pool := outboxtest.Postgres(t)
	require.NoError(t, database.Migrate(t.Context(), pool))
	placeOrders(t, pool, 12)
	for _, want := range []struct {
		delivered int
		ended     string
		more      bool
	}{{8, "events", true}, {4, "drained", false}, {0, "drained", false}} {
		cmd, out, log := process(t, pool, "drain", "-events", "8")
		require.NoError(t, cmd.Run(), log.String())
		var report struct {
			Delivered int
			Ended     string
			More      bool
		}
		require.NoError(t, json.Unmarshal([]byte(out.String()), &report), out.String())
		require.Equal(t, want.delivered, report.Delivered)
		require.Equal(t, want.ended, report.Ended)
		require.Equal(t, want.more, report.More)
	}
	require.Equal(t, 12, shipments(t, pool))

	cmd, _, log := process(t, pool, "ship")
	require.Error(t, cmd.Run())
	require.Equal(t, 2, cmd.ProcessState.ExitCode())
	require.Contains(t, log.String(), "usage: worker run, or worker drain")
}
