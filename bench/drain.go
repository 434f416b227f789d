package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"golang.org/x/sync/errgroup"

	"github.com/outboxgen/outboxgen/bench/events"
	"github.com/outboxgen/outboxgen/internal/postgres/topiclane"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

const fillSize = 1000

// fillQueue enqueues n events before the measured part.
func fillQueue[P any](ctx context.Context, db *database, n int, payload func(seq int) P,
	enqueue func(context.Context, outbox.Tx, []P, ...outbox.EnqueueOption) ([]outbox.Receipt, error)) error {
	if err := enqueueAll(ctx, db, n, payload, enqueue); err != nil {
		return err
	}
	if err := db.vacuum(ctx); err != nil {
		return err
	}
	return db.settle(ctx)
}

func enqueueAll[P any](ctx context.Context, db *database, n int, payload func(seq int) P,
	enqueue func(context.Context, outbox.Tx, []P, ...outbox.EnqueueOption) ([]outbox.Receipt, error)) error {
	for from := 0; from < n; from += fillSize {
		err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
			ps := make([]P, min(fillSize, n-from))
			for i := range ps {
				ps[i] = payload(from + i)
			}
			_, err := enqueue(ctx, tx, ps)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func fillPaid(ctx context.Context, db *database, n int) error {
	return fillQueue(ctx, db, n, order, events.EnqueueOrderPaidMany)
}

func fillRiver(ctx context.Context, db *database, n int) error {
	client, err := riverInserter(ctx, db)
	if err != nil {
		return err
	}
	for from := 0; from < n; from += fillSize {
		ps := make([]river.InsertManyParams, min(fillSize, n-from))
		for i := range ps {
			ps[i].Args = job(order(from + i))
		}
		if _, err := client.InsertManyFast(ctx, ps); err != nil {
			return err
		}
	}
	if _, err := db.pool.Exec(ctx, "VACUUM ANALYZE river_job"); err != nil {
		return err
	}
	return db.settle(ctx)
}

// runDispatcher calls run, the Run of a dispatcher or listener, until t is done and run has stopped gracefully, which
// settles the last events.
func runDispatcher(ctx context.Context, t *tally, run func(context.Context) error) (time.Duration, error) {
	running, stop := context.WithCancel(ctx)
	defer stop()
	started := time.Now()
	ended := make(chan error, 1)
	go func() { ended <- run(running) }()
	waited := t.wait(ctx)
	stop()
	err := <-ended
	took := time.Since(started)
	if waited != nil {
		return 0, waited
	}
	if err != nil {
		return 0, err
	}
	return took, t.check()
}

// delivered counts the events that were delivered by their first attempt, without those that are still queued.
const delivered = `SELECT count(*) FROM outbox.delivered AS d JOIN outbox.events AS e ON e.id = d.id
	WHERE d.attempts = 1 AND NOT EXISTS (SELECT FROM outbox.queue AS q WHERE q.id = d.id)`

// leftOver counts the rows of a queue topic that deletes what is delivered.
const leftOver = "SELECT (SELECT count(*) FROM outbox.events) + (SELECT count(*) FROM outbox.queue) + (SELECT count(*) FROM outbox.delivered)"

func drainDispatcher(n int, work func(ctx context.Context), cfg queue.Config, conns int32) func(context.Context, *database) (float64, error) {
	return func(ctx context.Context, db *database) (float64, error) {
		if err := fillPaid(ctx, db, n); err != nil {
			return 0, err
		}
		pool, err := db.open(ctx, conns)
		if err != nil {
			return 0, err
		}
		defer pool.Close()
		t := newTally(n)
		cfg.Logger = quiet
		d, err := events.NewBenchDispatcher(pool, &events.BenchHandler{Work: func(ctx context.Context, seq int64) {
			work(ctx)
			t.add(seq)
		}}, cfg)
		if err != nil {
			return 0, err
		}
		took, err := runDispatcher(ctx, t, d.Run)
		if err != nil {
			return 0, err
		}
		return float64(n) / took.Seconds(), db.count(ctx, n, "delivered", delivered)
	}
}

func drainRiver(n, workers int, work func(ctx context.Context)) func(context.Context, *database) (float64, error) {
	return func(ctx context.Context, db *database) (float64, error) {
		if err := fillRiver(ctx, db, n); err != nil {
			return 0, err
		}
		t := newTally(n)
		client, err := riverClient(db.pool, workers, func(ctx context.Context, seq int64) {
			work(ctx)
			t.add(seq)
		})
		if err != nil {
			return 0, err
		}
		started := time.Now()
		if err := client.Start(ctx); err != nil {
			return 0, err
		}
		waited := t.wait(ctx)
		if err := client.Stop(ctx); err != nil {
			return 0, err
		}
		took := time.Since(started)
		if waited != nil {
			return 0, waited
		}
		if err := t.check(); err != nil {
			return 0, err
		}
		return float64(n) / took.Seconds(), db.count(ctx, n, "completed", "SELECT count(*) FROM river_job WHERE state = 'completed' AND attempt = 1")
	}
}

func drainWatermill(n, batch int) func(context.Context, *database) (float64, error) {
	return func(ctx context.Context, db *database) (float64, error) {
		conn, err := watermillDB(ctx, db)
		if err != nil {
			return 0, err
		}
		defer func() { _ = conn.Close() }()
		for from := 0; from < n; from += fillSize {
			tx, err := conn.BeginTx(ctx, nil)
			if err != nil {
				return 0, err
			}
			ms := make([]*message.Message, min(fillSize, n-from))
			for i := range ms {
				body, err := json.Marshal(order(from + i))
				if err != nil {
					return 0, err
				}
				ms[i] = message.NewMessage(watermill.NewUUID(), body)
			}
			if err := watermillPublish(tx, ms...); err != nil {
				return 0, err
			}
			if err := tx.Commit(); err != nil {
				return 0, err
			}
		}
		if _, err := db.pool.Exec(ctx, "VACUUM ANALYZE watermill_orders"); err != nil {
			return 0, err
		}
		if err := db.settle(ctx); err != nil {
			return 0, err
		}
		t := newTally(n)
		s, err := watermillSubscriber(conn, batch)
		if err != nil {
			return 0, err
		}
		started := time.Now()
		messages, err := s.Subscribe(ctx, watermillTopic)
		if err != nil {
			return 0, err
		}
		go func() {
			for m := range messages {
				var p job
				if err := json.Unmarshal(m.Payload, &p); err != nil {
					m.Nack()
					continue
				}
				t.add(p.Seq)
				m.Ack()
			}
		}()
		waited := t.wait(ctx)
		if err := s.Close(); err != nil {
			return 0, err
		}
		took := time.Since(started)
		if waited != nil {
			return 0, waited
		}
		if err := t.check(); err != nil {
			return 0, err
		}
		return float64(n) / took.Seconds(), db.count(ctx, n, "acked", "SELECT offset_acked FROM watermill_offsets_orders")
	}
}

// The hand-written statements know that all events are of one topic, which is in one lane.
const (
	claimByHand = `
		WITH due AS MATERIALIZED (
			SELECT id FROM outbox.queue
			WHERE namespace = $3 AND lane = $4 AND next_attempt_at <= statement_timestamp()
				AND (locked_until IS NULL OR locked_until < statement_timestamp()) AND attempts < max_attempts
			ORDER BY next_attempt_at, id LIMIT $1 FOR UPDATE SKIP LOCKED),
		claimed AS (
			UPDATE outbox.queue AS q
			SET attempts = q.attempts + 1, claim_no = q.claim_no + 1, locked_by = $2,
				locked_until = clock_timestamp() + interval '30 s', updated_at = clock_timestamp()
			FROM due WHERE q.id = due.id RETURNING q.id, q.claim_no)
		SELECT e.id, e.topic, e.payload, c.claim_no FROM claimed AS c JOIN outbox.events AS e ON e.id = c.id`
	ackByHand = `
		WITH gone AS (
			DELETE FROM outbox.queue AS q
			USING unnest($1::uuid[]) AS w (id) WHERE q.id = w.id AND q.locked_by = $2 AND q.locked_until IS NOT NULL
			RETURNING q.id, q.namespace, q.topic, q.attempts)
		INSERT INTO outbox.delivered (id, namespace, topic, attempts) SELECT id, namespace, topic, attempts FROM gone`
	dropByHand = `
		WITH gone AS (
			DELETE FROM outbox.queue AS q
			USING unnest($1::uuid[]) AS w (id) WHERE q.id = w.id AND q.locked_by = $2 AND q.locked_until IS NOT NULL
			RETURNING q.id)
		DELETE FROM outbox.events AS e USING gone WHERE e.id = gone.id`
	deleteByHand = `
		WITH due AS MATERIALIZED (
			SELECT id FROM outbox.queue
			WHERE namespace = $2 AND lane = $3 AND next_attempt_at <= statement_timestamp()
			ORDER BY next_attempt_at, id LIMIT $1 FOR UPDATE SKIP LOCKED),
		gone AS (DELETE FROM outbox.queue AS q USING due WHERE q.id = due.id RETURNING q.id)
		DELETE FROM outbox.events AS e USING gone WHERE e.id = gone.id RETURNING e.id, e.topic, e.payload`
)

// laneOf returns the lane of a topic.
func laneOf(topic *outbox.UntypedTopic) int32 {
	return topiclane.Of(topic.Spec().Name)
}

// byHand runs a hand-written loop in two workers until they find no more events.
func byHand(n int, fill func(context.Context, *database, int) error, step func(ctx context.Context, db *database, worker uuid.UUID, work func(payload []byte) error) (int, error),
	check func(ctx context.Context, db *database) error) func(context.Context, *database) (float64, error) {
	return func(ctx context.Context, db *database) (float64, error) {
		if err := fill(ctx, db, n); err != nil {
			return 0, err
		}
		t := newTally(n)
		started := time.Now()
		group, ctx := errgroup.WithContext(ctx)
		for range 2 {
			worker := uuid.New()
			group.Go(func() error {
				for {
					found, err := step(ctx, db, worker, func(payload []byte) error {
						var p events.OrderPaid
						if err := json.Unmarshal(payload, &p); err != nil {
							return err
						}
						t.add(p.Seq)
						return nil
					})
					if err != nil || found == 0 {
						return err
					}
				}
			})
		}
		if err := group.Wait(); err != nil {
			return 0, err
		}
		took := time.Since(started)
		if err := t.check(); err != nil {
			return 0, err
		}
		return float64(n) / took.Seconds(), check(context.WithoutCancel(ctx), db)
	}
}

func claimAndAck(size int, topic *outbox.UntypedTopic, ack string) func(ctx context.Context, db *database, worker uuid.UUID, work func([]byte) error) (int, error) {
	return func(ctx context.Context, db *database, worker uuid.UUID, work func([]byte) error) (int, error) {
		rows, err := db.pool.Query(ctx, claimByHand, size, worker, topic.Spec().Namespace, laneOf(topic))
		if err != nil {
			return 0, err
		}
		ids := make([]uuid.UUID, 0, size)
		var (
			id      uuid.UUID
			topic   string
			payload []byte
			claimNo int64
		)
		_, err = pgx.ForEachRow(rows, []any{&id, &topic, &payload, &claimNo}, func() error {
			ids = append(ids, id)
			return work(payload)
		})
		if err != nil || len(ids) == 0 {
			return 0, err
		}
		_, err = db.pool.Exec(ctx, ack, ids, worker)
		return len(ids), err
	}
}

func claimAndDelete(size int, topic *outbox.UntypedTopic) func(ctx context.Context, db *database, worker uuid.UUID, work func([]byte) error) (int, error) {
	return func(ctx context.Context, db *database, _ uuid.UUID, work func([]byte) error) (found int, err error) {
		err = pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
			rows, err := tx.Query(ctx, deleteByHand, size, topic.Spec().Namespace, laneOf(topic))
			if err != nil {
				return err
			}
			var (
				id      uuid.UUID
				topic   string
				payload []byte
			)
			_, err = pgx.ForEachRow(rows, []any{&id, &topic, &payload}, func() error {
				found++
				return work(payload)
			})
			return err
		})
		return found, err
	}
}

