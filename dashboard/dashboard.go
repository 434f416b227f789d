// Package dashboard is a web page for operators: it shows topics, listeners, events, dead letters, also those of
// consumers, limits, findings of the doctor and the audit, and it pauses, resumes, replays, discards, skips, rewinds,
// detaches and changes limits. All that it shows and does comes from package admin.
//
//	page, err := dashboard.New(dashboard.Config{Pool: pool, Prefix: "/outbox", Authorize: authorize})
//	if err != nil {
//		return err
//	}
//	defer page.Close()
//	mux.Handle("/outbox/", page)
//
// The command `outboxgen dashboard` serves the same page.
package dashboard

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/admin"
)

// Config says what the page shows, and to whom.
type Config struct {
	// Pool reaches the database. It is required. The page uses up to three of its connections, and the doctor's checks
	// open up to four of their own. The caller closes it, after Page.Close.
	Pool *pgxpool.Pool
	// Schema has the tables; "" means "outbox".
	Schema string
	// Authorize returns the name of who sends a request, which goes into the audit with what they do, or an error for
	// somebody who may not look. It is called for each request. The text of its error is sent with the status 403, unless
	// the error is or wraps a *Challenge. Nil means Loopback(""): only requests from this machine.
	Authorize func(*http.Request) (who string, err error)
	// ReadOnly leaves out everything that changes something.
	ReadOnly bool
	// Prefix is the path at which the page is mounted, like "/admin/outbox". "" means the root. The page expects the
	// prefix in the paths of requests, so do not strip it.
	Prefix string
	// Title names what is shown, like "production"; "" means none.
	Title string
	// Mask returns a payload of "namespace/topic" and a payload version as it may be shown, and false if nothing of it
	// may. Each generated package has one, MaskPayload; Masks joins those of several packages. Nil means that no payload
	// is shown, because nobody knows which fields are sensitive. Unmasked shows everything. It is called by any number of
	// goroutines.
	Mask func(topic string, version int, payload json.RawMessage) (json.RawMessage, bool)
	// Enqueue has the topics of which the page has a form to enqueue an event. Nobody may use it without AuthorizeEnqueue.
	Enqueue []EnqueueTopic
	// AuthorizeEnqueue returns an error for somebody who may not enqueue events of "namespace/topic". It is called for
	// requests that Authorize lets in. Nil means that nobody may.
	AuthorizeEnqueue func(r *http.Request, topic string) error
	// AuthorizeForget returns an error for somebody who may not forget a tenant or an entity, which deletes what is kept
	// of it. It is called for requests that Authorize lets in. Nil means that nobody may.
	AuthorizeForget func(r *http.Request) error
	// GoneAfter is how long a process that is gone is shown; 0 means a day.
	GoneAfter time.Duration
	// TraceURL is where the trace of an event is shown, with {trace_id} and {span_id} of its header traceparent, like
	// "https://traces.example.com/trace/{trace_id}". "" means no link.
	TraceURL string
	// Prometheus is the base URL of a Prometheus that scrapes the metrics of telemetry/prometheus, like
	// "http://prometheus:9090". Charts then have the hour before the page started, too. "" means that they show what the
	// page itself has seen.
	Prometheus string
	// Logger reports what the page cannot show, like a lost database. Nil means slog.Default().
	Logger *slog.Logger
}

// Unmasked is a Config.Mask that shows payloads as they are, with their sensitive fields.
func Unmasked(_ string, _ int, payload json.RawMessage) (json.RawMessage, bool) { return payload, true }

// Masks returns a Config.Mask for the topics of several packages: that of the first of masks that knows the topic.
func Masks(
	masks ...func(topic string, version int, payload json.RawMessage) (json.RawMessage, bool),
) func(topic string, version int, payload json.RawMessage) (json.RawMessage, bool) {
	return func(topic string, version int, payload json.RawMessage) (json.RawMessage, bool) {
		for _, mask := range masks {
			if masked, ok := mask(topic, version, payload); ok {
				return masked, true
			}
		}
		return nil, false
	}
}

