package redis_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/redis"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

func shortly(c *redis.Config) { c.StartTimeout = 2 * time.Second }

// TestTakeOver: a second process waits, and continues when the first ends. It gets at once what the first one held.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	b, pool, e := newBroker(t), database(t), &effects{}
	started := make(chan struct{}, 100)
	e.set(func(context.Context, pgx.Tx, step) error {
		started <- struct{}{}
		return consume.Unavailable(errors.New("away"))
	})
	var log logs
	first := run(t, pool, e, b.config(log.to))
	b.put(1, 20, "a", "b")
	pgtest.Receive(t, started, "an event")
	second := run(t, pool, &effects{}, b.config(log.to))
	log.await(t, `level=INFO msg="another process reads the stream: this one waits to take over"`, 1)
	require.NoError(t, first.stop())
	settlesAt(t, pool, 40)
	requireSteps(t, pool, 20, "a", "b")
	require.NoError(t, second.stop())
	b.acknowledged(users)
	require.Contains(t, log.String(), `msg="this process reads the stream now"`)
}

// TestLockLost: when the connection with the lock is cut, a process continues when it has the lock again.
func TestLockLost(t *testing.T) {
	t.Parallel()
	b, pool := newBroker(t), database(t)
	var log logs
	run(t, pool, &effects{}, b.config(log.to))
	b.put(1, 10, "a")
	settlesAt(t, pool, 10)
	pgtest.Settles(t, pool, 1, `SELECT count(pg_terminate_backend(pid)) FROM pg_locks
		WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
	log.await(t, "the lock of the stream was lost", 1)
	b.put(11, 20, "a")
	settlesAt(t, pool, 20)
	requireSteps(t, pool, 20, "a")
}

// TestTrimmedWhilePending: entries that are removed while they are pending are lost. A line says how many, and the others are
// applied.
func TestTrimmedWhilePending(t *testing.T) {
	t.Parallel()
	b, pool := newBroker(t), database(t)
	b.do("XGROUP", "CREATE", users, "projection", "0")
	b.put(1, 9, "a")
	ids := b.take(6)
	b.do("XDEL", users, ids[1], ids[3], ids[4])
	var log logs
	run(t, pool, &effects{}, b.config(log.to))
	settlesAt(t, pool, 6)
	b.acknowledged(users)
	require.Equal(t, []int32{1, 3, 6, 7, 8, 9}, pgtest.Value[[]int32](t, pool, "SELECT array_agg(n ORDER BY no) FROM effects"))
	require.Contains(t, log.String(), `level=ERROR msg="entries were removed from the stream before they were acknowledged`)
	require.Contains(t, log.String(), "entries=3 first="+ids[1])
}

// TestTrimmedUnread: entries that are removed before they are read are lost. A line says how many, once for each loss. Entries
// that are removed after they were read, or before the group was created, are no loss.
func TestTrimmedUnread(t *testing.T) {
	t.Parallel()
	b, pool, e := newBroker(t), database(t), &effects{}
	b.put(1, 5, "before")
	b.do("XTRIM", users, "MAXLEN", 3)
	started, finish := make(chan struct{}), make(chan struct{})
	e.set(func(_ context.Context, _ pgx.Tx, s step) error {
		if s.Key == "a" && s.N%10 == 1 {
			started <- struct{}{}
			<-finish
		}
		return nil
	})
	var log logs
	config := b.config(log.to, func(c *redis.Config) { c.MaxPending = 4 })
	r := run(t, pool, e, config)
	settlesAt(t, pool, 3)
	b.put(1, 6, "read")
	settlesAt(t, pool, 9)
	b.do("XTRIM", users, "MAXLEN", 0)
	const line = "entries were removed from the stream before they were read: they are lost"
	for i := range 2 {
		b.put(i*10+1, i*10+1, "a")
		pgtest.Receive(t, started, "the first event")
		require.Equal(t, i, strings.Count(log.String(), line))
		b.put(i*10+2, i*10+9, "a")
		b.do("XTRIM", users, "MAXLEN", 5) // 3 of them are removed
		finish <- struct{}{}
		settlesAt(t, pool, 9+(i+1)*6)
		b.acknowledged(users)
		said := strings.Count(log.String(), "msg=\""+line+`" consumer_group=projection stream=users entries=3`)
		require.Equal(t, i+1, said, log.String())
	}
	require.NoError(t, r.stop())
	b.put(30, 32, "a")
	run(t, pool, &effects{}, config)
	settlesAt(t, pool, 24)
	b.do("XTRIM", users, "MAXLEN", 0)
	b.put(33, 34, "a")
	settlesAt(t, pool, 26)
	require.Equal(t, 2, strings.Count(log.String(), line), log.String())
}

// TestMissingStream: a stream that does not exist is an error that names it. One that is created a little late is none, and
// CreateStreams creates it.
func TestMissingStream(t *testing.T) {
	t.Parallel()
	b, pool := newBroker(t), database(t)
	err := run(t, pool, &effects{}, b.config(shortly, func(c *redis.Config) { c.Streams = []string{users, "orders"} })).ends(t)
	require.ErrorIs(t, err, redis.ErrNoStream)
	require.EqualError(t, err, fmt.Sprintf("consume orders/projection: ask %s: "+
		"the stream does not exist: create it, correct the name, or set Config.CreateStreams", b.Addr()))

	var log logs
	late := run(t, pool, &effects{}, b.config(log.to, func(c *redis.Config) { c.Streams = []string{"late"} }))
	log.await(t, "Redis does not answer as it should: entries wait", 1)
	b.add("late", fields("late", 1))
	settlesAt(t, pool, 1)
	require.NoError(t, late.stop())

	run(t, pool, &effects{}, b.config(func(c *redis.Config) { c.Streams, c.CreateStreams = []string{"new"}, true }))
	pgtest.Eventually(t, func() bool { return b.client.Exists(t.Context(), "new").Val() == 1 })
	b.add("new", fields("new", 1))
	settlesAt(t, pool, 2)
}

// TestNotAStream: a key of another type is an error that says so.
func TestNotAStream(t *testing.T) {
	t.Parallel()
	b, pool := newBroker(t), database(t)
	b.do("SET", "text", "x")
	err := run(t, pool, &effects{}, b.config(shortly, func(c *redis.Config) { c.Streams = []string{"text"} })).ends(t)
	require.ErrorIs(t, err, redis.ErrNotStream)
	require.ErrorContains(t, err, "consume text/projection: ask 127.0.0.1:")
}

// TestGroupIsGone: a group that somebody destroys, and a server that loses everything, are noticed. The group is created again
// and reads the stream from its beginning, and nothing has a second effect.
func TestGroupIsGone(t *testing.T) {
	t.Parallel()
	b, pool := newBroker(t), database(t)
	var log logs
	const gone = `level=WARN msg="the consumer group was gone: it is created again, and the stream is read from its beginning"`
	run(t, pool, &effects{}, b.config(log.to, func(c *redis.Config) { c.FromEnd = true }))
	pgtest.Eventually(t, func() bool { return strings.Contains(log.String(), "the consumer group is created") })
	b.put(1, 10, "a")
	settlesAt(t, pool, 10)
	b.acknowledged(users)
	b.do("XGROUP", "DESTROY", users, "projection")
	log.await(t, gone, 1)
	b.put(11, 20, "a")
	settlesAt(t, pool, 20)
	b.acknowledged(users)
	b.do("FLUSHALL")
	b.put(21, 30, "a") // perhaps before the receiver notices
	settlesAt(t, pool, 30)
	log.await(t, gone, 2)
	requireSteps(t, pool, 30, "a")
	require.NotContains(t, log.String(), "are lost")
}

// TestServerRestarts: a server that is killed, stopped and started again, a replica for a while, or without memory, costs
// nothing.
func TestServerRestarts(t *testing.T) {
	t.Parallel()
	b, pool := newBroker(t), database(t)
	var log logs
	run(t, pool, &effects{}, b.config(shortly, log.to))
	b.put(1, 10, "a", "b")
	settlesAt(t, pool, 20)
	troubled := func(n int) { log.await(t, "Redis does not answer as it should", n) }
	for i, trouble := range []func(){
		func() { require.NoError(t, b.Kill()); troubled(1); b.restart() },
		func() { // longer than the StartTimeout
			require.NoError(t, b.Signal(syscall.SIGTERM))
			troubled(2)
			<-time.After(3 * time.Second)
			b.restart()
		},
		func() { b.do("REPLICAOF", "127.0.0.1", 1); troubled(3); b.do("REPLICAOF", "NO", "ONE") },
	} {
		trouble()
		b.put(10*(i+1)+1, 10*(i+2), "a", "b")
		settlesAt(t, pool, 20*(i+2))
		log.await(t, "Redis answers again", i+1)
	}
	b.acknowledged(users)
	requireSteps(t, pool, 40, "a", "b")
}

// TestUnreachable: at the start, a server that does not answer is an error.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	b, pool := newBroker(t), database(t)
	require.NoError(t, b.Kill())
	r := run(t, pool, &effects{}, b.config(shortly))
	err := r.ends(t)
	require.ErrorIs(t, err, redis.ErrUnreachable)
	require.ErrorContains(t, err, "connection refused")
	_, err = r.Lag(t.Context())
	require.ErrorIs(t, err, redis.ErrUnreachable)
	require.ErrorContains(t, err, "read lag of users/projection at 127.0.0.1:")
}
