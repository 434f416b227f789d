package redis_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/freeport"
	"github.com/outboxgen/outboxgen/internal/testing/suspend"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/redis"
)

// Outcomes of an event.
const (
	permanent   = "permanent"
	unavailable = "unavailable"
	brokerDown  = "broker unavailable"
	attempt     = "attempt"
)

func outcomeOf(err error) string {
	switch {
	case outbox.IsPermanent(err):
		return permanent
	case outbox.IsBrokerUnavailable(err):
		return brokerDown
	case outbox.IsUnavailable(err):
		return unavailable
	}
	return attempt
}

func requireOutcome(t testing.TB, err error, want, text string) {
	t.Helper()
	require.ErrorContains(t, err, text)
	require.Equal(t, want, outcomeOf(err), "%v", err)
}

// full returns an event with every fact.
func full(o publish.Outgoing) publish.Outgoing {
	o.TenantID = uuid.NullUUID{UUID: uuid.MustParse("7f000001-89ab-4cde-8f01-23456789abcd"), Valid: true}
	o.Entity = outbox.Entity{Type: "user", ID: "17", Version: 3}
	o.Headers = map[string]string{"traceparent": "00-a-b-01", "x-reason": "maßvoll"}
	return o
}

// TestOutcomeOfErrors: what each error of a real server means for an event, and that the events arrive when it is over.
func TestOutcomeOfErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text, want string
		args       []string
		begin, end func(*broker)
	}{
		{text: "OOM command not allowed", want: brokerDown,
			begin: func(b *broker) { b.do("CONFIG", "SET", "maxmemory", 1) }, end: func(b *broker) { b.do("CONFIG", "SET", "maxmemory", 0) }},
		{text: "NOREPLICAS Not enough good replicas", want: brokerDown,
			begin: func(b *broker) { b.do("CONFIG", "SET", "min-replicas-to-write", 1) }, end: func(b *broker) { b.do("CONFIG", "SET", "min-replicas-to-write", 0) }},
		{text: "READONLY You can't write against a read only replica", want: brokerDown,
			begin: func(b *broker) { b.do("REPLICAOF", "127.0.0.1", 1) }, end: func(b *broker) { b.do("REPLICAOF", "NO", "ONE") }},
		{text: "MASTERDOWN Link with MASTER is down", want: brokerDown, args: []string{"--replica-read-only", "no"},
			begin: func(b *broker) {
				b.do("CONFIG", "SET", "replica-serve-stale-data", "no")
				b.do("REPLICAOF", "127.0.0.1", 1)
			}, end: func(b *broker) { b.do("REPLICAOF", "NO", "ONE") }},
		{text: "NOPERM", want: unavailable,
			begin: func(b *broker) { b.do("ACL", "SETUSER", "default", "-xadd") }, end: func(b *broker) { b.do("ACL", "SETUSER", "default", "+xadd") }},
		{text: "NOPERM", want: unavailable,
			begin: func(b *broker) { b.do("ACL", "SETUSER", "default", "resetkeys", "~orders") }, end: func(b *broker) { b.do("ACL", "SETUSER", "default", "~*") }},
		{text: "exhausted the last possible ID", want: attempt,
			begin: func(b *broker) {
				b.do("RENAME", stream, "aside")
				b.do("XADD", stream, "18446744073709551615-18446744073709551615", "last", "")
			}, end: func(b *broker) { b.do("RENAME", "aside", stream) }},
	} {
		t.Run(c.text, func(t *testing.T) {
			t.Parallel()
			b := newBroker(t, c.args...)
			p := b.publisher(t)
			require.Equal(t, []error{nil}, p.Publish(t.Context(), []publish.Outgoing{event("a", 0)}))
			c.begin(b)
			events := []publish.Outgoing{event("a", 1), event("a", 2), event("", 3)}
			errs := p.Publish(t.Context(), events)
			requireOutcome(t, errs[0], c.want, "publish to users:renamed at "+b.Addr()+": ")
			require.ErrorContains(t, errs[0], c.text)
			require.Equal(t, outbox.ErrBehind, errs[1])
			require.Equal(t, c.want, outcomeOf(errs[2]))
			c.end(b)
			settle(t, p, events)
			require.Len(t, b.received(), 4)
		})
	}
}

