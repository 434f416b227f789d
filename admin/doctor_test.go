package admin_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/testing/pgserver"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/migrate"
	"github.com/outboxgen/outboxgen/outbox"
)

// diagnose runs Doctor, again if the machine was too busy for a check. It drops what is true of every test server: it runs
// without fsync.
func diagnose(t testing.TB, pool *pgxpool.Pool, cfg admin.DoctorConfig) (found []admin.Finding) {
	t.Helper()
	pgtest.Eventually(t, func() bool {
		found = diagnoseOnce(t, pool, cfg)
		return !slices.ContainsFunc(found, func(f admin.Finding) bool { return f.Text == tooLate })
	})
	return found
}

const tooLate = "the check was not done within 2s"

func diagnoseOnce(t testing.TB, pool *pgxpool.Pool, cfg admin.DoctorConfig) []admin.Finding {
	t.Helper()
	found, err := runtimetest.AdminOf(t, pool).Doctor(t.Context(), cfg)
	require.NoError(t, err)
	for _, f := range found {
		require.Contains(t, admin.DoctorChecks(), f.Check)
		require.NotEmpty(t, f.Text, "%+v", f)
		require.NotEmpty(t, f.Means, "%+v", f)
		require.NotEmpty(t, f.Fix, "%+v", f)
	}
	return slices.DeleteFunc(found, func(f admin.Finding) bool { return f.Text == "fsync is off" })
}

// requireOne requires one finding, of this check, severity and text.
func requireOne(t testing.TB, found []admin.Finding, check string, severity admin.Severity, text string) admin.Finding {
	t.Helper()
	require.Len(t, found, 1, "%+v", found)
	require.Equal(t, check, found[0].Check)
	require.Equal(t, severity, found[0].Severity, found[0].Text)
	require.Regexp(t, text, found[0].Text)
	return found[0]
}

// TestDoctorFindsNothing: a database that works, with events in every state, has no findings.
func TestDoctorFindsNothing(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	server := pgtest.Server(t, pgserver.Options{Durable: true})
	pool := pgtest.Pool(t, server.URL())
	found, err := runtimetest.AdminOf(t, pool).Doctor(t.Context(), admin.DoctorConfig{})
	require.NoError(t, err)
	require.Equal(t, "outboxgen migrate up", requireOne(t, found, "migrations", admin.SeverityError, "^schema outbox has no table of the outbox$").Fix)
	_, err = migrate.Up(t.Context(), pool, "outbox")
	require.NoError(t, err)
	healthy := func() {
		t.Helper()
		require.Empty(t, diagnose(t, pool, admin.DoctorConfig{Roles: migrate.Roles(), PoolSize: 20, ListenPool: pool}))
	}
	require.NotEqual(t, "off", pgtest.Value[string](t, pool, "SHOW fsync"))
	healthy()
	fill(t, pool)
	healthy()
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.events WHERE topic = 'doctor'"), "the enqueue is rolled back")
}

// fill makes events of queue and log topics that are delivered, dead, parked, scheduled and due.
func fill(t testing.TB, pool *pgxpool.Pool) {
	fails := func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
		if d.Payload.N == 1 {
			return outbox.Permanent(fmt.Errorf("no"))
		}
		return nil
	}
	topic := runtimetest.JobTopic("one")
	runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(5)...)
	d := runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(topic, fails))
	_, err := d.Drain(t.Context())
	require.NoError(t, err)
	runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(5)...)
	runtimetest.PutAll(t, pool, "a1", "b1", "a2")
	h := runtimetest.NewNotes()
	h.Fail = runtimetest.FailFor("b")
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{ParkKeys: true, Retry: runtimetest.LateRetry}, listener.Config{}, h))
	runtimetest.PutAll(t, pool, "a3")
}

