package listener_test

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
)

// A lease has taken its snapshot, in which a parked event is due. Then another process takes the shard, handles that
// event and one committed since, and gives the shard up. PostgreSQL continues the first lease with the newer version of
// the row (EvalPlanQual), but with the old snapshot. Its window would be older than the latest one, and the events
// between them would be delivered again. lease_no prevents this.
func TestLateLeaseDoesNotMoveTheCursorBack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		edits []listener.Edit
		want  []string
	}{
		"as it is":          {want: []string{"a1", "b1", "c1"}},
		"without the guard": {edits: []listener.Edit{listener.WithoutFence}, want: []string{"a1", "b1", "b1", "c1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			h := runtimetest.NewNotes()
			spec := listener.Spec{ParkKeys: true, Retry: outbox.Retry{BaseDelay: time.Hour}}
			first, late := runtimetest.ListenTo(t, pool, spec, listener.Config{}, h), runtimetest.ListenTo(t, pool, spec, listener.Config{}, h)
			listener.Mutate(late, append(c.edits, listener.GatedLease)...)
			h.Fail = func(outbox.Delivery[runtimetest.Said]) error { return errors.New("not now") }
			runtimetest.Put(t, pool, "a", 1)
			require.Equal(t, listener.Report{Retried: 1}, runtimetest.DrainAll(t, first))
			h.Fail = nil
			runtimetest.RetryNow(t, pool)
			gate, err := pool.Acquire(t.Context())
			require.NoError(t, err)
			defer gate.Release()
			pgtest.Value[string](t, gate, "SELECT pg_advisory_lock($1)::text", listener.LeaseGate)
			over := make(chan error, 1)
			go func() {
				_, err := late.Drain(t.Context())
				over <- err
			}()
			blocked(t, pool)
			runtimetest.DrainAll(t, first)
			runtimetest.Put(t, pool, "b", 1)
			runtimetest.DrainAll(t, first)
			pgtest.Value[bool](t, gate, "SELECT pg_advisory_unlock($1)", listener.LeaseGate)
			require.NoError(t, <-over)
			runtimetest.Put(t, pool, "c", 1)
			runtimetest.DrainAll(t, first)
			require.Equal(t, c.want, h.Names())
		})
	}
}

// blocked waits until a lease waits at the gate.
func blocked(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	pgtest.Eventually(t, func() bool {
		return pgtest.Value[bool](t, pool, `SELECT EXISTS (SELECT FROM pg_locks
			WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`)
	})
}
