package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/outboxgen/outboxgen/bench/events"
	"github.com/outboxgen/outboxgen/dashboard"
)

// pages measures how long the pages of the dashboard take.
func pages(history int) workload {
	const loads = 5
	delivered, pending := 10*history, history
	run := func(ctx context.Context, db *database) (float64, error) {
		if err := addStatus(ctx, db, 0, pending, false); err != nil {
			return 0, err
		}
		if err := addDelivered(ctx, db, delivered); err != nil {
			return 0, err
		}
		page, err := dashboard.New(dashboard.Config{Pool: db.pool, Mask: dashboard.Unmasked})
		if err != nil {
			return 0, err
		}
		defer page.Close()
		server := httptest.NewServer(page)
		defer server.Close()
		var id string
		if err := db.pool.QueryRow(ctx, "SELECT id::text FROM outbox.delivered LIMIT 1").Scan(&id); err != nil {
			return 0, err
		}
		topic := events.OrderPaidTopic.Untyped().Spec()
		name := topic.Namespace + "/" + topic.Name
		slowest := 0.0
		for _, path := range []string{"/", "/topics/" + name, "/events", "/events?status=delivered&topic=" + name, "/events/" + id, "/dead", "/listeners", "/limits", "/audit"} {
			if _, err := load(ctx, server.URL+path); err != nil { // the first overview is read meanwhile
				return 0, err
			}
			var times []float64
			for range loads {
				took, err := load(ctx, server.URL+path)
				if err != nil {
					return 0, err
				}
				times = append(times, took.Seconds())
			}
			slowest = max(slowest, median(times))
		}
		return slowest, nil
	}
	return workload{
		name: "dashboard", title: fmt.Sprintf("pages of the dashboard with %d delivered and %d pending events", delivered, pending), unit: "s",
		about:        fmt.Sprintf("The slowest page: the median of %d loads of each, after the first overview was read. Viewers see the latest overview, while the next one is read.", loads),
		lessIsBetter: true, once: history >= 1_000_000,
		contenders: []contender{{"slowest page", run}},
		targets:    []target{{of: "slowest page", atMost: 0.1}},
	}
}

// load gets a page.
func load(ctx context.Context, url string) (time.Duration, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return 0, err
	}
	if resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("get %s: %s", url, resp.Status)
	}
	return time.Since(began), nil
}

// addDelivered inserts delivered events with their rows in events.
func addDelivered(ctx context.Context, db *database, n int) error {
	spec := events.OrderPaidTopic.Untyped().Spec()
	if _, err := db.pool.Exec(ctx, `WITH e AS (
			INSERT INTO outbox.events (id, namespace, topic, payload, created_at)
			SELECT (substr(h, 1, 8) || '-' || substr(h, 9, 4) || '-7' || substr(gen_random_uuid()::text, 16))::uuid, $1, $2, '{"seq": 1}', c
			FROM generate_series(1, $3::int) AS n,
				LATERAL (SELECT now() - interval '5 hours' + n * interval '1 ms' AS c) AS t,
				LATERAL (SELECT lpad(to_hex((extract(epoch FROM c) * 1000)::bigint), 12, '0') AS h) AS u
			RETURNING id, created_at)
		INSERT INTO outbox.delivered (id, namespace, topic, attempts, claim_no, finalized_at)
		SELECT id, $1, $2, 1, 1, created_at + interval '5 ms' FROM e`, spec.Namespace, spec.Name, n); err != nil {
		return err
	}
	if err := db.vacuum(ctx); err != nil {
		return err
	}
	return db.settle(ctx)
}
