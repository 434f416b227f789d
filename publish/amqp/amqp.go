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
// Events with one key are sent one after another, each after RabbitMQ has confirmed the one before. Events with
// different keys are sent concurrently, each on a separate channel, so that the server's refusal of an event ends the
// channel of no other event. So each event costs its key a round trip, and a topic with only one key is limited to that
// speed. A queue keeps the order in which it got the messages. Consumers keep it with a single active consumer, or with
// a consistent hash exchange; the routing key is that of the destination, not the event's key.
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
	"sync/atomic"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/outboxgen/outboxgen/internal/broker/amqpurl"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/internal/missing"
)

// ErrClosed is the error of Publish after a call of Close, marked as unavailable.
var ErrClosed = errors.New("the publisher is closed")

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
	// Concurrency is how many events of one call of Publish may be sent concurrently, each with a different key and on a
	// separate channel. 0 means 64; the maximum is 1,000. The server's channel_max limits the channels of all calls; an
	// event waits for one up to Timeout.
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
	cfg.Concurrency = cmp.Or(cfg.Concurrency, 64)
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
	case cfg.Concurrency < 1 || cfg.Concurrency > 1000:
		return fmt.Errorf("field Concurrency %d is not between 1 and 1000", cfg.Concurrency)
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
	calls   sync.RWMutex // read-locked by running calls of Publish
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
	p := &Publisher{cfg: cfg}
	p.routes.Timeout = cfg.NoRouteTimeout
	p.closing, p.close = context.WithCancel(context.Background())
	p.conn = connect(p.closing, cfg)
	return p, nil
}

// Publish implements publish.Publisher. The package comment lists what each error of RabbitMQ means for an event.
func (p *Publisher) Publish(ctx context.Context, events []publish.Outgoing) []error {
	p.calls.RLock()
	defer p.calls.RUnlock()
	return publish.Each(ctx, events, p.cfg.Concurrency, p.send)
}

// Close ends the running calls of Publish, waits for them and disconnects. The events of these calls count as
// unavailable, although they may have been stored. A second call does nothing.
func (p *Publisher) Close() {
	p.close()
	p.calls.Lock()
	defer p.calls.Unlock()
	p.conn.wait()
}

// errNotConnected is the error of sending without a connection.
var errNotConnected = errors.New("not connected")

// errNoConfirm is the error of a message that is not confirmed in time.
var errNoConfirm = errors.New("no confirmation from RabbitMQ")

// send publishes one event. It returns nil when RabbitMQ has confirmed it.
func (p *Publisher) send(ctx context.Context, o publish.Outgoing) error {
	if p.closing.Err() != nil {
		return outbox.BrokerUnavailable(ErrClosed)
	}
	to, err := parseAddress(o.Destination)
	if err != nil {
		return outbox.Permanent(fmt.Errorf("publish to RabbitMQ: %w", err))
	}
	msg, err := messageOf(p.cfg.Encoder, o)
	if err != nil {
		return err
	}
	l := p.conn.current()
	if l == nil {
		p.routes.Forget(o.Destination)
		return outbox.BrokerUnavailable(p.describe(o.Destination, errNotConnected))
	}
	if err := l.fits(msg); err != nil {
		return outbox.Permanent(p.describe(o.Destination, err))
	}
	if why := l.blocked.Load(); why != nil {
		p.routes.Forget(o.Destination)
		return outbox.BrokerUnavailable(p.describe(o.Destination,
			fmt.Errorf("RabbitMQ takes no messages at present: %s", *why)))
	}
	timer := time.NewTimer(p.cfg.Timeout)
	defer timer.Stop()

	channel, err := l.acquire(ctx, p.closing, timer.C)
	switch {
	case p.closing.Err() != nil:
		if channel != nil {
			l.release(channel)
		}
		return outbox.BrokerUnavailable(ErrClosed)
	case ctx.Err() != nil && err != nil:
		return fmt.Errorf("%w: %w", outbox.ErrNotSent, p.describe(o.Destination, context.Cause(ctx)))
	case err != nil:
		return p.resultOf(l, o.Destination, to, err)
	}
	j := &job{to: to, msg: msg, done: make(chan error, 1), abandoned: make(chan struct{})}
	channel.jobs <- j
	select {
	case err := <-j.done:
		if err == nil {
			p.routes.Forget(o.Destination)
			return nil
		}
		return p.resultOf(l, o.Destination, to, err)
	case <-ctx.Done():
		err = p.describe(o.Destination, context.Cause(ctx))
		if !j.abandon() {
			err = fmt.Errorf("%w: %w", outbox.ErrNotSent, err)
		}
		return err
	case <-p.closing.Done():
		j.abandon()
		return outbox.BrokerUnavailable(ErrClosed)
	case <-l.down:
		j.abandon()
		return p.resultOf(l, o.Destination, to, errDown)
	case <-timer.C:
		j.abandon()
		return p.resultOf(l, o.Destination, to, errNoConfirm)
	}
}

// job is a message for a sender.
type job struct {
	to        address
	msg       amqp091.Publishing
	done      chan error // receives the result
	abandoned chan struct{}
	state     atomic.Int32
}

// The states of a job. The first to change it decides whether the message is sent.
const (
	waiting int32 = iota
	handed        // it may have been sent
	dropped       // it will not be sent
)

// hand reports whether the message may be sent.
func (j *job) hand() bool { return j.state.CompareAndSwap(waiting, handed) }

// abandon ends the wait for the result. It reports whether the message may have been sent.
func (j *job) abandon() (sent bool) {
	sent = !j.state.CompareAndSwap(waiting, dropped)
	close(j.abandoned)
	return sent
}
