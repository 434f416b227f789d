package webhook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/call/usercode"
)

// ServeHTTP applies the event of a request and answers.
func (h *handler) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	began := time.Now()
	a, e, outcome := h.serve(w, q, began)
	h.log.answered(q, &e, a)
	if f := h.cfg.Observer.Answered; f != nil {
		_ = usercode.Call("observer", usercode.Limit, func() error {
			f(q.Context(), Answered{Event: e, Status: a.status, Outcome: outcome, Err: a.reason(), Took: time.Since(began)})
			return nil
		})
	}
	a.write(w)
}

// serve returns the answer to a request, and the event and its outcome as far as they are known.
func (h *handler) serve(
	w http.ResponseWriter, q *http.Request, began time.Time,
) (a answer, e consume.Event, outcome inbox.Outcome) {
	defer func() {
		if p := recover(); p != nil { // of an error's own methods; those of the consumer are recovered by the consumer
			a, outcome = failed(fmt.Errorf("panic of type %T\n%s", p, debug.Stack())), ""
		}
	}()
	ctx, cancel := context.WithDeadlineCause(q.Context(), began.Add(h.cfg.Timeout), errTimeout)
	defer cancel()
	body, refused := h.read(w, q, began)
	if refused != nil {
		return *refused, e, ""
	}
	m := consume.FromHTTP(q.Header, body)
	r, err := consume.Parse(m)
	if err == nil {
		e = r.Event
		if refused := h.disagrees(q.Header, e.ID); refused != nil {
			return *refused, e, ""
		}
	}
	leave, busy := h.enter(ctx)
	if busy != nil {
		return *busy, e, ""
	}
	defer leave()
	db := &begins{db: h.cfg.DB}
	outcome, err = h.cfg.Consumer.Consume(ctx, db, m)
	if err != nil {
		return h.failure(ctx, q.Context(), db, err), e, ""
	}
	return answer{status: http.StatusNoContent}, e, outcome
}

// read reads the body of a request, and refuses what is not a signed request.
func (h *handler) read(w http.ResponseWriter, q *http.Request, began time.Time) ([]byte, *answer) {
	if q.Method != http.MethodPost {
		return nil, &answer{
			status: http.StatusMethodNotAllowed, say: "send events with POST", header: [2]string{"Allow", http.MethodPost},
		}
	}
	tooLarge := &answer{
		status: http.StatusRequestEntityTooLarge, say: fmt.Sprintf("the body has more than %d bytes", h.cfg.MaxBody),
	}
	if q.ContentLength > h.cfg.MaxBody {
		return nil, tooLarge
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(began.Add(h.cfg.Timeout)) // a server that cannot has its own limits
	body, err := io.ReadAll(http.MaxBytesReader(w, q.Body, h.cfg.MaxBody))
	if err == nil {
		_ = control.SetReadDeadline(time.Time{}) // else it would cancel the request's context later
	}
	var over *http.MaxBytesError
	switch {
	case errors.As(err, &over):
		return nil, tooLarge
	case err != nil:
		return nil, &answer{
			status: http.StatusRequestTimeout, say: "the body did not arrive in time", err: err,
			header: [2]string{"Connection", "close"},
		}
	}
	if err := h.verifier.verify(q.Header, body, time.Now()); err != nil {
		return nil, &answer{
			status: http.StatusUnauthorized, say: err.Error(), err: err,
			header: [2]string{"WWW-Authenticate", "Standard-Webhooks"},
		}
	}
	if q.Header.Get("Content-Encoding") != "" {
		return nil, &answer{status: http.StatusUnsupportedMediaType, say: "a body with a content encoding is not supported"}
	}
	if h.cfg.Structured && !isStructured(q.Header.Get("Content-Type")) {
		return nil, &answer{
			status: http.StatusForbidden, say: "only structured mode is accepted: send application/cloudevents+json",
		}
	}
	return body, nil
}

// disagrees refuses an event whose id is not the one that was signed.
func (h *handler) disagrees(header http.Header, event uuid.UUID) *answer {
	values := header[headerID]
	if len(values) == 0 && h.cfg.Unsigned {
		return nil
	}
	if len(values) == 1 {
		if id, err := uuid.Parse(values[0]); err == nil && id == event {
			return nil
		}
	}
	return &answer{status: http.StatusBadRequest, say: "webhook-id is not the id of the event"}
}

// enter waits until the event may be applied. The caller must call leave after it.
func (h *handler) enter(ctx context.Context) (leave func(), busy *answer) {
	leave = func() { <-h.slots }
	select {
	case h.slots <- struct{}{}:
		return leave, nil
	default:
	}
	patience := time.NewTimer(h.cfg.Timeout / 2)
	defer patience.Stop()
	select {
	case h.slots <- struct{}{}:
		return leave, nil
	case <-patience.C:
	case <-ctx.Done():
	}
	return nil, &answer{
		status: http.StatusTooManyRequests, say: "busy with other events: send it again later", retryAfter: h.cfg.RetryAfter,
	}
}

// begins is a consume.DB that remembers whether a transaction could not begin.
type begins struct {
	db     consume.DB
	failed bool
}

func (b *begins) Begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := b.db.Begin(ctx)
	b.failed = err != nil
	return tx, err
}

// BeginTx is for consume.Consumer, which chooses the isolation level.
func (b *begins) BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error) {
	db, ok := b.db.(interface {
		BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
	})
	if !ok {
		return b.Begin(ctx)
	}
	tx, err := db.BeginTx(ctx, opts)
	b.failed = err != nil
	return tx, err
}
