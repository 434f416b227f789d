package webhook_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/webhook"
	"github.com/outboxgen/outboxgen/queue"
)

// outcome is what an error means for its event.
type outcome string

const (
	ok          outcome = "ok"
	attempt     outcome = "attempt"
	retryAfter  outcome = "retry after"
	permanent   outcome = "permanent"
	unavailable outcome = "unavailable"
)

// outcomeOf returns the outcome that err means. after is the expected delay.
func outcomeOf(err error, after time.Duration) outcome {
	switch {
	case err == nil:
		return ok
	case outbox.IsPermanent(err):
		return permanent
	case outbox.IsUnavailable(err):
		return unavailable
	}
	for e := err; e != nil; e = errors.Unwrap(e) {
		if reflect.DeepEqual(e, outbox.RetryAfter(after, errors.Unwrap(e))) {
			return retryAfter
		}
	}
	return attempt
}

// asksForPause reports whether err says for how long an endpoint wants no requests.
func asksForPause(err error) bool {
	for want := reflect.TypeOf(outbox.RetryAfter(0, errors.New(""))); err != nil; err = errors.Unwrap(err) {
		if reflect.TypeOf(err) == want {
			return true
		}
	}
	return false
}

func TestOutcomes(t *testing.T) {
	t.Parallel()
	date := "Sat, 21 Nov 2026 13:00:00 GMT"
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   outcome
		after  time.Duration
		says   string
	}{
		"200":                     {status(200), ok, 0, ""},
		"202":                     {status(202), ok, 0, ""},
		"204":                     {status(204), ok, 0, ""},
		"301":                     {status(301, "Location", "/"), attempt, 0, "replied 301 Moved Permanently: redirects are not followed"},
		"302":                     {status(302, "Location", "/"), attempt, 0, "replied 302 Found: redirects are not followed"},
		"304":                     {status(304), attempt, 0, "redirects are not followed"},
		"307":                     {status(307, "Location", "http://example.com/"), attempt, 0, "redirects are not followed"},
		"308":                     {status(308, "Location", "/"), attempt, 0, "redirects are not followed"},
		"400":                     {status(400), permanent, 0, "replied 400 Bad Request"},
		"401":                     {status(401), attempt, 0, "replied 401 Unauthorized: compare Secrets with those of the receiver, and the two clocks"},
		"404":                     {status(404), attempt, 0, "replied 404 Not Found: check the path of URL"},
		"404 Retry-After":         {status(404, "Retry-After", "7"), retryAfter, 7 * time.Second, "replied 404"},
		"408":                     {status(408), attempt, 0, "replied 408 Request Timeout"},
		"410":                     {status(410), permanent, 0, "replied 410 Gone: the endpoint wants no more events"},
		"413":                     {status(413), permanent, 0, "replied 413"},
		"422":                     {status(422), permanent, 0, "replied 422"},
		"425":                     {status(425), attempt, 0, "replied 425"},
		"429":                     {status(429), unavailable, 0, "replied 429"},
		"429 seconds":             {status(429, "Retry-After", " 7 "), unavailable, 0, "replied 429"},
		"500 date":                {status(500, "Date", date, "Retry-After", "Sat, 21 Nov 2026 13:01:30 GMT"), retryAfter, 90 * time.Second, "500"},
		"500 too long":            {status(500, "Retry-After", "86400"), retryAfter, time.Hour, "500"},
		"500 absurd":              {status(500, "Retry-After", "99999999999999999999999"), retryAfter, time.Hour, "500"},
		"500 far date":            {status(500, "Retry-After", "Fri, 31 Dec 9999 23:59:59 GMT"), retryAfter, time.Hour, "500"},
		"500 zero":                {status(500, "Retry-After", "0"), attempt, 0, "500"},
		"500 past date":           {status(500, "Date", date, "Retry-After", "Sat, 21 Nov 2026 12:59:59 GMT"), attempt, 0, "500"},
		"500 nonsense":            {status(500, "Retry-After", "-7"), attempt, 0, "500"},
		"500 more nonsense":       {status(500, "Retry-After", "soon"), attempt, 0, "500"},
		"500":                     {status(500), attempt, 0, "replied 500 Internal Server Error"},
		"500 Retry-After":         {status(500, "Retry-After", " 7 "), retryAfter, 7 * time.Second, "replied 500"},
		"409":                     {status(409), attempt, 0, "replied 409"},
		"414":                     {status(414), permanent, 0, "replied 414"},
		"415":                     {status(415), permanent, 0, "replied 415"},
		"431":                     {status(431), permanent, 0, "replied 431"},
		"403":                     {status(403), attempt, 0, "replied 403 Forbidden: the log of the receiver may say why"},
		"405":                     {status(405), attempt, 0, "replied 405 Method Not Allowed: check the path of URL: it does not take POST"},
		"501":                     {status(501), attempt, 0, "replied 501"},
		"502":                     {status(502), unavailable, 0, "replied 502 Bad Gateway"},
		"503":                     {status(503), unavailable, 0, "replied 503 Service Unavailable"},
		"503 seconds":             {status(503, "Retry-After", "7"), unavailable, 0, "replied 503"},
		"503 zero":                {status(503, "Retry-After", "0"), unavailable, 0, "replied 503"},
		"504":                     {status(504), unavailable, 0, "replied 504 Gateway Timeout"},
		"599":                     {status(599), attempt, 0, "replied 599"},
		"101":                     {raw("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"), attempt, 0, "replied 101"},
		"999":                     {raw("HTTP/1.1 999 What\r\n\r\n"), attempt, 0, "replied 999"},
		"closed before the reply": {raw(""), attempt, 0, "no reply"},
		"closed in the status":    {raw("HTTP/1.1 20"), attempt, 0, "no reply"},
		"closed in the headers":   {raw("HTTP/1.1 200 OK\r\nContent-Le"), attempt, 0, "no reply"},
		"closed in the body":      {raw("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc"), ok, 0, ""},
		"closed in an error":      {raw("HTTP/1.1 500 X\r\nContent-Length: 100\r\n\r\nabc"), attempt, 0, "replied 500"},
		"not HTTP":                {raw("SSH-2.0-OpenSSH_9.2\r\n"), attempt, 0, "no reply: the answer is not valid HTTP"},
		"endless headers":         {raw("HTTP/1.1 200 OK\r\n" + strings.Repeat("X-Pad: "+strings.Repeat("x", 1000)+"\r\n", 200) + "\r\n"), attempt, 0, "no reply"},
		"a large body":            {raw("HTTP/1.1 200 OK\r\n\r\n" + strings.Repeat("x", 1<<20)), ok, 0, ""},
		"an endless body":         {drip, ok, 0, ""},
		"an invalid encoding":     {raw("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc"), ok, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newReceiver(t, c.answer)
			err := send(t, newPublisher(t, r.url, nil), event("k"))
			require.Equal(t, c.want, outcomeOf(err, c.after), "%v", err)
			if c.want != ok {
				require.ErrorContains(t, err, c.says)
				require.ErrorContains(t, err, `post event to "crm" at 127.0.0.1:`)
			}
		})
	}
}

