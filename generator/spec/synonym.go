package spec

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// keySynonyms are what other systems call our keys. The first one that the mapping may have is meant.
var keySynonyms = map[string][]string{
	"description": {"doc"}, "desc": {"doc"}, "comment": {"doc"}, "summary": {"doc"},
	"idempotency_key": {"dedupe_key"}, "idempotency": {"dedupe_key"}, "deduplication_key": {"dedupe_key"},
	"deduplication": {"dedupe_key"}, "dedup": {"dedupe_key"}, "dedup_key": {"dedupe_key"}, "unique_key": {"dedupe_key"},
	"ordering_key": {"partition_key", "key"}, "order_key": {"partition_key", "key"}, "group_key": {"partition_key", "key"},
	"routing_key": {"partition_key", "key"}, "message_key": {"key", "partition_key"},
	"data": {"payload"}, "body": {"payload"}, "properties": {"payload", "fields"}, "attributes": {"payload", "fields"},
	"fields": {"payload"}, "payload": {"fields"}, "values": {"enum"}, "events": {"topics"}, "messages": {"topics"},
	"aggregate": {"entity"}, "ttl": {"retention"},
	"max_length": {"max_len"}, "max_size": {"max_len", "size"}, "max_items": {"max_len"}, "length": {"max_len"},
	"min_length": {"min_len"}, "min_size": {"min_len"}, "min_items": {"min_len"}, "minimum": {"min"}, "min_value": {"min"},
	"maximum": {"max"}, "max_value": {"max"}, "regex": {"pattern"}, "regexp": {"pattern"}, "nullable": {"optional"},
	"secret": {"sensitive"}, "private": {"sensitive"}, "pii": {"sensitive"}, "masked": {"sensitive"},
	"encrypted": {"sensitive", "sealed"}, "encrypt": {"sensitive", "sealed"}, "go_name": {"go"},
	"go_type": {"go"}, "max_retries": {"max_attempts", "retry"}, "retries": {"max_attempts", "retry"},
	"max_attempts": {"retry"}, "backoff": {"base_delay", "retry"}, "initial_delay": {"base_delay"},
	"initial_interval": {"base_delay"}, "min_delay": {"base_delay"}, "max_backoff": {"max_delay"},
	"max_interval": {"max_delay"}, "visibility_timeout": {"lease"}, "lock_timeout": {"lease"},
	"subscribers": {"listeners"}, "subscriptions": {"listeners"}, "workers": {"concurrency"},
	"parallelism": {"concurrency", "limits"}, "max_concurrency": {"concurrency", "limits"},
	"max_concurrent": {"concurrency", "limits"}, "max_parallel": {"concurrency", "limits"},
	"concurrency_limit": {"concurrency", "limits"}, "rate_limit": {"rate", "limits"}, "ratelimit": {"rate", "limits"},
	"throttle": {"rate", "limits"}, "max_rate": {"rate", "limits"}, "key": {"per"}, "by": {"per"}, "scope": {"per"},
	"group_by": {"per"}, "batches": {"batch"}, "batching": {"batch"}, "batch_size": {"size", "batch"},
	"max_batch_size": {"size", "batch"}, "max_events": {"size"}, "linger": {"wait"}, "max_wait": {"wait"},
	"timeout": {"wait"}, "partitions": {"shards"}, "offset": {"start"},
	"on_error": {"on_failure"}, "notify": {"wake"}, "endpoint": {"to"}, "event_type": {"wire_name"},
	"event_name": {"wire_name"}, "message_type": {"wire_name"}, "cloudevents_type": {"wire_name"},
	"ce_type": {"wire_name"},
}

// nearestKey returns the key of names that name most likely means, or "".
func (d *decoder) nearestKey(name string, names []string) string {
	for _, synonym := range keySynonyms[strings.ReplaceAll(strings.ToLower(name), "-", "_")] {
		if slices.Contains(names, synonym) {
			return synonym
		}
	}
	if word, _, glued := strings.Cut(name, ":"); glued && slices.Contains(names, word) {
		return word
	}
	if name == "name" {
		return "" // the name of a topic is its key; wire_name, which is near, is something else
	}
	return d.Nearest(name, names)
}

var (
	spanParts = regexp.MustCompile(`([0-9]+)\s*([a-zµμ]+)`)
	spanWhole = regexp.MustCompile(`^([0-9]+\s*[a-zµμ]+\s*)+$`)
	spanUnits = map[string]time.Duration{
		"w": 7 * 24 * time.Hour, "week": 7 * 24 * time.Hour, "d": 24 * time.Hour, "day": 24 * time.Hour,
		"h": time.Hour, "hr": time.Hour, "hour": time.Hour, "m": time.Minute, "min": time.Minute, "minute": time.Minute,
		"s": time.Second, "sec": time.Second, "second": time.Second, "ms": time.Millisecond, "msec": time.Millisecond,
		"millisecond": time.Millisecond,
	}
)

// betterDuration returns what "7d", "5 minutes" or "PT30S" most likely mean, or "".
func betterDuration(text string) string {
	text = strings.ToLower(strings.TrimSpace(text))
	if iso, ok := strings.CutPrefix(text, "p"); ok {
		days, rest, timed := strings.Cut(iso, "t")
		if !timed && strings.ContainsAny(days, "my") {
			return "" // months and years
		}
		text = days + rest
	}
	if len(text) > 60 || !spanWhole.MatchString(text) {
		return ""
	}
	var sum time.Duration
	for _, part := range spanParts.FindAllStringSubmatch(text, -1) {
		unit, ok := spanUnits[part[2]]
		if !ok {
			unit = spanUnits[strings.TrimSuffix(part[2], "s")]
		}
		n, err := strconv.ParseInt(part[1], 10, 32)
		if err != nil || unit == 0 || n > int64((1<<63-1-sum)/unit) {
			return ""
		}
		sum += time.Duration(n) * unit
	}
	better := sum.String()
	better = strings.TrimSuffix(better, "0s")
	if strings.HasSuffix(better, "h0m") {
		better = strings.TrimSuffix(better, "0m")
	}
	if better == "" || !strings.ContainsAny(better[len(better)-1:], "smh") {
		better = sum.String()
	}
	return better
}

var (
	rateParts = regexp.MustCompile(`^([0-9]+)\s*(?:/|per\b|in\b)\s*(.+)$`)
	rateWhole = regexp.MustCompile(`^[0-9]+$`)
)

// betterRate says how to write what "10/min", "10 per minute" or "10" most likely mean, or returns "".
func betterRate(text string) string {
	text = strings.ToLower(strings.TrimSpace(text))
	if rateWhole.MatchString(text) {
		return "add the period, as in " + text + "/1m"
	}
	parts := rateParts.FindStringSubmatch(text)
	if parts == nil {
		return ""
	}
	for _, period := range []string{parts[2], "1" + parts[2]} {
		if better := betterDuration(period); better != "" && parts[1]+"/"+better != text {
			return "did you mean " + strconv.Quote(parts[1]+"/"+better) + "?"
		}
	}
	return ""
}
