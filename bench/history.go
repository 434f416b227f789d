package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/bench/events"
	"github.com/outboxgen/outboxgen/queue"
)

// history compares the time of a claim of 100 with a long history and with an empty table: alone, and as part of a
// dispatcher's work on a backlog.
func history(history int) workload {
	const batches, size = 50, 100
	fill := func(ctx context.Context, db *database, n int) error { // without VACUUM, which would remove the dead tuples
		if err := enqueueAll(ctx, db, n, order, events.EnqueueOrderPaidMany); err != nil {
			return err
		}
		return db.settle(ctx)
	}
	alone := func(ctx context.Context, db *database) (float64, error) {
		if err := fill(ctx, db, batches*size); err != nil {
			return 0, err
		}
		s, err := queue.NewStore(db.pool, queue.StoreConfig{Schema: "outbox", Namespace: "bench", WorkerID: uuid.New()})
		if err != nil {
			return 0, err
		}
		times := make([]float64, 0, batches)
		for range batches {
			started := time.Now()
			claimed, err := s.Claim(ctx, queue.ClaimConfig{BatchSize: size})
			if err != nil {
				return 0, err
			}
			times = append(times, float64(time.Since(started))/float64(time.Millisecond))
			if len(claimed) != size {
				return 0, fmt.Errorf("%d events claimed, want %d", len(claimed), size)
			}
			if _, err := s.Ack(ctx, claimed...); err != nil {
				return 0, err
			}
		}
		return median(times), nil
	}
	dispatched := func(ctx context.Context, db *database) (float64, error) {
		const n = 200 * size
		if err := fill(ctx, db, n); err != nil {
			return 0, err
		}
		t := newTally(n)
		d, err := events.NewBenchDispatcher(db.pool, &events.BenchHandler{Work: func(_ context.Context, seq int64) { t.add(seq) }},
			queue.Config{BatchSize: size, PruneInterval: -1, Logger: quiet})
		if err != nil {
			return 0, err
		}
		took, err := runDispatcher(ctx, t, d.Run)
		return float64(took) / float64(time.Millisecond) / (n / size), err
	}
	withHistory := func(run func(context.Context, *database) (float64, error)) func(context.Context, *database) (float64, error) {
		return func(ctx context.Context, db *database) (float64, error) {
			if err := addHistory(ctx, db, history); err != nil {
				return 0, err
			}
			return run(ctx, db)
		}
	}
	return workload{
		name: "history", title: fmt.Sprintf("claim of %d with %d delivered events", size, history), unit: "ms",
		about: fmt.Sprintf("The table also has %d events scheduled ahead, %d dead tuples at the head of the queue, and %d events in flight. "+
			"The dispatcher's figure is the time per %d events of a backlog: claimed, handled and acked.",
			history/10, history/100, history/1000, size),
		lessIsBetter: true, once: history > 1_000_000,
		contenders: []contender{
			{"Claim, empty table", alone},
			{"Claim, long history", withHistory(alone)},
			{"dispatcher, empty table", dispatched},
			{"dispatcher, long history", withHistory(dispatched)},
		},
		targets: []target{
			{of: "Claim, long history", to: "Claim, empty table", atMost: 1.5},
			{of: "dispatcher, long history", to: "dispatcher, empty table", atMost: 1.5},
		},
	}
}

// rows are rows that a situation has in the tables, all of one topic: n events and a row of state per event.
type rows struct {
	n                int
	namespace, topic string
	tenant           uuid.NullUUID
	lane             int32
	turn             string // "" means none
	due, lockedUntil string // SQL of the queue row; lockedUntil is "NULL" for a pending event
	delivered        bool
}

