// Package webhook publishes events by HTTP POST. Each event is one request, signed as Standard Webhooks specifies
// (https://www.standardwebhooks.com). The destination of an event is the name of an Endpoint.
//
//	publisher, err := webhook.New(webhook.Config{Endpoints: map[string]webhook.Endpoint{
//		"crm": {URL: "https://crm.example.com/events", Secrets: []string{os.Getenv("CRM_SECRET")}},
//	}})
//	...
//	defer publisher.Close() // after Run of the dispatcher or listener has returned
//	d, err := events.NewUsersDispatcher(pool, queue.Config{
//		Publishers: map[string]publish.Publisher{"webhook": publisher},
//	})
//
// # Endpoints that are looked up
//
// With to_field in the YAML each event says where it goes, such as to a customer. Config.Lookup returns the address,
// the secrets and the limits of that destination. The result is used for Config.LookupTTL.
//
// # Requests
//
// A request is a CloudEvent by the HTTP protocol binding (https://github.com/cloudevents/spec), in binary mode unless
// Config.Encoder says otherwise. The attributes are headers that begin with Ce- and have percent-encoded values, and
// the event's own headers are sent too, except credentials. Webhook-Id is the id of the event, so that receivers can
// recognize duplicates with any encoder.
//
// # Order and duplicates
//
// Events with one key are sent one after another, each after a 2xx reply for the one before. Events with different keys
// are sent concurrently, up to Config.Concurrency per endpoint. An event whose reply got lost is sent again, which the
// receiver's inbox notices.
//
// # Failures
//
// The outcome of an event that an endpoint does not take (P permanent, U unavailable, A a failed attempt):
//
//	P  400, 413, 414, 415, 422, 431                about this event
//	P  410                                         the endpoint wants no more events; logged at Warn
//	U  429, 502, 503, 504                          with Retry-After, nothing is sent there until then
//	U  no connection: DNS, refused, TLS            within Config.Timeout
//	U  an address that is not public               however long, or P after Config.PrivateAddressTimeout; logged at Warn
//	A  401, 403, 404, 405, redirects               the configuration must be fixed; logged at Warn
//	A  an endpoint that is not configured          another process may have it; logged at Warn
//	P  Lookup returned ErrNoEndpoint               logged at Warn
//	U  any other error of Lookup                   the destination rests; logged at Warn if the Endpoint is not valid
//	A  any other status, an invalid or no reply    within Config.Timeout; the endpoint may have handled the event
//	A  the context of Publish has ended            likewise; an event that was not sent is outbox.ErrNotSent
//	P  a header that HTTP cannot send
//
// An attempt with Retry-After is repeated after that time, at most Config.MaxRetryAfter. The publisher does not follow
// redirects, does not use proxies of the environment, and connects only to public addresses and Config.AllowedNetworks.
// Errors and logs name the endpoint and its host. They never have a secret, a header, a path or a body.
package webhook

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outboxgen/outboxgen/internal/broker/lograte"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/internal/missing"
)

// Config says where a Publisher sends events and how. Endpoints, Lookup or both are required.
type Config struct {
	// Endpoints receive the events. The key is the destination in the YAML. There must be at least one, unless Lookup is
	// set.
	Endpoints map[string]Endpoint
	// Lookup returns the endpoints of the destinations that are not in Endpoints, for topics with to_field in the YAML.
	// nil means that there are no others. A destination with the name of one of Endpoints is never looked up.
	Lookup Lookup
	// LookupTTL is how long the result of Lookup is used: a changed address or secret takes effect within this time. 0
	// means 1 min.
	LookupTTL time.Duration
	// FailedLookupTTL is how long an error of Lookup is remembered. 0 means 2 s. It is at most LookupTTL.
	FailedLookupTTL time.Duration
	// Encoder makes requests of events; nil means CloudEvents in binary mode with a source made of the namespace.
	Encoder publish.Encoder
	// Timeout is how long a request may take, from the lookup of the host to the last header of the reply. 0 means 15 s.
	Timeout time.Duration
	// Concurrency is how many requests to one endpoint may run concurrently, in all calls of Publish together. 0 means 16.
	// Events with one key are sent one after another. Endpoints do not share the limit, so that an endpoint that hangs
	// takes no requests from another.
	Concurrency int
	// MaxRetryAfter is the longest time that an endpoint can ask for with Retry-After. 0 means 1 h.
	MaxRetryAfter time.Duration
	// AllowedNetworks are networks that are not public, to which the publisher may connect. It does not connect to any
	// other private, loopback, link-local, multicast or otherwise special address, under any name.
	AllowedNetworks []netip.Prefix
	// PrivateAddressTimeout is how long the host of an endpoint may resolve to such addresses only, before its events are
	// refused permanently, as dead letters. 0 means however long: they are unavailable and wait, and nothing is sent, so
	// that a name that resolves wrongly makes no dead letters. A negative value refuses them immediately.
	PrivateAddressTimeout time.Duration
	// TLS is for endpoints with a private certificate authority, or that require a client certificate. nil means the
	// system's certificate authorities. New copies it.
	TLS *tls.Config
	// Logger gets failures, at Debug, or at Warn if a configuration must be fixed: once per minute for each destination
	// and cause, and in between at Debug. nil means slog.Default().
	Logger *slog.Logger
}

