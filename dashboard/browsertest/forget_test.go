package browsertest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/dashboard"
	"github.com/outboxgen/outboxgen/internal/testing/browser"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

const orderTenant = "8c1f0a52-5d7e-4d0a-9b36-2f4f6d1f2a01"

// seedOrder writes an order that has caused a payment, which has caused a mail and an invoice. It returns the events.
func seedOrder(t testing.TB, pool *pgxpool.Pool) (placed, paid, mail, invoice string) {
	t.Helper()
	event := func(topic, status, age, cause string, more map[string]any) string {
		headers := map[string]any{"correlation_id": "req_01J9ZK7W5D"}
		if cause != "" {
			headers["causation_id"] = cause
		}
		more["tenant"], more["headers"] = orderTenant, headers
		return pgtest.Value[string](t, pool, "SELECT seed.event('orders', $1, $2, $3::interval, $4)::text", topic, status, age, more)
	}
	order := func(version int) map[string]any {
		return map[string]any{"type": "order", "id": "4711", "version": version}
	}
	placed = event("order_placed", "delivered", "9 min", "", map[string]any{"entity": order(1), "dedupe": orderTenant + "/checkout-4711"})
	paid = event("payment_captured", "delivered", "8 min", placed, map[string]any{})
	mail = event("mail_due", "dead", "7 min", paid, map[string]any{"attempts": 5, "errors": []string{"smtp: 451 4.7.1 greylisted", "smtp: 550 5.1.1 mailbox unavailable"}})
	invoice = event("invoice_requested", "pending", "6 min", paid, map[string]any{"due": "17 min", "attempts": 2, "errors": []string{"template: unknown field"}})
	pgtest.Execute(t, pool, "SELECT seed.event('orders', 'order_changed', 'pending', '2 min', $1)", map[string]any{"tenant": orderTenant, "entity": order(2)})
	pgtest.Execute(t, pool, "INSERT INTO outbox.processed_events (consumer_group, event_id) VALUES ('billing', $1)", placed)
	pgtest.Execute(t, pool, `INSERT INTO outbox.entity_versions (consumer_group, source, tenant_id, entity_type, entity_id, version, event_id)
		VALUES ('billing', '/orders', $1, 'order', '4711', 1, $2)`, orderTenant, placed)
	pgtest.Execute(t, pool, `INSERT INTO outbox.audit (who, act, why, scope) VALUES ('grace', 'replay', 'the mail server was away', jsonb_build_object('ids', jsonb_build_array($1::text)))`, mail)
	return placed, paid, mail, invoice
}

// well requires that the page is accessible and does not scroll sideways: in light on a screen, and in dark on a phone.
func (tb *tab) well() {
	tb.T.Helper()
	tb.Look("light", 1280, 800)
	tb.narrow()
	tb.accessible("")
	tb.Look("dark", 375, 700)
	tb.narrow()
	tb.accessible(`, runOnly: ["color-contrast", "scrollable-region-focusable", "target-size", "link-in-text-block"]`)
	tb.Look("light", 1280, 800)
}

