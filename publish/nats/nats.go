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
// The duplicate window remembers messages that the stream has no longer. So a confirmation that says "duplicate" is
// checked: the publisher asks for the message, and if it is gone, because the stream was purged or a consumer of a work
// queue was done with it, or if it may not ask ($JS.API.STREAM.INFO and .MSG.GET), sends the event again under another
// Nats-Msg-Id. The id of the event stays the same, for the consumer's inbox. Publisher.Counts counts both.
//
// Whoever may subscribe to a subject gets the address to which the confirmation goes, and can confirm what no stream has.
// Config.Stream makes that harder; only permissions of the server prevent it.
//
// # Failures
//
// What becomes of an event that JetStream does not take (P permanent, U unavailable, B broker unavailable, A a
// failed attempt):
//
//	P  larger than max_payload of the server or MaxMsgSize of the stream, headers above 64 KiB
//	P  a subject or the name of a header that NATS cannot carry
//	P  no stream for the subject for longer than Config.NoStreamTimeout; until then U
//	B  no server, a lost or silent connection, TLS, credentials
//	U  no confirmation within Config.Timeout, as without the right to publish; it may have been stored
//	U  a stream that is full (DiscardNew), sealed or without a leader, limits of the account or the server
//	A  the context of Publish has ended; it may have been stored (what was not sent is outbox.ErrNotSent)
//	U  a stream that is not Config.Stream has the subject, or confirms in its place
//	A  any other error of the stream, and a confirmation that cannot be read
//
// Whether a subject has no stream, rather than one that does not answer, is asked of the JetStream API; without the right
// to $JS.API.STREAM.NAMES its events remain unavailable.
package nats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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
	// Stream is the name of the stream that is to take the messages. Given, it is told to the server (Nats-Expected-Stream),
	// and a confirmation that names another one counts for nothing: it comes from a subscriber who answers in its place.
	// "" means any stream.
	Stream string
	// Domain is the JetStream domain to ask for streams; "" means that of the server.
	Domain string
	// Options go to the connection: nats.UserCredentials, nats.Secure, nats.Name and so on. It always reconnects, and
	// buffers nothing while it is not connected, whatever they say.
	Options []nats.Option
	// Logger gets the connection's trouble; nil means slog.Default(). No payload is ever logged.
	Logger *slog.Logger
}

// shown is what a Config shows of itself.
type shown struct {
	Servers                  string
	Stream, Domain           string
	Timeout, NoStreamTimeout time.Duration
	Concurrency, Options     int
}

func (cfg Config) shown() shown {
	return shown{
		Servers: withoutCredentials(cfg.URL), Stream: cfg.Stream, Domain: cfg.Domain, Timeout: cfg.Timeout,
		NoStreamTimeout: cfg.NoStreamTimeout, Concurrency: cfg.Concurrency, Options: len(cfg.Options),
	}
}

// Format writes the configuration without credentials, whatever the verb.
func (cfg Config) Format(w fmt.State, _ rune) { _, _ = fmt.Fprintf(w, "%+v", cfg.shown()) }

// LogValue logs the configuration without credentials.
func (cfg Config) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(cfg)) }

// MarshalJSON writes the configuration without credentials; it cannot be read back.
func (cfg Config) MarshalJSON() ([]byte, error) { return json.Marshal(cfg.shown()) }

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
	case !areURLs(cfg.URL):
		return errors.New("field URL is not a list of URLs: percent-encode special characters in a user or password, and separate servers by commas")
	case strings.ContainsAny(cfg.Stream, " .*>/\\\t\r\n"):
		return fmt.Errorf("field Stream %q is not a valid stream name", cfg.Stream)
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

	duplicates, again atomic.Int64
}

var _ outbox.Publisher = (*Publisher)(nil)

// Format writes where the publisher sends events, without credentials, whatever the verb.
func (p *Publisher) Format(w fmt.State, _ rune) {
	_, _ = fmt.Fprintf(w, "nats.Publisher(%s)", p.conn.servers)
}

