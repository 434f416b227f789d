// Package web is the HTTP interface of the chat: it creates threads, posts messages, and sends the messages of a thread as
// Server-Sent Events.
//
//	PUT  /tenants/{tenant}/threads/{thread}
//	POST /tenants/{tenant}/threads/{thread}/messages
//	GET  /tenants/{tenant}/threads/{thread}/messages
//
// The tenant is in the path because this example has no authentication. Your own service takes the tenant from the
// authenticated caller.
package web

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/examples/threads/events"
	"github.com/outboxgen/outboxgen/examples/threads/hub"
	"github.com/outboxgen/outboxgen/examples/threads/thread"
	"github.com/outboxgen/outboxgen/outbox"
)

const (
	maxBodyBytes = 64 << 10
	// writeTimeout is how long a client may take to read one write.
	writeTimeout = 10 * time.Second
)

type server struct {
	pool *pgxpool.Pool
	hub  *hub.Hub
}

// NewHandler returns the handler on the database of pool. Its streams get the messages that are pushed into clients.
func NewHandler(pool *pgxpool.Pool, clients *hub.Hub) http.Handler {
	s := &server{pool: pool, hub: clients}
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /tenants/{tenant}/threads/{thread}", answer(s.create))
	mux.HandleFunc("POST /tenants/{tenant}/threads/{thread}/messages", answer(s.post))
	mux.HandleFunc("GET /tenants/{tenant}/threads/{thread}/messages", answer(s.stream))
	return mux
}

// requestError is a mistake of the client.
type requestError struct{ err error }

func (e *requestError) Error() string { return e.err.Error() }
func (e *requestError) Unwrap() error { return e.err }

// answer turns the error of handle into a status, unless the response has already started.
func answer(handle func(http.ResponseWriter, *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		err := handle(w, r)
		var mistake *requestError
		switch {
		case err == nil, r.Context().Err() != nil:
		case errors.As(err, &mistake), errors.Is(err, outbox.ErrPayloadInvalid), errors.Is(err, outbox.ErrEmptyKeyPart):
			http.Error(w, err.Error(), http.StatusBadRequest)
		case errors.Is(err, thread.ErrThreadNotFound):
			http.Error(w, err.Error(), http.StatusNotFound)
		case errors.Is(err, thread.ErrIDTaken):
			http.Error(w, err.Error(), http.StatusConflict)
		default:
			slog.ErrorContext(r.Context(), "request failed", "method", r.Method, "path", r.URL.Path, "error", err)
			http.Error(w, "internal error", http.StatusInternalServerError)
		}
	}
}

// address returns the tenant and the thread of a request.
func address(r *http.Request) (tenant, id uuid.UUID, err error) {
	if tenant, err = uuid.Parse(r.PathValue("tenant")); err != nil {
		return tenant, id, &requestError{fmt.Errorf("read path: tenant is not a UUID: %w", err)}
	}
	if id, err = uuid.Parse(r.PathValue("thread")); err != nil {
		return tenant, id, &requestError{fmt.Errorf("read path: thread is not a UUID: %w", err)}
	}
	return tenant, id, nil
}

// create answers 201 if the thread is new, and 200 if it exists.
func (s *server) create(w http.ResponseWriter, r *http.Request) error {
	tenant, id, err := address(r)
	if err != nil {
		return err
	}
	var created bool
	err = pgx.BeginFunc(r.Context(), s.pool, func(tx pgx.Tx) error {
		created, err = thread.Create(r.Context(), tx, tenant, id)
		return err
	})
	if err != nil {
		return err
	}
	return reply(w, created, map[string]uuid.UUID{"id": id})
}

// posting is the body of a POST. A client that may have to repeat a POST chooses the id.
type posting struct {
	ID     uuid.UUID `json:"id"`
	Author string    `json:"author"`
	Text   string    `json:"text"`
}

// post answers 201 if the message is new, and 200 if it was posted before.
func (s *server) post(w http.ResponseWriter, r *http.Request) error {
	tenant, id, err := address(r)
	if err != nil {
		return err
	}
	p := posting{ID: uuid.New()}
	body := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBodyBytes))
	body.DisallowUnknownFields()
	if err := body.Decode(&p); err != nil {
		return &requestError{fmt.Errorf("read body: %w", err)}
	}
	var (
		m       thread.Message
		created bool
	)
	err = pgx.BeginFunc(r.Context(), s.pool, func(tx pgx.Tx) error {
		m, created, err = thread.Post(r.Context(), tx, thread.Draft{
			TenantID: tenant, ThreadID: id, ID: p.ID, Role: events.RoleUser, Author: p.Author, Text: p.Text,
		})
		return err
	})
	if err != nil {
		return err
	}
	return reply(w, created, m)
}

func reply(w http.ResponseWriter, created bool, body any) error {
	w.Header().Set("Content-Type", "application/json")
	if created {
		w.WriteHeader(http.StatusCreated)
	}
	return json.NewEncoder(w).Encode(body)
}
