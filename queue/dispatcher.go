// Package queue delivers the events of queue topics: each event to one handler, or to a broker, with retries.
//
// A Dispatcher claims events under leases, runs the handlers and settles the results. Generated constructors make one:
//
//	d, err := events.NewMiniChatDispatcher(pool, &handlers{}, queue.Config{})
//	if err != nil {
//		return err
//	}
//	return d.Run(ctx) // until ctx ends
//
// NewDispatcher with Handle or Publish does the same without generated code. Any number of processes may run
// dispatchers of one namespace. An event is delivered at least once: a handler must tolerate repeats. A Store has the
// operations that a Dispatcher is built on: claim, ack, nack, release and extend. Programs with their own loop use it
// directly.
package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/internal/call/usercode"
	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/internal/machine/heartbeat"
	"github.com/outboxgen/outboxgen/internal/machine/report"
	"github.com/outboxgen/outboxgen/internal/machine/target"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/queue/internal/core"
	"github.com/outboxgen/outboxgen/seal"
)

// Config tunes a dispatcher. The zero value is a good start.
type Config struct {
	// WorkerID marks the claims of this dispatcher; the zero UUID means a new one.
	WorkerID uuid.UUID
	// BatchSize limits the events in one claim and the events in flight, including those whose handlers run; 0 means
	// 100. If Concurrency is larger, that many may be in flight. If topics have larger batches (TopicSpec.Batch), one
	// claim takes up to a full batch, and Concurrency full batches may be in flight in addition, up to 10,000 events.
	// With 0, it grows up to 400 while claims of topics with fairness or limits find events, no limit is reached, and
	// handlers end that many within 30 ms; likewise while events are published fast and none waits for a handler. In a
	// dispatcher that only publishes it grows up to 800 while that many are published within 100 ms. More than 100 are in
	// flight only if their payload is expected to be at most 8 MiB.
	BatchSize int
	// Concurrency is how many calls of handlers run concurrently, each with one event or one batch; 0 means 10. Handlers
	// that use the dispatcher's pool share its connections with the dispatcher, which uses up to four: give the pool
	// Concurrency + 4 connections. Run logs a warning when it has fewer.
	Concurrency int
	// LeaseDuration is how long an event stays claimed after its dispatcher was killed. A lease is renewed when a third
	// of it has passed, for as long as the handler runs. 0 means the longest lease of the topics.
	LeaseDuration time.Duration
	// PollInterval is how often an idle dispatcher polls, in addition to being woken: it finds events that fall due,
	// and events whose wake-up was lost. A busy dispatcher checks this often for events whose lease ran out and, during
	// a backlog, for events that a longer transaction has committed late. This often it also reads what operators have
	// paused. At most a third of the lease; 0 means 1 s, or that third if it is shorter.
	PollInterval time.Duration
	// MaxPollInterval is the limit up to which PollInterval doubles while a dispatcher with WakePoll finds nothing. It
	// is the longest time until an event is found. Like PollInterval it is at most a third of the lease, because events
	// whose lease ran out are found in the same way; 0 means 10 s, or that third if it is shorter.
	MaxPollInterval time.Duration
	// ShutdownTimeout is how long handlers may finish once Run's context has ended; 0 means 20 s. After it
	// their contexts are cancelled.
	ShutdownTimeout time.Duration
	// PruneInterval is how often events past their retention are deleted; 0 means 10 min, negative never.
	PruneInterval time.Duration
	// MaxAttempts, if positive, replaces the limit of every event, and Retry.MaxAttempts too.
	MaxAttempts int
	// Retry overrides the retry settings of every topic in the YAML, field by field; a zero field changes nothing. An
	// event keeps the limit that was in force when it was enqueued: Retry.MaxAttempts replaces it when the event is
	// claimed.
	Retry outbox.Retry
	// Topics are the only ones delivered, by name without the namespace; nil means all that have a handler. An empty,
	// non-nil slice is an error, because it is probably a bug.
	Topics []string
	// TenantIDs are the only tenants whose events are delivered, for example one shard of a drain; nil means all. An
	// empty, non-nil slice is an error, so that an empty shard does not drain everything.
	TenantIDs []uuid.UUID
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
	// Wake is how an idle dispatcher learns of new events; "" means WakeDoorbell.
	Wake outbox.Wake
	// ListenPool makes the connection for LISTEN. It is needed when the main pool goes through a pooler that does not
	// support LISTEN; nil means the main pool. The connection is taken out of the pool and does not count against its
	// limit. One of the main pool is also used for the claim that follows a notification, because its backend is awake. While
	// a transaction that has enqueued stays open, one more waits for its end.
	ListenPool *pgxpool.Pool
	// Middleware wraps the calls of handlers, the first one outermost. Publishers are called without it.
	Middleware []outbox.Middleware
	// BatchMiddleware wraps the calls of handlers that get batches, the first one outermost. It is an error if Middleware
	// is set and this is nil while a topic has batches; an empty slice means none.
	BatchMiddleware []outbox.BatchMiddleware
	// Observer is told what happens to events, for metrics and tracing; nil means nobody.
	Observer *outbox.Observer
	// Logger gets changes of state: start and stop, topics that fail and recover, dead letters, targets that rest, and a
	// database that does not answer. At DEBUG it gets a line per failed event too. nil means slog.Default(). No payload is
	// ever logged.
	Logger *slog.Logger
}

