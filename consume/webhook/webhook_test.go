package webhook_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/webhook"
	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

// TestEventIsAppliedOnce: in each encoding, the first request has the effect, and the second one is answered alike.
func TestEventIsAppliedOnce(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, &steps{}, nil)
	for i, encoder := range []publish.Encoder{binary, structured, publish.JSON()} {
		q := event(t, encoder, uuid.New(), step{"k", i})
		for _, want := range []inbox.Outcome{inbox.Applied, inbox.Duplicate} {
			got := r.send(q)
			require.Equal(t, reply{status: http.StatusNoContent, header: got.header}, got)
			a := r.last()
			require.Equal(t, want, a.Outcome)
			require.NoError(t, a.Err)
			require.Equal(t, q.header.Get("webhook-id"), a.Event.ID.String())
			require.Equal(t, "step_taken", a.Event.Topic)
		}
		require.Equal(t, i+1, r.count("steps"))
	}
	require.Empty(t, r.logged())
}

// TestConcurrentDeliveries: many requests with one event have one effect, and each is answered with 204.
func TestConcurrentDeliveries(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, &steps{}, nil)
	q := event(t, binary, uuid.New(), step{"k", 1})
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			if got, err := r.try(t.Context(), q); pgtest.Check(t, err) && got.status != http.StatusNoContent {
				t.Errorf("status %d: %s", got.status, got.body)
			}
		})
	}
	wg.Wait()
	require.Equal(t, 1, r.count("steps"))
}

// TestRotation: during a rotation, the sender and the receiver may each have the old secret, the new one or both.
func TestRotation(t *testing.T) {
	t.Parallel()
	secrets := []string{secret, "whsec_" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("new", 9)))}
	for _, has := range [][]string{secrets, secrets[:1], secrets[1:]} {
		r := newReceiver(t, &steps{}, func(c *webhook.Config) { c.Secrets = has })
		for _, with := range [][]string{secrets, secrets[:1], secrets[1:]} {
			q := event(t, binary, uuid.New(), step{"k", 1})
			q.signed(q.header.Get("webhook-id"), time.Now(), with...)
			want := http.StatusUnauthorized
			if slices.ContainsFunc(with, func(s string) bool { return slices.Contains(has, s) }) {
				want = http.StatusNoContent
			}
			require.Equal(t, want, r.send(q).status)
		}
	}
}