// TestDoctorOfFaults makes one fault in each database. Doctor finds this one, and no other.
func TestDoctorOfFaults(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for name, c := range map[string]struct {
		sql      string
		check    string
		severity admin.Severity
		text     string
		fix      string // a regular expression, if it is not SQL to run
		stays    bool   // the fix is not SQL that can be run as it is
	}{
		"index":         {sql: "DROP INDEX outbox.queue_due", check: "schema", severity: admin.SeverityError, text: "^index queue_due of queue is missing$"},
		"index of mine": {sql: "CREATE INDEX mine ON outbox.queue (attempts)", check: "schema", severity: admin.SeverityWarning, text: "^index mine of queue is not one of the migrations"},
		"constraint":    {sql: "ALTER TABLE outbox.log DROP CONSTRAINT log_version_check", check: "schema", severity: admin.SeverityWarning, text: "^constraint log_version_check of log is missing$"},
		"default":       {sql: "ALTER TABLE outbox.queue ALTER COLUMN max_attempts SET DEFAULT 5", check: "schema", severity: admin.SeverityError, text: "^column max_attempts of queue is integer NOT NULL DEFAULT 5, and the migrations make integer NOT NULL DEFAULT 25$"},
		"storage":       {sql: "ALTER TABLE outbox.queue SET (fillfactor = 100)", check: "schema", severity: admin.SeverityWarning, text: "^storage option fillfactor of queue is 100, and the migrations make 40$"},
		"trigger":       {sql: "CREATE TRIGGER mine BEFORE UPDATE ON outbox.queue FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()", check: "schema", severity: admin.SeverityWarning, text: "^trigger mine of queue is not one"},
		"unlogged":      {sql: "ALTER TABLE outbox.audit SET UNLOGGED", check: "schema", severity: admin.SeverityError, text: "^table audit is unlogged"},
		"not migrated":  {sql: "DELETE FROM outbox.schema_migrations WHERE version = 4; DROP TABLE outbox.processes, outbox.pauses, outbox.audit", check: "migrations", severity: admin.SeverityError, text: "^migration 0004_operations is not applied$", fix: "^outboxgen migrate up$"},
		"checksum":      {sql: "UPDATE outbox.schema_migrations SET checksum = 'x' WHERE version = 2", check: "migrations", severity: admin.SeverityError, text: "^migration 0002_log was applied with a different text$", stays: true},
		"newer":         {sql: "INSERT INTO outbox.schema_migrations VALUES (99, 'later', 'x')", check: "migrations", severity: admin.SeverityNotice, text: "^migration 0099_later is not known", stays: true},
		"goose":         {sql: "DROP TABLE outbox.schema_migrations; DROP TABLE outbox.audit", check: "schema", severity: admin.SeverityError, text: "^table audit is missing$", stays: true},

		"due":        {sql: "SELECT outbox.enqueue('jobs', 'one', '{}', not_before => now() - interval '1 hour') FROM generate_series(1, 3)", check: "queue", severity: admin.SeverityWarning, text: "^3 events of jobs/one, version 1, are due and not claimed, the oldest since 60 min$", stays: true},
		"lease":      {sql: "SELECT outbox.enqueue('jobs', 'one', '{}', not_before => now() - interval '1 minute'); UPDATE outbox.queue SET locked_by = gen_random_uuid(), locked_until = now() - interval '30 minutes'", check: "queue", severity: admin.SeverityWarning, text: "^1 event of jobs/one, version 1, have a lease that has run out, the oldest 30 min ago$", stays: true},
		"processes":  {sql: "INSERT INTO outbox.processes (worker_id, kind, name, host, pid, topics, seen_at) VALUES (gen_random_uuid(), 'dispatcher', 'jobs', 'h', 7, '{}', now() - interval '1 hour')", check: "processes", severity: admin.SeverityNotice, text: `^dispatcher jobs \(worker .+, host h, pid 7\) was last seen 60 min ago$`, fix: "DELETE FROM .*;$"},
		"pause":      {sql: "INSERT INTO outbox.pauses (namespace, topic, who, why) VALUES ('jobs', 'one', 'ann', 'broken')", check: "pauses", severity: admin.SeverityNotice, text: "^namespace jobs, topic one, paused since .* by ann: broken$", fix: "^outboxgen resume jobs/one$", stays: true},
		"paused due": {sql: "INSERT INTO outbox.pauses (tenant_id, who) VALUES ('00000000-0000-0000-0000-000000000007', 'ann'); SELECT outbox.enqueue('jobs', 'one', '{}', tenant_id => '00000000-0000-0000-0000-000000000007', not_before => now() - interval '1 hour')", check: "pauses", severity: admin.SeverityNotice, text: "^tenant 00000000-0000-0000-0000-000000000007, paused since", stays: true},

		"orphan":    {sql: "INSERT INTO outbox.queue (id, namespace, topic) VALUES (gen_random_uuid(), 'jobs', 'one')", check: "rows", severity: admin.SeverityWarning, text: "^1 rows of queue have no event$", stays: true},
		"final":     {sql: "SELECT outbox.enqueue('jobs', 'one', '{}'); INSERT INTO outbox.delivered (id, namespace, topic, attempts) SELECT id, 'jobs', 'one', 1 FROM outbox.events", check: "rows", severity: admin.SeverityWarning, text: "^1 rows of queue belong to events that are delivered or dead already$", stays: true},
		"stateless": {sql: "SELECT outbox.enqueue('jobs', 'one', '{}'); DELETE FROM outbox.queue", check: "rows", severity: admin.SeverityWarning, text: "^1 events have no state", stays: true},
		"twice":     {sql: "SELECT outbox.enqueue('jobs', 'one', '{}'); DELETE FROM outbox.queue; INSERT INTO outbox.delivered (id, namespace, topic, attempts) SELECT id, 'jobs', 'one', 1 FROM outbox.events; INSERT INTO outbox.dead_letters (id, namespace, topic, version, payload, created_at, attempts, error) SELECT id, 'jobs', 'one', 1, '{}', now(), 1, 'x' FROM outbox.events", check: "rows", severity: admin.SeverityWarning, text: "^1 events are delivered and dead letters$", stays: true},

		"sequence cache": {sql: "ALTER SEQUENCE outbox.log_seq CACHE 10", check: "log", severity: admin.SeverityError, text: "does not draw its numbers one by one", stays: true},
		"sequence":       {sql: "INSERT INTO outbox.log (namespace, topic, payload) SELECT 'a', 'b', '{}' FROM generate_series(1, 9); SELECT setval('outbox.log_seq', 3)", check: "log", severity: admin.SeverityError, text: `is at \d, but the log or a listener has reached 9`, stays: true},
		"restored":       {sql: "INSERT INTO outbox.listeners (listener, shard, shards, lo, lo_bound, high_seq, system_id) VALUES ('ears', 0, 1, '1:1:', '1', 0, 7)", check: "listeners", severity: admin.SeverityError, text: "was restored", stays: true},

		"isolation":      {sql: "ALTER DATABASE me SET default_transaction_isolation = 'serializable'", check: "settings", severity: admin.SeverityNotice, text: "^default_transaction_isolation is serializable", stays: true},
		"async commits":  {sql: "ALTER DATABASE me SET synchronous_commit = off", check: "settings", severity: admin.SeverityNotice, text: "^synchronous_commit is off", stays: true},
		"statement":      {sql: "ALTER DATABASE me SET statement_timeout = '300ms'", check: "settings", severity: admin.SeverityWarning, text: `^statement_timeout is 300ms \(from: database\)$`, stays: true},
		"lock":           {sql: "ALTER DATABASE me SET lock_timeout = 10", check: "settings", severity: admin.SeverityWarning, text: "^lock_timeout is 10ms", stays: true},
		"idle":           {sql: "ALTER DATABASE me SET idle_in_transaction_session_timeout = 900", check: "settings", severity: admin.SeverityWarning, text: "^idle_in_transaction_session_timeout is 900ms", stays: true},
		"idle session":   {sql: "ALTER DATABASE me SET idle_session_timeout = '1h'", check: "settings", severity: admin.SeverityNotice, text: "^idle_session_timeout is 1h0m0s", stays: true},
		"read only":      {sql: "ALTER DATABASE me SET default_transaction_read_only = on", check: "server", severity: admin.SeverityError, text: "^default_transaction_read_only is on$", stays: true},
		"no connections": {sql: "ALTER DATABASE me CONNECTION LIMIT 1", check: "connections", severity: admin.SeverityError, text: "connections are used, as the connection limit of database", stays: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Plain(t)
			pgtest.Execute(t, pool, strings.ReplaceAll(c.sql, "DATABASE me", "DATABASE "+pool.Config().ConnConfig.Database))
			pool.Reset() // sessions with the new settings
			found := diagnose(t, pool, admin.DoctorConfig{})
			if name == "due" {
				f := requireOne(t, found[1:], "handlers", admin.SeverityWarning, "^no running process handles topic jobs/one")
				require.Contains(t, f.Fix, "start a dispatcher of namespace jobs")
				found = found[:1]
			}
			f := requireOne(t, found, c.check, c.severity, c.text)
			if c.fix != "" {
				require.Regexp(t, c.fix, f.Fix)
			}
			switch {
			case c.stays:
				return
			case f.Fix == "outboxgen migrate up":
				_, err := migrate.Up(t.Context(), pool, "outbox")
				require.NoError(t, err)
			default:
				pgtest.Execute(t, pool, f.Fix[max(strings.Index(f.Fix, "DELETE "), 0):])
			}
			require.Empty(t, diagnose(t, pool, admin.DoctorConfig{}), "after %s", f.Fix)
		})
	}
}

