package emit

import (
	"github.com/dave/jennifer/jen"

	"github.com/outboxgen/outboxgen/generator/model"
)

func enqueuerName(ns *model.Namespace) string { return ns.GoName + "Enqueuer" }

// fakeName is the type that implements the Enqueuer of ns without a database.
func fakeName(ns *model.Namespace) string { return "Fake" + ns.GoName }

// addEnqueuer declares the functions that enqueue the topics of ns as an interface, and the type that calls them.
func addEnqueuer(g *jen.Group, ns *model.Namespace) {
	name, real := enqueuerName(ns), ns.GoName+"Outbox"
	addComment(g,
		name+" enqueues the events of namespace "+ns.Name+". Code that takes it can be tested without a database: "+real+
			" writes to PostgreSQL, and "+fakeName(ns)+" records. A new topic adds methods.")
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

	addComment(g, real+" is the "+name+
		" that writes to PostgreSQL. Its methods call the functions of the same name. The zero value is ready to use.")
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
			jen.Return(jen.Id(enqueueName(t)+"Many").Call(jen.Id("ctx"), jen.Id("tx"), jen.Id(payload+"s"),
				jen.Id("opts").Op("..."))),
		)
		g.Line()
	}
}

// fake renders the file of the type that records the events of ns in place of PostgreSQL.
func (e *emitter) fake(ns *model.Namespace) ([]byte, error) {
	f := e.newFile("fake of namespace " + ns.Name + " for tests")
	g := f.Group
	name, recorded := fakeName(ns), jen.Id("f").Dot("DB")
	addComment(g,
		name+" is a "+enqueuerName(ns)+
			" for tests without a database. It applies the rules of the real functions, with the same errors and the same "+
			"duplicates, and records events instead of writing them. The transaction may be nil: then an event is recorded "+
			"immediately. With a transaction of its method Begin, events are recorded when it commits. See outboxfake.DB. New"+
			name+" makes one. Fakes of several namespaces may have the same DB, and then its transactions too.")
	g.Type().Id(name).Struct(jen.Op("*").Qual(fakePath, "DB"))
	g.Line()
	g.Var().Id("_").Id(enqueuerName(ns)).Op("=").Parens(jen.Op("*").Id(name)).Parens(jen.Nil())
	g.Line()
	addComment(g, "New"+name+" returns an empty fake.")
	g.Func().Id("New" + name).Params().Op("*").Id(name).Block(jen.Return(jen.Op("&").Id(name).
		Values(jen.Id("DB").Op(":").Op("&").Qual(fakePath, "DB").Values())))
	g.Line()
	receiver := jen.Id("f").Op("*").Id(name)
	for _, t := range ns.Topics {
		addComment(g, enqueueName(t)+" records one "+t.FullName()+" event.")
		g.Func().Params(receiver.Clone()).Add(enqueueOne(t)).Block(
			jen.Return(recorded.Clone().Dot("Enqueue").Call(jen.Id("ctx"), jen.Id("tx"), untypedTopic(t),
				jen.Op("&").Id(payload), jen.Id("opts").Op("..."))),
		)
		g.Line()
		addComment(g, enqueueName(t)+"Many records one event for each of ps.")
		g.Func().Params(receiver.Clone()).Add(enqueueMany(t)).Block(
			jen.Return(recorded.Clone().Dot("EnqueueMany").Call(jen.Id("ctx"), jen.Id("tx"), untypedTopic(t),
				jen.Id(payload+"s"), jen.Id("opts").Op("..."))),
		)
		g.Line()
		addComment(g, t.GoName+" returns the payloads of the "+t.FullName()+
			" events that were recorded, without duplicates, in their order. For keys and headers use outboxfake.Events.")
		g.Func().Params(receiver.Clone()).Id(t.GoName).Params().Params(jen.Id(payload+"s").Index().Id(t.GoName)).Block(
			recorded.Clone().Dot("Decode").Call(untypedTopic(t), jen.Op("&").Id(payload+"s")),
			jen.Return(jen.Id(payload+"s")),
		)
		g.Line()
	}
	return render(f)
}
