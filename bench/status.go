package main

import (
	"context"
	"fmt"
	"time"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/bench/events"
)

// status measures the call behind `outboxgen status`.
func status(history int) workload {
	const calls = 5
	delivered, pending := 10*history, history
	run := func(retrying bool) func(context.Context, *database) (float64, error) {
		return func(ctx context.Context, db *database) (float64, error) {
			if err := addStatus(ctx, db, delivered, pending, retrying); err != nil {
				return 0, err
			}
			a, err := admin.New(db.pool, "outbox")
			if err != nil {
				return 0, err
			}
			var times []float64
			for range calls {
				started := time.Now()
				topics, err := a.Topics(ctx)
				if err != nil {
					return 0, err
				}
				times = append(times, time.Since(started).Seconds())
				if len(topics) != 1 || topics[0].Oldest < time.Hour/2 || topics[0].Due.N != int64(min(pending, admin.CountLimit)) {
					return 0, fmt.Errorf("unexpected status: %+v", topics)
				}
			}
			return median(times), nil
		}
	}
	return workload{
		name: "status", title: fmt.Sprintf("admin.Topics with %d delivered and %d pending events", delivered, pending), unit: "s",
		about:        fmt.Sprintf("Median of %d calls. The pending events are due. They wait for their first attempt, or all of them for a retry.", calls),
		lessIsBetter: true, once: history >= 1_000_000,
		contenders: []contender{{"Topics, first attempts", run(false)}, {"Topics, retries", run(true)}},
		targets:    []target{{of: "Topics, first attempts", atMost: 1}, {of: "Topics, retries", atMost: 1}},
	}
}

// addStatus inserts the events. Those that were delivered have no row in events, which Topics does not read of them.
func addStatus(ctx context.Context, db *database, delivered, pending int, retrying bool) error {
	spec := events.OrderPaidTopic.Untyped().Spec()
	if _, err := db.pool.Exec(ctx, `INSERT INTO outbox.delivered (id, namespace, topic, attempts, claim_no, finalized_at)
		SELECT gen_random_uuid(), $1, $2, 1, 1, now() - ($3::int - n) * interval '1 ms' FROM generate_series(1, $3::int) AS n`,
		spec.Namespace, spec.Name, delivered); err != nil {
		return err
	}
	attempts := 0
	if retrying {
		attempts = 1
	}
	if _, err := db.pool.Exec(ctx, `WITH e AS (
			INSERT INTO outbox.events (id, namespace, topic, payload, created_at)
			SELECT (substr(h, 1, 8) || '-' || substr(h, 9, 4) || '-7' || substr(gen_random_uuid()::text, 16))::uuid, $1, $2, '{"seq": 1}', c
			FROM generate_series(1, $3::int) AS n,
				LATERAL (SELECT now() - interval '1 hour' + n * interval '1 ms' AS c) AS t,
				LATERAL (SELECT lpad(to_hex((extract(epoch FROM c) * 1000)::bigint), 12, '0') AS h) AS u
			RETURNING id, created_at)
		INSERT INTO outbox.queue (id, namespace, topic, lane, next_attempt_at, attempts, claim_no)
		SELECT id, $1, $2, $4::integer, created_at, $5::int, $5::int FROM e`,
		spec.Namespace, spec.Name, pending, laneOf(events.OrderPaidTopic.Untyped()), attempts); err != nil {
		return err
	}
	if err := db.vacuum(ctx); err != nil {
		return err
	}
	return db.settle(ctx)
}