// TestLoading: a server that reads its data is unavailable.
func TestLoading(t *testing.T) {
	t.Parallel()
	b := newBroker(t, "--key-load-delay", "1000")
	pipe := b.client.Pipeline()
	for range 4096 { // a server that loads answers after each 1,024 commands
		pipe.Incr(t.Context(), "count")
	}
	_, err := pipe.Exec(t.Context())
	require.NoError(t, err)
	p := b.publisher(t)
	require.NoError(t, b.Restart())
	require.Eventually(t, func() bool {
		err = p.Publish(t.Context(), []publish.Outgoing{event("a", 1)})[0]
		return err != nil && strings.Contains(err.Error(), "LOADING")
	}, patience, time.Millisecond)
	requireOutcome(t, err, brokerDown, "LOADING Redis is loading the dataset in memory")
	settle(t, p, []publish.Outgoing{event("a", 2)})
}

// TestNoStream: a stream may be created a little late. If it never is, or if the key is something else, only its events become
// dead letters.
func TestNoStream(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	b.do("SET", "text", "x")
	for destination, why := range map[string]string{"misspelt": "there is no such stream: create it with XGROUP CREATE and MKSTREAM", "text": "the key is not a stream: rename it, or use another stream: WRONGTYPE"} {
		for timeout, want := range map[time.Duration]string{time.Minute: unavailable, -1: permanent} {
			p := b.publisher(t, func(cfg *redis.Config) { cfg.NoStreamTimeout = timeout })
			first, second, other := event("a", 0), event("a", 1), event("b", 2)
			first.Destination, second.Destination = destination, destination
			errs := p.Publish(t.Context(), []publish.Outgoing{first, second, other})
			requireOutcome(t, errs[0], want, "publish to "+destination+" at "+b.Addr()+": "+why)
			require.Equal(t, outbox.ErrBehind, errs[1])
			require.NoError(t, errs[2], "another destination")
		}
	}
	late := event("a", 0)
	late.Destination = "late"
	p := b.publisher(t)
	missing := p.Publish(t.Context(), []publish.Outgoing{late})[0]
	requireOutcome(t, missing, unavailable, "there is no such stream")
	require.ErrorContains(t, missing, "its events wait", "however long, by default")
	b.create("late")
	require.Equal(t, []error{nil}, p.Publish(t.Context(), []publish.Outgoing{late}))
	fresh := event("a", 0)
	fresh.Destination = "fresh"
	require.Equal(t, []error{nil}, b.publisher(t, func(cfg *redis.Config) { cfg.CreateStreams = true }).Publish(t.Context(), []publish.Outgoing{fresh}))
}

// TestNoStreamAroundAnOutage: a stream that is missing before and after an outage does not count as missing in between.
func TestNoStreamAroundAnOutage(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	p := b.publisher(t, func(cfg *redis.Config) { cfg.NoStreamTimeout = time.Nanosecond })
	o := event("a", 0)
	o.Destination = "late"
	publish := func() error { return p.Publish(t.Context(), []publish.Outgoing{o})[0] }
	requireOutcome(t, publish(), unavailable, "no such stream")
	require.NoError(t, b.Kill())
	require.Equal(t, brokerDown, outcomeOf(publish()))
	require.NoError(t, b.Restart())
	var err error
	require.Eventually(t, func() bool {
		err = publish()
		return strings.Contains(err.Error(), "no such stream")
	}, patience, time.Millisecond)
	require.Equal(t, unavailable, outcomeOf(err), "%v", err)
	require.Equal(t, permanent, outcomeOf(publish()))
}

