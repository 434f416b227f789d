package kafka_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/kafka"
	"github.com/outboxgen/outboxgen/consume/receive"
	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/testing/freeport"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
)

// TestRunConsumesInOrder: each record has its effect once, in the order of its key. The offsets are committed, and a later
// Run continues behind them.
func TestRunConsumesInOrder(t *testing.T) {
	t.Parallel()
	pool, c := database(t), newCluster(t, 1)
	var settled atomic.Int64
	cfg := c.config()
	cfg.Receive.Observer = &receive.Observer{Settled: func(receive.Settled) { settled.Add(1) }}
	c.produce(records(20, 10)...)
	r := receiver(t, pool, &effects{}, cfg)
	lags, err := r.Lag(t.Context())
	require.NoError(t, err)
	require.Len(t, lags, 6)
	require.Equal(t, int64(-1), lags[0].Committed)
	stop := start(t, r)
	awaitCaughtUp(t, r)
	require.ErrorIs(t, r.Run(t.Context()), kafka.ErrRunning)
	require.NoError(t, stop())
	requireCounted(t, pool, 20, 10)

	var more []*kgo.Record
	for key := range 20 {
		more = append(more, record(keyName(key), 11))
	}
	c.produce(more...)
	stop = start(t, r)
	awaitCaughtUp(t, r)
	require.NoError(t, stop())
	requireCounted(t, pool, 20, 11)
	require.Equal(t, int64(220), settled.Load(), "nothing was read twice")
}

// TestAbortedRecords: records of an aborted transaction have no effect. The publisher sends their events again.
func TestAbortedRecords(t *testing.T) {
	t.Parallel()
	pool, c := database(t), newCluster(t, 1)
	client, err := kgo.NewClient(kgo.SeedBrokers(c.addrs...), kgo.DisableClientMetrics(), kgo.DefaultProduceTopic(topic), kgo.TransactionalID("relay"))
	require.NoError(t, err)
	defer client.Close()
	for _, end := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit, kgo.TryAbort} {
		require.NoError(t, client.BeginTransaction())
		require.NoError(t, client.ProduceSync(t.Context(), records(1, 3)...).FirstErr())
		require.NoError(t, client.EndTransaction(t.Context(), end))
	}
	r := receiver(t, pool, &effects{}, c.config())
	stop := start(t, r)
	awaitCaughtUp(t, r)
	require.NoError(t, stop())
	requireCounted(t, pool, 1, 3)
}

// TestMembersComeAndGo: partitions move between processes while records flow. Each effect happens once and in order.
func TestMembersComeAndGo(t *testing.T) {
	t.Parallel()
	pool, c := database(t), newCluster(t, 1)
	e := &effects{}
	e.set(func(context.Context, pgx.Tx, consume.Delivery[counted]) error {
		time.Sleep(time.Millisecond) // the time that an effect takes
		return nil
	})
	first := receiver(t, pool, e, c.config())
	stopFirst := start(t, first)
	c.produce(records(30, 20)...)
	pgtest.Eventually(t, func() bool { return pgtest.Count(t, pool, "SELECT count(*) FROM effects") > 50 })
	second := receiver(t, pool, e, c.config())
	stopSecond := start(t, second)
	pgtest.Eventually(t, func() bool { return pgtest.Count(t, pool, "SELECT count(*) FROM effects") > 200 })
	require.NoError(t, stopFirst())
	pgtest.Eventually(t, func() bool { return pgtest.Count(t, pool, "SELECT count(*) FROM effects") > 300 })
	stopThird := start(t, receiver(t, pool, e, c.config()))
	awaitCaughtUp(t, second)
	require.NoError(t, stopSecond())
	require.NoError(t, stopThird())
	requireCounted(t, pool, 30, 20)
}

