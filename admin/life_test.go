package admin_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/migrate"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/queue"
)

// step is an event about an order.
type step struct {
	Order string `json:"order"`
	N     int    `json:"n"`
}

// stepTopic returns a topic of the namespace shop whose events are about entities of a type.
func stepTopic(name, entity string, log bool) outbox.Topic[step] {
	return outbox.NewTopic[step](outbox.TopicSpec{
		Namespace: "shop", Name: name, Log: log,
		Keys: func(p any) outbox.Keys {
			s := p.(*step)
			id := eventkey.NewKey(eventkey.StringPart("order", s.Order))
			return outbox.Keys{Partition: id, EntityType: entity, EntityID: id, EntityVersion: int64(s.N)}
		},
	})
}

var (
	placed  = stepTopic("placed", "order", false)
	changed = stepTopic("changed", "order", true)
	mailed  = stepTopic("mailed", "mail", false)
)

func putStep(ctx context.Context, t testing.TB, pool *pgxpool.Pool, topic outbox.Topic[step], s step, opts ...outbox.EnqueueOption) uuid.UUID {
	t.Helper()
	var r outbox.Receipt
	require.NoError(t, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) (err error) {
		r, err = topic.Enqueue(ctx, tx, s, opts...)
		return err
	}))
	return r.ID
}

// shop is a database in which an order was placed. The handler of placed has enqueued changed and mailed. The listener ears
// has given changed up, and an operator has replayed it. Consumer billing has handled it, and the handler of mailed fails.
func shop(t testing.TB) (*pgxpool.Pool, *admin.Admin) {
	t.Helper()
	pool := pgtest.Database(t)
	ops, err := admin.New(pool, "")
	require.NoError(t, err)
	d := runtimetest.Dispatcher(t, pool, queue.Config{Logger: runtimetest.DiscardLogger(), Retry: outbox.Retry{BaseDelay: time.Hour, MaxDelay: time.Hour}},
		queue.Handle(placed, t, func(ctx context.Context, d outbox.Delivery[step]) error {
			putStep(ctx, t, pool, changed, step{d.Payload.Order, 2})
			putStep(ctx, t, pool, mailed, step{d.Payload.Order, 1})
			return nil
		}),
		queue.Handle(mailed, t, func(context.Context, outbox.Delivery[step]) error { return errors.New("the mail server is away") }))
	var sent []outbox.Event
	l, err := listener.New(pool, listener.Spec{Name: "ears"}, listener.Config{Logger: runtimetest.DiscardLogger()},
		listener.Handle(changed, t, func(_ context.Context, d outbox.Delivery[step]) error {
			if d.Payload.Order == "4711" && len(sent) == 0 {
				sent = append(sent, d.Event)
				return outbox.Permanent(errors.New("no"))
			}
			return nil
		}))
	require.NoError(t, err)
	putStep(t.Context(), t, pool, placed, step{"4711", 1})
	putStep(t.Context(), t, pool, placed, step{"4712", 1})
	_, err = d.Drain(t.Context())
	require.NoError(t, err)
	runtimetest.DrainAll(t, l)
	_, err = ops.As("ann", "support").Replay(t.Context(), admin.Filter{Namespace: "shop"}, admin.Act{})
	require.NoError(t, err)
	runtimetest.DrainAll(t, l)

	ib, err := inbox.New(inbox.Config{Group: "billing"})
	require.NoError(t, err)
	c, err := consume.New(ib, consume.Handle(consume.NewTopic[step](consume.TopicSpec{Namespace: "shop", Name: "changed"}), t,
		func(testing.TB, context.Context, pgx.Tx, consume.Delivery[step]) error { return nil }))
	require.NoError(t, err)
	m, err := publish.JSON()(publish.Outgoing{Event: sent[0], Payload: json.RawMessage(`{"order": "4711", "n": 2}`)})
	require.NoError(t, err)
	_, err = c.Consume(t.Context(), pool, consume.Message(m))
	require.NoError(t, err)
	return pool, ops
}

