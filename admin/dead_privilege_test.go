package admin_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/internal/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
)

// The privileges that docs/operations.md names suffice to replay, edit and discard.
func TestReplayPrivileges(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	h.Fail = runtimetest.FailFor("b")
	l := runtimetest.ListenTo(t, pool, listener.Spec{Retry: once, ParkKeys: true}, listener.Config{}, h)
	runtimetest.PutAll(t, pool, "b1", "b2", "b3")
	runtimetest.DrainAll(t, l)
	dead := die(t, pool, 3)
	operator := runtimetest.As(t, pool, "SELECT, INSERT, DELETE ON outbox.events, outbox.queue, outbox.parked", "UPDATE ON outbox.events, outbox.parked, outbox.dead_letters",
		"SELECT, DELETE ON outbox.dead_letters", "SELECT, UPDATE ON outbox.listeners", "SELECT, INSERT, UPDATE ON outbox.audit")
	a := runtimetest.AdminOf(t, operator)
	_, err := a.DeadGroups(t.Context(), admin.Filter{})
	require.NoError(t, err)
	for i, listener := range []string{"ears", ""} {
		id := dead[0].ID
		if i == 0 {
			id = runtimetest.IDOf(t, pool, "b2")
		}
		_, err = a.ReplayEdited(t.Context(), id, listener, []byte(`{"key": "x", "n": 1}`), somebody)
		require.NoError(t, err)
	}
	r, err := a.Replay(t.Context(), admin.Filter{}, admin.Act{Who: "tester", Limit: 3})
	require.NoError(t, err)
	require.Equal(t, admin.Report{Matched: 3, Done: 3}, r)
	r, err = a.Discard(t.Context(), admin.Filter{}, somebody)
	require.NoError(t, err)
	require.Equal(t, admin.Report{Matched: 1, Done: 1}, r)
}