func noWork(context.Context) {}

// drain measures a backlog with a handler that does nothing. Delivered events are kept.
func drain(n int) workload {
	return workload{
		name: "drain", title: fmt.Sprintf("drain of %d, history kept", n), unit: "events/s",
		about: "From the start to the end of a graceful stop, when each event is recorded as delivered. The hand-written loop has two workers and batches of 1,000.",
		contenders: []contender{
			{"hand-written claim and ack", byHand(n, fillPaid, claimAndAck(1000, events.OrderPaidTopic.Untyped(), ackByHand), func(ctx context.Context, db *database) error {
				return db.count(ctx, n, "delivered", delivered)
			})},
			{"dispatcher", drainDispatcher(n, noWork, queue.Config{BatchSize: 1000, Concurrency: 10, PruneInterval: -1}, 16)},
			{"dispatcher, as it comes", drainDispatcher(n, noWork, queue.Config{}, 16)},
			{"River", drainRiver(n, 2000, noWork)},
			{"watermill", drainWatermill(n, 100)},
			{"watermill, batches of 1,000", drainWatermill(n, 1000)},
		},
		targets: []target{
			{of: "dispatcher", to: "River", atLeast: 2.8},
			{of: "dispatcher", to: "hand-written claim and ack", atLeast: 0.9},
		},
	}
}

