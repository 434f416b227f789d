package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

func TestMain(m *testing.M) { runtimetest.Main(m) }

// placed is the job of River and graphile-worker in docs/start/migrating.md, and changed the message of watermill.
type (
	placed struct {
		N int64 `json:"n"`
	}
	changed struct {
		OrderID string `json:"order_id"`
		N       int64  `json:"n"`
	}
	counted struct{}
)

func (placed) Kind() string  { return "order_placed" }
func (counted) Kind() string { return "stock_counted" }

// got collects events by their number, in order.
type got struct {
	mu sync.Mutex
	ns []int64
}

func (g *got) add(n int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ns = append(g.ns, n)
}

func (g *got) list() []int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.ns)
}

func (g *got) HandlePlaced(_ context.Context, d outbox.Delivery[placed]) error {
	g.add(d.Payload.N)
	return nil
}

func (g *got) HandleChanged(_ context.Context, d outbox.Delivery[changed]) error {
	g.add(d.Payload.N)
	return nil
}

var placedTopic = outbox.NewTopic[placed](outbox.TopicSpec{Namespace: "shop", Name: "order_placed", Version: 1, Strict: true})

// drain handles what is due, one after the other.
func (g *got) drain(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	cfg := runtimetest.QuickConfig()
	cfg.Concurrency = 1
	_, err := runtimetest.Dispatcher(t, pool, cfg, queue.Handle(placedTopic, g, g.HandlePlaced)).Drain(t.Context())
	require.NoError(t, err)
}

// move runs SQL of docs/start/migrating.md until it does not wait for a lock in vain.
func move(t *testing.T, pool *pgxpool.Pool, text string) {
	t.Helper()
	for {
		_, err := pool.Exec(t.Context(), text)
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != "55P03" {
			pgtest.Check(t, err)
			return
		}
	}
}

// placedWorker fails or succeeds as its job is told, after it said that it has begun.
type placedWorker struct {
	river.WorkerDefaults[placed]
	got
	begun chan int64
	end   chan error
}

func (w *placedWorker) Work(_ context.Context, j *river.Job[placed]) error {
	w.begun <- j.Args.N
	if err := <-w.end; err != nil {
		return err
	}
	w.add(j.Args.N)
	return nil
}

type countedWorker struct {
	river.WorkerDefaults[counted]
	got
}

func (w *countedWorker) Work(context.Context, *river.Job[counted]) error {
	w.add(0)
	return nil
}

// TestMovingFromRiver runs the SQL of docs/start/migrating.md with River's own tables and client: jobs that are done, running, available,
// scheduled and unique, jobs of another kind, and inserts of old code afterwards.
func TestMovingFromRiver(t *testing.T) {
	t.Parallel()
	blocks := runtimetest.OpenPage(t, "../docs/start/migrating.md").Take(t, "River", "sql", 2)
	pool := pgtest.Plain(t)
	require.NoError(t, migrateRiver(t.Context(), pool))
	worker, other := &placedWorker{begun: make(chan int64), end: make(chan error)}, &countedWorker{}
	workers := river.NewWorkers()
	river.AddWorker(workers, worker)
	river.AddWorker(workers, other)
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 2}},
		FetchPollInterval: 100 * time.Millisecond, Logger: quiet, Workers: workers,
	})
	require.NoError(t, err)
	insert := func(n int64, opts *river.InsertOpts) {
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := client.InsertTx(t.Context(), tx, placed{n}, opts)
			return err
		}))
	}
	insert(1, nil)
	insert(2, nil)
	insert(3, nil)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	defer cancel()
	require.NoError(t, client.Start(ctx))
	pgtest.Receive(t, worker.begun, "the first job")
	pgtest.Receive(t, worker.begun, "the second job")
	worker.end <- nil
	pgtest.Receive(t, worker.begun, "the third job")
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM river_job WHERE state = 'completed'")
	require.Len(t, worker.list(), 1)

	// Two are running, and no worker is free.
	unique := &river.InsertOpts{UniqueOpts: river.UniqueOpts{ByArgs: true}}
	insert(4, nil)
	insert(5, unique)
	insert(5, unique)
	insert(6, &river.InsertOpts{ScheduledAt: time.Now().Add(time.Hour), MaxAttempts: 3})
	_, err = client.Insert(t.Context(), counted{}, nil)
	require.NoError(t, err)
	pgtest.Execute(t, pool, blocks[0])
	move(t, pool, blocks[1])
	after := &got{}
	after.drain(t, pool)
	require.Equal(t, []int64{4, 5}, after.list())

	// Old code still inserts: one by one, unique, many, and in a transaction that rolls back.
	insert(7, nil)
	insert(5, unique)
	_, err = client.InsertMany(t.Context(), []river.InsertManyParams{{Args: placed{8}}, {Args: placed{9}}, {Args: counted{}}})
	require.NoError(t, err)
	_, err = client.InsertManyFast(t.Context(), []river.InsertManyParams{{Args: placed{10}}})
	require.NoError(t, err)
	tx := pgtest.Begin(t, pool, pgx.TxOptions{})
	_, err = client.InsertTx(t.Context(), tx, placed{11}, nil)
	require.NoError(t, err)
	require.NoError(t, tx.Rollback(t.Context()))
	after.drain(t, pool)
	require.Equal(t, []int64{4, 5, 7, 8, 9, 10}, after.list())

	// One of the running jobs succeeds, and one fails, which the next move takes.
	worker.end <- nil
	worker.end <- errors.New("broken")
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM river_job WHERE kind = 'order_placed' AND state IN ('available', 'retryable')")
	move(t, pool, blocks[1])
	pgtest.Settles(t, pool, 2, "SELECT count(*) FROM river_job WHERE kind = 'stock_counted' AND state = 'completed'")
	require.NoError(t, client.Stop(ctx))
	require.Len(t, worker.list(), 2)
	move(t, pool, blocks[1])
	require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.queue WHERE max_attempts = 3 AND next_attempt_at > now() + interval '50 minutes'"), "the delay")
	pgtest.Execute(t, pool, "UPDATE outbox.queue SET next_attempt_at = now()")
	after.drain(t, pool)
	all := append(after.list(), worker.list()...)
	slices.Sort(all)
	require.Equal(t, []int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, all, "each by one side, once")
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM river_job WHERE finalized_at IS NULL"))
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.dead_letters"))
}

