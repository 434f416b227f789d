package browsertest

import (
	"context"
	"encoding/json"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// Texts that a page must not take for its own, and that must not widen it.
const (
	script    = `<script>alert(1)</script></pre></textarea></title>`
	imageText = `"><img src=x onerror=alert(2)>' onfocus='alert(3)' autofocus='`
	bidi      = "\u202egnp.exe\u2066 \u200b\u0301\u0301\u0301 \u0000"
	lines     = "first line of the error " + script + "\n\tat <svg onload=alert(4)>\n\tat line three\n{{.}} ${alert(5)}"
)

// noNUL is bidi as PostgreSQL can hold it.
var noNUL = strings.ReplaceAll(bidi, "\u0000", "")

var longText = strings.Repeat("an_identifier_without_any_place_to_break_", 11)

// world is a database in which every kind of row is there, and in which all that somebody outside can write is hostile.
type world struct {
	pool  *pgxpool.Pool
	pages []string
}

var pingTopic = outbox.NewTopic[struct{}](outbox.TopicSpec{Namespace: "live", Name: "ping", Version: 1})

func newWorld(t testing.TB) *world {
	t.Helper()
	pool := pgtest.Database(t)
	pgtest.Execute(t, pool, seedSQL)
	w := &world{pool: pool}
	event := func(topic, status, age string, more map[string]any) {
		id := pgtest.Value[string](t, pool, "SELECT seed.event('jobs', $1, $2, $3::interval, $4)::text", topic, status, age, more)
		w.pages = append(w.pages, "/events/"+id)
	}
	tenant := "8c1f0a52-5d7e-4d0a-9b36-2f4f6d1f2a01"
	headers := map[string]any{script: imageText, "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", longText[:120]: longText, "empty": ""}
	payload := map[string]any{script: imageText, "bidi": noNUL, "nothing": nil, "empty": "", "long": longText, "list": []any{1, nil, lines}}
	event("due", "pending", "5 min", nil)
	event("retrying", "pending", "9 min", map[string]any{"due": "20 min", "attempts": 7, "errors": []string{lines, longText, imageText}, "headers": headers, "payload": payload})
	event("scheduled", "pending", "1 min", map[string]any{"due": "3 days"})
	event("in_flight", "processing", "2 s", map[string]any{"tenant": tenant, "dedupe": tenant + "/" + longText[:400], "partition": imageText, "entity": map[string]any{"type": script, "id": noNUL, "version": 3}})
	event("expired", "processing", "2 min", map[string]any{"lease": "-1 s"})
	event("done", "delivered", "7 min", map[string]any{"attempts": 3, "errors": []string{"refused", "refused"}})
	event("broken", "dead", "3 h", map[string]any{"attempts": 25, "errors": []string{imageText, lines}, "headers": headers, "payload": payload, "partition": noNUL + longText[:300]})
	event("broken", "dead", "2 h", map[string]any{"errors": []string{longText}})
	event("unhandled", "pending", "1 h", nil)
	event("paused", "pending", "1 h", nil)
	event("resting", "pending", "1 h", nil)
	for _, topic := range []string{"due", "retrying", "broken", "paused", "resting", "unhandled"} {
		w.pages = append(w.pages, "/topics/jobs/"+topic)
	}
	pgtest.Execute(t, pool, "SELECT seed.event($1, $2, 'pending', '1 min')", imageText+"/", script)
	w.pages = append(w.pages, "/topics/"+url.PathEscape(imageText+"/")+"/"+url.PathEscape(script))
	pgtest.Execute(t, pool, `SELECT seed.process('dispatcher', 'jobs', $1, 4711, (SELECT jsonb_object_agg('jobs/' || t, 2) FROM
		unnest(ARRAY['due', 'retrying', 'scheduled', 'in_flight', 'expired', 'broken', 'paused', 'resting']) AS t), '3 days', '1 s', jsonb_build_object('jobs/resting', $2::text))`, script+longText[:80], lines)
	pgtest.Execute(t, pool, "SELECT seed.process('listener', 'gone', 'elsewhere', 1, '{}', '3 days', '3 h')")
	pgtest.Execute(t, pool, "INSERT INTO outbox.pauses (namespace, topic, who, why) VALUES ('jobs', 'paused', $1, $2)", imageText, lines)
	pgtest.Execute(t, pool, "INSERT INTO outbox.pauses (tenant_id, who, until) VALUES ($1, 'ada', now() + interval '2 h')", tenant)
	pgtest.Execute(t, pool, `INSERT INTO outbox.audit (who, act, why, scope, events) SELECT $1, 'discard', $2, jsonb_build_object('error', $3::text), n FROM generate_series(1, 60) AS n`, imageText, lines, script+longText)

	// A listener whose failed keys wait, one that an event blocks, and one with a dead letter and a hostile name.
	listen := func(name string, spec listener.Spec, fail ...string) *listener.Listener {
		h := runtimetest.NewNotes()
		h.Fail = runtimetest.FailFor(fail...)
		spec.Name = name
		return runtimetest.ListenTo(t, pool, spec, listener.Config{}, h)
	}
	parking := listen("parking", listener.Spec{ParkKeys: true, Shards: 3}, "b")
	blocked := listen("blocked", listener.Spec{}, "a")
	evil := listen("evil", listener.Spec{Retry: outbox.Retry{MaxAttempts: 1}}, "c")
	runtimetest.PutAll(t, pool, "a1", "b1", "b2", "c1", "a2")
	runtimetest.DrainAll(t, parking)
	runtimetest.DrainAll(t, blocked)
	runtimetest.DrainAll(t, evil)
	name := script + "/" + imageText
	for _, table := range []string{"listeners", "dead_letters", "listener_failures"} {
		pgtest.Execute(t, pool, "UPDATE outbox."+table+" SET listener = $1 WHERE listener = 'evil'", name)
	}
	pgtest.Execute(t, pool, "UPDATE outbox.listeners SET last_error = $1 WHERE last_error IS NOT NULL", lines)
	pgtest.Execute(t, pool, "UPDATE outbox.parked SET last_error = $1 WHERE last_error IS NOT NULL", lines)
	for _, event := range []string{"a1", "b1", "b2", "c1"} {
		w.pages = append(w.pages, "/events/"+runtimetest.IDOf(t, pool, event).String())
	}
	w.pages = append(w.pages, "/listeners/parking", "/listeners/blocked", "/listeners/"+url.PathEscape(name), "/topics/test/said")

	// Consumers: one with dead letters and a parked message, one with parked messages only, one whose messages nobody tries, and one with a hostile name.
	kept := func(consumer, status, age, err string, more map[string]any) {
		no := pgtest.Value[string](t, pool, "SELECT seed.kept($1, $2, $3::interval, $4, $5)::text", consumer, status, age, err, more)
		w.pages = append(w.pages, "/consumers/"+url.PathEscape(consumer)+"/"+no)
	}
	body, _ := json.Marshal(payload)
	id := "01a209cb-419f-7d97-84b3-7cec91e1a5cc"
	kept("cards", "dead", "3 h", "no such tenant", map[string]any{"id": id, "tenant": tenant, "key": "user 7", "headers": headers, "body": string(body)})
	kept("cards", "dead", "2 h", lines, map[string]any{"key": noNUL + longText[:300], "body": "no JSON"})
	kept("cards", "parked", "1 min", "no such card", map[string]any{"key": "user 8", "due": "9 min"})
	kept("mail", "parked", "9 min", "mailbox is full", map[string]any{"id": id, "tenant": tenant, "key": imageText, "due": "9 min", "headers": headers, "body": string(body)})
	kept("mail", "parked", "8 min", "it waits behind an earlier message of its key", map[string]any{"key": imageText, "attempts": 0})
	kept("mail", "parked", "1 d", longText, map[string]any{"due": "3 days"})
	kept("late", "parked", "3 d", "timeout", map[string]any{"due": "-3 h"})
	kept(name, "dead", "1 h", imageText, map[string]any{"id": id})
	kept(name, "parked", "1 h", imageText, map[string]any{"due": "1 h"})
	w.pages = append(w.pages, "/consumers", "/consumers/cards", "/consumers/cards?error=tenant", "/consumers/mail", "/consumers/late", "/consumers/nobody", "/consumers/"+url.PathEscape(name),
		"/acts/replay?consumer=cards", "/acts/discard?consumer=cards&id="+id, "/acts/discard?consumer="+url.QueryEscape(name))

	// Limits: keys that a rate holds back, with hostile names, and one that somebody has set.
	limited := runtimetest.LimitedJobs("limited", outbox.Limit{Concurrency: 20},
		outbox.Limit{Per: "{secret}", Concurrency: 2, Rate: outbox.Rate{Events: 1, Period: time.Hour}})
	for _, key := range []string{imageText, script, noNUL, longText, "mailbox 7"} {
		runtimetest.EnqueueJobs(t, pool, limited, runtimetest.Job{TenantID: uuid.UUID{1}, Secret: key}, runtimetest.Job{TenantID: uuid.UUID{1}, N: 1, Secret: key})
	}
	require.Equal(t, 5, delivers(t, runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(limited, runtimetest.Succeed))))
	pgtest.Execute(t, pool, "UPDATE outbox.limits SET set_concurrency = 4, set_until = now() + interval '2 h', set_at = now(), set_by = $1 WHERE per = '{secret}'", imageText)
	change := "topic=jobs/limited&per=" + url.QueryEscape("{secret}")
	w.pages = append(w.pages, "/limits", "/limits?topic=jobs/limited", "/limits?topic=jobs/none", "/topics/jobs/limited", "/acts/limit?"+change, "/acts/limit?concurrency=3&"+change,
		"/acts/limit-reset?"+change)

	// What runs in this process.
	runListener(t, listen("running", listener.Spec{}))
	runDispatcher(t, pool)

	// A chain that goes deep, and an entity with hostile names.
	kind := strings.ReplaceAll(script, "/", "")
	pgtest.Execute(t, pool, `WITH RECURSIVE c AS (
			SELECT 1 AS n, gen_random_uuid() AS id, NULL::uuid AS by
			UNION ALL SELECT c.n + 1, gen_random_uuid(), c.id FROM c WHERE c.n < 12
		) INSERT INTO outbox.events (id, namespace, topic, payload, entity_type, entity_id, entity_version, headers, created_at)
		SELECT id, 'jobs', 'due', '{}', $1, $2, n, jsonb_build_object('correlation_id', 'deep', 'causation_id', by), now() + n * interval '1 ms' FROM c`, kind, longText[:400])
	w.pages = append(w.pages, "/life?correlation=deep", "/life?entity="+url.QueryEscape(kind+"/"+longText[:400]), "/life?entity="+url.QueryEscape(script+"/"+noNUL), "/search", "/search?q=a/"+longText, "/search?q=deep")
	pgtest.Execute(t, pool, `SELECT seed.event('jobs', 'due', 'pending', '1 min', '{"dedupe": "deep"}')`) // so that the text names two things
	w.pages = append(w.pages, "/events/"+pgtest.Value[string](t, pool, "SELECT id::text FROM outbox.events WHERE headers ->> 'correlation_id' = 'deep' AND entity_version = 5"))

	gone := pgtest.Value[string](t, pool, "SELECT worker_id::text FROM outbox.processes WHERE name = 'gone'")
	w.pages = append(w.pages, "/acts/forget-process?process="+gone, "/forget", "/enqueue", "/enqueue/catalog/required", "/enqueue/catalog/optional", "/enqueue/catalog/hostile")
	w.pages = append(w.pages, "/", "/events", "/events?status=dead", "/events?topic=jobs/nothing", "/dead", "/dead?error=refused", "/listeners", "/doctor", "/audit", "/audit?who=nobody",
		"/acts/replay?topic=jobs/broken", "/acts/discard?topic=jobs/broken", "/acts/pause?topic=jobs/due", "/acts/resume?topic=jobs/paused", "/acts/resume?topic=jobs/due",
		"/acts/skip?listener=blocked", "/acts/rewind?listener=blocked", "/acts/rewind?listener=blocked&to=earliest", "/acts/detach?listener="+url.QueryEscape(name))
	return w
}

// runDispatcher runs a dispatcher of live/ping until the test ends.
func runDispatcher(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	handle := func(context.Context, outbox.Delivery[struct{}]) error { return nil }
	d, err := queue.NewDispatcher(pool, queue.Config{Logger: runtimetest.DiscardLogger()}, queue.Handle(pingTopic, t, handle))
	require.NoError(t, err)
	runs(t, d.Run)
	pgtest.Settles(t, pool, 1, "SELECT count(*)::int FROM outbox.processes WHERE kind = 'dispatcher' AND name = 'live'")
}

func runListener(t testing.TB, l *listener.Listener) {
	t.Helper()
	runs(t, l.Run)
}

func runs(t testing.TB, run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-over)
	})
}
