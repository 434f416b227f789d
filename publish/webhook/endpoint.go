package webhook

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/textproto"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/outboxgen/outboxgen/outbox"
)

// Endpoint is where the events of one Destination go. However it is printed or logged, it shows no secret, header
// or credential of its URL.
type Endpoint struct {
	// URL to POST to, http or https. A user and password in it are sent as basic authentication.
	URL string
	// Secrets sign each request, every one of them, so that a receiver may know an old or a new one while they are
	// rotated. A secret is 24 to 64 bytes in base64, with or without the prefix whsec_. At least one, but for Unsigned.
	Secrets []string
	// Unsigned has events posted without a signature; Secrets is empty then.
	Unsigned bool
	// Headers are sent with each request, Authorization for example. They win over headers of events. Those that HTTP,
	// Standard Webhooks and CloudEvents prescribe are not for Headers to set.
	Headers map[string]string
}

// Lengths of a decoded secret, as Standard Webhooks wants them.
const (
	minSecretBytes = 24
	maxSecretBytes = 64
)

// masked is what an Endpoint shows of itself.
type masked struct {
	URL     string
	Secrets int
	Headers int
}

func (e Endpoint) masked() masked {
	shown := "[masked]"
	if u, err := url.Parse(e.URL); err == nil && u.Host != "" && !splitPassword(u) {
		shown = u.Scheme + "://" + u.Host + "/[masked]" // a path or a query may be as good as a password
	}
	return masked{URL: shown, Secrets: len(e.Secrets), Headers: len(e.Headers)}
}

// splitPassword reports whether a URL looks like one whose password has a slash: what is before it reads as host and port.
func splitPassword(u *url.URL) bool {
	return u.User == nil && u.Port() != "" && strings.Contains(u.Path, "@")
}

// Format writes the endpoint without its secrets, whatever the verb.
func (e Endpoint) Format(w fmt.State, _ rune) { _, _ = fmt.Fprintf(w, "%+v", e.masked()) }

// LogValue logs the endpoint without its secrets.
func (e Endpoint) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(e)) }

// MarshalJSON writes the endpoint without its secrets; it cannot be read back.
func (e Endpoint) MarshalJSON() ([]byte, error) { return json.Marshal(e.masked()) }

// endpoint is an Endpoint that has been checked.
type endpoint struct {
	name    string
	url     *url.URL // without user
	headers map[string]string
	keys    [][]byte
	slots   chan struct{} // one for each request on its way

	restsUntil atomic.Pointer[time.Time] // it has asked for no requests until then
}

func newEndpoint(name string, c Endpoint) (*endpoint, error) {
	u, err := url.Parse(c.URL)
	switch {
	case err != nil: // which has the URL in its text
		return nil, errors.New("field URL is not a URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("field URL is neither http nor https")
	case u.Hostname() == "":
		return nil, errors.New("field URL has no host")
	case splitPassword(u):
		return nil, errors.New("field URL has an @ in its path, behind a port: write %2F for a / in a password, %40 for an @ in a path")
	case len(c.Secrets) == 0 && !c.Unsigned:
		return nil, errors.New("field Secrets is empty (Unsigned posts without a signature)")
	case len(c.Secrets) > 0 && c.Unsigned:
		return nil, errors.New("field Secrets is not empty, but Unsigned is set")
	}
	e := &endpoint{name: name, url: u, headers: make(map[string]string)}
	if u.User != nil {
		password, _ := u.User.Password()
		e.headers["Authorization"] = "Basic " + base64.StdEncoding.EncodeToString([]byte(u.User.Username()+":"+password))
		u.User = nil
	}
	for header, value := range c.Headers {
		name := textproto.CanonicalMIMEHeaderKey(header)
		switch _, twice := e.headers[name]; {
		case !isToken(header) || !isFieldValue(value):
			return nil, fmt.Errorf("field Headers: %q or its value is none that HTTP can send", header)
		case prescribed(name):
			return nil, fmt.Errorf("field Headers: %q is not for a configuration to set", header)
		case twice:
			return nil, fmt.Errorf("field Headers: %q is there twice, or in the URL as well", header)
		}
		e.headers[name] = value
	}
	for i, secret := range c.Secrets {
		key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
		if err != nil {
			return nil, fmt.Errorf("field Secrets: number %d is not base64", i+1)
		}
		if len(key) < minSecretBytes || len(key) > maxSecretBytes {
			return nil, fmt.Errorf("field Secrets: number %d has %d bytes, not %d to %d", i+1, len(key), minSecretBytes, maxSecretBytes)
		}
		e.keys = append(e.keys, key)
	}
	return e, nil
}

// errorf says of an error where it happened: at a host, because the rest of a URL may be as good as a password.
func (e *endpoint) errorf(err error) error {
	return fmt.Errorf("post event to %q at %s: %w", e.name, e.url.Host, err)
}

// rest notes that the endpoint wants no requests for d.
func (e *endpoint) rest(d time.Duration) {
	until := time.Now().Add(d)
	e.restsUntil.Store(&until)
}

// resting says that the endpoint is not to be troubled now. Events that were not even sent are charged nothing.
func (e *endpoint) resting(now time.Time) error {
	if until := e.restsUntil.Load(); until != nil && now.Before(*until) {
		rest := until.Sub(now)
		return outbox.Unavailable(outbox.RetryAfter(rest,
			e.errorf(fmt.Errorf("not sent: it asked to be left alone for %s more", rest.Round(time.Second)))))
	}
	return nil
}