// common returns the fields that cfg shares with a listener.Config.
func (cfg *Config) common() config.Common {
	return config.Common{
		BatchSize: &cfg.BatchSize, Concurrency: &cfg.Concurrency, MaxConcurrency: config.MaxBatchSize,
		MaxAttempts: &cfg.MaxAttempts, LeaseDuration: &cfg.LeaseDuration, PollInterval: &cfg.PollInterval,
		MaxPollInterval: &cfg.MaxPollInterval, ShutdownTimeout: &cfg.ShutdownTimeout, PruneInterval: &cfg.PruneInterval,
		Retry: &cfg.Retry, Breaker: &cfg.Breaker, Wake: &cfg.Wake, Middleware: &cfg.Middleware, Logger: &cfg.Logger,
	}
}

func (cfg Config) withDefaults(handlers []Handler) Config {
	config.SetDefault(&cfg.Concurrency, 10)
	if cfg.LeaseDuration == 0 {
		for _, h := range handlers {
			cfg.LeaseDuration = max(cfg.LeaseDuration, h.lease)
		}
	}
	config.SetDefault(&cfg.LeaseDuration, config.DefaultLease)
	cfg.common().SetDefaults()
	cfg.BatchMiddleware = slices.Clone(cfg.BatchMiddleware)
	cfg.Topics, cfg.TenantIDs = slices.Clone(cfg.Topics), slices.Clone(cfg.TenantIDs)
	return cfg
}

func (cfg Config) validate() error {
	switch {
	case cfg.Topics != nil && len(cfg.Topics) == 0:
		return errors.New("field Topics is empty: nil means all topics")
	case cfg.TenantIDs != nil && len(cfg.TenantIDs) == 0:
		return errors.New("field TenantIDs is empty: nil means all tenants")
	}
	return cfg.common().Validate()
}

// Dispatcher claims the events of one namespace, runs their handlers and settles the outcomes. A handler
// that returns nil acks its event, an error or a panic nacks it. Events of topics without a handler in this
// dispatcher, and events whose payload version is newer than that of their topic here, are left to other processes:
// they stay due, and no attempt is counted.
type Dispatcher struct {
	cfg      Config
	store    *Store
	pool     *pgxpool.Pool
	handlers map[string]Handler
	topics   []string  // what is claimed
	limited  []limited // of topics
	versions *versions
	targets  *target.Targets
	machine  core.Config // of a run
	targetOf map[*core.Target]*target.Target
	pauses   atomic.Pointer[core.Pauses] // as they were read last; never nil
	log      *slog.Logger
	hooks    *report.Hooks
	rep      *report.Log
	busy     atomic.Bool // Run or Drain is under way
	signals  signals

	orphanAge time.Duration // heartbeat.OrphanAge, except in a test
	// how long it stops claims; the minimum of longestLastAttempt and a tenth of a lease, except in a test
	lastAttemptLimit time.Duration
}

