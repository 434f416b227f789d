package admin_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
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
	"github.com/outboxgen/outboxgen/queue"
)

// orderMessage is event n of an order of a tenant, for a queue topic.
func orderMessage(tenant uuid.UUID, order string, n int) outbox.Message {
	m := runtimetest.Message(tenant, n)
	m.DedupeKey += "/" + order
	m.Entity = outbox.Entity{Type: "order", ID: order, Version: int64(n + 1)}
	return m
}

// saidMessage is event n of a key, for the log topic of runtimetest. The key is an order, too.
func saidMessage(tenant uuid.UUID, key string, n int) outbox.Message {
	return outbox.Message{
		Namespace: "test", Topic: "said", Log: true, TenantID: outbox.Tenant(tenant), PartitionKey: key,
		Entity:  outbox.Entity{Type: "order", ID: key, Version: int64(n)},
		Payload: fmt.Appendf(nil, `{"key": %q, "n": %d}`, key, n),
	}
}

func ofTenant(id uuid.UUID) admin.ForgetScope {
	return admin.ForgetScope{TenantID: outbox.Tenant(id)}
}

func ofOrder(id string) admin.ForgetScope {
	return admin.ForgetScope{EntityType: "order", EntityID: id}
}

func undelivered(s admin.ForgetScope) admin.ForgetScope {
	s.Undelivered = true
	return s
}

func forget(t testing.TB, a *admin.Admin, s admin.ForgetScope) admin.ForgetReport {
	t.Helper()
	r, err := a.Forget(t.Context(), s, admin.Act{Who: "ann"})
	require.NoError(t, err)
	return r
}

// traces counts the rows of each table that have a text somewhere.
func traces(t testing.TB, pool *pgxpool.Pool, text string) map[string]int {
	t.Helper()
	left := make(map[string]int)
	for _, table := range []string{
		"events", "queue", "delivered", "log", "dead_letters", "listener_failures", "parked", "inbox_messages",
		"inbox_quarantined", "entity_versions", "processed_events", "pauses", "limit_usage", "audit", "listeners",
	} {
		n := pgtest.Count(t, pool, "SELECT count(*) FROM outbox."+table+" AS x WHERE x::text ILIKE '%' || $1::text || '%'", text)
		if n > 0 {
			left[table] = n
		}
	}
	return left
}

// sound requires that rows of events and of their states fit together.
func sound(t testing.TB, a *admin.Admin) {
	t.Helper()
	found, err := a.Doctor(t.Context(), admin.DoctorConfig{})
	require.NoError(t, err)
	for _, f := range found {
		require.NotContains(t, []string{"rows", "forget"}, f.Check, f.Text)
	}
}

// tables returns the counts of a report by table.
func tables(r admin.ForgetReport, of func(admin.ForgetTable) int64) map[string]int64 {
	counts := make(map[string]int64)
	for _, table := range r.Tables {
		counts[table.Table] = of(table)
	}
	return counts
}

// putEverywhere writes rows of a tenant into every table that may have some.
func putEverywhere(t testing.TB, pool *pgxpool.Pool, tenant uuid.UUID) {
	t.Helper()
	ms := make([]outbox.Message, 4)
	for i := range ms {
		ms[i] = orderMessage(tenant, "4711", i)
	}
	runtimetest.EnqueueAll(t, pool, ms...)
	s := runtimetest.NewStore(t, pool)
	claimed := runtimetest.ClaimN(t, s, 4)
	_, err := s.Ack(t.Context(), claimed[:2]...)
	require.NoError(t, err)
	for _, c := range claimed[2:] {
		_, err := s.Nack(t.Context(), queue.Failure{Claimed: c, Err: outbox.Permanent(errors.New("no " + tenant.String()))})
		require.NoError(t, err)
	}
	runtimetest.EnqueueAll(t, pool, saidMessage(tenant, "a", 1), saidMessage(tenant, "b", 2))
	h := runtimetest.NewNotes()
	h.Fail = runtimetest.FailFor("b")
	l := runtimetest.ListenTo(t, pool, listener.Spec{Retry: outbox.Retry{MaxAttempts: 1}}, listener.Config{}, h)
	runtimetest.DrainAll(t, l)
	pgtest.Execute(t, pool, `INSERT INTO outbox.inbox_messages (consumer_group, message_id, place, event_id, type, namespace, topic,
			version, tenant_id, envelope, body, status, attempts, next_attempt_at, error)
		VALUES ('cards', gen_random_uuid()::text, 'kafka:x/1@1', gen_random_uuid(), 'test.said', 'test', 'said', 1, $1::uuid,
			json_build_object('attributes', json_build_object('entitytype', 'order', 'entityid', '4711', 'tenantid', $1::uuid::text)), '{}', 'dead', 3, 'infinity', 'no')`, tenant)
	pgtest.Execute(t, pool, `INSERT INTO outbox.inbox_quarantined (consumer_group, event_id, source, tenant_id, entity_type, entity_id,
			version, last_version, last_event_id) VALUES ('cards', gen_random_uuid(), '/test', $1::uuid, 'order', '4711', 1, 2, gen_random_uuid())`, tenant)
	pgtest.Execute(t, pool, `INSERT INTO outbox.entity_versions (consumer_group, source, tenant_id, entity_type, entity_id, version, event_id)
		VALUES ('cards', '/test', $1::uuid, 'order', '4711', 2, gen_random_uuid())`, tenant)
	pgtest.Execute(t, pool, "INSERT INTO outbox.processed_events (consumer_group, event_id) SELECT 'cards', id FROM outbox.events WHERE tenant_id = $1::uuid", tenant)
	pgtest.Execute(t, pool, "INSERT INTO outbox.pauses (tenant_id, who, until) VALUES ($1::uuid, 'ann', now() + interval '1 h')", tenant)
	pgtest.Execute(t, pool, `INSERT INTO outbox.limit_usage (namespace, topic, per, key, updated_at) VALUES ('test', 'ping', 'tenant', $1::uuid::text, now() - interval '1 h')`, tenant)
	pgtest.Execute(t, pool, `INSERT INTO outbox.audit (who, act, why, scope, events) VALUES
		('bob', 'replay', 'a ticket', jsonb_build_object('tenant_id', $1::uuid::text, 'namespace', 'test'), 3),
		('bob', 'pause', 'of ' || $1::uuid::text, '{"listener": "ears"}', 0)`, tenant)
}

