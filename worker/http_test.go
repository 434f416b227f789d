package worker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/freeport"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
	"github.com/outboxgen/outboxgen/worker"
)

const key = "a-key-of-the-scheduler"

func newHandler(t testing.TB, limit outbox.DrainLimit, parts ...worker.Part) http.Handler {
	t.Helper()
	h, err := newWorker(t, parts...).DrainHandler(worker.HandlerConfig{Key: key, Limit: limit, Logger: runtimetest.DiscardLogger()})
	require.NoError(t, err)
	return h
}

// request returns a request with the key.
func request(query, contentType, body string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/drain"+query, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+key)
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	return r
}

// serve returns the status, the header and the JSON of the answer to r.
func serve(t testing.TB, h http.Handler, r *http.Request) (int, http.Header, map[string]any) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	require.Equal(t, "application/json", w.Header().Get("Content-Type"))
	require.Equal(t, "no-store", w.Header().Get("Cache-Control"))
	var answer map[string]any
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer), w.Body.String())
	return w.Code, w.Header(), answer
}

func TestDrainHandlerRefusesConfigurations(t *testing.T) {
	t.Parallel()
	w := newWorker(t, reports("a", outbox.DrainReport{}, nil))
	for want, cfg := range map[string]worker.HandlerConfig{
		"field Key is empty":                         {},
		"field Key has 15 characters":                {Key: strings.Repeat("k", worker.MinKeyLength-1)},
		"field Key has a character that is not":      {Key: key + "\n"},
		"field Limit: Events -1 is negative":         {Key: key, Limit: outbox.DrainLimit{Events: -1}},
		"field Limit: Time -1s is negative: 0 means": {Key: key, Limit: outbox.DrainLimit{Time: -time.Second}},
	} {
		_, err := w.DrainHandler(cfg)
		require.ErrorContains(t, err, "new drain handler: "+want)
		require.NotContains(t, err.Error(), key)
	}
	_, err := w.DrainHandler(worker.HandlerConfig{Key: strings.Repeat("k", worker.MinKeyLength)})
	require.NoError(t, err)
}

// TestDrainHandlerAnswersWithTheReport: 200 and the report, whatever came of the events.
func TestDrainHandlerAnswersWithTheReport(t *testing.T) {
	t.Parallel()
	h := newHandler(t, outbox.DrainLimit{}, reports("mini_chat", outbox.DrainReport{Delivered: 3, Retried: 2, Dead: 1, Ended: outbox.EndTime}, nil))
	status, _, answer := serve(t, h, request("", "", ""))
	require.Equal(t, http.StatusOK, status)
	require.NotEmpty(t, answer["took"])
	delete(answer, "took")
	numbers := func() map[string]any {
		return map[string]any{"delivered": 3.0, "retried": 2.0, "dead": 1.0, "lost": 0.0, "handed_back": 0.0, "ended": "time"}
	}
	want, of := numbers(), numbers()
	of["name"] = "mini_chat"
	want["more"], want["parts"] = true, []any{of}
	require.Equal(t, want, answer)
}

// TestDrainHandlerNeedsTheKey: nothing is drained without the key and POST, and the answer tells nothing.
func TestDrainHandlerNeedsTheKey(t *testing.T) {
	t.Parallel()
	h := newHandler(t, outbox.DrainLimit{}, part("a", func(context.Context, outbox.DrainLimit) (outbox.DrainReport, error) {
		return outbox.DrainReport{}, errors.New("drained without a key")
	}))
	for _, header := range []string{"", "Bearer", "Bearer ", "Bearer x", "Bearer " + key[1:], "Bearer " + key + "x", "Bearer " + strings.ToUpper(key), "Basic " + key, key, " " + key} {
		r := request("?events=x", "", "")
		r.Header.Set("Authorization", header)
		status, headers, answer := serve(t, h, r)
		require.Equal(t, http.StatusUnauthorized, status, header)
		require.Equal(t, "Bearer", headers.Get("WWW-Authenticate"))
		require.Equal(t, map[string]any{"error": "unauthorized"}, answer)
	}
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPut, http.MethodDelete, http.MethodOptions} {
		r := request("", "", "")
		r.Method = method
		status, headers, _ := serve(t, h, r)
		require.Equal(t, http.StatusMethodNotAllowed, status, method)
		require.Equal(t, http.MethodPost, headers.Get("Allow"))
	}
	for _, header := range []string{"Bearer " + key, "bearer " + key, "BEARER  " + key} {
		r := request("", "", "")
		r.Header.Set("Authorization", header)
		status, _, _ := serve(t, h, r)
		require.Equal(t, http.StatusInternalServerError, status, "it was let in: %s", header)
	}
}

