// Package listener delivers the events of log topics: every listener gets every event, in order within a partition key.
//
// A Listener reads the log with its own cursor, which PostgreSQL keeps. Generated constructors make one:
//
//	l, err := events.NewCompanionListener(pool, &handlers{}, listener.Config{})
//	if err != nil {
//		return err
//	}
//	return l.Run(ctx) // until ctx ends
//
// New with Handle, HandleTx or Publish does the same without generated code. Any number of processes may run one
// listener: each of its shards is held by one of them at a time.
//
// A handler of Handle may see an event again after a crash. A handler of HandleTx writes in the transaction in which
// the cursor moves: its effects happen exactly once.
package listener

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/internal/call/backoff"
	"github.com/outboxgen/outboxgen/internal/call/errtext"
	"github.com/outboxgen/outboxgen/internal/call/usercode"
	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/internal/machine/report"
	"github.com/outboxgen/outboxgen/internal/machine/target"
	"github.com/outboxgen/outboxgen/internal/machine/testsignal"
	"github.com/outboxgen/outboxgen/internal/payloads/decode"
	"github.com/outboxgen/outboxgen/internal/postgres/pgname"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
	"github.com/outboxgen/outboxgen/listener/internal/core"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/seal"
)

// Spec holds the YAML's settings of a listener. Generated constructors fill it.
type Spec struct {
	// Schema and Name identify its cursor. Schema "" means "outbox".
	Schema, Name string
	// Latest starts a new listener after what is already in the log, not at the beginning of the log.
	Latest bool
	// ParkKeys parks the events of a failing partition key and lets the other keys continue. Without it, a failing
	// event is retried in place and blocks the events after it.
	ParkKeys bool
	// Concurrency is how many handlers run concurrently; 0 means 1. Events of one partition key are handled one after
	// the other.
	Concurrency int
	// Shards is how many cursors the listener has, which different processes may hold; 0 means 1.
	Shards int
	// Lease is how long a shard stays leased after its holder crashed; 0 means 30 s.
	Lease time.Duration
	// MaxLag is the age of the oldest unhandled event that raises an alarm; 0 means no alarm.
	MaxLag time.Duration
	Retry  outbox.Retry
	// Batch makes handlers get several events in one call; they are those of HandleBatch and HandleTxBatch then. The
	// zero value means one event per call.
	Batch outbox.Batch
	// Rate bounds the starts of attempts over all shards and processes; the zero value means any number. Each event of
	// a batch counts, and so does each retry.
	Rate outbox.Rate
}

// Bounds of a listener.
const (
	maxShards      = 64
	maxConcurrency = 1000
)

func (s Spec) withDefaults() Spec {
	if s.Concurrency == 0 {
		s.Concurrency = 1
	}
	if s.Shards == 0 {
		s.Shards = 1
	}
	if s.Lease == 0 {
		s.Lease = config.DefaultLease
	}
	s.Retry = config.RetryWithDefaults(s.Retry)
	return s
}

func (s Spec) validate() error {
	switch {
	case !pgname.IsName(s.Name):
		return fmt.Errorf("listener name %q is not a name like companion", s.Name)
	case s.Shards < 1 || s.Shards > maxShards:
		return fmt.Errorf("field Shards %d is not between 1 and %d", s.Shards, maxShards)
	case s.MaxLag < 0:
		return fmt.Errorf("MaxLag %s is negative", s.MaxLag)
	}
	return errtext.Join(validateBatch(s.Batch), validateRate(s.Rate))
}

