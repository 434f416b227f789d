// Package kafka publishes events to Apache Kafka with franz-go: the topic is the event's destination, the record's key
// its key, so that events with one key are in one partition and in order there.
//
//	publisher, err := kafka.New(kafka.Config{Brokers: []string{"kafka-1:9092", "kafka-2:9092"}})
//	...
//	defer publisher.Close() // when Run of the dispatcher or listener has returned
//	d, err := events.NewUsersDispatcher(pool, outbox.DispatcherConfig{
//		Publishers: map[string]outbox.Publisher{"kafka": publisher},
//	})
//
// # Records
//
// A record is a CloudEvent by the Kafka protocol binding (https://github.com/cloudevents/spec), in binary mode unless
// Config.Encoder says otherwise: attributes are headers that begin with ce_, content-type is one of its own, and the
// event's headers travel beside them. Records are written by an idempotent producer and acknowledged by all in-sync
// replicas. Topics must exist, unless Config.Options allow the cluster to create them.
//
// # Order and duplicates
//
// Events are sent in rounds, of which each waits for the one before. In a round, a partition gets one batch, which Kafka
// takes whole or not at all: so many events with one key cost one round trip, and none of them is produced after one
// that failed.
//
// An event that may have been written and is sent again may be there twice, which is the consumer's inbox to notice. It
// is never there for the first time after one that follows it. Nor does its first copy come late, as the last record of
// its key: a key of which a record may be on its way stays with the producer of that record until this producer has
// written to the same partition again, by which the cluster refuses the late one. That holds within one Publisher; a
// process that takes over from one that was killed has another, and a consumer of a compacted topic wants entity versions.
//
// # Failures
//
// What becomes of an event that Kafka does not take (P permanent, U unavailable, B broker unavailable, A a failed
// attempt):
//
//	P  MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, INVALID_RECORD   for this record alone: the others of its batch are sent again
//	P  INVALID_TOPIC_EXCEPTION, or an empty destination           no such topic can be
//	P  UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID               for longer than Config.UnknownTopicTimeout; until then U
//	U  TOPIC_AUTHORIZATION_FAILED                                 an access list is changed for all events of the topic
//	B  CLUSTER_AUTHORIZATION_FAILED                               or for all events
//	B  SASL_AUTHENTICATION_FAILED and other SASL errors           so are credentials
//	U  NOT_ENOUGH_REPLICAS, NOT_LEADER_OR_FOLLOWER and all else   after the client's own retries
//	   that Kafka calls retriable
//	U  lost or silent connections, no acknowledgement             within Config.Timeout; it may have been written
//	B  refused connections, TLS, DNS, no broker that answers      within Config.Timeout
//	U  OUT_OF_ORDER_SEQUENCE_NUMBER and other fencing             the producer is replaced
//	U  UNSUPPORTED_VERSION, INVALID_REQUIRED_ACKS, ...            what the cluster does not understand in any event
//	A  the context of Publish has ended                           it may have been written; what was not sent is ErrNotSent
//	A  any other code, such as UNKNOWN_SERVER_ERROR, CORRUPT_MESSAGE, INVALID_TIMESTAMP
package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/internal/missing"
)

// ErrClosed is what Publish returns, marked as unavailable, once Close has been called.
var ErrClosed = errors.New("the publisher is closed")

// Config says where a Publisher sends events and how. Only Brokers is required.
type Config struct {
	// Brokers are addresses, host or host:port, by which the cluster is found.
	Brokers []string
	// Encoder makes records of events; nil means CloudEvents in binary mode.
	Encoder publish.Encoder
	// Timeout is how long a batch may take until all replicas have it, the client's retries included, before its events
	// count as unavailable. 0 means 10 s.
	Timeout time.Duration
	// UnknownTopicTimeout is how long a topic may be unknown to the cluster before its events are refused for good. Until
	// then they are unavailable, so that neither a restarting broker nor a topic that is created a little late kills any.
	// 0 means 1 min; negative refuses them at once.
	UnknownTopicTimeout time.Duration
	// BatchBytes is the most that is sent to a topic at once, before compression; a larger event goes alone, and the
	// cluster decides. Above max.message.bytes of a topic it costs round trips that fail. 0 means 1,000,000.
	BatchBytes int
	// Concurrency is how many calls of Publish may be on their way concurrently for one topic, each through a producer with
	// connections of its own; others wait for their turn. Calls for different topics do not wait for each other. 0 means 4.
	Concurrency int
	// Options go to the client: kgo.DialTLSConfig, kgo.SASL, kgo.ProducerBatchCompression, kgo.AllowAutoTopicCreation and
	// so on. What the promises of this package rest on cannot be changed by them: acknowledgements, partitioner, batch and
	// buffer sizes, lingering, retries and timeouts of records are the publisher's, and New refuses
	// kgo.DisableIdempotentWrite and kgo.DefaultProduceTopicAlways.
	Options []kgo.Opt
	// Logger gets the client's trouble with the cluster; nil means slog.Default(). No payload is ever logged.
	Logger *slog.Logger
}