func (r rows) insert(ctx context.Context, db *database) error {
	state := fmt.Sprintf(`INSERT INTO outbox.queue (id, namespace, topic, tenant_id, lane, turn, next_attempt_at, locked_until, locked_by, attempts, claim_no)
		SELECT id, namespace, topic, tenant_id, %[1]d, nullif('%[5]s', ''), %[2]s, %[3]s,
			CASE WHEN (%[3]s)::timestamptz IS NOT NULL THEN '%[4]s'::uuid END, ((%[3]s)::timestamptz IS NOT NULL)::int, ((%[3]s)::timestamptz IS NOT NULL)::int
		FROM e`, r.lane, r.due, cmp.Or(r.lockedUntil, "NULL"), uuid.New(), r.turn)
	if r.delivered {
		state = `INSERT INTO outbox.delivered (id, namespace, topic, attempts, claim_no, finalized_at)
			SELECT id, namespace, topic, 1, 1, now() - interval '1 hour' FROM e`
	}
	_, err := db.pool.Exec(ctx, `WITH e AS (
			INSERT INTO outbox.events (namespace, topic, tenant_id, dedupe_key, payload, created_at)
			SELECT $1, $2, $3::uuid, coalesce($3::uuid::text || '/', '') || gen_random_uuid(), jsonb_build_object('seq', 1, 'note', $4::text),
				now() - interval '1 day'
			FROM generate_series(1, $5)
			RETURNING id, namespace, topic, tenant_id)
		`+state, r.namespace, r.topic, r.tenant, note, r.n)
	return err
}

func (db *database) vacuum(ctx context.Context) error {
	_, err := db.pool.Exec(ctx, "VACUUM ANALYZE outbox.events, outbox.queue, outbox.delivered, outbox.log")
	return err
}

func addHistory(ctx context.Context, db *database, history int) error {
	spec := events.OrderPaidTopic.Untyped().Spec()
	of := func(n int, due string) rows {
		return rows{n: n, namespace: spec.Namespace, topic: spec.Name, lane: laneOf(events.OrderPaidTopic.Untyped()), due: due}
	}
	done, inFlight := of(history, ""), of(history/1000, "now() - interval '1 minute'")
	done.delivered, inFlight.lockedUntil = true, "now() + interval '1 hour'"
	for _, r := range []rows{done, of(history/10, "now() + interval '1 day'"), inFlight} {
		if err := r.insert(ctx, db); err != nil {
			return err
		}
	}
	if err := db.vacuum(ctx); err != nil {
		return err
	}
	// Dead tuples at the place that a claim reads first: rows that were due long ago and are deleted.
	if _, err := db.pool.Exec(ctx, "ALTER TABLE outbox.queue SET (autovacuum_enabled = off)"); err != nil {
		return err
	}
	if err := of(history/100, "now() - interval '2 days'").insert(ctx, db); err != nil {
		return err
	}
	_, err := db.pool.Exec(ctx, "DELETE FROM outbox.queue WHERE next_attempt_at < now() - interval '1 day'")
	return err
}

// allocations measures the allocations of an enqueue, hand-written and generated, in one transaction and one goroutine.
func allocations() workload {
	const n = 5000
	count := func(enqueue func(ctx context.Context, tx pgx.Tx, seq int) error) func(context.Context, *database) (float64, error) {
		return func(ctx context.Context, db *database) (figure float64, err error) {
			err = pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
				for seq := range 100 {
					if err := enqueue(ctx, tx, seq); err != nil {
						return err
					}
				}
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				for seq := range n {
					if err := enqueue(ctx, tx, seq); err != nil {
						return err
					}
				}
				runtime.ReadMemStats(&after)
				figure = float64(after.Mallocs-before.Mallocs) / n
				return nil
			})
			return figure, err
		}
	}
	return workload{
		name: "allocations", title: "allocations of an enqueue", unit: "allocations", lessIsBetter: true,
		about: "Including those of the payload's encoding and of pgx.",
		contenders: []contender{
			{"hand-written insert", count(func(ctx context.Context, tx pgx.Tx, seq int) error {
				p := order(seq)
				body, err := json.Marshal(p)
				if err != nil {
					return err
				}
				id, err := uuid.NewV7()
				if err != nil {
					return err
				}
				return tx.QueryRow(ctx, insert, id, p.OrderID.String(), body).Scan(&id)
			})},
			{"Enqueue", count(func(ctx context.Context, tx pgx.Tx, seq int) error {
				_, err := events.EnqueueOrderPaid(ctx, tx, order(seq))
				return err
			})},
		},
		targets: []target{{of: "Enqueue", to: "hand-written insert", atMost: 6, difference: true}},
	}
}
