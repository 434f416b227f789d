package webhook_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/webhook"
)

// customers is a store of the endpoints of customers.
type customers struct {
	mu        sync.Mutex
	endpoints map[string]webhook.Endpoint
	lookups   atomic.Int64
}

func (c *customers) set(customer string, e webhook.Endpoint) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.endpoints == nil {
		c.endpoints = make(map[string]webhook.Endpoint)
	}
	c.endpoints[customer] = e
}

func (c *customers) lookup(_ context.Context, customer string) (webhook.Endpoint, error) {
	c.lookups.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	e, known := c.endpoints[customer]
	if !known {
		return webhook.Endpoint{}, webhook.ErrNoEndpoint
	}
	return e, nil
}

// newLookup returns a publisher without configured endpoints. change may be nil.
func newLookup(t testing.TB, lookup webhook.Lookup, change func(*webhook.Config)) *webhook.Publisher {
	return newPublisher(t, "", func(c *webhook.Config) {
		c.Endpoints, c.Lookup = nil, lookup
		if change != nil {
			change(c)
		}
	})
}

func eventFor(destination string) publish.Outgoing {
	o := event("")
	o.Destination = destination
	return o
}

// TestLookup: each customer has an address, secrets and headers. A lookup is made once for all events of a customer. A
// configured endpoint takes precedence.
func TestLookup(t *testing.T) {
	t.Parallel()
	one, two, fixed := newReceiver(t, nil), newReceiver(t, nil), newReceiver(t, nil)
	var store customers
	store.set("one", webhook.Endpoint{URL: one.url, Secrets: []string{newSecret("1", 32)}, Headers: map[string]string{"x-customer": "first"}})
	store.set("two", webhook.Endpoint{URL: two.url, Secrets: []string{newSecret("2", 32)}})
	store.set("crm", webhook.Endpoint{URL: two.url, Secrets: []string{newSecret("3", 32)}})
	p := newLookup(t, store.lookup, func(c *webhook.Config) {
		c.Endpoints = map[string]webhook.Endpoint{"crm": {URL: fixed.url, Secrets: []string{secret}}}
	})
	var events []publish.Outgoing
	for range 20 {
		events = append(events, eventFor("one"), eventFor("two"), eventFor("crm"))
	}
	for _, err := range p.Publish(t.Context(), events) {
		require.NoError(t, err)
	}
	for r, secret := range map[*receiver]string{one: newSecret("1", 32), two: newSecret("2", 32), fixed: secret} {
		require.Len(t, r.requests(), 20)
		for _, q := range r.requests() {
			require.NoError(t, verify(t, secret, q))
		}
	}
	require.Equal(t, "first", one.requests()[0].header.Get("x-customer"))
	require.EqualValues(t, 2, store.lookups.Load())
}

// TestLookupTTL: a changed address and secret take effect within the TTL, and so does a removal.
func TestLookupTTL(t *testing.T) {
	t.Parallel()
	before, after := newReceiver(t, nil), newReceiver(t, nil)
	var store customers
	store.set("one", webhook.Endpoint{URL: before.url, Secrets: []string{secret}})
	p := newLookup(t, store.lookup, func(c *webhook.Config) { c.LookupTTL = 50 * time.Millisecond })
	require.NoError(t, send(t, p, eventFor("one")))
	store.set("one", webhook.Endpoint{URL: after.url, Secrets: []string{newSecret("rotated", 5)}})
	require.Eventually(t, func() bool {
		require.NoError(t, send(t, p, eventFor("one")))
		return len(after.requests()) > 0
	}, patience, 5*time.Millisecond)
	require.NoError(t, verify(t, newSecret("rotated", 5), after.requests()[0]))
	store.mu.Lock()
	delete(store.endpoints, "one")
	store.mu.Unlock()
	require.Eventually(t, func() bool { return outcomeOf(send(t, p, eventFor("one")), 0) == permanent }, patience, 5*time.Millisecond)

	// Within a long TTL there is one lookup.
	store.set("two", webhook.Endpoint{URL: before.url, Secrets: []string{secret}})
	store.lookups.Store(0)
	p = newLookup(t, store.lookup, nil)
	for range 5 {
		require.NoError(t, send(t, p, eventFor("two")))
	}
	require.EqualValues(t, 1, store.lookups.Load())
}

