package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/kafka"
	"github.com/outboxgen/outboxgen/consume/receive"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
)

// placeOf returns the partition and the offset of a place.
func placeOf(t testing.TB, place string) (partition, offset int) {
	t.Helper()
	if _, err := fmt.Sscanf(place, "kafka:"+topic+"/%d@%d", &partition, &offset); err != nil {
		t.Errorf("place %q: %v", place, err)
	}
	return partition, offset
}

// TestUnsettledRecordIsNotPassed: the offset stays in front of a record that is not settled, although later ones of its
// partition are. The next Run reads it again.
func TestUnsettledRecordIsNotPassed(t *testing.T) {
	t.Parallel()
	pool, c := database(t), newCluster(t, 1, kfake.SeedTopics(1, "single"))
	e := &effects{}
	waits := make(chan struct{}, 1000)
	e.set(func(_ context.Context, _ pgx.Tx, d consume.Delivery[counted]) error {
		if d.Payload.Key == "a" {
			waits <- struct{}{}
			return consume.Unavailable(errors.New("away"))
		}
		return nil
	})
	cfg := c.config()
	cfg.Topics = []string{"single"}
	var list []*kgo.Record
	for n, key := range []string{"a", "c", "b", "d", "e", "f"} { // in several lanes
		list = append(list, record(key, 1))
		list[n].Topic = "single"
	}
	c.produce(list...)
	stop := start(t, receiver(t, pool, e, cfg))
	pgtest.Receive(t, waits, "the effect that waits")
	pgtest.Eventually(t, func() bool { return pgtest.Count(t, pool, "SELECT count(*) FROM effects") >= 2 })
	require.NoError(t, stop())
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM effects WHERE key = 'a'"))
	e.set(nil)
	r := receiver(t, pool, e, cfg)
	stop = start(t, r)
	awaitCaughtUp(t, r)
	require.NoError(t, stop())
	require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*) FROM effects WHERE key = 'a'"))
	require.Equal(t, 6, pgtest.Count(t, pool, "SELECT count(*) FROM effects"))
}

// TestRevokedPartitionsEndFirst: when a partition moves, the process that had it has ended its transactions and committed its
// offset before another one reads it: no record is read twice, and none is settled by the old process afterwards.
func TestRevokedPartitionsEndFirst(t *testing.T) {
	t.Parallel()
	pool, c := database(t), newCluster(t, 1)
	e := &effects{}
	var mu sync.Mutex
	moved := make(map[int]bool)
	calls, twice, late := 0, 0, 0
	e.set(func(context.Context, pgx.Tx, consume.Delivery[counted]) error {
		mu.Lock()
		calls++
		slow := calls > 100 && len(moved) == 0 // so that something is left to move
		mu.Unlock()
		time.Sleep(time.Millisecond) // the time that an effect takes
		if slow {
			time.Sleep(20 * time.Millisecond)
		}
		return nil
	})
	member := func(second bool) kafka.Config {
		cfg := c.config()
		cfg.Options = append(cfg.Options, kgo.AutoCommitInterval(time.Hour), kgo.SessionTimeout(30*time.Second), kgo.RebalanceTimeout(time.Minute))
		cfg.Receive.BatchSize, cfg.Receive.Concurrency = 5, 1 // else other keys get ahead of the offset, and are read twice
		cfg.Receive.Observer = &receive.Observer{Settled: func(s receive.Settled) {
			partition, _ := placeOf(t, s.Place)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case s.Outcome == receive.Duplicate:
				twice++
			case second:
				moved[partition] = true
			case moved[partition]:
				late++
			}
		}}
		return cfg
	}
	c.produce(records(60, 20)...)
	first := receiver(t, pool, e, member(false))
	stopFirst := start(t, first)
	pgtest.Eventually(t, func() bool { return pgtest.Count(t, pool, "SELECT count(*) FROM effects") > 50 })
	stopSecond := start(t, receiver(t, pool, e, member(true)))
	pgtest.Settles(t, pool, 1200, "SELECT count(*) FROM effects")
	require.NoError(t, stopSecond())
	require.NoError(t, stopFirst())
	requireCounted(t, pool, 60, 20)
	mu.Lock()
	defer mu.Unlock()
	require.NotEmpty(t, moved, "no partition has moved while there were records")
	require.Zero(t, late, "settled by the process that had given the partition up")
	require.Zero(t, twice, "read again after the partition had moved")
}

// polled has the highest offset up to which a client has handed out records. A record that it hands out again does not count again.
type polled struct{ n atomic.Int64 }

