package emit

import (
	"fmt"

	"github.com/dave/jennifer/jen"

	"github.com/outboxgen/outboxgen/generator/model"
)

// dispatched returns the reader of the queue topics of ns that are not published.
func dispatched(ns *model.Namespace) reader {
	return reader{goName: ns.GoName, topics: ns.Handled()}
}

// namespace renders the file of a namespace: its Enqueuer, its handlers and its dispatcher.
func (e *emitter) namespace(ns *model.Namespace) ([]byte, error) {
	f := e.newFile("namespace " + ns.Name)
	g := f.Group
	addEnqueuer(g, ns)
	if len(ns.QueueTopics()) == 0 {
		return render(f)
	}
	r := dispatched(ns)
	if len(r.topics) > 0 {
		r.addHandlers(g, namespaceDoc(r, ns), userDoc("The namespace", ns.Doc), func(t *model.Topic) string {
			if t.Batch.Size > 0 {
				return dispatchedBatch(t)
			}
			if t.Retry.MaxAttempts == 1 {
				return ". It may run more than once per event. A nil error acks the event, any other error makes it a dead " +
					"letter."
			}
			return fmt.Sprintf(". It may run more than once per event. A nil error acks the event, any other error retries "+
				"it, up to %d attempts in all. outbox.Permanent(err) makes it a dead letter immediately.",
				t.Retry.MaxAttempts)
		})
		r.addUnimplemented(g)
	}
	addDispatcher(g, r, ns)
	return render(f)
}

// dispatchedBatch continues "HandleXBatch handles up to n events in one call" with what becomes of the events.
func dispatchedBatch(t *model.Topic) string {
	text := ". It may run more than once per event. A nil error acks all of them, an *outbox.BatchError fails those that " +
		"it names, and any other error fails all." + batchSearch
	if t.Retry.MaxAttempts == 1 {
		return text + " An event that fails becomes a dead letter."
	}
	return text + fmt.Sprintf(" An event that fails is retried, up to %d attempts in all; if its error is "+
		"outbox.Permanent(err), it becomes a dead letter immediately.", t.Retry.MaxAttempts)
}

// namespaceDoc says what the interface is and how its methods run.
func namespaceDoc(r reader, ns *model.Namespace) string {
	doc := r.handlers() + " handles the queue topics of namespace " + ns.Name
	if len(ns.Handled()) < len(ns.QueueTopics()) {
		doc += " that are not published"
	}
	return doc + "." + newMethod("A new topic", ns.Stubs) + " Embed " + r.unimplemented() + " to opt out." + whenAway +
		" Methods run concurrently."
}

func addDispatcher(g *jen.Group, r reader, ns *model.Namespace) {
	name := "New" + ns.GoName + "Dispatcher"
	params := []jen.Code{jen.Id("pool").Op("*").Qual(pgxpoolPath, "Pool")}
	doc := name + " returns a dispatcher that claims the events of namespace " + ns.Name +
		" from the database of pool and "
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
		doc += "passes them to h"
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
			ties = append(ties, publishTie(queuePath, t))
		} else {
			ties = append(ties, r.tie(queuePath, t))
		}
	}
	g.Func().Id(name).Params(append(params, jen.Id("cfg").Qual(queuePath, "Config"))...).
		Params(jen.Op("*").Qual(queuePath, "Dispatcher"), jen.Error()).Block(
		jen.Return(jen.Qual(queuePath, "NewDispatcher").Custom(callLines("pool", "cfg"), ties...)),
	)
	g.Line()
}
