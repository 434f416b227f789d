package model

import (
	"fmt"
	"strings"
	"time"

	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/spec"
)

// The bounds of flow control. A batch is at most what a dispatcher or listener reads at once.
const (
	maxLimits    = 4
	maxOfLimit   = 1<<31 - 1
	minPeriod    = time.Second
	maxPeriod    = 24 * time.Hour
	maxBatch     = 10_000
	maxBatchWait = time.Minute
)

// Limit bounds how many events of a queue topic are handled at once, how many attempts start in a period, or both.
type Limit struct {
	Per         string    // "" for all of the topic, PerTenant, PerDestination, or the text of Key
	Key         *Template // nil unless Per is a template
	Concurrency int       // 0 means any number
	Rate        Rate      // the zero value means any number
}

// The values of Limit.Per that are not templates.
const (
	PerTenant      = "tenant"
	PerDestination = "destination"
)

// Keyed reports whether an event has a key for l of its own, in addition to its tenant.
func (l Limit) Keyed() bool { return l.Key != nil || l.Per == PerDestination }

// Rate allows so many starts of attempts in each window of the length Period.
type Rate struct {
	Events int
	Period time.Duration
}

// String returns r as the YAML writes it, 10/1m, and "" for the zero value.
func (r Rate) String() string {
	if r == (Rate{}) {
		return ""
	}
	return fmt.Sprintf("%d/%s", r.Events, showDuration(r.Period))
}

// Batch says how many events a handler gets in one call, and how long the first of them waits for others. The zero
// value means one event per call.
type Batch struct {
	Size int
	Wait time.Duration
}

// HandlerMethod returns the name of the method that handles the events of t, one by one or in batches of b.
func (t *Topic) HandlerMethod(b Batch) string {
	if b.Size > 0 {
		return "Handle" + t.GoName + "Batch"
	}
	return "Handle" + t.GoName
}

var limitRules = &keyRules{"limits.per", diag.LimitUnknownField, diag.LimitOptionalField,
	diag.LimitFieldType, diag.LimitSensitive, diag.LimitNotInjective}

// limits sets the limits of t. It reports those that t cannot have.
func (b *builder) limits(s *spec.Topic, t *Topic) {
	if !s.Limits.Set() {
		return
	}
	where := "topic " + showTopic(t)
	if t.Delivery == Log {
		b.Errorf(s.Limits.Pos, diag.LimitLogTopic,
			"limits: %s has delivery log, whose events listeners get in order: remove limits, and set concurrency, shards or "+
				"rate of its listeners", where)
		return
	}
	if len(s.Limits.Items) > maxLimits {
		b.Errorf(s.Limits.Items[maxLimits].Pos, diag.LimitCount, "limits: %s has %d limits, more than %d: remove some", where,
			len(s.Limits.Items), maxLimits)
	}
	first := make(map[string]diag.Pos, len(s.Limits.Items))
	for _, l := range s.Limits.Items {
		t.Limits = append(t.Limits, b.limit(l, s, t))
		if l.Per.Bad || !l.Concurrency.Set() && !l.Rate.Set() { // already reported
			continue
		}
		if pos, twice := first[l.Per.V]; twice {
			b.Errorf(l.Pos, diag.LimitDuplicate, "limits: two limits of %s are %s, the first one at line %d: put concurrency "+
				"and rate into one", where, showPer(l.Per.V), pos.Line)
			continue
		}
		first[l.Per.V] = l.Pos
	}
}

// showPer continues "the limits are" with what they are of.
func showPer(per string) string {
	if per == "" {
		return "of the whole topic"
	}
	return "per " + spec.Show(per)
}

// limit returns one limit of t. It reports what is wrong with it.
func (b *builder) limit(l spec.Limit, s *spec.Topic, t *Topic) Limit {
	where := "topic " + showTopic(t)
	limit := Limit{Per: l.Per.V}
	b.per(l.Per, s, t, &limit)
	if n := l.Concurrency; n.Set() {
		if n.V < 1 || n.V > maxOfLimit {
			hint := ""
			if n.V < 1 {
				hint = ": pause the topic to stop it"
			}
			b.Errorf(n.Pos, diag.LimitBounds, "limits.concurrency: %d in %s is not between 1 and %d%s", n.V, where,
				maxOfLimit, hint)
		}
		limit.Concurrency = int(n.V)
	}
	limit.Rate = b.rate("limits.rate", l.Rate, diag.LimitBounds, where)
	return limit
}

