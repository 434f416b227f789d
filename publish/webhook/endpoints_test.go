package webhook_test

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/webhook"
)

// TestRestingEndpoint: while an endpoint wants no requests, its events are not sent and no attempt is counted. Events for other
// endpoints are sent.
func TestRestingEndpoint(t *testing.T) {
	t.Parallel()
	var visits atomic.Int64
	busy := newReceiver(t, func(w http.ResponseWriter, q *http.Request) {
		visits.Add(1)
		status(http.StatusTooManyRequests, "Retry-After", "1000")(w, q)
	})
	idle := newReceiver(t, nil)
	p := newPublisher(t, "", func(c *webhook.Config) {
		c.MaxRetryAfter = time.Hour
		c.Concurrency = 1
		c.Endpoints = map[string]webhook.Endpoint{
			"crm": {URL: busy.url, Secrets: []string{secret}}, "mail": {URL: idle.url, Secrets: []string{secret}},
		}
	})
	events := []publish.Outgoing{event("a"), event(""), event("b"), event("a"), event("c")}
	events[4].Destination = "mail"
	errs := p.Publish(t.Context(), events)
	require.Equal(t, unavailable, outcomeOf(errs[0], 0))
	require.ErrorContains(t, errs[0], "replied 429")
	require.Equal(t, unavailable, outcomeOf(errs[1], 0))
	require.Equal(t, unavailable, outcomeOf(errs[2], 0))
	require.ErrorIs(t, errs[3], outbox.ErrBehind)
	require.NoError(t, errs[4])
	require.True(t, asksForPause(errs[0]), "%v", errs[0])
	err := send(t, p, events[1]) // in another call
	require.Equal(t, unavailable, outcomeOf(err, 0))
	require.ErrorContains(t, err, "it wants no requests for another")
	require.True(t, asksForPause(err), "%v", err)
	require.EqualValues(t, 1, visits.Load())

	// After that time it gets requests again.
	p = newPublisher(t, busy.url, func(c *webhook.Config) { c.MaxRetryAfter = 50 * time.Millisecond })
	require.Equal(t, unavailable, outcomeOf(send(t, p, events[0]), 0))
	busy.set(nil)
	require.Eventually(t, func() bool { return send(t, p, events[0]) == nil }, patience, 10*time.Millisecond)
}

func TestUnknownDestination(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, nil)
	o := event("k")
	o.Destination = "billing"
	var warned syncBuffer
	p := newPublisher(t, r.url, func(c *webhook.Config) {
		c.Logger = slog.New(slog.NewTextHandler(&warned, &slog.HandlerOptions{Level: slog.LevelWarn}))
	})
	err := send(t, p, o)
	require.Contains(t, warned.String(), `msg="event not posted" destination=billing`)
	require.Equal(t, attempt, outcomeOf(err, 0))
	require.EqualError(t, err, `post event: no endpoint is configured for destination "billing"`)
}

func TestClosed(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, nil)
	p := newPublisher(t, r.url, nil)
	require.NoError(t, send(t, p, event("k")))
	p.Close()
	p.Close()
	require.Equal(t, unavailable, outcomeOf(send(t, p, event("k")), 0))
	require.Len(t, r.requests(), 1)
}

// TestEventsThatHTTPCannotSend: such events would fail for ever, so they are refused permanently.
func TestEventsThatHTTPCannotSend(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, nil)
	p := newPublisher(t, r.url, nil)
	for name, value := range map[string]string{"x-a": "a\r\nx-b: forged", "x b": "c", "x-nul": "\x00", "": "x", "x-é": "y"} {
		o := event("k")
		o.Headers = map[string]string{name: value}
		err := send(t, p, o)
		require.Equal(t, permanent, outcomeOf(err, 0), "%q: %v", name, err)
		require.NotContains(t, err.Error(), "forged")
	}
	require.Empty(t, r.requests())
}

// TestEndpointsDoNotWaitForEachOther: endpoints that hang, however many, do not delay an endpoint that works.
func TestEndpointsDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	var arrived sync.WaitGroup
	arrived.Add(2)
	stuck := newReceiver(t, func(w http.ResponseWriter, q *http.Request) {
		arrived.Done()
		hang(w, q)
	})
	works := newReceiver(t, nil)
	p := newPublisher(t, "", func(c *webhook.Config) {
		c.Timeout, c.Concurrency = time.Hour, 1
		c.Endpoints = map[string]webhook.Endpoint{
			"crm": {URL: works.url, Secrets: []string{secret}}, "mail": {URL: stuck.url, Secrets: []string{secret}},
			"audit": {URL: stuck.url, Secrets: []string{secret}},
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	var calls sync.WaitGroup
	for _, destination := range []string{"mail", "audit"} {
		o := event("")
		o.Destination = destination
		calls.Go(func() { p.Publish(ctx, slices.Repeat([]publish.Outgoing{o}, 100)) })
	}
	arrived.Wait()
	for _, err := range p.Publish(t.Context(), slices.Repeat([]publish.Outgoing{event("")}, 50)) {
		require.NoError(t, err)
	}
	cancel()
	calls.Wait()
}

// TestConcurrency: all calls for an endpoint together have as many concurrent requests as configured.
func TestConcurrency(t *testing.T) {
	t.Parallel()
	const limit = 3
	var running, most atomic.Int64
	full := make(chan struct{})
	r := newReceiver(t, func(_ http.ResponseWriter, q *http.Request) {
		n := running.Add(1)
		defer running.Add(-1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		if n == limit {
			select {
			case <-full:
			default:
				close(full)
			}
		}
		<-full // until so many requests are here
	})
	p := newPublisher(t, r.url, func(c *webhook.Config) { c.Concurrency = limit })
	done := make(chan []error)
	for range 2 {
		go func() {
			done <- p.Publish(t.Context(), []publish.Outgoing{event(""), event(""), event(""), event(""), event("")})
		}()
	}
	for range 2 {
		for _, err := range <-done {
			require.NoError(t, err)
		}
	}
	require.EqualValues(t, limit, most.Load())
}
