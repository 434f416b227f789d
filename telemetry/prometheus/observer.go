package prometheus

import (
	"context"
	"maps"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxgen/outboxgen/outbox"
)

// The labels. A topic is "namespace/name". The label namespace is not used, because Kubernetes sets it to its own.
const (
	labelTopic      = "topic"
	labelListener   = "listener"   // "" for queue topics
	labelConsumer   = "consumer"   // a consumer group
	labelDispatcher = "dispatcher" // its namespace, "" for listeners
	labelOutcome    = "outcome"
	labelSettlement = "settlement"
	labelTarget     = "target"
	labelPer        = "per" // of a limit, as in the YAML; "topic" for that of all of the topic
)

// seconds are the boundaries of the histograms: from a fast claim to a slow handler.
var seconds = []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60}

// observe makes the metrics of this process and the observer that sets them.
func (c *Collector) observe() {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		c.own = append(c.own, v)
		return v
	}
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: seconds}, labels)
		c.own = append(c.own, v)
		return v
	}
	c.enqueued = counter("outboxgen_enqueued_events_total",
		"Events that were enqueued. The transaction may have been rolled back afterwards.", labelTopic)
	c.duplicates = counter("outboxgen_enqueue_duplicates_total",
		"Events that were not enqueued, because their dedupe keys were taken.", labelTopic)
	c.enqueueFailures = counter("outboxgen_enqueue_failures_total", "Calls of an enqueue that returned an error.",
		labelTopic)
	c.enqueueTime = histogram("outboxgen_enqueue_duration_seconds", "Time that a call of an enqueue took.", labelTopic)
	c.claimTime = histogram("outboxgen_claim_duration_seconds",
		"Time that a claim of a dispatcher took, or the read of a listener, also if there was nothing.", labelDispatcher,
		labelListener)
	c.claimed = counter("outboxgen_claimed_events_total",
		"Events that were claimed by a dispatcher or read by a listener.", labelTopic, labelListener)
	c.handled = counter("outboxgen_handled_events_total",
		"Events whose handler or publisher has returned, by outcome: success or failure.", labelTopic, labelListener,
		labelOutcome)
	c.handlerTime = histogram("outboxgen_handler_duration_seconds",
		"Time that a call of a handler took, or of a publisher, which gets several events.", labelTopic, labelListener)
	c.settled = counter("outboxgen_settled_events_total",
		"Events whose attempt has ended, by settlement: delivered, retried, dead, released or parked.", labelTopic,
		labelListener, labelSettlement)
	c.dead = counter("outboxgen_dead_events_total", "Events that became dead letters.", labelTopic, labelListener)
	c.lost = counter("outboxgen_lost_events_total",
		"Events whose lease was lost before they were settled. They are handled again.", labelTopic, labelListener)
	c.failures = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "outboxgen_gauges_failures_total", Help: "Readings of the gauges from the database that failed.",
	})
	c.own = append(c.own, c.failures)
	c.observer = &outbox.Observer{
		Enqueued: c.onEnqueued, Claimed: c.onClaimed, Finished: c.onFinished,
		Settled: func(r outbox.Runner, e outbox.Event, s outbox.Settlement) {
			c.settled.WithLabelValues(topicOf(e), r.Listener, string(s)).Inc()
		},
		Lost:    func(r outbox.Runner, e outbox.Event) { c.lost.WithLabelValues(topicOf(e), r.Listener).Inc() },
		Dead:    func(r outbox.Runner, e outbox.Event, _ error) { c.dead.WithLabelValues(topicOf(e), r.Listener).Inc() },
		Resting: func(r outbox.Runner, target string, _ error) { c.rests(r, target, true) },
		Resumed: func(r outbox.Runner, target string, _ time.Duration) { c.rests(r, target, false) },
	}
}

func topicOf(e outbox.Event) string { return e.Namespace + "/" + e.Topic }

func (c *Collector) onEnqueued(_ context.Context, e outbox.Enqueued) {
	topic := e.Namespace + "/" + e.Topic
	c.enqueueTime.WithLabelValues(topic).Observe(e.Took.Seconds())
	if e.Err != nil {
		c.enqueueFailures.WithLabelValues(topic).Inc()
		return
	}
	c.enqueued.WithLabelValues(topic).Add(float64(e.Events))
	c.duplicates.WithLabelValues(topic).Add(float64(e.Duplicates))
}

func (c *Collector) onClaimed(r outbox.Runner, events []outbox.Event, took time.Duration) {
	c.claimTime.WithLabelValues(r.Namespace, r.Listener).Observe(took.Seconds())
	c.heard(r)
	for _, e := range events {
		c.claimed.WithLabelValues(topicOf(e), r.Listener).Inc()
	}
}

func (c *Collector) onFinished(
	_ context.Context, r outbox.Runner, events []outbox.Event, errs []error, took time.Duration,
) {
	timed := make(map[string]bool, 1)
	for i, e := range events {
		topic, outcome := topicOf(e), "success"
		if i >= len(errs) || errs[i] != nil { // a publisher may return the wrong number of errors
			outcome = "failure"
		}
		c.handled.WithLabelValues(topic, r.Listener, outcome).Inc()
		if !timed[topic] {
			timed[topic] = true
			c.handlerTime.WithLabelValues(topic, r.Listener).Observe(took.Seconds())
		}
	}
}

// rest is what rests for a dispatcher's namespace or a listener.
type rest struct{ target, dispatcher, listener string }

var descResting = prometheus.NewDesc("outboxgen_resting",
	"How many dispatchers or listeners of this process do not claim a topic or destination for a while, because its "+
		"target is unavailable.",
	[]string{labelTarget, labelDispatcher, labelListener}, nil)

// silent is after how long without a claim a runner has ended. A rest that it has not ended is forgotten then.
const silent = 10 * time.Minute

func (c *Collector) rests(r outbox.Runner, target string, begins bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := rest{target, r.Namespace, r.Listener}
	if c.resting[key] == nil {
		c.resting[key] = make(map[outbox.Runner]time.Time)
	}
	if begins {
		c.resting[key][r] = c.now()
	} else {
		delete(c.resting[key], r) // the target stays, with 0
	}
}

// heard notes that r is running.
func (c *Collector) heard(r outbox.Runner) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, runners := range c.resting {
		if _, rests := runners[r]; rests {
			runners[r] = c.now()
		}
	}
}

func (c *Collector) collectResting(to chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, runners := range c.resting {
		maps.DeleteFunc(runners, func(_ outbox.Runner, heard time.Time) bool { return c.now().Sub(heard) > silent })
		to <- prometheus.MustNewConstMetric(descResting, prometheus.GaugeValue, float64(len(runners)), key.target,
			key.dispatcher, key.listener)
	}
}