// told writes lives as lines, those of what was caused indented.
func told(events []*admin.EventLife) string {
	var b strings.Builder
	var tell func(depth int, of []*admin.EventLife)
	tell = func(depth int, of []*admin.EventLife) {
		for _, e := range of {
			fmt.Fprintf(&b, "%s%s %s/%s/%d %s %d", strings.Repeat("  ", depth), e.Name(), e.Entity.Type, e.Entity.ID, e.Entity.Version, e.Status, e.Attempts)
			for _, l := range e.Listeners {
				fmt.Fprintf(&b, ", %s %s after %d failures", l.Listener, l.Status, len(l.Failures))
			}
			for _, c := range e.Consumers {
				fmt.Fprintf(&b, ", %s %s", c.Consumer, c.Status)
			}
			for _, act := range e.Acts {
				fmt.Fprintf(&b, ", %s by %s %t", act.Action, act.Who, act.Certain)
			}
			b.WriteString("\n")
			tell(depth+1, e.Caused)
		}
	}
	tell(0, events)
	return b.String()
}

// TestLifeOfAnEntity: all of its events over all topics with what has become of them, and what they have caused.
func TestLifeOfAnEntity(t *testing.T) {
	t.Parallel()
	pool, ops := shop(t)
	order := admin.Filter{Entity: outbox.Entity{Type: "order", ID: "4711"}}
	const whole = `shop/placed order/4711/1 delivered 1
  shop/changed order/4711/2 logged 0, ears delivered after 1 failures, billing handled, replay by ann true
  shop/mailed mail/4711/1 pending 1
`
	life, err := ops.Life(t.Context(), order, admin.Page{})
	require.NoError(t, err)
	require.Equal(t, whole, told(life.Events))
	require.False(t, life.More)
	require.Empty(t, life.Next)
	require.Len(t, life.Versions, 1)
	require.Equal(t, "billing /shop 2", fmt.Sprint(life.Versions[0].Consumer, " ", life.Versions[0].Source, " ", life.Versions[0].Version))
	first, second := life.Events[0], life.Events[0].Caused[0]
	require.Equal(t, first.ID.String(), second.Causation)
	require.Equal(t, first.ID.String(), second.Correlation)
	require.Equal(t, second.ID, life.Versions[0].EventID)

	// The same by the chain, from its id, and by a page per event.
	viewer := runtimetest.AdminOf(t, runtimetest.RolePools(t, pool)[migrate.Viewer])
	for _, f := range []admin.Filter{order, {Correlation: first.ID.String()}, {IDs: []uuid.UUID{first.ID}}} {
		for _, by := range []*admin.Admin{ops, viewer} {
			life, err := by.Life(t.Context(), f, admin.Page{})
			require.NoError(t, err)
			require.Equal(t, whole, told(life.Events))
		}
	}
	for _, by := range []*admin.Admin{ops, viewer} {
		life, err := by.Life(t.Context(), admin.Filter{Causation: first.ID}, admin.Page{})
		require.NoError(t, err)
		require.Len(t, life.Events, 2)
	}
	one, err := ops.Life(t.Context(), order, admin.Page{Limit: 1})
	require.NoError(t, err)
	require.Equal(t, "shop/placed order/4711/1 delivered 1\n  shop/mailed mail/4711/1 pending 1\n", told(one.Events), "the other one of the entity is on the next page")
	one, err = ops.Life(t.Context(), order, admin.Page{Limit: 1, After: one.Next})
	require.NoError(t, err)
	require.Equal(t, "shop/changed order/4711/2 logged 0, ears delivered after 1 failures, billing handled, replay by ann true\n", told(one.Events))
	require.Empty(t, one.Next)

	// A version, a topic, an entity that is not there.
	for want, f := range map[string]admin.Filter{
		"shop/changed order/4711/2 logged 0, ears delivered after 1 failures, billing handled, replay by ann true\n": {Entity: outbox.Entity{Type: "order", ID: "4711", Version: 2}},
		"shop/mailed mail/4711/1 pending 1\n": {Entity: outbox.Entity{Type: "mail", ID: "4711"}, Namespace: "shop", Topic: "mailed"},
		"":                                    {Entity: outbox.Entity{Type: "order", ID: "0"}},
	} {
		life, err := ops.Life(t.Context(), f, admin.Page{})
		require.NoError(t, err)
		require.Equal(t, want, told(life.Events))
	}

	// Each event says the same by itself, and a replay that names it is certain.
	_, err = ops.Replay(t.Context(), admin.Filter{IDs: []uuid.UUID{second.ID}}, admin.Act{Who: "bob"})
	require.NoError(t, err)
	pgtest.Execute(t, pool, `INSERT INTO outbox.audit (who, act, scope) VALUES ('bob', 'replay', jsonb_build_object('ids', jsonb_build_array($1::text))), ('eve', 'replay', '{"namespace": "other"}'), ('eve', 'prune', '{}'),
		('joe', 'replay', '{"namespace": "shop", "topic": "changed", "listener": "ears"}'), ('joe', 'replay', '{"listener": "eyes"}'), ('kim', 'pause', '{"namespace": "shop"}'), ('kim', 'rewind', '{"listener": "ears", "start": true}'),
		('kim', 'rewind', '{"listener": "ears", "to": "2999-01-01T00:00:00Z"}'), ('lea', 'pause', '{"tenant_id": "0192d4a0-6c7e-7b1a-9a53-0c3f5a9b2e11"}'), ('lea', 'discard', '{"until": "2020-01-01T00:00:00Z"}'), ('lea', 'replay', '[1]')`, second.ID.String())
	d, err := ops.Event(t.Context(), second.ID)
	require.NoError(t, err)
	require.Equal(t, second.Consumers, d.Consumers)
	var acts []string
	for _, act := range d.Acts {
		acts = append(acts, fmt.Sprint(act.Action, " ", act.Who, " ", act.Certain))
	}
	require.Equal(t, []string{"replay ann true", "replay bob true", "replay joe false", "pause kim false", "rewind kim false"}, acts)
	types, err := ops.EntityTypes(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"mail", "order"}, types)
}