// TestSwitchingProtocols: a reply that switches protocols and then sends nothing does not block Publish.
func TestSwitchingProtocols(t *testing.T) {
	t.Parallel()
	stay := make(chan struct{})
	r := newReceiver(t, func(w http.ResponseWriter, _ *http.Request) {
		w.(*statusWriter).status = http.StatusInternalServerError // the receiver does not record it
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")
		<-stay
	})
	t.Cleanup(func() { close(stay) }) // before the receiver stops
	p := newPublisher(t, r.url, nil)
	result := make(chan []error, 1)
	go func() { result <- p.Publish(context.WithoutCancel(t.Context()), []publish.Outgoing{event("k")}) }()
	select {
	case errs := <-result:
		require.Equal(t, attempt, outcomeOf(errs[0], 0))
		require.ErrorContains(t, errs[0], "replied 101")
	case <-time.After(time.Minute):
		require.FailNow(t, "Publish waits for the end of a connection that switched protocols")
	}
}

// TestStopChargesOnlyWhatWasSent: when a process stops, events that wait for a slot are handed back, and events in flight have
// had an attempt.
func TestStopChargesOnlyWhatWasSent(t *testing.T) {
	t.Parallel()
	const limit, events = 4, 40
	var arrived sync.WaitGroup
	arrived.Add(limit)
	r := newReceiver(t, func(w http.ResponseWriter, q *http.Request) {
		arrived.Done()
		hang(w, q)
	})
	p := newPublisher(t, r.url, func(c *webhook.Config) { c.Concurrency, c.Timeout = limit, time.Hour })
	ctx, cancel := context.WithCancel(t.Context())
	results := make(chan []error, 2)
	for range cap(results) { // a call that waits for the requests of another one
		go func() { results <- p.Publish(ctx, slices.Repeat([]publish.Outgoing{event("")}, events)) }()
	}
	arrived.Wait()
	cancel()
	charged := 0
	for range cap(results) {
		for _, err := range <-results {
			require.ErrorIs(t, err, context.Canceled)
			if !errors.Is(err, outbox.ErrNotSent) {
				charged++
				require.Equal(t, attempt, outcomeOf(err, 0))
			}
		}
	}
	require.Equal(t, limit, charged)
}

