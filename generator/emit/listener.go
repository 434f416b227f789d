package emit

import (
	"fmt"

	"github.com/dave/jennifer/jen"

	"github.com/outboxgen/outboxgen/generator/model"
)

// listening returns the reader of the topics of l.
func listening(l *model.Listener) reader {
	return reader{goName: l.GoName, topics: l.Topics, transactional: l.Transactional, batch: l.Batch}
}

// listener renders the file of a listener: its handlers and its constructor.
func (e *emitter) listener(l *model.Listener) ([]byte, error) {
	f := e.newFile("listener " + l.Name)
	g := f.Group
	if l.Publish {
		e.addRelay(g, l)
		return render(f)
	}
	r := listening(l)
	r.addHandlers(g, listenerDoc(r, l), userDoc("The listener", l.Doc), func(*model.Topic) string {
		if l.Batch.Size > 0 {
			return batchOutcome(l)
		}
		return outcome(l)
	})
	r.addUnimplemented(g)
	e.addListener(g, r, l)
	return render(f)
}

// listenerDoc says what the interface is and how its methods run.
func listenerDoc(r reader, l *model.Listener) string {
	doc := r.handlers() + " handles the events that listener " + l.Name + " reads."
	doc += newMethod("A new topic of the listener", l.Stubs) + " Embed " + r.unimplemented() +
		" to opt out." + whenAway + " Methods run in order per partition key, "
	if l.Concurrency > 1 {
		doc += fmt.Sprintf("up to %d concurrently", l.Concurrency)
	} else {
		doc += "one at a time"
	}
	if l.Shards > 1 {
		doc += fmt.Sprintf(" in each of the %d shards", l.Shards)
	}
	if !l.Transactional {
		doc += ", unless listener.Config.Concurrency is set"
	}
	return doc + "."
}

// outcome continues "HandleX handles one event" with what becomes of the event.
func outcome(l *model.Listener) string {
	text := ". It may run more than once per event. A nil error is success, any other error "
	if l.Transactional {
		text = " in tx, the transaction in which the cursor advances: what it writes with tx takes effect exactly once. It " +
			"must not commit or roll back tx. An error undoes its writes and "
	}
	if l.Retry.MaxAttempts == 1 {
		return text + "makes the event a dead letter of the listener."
	}
	text += fmt.Sprintf("retries the event, up to %d attempts in all, then makes it a dead letter of the listener; "+
		"outbox.Permanent(err) does so immediately.", l.Retry.MaxAttempts)
	if l.ParkKeys {
		return text + " Meanwhile the later events of its partition key are parked, and all others continue."
	}
	return text + " Until then the cursor does not advance past it."
}

// batchOutcome continues "HandleXBatch handles up to n events in one call" with what becomes of the events.
func batchOutcome(l *model.Listener) string {
	text := ". It may run more than once per event. A nil error is success of all, "
	if l.Transactional {
		text = ", in tx, the transaction in which the cursor advances: what it writes with tx takes effect exactly once. " +
			"It must not commit or roll back tx. An error undoes its writes. A nil error is success of all, "
	}
	text += "an *outbox.BatchError fails the events that it names, and any other error fails all." + batchSearch
	if l.Retry.MaxAttempts == 1 {
		return text + " An event that fails becomes a dead letter of the listener."
	}
	text += fmt.Sprintf(" An event that fails is retried, up to %d attempts in all, and then becomes a dead letter of "+
		"the listener; if its error is outbox.Permanent(err), it does so immediately.", l.Retry.MaxAttempts)
	if l.ParkKeys {
		return text + " Meanwhile the later events of its partition key are parked, and all others continue."
	}
	return text + " Until then the cursor does not advance past it."
}

func (e *emitter) addListener(g *jen.Group, r reader, l *model.Listener) {
	name := "New" + l.GoName + "Listener"
	addComment(g, name+" returns listener "+l.Name+
		", which reads the log in the database of pool with its own cursor and passes the events to h. Call Run on it. The "+
		"error names the field of cfg that is out of bounds, or says that h is nil.")
	args := append([]jen.Code{jen.Id("pool"), e.listenerSpec(l), jen.Id("cfg")}, r.ties(listenerPath)...)
	g.Func().Id(name).Params(
		jen.Id("pool").Op("*").Qual(pgxpoolPath, "Pool"),
		jen.Id("h").Id(r.handlers()),
		jen.Id("cfg").Qual(listenerPath, "Config"),
	).Params(jen.Op("*").Qual(listenerPath, "Listener"), jen.Error()).Block(
		jen.Return(jen.Qual(listenerPath, "New").Custom(callLines(), args...)),
	)
	g.Line()
}

// listenerSpec is the spec of l, without fields that have their default.
func (e *emitter) listenerSpec(l *model.Listener) *jen.Statement {
	list := []member{
		{"Schema", jen.Lit(e.model.Schema)},
		{"Name", jen.Lit(l.Name)},
	}
	if l.Latest {
		list = append(list, member{"Latest", jen.True()})
	}
	if l.ParkKeys {
		list = append(list, member{"ParkKeys", jen.True()})
	}
	if l.Concurrency > 1 {
		list = append(list, member{"Concurrency", jen.Lit(l.Concurrency)})
	}
	if l.Shards > 1 {
		list = append(list, member{"Shards", jen.Lit(l.Shards)})
	}
	if l.Batch.Size > 0 {
		list = append(list, member{"Batch", batch(l.Batch)})
	}
	if l.Rate.Events > 0 {
		list = append(list, member{"Rate", rate(l.Rate)})
	}
	list = append(list, member{"Lease", duration(l.Lease)})
	if l.MaxLag > 0 {
		list = append(list, member{"MaxLag", duration(l.MaxLag)})
	}
	list = append(list, member{"Retry", retry(l.Retry)})
	return jen.Qual(listenerPath, "Spec").Add(members(list))
}
