package prometheus_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
	"github.com/outboxgen/outboxgen/queue"
	"github.com/outboxgen/outboxgen/telemetry/prometheus"
)

// TestCounters runs a dispatcher and a listener whose events succeed, fail and die.
func TestCounters(t *testing.T) {
	t.Parallel()
	pool := outboxtest.Postgres(t)
	c, err := prometheus.New(prometheus.Config{})
	require.NoError(t, err)
	ctx := outbox.ContextWithObserver(t.Context(), c.Observer())
	enqueue(ctx, t, pool, placed, "good", "bad", "worse", "good")
	enqueue(ctx, t, pool, logged, "good", "good")
	_, err = placed.Enqueue(ctx, nil, order{})
	require.Error(t, err)

	h := handler(func(_ context.Context, d outbox.Delivery[order]) error {
		switch d.Payload.ID {
		case "bad":
			return errors.New("broken")
		case "worse":
			return outbox.Permanent(errors.New("broken"))
		}
		return nil
	})
	d, err := queue.NewDispatcher(pool, queue.Config{Observer: c.Observer()}, queue.Handle(placed, h, h.Handle))
	require.NoError(t, err)
	_, err = d.Drain(t.Context())
	require.NoError(t, err)
	l, err := listener.New(pool, listener.Spec{Name: "ears"}, listener.Config{Observer: c.Observer()}, listener.Handle(logged, h, h.Handle))
	require.NoError(t, err)
	_, err = l.Drain(t.Context())
	require.NoError(t, err)

	got := scrape(t, c)
	for name, want := range map[string]float64{
		"outboxgen_enqueued_events_total{topic=shop/placed}":                                   3,
		"outboxgen_enqueue_duplicates_total{topic=shop/placed}":                                1,
		"outboxgen_enqueue_failures_total{topic=shop/placed}":                                  1,
		"outboxgen_enqueue_duration_seconds{topic=shop/placed}":                                2,
		"outboxgen_claimed_events_total{topic=shop/placed}":                                    3,
		"outboxgen_handled_events_total{outcome=success,topic=shop/placed}":                    1,
		"outboxgen_handled_events_total{outcome=failure,topic=shop/placed}":                    2,
		"outboxgen_handler_duration_seconds{topic=shop/placed}":                                3,
		"outboxgen_settled_events_total{settlement=delivered,topic=shop/placed}":               1,
		"outboxgen_settled_events_total{settlement=retried,topic=shop/placed}":                 1,
		"outboxgen_settled_events_total{settlement=dead,topic=shop/placed}":                    1,
		"outboxgen_dead_events_total{topic=shop/placed}":                                       1,
		"outboxgen_enqueued_events_total{topic=shop/logged}":                                   2,
		"outboxgen_claimed_events_total{listener=ears,topic=shop/logged}":                      2,
		"outboxgen_handled_events_total{listener=ears,outcome=success,topic=shop/logged}":      2,
		"outboxgen_settled_events_total{listener=ears,settlement=delivered,topic=shop/logged}": 2,
	} {
		require.Equal(t, want, got[name], "%s in %v", name, got)
	}
	require.NotZero(t, got["outboxgen_claim_duration_seconds{dispatcher=shop}"])
	require.NotZero(t, got["outboxgen_claim_duration_seconds{listener=ears}"])
	require.NotContains(t, got, "outboxgen_gauges_reader", "without a pool")
}

// TestResting: a topic rests in two dispatchers, and resumes in one.
func TestResting(t *testing.T) {
	t.Parallel()
	c, err := prometheus.New(prometheus.Config{})
	require.NoError(t, err)
	one, two := outbox.Runner{Namespace: "shop", WorkerID: [16]byte{1}}, outbox.Runner{Namespace: "shop", WorkerID: [16]byte{2}}
	const name = "outboxgen_resting{dispatcher=shop,target=shop/placed}"
	for i, step := range []func(){
		func() { c.Observer().Resting(one, "shop/placed", errors.New("away")) },
		func() { c.Observer().Resting(two, "shop/placed", errors.New("away")) },
		func() { c.Observer().Resumed(one, "shop/placed", 1) },
		func() { c.Observer().Resumed(two, "shop/placed", 1) },
	} {
		step()
		got, there := scrape(t, c)[name]
		require.True(t, there)
		require.Equal(t, []float64{1, 2, 1, 0}[i], got)
	}
	c.Observer().Lost(one, outbox.Event{Namespace: "shop", Topic: "placed"})
	require.Equal(t, 1.0, scrape(t, c)["outboxgen_lost_events_total{topic=shop/placed}"])
}
