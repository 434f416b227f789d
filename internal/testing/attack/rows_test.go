package attack_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/migrate"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// partial makes every role of `outboxgen migrate get --roles --namespace jobs --by-tenant`.
var partial = migrate.RoleOptions{Namespaces: []string{"jobs"}, ByTenant: true}

// owned returns an event of a tenant, or of none.
func owned(namespace string, tenant uuid.NullUUID, log bool) outbox.Message {
	key := uuid.NewString()
	if tenant.Valid {
		key = tenant.UUID.String() + "/" + key
	}
	return outbox.Message{Namespace: namespace, Topic: "one", TenantID: tenant, DedupeKey: key, Log: log, Payload: json.RawMessage(`{"n": 1}`)}
}

func someTenant() uuid.NullUUID { return outbox.Tenant(uuid.New()) }

// TestTenantSeesItsOwnRows: a session of tenant_reader sees the rows of its tenant, whatever it asks for, and a session of
// tenant_producer enqueues for its tenant and for nobody else. Without a tenant there is nothing to see.
func TestTenantSeesItsOwnRows(t *testing.T) {
	t.Parallel()
	pool := pgtest.Plain(t)
	prefix := runtimetest.MakeMoreRoles(t, pool, partial)
	mine, other := someTenant(), someTenant()
	for _, tenant := range []uuid.NullUUID{mine, other, {}} {
		runtimetest.EnqueueAll(t, pool, owned("jobs", tenant, false), owned("jobs", tenant, false), owned("jobs", tenant, false))
		runtimetest.EnqueueAll(t, pool, owned("jobs", tenant, true))
	}
	// of each tenant: one delivered, one dead, one in the queue, and one of the log, parked
	pgtest.Execute(t, pool, `INSERT INTO outbox.delivered (id, namespace, topic, attempts)
		SELECT DISTINCT ON (tenant_id) id, namespace, topic, 1 FROM outbox.events ORDER BY tenant_id, id`)
	pgtest.Execute(t, pool, `INSERT INTO outbox.dead_letters (id, namespace, topic, version, tenant_id, payload, created_at, attempts, error)
		SELECT DISTINCT ON (tenant_id) id, namespace, topic, 1, tenant_id, payload, created_at, 1, 'refused' FROM outbox.events ORDER BY tenant_id, id DESC`)
	pgtest.Execute(t, pool, `INSERT INTO outbox.parked (listener, key, seq, id, namespace, topic, version, tenant_id, payload, bucket, created_at)
		SELECT 'all', '', seq, id, namespace, topic, 1, tenant_id, payload, bucket, created_at FROM outbox.log`)

	reader := session(t, runtimetest.Sessions(t, pool, prefix+"tenant_reader"))
	producer := session(t, runtimetest.Sessions(t, pool, prefix+"tenant_producer"))
	as := func(conn *pgx.Conn, tenant string) {
		_, err := conn.Exec(t.Context(), "SELECT set_config('outboxgen.tenant_id', $1, false)", tenant)
		require.NoError(t, err)
	}
	count := func(sql string, args ...any) (n int) {
		require.NoError(t, reader.QueryRow(t.Context(), sql, args...).Scan(&n))
		return n
	}
	for table, n := range map[string]int{"events": 3, "queue": 3, "delivered": 1, "dead_letters": 1, "log": 1, "parked": 1} {
		as(reader, "")
		require.Zero(t, count("SELECT count(*) FROM outbox."+table), table)
		as(reader, mine.UUID.String())
		require.Equal(t, n, count("SELECT count(*) FROM outbox."+table), table)
		if table != "delivered" {
			require.Zero(t, count("SELECT count(*) FROM outbox."+table+" WHERE tenant_id IS DISTINCT FROM $1", mine), table)
			require.Zero(t, count("SELECT count(*) FROM outbox."+table+" WHERE tenant_id = $1", other), table)
		}
		for _, write := range []string{"DELETE FROM outbox." + table, "UPDATE outbox." + table + " SET namespace = namespace", "SELECT id FROM outbox." + table + " FOR UPDATE"} {
			require.False(t, allowed(t, reader, write), write)
		}
	}
	for _, view := range []string{"event_status", "event_links"} {
		require.False(t, allowed(t, reader, "SELECT FROM outbox."+view), "the view has the privileges of its owner")
	}

	enqueue := func(ms ...outbox.Message) error {
		return pgx.BeginFunc(t.Context(), producer, func(tx pgx.Tx) error {
			for _, m := range ms {
				if _, err := outbox.Enqueue(t.Context(), tx, "", m); err != nil {
					return err
				}
			}
			_, err := outbox.EnqueueMany(t.Context(), tx, "", ms)
			return err
		})
	}
	as(producer, mine.UUID.String())
	for _, log := range []bool{false, true} {
		require.NoError(t, enqueue(owned("jobs", mine, log), owned("jobs", uuid.NullUUID{}, log)), "each is a duplicate of itself")
		require.ErrorContains(t, enqueue(owned("jobs", other, log)), "row-level security")
		as(producer, "")
		require.ErrorContains(t, enqueue(owned("jobs", mine, log)), "row-level security")
		require.NoError(t, enqueue(owned("jobs", uuid.NullUUID{}, log)))
		as(producer, mine.UUID.String())
	}
	_, err := producer.Exec(t.Context(), "INSERT INTO outbox.queue (id, namespace, topic, tenant_id) VALUES (gen_random_uuid(), 'jobs', 'one', $1)", other)
	require.ErrorContains(t, err, "row-level security", "the state of an event without the event")
	var foreign int
	require.NoError(t, producer.QueryRow(t.Context(), "SELECT count(*) FROM outbox.events WHERE dedupe_key LIKE $1", other.UUID.String()+"%").Scan(&foreign))
	require.Zero(t, foreign)
}

