package nats_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/freeport"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/nats"
)

// TestOutcomeOfCodes tests the outcome for each answer of a stream.
func TestOutcomeOfCodes(t *testing.T) {
	t.Parallel()
	const permanent, unavailable, attempt = "permanent", "unavailable", "attempt"
	b := newBroker(t)
	p := b.publisher(t)
	seen := b.silence()
	for _, c := range []struct {
		answer, want string
	}{
		{`{"error":{"code":400,"err_code":10054,"description":"message size exceeds maximum allowed"}}`, permanent},
		{`{"error":{"code":400,"err_code":10097,"description":"header size exceeds maximum allowed of 64k"}}`, permanent},
		{`{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"}}`, unavailable},
		{`{"error":{"code":503,"err_code":10023,"description":"insufficient resources"}}`, unavailable},
		{`{"error":{"code":500,"err_code":10047,"description":"insufficient storage resources available"}}`, unavailable},
		{`{"error":{"code":400,"err_code":10002,"description":"resource limits exceeded for account"}}`, unavailable},
		{`{"error":{"code":400,"err_code":10109,"description":"invalid operation on sealed stream"}}`, unavailable},
		{`{"error":{"code":400,"err_code":10060,"description":"expected stream does not match"}}`, attempt},
		{`{}`, attempt},
		{`gibberish`, attempt},
	} {
		result := make(chan []error, 1)
		go func() { result <- p.Publish(context.Background(), []publish.Outgoing{event("a", 0), event("a", 1)}) }()
		require.NoError(t, (<-seen).Respond([]byte(c.answer)))
		errs := <-result
		got := attempt
		if outbox.IsPermanent(errs[0]) {
			got = permanent
		} else if outbox.IsUnavailable(errs[0]) {
			got = unavailable
		}
		require.Equal(t, c.want, got, "%s: %v", c.answer, errs[0])
		require.ErrorContains(t, errs[0], "publish to sc.domain.user at 127.0.0.1:")
		require.Equal(t, outbox.ErrBehind, errs[1])
	}
	require.Empty(t, seen)
}

// TestTooLarge: events that are too large for the stream or the server are refused, and no others.
func TestTooLarge(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	events := []publish.Outgoing{event("a", 0), large(event("a", 1), 600<<10), event("a", 2), large(event("b", 3), 2<<20), event("c", 4), event("d", 5)}
	events[5].Headers = map[string]string{"x-long": strings.Repeat("x", 70_000)}
	errs := b.publisher(t).Publish(t.Context(), events)
	require.NoError(t, errs[0])
	require.True(t, outbox.IsPermanent(errs[1]), "%v", errs[1])
	require.ErrorContains(t, errs[1], "message size exceeds maximum allowed")
	require.Equal(t, outbox.ErrBehind, errs[2])
	require.True(t, outbox.IsPermanent(errs[3]), "%v", errs[3])
	require.ErrorIs(t, errs[3], natsgo.ErrMaxPayload)
	require.NoError(t, errs[4])
	require.True(t, outbox.IsPermanent(errs[5]), "%v", errs[5])
	require.Len(t, b.received(), 2)
}

// TestWhatNATSCannotCarry: events with an invalid subject or header are refused.
func TestWhatNATSCannotCarry(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	p := b.publisher(t)
	for _, bad := range []string{"", "sc..user", "sc.domain.", ".sc", "sc.*.user", "sc.>", "sc.domain user", "sc.\r\nPUB"} {
		o := event("a", 0)
		o.Destination = bad
		errs := p.Publish(t.Context(), []publish.Outgoing{o})
		require.True(t, outbox.IsPermanent(errs[0]), "%q: %v", bad, errs[0])
		require.ErrorContains(t, errs[0], "is not a valid subject")
	}
	for name, value := range map[string]string{"x y": "1", "x:y": "1", "": "1", "x-ü": "1", "x": "1\r\nNats-Rollup: all"} {
		o := event("a", 0)
		o.Headers = map[string]string{name: value}
		errs := p.Publish(t.Context(), []publish.Outgoing{o})
		require.True(t, outbox.IsPermanent(errs[0]), "%q: %v", name, errs[0])
	}
	require.Empty(t, b.received())
}

