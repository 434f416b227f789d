package redis_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/outboxgen/outboxgen/internal/testing/brokertest"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/redis"
)

func TestMain(m *testing.M) {
	goredis.SetLogger(silent{}) // the client logs each failed attempt to connect
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(pgtest.Supervisor), goleak.IgnoreAnyFunction(brokertest.Supervisor))
}

// silent is a logger of the client.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

const (
	stream   = "users:renamed"
	patience = 2 * time.Minute
)

// broker is a Redis server of one test, with an empty stream.
type broker struct {
	*brokertest.Redis
	t      testing.TB
	client *goredis.Client // of the test
}

func newBroker(t testing.TB, args ...string) *broker {
	t.Helper()
	b := &broker{Redis: brokertest.StartRedis(t, args...), t: t}
	b.client = goredis.NewClient(&goredis.Options{Addr: b.Addr(), ReadTimeout: patience, MaxRetries: 100})
	t.Cleanup(func() { _ = b.client.Close() })
	if !strings.Contains(strings.Join(args, " "), "--replicaof") && !strings.Contains(strings.Join(args, " "), "--cluster-enabled") {
		b.create(stream)
	}
	return b
}

// create creates an empty stream.
func (b *broker) create(name string) {
	b.t.Helper()
	require.NoError(b.t, b.client.XGroupCreateMkStream(context.Background(), name, "group", "0").Err())
}

func (b *broker) do(args ...any) {
	b.t.Helper()
	require.NoError(b.t, b.client.Do(context.Background(), args...).Err())
}

func (b *broker) publisher(t testing.TB, change ...func(*redis.Config)) *redis.Publisher {
	t.Helper()
	cfg := redis.Config{URL: "redis://" + b.Addr()}
	for _, f := range change {
		f(&cfg)
	}
	p, err := redis.New(cfg)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

func (b *broker) received() []goredis.XMessage {
	b.t.Helper()
	entries, err := b.client.XRange(context.Background(), stream, "-", "+").Result()
	require.NoError(b.t, err)
	return entries
}

func (b *broker) ids() []string {
	b.t.Helper()
	var ids []string
	for _, entry := range b.received() {
		ids = append(ids, entry.Values["ce_id"].(string))
	}
	return ids
}

func event(key string, n int) publish.Outgoing {
	return publish.Outgoing{
		Event: outbox.Event{
			ID: uuid.Must(uuid.NewV7()), Namespace: "users", Topic: "user_renamed", Version: 1, PartitionKey: key,
			Attempt: 1, MaxAttempts: 5, CreatedAt: time.Date(2026, 11, 21, 13, 14, 15, 0, time.UTC),
		},
		Payload: json.RawMessage(fmt.Sprintf(`{"n":%d}`, n)), Destination: stream, Key: key,
	}
}

// large returns an event with a payload of so many bytes.
func large(o publish.Outgoing, bytes int) publish.Outgoing {
	o.Payload = json.RawMessage(`"` + strings.Repeat("x", bytes) + `"`)
	return o
}

// settle publishes until all events are stored.
func settle(t testing.TB, p *redis.Publisher, events []publish.Outgoing) {
	t.Helper()
	require.Eventually(t, func() bool {
		var pending []publish.Outgoing
		for i, err := range p.Publish(t.Context(), events) {
			if err != nil {
				pending = append(pending, events[i])
			}
		}
		events = pending
		return len(events) == 0
	}, patience, 20*time.Millisecond)
}