// TestDoctorFindsTheVersionThatNobodyKnows: a process that is alive handles the topic, but it was generated with an older version.
func TestDoctorFindsTheVersionThatNobodyKnows(t *testing.T) {
	t.Parallel()
	pool := pgtest.Plain(t)
	pgtest.Execute(t, pool, `SELECT outbox.enqueue('jobs', 'one', '{}', version => 2, not_before => now() - interval '1 hour')`)
	process := `INSERT INTO outbox.processes (worker_id, kind, name, host, pid, topics) VALUES (gen_random_uuid(), 'dispatcher', 'jobs', 'h', 7, $1)`
	for _, c := range []struct{ topics, text string }{
		{`{"jobs/two": {"version": 2}}`, "^no running process handles topic jobs/one, which"},
		{`{"jobs/one": {"version": 1}}`, "^no running process knows version 2 of topic jobs/one, which"},
		{`{"jobs/one": 1}`, "^no running process knows version 2 of topic jobs/one, which"},
		{`{"jobs/one": {"version": 2}}`, ""},
	} {
		pgtest.Execute(t, pool, process, c.topics)
		found := slices.DeleteFunc(diagnose(t, pool, admin.DoctorConfig{}), func(f admin.Finding) bool { return f.Check == "queue" })
		if c.text == "" {
			require.Empty(t, found)
			continue
		}
		requireOne(t, found, "handlers", admin.SeverityWarning, c.text)
	}
}

