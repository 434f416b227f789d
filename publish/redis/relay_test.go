package redis_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/internal/testing/brokertest"
	"github.com/outboxgen/outboxgen/internal/testing/suspend"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/internal/relaytest"
	"github.com/outboxgen/outboxgen/publish/redis"
)

// TestRelayOfALog relays events while the server is killed, stopped and read-only. No event is lost, the order per key is
// kept, and each effect happens once.
func TestRelayOfALog(t *testing.T) {
	t.Parallel()
	events := 4_000
	if os.Getenv(brokertest.RequireVariable) != "" {
		events = 20_000
	}
	relaytest.Log(t, newRelay(t), events)
}

func TestRelayOfAQueue(t *testing.T) {
	t.Parallel()
	relaytest.Queue(t, newRelay(t), 2_000)
}

func newRelay(t *testing.T) relaytest.Broker {
	b := newBroker(t)
	p := b.publisher(t, func(cfg *redis.Config) { cfg.Timeout = time.Second })
	kill := func() {
		if err := b.Restart(); err != nil {
			t.Errorf("restart: %v", err)
		}
	}
	briefly := func(during time.Duration, start, end func()) func() {
		return func() {
			start()
			<-time.After(during)
			end()
		}
	}
	signal := func(s os.Signal) func() {
		return func() {
			if err := b.Signal(s); err != nil {
				t.Error(err)
			}
		}
	}
	return relaytest.Broker{
		Publisher: p, Destination: stream, Consume: b.consume(),
		Faults: []func(){
			kill,
			briefly(1500*time.Millisecond, signal(suspend.Stop), signal(suspend.Continue)),
			briefly(200*time.Millisecond, func() { b.do("CONFIG", "SET", "min-replicas-to-write", 1) }, func() { b.do("CONFIG", "SET", "min-replicas-to-write", 0) }),
			kill,
		},
	}
}

// consume reads the stream in order, from behind the last entry that was applied.
func (b *broker) consume() func(ctx context.Context, apply func([]relaytest.Message) error) error {
	next := "-"
	return func(ctx context.Context, apply func([]relaytest.Message) error) error {
		for {
			entries, err := b.client.XRangeN(ctx, stream, next, "+", 300).Result()
			if ctx.Err() != nil {
				return ctx.Err()
			}
			var got []relaytest.Message
			for _, entry := range entries {
				r, err := consume.Parse(consume.FromRedis(entry.Values))
				if err != nil {
					return err
				}
				got = append(got, relaytest.Message{ID: r.ID, Payload: r.Payload})
			}
			if err != nil || len(got) == 0 {
				select {
				case <-ctx.Done():
				case <-time.After(20 * time.Millisecond):
				}
				continue
			}
			if err := apply(got); err != nil {
				return err
			}
			next = "(" + entries[len(entries)-1].ID
		}
	}
}

// TestConsumeWhatWasPublished: a consumer reads an entry with all facts of its event, whatever the encoder.
func TestConsumeWhatWasPublished(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	for name, encoder := range map[string]publish.Encoder{
		"binary": nil, "structured": publish.CloudEvents("/users", publish.Structured), "json": publish.JSON(),
	} {
		p := b.publisher(t, func(cfg *redis.Config) { cfg.Encoder = encoder })
		o := full(event("user/17 ü", 1))
		require.Equal(t, []error{nil}, p.Publish(t.Context(), []publish.Outgoing{o}))
		all := b.received()
		r, err := consume.Parse(consume.FromRedis(all[len(all)-1].Values))
		require.NoError(t, err, name)
		require.Equal(t, o.ID, r.ID)
		require.Equal(t, "users.user_renamed", r.Type)
		require.Equal(t, o.PartitionKey, r.PartitionKey)
		require.Equal(t, uuid.NullUUID(o.TenantID), r.TenantID)
		require.Equal(t, o.CreatedAt, r.Time)
		require.Equal(t, consume.Entity(o.Entity), r.Entity)
		require.Equal(t, map[string]string{"traceparent": "00-a-b-01", "x-reason": "maßvoll"}, r.Headers)
		require.JSONEq(t, string(o.Payload), string(r.Payload))
	}
}
