package webhook_test

import (
	"fmt"
	"io"
	"log"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/outboxgen/outboxgen/internal/testing/freeport"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/webhook"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(outboxtest.Supervisor))
}

const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// local are the networks of the tests' servers.
var local = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// request is a request that a receiver got.
type request struct {
	header http.Header
	body   []byte
}

// host is a server that can be stopped and started again at the same address.
type host struct {
	t       testing.TB
	handler http.Handler

	mu     sync.Mutex
	server *httptest.Server
	addr   string // which stays its own when it is started again
	url    string
}

func (h *host) start() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.server != nil {
		return
	}
	server := httptest.NewUnstartedServer(h.handler)
	server.Config.ErrorLog = newQuietLog()
	if h.addr == "" {
		port, err := freeport.Find()
		require.NoError(h.t, err)
		h.addr = fmt.Sprintf("127.0.0.1:%d", port)
	}
	require.NoError(h.t, server.Listener.Close())
	require.NoError(h.t, freeport.Reclaim(h.addr))
	listener, err := net.Listen("tcp", h.addr)
	require.NoError(h.t, err)
	server.Listener = listener
	server.Start()
	h.server, h.url = server, server.URL
}

func (h *host) stop() {
	h.mu.Lock()
	server := h.server
	h.server = nil
	h.mu.Unlock()
	if server != nil {
		server.CloseClientConnections()
		server.Close()
	}
}

// receiver is an endpoint that keeps its requests.
type receiver struct {
	host

	mu     sync.Mutex
	answer http.HandlerFunc // nil: 200
	got    []request
}

// newReceiver starts a receiver that reads each request and answers with answer; nil means 200.
func newReceiver(t testing.TB, answer http.HandlerFunc) *receiver {
	r := &receiver{host: host{t: t}, answer: answer}
	r.handler = r
	r.start()
	t.Cleanup(r.stop)
	return r
}

func (r *receiver) set(answer http.HandlerFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = answer
}

// ServeHTTP records the request if the answer is 2xx, like a service that rolls back on an error.
func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, err := io.ReadAll(q.Body)
	if err != nil {
		return
	}
	r.mu.Lock()
	answer := r.answer
	r.mu.Unlock()
	if answer != nil {
		status := &statusWriter{ResponseWriter: w, status: http.StatusOK}
		answer(status, q)
		if status.status >= 300 {
			return
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got = append(r.got, request{header: q.Header.Clone(), body: body})
}

func (r *receiver) requests() []request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got)
}

// messages returns the requests in the form in which the publisher got them, without the additions of HTTP.
func (r *receiver) messages() []publish.Message {
	var messages []publish.Message
	for _, q := range r.requests() {
		m := publish.Message{
			ContentType: q.header.Get("Content-Type"), Attributes: make(map[string]string), Headers: make(map[string]string), Body: q.body,
		}
		for name, values := range q.header {
			attribute, is := strings.CutPrefix(strings.ToLower(name), "ce-")
			if !is {
				m.Headers[name] = values[0]
				continue
			}
			value, err := url.PathUnescape(values[0])
			require.NoError(r.t, err)
			m.Attributes[attribute] = value
		}
		messages = append(messages, m)
	}
	return messages
}

type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// status answers with a status and headers, which are given as name, value, name, value.
func status(code int, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for pair := range slices.Chunk(headers, 2) {
			w.Header().Set(pair[0], pair[1])
		}
		w.WriteHeader(code)
	}
}

// raw answers with bytes and closes the connection.
func raw(reply string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.(*statusWriter).status = http.StatusInternalServerError // the receiver does not record it
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_, _ = io.WriteString(conn, reply)
			_ = conn.Close()
		}
	}
}

// hang does not answer until the other side gives up.
func hang(w http.ResponseWriter, q *http.Request) {
	w.(*statusWriter).status = http.StatusInternalServerError
	<-q.Context().Done()
}

// newPublisher returns a publisher with one endpoint, "crm", at url. change may be nil.
func newPublisher(t testing.TB, url string, change func(*webhook.Config)) *webhook.Publisher {
	config := webhook.Config{
		Endpoints:       map[string]webhook.Endpoint{"crm": {URL: url, Secrets: []string{secret}}},
		AllowedNetworks: local, Logger: quiet(),
	}
	if change != nil {
		change(&config)
	}
	p, err := webhook.New(config)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

// event returns an event for "crm".
func event(key string) publish.Outgoing {
	return publish.Outgoing{
		Event: outbox.Event{
			ID: uuid.Must(uuid.NewV7()), Namespace: "users", Topic: "user_renamed", Version: 1, PartitionKey: key, Attempt: 1,
			Headers: map[string]string{},
		},
		Payload: []byte(`{"name": "Zoë"}`), Destination: "crm", Key: key,
	}
}

// send publishes one event.
func send(t testing.TB, p *webhook.Publisher, o publish.Outgoing) error {
	o.Headers = maps.Clone(o.Headers)
	errs := p.Publish(t.Context(), []publish.Outgoing{o})
	require.Len(t, errs, 1)
	return errs[0]
}

func newQuietLog() *log.Logger { return slog.NewLogLogger(slog.DiscardHandler, 0) }
