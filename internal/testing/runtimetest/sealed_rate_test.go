package runtimetest_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
	"github.com/outboxgen/outboxgen/seal"
)

const (
	ratePeriod = 2 * time.Second
	slowOnce   = 600 * time.Millisecond // more than a quarter of the period
)

// slowRing is a keyring that is slow at its first call, as a service is that must be asked.
type slowRing struct {
	seal.Keyring
	wait func()
}

func (s slowRing) OpeningKey(ctx context.Context, tenant uuid.NullUUID, id string) (*seal.Key, error) {
	s.wait()
	return s.Keyring.OpeningKey(ctx, tenant, id)
}

// TestRateBehindSlowCode: what an event needs before its handler or publisher is called may take any time, once. The attempt
// counts for a period from the call on, and is charged once.
func TestRateBehindSlowCode(t *testing.T) {
	eachMachine(t, func(t *testing.T, m machine) {
		pgtest.Slow(t)
		keys, h, spec := ringOf(t, "k1"), newHeard(), sealedSpec(m.log, false)
		log := runtimetest.NewLogSpy()
		once := sync.OnceFunc(func() { <-time.After(slowOnce) })
		pool, gate := runtimetest.NewGate(t, pgtest.Plain(t), "SAVEPOINT outboxgen_event")
		enqueueSealed(t, pool, keys, topicOf(spec), newPaid(uuid.New(), "a"))
		spec.Limits = []outbox.Limit{{Rate: outbox.Rate{Events: 10, Period: ratePeriod}}}
		if m.publishes { // it opens nothing, but asks for a key
			own := publication
			own.Key = func(p any) eventkey.Key {
				once()
				return publication.Key(p)
			}
			m.run = dispatcherOf(func(s outbox.TopicSpec, _ *heard) queue.Handler { return queue.Publish(topicOf(s), own) })
			if m.log {
				m.run = listenerOf(0, func(s outbox.TopicSpec, _ *heard) listener.Handler { return listener.Publish(topicOf(s), own) })
			}
		}
		gate.OnPass(sync.OnceFunc(func() { <-time.After(slowOnce) })) // the savepoints of listeners with a transaction
		r := m.run(t, pool, slowRing{keys, once}, log.Logger(), spec, h)
		ctx, stop := context.WithCancel(t.Context())
		over := make(chan error, 1)
		go func() { over <- r.Run(ctx) }()
		pgtest.Receive(t, h.told, "an event")
		until := pgtest.Value[time.Time](t, pool, `
			SELECT max(at) FROM (
				SELECT unnest(untils) AS at FROM outbox.listener_rates
				UNION ALL SELECT unnest(starts_at) + interval '2 seconds' FROM outbox.limit_usage
			) AS counted`)
		stop()
		require.NoError(t, pgtest.Receive(t, over, "the end of Run"))
		require.GreaterOrEqual(t, until.Sub(h.latest), ratePeriod)
		require.Len(t, h.told, 0)
		if !m.log {
			require.Equal(t, 1, pgtest.Count(t, pool, "SELECT attempts FROM outbox.delivered"))
			require.Contains(t, log.String(), "by then the rate did not allow it to begin any more")
		}
	})
}
