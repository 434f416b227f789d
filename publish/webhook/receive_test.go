package webhook_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume"
	receiving "github.com/outboxgen/outboxgen/consume/webhook"
	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/testing/campaign"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/webhook"
)

// applier is a service that receives events with consume/webhook. Its effects fail now and then.
type applier struct {
	pool  *pgxpool.Pool
	calls atomic.Int64
	fail  func(call int64, s step) error // nil never fails
}

var stepReceived = consume.NewTopic[step](consume.TopicSpec{Namespace: "users", Name: "step_taken"})

func (a *applier) ConsumeStepTaken(ctx context.Context, tx pgx.Tx, d consume.Delivery[step]) error {
	if _, err := tx.Exec(ctx, "INSERT INTO steps (event, key, n) VALUES ($1, $2, $3)", d.ID, d.Payload.Key, d.Payload.N); err != nil {
		return err
	}
	if a.fail == nil {
		return nil
	}
	return a.fail(a.calls.Add(1), d.Payload)
}

// newApplier returns an applier and its handler, which uses db. The table of effects has no unique constraint.
func newApplier(t testing.TB, pool, db *pgxpool.Pool, change func(*receiving.Config)) (*applier, http.Handler) {
	t.Helper()
	pgtest.Execute(t, pool, "CREATE TABLE steps (no bigint GENERATED ALWAYS AS IDENTITY, event uuid, key text, n int)")
	in, err := inbox.New(inbox.Config{Group: "crm"})
	require.NoError(t, err)
	a := &applier{pool: pool}
	c, err := consume.New(in, consume.Handle(stepReceived, a, (*applier).ConsumeStepTaken))
	require.NoError(t, err)
	cfg := receiving.Config{DB: db, Consumer: c, Secrets: []string{secret}, Logger: quiet()}
	if change != nil {
		change(&cfg)
	}
	h, err := receiving.Handler(cfg)
	require.NoError(t, err)
	return a, h
}

// faultyFront is between the publisher and a handler.
type faultyFront struct {
	handler  http.Handler
	requests atomic.Int64
}

func (f *faultyFront) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, err := io.ReadAll(q.Body) // else the server does not notice that the publisher has left
	if err != nil {
		return
	}
	q.Body = io.NopCloser(bytes.NewReader(body))
	status := &statusWriter{ResponseWriter: w}
	trouble := faultOf(f.requests.Add(1))
	switch {
	case trouble.answer == nil:
		f.handler.ServeHTTP(w, q)
	case trouble.after:
		f.handler.ServeHTTP(&swallowed{header: http.Header{}}, q)
		trouble.answer(status, q)
	default:
		trouble.answer(status, q)
	}
}

// swallowed is the answer of a handler that does not reach the publisher.
type swallowed struct{ header http.Header }

func (s *swallowed) Header() http.Header         { return s.header }
func (s *swallowed) Write(p []byte) (int, error) { return len(p), nil }
func (s *swallowed) WriteHeader(int)             {}

func newRelay(t testing.TB, pool *pgxpool.Pool, p *webhook.Publisher, attempts int) *listener.Listener {
	t.Helper()
	l, err := listener.New(pool, listener.Spec{
		Name: "relay", Retry: outbox.Retry{MaxAttempts: attempts, BaseDelay: 10 * time.Millisecond, MaxDelay: 50 * time.Millisecond},
	}, listener.Config{
		BatchSize: 500, Logger: quiet(), Publishers: map[string]publish.Publisher{"webhook": p},
	}, listener.Publish(stepTaken, publish.Publication{Broker: "webhook", Destination: "crm"}))
	require.NoError(t, err)
	return l
}