// TestMovingFromWatermill runs the SQL of docs/start/migrating.md with watermill's own tables, publisher and subscriber: messages that are
// acked, in hand and waiting, and messages that old code publishes afterwards. A key keeps its order.
func TestMovingFromWatermill(t *testing.T) {
	t.Parallel()
	blocks := runtimetest.OpenPage(t, "../docs/start/migrating.md").Take(t, "watermill-sql", "sql", 3)
	pool := pgtest.Plain(t)
	db, err := sql.Open("pgx", pgtest.URL(t, pool))
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	subscriber, err := wsql.NewSubscriber(wsql.BeginnerFromStdSQL(db), wsql.SubscriberConfig{
		ConsumerGroup: "shop", PollInterval: 10 * time.Millisecond, InitializeSchema: true,
		SchemaAdapter: wsql.DefaultPostgreSQLSchema{SubscribeBatchSize: 1}, OffsetsAdapter: wsql.DefaultPostgreSQLOffsetsAdapter{},
	}, watermill.NopLogger{})
	require.NoError(t, err)
	publish := func(commit bool, ns ...int64) {
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		for _, n := range ns {
			body, err := json.Marshal(changed{"a", n})
			require.NoError(t, err)
			m := message.NewMessage(watermill.NewUUID(), body)
			m.Metadata.Set("name", "order_changed")
			require.NoError(t, watermillPublish(tx, m))
		}
		if !commit {
			require.NoError(t, tx.Rollback())
			return
		}
		require.NoError(t, tx.Commit())
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	messages, err := subscriber.Subscribe(ctx, watermillTopic)
	require.NoError(t, err)
	publish(true, 1)
	publish(true, 2, 3)
	publish(true, 4, 5)
	pgtest.Receive(t, messages, "the first message").Ack()
	inHand := pgtest.Receive(t, messages, "the second message") // its subscriber holds the row of the offsets
	pgtest.Execute(t, pool, blocks[0])
	behind := func() int {
		var group string
		var n int
		require.NoError(t, pool.QueryRow(t.Context(), blocks[2]).Scan(&group, &n))
		require.Equal(t, "shop", group)
		return n
	}
	require.Equal(t, 4, behind())
	moved := make(chan struct{})
	go func() {
		defer close(moved)
		move(t, pool, blocks[1])
	}()
	pgtest.AwaitBlocked(t, pool, 1)
	old := []int64{1, 2}
	inHand.Ack()
	ended := make(chan struct{})
	go func() { // the subscriber works on, and may get a message before the move
		defer close(ended)
		for m := range messages {
			var p changed
			if json.Unmarshal(m.Payload, &p) == nil {
				old = append(old, p.N)
			}
			m.Ack()
		}
	}()
	pgtest.Receive(t, moved, "the move")
	require.Zero(t, behind())

	publish(true, 6, 7)
	publish(false, 99)
	move(t, pool, blocks[1])
	cancel()
	require.NoError(t, subscriber.Close())
	pgtest.Receive(t, ended, "the end of the subscriber")
	after := &got{}
	topic := outbox.NewTopic[changed](outbox.TopicSpec{Namespace: "shop", Name: "order_changed", Version: 1, Strict: true, Log: true})
	l, err := listener.New(pool, listener.Spec{Name: "ears"}, listener.Config{Logger: runtimetest.DiscardLogger()}, listener.Handle(topic, after, after.HandleChanged))
	require.NoError(t, err)
	runtimetest.DrainAll(t, l)
	require.Equal(t, []int64{1, 2, 3, 4, 5, 6, 7}, append(old, after.list()...), "each by one side, once, in order")
	require.GreaterOrEqual(t, len(after.list()), 2)
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.dead_letters"))
}
