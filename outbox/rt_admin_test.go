package outbox_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outbox"
)

// rewind rewinds ears and returns how many events lie ahead.
func rewind(t testing.TB, a *outbox.ListenerAdmin, to time.Time) int {
	t.Helper()
	planned, err := a.Preview().Rewind(t.Context(), "ears", to)
	require.NoError(t, err)
	n, err := a.Rewind(t.Context(), "ears", to)
	require.NoError(t, err)
	require.Equal(t, planned, n, "the preview")
	return int(n)
}

// skip skips an event of ears.
func skip(t testing.TB, a *outbox.ListenerAdmin, id uuid.UUID) outbox.Event {
	t.Helper()
	e, err := a.Skip(t.Context(), "ears", id)
	require.NoError(t, err)
	return e
}

func adminOf(t testing.TB, pool *pgxpool.Pool) *outbox.ListenerAdmin {
	t.Helper()
	a, err := outbox.NewListenerAdmin(pool, "")
	require.NoError(t, err)
	return a
}

// idOf returns the id of the event called like "a1".
func idOf(t testing.TB, pool *pgxpool.Pool, name string) uuid.UUID {
	t.Helper()
	return value[uuid.UUID](t, pool, "SELECT id FROM outbox.log WHERE payload->>'key' || (payload->>'n') = $1", name)
}