// longestLastAttempt is how long an event that may kill its process stops other claims.
const longestLastAttempt = time.Second

// NewDispatcher returns a dispatcher for handlers, which must all be of one schema and namespace. The caller closes
// pool. Generated constructors call it.
func NewDispatcher(pool *pgxpool.Pool, cfg Config, handlers ...Handler) (*Dispatcher, error) {
	d, err := newDispatcher(pool, cfg, handlers)
	if err != nil {
		return nil, fmt.Errorf("new dispatcher: %w", err)
	}
	return d, nil
}

func newDispatcher(pool *pgxpool.Pool, cfg Config, handlers []Handler) (*Dispatcher, error) {
	if pool == nil {
		return nil, errors.New("no pool")
	}
	if len(handlers) == 0 {
		return nil, errors.New("no handlers")
	}
	grows := cfg.BatchSize == 0
	cfg = cfg.withDefaults(handlers)
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if err := cfg.validateBatches(handlers); err != nil {
		return nil, err
	}
	store, err := NewStore(pool, StoreConfig{
		Schema: handlers[0].schema, Namespace: handlers[0].namespace, WorkerID: cfg.WorkerID,
	})
	if err != nil {
		return nil, err
	}
	store.policies = make(map[string]policy, len(handlers))
	d := &Dispatcher{cfg: cfg, store: store, pool: pool, handlers: make(map[string]Handler, len(handlers))}
	d.pauses.Store(core.NoPauses)
	d.orphanAge = heartbeat.OrphanAge
	d.lastAttemptLimit = min(longestLastAttempt, cfg.LeaseDuration/10)
	d.log = usercode.Logger(cfg.Logger).With("dispatcher", store.namespace, "worker_id", store.worker)
	d.rep = report.NewLog(d.log, time.Now)
	d.hooks = report.NewHooks(cfg.Observer, d.runner(), d.log)
	d.targets = target.NewTargets(cfg.Breaker, cfg.Publishers, d.log)
	d.targets.Hooks = d.hooks
	for _, h := range handlers {
		switch {
		case h.run == nil && h.runBatch == nil && h.publication == nil:
			return nil, fmt.Errorf("topic %s/%s: no handlers given (nil)", h.namespace, h.topic)
		case h.schema != handlers[0].schema || h.namespace != store.namespace:
			return nil, fmt.Errorf("topic %s/%s of schema %q: a dispatcher serves one namespace, here %s of schema %q",
				h.namespace, h.topic, h.schema, store.namespace, handlers[0].schema)
		}
		if err := h.checkBatch(); err != nil {
			return nil, fmt.Errorf("topic %s/%s: %w", h.namespace, h.topic, err)
		}
		if err := d.targets.Add(h.namespace+"/"+h.topic, h.publication); err != nil {
			return nil, fmt.Errorf("topic %s/%s: %w", h.namespace, h.topic, err)
		}
		if err := outbox.CheckLimits(h.limits); err != nil {
			return nil, fmt.Errorf("topic %s/%s: %w", h.namespace, h.topic, err)
		}
		h.policy.retry = config.OverrideRetry(h.policy.retry, cfg.Retry)
		for _, name := range h.names() {
			if _, twice := d.handlers[name]; twice {
				return nil, fmt.Errorf("topic %s/%s: has two handlers", h.namespace, name)
			}
			d.handlers[name], store.policies[name] = h, h.policy
			d.targets.Alias(h.namespace+"/"+name, h.namespace+"/"+h.topic)
		}
		if len(cfg.Topics) == 0 {
			d.topics = append(d.topics, h.names()...)
		}
	}
	for _, topic := range cfg.Topics {
		h, ok := d.handlers[topic]
		if !ok || h.topic != topic {
			return nil, fmt.Errorf("field Topics: %s has no topic %q with a handler", store.namespace, topic)
		}
		d.topics = append(d.topics, h.names()...)
	}
	known := make(map[string]int, len(d.topics))
	for _, topic := range d.topics {
		known[topic] = d.handlers[topic].version
	}
	d.versions = versionsOf(known)
	d.limited = d.limitedTopics()
	d.machine = d.machineOf()
	d.machine.Grows = grows
	return d, nil
}