// drainDeleting is like drain, but deletes events when they are delivered.
func drainDeleting(n int) workload {
	fill := func(ctx context.Context, db *database, n int) error {
		return fillQueue(ctx, db, n, func(seq int) events.OrderDropped { return events.OrderDropped(order(seq)) }, events.EnqueueOrderDroppedMany)
	}
	empty := func(ctx context.Context, db *database) error {
		return db.count(ctx, 0, "events left", leftOver)
	}
	return workload{
		name: "drain-delete", title: fmt.Sprintf("drain of %d, deleted when delivered", n), unit: "events/s",
		about: "Hand-written delete: select, delete and handle in one transaction, without a lease, so a slow handler keeps it open. " +
			"Claim, then delete: with a lease, as the dispatcher does it.",
		contenders: []contender{
			{"hand-written delete", byHand(n, fill, claimAndDelete(1000, events.OrderDroppedTopic.Untyped()), empty)},
			{"hand-written claim, then delete", byHand(n, fill, claimAndAck(1000, events.OrderDroppedTopic.Untyped(), dropByHand), empty)},
			{"dispatcher", func(ctx context.Context, db *database) (float64, error) {
				if err := fill(ctx, db, n); err != nil {
					return 0, err
				}
				t := newTally(n)
				d, err := events.NewBenchDropDispatcher(db.pool, &events.BenchDropHandler{Work: func(_ context.Context, seq int64) { t.add(seq) }},
					queue.Config{BatchSize: 1000, Concurrency: 10, PruneInterval: -1, Logger: quiet})
				if err != nil {
					return 0, err
				}
				took, err := runDispatcher(ctx, t, d.Run)
				if err != nil {
					return 0, err
				}
				return float64(n) / took.Seconds(), empty(ctx, db)
			}},
		},
		targets: []target{
			{of: "dispatcher", to: "hand-written delete", atLeast: 0.85},
			{of: "dispatcher", to: "hand-written claim, then delete", atLeast: 0.85},
		},
	}
}