// TestNoStream: a stream may be created a little late. If it is never created, only its events become dead letters.
func TestNoStream(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	for name, timeout := range map[string]time.Duration{"waits": time.Minute, "does not wait": -1} {
		p := b.publisher(t, func(cfg *nats.Config) { cfg.NoStreamTimeout = timeout })
		first, second, other := event("a", 0), event("a", 1), event("b", 2)
		first.Destination, second.Destination = "sc.misspelt", "sc.misspelt"
		errs := p.Publish(t.Context(), []publish.Outgoing{first, second, other})
		require.ErrorIs(t, errs[0], jetstream.ErrNoStreamResponse)
		require.ErrorContains(t, errs[0], "publish to sc.misspelt at 127.0.0.1:")
		require.ErrorContains(t, errs[0], "no stream has this subject: create one")
		require.Equal(t, timeout < 0, outbox.IsPermanent(errs[0]), name)
		require.Equal(t, timeout > 0, outbox.IsUnavailable(errs[0]), name)
		require.Equal(t, outbox.ErrBehind, errs[1])
		require.NoError(t, errs[2])
	}
	p := b.publisher(t)
	o := event("a", 0)
	o.Destination = "sc.late"
	missing := p.Publish(t.Context(), []publish.Outgoing{o})[0]
	require.True(t, outbox.IsUnavailable(missing))
	require.ErrorContains(t, missing, "its events wait", "however long, by default")
	b.stream.Subjects = append(b.stream.Subjects, "sc.late")
	b.configure(b.stream)
	require.Equal(t, []error{nil}, p.Publish(t.Context(), []publish.Outgoing{o}))
}

// TestWithoutJetStream: an event for a server without JetStream is unavailable.
func TestWithoutJetStream(t *testing.T) {
	t.Parallel()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true})
	require.NoError(t, err)
	s.Start()
	defer func() { s.Shutdown(); s.WaitForShutdown() }()
	require.True(t, s.ReadyForConnections(patience))
	p, err := nats.New(nats.Config{URL: s.ClientURL(), NoStreamTimeout: -1})
	require.NoError(t, err)
	defer p.Close()
	errs := p.Publish(t.Context(), []publish.Outgoing{event("a", 0)})
	require.True(t, outbox.IsUnavailable(errs[0]), "%v", errs[0])
	require.ErrorContains(t, errs[0], "ask for its stream: ")
}

// TestFullStream: if a stream is full until its messages are read, the event is not at fault.
func TestFullStream(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	b.stream.MaxMsgs, b.stream.Discard = 1, jetstream.DiscardNew
	b.configure(b.stream)
	p := b.publisher(t)
	require.Equal(t, []error{nil}, p.Publish(t.Context(), []publish.Outgoing{event("a", 0)}))
	errs := p.Publish(t.Context(), []publish.Outgoing{event("a", 1)})
	require.True(t, outbox.IsUnavailable(errs[0]), "%v", errs[0])
	require.ErrorContains(t, errs[0], "maximum messages exceeded")
}

// TestNobodyAnswers: an address that refuses connections, one that takes them and does not answer, and a silent stream.
func TestNobodyAnswers(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = silent.Close() })
	port, err := freeport.Find()
	require.NoError(t, err)
	gone := fmt.Sprintf("127.0.0.1:%d", port)
	for name, addr := range map[string]string{"refused": gone, "silent": silent.Addr().String()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := nats.New(nats.Config{
				URL: "nats://me:secret@" + addr, Options: []natsgo.Option{natsgo.Timeout(200 * time.Millisecond)},
			})
			require.NoError(t, err)
			defer p.Close()
			errs := p.Publish(t.Context(), []publish.Outgoing{event("a", 0), event("a", 1)})
			require.True(t, outbox.IsBrokerUnavailable(errs[0]), "%v", errs[0])
			require.ErrorContains(t, errs[0], "publish to sc.domain.user at "+addr+": not connected")
			require.NotContains(t, errs[0].Error(), "secret")
			require.Equal(t, outbox.ErrBehind, errs[1])
			why := map[string]string{"refused": "connection refused", "silent": "timeout"}[name]
			require.Eventually(t, func() bool {
				err := p.Publish(t.Context(), []publish.Outgoing{event("a", 0)})[0]
				return strings.Contains(err.Error(), why)
			}, patience, 20*time.Millisecond, "it says why once it has tried again")
		})
	}
	t.Run("silent stream", func(t *testing.T) {
		t.Parallel()
		b := newBroker(t)
		b.silence()
		p := b.publisher(t, func(cfg *nats.Config) { cfg.Timeout = 100 * time.Millisecond })
		errs := p.Publish(t.Context(), []publish.Outgoing{event("a", 0)})
		require.True(t, outbox.IsUnavailable(errs[0]), "%v", errs[0])
		require.False(t, outbox.IsBrokerUnavailable(errs[0]), "%v", errs[0])

		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		errs = b.publisher(t).Publish(ctx, []publish.Outgoing{event("a", 0)})
		require.ErrorIs(t, errs[0], context.DeadlineExceeded)
		require.False(t, outbox.IsUnavailable(errs[0]), "the context ended the call, not the broker")
	})
}

