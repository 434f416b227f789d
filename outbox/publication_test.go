package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

func publishTo(t testing.TB, pool *pgxpool.Pool, b *broker, p outbox.Publication) *outbox.Dispatcher {
	t.Helper()
	p.Broker, p.Destination = "kafka", "sc.test"
	d, err := outbox.NewDispatcher(pool, outbox.DispatcherConfig{
		Logger: quiet(), Publishers: map[string]outbox.Publisher{"kafka": b},
	}, outbox.Publish(publishedTopic, p))
	require.NoError(t, err)
	return d
}

func TestDispatcherPublishesInPlaceOfAHandler(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	b := newBroker()
	d := publishTo(t, pool, b, outbox.Publication{Headers: func(v any) map[string]string {
		s := v.(*said)
		return map[string]string{"n": fmt.Sprint(s.N), "own": "no"}
	}})
	enqueueSaid(t, pool, 3)
	r, err := d.Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, outbox.DrainReport{Delivered: 3}, r)
	require.Len(t, b.got, 3)
	require.Equal(t, "sc.test", b.got[0].Destination)
	require.Equal(t, "a", b.got[0].Key)
	require.Equal(t, map[string]string{"n": "0", "own": "yes"}, b.got[0].Headers)
	require.JSONEq(t, `{"key": "a", "n": 0}`, string(b.got[0].Payload))
}

func TestUnavailablePublisherCostsNoAttempt(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	b := newBroker()
	b.answer = func(outbox.Outgoing) error { return outbox.Unavailable(errors.New("nobody home")) }
	d := publishTo(t, pool, b, outbox.Publication{})
	enqueueSaid(t, pool, 3)
	for range 20 {
		r, err := d.Drain(t.Context())
		require.NoError(t, err)
		r.HandedBack = 0 // 3, then 1 after each pause
		require.Equal(t, outbox.DrainReport{Resting: []string{"kafka:sc.test"}}, r)
	}
	require.Equal(t, "pending 0 3", value[string](t, pool, "SELECT status || ' ' || max(attempts) || ' ' || count(*) FROM outbox.events GROUP BY status"))
	require.Less(t, value[int](t, pool, "SELECT max(claim_no)::int FROM outbox.events"), 5, "a paused publisher's topics are not claimed")
}

