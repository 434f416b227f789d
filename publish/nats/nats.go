// Package nats publishes events to NATS JetStream: the subject is the event's destination, and the stream that takes the
// subject confirms each message once it has it (in a replicated stream, once a majority has).
//
//	publisher, err := nats.New(nats.Config{URL: "nats://nats-1:4222,nats://nats-2:4222"})
//	...
//	defer publisher.Close() // when Run of the dispatcher or listener has returned
//	d, err := events.NewUsersDispatcher(pool, outbox.DispatcherConfig{
//		Publishers: map[string]outbox.Publisher{"nats": publisher},
//	})
//
// # Messages
//
// A message is a CloudEvent by the NATS protocol binding (https://github.com/cloudevents/spec), in binary mode unless
// Config.Encoder says otherwise: attributes are headers that begin with ce-, their values percent-encoded, content-type
// is a header of its own, and the event's headers travel beside them. Headers of an event that begin with Nats- are left
// out, since the server takes them for orders. Streams must exist; the publisher makes none.
//
// # Order and duplicates
//
// The events with one key are sent one after another, each when the stream has confirmed the one before; those of many
// keys are on their way at once. JetStream has nothing by which a stream would refuse what follows a message that got
// lost, so a key costs a round trip an event, and a topic with one key only is as fast as that.
//
// Nats-Msg-Id is the id of the event: what is sent again within the stream's duplicate window (Duplicates, 2 min unless
// configured) is stored once. Later than that it may be there twice, which is the consumer's inbox to notice. It is never
// there for the first time after one that follows it.
//
// # Failures
//
// What becomes of an event that JetStream does not take (P permanent, U unavailable, A a failed attempt):
//
//	P  larger than max_payload of the server or MaxMsgSize of the stream, headers above 64 KiB
//	P  a subject or the name of a header that NATS cannot carry
//	P  no stream for the subject for longer than Config.NoStreamTimeout; until then U
//	U  no server, a lost or silent connection, TLS, credentials
//	U  no confirmation within Config.Timeout, as without the right to publish; it may have been stored
//	U  a stream that is full (DiscardNew), sealed or without a leader, limits of the account or the server
//	A  the context of Publish has ended; it may have been stored (what was not sent is outbox.ErrNotSent)
//	A  any other error of the stream, and a confirmation that cannot be read
//
// Whether a subject has no stream, rather than one that does not answer, is asked of the JetStream API; without the right
// to $JS.API.STREAM.NAMES its events remain unavailable.
package nats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/internal/missing"
)

// ErrClosed is what Publish returns, marked as unavailable, once Close has been called.
var ErrClosed = errors.New("the publisher is closed")

// Config says where a Publisher sends events and how. Only URL is required.
type Config struct {
	// URL is the server, as nats://host:port, or several of a cluster with commas between them.
	URL string
	// Encoder makes messages of events; nil means CloudEvents in binary mode.
	Encoder publish.Encoder
	// Timeout is how long a stream may take to confirm a message before it counts as unavailable. 0 means 5 s.
	Timeout time.Duration
	// NoStreamTimeout is how long there may be no stream for a subject before its events are refused for good. Until then
	// they are unavailable, so that a stream that is created a little late kills none. 0 means 1 min; negative refuses
	// them at once.
	NoStreamTimeout time.Duration
	// Concurrency is how many events of one call of Publish may be on their way at once, each of another key. 0 means 256.
	Concurrency int
	// Domain is the JetStream domain to ask for streams; "" means that of the server.
	Domain string
	// Options go to the connection: nats.UserCredentials, nats.Secure, nats.Name and so on. It always reconnects, and
	// buffers nothing while it is not connected, whatever they say.
	Options []nats.Option
	// Logger gets the connection's trouble; nil means slog.Default(). No payload is ever logged.
	Logger *slog.Logger
}

func (cfg Config) withDefaults() Config {
	if cfg.Timeout == 0 {
		cfg.Timeout = 5 * time.Second
	}
	if cfg.NoStreamTimeout == 0 {
		cfg.NoStreamTimeout = time.Minute
	}
	if cfg.Concurrency == 0 {
		cfg.Concurrency = 256
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	cfg.Options = slices.Clone(cfg.Options)
	return cfg
}

func (cfg Config) validate() error {
	switch {
	case cfg.URL == "":
		return errors.New("field URL is empty")
	case cfg.Timeout < 0:
		return fmt.Errorf("field Timeout %s is negative", cfg.Timeout)
	case cfg.Concurrency < 1 || cfg.Concurrency > 10_000:
		return fmt.Errorf("field Concurrency %d is not between 1 and 10000", cfg.Concurrency)
	}
	return nil
}

// Publisher publishes events to JetStream. It implements outbox.Publisher and is safe for concurrent use.
type Publisher struct {
	cfg     Config
	conn    *connection
	js      jetstream.JetStream
	streams missing.Destinations
	closing context.Context
	close   context.CancelFunc
	calls   sync.RWMutex // held by those under way
}

var _ outbox.Publisher = (*Publisher)(nil)

// New returns a Publisher for the servers of cfg. It tries each of them once, and returns one that tries on while none
// answers, whose events are unavailable. An error is one of the configuration. Close it.
func New(cfg Config) (*Publisher, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("configure NATS publisher: %w", err)
	}
	p := &Publisher{cfg: cfg}
	p.streams.Timeout = cfg.NoStreamTimeout
	p.closing, p.close = context.WithCancel(context.Background())
	var err error
	if p.conn, err = connect(cfg); err != nil {
		return nil, fmt.Errorf("configure NATS publisher: %w", err)
	}
	if p.js, err = p.conn.jetStream(cfg); err != nil {
		p.conn.Close()
		return nil, fmt.Errorf("configure NATS publisher: %w", err)
	}
	return p, nil
}

// Publish implements outbox.Publisher.
func (p *Publisher) Publish(ctx context.Context, events []outbox.Outgoing) []error {
	p.calls.RLock()
	defer p.calls.RUnlock()
	return publish.Each(ctx, events, p.cfg.Concurrency, p.send)
}

// Close ends the calls of Publish under way, whose events count as unavailable though they may have been stored, waits
// for them and disconnects. Calling it again does nothing.
func (p *Publisher) Close() {
	p.close()
	p.calls.Lock()
	defer p.calls.Unlock()
	p.conn.Close()
}

// send publishes one event and waits for the stream to confirm it.
func (p *Publisher) send(ctx context.Context, o outbox.Outgoing) error {
	if p.closing.Err() != nil {
		return outbox.BrokerUnavailable(ErrClosed)
	}
	msg, err := messageOf(p.cfg.Encoder, o)
	if err != nil {
		return err
	}
	if !p.conn.IsConnected() {
		return p.outcome(ctx, o.Destination, errNotConnected)
	}
	future, err := p.js.PublishMsgAsync(msg, jetstream.WithRetryAttempts(0))
	if err != nil {
		return p.outcome(ctx, o.Destination, err)
	}
	select {
	case <-future.Ok():
		p.streams.Forget(o.Destination)
		return nil
	case err := <-future.Err():
		return p.outcome(ctx, o.Destination, err)
	case <-ctx.Done():
		return p.describe(o.Destination, context.Cause(ctx))
	case <-p.closing.Done():
		return outbox.BrokerUnavailable(ErrClosed)
	}
}
