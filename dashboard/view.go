package dashboard

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/outbox"
)

//go:embed pages/*.html
var pageFiles embed.FS

//go:embed assets/*
var assetFiles embed.FS

// view renders the pages.
type view struct {
	page   *Page
	pages  map[string]*template.Template
	assets map[string]asset // by the name in the URL
	names  map[string]string
}

type asset struct {
	kind    string
	content []byte
}

func newView(p *Page) *view {
	v := &view{
		page: p, pages: make(map[string]*template.Template), assets: make(map[string]asset), names: make(map[string]string),
	}
	files, _ := fs.Glob(pageFiles, "pages/*.html")
	for _, file := range files {
		name := strings.TrimSuffix(strings.TrimPrefix(file, "pages/"), ".html")
		if name == "layout" || name == "parts" {
			continue
		}
		v.pages[name] = template.Must(template.New("layout.html").Funcs(v.functions()).ParseFS(pageFiles, "pages/layout.html",
			"pages/parts.html", file))
	}
	v.readAssets()
	return v
}

func (v *view) functions() template.FuncMap {
	return template.FuncMap{
		"path": v.path, "asset": func(name string) string { return v.path("assets", v.names[name]) },
		"age": ageText, "commas": func(n int64) string {
			return commas(n)
		}, "rate": rateText, "short": shortText, "first": firstLine,
		"stamp": func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") },
		"iso":   func(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) },
		"ago":   func(t time.Time) string { return agoText(time.Since(t)) },
		"some":  func(c admin.Count) bool { return c.N > 0 },
		"join":  strings.Join,
		"add":   func(x, y int) int { return x + y },
		"args":  func(of ...any) []any { return of },
		"table": func(name string) string { return forgetTables[name] }, "unreached": admin.NotForgotten,
	}
}

// path joins the prefix and the escaped parts of a path.
func (v *view) path(parts ...string) string {
	if len(parts) == 0 || parts[0] == "" {
		return v.page.cfg.Prefix + "/"
	}
	var b strings.Builder
	b.WriteString(v.page.cfg.Prefix)
	for _, part := range parts {
		b.WriteString("/" + url.PathEscape(part))
	}
	return b.String()
}

// frame is what the layout shows of each page.
type frame struct {
	Name     string // of the page, for the menu
	Title    string
	Site     string // Config.Title
	Who      string
	ReadOnly bool
	Enqueues bool   // whoever looks may enqueue events
	Forgets  bool   // whoever looks may forget a tenant or an entity
	Live     bool   // the page is refreshed
	Reload   bool   // without a script too, because something is being read
	Self     string // the URL of the page
	Done     string // what an act has done
	Stale    string // what is wrong with what is shown
	ReadAt   time.Time
	Body     any
}

