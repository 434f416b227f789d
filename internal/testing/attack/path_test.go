package attack_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/migrate"
	"github.com/outboxgen/outboxgen/outbox"
)

var called = regexp.MustCompile(`(?:^|[^\w.])([a-z]\w*)\(`)

// shadow makes the schema of testdata/evil.sql, for the names of all functions that our SQL calls, with operators or without.
func shadow(t testing.TB, pool *pgxpool.Pool, operators bool) {
	t.Helper()
	names := make(map[string]bool)
	files, err := filepath.Glob("../../../schema/*.up.sql")
	require.NoError(t, err)
	more, err := filepath.Glob("../../../queries/*.sql")
	require.NoError(t, err)
	for _, file := range append(files, more...) {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range called.FindAllSubmatch(text, -1) {
			names[string(m[1])] = true
		}
	}
	text, err := os.ReadFile("testdata/evil.sql")
	require.NoError(t, err)
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	_, err = conn.Exec(t.Context(), "SELECT set_config('evil.names', $1::text[]::text, false)", slices.Sorted(maps.Keys(names)))
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), "SELECT set_config('evil.operators', $1, false)", map[bool]string{true: "on", false: "off"}[operators])
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), string(text))
	require.NoError(t, err)
}

// inOthersTransactions says where statements run in a transaction that our code has not begun, whose search_path stays.
var inOthersTransactions = []string{
	"outbox/*.go", "inbox/apply.go", "inbox/once.go", "inbox/record.go", "inbox/retention.go",
	"consume/receive/apply.go", "consume/receive/keep.go", "consume/receive/retry.go",
}

// TestFunctionsOfOthersAreNotCalled: a neighbour who may create functions and operators in a schema of the path of our roles
// does not get them called. The transactions of the runtime have the path of SessionGuard or SessionPath. What runs in
// transactions of others resolves to pg_catalog with any path.
func TestFunctionsOfOthersAreNotCalled(t *testing.T) {
	t.Parallel()
	pool := pgtest.Plain(t)
	people := logins(t, pool)
	shadow(t, pool, true)
	all := statements(t)
	in := callsIn(t, all, inOthersTransactions...)
	captured := make(map[string]bool)
	for _, who := range people {
		for _, name := range slices.Sorted(maps.Keys(all)) {
			try := func(settings ...string) error {
				tx, err := who.session.Begin(t.Context())
				require.NoError(t, err)
				defer func() {
					require.NoError(t, tx.Rollback(t.Context()))
					_, _ = who.session.Exec(t.Context(), "DEALLOCATE attack") // an error has kept it
				}()
				for _, sql := range settings {
					_, err := tx.Exec(t.Context(), sql)
					require.NoError(t, err)
				}
				_, err = explain(t.Context(), who.session, all[name])
				return err
			}
			if denied(try("SET LOCAL search_path = public")) {
				continue
			}
			const evil = `SET LOCAL search_path = "$user", evil, public`
			require.NoError(t, try(evil, all["SessionGuard"]), "%s %s", who.name, name)
			require.NoError(t, try(evil, all["SessionPath"]), "%s %s", who.name, name)
			err := try(evil)
			captured[name] = captured[name] || err != nil
			if in[name] {
				require.NoError(t, err, "%s calls a function of a neighbour: name pg_catalog, and cast operands", name)
			}
		}
	}
	require.True(t, captured["EventAck"], "the neighbour has lost its functions")
}

