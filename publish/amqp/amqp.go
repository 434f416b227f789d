// Package amqp publishes events to RabbitMQ, over AMQP 0-9-1. The destination of an event is an exchange and a routing
// key, or a queue. RabbitMQ confirms each message after all queues that got it have stored it (a quorum queue after a
// majority of its members has).
//
//	publisher, err := amqp.New(amqp.Config{URL: "amqp://user:password@rabbit-1:5672/,amqp://user:password@rabbit-2:5672/"})
//	...
//	defer publisher.Close() // after Run of the dispatcher or listener has returned
//	d, err := events.NewUsersDispatcher(pool, queue.Config{
//		Publishers: map[string]publish.Publisher{"amqp": publisher},
//	})
//
// # Destinations
//
// A destination is an address in the form of RabbitMQ 4 (https://www.rabbitmq.com/docs/amqp#address-v2):
//
//	/exchanges/users/user.renamed   the exchange users, with the routing key user.renamed
//	/exchanges/users                the exchange users, with an empty routing key
//	/queues/mail                    the queue mail, through the default exchange
//
// Names are percent-encoded. Exchanges, queues and bindings must exist; the publisher does not create any.
//
// # Messages
//
// A message is a CloudEvent, in binary mode unless Config.Encoder says otherwise. The CloudEvents binding is for AMQP
// 1.0. The publisher follows it as RabbitMQ translates it: the attributes are headers that begin with "cloudEvents:",
// and the event's own headers are sent too. The properties content-type, message-id (the id of the event), type and
// timestamp are set. Messages are persistent. Headers of an event that begin with cloudEvents: or cloudEvents_ are left
// out, and so are CC and BCC, because they are instructions to the server.
//
// # Order and duplicates
//
// Events with one key are sent one after another, each after RabbitMQ has confirmed the one before. So each event costs its
// key a round trip, and a topic with only one key is limited to that speed. Events with different keys are sent
// concurrently; those of one call and one destination share a channel, but messages of 64 KiB and more are each alone on
// one. When RabbitMQ refuses a message, it ends the channel and does not say which message it means. Then those of the
// channel that were not confirmed are sent again, half as many at a time after each refusal, until the one that is refused
// is alone. Some of the others may be stored twice.
//
// A queue keeps the order in which it got the messages. Consumers keep it with a single active consumer, or with a
// consistent hash exchange; the routing key is that of the destination, not the event's key.
//
// An event whose confirmation got lost is sent again and may be stored twice, which the consumer's inbox notices. The
// first copy of an event never comes after an event that follows it.
//
// # What RabbitMQ stores permanently
//
// A confirmed message survives a restart of the server only in a durable queue. A message in a classic queue is lost
// with the disk of its node; use quorum queues. RabbitMQ drops messages when a queue that has a limit is full, unless
// its overflow is reject-publish, and messages that expire, unless there is a dead letter exchange.
//
// # Failures
//
// The outcome of an event that RabbitMQ does not take (P permanent, U unavailable, B broker unavailable, A a failed
// attempt):
//
//	P  a message larger than max_message_size, and any other PRECONDITION_FAILED (406)
//	P  an address, a header name or headers that AMQP cannot carry
//	U  no such exchange (404), or no queue for the routing key (312), however long, or P after Config.NoRouteTimeout
//	B  no server, a lost or silent connection, TLS, credentials, no access to the virtual host
//	B  the server blocks publishers, because it is low on memory or disk space
//	U  no right to write to the exchange (403)
//	U  no confirmation within Config.Timeout; the event may have been stored
//	A  the context of Publish has ended; the event may have been stored, else it is outbox.ErrNotSent
//	A  refused with a nack: a queue that is full and has overflow reject-publish, or an error in a queue
//	A  any other error of the channel
//
// Ten different events in a row that fail make the destination rest, so a full queue makes no dead letters.
package amqp

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/outboxgen/outboxgen/internal/broker/amqpurl"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/internal/flight"
	"github.com/outboxgen/outboxgen/publish/internal/missing"
)

// ErrClosed is the error of Publish after a call of Close, marked as unavailable.
var ErrClosed = errors.New("the publisher is closed")

// maxConcurrency is the maximum of Config.Concurrency, and its default.
const maxConcurrency = 1000