// notSentOnce answers ErrNotSent to each event except the first, once.
func notSentOnce() func(outbox.Outgoing) error {
	seen := make(map[string]bool)
	return func(o outbox.Outgoing) error {
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
	pool := pgtest.Database(t)
	b := newBroker()
	b.answer = notSentOnce()
	topic := publishedTopic
	topic = altered(topic, func(s *outbox.TopicSpec) { s.Retry.MaxAttempts = 1 })
	d, err := outbox.NewDispatcher(pool, outbox.DispatcherConfig{
		Logger: quiet(), Publishers: map[string]outbox.Publisher{"kafka": b},
	}, outbox.Publish(topic, outbox.Publication{Broker: "kafka", Destination: "sc.test"}))
	require.NoError(t, err)
	enqueueSaid(t, pool, 4)
	for delivered := 0; delivered < 4; {
		r, err := d.Drain(t.Context())
		require.NoError(t, err)
		require.Zero(t, r.Retried+r.Dead)
		delivered += r.Delivered
	}
	require.Equal(t, "delivered 1 4", value[string](t, pool, "SELECT status || ' ' || max(attempts) || ' ' || count(*) FROM outbox.events GROUP BY status"))
}

func TestNotSentCostsAListenerNoAttempt(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	b := newBroker()
	b.answer = notSentOnce()
	l := listenerTo(t, pool, outbox.ListenerSpec{Retry: outbox.Retry{MaxAttempts: 1}}, b)
	putAll(t, pool, "a1", "a2", "b1")
	for delivered := 0; delivered < 3; {
		r := drainAll(t, l)
		require.Zero(t, r.Retried+r.Dead)
		delivered += r.Delivered
	}
	require.Equal(t, []string{"a1", "a2", "b1"}, b.names(t))
	require.Equal(t, 0, value[int](t, pool, "SELECT count(*)::int FROM outbox.dead_letters"))
}

func TestPublisherFailuresAreThoseOfTheEvent(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	b := newBroker()
	b.answer = func(o outbox.Outgoing) error {
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
	d := publishTo(t, pool, b, outbox.Publication{})
	enqueueSaid(t, pool, 4)
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- d.Run(ctx) }()
	for sent := 0; sent == 0; {
		<-b.told
		b.mu.Lock()
		sent = len(b.got)
		b.mu.Unlock()
	}
	cancel()
	require.NoError(t, <-over)
	require.Equal(t, "dead1 pending1 pending0 delivered1", value[string](t, pool, "SELECT string_agg(status || attempts, ' ' ORDER BY id) FROM outbox.events"))
}

func TestPublisherMustBeConfigured(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	for want, publishers := range map[string]map[string]outbox.Publisher{
		"field Publishers has none of that name":                  nil,
		"field Publishers has none of that name, but Kafka, nats": {"nats": nil, "Kafka": nil},
		"its entry in field Publishers is nil":                    {"kafka": nil},
	} {
		_, err := outbox.NewDispatcher(pool, outbox.DispatcherConfig{Publishers: publishers},
			outbox.Publish(publishedTopic, outbox.Publication{Broker: "kafka"}))
		require.EqualError(t, err, "new dispatcher: topic test/published: publishes to kafka: "+want)
	}
}

// listenerTo returns a listener that publishes said events.
func listenerTo(t testing.TB, pool *pgxpool.Pool, spec outbox.ListenerSpec, b *broker) *outbox.Listener {
	t.Helper()
	spec.Name = "relay"
	l, err := outbox.NewListener(pool, withLateRetries(spec), outbox.ListenerConfig{
		Logger: quiet(), Publishers: map[string]outbox.Publisher{"kafka": b},
	}, outbox.ListenPublish(saidTopic, outbox.Publication{Broker: "kafka", Destination: "sc.test"}))
	require.NoError(t, err)
	return l
}

func TestListenerPublishesInOrderPerKey(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	b := newBroker()
	l := listenerTo(t, pool, outbox.ListenerSpec{}, b)
	putAll(t, pool, "a1", "b1", "a2", "b2", "c1")
	b.inOrder(func(key string) error {
		if key == "a" {
			return errors.New("try again")
		}
		return nil
	})
	require.Equal(t, outbox.DrainReport{Delivered: 3, Retried: 1}, drainAll(t, l))
	require.Equal(t, []string{"b1", "b2", "c1"}, b.names(t))
	b.answer = nil
	retryNow(t, pool)
	require.Equal(t, outbox.DrainReport{Delivered: 2}, drainAll(t, listenerTo(t, pool, outbox.ListenerSpec{}, b)))
	require.Equal(t, []string{"b1", "b2", "c1", "a1", "a2"}, b.names(t))
}

func TestListenerParksAKeyThatCannotBePublished(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	b := newBroker()
	l := listenerTo(t, pool, outbox.ListenerSpec{ParkKeys: true}, b)
	putAll(t, pool, "a1", "b1", "a2")
	b.inOrder(func(key string) error {
		if key == "a" {
			return errors.New("try again")
		}
		return nil
	})
	drainAll(t, l)
	putAll(t, pool, "b2", "a3")
	drainAll(t, l)
	require.Equal(t, []string{"b1", "b2"}, b.names(t))
	b.answer = nil
	retryNow(t, pool)
	drainAll(t, l)
	require.Equal(t, []string{"b1", "b2", "a1", "a2", "a3"}, b.names(t))
}

func TestUnavailablePublisherBlocksAListener(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	b := newBroker()
	b.answer = func(outbox.Outgoing) error { return outbox.Unavailable(errors.New("nobody home")) }
	l := listenerTo(t, pool, outbox.ListenerSpec{Retry: outbox.Retry{MaxAttempts: 2}}, b)
	putAll(t, pool, "a1", "b1")
	for range 5 {
		r := drainAll(t, l)
		require.GreaterOrEqual(t, r.HandedBack, 2)
		r.HandedBack = 0 // more on a machine on which pauses end in the drain
		require.Equal(t, outbox.DrainReport{Resting: []string{"kafka:sc.test"}}, r)
		retryNow(t, pool)
	}
	require.Equal(t, "0 nobody home", value[string](t, pool, "SELECT retry_count || ' ' || last_error FROM outbox.listeners"))
	b.answer = nil
	require.Equal(t, outbox.DrainReport{Delivered: 2}, drainAll(t, listenerTo(t, pool, outbox.ListenerSpec{}, b)))
}