// TestForgetTenant: the plan counts and changes nothing, and afterwards nothing names the tenant, while another one keeps all.
func TestForgetTenant(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	tenant, other := uuid.New(), uuid.New()
	putEverywhere(t, pool, tenant)
	putEverywhere(t, pool, other)
	before, theirs := traces(t, pool, tenant.String()), traces(t, pool, other.String())
	require.Len(t, before, 9, "%v", before)

	plan, err := a.Forget(t.Context(), ofTenant(tenant), admin.Act{DryRun: true})
	require.NoError(t, err)
	require.Empty(t, plan.Refused)
	require.Zero(t, plan.Rows)
	found := func(table admin.ForgetTable) int64 { return table.Found }
	want := map[string]int64{
		"events": 4, "delivered": 2, "log": 2, "dead_letters": 3, "listener_failures": 1, "inbox_messages": 1,
		"inbox_quarantined": 1, "entity_versions": 1, "processed_events": 4, "pauses": 1, "limit_usage": 1, "audit": 2,
	}
	require.Equal(t, want, tables(plan, found))
	require.Equal(t, []admin.ForgetTopic{
		{Topic: "test/ping", Events: 4, Delivered: 2, Dead: 2}, {Topic: "test/said", Log: true, Events: 2, Delivered: 2},
	}, plan.Topics)
	require.Equal(t, before, traces(t, pool, tenant.String()))

	ids := pgtest.Value[string](t, pool, "SELECT string_agg(id::text, ' ') FROM outbox.events WHERE tenant_id = $1", tenant)
	r := forget(t, a, ofTenant(tenant))
	delete(want, "processed_events")
	got := tables(r, func(table admin.ForgetTable) int64 { return table.Deleted })
	require.Zero(t, got["processed_events"])
	delete(got, "processed_events")
	require.Equal(t, want, got)
	require.EqualValues(t, 6, r.Events)
	require.EqualValues(t, 17, r.Rows)
	require.Empty(t, traces(t, pool, tenant.String()))
	require.Equal(t, theirs, traces(t, pool, other.String()))
	require.Equal(t, 4, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.processed_events WHERE $1 LIKE '%' || event_id || '%'", ids),
		"they keep what a broker still has from being applied again")
	require.Equal(t, strings.Join([]string{
		"bob|replay||test, what else it was has been forgotten|3", "bob|pause||listener ears, what else it was has been forgotten|0",
		"bob|replay|a ticket|namespace test, tenant " + other.String() + "|3", "bob|pause|of " + other.String() + "|listener ears|0",
		"ann|forget||a tenant, 17 rows|6",
	}, "\n"), strings.ReplaceAll(auditText(t, a), "tenant "+other.String()+" of test", "namespace test, tenant "+other.String()))
	sound(t, a)

	// Nothing is left, and nothing more is recorded. The dedupe keys are free.
	entries := pgtest.Count(t, pool, "SELECT count(*) FROM outbox.audit")
	r = forget(t, a, ofTenant(tenant))
	require.Empty(t, r.Tables)
	require.Equal(t, entries, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.audit"))
	receipts := runtimetest.EnqueueAll(t, pool, orderMessage(tenant, "4711", 0), orderMessage(other, "4711", 0))
	require.False(t, receipts[0].Duplicate)
	require.True(t, receipts[1].Duplicate)
}

// TestForgetProcessed: what consumers have recorded of the events goes too if it is asked for.
func TestForgetProcessed(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	tenant, other := uuid.New(), uuid.New()
	putEverywhere(t, pool, tenant)
	putEverywhere(t, pool, other)
	pgtest.Execute(t, pool, "INSERT INTO outbox.processed_events (consumer_group, event_id) SELECT 'mail', id FROM outbox.log WHERE tenant_id = $1", tenant)
	s := ofTenant(tenant)
	s.Processed = true
	r := forget(t, a, s)
	require.EqualValues(t, 6, tables(r, func(table admin.ForgetTable) int64 { return table.Deleted })["processed_events"])
	require.Equal(t, 4, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.processed_events"))
}

// TestForgetProcessedByKey: a group that records events by their dedupe keys has recorded those of the tenant, too.
func TestForgetProcessedByKey(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	tenant, other := uuid.New(), uuid.New()
	said := saidMessage(tenant, "a", 1)
	said.DedupeKey = tenant.String() + "/said"
	keyed, theirs := orderMessage(tenant, "1", 1), orderMessage(other, "1", 1)
	runtimetest.EnqueueAll(t, pool, said)
	runtimetest.EnqueueAll(t, pool, keyed, theirs)
	pgtest.Execute(t, pool, `INSERT INTO outbox.processed_events (consumer_group, event_id) VALUES ('ledger', $1), ('ledger', $2), ('ledger', $3), ('ledger', $4)`,
		inbox.KeyID("test.ping", keyed.DedupeKey), inbox.KeyID("test.said", said.DedupeKey), inbox.KeyID("test.ping", theirs.DedupeKey),
		inbox.KeyID("test.pong", keyed.DedupeKey))
	s := undelivered(ofTenant(tenant))
	plan, err := a.Forget(t.Context(), s, admin.Act{DryRun: true})
	require.NoError(t, err)
	require.EqualValues(t, 2, tables(plan, func(table admin.ForgetTable) int64 { return table.Found })["processed_events"])
	s.Processed = true
	r := forget(t, a, s)
	require.EqualValues(t, 2, tables(r, func(table admin.ForgetTable) int64 { return table.Deleted })["processed_events"])
	require.Equal(t, 2, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.processed_events"))
	require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.processed_events WHERE event_id = $1", inbox.KeyID("test.ping", theirs.DedupeKey)))
}

// TestForgetKeepsRecordsOfWhatStays: an event that came meanwhile and is left keeps what consumers have recorded of it.
func TestForgetKeepsRecordsOfWhatStays(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	tenant := uuid.New()
	putEverywhere(t, pool, tenant)
	gated, gate := runtimetest.NewGate(t, pool, "name: ForgetStart")
	var id uuid.UUID
	inHook(gate, func() {
		id = runtimetest.EnqueueAll(t, pool, orderMessage(tenant, "1", 60))[0].ID
		pgtest.Execute(t, pool, "INSERT INTO outbox.processed_events (consumer_group, event_id) VALUES ('cards', $1)", id)
	})
	s := ofTenant(tenant)
	s.Processed = true
	_, err := runtimetest.AdminOf(t, gated).Forget(t.Context(), s, admin.Act{Who: "ann"})
	require.ErrorAs(t, err, new(*admin.UndeliveredError))
	require.Equal(t, id, pgtest.Value[uuid.UUID](t, pool, "SELECT event_id FROM outbox.processed_events"))
}

// TestForgetRefuses: nothing is changed while something is not delivered, wherever it waits, and each is listed.
func TestForgetRefuses(t *testing.T) {
	t.Parallel()
	tenant := uuid.New()
	for name, c := range map[string]struct {
		put      func(t *testing.T, pool *pgxpool.Pool)
		where    string
		inFlight int64
	}{
		"pending": {where: "queue", put: func(t *testing.T, pool *pgxpool.Pool) {
			runtimetest.EnqueueAll(t, pool, orderMessage(tenant, "1", 1))
		}},
		"in flight": {where: "queue, in flight", inFlight: 1, put: func(t *testing.T, pool *pgxpool.Pool) {
			runtimetest.EnqueueAll(t, pool, orderMessage(tenant, "1", 1))
			runtimetest.ClaimN(t, runtimetest.NewStore(t, pool), 1)
		}},
		"unread": {where: "log, before a listener", put: func(t *testing.T, pool *pgxpool.Pool) {
			runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{}, runtimetest.NewNotes()))
			runtimetest.EnqueueAll(t, pool, saidMessage(tenant, "a", 1))
		}},
		"failed": {where: "log, before a listener", put: func(t *testing.T, pool *pgxpool.Pool) {
			h := runtimetest.NewNotes()
			h.Fail = runtimetest.FailFor("a")
			runtimetest.EnqueueAll(t, pool, saidMessage(tenant, "a", 1))
			runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{}, h))
		}},
		"parked": {where: "parked by consumer cards", put: func(t *testing.T, pool *pgxpool.Pool) {
			putEverywhere(t, pool, tenant)
			pgtest.Execute(t, pool, "UPDATE outbox.inbox_messages SET status = 'parked'")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			a := runtimetest.AdminOf(t, pool)
			c.put(t, pool)
			before := traces(t, pool, tenant.String())
			var refused *admin.UndeliveredError
			r, err := a.Forget(t.Context(), ofTenant(tenant), admin.Act{Who: "ann"})
			require.ErrorAs(t, err, &refused)
			require.EqualError(t, err, "forget: 1 event is not delivered yet: wait until nothing is, or have it deleted too (--undelivered)")
			require.Len(t, r.Listed, 1)
			require.Equal(t, c.where, r.Listed[0].Where)
			require.Equal(t, c.inFlight, r.InFlight)
			require.Equal(t, before, traces(t, pool, tenant.String()))
			plan, err := a.Forget(t.Context(), ofTenant(tenant), admin.Act{DryRun: true})
			require.NoError(t, err)
			require.Len(t, plan.Refused, 1)
			forget(t, a, undelivered(ofTenant(tenant)))
			require.Empty(t, traces(t, pool, tenant.String()))
			sound(t, a)
		})
	}
}

