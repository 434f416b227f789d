package webhook

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/outboxgen/outboxgen/internal/broker/webhookkey"
	"github.com/outboxgen/outboxgen/internal/broker/wireheader"
	"github.com/outboxgen/outboxgen/outbox"
)

// Endpoint is the receiver of the events of one destination. Printed or logged in any way, it shows no secret, no
// header and no credential of its URL.
type Endpoint struct {
	// URL is where events are posted, http or https. A user and password in it are sent as basic authentication.
	URL string
	// Secrets sign each request. Each request has a signature by every secret, so that during a rotation a receiver may
	// use the old or the new one. A secret has 24 to 64 bytes, in base64, with or without the prefix whsec_, such as what
	// `openssl rand -base64 32` prints. At least one is required unless Unsigned is set.
	Secrets []string
	// Unsigned posts events without a signature. Secrets must be empty then.
	Unsigned bool
	// Headers are sent with each request, for example Authorization. They take precedence over headers of events. Headers
	// that HTTP, Standard Webhooks or CloudEvents prescribe are an error.
	Headers map[string]string
	// Concurrency is how many requests to this endpoint may run concurrently. 0 means Config.Concurrency, which is also
	// the maximum.
	Concurrency int
	// Timeout is how long a request to this endpoint may take. 0 means Config.Timeout, which is also the maximum.
	Timeout time.Duration
}

// masked is the part of an Endpoint that may be printed.
type masked struct {
	URL     string
	Secrets int
	Headers int
}

func (e Endpoint) masked() masked {
	shown := "[masked]"
	if u, err := url.Parse(e.URL); err == nil && u.Host != "" && !splitPassword(u) {
		shown = u.Scheme + "://" + u.Host + "/[masked]" // a path or a query may be as secret as a password
	}
	return masked{URL: shown, Secrets: len(e.Secrets), Headers: len(e.Headers)}
}

// splitPassword reports whether a URL looks like one with a slash in its password: the part before it was parsed as
// host and port.
func splitPassword(u *url.URL) bool {
	return u.User == nil && u.Port() != "" && strings.Contains(u.Path, "@")
}

// Format writes the endpoint without its secrets, for any verb.
func (e Endpoint) Format(w fmt.State, _ rune) { _, _ = fmt.Fprintf(w, "%+v", e.masked()) }

// LogValue logs the endpoint without its secrets.
func (e Endpoint) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(e)) }

// MarshalJSON writes the endpoint without its secrets; it cannot be read back.
func (e Endpoint) MarshalJSON() ([]byte, error) { return json.Marshal(e.masked()) }

// endpoint is an Endpoint that has been checked.
type endpoint struct {
	name    string
	url     *url.URL      // without user
	request *http.Request // to url, without what an event gives it
	headers map[string]string
	keys    [][]byte

	concurrency int // of the Endpoint; 0 if it has none
	timeout     time.Duration
	limits
}

// limits are what an endpoint that is looked up again has in common with the earlier one.
type limits struct {
	slots      chan struct{}              // has one element per running request
	restsUntil *atomic.Pointer[time.Time] // the endpoint wants no requests until then
}

// inherit completes e with the limits of config, or of the same endpoint in an earlier lookup. before may be nil.
func (e *endpoint) inherit(before *endpoint, config *Config) {
	concurrency := config.Concurrency
	if e.concurrency > 0 {
		concurrency = min(concurrency, e.concurrency)
	}
	if e.timeout == 0 || e.timeout > config.Timeout {
		e.timeout = config.Timeout
	}
	e.limits = limits{slots: make(chan struct{}, concurrency), restsUntil: new(atomic.Pointer[time.Time])}
	if before == nil {
		return
	}
	if cap(before.slots) == concurrency {
		e.slots = before.slots
	}
	if before.url.String() == e.url.String() {
		e.restsUntil = before.restsUntil
	}
}

func newEndpoint(name string, c Endpoint) (*endpoint, error) {
	u, err := url.Parse(c.URL)
	switch {
	case err != nil: // its text has the URL
		return nil, errors.New("field URL is not a URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("field URL is neither http nor https")
	case u.Hostname() == "":
		return nil, errors.New("field URL has no host")
	case splitPassword(u):
		return nil, errors.New(
			"field URL has an @ in its path behind a port: write %2F for / in a password, or %40 for @ in a path")
	case len(c.Secrets) == 0 && !c.Unsigned:
		return nil, errors.New("field Secrets is empty: add a secret, or set Unsigned to post without a signature")
	case len(c.Secrets) > 0 && c.Unsigned:
		return nil, errors.New("field Secrets is not empty, but Unsigned is set: use one of them")
	case c.Concurrency < 0:
		return nil, fmt.Errorf("field Concurrency: %d is negative", c.Concurrency)
	case c.Timeout < 0:
		return nil, fmt.Errorf("field Timeout: %s is negative", c.Timeout)
	}
	e := &endpoint{name: name, url: u, headers: make(map[string]string), concurrency: c.Concurrency, timeout: c.Timeout}
	if u.User != nil {
		password, _ := u.User.Password()
		e.headers["Authorization"] = "Basic " + base64.StdEncoding.EncodeToString([]byte(u.User.Username()+":"+password))
		u.User = nil
	}
	if e.request, err = http.NewRequest(http.MethodPost, u.String(), nil); err != nil {
		return nil, errors.New("field URL makes no valid request") // the text of err has the URL
	}
	for header, value := range c.Headers {
		name := textproto.CanonicalMIMEHeaderKey(header)
		switch _, twice := e.headers[name]; {
		case !wireheader.IsName(header) || !wireheader.IsValue(value):
			return nil, fmt.Errorf("field Headers: HTTP cannot send %q or its value", header)
		case prescribed(name):
			return nil, fmt.Errorf("field Headers: %q is set by the publisher: remove it", header)
		case twice:
			return nil, fmt.Errorf("field Headers: %q is set twice, or also by the URL", header)
		}
		e.headers[name] = value
	}
	for i, secret := range c.Secrets {
		key, err := webhookkey.Decode(secret)
		if err != nil {
			return nil, fmt.Errorf("field Secrets: number %d %w", i+1, err)
		}
		e.keys = append(e.keys, key)
	}
	return e, nil
}

// errorf adds the endpoint's name and host to an error. The rest of a URL may be as secret as a password.
func (e *endpoint) errorf(err error) error {
	return fmt.Errorf("post event to %q at %s: %w", e.name, e.url.Host, err)
}

// rest notes that the endpoint wants no requests for d.
func (e *endpoint) rest(d time.Duration) {
	until := time.Now().Add(d)
	e.restsUntil.Store(&until)
}

// resting returns an error while the endpoint wants no requests. No attempt is counted for events that were not sent.
func (e *endpoint) resting(now time.Time) error {
	if until := e.restsUntil.Load(); until != nil && now.Before(*until) {
		rest := until.Sub(now)
		return outbox.Unavailable(outbox.RetryAfter(rest,
			e.errorf(fmt.Errorf("not sent: it wants no requests for another %s", rest.Round(time.Second)))))
	}
	return nil
}
