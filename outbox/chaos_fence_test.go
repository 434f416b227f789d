package outbox_test

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

// A lease has taken its snapshot, in which an event parked is due, when another process takes the shard, handles that
// event and one committed since, and gives the shard up. PostgreSQL has the first go on with the newer version of the
// row (EvalPlanQual), but with its old snapshot: as a window it would lie behind the latest one, and what is between them
// would come again. lease_no tells.
func TestLateLeaseDoesNotMoveTheCursorBack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		edits []outbox.Edit
		want  []string
	}{
		"as it is":          {want: []string{"a1", "b1", "c1"}},
		"without the guard": {edits: []outbox.Edit{outbox.WithoutFence}, want: []string{"a1", "b1", "b1", "c1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			h := newNotes()
			spec := outbox.ListenerSpec{ParkKeys: true, Retry: outbox.Retry{BaseDelay: time.Hour}}
			first, late := listenTo(t, pool, spec, outbox.ListenerConfig{}, h), listenTo(t, pool, spec, outbox.ListenerConfig{}, h)
			outbox.Mutate(late, append(c.edits, outbox.GatedLease)...)
			h.fail = func(outbox.Delivery[said]) error { return errors.New("not now") }
			put1(t, pool, "a", 1)
			require.Equal(t, outbox.DrainReport{Retried: 1}, drainAll(t, first))
			h.fail = nil
			retryNow(t, pool)
			gate, err := pool.Acquire(t.Context())
			require.NoError(t, err)
			defer gate.Release()
			value[string](t, gate, "SELECT pg_advisory_lock($1)::text", outbox.LeaseGate)
			over := make(chan error, 1)
			go func() {
				_, err := late.Drain(t.Context())
				over <- err
			}()
			blocked(t, pool)
			drainAll(t, first)
			put1(t, pool, "b", 1)
			drainAll(t, first)
			value[bool](t, gate, "SELECT pg_advisory_unlock($1)", outbox.LeaseGate)
			require.NoError(t, <-over)
			put1(t, pool, "c", 1)
			drainAll(t, first)
			require.Equal(t, c.want, h.names())
		})
	}
}

// blocked waits until a lease stands at the gate.
func blocked(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	eventually(t, func() bool {
		return value[bool](t, pool, `SELECT EXISTS (SELECT FROM pg_locks
			WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`)
	})
}