func (p *polled) OnFetchRecordUnbuffered(r *kgo.Record, polled bool) {
	for have := p.n.Load(); polled && r.Offset >= have && !p.n.CompareAndSwap(have, r.Offset+1); {
		have = p.n.Load()
	}
}

// TestSlowPartition: records of a partition whose effects are slow are not fetched without a limit, and are fetched later. When
// the process loses the partition and gets it again, what waited is dropped and read again.
func TestSlowPartition(t *testing.T) {
	t.Parallel()
	const n = 15_000 // more than one fetch
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprintf("lost=%t", lost), func(t *testing.T) {
			t.Parallel()
			pool, c := database(t), newCluster(t, 1, kfake.SeedTopics(1, "single"))
			list := []*kgo.Record{record("a", 1)}
			for range n {
				other := record("a", 1)
				for i, h := range other.Headers {
					if h.Key == "ce_type" {
						other.Headers[i].Value = []byte("test.other")
					}
				}
				list = append(list, other)
			}
			for _, r := range list {
				r.Topic = "single"
			}
			c.produce(append(list, &kgo.Record{Topic: "single", Key: []byte("a"), Headers: record("a", 2).Headers, Value: record("a", 2).Value})...)
			e, in := &effects{}, make(chan struct{}, 1)
			finish, cancelled := make(chan struct{}), make(chan struct{}, 1)
			e.set(func(ctx context.Context, _ pgx.Tx, _ consume.Delivery[counted]) error { // also after a rebalance at the start
				signal(in)
				select {
				case <-finish:
					return nil
				case <-ctx.Done():
					signal(cancelled)
					return ctx.Err()
				}
			})
			hook := &polled{}
			cfg := c.config()
			var twice atomic.Int64
			cfg.Topics, cfg.Options = []string{"single"}, append(cfg.Options, kgo.WithHooks(hook), kgo.FetchMaxPartitionBytes(64<<10),
				kgo.SessionTimeout(time.Minute)) // a busy machine may be late with heartbeats; the partition is lost when the test says so
			cfg.Receive.IgnoreUnknown, cfg.Receive.ShutdownTimeout, cfg.Receive.EffectTimeout = true, 100*time.Millisecond, time.Hour
			cfg.Receive.Observer = &receive.Observer{Settled: func(s receive.Settled) {
				if s.Outcome == receive.Duplicate {
					twice.Add(1)
				}
			}}
			r := receiver(t, pool, e, cfg)
			stop := start(t, r)
			pgtest.Receive(t, in, "the slow effect")
			pgtest.Eventually(t, func() bool { return hook.n.Load() > 4000 })
			time.Sleep(500 * time.Millisecond) // in which more would come
			if n := hook.n.Load(); n >= 5000 {
				require.FailNow(t, "too many records are fetched", "%d; duplicates %d; rebalanced %t; Run returns %v", n, twice.Load(), len(cancelled) > 0, stop())
			}
			if lost {
				select {
				case <-cancelled: // of a rebalance at the start
				default:
				}
				c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, Err: kerr.UnknownMemberID, TopLevel: true})
				pgtest.Receive(t, cancelled, "the loss of the partition")
			}
			close(finish)
			awaitCaughtUp(t, r)
			require.NoError(t, stop())
			require.Equal(t, 2, pgtest.Count(t, pool, "SELECT count(*) FROM effects"))
			require.Zero(t, twice.Load())
		})
	}
}

// signal sends to a channel that has room for one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// TestGroupThatCannotBe: an error of the group that does not pass ends Run.
func TestGroupThatCannotBe(t *testing.T) {
	t.Parallel()
	pool := database(t)
	for _, code := range []*kerr.Error{kerr.InvalidGroupID, kerr.GroupMaxSizeReached, kerr.InconsistentGroupProtocol, kerr.InvalidSessionTimeout} {
		c := newCluster(t, 1)
		c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.JoinGroup}, Err: code, TopLevel: true, Count: -1})
		err := run(t, receiver(t, pool, &effects{}, c.config()))
		require.ErrorIs(t, err, code)
		require.ErrorContains(t, err, "group counts: ")
	}
}

// TestLagBehindTheStart: records that Kafka has deleted are not behind.
func TestLagBehindTheStart(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	c.produce(records(20, 10)...)
	client, err := kgo.NewClient(kgo.SeedBrokers(c.addrs...), kgo.DisableClientMetrics())
	require.NoError(t, err)
	defer client.Close()
	admin := kadm.NewClient(client)
	ends, err := admin.ListEndOffsets(t.Context(), topic)
	require.NoError(t, err)
	_, err = admin.DeleteRecords(t.Context(), ends.Offsets())
	require.NoError(t, err)
	lags, err := receiver(t, database(t), &effects{}, c.config()).Lag(t.Context())
	require.NoError(t, err)
	for _, l := range lags {
		require.Zero(t, l.Records, "%+v", l)
	}
}