// Config tunes a listener. The zero value is a good start.
type Config struct {
	// WorkerID marks the leases of this process; the zero UUID means a new one.
	WorkerID uuid.UUID
	// BatchSize is the maximum number of events of a shard that are read in one batch, and that a listener handles past
	// a failing event; 0 means 100, or the size of Spec.Batch if that is more. In leased mode the next batch is read
	// while one is handled. With fast handlers a lease has up to eight batches. If the process is killed, their events
	// are delivered again. With 0, batches of a listener that publishes grow up to 1,600 events while that many are published
	// within 100 ms and their payload is expected to be at most 8 MiB, and a lease has up to 6,400.
	BatchSize int
	// Concurrency is how many handlers of a shard run concurrently; 0 means the YAML's value. In transactional mode it
	// is 1.
	Concurrency int
	// LeaseDuration is how long a shard stays leased after its process was killed. A lease is renewed when a third of
	// it has passed, for as long as handlers run. 0 means the YAML's value. In transactional mode it is also how long a
	// handler may pause between two statements.
	LeaseDuration time.Duration
	// PollInterval is how often an idle listener polls, in addition to being woken. At most a third of the lease; 0
	// means 1 s, or that third if it is shorter.
	PollInterval time.Duration
	// MaxPollInterval is the limit up to which PollInterval doubles while a listener with WakePoll finds nothing. It is
	// the longest time until an event is found. Like PollInterval it is at most a third of the lease, because shards
	// whose holder died are found in the same way; 0 means 10 s, or that third if it is shorter.
	MaxPollInterval time.Duration
	// ShutdownTimeout is how long handlers may finish once Run's context has ended; 0 means 20 s. After it
	// their contexts are cancelled.
	ShutdownTimeout time.Duration
	// PruneInterval is how often events past their retention that every listener has passed are deleted, and how often
	// lag is checked; 0 means 10 min, negative never.
	PruneInterval time.Duration
	// MaxAttempts, if positive, replaces the limit that the YAML sets, and Retry.MaxAttempts too.
	MaxAttempts int
	// Retry overrides the retry settings of the YAML, field by field; a zero field changes nothing.
	Retry outbox.Retry
	// Publishers forward the events of topics that publish, by the broker's name in the YAML: "kafka", "nats", "amqp",
	// "redis" or "webhook". The caller closes them after Run has returned.
	Publishers map[string]publish.Publisher
	// Keyring opens what is sealed of the events, and seals what handlers enqueue with their context. nil means that of
	// the context of Run or Drain, by seal.ContextWithKeyring. Publishers forward what is sealed as it is. A key that is
	// not there yet makes its event wait, with no attempt counted; a log line names the key.
	Keyring seal.Keyring
	// Breaker says when failures of a destination are an outage, and how long topics and destinations rest while they
	// are unavailable.
	Breaker outbox.Breaker
	// Wake is how an idle listener learns of new events; "" means WakeDoorbell.
	Wake outbox.Wake
	// ListenPool makes the connection for LISTEN. It is needed when the main pool goes through a pooler that does not
	// support LISTEN; nil means the main pool. The connection is taken out of the pool and does not count against its
	// limit. One of the main pool is also used for the lease that follows a notification, because its backend is awake. While
	// a transaction that has enqueued stays open, one more waits for its end.
	ListenPool *pgxpool.Pool
	// Middleware wraps the calls of handlers, the first one outermost. A call with a batch is wrapped once, with its first
	// event. Publishers are called without it.
	Middleware []outbox.Middleware
	// Observer is told what happens to events, for metrics and tracing; nil means nobody.
	Observer *outbox.Observer
	// Logger gets changes of state: start and stop, topics that fail and recover, dead letters, targets that rest, lag,
	// and a database that does not answer. At DEBUG it gets a line per failed event too. nil means slog.Default(). No
	// payload is ever logged.
	Logger *slog.Logger
}

// common returns the fields that cfg shares with a queue.Config.
func (cfg *Config) common() config.Common {
	return config.Common{
		BatchSize: &cfg.BatchSize, Concurrency: &cfg.Concurrency, MaxConcurrency: maxConcurrency,
		MaxAttempts: &cfg.MaxAttempts, LeaseDuration: &cfg.LeaseDuration, PollInterval: &cfg.PollInterval,
		MaxPollInterval: &cfg.MaxPollInterval, ShutdownTimeout: &cfg.ShutdownTimeout, PruneInterval: &cfg.PruneInterval,
		Retry: &cfg.Retry, Breaker: &cfg.Breaker, Wake: &cfg.Wake, Middleware: &cfg.Middleware, Logger: &cfg.Logger,
	}
}

func (cfg Config) withDefaults(spec Spec) Config {
	config.SetDefault(&cfg.BatchSize, min(max(spec.Batch.Size, config.DefaultBatchSize), config.MaxBatchSize))
	config.SetDefault(&cfg.Concurrency, spec.Concurrency)
	config.SetDefault(&cfg.LeaseDuration, spec.Lease)
	config.SetDefault(&cfg.MaxAttempts, spec.Retry.MaxAttempts)
	cfg.common().SetDefaults()
	return cfg
}

