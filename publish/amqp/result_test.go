package amqp_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/brokertest"
	"github.com/outboxgen/outboxgen/internal/testing/freeport"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/amqp"
)

func requirePermanent(t testing.TB, err error, text string) {
	t.Helper()
	require.True(t, outbox.IsPermanent(err), "%v", err)
	require.ErrorContains(t, err, text)
}

func requireUnavailable(t testing.TB, err error, text string) {
	t.Helper()
	require.True(t, outbox.IsUnavailable(err), "%v", err)
	require.False(t, outbox.IsBrokerUnavailable(err), "%v", err)
	require.False(t, outbox.IsPermanent(err), "%v", err)
	require.ErrorContains(t, err, text)
}

func requireBroker(t testing.TB, err error) {
	t.Helper()
	require.True(t, outbox.IsBrokerUnavailable(err), "%v", err)
	require.False(t, outbox.IsPermanent(err), "%v", err)
}

func requireBehind(t testing.TB, err error) {
	t.Helper()
	require.ErrorIs(t, err, outbox.ErrBehind)
}

func isBlocked(err error) bool {
	return strings.Contains(err.Error(), "RabbitMQ takes no messages at present: low on memory")
}

// full returns an event with every fact.
func full(o publish.Outgoing) publish.Outgoing {
	o.TenantID = uuid.NullUUID{UUID: uuid.MustParse("7f000001-89ab-4cde-8f01-23456789abcd"), Valid: true}
	o.Entity = outbox.Entity{Type: "user", ID: "17", Version: 3}
	o.Headers = map[string]string{"traceparent": "00-a-b-01", "x-reason": "maßvoll"}
	return o
}

// TestNoRoute: an exchange, a queue or a binding may be created a little late. If it never is, only its events wait,
// or become dead letters if that is wanted.
func TestNoRoute(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	destinations := map[string]string{
		"/exchanges/no-" + b.exchange + "/k":   "there is no exchange no-" + b.exchange + ": declare it",
		"/exchanges/" + b.exchange + "/orders": `no queue is bound to exchange ` + b.exchange + ` with routing key "orders": bind one`,
		"/queues/no-" + b.queue:                "there is no queue no-" + b.queue + ": declare it",
	}
	for _, timeout := range []time.Duration{time.Minute, -1} {
		p := b.publisher(t, func(cfg *amqp.Config) { cfg.NoRouteTimeout = timeout })
		for destination, why := range destinations {
			first, second, other := b.event("a", 0), b.event("a", 1), b.event("b", 2)
			first.Destination, second.Destination = destination, destination
			errs := p.Publish(t.Context(), []publish.Outgoing{first, second, other})
			require.ErrorContains(t, errs[0], "publish to "+destination+" at "+b.Addr()+": "+why)
			if timeout < 0 {
				requirePermanent(t, errs[0], why)
			} else {
				requireUnavailable(t, errs[0], why)
			}
			requireBehind(t, errs[1])
			require.NoError(t, errs[2], "another destination")
		}
	}
	p := b.publisher(t)
	late := b.event("a", 0)
	late.Destination = "/queues/late-" + b.queue
	missing := p.Publish(t.Context(), []publish.Outgoing{late})[0]
	requireUnavailable(t, missing, "declare it")
	require.ErrorContains(t, missing, "its events wait", "however long, by default")
	b.control(func(ch *amqp091.Channel) error {
		_, err := ch.QueueDeclare("late-"+b.queue, false, true, false, false, nil)
		return err
	})
	require.Equal(t, []error{nil}, p.Publish(t.Context(), []publish.Outgoing{late}))
}

// TestNoRouteAroundAnOutage: a destination that is missing before and after an outage does not count as missing in between.
func TestNoRouteAroundAnOutage(t *testing.T) {
	t.Parallel()
	f := newFaulty(t)
	p := f.publisher(t, func(cfg *amqp.Config) { cfg.URL, cfg.NoRouteTimeout = f.proxy.URL("guest"), time.Nanosecond })
	o := f.event("a", 0)
	o.Destination = "/queues/no-" + f.queue
	publish := func() error { return p.Publish(t.Context(), []publish.Outgoing{o})[0] }
	requireUnavailable(t, publish(), "declare it")
	f.proxy.Cut(true)
	require.Eventually(t, func() bool { return outbox.IsBrokerUnavailable(publish()) }, patience, time.Millisecond)
	f.proxy.Up()
	var err error
	require.Eventually(t, func() bool {
		err = publish()
		return strings.Contains(err.Error(), "declare it")
	}, patience, time.Millisecond)
	requireUnavailable(t, err, "declare it")
	requirePermanent(t, publish(), "declare it")
}