// TestDoctorFindsTheListenerThatNobodyRuns: its events wait.
func TestDoctorFindsTheListenerThatNobodyRuns(t *testing.T) {
	t.Parallel()
	pool := pgtest.Plain(t)
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{MaxLag: time.Hour}, listener.Config{}, runtimetest.NewNotes()))
	runtimetest.PutAll(t, pool, "a1")
	require.Empty(t, diagnose(t, pool, admin.DoctorConfig{}))
	pgtest.Execute(t, pool, "UPDATE outbox.log SET created_at = now() - interval '30 minutes'")
	requireOne(t, diagnose(t, pool, admin.DoctorConfig{}), "handlers", admin.SeverityWarning, "^no running process runs listener ears, whose oldest event waits since 30 min$")
	pgtest.Execute(t, pool, "UPDATE outbox.log SET created_at = now() - interval '90 minutes'")
	pgtest.Execute(t, pool, `INSERT INTO outbox.processes (worker_id, kind, name, host, pid, topics) VALUES (gen_random_uuid(), 'listener', 'ears', 'h', 7, '{}')`)
	requireOne(t, diagnose(t, pool, admin.DoctorConfig{}), "listeners", admin.SeverityWarning, "^listener ears, shard 0, lags 90 min, more than its max_lag of 60 min$")
	pgtest.Execute(t, pool, "UPDATE outbox.listeners SET max_lag = NULL; INSERT INTO outbox.pauses (listener, who) VALUES ('ears', 'ann')")
	require.Equal(t, "outboxgen resume --listener ears", requireOne(t, diagnose(t, pool, admin.DoctorConfig{}), "pauses", admin.SeverityNotice, "^listener ears, paused since .* by ann$").Fix)
}

