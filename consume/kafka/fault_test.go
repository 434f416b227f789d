package kafka_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/internal/testing/campaign"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

const (
	faultKeys = 40
	variable  = "OUTBOXGEN_TEST_CONSUMER"
)

// orders are those of a child that consumes.
type orders struct {
	Database string
	Brokers  []string
}

// unruly returns a consumer that fails now and then: every 97th event fails four times in each process, and every 50th event
// of key 0 always until fixed is set.
func unruly(fixed *atomic.Bool) *effects {
	var mu sync.Mutex
	failures := make(map[uuid.UUID]int)
	e := &effects{}
	e.set(func(_ context.Context, _ pgx.Tx, d consume.Delivery[counted]) error {
		if poisoned(d.Payload) && !fixed.Load() {
			return consume.Permanent(errors.New("poison"))
		}
		if d.Payload.N%97 == 0 {
			mu.Lock()
			defer mu.Unlock()
			if failures[d.ID]++; failures[d.ID] <= 4 {
				return errTransient
			}
		}
		return nil
	})
	return e
}

func poisoned(p counted) bool { return p.Key == keyName(0) && p.N%50 == 0 }

// TestChild is the process that TestUnderFaults kills.
func TestChild(t *testing.T) {
	text := os.Getenv(variable)
	if text == "" {
		t.Skip("runs in a child only")
	}
	var o orders
	require.NoError(t, json.Unmarshal([]byte(text), &o))
	pool, err := pgxpool.New(t.Context(), o.Database)
	require.NoError(t, err)
	c := &cluster{addrs: o.Brokers}
	fmt.Println("consuming")
	t.Fatal(receiver(t, pool, unruly(new(atomic.Bool)), c.config()).Run(t.Context()))
}

// sender is the publisher of the relay. It writes one record of a key after another, in the form of publish/kafka.
// That publisher is not a requirement of this module: consume/relaytest tests the two together.
type sender struct{ client *kgo.Client }

func (s sender) Publish(ctx context.Context, events []publish.Outgoing) []error {
	encoder := publish.CloudEvents("/test", publish.Binary)
	return publish.Each(ctx, events, faultKeys, func(ctx context.Context, o publish.Outgoing) error {
		m, err := encoder.Encode(o)
		if err != nil {
			return err
		}
		r := &kgo.Record{Topic: o.Destination, Key: []byte(o.Key), Value: m.Body}
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: "content-type", Value: []byte(m.ContentType)})
		for name, value := range m.Attributes {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: "ce_" + name, Value: []byte(value)})
		}
		if err := s.client.ProduceSync(ctx, r).FirstErr(); err != nil {
			return outbox.Unavailable(err)
		}
		return nil
	})
}