// TestWhatRabbitMQCannotTake: an event that is too large, or that AMQP cannot carry, is refused, and no other is.
func TestWhatRabbitMQCannotTake(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	p := b.publisher(t)
	events := []publish.Outgoing{b.event("a", 0), large(b.event("a", 1), brokertest.MaxMessageSize), b.event("a", 2), b.event("b", 3), b.event("c", 4), b.event("d", 5)}
	events[4].Headers = map[string]string{"x-long": strings.Repeat("x", 200_000)}
	events[5].Headers = map[string]string{strings.Repeat("x", 300): "1"}
	errs := p.Publish(t.Context(), events)
	require.NoError(t, errs[0])
	requirePermanent(t, errs[1], "larger than configured max size")
	requireBehind(t, errs[2])
	require.NoError(t, errs[3])
	requirePermanent(t, errs[4], "exceed the frame_max of the connection")
	requirePermanent(t, errs[5], "use a name of 1 to 255 bytes")
	most := b.event("e", 6)
	most.Headers = map[string]string{"x-long": strings.Repeat("x", 125_000)}
	require.Equal(t, []error{nil}, p.Publish(t.Context(), []publish.Outgoing{most}))
	require.ElementsMatch(t, []string{events[0].ID.String(), events[3].ID.String(), most.ID.String()}, b.ids())
}

// TestFullQueue: a queue that refuses messages makes their attempts fail, and takes them when it has room.
func TestFullQueue(t *testing.T) {
	t.Parallel()
	f := newFaulty(t)
	p := f.publisher(t)
	f.rebind(f.queue, f.full)
	events := []publish.Outgoing{f.event("a", 0), f.event("a", 1)}
	errs := p.Publish(t.Context(), events)
	require.ErrorContains(t, errs[0], "refused with a nack: a queue is full")
	require.False(t, outbox.IsUnavailable(errs[0]) || outbox.IsPermanent(errs[0]), "%v", errs[0])
	requireBehind(t, errs[1])
	f.rebind(f.full, f.queue)
	require.Equal(t, []error{nil, nil}, p.Publish(t.Context(), events))
}

// TestCredentials: wrong credentials and missing rights affect all events, so they count no attempt.
func TestCredentials(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	for why, url := range map[string]string{
		"username or password not allowed":       strings.Replace(b.URL("guest"), "guest:guest", "guest:hunter2", 1),
		"access to vhost 'closed' refused":       b.URL("reader") + "closed",
		"vhost nowhere not found":                b.URL("guest") + "nowhere",
		"access to exchange 'x-":                 b.URL("reader"),
		"connection refused":                     "amqp://guest:hunter2@" + unused(t),
		"first record does not look like a TLS ": strings.Replace(b.URL("guest"), "amqp", "amqps", 1),
	} {
		t.Run(why, func(t *testing.T) {
			t.Parallel()
			p := b.publisher(t, func(cfg *amqp.Config) { cfg.URL = url })
			var errs []error
			require.Eventually(t, func() bool {
				errs = p.Publish(t.Context(), []publish.Outgoing{b.event("a", 0), b.event("a", 1), b.event("", 2)})
				return strings.Contains(errs[0].Error(), why)
			}, patience, 20*time.Millisecond)
			require.NotContains(t, errs[0].Error(), "hunter2")
			if strings.Contains(why, "exchange") {
				requireUnavailable(t, errs[0], "ACCESS_REFUSED")
			} else {
				requireBroker(t, errs[0])
				requireBroker(t, errs[2])
			}
			requireBehind(t, errs[1])
		})
	}
}

func unused(t testing.TB) string {
	port, err := freeport.Find()
	require.NoError(t, err)
	return fmt.Sprintf("127.0.0.1:%d", port)
}

// TestServerAppears: the publisher does not give up, and its first events after an outage arrive within seconds.
func TestServerAppears(t *testing.T) {
	t.Parallel()
	f := newFaulty(t)
	f.set(1 + 1) // down
	p := f.publisher(t, func(cfg *amqp.Config) { cfg.URL = "amqp://" + unused(t) + "," + f.proxy.URL("guest") })
	requireBroker(t, p.Publish(t.Context(), []publish.Outgoing{f.event("a", 0)})[0])
	f.set(0)
	settle(t, p, []publish.Outgoing{f.event("a", 1)})
	require.Len(t, f.received(), 1, "what was given up is not sent later")
}

