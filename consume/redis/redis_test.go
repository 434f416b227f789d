package redis_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/redis"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/suspend"
)

// TestEventsAreAppliedOnceInOrder: each event has its effect once, in the order of its key, and the group has every
// acknowledgement. A later Run continues from there.
func TestEventsAreAppliedOnceInOrder(t *testing.T) {
	t.Parallel()
	b, pool := newBroker(t), database(t)
	b.put(1, 40, "a", "b", "c")
	small := func(c *redis.Config) { c.MaxPending = 7 }
	r := run(t, pool, &effects{}, b.config(small))
	settlesAt(t, pool, 120)
	b.acknowledged(users)
	lag, err := r.Lag(t.Context())
	require.NoError(t, err)
	require.Equal(t, []redis.Lag{{Stream: users}}, lag)
	require.NoError(t, r.stop())
	b.put(41, 50, "a", "b", "c")
	lag, err = r.Lag(t.Context())
	require.NoError(t, err)
	require.Equal(t, []redis.Lag{{Stream: users, Pending: 30}}, lag)
	r = run(t, pool, &effects{}, b.config(small))
	settlesAt(t, pool, 150)
	b.put(51, 60, "a", "b", "c") // while it waits
	settlesAt(t, pool, 180)
	requireSteps(t, pool, 60, "a", "b", "c")
	err = r.Run(t.Context())
	require.ErrorIs(t, err, redis.ErrRunning)
}

// TestPendingEntriesComeFirst: entries that other consumers of the group got and did not acknowledge, as killed processes do,
// are applied before those that follow them, however many they are.
func TestPendingEntriesComeFirst(t *testing.T) {
	t.Parallel()
	b, pool := newBroker(t), database(t)
	b.do("XGROUP", "CREATE", users, "projection", "0")
	b.put(1, 20, "a", "b")
	b.take(17)
	run(t, pool, &effects{}, b.config(func(c *redis.Config) { c.MaxPending = 5 }))
	settlesAt(t, pool, 40)
	requireSteps(t, pool, 20, "a", "b")
	b.acknowledged(users)
}

// TestTakenEntriesAreNoticed: entries that another consumer of the group takes while the receiver runs are applied before those
// that follow, and also if none follow.
func TestTakenEntriesAreNoticed(t *testing.T) {
	t.Parallel()
	b, pool := newBroker(t), database(t)
	e := &effects{}
	started, finish := make(chan struct{}), make(chan struct{})
	e.set(func(_ context.Context, _ pgx.Tx, s step) error {
		if s.N == 1 || s.N == 20 {
			started <- struct{}{}
			<-finish
		}
		return nil
	})
	b.put(1, 1, "a")
	run(t, pool, e, b.config())
	pgtest.Receive(t, started, "the first event")
	b.put(2, 20, "a")
	b.take(7)
	finish <- struct{}{}
	pgtest.Receive(t, started, "the last event")
	b.put(21, 25, "a")
	b.take(5)
	finish <- struct{}{}
	settlesAt(t, pool, 25)
	requireSteps(t, pool, 25, "a")
	b.acknowledged(users)
}

// TestLostAnswer: the answer of Redis to a read gets lost, with its connection. Its entries are applied before those that
// follow.
func TestLostAnswer(t *testing.T) {
	t.Parallel()
	b, pool, d, e := newBroker(t), database(t), &network{}, &effects{}
	started, finish := make(chan struct{}), make(chan struct{})
	e.set(func(_ context.Context, _ pgx.Tx, s step) error {
		if s.N == 1 {
			close(started)
			<-finish
		}
		return nil
	})
	b.put(1, 1, "a")
	var log logs
	run(t, pool, e, b.config(d.through(b.Addr()), log.to, func(c *redis.Config) { c.MaxPending = 3 }))
	pgtest.Receive(t, started, "the first event")
	b.put(2, 20, "a")
	d.lose.Store(true)
	close(finish)
	settlesAt(t, pool, 20)
	require.False(t, d.lose.Load())
	requireSteps(t, pool, 20, "a")
	b.acknowledged(users)
	log.await(t, "Redis answers again", 1)
}