// TestCredentials: wrong credentials and addresses affect all events, so they count no attempt.
func TestCredentials(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	b.do("ACL", "SETUSER", "relay", "on", ">secret", "~*", "+@all")
	port, err := freeport.Find()
	require.NoError(t, err)
	publish := func(url string) []error {
		return b.publisher(t, func(cfg *redis.Config) { cfg.URL = url }).Publish(t.Context(), []publish.Outgoing{event("a", 0), event("a", 1), event("", 2)})
	}
	for url, why := range map[string]string{
		"redis://relay:hunter2@" + b.Addr():              "WRONGPASS",
		"redis://relay:secret@" + b.Addr() + "/99":       "DB index is out of range",
		fmt.Sprintf("redis://relay:hunter2@[::1]:%d", 1): "connect",
		fmt.Sprintf("redis://127.0.0.1:%d", port):        "connection refused",
	} {
		errs := publish(url)
		requireOutcome(t, errs[0], brokerDown, why)
		require.NotContains(t, errs[0].Error(), "hunter2")
		require.Equal(t, outbox.ErrBehind, errs[1])
		require.Equal(t, brokerDown, outcomeOf(errs[2]))
	}
	require.Equal(t, []error{nil, nil, nil}, publish("redis://relay:secret@"+b.Addr()))
	b.do("ACL", "SETUSER", "default", "off")
	require.Eventually(t, func() bool {
		err := publish("redis://" + b.Addr())[0]
		require.Equal(t, brokerDown, outcomeOf(err), "%v", err)
		return strings.Contains(err.Error(), "NOAUTH") || strings.Contains(err.Error(), "unauthenticated")
	}, patience, 10*time.Millisecond)
}

// TestSilentServer: an address that takes connections and does not answer, and a server that stops to answer.
func TestSilentServer(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = silent.Close() })
	p, err := redis.New(redis.Config{URL: "redis://" + silent.Addr().String(), Timeout: 200 * time.Millisecond})
	require.NoError(t, err)
	defer p.Close()
	errs := p.Publish(t.Context(), []publish.Outgoing{event("a", 0), event("a", 1)})
	require.True(t, outbox.IsUnavailable(errs[0]), "%v", errs[0])
	require.Equal(t, outbox.ErrBehind, errs[1])

	b := newBroker(t)
	p = b.publisher(t, func(cfg *redis.Config) { cfg.Timeout = time.Second })
	settle(t, p, []publish.Outgoing{event("a", 0)})
	require.NoError(t, b.Signal(suspend.Stop))
	requireOutcome(t, p.Publish(t.Context(), []publish.Outgoing{event("a", 1)})[0], unavailable, "timeout")
	require.NoError(t, b.Signal(suspend.Continue))
	settle(t, p, []publish.Outgoing{event("a", 2)})
}

// TestStopChargesOnlyWhatWasSent: when a process stops, events that were not sent are handed back, and events that wait for
// an answer have had an attempt.
func TestStopChargesOnlyWhatWasSent(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	p := b.publisher(t, func(cfg *redis.Config) { cfg.Concurrency, cfg.Timeout = 1, time.Hour })
	b.do("CLIENT", "PAUSE", 3_600_000, "WRITE")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	result := make(chan []error, 1)
	go func() {
		result <- p.Publish(ctx, []publish.Outgoing{event("", 0), event("", 1), event("", 2), event("", 3), event("", 4)})
	}()
	require.Eventually(t, func() bool {
		info, err := b.client.Info(t.Context(), "clients").Result()
		return err == nil && strings.Contains(info, "blocked_clients:1\r\n")
	}, patience, time.Millisecond)
	cancel()
	for i, err := range <-result {
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, attempt, outcomeOf(err), "the context ended the call, not the broker")
		require.Equal(t, i >= 1, errors.Is(err, outbox.ErrNotSent), "event %d: %v", i, err)
	}
}