// shown is the part of a Config that may be printed.
type shown struct {
	Endpoints             map[string]Endpoint // they hide their secrets
	Lookup                bool
	LookupTTL             time.Duration
	FailedLookupTTL       time.Duration
	Timeout               time.Duration
	Concurrency           int
	MaxRetryAfter         time.Duration
	AllowedNetworks       []netip.Prefix
	PrivateAddressTimeout time.Duration
	TLS                   bool
}

func (c Config) shown() shown {
	return shown{
		Endpoints: c.Endpoints, Lookup: c.Lookup != nil, LookupTTL: c.LookupTTL, FailedLookupTTL: c.FailedLookupTTL,
		Timeout: c.Timeout, Concurrency: c.Concurrency, MaxRetryAfter: c.MaxRetryAfter, AllowedNetworks: c.AllowedNetworks,
		PrivateAddressTimeout: c.PrivateAddressTimeout, TLS: c.TLS != nil,
	}
}

// Format writes the configuration without secrets, for any verb.
func (c Config) Format(w fmt.State, _ rune) { _, _ = fmt.Fprintf(w, "%+v", c.shown()) }

// LogValue logs the configuration without secrets.
func (c Config) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(c)) }

// MarshalJSON writes the configuration without secrets; it cannot be read back.
func (c Config) MarshalJSON() ([]byte, error) { return json.Marshal(c.shown()) }

// Defaults of Config.
const (
	defaultTimeout       = 15 * time.Second
	defaultConcurrency   = 16
	defaultMaxRetryAfter = time.Hour
	defaultPrivate       = time.Minute
	defaultLookup        = time.Minute
	defaultFailedLookup  = 2 * time.Second
)

func (c Config) withDefaults() Config {
	c.Timeout = cmp.Or(c.Timeout, defaultTimeout)
	c.Concurrency = cmp.Or(c.Concurrency, defaultConcurrency)
	c.MaxRetryAfter = cmp.Or(c.MaxRetryAfter, defaultMaxRetryAfter)
	c.LookupTTL = cmp.Or(c.LookupTTL, defaultLookup)
	c.FailedLookupTTL = cmp.Or(c.FailedLookupTTL, defaultFailedLookup)
	c.Logger = cmp.Or(c.Logger, slog.Default())
	return c
}

func (c Config) validate() error {
	switch {
	case len(c.Endpoints) == 0 && c.Lookup == nil:
		return errors.New("field Endpoints is empty, and field Lookup is nil")
	case c.LookupTTL < 0:
		return fmt.Errorf("field LookupTTL: %s is negative", c.LookupTTL)
	case c.FailedLookupTTL < 0:
		return fmt.Errorf("field FailedLookupTTL: %s is negative", c.FailedLookupTTL)
	case c.Timeout < 0:
		return fmt.Errorf("field Timeout: %s is negative", c.Timeout)
	case c.Concurrency < 0:
		return fmt.Errorf("field Concurrency: %d is negative", c.Concurrency)
	case c.MaxRetryAfter < 0:
		return fmt.Errorf("field MaxRetryAfter: %s is negative", c.MaxRetryAfter)
	}
	for i, network := range c.AllowedNetworks {
		if !network.IsValid() || network.Addr().Is4In6() {
			return fmt.Errorf("field AllowedNetworks: number %d is not an IPv4 or IPv6 network", i+1)
		}
	}
	return nil
}

// Publisher posts events to endpoints. It implements publish.Publisher and is safe for concurrent use.
type Publisher struct {
	config    Config
	limit     *lograte.Limit
	endpoints map[string]*endpoint
	directory *directory // nil without a Lookup
	endLookup context.CancelFunc
	transport *http.Transport
	encoders  sync.Pool // of *encoder
	private   missing.Destinations
	closed    atomic.Bool
}

// Format writes the names and hosts of the endpoints and no secrets, for any verb.
func (p *Publisher) Format(w fmt.State, _ rune) {
	hosts := make(map[string]string, len(p.endpoints))
	for name, e := range p.endpoints {
		hosts[name] = e.url.Host
	}
	_, _ = fmt.Fprintf(w, "webhook.Publisher(%v)", hosts)
}

// LogValue logs the publisher as Format writes it.
func (p *Publisher) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(p)) }

