package outbox_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/pgserver"
	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/migrate"
	"github.com/outboxgen/outboxgen/outbox"
)

type benchPayload struct {
	N    int64  `json:"n"`
	Text string `json:"text"`
	Key  string `json:"-"`
}

var benchTopic = outbox.Topic[benchPayload]{Schema: "outbox", Namespace: "bench", Name: "event", Version: 1}

// benchPool returns a migrated database on a server with durable settings, made for this benchmark.
func benchPool(b *testing.B) *pgxpool.Pool {
	b.Helper()
	server := pgtest.Server(b, pgserver.Options{Durable: true})
	pool := pgtest.Pool(b, server.URL())
	_, err := migrate.Up(context.Background(), pool, "outbox")
	require.NoError(b, err)
	return pool
}

func fill(b *testing.B, pool *pgxpool.Pool, n int) {
	b.Helper()
	ctx := context.Background()
	payload, err := json.Marshal(benchPayload{N: 1, Text: "a payload of some two hundred bytes, as a small event has them: " + fmt.Sprintf("%0130d", 1)})
	require.NoError(b, err)
	require.NoError(b, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		for range n / 1000 {
			ms := make([]outbox.Message, 1000)
			for i := range ms {
				ms[i] = outbox.Message{Namespace: "bench", Topic: "event", Payload: payload}
			}
			if _, err := outbox.EnqueueMany(ctx, tx, "outbox", ms); err != nil {
				return err
			}
		}
		return nil
	}))
	_, err = pool.Exec(ctx, "VACUUM ANALYZE outbox.events")
	require.NoError(b, err)
}

type benchHandlers interface {
	HandleEvent(context.Context, outbox.Delivery[benchPayload]) error
}

type countdown struct {
	mu   sync.Mutex
	left int
	done chan struct{}
}

func (c *countdown) HandleEvent(context.Context, outbox.Delivery[benchPayload]) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left--; c.left == 0 {
		close(c.done)
	}
	return nil
}

