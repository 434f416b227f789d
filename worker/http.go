package worker

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxgen/outboxgen/internal/call/usercode"
	"github.com/outboxgen/outboxgen/outbox"
)

// MinKeyLength is how many characters the key of a HandlerConfig has at least.
const MinKeyLength = 16

// defaultTime is shorter than a minute, the shortest interval of most schedulers.
const defaultTime = 50 * time.Second

// HandlerConfig configures a handler that drains a worker. Only Key is required.
type HandlerConfig struct {
	// Key is what callers send as "Authorization: Bearer <key>". It has at least MinKeyLength characters, all of them
	// visible ASCII. Make it of random ones, for example with `openssl rand -hex 32`.
	Key string
	// Limit bounds each drain. A request may ask for less with its parameters, never for more. Events 0 means any
	// number. Time 0 means 50 s.
	Limit outbox.DrainLimit
	// Logger gets the errors of drains, which are not sent to the caller; nil means slog.Default().
	Logger *slog.Logger
}

// handler serves drains.
type handler struct {
	w     *Worker
	key   [sha256.Size]byte
	limit outbox.DrainLimit
	log   *slog.Logger
}

// DrainHandler returns a handler that drains w once per request, for a scheduler that calls it. Every answer is one
// JSON object.
//
// The request is a POST with the header "Authorization: Bearer <key>". The parameters events and seconds, in the query,
// in a form or in a JSON object, lower the bounds of cfg.Limit for this drain; seconds may have a fraction.
//
//   - 200: the Report. The drain has ended, by one of its bounds or because nothing more was due.
//   - 400, 413, 415: the parameters are not valid.
//   - 401: the key is missing or not the right one.
//   - 405: the method is not POST.
//   - 409 with Retry-After: w runs or drains already in this process. Nothing was done.
//   - 500, 503: the drain failed. The log of this process has the cause; the answer has the report of what was done.
//     503, with Retry-After, means that the database is not available or that the process is stopping.
//
// When the client goes away or the context of the server ends, the drain stops gracefully. A drain takes up to its time
// plus the ShutdownTimeout of the parts; a WriteTimeout of the server does not end it. Other processes may drain
// concurrently.
//
// The error says what is wrong with cfg: a key that is empty, short or has spaces, or a negative limit. It may also
// name a part of w that is not a Drainer.
func (w *Worker) DrainHandler(cfg HandlerConfig) (http.Handler, error) {
	switch {
	case cfg.Key == "":
		return nil, errors.New("new drain handler: field Key is empty: everybody could drain")
	case len(cfg.Key) < MinKeyLength:
		return nil, fmt.Errorf(
			"new drain handler: field Key has %d characters: use at least %d random ones, for example of openssl rand -hex 32",
			len(cfg.Key), MinKeyLength)
	case strings.ContainsFunc(cfg.Key, func(r rune) bool { return r <= ' ' || r > '~' }):
		return nil, errors.New("new drain handler: field Key has a character that is not visible ASCII, such as a space or " +
			"the newline at the end of a file")
	case cfg.Limit.Events < 0:
		return nil, fmt.Errorf("new drain handler: field Limit: Events %d is negative: 0 means any number", cfg.Limit.Events)
	case cfg.Limit.Time < 0:
		return nil, fmt.Errorf("new drain handler: field Limit: Time %s is negative: 0 means %s", cfg.Limit.Time, defaultTime)
	}
	if _, err := w.drainers(); err != nil {
		return nil, fmt.Errorf("new drain handler: %w", err)
	}
	cfg.Limit.Time = cmp.Or(cfg.Limit.Time, defaultTime)
	return &handler{
		w: w, key: sha256.Sum256([]byte(cfg.Key)), limit: cfg.Limit, log: usercode.Logger(cmp.Or(cfg.Logger, slog.Default())),
	}, nil
}

// fault is an answer that is not a report.
type fault struct {
	status int
	text   string
}

// Error returns the text for the caller.
func (f fault) Error() string { return f.text }

// retrySeconds is what Retry-After asks for.
const retrySeconds = "5"

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		answer(w, http.StatusMethodNotAllowed, fault{text: "use POST"})
		return
	case !h.authorised(r):
		w.Header().Set("WWW-Authenticate", "Bearer")
		answer(w, http.StatusUnauthorized, fault{text: "unauthorized"})
		return
	}
	limit, err := h.limitOf(w, r)
	var wrong fault
	if errors.As(err, &wrong) {
		answer(w, wrong.status, wrong)
		return
	}
	connection := http.NewResponseController(w)
	_ = connection.SetWriteDeadline(time.Time{}) // a drain ends by itself; an error means that there was no deadline
	report, err := h.w.DrainUpTo(r.Context(), limit)
	_ = connection.SetWriteDeadline(time.Now().Add(10 * time.Second))
	if err == nil {
		answer(w, http.StatusOK, report.wire(""))
		return
	}
	status, text := h.explain(r.Context(), err)
	if status != http.StatusInternalServerError {
		w.Header().Set("Retry-After", retrySeconds)
	}
	if status == http.StatusConflict {
		answer(w, status, fault{text: text})
		return
	}
	answer(w, status, report.wire(text))
}

