// Package nats publishes events to NATS JetStream. The subject is the event's destination. The stream that has the
// subject confirms each message after storing it (in a replicated stream, after a majority has stored it).
//
//	publisher, err := nats.New(nats.Config{URL: "nats://nats-1:4222,nats://nats-2:4222"})
//	...
//	defer publisher.Close() // after Run of the dispatcher or listener has returned
//	d, err := events.NewUsersDispatcher(pool, queue.Config{
//		Publishers: map[string]publish.Publisher{"nats": publisher},
//	})
//
// # Messages
//
// A message is a CloudEvent by the NATS protocol binding (https://github.com/cloudevents/spec), in binary mode unless
// Config.Encoder says otherwise. The attributes are headers that begin with ce- and have percent-encoded values,
// content-type is a separate header, and the event's own headers are sent too. Headers of an event that begin with
// Nats- are left out, because they are instructions to the server. Streams must exist; the publisher does not create
// any.
//
// # Order and duplicates
//
// Events with one key are sent one after another, each after the stream has confirmed the one before. Events with
// different keys are sent concurrently. JetStream cannot refuse messages that follow a lost one, so each event costs
// its key a round trip, and a topic with only one key is limited to that speed.
//
// Nats-Msg-Id is the id of the event. An event that is sent again within the stream's duplicate window (Duplicates, 2
// min by default) is stored once. After that it may be stored twice, which the consumer's inbox notices. The first copy
// of an event never comes after an event that follows it.
//
// The duplicate window also remembers messages that the stream no longer has. So the publisher checks a confirmation
// that says "duplicate": it asks for the message. The message may be gone, because the stream was purged or a consumer
// of a work queue has finished it, or the publisher may lack the right to ask ($JS.API.STREAM.INFO and .MSG.GET). Then
// it sends the event again under another Nats-Msg-Id. The id of the event stays the same, for the consumer's inbox.
// Publisher.Counts counts both cases.
//
// A client that may subscribe to a subject gets the address for the confirmation, and can confirm messages that no
// stream has stored. Config.Stream makes that harder. Only permissions on the server prevent it.
//
// # Failures
//
// The outcome of an event that JetStream does not take (P permanent, U unavailable, B broker unavailable, A a failed
// attempt):
//
//	P  larger than max_payload of the server or MaxMsgSize of the stream, or headers above 64 KiB
//	P  a subject or a header name that NATS cannot carry
//	U  no stream for the subject, however long, or P after Config.NoStreamTimeout
//	B  no server, a lost or silent connection, TLS, credentials
//	U  no confirmation within Config.Timeout, for example without the right to publish; the event may have been stored
//	U  a stream that is full (DiscardNew), sealed or without a leader, limits of the account or the server
//	U  a stream other than Config.Stream has the subject, or confirms in its place
//	A  the context of Publish has ended; the event may have been stored, else it is outbox.ErrNotSent
//	A  any other error of the stream, and a confirmation that cannot be read
//
// The publisher asks the JetStream API whether a subject has no stream or a stream that does not answer. Without the
// right to use $JS.API.STREAM.NAMES, the events of the subject remain unavailable.
package nats

import (
	"cmp"
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

	"github.com/outboxgen/outboxgen/internal/broker/natsurl"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/internal/flight"
	"github.com/outboxgen/outboxgen/publish/internal/missing"
)

// ErrClosed is the error of Publish after a call of Close, marked as unavailable.
var ErrClosed = errors.New("the publisher is closed")

// Config says where a Publisher sends events and how. Only URL is required.
type Config struct {
	// URL is the server, as nats://host:port, or several servers of a cluster, separated by commas.
	URL string
	// Encoder makes messages of events; nil means CloudEvents in binary mode.
	Encoder publish.Encoder
	// Timeout is how long a stream may take to confirm a message before it counts as unavailable. 0 means 5 s.
	Timeout time.Duration
	// NoStreamTimeout is how long a subject may have no stream before its events are refused permanently, as dead letters.
	// 0 means however long: they are unavailable and wait, so that neither an outage nor a stream that is created late
	// makes dead letters. A negative value refuses them immediately.
	NoStreamTimeout time.Duration
	// Concurrency is how many events of one call of Publish may be sent concurrently, each with a different key. 0 means
	// 1,000; the maximum is 10,000.
	Concurrency int
	// Stream is the name of the stream that must take the messages; "" means any stream. If it is set, the publisher tells
	// it to the server (Nats-Expected-Stream), and ignores a confirmation that names another stream: such a confirmation
	// comes from a subscriber that answers in the stream's place.
	Stream string
	// Domain is the JetStream domain of the streams; "" means the domain of the server.
	Domain string
	// Options go to the connection: nats.UserCredentials, nats.Secure, nats.Name and so on. With any options, the
	// connection always reconnects, and buffers nothing while it is not connected.
	Options []nats.Option
	// Logger gets the errors of the connection, each at most once per minute, and repetitions at DEBUG; nil means
	// slog.Default(). No payload is ever logged.
	Logger *slog.Logger
}

// shown is the part of a Config that may be printed.
type shown struct {
	Servers                  string
	Stream, Domain           string
	Timeout, NoStreamTimeout time.Duration
	Concurrency, Options     int
}