// TestConsumersThatRecordByKey: a group that takes events of one key for the same event has handled each of them.
func TestConsumersThatRecordByKey(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	id := runtimetest.EnqueueAll(t, pool, outbox.Message{Namespace: "shop", Topic: "placed", DedupeKey: "4711", Payload: []byte("{}")})[0].ID
	pgtest.Execute(t, pool, "INSERT INTO outbox.processed_events (consumer_group, event_id) VALUES ('ledger', $1), ('other', $2)",
		inbox.KeyID("shop.placed", "4711"), inbox.KeyID("shop.placed", "4712"))
	d, err := runtimetest.AdminOf(t, pool).Event(t.Context(), id)
	require.NoError(t, err)
	require.Len(t, d.Consumers, 1)
	require.Equal(t, "ledger", d.Consumers[0].Consumer)
}

// TestFiltersOfAnEntity: what an index leads to is compared with each of the other fields of a filter.
func TestFiltersOfAnEntity(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	ops := runtimetest.AdminOf(t, pool)
	tenant := uuid.New()
	m := orderMessage(tenant, "1", 1)
	m.PartitionKey = "p"
	runtimetest.EnqueueAll(t, pool, m)
	pgtest.Execute(t, pool, `UPDATE outbox.queue SET failures = '[{"at": "2026-05-01T12:00:00Z", "attempt": 1, "error": "the server is away"}]'`)
	at := pgtest.Value[time.Time](t, pool, "SELECT created_at FROM outbox.events")
	for _, c := range []struct{ right, wrong admin.Filter }{
		{admin.Filter{Namespace: "test"}, admin.Filter{Namespace: "shop"}},
		{admin.Filter{Namespace: "test", Topic: "ping"}, admin.Filter{Namespace: "test", Topic: "pong"}},
		{admin.Filter{}, admin.Filter{Listener: "ears"}},
		{admin.Filter{TenantID: outbox.Tenant(tenant)}, admin.Filter{TenantID: outbox.Tenant(uuid.New())}},
		{admin.Filter{Status: admin.StatusPending}, admin.Filter{Status: admin.StatusDead}},
		{admin.Filter{Key: m.DedupeKey}, admin.Filter{Key: "k"}},
		{admin.Filter{Key: "p"}, admin.Filter{Key: "q"}},
		{admin.Filter{Since: at}, admin.Filter{Since: at.Add(time.Millisecond)}},
		{admin.Filter{Until: at.Add(time.Millisecond)}, admin.Filter{Until: at}},
		{admin.Filter{Error: "away"}, admin.Filter{Error: "here"}},
	} {
		for want, f := range []admin.Filter{c.wrong, c.right} {
			f.Entity = m.Entity
			f.Entity.Version = 0
			life, err := ops.Life(t.Context(), f, admin.Page{})
			require.NoError(t, err)
			require.Len(t, life.Events, want, "%+v", f)
		}
	}
}

