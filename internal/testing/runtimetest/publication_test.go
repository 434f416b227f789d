package runtimetest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/queue"
)

func publishTo(t testing.TB, pool *pgxpool.Pool, b *runtimetest.Broker, p publish.Publication) *queue.Dispatcher {
	t.Helper()
	p.Broker, p.Destination = "kafka", "sc.test"
	d, err := queue.NewDispatcher(pool, queue.Config{
		Logger: runtimetest.DiscardLogger(), Publishers: map[string]publish.Publisher{"kafka": b},
	}, queue.Publish(runtimetest.PublishedTopic, p))
	require.NoError(t, err)
	return d
}

func TestDispatcherPublishesInPlaceOfAHandler(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	b := runtimetest.NewBroker()
	d := publishTo(t, pool, b, publish.Publication{Headers: func(v any) map[string]string {
		s := v.(*runtimetest.Said)
		return map[string]string{"n": fmt.Sprint(s.N), "own": "no"}
	}})
	runtimetest.EnqueueSaid(t, pool, 3)
	r, err := d.Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, queue.Report{Delivered: 3}, r)
	require.Len(t, b.Got, 3)
	require.Equal(t, "sc.test", b.Got[0].Destination)
	require.Equal(t, "a", b.Got[0].Key)
	require.Equal(t, map[string]string{"n": "0", "own": "yes"}, b.Got[0].Headers)
	require.JSONEq(t, `{"key": "a", "n": 0}`, string(b.Got[0].Payload))
}

func TestUnavailablePublisherCostsNoAttempt(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	b := runtimetest.NewBroker()
	b.Answer = func(publish.Outgoing) error { return outbox.Unavailable(errors.New("nobody home")) }
	d := publishTo(t, pool, b, publish.Publication{})
	runtimetest.EnqueueSaid(t, pool, 3)
	for range 20 {
		r, err := d.Drain(t.Context())
		require.NoError(t, err)
		r.HandedBack = 0 // 3, then 1 after each pause
		require.Equal(t, queue.Report{Resting: []string{"kafka:sc.test"}}, r)
	}
	require.Equal(t, "pending 0 3", pgtest.Value[string](t, pool, "SELECT status || ' ' || max(attempts) || ' ' || count(*) FROM testing.events GROUP BY status"))
	require.Less(t, pgtest.Value[int](t, pool, "SELECT max(claim_no)::int FROM testing.events"), 5, "a paused publisher's topics are not claimed")
}

// notSentOnce answers ErrNotSent to each event except the first, once.
func notSentOnce() func(publish.Outgoing) error {
	seen := make(map[string]bool)
	return func(o publish.Outgoing) error {
		id := o.ID.String()
		if len(seen) == 0 || seen[id] {
			seen[id] = true
			return nil
		}
		seen[id] = true
		return fmt.Errorf("publish: %w: %w", outbox.ErrNotSent, context.Canceled)
	}
}

func TestNotSentCostsNoAttempt(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	b := runtimetest.NewBroker()
	b.Answer = notSentOnce()
	topic := runtimetest.PublishedTopic
	topic = runtimetest.Altered(topic, func(s *outbox.TopicSpec) { s.Retry.MaxAttempts = 1 })
	d, err := queue.NewDispatcher(pool, queue.Config{
		Logger: runtimetest.DiscardLogger(), Publishers: map[string]publish.Publisher{"kafka": b},
	}, queue.Publish(topic, publish.Publication{Broker: "kafka", Destination: "sc.test"}))
	require.NoError(t, err)
	runtimetest.EnqueueSaid(t, pool, 4)
	for delivered := 0; delivered < 4; {
		r, err := d.Drain(t.Context())
		require.NoError(t, err)
		require.Zero(t, r.Retried+r.Dead)
		delivered += r.Delivered
	}
	require.Equal(t, "delivered 1 4", pgtest.Value[string](t, pool, "SELECT status || ' ' || max(attempts) || ' ' || count(*) FROM testing.events GROUP BY status"))
}

func TestNotSentCostsAListenerNoAttempt(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	b := runtimetest.NewBroker()
	b.Answer = notSentOnce()
	l := listenerTo(t, pool, listener.Spec{Retry: outbox.Retry{MaxAttempts: 1}}, b)
	runtimetest.PutAll(t, pool, "a1", "a2", "b1")
	for delivered := 0; delivered < 3; {
		r := runtimetest.DrainAll(t, l)
		require.Zero(t, r.Retried+r.Dead)
		delivered += r.Delivered
	}
	require.Equal(t, []string{"a1", "a2", "b1"}, b.Names(t))
	require.Equal(t, 0, pgtest.Value[int](t, pool, "SELECT count(*)::int FROM outbox.dead_letters"))
}