// TestDoctorFindsProcessesThatPassEachOthersTopics: two services that use the same name for their listeners take shards from
// each other, and what one of them does not read is lost.
func TestDoctorFindsProcessesThatPassEachOthersTopics(t *testing.T) {
	t.Parallel()
	pool := pgtest.Plain(t)
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{}, runtimetest.NewNotes()))
	putReader(t, pool, "ears", `{"test/said": {"version": 1}, "test/loose": {"version": 1}}`, "1 s")
	putReader(t, pool, "ears", `{"test/said": {"version": 2}, "stock/taken": {"version": 1}}`, "1 s")
	pgtest.Execute(t, pool, "UPDATE outbox.processes SET pid = 8 WHERE topics ? 'stock/taken'")
	require.Empty(t, diagnose(t, pool, admin.DoctorConfig{}), "a deployment is under way")
	list, err := runtimetest.AdminOf(t, pool).Listeners(t.Context())
	require.NoError(t, err)
	var passed []string
	for _, p := range list[0].PassedTopics() {
		passed = append(passed, fmt.Sprintf("%s by %d, not by %d", p.Topic, p.By.PID, p.ReadBy.PID))
	}
	require.Equal(t, []string{"stock/taken by 7, not by 8", "test/loose by 8, not by 7"}, passed)
	pgtest.Execute(t, pool, "UPDATE outbox.processes SET started_at = now() - interval '11 minutes'")
	found := diagnose(t, pool, admin.DoctorConfig{})
	require.Len(t, found, 2, "%+v", found)
	require.Equal(t, "handlers", found[0].Check)
	require.Equal(t, admin.SeverityWarning, found[0].Severity)
	require.Equal(t, "a process of listener ears (host box, pid 7) passes the events of topic stock/taken, which another one (host box, pid 8) reads", found[0].Text)
	require.Contains(t, found[0].Fix, "outboxgen listener rewind ears --to TIME, with the time when both began to run")
}

// TestDoctorOfPools: the pool that the application will have.
func TestDoctorOfPools(t *testing.T) {
	t.Parallel()
	pool := pgtest.Plain(t)
	requireOne(t, diagnose(t, pool, admin.DoctorConfig{PoolSize: 4}), "connections", admin.SeverityWarning, "^the pool has 4 connections$")
	requireOne(t, diagnose(t, pool, admin.DoctorConfig{PoolSize: 13}), "connections", admin.SeverityNotice, "^the pool has 13 connections$")
	require.Empty(t, diagnose(t, pool, admin.DoctorConfig{PoolSize: 14}))
	requireOne(t, diagnose(t, pool, admin.DoctorConfig{PoolSize: 10_000}), "connections", admin.SeverityWarning, `^the pool may open 10000 connections, and max_connections allows \d+$`)
	_, err := runtimetest.AdminOf(t, pool).Doctor(t.Context(), admin.DoctorConfig{PoolSize: -1})
	require.ErrorContains(t, err, "doctor: PoolSize -1 is negative")
	_, err = runtimetest.AdminOf(t, pool).Doctor(t.Context(), admin.DoctorConfig{Roles: []migrate.Role{"king"}})
	require.ErrorContains(t, err, `doctor: "king" is not a valid role: use producer`)
}