func TestForgetEntity(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	tenant, other := uuid.New(), uuid.New()
	putEverywhere(t, pool, tenant)
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{}, runtimetest.NewNotes()))
	runtimetest.EnqueueAll(t, pool, orderMessage(other, "4711", 1), orderMessage(tenant, "4712", 1))
	pgtest.Execute(t, pool, `INSERT INTO outbox.audit (who, act, why, scope) VALUES
		('bob', 'skip', 'Order 4711 is wrong', '{}'), ('bob', 'skip', 'order 47112', '{}'), ('bob', 'skip', '', '{"key": "order/4711"}')`)

	var several *admin.SeveralTenantsError
	_, err := a.Forget(t.Context(), undelivered(ofOrder("4711")), admin.Act{Who: "ann"})
	require.ErrorAs(t, err, &several)
	require.Len(t, several.Tenants, 2)
	var unknown *admin.UnknownEntityError
	_, err = a.Forget(t.Context(), admin.ForgetScope{EntityType: "ordr", EntityID: "4711"}, admin.Act{DryRun: true})
	require.ErrorAs(t, err, &unknown)
	require.Equal(t, []string{"order"}, unknown.Known)
	plan, err := a.Forget(t.Context(), ofOrder("4713"), admin.Act{DryRun: true})
	require.NoError(t, err, "an order may have nothing")
	require.Empty(t, plan.Tables)

	s := ofOrder("4711")
	s.TenantID = outbox.Tenant(tenant)
	r := forget(t, a, s)
	require.Equal(t, map[string]int64{
		"events": 4, "delivered": 2, "dead_letters": 2, "inbox_messages": 1, "inbox_quarantined": 1, "entity_versions": 1,
		"processed_events": 0, "audit": 2,
	}, tables(r, func(table admin.ForgetTable) int64 { return table.Deleted }))
	require.Equal(t, 3, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.audit WHERE why LIKE '%47112%' OR scope ->> 'forgotten' = 'true'"))
	require.Contains(t, auditText(t, a), "ann|forget||an entity order, 11 rows|4")
	require.Equal(t, 2, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.events"))
	require.Equal(t, 2, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.log"), "other orders")
	all := undelivered(ofOrder("4711"))
	all.AnyTenant = true
	require.EqualValues(t, 1, forget(t, a, all).Events)
	sound(t, a)
}

// TestForgetTheEntityOfOneTenant: what another tenant enqueues meanwhile, about an entity of the same name, is not deleted,
// wherever it is.
func TestForgetTheEntityOfOneTenant(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	tenant, other := uuid.New(), uuid.New()
	putEverywhere(t, pool, tenant)
	runtimetest.EnqueueAll(t, pool, saidMessage(tenant, "4711", 1))
	var before map[string]int
	gated, gate := runtimetest.NewGate(t, pool, "name: ForgetStart")
	inHook(gate, func() {
		putEverywhere(t, pool, other)
		runtimetest.EnqueueAll(t, pool, saidMessage(other, "4711", 1))
		h := runtimetest.NewNotes()
		h.Fail = runtimetest.FailFor("4711")
		runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{ParkKeys: true, Name: "eyes"}, listener.Config{}, h))
		pgtest.Execute(t, pool, "DELETE FROM outbox.log WHERE tenant_id = $1 AND partition_key <> '4711'", other)
		before = traces(t, pool, other.String())
		require.NotZero(t, before["parked"])
	})
	_, err := runtimetest.AdminOf(t, gated).Forget(t.Context(), undelivered(ofOrder("4711")), admin.Act{Who: "ann"})
	require.NoError(t, err)
	require.Equal(t, before, traces(t, pool, other.String()))
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.events WHERE tenant_id = $1", tenant))
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.log WHERE tenant_id = $1 AND entity_id = '4711'", tenant))
}

