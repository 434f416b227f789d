// Package kafka publishes events to Apache Kafka with franz-go. The Kafka topic is the event's destination, and the
// record's key is the event's key. So events with one key are in one partition, in order.
//
//	publisher, err := kafka.New(kafka.Config{Brokers: []string{"kafka-1:9092", "kafka-2:9092"}})
//	...
//	defer publisher.Close() // after Run of the dispatcher or listener has returned
//	d, err := events.NewUsersDispatcher(pool, queue.Config{
//		Publishers: map[string]publish.Publisher{"kafka": publisher},
//	})
//
// # Records
//
// A record is a CloudEvent by the Kafka protocol binding (https://github.com/cloudevents/spec), in binary mode unless
// Config.Encoder says otherwise. The attributes are headers that begin with ce_, content-type is a separate header, and
// the event's own headers are sent too. An idempotent producer writes the records, and all in-sync replicas acknowledge
// them. Topics must exist, unless Config.Options allow the cluster to create them.
//
// # Order and duplicates
//
// Events are sent in rounds. Each round waits for the one before. In a round, a partition gets one batch, which Kafka
// takes as a whole or not at all. So many events with one key cost one round trip, and no event is produced after a
// failed one with its key.
//
// An event that may have been written and is sent again may be there twice. The consumer's inbox notices that. The
// first copy of an event never comes after an event that follows it. Nor does a late copy become the last record of its
// key: a key with a record that may still be in flight stays with the producer of that record until this producer has
// written to the same partition again. Then the cluster refuses the late record. That holds within one Publisher. With
// Config.TransactionalID it also holds for the events of a listener when another process takes over a shard. Without
// it, and for queue topics, consumers need entity versions. These do not help a consumer that reads a compacted topic
// only later: docs/run/delivery.md says more about late duplicates.
//
// # Tombstones
//
// An event of a topic with tombstone: true is a record without a value. A compacted topic then drops what it has of the
// key. The value is in the header publish.TombstoneHeader, from which consume.FromKafka takes it.
//
// # Failures
//
// The outcome of an event that Kafka does not take (P permanent, U unavailable, B broker unavailable, A a failed
// attempt):
//
//	P  MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, INVALID_RECORD   only for this record: the others of its batch are sent again
//	P  INVALID_TOPIC_EXCEPTION, or an empty destination           such a topic cannot exist
//	U  UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID               however long, or P after Config.UnknownTopicTimeout
//	U  TOPIC_AUTHORIZATION_FAILED                                 access must be granted, for all events of the topic
//	B  CLUSTER_AUTHORIZATION_FAILED                               access must be granted, for all events
//	B  SASL_AUTHENTICATION_FAILED and other SASL errors           credentials must be fixed, for all events
//	U  NOT_ENOUGH_REPLICAS, NOT_LEADER_OR_FOLLOWER and all other  after the client's own retries
//	   codes that Kafka calls retriable
//	U  lost or silent connections, no acknowledgement             within Config.Timeout; the event may have been written
//	B  refused connections, TLS, DNS, no broker answers           within Config.Timeout
//	U  OUT_OF_ORDER_SEQUENCE_NUMBER and other fencing             the producer is replaced
//	U  UNSUPPORTED_VERSION, INVALID_REQUIRED_ACKS, ...            the cluster would not understand any event
//	A  the context of Publish has ended                           the event may have been written; else it is ErrNotSent
//	A  any other code, such as UNKNOWN_SERVER_ERROR, CORRUPT_MESSAGE, INVALID_TIMESTAMP
package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxgen/outboxgen/internal/broker/lograte"
	"github.com/outboxgen/outboxgen/internal/call/usercode"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/internal/missing"
)

// ErrClosed is the error of Publish after a call of Close, marked as unavailable.
var ErrClosed = errors.New("the publisher is closed")

// Config says where a Publisher sends events and how. Only Brokers is required.
type Config struct {
	// Brokers are the addresses of some brokers of the cluster, as host or host:port.
	Brokers []string
	// Encoder makes records of events; nil means CloudEvents in binary mode, which costs the least.
	Encoder publish.Encoder
	// Timeout is how long a batch may take until all replicas have it, including the client's retries. After that its
	// events count as unavailable. 0 means 10 s.
	Timeout time.Duration
	// UnknownTopicTimeout is how long a topic may be unknown to the cluster before its events are refused permanently, as
	// dead letters. 0 means however long: the topic's events are unavailable and wait, so that neither an outage nor a
	// topic that is created late makes dead letters. A negative value refuses them immediately.
	UnknownTopicTimeout time.Duration
	// BatchBytes is the maximum size of a batch for one topic, before compression. A larger event is sent alone, and the
	// cluster decides. A value above the topic's max.message.bytes costs round trips that fail. 0 means 1,000,000; the
	// value must be between 1,024 and 33,554,432.
	BatchBytes int
	// Concurrency is how many calls of Publish for one topic may run concurrently, each with a separate producer and its
	// own connections. Further calls wait. Calls for different topics do not wait for each other. 0 means 4; the maximum
	// is 1,000.
	Concurrency int
	// TransactionalID, if not empty, makes late records of an earlier process harmless: the events of a listener are
	// produced in transactions, with a transactional id per shard and destination that begins with TransactionalID. The
	// process that takes over a shard takes over its ids, and from then on the cluster refuses what earlier processes have
	// sent, also under an earlier number of shards. So a copy of an event never comes after a later event of its key. It
	// must be the same in all processes of a listener, and another one for each database that publishes to the cluster. It
	// has no effect on the events of queue topics, which have no order. The client needs the rights to write to these
	// transactional ids. docs/run/publishers.md says what it costs.
	TransactionalID string
	// Options go to the client: kgo.DialTLSConfig, kgo.SASL, kgo.ProducerBatchCompression, kgo.AllowAutoTopicCreation and
	// so on. Batches are not compressed by default, because not every consumer reads every codec: all read gzip, and
	// KafkaJS needs a plug-in for snappy, lz4 and zstd. Options cannot change what the promises of this package depend on:
	// the publisher sets acknowledgements, the partitioner, batch and buffer sizes, lingering, and the retries and
	// timeouts of records. New refuses kgo.DisableIdempotentWrite and kgo.DefaultProduceTopicAlways.
	Options []kgo.Opt
	// Logger gets the warnings and errors of the client, each at most once per minute, and repetitions at DEBUG; nil means
	// slog.Default(). No payload is ever logged.
	Logger *slog.Logger
}

