// Package kafka consumes events from Apache Kafka with franz-go: it joins a consumer group, applies each record's event
// with a generated consumer, once and in the order of its key, and commits the offset afterwards.
//
//	ib, err := inbox.New(inbox.Config{Group: "cards"})
//	...
//	consumer, err := userevents.NewUserConsumer(ib, cards{})
//	...
//	err = kafka.Run(ctx, pool, consumer, kafka.Config{
//		Brokers: []string{"kafka-1:9092", "kafka-2:9092"},
//		Topics:  []string{"sc.domain.user"},
//	})
//
// Run returns when ctx ends, or when something is wrong that waiting does not change. What becomes of a message that
// cannot be applied is described in package receive: it is parked or a dead letter in the consumer's database, and no
// message stops those of other keys.
//
// # Partitions and rebalances
//
// Partitions are consumed concurrently, and within a partition the keys. When a partition moves to another process,
// this one finishes the transactions that are under way and commits the offset before it gives the partition up. If it
// cannot, because it was killed or has lost its connection, records are read again by the other process: they are
// duplicates and have no second effect. A record is never skipped: an offset is committed only when all records before
// it are settled.
//
// Kafka orders records within a partition. If somebody adds partitions to a topic, keys move, and the order of a key is
// not kept across the change. A line of the log says that. Events with an entity version are safe then, too.
//
// # Failures
//
//   - The database or the brokers do not answer: records wait, nothing is charged, and two lines of the log say when it
//     began and when it ended. Only at the start it is an error if no broker answers within Config.StartTimeout.
//   - A topic that does not exist, also one that is deleted later: an error of Run after Config.UnknownTopicTimeout.
//   - Credentials that are refused, TLS that does not work, and a missing right to a topic or the group: at the start
//     an error of Run at once, which names the broker and what to check. Later it comes after Config.StartTimeout at
//     the latest.
//   - A record of another producer: a dead letter with its place, such as kafka:users/3@1042.
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
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/receive"
	"github.com/outboxgen/outboxgen/internal/broker/lograte"
	"github.com/outboxgen/outboxgen/internal/call/usercode"
)

// The errors to test for with errors.Is.
var (
	// ErrUnknownTopic: a topic does not exist in the cluster.
	ErrUnknownTopic = errors.New("the topic does not exist")
	// ErrRefused: the cluster refuses the credentials, or a right is missing.
	ErrRefused = errors.New("the cluster refuses access")
	// ErrTLS: a broker's certificate is not valid for this client, one side speaks TLS and the other does not, or the port
	// is not that of a Kafka broker.
	ErrTLS = errors.New("no connection with TLS")
	// ErrUnreachable: no broker has answered within Config.StartTimeout.
	ErrUnreachable = errors.New("no broker answers")
	// ErrRunning: Run was called while it runs.
	ErrRunning = errors.New("the receiver runs already")
)

// Config says what a Receiver consumes. Brokers and Topics are required.
type Config struct {
	// Brokers are the addresses of some brokers of the cluster, as host or host:port.
	Brokers []string
	// Topics are the topics of Kafka.
	Topics []string
	// Group is the consumer group in Kafka; "" means the group of the consumer's inbox. A new group starts with the first
	// record that Kafka still has, and so does a partition that is added later. To start elsewhere, set the offsets of the
	// group with the tools of Kafka before the first Run.
	Group string
	// Receive says how messages are applied. Its zero value is a good start. Its Logger is used for Kafka too.
	Receive receive.Config
	// StartTimeout is how long the brokers may be silent at the start; 0 means 1 min.
	StartTimeout time.Duration
	// UnknownTopicTimeout is how long a topic may be unknown to the cluster, for example because it is created a little
	// later; 0 means 1 min.
	UnknownTopicTimeout time.Duration
	// Options are passed to the client, for TLS, SASL, an instance id and so on. What the order of records depends on
	// cannot be changed.
	Options []kgo.Opt
}

func (c Config) withDefaults(group string) Config {
	c.Group = cmp.Or(c.Group, group)
	c.StartTimeout = cmp.Or(c.StartTimeout, time.Minute)
	c.UnknownTopicTimeout = cmp.Or(c.UnknownTopicTimeout, time.Minute)
	c.Receive.Logger = cmp.Or(c.Receive.Logger, slog.Default())
	c.Brokers, c.Topics, c.Options = slices.Clone(c.Brokers), slices.Clone(c.Topics), slices.Clone(c.Options)
	return c
}

func (c Config) validate() error {
	switch {
	case len(c.Brokers) == 0:
		return errors.New("field Brokers is empty")
	case slices.Contains(c.Brokers, ""):
		return errors.New("field Brokers has an empty address")
	case slices.ContainsFunc(c.Brokers, func(b string) bool { return strings.Contains(b, "://") }):
		return errors.New("field Brokers has a URL: use host or host:port")
	case slices.ContainsFunc(c.Brokers, func(b string) bool { return strings.Contains(b, "@") }):
		return errors.New("field Brokers has a user: use host or host:port, and kgo.SASL in field Options")
	case len(c.Topics) == 0:
		return errors.New("field Topics is empty")
	case slices.Contains(c.Topics, ""):
		return errors.New("field Topics has an empty topic")
	case c.StartTimeout < 0:
		return fmt.Errorf("field StartTimeout %s is negative", c.StartTimeout)
	case c.UnknownTopicTimeout < 0:
		return fmt.Errorf("field UnknownTopicTimeout %s is negative", c.UnknownTopicTimeout)
	}
	return nil
}

// Receiver consumes the topics of a Config. Its methods may be called concurrently, but only one Run is under way at a
// time.
type Receiver struct {
	cfg       Config
	receiver  *receive.Receiver
	log       *slog.Logger
	running   atomic.Bool
	access    access
	clientLog *lograte.Limit

	mu         sync.Mutex
	ctx        context.Context
	fail       context.CancelCauseFunc
	partitions map[target]*partition
}

