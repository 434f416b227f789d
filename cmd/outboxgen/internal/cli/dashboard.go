package cli

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/dashboard"
	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/internal/tool/compose"
	"github.com/outboxgen/outboxgen/internal/tool/describe"
	"github.com/outboxgen/outboxgen/internal/tool/yamlmask"
	"github.com/outboxgen/outboxgen/outbox"
)

// passwordVar is the environment variable with the password of the dashboard.
const passwordVar = "OUTBOXGEN_DASHBOARD_PASSWORD"

// shutdownTime is how long requests may take after the dashboard was asked to stop.
const shutdownTime = 5 * time.Second

// dashboardFlags are the flags of dashboard.
type dashboardFlags struct {
	db                                      database
	addr, who, passwordFile, tlsCert        string
	tlsKey, prefix, title, trace, metricURL string
	readOnly, payload                       bool
	goneAfter                               time.Duration
	allowEnqueue, allowForget               bool
}

func (a *app) dashboardCommand() *cobra.Command {
	var f dashboardFlags
	c := &cobra.Command{
		Use:   "dashboard",
		Short: "Serve a web page that shows topics, listeners and events, and acts on them",
		Long: `dashboard serves a web page until Ctrl-C, and prints its address on stdout. The page shows what status, events,
dead, listener, doctor and audit show, and does what pause, resume, dead replay, dead discard, listener skip, listener
rewind and listener detach do. It also does what enqueue and forget do, if --allow-enqueue and --allow-forget say so. It
asks before each act, shows how many events are concerned, and records the act in the audit.

Without a password the page is for this machine only: it refuses other addresses, and requests that a proxy has passed
on. With a password, from ` + passwordVar + ` or --password-file, it asks for it together with a name. The name goes
into the audit. Use --tls-cert and --tls-key, or a proxy with TLS, because the password is sent with each request.

Payloads are masked as outbox.yaml says. Without that file they are only shown with --payload, which masks nothing.`,
		Example: `  outboxgen dashboard
  outboxgen dashboard --read-only --addr 127.0.0.1:9000 --title staging
  ` + passwordVar + `=... outboxgen dashboard --addr :8088 --tls-cert cert.pem --tls-key key.pem`,
		Args: cobra.NoArgs,
	}
	f.db.flags(c)
	c.Flags().StringVar(&f.addr, "addr", "127.0.0.1:8088", "`host:port` to listen on; port 0 means any free one")
	c.Flags().BoolVar(&f.readOnly, "read-only", false, "leave out everything that changes something")
	c.Flags().BoolVar(&f.allowEnqueue, "allow-enqueue", false,
		"let whoever may act enqueue events of the topics in outbox.yaml, with a form")
	c.Flags().BoolVar(&f.allowForget, "allow-forget", false, "let whoever may act forget a tenant or an entity")
	c.Flags().BoolVar(&f.payload, "payload", false, "show payloads as they are, with their sensitive fields")
	c.Flags().StringVar(&f.who, "who", "",
		"`name` for the table audit if there is no password (default: user@host of the operating system)")
	c.Flags().StringVar(&f.passwordFile, "password-file", "",
		"`file` with the password that lets people in (default: "+passwordVar+")")
	c.Flags().StringVar(&f.tlsCert, "tls-cert", "", "`file` with the certificates, in PEM")
	c.Flags().StringVar(&f.tlsKey, "tls-key", "", "`file` with the private key, in PEM")
	c.Flags().StringVar(&f.prefix, "prefix", "", "`path` at which the page is, like /outbox, if a proxy keeps it")
	c.Flags().StringVar(&f.title, "title", "", "`name` of what is shown, like production")
	c.Flags().StringVar(&f.trace, "trace-url", "",
		"`URL` of a trace, with {trace_id} and {span_id} of the event's traceparent")
	c.Flags().StringVar(&f.metricURL, "prometheus", "",
		"base `URL` of a Prometheus, for the hour before the page was started")
	for _, name := range []string{"password-file", "tls-cert", "tls-key"} {
		_ = c.MarkFlagFilename(name) // fails only for an undefined flag
	}
	checkGone := goneAfterFlag(c, &f.goneAfter)
	c.PreRunE = func(*cobra.Command, []string) error {
		if err := checkGone(); err != nil {
			return err
		}
		if _, _, err := net.SplitHostPort(f.addr); err != nil {
			return fmt.Errorf("--addr: %q is not host:port", f.addr)
		}
		if f.allowEnqueue && f.readOnly {
			return errors.New("--allow-enqueue and --read-only exclude each other")
		}
		if f.allowForget && f.readOnly {
			return errors.New("--allow-forget and --read-only exclude each other")
		}
		if (f.tlsCert == "") != (f.tlsKey == "") {
			return errors.New("--tls-cert and --tls-key belong together")
		}
		return nil
	}
	c.RunE = run(func(ctx context.Context, _ []string) error {
		m, schema, err := f.db.modelAndSchema(a)
		if err != nil {
			return err
		}
		return a.serveDashboard(ctx, &f, m, schema)
	})
	return c
}

