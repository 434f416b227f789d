package kafka_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/kafka"
	"github.com/outboxgen/outboxgen/consume/receive"
	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/testing/freeport"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/worker"
)

var _ worker.Runner = (*kafka.Receiver)(nil)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(pgtest.Supervisor))
}

const (
	topic = "sc.domain.counted"
	group = "counts"
	// patience is how long a test waits for something that must happen. It elapses only if something is broken.
	patience = 3 * time.Minute
)

// cluster is a Kafka cluster. Its connections can be cut, and it can be killed and started again with its records.
type cluster struct {
	t    testing.TB
	opts []kfake.Opt
	*kfake.Cluster
	addrs []string
	login []kgo.Opt // of produce

	mu    sync.Mutex
	conns map[net.Conn]bool
}

func newCluster(t testing.TB, brokers int, opts ...kfake.Opt) *cluster {
	t.Helper()
	c := &cluster{t: t, conns: make(map[net.Conn]bool)}
	c.opts = append([]kfake.Opt{kfake.NumBrokers(brokers), kfake.SeedTopics(6, topic), kfake.ListenFn(c.listen)}, opts...)
	var ports []int
	for range brokers {
		port, err := freeport.Find()
		require.NoError(t, err)
		ports = append(ports, port)
	}
	c.opts = append(c.opts, kfake.Ports(ports...)) // which stay its own when it is started again
	c.start()
	t.Cleanup(func() { c.Close() })
	return c
}

func (c *cluster) start() {
	c.t.Helper()
	for _, a := range c.addrs { // where it was before
		require.NoError(c.t, freeport.Reclaim(a))
	}
	started, err := kfake.NewCluster(c.opts...)
	require.NoError(c.t, err)
	c.Cluster, c.addrs = started, started.ListenAddrs()
}

func (c *cluster) listen(network, address string) (net.Listener, error) {
	l, err := net.Listen(network, address)
	return cutListener{l, c}, err
}

type cutListener struct {
	net.Listener
	c *cluster
}

func (l cutListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.c.mu.Lock()
		l.c.conns[conn] = true
		l.c.mu.Unlock()
	}
	return conn, err
}

// cut closes all connections.
func (c *cluster) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.conns {
		_ = conn.Close()
	}
	clear(c.conns)
}