// target is a partition of a topic.
type target struct {
	topic     string
	partition int32
}

// Run is New and Receiver.Run.
func Run(ctx context.Context, pool *pgxpool.Pool, consumer *consume.Consumer, cfg Config) error {
	r, err := New(pool, consumer, cfg)
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// New returns a Receiver that applies the records of cfg.Topics with consumer, in the database of pool. It does not
// connect to anything.
func New(pool *pgxpool.Pool, consumer *consume.Consumer, cfg Config) (*Receiver, error) {
	receiver, err := receive.New(pool, consumer, cfg.Receive)
	if err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults(receiver.Group())
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("new Kafka receiver: %w", err)
	}
	r := &Receiver{
		cfg: cfg, receiver: receiver, log: usercode.Logger(cfg.Receive.Logger).With("consumer_group", cfg.Group),
		partitions: make(map[target]*partition),
	}
	r.clientLog = lograte.New(r.log)
	making.Lock()
	defer making.Unlock()
	if err := kgo.ValidateOpts(r.options()...); err != nil {
		return nil, fmt.Errorf("new Kafka receiver: field Options: %w", err)
	}
	return r, nil
}

// making is held while a client is made: kgo.NewClient writes into the value of kgo.ProducerBatchCompression, which
// clients share.
var making sync.Mutex

func newClient(opts []kgo.Opt) (*kgo.Client, error) {
	making.Lock()
	defer making.Unlock()
	return kgo.NewClient(opts...)
}

// plain returns a client that is not a member of the group. a watches its connections.
func (r *Receiver) plain(a *access) (*kgo.Client, error) {
	opts := append([]kgo.Opt{kgo.ClientID("outboxgen"), kgo.DisableClientMetrics()}, r.cfg.Options...)
	client, err := newClient(append(opts, kgo.WithLogger(logger{r.clientLog}), kgo.SeedBrokers(r.cfg.Brokers...),
		kgo.WithHooks(a)))
	if err != nil {
		return nil, err
	}
	a.begin(client, len(r.cfg.Brokers))
	return client, nil
}

// options returns those of the client. Ours come last, because the promises depend on them.
func (r *Receiver) options() []kgo.Opt {
	opts := []kgo.Opt{
		kgo.ClientID("outboxgen"),
		kgo.DisableClientMetrics(),
		kgo.WithLogger(logger{r.clientLog}),
		kgo.FetchMaxWait(500 * time.Millisecond),
		kgo.AutoCommitInterval(time.Second),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), // what a transaction has aborted was not published
	}
	opts = append(opts, r.cfg.Options...)
	return append(opts,
		kgo.SeedBrokers(r.cfg.Brokers...),
		kgo.WithHooks(&r.access), // in addition to those of the options
		kgo.ConsumerGroup(r.cfg.Group),
		kgo.ConsumeTopics(r.cfg.Topics...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.AutoCommitMarks(),    // offsets follow the transactions
		kgo.KeepControlRecords(), // the offset passes the end of a transaction, too
		kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsAssigned(r.assigned),
		kgo.OnPartitionsRevoked(r.revoked),
		kgo.OnPartitionsLost(r.lost),
	)
}

// Lag is how far a partition is behind.
type Lag struct {
	Topic     string
	Partition int32
	// Committed is the offset that the group has committed, and End the one that the next record will have. Committed is
	// -1 if the group has committed none.
	Committed, End int64
	// Records is how many records are not settled: End minus Committed, or the records that Kafka has. Offsets that hold
	// no record, for example after compaction, count too.
	Records int64
}

// Lag returns the lag of the group in each partition, in order. Run need not be under way. What is parked in the
// database is not behind: see Status.
func (r *Receiver) Lag(ctx context.Context) ([]Lag, error) {
	var a access
	client, err := r.plain(&a)
	if err != nil {
		return nil, fmt.Errorf("read lag of group %s: %w", r.cfg.Group, err)
	}
	defer client.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer a.onRefusal(cancel)()
	lags, err := r.lag(ctx, kadm.NewClient(client))
	if _, refusal := a.refusal(); err != nil && refusal != nil {
		return nil, fmt.Errorf("read lag of group %s: %w", r.cfg.Group, refusal)
	}
	return lags, err
}

func (r *Receiver) lag(ctx context.Context, admin *kadm.Client) ([]Lag, error) {
	what := "read lag of group " + r.cfg.Group
	starts, err := admin.ListStartOffsets(ctx, r.cfg.Topics...)
	if err == nil {
		err = starts.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	ends, err := admin.ListEndOffsets(ctx, r.cfg.Topics...)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	committed, err := admin.FetchOffsets(ctx, r.cfg.Group)
	if err == nil {
		err = committed.Error()
	}
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) { // a group that has not run yet
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	var lags []Lag
	ends.Each(func(end kadm.ListedOffset) {
		l := Lag{Topic: end.Topic, Partition: end.Partition, Committed: -1, End: end.Offset}
		if o, is := committed.Lookup(end.Topic, end.Partition); is {
			l.Committed = o.At
		}
		from := l.Committed
		if start, is := starts.Lookup(end.Topic, end.Partition); is {
			from = max(from, start.Offset)
		}
		l.Records = max(end.Offset-max(from, 0), 0)
		lags = append(lags, l)
	})
	slices.SortFunc(lags, func(a, b Lag) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	return lags, nil
}

// Status counts the messages that are parked, and the dead letters, in the consumer's database.
func (r *Receiver) Status(ctx context.Context) (receive.Status, error) { return r.receiver.Status(ctx) }