// handlers compares the rate of slow handlers with the rate that their number and time allow.
func handlers(took time.Duration, concurrency, n int) workload {
	work := func(ctx context.Context) { pause(ctx, took) }
	cfg := queue.Config{BatchSize: max(1000, 2*concurrency), Concurrency: concurrency, PruneInterval: -1}
	return workload{
		name: fmt.Sprintf("handler-%s", took), title: fmt.Sprintf("handlers of %s, %d concurrently", took, concurrency), unit: "events/s",
		about: "The limit is what the same number of goroutines reaches without a queue. The limit by their own time is their number divided " +
			"by the mean time that the handlers of a dispatcher measured themselves, on processors that they share with PostgreSQL.",
		contenders: []contender{
			{"limit", func(ctx context.Context, _ *database) (float64, error) {
				var next atomic.Int64
				started := time.Now()
				var running sync.WaitGroup
				for range concurrency {
					running.Go(func() {
						for next.Add(1) <= int64(n) {
							work(ctx)
						}
					})
				}
				running.Wait()
				return float64(n) / time.Since(started).Seconds(), nil
			}},
			{"limit by their own time", func(ctx context.Context, db *database) (float64, error) {
				var spent atomic.Int64
				_, err := drainDispatcher(n, func(ctx context.Context) {
					started := time.Now()
					work(ctx)
					spent.Add(int64(time.Since(started)))
				}, cfg, 8)(ctx, db)
				return float64(concurrency) / (time.Duration(spent.Load()) / time.Duration(n)).Seconds(), err
			}},
			{"dispatcher", drainDispatcher(n, work, cfg, 8)},
			{"River", drainRiver(n, concurrency, work)},
		},
		targets: []target{{of: "dispatcher", to: "limit by their own time", atLeast: 0.9}, {of: "dispatcher", to: "limit", atLeast: 0.9}},
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
