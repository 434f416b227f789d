package dashboard_test

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/dashboard"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

const (
	placedID = "00000000-0000-7000-8000-000000000001"
	mailedID = "00000000-0000-7000-8000-000000000002"
	tenantID = "00000000-0000-4000-8000-00000000000a"
)

// ordered is a database with an order whose event has caused a mail, which is dead.
func ordered(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.Database(t)
	pgtest.Execute(t, pool, `INSERT INTO outbox.events (id, namespace, topic, payload, tenant_id, dedupe_key, entity_type, entity_id, entity_version, headers, created_at) VALUES
		('`+placedID+`', 'shop', 'placed', '{}', '`+tenantID+`', '`+tenantID+`/k1', 'order', '4711', 1, '{"correlation_id": "request 7"}', '2026-05-01T12:00:00Z'),
		('`+mailedID+`', 'shop', 'mailed', '{}', NULL, 'twice', NULL, NULL, NULL, '{"causation_id": "`+placedID+`", "correlation_id": "request 7"}', '2026-05-01T12:00:01Z'),
		('00000000-0000-7000-8000-000000000003', 'shop', 'mailed', '{}', NULL, 'once', NULL, NULL, NULL, '{"correlation_id": "twice", "causation_id": "gone"}', '2026-05-01T12:00:02Z')`)
	pgtest.Execute(t, pool, `INSERT INTO outbox.queue (id, namespace, topic, tenant_id) VALUES ('`+placedID+`', 'shop', 'placed', '`+tenantID+`'), ('00000000-0000-7000-8000-000000000003', 'shop', 'mailed', NULL)`)
	pgtest.Execute(t, pool, `INSERT INTO outbox.dead_letters (id, namespace, topic, version, payload, created_at, attempts, error) VALUES ('`+mailedID+`', 'shop', 'mailed', 1, '{}', '2026-05-01T12:00:01Z', 3, 'no server')`)
	pgtest.Execute(t, pool, `INSERT INTO outbox.processed_events (consumer_group, event_id) VALUES ('billing', '`+placedID+`')`)
	pgtest.Execute(t, pool, `INSERT INTO outbox.entity_versions (consumer_group, source, tenant_id, entity_type, entity_id, version, event_id) VALUES ('billing', '/shop', '`+tenantID+`', 'order', '4711', 1, '`+placedID+`')`)
	pgtest.Execute(t, pool, `INSERT INTO outbox.audit (who, act, why, scope) VALUES ('ann', 'replay', 'the server was away', '{"ids": ["`+mailedID+`"]}')`)
	return pool
}

var tags = regexp.MustCompile(`<[^>]*>`)

// textOf is what a page says, without its markup.
func textOf(source string) string {
	return strings.Join(strings.Fields(tags.ReplaceAllString(source, " ")), " ")
}

// TestLifePage shows an entity, and what it has caused below it.
func TestLifePage(t *testing.T) {
	t.Parallel()
	s := open(t, dashboard.Config{Pool: ordered(t), Prefix: "/ops"})
	for _, query := range []string{"entity=order/4711", "correlation=request+7", "key=" + tenantID + "/k1", "tenant=" + tenantID} {
		source := s.ok("/life?" + query)
		text := textOf(source)
		require.Regexp(t, `2026-05-01 12:00:00 shop/placed pending order/4711 version 1 consumer billing: handled at [0-9: -]+ 2026-05-01 12:00:01 shop/mailed dead attempts: 3 last error: no server replay by ann at [0-9: -]+: the server was away`, text, query)
		require.Contains(t, source, `href="/ops/events/`+mailedID+`"`)
		require.Equal(t, strings.HasPrefix(query, "entity"), strings.Contains(text, "Versions of consumers"))
	}
	require.Contains(t, textOf(s.ok("/life?key=once")), "caused by gone, which is not here")
	require.Contains(t, textOf(s.ok("/life?entity=order/0")), "No event matches")
	list := s.ok("/events?entity=order/4711")
	require.Contains(t, list, placedID)
	require.NotContains(t, list, mailedID)

	event := textOf(s.ok("/events/" + mailedID))
	require.Contains(t, event, "What operators did replay by ann at ")
	require.Contains(t, event, "What has caused what 2026-05-01 12:00:00 shop/placed pending")
	require.Contains(t, textOf(s.ok("/events/"+placedID)), "At the consumers of this database consumer billing: handled at ")
	require.Contains(t, s.ok("/events/"+placedID), `href="/ops/life?entity=order/4711"`)

	for _, path := range []string{"/life?entity=order", "/events?entity=/1", "/life?entity=a/b&correlation=c", "/life?tenant=me"} {
		require.Equal(t, http.StatusBadRequest, s.get(path).status, path)
	}
}

// TestSearch: one box leads to whatever an id names.
func TestSearch(t *testing.T) {
	t.Parallel()
	s := open(t, dashboard.Config{Pool: ordered(t), Prefix: "/ops"})
	require.Contains(t, s.ok("/"), `action="/ops/search"`)
	for text, want := range map[string]string{
		placedID: "/events/" + placedID, " order/4711 ": "/life?entity=order%2F4711", tenantID + "/k1": "/life?key=" + tenantID + "%2Fk1",
		"request 7": "/life?correlation=request+7", tenantID: "/events?tenant=" + tenantID, "shop/placed": "/topics/shop/placed",
	} {
		a := s.get("/search?q=" + url.QueryEscape(text))
		require.Equal(t, http.StatusOK, a.status, text)
		require.Equal(t, want, a.url, text)
	}
	require.Contains(t, textOf(s.ok("/search?q=twice")), "twice names more than one thing: The key The correlation")
	require.Contains(t, textOf(s.ok("/search?q=ordr/4711")), "Nothing found")
	require.Contains(t, textOf(s.ok("/search?q=ordr/4711")), "The types here: order.")
	require.Contains(t, textOf(s.ok("/search")), "Search for any id")
}
