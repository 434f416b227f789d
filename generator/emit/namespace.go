package emit

import (
	"fmt"

	"github.com/dave/jennifer/jen"

	"github.com/outboxgen/outboxgen/generator/model"
)

// dispatched returns what handles the queue topics of ns that are not published.
func dispatched(ns *model.Namespace) reader {
	return reader{goName: ns.GoName, topics: ns.Handled()}
}

// namespace renders the file of a namespace: what it takes to handle its queue topics.
func (e *emitter) namespace(ns *model.Namespace) ([]byte, error) {
	f := e.newFile("namespace " + ns.Name)
	g := f.Group
	r := dispatched(ns)
	if len(r.topics) > 0 {
		r.addHandlers(g, namespaceDoc(r, ns), func(t *model.Topic) string {
			return fmt.Sprintf(". It may run more than once for an event: nil acks it, an error has it retried up to %s, outbox.Permanent(err) makes it a dead letter immediately.",
				attempts(t.Retry.MaxAttempts))
		})
		r.addUnimplemented(g)
	}
	addDispatcher(g, r, ns)
	return render(f)
}

// namespaceDoc says what the interface is, then what the user says about the namespace.
func namespaceDoc(r reader, ns *model.Namespace) string {
	doc := r.handlers() + " handles the queue topics of namespace " + ns.Name
	if len(ns.Handled()) < len(ns.QueueTopics()) {
		doc += " that are not published"
	}
	doc += "."
	if user := fieldDoc("The namespace", ns.Doc); user != "" {
		doc += " " + user
	}
	return doc + newMethod("A new topic", ns.Stubs) + " Embed " + r.unimplemented() + " to opt out." + whenAway + " Methods run concurrently."
}

func addDispatcher(g *jen.Group, r reader, ns *model.Namespace) {
	name := "New" + ns.GoName + "Dispatcher"
	params := []jen.Code{jen.Id("pool").Op("*").Qual(pgxpoolPath, "Pool")}
	doc := name + " returns a dispatcher that claims the events of namespace " + ns.Name + " from the database of pool and "
	fault := "names the field of cfg that is out of bounds"
	var published []*model.Topic
	for _, t := range ns.QueueTopics() {
		if t.Publish != nil {
			published = append(published, t)
		}
	}
	if len(published) > 0 {
		fault += " or has no publisher"
	}
	if len(r.topics) > 0 {
		doc += "has h handle them"
		fault += ", or says that h is nil"
		params = append(params, jen.Id("h").Id(r.handlers()))
		if len(published) > 0 {
			doc += ", or publishes them with " + publishersOf(published)
		}
	} else {
		doc += "publishes them with " + publishersOf(published)
	}
	addComment(g, doc+". Call Run on it. The error "+fault+".")
	var ties []jen.Code
	for _, t := range ns.QueueTopics() {
		if t.Publish != nil {
			ties = append(ties, publishTie("Publish", t))
		} else {
			ties = append(ties, r.tie("Handle", t))
		}
	}
	g.Func().Id(name).Params(append(params, jen.Id("cfg").Qual(outboxPath, "DispatcherConfig"))...).
		Params(jen.Op("*").Qual(outboxPath, "Dispatcher"), jen.Error()).Block(
		jen.Return(jen.Qual(outboxPath, "NewDispatcher").Custom(callLines("pool", "cfg"), ties...)),
	)
	g.Line()
}