func TestPublisherFailuresAreThoseOfTheEvent(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	b := runtimetest.NewBroker()
	b.Answer = func(o publish.Outgoing) error {
		switch string(o.Payload) {
		case `{"n": 0, "key": "a"}`:
			return outbox.Permanent(errors.New("too large"))
		case `{"n": 1, "key": "a"}`:
			return errors.New("try again")
		case `{"n": 2, "key": "a"}`:
			return outbox.ErrBehind
		}
		return nil
	}
	d := publishTo(t, pool, b, publish.Publication{})
	runtimetest.EnqueueSaid(t, pool, 4)
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- d.Run(ctx) }()
	for sent := 0; sent == 0; {
		<-b.Told
		b.Mu.Lock()
		sent = len(b.Got)
		b.Mu.Unlock()
	}
	cancel()
	require.NoError(t, <-over)
	require.Equal(t, "dead1 pending1 pending0 delivered1", pgtest.Value[string](t, pool, "SELECT string_agg(status || attempts, ' ' ORDER BY id) FROM testing.events"))
}

func TestPublisherMustBeConfigured(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	for want, publishers := range map[string]map[string]publish.Publisher{
		"field Publishers has none of that name":                  nil,
		"field Publishers has none of that name, but Kafka, nats": {"nats": nil, "Kafka": nil},
		"its entry in field Publishers is nil":                    {"kafka": nil},
	} {
		_, err := queue.NewDispatcher(pool, queue.Config{Publishers: publishers},
			queue.Publish(runtimetest.PublishedTopic, publish.Publication{Broker: "kafka"}))
		require.EqualError(t, err, "new dispatcher: topic test/published: publishes to kafka: "+want)
	}
}

// listenerTo returns a listener that publishes said events.
func listenerTo(t testing.TB, pool *pgxpool.Pool, spec listener.Spec, b *runtimetest.Broker) *listener.Listener {
	t.Helper()
	spec.Name = "relay"
	l, err := listener.New(pool, runtimetest.WithLateRetries(spec), listener.Config{
		Logger: runtimetest.DiscardLogger(), Publishers: map[string]publish.Publisher{"kafka": b},
	}, listener.Publish(runtimetest.SaidTopic, publish.Publication{Broker: "kafka", Destination: "sc.test"}))
	require.NoError(t, err)
	return l
}

func TestListenerPublishesInOrderPerKey(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	b := runtimetest.NewBroker()
	l := listenerTo(t, pool, listener.Spec{}, b)
	runtimetest.PutAll(t, pool, "a1", "b1", "a2", "b2", "c1")
	b.InOrder(func(key string) error {
		if key == "a" {
			return errors.New("try again")
		}
		return nil
	})
	require.Equal(t, queue.Report{Delivered: 3, Retried: 1}, runtimetest.DrainAll(t, l))
	require.Equal(t, []string{"b1", "b2", "c1"}, b.Names(t))
	b.Answer = nil
	runtimetest.RetryNow(t, pool)
	require.Equal(t, queue.Report{Delivered: 2}, runtimetest.DrainAll(t, listenerTo(t, pool, listener.Spec{}, b)))
	require.Equal(t, []string{"b1", "b2", "c1", "a1", "a2"}, b.Names(t))
}

func TestListenerParksAKeyThatCannotBePublished(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	b := runtimetest.NewBroker()
	l := listenerTo(t, pool, listener.Spec{ParkKeys: true}, b)
	runtimetest.PutAll(t, pool, "a1", "b1", "a2")
	b.InOrder(func(key string) error {
		if key == "a" {
			return errors.New("try again")
		}
		return nil
	})
	runtimetest.DrainAll(t, l)
	runtimetest.PutAll(t, pool, "b2", "a3")
	runtimetest.DrainAll(t, l)
	require.Equal(t, []string{"b1", "b2"}, b.Names(t))
	b.Answer = nil
	runtimetest.RetryNow(t, pool)
	runtimetest.DrainAll(t, l)
	require.Equal(t, []string{"b1", "b2", "a1", "a2", "a3"}, b.Names(t))
}

func TestUnavailablePublisherBlocksAListener(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	b := runtimetest.NewBroker()
	b.Answer = func(publish.Outgoing) error { return outbox.Unavailable(errors.New("nobody home")) }
	l := listenerTo(t, pool, listener.Spec{Retry: outbox.Retry{MaxAttempts: 2}}, b)
	runtimetest.PutAll(t, pool, "a1", "b1")
	for range 5 {
		r := runtimetest.DrainAll(t, l)
		require.GreaterOrEqual(t, r.HandedBack, 2)
		r.HandedBack = 0 // more on a machine on which pauses end in the drain
		require.Equal(t, queue.Report{Resting: []string{"kafka:sc.test"}}, r)
		runtimetest.RetryNow(t, pool)
	}
	require.Equal(t, "0 nobody home", pgtest.Value[string](t, pool, "SELECT retry_count || ' ' || last_error FROM outbox.listeners"))
	b.Answer = nil
	require.Equal(t, queue.Report{Delivered: 2}, runtimetest.DrainAll(t, listenerTo(t, pool, listener.Spec{}, b)))
}
