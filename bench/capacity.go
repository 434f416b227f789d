package main

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/bench/events"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// capacity is what one server carries with a history of delivered events, for docs/operate/scaling.md.
type capacity struct {
	History      int
	Bytes        int     // per delivered event of a queue topic: its rows and index entries in events and delivered
	LogBytes     int     // per event of a log topic
	PerSecond    float64 // business transactions per second, each with an event, while a dispatcher delivers them
	Delivered    float64 // events per second that the dispatcher delivered meanwhile
	Drain        float64 // events per second of a backlog
	Prune        float64 // events per second that prune deletes
	VacuumPruned float64 // seconds of a VACUUM after that
	VacuumIdle   float64 // seconds of the next one, which has nothing to do
}

const (
	capacityRun    = 20 * time.Second // of the transactions
	capacityPruned = 1_000_000        // events, or a tenth of the history if that is less
)

// capacities measures each history on its own database and prints a row of each.
func capacities(ctx context.Context, s *server, histories []int, out io.Writer, log func(string, ...any)) error {
	fmt.Fprintln(out, "| history | bytes per event | of the log | transactions/s | delivered/s | drained/s | pruned/s | vacuum after it, s | vacuum without work, s |")
	fmt.Fprintln(out, "|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
	for _, history := range histories {
		db, err := s.database(ctx)
		if err != nil {
			return err
		}
		c, err := db.capacity(ctx, history, log)
		if err != nil {
			return fmt.Errorf("capacity with %d events: %w", history, err)
		}
		fmt.Fprintf(out, "| %d | %d | %d | %.0f | %.0f | %.0f | %.0f | %.1f | %.2f |\n",
			c.History, c.Bytes, c.LogBytes, c.PerSecond, c.Delivered, c.Drain, c.Prune, c.VacuumPruned, c.VacuumIdle)
		if err := db.drop(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (db *database) capacity(ctx context.Context, history int, log func(string, ...any)) (c capacity, err error) {
	c.History = history
	log("%d events: fill", history)
	if err := db.addDeliveredWithKeys(ctx, history, log); err != nil {
		return c, err
	}
	if c.Bytes, err = db.bytesPer(ctx, history, "outbox.events", "outbox.delivered"); err != nil {
		return c, err
	}
	logged := min(history/10, 1_000_000)
	if err := fillLog(ctx, db, logged); err != nil {
		return c, err
	}
	if c.LogBytes, err = db.bytesPer(ctx, logged, "outbox.log"); err != nil {
		return c, err
	}
	log("%d events: transactions", history)
	if c.PerSecond, c.Delivered, err = db.inAndOut(ctx); err != nil {
		return c, err
	}
	log("%d events: drain", history)
	if c.Drain, err = db.drainBacklog(ctx); err != nil {
		return c, err
	}
	log("%d events: prune and vacuum", history)
	pruned := min(capacityPruned, history/10)
	c.Prune, err = db.prune(ctx, pruned, history)
	if err != nil {
		return c, err
	}
	if c.VacuumPruned, err = db.vacuumSeconds(ctx); err != nil {
		return c, err
	}
	c.VacuumIdle, err = db.vacuumSeconds(ctx)
	return c, err
}

// addDeliveredWithKeys inserts delivered events as they are after a long time: one per millisecond up to a day ago, in the
// order of their ids, with dedupe keys at random places of their index, and the payload of about two hundred bytes.
func (db *database) addDeliveredWithKeys(ctx context.Context, n int, log func(string, ...any)) error {
	const chunk = 1_000_000
	spec := events.OrderPaidTopic.Untyped().Spec()
	for from := 0; from < n; from += chunk {
		if _, err := db.pool.Exec(ctx, `WITH e AS (
				INSERT INTO outbox.events (id, namespace, topic, version, dedupe_key, payload, created_at)
				SELECT (substr(h, 1, 8) || '-' || substr(h, 9, 4) || '-7' || substr(gen_random_uuid()::text, 16))::uuid, $1, $2, 1, o::text,
					jsonb_build_object('order_id', o, 'seq', n, 'note', $3::text), c
				FROM generate_series($4::int, $5::int) AS n,
					LATERAL (SELECT now() - interval '1 day' - ($6::int - n) * interval '1 ms' AS c) AS t,
					LATERAL (SELECT lpad(to_hex((extract(epoch FROM c) * 1000)::bigint), 12, '0') AS h, gen_random_uuid() AS o) AS u
				RETURNING id, created_at)
			INSERT INTO outbox.delivered (id, namespace, topic, attempts, claim_no, finalized_at)
			SELECT id, $1, $2, 1, 1, created_at + interval '5 ms' FROM e`,
			spec.Namespace, spec.Name, note, from+1, min(from+chunk, n), n); err != nil {
			return err
		}
		if (from/chunk)%10 == 9 {
			log("%d of %d events", from+chunk, n)
		}
	}
	if err := db.vacuum(ctx); err != nil {
		return err
	}
	return db.settle(ctx)
}

// bytesPer returns the size of tables with their indexes and TOAST, divided by n.
func (db *database) bytesPer(ctx context.Context, n int, tables ...string) (bytes int, err error) {
	err = db.pool.QueryRow(ctx, "SELECT (sum(pg_total_relation_size(t::regclass)) / $2)::bigint FROM unnest($1::text[]) AS t", tables, n).Scan(&bytes)
	return bytes, err
}

// inAndOut runs business transactions of four producers while a dispatcher delivers their events.
func (db *database) inAndOut(ctx context.Context) (committed, delivered float64, err error) {
	var handled, seq atomic.Int64
	d, err := events.NewBenchDispatcher(db.pool, &events.BenchHandler{Work: func(context.Context, int64) { handled.Add(1) }},
		queue.Config{PruneInterval: -1, Logger: quiet})
	if err != nil {
		return 0, 0, err
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- d.Run(running) }()
	var producers errgroup.Group
	began := time.Now()
	for range 4 {
		producers.Go(func() error {
			for time.Since(began) < capacityRun {
				n := int(seq.Add(1))
				err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
					if _, err := tx.Exec(ctx, change, n%1000+1); err != nil {
						return err
					}
					_, err := events.EnqueueOrderPaid(ctx, tx, order(n))
					return err
				})
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	err = producers.Wait()
	took := time.Since(began).Seconds()
	committed, delivered = float64(seq.Load())/took, float64(handled.Load())/took
	stop()
	if runErr := <-ended; err == nil {
		err = runErr
	}
	return committed, delivered, err
}

// drainBacklog delivers what inAndOut has left, and then a backlog.
func (db *database) drainBacklog(ctx context.Context) (float64, error) {
	const backlog = 100_000
	rest := func() (*queue.Dispatcher, error) {
		return events.NewBenchDispatcher(db.pool, &events.BenchHandler{Work: func(context.Context, int64) {}},
			queue.Config{BatchSize: 1000, PruneInterval: -1, Logger: quiet})
	}
	d, err := rest()
	if err != nil {
		return 0, err
	}
	if _, err := d.Drain(ctx); err != nil {
		return 0, err
	}
	if err := enqueueAll(ctx, db, backlog, order, events.EnqueueOrderPaidMany); err != nil {
		return 0, err
	}
	if err := db.settle(ctx); err != nil {
		return 0, err
	}
	if d, err = rest(); err != nil {
		return 0, err
	}
	began := time.Now()
	r, err := d.Drain(ctx)
	if err == nil && r.Delivered != backlog {
		err = fmt.Errorf("%d events delivered, want %d", r.Delivered, backlog)
	}
	return backlog / time.Since(began).Seconds(), err
}

// prune deletes the oldest n events of the history.
func (db *database) prune(ctx context.Context, n, history int) (float64, error) {
	a, err := admin.New(db.pool, "outbox")
	if err != nil {
		return 0, err
	}
	var oldest time.Duration
	if err := db.pool.QueryRow(ctx, "SELECT statement_timestamp() - min(finalized_at) FROM outbox.delivered").Scan(&oldest); err != nil {
		return 0, err
	}
	spec := events.OrderPaidTopic.Untyped().Spec()
	began := time.Now()
	r, err := a.Prune(ctx, map[string]outbox.Retention{
		spec.Namespace + "/" + spec.Name: {Delivered: oldest - time.Duration(n)*time.Millisecond, Dead: 1000 * 24 * time.Hour},
	})
	took := time.Since(began)
	if err == nil && (r.Queue < int64(n/2) || r.Queue > int64(2*n)) {
		err = fmt.Errorf("%d events pruned of %d, want about %d", r.Queue, history, n)
	}
	return float64(r.Queue) / took.Seconds(), err
}

func (db *database) vacuumSeconds(ctx context.Context) (float64, error) {
	began := time.Now()
	err := db.vacuum(ctx)
	return time.Since(began).Seconds(), err
}
