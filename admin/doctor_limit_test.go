package admin_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
)

// hold runs topic with a handler that returns when stop is called, and waits until n events are leased and the process is known.
func hold(t *testing.T, pool *pgxpool.Pool, topic outbox.Topic[runtimetest.Job], n int) (stop func()) {
	t.Helper()
	const processes = "SELECT count(*) FROM outbox.processes"
	others := pgtest.Count(t, pool, processes)
	end := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(topic, func(ctx context.Context, _ outbox.Delivery[runtimetest.Job]) error {
		<-ctx.Done()
		return ctx.Err()
	})))
	pgtest.Settles(t, pool, n, leasedSQL)
	pgtest.Settles(t, pool, others+1, processes)
	return func() { require.NoError(t, end()) }
}

const leasedSQL = "SELECT count(*) FROM outbox.queue WHERE locked_until IS NOT NULL"

const agoSQL = "UPDATE outbox.queue SET next_attempt_at = now() - interval '20 minutes' WHERE locked_until IS NULL"

// TestDoctorOfWaitsAtALimit: what waits at a limit is a notice, and not a backlog that nobody takes. What does not wait at it
// still is one, and all of it is when no process runs.
func TestDoctorOfWaitsAtALimit(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Plain(t)
	topic := runtimetest.LimitedJobs("mail", outbox.Limit{Per: "{secret}", Concurrency: 1})
	var jobs []runtimetest.Job
	for i := range 5 {
		jobs = append(jobs, runtimetest.Job{TenantID: uuid.UUID{1}, N: int64(i), Secret: "a/b"})
	}
	runtimetest.EnqueueJobs(t, pool, topic, jobs...)
	stop := hold(t, pool, topic, 1)
	require.Empty(t, diagnose(t, pool, admin.DoctorConfig{}), "they have not waited for long")
	pgtest.Execute(t, pool, agoSQL)
	waits := "^4 events wait at the limit of jobs/mail per {secret} \\(concurrency 1\\), the oldest since 20 min$"
	f := requireOne(t, diagnose(t, pool, admin.DoctorConfig{}), "limits", admin.SeverityNotice, waits)
	require.Contains(t, f.Fix, "outboxgen limit set jobs/mail --per '{secret}' --concurrency N --yes")

	// The limit has a free place, but nobody claims: the process is bound by its tenants, for example.
	pgtest.Execute(t, pool, "INSERT INTO outbox.pauses (namespace, topic, who) VALUES ('jobs', 'mail', 'ann')")
	runtimetest.EnqueueJobs(t, pool, topic, runtimetest.Job{TenantID: uuid.UUID{2}, Secret: "c"})
	pgtest.Execute(t, pool, agoSQL)
	requireOne(t, diagnose(t, pool, admin.DoctorConfig{}), "pauses", admin.SeverityNotice, "paused")
	stop()
	pgtest.Execute(t, pool, "DELETE FROM outbox.pauses")
	pgtest.Execute(t, pool, agoSQL)
	pgtest.Execute(t, pool, "UPDATE outbox.limit_usage SET updated_at = now() - interval '1 minute'")
	found := diagnose(t, pool, admin.DoctorConfig{})
	require.Len(t, found, 2, "%+v", found)
	requireOne(t, found[:1], "queue", admin.SeverityWarning, "^6 events of jobs/mail, version 1, are due and not claimed")
	requireOne(t, found[1:], "handlers", admin.SeverityWarning, "^no running process handles topic jobs/mail")

	// A process that died holds a place no longer than its lease.
	pgtest.Execute(t, pool, `UPDATE outbox.queue SET locked_until = now() + interval '1 minute', attempts = 1 WHERE id = (SELECT running[1] FROM outbox.limit_usage WHERE key LIKE 'a%')`)
	found = diagnose(t, pool, admin.DoctorConfig{})
	require.Len(t, found, 3, "%+v", found)
	requireOne(t, found[:1], "queue", admin.SeverityWarning, "^1 event of jobs/mail, version 1, are due and not claimed")
	requireOne(t, found[2:], "limits", admin.SeverityNotice, waits)
}