// authorised reports whether r has the key. It takes the same time for every wrong key.
func (h *handler) authorised(r *http.Request) bool {
	scheme, key, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	sum := sha256.Sum256([]byte(strings.TrimLeft(key, " ")))
	return subtle.ConstantTimeCompare(sum[:], h.key[:]) == 1 && strings.EqualFold(scheme, "Bearer")
}

// explain returns the status for an error of a drain and a text without details, which it logs.
func (h *handler) explain(ctx context.Context, err error) (int, string) {
	switch {
	case errors.Is(err, outbox.ErrBusy):
		return http.StatusConflict, "busy: it runs or drains already in this process"
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		h.log.Info("drain stopped: the client has gone or the server is stopping")
		return http.StatusServiceUnavailable, "stopped: the drain was interrupted"
	case unavailable(err):
		h.log.Error("drain failed: the database is not available", "error", err)
		return http.StatusServiceUnavailable, "the database is not available: the log has the cause"
	}
	h.log.Error("drain failed", "error", err)
	return http.StatusInternalServerError, "the drain failed: the log has the cause"
}

// unavailable reports whether the database could not be reached or was going away.
func unavailable(err error) bool {
	var network net.Error
	var connecting *pgconn.ConnectError
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &pg):
		for _, class := range [...]string{"08", "53", "57P"} { // connection, resources, shutdown
			if strings.HasPrefix(pg.Code, class) {
				return true
			}
		}
		return false
	case errors.As(err, &connecting), errors.As(err, &network), errors.Is(err, io.ErrUnexpectedEOF),
		errors.Is(err, context.DeadlineExceeded):
		return true
	}
	return pgconn.SafeToRetry(err)
}

// maxBody is how long a body with parameters may be.
const maxBody = 4096

// limitOf returns the bounds that r asks for, within those of the configuration. Every error is a fault.
func (h *handler) limitOf(w http.ResponseWriter, r *http.Request) (outbox.DrainLimit, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return outbox.DrainLimit{}, fault{http.StatusBadRequest, "the query is not valid"}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var tooLong *http.MaxBytesError
	switch {
	case errors.As(err, &tooLong):
		return outbox.DrainLimit{}, fault{
			http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is longer than %d bytes", maxBody),
		}
	case err != nil:
		return outbox.DrainLimit{}, fault{http.StatusBadRequest, "the body cannot be read"}
	}
	parameters := []url.Values{query}
	if len(body) > 0 {
		values, err := parametersOf(r.Header.Get("Content-Type"), body)
		if err != nil {
			return outbox.DrainLimit{}, err
		}
		parameters = append(parameters, values)
	}
	limit, seen := h.limit, make(map[string]bool)
	for _, values := range parameters {
		for name, list := range values {
			if name != "events" && name != "seconds" {
				return limit, fault{http.StatusBadRequest, "unknown parameter: there are events and seconds"}
			}
			if len(list) > 1 || seen[name] {
				return limit, fault{http.StatusBadRequest, name + " is given twice"}
			}
			seen[name] = true
			if err := lower(&limit, name, list[0]); err != nil {
				return limit, err
			}
		}
	}
	return limit, nil
}

// lower lowers the bound called name to value.
func lower(limit *outbox.DrainLimit, name, value string) error {
	if name == "events" {
		n, err := strconv.Atoi(value)
		if err != nil || n <= 0 {
			return fault{http.StatusBadRequest, "events is not a positive number"}
		}
		if limit.Events == 0 || n < limit.Events {
			limit.Events = n
		}
		return nil
	}
	seconds, err := strconv.ParseFloat(value, 64)
	if err != nil || !(seconds > 0) || math.IsInf(seconds, 0) {
		return fault{http.StatusBadRequest, "seconds is not a positive number"}
	}
	if seconds < limit.Time.Seconds() {
		limit.Time = max(time.Duration(seconds*float64(time.Second)), 1)
	}
	return nil
}

// parametersOf reads a body: a form, or a JSON object of numbers.
func parametersOf(contentType string, body []byte) (url.Values, error) {
	media := "application/json" // what has no type
	if contentType != "" {
		var err error
		if media, _, err = mime.ParseMediaType(contentType); err != nil {
			media = ""
		}
	}
	switch media {
	case "application/x-www-form-urlencoded":
		values, err := url.ParseQuery(string(body))
		if err != nil {
			return nil, fault{http.StatusBadRequest, "the form is not valid"}
		}
		return values, nil
	case "application/json":
		var fields map[string]json.Number
		if err := json.Unmarshal(body, &fields); err != nil {
			return nil, fault{
				http.StatusBadRequest, `the body is not a JSON object of numbers such as {"events": 1000, "seconds": 20}`,
			}
		}
		values := make(url.Values)
		for name, n := range fields {
			values.Set(name, n.String())
		}
		return values, nil
	}
	return nil, fault{http.StatusUnsupportedMediaType, "the body is neither JSON nor a form"}
}

// answer writes v, or the text of a fault, as JSON.
func answer(w http.ResponseWriter, status int, v any) {
	if f, ok := v.(fault); ok {
		v = struct {
			Error string `json:"error"`
		}{f.text}
	}
	body, err := json.Marshal(v)
	if err != nil { // no report has a value that JSON lacks
		status, body = http.StatusInternalServerError, []byte(`{"error":"the report cannot be written"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // the client may have gone
}
