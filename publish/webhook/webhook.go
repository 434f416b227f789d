// Package webhook publishes events by HTTP POST, signed after Standard Webhooks (https://www.standardwebhooks.com), as
// CloudEvents or plain JSON.
package webhook

import (
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
	"sync/atomic"
	"time"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/internal/missing"
)

// Config says where events go and how.
type Config struct {
	// Endpoints receive the events, by the Destination that the YAML names. At least one.
	Endpoints map[string]Endpoint
	// Encoder makes requests of events; nil means CloudEvents in binary mode, from a source named as the namespace.
	Encoder publish.Encoder
	// Timeout of a request, from looking up the host to the last header of the reply; 0 means 15 s.
	Timeout time.Duration
	// Concurrency is how many requests may be on their way to one endpoint, in all calls of Publish together; 0 means 16.
	// Those with one key go one after another. Endpoints share nothing: one that hangs takes no request from another.
	Concurrency int
	// MaxRetryAfter is the longest time that an endpoint can ask for in Retry-After; 0 means 1 h.
	MaxRetryAfter time.Duration
	// AllowedNetworks are sent to although they are not public. Without them the publisher connects to no private,
	// loopback, link-local, multicast or otherwise special address, whatever name or redirection led to it.
	AllowedNetworks []netip.Prefix
	// PrivateAddressTimeout is how long the host of an endpoint may lead to such addresses only, before its events are
	// refused permanently. Until then they are unavailable, so that a name that leads astray for a moment kills none. 0
	// means 1 min; negative refuses them immediately.
	PrivateAddressTimeout time.Duration
	// TLS is for endpoints with a certificate authority of their own, or that want a client's certificate; nil means
	// that of the system. It is copied.
	TLS *tls.Config
	// Logger gets what fails at level Debug, and at Warn what somebody has to mend; nil means slog.Default().
	Logger *slog.Logger
}

// shown is what a Config shows of itself.
type shown struct {
	Endpoints             map[string]Endpoint // which hide what is secret
	Timeout               time.Duration
	Concurrency           int
	MaxRetryAfter         time.Duration
	AllowedNetworks       []netip.Prefix
	PrivateAddressTimeout time.Duration
	TLS                   bool
}

func (c Config) shown() shown {
	return shown{
		Endpoints: c.Endpoints, Timeout: c.Timeout, Concurrency: c.Concurrency, MaxRetryAfter: c.MaxRetryAfter,
		AllowedNetworks: c.AllowedNetworks, PrivateAddressTimeout: c.PrivateAddressTimeout, TLS: c.TLS != nil,
	}
}

// Format writes the configuration without secrets, whatever the verb.
func (c Config) Format(w fmt.State, _ rune) { _, _ = fmt.Fprintf(w, "%+v", c.shown()) }

// LogValue logs the configuration without secrets.
func (c Config) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(c)) }

// MarshalJSON writes the configuration without secrets; it cannot be read back.
func (c Config) MarshalJSON() ([]byte, error) { return json.Marshal(c.shown()) }

// Bounds of Config.
const (
	defaultTimeout       = 15 * time.Second
	defaultConcurrency   = 16
	defaultMaxRetryAfter = time.Hour
	defaultPrivate       = time.Minute
)