func (cfg Config) validate() error { return cfg.common().Validate() }

// Handler ties a log topic to the user's code for it. Handle, HandleTx and Publish make one.
type Handler struct {
	schema, namespace, topic string
	renamedFrom              []string // earlier names of the topic, whose events are handled too
	version                  int
	log                      bool
	transactional            bool
	retention                outbox.Retention
	decoder                  *decode.Decoder // of a handler
	// run gets a pointer to the payload; nil without a handler.
	run         func(context.Context, pgx.Tx, outbox.Event, any) error
	publication *target.Route                                  // instead of run
	runBatch    func(context.Context, pgx.Tx, []decoded) error // likewise
}

// Publish ties t to a publisher instead of a handler. Order per key is kept: an event is sent only after the previous
// event of its key has arrived or died.
func Publish[P any](t outbox.Topic[P], p publish.Publication) Handler {
	return listenerPublishes(t.Untyped(), p)
}

// Handle ties t to fn, as Handle does for queue topics. No transaction is open while fn runs: its effects may happen
// again after a crash.
func Handle[P any](t outbox.Topic[P], h any, fn func(context.Context, outbox.Delivery[P]) error) Handler {
	if fn == nil {
		return HandleUntyped(t.Untyped(), nil, nil)
	}
	return HandleUntyped(t.Untyped(), h, func(ctx context.Context, e outbox.Event, p any) error {
		return fn(ctx, outbox.Delivery[P]{Event: e, Payload: *p.(*P)})
	})
}

// HandleTx ties t to fn, which gets the transaction in which the cursor moves: what fn writes with tx happens exactly
// once. tx is a savepoint per event, which is rolled back if fn fails. fn must neither commit nor roll back tx.
func HandleTx[P any](t outbox.Topic[P], h any, fn func(context.Context, pgx.Tx, outbox.Delivery[P]) error) Handler {
	if fn == nil {
		return HandleTxUntyped(t.Untyped(), nil, nil)
	}
	return HandleTxUntyped(t.Untyped(), h, func(ctx context.Context, tx pgx.Tx, e outbox.Event, p any) error {
		return fn(ctx, tx, outbox.Delivery[P]{Event: e, Payload: *p.(*P)})
	})
}

// HandleUntyped is Handle without the type of the payload: fn gets a pointer to it. Generated code uses it to save
// compiling an instance of Handle per topic.
func HandleUntyped(
	t *outbox.UntypedTopic, h any, fn func(ctx context.Context, e outbox.Event, payload any) error,
) Handler {
	return listenerHandler(t, h != nil, func(ctx context.Context, _ pgx.Tx, e outbox.Event, p any) error {
		return fn(ctx, e, p)
	})
}

// HandleTxUntyped is HandleTx without the type of the payload: fn gets a pointer to it.
func HandleTxUntyped(
	t *outbox.UntypedTopic, h any, fn func(ctx context.Context, tx pgx.Tx, e outbox.Event, payload any) error,
) Handler {
	lh := listenerHandler(t, h != nil, fn)
	lh.transactional = true
	return lh
}

// listenerHandler ties t to call, which gets a pointer to the payload; given says whether there is a handler.
func listenerHandler(
	t *outbox.UntypedTopic, given bool, call func(context.Context, pgx.Tx, outbox.Event, any) error,
) Handler {
	spec := t.Spec()
	lh := Handler{
		schema: spec.Schema, namespace: spec.Namespace, topic: spec.Name, renamedFrom: spec.RenamedFrom, version: t.Version(),
		log: spec.Log, retention: config.RetentionWithDefaults(spec.Retention),
	}
	if !given {
		return lh
	}
	lh.decoder, lh.run = config.Opener(t), call
	return lh
}

func listenerPublishes(t *outbox.UntypedTopic, p publish.Publication) Handler {
	lh := listenerHandler(t, false, nil)
	lh.publication = target.NewRoute(t, p)
	return lh
}