// TestDoctorOfRates: more comes in for an hour than a rate allows.
func TestDoctorOfRates(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Plain(t)
	topic := runtimetest.LimitedJobs("mail", outbox.Limit{Per: outbox.PerTenant, Rate: outbox.Rate{Events: 2, Period: time.Hour}})
	other := uuid.UUID{2}
	for i := range 5 {
		runtimetest.EnqueueJobs(t, pool, topic, runtimetest.Job{TenantID: uuid.UUID{1}, N: int64(i)})
	}
	runtimetest.EnqueueJobs(t, pool, topic, runtimetest.Job{TenantID: other})
	defer hold(t, pool, topic, 3)()
	pgtest.Execute(t, pool, agoSQL)
	requireOne(t, diagnose(t, pool, admin.DoctorConfig{}), "limits", admin.SeverityWarning,
		"^3 events wait at the limit of jobs/mail per tenant \\(rate 2/1h\\), the oldest since 20 min, and more comes in than it allows: 5 in 60 min of one tenant$")
	pgtest.Execute(t, pool, "UPDATE outbox.limits SET set_rate = 5, set_period = '1 hour', set_until = 'infinity', set_at = now(), set_by = 'ann'")
	pgtest.Settles(t, pool, 6, leasedSQL)
	f := requireOne(t, diagnose(t, pool, admin.DoctorConfig{}), "limits", admin.SeverityNotice,
		"^the limit of jobs/mail per tenant is set to rate 5/1h since \\S+ by ann; the YAML has rate 2/1h$")
	require.Equal(t, "outboxgen limit reset jobs/mail --per tenant --yes", f.Fix)
}

// TestDoctorOfRatesOfKeys: what comes in for a key of a template is not counted. That events have waited for an hour says it.
func TestDoctorOfRatesOfKeys(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Plain(t)
	topic := runtimetest.LimitedJobs("mail", outbox.Limit{Per: "{secret}", Rate: outbox.Rate{Events: 1, Period: time.Hour}})
	runtimetest.EnqueueJobs(t, pool, topic, slices.Repeat([]runtimetest.Job{{TenantID: uuid.UUID{1}, Secret: "a"}}, 3)...)
	defer hold(t, pool, topic, 1)()
	pgtest.Execute(t, pool, agoSQL)
	const text = "^2 events wait at the limit of jobs/mail per {secret} \\(rate 1/1h\\), the oldest since "
	requireOne(t, diagnose(t, pool, admin.DoctorConfig{}), "limits", admin.SeverityNotice, text+"20 min$")
	pgtest.Execute(t, pool, "UPDATE outbox.queue SET next_attempt_at = now() - interval '61 minutes' WHERE locked_until IS NULL")
	requireOne(t, diagnose(t, pool, admin.DoctorConfig{}), "limits", admin.SeverityWarning, text+"61 min, and more comes in than it allows for a key$")
}

// TestDoctorOfUnreachableLimits: a limit that is larger than what the running processes handle at once has no effect.
func TestDoctorOfUnreachableLimits(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Plain(t)
	topic := runtimetest.LimitedJobs("mail", outbox.Limit{Concurrency: 15})
	stop := hold(t, pool, topic, 0)
	const text = "^the limit of jobs/mail \\(concurrency 15\\) cannot be reached: its running processes \\(1\\) handle at most 10 of its events at once$"
	requireOne(t, diagnose(t, pool, admin.DoctorConfig{}), "limits", admin.SeverityNotice, text)
	pgtest.Execute(t, pool, `INSERT INTO outbox.processes (worker_id, kind, name, host, pid, topics) VALUES (gen_random_uuid(), 'dispatcher', 'jobs', 'h', 7, '{"jobs/mail": {"version": 1}}')`)
	require.Empty(t, diagnose(t, pool, admin.DoctorConfig{}), "another one does not say how many it handles")
	pgtest.Execute(t, pool, `UPDATE outbox.processes SET topics = '{"jobs/mail": {"version": 1, "at_once": 5, "limits": [{"concurrency": 15}]}}' WHERE host = 'h'`)
	require.Empty(t, diagnose(t, pool, admin.DoctorConfig{}))
	stop()
}

