package main

import (
	"regexp"
	"slices"
	"strings"
)

const null = "\x00"

// domains has the values of a column or parameter, by its name. A value that is there twice is more probable.
// Periods and grains are such that date_bin cuts times into pieces of less than half a minute, and rounding hides them.
var domains = map[string]string{
	"namespace": "a a a a b", "topic": "x x x y", "counted_as": "x y", "limited": "x y", "tenant_id": "~ ~ #7 #7 #8",
	"lane": "0 0 1 turns(x) turns(y)", "turn_lane": "turns(x)", "turn": "~ ~ t/k1 t/k2 s/k1 t/k1/k2 t t/#7", "tag": "t s", "part": "0 1 2",
	"per": "_ tenant k", "nth": "1 2", "concurrency": "~ 1 2 3", "rate": "~ 1 2", "period": "~ 1200s", "period_us": "1280000000 2560000000",
	"set_concurrency": "~ 1 2", "set_rate": "~ 1 2", "set_period": "~ 1200s", "set_by": "~ o1", "set_until": "~ now+1h now-1h infinity",
	"listener": "~ l1 l1 l2", "key": "_ k1 k1 k2 t/#7", "partition_key": "~ k1 k2", "dedupe_key": "~ ~ d1 d2", "entity_type": "~ t1 t1 t2 t3", "entity_id": "~ i1 i1 i2",
	"entity_version": "~ 1 2", "error": "e1 e2 _", "last_error": "~ e1", "status": "parked dead", "kind": "dispatcher listener", "name": "a l1 b",
	"consumer_group": "g1 g1 g2 g3", "message_id": "m1 m2 #1 #2", "place": "p1 p2", "type": "y1", "source": "s1 s2", "host": "h1 h2", "pid": "1 2",
	"who": "w1 w2", "act": "skip pause replay forget forget", "why": "_ y", "scope": `{} {"topic":"x"} {"tenant_id":"#7"} {"rows":1} {"undelivered":true}`, "events": "0 1", "payload": `{} {"p":1} {"p":"sealed:v1"}`, "headers": `~ {"h":"1"} {"correlation_id":"c1"} {"correlation_id":"c2","causation_id":"#1"} {"correlation_id":"rep(c,100)a"} {"correlation_id":"rep(c,100)b"}`,
	"correlation": "c1 c2 rep(c,100)a rep(c,100)b rep(c,100)", "pattern": "x y e1 #7", "identity": `{} {"topic":"x"} {"tenant_id":"#7"}`,
	"failures": `~ ~ [] [{"error":"e1","attempt":1}] [{"error":"e1"},{"error":"e2"}] [{"error":"e1"},2,3,4,{"error":"e5"}]`,
	"envelope": "{}", "body": `\x01 \x02 \x227365616c65643a763122`,
	"id": "#1 #2 #3 #4 #5", "event_id": "#1 #2 #3 #4", "locked_by": "~ #21 #21 #22", "worker_id": "#21 #21 #22", "lease_by": "~ #21 #22", "preferred": "~ #21 #22",
	"wanted_by": "~ #21 #22", "lease_id": "~ #31 #32", "previous_id": "~ #31 #32", "worker": "~ #21", "last_event_id": "#1", "hand_to": "~ #22",
	"attempts": "0 1 2 3", "max_attempts": "1 2 3", "version": "1 1 2 3", "last_version": "1 2", "every_version": "1 2", "claim_no": "0 1 2", "shard": "0 0 1", "shards": "1 2 2",
	"seq": "1 2 3 4 5 6", "no": "1 2 3 4 5", "bucket": "0 1 2", "place_no": "1 2", "lease_no": "0 1 2", "after_no": "0 1 2 9", "high_seq": "0 2 4", "hi_seq": "~ 3 6", "last_seq": "0 1 3",
	"barrier_seq": "~ 3", "retry_count": "0 1 2", "one_by_one": "0 1 2", "trying": "0 1 2 4", "taken": "0 1 2", "reshard_to": "~ ~ 2 3", "system_id": "cluster cluster cluster 5",
	"xid": "5 12 14 15 16 18 19 20 21 open", "lo": "10:15:12 10:15:12 12:15:12,14 15:15: 1:1: 12:20:15", "hi": "~ 16:22:16 18:22:18 22:22: 15:20:18", "barrier": "~ ~ 20:20: 16:22:16", "lo_bound": "15 16 18 20 20 open", "hi_bound": "~ 20 22 22", "barrier_bound": "~ 20 15",
	"max_lag": "~ 30m 150m", "lock_key": "70 71 72", "lock": "70 71 72", "channel": "c", "token": "t", "head_limit": "1 2 5",
	"topics_json": `{"a/x":{"version":1}} {"a/x":{"version":2},"a/y":{"version":1}} {"b/x":{"version":1}} {} {"a/x":{"version":1,"max_lag":60}}`,
	"fairness":    "~ ~ tenant tenant x", "max_lag_us": "0", "not_before": "~ now+2h now-1h infinity",
	"resting": `{} {"a/x":"why"}`, "running": "{} {#1} {#1,#2} {#3}", "starts_at": "{} {now-5m} {now-30m,now-5m} {now-10m,now-5m}",
	"starts_column": "{} {1} {1,2}", "untils": "{} {now-1h} {now+1h} {now-1h,now+1h} {now+1h,now+2h}", "counts": "{} {1} {1,2}",
	"ahead_seqs": "{} {} {3} {3,5}", "ahead_attempts": "{} {0} {1,0}", "past_shards": "{} {} {1}", "tenant_ids_column": "~ {#7} {#8}",
	"batch_size": "1 2 3 9", "piece": "1 2 3 9", "each": "1 2 5", "quota": "0 1 2 5", "reclaims": "0 1 2", "starts": "1 2 5", "hop_count": "0 1 2 5", "front_piece": "0 1 2 5",
	"rated": "0 1 2 5", "delay_us": "0 1800000000 -1 5400000000", "retention_us": "1800000000 5400000000", "status_text": "pending processing",
	"namespaces": "a b", "newest": "true false", "until": "~ now-2h now+2h", "since": "~ now-3h now-1h", "text": "e1 x", "key_prefix": "_ p",
	"most": "1 2 3 9", "want": "1 2 3", "grain": "1s", "slack": "0 30m", "retry_at": "~ ~ now+2h now-1h", "followers": "0 1 2", "number": "1 2 3 9", "wake": "true false",
	"floor_no": "0 1 2", "low": "0 1 3", "high": "3 6", "least": "1 3 900", "handled": "0 1 2", "page_size": "1 2 3", "scan_size": "1 2 3 9", "permanent": "true false",
	"first": "0 1 2", "last": "1 3 6", "after_seq": "0 1 2 3", "after_topic": "_ x", "after_per": "_ k", "after_key": "_ k1", "after": "_ k1 g1", "dead": "true false",
}

