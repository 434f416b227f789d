package model

import (
	"time"

	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/spec"
)

// The bounds of a listener.
const (
	maxConcurrency = 1000
	maxShards      = 64
	minMaxLag      = time.Second
)

func (b *builder) listeners(specs []*spec.Listener) {
	for _, s := range specs {
		l := &Listener{
			Name:          s.Name.V,
			Doc:           PlainText(s.Doc.V),
			Stubs:         !s.Stubs.Set(),
			Transactional: s.Mode.V == "transactional",
			Latest:        s.Start.V == "latest",
			ParkKeys:      s.OnFailure.V == "park_key",
		}
		b.model.Listeners = append(b.model.Listeners, l)
		where := "listener " + spec.Show(l.Name)
		l.Concurrency = b.count("concurrency", s.Concurrency, maxConcurrency, diag.ListenerConcurrency, where)
		if l.Transactional && l.Concurrency > 1 {
			b.Errorf(s.Concurrency.Pos, diag.ListenerConcurrency,
				"concurrency: %d in %s, which is transactional: its handlers share a transaction and run one at a time, so use "+
					"shards, or mode leased", l.Concurrency, where)
		}
		l.Shards = b.count("shards", s.Shards, maxShards, diag.ListenerShards, where)
		b.listenerFlow(s, l, where)
		l.Lease = b.lease(b.defaults.lease, s.Lease, where)
		if s.MaxLag.Set() {
			l.MaxLag = b.maxLag(s.MaxLag, diag.ListenerMaxLag, where)
		}
		l.Retry = b.retry(b.defaults.retry, &s.Retry, where)
		b.short(l.Retry, &s.Retry, where)
		b.listenerTopics(s, l, where)
		b.publishing(s, l, where)
		if !b.checkName(s.Name, "listener") {
			continue
		}
		l.GoName = b.goName(s.Name, s.Go)
		self := &decl{what: where, pos: nameOrGo(s.Name, s.Go)}
		b.goNames.declare(self, "New"+l.GoName+"Listener")
		if !l.Publish {
			b.goNames.declare(self, l.GoName+"Handlers", l.GoName+"Handler", "Unimplemented"+l.GoName+"Handlers")
		}
	}
}

// count returns v, which must be 1 to most, or 1 when it is not set or refused.
func (b *builder) count(key string, v spec.Value[int64], most int64, rule diag.Rule, where string) int {
	switch {
	case !v.Set():
		return 1
	case v.V < 1 || v.V > most:
		b.Errorf(v.Pos, rule, "%s: %d in %s is not between 1 and %d", key, v.V, where, most)
		return 1
	}
	return int(v.V)
}

func (b *builder) listenerTopics(s *spec.Listener, l *Listener, where string) {
	first := make(map[string]diag.Pos, len(s.Topics.Items))
	b.unsure = b.unsure || !s.Topics.Set()
	for _, name := range s.Topics.Items {
		if !name.Set() {
			b.unsure = true
			continue
		}
		if pos, twice := first[name.V]; twice {
			b.Errorf(name.Pos, diag.ListenerDuplicateTopic, "topics: duplicate topic %q in %s: the first one is at line %d",
				name.V, where, pos.Line)
			continue
		}
		first[name.V] = name.Pos
		t, known := b.topics[name.V]
		switch {
		case !known:
			near := b.Nearest(name.V, b.logNames)
			b.meant[near] = true
			b.Errorf(name.Pos, diag.ListenerUnknownTopic, "topics: unknown topic %q in %s%s", name.V, where, diag.Hint(near))
		case b.undecided[t]: // already reported
		case t.Delivery != Log:
			b.Errorf(name.Pos, diag.ListenerQueueTopic,
				"topics: %q of %s has delivery queue: a listener can only read topics with delivery log", name.V, where)
		default:
			l.Topics = append(l.Topics, t)
			t.Listeners = append(t.Listeners, l)
		}
	}
}

// readers checks the rules of each topic that depend on the listeners that read it.
func (b *builder) readers(s *spec.Spec) {
	specs := make(map[*Listener]*spec.Listener, len(s.Listeners.Items))
	for i, l := range b.model.Listeners {
		specs[l] = s.Listeners.Items[i]
	}
	told := make(map[*Listener]bool)
	for i, n := range s.Namespaces.Items {
		for j, topic := range n.Topics.Items {
			t := b.model.Namespaces[i].Topics[j]
			b.reader(topic, t)
			b.warnOrder(topic, t)
			b.warnTwice(t, specs)
			if t.Delivery == Log {
				b.logWindow(topic, t, specs, told)
			}
		}
	}
}

// reader reports a log topic that no listener reads without "listeners: none", and one with it that a listener reads.
func (b *builder) reader(s *spec.Topic, t *Topic) {
	where := "topic " + showTopic(t)
	unread := !b.unsure && !b.meant[t.FullName()]
	switch none := s.Listeners; {
	case b.undecided[t]: // already reported
	case none.Set() && t.Delivery != Log:
		b.Errorf(none.Pos, diag.ListenerNone,
			"listeners: %s has delivery queue: remove listeners, which only applies to a log topic", where)
	case none.Set() && len(t.Listeners) > 0:
		b.Errorf(none.Pos, diag.ListenerNone, "listeners: listener %s reads %s: remove \"listeners: none\"",
			spec.Show(t.Listeners[0].Name), where)
	case t.Unpublished() && unread && !none.Set():
		b.Errorf(s.Publish.Pos, diag.PublishUnread,
			"publish: no listener with \"publish: true\" reads %s: add one under listeners, or set \"listeners: none\" if "+
				"another tool publishes it", where)
	case t.Delivery == Log && !none.Set() && len(t.Listeners) == 0 && unread:
		b.Errorf(s.Delivery.Pos, diag.ListenerMissing,
			"delivery: no listener reads %s: add one under listeners, or set \"listeners: none\"", where)
	}
}

// logWindow reports a log topic whose events may be deleted while a listener still retries them. When the topic
// uses the default retention, the finding points at the retries of the listener, once per listener.
func (b *builder) logWindow(s *spec.Topic, t *Topic, specs map[*Listener]*spec.Listener, told map[*Listener]bool) {
	set, delivered := s.Policy.Retention.Delivered, t.Retention.Delivered
	if delivered == 0 {
		pos, from := set.Pos, ""
		if !pos.IsValid() {
			pos, from = s.Delivery.Pos, ", from defaults,"
		}
		b.Errorf(pos, diag.RetentionBounds,
			"retention.delivered: 0s%s is too short for topic %s: a log topic keeps events for this long after the enqueue, "+
				"not until an ack", from, showTopic(t))
		return
	}
	report := func(pos diag.Pos, l *Listener) {
		b.Errorf(pos, diag.RetentionBounds,
			"retention.delivered: %s in topic %s must be longer than %s, the longest time that listener %s retries an event",
			showDuration(delivered), showTopic(t), showDuration(l.Retry.Horizon()), spec.Show(l.Name))
	}
	var longest *Listener
	for _, l := range t.Listeners {
		if delivered > l.Retry.Horizon() {
			continue
		}
		if longest == nil || l.Retry.Horizon() > longest.Retry.Horizon() {
			longest = l
		}
		if pos := retryPos(&specs[l].Retry); !set.Set() && pos.IsValid() && !told[l] {
			report(pos, l)
			told[l] = true
		}
	}
	if set.Set() && longest != nil {
		report(set.Pos, longest)
	}
}