// TestLifeOfALongChain: what is left out of a page is said.
func TestLifeOfALongChain(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	ops := runtimetest.AdminOf(t, pool)
	put := func(order string, n int) {
		pgtest.Execute(t, pool, `WITH root AS (
				INSERT INTO outbox.events (id, namespace, topic, payload, entity_type, entity_id) VALUES (gen_random_uuid(), 'shop', 'placed', '{}', 'order', $1) RETURNING id),
			caused AS (
				INSERT INTO outbox.events (id, namespace, topic, payload, created_at, headers)
				SELECT gen_random_uuid(), 'shop', 'mailed', '{}', now() + interval '1 s', jsonb_build_object('causation_id', id, 'correlation_id', id) FROM root CROSS JOIN generate_series(1, $2::int) RETURNING id)
			INSERT INTO outbox.delivered (id, namespace, topic, attempts) SELECT id, 'shop', 'placed', 1 FROM root UNION ALL SELECT id, 'shop', 'mailed', 1 FROM caused`, order, n)
	}
	put("short", 499)
	put("long", 500)
	for range 3 {
		put("many", 400)
	}
	for _, want := range []struct {
		order  string
		more   bool
		caused int
	}{{"short", false, 499}, {"long", true, 500}, {"many", true, 1000}} {
		life, err := ops.Life(t.Context(), admin.Filter{Entity: outbox.Entity{Type: "order", ID: want.order}}, admin.Page{})
		require.NoError(t, err)
		require.Equal(t, want.more, life.More, want.order)
		caused := 0
		for _, e := range life.Events {
			caused += len(e.Caused)
		}
		require.Equal(t, want.caused, caused, want.order)
	}
}

// TestLifeAtConsumers: messages that a consumer group keeps, and the version of an entity of a tenant.
func TestLifeAtConsumers(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	tenant := uuid.New()
	id := runtimetest.EnqueueAll(t, pool, orderMessage(tenant, "1", 1))[0].ID
	for group, status := range map[string]string{"a": "parked", "b": "parked", "c": "dead"} {
		due := map[string]string{"a": "2030-01-01T00:00:00Z", "b": "infinity", "c": "2030-01-01T00:00:00Z"}[group]
		pgtest.Execute(t, pool, `INSERT INTO outbox.inbox_messages (consumer_group, message_id, place, event_id, type, namespace, topic, version, envelope, body, status, attempts, next_attempt_at, error)
			VALUES ($1, $2::uuid::text, 'kafka:x/1@1', $2::uuid, 'test.ping', 'test', 'ping', 1, '{}', '{}', $3, 2, $4::text::timestamptz, 'no')`, group, id, status, due)
	}
	for _, of := range []uuid.UUID{tenant, uuid.Nil, uuid.New()} {
		pgtest.Execute(t, pool, `INSERT INTO outbox.entity_versions (consumer_group, source, tenant_id, entity_type, entity_id, version, event_id) VALUES ('a', '/test', $1, 'order', '1', 2, $2)`, of, id)
	}
	life, err := runtimetest.AdminOf(t, pool).Life(t.Context(), admin.Filter{Entity: outbox.Entity{Type: "order", ID: "1"}}, admin.Page{})
	require.NoError(t, err)
	require.Len(t, life.Events, 1)
	var got []string
	for _, c := range life.Events[0].Consumers {
		got = append(got, fmt.Sprint(c.Consumer, " ", c.Status, " ", c.Attempts, " ", c.NextAttemptAt.Year(), " ", c.LastError))
	}
	require.ElementsMatch(t, []string{"a parked 2 2030 no", "b parked 2 1 no", "c dead 2 1 no"}, got)
	got = nil
	for _, v := range life.Versions {
		got = append(got, v.TenantID.UUID.String())
	}
	require.ElementsMatch(t, []string{tenant.String(), uuid.Nil.String()}, got, "its own, and that of no tenant")
}

