package outbox_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/pgserver"
	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/migrate"
	"github.com/outboxgen/outboxgen/outbox"
)

type benchPayload struct {
	N    int64  `json:"n"`
	Text string `json:"text"`
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