// BenchmarkDrain measures a dispatcher on a backlog of 50,000 with a handler that does nothing, history
// kept: from the start of Run to the return of its graceful stop, which settles the last event.
func BenchmarkDrain(b *testing.B) {
	const events = 50_000
	for _, size := range []int{100, 1000} {
		b.Run(fmt.Sprintf("batch=%d", size), func(b *testing.B) {
			for range b.N {
				b.StopTimer()
				pool := benchPool(b)
				fill(b, pool, events)
				h := &countdown{left: events, done: make(chan struct{})}
				d, err := outbox.NewDispatcher(pool, outbox.DispatcherConfig{BatchSize: size, Concurrency: 10, PruneInterval: -1},
					outbox.Handle(benchTopic, benchHandlers(h), benchHandlers.HandleEvent))
				require.NoError(b, err)
				ctx, stop := context.WithCancel(context.Background())
				ended := make(chan error, 1)
				b.StartTimer()
				go func() { ended <- d.Run(ctx) }()
				<-h.done
				stop()
				require.NoError(b, <-ended)
				b.StopTimer()
				var delivered int
				require.NoError(b, pool.QueryRow(context.Background(), "SELECT count(*) FROM outbox.events WHERE status = 'delivered' AND attempts = 1").Scan(&delivered))
				require.Equal(b, events, delivered)
				b.StartTimer()
			}
			b.ReportMetric(float64(events*b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}

// BenchmarkStoreLoop is the same backlog by Claim and Ack alone, two workers: what the dispatcher adds is the
// difference.
func BenchmarkStoreLoop(b *testing.B) {
	const events, size = 50_000, 1000
	for range b.N {
		b.StopTimer()
		pool := benchPool(b)
		fill(b, pool, events)
		b.StartTimer()
		var workers sync.WaitGroup
		for range 2 {
			workers.Go(func() {
				s, err := outbox.NewStore(pool, outbox.StoreConfig{Schema: "outbox", Namespace: "bench", WorkerID: uuid.New()})
				require.NoError(b, err)
				for {
					claimed, err := s.Claim(context.Background(), outbox.ClaimConfig{BatchSize: size})
					require.NoError(b, err)
					if len(claimed) == 0 {
						return
					}
					_, err = s.Ack(context.Background(), claimed...)
					require.NoError(b, err)
				}
			})
		}
		workers.Wait()
	}
	b.ReportMetric(float64(events*b.N)/b.Elapsed().Seconds(), "events/s")
}

// BenchmarkHandWrittenLoop is the floor: claim and ack in plain SQL on the same table, with no fence, no verdict
// and no care for suspects, two workers.
func BenchmarkHandWrittenLoop(b *testing.B) {
	const events, size = 50_000, 1000
	const claim = `
		WITH due AS MATERIALIZED (
			SELECT id FROM outbox.events
			WHERE finalized_at IS NULL AND namespace = 'bench' AND next_attempt_at <= statement_timestamp()
				AND (locked_until IS NULL OR locked_until < statement_timestamp()) AND attempts < max_attempts
			ORDER BY next_attempt_at, id LIMIT $1 FOR UPDATE SKIP LOCKED)
		UPDATE outbox.events e
		SET status = 'processing', attempts = e.attempts + 1, claim_no = e.claim_no + 1, locked_by = $2,
			locked_until = clock_timestamp() + interval '30 s', updated_at = clock_timestamp()
		FROM due WHERE e.id = due.id RETURNING e.id, e.topic, e.payload, e.claim_no`
	const ack = `
		UPDATE outbox.events e
		SET status = 'delivered', finalized_at = statement_timestamp(), updated_at = statement_timestamp(), locked_until = NULL
		FROM unnest($1::uuid[]) AS w (id) WHERE e.id = w.id AND e.locked_by = $2 AND e.status = 'processing'`
	for range b.N {
		b.StopTimer()
		pool := benchPool(b)
		fill(b, pool, events)
		b.StartTimer()
		var workers sync.WaitGroup
		for range 2 {
			workers.Go(func() {
				ctx, worker := context.Background(), pgtype.UUID{Bytes: uuid.New(), Valid: true}
				for {
					rows, err := pool.Query(ctx, claim, size, worker)
					require.NoError(b, err)
					var ids []pgtype.UUID
					var id pgtype.UUID
					var topic string
					var payload []byte
					var claimNo int64
					_, err = pgx.ForEachRow(rows, []any{&id, &topic, &payload, &claimNo}, func() error {
						ids = append(ids, id)
						return nil
					})
					require.NoError(b, err)
					if len(ids) == 0 {
						return
					}
					_, err = pool.Exec(ctx, ack, ids, worker)
					require.NoError(b, err)
				}
			})
		}
		workers.Wait()
	}
	b.ReportMetric(float64(events*b.N)/b.Elapsed().Seconds(), "events/s")
}

// BenchmarkBusinessTransaction measures a transaction that changes one row, with 4 producers: alone, with a
// hand-written insert of the event, and with Enqueue.
func BenchmarkBusinessTransaction(b *testing.B) {
	const producers, each = 4, 1500
	payload := benchPayload{N: 1, Text: fmt.Sprintf("%0200d", 1)}
	const change = "UPDATE account SET balance = balance + 1 WHERE id = $1"
	const insert = `INSERT INTO outbox.events (id, namespace, topic, version, dedupe_key, payload, max_attempts)
		VALUES ($1, 'bench', 'event', 1, $2, $3, 5) ON CONFLICT (namespace, topic, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING`
	ways := map[string]func(ctx context.Context, tx pgx.Tx, account int) error{
		"alone": func(context.Context, pgx.Tx, int) error { return nil },
		"insert": func(ctx context.Context, tx pgx.Tx, _ int) error {
			body, err := json.Marshal(payload)
			if err != nil {
				return err
			}
			_, err = tx.Exec(ctx, insert, pgtype.UUID{Bytes: uuid.Must(uuid.NewV7()), Valid: true}, uuid.NewString(), body)
			return err
		},
		"Enqueue": func(ctx context.Context, tx pgx.Tx, _ int) error {
			p := payload
			p.Key = uuid.NewString()
			_, err := keyedTopic.Enqueue(ctx, tx, p)
			return err
		},
	}
	for _, way := range []string{"alone", "insert", "Enqueue"} {
		b.Run(way, func(b *testing.B) {
			for range b.N {
				b.StopTimer()
				pool := benchPool(b)
				ctx := context.Background()
				_, err := pool.Exec(ctx, "CREATE TABLE account (id int PRIMARY KEY, balance bigint); INSERT INTO account SELECT i, 0 FROM generate_series(1, 1000) AS i")
				require.NoError(b, err)
				b.StartTimer()
				var running sync.WaitGroup
				for n := range producers {
					running.Go(func() {
						for i := range each {
							account := (n*each+i)%1000 + 1
							require.NoError(b, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
								if _, err := tx.Exec(ctx, change, account); err != nil {
									return err
								}
								return ways[way](ctx, tx, account)
							}))
						}
					})
				}
				running.Wait()
			}
			b.ReportMetric(float64(producers*each*b.N)/b.Elapsed().Seconds(), "tx/s")
		})
	}
}

var keyedTopic = outbox.Topic[benchPayload]{Schema: "outbox", Namespace: "bench", Name: "event", Version: 1, Keys: func(p benchPayload) outbox.Keys {
	return outbox.Keys{Dedupe: outbox.NewKey(outbox.StringPart("key", p.Key))}
}}
