package prometheus

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
)

// gauge is a metric that is read from the database.
type gauge struct {
	desc *prometheus.Desc
}

// gauges are all of them.
var gauges []*gauge

func newGauge(name, help string, labels ...string) *gauge {
	g := &gauge{prometheus.NewDesc(name, help, labels, nil)}
	gauges = append(gauges, g)
	return g
}

var (
	gaugeDue = newGauge("outboxgen_due_events",
		"Events of a queue topic that could be handled now, or as soon as a limit allows it. Counts of events are exact up "+
			"to 100,000, and not larger.", labelTopic)
	gaugeRetrying = newGauge("outboxgen_retrying_events",
		"Events of a queue topic that have failed and wait for their next attempt.", labelTopic)
	gaugeScheduled = newGauge("outboxgen_scheduled_events",
		"Events of a queue topic that were never tried and are due later.", labelTopic)
	gaugeInFlight = newGauge("outboxgen_in_flight_events", "Events of a queue topic that are claimed.", labelTopic)
	gaugeOldest   = newGauge("outboxgen_oldest_due_seconds",
		"Age since its enqueue of the oldest event of a queue topic that is not final, without scheduled ones.", labelTopic)
	gaugeDead = newGauge("outboxgen_dead_letters",
		"Dead letters of a queue topic, or of a listener with topic empty.", labelTopic, labelListener)
	gaugeProcesses = newGauge("outboxgen_topic_processes", "Running dispatchers that take a queue topic.", labelTopic)
	gaugeVersions  = newGauge("outboxgen_unhandled_versions",
		"Versions of waiting events of a queue topic that are newer than what any running dispatcher knows.", labelTopic)

	// Of each limit of a queue topic. per is topic for that of all of the topic; no label has a key.
	gaugeLimitWaiting = newGauge("outboxgen_limit_waiting_events",
		"Due events that wait at a limit of a queue topic, among its first 10,000 due events.", labelTopic, labelPer)
	gaugeLimitLongest = newGauge("outboxgen_limit_longest_wait_seconds",
		"How long the first event that waits at a limit has been due.", labelTopic, labelPer)
	gaugeLimitUsed = newGauge("outboxgen_limit_used_ratio",
		"How much of a limit the key uses that uses most: 1 is all of it.", labelTopic, labelPer)
	gaugeLimitFull = newGauge("outboxgen_limit_full_keys", "Keys of a limit of which no event may start now.", labelTopic,
		labelPer)

	gaugeLag = newGauge("outboxgen_listener_lag_seconds",
		"Age of the oldest event that a listener has not handled.", labelListener)
	gaugeUnread = newGauge("outboxgen_listener_unread_events",
		"Estimate of the events that a listener has not read.", labelListener)
	gaugeParked = newGauge("outboxgen_listener_parked_events",
		"Events that wait behind a failed one of their key.", labelListener)
	gaugePaused            = newGauge("outboxgen_listener_paused", "1 if a listener is paused.", labelListener)
	gaugeListenerProcesses = newGauge("outboxgen_listener_processes", "Running processes of a listener.", labelListener)

	// There are none of a consumer that keeps no message.
	gaugeConsumerParked = newGauge("outboxgen_consumer_parked_messages",
		"Messages that a consumer group tries again, or that wait behind one of their key.", labelConsumer)
	gaugeConsumerDead   = newGauge("outboxgen_consumer_dead_letters", "Dead letters of a consumer group.", labelConsumer)
	gaugeConsumerOldest = newGauge("outboxgen_consumer_oldest_parked_seconds",
		"How long the oldest parked message of a consumer group has been kept.", labelConsumer)
	gaugeConsumerOverdue = newGauge("outboxgen_consumer_overdue_seconds",
		"How long a parked message of a consumer group has been due without being tried.", labelConsumer)

	gaugeHeld = newGauge("outboxgen_held_snapshot_seconds",
		"Age of the oldest transaction that keeps old row versions, which slows claims. Needs the role pg_read_all_stats "+
			"to see those of other roles.")
)

var descReader = prometheus.NewDesc("outboxgen_gauges_reader",
	"1 if this process reads and exports the gauges from the database. One process does.", nil, nil)

// reading is the gauges at one time.
type reading struct {
	values []value
}

type value struct {
	of     *gauge
	value  float64
	labels []string
}

func (r *reading) set(g *gauge, v float64, labels ...string) {
	r.values = append(r.values, value{g, v, labels})
}

// source reads the gauges.
type source interface {
	read(ctx context.Context) (*reading, error)
}
