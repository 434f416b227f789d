package receive_test

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/receive"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// sends returns an effect that sends SQL with its transaction and ignores the errors.
func sends(statements ...string) func(context.Context, pgx.Tx) error {
	return func(ctx context.Context, tx pgx.Tx) error {
		for _, sql := range statements {
			_, _ = tx.Exec(ctx, sql)
		}
		return nil
	}
}

// misdeeds are what a method can do to its transaction or its goroutine, and what its dead letter says.
var misdeeds = map[string]struct {
	do   func(context.Context, pgx.Tx) error
	says string
}{
	"panic": {func(context.Context, pgx.Tx) error { panic("S3CRET") }, "consumer panicked (string)"},
	"Goexit": {func(context.Context, pgx.Tx) error {
		runtime.Goexit()
		return nil
	}, "consumer called runtime.Goexit"},
	"Commit":               {func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) }, consume.ErrTxOwned.Error()},
	"COMMIT":               {sends("COMMIT"), "consumer sent COMMIT"},
	"hidden COMMIT":        {sends("SELECT 1; COMMIT"), "consumer ended its transaction"},
	"hidden ROLLBACK":      {sends("SELECT 1; ROLLBACK", "INSERT INTO effects (event, key, n) VALUES (gen_random_uuid(), 'out', 1)"), "consumer ended its transaction"},
	"another transaction":  {sends("SELECT 1; COMMIT", "SELECT 1; BEGIN"), "consumer ended its transaction"},
	"chained transaction":  {sends("SELECT 1; ROLLBACK AND CHAIN"), "consumer ended its transaction and began another one"},
	"prepared transaction": {sends("SELECT 1; PREPARE TRANSACTION 'x'"), "consumer ended its transaction"},
	"swallowed error":      {sends("SELECT 1/0"), "ignored an error of its transaction: ERROR: division by zero"},
	"swallowed in a savepoint": {func(ctx context.Context, tx pgx.Tx) error {
		inner, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		_ = inner.QueryRow(ctx, "SELECT 1/0").Scan(new(int))
		return nil
	}, "ignored an error of its transaction: ERROR: division by zero"},
	"open rows": {func(ctx context.Context, tx pgx.Tx) error {
		_, _ = tx.Query(ctx, "SELECT generate_series(1, 9)")
		return nil
	}, "conn busy"},
	"deferred constraint": {sends("INSERT INTO deferred VALUES (1)"), "deferred_n_key"},
}

// TestMethodHarmsOnlyItsMessage: whatever the method does with one message, live and when the message is tried again, the
// message becomes a dead letter that says why, and every other message has its effect once and in the order of its key.
func TestMethodHarmsOnlyItsMessage(t *testing.T) {
	t.Parallel()
	for name, c := range misdeeds {
		for path, cfg := range map[string]receive.Config{
			"alone":    {BatchSize: 1, Attempts: 2, MaxAttempts: 2},
			"in batch": {BatchSize: 100, Attempts: 2, MaxAttempts: 2},
			"retried":  {BatchSize: 100, Attempts: 1, MaxAttempts: 3},
		} {
			t.Run(name+" "+path, func(t *testing.T) {
				t.Parallel()
				pool := database(t)
				pgtest.Execute(t, pool, "CREATE TABLE deferred (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
				pgtest.Execute(t, pool, "INSERT INTO deferred VALUES (1)")
				e := &effects{}
				e.set(func(ctx context.Context, tx pgx.Tx, p counted) error {
					if p.Key == "x" && p.N == 2 {
						return c.do(ctx, tx)
					}
					return nil
				})
				r := receiver(t, pool, e, quick(cfg))
				stop := start(t, r)
				outcomes, err := r.Receive(t.Context(), messages(4, "a", "x", "b"))
				require.NoError(t, err)
				require.NotContains(t, outcomes, receive.Outcome(""))
				pgtest.Settles(t, pool, 11, "SELECT count(*) FROM effects")
				pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.inbox_messages WHERE status = 'dead'")
				require.NoError(t, stop())
				requireCounted(t, pool, 4, "a", "b")
				require.Equal(t, []int32{1, 3, 4}, pgtest.Value[[]int32](t, pool, "SELECT array_agg(n ORDER BY no) FROM effects WHERE key = 'x'"))
				require.Zero(t, kept(t, pool, "parked"))
				text := pgtest.Value[string](t, pool, "SELECT error FROM outbox.inbox_messages")
				require.Contains(t, text, c.says)
				require.NotContains(t, text, "S3CRET")
				require.Eventually(t, func() bool { return pool.Stat().AcquiredConns() == 0 }, pgtest.Patience, pgtest.Interval)
			})
		}
	}
}

// TestCodeOfTheUserEndsItsGoroutine: a Begin and an Observer that end their goroutines lose no message, and no slot.
func TestCodeOfTheUserEndsItsGoroutine(t *testing.T) {
	t.Parallel()
	pool := database(t)
	var begun atomic.Int64
	waits := make(chan error, 10)
	r := receiver(t, pool, &effects{}, quick(receive.Config{
		Concurrency: 1, BatchSize: 1,
		Begin: func(context.Context, pgx.Tx) error {
			if begun.Add(1) <= 2 {
				runtime.Goexit()
			}
			return nil
		},
		Observer: &receive.Observer{
			Settled: func(receive.Settled) { runtime.Goexit() },
			Waiting: func(err error) {
				waits <- err
				runtime.Goexit()
			},
		},
	}))
	outcomes, err := r.Receive(t.Context(), messages(3, "a", "b"))
	require.NoError(t, err)
	require.NotContains(t, outcomes, receive.Outcome(""))
	require.ErrorContains(t, pgtest.Receive(t, waits, "the wait"), "Config.Begin called runtime.Goexit")
	requireCounted(t, pool, 3, "a", "b")
}