// produce writes records as they are.
func (c *cluster) produce(records ...*kgo.Record) {
	c.t.Helper()
	client, err := kgo.NewClient(append(c.login, kgo.SeedBrokers(c.addrs...), kgo.DisableClientMetrics(), kgo.DefaultProduceTopic(topic),
		// A fetch has whole batches, however large: thousands of records, depending on how busy the machine is.
		kgo.ProducerBatchMaxBytes(32<<10), kgo.ProducerBatchCompression(kgo.NoCompression()))...)
	require.NoError(c.t, err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(c.t, client.ProduceSync(ctx, records...).FirstErr())
}

// counted is the payload: the n-th event of a key.
type counted struct {
	Key string `json:"key"`
	N   int    `json:"n"`
}

var countedTopic = consume.NewTopic[counted](consume.TopicSpec{Namespace: "test", Name: "counted"})

// record is the n-th event of a key, as publish/kafka sends it.
func record(key string, n int) *kgo.Record {
	body, err := json.Marshal(counted{key, n})
	if err != nil {
		panic(err)
	}
	header := func(name, value string) kgo.RecordHeader { return kgo.RecordHeader{Key: name, Value: []byte(value)} }
	return &kgo.Record{Key: []byte(key), Value: body, Headers: []kgo.RecordHeader{
		header("content-type", "application/json"), header("ce_specversion", "1.0"), header("ce_type", "test.counted"),
		header("ce_id", uuid.Must(uuid.NewV7()).String()), header("ce_source", "/test"),
	}}
}

// records are the events 1 to n of so many keys, in turn.
func records(keys, n int) (list []*kgo.Record) {
	for i := range n {
		for key := range keys {
			list = append(list, record(keyName(key), i+1))
		}
	}
	return list
}

// effects is a consumer that appends a row per event.
type effects struct {
	mu   sync.Mutex
	fail func(ctx context.Context, tx pgx.Tx, d consume.Delivery[counted]) error // before the insert; nil succeeds
}

func (e *effects) set(fail func(ctx context.Context, tx pgx.Tx, d consume.Delivery[counted]) error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fail = fail
}

func (e *effects) ConsumeCounted(ctx context.Context, tx pgx.Tx, d consume.Delivery[counted]) error {
	e.mu.Lock()
	fail := e.fail
	e.mu.Unlock()
	if fail != nil {
		if err := fail(ctx, tx, d); err != nil {
			return err
		}
	}
	_, err := tx.Exec(ctx, "INSERT INTO effects (event, key, n) VALUES ($1, $2, $3)", d.ID, d.Payload.Key, d.Payload.N)
	return err
}

const effectsTable = "CREATE TABLE effects (no bigint GENERATED ALWAYS AS IDENTITY, event uuid NOT NULL, key text NOT NULL, n integer NOT NULL)"

// database returns a migrated database with a table of effects, which has no unique constraint.
func database(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.Database(t)
	pgtest.Execute(t, pool, effectsTable)
	return pool
}

func consumerOf(t testing.TB, e *effects) *consume.Consumer {
	t.Helper()
	ib, err := inbox.New(inbox.Config{Group: group})
	require.NoError(t, err)
	c, err := consume.New(ib, consume.Handle(countedTopic, e, (*effects).ConsumeCounted))
	require.NoError(t, err)
	return c
}

func (c *cluster) config() kafka.Config {
	return kafka.Config{
		Brokers: c.addrs, Topics: []string{topic},
		Receive: receive.Config{
			BaseDelay: 20 * time.Millisecond, MaxDelay: 200 * time.Millisecond, PollInterval: 50 * time.Millisecond,
			Logger: slog.New(slog.DiscardHandler),
		},
		Options: []kgo.Opt{
			kgo.FetchMaxWait(100 * time.Millisecond), kgo.MetadataMinAge(100 * time.Millisecond), kgo.HeartbeatInterval(200 * time.Millisecond),
			kgo.AutoCommitInterval(100 * time.Millisecond), kgo.SessionTimeout(6 * time.Second),
			kgo.RebalanceTimeout(6 * time.Second), // kfake waits for it when a member of a rebalance was killed
		},
	}
}

func receiver(t testing.TB, pool *pgxpool.Pool, e *effects, cfg kafka.Config) *kafka.Receiver {
	t.Helper()
	r, err := kafka.New(pool, consumerOf(t, e), cfg)
	require.NoError(t, err)
	return r
}

// start runs r until stop is called or the test ends.
func start(t testing.TB, r *kafka.Receiver) (stop func() error) {
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

// run returns the error of a Run that ends by itself.
func run(t testing.TB, r *kafka.Receiver) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := r.Run(ctx)
	require.NoError(t, ctx.Err(), "Run did not end by itself")
	return err
}

// requireCounted fails unless each key has its effects 1 to n, once and in order.
func requireCounted(t testing.TB, pool *pgxpool.Pool, keys, n int) {
	t.Helper()
	require.Equal(t, keys*n, pgtest.Count(t, pool, "SELECT count(*) FROM effects"))
	require.Equal(t, keys*n, pgtest.Count(t, pool, "SELECT count(DISTINCT event) FROM effects"))
	require.Zero(t, pgtest.Count(t, pool, `SELECT count(*) FROM (SELECT n, row_number() OVER (PARTITION BY key ORDER BY no) AS want FROM effects) AS e
		WHERE n <> want`), "out of the order of their key")
}

func awaitCaughtUp(t testing.TB, r *kafka.Receiver) {
	t.Helper()
	pgtest.Eventually(t, func() bool {
		lags, err := r.Lag(t.Context())
		records := int64(0)
		for _, l := range lags {
			records += l.Records
		}
		return err == nil && records == 0
	})
}

var errTransient = errors.New("transient")

func keyName(n int) string { return fmt.Sprintf("key %d", n) }