// TestLostAcknowledgement: an acknowledgement that could not be sent is sent later, also if no entry follows.
func TestLostAcknowledgement(t *testing.T) {
	t.Parallel()
	b, pool, d, e := newBroker(t), database(t), &network{}, &effects{}
	e.set(func(context.Context, pgx.Tx, step) error {
		d.isolate(true)
		return nil
	})
	var log logs
	run(t, pool, e, b.config(d.through(b.Addr()), log.to))
	b.put(1, 1, "a")
	settlesAt(t, pool, 1)
	log.await(t, "Redis does not answer as it should", 1)
	d.isolate(false)
	b.acknowledged(users)
	requireSteps(t, pool, 1, "a")
}

// TestForeignEntries: an entry of another producer is a dead letter with its place, and those around it are applied.
func TestForeignEntries(t *testing.T) {
	t.Parallel()
	b, pool := newBroker(t), database(t)
	b.put(1, 2, "a")
	first := b.add(users, map[string]any{"x": "\x00\xff"})
	unknown := fields("a", 3)
	unknown["ce_type"] = "users.user_deleted"
	second := b.add(users, unknown)
	b.put(3, 4, "a")
	r := run(t, pool, &effects{}, b.config())
	settlesAt(t, pool, 4)
	b.acknowledged(users)
	requireSteps(t, pool, 4, "a")
	require.Equal(t, []string{"redis:users@" + first, "redis:users@" + second},
		pgtest.Value[[]string](t, pool, "SELECT array_agg(place ORDER BY no) FROM outbox.inbox_messages WHERE status = 'dead'"))
	status, err := r.Status(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, status.Dead)
}

// TestParkedKey: a key whose event fails waits in the database, and the others continue.
func TestParkedKey(t *testing.T) {
	t.Parallel()
	b, pool := newBroker(t), database(t)
	e := &effects{}
	e.set(func(_ context.Context, _ pgx.Tx, s step) error {
		if s.Key == "a" && s.N == 3 {
			return errors.New("not yet")
		}
		return nil
	})
	b.put(1, 10, "a", "b")
	run(t, pool, e, b.config(func(c *redis.Config) { c.Receive.MaxAttempts = 1_000_000 }))
	settlesAt(t, pool, 12)
	b.acknowledged(users)
	e.set(nil)
	settlesAt(t, pool, 20)
	requireSteps(t, pool, 10, "a", "b")
}

// TestDeadLetter: an event that always fails is a dead letter after its attempts, and its key continues.
func TestDeadLetter(t *testing.T) {
	t.Parallel()
	b, pool, e := newBroker(t), database(t), &effects{}
	e.set(func(_ context.Context, _ pgx.Tx, s step) error {
		if s.N == 3 {
			return errors.New("never")
		}
		return nil
	})
	b.put(1, 5, "a")
	run(t, pool, e, b.config(func(c *redis.Config) { c.Receive.MaxAttempts = 4 }))
	settlesAt(t, pool, 4)
	b.acknowledged(users)
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.inbox_messages WHERE status = 'dead'")
	require.Equal(t, []int32{1, 2, 4, 5}, pgtest.Value[[]int32](t, pool, "SELECT array_agg(n ORDER BY no) FROM effects"))
}

// TestStreamsAndKeys: streams are consumed concurrently, and Key gives an order to events that have no partition key.
func TestStreamsAndKeys(t *testing.T) {
	t.Parallel()
	b, pool, e := newBroker(t), database(t), &effects{}
	names := []string{"users:0", "users:1", "users:2"}
	for _, name := range names {
		b.create(name)
		for n := 1; n <= 10; n++ {
			f := fields(name, n)
			delete(f, "ce_partitionkey")
			b.add(name, f)
		}
	}
	var together atomic.Int32
	all := make(chan struct{})
	e.set(func(_ context.Context, _ pgx.Tx, s step) error {
		if s.N == 1 && together.Add(1) == int32(len(names)) {
			close(all)
		}
		<-all
		return nil
	})
	run(t, pool, e, b.config(func(c *redis.Config) {
		c.Streams = names
		c.Key = func(_ consume.Event, stream string) string { return stream }
	}))
	settlesAt(t, pool, 30)
	requireSteps(t, pool, 10, names...)
	for _, name := range names {
		b.acknowledged(name)
	}
}

