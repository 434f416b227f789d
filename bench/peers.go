package main

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // watermill's driver here, because all others use pgx
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// note fills the payload up to about two hundred bytes.
const note = "paid in full by card, to be shipped with the next van that leaves the yard, with a receipt on paper for the customer"

// job is the payload of the benchmark for River.
type job struct {
	OrderID uuid.UUID `json:"order_id"`
	Seq     int64     `json:"seq"`
	Note    string    `json:"note"`
}

func (job) Kind() string { return "order_paid" }

// riverWorker counts the runs of each job by its seq.
type riverWorker struct {
	river.WorkerDefaults[job]
	work func(ctx context.Context, seq int64)
}

func (w *riverWorker) Work(ctx context.Context, j *river.Job[job]) error {
	w.work(ctx, j.Args.Seq)
	return nil
}

func migrateRiver(ctx context.Context, pool *pgxpool.Pool) error {
	m, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	if err != nil {
		return err
	}
	_, err = m.Migrate(ctx, rivermigrate.DirectionUp, nil)
	return err
}

func riverInserter(ctx context.Context, db *database) (*river.Client[pgx.Tx], error) {
	if err := migrateRiver(ctx, db.pool); err != nil {
		return nil, err
	}
	return river.NewClient(riverpgxv5.New(db.pool), &river.Config{Logger: quiet})
}

// quiet is the logger of everything that is measured.
var quiet = slog.New(slog.DiscardHandler)

// riverClient sets River up like its own benchmark: 2,000 workers, and a fetch every 2 ms while there is work.
func riverClient(pool *pgxpool.Pool, workers int, work func(ctx context.Context, seq int64)) (*river.Client[pgx.Tx], error) {
	all := river.NewWorkers()
	river.AddWorker(all, &riverWorker{work: work})
	return river.NewClient(riverpgxv5.New(pool), &river.Config{
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: workers}},
		FetchCooldown:     2 * time.Millisecond,
		FetchPollInterval: 20 * time.Millisecond,
		JobTimeout:        -1,
		Logger:            quiet,
		Workers:           all,
	})
}

// plainRiver sets River up with settings as they come.
func plainRiver(pool *pgxpool.Pool) (*river.Client[pgx.Tx], error) {
	all := river.NewWorkers()
	river.AddWorker(all, &riverWorker{work: func(context.Context, int64) {}})
	return river.NewClient(riverpgxv5.New(pool), &river.Config{
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 10}}, Logger: quiet, Workers: all,
	})
}

const watermillTopic = "orders"

func watermillDB(ctx context.Context, db *database) (*sql.DB, error) {
	conn, err := sql.Open("pgx", db.url)
	if err != nil {
		return nil, err
	}
	conn.SetMaxOpenConns(16)
	conn.SetMaxIdleConns(16)
	s, err := watermillSubscriber(conn, 100)
	if err != nil {
		return nil, err
	}
	return conn, s.SubscribeInitialize(watermillTopic)
}

func watermillSubscriber(conn *sql.DB, batch int) (*wsql.Subscriber, error) {
	return wsql.NewSubscriber(wsql.BeginnerFromStdSQL(conn), wsql.SubscriberConfig{
		ConsumerGroup:    "bench",
		PollInterval:     10 * time.Millisecond,
		SchemaAdapter:    wsql.DefaultPostgreSQLSchema{SubscribeBatchSize: batch},
		OffsetsAdapter:   wsql.DefaultPostgreSQLOffsetsAdapter{},
		InitializeSchema: false,
	}, watermill.NopLogger{})
}

// watermillPublish publishes in the caller's transaction, as watermill's documentation shows it.
func watermillPublish(tx *sql.Tx, messages ...*message.Message) error {
	p, err := wsql.NewPublisher(wsql.TxFromStdSQL(tx), wsql.PublisherConfig{SchemaAdapter: wsql.DefaultPostgreSQLSchema{}}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	return p.Publish(watermillTopic, messages...)
}

// tally checks that each of n events is handled exactly once.
type tally struct {
	runs []atomic.Int32
	left atomic.Int64
	done chan struct{}
}

func newTally(n int) *tally {
	t := &tally{runs: make([]atomic.Int32, n), done: make(chan struct{})}
	t.left.Store(int64(n))
	return t
}

func (t *tally) add(seq int64) {
	t.runs[seq].Add(1)
	if t.left.Add(-1) == 0 {
		close(t.done)
	}
}

// wait waits until there were as many runs as events.
func (t *tally) wait(ctx context.Context) error {
	select {
	case <-t.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%d events left: %w", t.left.Load(), ctx.Err())
	}
}

// check reports an event that did not run exactly once. Call it when nothing runs anymore.
func (t *tally) check() error {
	for seq := range t.runs {
		if n := t.runs[seq].Load(); n != 1 {
			return fmt.Errorf("event %d ran %d times", seq, n)
		}
	}
	return nil
}