// TestDrainHandlerParameters: parameters lower the bounds of the configuration, and never raise them.
func TestDrainHandlerParameters(t *testing.T) {
	t.Parallel()
	most := outbox.DrainLimit{Events: 100, Time: 20 * time.Second}
	got := make(chan outbox.DrainLimit, 1)
	drain := part("a", func(_ context.Context, limit outbox.DrainLimit) (outbox.DrainReport, error) {
		got <- limit
		return outbox.DrainReport{}, nil
	})
	h := newHandler(t, most, drain)
	const form, object = "application/x-www-form-urlencoded", "application/json; charset=utf-8"
	for _, c := range []struct {
		query, contentType, body string
		want                     outbox.DrainLimit
	}{
		{"", "", "", most},
		{"", object, "{}", most},
		{"", object, "null", most},
		{"?events=7", "", "", outbox.DrainLimit{Events: 7, Time: most.Time}},
		{"?events=1000&seconds=3600", "", "", most},
		{"?seconds=1e300", "", "", most},
		{"?seconds=0.25", "", "", outbox.DrainLimit{Events: 100, Time: 250 * time.Millisecond}},
		{"?seconds=1e-300", "", "", outbox.DrainLimit{Events: 100, Time: 1}},
		{"", form, "events=8&seconds=2", outbox.DrainLimit{Events: 8, Time: 2 * time.Second}},
		{"", object, `{"events": 9, "seconds": 1.5}`, outbox.DrainLimit{Events: 9, Time: 1500 * time.Millisecond}},
		{"", "", `{"events": 10}`, outbox.DrainLimit{Events: 10, Time: most.Time}},
		{"?seconds=3", object, `{"events": 10}`, outbox.DrainLimit{Events: 10, Time: 3 * time.Second}},
	} {
		status, _, _ := serve(t, h, request(c.query, c.contentType, c.body))
		require.Equal(t, http.StatusOK, status, "%+v", c)
		require.Equal(t, c.want, <-got, "%+v", c)
	}
	for _, c := range []struct {
		query, contentType, body string
		status                   int
		want                     string
	}{
		{"?events=0", "", "", 400, "events is not a positive number"},
		{"?events=-1", "", "", 400, "events is not a positive number"},
		{"?events=", "", "", 400, "events is not a positive number"},
		{"?events=1.5", "", "", 400, "events is not a positive number"},
		{"?seconds=NaN", "", "", 400, "seconds is not a positive number"},
		{"?seconds=Inf", "", "", 400, "seconds is not a positive number"},
		{"?seconds=0", "", "", 400, "seconds is not a positive number"},
		{"?seconds=1h", "", "", 400, "seconds is not a positive number"},
		{"?event=1", "", "", 400, "unknown parameter: there are events and seconds"},
		{"?events=1&events=2", "", "", 400, "events is given twice"},
		{"?events=1", object, `{"events": 2}`, 400, "events is given twice"},
		{"?events=%zz", "", "", 400, "the query is not valid"},
		{"", form, "events=%zz", 400, "the form is not valid"},
		{"", object, `{"limit": 2}`, 400, "unknown parameter: there are events and seconds"},
		{"", object, `{"events": null}`, 400, "events is not a positive number"},
		{"", object, `[1]`, 400, `the body is not a JSON object of numbers such as {"events": 1000, "seconds": 20}`},
		{"", "text/plain", "events=1", 415, "the body is neither JSON nor a form"},
		{"", "/", "events=1", 415, "the body is neither JSON nor a form"},
		{"", object, strings.Repeat(" ", 5000), 413, "the body is longer than 4096 bytes"},
	} {
		status, _, answer := serve(t, h, request(c.query, c.contentType, c.body))
		require.Equal(t, c.status, status, "%+v", c)
		require.Equal(t, map[string]any{"error": c.want}, answer)
	}
	require.Empty(t, got, "nothing was drained")

	serve(t, newHandler(t, outbox.DrainLimit{}, drain), request("?seconds=100", "", ""))
	require.Equal(t, outbox.DrainLimit{Time: 50 * time.Second}, <-got, "the default")
	serve(t, newHandler(t, outbox.DrainLimit{}, drain), request("?events=5", "", ""))
	require.Equal(t, outbox.DrainLimit{Events: 5, Time: 50 * time.Second}, <-got)
}