// per sets what the limit is per. It reports a key that the events of t do not have.
func (b *builder) per(v spec.Value[string], s *spec.Topic, t *Topic, limit *Limit) {
	where := "topic " + showTopic(t)
	switch {
	case !v.Set():
	case v.V == PerTenant:
		if !s.Tenant.Set() && !s.Tenant.Bad { // one that is wrong is reported as such
			b.Errorf(v.Pos, diag.LimitNeedsTenant,
				"limits.per: %s has no tenant: set tenant to a uuid field of its payload, or use a template", where)
		}
	case v.V == PerDestination:
		b.perDestination(v.Pos, &s.Publish, where)
	case v.V != "" && !strings.ContainsAny(v.V, "{}"):
		hint := b.DidYouMean(v.V, []string{PerTenant, PerDestination})
		if t.field(v.V) != nil {
			hint = diag.Hint("{" + v.V + "}")
		}
		b.Errorf(v.Pos, diag.UnknownValue,
			"limits.per: unknown value %q in %s: use tenant, destination or a template such as \"{mailbox_id}\"%s", v.V, where,
			hint)
	default:
		limit.Key, _ = b.template(v, t, limitRules)
	}
}

// perDestination reports a topic whose events do not have a destination each.
func (b *builder) perDestination(pos diag.Pos, p *spec.Publish, where string) {
	for _, field := range []spec.Value[string]{p.Webhook.Field, p.Custom.Field} {
		if field.Set() || field.Bad {
			return
		}
	}
	fault := "all events of " + where + " go to one destination: remove per, or publish with to_field"
	if !p.Pos.IsValid() {
		fault = where + " is not published: remove per, or use a template"
	}
	b.Errorf(pos, diag.LimitNeedsDestination, "limits.per: %s", fault)
}

// rate returns the rate v of a topic or listener. It reports one that is out of bounds.
func (b *builder) rate(key string, v spec.Value[spec.Rate], rule diag.Rule, where string) Rate {
	if !v.Set() {
		return Rate{}
	}
	events, period := v.V.Events, v.V.Period
	if events < 1 || events > maxOfLimit {
		b.Errorf(v.Pos, rule, "%s: %d events in %s are not between 1 and %d", key, events, where, maxOfLimit)
	}
	if period < minPeriod || period > maxPeriod {
		hint := ""
		if period > 0 && minPeriod%period == 0 && 0 < events && events <= maxOfLimit/int64(minPeriod/period) {
			hint = diag.Hint(Rate{Events: int(events * int64(minPeriod/period)), Period: minPeriod}.String())
		}
		b.Errorf(v.Pos, rule, "%s: the period %s in %s is not between %s and %s%s", key, showDuration(period), where,
			showDuration(minPeriod), showDuration(maxPeriod), hint)
	}
	return Rate{Events: int(events), Period: period}
}

// topicBatch sets the batch of t. It reports one that t cannot have.
func (b *builder) topicBatch(s *spec.Topic, t *Topic) {
	if !s.Batch.Pos.IsValid() {
		return
	}
	where := "topic " + showTopic(t)
	switch {
	case t.Delivery == Log:
		b.Errorf(s.Batch.Pos, diag.BatchLogTopic, "batch: %s has delivery log: set batch of its listeners", where)
		return
	case s.Publish.Pos.IsValid():
		b.Errorf(s.Batch.Pos, diag.BatchPublish,
			"batch: %s is published, and publishers send many events in one call by themselves: remove batch", where)
		return
	}
	t.Batch = b.batch(&s.Batch, where)
}

// batch returns s. It reports a size or a wait that is out of bounds.
func (b *builder) batch(s *spec.Batch, where string) Batch {
	if n := s.Size; n.Set() && (n.V < 2 || n.V > maxBatch) {
		hint := ""
		if n.V == 1 {
			hint = ": remove batch for one event per call"
		}
		b.Errorf(n.Pos, diag.BatchBounds, "batch.size: %d in %s is not between 2 and %d%s", n.V, where, maxBatch, hint)
	}
	if s.Wait.V > maxBatchWait {
		b.Errorf(s.Wait.Pos, diag.BatchBounds, "batch.wait: %s in %s is longer than %s", showDuration(s.Wait.V), where,
			showDuration(maxBatchWait))
	}
	return Batch{Size: int(s.Size.V), Wait: s.Wait.V}
}

// listenerFlow sets the batch and the rate of l. It reports those that l cannot have.
func (b *builder) listenerFlow(s *spec.Listener, l *Listener, where string) {
	l.Rate = b.rate("rate", s.Rate, diag.ListenerRate, where)
	switch {
	case !s.Batch.Pos.IsValid():
	case s.Publish.V:
		b.Errorf(s.Batch.Pos, diag.BatchPublish,
			"batch: %s publishes, and publishers send many events in one call by themselves: remove batch", where)
	default:
		l.Batch = b.batch(&s.Batch, where)
	}
}

// methods reports topics of a namespace whose methods have the same name: that of batches of due, and that of
// due_batch.
func (b *builder) methods(topics []*Topic) {
	names := b.newSymbols()
	names.told = b.goNames.told
	for _, t := range topics {
		// Others with the same name have the same GoName, which is reported as such.
		if self := b.names[t]; self != nil && (t.Batch.Size > 0 || strings.HasSuffix(strings.ToLower(t.GoName), "batch")) {
			names.declare(self, t.HandlerMethod(t.Batch))
		}
	}
}
