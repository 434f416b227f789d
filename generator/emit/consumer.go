package emit

import (
	"github.com/dave/jennifer/jen"

	"github.com/outboxgen/outboxgen/generator/model"
)

// consumerPart is the prefix of the part that the header of a file of the consumer package names.
const consumerPart = "consumer of "

// consumerJobs render the consumer package: the payloads of the published topics, the shared types that they use, and a
// consumer for each namespace that publishes. The package does not import package outbox.
func (e *emitter) consumerJobs() []job {
	if e.model.Consumer == nil {
		return nil
	}
	c := *e
	c.pkg, c.part, c.guard = e.model.Consumer.Package, consumerPart, consumePath
	var jobs []job
	add := func(name string, render func() ([]byte, error)) {
		jobs = append(jobs, job{name: c.model.Consumer.Dir + "/" + name, render: render})
	}
	if types := e.model.ConsumedTypes(); len(types) > 0 {
		add(sharedTypesFile, func() ([]byte, error) { return c.sharedTypes(types) })
	}
	for _, ns := range e.model.Namespaces {
		topics := ns.Published()
		if len(topics) == 0 {
			continue
		}
		for _, t := range topics {
			add(topicFile(t), func() ([]byte, error) { return c.consumedTopic(t) })
			for _, p := range t.History {
				add(pastFile(t, p), func() ([]byte, error) { return c.past(t, p) })
			}
		}
		add(namespaceFile(ns), func() ([]byte, error) { return c.namespaceConsumer(ns) })
	}
	return jobs
}

// consumedTopic renders the file of one topic for consumers: its identity and its payload.
func (e *emitter) consumedTopic(t *model.Topic) ([]byte, error) {
	f := e.newFile("topic " + t.FullName())
	g := f.Group
	list := []member{{"Namespace", jen.Lit(t.Namespace.Name)}, {"Name", jen.Lit(t.Name)}}
	if len(t.Renamed) > 0 {
		list = append(list, member{"RenamedFrom", renamedFrom(t)})
	}
	if p := t.Publish; p.WireName != "" {
		list = append(list, member{"WireName", jen.Lit(p.WireName)})
	}
	if former := t.Publish.Former; len(former) > 0 {
		list = append(list, member{"FormerWireNames", texts(former)})
	}
	if t.Sealed {
		list = append(list, member{"Sealed", jen.True()})
	}
	list = append(list, member{"Version", jen.Lit(t.Version)})
	addComment(g, topicIdentity(t)+".")
	g.Var().Id(topicVar(t)).Op("=").Qual(consumePath, "NewTopic").Types(jen.Id(t.GoName)).Call(jen.Qual(consumePath,
		"TopicSpec").Add(members(append(list, history(t)...))))
	g.Line()
	e.addPayload(g, t)
	e.addPayloadMasking(g, t.GoName, t.Fields, t.Sealed)
	return render(f)
}

// namespaceConsumer renders the consumer of the published topics of a namespace.
func (e *emitter) namespaceConsumer(ns *model.Namespace) ([]byte, error) {
	f := e.newFile("namespace " + ns.Name)
	g := f.Group
	name := ns.GoName + "Consumer"
	unimplemented := "Unimplemented" + name
	topics := ns.Published()

	addComment(g,
		name+" consumes the events that namespace "+ns.Name+
			" publishes. A new topic adds a method, so the build fails until it is written. Embed "+unimplemented+
			" to opt out. A method writes its effect with tx, which also records the event as handled, so that both take "+
			"effect or neither does. It must not commit or roll back tx. An error undoes both; consume.Permanent(err) says "+
			"that no retry will fix it. Methods run concurrently if Consume does.",
		userDoc("The namespace", ns.Doc))
	g.Type().Id(name).InterfaceFunc(func(g *jen.Group) {
		for i, t := range topics {
			if i > 0 {
				g.Line()
			}
			addComment(g, consumeName(t)+" applies the effect of one "+t.FullName()+" event.")
			g.Id(consumeName(t)).Params(
				jen.Id("ctx").Qual(contextPath, "Context"), jen.Id("tx").Qual(pgxPath, "Tx"), jen.Id("e").Add(consumed(t)),
			).Error()
		}
	})
	g.Line()

	addComment(g,
		unimplemented+" can be embedded to consume only some topics. Its methods return an error that wraps "+
			"consume.ErrUnimplemented, which no retry will fix. To skip a topic, write its method and return nil.")
	g.Type().Id(unimplemented).Struct()
	g.Line()
	for _, t := range topics {
		addComment(g, consumeName(t)+" returns an error: "+t.FullName()+" has no consumer.")
		g.Func().Params(jen.Id(unimplemented)).Id(consumeName(t)).
			Params(jen.Qual(contextPath, "Context"), jen.Qual(pgxPath, "Tx"), consumed(t)).Error().Block(
			jen.Return(jen.Qual(consumePath, "ErrUnimplemented")),
		)
		g.Line()
	}

	ties := make([]jen.Code, len(topics))
	for i, t := range topics {
		ties[i] = jen.Qual(consumePath, "Handle").Call(jen.Id(topicVar(t)), jen.Id("c"), jen.Id(name).Dot(consumeName(t)))
	}
	addComment(g, "New"+name+" returns a consumer of the messages of namespace "+ns.Name+
		" that records their events in ib and calls c to apply their effects. Call Consume on it for each message. The "+
		"error says that ib or c is nil.")
	g.Func().Id("New"+name).Params(
		jen.Id("ib").Op("*").Qual(inboxPath, "Inbox"), jen.Id("c").Id(name),
	).Params(jen.Op("*").Qual(consumePath, "Consumer"), jen.Error()).Block(
		jen.Return(jen.Qual(consumePath, "New").Custom(callLines("ib"), ties...)),
	)
	g.Line()
	return render(f)
}

func consumeName(t *model.Topic) string { return "Consume" + t.GoName }

func consumed(t *model.Topic) *jen.Statement {
	return jen.Qual(consumePath, "Delivery").Types(jen.Id(t.GoName))
}