// TestLifeAfterThePrune: what a listener has kept is found when the log has forgotten it, and an event without its cause
// stands on its own.
func TestLifeAfterThePrune(t *testing.T) {
	t.Parallel()
	pool, ops := shop(t)
	pgtest.Execute(t, pool, `INSERT INTO outbox.dead_letters (listener, seq, bucket, id, namespace, topic, version, entity_type, entity_id, entity_version, headers, payload, created_at, attempts, error)
		SELECT l, seq, bucket, id, namespace, topic, version, entity_type, entity_id, entity_version, headers, payload, created_at, 3, 'no'
		FROM outbox.log CROSS JOIN unnest('{ears,eyes}'::text[]) AS l WHERE entity_id = '4711'`)
	pgtest.Execute(t, pool, `INSERT INTO outbox.parked (listener, seq, bucket, key, id, namespace, topic, version, entity_type, entity_id, entity_version, headers, payload, created_at)
		SELECT 'nose', seq, bucket, '4711', id, namespace, topic, version, entity_type, entity_id, entity_version, headers, payload, created_at
		FROM outbox.log WHERE entity_id = '4711'`)
	chain := pgtest.Value[string](t, pool, "SELECT headers ->> 'correlation_id' FROM outbox.log WHERE entity_id = '4711'")
	pgtest.Execute(t, pool, "DELETE FROM outbox.log")
	pgtest.Execute(t, pool, "DELETE FROM outbox.events WHERE topic = 'placed'")
	const pruned = "shop/changed order/4711/2  0, ears dead after 1 failures, eyes dead after 0 failures, nose parked after 0 failures, billing handled, replay by ann true\n"
	for want, f := range map[string]admin.Filter{
		pruned: {Entity: outbox.Entity{Type: "order", ID: "4711"}},
		pruned + "shop/mailed mail/4711/1 pending 1\n": {Correlation: chain},
	} {
		life, err := ops.Life(t.Context(), f, admin.Page{})
		require.NoError(t, err)
		require.Equal(t, want, told(life.Events))
	}
	// The entries of one event may be on several pages.
	var all []string
	for page := (admin.Page{Limit: 1}); ; {
		p, err := ops.Events(t.Context(), admin.Filter{Entity: outbox.Entity{Type: "order", ID: "4711"}}, page)
		require.NoError(t, err)
		for _, e := range p.Events {
			all = append(all, string(e.Status)+" "+e.Listener)
		}
		if page.After = p.Next; page.After == "" {
			break
		}
	}
	require.ElementsMatch(t, []string{"dead ears", "dead eyes", "parked nose"}, all)
}

// TestLifeOfACause: what an event has caused, wherever it and its cause are, and not what its chain has besides.
func TestLifeOfACause(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	ops := runtimetest.AdminOf(t, pool)
	// a caused b, c and d. b, an event of the log, caused e in capitals. f is of the same chain and has another cause.
	ids := make(map[string]uuid.UUID)
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		ids[name] = uuid.Must(uuid.NewV7())
	}
	put := func(table, name, cause string) {
		headers, chain := "", ids["a"].String()
		if cause != "" {
			headers = fmt.Sprintf(`{"causation_id": %q, "correlation_id": %q}`, cause, chain)
		}
		pgtest.Execute(t, pool, `INSERT INTO outbox.`+table+` (id, namespace, topic, payload, headers, entity_type, entity_id) VALUES ($1, 'shop', $2::text, '{}', nullif($3::text, '')::jsonb, 'order', $2)`, ids[name], name, headers)
	}
	put("events", "a", "")
	put("log", "b", ids["a"].String())
	put("events", "c", ids["a"].String())
	put("log", "d", ids["a"].String())
	put("events", "e", strings.ToUpper(ids["b"].String()))
	put("events", "f", uuid.NewString())
	pgtest.Execute(t, pool, "INSERT INTO outbox.delivered (id, namespace, topic, attempts) SELECT id, namespace, topic, 1 FROM outbox.events")
	pgtest.Execute(t, pool, `INSERT INTO outbox.parked (listener, seq, bucket, key, id, namespace, topic, version, headers, payload, created_at)
		SELECT 'nose', seq, bucket, 'd', id, namespace, topic, version, headers, payload, created_at FROM outbox.log WHERE topic = 'd'`)
	caused := func(name string, page admin.Page) (string, string) {
		life, err := ops.Life(t.Context(), admin.Filter{Causation: ids[name]}, page)
		require.NoError(t, err)
		return strings.Join(strings.Fields(regexp.MustCompile(`(?m)shop/(.).*`).ReplaceAllString(told(life.Events), "$1")), " "), life.Next
	}
	require.Equal(t, "b e c d", first(caused("a", admin.Page{})), "with what these have caused below them")
	require.Equal(t, "e", first(caused("b", admin.Page{})))
	require.Empty(t, first(caused("c", admin.Page{})))
	var pages []string
	for page := (admin.Page{Limit: 1}); ; {
		names, next := caused("a", page)
		if pages = append(pages, names); next == "" {
			break
		}
		page.After = next
	}
	require.Equal(t, []string{"b e", "c", "d", "d"}, pages, "the entry of a listener is one of its own")
	life, err := ops.Life(t.Context(), admin.Filter{Causation: ids["a"], Topic: "c", Namespace: "shop"}, admin.Page{})
	require.NoError(t, err)
	require.Len(t, life.Events, 1)

	life, err = ops.Life(t.Context(), admin.Filter{Correlation: ids["c"].String()}, admin.Page{})
	require.NoError(t, err)
	require.Empty(t, life.Events, "no chain began with what has a cause")

	pgtest.Execute(t, pool, "DELETE FROM outbox.log WHERE topic <> 'd'")
	pgtest.Execute(t, pool, "DELETE FROM outbox.events WHERE topic = 'a'")
	require.Equal(t, "c d", first(caused("a", admin.Page{})), "the chain began with what is gone")
	require.Empty(t, first(caused("b", admin.Page{})), "nobody knows any more of which chain it was")
}