// TestStopInTheMiddle: a stop finishes the transaction that is under way and acknowledges what it has settled. The rest is
// pending, and the next Run applies it first.
func TestStopInTheMiddle(t *testing.T) {
	t.Parallel()
	b, pool, e := newBroker(t), database(t), &effects{}
	started, finish := make(chan struct{}), make(chan struct{})
	e.set(func(_ context.Context, _ pgx.Tx, s step) error {
		if s.N == 5 {
			close(started)
			<-finish
		}
		return nil
	})
	b.put(1, 10, "a")
	r := run(t, pool, e, b.config(func(c *redis.Config) { c.Receive.BatchSize = 1 }))
	pgtest.Receive(t, started, "the fifth event")
	r.cancel()
	close(finish)
	require.NoError(t, r.stop())
	requireSteps(t, pool, 5, "a")
	pending, err := b.client.XPending(t.Context(), users, "projection").Result()
	require.NoError(t, err)
	require.EqualValues(t, 5, pending.Count)
	b.put(11, 12, "a")
	run(t, pool, &effects{}, b.config())
	settlesAt(t, pool, 12)
	requireSteps(t, pool, 12, "a")
}

// TestStopAtOnce: a stop does not wait for the server, also if it is silent.
func TestStopAtOnce(t *testing.T) {
	t.Parallel()
	b, pool := newBroker(t), database(t)
	var log logs
	r := run(t, pool, &effects{}, b.config(log.to))
	b.put(1, 1, "a")
	settlesAt(t, pool, 1)
	b.acknowledged(users)
	require.NoError(t, b.Signal(suspend.Stop))
	began := time.Now()
	require.NoError(t, r.stop())
	require.Less(t, time.Since(began), 8*time.Second, "a silent server is given up after 11 s")
}

// TestFromEnd: a new group starts with what is added from then on.
func TestFromEnd(t *testing.T) {
	t.Parallel()
	b, pool := newBroker(t), database(t)
	b.put(1, 5, "old")
	r := run(t, pool, &effects{}, b.config(func(c *redis.Config) { c.FromEnd = true }))
	pgtest.Eventually(t, func() bool { _, err := r.Lag(t.Context()); return err == nil })
	b.put(1, 5, "new")
	settlesAt(t, pool, 5)
	requireSteps(t, pool, 5, "new")
}

func TestConfig(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	c := consumerOf(t, &effects{})
	options := func(url string, addrs ...string) func(*redis.Config) {
		return func(c *redis.Config) { c.URL, c.Options = url, &goredis.UniversalOptions{Addrs: addrs} }
	}
	for want, change := range map[string]func(*redis.Config){
		"field URL is empty":                                  func(c *redis.Config) { c.URL = "" },
		"field URL is not a URL: percent-encode":              func(c *redis.Config) { c.URL = "redis://u:S3/CRET@a" },
		"field URL is not valid: use the form":                func(c *redis.Config) { c.URL = "http://u:S3CRET@a" },
		"fields URL and Options cannot be combined":           options("redis://a", "a:1"),
		"field Options has no addresses":                      options(""),
		"field Options has a URL or a user in Addrs":          options("", "u:S3CRET@a"),
		"field Streams is empty":                              func(c *redis.Config) { c.Streams = nil },
		"field Streams has an empty stream":                   func(c *redis.Config) { c.Streams = []string{"a", ""} },
		"field Streams has a stream twice":                    func(c *redis.Config) { c.Streams = []string{"a", "b", "a"} },
		"field MaxPending 100001 is not between 1 and 100000": func(c *redis.Config) { c.MaxPending = 100_001 },
		"field StartTimeout -1s is negative":                  func(c *redis.Config) { c.StartTimeout = -time.Second },
	} {
		cfg := redis.Config{URL: "redis://a", Streams: []string{users}}
		change(&cfg)
		_, err := redis.New(pool, c, cfg)
		require.ErrorContains(t, err, "new Redis receiver: "+want)
		require.NotContains(t, err.Error(), "S3")
	}
	cfg := redis.Config{URL: "redis://user:S3CRET@a:6379", Streams: []string{users}}
	r, err := redis.New(pool, c, cfg)
	require.NoError(t, err)
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "config", cfg, "receiver", r)
	encoded, err := json.Marshal(cfg)
	require.NoError(t, err)
	text := fmt.Sprintf("%v %+v %#v %v %#v", cfg, cfg, cfg, r, r) + log.String() + string(encoded)
	require.NotContains(t, text, "S3CRET")
	require.Contains(t, text, "a:6379")
	require.Contains(t, text, "redis.Receiver(users/projection)")
}