// TestDrainHandlerIsBusy: while a drain is under way, or a Run, a second request does nothing.
func TestDrainHandlerIsBusy(t *testing.T) {
	t.Parallel()
	begun, end := make(chan struct{}), make(chan struct{})
	hold := func(ctx context.Context) error {
		close(begun)
		<-end
		return ctx.Err()
	}
	w := newWorker(t, worker.Part{Name: "a", Runner: fake{
		run: hold,
		drain: func(ctx context.Context, _ outbox.DrainLimit) (outbox.DrainReport, error) {
			return outbox.DrainReport{Delivered: 1}, hold(ctx)
		},
	}})
	h, err := w.DrainHandler(worker.HandlerConfig{Key: key})
	require.NoError(t, err)
	busy := func() {
		t.Helper()
		pgtest.Receive(t, begun, "the first")
		for range 3 {
			status, headers, answer := serve(t, h, request("", "", ""))
			require.Equal(t, http.StatusConflict, status)
			require.Equal(t, "5", headers.Get("Retry-After"))
			require.Equal(t, map[string]any{"error": "busy: it runs or drains already in this process"}, answer)
		}
		close(end)
	}
	first := make(chan int, 1)
	go func() {
		r := httptest.NewRecorder()
		h.ServeHTTP(r, request("", "", ""))
		first <- r.Code
	}()
	busy()
	require.Equal(t, http.StatusOK, pgtest.Receive(t, first, "the first drain"))

	begun, end = make(chan struct{}), make(chan struct{})
	over := make(chan error, 1)
	go func() { over <- w.Run(context.Background()) }()
	busy()
	require.NoError(t, pgtest.Receive(t, over, "the end of Run"))

	// A dispatcher that runs outside of the worker is busy too.
	pool := pgtest.Database(t)
	topic, running := runtimetest.JobTopic("one"), make(chan struct{}, 1)
	d := runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(topic, func(context.Context, outbox.Delivery[runtimetest.Job]) error {
		running <- struct{}{}
		return nil
	}))
	runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(1)...)
	stop := runtimetest.StartDispatcher(t, d)
	pgtest.Receive(t, running, "the dispatcher")
	status, _, _ := serve(t, newHandler(t, outbox.DrainLimit{}, worker.Part{Name: "jobs", Runner: d}), request("", "", ""))
	require.Equal(t, http.StatusConflict, status)
	require.NoError(t, stop())
}

// TestDrainHandlerHidesErrors: the answer to a failed drain has the report and no details. The log has them.
func TestDrainHandlerHidesErrors(t *testing.T) {
	t.Parallel()
	const secret = "postgres://me:pa55word@db/app"
	port, err := freeport.Find()
	require.NoError(t, err)
	unreachable, err := pgxpool.New(t.Context(), fmt.Sprintf("postgres://me:pa55word@127.0.0.1:%d/app", port))
	require.NoError(t, err)
	defer unreachable.Close()
	away := runtimetest.Dispatcher(t, unreachable, runtimetest.QuickConfig(), runtimetest.OnJob(runtimetest.JobTopic("one"), runtimetest.Succeed))
	empty, err := pgxpool.New(t.Context(), pgtest.Empty(t))
	require.NoError(t, err)
	defer empty.Close()
	bare := runtimetest.Dispatcher(t, empty, runtimetest.QuickConfig(), runtimetest.OnJob(runtimetest.JobTopic("one"), runtimetest.Succeed))
	for name, c := range map[string]struct {
		part   worker.Part
		status int
		text   string
	}{
		"fails":        {reports("a", outbox.DrainReport{Delivered: 2, Ended: outbox.EndStopped}, errors.New(secret)), 500, "the drain failed: the log has the cause"},
		"panics":       {part("a", func(context.Context, outbox.DrainLimit) (outbox.DrainReport, error) { panic(secret) }), 500, "the drain failed: the log has the cause"},
		"unreachable":  {worker.Part{Name: "a", Runner: away}, 503, "the database is not available: the log has the cause"},
		"not migrated": {worker.Part{Name: "a", Runner: bare}, 500, "the drain failed: the log has the cause"},
	} {
		var log bytes.Buffer
		h, err := newWorker(t, c.part).DrainHandler(worker.HandlerConfig{Key: key, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		require.NoError(t, err)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, request("", "", ""))
		require.Equal(t, c.status, w.Code, name)
		require.NotContains(t, w.Body.String(), "pa55word")
		require.NotContains(t, w.Body.String(), "127.0.0.1")
		var answer map[string]any
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer))
		require.Equal(t, c.text, answer["error"], name)
		require.Equal(t, "stopped", answer["ended"])
		require.Equal(t, c.status == 503, w.Header().Get("Retry-After") != "", name)
		require.Contains(t, log.String(), "drain failed", name)
		if name == "fails" {
			require.EqualValues(t, 2, answer["delivered"])
		}
		require.NotContains(t, log.String(), key)
	}
}

