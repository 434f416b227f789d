package emit

import (
	"fmt"

	"github.com/dave/jennifer/jen"

	"github.com/outboxgen/outboxgen/generator/model"
)

// listening returns what handles the topics that l reads.
func listening(l *model.Listener) reader {
	return reader{goName: l.GoName, topics: l.Topics, transactional: l.Transactional}
}

// listener renders the file of a listener: what it takes to handle the log topics that it reads.
func (e *emitter) listener(l *model.Listener) ([]byte, error) {
	f := e.newFile("listener " + l.Name)
	g := f.Group
	if l.Publish {
		e.addRelay(g, l)
		return render(f)
	}
	r := listening(l)
	r.addHandlers(g, listenerDoc(r, l), func(*model.Topic) string { return outcome(l) })
	r.addUnimplemented(g)
	e.addListener(g, r, l)
	return render(f)
}

// listenerDoc says what the interface is, then what the user says about the listener, then how its methods
// run.
func listenerDoc(r reader, l *model.Listener) string {
	doc := r.handlers() + " handles the events that listener " + l.Name + " reads."
	if user := fieldDoc("The listener", l.Doc); user != "" {
		doc += " " + user
	}
	doc += newMethod("A new topic of the listener", l.Stubs) + " Embed " + r.unimplemented() +
		" to opt out." + whenAway + " Methods run in order within a partition key, "
	if l.Concurrency > 1 {
		doc += fmt.Sprintf("up to %d at once", l.Concurrency)
	} else {
		doc += "one at a time"
	}
	if l.Shards > 1 {
		doc += fmt.Sprintf(" for each of the %d shards", l.Shards)
	}
	if !l.Transactional {
		doc += " unless ListenerConfig.Concurrency says otherwise"
	}
	return doc + "."
}

// outcome ends the sentence "HandleX handles one event" with what becomes of it.
func outcome(l *model.Listener) string {
	text := ". It may run more than once for an event: nil is success, an error "
	if l.Transactional {
		text = " in tx, the transaction in which the cursor moves: what it writes there is there exactly once. It must not commit or roll back tx. An error undoes its writes and "
	}
	if l.Retry.MaxAttempts == 1 {
		return text + "makes it a dead letter of the listener."
	}
	text += fmt.Sprintf("has it tried again, %d attempts in all, then it becomes a dead letter of the listener; outbox.Permanent(err) makes it one immediately.", l.Retry.MaxAttempts)
	if l.ParkKeys {
		return text + " Meanwhile the later events of its partition key wait, and all others go on."
	}
	return text + " Until then the cursor does not pass it."
}

func (e *emitter) addListener(g *jen.Group, r reader, l *model.Listener) {
	name := "New" + l.GoName + "Listener"
	tie := "Listen"
	if l.Transactional {
		tie = "ListenTx"
	}
	addComment(g, name+" returns listener "+l.Name+", which reads the log in the database of pool with a cursor of its own and has h handle the events. Call Run on it. The error names the field of cfg that is out of bounds, or says that h is nil.")
	args := append([]jen.Code{jen.Id("pool"), e.listenerSpec(l), jen.Id("cfg")}, r.ties(tie)...)
	g.Func().Id(name).Params(
		jen.Id("pool").Op("*").Qual(pgxpoolPath, "Pool"),
		jen.Id("h").Id(r.handlers()),
		jen.Id("cfg").Qual(outboxPath, "ListenerConfig"),
	).Params(jen.Op("*").Qual(outboxPath, "Listener"), jen.Error()).Block(
		jen.Return(jen.Qual(outboxPath, "NewListener").Custom(callLines(), args...)),
	)
	g.Line()
}

// listenerSpec is what the YAML says of l, without what is the default of a field.
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
	list = append(list, member{"Lease", duration(l.Lease)})
	if l.MaxLag > 0 {
		list = append(list, member{"MaxLag", duration(l.MaxLag)})
	}
	list = append(list, member{"Retry", retry(l.Retry)})
	return jen.Qual(outboxPath, "ListenerSpec").Add(members(list))
}