// TestForgetWhatDiesUnderIt: an event that dies while a pass is under way is deleted as a whole, or stays as a whole.
func TestForgetWhatDiesUnderIt(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	tenant := uuid.New()
	putEverywhere(t, pool, tenant)
	pgtest.Execute(t, pool, "DELETE FROM outbox.pauses")
	gated, gate := runtimetest.NewGate(t, pool, "Scan :many")
	var scans, dead, stateless int
	gate.OnPass(func() {
		if pgtest.Count(t, pool, "SELECT count(*) FROM outbox.audit WHERE act = 'forget'") == 0 {
			return // the plan
		}
		switch scans++; scans {
		case 1: // of events
			runtimetest.EnqueueAll(t, pool, orderMessage(tenant, "1", 60))
		case 2: // of the log
			c := runtimetest.ClaimN(t, runtimetest.NewStore(t, pool), 1)
			_, err := runtimetest.NewStore(t, pool).Nack(t.Context(), queue.Failure{Claimed: c[0], Err: outbox.Permanent(errors.New("no"))})
			require.NoError(t, err)
			dead = pgtest.Count(t, pool, "SELECT count(*) FROM outbox.event_status WHERE status = 'dead' AND tenant_id = $1", tenant)
		case 4: // of parked events, behind that of dead letters
			stateless = pgtest.Count(t, pool, "SELECT count(*) FROM outbox.event_status WHERE status IS NULL")
		}
	})
	_, err := runtimetest.AdminOf(t, gated).Forget(t.Context(), ofTenant(tenant), admin.Act{Who: "ann"})
	require.NoError(t, err)
	require.Equal(t, 1, dead)
	require.Zero(t, stateless)
	require.Empty(t, traces(t, pool, tenant.String()))
	sound(t, a)
}