// TestRefusedRequests: what is not a signed event is answered so that the sender knows what to do, and has no effect.
func TestRefusedRequests(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, &steps{}, func(c *webhook.Config) { c.MaxBody = 2000 })
	resign := func(q *request) { q.signed(q.header.Get("webhook-id"), time.Now(), secret) }
	for name, test := range map[string]struct {
		change func(q *request)
		status int
		say    string
	}{
		"get":             {func(q *request) { q.method = http.MethodGet }, 405, "send events with POST"},
		"put":             {func(q *request) { q.method = http.MethodPut }, 405, "send events with POST"},
		"unsigned":        {func(q *request) { q.header.Del("webhook-signature") }, 401, "header webhook-signature is missing: the sender must sign"},
		"forged":          {func(q *request) { q.body = append(q.body, ' ') }, 401, "no signature in webhook-signature matches a secret of the receiver"},
		"replayed":        {func(q *request) { q.signed(q.header.Get("webhook-id"), time.Now().Add(-time.Hour), secret) }, 401, "old by the receiver's clock, at most 5m0s allowed"},
		"from the future": {func(q *request) { q.signed(q.header.Get("webhook-id"), time.Now().Add(time.Hour), secret) }, 401, "in the future by the receiver's clock"},
		"another id":      {func(q *request) { q.header.Set("ce-id", uuid.NewString()) }, 400, "webhook-id is not the id of the event"},
		"no uuid":         {func(q *request) { q.signed("msg_1", time.Now(), secret) }, 400, "webhook-id is not the id of the event"},
		"large":           {func(q *request) { q.body = bytes.Repeat([]byte(" "), 2001) }, 413, "the body has more than 2000 bytes"},
		"large stream":    {func(q *request) { q.body, q.stream = bytes.Repeat([]byte(" "), 2001), true }, 413, "the body has more than 2000 bytes"},
		"compressed":      {func(q *request) { q.header.Set("content-encoding", "gzip") }, 415, "a body with a content encoding is not supported"},
		"another type":    {func(q *request) { q.header.Set("content-type", "text/html"); q.header.Del("ce-datacontenttype") }, 415, "content-type is not JSON"},
		"batch":           {func(q *request) { q.header.Set("content-type", "application/cloudevents-batch+json") }, 415, "use application/cloudevents+json"},
		"no event":        {func(q *request) { q.header.Del("ce-type") }, 400, "type is missing: malformed message"},
		"no attributes": {func(q *request) {
			for name := range q.header {
				if strings.HasPrefix(name, "Ce-") {
					q.header.Del(name)
				}
			}
		}, 400, "it has neither CloudEvent attributes nor outbox headers"},
		"unknown topic":   {func(q *request) { q.header.Set("ce-type", "users.user_deleted") }, 422, "consume users/user_deleted, event EVENT: unknown topic"},
		"unknown version": {func(q *request) { q.header.Set("ce-dataversion", "2") }, 422, "this consumer knows versions up to 1: unknown payload version"},
		"invalid payload": {func(q *request) { q.body = []byte(`{"key":7,"n":1}`); resign(q) }, 422, "field key does not fit string"},
		"no payload":      {func(q *request) { q.body = nil; resign(q) }, 422, "payload is not JSON"},
	} {
		id := uuid.New()
		q := event(t, binary, id, step{"S3CRET", 1})
		test.change(q)
		got := r.send(q)
		require.Equal(t, test.status, got.status, name)
		require.Contains(t, strings.Replace(got.body, " version 1, event "+id.String(), ", event EVENT", 1), test.say, name)
		require.Equal(t, test.status, r.last().Status, name)
		require.Error(t, r.last().Err, name)
		require.Empty(t, got.header.Get("Retry-After"), name)
		require.NotContains(t, got.body, "S3CRET", name)
	}
	require.Zero(t, r.count("steps"))
	require.Zero(t, r.count("outbox.processed_events"))
	require.NotContains(t, r.logged(), "S3CRET")
	require.Contains(t, r.logged(), `level=WARN msg="requests are refused: they are not signed, or not what this receiver takes" status=401`)
	require.Contains(t, r.logged(), `level=WARN msg="events are refused permanently: their sender keeps them as dead letters" status=422 type=users.step_taken`)
}

// TestStructuredOnly: with Structured, an attribute outside the signed body is refused.
func TestStructuredOnly(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, &steps{}, func(c *webhook.Config) { c.Structured = true })
	for _, encoder := range []publish.Encoder{binary, publish.JSON()} {
		got := r.send(event(t, encoder, uuid.New(), step{"k", 1}))
		require.Equal(t, http.StatusForbidden, got.status)
		require.Contains(t, got.body, "only structured mode is accepted")
	}
	q := event(t, structured, uuid.New(), step{"k", 1})
	q.header.Set("ce-type", "users.user_deleted")
	q.header.Set("ce-id", uuid.NewString())
	require.Equal(t, http.StatusNoContent, r.send(q).status, "headers do not count")
	require.Equal(t, 1, r.count("steps"))
}

func TestUnsigned(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, &steps{}, func(c *webhook.Config) { c.Secrets, c.Unsigned = nil, true })
	q := event(t, binary, uuid.New(), step{"k", 1})
	for _, name := range []string{"webhook-signature", "webhook-timestamp", "webhook-id"} {
		q.header.Del(name)
		require.Equal(t, http.StatusNoContent, r.send(q).status, name)
	}
	q.header.Set("webhook-id", uuid.NewString())
	require.Equal(t, http.StatusBadRequest, r.send(q).status)
}