func first(a, _ string) string { return a }

// TestLongLifeIsPaged: each event of an entity is on one page, in order, whatever their times are.
func TestLongLifeIsPaged(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	ops, err := admin.New(pool, "")
	require.NoError(t, err)
	long := strings.Repeat("ü", 300) // longer than what the index has of it
	pgtest.Execute(t, pool, `INSERT INTO outbox.events (id, namespace, topic, payload, entity_type, entity_id, entity_version, headers, created_at)
		SELECT gen_random_uuid(), 'shop', 'placed', '{}', 'order', '1', n, jsonb_build_object('correlation_id', $1::text || n % 2), now() + n / 10 * interval '1 s' FROM generate_series(1, 60) AS n`, long)
	pgtest.Execute(t, pool, `INSERT INTO outbox.log (id, namespace, topic, payload, entity_type, entity_id, entity_version, headers, created_at)
		SELECT gen_random_uuid(), 'shop', 'changed', '{}', 'order', '1', n, jsonb_build_object('correlation_id', $1::text || n % 2), now() + n / 10 * interval '1 s' FROM generate_series(61, 120) AS n`, long)
	for want, f := range map[int]admin.Filter{
		120: {Entity: outbox.Entity{Type: "order", ID: "1"}}, 60: {Correlation: long + "1"}, 0: {Correlation: long},
		12: {Entity: outbox.Entity{Type: "order", ID: "1"}, Until: time.Now().Add(time.Second / 2)},
	} {
		if want == 12 {
			f.Until = pgtest.Value[time.Time](t, pool, "SELECT min(created_at) + interval '500 ms' FROM outbox.events")
			want = 9
		}
		seen := make(map[uuid.UUID]bool)
		var last time.Time
		pages := 0
		for page := (admin.Page{Limit: 7}); ; pages++ {
			p, err := ops.Events(t.Context(), f, page)
			require.NoError(t, err)
			for _, e := range p.Events {
				require.False(t, seen[e.ID])
				require.False(t, e.CreatedAt.Before(last))
				seen[e.ID], last = true, e.CreatedAt
			}
			if page.After = p.Next; page.After == "" {
				break
			}
		}
		require.Len(t, seen, want)
		require.LessOrEqual(t, pages, want/7+1)
	}
}

// TestLifeOfALoop: headers that somebody has written by hand may say anything.
func TestLifeOfALoop(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	ops, err := admin.New(pool, "")
	require.NoError(t, err)
	a, b := uuid.NewString(), uuid.NewString()
	pgtest.Execute(t, pool, `INSERT INTO outbox.events (id, namespace, topic, payload, entity_type, entity_id, headers) VALUES
		($1::text::uuid, 'shop', 'placed', '{}', 'order', '1', jsonb_build_object('causation_id', $2::text, 'correlation_id', 'c')),
		($2::text::uuid, 'shop', 'placed', '{}', 'order', '2', jsonb_build_object('causation_id', $1::text, 'correlation_id', 'c')),
		(gen_random_uuid(), 'shop', 'placed', '{}', 'order', '3', jsonb_build_object('causation_id', 'what?', 'correlation_id', jsonb_build_array(1))),
		(gen_random_uuid(), 'shop', 'placed', '{}', 'order', '4', '[1]')`, a, b)
	for _, f := range []admin.Filter{{Entity: outbox.Entity{Type: "order", ID: "1"}}, {Entity: outbox.Entity{Type: "order", ID: "2"}}, {Correlation: "c"}} {
		life, err := ops.Life(t.Context(), f, admin.Page{})
		require.NoError(t, err)
		require.Len(t, life.Events, 1)
	}
	life, err := ops.Life(t.Context(), admin.Filter{Namespace: "shop"}, admin.Page{})
	require.NoError(t, err)
	require.Empty(t, life.Events, "they have no state")
	for _, id := range []string{"3", "4"} {
		life, err := ops.Life(t.Context(), admin.Filter{Entity: outbox.Entity{Type: "order", ID: id}}, admin.Page{})
		require.NoError(t, err)
		require.Len(t, life.Events, 1)
	}
}

