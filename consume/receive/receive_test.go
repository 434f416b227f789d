package receive_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/receive"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// TestReceiveAppliesOnceInOrder: each message has its effect once, in the order of its key, also when it comes again.
func TestReceiveAppliesOnceInOrder(t *testing.T) {
	t.Parallel()
	pool := database(t)
	r := receiver(t, pool, &effects{}, receive.Config{BatchSize: 7})
	ms := messages(30, "a", "b", "c")
	for _, want := range []receive.Outcome{receive.Applied, receive.Duplicate} {
		outcomes, err := r.Receive(t.Context(), ms)
		require.NoError(t, err)
		for _, o := range outcomes {
			require.Equal(t, want, o)
		}
	}
	requireCounted(t, pool, 30, "a", "b", "c")
	outcomes, err := r.Receive(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, outcomes)
}

// TestReceiveKeepsPoison: a message that can never be applied is a dead letter, and those around it are applied.
func TestReceiveKeepsPoison(t *testing.T) {
	t.Parallel()
	pool := database(t)
	e := &effects{}
	e.set(func(_ context.Context, _ pgx.Tx, p counted) error {
		if p.Key == "a" && p.N == 3 {
			return consume.Permanent(errors.New("never"))
		}
		return nil
	})
	r := receiver(t, pool, e, receive.Config{})
	ms := messages(5, "a", "b")
	malformed := receive.Message{Message: consume.Message{Body: []byte("\x00\xff"), Headers: map[string]string{"x": "\xfe\x00y"}}, Place: "test:bad", Key: "b"}
	ms = append(ms, malformed, message("b", 6))
	for range 2 {
		outcomes, err := r.Receive(t.Context(), ms)
		require.NoError(t, err)
		require.Equal(t, receive.Dead, outcomes[4])
		require.Equal(t, receive.Dead, outcomes[10])
	}
	requireCounted(t, pool, 6, "b")
	require.Equal(t, []int32{1, 2, 4, 5}, pgtest.Value[[]int32](t, pool, "SELECT array_agg(n ORDER BY no) FROM effects WHERE key = 'a'"))
	require.Equal(t, 2, kept(t, pool, "dead"))
	require.Equal(t, "\x00\xff", string(pgtest.Value[[]byte](t, pool, "SELECT body FROM outbox.inbox_messages WHERE event_id IS NULL AND place = 'test:bad'")))
	require.Contains(t, pgtest.Value[string](t, pool, "SELECT error FROM outbox.inbox_messages WHERE key = 'a'"), ": never")
}

// TestReceiveParksAKeyInOrder: a message that fails is parked with the later ones of its key, and Run applies them in order
// once the cause is gone.
func TestReceiveParksAKeyInOrder(t *testing.T) {
	t.Parallel()
	pool := database(t)
	e := &effects{}
	e.set(func(_ context.Context, _ pgx.Tx, p counted) error {
		if p.Key == "a" && p.N >= 4 {
			return errors.New("not yet")
		}
		return nil
	})
	r := receiver(t, pool, e, quick(receive.Config{Attempts: 1, MaxAttempts: 1000, BatchSize: 5}))
	ms := messages(20, "a", "b")
	outcomes, err := r.Receive(t.Context(), ms)
	require.NoError(t, err)
	require.Equal(t, receive.Parked, outcomes[6])
	require.Equal(t, receive.Parked, outcomes[38])
	requireCounted(t, pool, 20, "b")
	requireCounted(t, pool, 3, "a")
	require.Equal(t, 17, kept(t, pool, "parked"))

	stop := start(t, r)
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.inbox_messages WHERE attempts > 2")
	requireCounted(t, pool, 3, "a")
	e.set(nil)
	pgtest.Settles(t, pool, 0, "SELECT count(*) FROM outbox.inbox_messages")
	requireCounted(t, pool, 20, "a")
	outcomes, err = r.Receive(t.Context(), []receive.Message{message("a", 21)})
	require.NoError(t, err)
	require.Equal(t, []receive.Outcome{receive.Applied}, outcomes)
	requireCounted(t, pool, 21, "a")
	require.NoError(t, stop())
}

// TestReceiveGivesUp: a message that fails MaxAttempts times is a dead letter, and its key continues.
func TestReceiveGivesUp(t *testing.T) {
	t.Parallel()
	pool := database(t)
	e := &effects{}
	e.set(func(_ context.Context, _ pgx.Tx, p counted) error {
		if p.N == 2 {
			return errors.New("no")
		}
		return nil
	})
	r := receiver(t, pool, e, quick(receive.Config{Attempts: 2, MaxAttempts: 4}))
	start(t, r)
	_, err := r.Receive(t.Context(), messages(5, "a"))
	require.NoError(t, err)
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.inbox_messages WHERE status = 'dead' AND attempts = 4")
	pgtest.Settles(t, pool, 0, "SELECT count(*) FROM outbox.inbox_messages WHERE status = 'parked'")
	require.Equal(t, []int32{1, 3, 4, 5}, pgtest.Value[[]int32](t, pool, "SELECT array_agg(n ORDER BY no) FROM effects"))
	status, err := r.Status(t.Context())
	require.NoError(t, err)
	require.Equal(t, receive.Status{Dead: 1}, status)
}