// TestKeysThatMove: partitions are added to a topic while records flow. Nothing is lost or applied twice, and one line says that
// keys have moved.
func TestKeysThatMove(t *testing.T) {
	t.Parallel()
	pool, c := database(t), newCluster(t, 1)
	cfg, log := c.config(), runtimetest.NewLogSpy()
	cfg.Receive.Logger, cfg.UnknownTopicTimeout = log.Logger(), 200*time.Millisecond
	stop := start(t, receiver(t, pool, &effects{}, cfg))
	const keys, each = 30, 40
	var producing sync.WaitGroup
	half := make(chan struct{})
	producing.Go(func() {
		for n := 1; n <= each; n++ {
			var list []*kgo.Record
			for key := range keys {
				list = append(list, record(keyName(key), n))
			}
			c.produce(list...) // with a new client, which knows the partitions of now
			if n == each/2 {
				close(half)
			}
		}
	})
	pgtest.Receive(t, half, "half of the records")
	client, err := kgo.NewClient(kgo.SeedBrokers(c.addrs...), kgo.DisableClientMetrics())
	require.NoError(t, err)
	defer client.Close()
	_, err = kadm.NewClient(client).CreatePartitions(t.Context(), 6, topic)
	require.NoError(t, err)
	producing.Wait()
	log.Await(t, "a topic has more partitions")
	c.produce(records(keys, 1)...)
	pgtest.Settles(t, pool, keys*(each+1), "SELECT count(*) FROM effects")
	require.NoError(t, stop())
	require.Equal(t, keys*(each+1), pgtest.Count(t, pool, "SELECT count(DISTINCT event) FROM effects"))
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.inbox_messages"))
	line := `level=WARN msg="a topic has more partitions: keys have moved, and their order is not kept across the change" consumer_group=counts destination=sc.domain.counted partitions=12 before=6`
	require.Equal(t, 1, strings.Count(log.String(), line), log.String())
	require.Equal(t, 1, strings.Count(log.String(), "more partitions"))
}

// TestForeignRecordsSayWhatTheyAre: each kind of record that this consumer cannot read is one dead letter and one line, with its
// place and what is wrong. It is tried once.
func TestForeignRecordsSayWhatTheyAre(t *testing.T) {
	t.Parallel()
	pool, c := database(t), newCluster(t, 1, kfake.SeedTopics(1, "single"))
	change := func(name, value string) *kgo.Record {
		r := record("a", 1)
		for i, h := range r.Headers {
			if h.Key == name {
				r.Headers[i].Value = []byte(value)
			}
		}
		return r
	}
	invalid, empty := record("a", 1), record("a", 1)
	invalid.Value, empty.Value = []byte("\x00\xff{"), nil
	list := []*kgo.Record{
		record("a", 1),
		{Key: []byte("a"), Value: []byte("hello")},
		{Key: []byte("a")},
		change("ce_id", "7"),
		change("ce_specversion", "0.3"),
		change("ce_type", "test.other"),
		change("content-type", "application/avro"),
		invalid,
		empty,
		record("a", 2),
	}
	for _, r := range list {
		r.Topic = "single"
	}
	c.produce(list...)
	cfg, log := c.config(), runtimetest.NewLogSpy()
	cfg.Topics, cfg.Receive.Logger = []string{"single"}, log.Logger()
	cfg.Receive.Observer = &receive.Observer{Failed: func(f receive.Failed) { t.Errorf("tried: %+v", f) }}
	r := receiver(t, pool, &effects{}, cfg)
	stop := start(t, r)
	awaitCaughtUp(t, r)
	require.NoError(t, stop())
	requireCounted(t, pool, 1, 2)
	for offset, want := range []string{
		"", "it has neither CloudEvent attributes nor outbox headers", "it has neither CloudEvent attributes nor outbox headers", "id", "specversion",
		"unknown topic", "content-type is not JSON", "payload is not JSON", "data is missing",
	} {
		if want == "" {
			continue
		}
		place := fmt.Sprintf("kafka:single/0@%d", offset)
		said := pgtest.Value[string](t, pool, "SELECT error FROM outbox.inbox_messages WHERE status = 'dead' AND place = $1", place)
		require.Contains(t, said, want, place)
		require.Equal(t, 1, strings.Count(log.String(), "place="+place+" "), place)
	}
	require.Equal(t, 8, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.inbox_messages"))
}