// otherDispatcher is one of another team, which has nothing to do.
func otherDispatcher(t testing.TB, pool *pgxpool.Pool) *queue.Dispatcher {
	t.Helper()
	topic := outbox.NewTopic[runtimetest.Job](outbox.TopicSpec{Namespace: "secret", Name: "never"})
	return runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(topic, runtimetest.Succeed))
}

// TestOtherRolesKeepAllRows: with roles that see a part of the rows, the others work as before.
func TestOtherRolesKeepAllRows(t *testing.T) {
	t.Parallel()
	pool := pgtest.Plain(t)
	prefix := runtimetest.MakeMoreRoles(t, pool, partial)
	producer := runtimetest.Sessions(t, pool, prefix+"producer")
	runtimetest.EnqueueAll(t, producer, owned("jobs", someTenant(), false))
	runtimetest.EnqueueAll(t, producer, owned("secret", someTenant(), false))
	runtimetest.EnqueueAll(t, producer, owned("jobs", someTenant(), true))
	for _, role := range []migrate.Role{migrate.Dispatcher, migrate.Operator, migrate.Eraser, migrate.Reader, migrate.Viewer} {
		conn := session(t, runtimetest.Sessions(t, pool, prefix+string(role)))
		for table, want := range map[string]int{"events": 2, "queue": 2, "log": 1} {
			var n int
			require.NoError(t, conn.QueryRow(t.Context(), "SELECT count(id) FROM outbox."+table).Scan(&n), role)
			require.Equal(t, want, n, "%s of %s", table, role)
		}
	}
}

