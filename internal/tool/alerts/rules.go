package alerts

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// alert is a rule of Prometheus. Its anchor is the heading in docs/operate/runbook.md that says what to do.
type alert struct {
	name, expr string
	lasts      time.Duration
	severity   string
	summary    string
	anchor     string
}

// Rules returns a file of alerting rules for Prometheus.
func Rules(c Config) []byte {
	c = c.withDefaults()
	var b strings.Builder
	b.WriteString("# Written by outboxgen export prometheus-rules.\ngroups:\n")
	group := "outboxgen"
	if c.Name != "" {
		group += "-" + c.Name
	}
	fmt.Fprintf(&b, "  - name: %s\n    rules:\n", quoted(group))
	for _, a := range c.alerts() {
		fmt.Fprintf(&b, "      - alert: %s\n        expr: %s\n        for: %s\n", a.name, quoted(a.expr), words(a.lasts))
		fmt.Fprintf(&b, "        labels:\n          severity: %s\n", a.severity)
		fmt.Fprintf(&b, "        annotations:\n          summary: %s\n          runbook_url: %s\n", quoted(a.summary),
			quoted(c.Runbook+"#"+a.anchor))
	}
	return []byte(b.String())
}

// quoted returns s as a scalar of YAML. No text of an alert has control characters.
func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

const (
	critical = "critical"
	warning  = "warning"
)

// parkedLong is how long a message may be parked, or due without being tried. The doctor has the same bound.
const parkedLong = 10 * time.Minute

// limitLong is how long events may wait at a limit.
const limitLong = time.Hour