func (cfg Config) withDefaults() Config {
	cfg.Timeout = cmp.Or(cfg.Timeout, 10*time.Second)
	cfg.BatchBytes = cmp.Or(cfg.BatchBytes, 1_000_000)
	cfg.Concurrency = cmp.Or(cfg.Concurrency, 4)
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
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
		return errors.New("field Brokers has a URL: use host or host:port")
	case slices.ContainsFunc(cfg.Brokers, func(b string) bool { return strings.Contains(b, "@") }):
		return errors.New("field Brokers has a user: use host or host:port, and kgo.SASL in field Options")
	case cfg.Timeout < 0:
		return fmt.Errorf("field Timeout %s is negative", cfg.Timeout)
	case cfg.BatchBytes < minBatchBytes || cfg.BatchBytes > maxBatchBytes:
		return fmt.Errorf("field BatchBytes %d is not between %d and %d", cfg.BatchBytes, minBatchBytes, maxBatchBytes)
	case cfg.Concurrency < 1 || cfg.Concurrency > 1000:
		return fmt.Errorf("field Concurrency %d is not between 1 and 1000", cfg.Concurrency)
	}
	return nil
}

// Publisher publishes events to Kafka. It implements publish.Publisher and is safe for concurrent use.
type Publisher struct {
	cfg     Config
	log     *lograte.Limit // of all clients together
	topics  missing.Destinations
	pool    pool
	closing context.Context
	close   context.CancelFunc
	calls   sync.WaitGroup

	mu     sync.Mutex
	closed bool
	lanes  map[string]*lane
	turns  map[string]chan struct{} // by destination: has one element per running call of Publish
}

var _ publish.Publisher = (*Publisher)(nil)

// Format writes where the publisher sends events, for any verb. It shows no options, which may have credentials.
func (p *Publisher) Format(w fmt.State, _ rune) {
	_, _ = fmt.Fprintf(w, "kafka.Publisher(%s)", strings.Join(p.cfg.Brokers, ","))
}

// LogValue logs the publisher as Format writes it.
func (p *Publisher) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(p)) }

// New checks cfg and returns a Publisher. It does not connect. While no broker answers, events are unavailable. The
// caller must Close the Publisher after Run of the dispatcher or listener has returned.
func New(cfg Config) (*Publisher, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("configure Kafka publisher: %w", err)
	}
	p := &Publisher{cfg: cfg, log: lograte.New(cfg.Logger), turns: make(map[string]chan struct{})}
	p.pool.create = func() (*client, error) { return newClient(cfg, p.log, "") }
	p.topics.Timeout = cfg.UnknownTopicTimeout
	p.closing, p.close = context.WithCancel(context.Background())
	first, err := p.pool.take(p.closing, nil) // checks the options
	if err != nil {
		return nil, fmt.Errorf("configure Kafka publisher: %w", err)
	}
	p.pool.release(first)
	return p, nil
}

// Publish implements publish.Publisher. The package comment lists what each error of Kafka means for an event.
func (p *Publisher) Publish(ctx context.Context, events []publish.Outgoing) []error {
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
	if of, ok := publish.LaneOf(ctx); ok && p.cfg.TransactionalID != "" {
		return p.sendInLane(ctx, of, events)
	}
	shares := p.pool.shares(events)
	if len(shares) == 1 {
		return p.send(ctx, shares[0].holder, events)
	}
	errs := make([]error, len(events))
	var sending sync.WaitGroup
	for _, s := range shares {
		sending.Go(func() {
			part := make([]publish.Outgoing, len(s.events))
			for n, i := range s.events {
				part[n] = events[i]
			}
			var sent []error
			usercode.Run("publisher", func() error {
				sent = p.send(ctx, s.holder, part)
				return nil
			}, func(crashed error) { // an encoder has called runtime.Goexit
				for n, i := range s.events {
					if errs[i] = crashed; crashed == nil {
						errs[i] = sent[n]
					}
				}
			})
		})
	}
	sending.Wait()
	return errs
}

// send publishes events with one producer: holder, or any when it is nil.
func (p *Publisher) send(ctx context.Context, holder *client, events []publish.Outgoing) []error {
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

// Close ends the running calls of Publish, waits for them and disconnects. The events of these calls count as
// unavailable, although they may have been written. A second call does nothing.
func (p *Publisher) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.close()
	p.calls.Wait()
	p.pool.close()
	for _, l := range p.lanes {
		if l.client != nil {
			l.drop()
		}
	}
}

// enter waits until the calls for the same destination are fewer than Config.Concurrency. Calls for different
// destinations do not wait for each other.
func (p *Publisher) enter(ctx context.Context, events []publish.Outgoing) (leave func(), err error) {
	destination := events[0].Destination
	if !sameDestination(events) {
		destination = "" // no event that can be sent has this destination
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