// TestForgetTextsOfTheAudit: the audit is searched for the id in each form in which it may be written there. What it cannot
// remove is an error.
func TestForgetTextsOfTheAudit(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	const id = `a"b\c 1`
	tenant, event := uuid.New(), uuid.New()
	plain := strings.ReplaceAll(strings.ToUpper(tenant.String()), "-", "")
	pgtest.Execute(t, pool, `INSERT INTO outbox.audit (who, act, why, scope) VALUES
		('bob', 'skip', '', jsonb_build_object('key', 'order/' || $1::text, 'selected', jsonb_build_array($2::text))),
		('bob', 'skip', 'of tenant ' || $3::text, '{}')`, id, event.String(), plain)
	runtimetest.EnqueueAll(t, pool, orderMessage(tenant, id, 1))
	forget(t, a, undelivered(ofOrder(id)))
	require.Empty(t, traces(t, pool, event.String()))
	require.Equal(t, `{"forgotten": true}`, pgtest.Value[string](t, pool, "SELECT scope::text FROM outbox.audit WHERE act = 'skip' ORDER BY no LIMIT 1"))
	forget(t, a, ofTenant(tenant))
	require.Empty(t, traces(t, pool, plain))

	pgtest.Execute(t, pool, "TRUNCATE outbox.audit")
	pgtest.Execute(t, pool, "INSERT INTO outbox.audit (who, act, why, scope, busy_until) SELECT 'bob', 'forget', '', '{}', 'infinity' FROM generate_series(1, 5001)")
	pgtest.Execute(t, pool, "ALTER TABLE outbox.audit ADD CHECK (busy_until = 'infinity')")
	_, err := a.ForgetAuditTexts(t.Context(), ofTenant(tenant), pgtest.Value[int64](t, pool, "SELECT min(no) FROM outbox.audit"))
	require.ErrorContains(t, err, "violates check constraint")
}

func TestForgetBadArguments(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	tenant := uuid.New()
	act := admin.Act{Who: "ann"}
	for _, c := range []struct {
		scope admin.ForgetScope
		act   admin.Act
		want  string
	}{
		{admin.ForgetScope{}, act, "neither a tenant nor an entity is named"},
		{ofTenant(uuid.Nil), act, "the tenant is the zero UUID"},
		{admin.ForgetScope{EntityType: "order"}, act, "an entity has a type and an id"},
		{admin.ForgetScope{EntityID: "4711"}, act, "an entity has a type and an id"},
		{ofOrder("a\x00"), act, "UTF-8"},
		{admin.ForgetScope{TenantID: outbox.Tenant(tenant), AnyTenant: true}, act, "AnyTenant is for an entity"},
		{ofTenant(tenant), admin.Act{}, "Who is empty"},
		{ofTenant(tenant), admin.Act{Who: "ann", Limit: 1}, "Limit and Rate are not for Forget"},
		{ofTenant(tenant), admin.Act{Who: "ann", Why: "asked by " + strings.ToUpper(tenant.String())}, "do not name the tenant"},
		{ofTenant(tenant), admin.Act{Who: "ann", Why: "asked by " + strings.ReplaceAll(tenant.String(), "-", "")}, "do not name the tenant"},
		{ofOrder("4711"), admin.Act{Who: "ann", Why: "order/4711"}, "do not name the tenant"},
		{ofOrder("4711"), admin.Act{Who: "ann", Why: "Order #4711 is to go"}, "do not name the tenant"},
		{ofOrder("4711"), admin.Act{Who: "order-4711"}, "do not name the tenant"},
		{ofOrder("ü.1"), admin.Act{Who: "ann", Why: "ORDER Ü.1"}, "do not name the tenant"},
		{ofOrder("47110815"), admin.Act{Who: "ann", Why: "47110815"}, "do not name the tenant"},
	} {
		_, err := a.Forget(t.Context(), c.scope, c.act)
		require.ErrorContains(t, err, c.want)
		var argument *admin.ArgumentError
		require.ErrorAs(t, err, &argument)
	}
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.audit"))
}

// TestForgetRefusesDuringAReplay: of that tenant, or of all.
func TestForgetRefusesDuringAReplay(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	manyDead(t, pool, 10)
	tenant := uuid.New()
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _, _ = a.Replay(ctx, admin.Filter{}, admin.Act{Who: "bob", Rate: 1}) })
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.audit WHERE busy_until > now()")
	var replay *admin.ReplayRunsError
	_, err := a.Forget(t.Context(), ofTenant(tenant), admin.Act{Who: "ann"})
	require.ErrorAs(t, err, &replay)
	require.Equal(t, "bob", replay.Who)
	stop()
	running.Wait()
	pgtest.Execute(t, pool, "UPDATE outbox.audit SET scope = jsonb_build_object('tenant_id', gen_random_uuid()::text)")
	forget(t, a, ofTenant(tenant))
	pgtest.Execute(t, pool, "DELETE FROM outbox.audit")

	// A replay that has ended says so.
	n, err := a.Replay(t.Context(), admin.Filter{}, admin.Act{Who: "bob", Rate: 1000})
	require.NoError(t, err)
	require.Positive(t, n.Done)
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.audit WHERE busy_until IS NOT NULL"))
}

