package webhook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/call/errclass"
)

// errTimeout is the cause when a request takes longer than Config.Timeout.
var errTimeout = errors.New("timeout")

// maxReason is how many bytes of a permanent error a sender is told.
const maxReason = 400

// answer is what a sender is told.
type answer struct {
	status     int
	say        string // for the sender
	err        error  // for the log; nil if say tells all
	retryAfter time.Duration
	header     [2]string // one more header, with its value
	unknown    bool      // the consumer does not know the topic
	away       bool      // the database does not answer
	gone       bool      // the sender has left, so the error says nothing about the event
}

func (a answer) write(w http.ResponseWriter) {
	if a.header[0] != "" {
		w.Header().Set(a.header[0], a.header[1])
	}
	if a.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(int64((a.retryAfter+time.Second-1)/time.Second), 10))
	}
	if a.status == http.StatusNoContent {
		w.WriteHeader(a.status)
		return
	}
	http.Error(w, a.say, a.status)
}

// reason returns why the event was not applied, nil if it was.
func (a answer) reason() error {
	switch {
	case a.status == http.StatusNoContent:
		return nil
	case a.err != nil:
		return a.err
	}
	return errors.New(a.say)
}

// failed is the answer for a failed attempt, which may be repeated.
func failed(err error) answer {
	return answer{status: http.StatusInternalServerError, say: "the event was not applied: send it again", err: err}
}

// refused is the answer for an event that fails again however often it is sent.
func refused(status int, err error) answer {
	return answer{status: status, say: oneLine(err.Error()), err: err, unknown: errors.Is(err, consume.ErrUnknownTopic)}
}

// failure returns the answer for an event that was not applied. ctx is that of the attempt, request that of the
// request.
func (h *handler) failure(ctx, request context.Context, db *begins, err error) answer {
	result := errclass.Of(err)
	unavailable := answer{
		status: http.StatusServiceUnavailable, say: "unavailable: send it again later", err: err,
		retryAfter: h.cfg.RetryAfter,
	}
	var about *consume.Error
	switch {
	case request.Err() != nil:
		unavailable.gone = true
		return unavailable
	case errors.Is(err, consume.ErrUnimplemented):
		return answer{status: http.StatusNotImplemented, say: "the receiver has no code for this topic yet", err: err}
	case errors.Is(err, consume.ErrMalformed) && errors.As(err, &about) && about.Field == "content-type":
		return refused(http.StatusUnsupportedMediaType, err)
	case errors.Is(err, consume.ErrMalformed):
		return refused(http.StatusBadRequest, err)
	case consume.IsPermanent(err):
		return refused(http.StatusUnprocessableEntity, err)
	case result.Class == errclass.ClassUnavailable || result.Class == errclass.ClassNotSent:
		if result.After != nil {
			unavailable.retryAfter = *result.After
		}
		return unavailable
	case db.failed, unusable(err), lost(err) && !h.answers(request):
		unavailable.away = true
		return unavailable
	case errors.Is(context.Cause(ctx), errTimeout):
		a := failed(fmt.Errorf("no commit within %s: %w", h.cfg.Timeout, err))
		a.say = fmt.Sprintf("the event was not applied within %s: send it again", h.cfg.Timeout)
		return a
	}
	a := failed(err)
	if result.After != nil {
		a.retryAfter = *result.After
	}
	return a
}

// unusable reports whether err says that no event can be applied in this database: it is a standby, or has no tables.
func unusable(err error) bool {
	var pg *pgconn.PgError
	return errors.Is(err, inbox.ErrNotMigrated) || errors.As(err, &pg) && pg.Code == "25006"
}

// lost reports whether err may come from a lost connection or a server without resources.
func lost(err error) bool {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return errclass.IsAway(pg.Code)
	}
	var network net.Error
	return pgconn.SafeToRetry(err) || errors.As(err, &network) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, io.EOF) ||
		errors.Is(err, io.ErrUnexpectedEOF)
}

// answers reports whether the database begins a transaction. If it does, a lost connection may be the fault of the
// event, which then costs the event an attempt. Else it is nobody's fault.
func (h *handler) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, h.cfg.Timeout/2)
	defer cancel()
	tx, err := h.cfg.DB.Begin(ctx)
	if err != nil {
		return false
	}
	_, err = tx.Exec(ctx, "SELECT")
	rollback := tx.Rollback(ctx)
	return err == nil && (rollback == nil || errors.Is(rollback, pgx.ErrTxClosed))
}

// isStructured reports whether a content type is that of a CloudEvent in structured mode.
func isStructured(contentType string) bool {
	media, _, _ := strings.Cut(contentType, ";")
	return strings.EqualFold(strings.TrimSpace(media), "application/cloudevents+json")
}

// oneLine returns the first line of a text in printable characters, cut at maxReason.
func oneLine(text string) string {
	text, _, _ = strings.Cut(text, "\n")
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	if len(text) > maxReason {
		text = strings.ToValidUTF8(text[:maxReason], "") + "..."
	}
	return text
}