func (c Config) alerts() []alert {
	var list []alert
	for _, b := range c.bounds("topic", c.Topics) {
		list = append(list, alert{
			"OutboxOldestDue", across("max", c.metric("outboxgen_oldest_due_seconds", matchers(b)...)) + " > " + seconds(b.lag),
			time.Minute, critical,
			"The oldest undelivered event of {{ $labels.topic }} is {{ $value | humanizeDuration }} old (bound " + words(b.lag) +
				").", "alert-oldest-due",
		})
	}
	for _, b := range c.bounds("listener", c.Listeners) {
		list = append(list, alert{
			"OutboxListenerLag", across("max", c.metric("outboxgen_listener_lag_seconds", matchers(b)...)) + " > " +
				seconds(b.lag), time.Minute, critical,
			"Listener {{ $labels.listener }} lags by {{ $value | humanizeDuration }} (bound " + words(b.lag) + ").",
			"alert-listener-lag",
		})
	}
	// The counter finds growth beyond what the gauge counts. It misses the first events of a process.
	letters := across("max", c.metric("outboxgen_dead_letters"))
	list = append(list, alert{
		"OutboxDeadLetters", letters + " > min_over_time(" + letters + "[15m:1m]) or " +
			across("sum", "increase("+c.metric("outboxgen_dead_events_total", `listener=""`)+"[15m])") + " > 0", 0, warning,
		"Events of {{ $labels.topic }}{{ $labels.listener }} became dead letters in the last 15 minutes.",
		"alert-dead-letters",
	}, alert{
		"OutboxConsumerDeadLetters", c.consumerDeadLetters(), 0, warning,
		"Consumer {{ $labels.consumer }} gave messages up in the last 15 minutes: their effects are missing.",
		"alert-consumer-dead-letters",
	}, alert{
		"OutboxConsumerParked", across("max", c.metric("outboxgen_consumer_oldest_parked_seconds")) + " > " +
			seconds(parkedLong), time.Minute, warning,
		"Consumer {{ $labels.consumer }} has parked a message for {{ $value | humanizeDuration }}: later messages of its " +
			"key wait.", "alert-consumer-parked",
	}, alert{
		"OutboxConsumerOverdue", across("max", c.metric("outboxgen_consumer_overdue_seconds")) + " > " + seconds(parkedLong),
		time.Minute, critical,
		"Nobody tries a parked message of consumer {{ $labels.consumer }}, which is due for {{ $value | humanizeDuration }}.",
		"alert-consumer-parked",
	}, alert{
		"OutboxLimitWaits", across("max", c.metric("outboxgen_limit_longest_wait_seconds")) + " > " + seconds(limitLong),
		5 * time.Minute, warning,
		"Events of {{ $labels.topic }} have waited for {{ $value | humanizeDuration }} at the limit per {{ $labels.per }}.",
		"alert-limit-waits",
	}, alert{
		"OutboxTargetResting", across("max", c.metric("outboxgen_resting")) + " > 0", 2 * time.Minute, warning,
		"{{ $labels.target }} is unavailable: its events wait.", "alert-target-resting",
	}, alert{
		"OutboxTopicUnhandled",
		across("max", c.metric("outboxgen_topic_processes")) + " == 0 and " + c.waiting() + " > 0 or " +
			across("max", c.metric("outboxgen_unhandled_versions")) + " > 0", 5 * time.Minute, critical,
		"No running process takes {{ $labels.topic }}, or some version of its events.", "alert-topic-unhandled",
	}, alert{
		"OutboxListenerUnhandled", across("max", c.metric("outboxgen_listener_processes")) + " == 0", 5 * time.Minute,
		critical, "No process runs listener {{ $labels.listener }}.", "alert-topic-unhandled",
	})
	for _, name := range slices.Sorted(maps.Keys(c.Listeners)) {
		list = append(list, alert{
			"OutboxListenerMissing", fmt.Sprintf("absent(%s) and on () (max(%s) == 1)",
				c.metric("outboxgen_listener_processes", "listener="+fmt.Sprintf("%q", name)),
				c.metric("outboxgen_gauges_reader")), 5 * time.Minute, critical,
			"Listener " + name + " was never started, or it was detached: the log does not keep events for it.",
			"alert-topic-unhandled",
		})
	}
	return append(list, alert{
		"OutboxClaimsSlow",
		"histogram_quantile(0.95, " + across("sum", "rate("+c.metric("outboxgen_claim_duration_seconds_bucket")+"[5m])") +
			") > 0.5", 10 * time.Minute, warning,
		"Claims of {{ $labels.dispatcher }}{{ $labels.listener }} take {{ $value | humanizeDuration }} (95th percentile).",
		"alert-claims-slow",
	}, alert{
		"OutboxSnapshotHeld", across("max", c.metric("outboxgen_held_snapshot_seconds")) + " > 900", time.Minute, warning,
		"A transaction has been open for {{ $value | humanizeDuration }}: it slows all claims down.", "alert-snapshot-held",
	}, alert{
		"OutboxGaugesMissing", "absent(" + c.metric("outboxgen_gauges_reader") + " == 1)", 5 * time.Minute, critical,
		"No process exports the gauges of the outbox: the other alerts are blind.", "alert-gauges-missing",
	})
}

// consumerDeadLetters finds dead letters of consumers that were not there 15 minutes ago. A consumer that keeps no
// message has no gauge, so its first dead letter is a gauge that is new. It counts only if the gauges were exported at
// that time.
func (c Config) consumerDeadLetters() string {
	const name, ago = "outboxgen_consumer_dead_letters", " offset 15m"
	letters := across("max", c.metric(name))
	return letters + " > min_over_time(" + letters + "[15m:1m]) or (" + letters + " > 0 unless " +
		across("max", c.metric(name)+ago) + ") and on () (max(" +
		c.metric("outboxgen_gauges_reader") + ago + ") == 1)"
}

// waiting is the number of the events of a topic that are not final.
func (c Config) waiting() string {
	var parts []string
	for _, state := range []string{"due", "retrying", "scheduled", "in_flight"} {
		parts = append(parts, across("max", c.metric("outboxgen_"+state+"_events")))
	}
	return strings.Join(parts, " + ")
}

func matchers(b bound) []string {
	if b.matcher == "" {
		return nil
	}
	return []string{b.matcher}
}
