package web_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/examples/threads/database"
	"github.com/outboxgen/outboxgen/examples/threads/events"
	"github.com/outboxgen/outboxgen/examples/threads/hub"
	"github.com/outboxgen/outboxgen/examples/threads/thread"
	"github.com/outboxgen/outboxgen/examples/threads/web"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outboxtest"
)

const patience = 2 * time.Minute

// fixture is a server on its own database, with one thread.
type fixture struct {
	*web.Client
	t          *testing.T
	pool       *pgxpool.Pool
	hub        *hub.Hub
	server     *httptest.Server
	tenant, id uuid.UUID
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	return newFixtureWith(t, hub.New(256))
}

func newFixtureWith(t *testing.T, h *hub.Hub) *fixture {
	t.Helper()
	f := &fixture{t: t, pool: outboxtest.Postgres(t), hub: h, tenant: uuid.New(), id: uuid.New()}
	require.NoError(t, database.Migrate(t.Context(), f.pool))
	f.server = httptest.NewServer(web.NewHandler(f.pool, f.hub))
	t.Cleanup(f.server.Close)
	t.Cleanup(f.hub.Close) // first: the server waits for streams
	f.Client = web.NewClient(f.server.URL, f.tenant, f.id)
	require.NoError(t, f.Create(t.Context()))
	return f
}

// broadcast runs the listener from now on, until the test ends.
func (f *fixture) broadcast(clients events.Clients) {
	f.t.Helper()
	l, err := events.NewBroadcastListener(f.pool, &events.BroadcastHandler{Clients: clients}, listener.Config{})
	require.NoError(f.t, err)
	outboxtest.Drain(f.t, l)
	ctx, cancel := context.WithCancel(f.t.Context())
	over := make(chan error, 1)
	go func() { over <- l.Run(ctx) }()
	f.t.Cleanup(func() {
		cancel()
		assert.NoError(f.t, <-over)
	})
}

func (f *fixture) post(author, text string) thread.Message {
	f.t.Helper()
	m, err := f.Post(f.t.Context(), uuid.New(), author, text)
	require.NoError(f.t, err)
	return m
}

// follow opens a stream that ends with the test. Waiting for a message fails after patience.
func (f *fixture) follow(after int64) *web.Feed {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	f.t.Cleanup(cancel)
	feed, err := f.Follow(ctx, after)
	require.NoError(f.t, err)
	return feed
}

func (f *fixture) requireNext(feed *web.Feed, want ...thread.Message) {
	f.t.Helper()
	for _, m := range want {
		got, err := feed.Next()
		require.NoError(f.t, err)
		got.PostedAt = got.PostedAt.In(m.PostedAt.Location())
		require.Equal(f.t, m, got)
	}
}

func TestPostTwiceIsOneMessage(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	require.NoError(t, f.Create(t.Context()), "a thread may be created again")
	id := uuid.New()
	first, err := f.Post(t.Context(), id, "ada", "hello")
	require.NoError(t, err)
	require.EqualValues(t, 1, first.Number)
	require.Equal(t, events.RoleUser, first.Role)
	again, err := f.Post(t.Context(), id, "ada", "hello")
	require.NoError(t, err)
	require.Equal(t, first, again)
	_, err = f.Post(t.Context(), id, "ada", "something else")
	var refusal *web.StatusError
	require.ErrorAs(t, err, &refusal)
	require.Equal(t, http.StatusConflict, refusal.Code)
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	mine := "/tenants/" + f.tenant.String() + "/threads/" + f.id.String()
	nobodys := "/tenants/" + f.tenant.String() + "/threads/" + uuid.NewString()
	others := "/tenants/" + uuid.NewString() + "/threads/" + f.id.String()
	const good = `{"author": "ada", "text": "hello"}`
	for name, c := range map[string]struct {
		method, path, body, last string
		status                   int
		text                     string
	}{
		"tenant no UUID":    {"POST", "/tenants/a/threads/b/messages", good, "", 400, "tenant is not a UUID"},
		"thread no UUID":    {"POST", "/tenants/" + f.tenant.String() + "/threads/b/messages", good, "", 400, "thread is not a UUID"},
		"no thread":         {"POST", nobodys + "/messages", good, "", 404, "thread not found"},
		"another tenant's":  {"POST", others + "/messages", good, "", 404, "thread not found"},
		"taken":             {"PUT", others, "", "", 409, "id is taken"},
		"no JSON":           {"POST", mine + "/messages", "hello", "", 400, "read body"},
		"unknown field":     {"POST", mine + "/messages", `{"author": "ada", "text": "hello", "role": "companion"}`, "", 400, `unknown field "role"`},
		"empty text":        {"POST", mine + "/messages", `{"author": "ada", "text": ""}`, "", 400, "text"},
		"zero id":           {"POST", mine + "/messages", `{"id": "00000000-0000-0000-0000-000000000000", "author": "ada", "text": "x"}`, "", 400, "empty key part"},
		"too long":          {"POST", mine + "/messages", `{"author": "ada", "text": "` + strings.Repeat("x", 70000) + `"}`, "", 400, "too large"},
		"stream of nothing": {"GET", nobodys + "/messages", "", "", 404, "thread not found"},
		"stream after what": {"GET", mine + "/messages", "", "x", 400, "Last-Event-ID"},
		"no such method":    {"DELETE", mine + "/messages", "", "", 405, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			request, err := http.NewRequestWithContext(f.t.Context(), c.method, f.server.URL+c.path, strings.NewReader(c.body))
			require.NoError(t, err)
			if c.last != "" {
				request.Header.Set("Last-Event-ID", c.last)
			}
			response, err := f.server.Client().Do(request)
			require.NoError(t, err)
			defer func() { _ = response.Body.Close() }()
			text, err := io.ReadAll(response.Body)
			require.NoError(t, err)
			require.Equal(t, c.status, response.StatusCode, string(text))
			require.Contains(t, string(text), c.text)
		})
	}
}
