package runtimetest_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/payload"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/queue"
)

// tookV1, tookV2 and took are three versions of a payload. Version 1 counts seconds as text, version 2 as a number, and
// version 3 milliseconds under another name.
type (
	tookV1 struct {
		Seconds string `json:"seconds"`
	}
	tookV2 struct {
		Seconds int64 `json:"seconds"`
	}
	took struct {
		Millis int64 `json:"millis"`
	}
)

var errOdd = errors.New("an odd number of digits")

func upcastTookV1(old tookV1) (tookV2, error) {
	var n json.Number
	if err := json.Unmarshal([]byte(old.Seconds), &n); err != nil {
		return tookV2{}, errOdd
	}
	seconds, err := n.Int64()
	return tookV2{seconds}, err
}

func upcastTookV2(old tookV2) (took, error) { return took{old.Seconds * 1000}, nil }

// history are the builds of the service: with version 1, 2 and 3.
func history(log bool) (v1 outbox.Topic[tookV1], v2 outbox.Topic[tookV2], v3 outbox.Topic[took]) {
	spec := outbox.TopicSpec{Namespace: "chat", Name: "took", Log: log, Version: 1}
	v1 = outbox.NewTopic[tookV1](spec)
	spec.Version = 2
	v2 = outbox.NewTopic[tookV2](spec)
	spec.Version = 3
	spec.History = []payload.Upcaster{
		payload.Upcast[tookV1, tookV2](1, upcastTookV1),
		payload.Upcast[tookV2, took](2, upcastTookV2),
	}
	return v1, v2, outbox.NewTopic[took](spec)
}

func enqueueHistory(t *testing.T, pool *pgxpool.Pool, log bool, first string) {
	t.Helper()
	v1, v2, v3 := history(log)
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		_, err := v1.Enqueue(t.Context(), tx, tookV1{first})
		require.NoError(t, err)
		_, err = v2.Enqueue(t.Context(), tx, tookV2{2})
		require.NoError(t, err)
		_, err = v3.Enqueue(t.Context(), tx, took{3})
		require.NoError(t, err)
	})
}

type tookHandlers interface {
	Handle(context.Context, outbox.Delivery[took]) error
}

// tookSeen keeps what a handler gets: milliseconds by version of the event.
type tookSeen map[int]int64

func (s tookSeen) Handle(_ context.Context, d outbox.Delivery[took]) error {
	s[d.Version] = d.Payload.Millis
	return nil
}

// TestUpcastOnDelivery: handlers of dispatchers and listeners get every version as the present one. The event keeps its
// version.
func TestUpcastOnDelivery(t *testing.T) {
	t.Parallel()
	want := tookSeen{1: 1000, 2: 2000, 3: 3}
	t.Run("queue", func(t *testing.T) {
		t.Parallel()
		pool := pgtest.Database(t)
		enqueueHistory(t, pool, false, "1")
		_, _, topic := history(false)
		seen := tookSeen{}
		cfg := runtimetest.QuickConfig()
		cfg.Concurrency = 1
		report, err := runtimetest.Dispatcher(t, pool, cfg, queue.Handle(topic, tookHandlers(seen), tookHandlers(seen).Handle)).Drain(t.Context())
		require.NoError(t, err)
		require.Equal(t, queue.Report{Delivered: 3}, report)
		require.Equal(t, want, seen)
	})
	t.Run("listener", func(t *testing.T) {
		t.Parallel()
		pool := pgtest.Database(t)
		enqueueHistory(t, pool, true, "1")
		_, _, topic := history(true)
		seen := tookSeen{}
		l, err := listener.New(pool, listener.Spec{Name: "ears"}, listener.Config{Logger: runtimetest.DiscardLogger()},
			listener.Handle(topic, tookHandlers(seen), tookHandlers(seen).Handle))
		require.NoError(t, err)
		runtimetest.DrainAll(t, l)
		require.Equal(t, want, seen)
	})
	t.Run("publisher", func(t *testing.T) {
		t.Parallel()
		pool := pgtest.Database(t)
		enqueueHistory(t, pool, false, "1")
		_, _, topic := history(false)
		b := runtimetest.NewBroker()
		keys := map[int]string{}
		d, err := queue.NewDispatcher(pool, queue.Config{Logger: runtimetest.DiscardLogger(), Publishers: map[string]publish.Publisher{"kafka": b}},
			queue.Publish(topic, publish.Publication{Broker: "kafka", Destination: "took", Headers: func(p any) map[string]string {
				text, err := json.Marshal(p.(*took))
				require.NoError(t, err)
				return map[string]string{"present": string(text)}
			}}))
		require.NoError(t, err)
		_, err = d.Drain(t.Context())
		require.NoError(t, err)
		payloads := map[int]string{}
		for _, o := range b.Got {
			keys[o.Version], payloads[o.Version] = o.Headers["present"], string(o.Payload)
		}
		require.Equal(t, map[int]string{1: `{"millis":1000}`, 2: `{"millis":2000}`, 3: `{"millis":3}`}, keys)
		require.JSONEq(t, `{"seconds": "1"}`, payloads[1], "the message has the payload as it was enqueued")
	})
}