// TestUnderFaults relays events from one database by Kafka into another one, while members of the group come, go and are
// killed, connections are cut, the cluster is killed, the database ends its sessions and falls silent, and the consumer fails.
// No event is lost, the order per key is kept, and each effect happens once. What can never be applied is a dead letter.
func TestUnderFaults(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	events := campaign.Of(4000, 20_000)
	perKey := events / faultKeys
	producer, pool := pgtest.Database(t), database(t)
	c := newCluster(t, 3, kfake.DataDir(t.TempDir()))
	began := time.Now()

	// The publishing side.
	counts := outbox.NewTopic[counted](outbox.TopicSpec{
		Namespace: "test", Name: "counted", Version: 1, Log: true,
		Keys: func(payload any) outbox.Keys {
			return outbox.Keys{Partition: eventkey.NewKey(eventkey.StringPart("key", payload.(*counted).Key))}
		},
	})
	client, err := kgo.NewClient(kgo.SeedBrokers(c.addrs...), kgo.DisableClientMetrics(), kgo.RecordDeliveryTimeout(2*time.Second))
	require.NoError(t, err)
	defer client.Close()
	relay, err := listener.New(producer, listener.Spec{Name: "relay", Retry: outbox.Retry{MaxAttempts: 50, BaseDelay: 50 * time.Millisecond, MaxDelay: 500 * time.Millisecond}},
		listener.Config{
			BatchSize: 500, PollInterval: 100 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
			Publishers: map[string]publish.Publisher{"kafka": sender{client}},
		},
		listener.Publish(counts, publish.Publication{Broker: "kafka", Destination: topic}))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	work.Go(func() {
		if err := relay.Run(ctx); err != nil {
			t.Errorf("relay: %v", err)
		}
	})
	var written atomic.Int64
	work.Go(func() {
		for n := 1; n <= perKey && ctx.Err() == nil; n++ {
			err := pgx.BeginFunc(ctx, producer, func(tx pgx.Tx) error {
				steps := make([]counted, faultKeys)
				for k := range steps {
					steps[k] = counted{keyName(k), n}
				}
				_, err := counts.EnqueueMany(ctx, tx, steps)
				return err
			})
			if err != nil && ctx.Err() == nil {
				t.Errorf("enqueue: %v", err)
			}
			written.Add(faultKeys)
		}
	})

	// The consuming side: two members that stay, and one child that is killed and replaced.
	proxy := pgtest.NewProxy(t, pool)
	var fixed atomic.Bool
	steady := receiver(t, proxy.Pool(t), unruly(&fixed), c.config())
	stopSteady := start(t, steady)
	stopOther := start(t, receiver(t, proxy.Pool(t), unruly(&fixed), c.config()))
	spawn := func() *runtimetest.Child {
		child := runtimetest.Spawn(t, "TestChild", variable, orders{runtimetest.ChildURL(t, pool), c.addrs})
		child.Await(t, "consuming")
		return child
	}
	child := spawn()
	refuse := func(code *kerr.Error, keys ...kmsg.Key) func() {
		return func() { c.Fault(kfake.Fault{Keys: keys, Err: code, Count: 5}) }
	}
	const garbage = 20
	faults := []func(){
		c.cut,
		refuse(kerr.NotLeaderForPartition, kmsg.Fetch),
		func() {
			pgtest.Execute(t, pool, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`)
		},
		refuse(kerr.NotCoordinator, kmsg.OffsetCommit, kmsg.Heartbeat),
		func() { child.Kill(); child = spawn() },
		func() {
			for i := range garbage {
				c.produce(&kgo.Record{Key: []byte(keyName(i)), Value: []byte("hello")})
			}
		},
		func() {
			require.NoError(t, stopOther())
			stopOther = start(t, receiver(t, proxy.Pool(t), unruly(&fixed), c.config()))
		},
		func() { c.Close(); c.start() },
		func() {
			proxy.Swallow()
			time.Sleep(300 * time.Millisecond) // the length of the outage
			proxy.Pass()
			proxy.Cut()
		},
		refuse(kerr.UnknownMemberID, kmsg.Heartbeat),
		func() { child.Kill() },
	}
	applied := func() int { return pgtest.Count(t, pool, "SELECT count(*) FROM effects") }
	for i, fault := range faults {
		pgtest.Eventually(t, func() bool { return applied() >= (i+1)*events/(len(faults)+2) }, func() string { return fmt.Sprintf("before fault %d: %d effects of %d", i, applied(), events) })
		fault()
	}
	poison := 0
	for n := 1; n <= perKey; n++ {
		if poisoned(counted{keyName(0), n}) {
			poison++
		}
	}
	pgtest.Eventually(t, func() bool { return applied() >= events-poison }, func() string { return fmt.Sprintf("%d effects of %d", applied(), events-poison) })
	took := time.Since(began)
	require.Equal(t, events-poison, applied(), "effects")
	pgtest.Settles(t, pool, poison+garbage, "SELECT count(*) FROM outbox.inbox_messages WHERE status = 'dead'")
	pgtest.Settles(t, pool, 0, "SELECT count(*) FROM outbox.inbox_messages WHERE status = 'parked'")
	require.Equal(t, events-poison, pgtest.Count(t, pool, "SELECT count(DISTINCT event) FROM effects"), "events with an effect")
	require.Zero(t, pgtest.Count(t, pool, `SELECT count(*) FROM (SELECT key, n, lag(n) OVER (PARTITION BY key ORDER BY no) AS before FROM effects) AS e
		WHERE n <= before`), "out of the order of their key")
	require.Zero(t, pgtest.Count(t, pool, `SELECT count(*) FROM (SELECT n, row_number() OVER (PARTITION BY key ORDER BY no) AS want FROM effects WHERE key <> 'key 0') AS e
		WHERE n <> want`), "out of the order of their key")
	awaitCaughtUp(t, steady)
	require.NoError(t, stopSteady())
	require.NoError(t, stopOther())
	t.Logf("%d events in %s", events, took.Round(time.Millisecond))
}