// Page is the web page. It may be used by any number of goroutines.
type Page struct {
	cfg     Config
	ops     *admin.Admin
	mux     *http.ServeMux
	origins *http.CrossOriginProtection
	view    *view
	acts    []act

	overview *shared[figures]
	groups   *shared[deadGroups]
	doctor   *shared[[]admin.Finding]
	history  *history
	// forgetWait is how long somebody waits for the end of a forget. After that it goes on without them.
	forgetWait time.Duration
	upstream   *prometheus

	ctx     context.Context // ends what runs without a request
	stop    context.CancelFunc
	running sync.WaitGroup
}

// Handler is New for programs in which the page lives as long as the process.
func Handler(cfg Config) (http.Handler, error) {
	p, err := New(cfg)
	if err != nil {
		return nil, err
	}
	return p, nil
}

// New checks cfg and returns the page, which reads an overview from the database every ten seconds until Close.
func New(cfg Config) (*Page, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("new dashboard: %w", err)
	}
	ops, err := admin.New(cfg.Pool, cfg.Schema)
	if err != nil {
		return nil, fmt.Errorf("new dashboard: %w", err)
	}
	ops = ops.WithGoneAfter(cmp.Or(cfg.GoneAfter, admin.DefaultGoneAfter))
	ctx, stop := context.WithCancel(context.Background())
	p := &Page{cfg: cfg, ops: ops, origins: http.NewCrossOriginProtection(), history: newHistory(), ctx: ctx, stop: stop, forgetWait: forgetWait}
	p.view = newView(p)
	p.overview = newShared(ctx, &p.running, p.readOverview)
	p.groups = newShared(ctx, &p.running, p.readGroups)
	p.doctor = newShared(ctx, &p.running, func(ctx context.Context) ([]admin.Finding, error) {
		return ops.Doctor(ctx, admin.DoctorConfig{})
	})
	if cfg.Prometheus != "" {
		p.upstream = newPrometheus(cfg.Prometheus)
	}
	p.acts = p.listActs()
	p.mux = p.routes()
	p.running.Go(func() { p.sample(ctx) })
	return p, nil
}

// Path is where the overview is: the prefix, and a slash.
func (p *Page) Path() string { return p.cfg.Prefix + "/" }

// Close ends the reading of the overview, and waits for it. A forget that is under way ends early: another one of the same
// tenant or entity goes on with it. Requests that come later are answered with the status 503.
func (p *Page) Close() {
	p.stop()
	p.running.Wait()
}

func (cfg Config) withDefaults() (Config, error) {
	if cfg.Pool == nil {
		return cfg, errors.New("config: Pool is nil")
	}
	if cfg.Prefix = strings.TrimSuffix(cfg.Prefix, "/"); cfg.Prefix != "" {
		u, err := url.Parse(cfg.Prefix)
		if err != nil || u.Path != cfg.Prefix || u.EscapedPath() != cfg.Prefix || !strings.HasPrefix(cfg.Prefix, "/") ||
			strings.Contains(cfg.Prefix, "//") || strings.ContainsAny(cfg.Prefix, "{}") {
			return cfg, fmt.Errorf("config: Prefix %q is not a valid path: use one like /admin/outbox", cfg.Prefix)
		}
	}
	for _, field := range []struct{ name, text, example string }{
		{"TraceURL", cfg.TraceURL, "https://traces.example.com/trace/{trace_id}"},
		{"Prometheus", cfg.Prometheus, "http://prometheus:9090"},
	} {
		u, err := url.Parse(strings.NewReplacer("{trace_id}", "0", "{span_id}", "0").Replace(field.text))
		if field.text != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
			return cfg, fmt.Errorf("config: %s is not a valid http or https URL: use one like %s", field.name, field.example)
		}
	}
	for _, t := range cfg.Enqueue {
		if _, topic, ok := strings.Cut(t.Name, "/"); !ok || topic == "" || t.Message == nil {
			return cfg, fmt.Errorf("config: Enqueue: topic %q needs a name like mini_chat/turn_finalized, and Message", t.Name)
		}
	}
	if cfg.GoneAfter < 0 {
		return cfg, fmt.Errorf("config: GoneAfter %v is negative", cfg.GoneAfter)
	}
	if cfg.TraceURL != "" && !strings.Contains(cfg.TraceURL, "{trace_id}") {
		return cfg, errors.New("config: TraceURL has no {trace_id}")
	}
	if cfg.Authorize == nil {
		cfg.Authorize = Loopback("")
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	return cfg, nil
}
