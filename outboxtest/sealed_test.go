package outboxtest_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
	"github.com/outboxgen/outboxgen/queue"
	"github.com/outboxgen/outboxgen/seal"
)

type secretNote struct {
	ID     string `json:"id"`
	Secret string `json:"secret" outbox:"sealed"`
}

var secretNoteTopic = outbox.NewTopic[secretNote](outbox.TopicSpec{Namespace: "notes", Name: "secret", Sealed: outbox.SealedFields()})

// TestRequireEnqueuedOpens: what code under test has sealed is opened, with the keyring for tests or that of WithKeyring.
// A failure shows no value, and says which key is missing. Drain gives the same keyring to handlers.
func TestRequireEnqueuedOpens(t *testing.T) {
	t.Parallel()
	own, err := seal.Parse("mine:" + strings.Repeat("A", 43))
	require.NoError(t, err)
	for _, with := range []func(testing.TB) testing.TB{
		func(t testing.TB) testing.TB { return t },
		func(t testing.TB) testing.TB { return outboxtest.WithKeyring(t, own) },
	} {
		pool := outboxtest.Postgres(t)
		tb := with(t)
		k := seal.KeyringFromContext(tb.Context())
		if k == nil {
			k = seal.ForTests()
		}
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := secretNoteTopic.Enqueue(seal.ContextWithKeyring(t.Context(), k), tx, secretNote{ID: "a", Secret: "canary"})
			return err
		}))
		got := outboxtest.RequireEnqueued(tb, pool, secretNoteTopic, func(n secretNote) bool { return n.Secret == "canary" })
		require.Equal(t, "canary", got.Secret)

		message := failure(t, func(tb testing.TB) {
			outboxtest.RequireEnqueued(with(tb), pool, secretNoteTopic, func(n secretNote) bool { return n.Secret == "other" })
		})
		require.Contains(t, message, "no event of notes/secret matches")
		require.NotContains(t, message, "canary")
		message = failure(t, func(tb testing.TB) {
			outboxtest.RequireNotEnqueued(with(tb), pool, secretNoteTopic, nil)
		})
		require.Contains(t, message, "an event of notes/secret matches")
		require.NotContains(t, message, "canary")
		third, err := seal.Parse("third:" + strings.Repeat("B", 43))
		require.NoError(t, err)
		message = failure(t, func(tb testing.TB) {
			outboxtest.RequireEnqueued(outboxtest.WithKeyring(tb, third), pool, secretNoteTopic, nil)
		})
		require.Contains(t, message, "(payload does not open: field secret: it is sealed with key ")

		var handled []secretNote
		d, err := queue.NewDispatcher(pool, queue.Config{}, queue.Handle(secretNoteTopic, 1, func(_ context.Context, d outbox.Delivery[secretNote]) error {
			handled = append(handled, d.Payload)
			return nil
		}))
		require.NoError(t, err)
		require.Equal(t, 1, outboxtest.Drain(tb, d).Delivered)
		require.Equal(t, []secretNote{{ID: "a", Secret: "canary"}}, handled)
	}
}