// New checks config and returns a Publisher. It does not connect. An error names the endpoint and the field, without
// secrets or credentials. The caller must Close the Publisher after Run of the dispatcher or listener has returned.
func New(config Config) (*Publisher, error) {
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, fmt.Errorf("create webhook publisher: %w", err)
	}
	p := &Publisher{
		config: config, limit: lograte.New(config.Logger), endpoints: make(map[string]*endpoint, len(config.Endpoints)),
	}
	p.encoders.New = func() any { return new(encoder) }
	p.private.Timeout = config.PrivateAddressTimeout
	for _, name := range slices.Sorted(maps.Keys(config.Endpoints)) {
		e, err := newEndpoint(name, config.Endpoints[name])
		if err != nil {
			return nil, fmt.Errorf("create webhook publisher: endpoint %q: %w", name, err)
		}
		e.inherit(nil, &p.config)
		p.endpoints[name] = e
	}
	var ctx context.Context
	ctx, p.endLookup = context.WithCancel(context.Background())
	if config.Lookup != nil {
		p.directory = &directory{lookup: config.Lookup, config: &p.config, ctx: ctx, entries: make(map[string]*entry)}
	}
	dialer := &net.Dialer{Timeout: config.Timeout, Control: guard(slices.Clone(config.AllowedNetworks)).control}
	p.transport = &http.Transport{
		// No proxy: it would look up names itself and so bypass the guard.
		DialContext:            dialer.DialContext,
		TLSClientConfig:        config.TLS.Clone(),
		ForceAttemptHTTP2:      true,
		DisableCompression:     true,
		TLSHandshakeTimeout:    config.Timeout,
		MaxIdleConnsPerHost:    config.Concurrency,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: maxReplyBytes,
	}
	return p, nil
}

var errClosed = outbox.BrokerUnavailable(errors.New("post event: the publisher is closed"))

// Publish implements publish.Publisher. The package comment lists what each answer of an endpoint means for an event.
func (p *Publisher) Publish(ctx context.Context, events []publish.Outgoing) []error {
	return publish.Each(ctx, events, p.config.Concurrency, p.send)
}

// endpoint returns the endpoint of the destination of o.
func (p *Publisher) endpoint(ctx context.Context, o publish.Outgoing) (*endpoint, error) {
	if e, known := p.endpoints[o.Destination]; known {
		return e, nil
	}
	if p.directory != nil {
		return p.directory.find(ctx, o.Destination)
	}
	// another process may have it
	return nil, &configError{fmt.Sprintf("no endpoint is configured for destination %q", o.Destination)}
}

// Close ends lookups and closes idle connections. Call it after all calls of Publish have returned. A later Publish
// hands every event back as unavailable.
func (p *Publisher) Close() {
	p.closed.Store(true)
	p.endLookup()
	p.transport.CloseIdleConnections()
}

func (p *Publisher) send(ctx context.Context, o publish.Outgoing) error {
	if p.closed.Load() {
		return errClosed
	}
	e, err := p.endpoint(ctx, o)
	if err != nil {
		p.log(ctx, "", o, err)
		return fmt.Errorf("post event: %w", err)
	}
	if err := e.resting(time.Now()); err != nil {
		return err
	}
	if err = p.attempt(ctx, e, o); err != nil {
		p.log(ctx, e.url.Host, o, err)
		return e.errorf(err)
	}
	return nil
}

func (p *Publisher) attempt(ctx context.Context, e *endpoint, o publish.Outgoing) error {
	var c content
	var shared *encoder // nil with an encoder of the user
	if p.config.Encoder != nil {
		m, err := p.config.Encoder.Encode(o)
		if err != nil {
			return err
		}
		c = contentOf(&o, m)
	} else {
		shared = p.encoders.Get().(*encoder)
		var err error
		if c, err = shared.content(&o); err != nil {
			p.encoders.Put(shared)
			return err
		}
	}
	select {
	case e.slots <- struct{}{}:
	case <-ctx.Done():
		return notSent(ctx)
	}
	defer func() { <-e.slots }()
	header, err := e.header(c, time.Now())
	if shared != nil {
		p.encoders.Put(shared)
	}
	if err != nil {
		return err
	}
	return p.post(ctx, e, header, c.body)
}

func (p *Publisher) log(ctx context.Context, host string, o publish.Outgoing, err error) {
	level := slog.LevelDebug
	var wrong *configError
	if errors.As(err, &wrong) {
		level = slog.LevelWarn
	}
	about := o.Destination
	if wrong != nil {
		about += " " + wrong.what
	}
	log := p.limit.About(about)
	log.Log(ctx, level, "event not posted", "destination", o.Destination, "host", host, "namespace", o.Namespace,
		"topic", o.Topic, "event_id", o.ID, "attempt", o.Attempt, "error", err)
}