// TestDrainHandlerStopsWithItsClient: when the client goes away, the drain ends gracefully: the running handler finishes
// and its event is settled, and no other is started.
func TestDrainHandlerStopsWithItsClient(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("one")
	runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(3)...)
	started, finish := make(chan struct{}, 3), make(chan struct{})
	cfg := runtimetest.QuickConfig()
	cfg.Concurrency = 1
	d := runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, func(context.Context, outbox.Delivery[runtimetest.Job]) error {
		started <- struct{}{}
		<-finish
		return nil
	}))
	gone, over := make(chan struct{}), make(chan queue.Report, 1)
	h := newHandler(t, outbox.DrainLimit{}, part("jobs", func(ctx context.Context, limit outbox.DrainLimit) (outbox.DrainReport, error) {
		told, tell := context.WithCancel(context.WithoutCancel(ctx)) // tell returns when the drain's own context has ended
		context.AfterFunc(ctx, func() { tell(); close(gone) })
		r, err := d.DrainUpTo(told, limit)
		over <- r
		return r, err
	}))
	server := httptest.NewServer(h)
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, strings.NewReader(`{"events": 3}`))
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+key)
	client := make(chan error, 1)
	go func() {
		answer, err := server.Client().Do(r)
		if err == nil {
			err = errors.Join(errors.New("answered"), answer.Body.Close())
		}
		client <- err
	}()
	pgtest.Receive(t, started, "the first handler")
	cancel()
	require.ErrorIs(t, pgtest.Receive(t, client, "the client"), context.Canceled)
	pgtest.Receive(t, gone, "the end of the request")
	close(finish)
	require.Equal(t, queue.Report{Delivered: 1, Ended: outbox.EndStopped}, pgtest.Receive(t, over, "the end of the drain"))
	require.Equal(t, 1, pgtest.Count(t, pool, runtimetest.DeliveredSQL))
	require.Equal(t, 2, pgtest.Count(t, pool, "SELECT count(*) FROM testing.events WHERE status = 'pending' AND attempts = 0"))
}

// TestDrainHandlerStopsWithItsServer: when the context of the server ends, the client gets what was done until then.
func TestDrainHandlerStopsWithItsServer(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	h := newHandler(t, outbox.DrainLimit{}, part("a", func(ctx context.Context, _ outbox.DrainLimit) (outbox.DrainReport, error) {
		cancel()
		<-ctx.Done()
		return outbox.DrainReport{Delivered: 4, Ended: outbox.EndStopped}, ctx.Err()
	}))
	status, headers, answer := serve(t, h, request("", "", "").WithContext(ctx))
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Equal(t, "5", headers.Get("Retry-After"))
	require.Equal(t, "stopped: the drain was interrupted", answer["error"])
	require.EqualValues(t, 4, answer["delivered"])
}

// TestDrainHandlerOutlivesWriteTimeout: a drain that takes longer than the WriteTimeout of the server is answered.
func TestDrainHandlerOutlivesWriteTimeout(t *testing.T) {
	t.Parallel()
	const timeout = time.Second
	for _, http2 := range []bool{false, true} {
		server := httptest.NewUnstartedServer(newHandler(t, outbox.DrainLimit{}, part("a", func(context.Context, outbox.DrainLimit) (outbox.DrainReport, error) {
			<-time.After(2 * timeout)
			return outbox.DrainReport{Delivered: 1}, nil
		})))
		server.Config.WriteTimeout = timeout
		server.EnableHTTP2 = http2
		server.StartTLS()
		defer server.Close()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, nil)
		require.NoError(t, err)
		r.Header.Set("Authorization", "Bearer "+key)
		answer, err := server.Client().Do(r)
		require.NoError(t, err)
		body, err := io.ReadAll(answer.Body)
		require.NoError(t, errors.Join(err, answer.Body.Close()))
		require.Equal(t, http2, answer.ProtoMajor == 2)
		require.Contains(t, string(body), `"delivered":1`)
	}
}
