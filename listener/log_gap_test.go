package listener

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/testing/pgserver"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/listener/internal/core"
	"github.com/outboxgen/outboxgen/migrate"
)

const (
	gapXIDs = 5000   // that another database uses up
	gapRows = 10_000 // of a transaction in between that stays open
)

// burn makes tx use up n xids, one savepoint per xid.
func burn(t testing.TB, tx pgx.Tx, n int) {
	t.Helper()
	_, err := tx.Exec(t.Context(), "CREATE TEMP TABLE burnt (n int) ON COMMIT DROP")
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `DO $$ BEGIN
		FOR i IN 1..`+strconv.Itoa(n)+` LOOP
			BEGIN
				
				INSERT INTO burnt VALUES (i);
			EXCEPTION WHEN others THEN RAISE;
			END;
		END LOOP;
	END $$`)
	require.NoError(t, err)
}

// The cost of a lease does not depend on how many xids lie between the xmax of a cursor's snapshot and its bound. They
// may be those of savepoints, in any database of the cluster. The rows of an open transaction among them are not walked
// either, and events that commit among them are delivered.
func TestListenerPassesXIDsWithoutEvents(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, pgserver.Options{Settings: map[string]string{"autovacuum": "off"}})
	p := &logPlans{t: t, pool: pgtest.Pool(t, server.URL()), facts: "empty"}
	_, err := migrate.Up(t.Context(), p.pool, pgtest.Schema)
	require.NoError(t, err)
	p.exec("CREATE DATABASE other")
	other := pgtest.Pool(t, server.URLOf("other"))
	open := func(begin func(context.Context) (pgx.Tx, error)) pgx.Tx {
		tx, err := begin(t.Context())
		require.NoError(t, err)
		t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
		return tx
	}
	insert := func(tx pgx.Tx, n int) {
		_, err := tx.Exec(t.Context(), logRows, n)
		require.NoError(t, err)
	}
	l := p.listener(Spec{Name: "ears"}, "said")
	early := open(p.pool.Begin)
	insert(early, 1)
	burner, first, huge, last := open(other.Begin), open(p.pool.Begin), open(p.pool.Begin), open(p.pool.Begin)
	burn(t, burner, gapXIDs/2)
	insert(first, 1)
	insert(huge, gapRows)
	burn2 := open(other.Begin)
	burn(t, burn2, gapXIDs/2)
	insert(last, 1)
	// This transaction ends first, with an xid before all the others and a seq after them. So xmax is before them and
	// the bound of the next window after them, and they are stragglers.
	insert(early, 100)
	require.NoError(t, early.Commit(t.Context()))
	for p.cut(l) {
	}
	gap := p.gap()
	require.Greater(t, gap, int64(gapXIDs))

	look := func(name string) {
		p.small(l, name+": lease", func(q *queries.Queries) {
			_, _ = q.ListenerTakeLease(t.Context(), queries.ListenerTakeLeaseParams{
				WorkerID: pgvalue.UUID(l.cfg.WorkerID), Lease: pgvalue.Interval(time.Hour), LeaseID: pgvalue.UUID(uuid.New()), PreviousID: pgvalue.UUID(uuid.Nil),
				OneByOneSize: logBatch, Listener: l.spec.Name, ParkedLimit: core.MaxParkedKeys, AfterNo: p.latest(l),
			})
		})
		p.exec("UPDATE outbox.listeners SET preferred = $1", uuid.New())
		p.small(l, name+": wait", func(q *queries.Queries) {
			_, _ = q.ListenerWait(t.Context(), queries.ListenerWaitParams{WorkerID: pgvalue.UUID(l.cfg.WorkerID), Listener: l.spec.Name})
		})
		p.exec("UPDATE outbox.listeners SET preferred = NULL")
		p.small(l, name+": standing", func(q *queries.Queries) {
			_, _ = q.ListenerHead(t.Context(), queries.ListenerHeadParams{EventLimit: 1, Listener: l.spec.Name})
		})
		p.exec("UPDATE outbox.listeners SET lease_by = $1, lease_until = statement_timestamp() + interval '1 hour'", l.cfg.WorkerID)
		p.small(l, name+": rewind", func(q *queries.Queries) {
			_, _ = q.ListenerRewind(t.Context(), queries.ListenerRewindParams{Listener: l.spec.Name, WorkerID: pgvalue.UUID(l.cfg.WorkerID), Since: pgvalue.Time(time.Time{})})
		})
		p.exec("UPDATE outbox.listeners SET lease_by = NULL, lease_until = NULL")
	}
	look("nothing new")
	require.False(t, p.cut(l))
	for _, tx := range []pgx.Tx{first, last} {
		require.NoError(t, tx.Commit(t.Context()))
	}
	look("two among them")
	taken := p.take(l)
	require.Len(t, taken.Events, 2)
	p.small(l, "two among them: read", func(q *queries.Queries) {
		_, _ = q.LogRead(t.Context(), queries.LogReadParams{
			Listener: l.spec.Name, WorkerID: pgvalue.UUID(l.cfg.WorkerID), ScanSize: logBatch, Topics: l.topics, BatchSize: logBatch,
		})
	})
}

// cut makes l handle a batch. It returns false if there is nothing to handle.
func (p *logPlans) cut(l *Listener) bool {
	p.t.Helper()
	taken := p.taken(l)
	if taken.No == 0 {
		return false
	}
	for _, e := range taken.Events {
		e.Status = core.Done
	}
	_, err := p.shell(l).sendRoundTrip(core.RoundTrip{End: p.end(l, taken, true)})
	require.NoError(p.t, err)
	return true
}

// gap is how many xids lie between the xmax of the cursor and its bound.
func (p *logPlans) gap() (n int64) {
	p.t.Helper()
	require.NoError(p.t, p.pool.QueryRow(p.t.Context(), `SELECT lo_bound::text::bigint - pg_snapshot_xmax(lo)::text::bigint
		FROM outbox.listeners`).Scan(&n))
	return n
}

// small requires that no node of the plan of call has many rows, and that few pages are read.
func (p *logPlans) small(l *Listener, name string, call func(q *queries.Queries)) {
	p.t.Helper()
	const most = 100
	root := p.explain(l.db, pgtest.Explained{Name: name, Reads: most, Sorts: most, Buffers: most, Call: call})
	root.Walk(func(n *pgtest.PlanNode) {
		if touched := (n.Rows + n.Filtered + n.Rechecked) * n.Loops; touched > most {
			require.NoError(p.t, errors.New("reads too much"), "%s: %s of %.0f rows", name, n.Type, touched)
		}
	})
}