// TestReceiverUnderFaults: a listener publishes events to consume/webhook, whose requests and answers get lost, whose effects
// fail, whose database goes away, and which is restarted. In the end the effect of each event is there once, in order per key,
// and there are no dead letters. In a campaign these are 20,000 events.
func TestReceiverUnderFaults(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	keys, each := campaign.Of(60, 400), campaign.Of(20, 50)
	pool := outboxtest.Postgres(t)
	proxy := pgtest.NewProxy(t, pool)
	db := proxy.Pool(t)
	a, handler := newApplier(t, pool, db, func(c *receiving.Config) { c.Timeout = 5 * time.Second })
	front := &faultyFront{handler: handler}
	h := &host{t: t, handler: front}
	h.start()
	t.Cleanup(h.stop)
	faults := make(chan func(), 100)
	outage := func() {
		proxy.Swallow()
		proxy.Cut()
		<-time.After(300 * time.Millisecond)
		proxy.Pass()
	}
	restart := func() {
		h.stop()
		<-time.After(100 * time.Millisecond)
		h.start()
	}
	parts := []func(){proxy.Cut, restart, outage, proxy.Cut, outage, restart, proxy.Cut}
	every := int64(keys * each / (len(parts) + 1))
	a.fail = func(call int64, _ step) error {
		if n := call / every; call%every == 0 && n > 0 && int(n) <= len(parts) {
			faults <- parts[n-1]
		}
		switch {
		case call%97 == 0:
			return errors.New("the effect failed")
		case call%331 == 0:
			panic("the effect panicked")
		case call%499 == 0:
			return consume.Unavailable(errors.New("the ledger is away"))
		}
		return nil
	}
	p := newPublisher(t, h.url, func(c *webhook.Config) {
		c.Timeout, c.MaxRetryAfter = 6*time.Second, 200*time.Millisecond
	})
	l := newRelay(t, pool, p, 1000)

	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	var runErr, putErr error
	running.Go(func() { runErr = l.Run(ctx) })
	running.Go(func() { putErr = putSteps(ctx, pool, keys, each) })
	running.Go(func() {
		for {
			select {
			case fault := <-faults:
				fault()
			case <-ctx.Done():
				return
			}
		}
	})
	began := time.Now()
	require.Eventually(t, func() bool { return pgtest.Count(t, pool, "SELECT count(*) FROM steps") >= keys*each }, 6*patience, 100*time.Millisecond)
	took := time.Since(began)
	require.Eventually(t, func() bool { return idle(t, pool) }, patience, 50*time.Millisecond)
	cancel()
	running.Wait()
	h.stop()
	require.NoError(t, runErr)
	require.NoError(t, putErr)
	(&consumer{pool: pool}).requireSteps(t, keys, each)
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.dead_letters"))
	require.Equal(t, keys*each, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.processed_events"))
	t.Logf("%d requests and %d effects for %d events in %s", front.requests.Load(), a.calls.Load(), keys*each, took.Round(time.Millisecond))
}

// TestRefusedEventIsDeadAtTheProducer: an event that the receiver refuses permanently is a dead letter of the producer, and
// the events around it are applied.
func TestRefusedEventIsDeadAtTheProducer(t *testing.T) {
	t.Parallel()
	pool := outboxtest.Postgres(t)
	a, handler := newApplier(t, pool, pool, nil)
	a.fail = func(_ int64, s step) error {
		if s.N == 1 {
			return consume.Permanent(errors.New("no such account"))
		}
		return nil
	}
	h := &host{t: t, handler: handler}
	h.start()
	t.Cleanup(h.stop)
	l := newRelay(t, pool, newPublisher(t, h.url, nil), 5)
	require.NoError(t, putSteps(t.Context(), pool, 2, 3))
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { pgtest.Check(t, l.Run(ctx)) })
	pgtest.Settles(t, pool, 2, "SELECT count(*) FROM outbox.dead_letters WHERE error LIKE '%replied 422 Unprocessable Entity'")
	pgtest.Settles(t, pool, 4, "SELECT count(*) FROM steps WHERE n <> 1")
	cancel()
	running.Wait()
}

// TestReceiverTakesWhatTheLibrarySigns: the receiver accepts requests that the public library of Standard Webhooks has signed.
func TestReceiverTakesWhatTheLibrarySigns(t *testing.T) {
	t.Parallel()
	pool := outboxtest.Postgres(t)
	_, handler := newApplier(t, pool, pool, nil)
	r := newReceiver(t, nil)
	o := event("k")
	o.Topic, o.Payload = "step_taken", []byte(`{"key":"k","n":0}`)
	require.NoError(t, send(t, newPublisher(t, r.url, nil), o))
	sent := r.requests()[0]
	hook, err := standardwebhooks.NewWebhook(secret)
	require.NoError(t, err)
	for offset, want := range map[time.Duration]int{0: http.StatusNoContent, -time.Hour: http.StatusUnauthorized, time.Hour: http.StatusUnauthorized} {
		at := time.Now().Add(offset)
		signature, err := hook.Sign(o.ID.String(), at, sent.body)
		require.NoError(t, err)
		sent.header.Set(standardwebhooks.HeaderWebhookSignature, signature)
		sent.header.Set(standardwebhooks.HeaderWebhookTimestamp, timestamp(at))
		require.Equal(t, want, serve(handler, sent), offset)
	}
}

func timestamp(at time.Time) string { return strconv.FormatInt(at.Unix(), 10) }

// serve returns the status with which a handler answers a request.
func serve(h http.Handler, sent request) int {
	q := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(sent.body))
	q.Header = sent.header
	w := httptest.NewRecorder()
	h.ServeHTTP(w, q)
	return w.Code
}