// TestFailures: an error of the consumer is answered by what it means, and only a permanent one is told. The next request
// with the event is applied.
func TestFailures(t *testing.T) {
	t.Parallel()
	broken := errors.New("S3CRET")
	for name, test := range map[string]struct {
		do         func(ctx context.Context, tx pgx.Tx) error
		status     int
		say        string
		retryAfter string
	}{
		"error":       {func(context.Context, pgx.Tx) error { return broken }, 500, "the event was not applied: send it again", ""},
		"retry after": {func(context.Context, pgx.Tx) error { return outbox.RetryAfter(1100*time.Millisecond, broken) }, 500, "send it again", "2"},
		"panic":       {func(context.Context, pgx.Tx) error { panic("S3CRET") }, 500, "send it again", ""},
		"sql": {func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "SELECT 'S3CRET'::int")
			return err
		}, 500, "send it again", ""},
		"own connection killed": {func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "SELECT pg_terminate_backend(pg_backend_pid())")
			return err
		}, 500, "send it again", ""},
		"network": {func(context.Context, pgx.Tx) error { return &net.OpError{Op: "dial", Err: broken} }, 500, "send it again", ""},
		"permanent": {func(context.Context, pgx.Tx) error { return consume.Permanent(errors.New("no such\taccount\nstack")) },
			422, ": no such account", ""},
		"unavailable":       {func(context.Context, pgx.Tx) error { return outbox.Unavailable(broken) }, 503, "unavailable: send it again later", "7"},
		"unavailable until": {func(context.Context, pgx.Tx) error { return outbox.Unavailable(outbox.RetryAfter(time.Minute, broken)) }, 503, "unavailable", "60"},
		"unimplemented":     {func(context.Context, pgx.Tx) error { return consume.ErrUnimplemented }, 501, "the receiver has no code for this topic yet", ""},
		"evil error":        {func(context.Context, pgx.Tx) error { return evil{} }, 500, "send it again", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &steps{do: func(ctx context.Context, tx pgx.Tx, _ consume.Delivery[step]) error { return test.do(ctx, tx) }}
			r := newReceiver(t, s, func(c *webhook.Config) { c.RetryAfter = 7 * time.Second })
			q := event(t, binary, uuid.New(), step{"k", 1})
			got := r.send(q)
			require.Equal(t, test.status, got.status)
			require.Contains(t, got.body, test.say)
			require.NotContains(t, got.body, "S3CRET")
			require.NotContains(t, got.body, "stack")
			require.Equal(t, test.retryAfter, got.header.Get("Retry-After"))
			require.Error(t, r.last().Err)
			require.Zero(t, r.count("steps"))
			s.do = nil
			require.Equal(t, http.StatusNoContent, r.send(q).status)
			require.Equal(t, 1, r.count("steps"))
			if test.status == 500 {
				require.Contains(t, r.logged(), `level=WARN msg="events fail: the sender sends them again" status=500 type=users.step_taken namespace=users topic=step_taken event_id=`)
				require.Contains(t, r.logged(), `level=INFO msg="events are applied again" type=users.step_taken`)
			}
		})
	}
}

// evil is an error whose methods panic.
type evil struct{}

func (evil) Error() string { panic("S3CRET") }
func (evil) Is(error) bool { panic("S3CRET") }

// TestTimeout: an effect that takes too long is rolled back.
func TestTimeout(t *testing.T) {
	t.Parallel()
	s := &steps{do: func(ctx context.Context, _ pgx.Tx, _ consume.Delivery[step]) error { <-ctx.Done(); return nil }}
	r := newReceiver(t, s, func(c *webhook.Config) { c.Timeout = 300 * time.Millisecond })
	got := r.send(event(t, binary, uuid.New(), step{"k", 1}))
	require.Contains(t, []int{500, 503}, got.status, "503: a busy machine did not even begin the transaction")
	require.Zero(t, r.count("steps"))
	if got.status == 500 {
		require.Equal(t, "the event was not applied within 300ms: send it again", got.body)
	}
}

// TestBusy: an event waits for others, but not for ever.
func TestBusy(t *testing.T) {
	t.Parallel()
	started, finish := make(chan struct{}), make(chan struct{})
	s := &steps{do: func(context.Context, pgx.Tx, consume.Delivery[step]) error {
		close(started)
		<-finish
		return nil
	}}
	r := newReceiver(t, s, func(c *webhook.Config) { c.Timeout, c.Concurrency = 2*time.Second, 1 })
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = r.try(t.Context(), event(t, binary, uuid.New(), step{"k", 1})) })
	pgtest.Receive(t, started, "the first event")
	q := event(t, binary, uuid.New(), step{"k", 2})
	got := r.send(q)
	require.Equal(t, http.StatusTooManyRequests, got.status)
	require.Equal(t, "2", got.header.Get("Retry-After"))
	close(finish)
	wg.Wait()
	s.do = nil
	require.Equal(t, http.StatusNoContent, r.send(q).status)
}