// unfinished is what Doctor says of forgets that have not ended.
func unfinished(t testing.TB, a *admin.Admin) (text string) {
	t.Helper()
	found, err := a.Doctor(t.Context(), admin.DoctorConfig{})
	require.NoError(t, err)
	for _, f := range found {
		if f.Check == "forget" {
			text += f.Text + "; " + f.Fix
		}
	}
	return text
}

// TestForgetGoesOn: one that was broken off is found by Doctor, and the next one ends it, with one entry in the audit.
func TestForgetGoesOn(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	tenant := uuid.New()
	ms := make([]outbox.Message, 1200)
	for i := range ms {
		ms[i] = orderMessage(tenant, "1", i)
	}
	runtimetest.EnqueueAll(t, pool, ms...)
	gated, gate := runtimetest.NewGate(t, pool, "name: ForgetEvents :one")
	ctx, stop := context.WithCancel(t.Context())
	gate.OnPass(func() {
		if gate.Passed.Load() == 1 {
			stop()
		}
	})
	r, err := runtimetest.AdminOf(t, gated).Forget(ctx, undelivered(ofTenant(tenant)), admin.Act{Who: "ann"})
	require.ErrorIs(t, err, context.Canceled)
	require.EqualValues(t, 1000, r.Events, "the chunk that was under way is finished")
	require.Equal(t, 200, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.events"))
	text := unfinished(t, a)
	require.Regexp(t, "^ann began to forget tenant "+tenant.String()+" at .* and did not finish; outboxgen forget --tenant "+tenant.String()+" --undelivered --yes$", text)
	require.Contains(t, auditText(t, a), "it has not ended: tenant "+tenant.String())

	// Whoever goes on with other options, and is broken off too, leaves these in the entry.
	pgtest.Execute(t, pool, "UPDATE outbox.audit SET scope = scope - 'undelivered'")
	ctx, stop = context.WithCancel(t.Context())
	gate.OnPass(stop)
	all := undelivered(ofTenant(tenant))
	all.Processed = true
	_, err = runtimetest.AdminOf(t, gated).Forget(ctx, all, admin.Act{Who: "ann"})
	require.ErrorIs(t, err, context.Canceled)
	require.Regexp(t, "; outboxgen forget --tenant "+tenant.String()+" --undelivered --processed --yes$", unfinished(t, a))
	runtimetest.EnqueueAll(t, pool, ms[:200]...)

	r = forget(t, a, undelivered(ofTenant(tenant)))
	require.True(t, r.Resumed)
	require.EqualValues(t, 200, r.Events)
	require.Equal(t, "ann|forget||a tenant, 2800 rows|1400", auditText(t, a))
	require.Empty(t, traces(t, pool, tenant.String()))
	sound(t, a)
}

// TestForgetTwice: two at the same time share the work, and each event is deleted and counted once.
func TestForgetTwice(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	tenant := uuid.New()
	ms := make([]outbox.Message, 1500)
	for i := range ms {
		ms[i] = orderMessage(tenant, "1", i)
	}
	runtimetest.EnqueueAll(t, pool, ms...)
	for i := range ms {
		ms[i] = saidMessage(tenant, fmt.Sprint(i%7), i)
	}
	runtimetest.EnqueueAll(t, pool, ms...)
	reports, errs := make([]admin.ForgetReport, 3), make([]error, 3)
	var running sync.WaitGroup
	for i := range reports {
		running.Go(func() {
			reports[i], errs[i] = a.Forget(t.Context(), undelivered(ofTenant(tenant)), admin.Act{Who: "ann"})
		})
	}
	running.Wait()
	var events, rows int64
	for i, r := range reports {
		require.NoError(t, errs[i])
		events, rows = events+r.Events, rows+r.Rows
	}
	require.EqualValues(t, 3000, events)
	require.EqualValues(t, 4500, rows)
	require.Empty(t, traces(t, pool, tenant.String()))
	require.EqualValues(t, 3000, pgtest.Value[int64](t, pool, "SELECT sum(events)::bigint FROM outbox.audit WHERE act = 'forget' AND busy_until IS NULL"))
	sound(t, a)
}

// TestForgetAsEraser: the role of migrate get --roles suffices, and that of an operator may not change what the audit says.
func TestForgetAsEraser(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	tenant := uuid.New()
	putEverywhere(t, pool, tenant)
	runtimetest.EnqueueAll(t, pool, orderMessage(tenant, "1", 50))
	runtimetest.EnqueueAll(t, pool, saidMessage(tenant, "a", 3))
	h := runtimetest.NewNotes()
	h.Fail = runtimetest.FailFor("a")
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{ParkKeys: true}, listener.Config{}, h))
	roles := runtimetest.RolePools(t, pool)
	_, err := runtimetest.AdminOf(t, roles[migrate.Operator]).Forget(t.Context(), undelivered(ofTenant(tenant)), admin.Act{Who: "ann"})
	require.ErrorContains(t, err, "permission denied")
	s := undelivered(ofTenant(tenant))
	s.Processed = true
	_, err = runtimetest.AdminOf(t, roles[migrate.Eraser]).Forget(t.Context(), s, admin.Act{Who: "ann"})
	require.NoError(t, err)
	require.Empty(t, traces(t, pool, tenant.String()))
}