// TestStoppedDispatcherBuriesOnlyWhatWasSent: with one attempt per event, a shutdown makes dead letters at most of the events
// in flight.
func TestStoppedDispatcherBuriesOnlyWhatWasSent(t *testing.T) {
	t.Parallel()
	const limit, events = 1, 60 // a first claim may have only a few events
	pool := outboxtest.Postgres(t)
	arrived := make(chan struct{}, events)
	r := newReceiver(t, func(w http.ResponseWriter, q *http.Request) {
		arrived <- struct{}{}
		hang(w, q)
	})
	p := newPublisher(t, r.url, func(c *webhook.Config) { c.Concurrency, c.Timeout = limit, time.Hour })
	spec := stepTaken.Untyped().Spec()
	spec.Log, spec.Retry = false, outbox.Retry{MaxAttempts: 1}
	once := outbox.NewTopic[step](spec)
	d, err := queue.NewDispatcher(pool, queue.Config{
		Logger: quiet(), ShutdownTimeout: time.Millisecond, Publishers: map[string]publish.Publisher{"webhook": p},
	}, queue.Publish(once, publish.Publication{Broker: "webhook", Destination: "crm"}))
	require.NoError(t, err)
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		steps := make([]step, events)
		for i := range steps {
			steps[i].Key = fmt.Sprint(i)
		}
		_, err := once.EnqueueMany(t.Context(), tx, steps)
		return err
	}))
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- d.Run(ctx) }()
	<-arrived
	cancel()
	require.NoError(t, <-ran)
	var left string
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT string_agg(status || ' ' || n, ', ' ORDER BY status)
		FROM (SELECT status, count(*) AS n FROM outbox.event_status GROUP BY status) AS s`).Scan(&left))
	require.Equal(t, fmt.Sprintf("dead %d, pending %d", limit, events-limit), left)
}

// drip replies 200 and then a body without end.
func drip(w http.ResponseWriter, q *http.Request) {
	w.WriteHeader(http.StatusOK)
	for q.Context().Err() == nil {
		_, _ = w.Write([]byte("."))
		_ = http.NewResponseController(w).Flush()
		select {
		case <-q.Context().Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// TestRedirectsAreNotFollowed: the publisher does not go to the new location and does not repeat the request.
func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	var visits atomic.Int64
	elsewhere := newReceiver(t, func(http.ResponseWriter, *http.Request) { visits.Add(1) })
	r := newReceiver(t, func(w http.ResponseWriter, q *http.Request) {
		visits.Add(1)
		http.Redirect(w, q, elsewhere.url, http.StatusTemporaryRedirect)
	})
	require.Equal(t, attempt, outcomeOf(send(t, newPublisher(t, r.url, nil), event("k")), 0))
	require.EqualValues(t, 1, visits.Load())
}

func TestHangingServer(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, nil)
	p := newPublisher(t, r.url, func(c *webhook.Config) { c.Timeout = time.Second })
	require.Eventually(t, func() bool { return send(t, p, event("k")) == nil }, patience, time.Millisecond) // now there is a connection
	r.set(hang)
	err := send(t, p, event("k"))
	require.Equal(t, attempt, outcomeOf(err, 0), "the event may be the cause")
	require.ErrorContains(t, err, "no reply within 1s")

	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	r.set(func(w http.ResponseWriter, q *http.Request) {
		cancel(stop)
		hang(w, q)
	})
	errs := newPublisher(t, r.url, nil).Publish(ctx, slices.Repeat([]publish.Outgoing{event("k")}, 2))
	require.ErrorIs(t, errs[0], stop)
	require.Equal(t, attempt, outcomeOf(errs[0], 0))
	require.ErrorIs(t, errs[1], outbox.ErrBehind)
}

// TestUnreachable: without a connection the event is not at fault.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		url    func(t *testing.T) string
		change func(*webhook.Config)
		says   string
	}{
		"refused": {url: func(t *testing.T) string {
			r := newReceiver(t, nil)
			r.stop()
			return r.url
		}, says: "connection refused"},
		"no such host":         {url: func(*testing.T) string { return "http://no-such-host.invalid/" }, says: `at no-such-host.invalid: `},
		"certificate":          {url: func(t *testing.T) string { return tlsServer(t).URL }, says: "certificate"},
		"plain HTTP":           {url: func(t *testing.T) string { return "https" + newReceiver(t, nil).url[4:] }, says: "no connection"},
		"handshake that hangs": {url: func(t *testing.T) string { return "https://" + mute(t) }, says: "no connection within 300ms"},
		"handshake cut short":  {url: func(t *testing.T) string { return "https://" + cut(t) }, says: "no connection"},
		"version that is too new": {
			url: func(t *testing.T) string {
				server := tlsServer(t)
				server.TLS.MaxVersion = tls.VersionTLS12
				return server.URL
			},
			change: func(c *webhook.Config) { c.TLS = &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true} },
			says:   "protocol version",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPublisher(t, c.url(t), func(config *webhook.Config) {
				if strings.Contains(c.says, "within") { // the others may be slow
					config.Timeout = 300 * time.Millisecond
				}
				if c.change != nil {
					c.change(config)
				}
			})
			err := send(t, p, event("k"))
			require.Equal(t, unavailable, outcomeOf(err, 0), "%v", err)
			require.ErrorContains(t, err, c.says)
		})
	}
}

func tlsServer(t *testing.T) *httptest.Server {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.EnableHTTP2 = true
	server.Config.ErrorLog = newQuietLog()
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

// mute accepts connections and does not answer. cut closes them immediately.
func mute(t *testing.T) string { return listen(t, func(net.Conn) {}) }
func cut(t *testing.T) string  { return listen(t, func(c net.Conn) { _ = c.Close() }) }

func listen(t *testing.T, accepted func(net.Conn)) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			defer func() { _ = conn.Close() }()
			accepted(conn)
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-done
	})
	return listener.Addr().String()
}

func TestTLSWithItsOwnAuthority(t *testing.T) {
	t.Parallel()
	server := tlsServer(t)
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	p := newPublisher(t, server.URL, func(c *webhook.Config) { c.TLS = &tls.Config{RootCAs: roots} })
	require.NoError(t, send(t, p, event("k")))
}
