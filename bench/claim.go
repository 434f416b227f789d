package main

import (
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

// claims compares the time of a claim of 100 with a long history and with an empty table: alone, and as part of a dispatcher's
// work on a backlog.
func claims(history int) workload {
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
		name: "claim", title: fmt.Sprintf("claim of %d with %d delivered events", size, history), unit: "ms",
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

const historyColumns = `id, namespace, topic, version, dedupe_key, payload, max_attempts, status, attempts, claim_no,
	next_attempt_at, locked_by, locked_until, finalized_at, created_at`

func addHistory(ctx context.Context, db *database, history int) error {
	rows := func(status, due, lockedUntil, finalized string) string {
		return fmt.Sprintf(`INSERT INTO outbox.events (%s)
			SELECT gen_random_uuid(), 'bench', 'order_paid', 1, gen_random_uuid()::text, '{"seq":1,"note":"%s"}', 5, '%s', %s, %s, %s, %s, %s, %s, now() - interval '1 day'
			FROM generate_series(1, $1)`, historyColumns, note, status,
			map[bool]string{true: "0", false: "1"}[status == "pending"], map[bool]string{true: "0", false: "1"}[status == "pending"],
			due, map[bool]string{true: "NULL", false: "gen_random_uuid()"}[status == "pending"], lockedUntil, finalized)
	}
	steps := []struct {
		sql string
		n   int
	}{
		{rows("delivered", "now() - interval '1 day'", "NULL", "now() - interval '1 hour'"), history},
		{rows("pending", "now() + interval '1 day'", "NULL", "NULL"), history / 10},
		{rows("processing", "now() - interval '1 minute'", "now() + interval '1 hour'", "NULL"), history / 1000},
	}
	for _, step := range steps {
		if _, err := db.pool.Exec(ctx, step.sql, step.n); err != nil {
			return err
		}
	}
	if _, err := db.pool.Exec(ctx, "VACUUM ANALYZE outbox.events"); err != nil {
		return err
	}
	// Dead tuples at the place that a claim reads first: rows that were due long ago and are deleted.
	if _, err := db.pool.Exec(ctx, "ALTER TABLE outbox.events SET (autovacuum_enabled = off)"); err != nil {
		return err
	}
	if _, err := db.pool.Exec(ctx, rows("pending", "now() - interval '2 days'", "NULL", "NULL"), history/100); err != nil {
		return err
	}
	_, err := db.pool.Exec(ctx, "DELETE FROM outbox.events WHERE finalized_at IS NULL AND next_attempt_at < now() - interval '1 day'")
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