// TestUpcastFails: the event becomes a dead letter with the reason, and is upcast again when it is replayed with a fixed
// step.
func TestUpcastFails(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	enqueueHistory(t, pool, false, "one")
	_, _, topic := history(false)
	seen := tookSeen{}
	cfg := runtimetest.QuickConfig()
	cfg.Concurrency = 1
	report, err := runtimetest.Dispatcher(t, pool, cfg, queue.Handle(topic, tookHandlers(seen), tookHandlers(seen).Handle)).Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, queue.Report{Delivered: 2, Dead: 1}, report)
	require.Equal(t, "1 upcast payload from version 1: an odd number of digits", pgtest.Value[string](t, pool, "SELECT attempts || ' ' || last_error FROM testing.events WHERE status = 'dead'"))

	fixed := runtimetest.Altered(topic, func(s *outbox.TopicSpec) {
		s.History = []payload.Upcaster{
			payload.Upcast[tookV1, tookV2](1, func(tookV1) (tookV2, error) { return tookV2{1}, nil }),
			s.History[1],
		}
	})
	_, err = runtimetest.AdminOf(t, pool).Replay(t.Context(), admin.Filter{}, admin.Act{Who: "me", Why: "fixed"})
	require.NoError(t, err)
	report, err = runtimetest.Dispatcher(t, pool, cfg, queue.Handle(fixed, tookHandlers(seen), tookHandlers(seen).Handle)).Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, queue.Report{Delivered: 1}, report)
	require.Equal(t, tookSeen{1: 1000, 2: 2000, 3: 3}, seen)
}

// TestUpcastPanics: a step that panics is a failed attempt, like a handler that does.
func TestUpcastPanics(t *testing.T) {
	t.Parallel()
	broken := func(log bool) outbox.Topic[took] {
		_, _, topic := history(log)
		return runtimetest.Altered(topic, func(s *outbox.TopicSpec) {
			s.History = []payload.Upcaster{payload.Upcast[tookV1, took](1, func(tookV1) (took, error) { panic("no step") })}
			s.Retry = outbox.Retry{MaxAttempts: 1}
		})
	}
	t.Run("queue", func(t *testing.T) {
		t.Parallel()
		pool := pgtest.Database(t)
		v1, _, _ := history(false)
		pgtest.InTx(t, pool, func(tx pgx.Tx) {
			_, err := v1.Enqueue(t.Context(), tx, tookV1{"1"})
			require.NoError(t, err)
		})
		seen := tookSeen{}
		cfg := runtimetest.QuickConfig()
		cfg.MaxAttempts = 1
		report, err := runtimetest.Dispatcher(t, pool, cfg, queue.Handle(broken(false), tookHandlers(seen), tookHandlers(seen).Handle)).Drain(t.Context())
		require.NoError(t, err)
		require.Equal(t, queue.Report{Dead: 1}, report)
		require.Contains(t, pgtest.Value[string](t, pool, "SELECT last_error FROM testing.events"), "no step")
	})
	t.Run("listener", func(t *testing.T) {
		t.Parallel()
		pool := pgtest.Database(t)
		v1, _, _ := history(true)
		pgtest.InTx(t, pool, func(tx pgx.Tx) {
			_, err := v1.Enqueue(t.Context(), tx, tookV1{"1"})
			require.NoError(t, err)
		})
		seen := tookSeen{}
		l, err := listener.New(pool, listener.Spec{Name: "ears", Retry: outbox.Retry{MaxAttempts: 1}}, listener.Config{Logger: runtimetest.DiscardLogger()},
			listener.Handle(broken(true), tookHandlers(seen), tookHandlers(seen).Handle))
		require.NoError(t, err)
		runtimetest.DrainAll(t, l)
		require.Contains(t, pgtest.Value[string](t, pool, "SELECT error FROM outbox.dead_letters WHERE listener = 'ears'"), "no step")
	})
}