// TestRunNamesWhatIsWrong: what waiting does not change ends Run with an error that says what is wrong and where.
func TestRunNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	pool := database(t)
	t.Run("config", func(t *testing.T) {
		t.Parallel()
		consumer := consumerOf(t, &effects{})
		_, err := kafka.New(nil, consumer, kafka.Config{})
		require.ErrorContains(t, err, "no pool given")
		_, err = kafka.New(pool, nil, kafka.Config{})
		require.ErrorContains(t, err, "no consumer given")
		_, err = kafka.New(pool, consumer, kafka.Config{})
		require.EqualError(t, err, "new Kafka receiver: field Brokers is empty")
		for want, broker := range map[string]string{
			"field Brokers has an empty address":              "",
			"field Brokers has a URL: use host or host:port":  "kafka://a:9092",
			"field Brokers has a user: use host or host:port": "me:S3CRET@a:9092",
		} {
			_, err = kafka.New(pool, consumer, kafka.Config{Brokers: []string{"a:9092", broker}, Topics: []string{"t"}})
			require.ErrorContains(t, err, "new Kafka receiver: "+want)
			require.NotContains(t, err.Error(), "S3CRET")
		}
		_, err = kafka.New(pool, consumer, kafka.Config{Brokers: []string{"a"}})
		require.EqualError(t, err, "new Kafka receiver: field Topics is empty")
		_, err = kafka.New(pool, consumer, kafka.Config{Brokers: []string{"a"}, Topics: []string{"t"}, Receive: receive.Config{BatchSize: -1}})
		require.EqualError(t, err, "new receiver: field BatchSize -1 is not between 1 and 10000")
	})
	t.Run("no broker", func(t *testing.T) {
		t.Parallel()
		cfg := newCluster(t, 1).config()
		cfg.Brokers, cfg.StartTimeout = []string{"127.0.0.1:1"}, 300*time.Millisecond
		err := run(t, receiver(t, pool, &effects{}, cfg))
		require.ErrorIs(t, err, kafka.ErrUnreachable)
		require.ErrorContains(t, err, "consume sc.domain.counted as counts: no broker answers at 127.0.0.1:1 within 300ms: ")
	})
	for name, broker := range map[string]struct{ address, cause string }{
		"refused":   {"127.0.0.1:1", "connection refused"},
		"unknown":   {"kafka.invalid:9092", "lookup kafka.invalid"},
		"not Kafka": {answering(t, "HTTP/1.1 400 Bad Request\r\n\r\n"), "invalid large response size"},
	} {
		t.Run("cause, "+name, func(t *testing.T) {
			t.Parallel()
			cfg := newCluster(t, 1).config()
			cfg.Brokers, cfg.StartTimeout = []string{broker.address}, 2*time.Second
			require.ErrorContains(t, run(t, receiver(t, pool, &effects{}, cfg)), broker.cause)
		})
	}
	t.Run("cause, before the attempt that the timeout cuts off", func(t *testing.T) {
		t.Parallel()
		port, err := freeport.Find()
		require.NoError(t, err)
		cfg := newCluster(t, 1).config()
		cfg.Brokers, cfg.StartTimeout = []string{fmt.Sprintf("127.0.0.1:%d", port)}, 3*time.Second
		cfg.Options = append(cfg.Options, kgo.RequestTimeoutOverhead(500*time.Millisecond))
		var silent net.Listener // from the first warning on, the port takes connections and never answers
		cfg.Receive.Logger = slog.New(onWarning{slog.DiscardHandler, func() {
			if silent == nil {
				silent, err = net.Listen("tcp", cfg.Brokers[0])
			}
		}})
		got := run(t, receiver(t, pool, &effects{}, cfg))
		require.NoError(t, err)
		require.NotNil(t, silent)
		require.NoError(t, silent.Close())
		require.ErrorIs(t, got, kafka.ErrUnreachable)
		require.ErrorContains(t, got, "connection refused")
	})
	t.Run("no topic", func(t *testing.T) {
		t.Parallel()
		cfg := newCluster(t, 1).config()
		cfg.Topics, cfg.UnknownTopicTimeout = []string{topic, "sc.domain.cuonted"}, 300*time.Millisecond
		err := run(t, receiver(t, pool, &effects{}, cfg))
		require.ErrorIs(t, err, kafka.ErrUnknownTopic)
		require.ErrorContains(t, err, "topic sc.domain.cuonted: the topic does not exist: create it, or correct Config.Topics")
	})
	t.Run("a topic that is created later", func(t *testing.T) {
		t.Parallel()
		own := database(t)
		c := newCluster(t, 1)
		cfg, log := c.config(), runtimetest.NewLogSpy()
		cfg.Topics, cfg.Receive.Logger, cfg.UnknownTopicTimeout = []string{"later"}, log.Logger(), patience
		r := receiver(t, own, &effects{}, cfg)
		stop := start(t, r)
		log.Await(t, "a topic does not exist: records wait")
		require.NoError(t, c.CreateTopic("later", 2, nil))
		one := record("a", 1)
		one.Topic = "later"
		c.produce(one)
		pgtest.Settles(t, own, 1, "SELECT count(*) FROM effects")
		require.NoError(t, stop())
	})
	t.Run("a topic that is deleted", func(t *testing.T) {
		t.Parallel()
		own := database(t)
		c := newCluster(t, 1)
		cfg := c.config()
		cfg.UnknownTopicTimeout = 300 * time.Millisecond
		c.produce(record("a", 1))
		r := receiver(t, own, &effects{}, cfg)
		ended := make(chan error, 1)
		go func() { ended <- r.Run(t.Context()) }()
		pgtest.Settles(t, own, 1, "SELECT count(*) FROM effects")
		require.NoError(t, c.DeleteTopic(topic))
		require.ErrorIs(t, pgtest.Receive(t, ended, "the end of Run"), kafka.ErrUnknownTopic)
	})
	t.Run("credentials", func(t *testing.T) {
		t.Parallel()
		c := newCluster(t, 1, kfake.EnableSASL(), kfake.Superuser("PLAIN", "me", "right"))
		cfg := c.config()
		cfg.StartTimeout = 5 * time.Second
		cfg.Options = append(cfg.Options, kgo.SASL(plain.Auth{User: "me", Pass: "S3CRET"}.AsMechanism()))
		err := run(t, receiver(t, pool, &effects{}, cfg))
		require.ErrorIs(t, err, kafka.ErrRefused)
		require.NotContains(t, err.Error(), "S3CRET")
	})
	for key, code := range map[kmsg.Key]*kerr.Error{
		kmsg.JoinGroup: kerr.GroupAuthorizationFailed, kmsg.FindCoordinator: kerr.GroupAuthorizationFailed, kmsg.Fetch: kerr.TopicAuthorizationFailed,
	} {
		t.Run(key.Name()+" "+code.Message, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 1)
			c.Fault(kfake.Fault{Keys: []kmsg.Key{key}, Err: code})
			err := run(t, receiver(t, pool, &effects{}, c.config()))
			require.ErrorIs(t, err, kafka.ErrRefused)
			require.ErrorContains(t, err, code.Message)
		})
	}
	t.Run("not migrated", func(t *testing.T) {
		t.Parallel()
		empty := pgtest.Pool(t, pgtest.Empty(t))
		c := newCluster(t, 1)
		c.produce(record("a", 1))
		cfg, log := c.config(), runtimetest.NewLogSpy()
		cfg.Receive.Logger = log.Logger()
		err := run(t, receiver(t, empty, &effects{}, cfg))
		require.ErrorIs(t, err, inbox.ErrNotMigrated)
		require.ErrorContains(t, err, "outboxgen migrate up --schema outbox")
		lines := log.Lines()
		require.Len(t, lines, 1, "nothing is read before the tables are known")
		require.Contains(t, lines[0], "level=ERROR")
	})
}