// TestForget has somebody look for an order, see what happened to it and forget it, with the keyboard alone.
func TestForget(t *testing.T) {
	t.Parallel()
	for _, withScript := range []bool{true, false} {
		t.Run(fmt.Sprintf("script %t", withScript), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			pgtest.Execute(t, pool, seedSQL)
			_, paid, _, _ := seedOrder(t, pool)
			tb := open(t, serve(t, dashboard.Config{Pool: pool, Prefix: "/ops", AuthorizeForget: anybody}))
			tb.Allow("status of 409")
			if !withScript {
				tb.NoScript()
			}
			well := func() {
				if withScript {
					tb.well()
				}
			}

			tb.visit("/")
			search := func(text string) {
				tb.tabTo(`header input[name="q"]`)
				tb.Press(text)
				tb.enter()
			}
			search("order/4712")
			require.Equal(t, "order/4712", value[string](tb, `document.querySelector("header input").value`))
			tb.untilText("The types here: order.")
			well()
			tb.visit("/")
			search(paid)
			require.Equal(t, "Event "+paid, tb.text("h1"))
			require.Equal(t, "orders/payment_captured", tb.text(`.tree a[aria-current="true"]`))
			search("req_01J9ZK7W5D")
			require.Equal(t, "What happened in the chain req_01J9ZK7W5D", tb.text("h1"))
			search("order/4711")
			require.Equal(t, "What happened to order/4711", tb.text("h1"))
			tree := strings.Join(strings.Fields(tb.text("#live .tree")), " ")
			require.Regexp(t, `^\S+ \S+ orders/order_placed delivered .* consumer billing: .* orders/payment_captured .* orders/mail_due dead .* replay by grace .* orders/invoice_requested pending .* orders/order_changed pending`, tree)
			require.Equal(t, 2, value[int](tb, `document.querySelectorAll("#live > .tree > li").length`))
			require.Equal(t, 2, value[int](tb, `document.querySelectorAll(".tree .tree .tree > li").length`))
			well()

			tb.tabTo(`form[action="/ops/forget"] button`)
			tb.enter()
			require.Contains(t, tb.text(".preview"), "Forget entity order/4711: 5 rows.")
			require.Contains(t, tb.text(".stale"), "1 event is not delivered yet.")
			require.Zero(t, value[int](tb, `document.querySelectorAll('input[name="count"]').length`))
			well()
			tb.tabTo(`input[name="undelivered"]`)
			tb.Press(" ")
			tb.tabTo(`main button`)
			tb.enter()
			well()
			confirm := func(count string) {
				tb.tabTo(`input[name="count"]`)
				tb.Press(count)
				tb.tabTo(`button.danger`)
				tb.enter()
			}
			tb.tabTo(`input[name="why"]`)
			tb.Press("ticket 812")
			confirm("12")
			require.Equal(t, "Nothing was changed: you have typed 12, and there are 5 rows now.", tb.text(`[role="alert"]`))
			require.Equal(t, 5, pgtest.Count(t, pool, "SELECT count(*)::int FROM outbox.events"))
			well()
			confirm("5")
			require.Equal(t, "Forgotten: 5 rows were deleted, 2 of them events. Their dedupe keys are free again.", tb.text(".done"))
			require.NotContains(t, value[string](tb, "location.href"), "4711")
			require.Equal(t, 3, pgtest.Count(t, pool, "SELECT count(*)::int FROM outbox.events"))
			require.Equal(t, "ada forget ticket 812 2", lastAudit(t, pool))
			well()
		})
	}
}

// TestForgetShowsTexts that somebody outside has written, as texts.
func TestForgetShowsTexts(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	pgtest.Execute(t, pool, seedSQL)
	kind := strings.ReplaceAll(script, "/", "")
	pgtest.Execute(t, pool, "SELECT seed.event($1, $2, 'pending', '1 min', $3)", imageText, longText[:200], map[string]any{"tenant": orderTenant, "entity": map[string]any{"type": kind, "id": imageText + noNUL + longText[:300], "version": 1}})
	pgtest.Execute(t, pool, "INSERT INTO outbox.audit (who, act, why, scope, busy_until) VALUES ($1, 'replay', $1, '{}', now() + interval '1 h')", imageText+longText[:200])
	tb := open(t, serve(t, dashboard.Config{Pool: pool, AuthorizeForget: anybody}))
	tb.Allow("status of 40")
	forget := func(entity string) {
		tb.visit("/forget")
		value[bool](tb, fmt.Sprintf(`document.querySelector('main input[name="entity"]').value = %s, true`, browser.Quoted(entity)))
		tb.follow("main button")
	}
	forget(kind + "/" + imageText + noNUL + longText[:300])
	tb.untilText("A replay of " + imageText)
	tb.well()
	forget(script + "x/" + imageText)
	tb.untilText("no event has an entity of the type")
	require.Equal(t, script+"x/"+imageText, value[string](tb, `document.querySelector('main input[name="entity"]').value`))
	tb.well()
	require.Zero(t, value[int](tb, `document.querySelectorAll("img, main script, [onfocus]").length`), "elements that came from data")
}

// TestForgetProcess takes a process that is gone from the overview.
func TestForgetProcess(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	pgtest.Execute(t, pool, seedSQL)
	pgtest.Execute(t, pool, "SELECT seed.process('listener', $1, $1, 1, '{}', '3 days', '3 h')", imageText)
	pgtest.Execute(t, pool, "SELECT seed.process('dispatcher', 'jobs', 'worker', 1, '{}', '3 days', '1 s')")
	tb := open(t, serve(t, dashboard.Config{Pool: pool}))
	tb.visit("/")
	require.Equal(t, "Forgotten. A process that still runs comes back with its next beat.", tb.act("Forget…", "why", "scrapped"))
	require.Equal(t, "jobs", pgtest.Value[string](t, pool, "SELECT string_agg(name, ' ') FROM outbox.processes"))
	require.Equal(t, "ada forget-process scrapped 0", lastAudit(t, pool))
	tb.Until(`!Array.from(document.querySelectorAll("main a")).some(function (a) { return a.innerText === "Forget…"; })`)
}