func (cfg Config) withDefaults() Config {
	if cfg.Timeout == 0 {
		cfg.Timeout = 10 * time.Second
	}
	if cfg.UnknownTopicTimeout == 0 {
		cfg.UnknownTopicTimeout = time.Minute
	}
	if cfg.BatchBytes == 0 {
		cfg.BatchBytes = 1_000_000
	}
	if cfg.Concurrency == 0 {
		cfg.Concurrency = 4
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	cfg.Brokers, cfg.Options = slices.Clone(cfg.Brokers), slices.Clone(cfg.Options)
	return cfg
}

func (cfg Config) validate() error {
	switch {
	case len(cfg.Brokers) == 0:
		return errors.New("field Brokers is empty")
	case slices.Contains(cfg.Brokers, ""):
		return errors.New("field Brokers has an empty address")
	case slices.ContainsFunc(cfg.Brokers, func(b string) bool { return strings.Contains(b, "://") }):
		return errors.New("field Brokers has a URL: want host or host:port")
	case slices.ContainsFunc(cfg.Brokers, func(b string) bool { return strings.Contains(b, "@") }):
		return errors.New("field Brokers has a user: want host or host:port, and kgo.SASL in field Options")
	case cfg.Timeout < 0:
		return fmt.Errorf("field Timeout %s is negative", cfg.Timeout)
	case cfg.BatchBytes < minBatchBytes || cfg.BatchBytes > maxBatchBytes:
		return fmt.Errorf("field BatchBytes %d is not between %d and %d", cfg.BatchBytes, minBatchBytes, maxBatchBytes)
	case cfg.Concurrency < 1 || cfg.Concurrency > 1000:
		return fmt.Errorf("field Concurrency %d is not between 1 and 1000", cfg.Concurrency)
	}
	return nil
}

// Publisher publishes events to Kafka. It implements outbox.Publisher and is safe for concurrent use.
type Publisher struct {
	cfg     Config
	topics  missing.Destinations
	pool    pool
	closing context.Context
	close   context.CancelFunc
	calls   sync.WaitGroup

	mu     sync.Mutex
	closed bool
	turns  map[string]chan struct{} // by destination: one for each call of Publish under way
}

var _ outbox.Publisher = (*Publisher)(nil)

// Format writes where the publisher sends events, whatever the verb. It shows no option.
func (p *Publisher) Format(w fmt.State, _ rune) {
	_, _ = fmt.Fprintf(w, "kafka.Publisher(%s)", strings.Join(p.cfg.Brokers, ","))
}

// LogValue logs the publisher as Format writes it.
func (p *Publisher) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(p)) }

// New returns a Publisher for the cluster of cfg. It does not connect: while no broker answers, events are unavailable.
// Close it.
func New(cfg Config) (*Publisher, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("configure Kafka publisher: %w", err)
	}
	p := &Publisher{cfg: cfg, turns: make(map[string]chan struct{})}
	p.pool.create = func() (*client, error) { return newClient(cfg) }
	p.topics.Timeout = cfg.UnknownTopicTimeout
	p.closing, p.close = context.WithCancel(context.Background())
	first, err := p.pool.take(p.closing, nil) // checks the options
	if err != nil {
		return nil, fmt.Errorf("configure Kafka publisher: %w", err)
	}
	p.pool.release(first)
	return p, nil
}

// Publish implements outbox.Publisher.
func (p *Publisher) Publish(ctx context.Context, events []outbox.Outgoing) []error {
	if len(events) == 0 {
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(p.closing, func() { cancel(ErrClosed) })()

	leave, err := p.enter(ctx, events)
	if err != nil {
		return newCall(p, events).halt(ctx, err)
	}
	defer leave()
	shares := p.pool.shares(events)
	if len(shares) == 1 {
		return p.send(ctx, shares[0].holder, events)
	}
	errs := make([]error, len(events))
	var sending sync.WaitGroup
	for _, s := range shares {
		sending.Go(func() {
			part := make([]outbox.Outgoing, len(s.events))
			for n, i := range s.events {
				part[n] = events[i]
			}
			for n, err := range p.send(ctx, s.holder, part) {
				errs[s.events[n]] = err
			}
		})
	}
	sending.Wait()
	return errs
}

// send publishes events with one producer: holder, or any when it is nil.
func (p *Publisher) send(ctx context.Context, holder *client, events []outbox.Outgoing) []error {
	c := newCall(p, events)
	producer, err := p.pool.take(ctx, holder)
	if err != nil {
		if ctx.Err() != nil {
			err = notSent(ctx)
		} else {
			err = outbox.BrokerUnavailable(fmt.Errorf("connect to Kafka: %w", err))
		}
		return c.halt(ctx, err)
	}
	defer p.pool.release(producer)
	c.run(ctx, producer)
	return c.errs
}

// Close ends the calls of Publish under way, whose events count as unavailable though they may have been written, waits
// for them and disconnects. Calling it again does nothing.
func (p *Publisher) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.close()
	p.calls.Wait()
	p.pool.close()
}

// enter waits for a turn among the calls for the same destination. Calls for different ones do not wait for each other.
func (p *Publisher) enter(ctx context.Context, events []outbox.Outgoing) (leave func(), err error) {
	destination := events[0].Destination
	for _, o := range events {
		if o.Destination != destination {
			destination = "" // which no event has that can be sent
		}
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, outbox.BrokerUnavailable(ErrClosed)
	}
	p.calls.Add(1)
	turns := p.turns[destination]
	if turns == nil {
		turns = make(chan struct{}, p.cfg.Concurrency)
		p.turns[destination] = turns
	}
	p.mu.Unlock()
	select {
	case turns <- struct{}{}:
	case <-ctx.Done():
		p.calls.Done()
		return nil, notSent(ctx)
	}
	return func() {
		<-turns
		p.calls.Done()
	}, nil
}