// aliases has the columns whose values a parameter is compared with.
var aliases = map[string][]string{
	"due": {"next_attempt_at"}, "worker_id": {"locked_by", "lease_by", "worker_id", "preferred", "wanted_by"}, "number": {"no"}, "head": {"seq"},
	"newest": {"created_at"}, "retry_at": {"next_attempt_at"}, "limited": {"topic"}, "pers": {"per"}, "text": {"error"}, "event_id": {"event_id", "id"},
	"id": {"id", "event_id"}, "since": {"created_at", "died_at", "failed_at", "at"}, "until": {"created_at", "died_at", "failed_at", "at"}, "name": {"name", "listener", "namespace"},
	"at": {"next_attempt_at", "created_at", "finalized_at", "died_at"}, "queued": {"id"}, "enqueued": {"id"}, "delivered": {"id"}, "in_flight": {"id"}, "no": {"no", "lease_no"},
	"failed": {"no", "seq"}, "done": {"no", "seq"}, "dead": {"no", "seq"}, "hand_to": {"wanted_by"}, "previous_id": {"lease_id"}, "reached": {"seq"}, "holder": {"locked_by"},
	"xid": {"xid"}, "last": {"seq"}, "first": {"seq"}, "alive": {}, "key": {"key", "partition_key", "dedupe_key"},
	"consumer_group": {"consumer_group"}, "after": {"key", "consumer_group", "event_id", "id", "no", "seq"},
	"group": {"consumer_group"}, "tenant": {"tenant_id"}, "entity": {"entity_id"}, "type": {"type", "entity_type"}, "was": {"payload", "body"},
}

var forms = map[string]*regexp.Regexp{
	"uuid": regexp.MustCompile(`^#`), "boolean": regexp.MustCompile(`^(true|false)$`), "timestamp with time zone": regexp.MustCompile(`^(now|-?inf)`),
	"integer": regexp.MustCompile(`^(-?\d+$|turns)`), "bigint": regexp.MustCompile(`^-?\d+$|^cluster`), "smallint": regexp.MustCompile(`^-?\d+$`),
	"interval": regexp.MustCompile(`^\d+[ms]?$`), "jsonb": regexp.MustCompile(`^[[{]`), "json": regexp.MustCompile(`^[[{]`), "bytea": regexp.MustCompile(`^\\x`),
	"pg_snapshot": regexp.MustCompile(`:`), "xid8": regexp.MustCompile(`^(\d+|open)$`),
}

// fits reports whether a value is of a type, or of its elements.
func fits(value, typ string) bool {
	if strings.HasPrefix(value, "{") && strings.HasSuffix(typ, "[]") {
		return true
	}
	form := forms[strings.TrimSuffix(typ, "[]")]
	return form == nil || form.MatchString(value)
}

// columnsOf are the columns that a parameter may be compared with.
func columnsOf(param string) []string {
	names := []string{param}
	one := strings.TrimSuffix(param, "s")
	if strings.HasSuffix(param, "_us") {
		one = strings.TrimSuffix(strings.TrimSuffix(param, "_us"), "s") + "_us"
	}
	if strings.HasSuffix(param, "ies") {
		one = strings.TrimSuffix(param, "ies") + "y"
	}
	if strings.HasSuffix(param, "ses") {
		one = strings.TrimSuffix(param, "es")
	}
	names = append(names, one)
	for _, prefix := range []string{"p_", "after_", "known_", "front_", "hop_", "dead_", "parked_", "failed_", "ahead_", "version_", "floor_"} {
		if rest, ok := strings.CutPrefix(one, prefix); ok {
			names = append(names, rest)
		}
	}
	for _, n := range slices.Clone(names) {
		names = append(names, aliases[n]...)
	}
	return names
}

// typeNames has the types of parameters, and of the elements of arrays.
var typeNames = map[uint32]string{
	16: "boolean", 17: "bytea", 20: "bigint", 21: "smallint", 23: "integer", 25: "text", 114: "json", 701: "double precision", 1184: "timestamp with time zone",
	1186: "interval", 1700: "numeric", 2950: "uuid", 3802: "jsonb", 5038: "pg_snapshot", 5069: "xid8",
	1000: "boolean", 1001: "bytea", 1016: "bigint", 1005: "smallint", 1007: "integer", 1009: "text", 1185: "timestamp with time zone", 1187: "interval",
	2951: "uuid", 3807: "jsonb", 199: "json", 271: "xid8",
}
