package emit

import (
	"github.com/dave/jennifer/jen"

	"github.com/outboxgen/outboxgen/generator/model"
)

func enqueuerName(ns *model.Namespace) string { return ns.GoName + "Enqueuer" }

// fakeName is the type that implements every Enqueuer without a database.
const fakeName = "Fake"

// addEnqueuer declares the functions that enqueue the topics of ns as an interface, and the type that calls them.
func addEnqueuer(g *jen.Group, ns *model.Namespace) {
	name, real := enqueuerName(ns), ns.GoName+"Outbox"
	addComment(g, name+" enqueues the events of namespace "+ns.Name+". Code that takes it can be tested without a database: "+real+" writes to PostgreSQL, and "+fakeName+" records. A new topic adds methods.")
	g.Type().Id(name).InterfaceFunc(func(g *jen.Group) {
		for i, t := range ns.Topics {
			if i > 0 {
				g.Line()
			}
			addComment(g, enqueueName(t)+" enqueues one "+t.FullName()+" event with tx.")
			g.Add(enqueueOne(t))
			g.Line()
			addComment(g, enqueueName(t)+"Many enqueues one event for each of ps. Receipts are in the order of ps.")
			g.Add(enqueueMany(t))
		}
	})
	g.Line()

	addComment(g, real+" is the "+name+" that writes to PostgreSQL. Its methods call the functions of the same name. The zero value is ready to use.")
	g.Type().Id(real).Struct()
	g.Line()
	for _, t := range ns.Topics {
		addComment(g, enqueueName(t)+" calls the function "+enqueueName(t)+".")
		g.Func().Params(jen.Id(real)).Add(enqueueOne(t)).Block(
			jen.Return(jen.Id(enqueueName(t)).Call(jen.Id("ctx"), jen.Id("tx"), jen.Id(payload), jen.Id("opts").Op("..."))),
		)
		g.Line()
		addComment(g, enqueueName(t)+"Many calls the function "+enqueueName(t)+"Many.")
		g.Func().Params(jen.Id(real)).Add(enqueueMany(t)).Block(
			jen.Return(jen.Id(enqueueName(t)+"Many").Call(jen.Id("ctx"), jen.Id("tx"), jen.Id(payload+"s"), jen.Id("opts").Op("..."))),
		)
		g.Line()
	}
}

// fake renders the file of the type that records events in place of PostgreSQL.
func (e *emitter) fake() ([]byte, error) {
	f := e.newFile("fake for tests")
	g := f.Group
	doc := fakeName + " takes the place of the database in tests: it is the Enqueuer of each namespace. It applies the rules of the real functions, with the same errors and the same duplicates, and records events instead of writing them. The transaction may be nil: then an event is recorded immediately. With a transaction of its method Begin, events are recorded when it commits. The zero value is empty and ready to use. See outbox.Fake."
	addComment(g, doc)
	g.Type().Id(fakeName).Struct(jen.Qual(outboxPath, "Fake"))
	g.Line()
	for _, ns := range e.model.Namespaces {
		if len(ns.Topics) > 0 {
			g.Var().Id("_").Id(enqueuerName(ns)).Op("=").Parens(jen.Op("*").Id(fakeName)).Call(jen.Nil())
		}
	}
	g.Line()
	recorded := jen.Id("f").Dot("Fake")
	for _, ns := range e.model.Namespaces {
		for _, t := range ns.Topics {
			addComment(g, enqueueName(t)+" records one "+t.FullName()+" event.")
			g.Func().Params(fakeReceiver()).Add(enqueueOne(t)).Block(
				jen.Return(recorded.Clone().Dot("Enqueue").Call(jen.Id("ctx"), jen.Id("tx"), untypedTopic(t), jen.Op("&").Id(payload), jen.Id("opts").Op("..."))),
			)
			g.Line()
			addComment(g, enqueueName(t)+"Many records one event for each of ps.")
			g.Func().Params(fakeReceiver()).Add(enqueueMany(t)).Block(
				jen.Return(recorded.Clone().Dot("EnqueueMany").Call(jen.Id("ctx"), jen.Id("tx"), untypedTopic(t), jen.Id(payload+"s"), jen.Id("opts").Op("..."))),
			)
			g.Line()
			addComment(g, t.GoName+" returns the payloads of the "+t.FullName()+" events that were recorded, without duplicates, in their order. For keys and headers use outbox.FakeEvents.")
			g.Func().Params(fakeReceiver()).Id(t.GoName).Params().Index().Id(t.GoName).Block(
				jen.Return(jen.Qual(outboxPath, "FakePayloads").Call(jen.Op("&").Add(recorded.Clone()), jen.Id(topicVar(t)))),
			)
			g.Line()
		}
	}
	return render(f)
}

func fakeReceiver() *jen.Statement { return jen.Id("f").Op("*").Id(fakeName) }