func (c Config) withDefaults() Config {
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	if c.Concurrency == 0 {
		c.Concurrency = defaultConcurrency
	}
	if c.MaxRetryAfter == 0 {
		c.MaxRetryAfter = defaultMaxRetryAfter
	}
	if c.PrivateAddressTimeout == 0 {
		c.PrivateAddressTimeout = defaultPrivate
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

func (c Config) validate() error {
	switch {
	case len(c.Endpoints) == 0:
		return errors.New("field Endpoints is empty")
	case c.Timeout < 0:
		return fmt.Errorf("field Timeout: %s is negative", c.Timeout)
	case c.Concurrency < 0:
		return fmt.Errorf("field Concurrency: %d is negative", c.Concurrency)
	case c.MaxRetryAfter < 0:
		return fmt.Errorf("field MaxRetryAfter: %s is negative", c.MaxRetryAfter)
	}
	for i, network := range c.AllowedNetworks {
		if !network.IsValid() || network.Addr().Is4In6() {
			return fmt.Errorf("field AllowedNetworks: number %d is no network of IPv4 or IPv6", i+1)
		}
	}
	return nil
}

// Publisher posts events to endpoints. It implements outbox.Publisher.
type Publisher struct {
	config    Config
	endpoints map[string]*endpoint
	transport *http.Transport
	private   missing.Destinations
	closed    atomic.Bool
}

// Format writes the names and hosts of the endpoints, whatever the verb, and nothing that is secret.
func (p *Publisher) Format(w fmt.State, _ rune) {
	hosts := make(map[string]string, len(p.endpoints))
	for name, e := range p.endpoints {
		hosts[name] = e.url.Host
	}
	_, _ = fmt.Fprintf(w, "webhook.Publisher(%v)", hosts)
}

// LogValue logs the publisher as Format writes it.
func (p *Publisher) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(p)) }

// New returns a Publisher. It does not connect to anything. An error names the endpoint and the field, and holds
// neither secrets nor credentials.
func New(config Config) (*Publisher, error) {
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, fmt.Errorf("create webhook publisher: %w", err)
	}
	p := &Publisher{config: config, endpoints: make(map[string]*endpoint, len(config.Endpoints))}
	p.private.Timeout = config.PrivateAddressTimeout
	for _, name := range slices.Sorted(maps.Keys(config.Endpoints)) {
		e, err := newEndpoint(name, config.Endpoints[name])
		if err != nil {
			return nil, fmt.Errorf("create webhook publisher: endpoint %q: %w", name, err)
		}
		e.slots = make(chan struct{}, config.Concurrency)
		p.endpoints[name] = e
	}
	dialer := &net.Dialer{Timeout: config.Timeout, Control: guard(slices.Clone(config.AllowedNetworks)).control}
	p.transport = &http.Transport{
		// No proxy: it would look up names itself, past the guard.
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

// Publish implements outbox.Publisher. What each answer of an endpoint means is listed in docs/publishers.md.
func (p *Publisher) Publish(ctx context.Context, events []outbox.Outgoing) []error {
	return publish.Each(ctx, events, p.config.Concurrency, p.send)
}

// Close closes idle connections. Call it when Publish is not running any more: from then on it hands everything back
// as unavailable.
func (p *Publisher) Close() {
	p.closed.Store(true)
	p.transport.CloseIdleConnections()
}

func (p *Publisher) send(ctx context.Context, o outbox.Outgoing) error {
	if p.closed.Load() {
		return errClosed
	}
	e, known := p.endpoints[o.Destination]
	if !known {
		err := &mendError{fmt.Sprintf("no endpoint is configured for destination %q", o.Destination)}
		p.log(ctx, "", o, err)
		return fmt.Errorf("post event: %w", err) // another process may have it
	}
	if err := e.resting(time.Now()); err != nil {
		return err
	}
	err := p.attempt(ctx, e, o)
	if err != nil {
		p.log(ctx, e.url.Host, o, err)
		return e.errorf(err)
	}
	return nil
}

func (p *Publisher) attempt(ctx context.Context, e *endpoint, o outbox.Outgoing) error {
	m, err := p.config.Encoder.Encode(o)
	if err != nil {
		return err
	}
	select {
	case e.slots <- struct{}{}:
	case <-ctx.Done():
		return notSent(ctx)
	}
	defer func() { <-e.slots }()
	header, err := e.header(o.ID.String(), m, time.Now())
	if err != nil {
		return err
	}
	return p.post(ctx, e, header, m.Body)
}

func (p *Publisher) log(ctx context.Context, host string, o outbox.Outgoing, err error) {
	level := slog.LevelDebug
	if _, mend := errors.AsType[*mendError](err); mend {
		level = slog.LevelWarn
	}
	p.config.Logger.Log(ctx, level, "event not posted", "destination", o.Destination, "host", host, "namespace", o.Namespace,
		"topic", o.Topic, "event_id", o.ID, "attempt", o.Attempt, "error", err)
}