func (a *app) serveDashboard(ctx context.Context, f *dashboardFlags, m *model.Model, schema string) error {
	password, err := f.password(a)
	if err != nil {
		return usage(err)
	}
	authorize := dashboard.Loopback(cmp.Or(f.who, defaultWho()))
	if password != "" {
		authorize = askPassword(password)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", f.addr)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", f.addr, err)
	}
	defer listener.Close()
	if at, ok := listener.Addr().(*net.TCPAddr); password == "" && (!ok || !at.IP.IsLoopback()) {
		return usage(fmt.Errorf(
			"--addr: %s can be reached from other machines: set %s or --password-file, or listen on 127.0.0.1", f.addr,
			passwordVar))
	}
	pool, err := f.db.pool(ctx, a)
	if err != nil {
		return err
	}
	defer pool.Close()
	ops, err := admin.New(pool, schema)
	if err != nil {
		return usage(err)
	}
	// a page without tables or privileges would only say so to whoever looks at it
	if _, err := ops.Pauses(ctx); err != nil {
		return explained(ctx, pool, ops, schema, err)
	}
	topics, allowed, err := f.enqueue(m)
	if err != nil {
		return usage(err)
	}
	page, err := dashboard.New(dashboard.Config{
		Pool: pool, Schema: schema, Authorize: authorize, ReadOnly: f.readOnly, Prefix: f.prefix, Title: f.title,
		Mask: f.mask(m), GoneAfter: f.goneAfter, Enqueue: topics,
		AuthorizeEnqueue: allowed, AuthorizeForget: f.forget(), TraceURL: f.trace, Prometheus: f.metricURL,
		Logger: slog.New(slog.NewTextHandler(a.Stderr, nil)),
	})
	if err != nil {
		return usage(err)
	}
	defer page.Close()

	server := &http.Server{
		Handler: page, ReadHeaderTimeout: 10 * time.Second,
		ErrorLog: slog.NewLogLogger(slog.NewTextHandler(a.Stderr, nil), slog.LevelWarn),
	}
	scheme := "http"
	if f.tlsCert != "" {
		scheme = "https"
	} else if password != "" && !listener.Addr().(*net.TCPAddr).IP.IsLoopback() {
		a.notef("the password is sent in clear text: use --tls-cert and --tls-key, or a proxy with TLS")
	}
	url := scheme + "://" + reachable(listener.Addr()) + page.Path()
	if a.json {
		err = a.printJSON(struct {
			URL string `json:"url"`
		}{url})
	} else {
		err = a.printf("%s\n", url)
	}
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() {
		if f.tlsCert != "" {
			served <- server.ServeTLS(listener, f.tlsCert, f.tlsKey)
		} else {
			served <- server.Serve(listener)
		}
	}()
	select {
	case err := <-served:
		return fmt.Errorf("serve the dashboard: %w", err)
	case <-ctx.Done():
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
	defer cancel()
	err = server.Shutdown(stopping)
	<-served
	if errors.Is(err, context.DeadlineExceeded) {
		_ = server.Close() // requests that are still open are cut off
	}
	return nil
}

// password returns the password that lets people in; "" if there is none.
func (f *dashboardFlags) password(a *app) (string, error) {
	if f.passwordFile == "" {
		return a.Getenv(passwordVar), nil
	}
	text, err := os.ReadFile(f.passwordFile)
	if err != nil {
		return "", fmt.Errorf("--password-file: %w", err)
	}
	password := string(bytes.TrimRight(text, "\r\n"))
	if password == "" {
		return "", fmt.Errorf("--password-file: %s is empty", f.passwordFile)
	}
	return password, nil
}

// askPassword admits everybody who knows the password. They act as the name that they give.
func askPassword(password string) func(*http.Request) (string, error) {
	want := sha256.Sum256([]byte(password))
	return func(r *http.Request) (string, error) {
		name, given, _ := r.BasicAuth()
		got := sha256.Sum256([]byte(given))
		if subtle.ConstantTimeCompare(got[:], want[:]) != 1 || name == "" {
			return "", &dashboard.Challenge{Realm: "outboxgen: your name and the password of the dashboard"}
		}
		return name, nil
	}
}

// enqueue returns the topics of the YAML with their forms, and who may use them: everybody, if the flag says so.
func (f *dashboardFlags) enqueue(m *model.Model) (
	topics []dashboard.EnqueueTopic, allowed func(*http.Request, string) error, err error,
) {
	switch {
	case !f.allowEnqueue:
		return nil, nil, nil
	case m == nil:
		return nil, nil, errors.New("--allow-enqueue needs the YAML, which says what may be enqueued: name it with --config")
	}
	for _, n := range m.Namespaces {
		for _, t := range n.Topics {
			schema, err := describe.JSONSchema(describe.KindOf(t), "")
			if err != nil {
				return nil, nil, err
			}
			topics = append(topics, dashboard.EnqueueTopic{
				Name: t.FullName(), Schema: schema, Sealed: t.Sealed || model.HasSealed(t.Fields),
				Message: func(data json.RawMessage) (msg outbox.Message, err error) {
					e, found := compose.Of(t, data)
					if len(found) > 0 {
						return msg, errors.New(compose.Text(found))
					}
					msg.Namespace, msg.Topic = n.Name, t.Name
					fill(&msg, t, e)
					return msg, nil
				},
			})
		}
	}
	return topics, func(*http.Request, string) error { return nil }, nil
}

// forget returns who may forget a tenant or an entity: everybody, if the flag says so.
func (f *dashboardFlags) forget() func(*http.Request) error {
	if !f.allowForget {
		return nil
	}
	return func(*http.Request) error { return nil }
}

// mask returns what masks payloads; nil if nothing of them may be shown.
func (f *dashboardFlags) mask(m *model.Model) func(string, int, json.RawMessage) (json.RawMessage, bool) {
	if f.payload {
		return dashboard.Unmasked
	}
	if m == nil {
		return nil
	}
	masker := yamlmask.New(m)
	return func(topic string, _ int, payload json.RawMessage) (json.RawMessage, bool) {
		return masker.Payload(topic, payload)
	}
}

// reachable is an address under which the page can be opened.
func reachable(addr net.Addr) string {
	at, ok := addr.(*net.TCPAddr)
	if !ok || !at.IP.IsUnspecified() {
		return addr.String()
	}
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	return net.JoinHostPort(host, fmt.Sprint(at.Port))
}