// TestDoctorOfRoles: what a role lacks for what it is to do is an error, with the grants that help. Otherwise a notice says
// what it may do.
func TestDoctorOfRoles(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Plain(t)
	pools := runtimetest.RolePools(t, pool)
	for role, as := range pools {
		found := diagnose(t, as, admin.DoctorConfig{Roles: []migrate.Role{role}})
		for _, f := range found { // it may not see everything, and says so
			require.Equal(t, admin.SeverityNotice, f.Severity, "%s: %+v", role, f)
			require.Contains(t, f.Text, "not checked, because the role may not see it: ")
		}
		found = diagnose(t, as, admin.DoctorConfig{})
		require.Len(t, found, 2, "%+v", found)
		require.Regexp(t, `^role .* may be: .*`+string(role), found[0].Text)
	}
	found := diagnose(t, pools[migrate.Producer], admin.DoctorConfig{Roles: []migrate.Role{migrate.Dispatcher}})
	require.Equal(t, admin.SeverityError, found[0].Severity)
	require.Regexp(t, `cannot be a dispatcher: it lacks UPDATE \(id\), DELETE on events|lacks SELECT, UPDATE \(id\), DELETE on events`, found[0].Text)
	pgtest.Execute(t, pool, found[0].Fix)
	for _, f := range diagnose(t, pools[migrate.Producer], admin.DoctorConfig{Roles: []migrate.Role{migrate.Dispatcher}}) {
		require.Equal(t, admin.SeverityNotice, f.Severity, "%+v", f)
	}
	stranger := runtimetest.As(t, pool)
	found = diagnose(t, stranger, admin.DoctorConfig{})
	require.Equal(t, admin.SeverityWarning, found[0].Severity)
	require.Regexp(t, "cannot be a producer, dispatcher, operator, reader or viewer", found[0].Text)
	pgtest.Execute(t, pool, "REVOKE USAGE ON SCHEMA outbox FROM "+stranger.Config().ConnConfig.RuntimeParams["role"])
	found = diagnose(t, stranger, admin.DoctorConfig{Roles: []migrate.Role{migrate.Reader}})
	require.Regexp(t, "cannot be a reader: it lacks USAGE on the schema", found[0].Text)
}