func (cfg Config) shown() shown {
	return shown{
		Servers: natsurl.WithoutCredentials(cfg.URL), Stream: cfg.Stream, Domain: cfg.Domain, Timeout: cfg.Timeout,
		NoStreamTimeout: cfg.NoStreamTimeout, Concurrency: cfg.Concurrency, Options: len(cfg.Options),
	}
}

// Format writes the configuration without credentials, for any verb.
func (cfg Config) Format(w fmt.State, _ rune) { _, _ = fmt.Fprintf(w, "%+v", cfg.shown()) }

// LogValue logs the configuration without credentials.
func (cfg Config) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(cfg)) }

// MarshalJSON writes the configuration without credentials; it cannot be read back.
func (cfg Config) MarshalJSON() ([]byte, error) { return json.Marshal(cfg.shown()) }

func (cfg Config) withDefaults() Config {
	cfg.Timeout = cmp.Or(cfg.Timeout, 5*time.Second)
	cfg.Concurrency = cmp.Or(cfg.Concurrency, 1000)
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	cfg.Options = slices.Clone(cfg.Options)
	return cfg
}

func (cfg Config) validate() error {
	switch {
	case cfg.URL == "":
		return errors.New("field URL is empty")
	case !natsurl.Valid(cfg.URL):
		return errors.New("field URL is not a list of URLs: percent-encode special characters in a user or password, and " +
			"separate servers with commas")
	case strings.ContainsAny(cfg.Stream, " .*>/\\\t\r\n"):
		return fmt.Errorf("field Stream %q is not a valid stream name", cfg.Stream)
	case cfg.Timeout < 0:
		return fmt.Errorf("field Timeout %s is negative", cfg.Timeout)
	case cfg.Concurrency < 1 || cfg.Concurrency > 10_000:
		return fmt.Errorf("field Concurrency %d is not between 1 and 10000", cfg.Concurrency)
	}
	return nil
}

// Publisher publishes events to JetStream. It implements publish.Publisher and is safe for concurrent use.
type Publisher struct {
	cfg     Config
	conn    *connection
	js      jetstream.JetStream
	streams missing.Destinations
	closing context.Context
	close   context.CancelFunc
	calls   sync.RWMutex // read-locked by running calls of Publish

	waiting waiting // for a confirmation

	duplicates, again atomic.Int64
}

var _ publish.Publisher = (*Publisher)(nil)

// Format writes where the publisher sends events, without credentials, for any verb.
func (p *Publisher) Format(w fmt.State, _ rune) {
	_, _ = fmt.Fprintf(w, "nats.Publisher(%s)", p.conn.servers)
}

// LogValue logs the publisher as Format writes it.
func (p *Publisher) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(p)) }

// New checks cfg, tries to connect to each server once, and returns a Publisher. If no server answers, the Publisher
// keeps trying in the background, and events are unavailable meanwhile. An error means that the configuration is not
// valid. The caller must Close the Publisher after Run of the dispatcher or listener has returned.
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
	if p.js, err = p.conn.jetStream(cfg, p); err != nil {
		p.conn.Close()
		return nil, fmt.Errorf("configure NATS publisher: %w", err)
	}
	return p, nil
}

// Publish implements publish.Publisher. The package comment lists what each error of JetStream means for an event.
func (p *Publisher) Publish(ctx context.Context, events []publish.Outgoing) []error {
	p.calls.RLock()
	defer p.calls.RUnlock()
	return flight.Send(ctx, p.closing, events, p.cfg.Concurrency, p.newSending(ctx, events))
}

// Close ends the running calls of Publish, waits for them and disconnects. The events of these calls count as
// unavailable, although they may have been stored. A second call does nothing.
func (p *Publisher) Close() {
	p.close()
	p.calls.Lock()
	defer p.calls.Unlock()
	p.conn.Close()
}

// Counts has the numbers of events that a stream reported as duplicates since New.
type Counts struct {
	// Duplicates were in the stream's duplicate window: they had been sent before, for example before a lost confirmation
	// or a rewind.
	Duplicates int64
	// SentAgain are those Duplicates that the stream no longer had, or about which it could not be asked. They were sent
	// under another Nats-Msg-Id, so that for example a rewind after a purge brings them back.
	SentAgain int64
}

// Counts returns the current counts.
func (p *Publisher) Counts() Counts {
	return Counts{Duplicates: p.duplicates.Load(), SentAgain: p.again.Load()}
}

// maxNames is the number of message ids under which an event is sent in one attempt: its own id, one more if the stream
// no longer has the message, and further ones for lost confirmations.
const maxNames = 5

var errDuplicate = errors.New("confirmed as a duplicate under each message id, but the stream does not have it")

// confirmed publishes a message and waits for the stream's confirmation. Publish returns the error as it is.
func (p *Publisher) confirmed(ctx context.Context, msg *nats.Msg) (*jetstream.PubAck, error) {
	future, err := p.js.PublishMsgAsync(msg, asIs)
	if err != nil {
		return nil, p.resultOf(ctx, msg.Subject, err)
	}
	select {
	case ack := <-future.Ok():
		return ack, p.checkStream(msg.Subject, ack)
	case err := <-future.Err():
		return nil, p.resultOf(ctx, msg.Subject, err)
	case <-ctx.Done():
		return nil, p.describe(msg.Subject, context.Cause(ctx))
	case <-p.closing.Done():
		return nil, outbox.BrokerUnavailable(ErrClosed)
	}
}

// has asks whether the stream still has the message of which msg is a duplicate.
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
