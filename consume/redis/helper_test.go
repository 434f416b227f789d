package redis_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/redis"
	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/testing/brokertest"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/worker"
)

var _ worker.Runner = (*redis.Receiver)(nil)

func TestMain(m *testing.M) {
	goredis.SetLogger(silent{}) // the client logs each failed attempt to connect
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(pgtest.Supervisor), goleak.IgnoreAnyFunction(brokertest.Supervisor))
}

// silent is a logger of the client.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// users is the stream of the tests.
const users = "users"

// broker is a Redis server of one test, with an empty stream.
type broker struct {
	*brokertest.Redis
	t      testing.TB
	client *goredis.Client // of the test
}

func newBroker(t testing.TB, args ...string) *broker {
	t.Helper()
	b := &broker{Redis: brokertest.StartRedis(t, args...), t: t}
	b.client = goredis.NewClient(&goredis.Options{Addr: b.Addr(), ReadTimeout: pgtest.Patience, MaxRetries: 100})
	t.Cleanup(func() { _ = b.client.Close() })
	b.create(users)
	return b
}

// create creates an empty stream.
func (b *broker) create(name string) {
	b.t.Helper()
	b.do("XGROUP", "CREATE", name, "other", "0", "MKSTREAM")
}

func (b *broker) do(args ...any) {
	b.t.Helper()
	require.NoError(b.t, b.client.Do(context.Background(), args...).Err())
}

func (b *broker) restart() {
	b.t.Helper()
	require.NoError(b.t, b.Restart())
}

// step is the payload of the tests' topic: the n-th event of a key, from 1.
type step struct {
	Key string `json:"key"`
	N   int    `json:"n"`
}

var stepTaken = consume.NewTopic[step](consume.TopicSpec{Namespace: "users", Name: "step_taken"})

// effects is a consumer that appends a row per event.
type effects struct {
	mu   sync.Mutex
	fail func(ctx context.Context, tx pgx.Tx, s step) error // after the insert; nil succeeds
}

func (e *effects) set(fail func(ctx context.Context, tx pgx.Tx, s step) error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fail = fail
}

func (e *effects) ConsumeStepTaken(ctx context.Context, tx pgx.Tx, d consume.Delivery[step]) error {
	const insert = "INSERT INTO effects (event, key, n) VALUES ($1, $2, $3)"
	if _, err := tx.Exec(ctx, insert, d.ID, d.Payload.Key, d.Payload.N); err != nil {
		return err
	}
	e.mu.Lock()
	fail := e.fail
	e.mu.Unlock()
	if fail == nil {
		return nil
	}
	return fail(ctx, tx, d.Payload)
}

const effectsTable = `CREATE TABLE effects
	(no bigint GENERATED ALWAYS AS IDENTITY, event uuid NOT NULL, key text NOT NULL, n integer NOT NULL)`

// database returns a migrated database with a table of effects, which has no unique constraint.
func database(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.Database(t)
	pgtest.Execute(t, pool, effectsTable)
	return pool
}

func consumerOf(t testing.TB, e *effects) *consume.Consumer {
	t.Helper()
	ib, err := inbox.New(inbox.Config{Group: "projection"})
	require.NoError(t, err)
	c, err := consume.New(ib, consume.Handle(stepTaken, e, (*effects).ConsumeStepTaken))
	require.NoError(t, err)
	return c
}

// logs collects lines of the log.
type logs struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// await waits until the log has a text so many times.
func (l *logs) await(t testing.TB, text string, times int) {
	t.Helper()
	what := func() string { return text + " in " + l.String() }
	pgtest.Eventually(t, func() bool { return strings.Count(l.String(), text) >= times }, what)
}

func (l *logs) to(c *redis.Config) { c.Receive.Logger = slog.New(slog.NewTextHandler(l, nil)) }

// config is that of a receiver at a server, with short pauses.
func config(addr string, change ...func(*redis.Config)) redis.Config {
	cfg := redis.Config{URL: "redis://" + addr, Streams: []string{users}}
	cfg.Receive.BaseDelay, cfg.Receive.MaxDelay = 10*time.Millisecond, 50*time.Millisecond
	cfg.Receive.PollInterval = 50 * time.Millisecond
	cfg.Receive.Logger = slog.New(slog.DiscardHandler)
	for _, f := range change {
		f(&cfg)
	}
	return cfg
}

func (b *broker) config(change ...func(*redis.Config)) redis.Config {
	return config(b.Addr(), change...)
}