// TestDoctorOfRowSecurity: policies hide rows only from roles that they apply to.
func TestDoctorOfRowSecurity(t *testing.T) {
	t.Parallel()
	pool := pgtest.Plain(t)
	pools := runtimetest.RolePools(t, pool)
	pgtest.Execute(t, pool, "ALTER TABLE outbox.queue ENABLE ROW LEVEL SECURITY")
	require.Empty(t, diagnose(t, pool, admin.DoctorConfig{}), "a superuser sees everything")
	of := func(role migrate.Role) []admin.Finding {
		return slices.DeleteFunc(diagnose(t, pools[role], admin.DoctorConfig{Roles: []migrate.Role{role}}), func(f admin.Finding) bool { return f.Severity == admin.SeverityNotice })
	}
	requireOne(t, of(migrate.Dispatcher), "row security", admin.SeverityError, "^row level security of table queue applies to this role, and there is no policy$")
	found := of(migrate.Producer)
	requireOne(t, found[1:], "enqueue", admin.SeverityError, "^an event of a queue topic could not be enqueued: .*row-level security")
	pgtest.Execute(t, pool, "CREATE POLICY part ON outbox.queue USING (namespace = 'jobs') WITH CHECK (true)")
	requireOne(t, of(migrate.Dispatcher), "row security", admin.SeverityWarning, "with the policies part$")
	requireOne(t, of(migrate.Producer), "row security", admin.SeverityWarning, "with the policies part$")

	prefix := runtimetest.MakeMoreRoles(t, pool, migrate.RoleOptions{Namespaces: []string{"jobs"}})
	all := runtimetest.Sessions(t, pool, prefix+"dispatcher")
	require.NotContains(t, fmt.Sprint(diagnose(t, all, admin.DoctorConfig{})), "row level security", "its policy shows it all rows")
	pgtest.Execute(t, pool, "CREATE POLICY less ON outbox.queue AS RESTRICTIVE USING (namespace = 'jobs')")
	found = slices.DeleteFunc(diagnose(t, all, admin.DoctorConfig{}), func(f admin.Finding) bool { return f.Severity == admin.SeverityNotice })
	requireOne(t, found, "row security", admin.SeverityWarning, "table queue applies to this role")
}

// TestDoctorOfEnqueues: an enqueue that fails is found by trying it.
func TestDoctorOfEnqueues(t *testing.T) {
	t.Parallel()
	pool := pgtest.Plain(t)
	pgtest.Execute(t, pool, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''not today''; END';
		CREATE TRIGGER mine BEFORE INSERT ON outbox.log FOR EACH ROW EXECUTE FUNCTION refuse()`)
	found := diagnose(t, pool, admin.DoctorConfig{})
	require.Len(t, found, 2)
	requireOne(t, found[:1], "enqueue", admin.SeverityError, "^an event of a log topic could not be enqueued: .*not today")
	requireOne(t, found[1:], "schema", admin.SeverityWarning, "^trigger mine of log")
}

// TestDoctorOfClocks: half of the round trip may be the error of the comparison.
func TestDoctorOfClocks(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, c := range []struct {
		trip, ahead time.Duration
		text        string
	}{
		{0, 900 * time.Millisecond, ""},
		{0, -900 * time.Millisecond, ""},
		{4 * time.Second, 4900 * time.Millisecond, ""},
		{0, 2 * time.Second, "the clock of the database is 2s ahead of that of this process"},
		{time.Second, -2 * time.Second, "the clock of the database is 2.5s behind that of this process"},
	} {
		found := admin.ClockFinding(now, now.Add(c.trip), now.Add(c.ahead))
		if c.text == "" {
			require.Empty(t, found, "%+v", c)
			continue
		}
		require.Equal(t, c.text, found[0].Text)
	}
}

// TestDoctorIsBounded: what a check waits for does not hold up the others, and the end of the context ends them.
func TestDoctorIsBounded(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Plain(t)
	tx := pgtest.Begin(t, pool, pgx.TxOptions{})
	_, err := tx.Exec(t.Context(), "LOCK TABLE outbox.processes")
	require.NoError(t, err)
	began := time.Now()
	found := diagnoseOnce(t, pool, admin.DoctorConfig{})
	require.Less(t, time.Since(began), time.Minute)
	for _, check := range []string{"handlers", "processes"} {
		i := slices.IndexFunc(found, func(f admin.Finding) bool { return f.Check == check })
		require.GreaterOrEqual(t, i, 0, "%+v", found)
		requireOne(t, found[i:i+1], check, admin.SeverityNotice, "^"+tooLate+"$")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = runtimetest.AdminOf(t, pool).Doctor(ctx, admin.DoctorConfig{})
	require.ErrorIs(t, err, context.Canceled)
	_, err = runtimetest.AdminOf(t, runtimetest.Unconnected(t)).Doctor(t.Context(), admin.DoctorConfig{})
	require.ErrorContains(t, err, "doctor: connect: ")
}