// LogValue logs the publisher as Format writes it.
func (p *Publisher) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(p)) }

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

// Counts of events that a stream said to have already, since New.
type Counts struct {
	// Duplicates were in the stream's duplicate window: sent before, as after a confirmation that got lost or a rewind.
	Duplicates int64
	// SentAgain are those of them that the stream had no longer, or about which it could not be asked. They were sent
	// under another Nats-Msg-Id, so that a rewind after a purge, for example, brings them back.
	SentAgain int64
}

// Counts returns what was counted up to now.
func (p *Publisher) Counts() Counts {
	return Counts{Duplicates: p.duplicates.Load(), SentAgain: p.again.Load()}
}

// send publishes one event until the stream has it.
func (p *Publisher) send(ctx context.Context, o outbox.Outgoing) error {
	if p.closing.Err() != nil {
		return outbox.BrokerUnavailable(ErrClosed)
	}
	msg, err := messageOf(p.cfg.Encoder, o, p.cfg.Stream)
	if err != nil {
		return err
	}
	if !p.conn.IsConnected() {
		return p.outcome(ctx, o.Destination, errNotConnected)
	}
	for range maxNames {
		ack, err := p.confirmed(ctx, msg)
		switch {
		case err != nil:
			return err
		case !ack.Duplicate:
			p.streams.Forget(o.Destination)
			return nil
		}
		// What a purge, a limit or a consumer has taken out of the stream is a duplicate all the same.
		if msg.Header.Get(jetstream.MsgIDHeader) == o.ID.String() {
			p.duplicates.Add(1)
		}
		if p.has(ctx, ack, msg) {
			p.streams.Forget(o.Destination)
			return nil
		}
		if ctx.Err() != nil {
			return p.describe(o.Destination, context.Cause(ctx))
		}
		p.again.Add(1)
		msg = renamed(msg, o, ack)
	}
	return outbox.Unavailable(p.describe(o.Destination, errDuplicate))
}

// maxNames is how many message ids an event is sent under in one attempt: its own, one for a message that the stream has
// no longer, and those for which a confirmation got lost.
const maxNames = 5

var errDuplicate = errors.New("confirmed as a duplicate of what the stream does not have, whatever its message id")

// confirmed publishes a message and waits for the stream to confirm it. The error is what Publish returns.
func (p *Publisher) confirmed(ctx context.Context, msg *nats.Msg) (*jetstream.PubAck, error) {
	future, err := p.js.PublishMsgAsync(msg, jetstream.WithRetryAttempts(0))
	if err != nil {
		return nil, p.outcome(ctx, msg.Subject, err)
	}
	select {
	case ack := <-future.Ok():
		if p.cfg.Stream != "" && ack.Stream != p.cfg.Stream {
			return nil, outbox.Unavailable(p.describe(msg.Subject, fmt.Errorf("confirmed by %q, which is not the stream %s", ack.Stream, p.cfg.Stream)))
		}
		return ack, nil
	case err := <-future.Err():
		return nil, p.outcome(ctx, msg.Subject, err)
	case <-ctx.Done():
		return nil, p.describe(msg.Subject, context.Cause(ctx))
	case <-p.closing.Done():
		return nil, outbox.BrokerUnavailable(ErrClosed)
	}
}

// has asks whether the stream still has the message that it takes msg for a duplicate of.
func (p *Publisher) has(ctx context.Context, ack *jetstream.PubAck, msg *nats.Msg) bool {
	asking, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	stream, err := p.js.Stream(asking, ack.Stream)
	if err != nil {
		return false
	}
	stored, err := stream.GetMsg(asking, ack.Sequence)
	return err == nil && stored.Header.Get(jetstream.MsgIDHeader) == msg.Header.Get(jetstream.MsgIDHeader)
}