// Config says where a Publisher sends events and how. Only URL is required.
type Config struct {
	// URL is the server, as amqp://user:password@host:port/vhost or amqps://..., or several servers of a cluster,
	// separated by commas. Special characters of a user, a password or a vhost are percent-encoded.
	URL string
	// Encoder makes messages of events; nil means CloudEvents in binary mode.
	Encoder publish.Encoder
	// Timeout is how long RabbitMQ may take to confirm a message before its destination counts as unavailable, and how
	// long it may take to connect. 0 means 10 s.
	Timeout time.Duration
	// NoRouteTimeout is how long an exchange may be missing, or have no queue for a routing key, before events are refused
	// permanently, as dead letters. 0 means however long: they are unavailable and wait, so that neither an outage nor a
	// queue that is created late makes dead letters. A negative value refuses them immediately.
	NoRouteTimeout time.Duration
	// Concurrency is how many events of one call of Publish may be on their way concurrently, each with a different key.
	// 0 means 1,000, which is the maximum. Those of one destination share a channel. The server's channel_max limits the
	// channels of all calls; an event waits for one up to Timeout.
	Concurrency int
	// TLS is the configuration for amqps; nil means the parameters of the URL, or else the defaults of crypto/tls.
	TLS *tls.Config
	// SASL are the mechanisms to log in with; nil means PLAIN with the user and password of the URL.
	SASL []amqp091.Authentication
	// Logger gets the errors of the connection, each at most once per minute, and repetitions at DEBUG; nil means
	// slog.Default(). No payload is ever logged.
	Logger *slog.Logger
}

// shown is the part of a Config that may be printed.
type shown struct {
	Servers                 string
	Timeout, NoRouteTimeout time.Duration
	Concurrency             int
}

func (cfg Config) shown() shown {
	return shown{
		Servers: amqpurl.WithoutCredentials(cfg.URL), Timeout: cfg.Timeout, NoRouteTimeout: cfg.NoRouteTimeout,
		Concurrency: cfg.Concurrency,
	}
}

// Format writes the configuration without credentials, for any verb.
func (cfg Config) Format(w fmt.State, _ rune) { _, _ = fmt.Fprintf(w, "%+v", cfg.shown()) }

// LogValue logs the configuration without credentials.
func (cfg Config) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(cfg)) }

// MarshalJSON writes the configuration without credentials; it cannot be read back.
func (cfg Config) MarshalJSON() ([]byte, error) { return json.Marshal(cfg.shown()) }

func (cfg Config) withDefaults() Config {
	cfg.Timeout = cmp.Or(cfg.Timeout, 10*time.Second)
	cfg.Concurrency = cmp.Or(cfg.Concurrency, maxConcurrency)
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	if cfg.TLS != nil {
		cfg.TLS = cfg.TLS.Clone()
	}
	cfg.SASL = slices.Clone(cfg.SASL)
	return cfg
}

func (cfg Config) validate() error {
	switch err := checkURLs(cfg.URL); {
	case err != nil:
		return fmt.Errorf("field URL %w", err)
	case cfg.Timeout < 0:
		return fmt.Errorf("field Timeout %s is negative", cfg.Timeout)
	case cfg.Concurrency < 1 || cfg.Concurrency > maxConcurrency:
		return fmt.Errorf("field Concurrency %d is not between 1 and %d", cfg.Concurrency, maxConcurrency)
	}
	return nil
}

// Publisher publishes events to RabbitMQ. It implements publish.Publisher and is safe for concurrent use.
type Publisher struct {
	cfg     Config
	conn    *connector
	routes  missing.Destinations
	closing context.Context
	close   context.CancelFunc
	// aloneFrom is the size from which on a message is sent alone; a field for tests.
	aloneFrom int

	calls sync.RWMutex   // read-locked by running calls of Publish
	sends sync.WaitGroup // for pipelines, which may outlive their calls
}

var _ publish.Publisher = (*Publisher)(nil)

// Format writes where the publisher sends events, without credentials, for any verb.
func (p *Publisher) Format(w fmt.State, _ rune) {
	_, _ = fmt.Fprintf(w, "amqp.Publisher(%s)", p.conn.servers)
}

// LogValue logs the publisher as Format writes it.
func (p *Publisher) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(p)) }

// New checks cfg, tries to connect to each server once, and returns a Publisher. If no server answers, the Publisher
// keeps trying in the background, and events are unavailable meanwhile. An error means that the configuration is not
// valid. The caller must Close the Publisher after Run of the dispatcher or listener has returned.
func New(cfg Config) (*Publisher, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("configure RabbitMQ publisher: %w", err)
	}
	p := &Publisher{cfg: cfg, aloneFrom: aloneFrom}
	p.routes.Timeout = cfg.NoRouteTimeout
	p.closing, p.close = context.WithCancel(context.Background())
	p.conn = connect(p.closing, cfg)
	return p, nil
}

// Publish implements publish.Publisher. The package comment lists what each error of RabbitMQ means for an event.
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
	p.conn.wait()
	p.sends.Wait()
}