// TestSilentServer: an address that takes connections and does not answer, and a server that stops to answer.
func TestSilentServer(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = silent.Close() })
	p, err := amqp.New(amqp.Config{URL: "amqp://" + silent.Addr().String(), Timeout: 200 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	defer p.Close()
	requireBroker(t, p.Publish(t.Context(), []publish.Outgoing{event("a", 0)})[0])

	f := newFaulty(t)
	p = f.publisher(t, func(cfg *amqp.Config) { cfg.URL, cfg.Timeout = f.proxy.URL("guest"), 2*time.Second })
	settle(t, p, []publish.Outgoing{f.event("a", 0)})
	f.proxy.Hang()
	errs := p.Publish(t.Context(), []publish.Outgoing{f.event("a", 1), f.event("a", 2)})
	require.True(t, outbox.IsUnavailable(errs[0]), "%v", errs[0])
	requireBehind(t, errs[1])
	// Writes and heartbeats fail, so the connection is replaced.
	f.proxy.Cut(false)
	settle(t, p, []publish.Outgoing{f.event("a", 3)})
}

// TestStopChargesOnlyWhatWasSent: when a process stops, events that were not sent are handed back, and events that wait for
// a confirmation have had an attempt.
func TestStopChargesOnlyWhatWasSent(t *testing.T) {
	t.Parallel()
	f := newFaulty(t)
	p := f.publisher(t, func(cfg *amqp.Config) { cfg.URL, cfg.Concurrency, cfg.Timeout = f.proxy.URL("guest"), 3, time.Hour })
	settle(t, p, []publish.Outgoing{f.event("x", 0), f.event("y", 0), f.event("z", 0)})
	f.proxy.Hang()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	result := make(chan []error, 1)
	go func() {
		result <- p.Publish(ctx, []publish.Outgoing{f.event("", 0), f.event("", 1), f.event("", 2), f.event("", 3), f.event("", 4)})
	}()
	require.Eventually(t, f.proxy.Holds, patience, time.Millisecond)
	cancel()
	notSent := 0
	for i, err := range <-result {
		require.ErrorIs(t, err, context.Canceled)
		require.False(t, outbox.IsUnavailable(err), "the context ended the call, not the broker: %v", err)
		if errors.Is(err, outbox.ErrNotSent) {
			notSent++
		}
		require.True(t, i < 3 || errors.Is(err, outbox.ErrNotSent), "event %d: %v", i, err)
	}
	require.Less(t, notSent, 5, "what may have been sent has had an attempt")
}

func TestClosedPublisher(t *testing.T) {
	t.Parallel()
	f := newFaulty(t)
	p := f.publisher(t, func(cfg *amqp.Config) { cfg.URL, cfg.Timeout = f.proxy.URL("guest"), time.Hour })
	settle(t, p, []publish.Outgoing{f.event("a", 0)})
	f.proxy.Hang()
	events := []publish.Outgoing{f.event("a", 1), f.event("a", 2)}
	result := make(chan []error, 1)
	go func() { result <- p.Publish(context.Background(), events) }()
	p.Close()
	for _, errs := range [][]error{<-result, p.Publish(t.Context(), events)} {
		require.ErrorIs(t, errs[0], amqp.ErrClosed)
		requireBroker(t, errs[0])
		requireBehind(t, errs[1])
	}
	p.Close()
}

// TestFewChannels: destinations wait for a channel if the server allows only a few.
func TestFewChannels(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	p := b.publisher(t, func(cfg *amqp.Config) { cfg.URL += "?channel_max=2" })
	var events []publish.Outgoing
	for n := range 200 {
		o := b.event(fmt.Sprintf("key %d", n%20), n)
		o.Destination = fmt.Sprintf("/exchanges/%s/user.%d", b.exchange, n%7)
		events = append(events, o)
	}
	require.Equal(t, make([]error, len(events)), p.Publish(t.Context(), events))
	require.Len(t, b.received(), len(events))
}

// TestOneRefusalAmongMany: a refusal that ends a channel is the result of the event that is refused, and of no other of
// the channel.
func TestOneRefusalAmongMany(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	p := b.publisher(t)
	p.ShareChannels()
	const count = 150
	refused := map[int]bool{0: true, 1: true, 70: true, count - 1: true}
	var events []publish.Outgoing
	var good []string
	for n := range count {
		o := b.event(fmt.Sprintf("key %d", n), n)
		if refused[n] {
			o = large(o, brokertest.MaxMessageSize)
		} else {
			good = append(good, o.ID.String())
		}
		events = append(events, o)
	}
	for n, err := range p.Publish(t.Context(), events) {
		if refused[n] {
			requirePermanent(t, err, "larger than configured max size")
		} else {
			require.NoError(t, err, "event %d", n)
		}
	}
	require.Subset(t, b.ids(), good, "what was confirmed is stored")
}

// TestLargeMessagesAreAlone: a message that may be refused for its size shares its channel with none that would then be
// sent again.
func TestLargeMessagesAreAlone(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	var events []publish.Outgoing
	for n := range 400 {
		o := b.event(fmt.Sprintf("key %d", n), n)
		switch n % 4 {
		case 1, 2:
			o = large(o, 70_000)
		case 3:
			o = large(o, brokertest.MaxMessageSize)
		}
		events = append(events, o)
	}
	var good []string
	for n, err := range b.publisher(t).Publish(t.Context(), events) {
		if n%4 == 3 {
			requirePermanent(t, err, "larger than configured max size")
			continue
		}
		require.NoError(t, err)
		good = append(good, events[n].ID.String())
	}
	require.ElementsMatch(t, b.ids(), good, "each once")
}

// TestMissingDestinationOfMany: all events of a call for a destination that is missing have this as their result. One
// that is not there yet ends a channel, and the server returns the messages of one that has no queue.
func TestMissingDestinationOfMany(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	for destination, why := range map[string]string{
		"/exchanges/no-" + b.exchange + "/k":   "there is no exchange",
		"/exchanges/" + b.exchange + "/orders": "no queue is bound",
	} {
		var events []publish.Outgoing
		for n := range 300 {
			o := b.event(fmt.Sprintf("key %d", n), n)
			if n%2 == 0 {
				o.Destination = destination
			}
			events = append(events, o)
		}
		for n, err := range b.publisher(t).Publish(t.Context(), events) {
			if n%2 == 0 {
				requireUnavailable(t, err, why)
			} else {
				require.NoError(t, err)
			}
		}
	}
}

// abandoned publishes an event while the proxy lets nothing through, and gives it up.
func (f *faulty) abandoned(p *amqp.Publisher, o publish.Outgoing) error {
	f.t.Helper()
	f.proxy.Hang()
	ctx, cancel := context.WithCancel(f.t.Context())
	defer cancel()
	result := make(chan []error, 1)
	go func() { result <- p.Publish(ctx, []publish.Outgoing{o}) }()
	require.Eventually(f.t, f.proxy.Holds, patience, time.Millisecond)
	cancel()
	return (<-result)[0]
}

// TestLateConfirmation: the confirmation of an event that was given up is not taken for that of the next one.
func TestLateConfirmation(t *testing.T) {
	t.Parallel()
	f := newFaulty(t)
	p := f.publisher(t, func(cfg *amqp.Config) { cfg.URL, cfg.Timeout = f.proxy.URL("guest"), patience })
	settle(t, p, []publish.Outgoing{f.event("a", 0)})
	late := f.event("a", 1)
	require.ErrorIs(t, f.abandoned(p, late), context.Canceled)
	f.proxy.Release()
	require.Eventually(t, func() bool { return len(f.ids()) == 2 }, patience, 10*time.Millisecond)
	f.rebind(f.queue, f.full)
	require.ErrorContains(t, p.Publish(t.Context(), []publish.Outgoing{f.event("a", 2)})[0], "refused with a nack")
}

// TestNotHandedOver: an event whose channel was not open yet when its context ended was not sent.
func TestNotHandedOver(t *testing.T) {
	t.Parallel()
	f := newFaulty(t)
	p := f.publisher(t, func(cfg *amqp.Config) { cfg.URL, cfg.Timeout = f.proxy.URL("guest"), patience })
	require.ErrorIs(t, f.abandoned(p, f.event("a", 0)), outbox.ErrNotSent)
	f.proxy.Release()
	settle(t, p, []publish.Outgoing{f.event("a", 1)})
	require.Len(t, f.received(), 1, "what was given up is not sent later")
}

// TestLostConnection: the events on their way on a connection that is lost are unavailable, and so is the broker.
func TestLostConnection(t *testing.T) {
	t.Parallel()
	f := newFaulty(t)
	p := f.publisher(t, func(cfg *amqp.Config) { cfg.URL, cfg.Timeout = f.proxy.URL("guest"), patience })
	f.proxy.Hang()
	result := make(chan []error, 1)
	go func() {
		result <- p.Publish(context.Background(), []publish.Outgoing{f.event("a", 0), f.event("a", 1)})
	}()
	require.Eventually(t, f.proxy.Holds, patience, time.Millisecond)
	f.proxy.Cut(true)
	errs := <-result
	requireBroker(t, errs[0])
	requireBehind(t, errs[1])
	f.proxy.Up()
	settle(t, p, []publish.Outgoing{f.event("a", 0)})
}