// scope returns what the dispatcher is responsible for, as a claim of nothing.
func (d *Dispatcher) scope() *claim {
	return &claim{
		Claim:       core.Claim{Topics: d.topics, Paused: d.pauses.Load()},
		maxAttempts: d.cfg.MaxAttempts, lease: d.cfg.LeaseDuration, versions: d.versions, tenants: d.cfg.TenantIDs,
	}
}

var (
	errBusy     = fmt.Errorf("the dispatcher %w", outbox.ErrBusy)
	errShutdown = errors.New("dispatcher is stopping: ShutdownTimeout has passed")
)

// runner is what observers are told of d.
func (d *Dispatcher) runner() outbox.Runner {
	return outbox.Runner{Namespace: d.store.namespace, WorkerID: d.store.worker}
}

// Run delivers until ctx ends and blocks until then. It logs that it starts and stops, and while the database does not
// answer it says so and tries again. Only an error at the start is returned, for example ErrNotMigrated.
//
// When ctx ends, Run stops claiming and releases the events that were not started, with their attempts uncounted. It
// lets handlers finish for ShutdownTimeout, then cancels their contexts, and acks what was done. It returns nil, or an
// error that names the handlers that are still running. It returns at the latest two seconds after ShutdownTimeout,
// even if handlers ignore their contexts or the database does not answer.
func (d *Dispatcher) Run(ctx context.Context) error {
	if !d.busy.CompareAndSwap(false, true) {
		return fmt.Errorf("run dispatcher: %w", errBusy)
	}
	defer d.busy.Store(false)
	ctx = config.WithKeyring(ctx, d.cfg.Keyring)
	if err := d.probe(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("run dispatcher: %w", err)
	}
	if _, err := d.readPauses(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("run dispatcher: %w", err)
	}
	if err := d.declareLimits(ctx, d.topics); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("run dispatcher: %w", err)
	}
	d.warnSmallPool()
	over := d.rep.Run("dispatcher", "topics", report.Topics(d.topics), "lease", d.cfg.LeaseDuration, "batch_size",
		d.cfg.BatchSize,
		"concurrency", d.cfg.Concurrency, "poll", d.cfg.PollInterval, "wake", d.cfg.Wake, "tenants", len(d.cfg.TenantIDs))
	err := d.run(ctx)
	over(err)
	return err
}

// ownConns is how many connections a dispatcher uses at the same time, without its handlers: its passes, the renewal of
// leases, and sweep or prune. The one that listens is not the pool's.
const ownConns = core.MaxPasses + 2

// warnSmallPool warns when handlers that use the pool, as most do, could delay the renewal of their own leases.
func (d *Dispatcher) warnSmallPool() {
	need, what := ownConns, "the dispatcher"
	for _, h := range d.handlers {
		if h.publication == nil {
			need, what = ownConns+d.cfg.Concurrency, fmt.Sprintf("the dispatcher (%d) and its handlers (Concurrency %d)",
				ownConns, d.cfg.Concurrency)
			break
		}
	}
	schemadb.WarnSmallPool(d.log, d.pool, need, what)
}

// probe fails when the tables do not exist.
func (d *Dispatcher) probe(ctx context.Context) error {
	return schemadb.WrapProbe(d.store.db, d.pool, d.store.db.Each(d.pool).EventProbe(ctx))
}