// TestSQLFunctionsCallNoFunctionsOfOthers: what a program calls in SQL calls pg_catalog, with any path of its session.
func TestSQLFunctionsCallNoFunctionsOfOthers(t *testing.T) {
	t.Parallel()
	pool := pgtest.Plain(t)
	people := logins(t, pool)
	shadow(t, pool, true)
	tenant := uuid.New()
	for _, who := range people {
		if who.name != string(migrate.Producer) {
			continue
		}
		_, err := who.session.Exec(t.Context(), `SET search_path = "$user", evil, public`)
		require.NoError(t, err)
		for _, sql := range []string{
			"SELECT outbox.enqueue('shop', 'paid', '{}', dedupe_key => 'a', headers => '{\"h\": \"v\"}', entity_type => 'order', entity_id => '7', entity_version => 3)",
			fmt.Sprintf("SELECT outbox.enqueue('shop', 'paid', '{}', tenant_id => '%s', dedupe_key => '%s/b', fairness => 'tenant', not_before => now())", tenant, tenant),
			fmt.Sprintf("SELECT outbox.enqueue_log('shop', 'heard', '{}', tenant_id => '%s', partition_key => 'k', headers => '{\"h\": \"v\"}')", tenant),
			"SELECT outbox.check_event('', 'shop', 'paid', '{}', NULL, 'k', NULL, 'order', '7', 1, '{\"h\": \"v\"}', 1)",
			"SELECT outbox.event_id()",
			"SELECT outbox.wake('shop')",
			"SELECT outbox.bucket('k', NULL), outbox.bucket(NULL, '" + tenant.String() + "')",
			"SELECT outbox.lane('paid')",
		} {
			for range 2 { // then some are duplicates
				_, err := who.session.Exec(t.Context(), sql)
				require.NoError(t, err, sql)
			}
		}
	}
}

// TestMachinesCallNoFunctionsOfOthers: enqueue, dispatchers, listeners, inboxes and operators work while a schema of their path
// has functions of a neighbour, which nobody may call. Handlers have the path of their session, and so has what their commit
// runs.
func TestMachinesCallNoFunctionsOfOthers(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	shadow(t, pool, false)
	cfg := pool.Config()
	cfg.ConnConfig.RuntimeParams["search_path"] = `"$user", evil, public`
	ours, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(ours.Close)
	// The owner of the database may call everything, so the functions raise an error.
	_, err = ours.Exec(t.Context(), "SELECT cardinality('{1}'::integer[])")
	require.ErrorContains(t, err, "captured")
	runtimetest.MakeEffects(t, pool)
	pgtest.Execute(t, pool, `CREATE FUNCTION check_effect() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM FROM effects; RETURN NULL; END'`)
	pgtest.Execute(t, pool, `CREATE CONSTRAINT TRIGGER later AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION check_effect()`)

	runtimetest.EnqueueJobs(t, ours, runtimetest.JobTopic("mail"), runtimetest.NumberedJobs(3)...)
	runtimetest.EnqueueAll(t, ours, outbox.Message{Namespace: "jobs", Topic: "mail", DedupeKey: "a", Payload: []byte(`{"n": 9}`)})
	runtimetest.PutAll(t, ours, "a1", "b1")
	failed := false
	d := runtimetest.Dispatcher(t, ours, runtimetest.QuickConfig(), runtimetest.OnJob(runtimetest.JobTopic("mail"),
		func(context.Context, outbox.Delivery[runtimetest.Job]) error {
			if !failed {
				failed = true
				return outbox.Permanent(errors.New("no"))
			}
			return nil
		}))
	report, err := d.Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, 3, report.Delivered)
	require.Equal(t, 1, report.Dead)

	runtimetest.DrainAll(t, runtimetest.ListenTo(t, ours, listener.Spec{}, listener.Config{}, runtimetest.NewNotes()))
	runtimetest.DrainAll(t, runtimetest.ListenTxOn(t, pool, ours, listener.Spec{Name: "hands"}, listener.Config{}, runtimetest.NewNotes()))
	require.Equal(t, 2, pgtest.Count(t, pool, "SELECT count(*) FROM effects"))

	in, err := inbox.New(inbox.Config{Group: "cards"})
	require.NoError(t, err)
	require.NoError(t, pgx.BeginFunc(t.Context(), ours, func(tx pgx.Tx) error {
		_, err := in.OnceMany(t.Context(), tx, []uuid.UUID{uuid.New()}, func(context.Context, []int) error { return nil })
		return err
	}))
	ops := runtimetest.AdminOf(t, ours)
	_, err = ops.Overview(t.Context())
	require.NoError(t, err)
	runtimetest.Pause(t, ops, admin.Scope{Namespace: "jobs"})
	n, err := ops.Replay(t.Context(), admin.Filter{}, admin.Act{Who: "tester"})
	require.NoError(t, err)
	require.NotZero(t, n)
	_, err = ops.Prune(t.Context(), map[string]outbox.Retention{"test/said": {Delivered: time.Nanosecond}})
	require.NoError(t, err)
	findings, err := ops.Doctor(t.Context(), admin.DoctorConfig{})
	require.NoError(t, err)
	require.NotContains(t, fmt.Sprint(findings), "captured")
}
