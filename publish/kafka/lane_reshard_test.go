package kafka_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/kafka"
)

// renamed is an event of the tests of shards.
type renamed struct {
	Key string `json:"key"`
	N   int    `json:"n"`
}

var (
	renamedTopic = outbox.NewTopic[renamed](outbox.TopicSpec{Namespace: "relay", Name: "renamed", Version: 1, Log: true, Keys: func(v any) outbox.Keys {
		return outbox.Keys{Partition: eventkey.NewKey(eventkey.StringPart("key", v.(*renamed).Key))}
	}})
	removedTopic = outbox.NewTopic[renamed](outbox.TopicSpec{Namespace: "relay", Name: "removed", Version: 1, Log: true})
)

func enqueueRenamed(t *testing.T, pool *pgxpool.Pool, n int) {
	t.Helper()
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		_, err := renamedTopic.EnqueueMany(t.Context(), tx, []renamed{{Key: "a", N: n}})
		require.NoError(t, err)
	})
}

// relayTo returns a listener with a number of shards. It has two destinations, so it parks the events of one that has stalled.
func relayTo(t *testing.T, pool *pgxpool.Pool, p *kafka.Publisher, shards int) *listener.Listener {
	t.Helper()
	l, err := listener.New(pool, listener.Spec{Name: "relay", Shards: shards}, listener.Config{
		Logger: slog.New(slog.DiscardHandler), Publishers: map[string]publish.Publisher{"kafka": p}, ShutdownTimeout: 50 * time.Millisecond,
	}, listener.Publish(renamedTopic, publish.Publication{Broker: "kafka", Destination: "one"}),
		listener.Publish(removedTopic, publish.Publication{Broker: "kafka", Destination: "two"}))
	require.NoError(t, err)
	return l
}

func drain(t *testing.T, l *listener.Listener) listener.Report {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := l.Drain(ctx)
	require.NoError(t, err)
	return r
}

// holdProduce holds the next produce request until arrive is called, which returns when the cluster has it. seen is closed when
// the request is held.
func (c *cluster) holdProduce() (seen <-chan struct{}, arrive func()) {
	held, waken, woken := make(chan struct{}), make(chan struct{}), make(chan struct{})
	first := true
	c.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		if first {
			first = false
			close(held)
			c.SleepControl(func() { <-waken })
			close(woken)
		}
		return nil, nil, false
	})
	return held, func() {
		close(waken)
		<-woken
	}
}

// TestLateRecordAfterAChangeOfShards: a process hangs while a produce request is on its way, and its event is parked. The
// processes after it have another number of shards, so that the key has another lane. They send the event and a newer one of the
// key. Then the request arrives. The cluster refuses it, so that the newer event is the last record of its key.
func TestLateRecordAfterAChangeOfShards(t *testing.T) {
	t.Parallel()
	for name, numbers := range map[string][]int{
		"the same number": {2, 2}, "more": {1, 2}, "fewer": {3, 1}, "two changes, nothing sent between": {2, 4, 3}, "there and back": {2, 3, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, pool := newCluster(t, kfake.SeedTopics(1, "one")), pgtest.Database(t)
			before, after := c.publisher(t, isFenced), c.publisher(t, isFenced)
			enqueueRenamed(t, pool, 0)
			old := relayTo(t, pool, before, numbers[0])
			require.Equal(t, 1, drain(t, old).Delivered)

			seen, arrive := c.holdProduce()
			enqueueRenamed(t, pool, 1)
			ctx, stop := context.WithCancel(t.Context())
			stopped := make(chan error, 1)
			go func() { stopped <- old.Run(ctx) }()
			defer stop()
			pgtest.Receive(t, seen, "the request")
			pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.parked")
			stop()
			pgtest.Receive(t, stopped, "the end of Run")

			pgtest.Execute(t, pool, "UPDATE outbox.parked SET retry_after = now() + interval '1 hour'")
			for _, shards := range numbers[1:] {
				drain(t, relayTo(t, pool, after, shards))
				require.EqualValues(t, shards, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.listeners"))
			}
			enqueueRenamed(t, pool, 2)
			pgtest.Execute(t, pool, "UPDATE outbox.parked SET retry_after = now()")
			require.Equal(t, 2, drain(t, relayTo(t, pool, after, numbers[len(numbers)-1])).Delivered)
			arrive()
			for n := range 20 { // behind the late request
				require.Equal(t, []error{nil}, after.Publish(t.Context(), []publish.Outgoing{toOne("b", n)}))
			}

			var got []int
			for _, r := range c.received("one") {
				var e renamed
				require.NoError(t, json.Unmarshal(r.Value, &e))
				if e.Key == "a" {
					got = append(got, e.N)
				}
			}
			require.Equal(t, []int{0, 1, 2}, got)
		})
	}
}

// TestShardsChangeBetweenTransactions: the number of shards changes several times while processes publish with a transactional
// id, and calls that take long outlive their leases. What comes again comes in order, and ends with the latest event of its key.
func TestShardsChangeBetweenTransactions(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	c, pool := newCluster(t, kfake.SeedTopics(3, "one")), pgtest.Database(t)
	const keys = 8
	n := 0
	enqueue := func(rounds int) {
		t.Helper()
		for range rounds {
			var events []renamed
			n++
			for k := range keys {
				events = append(events, renamed{Key: string(rune('a' + k)), N: n})
			}
			pgtest.InTx(t, pool, func(tx pgx.Tx) {
				_, err := renamedTopic.EnqueueMany(t.Context(), tx, events)
				require.NoError(t, err)
			})
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var processes sync.WaitGroup
	defer processes.Wait()
	defer cancel()
	for _, shards := range []int{2, 1, 4, 3, 2, 4} { // each process keeps running, and follows the later ones
		l := relayTo(t, pool, c.publisher(t, isFenced), shards)
		processes.Go(func() { _ = l.Run(ctx) })
		pgtest.Settles(t, pool, shards, "SELECT count(*) FROM outbox.listeners WHERE shards = $1 AND reshard_to IS NULL", shards)
		enqueue(20)
	}
	last := make(map[string]int)
	c.committed("one", func(records []*kgo.Record) bool {
		clear(last)
		for _, r := range records {
			var e renamed
			require.NoError(t, json.Unmarshal(r.Value, &e))
			require.LessOrEqual(t, e.N, last[e.Key]+1, "the next of %s", e.Key)
			last[e.Key] = e.N
		}
		return len(last) == keys && !slices.ContainsFunc(slices.Collect(maps.Values(last)), func(latest int) bool { return latest != n })
	})
}