// TestLookupErrors: an error concerns the events of one destination, and says what happens to them. It is remembered for a
// short time.
func TestLookupErrors(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, nil)
	good := webhook.Endpoint{URL: r.url, Secrets: []string{secret}}
	for name, c := range map[string]struct {
		lookup func() (webhook.Endpoint, error)
		want   outcome
		says   string
		warns  bool
	}{
		"unknown":   {func() (webhook.Endpoint, error) { return good, webhook.ErrNoEndpoint }, permanent, `post event: look up endpoint of "unknown": it has no endpoint`, true},
		"fails":     {func() (webhook.Endpoint, error) { return good, errors.New("no rights") }, unavailable, `post event: look up endpoint of "fails": no rights`, false},
		"permanent": {func() (webhook.Endpoint, error) { return good, outbox.Permanent(errors.New("deleted")) }, permanent, `look up endpoint of "permanent": deleted`, false},
		"broker":    {func() (webhook.Endpoint, error) { return good, outbox.BrokerUnavailable(errors.New("no database")) }, unavailable, "no database", false},
		"panics":    {func() (webhook.Endpoint, error) { panic("hunter2") }, unavailable, "Lookup panicked (string)", false},
		"exits":     {func() (webhook.Endpoint, error) { runtime.Goexit(); return good, nil }, unavailable, "Lookup called runtime.Goexit", false},
		"empty":     {func() (webhook.Endpoint, error) { return webhook.Endpoint{}, nil }, unavailable, "field URL is neither http nor https", true},
		"unsigned":  {func() (webhook.Endpoint, error) { return webhook.Endpoint{URL: r.url}, nil }, unavailable, "field Secrets is empty", true},
		"negative": {func() (webhook.Endpoint, error) {
			return webhook.Endpoint{URL: r.url, Secrets: []string{secret}, Concurrency: -1}, nil
		}, unavailable, "field Concurrency: -1 is negative", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var lookups atomic.Int64
			var warned syncBuffer
			p := newLookup(t, func(_ context.Context, destination string) (webhook.Endpoint, error) {
				if destination == "good" {
					return good, nil
				}
				lookups.Add(1)
				return c.lookup()
			}, func(c *webhook.Config) {
				c.FailedLookupTTL = time.Hour // at most LookupTTL, one minute
				c.Logger = slog.New(slog.NewTextHandler(&warned, &slog.HandlerOptions{Level: slog.LevelWarn}))
			})
			errs := p.Publish(t.Context(), []publish.Outgoing{eventFor(name), eventFor("good"), eventFor(name)})
			for _, err := range []error{errs[0], errs[2], send(t, p, eventFor(name))} {
				require.Equal(t, c.want, outcomeOf(err, 0), "%v", err)
				require.ErrorContains(t, err, c.says)
				require.NotContains(t, err.Error(), "hunter2")
				require.Equal(t, name == "broker", outbox.IsBrokerUnavailable(err))
			}
			if name != "broker" { // which stops the whole call
				require.NoError(t, errs[1])
			}
			require.EqualValues(t, 1, lookups.Load())
			require.Equal(t, c.warns, warned.String() != "", warned.String())
		})
	}
}

// TestFailedLookupIsRepeated: a lookup that fails is repeated soon, however long the TTL of results is.
func TestFailedLookupIsRepeated(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, nil)
	var lookups atomic.Int64
	p := newLookup(t, func(context.Context, string) (webhook.Endpoint, error) {
		if lookups.Add(1) < 3 {
			return webhook.Endpoint{}, errors.New("no rights")
		}
		return webhook.Endpoint{URL: r.url, Secrets: []string{secret}}, nil
	}, func(c *webhook.Config) { c.LookupTTL, c.FailedLookupTTL = time.Hour, time.Millisecond })
	require.Eventually(t, func() bool { return send(t, p, eventFor("one")) == nil }, patience, 5*time.Millisecond)
	require.NoError(t, send(t, p, eventFor("one")))
	require.EqualValues(t, 3, lookups.Load())
}

// TestLookupThatHangs: it holds up its own destination, until the timeout at most. Publish does not wait for it after the end
// of its context, and nothing was sent.
func TestLookupThatHangs(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, nil)
	began, open := make(chan struct{}, 10), make(chan struct{})
	t.Cleanup(func() { close(open) })
	lookup := func(ctx context.Context, destination string) (webhook.Endpoint, error) {
		switch destination {
		case "waits":
			began <- struct{}{}
			<-ctx.Done()
			return webhook.Endpoint{}, ctx.Err()
		case "deaf":
			began <- struct{}{}
			<-open
		}
		return webhook.Endpoint{URL: r.url, Secrets: []string{secret}}, nil
	}
	p := newLookup(t, lookup, func(c *webhook.Config) { c.Timeout = time.Hour })
	for _, destination := range []string{"waits", "deaf"} {
		ctx, cancel := context.WithCancel(t.Context())
		results := make(chan []error)
		go func() { results <- p.Publish(ctx, []publish.Outgoing{eventFor(destination)}) }()
		<-began
		require.NoError(t, send(t, p, eventFor("good")))
		cancel()
		require.ErrorIs(t, (<-results)[0], outbox.ErrNotSent)
	}
	p = newLookup(t, lookup, func(c *webhook.Config) { c.Timeout = 50 * time.Millisecond })
	for _, destination := range []string{"waits", "deaf"} {
		require.Equal(t, unavailable, outcomeOf(send(t, p, eventFor(destination)), 0))
	}
}