// TestUnknownTopicsInTheLog: events of any number of unknown topics are one line.
func TestUnknownTopicsInTheLog(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, &steps{}, nil)
	for _, name := range []string{"users.a", "users.b", "users.c"} {
		q := event(t, binary, uuid.New(), step{"k", 1})
		q.header.Set("ce-type", name)
		require.Equal(t, http.StatusUnprocessableEntity, r.send(q).status)
	}
	require.Equal(t, 1, strings.Count(r.logged(), "events are refused permanently"), r.logged())
}

// TestSlowBody: a body that does not arrive is given up.
func TestSlowBody(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, &steps{}, func(c *webhook.Config) { c.Timeout = 100 * time.Millisecond })
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	_, err = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n{")
	require.NoError(t, err)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(pgtest.Patience)))
	answer, err := io.ReadAll(conn)
	require.NoError(t, err, "it was not given up")
	require.Contains(t, string(answer), "HTTP/1.1 408 ")
}

// TestObserverPanics: a panic of the observer changes nothing.
func TestObserverPanics(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, &steps{}, func(c *webhook.Config) {
		c.Observer.Answered = func(context.Context, webhook.Answered) { panic("S3CRET") }
	})
	require.Equal(t, http.StatusNoContent, r.send(event(t, binary, uuid.New(), step{"k", 1})).status)
	require.Equal(t, 1, r.count("steps"))
}

func TestConfig(t *testing.T) {
	t.Parallel()
	c := newConsumer(t, &steps{})
	good := webhook.Config{DB: &pgxpool.Pool{}, Consumer: c, Secrets: []string{secret}}
	for want, change := range map[string]func(*webhook.Config){
		"field DB is nil":                                 func(c *webhook.Config) { c.DB = (*pgxpool.Pool)(nil) },
		"field Consumer is nil":                           func(c *webhook.Config) { c.Consumer = nil },
		"field Secrets is empty: ":                        func(c *webhook.Config) { c.Secrets = nil },
		"field Secrets is not empty, but Unsigned is set": func(c *webhook.Config) { c.Unsigned = true },
		"field Secrets: number 2 is not base64":           func(c *webhook.Config) { c.Secrets = append(c.Secrets, "S3CRET!") },
		"field Secrets: number 1 is empty":                func(c *webhook.Config) { c.Secrets = []string{os.Getenv("OUTBOXGEN_NOT_SET")} },
		"field Tolerance: -1s is negative":                func(c *webhook.Config) { c.Tolerance = -time.Second },
		"field Timeout: -1s is negative":                  func(c *webhook.Config) { c.Timeout = -time.Second },
		"field RetryAfter: -1s is negative":               func(c *webhook.Config) { c.RetryAfter = -time.Second },
		"field MaxBody: -1 is negative":                   func(c *webhook.Config) { c.MaxBody = -1 },
		"field Concurrency: -1 is negative":               func(c *webhook.Config) { c.Concurrency = -1 },
	} {
		cfg := good
		cfg.Secrets = slices.Clone(cfg.Secrets)
		change(&cfg)
		_, err := webhook.Handler(cfg)
		require.ErrorContains(t, err, "create webhook handler: "+want)
		require.NotContains(t, err.Error(), "S3CRET")
	}
	h, err := webhook.Handler(good)
	require.NoError(t, err)
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "config", good)
	encoded, err := json.Marshal(good)
	require.NoError(t, err)
	for _, text := range []string{fmt.Sprintf("%v %+v %#v %s", good, good, good, good), fmt.Sprintf("%v %+v %#v", h, h, h), log.String(), string(encoded)} {
		require.NotContains(t, text, "MfKQ9r8G")
		require.NotContains(t, text, "77 102")
		require.NotContains(t, text, "0x4d, 0xf2")
	}
}
