package admin_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
)

// TestGoneProcessesLeaveTheLists: after a day, or the time of WithGoneAfter, in the list, the overview and Doctor.
func TestGoneProcessesLeaveTheLists(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	alive, hours, days := uuid.New(), uuid.New(), uuid.New()
	putProcess(t, pool, alive, `{"test/said": {"version": 1}}`, `{}`, "1 s")
	putProcess(t, pool, hours, `{}`, `{}`, "23 h")
	putProcess(t, pool, days, `{}`, `{}`, "25 h")
	listed := func(a *admin.Admin) (ids []uuid.UUID) {
		all, err := a.Processes(t.Context())
		require.NoError(t, err)
		o, err := a.Overview(t.Context())
		require.NoError(t, err)
		require.Equal(t, all, o.Processes)
		found, err := a.Doctor(t.Context(), admin.DoctorConfig{})
		require.NoError(t, err)
		gone := 0
		for _, f := range found {
			if f.Check == "processes" {
				gone++
			}
		}
		for _, p := range all {
			ids = append(ids, p.WorkerID)
			if !p.Alive {
				gone--
			}
		}
		require.Zero(t, gone, "Doctor names those that are gone and listed")
		return ids
	}
	require.ElementsMatch(t, []uuid.UUID{alive, hours}, listed(a))
	require.ElementsMatch(t, []uuid.UUID{alive, hours, days}, listed(a.WithGoneAfter(26*time.Hour)))
	require.ElementsMatch(t, []uuid.UUID{alive}, listed(a.WithGoneAfter(time.Hour)))
}

// TestForgetProcess: what is gone leaves at once and with a row in the audit, and what was seen within a minute stays.
func TestForgetProcess(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool).As("ann", "the host is scrapped")
	gone, alive, other := uuid.New(), uuid.New(), uuid.New()
	putProcess(t, pool, gone, `{}`, `{}`, "61 s")
	putProcess(t, pool, alive, `{}`, `{}`, "30 s")
	putProcess(t, pool, other, `{}`, `{}`, "2 h")

	dry, err := a.Preview().ForgetProcess(t.Context(), gone)
	require.NoError(t, err)
	require.Len(t, dry, 1)
	require.Equal(t, 3, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.processes"))
	require.Empty(t, auditText(t, a))

	forgotten, err := a.ForgetProcess(t.Context(), gone)
	require.NoError(t, err)
	require.Equal(t, []admin.Process{{WorkerID: gone, Kind: admin.ProcessDispatcher, Name: "test", Host: "box", PID: 7}}, forgotten)
	require.Equal(t, 2, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.processes"))
	require.Equal(t, "ann|forget-process|the host is scrapped|dispatcher test at box:7|0", auditText(t, a))

	var running *admin.RunningProcessError
	_, err = a.ForgetProcess(t.Context(), alive)
	require.ErrorAs(t, err, &running)
	require.Equal(t, alive, running.WorkerID)
	require.ErrorContains(t, err, "would come back with its next beat")
	var unknown *admin.UnknownProcessError
	_, err = a.ForgetProcess(t.Context(), gone)
	require.ErrorAs(t, err, &unknown)
	require.ErrorContains(t, err, "outboxgen processes lists them")
	require.Equal(t, 2, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.processes"))

	// A worker id may have two rows: of a listener that runs no more, and of a dispatcher that does.
	pgtest.Execute(t, pool, `INSERT INTO outbox.processes (worker_id, kind, name, host, pid, topics, seen_at)
		VALUES ($1, 'listener', 'ears', 'box', 7, '{}', now() - interval '2 h')`, alive)
	forgotten, err = a.ForgetProcess(t.Context(), alive)
	require.NoError(t, err)
	require.Len(t, forgotten, 1)
	require.Equal(t, "ears", forgotten[0].Name)
	require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.processes WHERE worker_id = $1", alive))
}