// TestForeignRecords: records of another producer are dead letters with their place, and those around them are applied.
func TestForeignRecords(t *testing.T) {
	t.Parallel()
	pool, c := database(t), newCluster(t, 1)
	c.produce(record("a", 1), &kgo.Record{Key: []byte("a"), Value: []byte("hello")}, &kgo.Record{Key: []byte{0xff}, Value: nil}, record("a", 2))
	r := receiver(t, pool, &effects{}, c.config())
	stop := start(t, r)
	awaitCaughtUp(t, r)
	require.NoError(t, stop())
	requireCounted(t, pool, 1, 2)
	require.Equal(t, 2, pgtest.Count(t, pool, `SELECT count(*) FROM outbox.inbox_messages WHERE status = 'dead' AND place LIKE 'kafka:sc.domain.counted/%@%'
		AND error = 'consume message: it has neither CloudEvent attributes nor outbox headers: malformed message'`))
	status, err := r.Status(t.Context())
	require.NoError(t, err)
	require.Equal(t, receive.Status{Dead: 2}, status)
}

// TestWrongTopic: a consumer that finds nothing but foreign records stops before it has kept all of them.
func TestWrongTopic(t *testing.T) {
	t.Parallel()
	pool, c := database(t), newCluster(t, 1)
	var foreign []*kgo.Record
	for range 500 {
		foreign = append(foreign, &kgo.Record{Value: []byte("{}")})
	}
	c.produce(foreign...)
	cfg := c.config()
	cfg.Receive.MaxDeadInARow, cfg.Receive.BatchSize = 50, 10
	err := run(t, receiver(t, pool, &effects{}, cfg))
	require.ErrorIs(t, err, receive.ErrOnlyDead)
	require.Less(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.inbox_messages"), 200)
}

// TestMorePartitions: keys move when a topic gets more partitions, which is said. Nothing is lost.
func TestMorePartitions(t *testing.T) {
	t.Parallel()
	pool, c := database(t), newCluster(t, 1)
	cfg, log := c.config(), runtimetest.NewLogSpy()
	cfg.Receive.Logger, cfg.UnknownTopicTimeout = log.Logger(), 200*time.Millisecond
	r := receiver(t, pool, &effects{}, cfg)
	stop := start(t, r)
	c.produce(records(20, 1)...)
	pgtest.Settles(t, pool, 20, "SELECT count(*) FROM effects")
	client, err := kgo.NewClient(kgo.SeedBrokers(c.addrs...), kgo.DisableClientMetrics())
	require.NoError(t, err)
	defer client.Close()
	more := kmsg.NewPtrCreatePartitionsRequest()
	more.TimeoutMillis = 10_000
	more.Topics = []kmsg.CreatePartitionsRequestTopic{{Topic: topic, Count: 12}}
	_, err = more.RequestWith(t.Context(), client)
	require.NoError(t, err)
	log.Await(t, "a topic has more partitions")
	var second []*kgo.Record
	for key := range 20 {
		second = append(second, record(keyName(key), 2))
	}
	c.produce(second...)
	pgtest.Settles(t, pool, 40, "SELECT count(*) FROM effects")
	require.NoError(t, stop())
	requireCounted(t, pool, 20, 2)
}

// TestStopDuringARebalance: brokers that wait for another member of the group do not hold up a stop.
func TestStopDuringARebalance(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	joins := make(chan struct{}, 1)
	c.ControlKey(int16(kmsg.JoinGroup), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		select {
		case joins <- struct{}{}:
		default:
		}
		return nil, nil, true // no answer
	})
	cfg := c.config()
	cfg.Options = append(cfg.Options, kgo.RebalanceTimeout(5*time.Minute))
	stop := start(t, receiver(t, database(t), &effects{}, cfg))
	pgtest.Receive(t, joins, "a request to join")
	began := time.Now()
	require.NoError(t, stop())
	require.Less(t, time.Since(began), time.Minute)
}

// onWarning calls a function at each warning of the receiver.
type onWarning struct {
	slog.Handler
	call func()
}

func (onWarning) Enabled(context.Context, slog.Level) bool { return true }

func (h onWarning) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "no broker answers: records wait" {
		h.call()
	}
	return nil
}

func (h onWarning) WithAttrs([]slog.Attr) slog.Handler { return h }