// TestCredentials: wrong credentials and missing rights affect all events, so they count no attempt, and the publisher
// keeps trying.
func TestCredentials(t *testing.T) {
	t.Parallel()
	b := newBroker(t, func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "root", Password: "secret"},
			{Username: "guest", Password: "guest", Permissions: &server.Permissions{
				Publish: &server.SubjectPermission{Deny: []string{"sc.>"}},
			}},
		}
	})
	for why, url := range map[string]string{
		"Authorization Violation":                               b.url("root", "wrong"),
		`Permissions Violation for Publish to "sc.domain.user"`: b.url("guest", "guest"),
	} {
		t.Run(why, func(t *testing.T) {
			t.Parallel()
			p := b.publisher(t, func(cfg *nats.Config) { cfg.URL = url; cfg.Timeout = 200 * time.Millisecond })
			require.Eventually(t, func() bool {
				errs := p.Publish(t.Context(), []publish.Outgoing{event("a", 0), event("a", 1), event("", 2)})
				require.True(t, outbox.IsUnavailable(errs[0]), "%v", errs[0])
				require.Equal(t, outbox.ErrBehind, errs[1])
				require.True(t, outbox.IsUnavailable(errs[2]), "%v", errs[2])
				return strings.Contains(strings.ToLower(errs[0].Error()), strings.ToLower(why))
			}, patience, 20*time.Millisecond)
		})
	}
	p := b.publisher(t, func(cfg *nats.Config) { cfg.URL = b.url("root", "secret") })
	require.Equal(t, []error{nil}, p.Publish(t.Context(), []publish.Outgoing{event("a", 0)}))
}

// TestCredentialsAreFixed: the publisher does not give up after a server has refused its credentials.
func TestCredentialsAreFixed(t *testing.T) {
	t.Parallel()
	b := newBroker(t, func(o *server.Options) { o.Username, o.Password = "root", "secret" })
	connections := func() uint64 {
		v, err := b.Varz(nil)
		require.NoError(t, err)
		return v.TotalConnections
	}
	before := connections()
	p := b.publisher(t, func(cfg *nats.Config) {
		cfg.URL = b.url("root", "new secret")
		cfg.Options = []natsgo.Option{natsgo.NoReconnect(), natsgo.ReconnectBufSize(1 << 20)} // options without effect
	})
	require.Eventually(t, func() bool { return connections() >= before+4 }, patience, 20*time.Millisecond)
	require.True(t, outbox.IsUnavailable(p.Publish(t.Context(), []publish.Outgoing{event("a", 0)})[0]))
	b.kill()
	b.opts.Password = "new secret"
	b.start()
	settle(t, p, []publish.Outgoing{event("a", 0)})
}

// TestStopChargesOnlyWhatWasSent: when a process stops, events that were not sent are handed back, and events that wait for
// a confirmation have had an attempt.
func TestStopChargesOnlyWhatWasSent(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	seen := b.silence()
	p := b.publisher(t, func(cfg *nats.Config) { cfg.Concurrency, cfg.Timeout = 3, time.Hour })
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan []error, 1)
	go func() {
		result <- p.Publish(ctx, []publish.Outgoing{event("", 0), event("", 1), event("", 2), event("", 3), event("", 4)})
	}()
	for range 3 {
		<-seen
	}
	cancel()
	for i, err := range <-result {
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, i >= 3, errors.Is(err, outbox.ErrNotSent), "event %d: %v", i, err)
	}
}

// TestNoStreamAroundAnOutage: a subject without a stream before and after an outage does not count as without one in between.
func TestNoStreamAroundAnOutage(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	p := b.publisher(t, func(cfg *nats.Config) { cfg.NoStreamTimeout = time.Nanosecond })
	o := event("a", 0)
	o.Destination = "sc.late"
	publish := func() error { return p.Publish(t.Context(), []publish.Outgoing{o})[0] }
	require.True(t, outbox.IsUnavailable(publish()))
	b.kill()
	require.Eventually(t, func() bool { return strings.Contains(publish().Error(), "not connected") }, patience, time.Millisecond)
	b.start()
	var err error
	require.Eventually(t, func() bool {
		err = publish()
		return errors.Is(err, jetstream.ErrNoStreamResponse) && strings.Contains(err.Error(), "no stream has this subject")
	}, patience, time.Millisecond)
	require.True(t, outbox.IsUnavailable(err), "%v", err)
	require.True(t, outbox.IsPermanent(publish()), "there was no other outcome since")
}