// TestDoctorOfOtherLimits: a running process has other limits in its YAML than those in force. Not while a deployment is under
// way.
func TestDoctorOfOtherLimits(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Plain(t)
	limits := []outbox.Limit{{Concurrency: 5}, {Per: outbox.PerTenant, Rate: outbox.Rate{Events: 1, Period: time.Minute}}}
	stop := hold(t, pool, runtimetest.LimitedJobs("mail", limits...), 0)
	all, err := runtimetest.AdminOf(t, pool).Processes(t.Context())
	require.NoError(t, err)
	require.Equal(t, admin.ProcessTopic{Version: 1, Limits: limits, AtOnce: 10}, all[0].Topics["jobs/mail"])
	const long = "UPDATE outbox.processes SET started_at = started_at - interval '1 hour'"
	const old = "UPDATE outbox.limits SET declared_at = now() - interval '1 hour'"
	pgtest.Execute(t, pool, long)
	pgtest.Execute(t, pool, old)
	require.Empty(t, diagnose(t, pool, admin.DoctorConfig{}), "they are those in force, in another order")

	defer hold(t, pool, runtimetest.LimitedJobs("mail", outbox.Limit{Concurrency: 6}), 0)() // as a drain with another YAML would
	pgtest.Execute(t, pool, long)
	require.Empty(t, diagnose(t, pool, admin.DoctorConfig{}), "it was declared just now")
	pgtest.Execute(t, pool, old)
	f := requireOne(t, diagnose(t, pool, admin.DoctorConfig{}), "limits", admin.SeverityWarning,
		"^a process of jobs/mail \\(host .+, pid \\d+\\) has other limits than those in force: concurrency 5; rate 1/1m per tenant, and not concurrency 6$")
	require.Contains(t, f.Means, "its YAML does not have")
	stop()
	require.Empty(t, diagnose(t, pool, admin.DoctorConfig{}))
	pgtest.Execute(t, pool, `INSERT INTO outbox.processes (worker_id, kind, name, host, pid, topics, started_at) VALUES (gen_random_uuid(), 'dispatcher', 'jobs', 'h', 7, '{"jobs/mail": {"version": 1}}', now() - interval '1 hour')`)
	f = requireOne(t, diagnose(t, pool, admin.DoctorConfig{}), "limits", admin.SeverityWarning, "host h, pid 7\\) has other limits than those in force: none, and not concurrency 6$")
	require.Contains(t, f.Means, "without limits")
}

// TestWaitsOfFastHandlers: what runs at a limit ends and begins all the time. A key counts as used up if the latest claim has
// taken the last place, although what it has taken is done. It does not if fewer were taken, whatever has run before.
func TestWaitsOfFastHandlers(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	topic := runtimetest.LimitedJobs("mail", outbox.Limit{Concurrency: 3})
	ids := runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(10)...)
	pgtest.Execute(t, pool, `INSERT INTO outbox.limits (namespace, topic, per, counted_as, nth, tag, part, concurrency)
		SELECT 'jobs', 'mail', '', 'mail', 1, turn, 0, 3 FROM outbox.queue LIMIT 1`)
	waits := func() int64 {
		t.Helper()
		all, err := a.LimitWaits(t.Context())
		require.NoError(t, err)
		if len(all) == 0 {
			return 0
		}
		require.Equal(t, admin.LimitScope{Namespace: "jobs", Topic: "mail"}, all[0].LimitScope)
		return all[0].Waiting.N
	}
	require.Zero(t, waits())
	use := func(ago string, running ...uuid.UUID) {
		t.Helper()
		pgtest.Execute(t, pool, `INSERT INTO outbox.limit_usage (namespace, topic, per, key, running, updated_at) VALUES ('jobs', 'mail', '', '', $1, now() - $2::text::interval)
			ON CONFLICT (namespace, topic, per, key) DO UPDATE SET running = excluded.running, updated_at = excluded.updated_at`, running, ago)
	}
	deliver := func(id uuid.UUID, ago string) {
		t.Helper()
		pgtest.Execute(t, pool, "DELETE FROM outbox.queue WHERE id = $1", id)
		pgtest.Execute(t, pool, "INSERT INTO outbox.delivered (id, namespace, topic, attempts, finalized_at) VALUES ($1, 'jobs', 'mail', 1, now() - $2::text::interval)", id, ago)
	}
	pgtest.Execute(t, pool, "UPDATE outbox.queue SET updated_at = now() - interval '1 hour'")
	pgtest.Execute(t, pool, "UPDATE outbox.queue SET locked_until = now() + interval '1 hour' WHERE id = ANY ($1)", ids[:3])
	use("1 hour", ids[:3]...)
	require.EqualValues(t, 7, waits(), "they run")
	use("5 s", ids[:3]...)
	deliver(ids[0], "1 s")
	pgtest.Execute(t, pool, "UPDATE outbox.queue SET locked_until = NULL, updated_at = now() WHERE id = $1", ids[1])
	require.EqualValues(t, 8, waits(), "one was delivered and one has failed since they were claimed together")
	pgtest.Execute(t, pool, "UPDATE outbox.delivered SET finalized_at = now() - interval '6 s'")
	require.Zero(t, waits(), "one had ended before the others were claimed")
	pgtest.Execute(t, pool, "UPDATE outbox.delivered SET finalized_at = now() - interval '1 s'")
	use("11 s", ids[:3]...)
	require.Zero(t, waits(), "nobody has claimed any for long")
	use("5 s", ids[0], ids[0], ids[0])
	require.Zero(t, waits(), "an event that was claimed again is one")
	pgtest.Execute(t, pool, "UPDATE outbox.queue SET locked_until = now() - interval '1 s' WHERE id = ANY ($1)", ids[2:5])
	use("1 hour", ids[2:5]...)
	require.Zero(t, waits(), "leases that ran out")
}