// TestDispatcherOfANamespace: the role runs a dispatcher of its namespace with turns, limits, failures, dead letters and
// prune, and has no row of another one.
func TestDispatcherOfANamespace(t *testing.T) {
	t.Parallel()
	pool := pgtest.Plain(t)
	prefix := runtimetest.MakeMoreRoles(t, pool, partial)
	worker := runtimetest.Sessions(t, pool, prefix+"dispatcher_of_jobs")
	const each = 15 // of a topic
	for range each {
		plain, turns := owned("jobs", someTenant(), false), owned("jobs", someTenant(), false)
		turns.Topic, turns.Fairness, turns.Limits = "turns", outbox.FairnessTenant, []outbox.Limit{{Concurrency: 5}, {Per: outbox.PerTenant, Concurrency: 1}}
		runtimetest.EnqueueAll(t, pool, plain)
		runtimetest.EnqueueAll(t, pool, turns)
	}
	runtimetest.EnqueueAll(t, pool, owned("secret", someTenant(), false), owned("secret", someTenant(), false))
	runtimetest.EnqueueAll(t, pool, owned("secret", someTenant(), true))
	pgtest.Execute(t, pool, `INSERT INTO outbox.dead_letters (id, namespace, topic, version, payload, created_at, attempts, error)
		SELECT gen_random_uuid(), namespace, topic, 1, '1', now(), 1, 'refused' FROM unnest(ARRAY['jobs', 'secret']) AS n (namespace), unnest(ARRAY['two']) AS t (topic)`)

	// What another team has, and what listeners have of this namespace.
	pgtest.Execute(t, pool, "INSERT INTO outbox.limits (namespace, topic, per, counted_as, nth, tag, part, concurrency) VALUES ('secret', 'one', '', 'one', 1, 'a', 0, 3)")
	pgtest.Execute(t, pool, "INSERT INTO outbox.delivered (id, namespace, topic, attempts) VALUES (gen_random_uuid(), 'secret', 'one', 1)")
	pgtest.Execute(t, pool, "INSERT INTO outbox.limit_usage (namespace, topic, per, key, updated_at) VALUES ('secret', 'one', 'tenant', 'k', now())")
	pgtest.Execute(t, pool, "INSERT INTO outbox.pauses (namespace, who, until) VALUES ('secret', 'ann', now() + interval '1 h')")
	pgtest.Execute(t, pool, `INSERT INTO outbox.dead_letters (listener, seq, bucket, id, namespace, topic, version, payload, created_at, attempts, error)
		VALUES ('ears', 1, 0, gen_random_uuid(), 'jobs', 'said', 1, '1', now(), 1, 'refused')`)
	stopOther := runtimetest.StartDispatcher(t, otherDispatcher(t, pool))
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.processes WHERE name = 'secret'")

	failures := 0
	handler := func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
		if failures++; failures%10 == 0 {
			return fmt.Errorf("failure %d", failures)
		}
		return nil
	}
	turns := outbox.NewTopic[runtimetest.Job](outbox.TopicSpec{
		Namespace: "jobs", Name: "turns", Fairness: outbox.FairnessTenant,
		Limits: []outbox.Limit{{Concurrency: 5}, {Per: outbox.PerTenant, Concurrency: 1}},
		Keys:   func(any) outbox.Keys { return outbox.Keys{} },
	})
	cfg := runtimetest.QuickConfig()
	cfg.Concurrency = 1
	d := runtimetest.Dispatcher(t, worker, cfg, runtimetest.OnJob(runtimetest.JobTopic("one"), handler), runtimetest.OnJob(turns, handler))
	total := queue.Report{}
	for total.Delivered+total.Dead < 2*each {
		pgtest.Execute(t, pool, "UPDATE outbox.queue SET next_attempt_at = statement_timestamp() WHERE locked_until IS NULL")
		report, err := d.Drain(t.Context())
		require.NoError(t, err)
		total.Add(report)
	}
	require.Positive(t, total.Retried)
	spy := runtimetest.NewLogSpy()
	cfg.Logger = spy.Logger()
	stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, worker, cfg, runtimetest.OnJob(runtimetest.JobTopic("one"), handler)))
	pgtest.Settles(t, pool, 2, "SELECT count(*) FROM outbox.processes")
	foreignRows := func(sql string) (n int) {
		require.NoError(t, worker.QueryRow(t.Context(), sql).Scan(&n))
		return n
	}
	require.Zero(t, foreignRows("SELECT count(*) FROM outbox.processes WHERE name <> 'jobs' OR kind <> 'dispatcher'"))
	require.Zero(t, foreignRows("SELECT count(*) FROM outbox.pauses WHERE namespace NOT IN ('', 'jobs')"))
	require.Zero(t, foreignRows("SELECT count(*) FROM outbox.dead_letters WHERE listener IS NOT NULL"))
	require.NoError(t, stop())
	require.NoError(t, stopOther())
	require.NotContains(t, spy.String(), "permission denied")
	require.NotContains(t, spy.String(), "row-level security")

	s, err := queue.NewStore(worker, queue.StoreConfig{Namespace: "jobs", Retention: map[string]outbox.Retention{"one": {Delivered: time.Nanosecond, Dead: time.Nanosecond}}})
	require.NoError(t, err)
	pruned, err := s.Prune(t.Context())
	require.NoError(t, err)
	require.Positive(t, pruned)

	conn := session(t, worker)
	for _, table := range []string{"events", "queue", "delivered", "dead_letters", "limits", "limit_usage"} {
		var foreign int
		require.NoError(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM outbox."+table+" WHERE namespace <> 'jobs'").Scan(&foreign))
		require.Zero(t, foreign, table)
		if table == "limit_usage" {
			continue
		}
		tag, err := conn.Exec(t.Context(), "DELETE FROM outbox."+table+" WHERE namespace = 'secret'")
		require.NoError(t, err)
		require.Zero(t, tag.RowsAffected(), table)
	}
	for _, table := range []string{"log", "listeners", "parked", "processed_events", "inbox_messages", "audit", "event_status", "event_links"} {
		require.False(t, allowed(t, conn, "SELECT FROM outbox."+table), table)
	}
	require.False(t, allowed(t, conn, "INSERT INTO outbox.dead_letters (id, namespace, topic, version, payload, created_at, attempts, error) VALUES (gen_random_uuid(), 'secret', 'one', 1, '1', now(), 1, 'x')"))
	other, err := queue.NewStore(worker, queue.StoreConfig{Namespace: "secret"})
	require.NoError(t, err)
	claimed, err := other.Claim(t.Context(), queue.ClaimConfig{})
	require.NoError(t, err)
	require.Empty(t, claimed, "as if there were none")
	require.Equal(t, 2, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.queue WHERE namespace = 'secret'"))
}
