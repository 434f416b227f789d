package nats_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/nats"
	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/testing/freeport"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/worker"
)

var _ worker.Runner = (*nats.Receiver)(nil)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(pgtest.Supervisor))
}

// broker is a NATS server with a stream USERS. It can be killed, and started again with the messages that it had.
type broker struct {
	t    testing.TB
	opts server.Options
	*server.Server
	nc *natsgo.Conn // the connection of the test
	js jetstream.JetStream
}

func newBroker(t testing.TB, change ...func(*server.Options)) *broker {
	t.Helper()
	port, err := freeport.Find() // which stays its own when it is started again
	require.NoError(t, err)
	b := &broker{t: t, opts: server.Options{
		ServerName: "one", Host: "127.0.0.1", Port: port, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true,
	}}
	for _, f := range change {
		f(&b.opts)
	}
	b.start()
	t.Cleanup(b.kill)
	var auth, secure natsgo.Option
	if len(b.opts.Users) > 0 {
		auth = natsgo.UserInfo(b.opts.Users[0].Username, b.opts.Users[0].Password)
	}
	if own := b.opts.TLSConfig; own != nil {
		secure = natsgo.Secure(&tls.Config{InsecureSkipVerify: true, Certificates: own.Certificates})
	}
	b.nc, err = natsgo.Connect(b.url("", ""), natsgo.MaxReconnects(-1), natsgo.ReconnectWait(50*time.Millisecond), auth, secure)
	require.NoError(t, err)
	t.Cleanup(b.nc.Close)
	b.js, err = jetstream.New(b.nc)
	require.NoError(t, err)
	_, err = b.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "USERS", Subjects: []string{"users.>"}})
	require.NoError(t, err)
	return b
}

func (b *broker) start() {
	b.t.Helper()
	require.NoError(b.t, freeport.Reclaim(fmt.Sprintf("%s:%d", b.opts.Host, b.opts.Port)))
	opts := b.opts
	s, err := server.NewServer(&opts)
	require.NoError(b.t, err)
	s.Start()
	require.True(b.t, s.ReadyForConnections(pgtest.Patience))
	b.Server = s
}

func (b *broker) kill() {
	b.Shutdown()
	b.WaitForShutdown()
}

func (b *broker) url(user, password string) string {
	u := url.URL{Scheme: "nats", Host: fmt.Sprintf("127.0.0.1:%d", b.opts.Port)}
	if user != "" {
		u.User = url.UserPassword(user, password)
	}
	return u.String()
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
	if _, err := tx.Exec(ctx, "INSERT INTO effects (event, key, n) VALUES ($1, $2, $3)", d.ID, d.Payload.Key, d.Payload.N); err != nil {
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

// config is that of a receiver at b, with short pauses.
func (b *broker) config(change ...func(*nats.Config)) nats.Config {
	cfg := nats.Config{URL: b.url("", ""), Stream: "USERS", AckWait: 2 * time.Second}
	cfg.Receive.BaseDelay, cfg.Receive.MaxDelay, cfg.Receive.PollInterval = 10*time.Millisecond, 50*time.Millisecond, 50*time.Millisecond
	cfg.Receive.Logger = slog.New(slog.DiscardHandler)
	for _, f := range change {
		f(&cfg)
	}
	return cfg
}

// running is a receiver that runs.
type running struct {
	*nats.Receiver
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

// run starts a receiver, which is stopped at the end of the test.
func run(t testing.TB, pool *pgxpool.Pool, e *effects, cfg nats.Config) *running {
	t.Helper()
	receiver, err := nats.New(pool, consumerOf(t, e), cfg)
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

// message is the n-th event of a key.
func message(key string, n int) *natsgo.Msg {
	body, err := json.Marshal(step{key, n})
	if err != nil {
		panic(err)
	}
	m := natsgo.NewMsg("users.step")
	m.Data = body
	for name, value := range map[string]string{
		"ce-specversion": "1.0", "ce-id": uuid.Must(uuid.NewV7()).String(), "ce-type": "users.step_taken", "ce-source": "/users",
		"ce-partitionkey": key, "content-type": "application/json",
	} {
		m.Header[name] = []string{value}
	}
	return m
}

// put stores the events from first to last of each key, in turn.
func (b *broker) put(first, last int, keys ...string) {
	b.t.Helper()
	for n := first; n <= last; n++ {
		for _, key := range keys {
			_, err := b.js.PublishMsg(b.t.Context(), message(key, n))
			require.NoError(b.t, err)
		}
	}
}

// requireSteps fails unless each key has its effects 1 to n, once and in order.
func requireSteps(t testing.TB, pool *pgxpool.Pool, n int, keys ...string) {
	t.Helper()
	want := make([]int32, n)
	for i := range want {
		want[i] = int32(i + 1)
	}
	for _, key := range keys {
		require.Equal(t, want, pgtest.Value[[]int32](t, pool, "SELECT coalesce(array_agg(n ORDER BY no), '{}') FROM effects WHERE key = $1", key), key)
	}
}

func settlesAt(t testing.TB, pool *pgxpool.Pool, n int) {
	t.Helper()
	pgtest.Settles(t, pool, n, "SELECT count(*) FROM effects")
}

// acknowledged waits until the server has nothing pending.
func (b *broker) acknowledged(durable string) {
	b.t.Helper()
	pgtest.Eventually(b.t, func() bool {
		ctx, cancel := context.WithTimeout(b.t.Context(), 5*time.Second)
		defer cancel()
		c, err := b.js.Consumer(ctx, "USERS", durable)
		return err == nil && c.CachedInfo().NumPending == 0 && c.CachedInfo().NumAckPending == 0
	})
}