// Listener reads log topics with its own cursors and runs their handlers, in order within a partition key. Any number
// of processes may run one listener: each of its shards is held by one of them at a time.
//
// A Listener passes only payload versions that it knows, those up to the version of the topic's Topic; a publisher too,
// because it decodes payloads for keys and headers. If the next event of a shard has a newer version, the Listener
// stops before it, charges it nothing, and gives the shard up to a process that knows the version. As long as there is
// none, it tries the shard again once per PollInterval. The other shards continue.
type Listener struct {
	spec          Spec
	cfg           Config
	pool          *pgxpool.Pool
	db            *schemadb.Schema
	handlers      map[string]*served // by "namespace/topic"
	serving       []*served          // likewise, by index
	topics        []string
	versions      []int32 // the newest that is known of each topic
	rate          *rate   // nil if it has none
	transactional bool
	keyPrefixes   []string // of each topic, the prefix of its keys, so that destinations do not wait for each other
	targets       *target.Targets
	publishes     bool
	grows         bool // batches grow: it publishes, and BatchSize is not set
	log           *slog.Logger
	hooks         *report.Hooks
	rep           *report.Log
	parkedLimit   int32         // core.MaxParkedKeys, except in a test
	pauseLimit    time.Duration // backoff.LongestPause, except in a test
	leaseAge      time.Duration // leaseAge, except in a test
	takeOverAfter time.Duration // takeOverPause, except in a test
	busy          atomic.Bool   // Run or Drain is under way
	newerAt       atomic.Int64  // when it gave up a shard because of an unknown version, in nanoseconds since 1970
	newerVersions newerVersions // the unknown versions
	signals       listenerSignals
}

// listenerSignals let tests wait for what happens inside; nil channels cost nothing.
type listenerSignals struct {
	// nothing is due, and the next enqueue wakes the listener (or, without a doorbell, it polls)
	idle       testsignal.Signal
	ended      testsignal.Signal // a lease was ended
	handedOver testsignal.Signal // a shard was given up before an event of an unknown version
	carried    testsignal.Signal // a lease began with a batch that the previous one has read ahead
	continued  testsignal.Signal // a lease continued with a batch that was read ahead
	lost       testsignal.Signal // a lease was lost
	refused    testsignal.Signal // the doorbell refused to watch
	maintained testsignal.Signal // pruned, and checked lag
	filling    testsignal.Signal // too few events for a batch were found
}

// New returns a listener for handlers, which must all be of one schema and one mode. The caller closes pool. Generated
// constructors call it.
func New(pool *pgxpool.Pool, spec Spec, cfg Config, handlers ...Handler) (*Listener, error) {
	l, err := newListener(pool, spec.withDefaults(), cfg, handlers)
	if err != nil {
		return nil, fmt.Errorf("new listener: %w", err)
	}
	return l, nil
}

// served is a topic of the listener: its handler and the target of its events.
type served struct {
	Handler
	core.Topic
	target *target.Target
}

// topicOf returns what the core knows of a topic. It is nil if the listener does not read that topic any more.
func (l *Listener) topicOf(namespace, topic string) *core.Topic {
	if s := l.handlers[namespace+"/"+topic]; s != nil {
		return &s.Topic
	}
	return nil
}

// of returns what the listener knows of the topic of e; nil if it does not read that topic any more.
func (l *Listener) of(e *core.Entry) *served {
	if e.Of == nil {
		return nil
	}
	return l.serving[e.Of.Index]
}