// TestForgetJSON: the report is the --json document, and its lists are never null.
func TestForgetJSON(t *testing.T) {
	t.Parallel()
	a := runtimetest.AdminOf(t, pgtest.Database(t))
	r, err := a.Forget(t.Context(), ofTenant(uuid.New()), admin.Act{DryRun: true})
	require.NoError(t, err)
	text, err := json.Marshal(r)
	require.NoError(t, err)
	require.JSONEq(t, `{"topics": [], "tables": [], "undelivered": 0, "in_flight": 0, "listed": [], "refused": [], "resumed": false, "events": 0, "rows": 0}`, string(text))
}

// inHook runs call once, before the statement of a gate.
func inHook(gate *runtimetest.Gate, call func()) {
	var once sync.Once
	gate.OnPass(func() { once.Do(call) })
}

// TestForgetAgainstChangesOfState: between the look at an event and its lock, somebody acks, nacks, claims or replays it. No
// row is left without its event, and nothing without --undelivered is lost.
func TestForgetAgainstChangesOfState(t *testing.T) {
	t.Parallel()
	tenant := uuid.New()
	type world struct {
		pool    *pgxpool.Pool
		store   *queue.Store
		claimed []queue.Claimed
	}
	for name, c := range map[string]struct {
		claim bool
		meet  func(t *testing.T, w world)
	}{
		"ack": {true, func(t *testing.T, w world) {
			_, err := w.store.Ack(t.Context(), w.claimed...)
			require.NoError(t, err)
		}},
		"death": {true, func(t *testing.T, w world) {
			_, err := w.store.Nack(t.Context(), queue.Failure{Claimed: w.claimed[0], Err: outbox.Permanent(errors.New("no"))})
			require.NoError(t, err)
		}},
		"claim": {false, func(t *testing.T, w world) { runtimetest.ClaimN(t, w.store, 1) }},
		"replay": {true, func(t *testing.T, w world) {
			_, err := w.store.Nack(t.Context(), queue.Failure{Claimed: w.claimed[0], Err: outbox.Permanent(errors.New("no"))})
			require.NoError(t, err)
			r, err := runtimetest.AdminOf(t, w.pool).Replay(t.Context(), admin.Filter{}, admin.Act{Who: "bob"})
			require.NoError(t, err)
			require.EqualValues(t, 1, r.Done)
		}},
		"prune": {true, func(t *testing.T, w world) {
			_, err := w.store.Ack(t.Context(), w.claimed...)
			require.NoError(t, err)
			pgtest.Execute(t, w.pool, "UPDATE outbox.delivered SET finalized_at = now() - interval '1 year'")
			r, err := runtimetest.AdminOf(t, w.pool).Prune(t.Context(), map[string]outbox.Retention{"test/ping": {}})
			require.NoError(t, err)
			require.EqualValues(t, 1, r.Queue)
		}},
	} {
		for _, statement := range []string{"name: ForgetHold", "name: ForgetStart"} {
			t.Run(name+" before "+statement, func(t *testing.T) {
				t.Parallel()
				pool := pgtest.Database(t)
				a := runtimetest.AdminOf(t, pool)
				runtimetest.EnqueueAll(t, pool, orderMessage(tenant, "1", 1))
				w := world{pool: pool, store: runtimetest.NewStore(t, pool)}
				if c.claim {
					w.claimed = runtimetest.ClaimN(t, w.store, 1)
				}
				gated, gate := runtimetest.NewGate(t, pool, statement)
				inHook(gate, func() { c.meet(t, w) })
				_, err := runtimetest.AdminOf(t, gated).Forget(t.Context(), undelivered(ofTenant(tenant)), admin.Act{Who: "ann"})
				require.NoError(t, err)
				require.Positive(t, gate.Passed.Load())
				pgtest.Execute(t, pool, "DELETE FROM outbox.audit WHERE act = 'replay'")
				require.Empty(t, traces(t, pool, tenant.String()))
				require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.delivered"))
				require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.queue"))
				sound(t, a)
			})
		}
	}
}

