package main

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/examples/orders/database"
	"github.com/outboxgen/outboxgen/outboxtest"
)

// started starts a worker and waits until its dispatcher runs. end waits for the end of the process, and returns its log.
func started(t *testing.T, pool *pgxpool.Pool) (cmd *exec.Cmd, end func() (string, error)) {
	t.Helper()
	cmd, _, _ = process(t, pool, "run")
	cmd.Stderr = nil
	stderr, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var log strings.Builder
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		_, _ = fmt.Fprintln(&log, lines.Text())
		if strings.Contains(lines.Text(), "dispatcher starts") {
			break
		}
	}
	require.Contains(t, log.String(), "dispatcher starts")
	return cmd, func() (string, error) {
		for lines.Scan() {
			_, _ = fmt.Fprintln(&log, lines.Text())
		}
		return log.String(), cmd.Wait()
	}
}

// TestToldToStopFiveTimes: a worker that gets five SIGTERMs ends with 0, wherever the later ones find it: while it stops,
// while it exits, or gone. Fifty workers are told, four at a time. Some of them ship orders at that moment.
func TestToldToStopFiveTimes(t *testing.T) {
	t.Parallel()
	pool := outboxtest.Postgres(t)
	require.NoError(t, database.Migrate(t.Context(), pool))
	placeOrders(t, pool, 200)
	for i := range 4 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			for round := i; round < 50; round += 4 {
				cmd, end := started(t, pool)
				for range 5 {
					_ = cmd.Process.Signal(syscall.SIGTERM)
					time.Sleep(time.Duration(1000+rand.IntN(4000)) * time.Microsecond) // the distance is what is tested
				}
				log, err := end()
				require.NoError(t, err, log)
				require.Contains(t, log, "dispatcher has stopped")
			}
		})
	}
}

// TestSecondInterruptEndsAHangingHandler: Ctrl-C, and again, ends a worker whose handler waits for a lock, long before the
// handler would be cancelled.
func TestSecondInterruptEndsAHangingHandler(t *testing.T) {
	t.Parallel()
	pool := outboxtest.Postgres(t)
	require.NoError(t, database.Migrate(t.Context(), pool))
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, tx.Rollback(t.Context())) }()
	_, err = tx.Exec(t.Context(), "LOCK TABLE shop.shipments")
	require.NoError(t, err)
	placeOrders(t, pool, 1)
	cmd, end := started(t, pool)
	require.Eventually(t, func() bool {
		var hangs bool
		err := pool.QueryRow(t.Context(), `
			SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'shop.shipments'::regclass AND NOT granted)`).Scan(&hangs)
		return err == nil && hangs
	}, time.Minute, 10*time.Millisecond, "the handler waits for the lock")

	ended := make(chan error, 1)
	go func() {
		_, err := end()
		ended <- err
	}()
	require.Eventually(t, func() bool { // the first stops it gracefully, which shows nowhere while the handler hangs
		_ = cmd.Process.Signal(syscall.SIGINT)
		return len(ended) > 0
	}, 10*time.Second, 10*time.Millisecond)
	var exit *exec.ExitError
	require.ErrorAs(t, <-ended, &exit)
	status, ok := exit.Sys().(syscall.WaitStatus)
	require.True(t, ok)
	require.True(t, status.Signaled() && status.Signal() == syscall.SIGINT, exit)
}