func newListener(pool *pgxpool.Pool, spec Spec, cfg Config, handlers []Handler) (*Listener, error) {
	if pool == nil {
		return nil, errors.New("no pool")
	}
	if len(handlers) == 0 {
		return nil, errors.New("no handlers")
	}
	spec.Retry = config.OverrideRetry(spec.Retry, cfg.Retry)
	grows := cfg.BatchSize == 0 && handlers[0].publication != nil
	cfg = cfg.withDefaults(spec)
	if err := errtext.Join(spec.validate(), cfg.validate()); err != nil {
		return nil, err
	}
	if cfg.WorkerID == uuid.Nil {
		var err error
		if cfg.WorkerID, err = uuid.NewV7(); err != nil {
			return nil, err
		}
	}
	db, err := schemadb.Open(spec.Schema)
	if err != nil {
		return nil, err
	}
	l := &Listener{
		spec: spec, cfg: cfg, pool: pool, db: db, parkedLimit: core.MaxParkedKeys, pauseLimit: backoff.LongestPause,
		leaseAge: leaseAge, takeOverAfter: takeOverPause + spec.Batch.Wait,
		handlers: make(map[string]*served, len(handlers)), transactional: handlers[0].transactional,
		publishes: handlers[0].publication != nil, grows: grows,
		log: usercode.Logger(cfg.Logger).With("listener", spec.Name, "worker_id", cfg.WorkerID),
	}
	l.rep = report.NewLog(l.log, time.Now)
	if l.publishes {
		l.leaseAge = relayAge
	}
	l.rate = newRate(l)
	l.newerVersions.log = l.log
	l.hooks = report.NewHooks(cfg.Observer, l.runner(), l.log)
	l.targets = target.NewTargets(cfg.Breaker, cfg.Publishers, l.log)
	l.targets.Hooks = l.hooks
	for _, h := range handlers {
		if err := l.serve(h); err != nil {
			return nil, err
		}
	}
	if spec.Batch.Size > cfg.BatchSize {
		return nil, fmt.Errorf("field BatchSize %d is less than the %d events of Spec.Batch", cfg.BatchSize,
			spec.Batch.Size)
	}
	if l.transactional && cfg.Concurrency > 1 {
		return nil, fmt.Errorf("field Concurrency %d: a transaction runs one handler at a time", cfg.Concurrency)
	}
	return l, nil
}

// serve adds the topic of h to those of the listener, under each of its names.
func (l *Listener) serve(h Handler) error {
	name := h.namespace + "/" + h.topic
	if err := l.checkHandler(&h); err != nil {
		return fmt.Errorf("topic %s: %w", name, err)
	}
	if err := l.targets.Add(name, h.publication); err != nil {
		return fmt.Errorf("topic %s: %w", name, err)
	}
	prefix := ""
	if l.publishes {
		prefix = l.targets.ByTopic[name].KeyPrefix()
	}
	for _, alias := range append([]string{h.topic}, h.renamedFrom...) {
		known := h.namespace + "/" + alias
		if _, twice := l.handlers[known]; twice {
			return fmt.Errorf("topic %s: has two handlers", known)
		}
		l.targets.Alias(known, name)
		h.topic = alias // as its events have it
		to := l.targets.ByTopic[known]
		about := core.Topic{Index: len(l.topics), Version: h.version, Target: to, KeyPrefix: prefix}
		l.handlers[known] = &served{h, about, to}
		l.serving = append(l.serving, l.handlers[known])
		l.keyPrefixes = append(l.keyPrefixes, prefix)
		l.topics, l.versions = append(l.topics, known), append(l.versions, int32(h.version))
	}
	return nil
}

// checkHandler checks that the listener can run h, and with the handlers that it has.
func (l *Listener) checkHandler(h *Handler) error {
	switch {
	case h.run == nil && h.publication == nil && h.runBatch == nil:
		return errors.New("no handlers given (nil)")
	case h.publication != nil && l.spec.Batch.Size > 0:
		return errors.New("it publishes, and publishers have batches of their own: leave Spec.Batch out")
	case h.run != nil && l.spec.Batch.Size > 0:
		return errors.New("its handler gets one event, and Spec.Batch is set: use HandleBatch or HandleTxBatch")
	case h.runBatch != nil && l.spec.Batch.Size == 0:
		return errors.New("its handler gets batches, and Spec.Batch is not set: set Size, or use Handle or HandleTx")
	case h.publication != nil && h.publication.ByEvent():
		return errors.New("its publication has DestinationOf, which is for queue topics: use Destination")
	case (h.publication != nil) != l.publishes:
		return errors.New("one listener has topics that publish and topics with handlers")
	case !h.log:
		return errors.New("has delivery queue: a listener reads log topics")
	case cmp.Or(h.schema, "outbox") != l.db.Name():
		return fmt.Errorf("is in schema %q, the listener in %q", h.schema, l.db.Name())
	case h.transactional != l.transactional:
		return errors.New("one listener has handlers with a transaction and without")
	}
	return nil
}
