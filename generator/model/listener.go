package model

import (
	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/spec"
)

func (b *builder) listeners(specs []*spec.Listener) {
	for _, s := range specs {
		l := &Listener{
			Name:          s.Name.V,
			Doc:           cleanDoc(s.Doc.V),
			Transactional: s.Mode.V == "transactional",
			Latest:        s.Start.V == "latest",
		}
		b.model.Listeners = append(b.model.Listeners, l)
		where := "listener " + spec.Show(l.Name)
		l.Retry = b.retry(b.defaults.retry, &s.Retry, where)
		b.listenerTopics(s, l, where)
		if !b.checkName(s.Name, "a listener") {
			continue
		}
		l.GoName = b.goName(s.Name, s.Go)
		self := &decl{where, nameOrGo(s.Name, s.Go)}
		b.goNames.declare(self, l.GoName+"Handlers", l.GoName+"Handler", "Unimplemented"+l.GoName+"Handlers", "New"+l.GoName+"Listener")
	}
}

func (b *builder) listenerTopics(s *spec.Listener, l *Listener, where string) {
	first := make(map[string]diag.Pos, len(s.Topics.Items))
	for _, name := range s.Topics.Items {
		if !name.Set() {
			continue
		}
		if pos, twice := first[name.V]; twice {
			b.Errorf(name.Pos, diag.ListenerDuplicateTopic, "topics: %q of %s stands at line %d already", name.V, where, pos.Line)
			continue
		}
		first[name.V] = name.Pos
		t, known := b.topics[name.V]
		switch {
		case !known:
			b.Errorf(name.Pos, diag.ListenerUnknownTopic, "topics: unknown topic %q in %s%s", name.V, where, b.DidYouMean(name.V, b.topicNames))
		case t.Delivery != Log:
			b.Errorf(name.Pos, diag.ListenerQueueTopic, "topics: %q of %s has delivery queue: a listener reads topics with delivery log", name.V, where)
		default:
			l.Topics = append(l.Topics, t)
		}
	}
}

// unsupported reports what is valid, and cannot be generated yet: log topics, and with them listeners.
func (b *builder) unsupported(s *spec.Spec) {
	for _, n := range s.Namespaces.Items {
		for _, t := range n.Topics.Items {
			if t.Delivery.V == string(Log) {
				b.Errorf(t.Delivery.Pos, diag.DeliveryUnsupported, "delivery: log is not supported yet in topic %s/%s: use queue", spec.Show(n.Name.V), spec.Show(t.Name.V))
			}
		}
	}
}
