// Package prometheus exports the metrics of an outbox to Prometheus: counters and histograms of what this process does,
// and gauges of what is in the database.
//
//	metrics, err := prometheus.New(prometheus.Config{Pool: pool})
//	if err != nil {
//		return err
//	}
//	registry.MustRegister(metrics)
//	go metrics.Run(ctx)                                          // reads the gauges until ctx ends
//	ctx = outbox.ContextWithObserver(ctx, metrics.Observer())    // counts what is enqueued with ctx
//	d, err := events.NewMiniChatDispatcher(pool, handlers, queue.Config{Observer: metrics.Observer()})
//
// To use another observer too, join them with outbox.JoinObservers. docs/operate/telemetry.md lists the metrics. No
// label has a tenant, an id or a key. The command `outboxgen export` prints alerts and a dashboard for them.
//
// # The gauges
//
// Any number of processes may use a Collector with the same database. One of them reads the gauges, every Interval, and
// exports them. The others export none. That process holds an advisory lock, on a connection that it takes out of the
// pool. When it ends, another one takes over within an Interval. A process that is not scraped does not compete.
package prometheus

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxgen/outboxgen/outbox"
)

// Config says what a Collector exports. Its zero value exports what this process does, without gauges from the
// database.
type Config struct {
	// Pool reads the gauges; nil means that this process exports none. The caller closes it after Run has returned.
	Pool *pgxpool.Pool
	// Schema has the tables; "" means "outbox".
	Schema string
	// Interval is how often the gauges are read; 0 means 15 s.
	Interval time.Duration
	// LockPool makes the connection that holds the advisory lock; nil means Pool. It must not go through a pooler in
	// transaction mode, which has no sessions.
	LockPool *pgxpool.Pool
	// Logger gets the errors of readings, one line when they begin and one when they end; nil means slog.Default().
	Logger *slog.Logger
}

// Collector is a prometheus.Collector. It is safe for concurrent use.
//
// One Collector serves one schema. Register the Collectors of several schemas through prometheus.WrapRegistererWith,
// with another label for each.
type Collector struct {
	cfg      Config
	observer *outbox.Observer
	own      []prometheus.Collector // of this process

	enqueued, duplicates, enqueueFailures, claimed, handled, settled, dead, lost *prometheus.CounterVec
	enqueueTime, claimTime, handlerTime                                          *prometheus.HistogramVec

	mu      sync.Mutex
	resting map[rest]map[outbox.Runner]time.Time // when the runner was heard of
	now     func() time.Time

	running  atomic.Bool
	scraped  atomic.Int64  // when, in Unix nanoseconds
	wanted   chan struct{} // the first scrape asks Run for a reading
	failures prometheus.Counter
	latest   atomic.Pointer[reading] // nil while this process does not read
	source   source
}

// New returns a Collector. Register it, and give its Observer to dispatchers, listeners and enqueues.
func New(cfg Config) (*Collector, error) {
	cfg.Interval = cmp.Or(cfg.Interval, 15*time.Second)
	if cfg.Interval < 0 {
		return nil, errors.New("new collector: field Interval is negative")
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	cfg.LockPool = cmp.Or(cfg.LockPool, cfg.Pool)
	c := &Collector{
		cfg: cfg, resting: make(map[rest]map[outbox.Runner]time.Time), now: time.Now, wanted: make(chan struct{}, 1),
	}
	if cfg.Pool != nil {
		var err error
		if c.source, err = newDatabase(cfg.Pool, cfg.Schema); err != nil {
			return nil, fmt.Errorf("new collector: %w", err)
		}
	}
	c.observe()
	return c, nil
}

// Observer returns the observer for the Config of dispatchers and listeners, and for outbox.ContextWithObserver.
func (c *Collector) Observer() *outbox.Observer { return c.observer }

// Describe implements prometheus.Collector.
func (c *Collector) Describe(to chan<- *prometheus.Desc) {
	for _, m := range c.own {
		m.Describe(to)
	}
	to <- descResting
	for _, g := range gauges {
		to <- g.desc
	}
	to <- descReader
}

// Collect implements prometheus.Collector. It does not wait for the database.
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	for _, m := range c.own {
		m.Collect(to)
	}
	c.collectResting(to)
	if c.source == nil {
		return
	}
	c.scraped.Store(time.Now().UnixNano())
	select {
	case c.wanted <- struct{}{}:
	default:
	}
	r := c.latest.Load()
	if r == nil {
		to <- prometheus.MustNewConstMetric(descReader, prometheus.GaugeValue, 0)
		return
	}
	to <- prometheus.MustNewConstMetric(descReader, prometheus.GaugeValue, 1)
	for _, v := range r.values {
		to <- prometheus.MustNewConstMetric(v.of.desc, prometheus.GaugeValue, v.value, v.labels...)
	}
}
