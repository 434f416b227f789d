package events_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/examples/threads/events"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
)

// The dedupe key of the jobs would hide a job that was enqueued twice. So these tests also write a row without a key for
// each job, in the same transaction.
const asksTable = "CREATE TABLE asks (message_id uuid NOT NULL)"

func noteAsk(ctx context.Context, tx pgx.Tx, d outbox.Delivery[events.MessageCreated]) error {
	_, err := tx.Exec(ctx, "INSERT INTO asks (message_id) VALUES ($1)", d.Payload.MessageID)
	return err
}

func (f *fixture) requireAskedOnce(messages int) {
	f.t.Helper()
	require.Equal(f.t, messages, f.count("SELECT count(*) FROM asks"))
	require.Equal(f.t, messages, f.count("SELECT count(DISTINCT message_id) FROM asks"))
	require.Equal(f.t, messages, f.jobs())
}

// TestJobsExactlyOnceThoughTheListenerRestarts repeatedly stops the listener in the middle of its batches.
func TestJobsExactlyOnceThoughTheListenerRestarts(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, err := f.pool.Exec(t.Context(), asksTable)
	require.NoError(t, err)
	id := f.thread()
	const messages = 40
	for n := range messages {
		f.post(id, fmt.Sprint(n))
	}

	starts := 0
	for ; f.jobs() < messages; starts++ {
		require.Less(t, starts, messages)
		ctx, stop := context.WithCancel(t.Context())
		handled := 0
		asked := newAsker(func(ctx context.Context, tx pgx.Tx, d outbox.Delivery[events.MessageCreated]) error {
			if handled++; handled == 3 || d.Payload.Number == messages {
				stop()
			}
			return noteAsk(ctx, tx, d)
		})
		require.NoError(t, f.companion(asked, listener.Config{}).Run(ctx))
		stop()
	}
	require.Greater(t, starts, 10)
	f.requireAskedOnce(messages)
}

// TestJobsExactlyOnceThoughItFails makes handlers fail after they have written, and makes PostgreSQL end their connection,
// so that whole batches are rolled back.
func TestJobsExactlyOnceThoughItFails(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, err := f.pool.Exec(t.Context(), asksTable)
	require.NoError(t, err)
	id := f.thread()
	const messages = 20
	for n := range messages {
		f.post(id, fmt.Sprint(n))
	}

	calls, killed := 0, 0
	asked := newAsker(func(ctx context.Context, tx pgx.Tx, d outbox.Delivery[events.MessageCreated]) error {
		if err := noteAsk(ctx, tx, d); err != nil {
			return err
		}
		switch calls++; {
		case calls%5 == 0:
			return outbox.RetryAfter(0, errors.New("on second thoughts"))
		case calls == 8 || calls == 13:
			killed++
			_, err := f.pool.Exec(ctx, "SELECT pg_terminate_backend($1)", tx.Conn().PgConn().PID())
			return err
		}
		return nil
	})
	companion := f.companion(asked, listener.Config{})
	for drains := 0; f.jobs() < messages; drains++ {
		require.Less(t, drains, messages)
		outboxtest.Drain(t, companion)
	}
	f.requireAskedOnce(messages)
	require.Equal(t, 2, killed)
	require.Empty(t, f.letters())
}
