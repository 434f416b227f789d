package receive_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/receive"
	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
)

func TestMain(m *testing.M) { runtimetest.Main(m) }

// counted is the payload of the topic: the n-th event of a key.
type counted struct {
	Key string `json:"key"`
	N   int    `json:"n"`
}

var countedTopic = consume.NewTopic[counted](consume.TopicSpec{Namespace: "test", Name: "counted"})

// effects is a consumer that appends a row per event.
type effects struct {
	mu   sync.Mutex
	fail func(ctx context.Context, tx pgx.Tx, p counted) error // before the insert; nil succeeds
}

func (e *effects) set(fail func(ctx context.Context, tx pgx.Tx, p counted) error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fail = fail
}

func (e *effects) ConsumeCounted(ctx context.Context, tx pgx.Tx, d consume.Delivery[counted]) error {
	e.mu.Lock()
	fail := e.fail
	e.mu.Unlock()
	if fail != nil {
		if err := fail(ctx, tx, d.Payload); err != nil {
			return err
		}
	}
	_, err := tx.Exec(ctx, "INSERT INTO effects (event, key, n) VALUES ($1, $2, $3)", d.ID, d.Payload.Key, d.Payload.N)
	return err
}

// database returns a migrated database with a table of effects, which has no unique constraint.
func database(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.Database(t)
	pgtest.Execute(t, pool, "CREATE TABLE effects (no bigint GENERATED ALWAYS AS IDENTITY, event uuid NOT NULL, key text NOT NULL, n integer NOT NULL)")
	return pool
}

func consumerOf(t testing.TB, e *effects) *consume.Consumer {
	t.Helper()
	ib, err := inbox.New(inbox.Config{Group: "counts"})
	require.NoError(t, err)
	c, err := consume.New(ib, consume.Handle(countedTopic, e, (*effects).ConsumeCounted))
	require.NoError(t, err)
	return c
}

func receiver(t testing.TB, pool *pgxpool.Pool, e *effects, cfg receive.Config) *receive.Receiver {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	r, err := receive.New(pool, consumerOf(t, e), cfg)
	require.NoError(t, err)
	return r
}

// start runs r until stop is called or the test ends.
func start(t testing.TB, r *receive.Receiver) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	var err error
	running.Go(func() { err = r.Run(ctx) })
	stop = func() error {
		cancel()
		running.Wait()
		return err
	}
	t.Cleanup(func() { _ = stop() })
	return stop
}

// message is the n-th event of a key.
func message(key string, n int) receive.Message {
	body, err := json.Marshal(counted{key, n})
	if err != nil {
		panic(err)
	}
	return receive.Message{
		Message: consume.Message{
			ContentType: "application/json", Body: body,
			Attributes: map[string]string{"specversion": "1.0", "id": uuid.Must(uuid.NewV7()).String(), "type": "test.counted", "source": "/test"},
		},
		Place: fmt.Sprintf("test:%s/%d", key, n), Key: key,
	}
}

// messages are the events 1 to n of each key, in turn.
func messages(n int, keys ...string) (ms []receive.Message) {
	for i := range n {
		for _, key := range keys {
			ms = append(ms, message(key, i+1))
		}
	}
	return ms
}

// requireCounted fails unless each key has its effects 1 to n, once and in order.
func requireCounted(t testing.TB, pool *pgxpool.Pool, n int, keys ...string) {
	t.Helper()
	want := make([]int32, n)
	for i := range want {
		want[i] = int32(i + 1)
	}
	for _, key := range keys {
		require.Equal(t, want, pgtest.Value[[]int32](t, pool, "SELECT coalesce(array_agg(n ORDER BY no), '{}') FROM effects WHERE key = $1", key), key)
	}
}

func kept(t testing.TB, pool *pgxpool.Pool, status string) int {
	t.Helper()
	return pgtest.Count(t, pool, "SELECT count(*) FROM outbox.inbox_messages WHERE status = $1", status)
}

func quick(cfg receive.Config) receive.Config {
	cfg.BaseDelay, cfg.MaxDelay, cfg.PollInterval = 10*time.Millisecond, 50*time.Millisecond, 10*time.Millisecond
	return cfg
}