// show renders a page. Nothing is sent before it is complete.
func (p *Page) show(w http.ResponseWriter, r *http.Request, status int, f frame) {
	f.Site, f.Who, f.ReadOnly = p.cfg.Title, whoIs(r.Context()), p.cfg.ReadOnly
	f.Enqueues, f.Forgets = len(p.mayEnqueue(r)) > 0, p.mayForget(r)
	query := r.URL.Query()
	for _, name := range doneFields {
		query.Del(name)
	}
	f.Self = (&url.URL{Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: query.Encode()}).String()
	var b bytes.Buffer
	if err := p.view.pages[f.Name].Execute(&b, f); err != nil {
		p.cfg.Logger.ErrorContext(r.Context(), "dashboard: show page", "page", f.Name, "error", err)
		http.Error(w, "the page cannot be shown: the log says why", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes())
}

// problem is what the page "problem" shows.
type problem struct {
	What string
	Hint string
}

// fail shows an error: one of the caller with its own status, any other with 503.
func (p *Page) fail(w http.ResponseWriter, r *http.Request, err error) {
	status, hint := http.StatusInternalServerError, "The log of the page has this error too. Nothing else is known here."
	what := err.Error()
	var argument *admin.ArgumentError
	switch {
	case errors.As(err, &argument):
		what = argument.Problem
		fallthrough
	case errors.As(err, new(*badRequest)):
		status, hint = http.StatusBadRequest, "Correct the field and send it again."
	case errors.Is(err, admin.ErrUnknownEvent):
		status, hint = http.StatusNotFound, "It may have been pruned, or the id is not that of an event."
	case errors.As(err, new(*admin.UnknownTopicError)), errors.As(err, new(*admin.UnknownListenerError)),
		errors.As(err, new(*admin.UnknownLimitError)), errors.As(err, new(*admin.UnknownProcessError)):
		status, hint = http.StatusNotFound, "The overview lists what there is."
	case errors.Is(err, admin.ErrNotDead), errors.Is(err, admin.ErrNotSkippable),
		errors.As(err, new(*admin.LogTopicError)), errors.As(err, new(*admin.LeaseHeldError)),
		errors.As(err, new(*admin.RunningProcessError)):
		status, hint = http.StatusConflict, "Somebody else may have acted meanwhile. Nothing was changed."
	case errors.Is(err, outbox.ErrNotMigrated):
		hint = "Run `outboxgen migrate up` with the schema that the error names."
	case errors.Is(err, outbox.ErrRestored):
		status, hint = http.StatusConflict, "Run `outboxgen listener rebase`."
	case isUnavailable(err):
		status = http.StatusServiceUnavailable
		hint = "The database does not answer. The page works again when the database does."
	case isForbidden(err):
		hint = "The role that the page uses may not do this. Looking needs the role of a reader, and acting that of an " +
			"operator. Forgetting a tenant or an entity needs the role of an eraser: see `outboxgen migrate get --roles`."
	default:
		p.cfg.Logger.WarnContext(r.Context(), "dashboard: request failed", "path", r.URL.Path, "error", err)
	}
	p.show(w, r, status, frame{Name: "problem", Title: http.StatusText(status), Body: problem{what, hint}})
}

// isUnavailable reports whether err says that there is no working connection, or that the time is over.
func isUnavailable(err error) bool {
	var refused *pgconn.PgError
	answered := errors.As(err, &refused)
	shutdown := answered && (strings.HasPrefix(refused.Code, "57P") || strings.HasPrefix(refused.Code, "08"))
	return shutdown || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) ||
		!answered &&
			(errors.As(err, new(*pgconn.ConnectError)) || errors.As(err, new(net.Error)) || errors.Is(err, io.ErrUnexpectedEOF))
}

// isForbidden reports whether err is a lack of privileges.
func isForbidden(err error) bool {
	const insufficientPrivilege = "42501"
	var refused *pgconn.PgError
	return errors.As(err, &refused) && refused.Code == insufficientPrivilege
}

// badRequest is a mistake in what somebody has typed.
type badRequest struct{ text string }

func (b *badRequest) Error() string { return b.text }

func bad(format string, args ...any) error { return &badRequest{fmt.Sprintf(format, args...)} }

func commas(n int64) string { return admin.Count{N: n}.String() }

// ageText returns a duration with its two largest units; "" for zero.
func ageText(d time.Duration) string {
	switch {
	case d <= 0:
		return ""
	case d < time.Second:
		return fmt.Sprintf("%d ms", max(d.Milliseconds(), 1))
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min %d s", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%d d %d h", int(d.Hours())/24, int(d.Hours())%24)
	}
}

// agoText says how long ago something was, or how far ahead it is.
func agoText(d time.Duration) string {
	switch {
	case d > -time.Second && d < time.Second:
		return "now"
	case d < 0:
		return "in " + ageText(-d)
	default:
		return ageText(d) + " ago"
	}
}

func rateText(perSecond float64) string {
	switch {
	case perSecond <= 0:
		return ""
	case perSecond < 0.01:
		return "< 0.01/s"
	default:
		return numberText(perSecond) + "/s"
	}
}

// shortText is the beginning of a long text.
func shortText(text string) string {
	const limit = 160
	if runes := []rune(text); len(runes) > limit {
		return string(runes[:limit]) + "…"
	}
	return text
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}
