package runtimetest

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
)

// Newer returns topic with version 2, as the next build has it.
func Newer[P any](topic outbox.Topic[P]) outbox.Topic[P] {
	return Altered(topic, func(s *outbox.TopicSpec) { s.Version = 2 })
}

// UntouchedSQL is the number of events in the queue that nobody has claimed.
const UntouchedSQL = "SELECT count(*) FROM outbox.queue WHERE attempts = 0 AND claim_no = 0 AND locked_until IS NULL"

// Ears is a listener of SaidTopic in one of two builds.
func Ears(
	t *testing.T, pool *pgxpool.Pool, transactional bool, topic outbox.Topic[Said], spec listener.Spec,
	cfg listener.Config, h *Notes,
) *listener.Listener {
	t.Helper()
	spec.Name, cfg.Logger = "ears", DiscardLogger()
	handler := listener.Handle(topic, h, h.Handle)
	if transactional {
		MakeEffects(t, pool)
		handler = listener.HandleTx(topic, h, h.HandleTx)
	}
	l, err := listener.New(pool, WithLateRetries(spec), cfg, handler)
	require.NoError(t, err)
	return l
}

// SayAs commits an event of a version.
func SayAs(t testing.TB, pool *pgxpool.Pool, version int, key string, n int) {
	t.Helper()
	topic := SaidTopic
	if version == 2 {
		topic = Newer(topic)
	}
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		_, err := topic.Enqueue(t.Context(), tx, Said{Key: key, N: n})
		require.NoError(t, err)
	})
}
