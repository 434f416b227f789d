package runtimetest

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

// Rewind rewinds the listener ears and returns how many events are ahead of it.
func Rewind(t testing.TB, a *admin.Admin, to time.Time) int {
	t.Helper()
	planned, err := a.Preview().Rewind(t.Context(), "ears", to)
	require.NoError(t, err)
	n, err := a.Rewind(t.Context(), "ears", to)
	require.NoError(t, err)
	require.Equal(t, planned, n, "the preview")
	return int(n)
}

// Skip skips an event of the listener ears.
func Skip(t testing.TB, a *admin.Admin, id uuid.UUID) outbox.Event {
	t.Helper()
	e, err := a.Skip(t.Context(), "ears", id)
	require.NoError(t, err)
	return e
}

// Pause pauses a scope.
func Pause(t testing.TB, a *admin.Admin, s admin.Scope) {
	t.Helper()
	require.NoError(t, a.Pause(t.Context(), s, admin.Act{Who: "tester"}))
}

// Resume ends the pause of a scope, which must be paused.
func Resume(t testing.TB, a *admin.Admin, s admin.Scope) {
	t.Helper()
	r, err := a.Resume(t.Context(), s, admin.Act{Who: "tester"})
	require.NoError(t, err)
	require.Equal(t, admin.ResumeReport{Resumed: true}, r)
}

func AdminOf(t testing.TB, pool *pgxpool.Pool) *admin.Admin {
	t.Helper()
	a, err := admin.New(pool, "")
	require.NoError(t, err)
	return a
}

// IDOf returns the id of the event with a name like "a1".
func IDOf(t testing.TB, pool *pgxpool.Pool, name string) uuid.UUID {
	t.Helper()
	return pgtest.Value[uuid.UUID](t, pool,
		"SELECT id FROM outbox.log WHERE payload->>'key' || (payload->>'n') = $1", name)
}
