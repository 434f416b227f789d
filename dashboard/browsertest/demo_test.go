package browsertest

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/dashboard"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

//go:embed testdata/seed.sql
var seedSQL string

//go:embed testdata/demo.sql
var demoSQL string

// demo is the database of the screenshots: a shop and a chat on an ordinary day.
func demo(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.Plain(t)
	pgtest.Execute(t, pool, seedSQL)
	// What the cursors of listeners have passed must be committed before they are made.
	events, rest, _ := strings.Cut(demoSQL, "-- listeners\n")
	pgtest.Execute(t, pool, events)
	pgtest.Execute(t, pool, rest)
	return pool
}

// freshen makes what is young as young as it was, because taking pictures takes time.
func freshen(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	pgtest.Execute(t, pool, `
		UPDATE outbox.processes SET seen_at = now() - interval '4 s';
		UPDATE outbox.events AS e SET created_at = now() - interval '340 ms' FROM outbox.queue AS q
		WHERE q.id = e.id AND q.attempts < 2 AND q.topic IN ('order_placed', 'payment_captured', 'turn_finalized');
		UPDATE outbox.limit_usage SET starts_at = ARRAY[now() - interval '23 s'] WHERE cardinality(starts) > 0;
		UPDATE outbox.log SET created_at = now() - interval '180 ms' WHERE seq > (SELECT max(seq) - 8 FROM outbox.log)`)
}

// serve serves a dashboard on the loopback address and returns its URL. Whoever opens it is called ada.
func serve(t testing.TB, cfg dashboard.Config) string {
	t.Helper()
	if cfg.Authorize == nil {
		cfg.Authorize = dashboard.Loopback("ada")
	}
	page, err := dashboard.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(page)
	t.Cleanup(func() {
		server.Close()
		page.Close()
	})
	return server.URL + cfg.Prefix
}

// maskDemo hides what the YAML of the demo would mark as sensitive.
func maskDemo(_ string, _ int, payload json.RawMessage) (json.RawMessage, bool) {
	var fields map[string]any
	if json.Unmarshal(payload, &fields) != nil {
		return nil, false
	}
	for _, name := range []string{"email", "ship_to"} {
		if _, ok := fields[name]; ok {
			fields[name] = "[masked]"
		}
	}
	masked, err := json.Marshal(fields)
	return masked, err == nil
}

// lastHour is a Prometheus that has the hour before the screenshots.
func lastHour(t testing.TB) string {
	t.Helper()
	wave := func(minute, level, swing, phase float64) float64 {
		noise := math.Sin(minute*2.7+phase)*0.35 + math.Sin(minute*0.83+phase*3)*0.65
		return math.Max(0, level+swing*noise)
	}
	burst := func(minute, at, high float64) float64 { return high * math.Exp(-(minute-at)*(minute-at)/18) }
	series := func(query string) map[string]func(float64) float64 {
		switch {
		case strings.Contains(query, "due_events"):
			return map[string]func(float64) float64{
				"orders/order_placed":      func(m float64) float64 { return wave(m, 4, 3, 1) + burst(m, 22, 140) },
				"orders/payment_captured":  func(m float64) float64 { return wave(m, 2, 2, 2) },
				"orders/invoice_requested": func(m float64) float64 { return wave(m, 1, 1, 3) },
				"billing/partner_webhook":  func(m float64) float64 { return math.Max(0, (m-38)*56) + wave(m, 6, 4, 4) },
				"mini_chat/turn_finalized": func(m float64) float64 { return wave(m, 12, 9, 5) + burst(m, 41, 60) },
				"mini_chat/usage_reported": func(m float64) float64 { return math.Max(0, (m-47)*27) },
				"mails/mail_due":           func(m float64) float64 { return wave(m, 3, 2, 6) + math.Min(240, math.Max(0, (m-56)*60)) },
			}
		case strings.Contains(query, "oldest_due"):
			return map[string]func(float64) float64{
				"mini_chat/turn_finalized": func(m float64) float64 { return wave(m, 0.4, 0.3, 1) + burst(m, 41, 2.2) },
				"billing/partner_webhook":  func(m float64) float64 { return math.Max(0.3, (m-38)*60) },
			}
		case strings.Contains(query, "enqueued_events"), strings.Contains(query, "settled_events"):
			return map[string]func(float64) float64{
				"orders/order_placed":        func(m float64) float64 { return wave(m, 7.4, 1.6, 1) + burst(m, 22, 9) },
				"mini_chat/turn_finalized":   func(m float64) float64 { return wave(m, 16.5, 3, 2) + burst(m, 41, 12) },
				"billing/partner_webhook":    func(m float64) float64 { return wave(m, 0.95, 0.2, 3) },
				"orders/order_changed":       func(m float64) float64 { return wave(m, 9, 2, 4) + burst(m, 22, 8) },
				"accounts/customer_changed":  func(m float64) float64 { return wave(m, 1.1, 0.5, 5) },
				"catalogue/article_imported": func(m float64) float64 { return burst(m, 12, 30) },
			}
		case strings.Contains(query, "unread"):
			return map[string]func(float64) float64{
				"search_index":    func(m float64) float64 { return wave(m, 5, 4, 1) + burst(m, 22, 90) },
				"warehouse":       func(m float64) float64 { return wave(m, 3, 3, 2) },
				"crm_sync":        func(m float64) float64 { return math.Max(0, (m-51)*540) + wave(m, 3, 2, 3) },
				"fraud_detection": func(m float64) float64 { return wave(m, 7, 3, 4) },
			}
		case strings.Contains(query, "listener_lag"):
			return map[string]func(float64) float64{
				"crm_sync":        func(m float64) float64 { return math.Max(0.2, (m-51)*60) },
				"fraud_detection": func(m float64) float64 { return wave(m, 0.6, 0.4, 2) + math.Max(0, (m-59.2)*58) },
			}
		case strings.Contains(query, `listener!=""`):
			return map[string]func(float64) float64{
				"search_index":    func(m float64) float64 { return 4 * math.Floor(m/39) },
				"fraud_detection": func(float64) float64 { return 0 },
			}
		case strings.Contains(query, "dead_letters"):
			return map[string]func(float64) float64{"orders/order_placed": func(m float64) float64 { return 3 }}
		}
		return nil
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query, result := r.FormValue("query"), []any{}
		label := "topic"
		if strings.Contains(query, "(listener)") {
			label = "listener"
		}
		for name, of := range series(query) {
			var values [][]any
			for at := time.Now().Add(-time.Hour); at.Before(time.Now()); at = at.Add(15 * time.Second) {
				minute := 60 - time.Since(at).Minutes()
				values = append(values, []any{at.Unix(), fmt.Sprint(math.Round(of(minute)*100) / 100)})
			}
			result = append(result, map[string]any{"metric": map[string]string{label: name}, "values": values})
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"status": "success", "data": map[string]any{"resultType": "matrix", "result": result}})
	}))
	t.Cleanup(server.Close)
	return server.URL
}
