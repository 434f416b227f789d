// Package alerts writes the alerts and the dashboard for the metrics that module telemetry/prometheus exports.
package alerts

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Config says what the alerts and the dashboard are for. Its zero value is for any outbox.
type Config struct {
	// Name is part of the names of the group and of the dashboard; "" adds nothing.
	Name string
	// Topics are the queue topics of the YAML as namespace/topic, and Listeners its listeners, each with its max_lag, 0 if
	// it has none.
	Topics, Listeners map[string]time.Duration
	// MaxLag is the max_lag of all others; 0 means five minutes.
	MaxLag time.Duration
	// Selector has matchers for every metric, such as job="orders"; "" means none.
	Selector string
	// Runbook is the URL of docs/operate/runbook.md; "" means that of the repository.
	Runbook string
}

const (
	defaultMaxLag  = 5 * time.Minute
	defaultRunbook = "https://github.com/outboxgen/outboxgen/blob/main/docs/operate/runbook.md"
)

func (c Config) withDefaults() Config {
	c.MaxLag, c.Runbook = cmp.Or(c.MaxLag, defaultMaxLag), cmp.Or(c.Runbook, defaultRunbook)
	c.Selector = strings.TrimSpace(c.Selector)
	return c
}

// metric returns the selector of a metric, with its own matchers in front of those of c.
func (c Config) metric(name string, matchers ...string) string {
	if c.Selector != "" {
		matchers = append(slices.Clone(matchers), c.Selector)
	}
	if len(matchers) == 0 {
		return name
	}
	return name + "{" + strings.Join(matchers, ",") + "}"
}

// across joins what several processes export. The labels of a process are dropped, because the process that exports the
// gauges changes.
func across(how, expr string) string { return how + " without (instance, pod) (" + expr + ")" }

// bound is a max_lag and the topics or listeners that have it.
type bound struct {
	lag     time.Duration
	matcher string // "" if it is for all
}

// bounds returns a bound for each max_lag among of, and one for all others.
func (c Config) bounds(label string, of map[string]time.Duration) []bound {
	named := make(map[time.Duration][]string)
	var all []string
	for name, lag := range of {
		if lag != 0 && lag != c.MaxLag {
			named[lag] = append(named[lag], name)
			all = append(all, name)
		}
	}
	var list []bound
	for _, lag := range slices.Sorted(maps.Keys(named)) {
		list = append(list, bound{lag, label + "=~" + oneOf(named[lag])})
	}
	if len(all) == 0 {
		return []bound{{c.MaxLag, ""}}
	}
	return append(list, bound{c.MaxLag, label + "!~" + oneOf(all)})
}

// oneOf returns a quoted regular expression that matches any of names.
func oneOf(names []string) string {
	names = slices.Clone(names)
	slices.Sort(names)
	for i, name := range names {
		names[i] = regexp.QuoteMeta(name)
	}
	return strconv.Quote(strings.Join(names, "|"))
}

// seconds returns d for an expression.
func seconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) }

// words returns d for people: "5m", not "5m0s".
func words(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

func title(prefix, name string) string {
	if name == "" {
		return prefix
	}
	return fmt.Sprintf("%s %s", prefix, name)
}