func TestClosedPublisher(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	p := b.publisher(t, func(cfg *redis.Config) { cfg.Timeout = time.Hour })
	settle(t, p, []publish.Outgoing{event("a", 0)})
	b.do("CLIENT", "PAUSE", 3_600_000, "WRITE")
	events := []publish.Outgoing{event("a", 1), event("a", 2)}
	result := make(chan []error, 1)
	go func() { result <- p.Publish(context.Background(), events) }()
	p.Close()
	for _, errs := range [][]error{<-result, p.Publish(t.Context(), events)} {
		require.ErrorIs(t, errs[0], redis.ErrClosed)
		require.Equal(t, brokerDown, outcomeOf(errs[0]))
		require.Equal(t, outbox.ErrBehind, errs[1])
	}
	p.Close()
}

// TestReplicas: with Replicas an event is delivered when so many replicas have it.
func TestReplicas(t *testing.T) {
	t.Parallel()
	b := newBroker(t, "--repl-diskless-sync-delay", "0")
	p := b.publisher(t, func(cfg *redis.Config) { cfg.Replicas, cfg.Timeout = 1, time.Second })
	requireTooFew(t, p)
	replica := newBroker(t, "--replicaof", "127.0.0.1 "+strconv.Itoa(b.Port()))
	last := event("a", 1)
	settle(t, p, []publish.Outgoing{last})
	ids := replica.ids()
	require.Equal(t, last.ID.String(), ids[len(ids)-1], "the replica has it when Publish returns")
	requireOutcome(t, replica.publisher(t).Publish(t.Context(), []publish.Outgoing{event("a", 2)})[0], brokerDown, "READONLY")
}

// requireTooFew fails unless an event is unavailable because no replica has it. A busy machine may answer too late first.
func requireTooFew(t testing.TB, p *redis.Publisher) {
	t.Helper()
	require.Eventually(t, func() bool {
		err := p.Publish(t.Context(), []publish.Outgoing{event("a", 0)})[0]
		require.Equal(t, unavailable, outcomeOf(err), "%v", err)
		return strings.Contains(err.Error(), "stored, but only 0 of 1 replicas have it")
	}, patience, time.Millisecond)
}

// TestCluster: the publisher works with a cluster, and without a part of it.
func TestCluster(t *testing.T) {
	t.Parallel()
	bus, err := freeport.Find()
	require.NoError(t, err)
	b := newBroker(t, "--cluster-enabled", "yes", "--cluster-require-full-coverage", "no", "--cluster-port", strconv.Itoa(bus))
	b.do("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
	require.Eventually(t, func() bool {
		info, err := b.client.ClusterInfo(t.Context()).Result()
		return err == nil && strings.Contains(info, "cluster_state:ok")
	}, patience, 10*time.Millisecond)
	b.create(stream)
	cluster := func(cfg *redis.Config) {
		cfg.URL, cfg.Options = "", &goredis.UniversalOptions{Addrs: []string{b.Addr()}, IsClusterMode: true}
	}
	p := b.publisher(t, cluster)
	require.Equal(t, []error{nil, nil}, p.Publish(t.Context(), []publish.Outgoing{event("a", 0), event("a", 1)}))
	few := b.publisher(t, cluster, func(cfg *redis.Config) { cfg.Replicas, cfg.Timeout = 1, time.Second })
	requireTooFew(t, few)
	b.do("CONFIG", "SET", "maxmemory", 1)
	requireOutcome(t, p.Publish(t.Context(), []publish.Outgoing{event("a", 3)})[0], unavailable, "OOM")
	b.do("CONFIG", "SET", "maxmemory", 0)
	b.do("DEL", stream)
	b.do("CLUSTER", "DELSLOTSRANGE", 0, 16383)
	requireOutcome(t, p.Publish(t.Context(), []publish.Outgoing{event("a", 4)})[0], unavailable, "CLUSTERDOWN")
}