// TestFind: a text leads to what it names.
func TestFind(t *testing.T) {
	t.Parallel()
	pool, ops := shop(t)
	placedID := pgtest.Value[uuid.UUID](t, pool, "SELECT id FROM outbox.events WHERE topic = 'placed' AND entity_id = '4711'")
	tenant := uuid.New()
	keyed := runtimetest.Message(tenant, 7)
	runtimetest.EnqueueAll(t, pool, keyed)
	putStep(t.Context(), t, pool, placed, step{"9", 1}, outbox.WithHeaders(map[string]string{"correlation_id": "request/7"}))
	for text, want := range map[string][]admin.Filter{
		" " + placedID.String() + "\n": {{IDs: []uuid.UUID{placedID}}},
		"order/4711":                   {{Entity: outbox.Entity{Type: "order", ID: "4711"}}},
		keyed.DedupeKey:                {{Key: keyed.DedupeKey}},
		"request/7":                    {{Correlation: "request/7"}},
		tenant.String():                {{TenantID: outbox.Tenant(tenant)}},
		uuid.NewString():               nil, "order/0": nil, "": nil, "\x00": nil, "4711": nil, strings.Repeat("x", 1<<20): nil,
	} {
		found, err := ops.Find(t.Context(), text)
		require.NoError(t, err)
		require.Equal(t, want, found, "%.100q", text)
	}
}

// TestFiltersThatLeadToEvents are refused where they would select nothing, or too much.
func TestFiltersThatLeadToEvents(t *testing.T) {
	t.Parallel()
	ops, err := admin.New(runtimetest.Unconnected(t), "")
	require.NoError(t, err)
	order := outbox.Entity{Type: "order", ID: "1"}
	for want, f := range map[string]admin.Filter{
		"Entity needs its Type and its ID":                                               {Entity: outbox.Entity{Type: "order"}},
		"Entity and Correlation must be UTF-8 without NUL":                               {Correlation: "\x00"},
		"IDs, Entity, Correlation and Causation each lead to events: set one of them":    {Entity: order, Correlation: "c"},
		"IDs, Entity, Correlation and Causation each lead to events: set one of them ":   {Entity: order, IDs: []uuid.UUID{uuid.New()}},
		"IDs, Entity, Correlation and Causation each lead to events: set one of them  ":  {Correlation: "c", Causation: uuid.New()},
		"IDs, Entity, Correlation and Causation each lead to events: set one of them   ": {IDs: []uuid.UUID{uuid.New()}, Causation: uuid.New()},
		"Entity and Correlation must be UTF-8 without NUL ":                              {Entity: outbox.Entity{Type: "a", ID: "\xff"}},
		"Entity needs its Type and its ID ":                                              {Entity: outbox.Entity{ID: "1"}},
		"Entity needs its Type and its ID  ":                                             {Entity: outbox.Entity{Version: 1}},
	} {
		_, err := ops.Life(t.Context(), f, admin.Page{})
		require.EqualError(t, err, "list life: filter: "+strings.TrimSpace(want))
	}
	for _, f := range []admin.Filter{{Entity: order}, {Correlation: "c"}, {Causation: uuid.New()}} {
		_, err := ops.Replay(t.Context(), f, admin.Act{Who: "ann"})
		require.EqualError(t, err, "replay: filter: Entity, Correlation and Causation select events and not dead letters: pass the IDs of the events")
		_, err = ops.Discard(t.Context(), f, admin.Act{Who: "ann", Why: "because"})
		require.ErrorAs(t, err, new(*admin.ArgumentError))
	}
}