// TestForgetLeavesWhatComesMeanwhile: an event that becomes undelivered after the plan stays without Undelivered, the forget
// says so, and is found by Doctor until it has ended.
func TestForgetLeavesWhatComesMeanwhile(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	tenant := uuid.New()
	putEverywhere(t, pool, tenant)
	gated, gate := runtimetest.NewGate(t, pool, "name: ForgetStart")
	inHook(gate, func() {
		_, err := a.Replay(t.Context(), admin.Filter{Namespace: "test", Topic: "ping"}, admin.Act{Who: "bob", Limit: 1})
		require.NoError(t, err)
		runtimetest.EnqueueAll(t, pool, orderMessage(tenant, "1", 60))
	})
	var left *admin.UndeliveredError
	_, err := runtimetest.AdminOf(t, gated).Forget(t.Context(), ofTenant(tenant), admin.Act{Who: "ann"})
	require.ErrorAs(t, err, &left)
	require.True(t, left.Deleted)
	require.EqualValues(t, 2, left.Count)
	require.Equal(t, 2, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.events AS e JOIN outbox.queue AS q ON q.id = e.id"))
	require.Equal(t, 2, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.events"))
	require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.audit WHERE act = 'forget' AND busy_until <= now()"))
	r := forget(t, a, undelivered(ofTenant(tenant)))
	require.True(t, r.Resumed)
	require.Empty(t, traces(t, pool, tenant.String()))
	sound(t, a)
}

// TestForgetWhileTheTenantEnqueues: what commits while a pass runs is deleted by the next one.
func TestForgetWhileTheTenantEnqueues(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	tenant := uuid.New()
	runtimetest.EnqueueAll(t, pool, orderMessage(tenant, "1", 1), orderMessage(tenant, "1", 2))
	late := pgtest.Begin(t, pool, pgx.TxOptions{})
	_, err := outbox.Enqueue(t.Context(), late, "", orderMessage(tenant, "1", 3)) // its id is lower than what is enqueued then
	require.NoError(t, err)
	gated, gate := runtimetest.NewGate(t, pool, "name: ForgetEvents :one")
	inHook(gate, func() {
		require.NoError(t, late.Commit(t.Context()))
		runtimetest.EnqueueAll(t, pool, orderMessage(tenant, "1", 4))
		runtimetest.EnqueueAll(t, pool, saidMessage(tenant, "a", 1))
	})
	r, err := runtimetest.AdminOf(t, gated).Forget(t.Context(), undelivered(ofTenant(tenant)), admin.Act{Who: "ann"})
	require.NoError(t, err)
	require.EqualValues(t, 5, r.Events)
	require.Empty(t, traces(t, pool, tenant.String()))
	sound(t, a)
}

// TestForgetBesidePrune: both run at the same time, again and again, and neither disturbs the other.
func TestForgetBesidePrune(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	keep := uuid.New()
	for round := range 3 {
		tenant := uuid.New()
		var ms []outbox.Message
		for i := range 600 {
			ms = append(ms, orderMessage(tenant, "1", i), saidMessage(tenant, "a", i))
		}
		queued, logged := []outbox.Message{orderMessage(keep, "1", round)}, []outbox.Message{}
		for _, m := range ms {
			if m.Log {
				logged = append(logged, m)
			} else {
				queued = append(queued, m)
			}
		}
		runtimetest.EnqueueAll(t, pool, queued...)
		runtimetest.EnqueueAll(t, pool, logged...)
		pgtest.Execute(t, pool, `WITH q AS (DELETE FROM outbox.queue RETURNING id, namespace, topic)
			INSERT INTO outbox.delivered (id, namespace, topic, attempts, finalized_at) SELECT id, namespace, topic, 1, now() - interval '1 year' FROM q`)
		pgtest.Execute(t, pool, "UPDATE outbox.delivered SET finalized_at = now() WHERE id IN (SELECT id FROM outbox.events WHERE tenant_id = $1)", keep)
		pgtest.Execute(t, pool, "UPDATE outbox.log SET created_at = now() - interval '1 year'")
		var running sync.WaitGroup
		var forgot, pruned error
		running.Go(func() { _, forgot = a.Forget(t.Context(), ofTenant(tenant), admin.Act{Who: "ann"}) })
		running.Go(func() {
			_, pruned = a.As("bob", "").Prune(t.Context(), map[string]outbox.Retention{"test/ping": {Delivered: time.Hour}, "test/said": {Delivered: time.Hour}})
		})
		running.Wait()
		require.NoError(t, forgot)
		require.NoError(t, pruned)
		require.Empty(t, traces(t, pool, tenant.String()))
		require.Equal(t, round+1, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.events"))
	}
	sound(t, a)
}

// TestForgetAfterARestore: cursors of another cluster say nothing about what their listeners have passed.
func TestForgetAfterARestore(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	tenant := uuid.New()
	runtimetest.EnqueueAll(t, pool, saidMessage(tenant, "a", 1))
	pgtest.Execute(t, pool, `INSERT INTO outbox.listeners (listener, shard, shards, lo, lo_bound, high_seq, system_id)
		VALUES ('ears', 0, 1, '1:1:', '1', 0, 7)`)
	_, err := runtimetest.AdminOf(t, pool).Forget(t.Context(), undelivered(ofTenant(tenant)), admin.Act{Who: "ann"})
	require.ErrorIs(t, err, outbox.ErrRestored)
	require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.log"))
}

// TestForgetWaitsForAnAck: a forget that meets an ack which has not committed waits for it, and deletes what it has written.
func TestForgetWaitsForAnAck(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	tenant := uuid.New()
	runtimetest.EnqueueAll(t, pool, orderMessage(tenant, "1", 1))
	ack := pgtest.Begin(t, pool, pgx.TxOptions{})
	_, err := ack.Exec(t.Context(), `WITH q AS (DELETE FROM outbox.queue RETURNING id, namespace, topic)
		INSERT INTO outbox.delivered (id, namespace, topic, attempts) SELECT id, namespace, topic, 1 FROM q`)
	require.NoError(t, err)
	over := make(chan error, 1)
	go func() {
		_, err := a.Forget(t.Context(), undelivered(ofTenant(tenant)), admin.Act{Who: "ann"})
		over <- err
	}()
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%ForgetHold%'")
	require.NoError(t, ack.Commit(t.Context()))
	require.NoError(t, pgtest.Receive(t, over, "the forget"))
	require.Empty(t, traces(t, pool, tenant.String()))
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.delivered"))
	sound(t, a)
}