// TestLookedUpAddressesAreGuarded: an address that is not public is refused, wherever it comes from.
func TestLookedUpAddressesAreGuarded(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, nil)
	lookup := func(context.Context, string) (webhook.Endpoint, error) {
		return webhook.Endpoint{URL: r.url, Secrets: []string{secret}}, nil
	}
	p := newLookup(t, lookup, func(c *webhook.Config) { c.AllowedNetworks = nil })
	err := send(t, p, eventFor("one"))
	require.Equal(t, unavailable, outcomeOf(err, 0), "%v", err)
	require.ErrorContains(t, err, "is not a public address")
	p = newLookup(t, lookup, func(c *webhook.Config) { c.AllowedNetworks, c.PrivateAddressTimeout = nil, -1 })
	require.Equal(t, permanent, outcomeOf(send(t, p, eventFor("one")), 0))
	require.Empty(t, r.requests())
}

// TestLimitsOfAnEndpoint: an endpoint may have a lower concurrency and a shorter timeout than the others. The limit holds
// across calls and lookups: an event that waits for a request of an earlier lookup is not sent.
func TestLimitsOfAnEndpoint(t *testing.T) {
	t.Parallel()
	began, open := make(chan struct{}, 10), make(chan struct{})
	slow := newReceiver(t, func(http.ResponseWriter, *http.Request) {
		began <- struct{}{}
		<-open
	})
	silent := newReceiver(t, hang)
	var store customers
	store.set("slow", webhook.Endpoint{URL: slow.url, Secrets: []string{secret}, Concurrency: 1})
	store.set("silent", webhook.Endpoint{URL: silent.url, Secrets: []string{secret}, Timeout: 50 * time.Millisecond})
	p := newLookup(t, store.lookup, func(c *webhook.Config) { c.Timeout, c.LookupTTL = time.Hour, time.Millisecond })
	first := make(chan error, 1)
	go func() { first <- p.Publish(t.Context(), []publish.Outgoing{eventFor("slow")})[0] }()
	<-began
	for store.lookups.Load() < 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		for _, err := range p.Publish(ctx, []publish.Outgoing{eventFor("slow"), eventFor("slow")}) {
			require.ErrorIs(t, err, outbox.ErrNotSent)
		}
		cancel()
	}
	close(open)
	require.NoError(t, <-first)
	require.NoError(t, send(t, p, eventFor("slow")))

	err := send(t, p, eventFor("silent"))
	require.Equal(t, attempt, outcomeOf(err, 0))
	require.ErrorContains(t, err, "no reply within 50ms")
}

// TestRestOutlivesALookup: an endpoint that wants no requests for a while gets none after the next lookup either, unless it
// has moved.
func TestRestOutlivesALookup(t *testing.T) {
	t.Parallel()
	var visits atomic.Int64
	busy, moved := newReceiver(t, func(w http.ResponseWriter, q *http.Request) {
		visits.Add(1)
		status(http.StatusTooManyRequests, "Retry-After", "1000")(w, q)
	}), newReceiver(t, nil)
	var store customers
	store.set("one", webhook.Endpoint{URL: busy.url, Secrets: []string{secret}})
	p := newLookup(t, store.lookup, func(c *webhook.Config) { c.LookupTTL = time.Millisecond })
	require.Equal(t, unavailable, outcomeOf(send(t, p, eventFor("one")), 0))
	for before := store.lookups.Load(); store.lookups.Load() == before; {
		require.ErrorContains(t, send(t, p, eventFor("one")), "it wants no requests for another")
	}
	require.EqualValues(t, 1, visits.Load())
	store.set("one", webhook.Endpoint{URL: moved.url, Secrets: []string{secret}})
	require.Eventually(t, func() bool { return send(t, p, eventFor("one")) == nil }, patience, time.Millisecond)
}

// TestCloseEndsLookups: a lookup under way ends with the publisher.
func TestCloseEndsLookups(t *testing.T) {
	t.Parallel()
	began, ended := make(chan struct{}), make(chan struct{})
	p := newLookup(t, func(ctx context.Context, _ string) (webhook.Endpoint, error) {
		close(began)
		<-ctx.Done()
		close(ended)
		return webhook.Endpoint{}, ctx.Err()
	}, func(c *webhook.Config) { c.Timeout = time.Hour })
	ctx, cancel := context.WithCancel(t.Context())
	results := make(chan []error)
	go func() { results <- p.Publish(ctx, []publish.Outgoing{eventFor("one")}) }()
	<-began
	cancel()
	<-results
	p.Close()
	<-ended
}