// running is a receiver that runs.
type running struct {
	*redis.Receiver
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

// stop ends the receiver and returns the error of Run.
func (r *running) stop() error {
	r.cancel()
	<-r.done
	return r.err
}

// ends waits for the error of Run.
func (r *running) ends(t testing.TB) error {
	t.Helper()
	pgtest.Receive(t, r.done, "the end of Run")
	require.Error(t, r.err)
	return r.err
}

// run starts a receiver, which is stopped at the end of the test.
func run(t testing.TB, pool *pgxpool.Pool, e *effects, cfg redis.Config) *running {
	t.Helper()
	receiver, err := redis.New(pool, consumerOf(t, e), cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{Receiver: receiver, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = receiver.Run(ctx)
	}()
	t.Cleanup(func() { _ = r.stop() })
	return r
}

// fields is the n-th event of a key.
func fields(key string, n int) map[string]any {
	body, err := json.Marshal(step{key, n})
	if err != nil {
		panic(err)
	}
	return map[string]any{
		"ce_specversion": "1.0", "ce_id": uuid.Must(uuid.NewV7()).String(), "ce_type": "users.step_taken", "ce_source": "/users",
		"ce_partitionkey": key, "content-type": "application/json", "data": body,
	}
}

// put adds the events from first to last of each key, in turn.
func (b *broker) put(first, last int, keys ...string) {
	b.t.Helper()
	for n := first; n <= last; n++ {
		for _, key := range keys {
			b.add(users, fields(key, n))
		}
	}
}

// add adds an entry to a stream, and returns its id.
func (b *broker) add(stream string, fields map[string]any) string {
	b.t.Helper()
	id, err := b.client.XAdd(context.Background(), &goredis.XAddArgs{Stream: stream, Values: fields}).Result()
	require.NoError(b.t, err)
	return id
}

// take has another consumer of the group read n entries, as a process does that is killed then.
func (b *broker) take(n int64) (ids []string) {
	b.t.Helper()
	read, err := b.client.XReadGroup(context.Background(), &goredis.XReadGroupArgs{
		Group: "projection", Consumer: "another", Streams: []string{users, ">"}, Count: n, Block: -1,
	}).Result()
	require.NoError(b.t, err)
	for _, e := range read[0].Messages {
		ids = append(ids, e.ID)
	}
	require.Len(b.t, ids, int(n))
	return ids
}

// requireSteps fails unless each key has its effects 1 to n, once and in order.
func requireSteps(t testing.TB, pool *pgxpool.Pool, n int, keys ...string) {
	t.Helper()
	want := make([]int32, n)
	for i := range want {
		want[i] = int32(i + 1)
	}
	const query = "SELECT coalesce(array_agg(n ORDER BY no), '{}') FROM effects WHERE key = $1"
	for _, key := range keys {
		require.Equal(t, want, pgtest.Value[[]int32](t, pool, query, key), key)
	}
}

func settlesAt(t testing.TB, pool *pgxpool.Pool, n int) {
	t.Helper()
	pgtest.Settles(t, pool, n, "SELECT count(*) FROM effects")
}

// acknowledged waits until the group has read and acknowledged everything.
func (b *broker) acknowledged(stream string) {
	b.t.Helper()
	pgtest.Eventually(b.t, func() bool {
		about, err := b.client.XInfoStream(context.Background(), stream).Result()
		if err != nil {
			return false
		}
		groups, err := b.client.XInfoGroups(context.Background(), stream).Result()
		for _, g := range groups {
			if err == nil && g.Name == "projection" && g.Pending == 0 && g.LastDeliveredID == about.LastGeneratedID {
				return true
			}
		}
		return false
	})
}

// network makes the connections of a process to Redis, and can cut them.
type network struct {
	lose  atomic.Bool // the next answer to a read gets lost, with its connection
	mu    sync.Mutex
	conns []net.Conn
	cut   bool
}

// through has a receiver use the network.
func (d *network) through(addr string) func(*redis.Config) {
	return func(c *redis.Config) {
		c.URL, c.Options = "", &goredis.UniversalOptions{Addrs: []string{addr}, Dialer: d.dial}
	}
}

// lossy is a connection that network.lose ends.
type lossy struct {
	net.Conn
	d *network
}

func (c lossy) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if bytes.Contains(p[:n], []byte("+QUEUED")) && c.d.lose.CompareAndSwap(true, false) {
		_ = c.Close()
		return 0, net.ErrClosed
	}
	return n, err
}

func (d *network) dial(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cut {
		_ = c.Close()
		return nil, errors.New("the network is cut")
	}
	d.conns = append(d.conns, c)
	return lossy{c, d}, nil
}

// isolate cuts the connections, and all later ones while on.
func (d *network) isolate(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cut = on
	for _, c := range d.conns {
		_ = c.Close()
	}
	d.conns = nil
}
